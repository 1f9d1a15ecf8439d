package system

import (
	"crypto/ecdsa"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"skiff/internal/atomicfile"
	"skiff/internal/config"
	"skiff/internal/pki"
)

// adminKubeconfig is the administrator's kubeconfig, below the data directory.
const adminKubeconfig = "admin.kubeconfig"

// frontProxyName is the common name of the certificate the server shows to API servers behind it.
const frontProxyName = pki.FrontProxyClientName

// certificates are what the server proves itself and others by.
type certificates struct {
	authority  *pki.CA
	frontProxy *pki.CA
	signingKey *ecdsa.PrivateKey
	serving    *tls.Config
	// kubeletClient proves the server to kubelets.
	kubeletClient *pki.Renewer
	// keepers renew the leaves while the server runs.
	keepers pki.Renewers
}

// newCertificates loads the keys below the data directory, makes what is missing, and writes the administrator's kubeconfig.
func newCertificates(c config.Server, now time.Time) (*certificates, error) {
	directory := pki.Dir(filepath.Join(c.DataDir, "pki"))
	authority, err := directory.CA("ca", "skiff-ca", now)
	if err != nil {
		return nil, fmt.Errorf("cluster authority: %w", err)
	}
	frontProxy, err := directory.CA("front-proxy-ca", "skiff-front-proxy-ca", now)
	if err != nil {
		return nil, fmt.Errorf("front-proxy authority: %w", err)
	}
	signingKey, err := directory.SigningKey("service-account")
	if err != nil {
		return nil, fmt.Errorf("service-account key: %w", err)
	}
	leaf, err := servingLeaf(c)
	if err != nil {
		return nil, err
	}
	serving, err := directory.Renewer("apiserver", authority, leaf)
	if err != nil {
		return nil, err
	}
	kubeletClient, err := directory.Renewer("apiserver-kubelet-client", authority, pki.KubeletClient())
	if err != nil {
		return nil, err
	}
	admin, err := directory.Renewer("admin", authority, pki.User("admin", "system:masters"))
	if err != nil {
		return nil, err
	}
	proxyClient, err := directory.Renewer("front-proxy-client", frontProxy, pki.FrontProxyClient())
	if err != nil {
		return nil, err
	}
	etcd, err := etcdKeepers(directory, leaf.IPs, now)
	if err != nil {
		return nil, err
	}
	if err := admin.OnRenew(func(pair pki.Pair) error { return writeAdminKubeconfig(c, authority, pair) }); err != nil {
		return nil, err
	}
	return &certificates{
		authority:  authority,
		frontProxy: frontProxy,
		signingKey: signingKey,
		serving:    pki.ServerTLS(serving, authority, frontProxy),
		keepers:    append(etcd, serving, admin, kubeletClient, proxyClient),

		kubeletClient: kubeletClient,
	}, nil
}

// etcdKeepers make and keep the certificates of etcd, which has an authority of its own: whom the cluster knows may not therefore
// read its store.
func etcdKeepers(directory pki.Dir, addresses []net.IP, now time.Time) (pki.Renewers, error) {
	authority, err := directory.CA("etcd-ca", "skiff-etcd-ca", now)
	if err != nil {
		return nil, fmt.Errorf("etcd authority: %w", err)
	}
	member, err := directory.Renewer("etcd-server", authority, pki.EtcdMember("skiff-etcd", addresses))
	if err != nil {
		return nil, err
	}
	client, err := directory.Renewer("etcd-client", authority, pki.EtcdClient())
	return pki.Renewers{member, client}, err
}

// etcdFiles are what the embedded etcd proves itself by and knows its clients by, at an https address.
func etcdFiles(c config.Server) (authority, cert, key string, err error) {
	if e := &c.Etcd; e.CertFile != "" || e.CAFile != "" {
		if e.CAFile == "" {
			return "", "", "", errors.New("--etcd-cafile: without it everybody could read the store through --etcd-listen-client-url")
		}
		return e.CAFile, e.CertFile, e.KeyFile, nil
	}
	directory := filepath.Join(c.DataDir, "pki")
	return filepath.Join(directory, "etcd-ca.crt"), filepath.Join(directory, "etcd-server.crt"), filepath.Join(directory, "etcd-server.key"), nil
}

// servingLeaf lists every name and address the API may be reached by.
func servingLeaf(c config.Server) (pki.Leaf, error) {
	leaf := pki.Leaf{
		CommonName: "kube-apiserver",
		DNSNames:   []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + c.ClusterDomain},
		IPs:        []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		Server:     true,
	}
	if host, err := os.Hostname(); err == nil {
		leaf.DNSNames = append(leaf.DNSNames, host)
	}
	prefixes, err := c.ServiceCIDRs()
	if err != nil {
		return leaf, err
	}
	for _, p := range prefixes {
		leaf.IPs = append(leaf.IPs, net.IP(p.Addr().Next().AsSlice()))
	}
	for _, text := range []string{c.AdvertiseAddress, c.BindAddress} {
		if ip := net.ParseIP(text); ip != nil && !ip.IsUnspecified() {
			leaf.IPs = append(leaf.IPs, ip)
		}
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return leaf, fmt.Errorf("list the machine's addresses: %w", err)
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			leaf.IPs = append(leaf.IPs, n.IP)
		}
	}
	return leaf, nil
}

// advertised is the address other parts reach the API at.
func advertised(c config.Server) net.IP {
	for _, text := range []string{c.AdvertiseAddress, c.BindAddress} {
		if ip := net.ParseIP(text); ip != nil && !ip.IsUnspecified() {
			return ip
		}
	}
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			return n.IP
		}
	}
	return net.IPv4(127, 0, 0, 1)
}

func writeAdminKubeconfig(c config.Server, authority *pki.CA, admin pki.Pair) error {
	host := c.BindAddress
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	k := clientcmdapi.NewConfig()
	k.Clusters["skiff"] = &clientcmdapi.Cluster{
		Server:                   "https://" + net.JoinHostPort(host, strconv.Itoa(c.SecurePort)),
		CertificateAuthorityData: authority.Cert,
	}
	k.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: admin.Cert, ClientKeyData: admin.Key}
	k.Contexts["skiff"] = &clientcmdapi.Context{Cluster: "skiff", AuthInfo: "admin"}
	k.CurrentContext = "skiff"
	paths := []string{filepath.Join(c.DataDir, adminKubeconfig)}
	if c.WriteKubeconfig != "" {
		paths = append(paths, c.WriteKubeconfig)
	}
	data, err := clientcmd.Write(*k)
	if err != nil {
		return fmt.Errorf("encode kubeconfig: %w", err)
	}
	for _, path := range paths {
		if err := atomicfile.Write(path, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
