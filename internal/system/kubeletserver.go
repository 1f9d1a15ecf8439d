package system

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/delegated"
	"skiff/internal/kubelet/bootstrap"
	"skiff/internal/kubelet/server"
	"skiff/internal/pki"
)

// kubeletPort is where a kubelet answers unless its configuration says otherwise.
const kubeletPort = 10250

// nodeIdentity is what the node's server proves itself by, and whom it believes.
type nodeIdentity struct {
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	clients     func() *x509.CertPool
	// run renews the certificate until ctx ends.
	run func(ctx context.Context) error
}

// serverNodeIdentity is the identity of the node inside `skiff server`, given to it by the cluster's own authority.
func serverNodeIdentity(directory pki.Dir, authority *pki.CA, name string, addresses []string, log *slog.Logger) (*nodeIdentity, error) {
	keeper, err := directory.Renewer("kubelet-serving", authority, pki.NodeServing(name, nil, parseIPs(addresses)))
	if err != nil {
		return nil, err
	}
	return &nodeIdentity{certificate: keeper.GetCertificate, clients: authority.Pool, run: renewing(keeper, log)}, nil
}

// renewing renews a certificate that this machine's own authority issues.
func renewing(keeper *pki.Renewer, log *slog.Logger) func(context.Context) error {
	return func(ctx context.Context) error { return keeper.Run(ctx, log.With("part", "certificates")) }
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

// ownNodeIdentity is the identity of a kubelet that runs alone: the files its configuration names, a certificate that
// the cluster gives it, or one it makes itself.
func (n *nodeParts) ownNodeIdentity() (*nodeIdentity, error) {
	id := &nodeIdentity{clients: func() *x509.CertPool { return nil }, run: func(context.Context) error { return nil }}
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
	if n.settings.ServerTLSBootstrap {
		serving := bootstrap.NodeServing(n.certificates, n.name, n.registered, n.log.With("part", "certificates"))
		if err := serving.Load(); err != nil {
			return nil, fmt.Errorf("serverTLSBootstrap: %w", err)
		}
		renewForNewest(serving, n.authorityFile)
		id.certificate = serving.GetCertificate
		id.run = func(ctx context.Context) error { return serving.Run(ctx, n.client) }
		return id, nil
	}
	directory := pki.Dir(filepath.Join(n.root, "pki"))
	authority, err := directory.CA("kubelet-ca", n.name+"-ca", time.Now())
	if err != nil {
		return nil, err
	}
	keeper, err := directory.Renewer("kubelet", authority, pki.NodeServing(n.name, nil, parseIPs(n.addresses)))
	if err != nil {
		return nil, err
	}
	id.certificate, id.run = keeper.GetCertificate, renewing(keeper, n.log)
	return id, nil
}

// registered is the node as the API has it, or nil as long as it has none.
func (n *nodeParts) registered() *corev1.Node {
	object := n.node.Node()
	if object == nil || object.UID == "" {
		return nil
	}
	return object
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
	pods := &server.Server{Pods: n.kubelet, Runtime: n.runtime, Usage: n.usage, Probes: n.metrics.Probes, Log: n.log.With("part", "kubelet-server")}
	s := &delegated.Server{
		Listener: listener, Certificate: n.proof.certificate, Metrics: n.metrics.All, Paths: pods.Paths(),
		Filter: &delegated.Filter{
			Reviewer: delegated.Reviews(n.client), ClientCAs: n.proof.clients, Access: server.Access(n.name), Log: n.log.With("part", "kubelet-server"),
		},
	}
	return s.Run(ctx)
}
