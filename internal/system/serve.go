package system

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"skiff/internal/config"
	"skiff/internal/http2"
)

// apiService serves the API over HTTPS and shuts down in the order of upstream's API server.
type apiService struct {
	server      *http.Server
	http2Server string
	shutdown    config.Shutdown
	// requestTimeout is how long the shutdown waits for running requests.
	requestTimeout time.Duration
	// begin is called when the shutdown begins, endLongRunning when the listener is closed.
	begin          func()
	endLongRunning func(gracePeriod time.Duration)
	log            *slog.Logger
}

// serve serves requests on the listener until ctx is done. Then readiness fails, the delay passes, the listener is closed, clients of
// HTTP/2 get GOAWAY, long-running requests are ended, and all others finish.
func (a *apiService) serve(ctx context.Context, listener net.Listener) error {
	// Requests are cut off by this context if they do not finish in time.
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	a.server.BaseContext = func(net.Listener) context.Context { return base }
	// Without Configure net/http serves HTTP/2 itself, because the TLS configuration offers it.
	if a.http2Server == config.HTTP2Skiff {
		http2.Configure(a.server)
		listener = http2.Listener(listener)
	}
	a.server.RegisterOnShutdown(func() { a.endLongRunning(a.shutdown.WatchGracePeriod) })
	served := make(chan error, 1)
	go func() { served <- a.server.Serve(tls.NewListener(listener, a.server.TLSConfig)) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	a.log.Info("shutting down", "delay", a.shutdown.Delay.String())
	a.begin()
	select {
	case err := <-served:
		return err
	case <-time.After(a.shutdown.Delay):
	}
	timeout := max(a.requestTimeout, a.shutdown.WatchGracePeriod)
	draining, stop := context.WithTimeout(context.Background(), timeout)
	defer stop()
	if err := a.server.Shutdown(draining); err != nil {
		a.log.Warn("failed to finish all requests before the timeout, closing their connections", "timeout", timeout.String())
		cancel()
		_ = a.server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	a.log.Info("all requests finished")
	return nil
}
