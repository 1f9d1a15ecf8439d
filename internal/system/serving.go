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
	"skiff/internal/delegated"
	"skiff/internal/health"
	"skiff/internal/pki"
)

// newRegistry collects what /metrics shows: at first the process itself.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// watchpost offers the health and the metrics of a part that runs alone.
type watchpost struct {
	config   config.Serving
	registry *prometheus.Registry
	checks   []health.Check
	// paths are what the part serves besides, and access what a request asks for there; both may be nil.
	paths  map[string]http.Handler
	access func(*http.Request) []authorizationv1.SubjectAccessReviewSpec
	// remote is the part's own client; others may be asked who is who and who may what.
	remote      *client.Client
	kubeconfig  string
	authorities atomic.Pointer[x509.CertPool]
	log         *slog.Logger
}

// run serves until ctx ends.
func (w *watchpost) run(ctx context.Context) error {
	if w.config.SecurePort == 0 {
		<-ctx.Done()
		return nil
	}
	reviewer, err := w.reviewer()
	if err != nil {
		return err
	}
	certificate, err := w.certificate(time.Now())
	if err != nil {
		return err
	}
	if err := w.loadAuthorities(ctx); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(w.config.BindAddress, strconv.Itoa(w.config.SecurePort)))
	if err != nil {
		return fmt.Errorf("--secure-port: %w", err)
	}
	server := &delegated.Server{
		Listener: listener, Certificate: certificate, Metrics: w.registry, Checks: w.checks, Paths: map[string]http.Handler{},
		Filter: &delegated.Filter{Reviewer: reviewer, ClientCAs: w.authorities.Load, Anonymous: true, AlwaysAllowPaths: w.config.AlwaysAllowPaths, Access: w.access, Log: w.log},
	}
	maps.Copy(server.Paths, w.paths)
	if w.config.Profiling {
		addProfiling(server.Paths)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Run(ctx) })
	group.Go(func() error { w.followAuthorities(ctx); return nil })
	return group.Wait()
}

// authorityPeriod is how often the client authorities are read again: they may have been renewed.
const authorityPeriod = time.Minute

func (w *watchpost) followAuthorities(ctx context.Context) {
	ticker := time.NewTicker(authorityPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := w.loadAuthorities(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn("the client authorities could not be read again; those known before count", "error", err)
		}
	}
}

// reviewer asks the API servers of the kubeconfigs, or the part's own.
func (w *watchpost) reviewer() (delegated.Reviewer, error) {
	remotes := [2]delegated.Reviewer{delegated.Reviews(w.remote), delegated.Reviews(w.remote)}
	for i, file := range []string{w.config.AuthenticationKubeconfig, w.config.AuthorizationKubeconfig} {
		if file == "" || file == w.kubeconfig {
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

// certificate is what clients are shown: that of the files, read again when they are a minute old, or one made now.
func (w *watchpost) certificate(now time.Time) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if w.config.CertFile != "" {
		return certificateFiles(w.config.CertFile, w.config.KeyFile)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	authority, err := pki.NewCA(host+"-ca@"+strconv.FormatInt(now.Unix(), 10), now)
	if err != nil {
		return nil, err
	}
	leaf := pki.Leaf{CommonName: host + "@" + strconv.FormatInt(now.Unix(), 10), DNSNames: []string{"localhost", host}, IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, Server: true}
	if ip := net.ParseIP(w.config.BindAddress); !ip.IsUnspecified() {
		leaf.IPs = append(leaf.IPs, ip)
	}
	pair, err := authority.Issue(leaf, now)
	if err != nil {
		return nil, err
	}
	made, err := tls.X509KeyPair(pair.Cert, pair.Key)
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &made, nil }, err
}

// certificateFiles reads a certificate and reads it again when it may have been renewed. Files that are no good later do not
// end the service: what was read before stays.
func certificateFiles(certFile, keyFile string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	type reading struct {
		certificate tls.Certificate
		at          time.Time
	}
	first, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert-file: %w", err)
	}
	var last atomic.Pointer[reading]
	last.Store(&reading{first, time.Now()})
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		known := last.Load()
		if time.Since(known.at) > time.Minute {
			if fresh, err := tls.LoadX509KeyPair(certFile, keyFile); err == nil {
				known = &reading{fresh, time.Now()}
				last.Store(known)
			}
		}
		return &known.certificate, nil
	}, nil
}

// The API server publishes here by which authorities its clients are known.
const (
	publishedNamespace = "kube-system"
	publishedName      = "extension-apiserver-authentication"
	publishedKey       = "client-ca-file"
)

// loadAuthorities finds out whose client certificates are believed. Without any, clients need tokens.
func (w *watchpost) loadAuthorities(ctx context.Context) error {
	text, err := w.authorityText(ctx)
	if err != nil || len(text) == 0 {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return errors.New("--client-ca-file: there is no certificate in it")
	}
	w.authorities.Store(pool)
	return nil
}

func (w *watchpost) authorityText(ctx context.Context) ([]byte, error) {
	if w.config.ClientCAFile != "" {
		text, err := os.ReadFile(w.config.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
		return text, nil
	}
	published, err := client.For[*corev1.ConfigMap](w.remote).Get(ctx, publishedNamespace, publishedName)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		// The API server may come later; until then nobody could be asked about tokens either.
		w.log.Warn("the API server's client authorities could not be read; client certificates are not believed", "error", err)
		return nil, nil
	}
	return []byte(published.Data[publishedKey]), nil
}
