package delegated

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"skiff/internal/health"
	"skiff/internal/tracing"
)

// HealthPaths need no authorization by default.
var HealthPaths = []string{"/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*"}

// Server serves a component's health checks and metrics over TLS.
type Server struct {
	Listener net.Listener
	// Certificate returns the serving certificate.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// TLS has the versions, cipher suites and key exchange mechanisms to serve; nil means TLS 1.2 and Go's defaults.
	TLS     *tls.Config
	Filter  *Filter
	Metrics prometheus.Gatherer
	Checks  []health.Check
	// Paths are additional handlers by pattern.
	Paths map[string]http.Handler
	// Tracing records the requests of authorized clients; nil: none.
	Tracing *tracing.Provider
}

// Handler returns the filtered handler of all paths.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	all := append([]health.Check{health.Ping}, s.Checks...)
	slis := health.NewSLIs()
	for root, checks := range map[string]health.Checks{"healthz": health.Healthy(all), "livez": health.Live(all), "readyz": all} {
		slis.Observe(checks, root).AddTo(mux, root)
	}
	mux.Handle("/metrics/slis", slis)
	mux.Handle("/metrics", promhttp.HandlerFor(s.Metrics, promhttp.HandlerOpts{}))
	for path, handler := range s.Paths {
		mux.Handle(path, handler)
	}
	return s.Filter.Wrap(s.Tracing.Handler(mux, "kubelet"))
}

// Run serves until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	options := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.TLS != nil {
		options = s.TLS.Clone()
	}
	options.GetCertificate, options.ClientAuth, options.NextProtos = s.Certificate, tls.RequestClientCert, []string{"h2", "http/1.1"}
	h := &http.Server{
		Handler:           s.Handler(),
		TLSConfig:         options,
		ReadHeaderTimeout: 32 * time.Second,
		IdleTimeout:       90 * time.Second,
		// Failed TLS handshakes are not logged.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	done := make(chan error, 1)
	go func() { done <- h.ServeTLS(s.Listener, "", "") }()
	select {
	case err := <-done:
		return fmt.Errorf("serve health and metrics: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := h.Shutdown(grace); err != nil {
		_ = h.Close()
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
