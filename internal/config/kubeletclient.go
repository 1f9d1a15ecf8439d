package config

import (
	"errors"

	"github.com/spf13/pflag"
)

// KubeletClient configures how the API server connects to kubelets. Empty files mean the cluster's own CA and a client certificate of it.
type KubeletClient struct {
	CAFile, CertFile, KeyFile string
	// AddressTypes is the order in which the addresses of a node are preferred.
	AddressTypes []string
}

func defaultKubeletClient() KubeletClient {
	return KubeletClient{AddressTypes: []string{"InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS", "Hostname"}}
}

func (c *KubeletClient) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.CAFile, "kubelet-certificate-authority", c.CAFile, "Path to the CA certificates of kubelets, besides the cluster's own CA.")
	fs.StringVar(&c.CertFile, "kubelet-client-certificate", c.CertFile, "Path to the client certificate for kubelets. Defaults to one of the cluster's CA.")
	fs.StringVar(&c.KeyFile, "kubelet-client-key", c.KeyFile, "Path to the private key of --kubelet-client-certificate.")
	fs.StringSliceVar(&c.AddressTypes, "kubelet-preferred-address-types", c.AddressTypes, "Types of node addresses to connect to, the preferred one first.")
}

func (c *KubeletClient) validate() error {
	if (c.CertFile == "") != (c.KeyFile == "") {
		return errors.New("--kubelet-client-certificate: certificate and key are needed together")
	}
	return nil
}
