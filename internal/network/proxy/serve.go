package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// DefaultHealthzAddress and DefaultMetricsAddress are those of kube-proxy.
	DefaultHealthzAddress = "0.0.0.0:10256"
	DefaultMetricsAddress = "127.0.0.1:10249"
	// bindRetry is the time until a port that is in use is tried again.
	bindRetry = 5 * time.Second
)

// Mode is the proxy mode of kube-proxy that the rules are like.
const Mode = "nftables"

// HealthzHandler serves /healthz and /livez.
func (p *Proxy) HealthzHandler() http.Handler {
	mux := http.NewServeMux()
	p.health.Register(mux)
	return mux
}

// MetricsHandler serves /metrics and /proxyMode.
func MetricsHandler(metrics prometheus.Gatherer) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_, _ = io.WriteString(w, body)
		}
	}
	mux.HandleFunc("/healthz", text("ok"))
	mux.HandleFunc("/proxyMode", text(Mode))
	return mux
}

// Endpoint is an HTTP server of the proxy.
type Endpoint struct {
	// Name is used in errors and log messages.
	Name, Address string
	Handler       http.Handler
	// Required makes it an error if the address cannot be bound. Otherwise it is tried again.
	Required bool
	Log      *slog.Logger
}

// Serve serves until ctx is done. Without an address it serves nothing.
func (e Endpoint) Serve(ctx context.Context) error {
	if e.Address == "" {
		return nil
	}
	for {
		listener, err := net.Listen("tcp", e.Address)
		if err == nil {
			err = e.serve(ctx, listener)
		} else {
			err = fmt.Errorf("listen for %s: %w", e.Name, err)
		}
		if ctx.Err() != nil {
			return nil
		}
		if e.Required {
			return err
		}
		e.Log.Warn("failed to serve, trying again", "server", e.Name, "address", e.Address, "error", err, "retry", bindRetry.String())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(bindRetry):
		}
	}
}

func (e Endpoint) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: e.Handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", e.Name, err)
	}
	return nil
}
