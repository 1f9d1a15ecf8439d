package system

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/controllers/clusterauthentication"
	"skiff/internal/delegated"
	"skiff/internal/health"
	"skiff/internal/pki"
	"skiff/internal/version"
)

// newRegistry returns a metrics registry with the metrics of the process.
func newRegistry(gates config.FeatureGates) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), version.Metric(), gates)
	return registry
}

// componentServer serves the health checks and metrics of a component that runs alone.
type componentServer struct {
	config   config.Serving
	registry *prometheus.Registry
	checks   []health.Check
	// paths are served besides, and access is the access that a request to them needs; both may be nil.
	paths  map[string]http.Handler
	access func(*http.Request) []authorizationv1.SubjectAccessReviewSpec
	// remote is the component's own client, which reviews tokens and access unless the configuration names other API servers.
	remote     *client.Client
	kubeconfig string
	clientCAs  atomic.Pointer[x509.CertPool]
	log        *slog.Logger
}

// run serves until ctx is done.
func (s *componentServer) run(ctx context.Context) error {
	if s.config.SecurePort == 0 {
		<-ctx.Done()
		return nil
	}
	reviewer, err := s.reviewer()
	if err != nil {
		return err
	}
	certificate, err := s.certificate(time.Now())
	if err != nil {
		return err
	}
	if err := s.loadClientCAs(ctx); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(s.config.BindAddress, strconv.Itoa(s.config.SecurePort)))
	if err != nil {
		return fmt.Errorf("--secure-port: %w", err)
	}
	server := &delegated.Server{
		Listener: listener, Certificate: certificate, Metrics: s.registry, Checks: s.checks, Paths: map[string]http.Handler{},
		Filter: &delegated.Filter{
			Reviewer: reviewer, ClientCAs: s.clientCAs.Load, Anonymous: true, AlwaysAllowPaths: s.config.AlwaysAllowPaths, Access: s.access, Log: s.log,
		},
	}
	maps.Copy(server.Paths, s.paths)
	if s.config.Profiling {
		addProfiling(server.Paths)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Run(ctx) })
	group.Go(func() error { s.runClientCAs(ctx); return nil })
	return group.Wait()
}

// clientCAPeriod is the time between two reads of the client CAs, which may have been rotated.
const clientCAPeriod = time.Minute

func (s *componentServer) runClientCAs(ctx context.Context) {
	ticker := time.NewTicker(clientCAPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := s.loadClientCAs(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("failed to reload client CAs, using the previous ones", "error", err)
		}
	}
}

// reviewer reviews tokens and access with the API servers of the kubeconfigs, or the component's own.
func (s *componentServer) reviewer() (delegated.Reviewer, error) {
	remotes := [2]delegated.Reviewer{delegated.Reviews(s.remote), delegated.Reviews(s.remote)}
	for i, file := range []string{s.config.AuthenticationKubeconfig, s.config.AuthorizationKubeconfig} {
		if file == "" || file == s.kubeconfig {
			continue
		}
		remote, err := dial(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", []string{"--authentication-kubeconfig", "--authorization-kubeconfig"}[i], err)
		}
		remotes[i] = delegated.Reviews(remote)
	}
	return struct {
		tokenReviewer
		accessReviewer
	}{remotes[0], remotes[1]}, nil
}

// The two halves of a delegated.Reviewer.
type (
	tokenReviewer interface {
		Token(ctx context.Context, spec authenticationv1.TokenReviewSpec) (authenticationv1.TokenReviewStatus, error)
	}
	accessReviewer interface {
		Access(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error)
	}
)

// certificate is the serving certificate: that of the files, or a self-signed one.
func (s *componentServer) certificate(now time.Time) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if s.config.CertFile != "" {
		files, err := pki.ReadCertFiles(s.config.CertFile, s.config.KeyFile, s.log)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert-file: %w", err)
		}
		return files.GetCertificate, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	ca, err := pki.NewCA(host+"-ca@"+strconv.FormatInt(now.Unix(), 10), now)
	if err != nil {
		return nil, err
	}
	leaf := pki.Leaf{CommonName: host + "@" + strconv.FormatInt(now.Unix(), 10), DNSNames: []string{"localhost", host}, IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, Server: true}
	if ip := net.ParseIP(s.config.BindAddress); !ip.IsUnspecified() {
		leaf.IPs = append(leaf.IPs, ip)
	}
	pair, err := ca.Issue(leaf, now)
	if err != nil {
		return nil, err
	}
	made, err := tls.X509KeyPair(pair.Cert, pair.Key)
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &made, nil }, err
}

// loadClientCAs reads the CAs of client certificates. Without any, clients need tokens.
func (s *componentServer) loadClientCAs(ctx context.Context) error {
	text, err := s.clientCABundle(ctx)
	if err != nil || len(text) == 0 {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return errors.New("--client-ca-file: no certificate found")
	}
	s.clientCAs.Store(pool)
	return nil
}

func (s *componentServer) clientCABundle(ctx context.Context) ([]byte, error) {
	if s.config.ClientCAFile != "" {
		text, err := os.ReadFile(s.config.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
		return text, nil
	}
	published, err := client.For[*corev1.ConfigMap](s.remote).Get(ctx, clusterauthentication.Namespace, clusterauthentication.Name)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		// The API server may start later. Until then tokens cannot be reviewed either.
		s.log.Warn("failed to read client CAs from the API server, client certificates are not accepted", "error", err)
		return nil, nil
	}
	return []byte(published.Data[clusterauthentication.ClientCAKey]), nil
}
