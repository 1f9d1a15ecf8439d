package delegated

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"skiff/internal/health"
)

// HealthPaths need no authorization by default.
var HealthPaths = []string{"/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*"}

// Server serves a component's health checks and metrics over TLS.
type Server struct {
	Listener net.Listener
	// Certificate returns the serving certificate.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Filter      *Filter
	Metrics     prometheus.Gatherer
	Checks      []health.Check
	// Paths are additional handlers by pattern.
	Paths map[string]http.Handler
}

// Handler returns the filtered handler of all paths.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	all := append([]health.Check{health.Ping}, s.Checks...)
	for root, checks := range map[string]health.Checks{"healthz": health.Live(all), "livez": health.Live(all), "readyz": all} {
		serve := func(w http.ResponseWriter, r *http.Request) {
			if !checks.Serve(r.Context(), w, r.URL.Query(), root, strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/"+root), "/")) {
				http.NotFound(w, r)
			}
		}
		mux.HandleFunc("/"+root, serve)
		mux.HandleFunc("/"+root+"/", serve)
	}
	mux.Handle("/metrics", promhttp.HandlerFor(s.Metrics, promhttp.HandlerOpts{}))
	for path, handler := range s.Paths {
		mux.Handle(path, handler)
	}
	return s.Filter.Wrap(mux)
}

// Run serves until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	h := &http.Server{
		Handler:           s.Handler(),
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: s.Certificate, ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2", "http/1.1"}},
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
