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

// HealthPaths are open to everyone, unless told otherwise.
var HealthPaths = []string{"/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*"}

// Server offers a part's health and metrics over TLS.
type Server struct {
	Listener net.Listener
	// Certificate returns what the part shows to clients.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Filter      *Filter
	Metrics     prometheus.Gatherer
	Checks      []health.Check
	// Paths are served besides health and metrics, with everything below when they end in "/".
	Paths map[string]http.Handler
}

// Handler answers the part's paths, behind the gate.
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

// Run answers requests until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	h := &http.Server{
		Handler:           s.Handler(),
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: s.Certificate, ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2", "http/1.1"}},
		ReadHeaderTimeout: 32 * time.Second,
		IdleTimeout:       90 * time.Second,
		// What clients do wrong while connecting is theirs to know.
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
