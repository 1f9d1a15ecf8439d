// Package system puts the parts together and runs them. It is the only package that knows all of them; nobody but
// cmd imports it.
package system

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"skiff/internal/api"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/authn"
	streams "skiff/internal/apiserver/connect"
	"skiff/internal/config"
	"skiff/internal/controllers"
	"skiff/internal/controllers/volume"
	"skiff/internal/http2"
	"skiff/internal/kind"
	"skiff/internal/openapi"
	"skiff/internal/scheduler"
	"skiff/internal/store/cache"
	"skiff/internal/version"
)

// shutdownGrace is how long running requests may take to finish when the server stops.
const shutdownGrace = 5 * time.Second

// RunAPIServer runs the API server without the other components until ctx ends.
func RunAPIServer(ctx context.Context, c config.APIServer) error {
	return RunServer(ctx, config.Server{APIServer: c, NoNode: true, Without: []string{config.ComponentControllers, config.ComponentScheduler}})
}

// RunServer runs a control plane until ctx ends. It returns after everything it started has ended.
func RunServer(ctx context.Context, c config.Server) error {
	log, err := newLogger(c.LogLevel)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	unlock, err := lockDir(c.DataDir)
	if err != nil {
		return err
	}
	defer unlock()
	began := time.Now()

	listener, err := net.Listen("tcp", net.JoinHostPort(c.BindAddress, strconv.Itoa(c.SecurePort)))
	if err != nil {
		return fmt.Errorf("listen for the API: %w", err)
	}
	defer listener.Close()
	// Port 0 asks for any free port; from here on the one that was given counts.
	c.SecurePort = listener.Addr().(*net.TCPAddr).Port

	certs, err := newCertificates(c, time.Now())
	if err != nil {
		return err
	}
	sealing, err := newEncryption(c.Encryption, log)
	if err != nil {
		return err
	}
	storage, err := openStore(ctx, c, sealing, log)
	if err != nil {
		return err
	}
	defer func() {
		if err := storage.Close(); err != nil {
			log.Error("closing the store failed", "error", err)
		}
	}()

	objects := cache.New(storage, log.With("part", "cache"))
	gate, err := newGate(c, certs, log)
	if err != nil {
		return err
	}
	started := newSteps(append(fairnessSteps(gate.fairness), "start-system-namespaces-controller", "rbac/bootstrap-roles", "node-authorizer")...)
	checks := append(started.checks(), apiserver.HealthCheck{Name: "etcd", Check: storage.Healthy})
	if name := sealing.HealthCheck(); name != "" {
		checks = append(checks, apiserver.HealthCheck{Name: name, Check: sealing.Healthy})
	}
	registry := newRegistry()
	why := &schedulerDoor{}
	server, err := newAPIServer(c, objects, gate, connection(gate, certs), registry, why, log, storage.Healthy, checks)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return wrap("cache", objects.Run(ctx)) })
	// The audit and the keys of the store are needed until the last request.
	recording, recorded := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		defer recorded()
		return wrap("API server", serve(ctx, listener, newHTTPServer(server.Handler(), certs.serving.Clone()), c.HTTP2Server))
	})
	group.Go(func() error { return wrap("audit", gate.auditor.Run(recording)) })
	group.Go(func() error { return wrap("encryption", sealing.Run(recording)) })
	group.Go(func() error { return certs.keepers.Run(ctx, log.With("part", "certificates")) })
	group.Go(func() error { return wrap("authorization", gate.run(ctx, objects.Ready(), started)) })
	group.Go(func() error {
		select {
		case <-objects.Ready():
		case <-ctx.Done():
			return nil
		}
		group.Go(func() error { return wrap("fairness", runFlowControl(ctx, server, gate.fairness, started, log)) })
		if err := prepareCluster(ctx, server.Env(), c, started); err != nil {
			return wrap("create the system's own objects", err)
		}
		group.Go(func() error { repairServices(ctx, server.Env(), c, log); return nil })
		settings := controllers.Settings{
			RootCA: certs.authority.Cert, TokenSigner: gate.issuer, Signing: signingAuthorities(certs.authority),
			NodeLifecycle: nodeLifecycle(c.NodeLifecycle),
			LocalPath:     &volume.LocalPathSettings{Dir: filepath.Join(c.DataDir, "volumes")},
		}
		var err error
		if settings.ServerNames, err = serverNames(c); err != nil {
			return err
		}
		if settings.ServiceRanges, err = c.ServiceCIDRs(); err != nil {
			return err
		}
		if settings.PodRanges, err = podRanges(c.PodCIDRs); err != nil {
			return err
		}
		if !storage.Shared() {
			// No other API server has to hear of a deleted namespace first.
			settings.NamespaceGrace = new(time.Duration)
		}
		group.Go(func() error {
			return wrap("controllers and scheduler", runParts(ctx, c, server, settings, registry, why, log))
		})
		if !c.NoNode {
			group.Go(func() error { return wrap("node", runServerNode(ctx, c, certs, server, log)) })
		}
		if started.wait(ctx) {
			log.Info("the API is ready", "address", listener.Addr().String(), "took", time.Since(began).Round(time.Millisecond).String(),
				"kubeconfig", filepath.Join(c.DataDir, adminKubeconfig))
		}
		return nil
	})
	return group.Wait()
}

