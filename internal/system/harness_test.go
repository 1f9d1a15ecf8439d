package system

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skiff/internal/api/bootstrap"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/authz"
	"skiff/internal/config"
	"skiff/internal/egress"
	"skiff/internal/store/cache"
	"skiff/internal/store/memory"
	"skiff/internal/tracing"
)

// startAPIServer starts a whole API server, without network and disk except for the data directory, with the bootstrap objects.
func startAPIServer(t testing.TB, c config.Server) (*apiserver.Server, *accessControl) {
	t.Helper()
	return startAPIServerWith(t, c, observed{})
}

// observed is what the test of an API server looks at besides the responses. The zero value is nothing.
type observed struct {
	registry *prometheus.Registry
	tracing  *tracing.Provider
	egress   *egress.Selector
}

// startAPIServerWith is startAPIServer with what the test looks at.
func startAPIServerWith(t testing.TB, c config.Server, o observed) (*apiserver.Server, *accessControl) {
	t.Helper()
	if o.registry == nil {
		o.registry = newRegistry(nil)
	}
	log := slog.New(slog.DiscardHandler)
	certs, err := newCertificates(c.APIServer, time.Now(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	access, err := newAccessControl(c.APIServer, certs, o.egress, log)
	if err != nil {
		t.Fatal(err)
	}
	objects := cache.New(memory.New(), log)
	server, _, err := newAPIServer(c.APIServer, apiServerOptions{
		cache: objects, access: access, proxy: proxyConfig(c.KubeletClient, access, certs), storeHealthy: func(context.Context) error { return nil }, registry: o.registry, tracing: o.tracing,
	}, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = objects.Run(ctx) })
	running.Go(func() { _ = access.auditor.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	<-objects.Ready()
	cluster := bootstrap.Cluster{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, APIServer: netip.MustParseAddrPort("127.0.0.1:6443"), NodeGroup: "nodes"}
	if err := errors.Join(bootstrap.EnsureObjects(ctx, server.KindClient(), cluster), authz.Reconcile(ctx, server.KindClient(), authz.BootstrapPolicy())); err != nil {
		t.Fatal(err)
	}
	return server, access
}

// testConfig is the configuration of a server in a test; the token "admin" authenticates as cluster administrator.
func testConfig(t testing.TB) config.Server {
	c := config.DefaultServer()
	c.DataDir, c.BindAddress, c.NoNode, c.Token = t.TempDir(), "127.0.0.1", true, "admin"
	return c
}

// do sends a request with a bearer token to a handler. An empty token sends no credential.
func do(handler http.Handler, token, method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, io.NopCloser(strings.NewReader(body)))
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}
