package system

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skiff/internal/delegated"
	"skiff/internal/kubelet/server"
	"skiff/internal/pki"
)

// kubeletPort is where a kubelet answers unless its configuration says otherwise.
const kubeletPort = 10250

// nodeIdentity is what the node's server proves itself by, and whom it believes.
type nodeIdentity struct {
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	clients     func() *x509.CertPool
	// keepers renew the certificate while the node runs.
	keepers pki.Keepers
}

// serverNodeIdentity is the identity of the node inside `skiff server`, given to it by the cluster's own authority.
func serverNodeIdentity(folder pki.Folder, authority *pki.Authority, name string, addresses []string) (*nodeIdentity, error) {
	keeper, err := folder.Keep("kubelet-serving", authority, pki.NodeServing(name, nil, parseIPs(addresses)))
	if err != nil {
		return nil, err
	}
	return &nodeIdentity{certificate: keeper.GetCertificate, clients: authority.Pool, keepers: pki.Keepers{keeper}}, nil
}

// makeIdentity finds out what the node's server proves itself by.
func (n *nodeParts) makeIdentity() (err error) {
	if n.identity != nil {
		n.proof, err = n.identity(n.name, n.addresses)
	} else {
		n.proof, err = n.ownNodeIdentity()
	}
	return err
}

// ownNodeIdentity is the identity of a kubelet that runs alone: the files its configuration names, or a certificate it makes itself.
func (n *nodeParts) ownNodeIdentity() (*nodeIdentity, error) {
	id := &nodeIdentity{clients: func() *x509.CertPool { return nil }}
	if file := n.settings.Authentication.X509.ClientCAFile; file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("authentication.x509.clientCAFile: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("authentication.x509.clientCAFile: %s holds no certificate", file)
		}
		id.clients = func() *x509.CertPool { return pool }
	}
	if n.settings.TLSCertFile != "" {
		pair, err := tls.LoadX509KeyPair(n.settings.TLSCertFile, n.settings.TLSPrivateKeyFile)
		if err != nil {
			return nil, fmt.Errorf("tlsCertFile: %w", err)
		}
		id.certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }
		return id, nil
	}
	folder := pki.Folder(filepath.Join(n.root, "pki"))
	authority, err := folder.Authority("kubelet-ca", n.name+"-ca", time.Now())
	if err != nil {
		return nil, err
	}
	keeper, err := folder.Keep("kubelet", authority, pki.NodeServing(n.name, nil, parseIPs(n.addresses)))
	if err != nil {
		return nil, err
	}
	id.certificate, id.keepers = keeper.GetCertificate, pki.Keepers{keeper}
	return id, nil
}

func parseIPs(texts []string) (ips []net.IP) {
	for _, text := range texts {
		if ip := net.ParseIP(text); ip != nil {
			ips = append(ips, ip)
		}
	}
	return ips
}

// serve answers the API server, and others who may, about the node's pods.
func (n *nodeParts) serve(ctx context.Context) error {
	port := int(n.settings.Port)
	if port == 0 {
		port = kubeletPort
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(n.settings.Address, strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("listen for the API server: %w", err)
	}
	pods := &server.Server{Pods: n.kubelet, Runtime: n.runtime, Usage: n.usage, Log: n.log.With("part", "kubelet-server")}
	s := &delegated.Server{
		Listener: listener, Certificate: n.proof.certificate, Metrics: prometheus.NewRegistry(), Paths: pods.Paths(),
		Gate: &delegated.Gate{
			Reviewer: delegated.Reviews(n.client), ClientAuthorities: n.proof.clients, Access: server.Access(n.name), Log: n.log.With("part", "kubelet-server"),
		},
	}
	return s.Run(ctx)
}