// newAPIServer makes the API server with all built-in kinds.
func newAPIServer(c config.Server, objects *cache.Cache, gate *gate, others streams.Config, registry *prometheus.Registry, why http.Handler, log *slog.Logger, storeHealthy func(context.Context) error, checks []apiserver.HealthCheck) (*apiserver.Server, error) {
	kinds := api.Kinds(api.Settings{EventTTL: c.EventTTL, Authenticator: gate.authenticator, Authorizer: accessReviews{gate.authorizer}, Metrics: streams.NewMetrics(others)})
	documents := openapi.New(kinds, version.Info().GitVersion)
	paths := map[string]http.Handler{
		authn.OpenIDConfigurationPath: gate.discovery,
		authn.JWKSPath:                gate.discovery,
	}
	if c.Runs(config.ComponentScheduler) {
		paths[scheduler.Root] = why
	}
	if c.Profiling {
		addProfiling(paths)
	}
	server, err := apiserver.New(apiserver.Config{
		Kinds:         kinds,
		Scheme:        api.Scheme(),
		Cache:         objects,
		Authenticator: gate.authenticator,
		Authorizer:    gate.authorizer,
		Impersonate:   gate.impersonation.Impersonate,
		CheckWrite:    gate.escalation.Check,
		JudgeWrite:    gate.fieldAccess.Check,
		Tokens:        gate.issuer,
		Components: func(ctx context.Context) []kind.ComponentHealth {
			return []kind.ComponentHealth{{Name: "etcd-0", Message: "ok", Err: storeHealthy(ctx)}}
		},
		Connectors:    streams.New(others),
		Paths:         paths,
		Admission:     gate.admission,
		OpenAPI:       documents,
		TypeConverter: sync.OnceValues(func() (managedfields.TypeConverter, error) { return openapi.TypeConverter() }),
		Version:       version.Info(),
		Limits:        apiserver.Limits{ReadOnly: unlimited(c.Limits.MaxRequestsInflight), Mutating: unlimited(c.Limits.MaxMutatingRequestsInflight)},
		Fairness:      gate.fairness,
		Audit:         gate.auditor,
		Checks:        checks,
		Registry:      registry,
		Log:           log.With("part", "apiserver"),
	})
	if err != nil {
		return nil, err
	}
	gate.attach(server, kinds)
	return server, nil
}

// unlimited is a limit in the words of the API server: where the flag says zero, there is none.
func unlimited(limit int) int {
	if limit == 0 {
		return -1
	}
	return limit
}

// addProfiling adds the paths of net/http/pprof, which like all others are for those whom the authorizer allows them.
// Nothing else reaches that package: it also registers with the default mux, which nobody serves.
func addProfiling(paths map[string]http.Handler) {
	paths["/debug/pprof/"] = http.HandlerFunc(pprof.Index)
	paths["/debug/pprof/cmdline"] = http.HandlerFunc(pprof.Cmdline)
	paths["/debug/pprof/profile"] = http.HandlerFunc(pprof.Profile)
	paths["/debug/pprof/symbol"] = http.HandlerFunc(pprof.Symbol)
	paths["/debug/pprof/trace"] = http.HandlerFunc(pprof.Trace)
}

// newHTTPServer is the HTTP server of the API.
func newHTTPServer(handler http.Handler, secure *tls.Config) *http.Server {
	// Small first records let a browser show something sooner. API clients only pay for more records.
	secure.DynamicRecordSizingDisabled = true
	return &http.Server{
		Handler:           handler,
		TLSConfig:         secure,
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       3 * time.Minute,
		MaxHeaderBytes:    1 << 20,
		// Errors of clients while they connect are not the server's.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
}

// serve answers requests on the listener until ctx ends, then lets running ones finish.
func serve(ctx context.Context, listener net.Listener, h *http.Server, http2Server string) error {
	// Long-running requests end with this context, so that shutting down need not wait for watchers.
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	h.BaseContext = func(net.Listener) context.Context { return base }
	// Without Configure net/http serves HTTP/2 itself, because the TLS configuration offers it.
	if http2Server == config.HTTP2Skiff {
		http2.Configure(h)
		listener = http2.Listener(listener)
	}
	done := make(chan error, 1)
	go func() { done <- h.Serve(tls.NewListener(listener, h.TLSConfig)) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	cancel()
	grace, stop := context.WithTimeout(context.Background(), shutdownGrace)
	defer stop()
	if err := h.Shutdown(grace); err != nil {
		_ = h.Close()
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func wrap(part string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return nil
	}
	return fmt.Errorf("%s: %w", part, err)
}
