package proxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
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
	compiled := map[types.NamespacedName]Compiled{key: {HealthCheckPort: port, LocalEndpoints: familyCounts{2, 2}}}
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

// Load balancers are told the number of endpoints of the family by which they ask, also where the port is served on all addresses.
func TestHealthCheckCountsEndpointsOfItsFamily(t *testing.T) {
	dualStack := []option{clusterIPs("10.43.0.5", ip6), nodePort(30080), loadBalancer("203.0.113.5", "2001:db8::5"), externalLocal()}
	without := func(o *object) { o.slices[1].Endpoints = nil }
	for _, test := range []struct {
		name     string
		service  object
		ip4, ip6 int
	}{
		{"both families", service(append(dualStack, endpoints("a", "b", "c"))...), 2, 2},
		{"endpoints of one family", service(append(dualStack, endpoints("a", "b", "c"), without)...), 2, 0},
		{"IPv4 alone", service(nodePort(30080), loadBalancer("203.0.113.5"), externalLocal(), endpoints("a", "b !", "c")), 1, 1},
		{"IPv6 alone", service(clusterIPs(ip6), nodePort(30080), loadBalancer("2001:db8::5"), externalLocal(), endpoints("a", "b")), 2, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "0.0.0.0:0")
			if err != nil {
				t.Fatal(err)
			}
			port := netip.MustParseAddrPort(listener.Addr().String()).Port()
			listener.Close()
			test.service.service.Spec.HealthCheckNodePort = int32(port)
			compiled := Compile(testSettings(), testNode(), test.service.service, test.service.slices)
			h := newHealthChecks("node", newHealth(time.Minute), client.EventRecorder{}, slog.New(slog.DiscardHandler))
			defer h.close()
			key := types.NamespacedName{Namespace: "default", Name: "web"}
			if retry := h.sync(map[types.NamespacedName]Compiled{key: compiled}, Node{AllIPv4NodePorts: true, AllIPv6NodePorts: true}, time.Now()); retry != 0 {
				t.Fatal("the port is not served")
			}
			for address, want := range map[string]int{"127.0.0.1": test.ip4, "::1": test.ip6} {
				response, err := http.Get("http://" + netip.AddrPortFrom(netip.MustParseAddr(address), port).String())
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(response.Body)
				response.Body.Close()
				if text := fmt.Sprintf("\"localEndpoints\": %d,", want); !strings.Contains(string(body), text) || response.Header.Get("X-Load-Balancing-Endpoint-Weight") != strconv.Itoa(want) {
					t.Errorf("%s: weight %s, %s, want %d", address, response.Header.Get("X-Load-Balancing-Endpoint-Weight"), body, want)
				}
				if ok := response.StatusCode == http.StatusOK; ok != (want > 0) {
					t.Errorf("%s: %s with %d endpoints", address, response.Status, want)
				}
			}
		})
	}
}
