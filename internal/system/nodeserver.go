package system

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"skiff/internal/config"
	"skiff/internal/configfile"
	"skiff/internal/delegated"
	"skiff/internal/health"
	"skiff/internal/kubelet/bootstrap"
	kubeletserver "skiff/internal/kubelet/server"
	"skiff/internal/listeners"
	"skiff/internal/pki"
)

// kubeletPort is the default port of the kubelet's server.
const kubeletPort = 10250

// nodeIdentity is the serving certificate of the kubelet's server, and the CAs of its clients.
type nodeIdentity struct {
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	clientCAs   func() *x509.CertPool
	// run renews the certificate until ctx is done.
	run func(ctx context.Context) error
}

// serverNodeIdentity is the identity of the node inside `skiff server`, whose certificate the cluster's CA issues directly.
func serverNodeIdentity(dir pki.Dir, ca *pki.CA, name string, addresses []string, log *slog.Logger) (*nodeIdentity, error) {
	renewer, err := dir.Renewer("kubelet-serving", ca, pki.NodeServing(name, nil, parseIPs(addresses)))
	if err != nil {
		return nil, err
	}
	return &nodeIdentity{certificate: renewer.GetCertificate, clientCAs: ca.Pool, run: renewing(renewer, log)}, nil
}

// renewing renews a certificate of a CA in the data directory.
func renewing(renewer *pki.Renewer, log *slog.Logger) func(context.Context) error {
	return func(ctx context.Context) error { return renewer.Run(ctx, log.With("component", "certificates")) }
}

// buildIdentity makes the identity of the kubelet's server.
func (n *nodeComponents) buildIdentity() (err error) {
	if n.identity != nil {
		warnings, err := configfile.Check(n.settings, config.ServerNodeUnused)
		if err != nil {
			return fmt.Errorf("KubeletConfiguration: %w", err)
		}
		for _, warning := range warnings {
			n.log.Warn("ignored a field of the KubeletConfiguration", "warning", warning)
		}
		n.proof, err = n.identity(n.name, n.addresses)
		return err
	}
	n.proof, err = n.configuredIdentity()
	return err
}

// configuredIdentity is the identity of a kubelet outside `skiff server`: the files of its configuration, a certificate that the cluster
// issues, or a self-signed one.
func (n *nodeComponents) configuredIdentity() (*nodeIdentity, error) {
	id := &nodeIdentity{clientCAs: func() *x509.CertPool { return nil }, run: func(context.Context) error { return nil }}
	if file := n.settings.Authentication.X509.ClientCAFile; file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("authentication.x509.clientCAFile: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("authentication.x509.clientCAFile: %s has no certificate", file)
		}
		id.clientCAs = func() *x509.CertPool { return pool }
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
		serving := bootstrap.NodeServing(n.certificateDir, n.name, n.registered, n.log.With("component", "certificates"))
		if err := serving.Load(); err != nil {
			return nil, fmt.Errorf("serverTLSBootstrap: %w", err)
		}
		bootstrap.RenewForNewestCA(serving, n.caFile)
		id.certificate = serving.GetCertificate
		id.run = func(ctx context.Context) error { return serving.Run(ctx, n.client) }
		return id, nil
	}
	dir := pki.Dir(filepath.Join(n.root, "pki"))
	ca, err := dir.CA("kubelet-ca", n.name+"-ca", time.Now())
	if err != nil {
		return nil, err
	}
	renewer, err := dir.Renewer("kubelet", ca, pki.NodeServing(n.name, nil, parseIPs(n.addresses)))
	if err != nil {
		return nil, err
	}
	id.certificate, id.run = renewer.GetCertificate, renewing(renewer, n.log)
	return id, nil
}

// registered is the node as the API server has it, or nil before it has registered.
func (n *nodeComponents) registered() *corev1.Node {
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

// hostLogDir is the directory of the host's logs.
const hostLogDir = "/var/log"

// configuration is the kubelet's configuration as it is in force.
func (n *nodeComponents) configuration() *kubeletconfig.KubeletConfiguration {
	c := n.settings.DeepCopy()
	c.SetGroupVersionKind(kubeletconfig.SchemeGroupVersion.WithKind("KubeletConfiguration"))
	return c
}

// serve serves the kubelet's API.
func (n *nodeComponents) serve(ctx context.Context) error {
	port := int(n.settings.Port)
	if port == 0 {
		port = kubeletPort
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(n.settings.Address, strconv.Itoa(port)))
	if err != nil {
		return listeners.Explain(err, otherKubeletPort)
	}
	options, err := config.NodeServerTLS(n.settings)
	if err != nil {
		return err
	}
	pods := &kubeletserver.Server{
		Pods: n.kubelet, Runtime: n.runtime, Usage: n.usage, Probes: n.metrics.Probes, Configuration: n.configuration(),
		CheckpointDir: filepath.Join(n.root, "checkpoints"), Log: n.log.With("component", "kubelet-server"),
	}
	if *n.settings.EnableSystemLogHandler {
		pods.LogDir = hostLogDir
	}
	s := &delegated.Server{
		Listener: listener, Certificate: n.proof.certificate, TLS: options, Metrics: n.metrics.All, Paths: pods.Paths(), Tracing: n.tracing,
		Filter: &delegated.Filter{
			Reviewer: delegated.Reviews(n.client), ClientCAs: n.proof.clientCAs, Access: kubeletserver.Access(n.name), Log: n.log.With("component", "kubelet-server"),
			Anonymous: *n.settings.Authentication.Anonymous.Enabled, TokenTTL: n.settings.Authentication.Webhook.CacheTTL.Duration,
			AllowTTL: n.settings.Authorization.Webhook.CacheAuthorizedTTL.Duration, DenyTTL: n.settings.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
		},
	}
	return s.Run(ctx)
}

// healthzRetry is how long to wait before another attempt to listen for health checks.
const healthzRetry = 5 * time.Second

// serveHealthz serves the kubelet's health checks without TLS, for programs on this host. A port that is in use does not stop the node.
func (n *nodeComponents) serveHealthz(ctx context.Context) error {
	address := net.JoinHostPort(n.settings.HealthzBindAddress, strconv.Itoa(int(*n.settings.HealthzPort)))
	var listener net.Listener
	for failed := false; ; failed = true {
		var err error
		if listener, err = net.Listen("tcp", address); err == nil {
			break
		}
		if !failed {
			n.log.Error("failed to listen for health checks", "error", listeners.Explain(err, "set another healthzPort in the file of --kubelet-config"))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(healthzRetry):
		}
	}
	mux := http.NewServeMux()
	health.Checks{health.Ping}.AddTo(mux, "healthz")
	h := &http.Server{Handler: mux, ReadHeaderTimeout: 32 * time.Second, IdleTimeout: 90 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = h.Close() })
	defer stop()
	if err := h.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health checks: %w", err)
	}
	return nil
}
