package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
)

// errorCounter counts the errors that are logged.
type errorCounter struct{ errors *atomic.Int32 }

func (c errorCounter) Enabled(context.Context, slog.Level) bool { return true }
func (c errorCounter) WithAttrs([]slog.Attr) slog.Handler       { return c }
func (c errorCounter) WithGroup(string) slog.Handler            { return c }
func (c errorCounter) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelError {
		c.errors.Add(1)
	}
	return nil
}

// A port that is in use is tried again with a growing delay, whatever else changes, and reported once.
func TestHealthCheckPortInUse(t *testing.T) {
	address := netip.MustParseAddr("127.0.0.1")
	occupied, err := net.Listen("tcp", netip.AddrPortFrom(address, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer occupied.Close()
	port := netip.MustParseAddrPort(occupied.Addr().String()).Port()
	key := types.NamespacedName{Namespace: "team", Name: "web"}
	compiled := map[types.NamespacedName]Compiled{key: {HealthCheckPort: port, LocalEndpoints: 2}}
	node := Node{NodePortIPs: []netip.Addr{address}}
	var errors atomic.Int32
	now := time.Now()
	h := newHealthChecks("node", newHealth(time.Minute), client.EventRecorder{}, slog.New(errorCounter{&errors}))
	defer h.close()

	var delays []time.Duration
	for range 8 {
		retry := h.sync(compiled, node, now)
		delays = append(delays, retry)
		for range 5 { // syncs of other changes
			now = now.Add(retry / 10)
			if left := h.sync(compiled, node, now); left > retry {
				t.Fatalf("a sync in between delays the retry from %v to %v", retry, left)
			}
		}
		now = now.Add(retry)
	}
	if got, want := fmt.Sprint(delays), "[1s 2s 4s 8s 16s 30s 30s 30s]"; got != want {
		t.Errorf("delays %s, want %s", got, want)
	}
	if n := errors.Load(); n != 1 {
		t.Errorf("the failure was reported %d times", n)
	}

	occupied.Close()
	if retry := h.sync(compiled, node, now); retry != 0 || len(h.failures) != 0 {
		t.Fatalf("the port is free, next retry after %v", retry)
	}
	response, err := http.Get("http://" + netip.AddrPortFrom(address, port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK || response.Header.Get("X-Load-Balancing-Endpoint-Weight") != "2" {
		t.Errorf("%s %v", response.Status, response.Header)
	}
}

// A failure is forgotten with its Service.
func TestHealthCheckFailureOfDeletedService(t *testing.T) {
	key := types.NamespacedName{Namespace: "team", Name: "web"}
	node := Node{NodePortIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}} // not an address of this host
	h := newHealthChecks("node", newHealth(time.Minute), client.EventRecorder{}, slog.New(slog.DiscardHandler))
	defer h.close()
	if retry := h.sync(map[types.NamespacedName]Compiled{key: {HealthCheckPort: 30999}}, node, time.Now()); retry == 0 {
		t.Fatal("listening on an address of another host")
	}
	if retry := h.sync(nil, node, time.Now()); retry != 0 || len(h.failures) != 0 {
		t.Errorf("retry after %v, %d failures", retry, len(h.failures))
	}
}
