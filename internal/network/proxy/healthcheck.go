package proxy

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
)

// retryMin and retryMax bound the time until a port that could not be opened is tried again.
const (
	retryMin = time.Second
	retryMax = 30 * time.Second
)

// healthChecks serve the health check node ports of Services: load balancers ask there whether the node has endpoints.
type healthChecks struct {
	nodeName string
	health   *Health
	events   client.EventRecorder
	log      *slog.Logger
	servers  map[types.NamespacedName]*healthCheck
	// failures are the ports that could not be opened, by Service.
	failures map[types.NamespacedName]*listenFailure
	running  sync.WaitGroup
}

// listenFailure is a port that could not be opened, and when that is tried again.
type listenFailure struct {
	port      uint16
	addresses []netip.Addr
	delay     time.Duration
	retryAt   time.Time
}

// healthCheck is the server of one Service.
type healthCheck struct {
	port      uint16
	addresses []netip.Addr
	endpoints atomic.Pointer[familyCounts]
	servers   []*http.Server
}

func newHealthChecks(nodeName string, health *Health, events client.EventRecorder, log *slog.Logger) *healthChecks {
	return &healthChecks{nodeName: nodeName, health: health, events: events, log: log,
		servers: map[types.NamespacedName]*healthCheck{}, failures: map[types.NamespacedName]*listenFailure{}}
}

// sync opens, changes and closes servers so that they are those of the Services. A port that cannot be opened is tried again with a growing
// delay; sync returns the time after which it should be called for that, 0 if there is none.
func (h *healthChecks) sync(compiled map[types.NamespacedName]Compiled, node Node, now time.Time) (retry time.Duration) {
	listenOn := node.NodePortIPs
	if node.AllIPv4NodePorts || node.AllIPv6NodePorts {
		// Of both families, unless the host has no IPv6: then "::" could not be listened on.
		listenOn = []netip.Addr{netip.IPv4Unspecified()}
	}
	for key, server := range h.servers {
		if c := compiled[key]; c.HealthCheckPort != server.port || !slices.Equal(server.addresses, listenOn) {
			server.close()
			delete(h.servers, key)
		}
	}
	for key, f := range h.failures {
		if c := compiled[key]; c.HealthCheckPort != f.port || !slices.Equal(f.addresses, listenOn) {
			delete(h.failures, key)
		}
	}
	for key, c := range compiled {
		if c.HealthCheckPort == 0 {
			continue
		}
		server := h.servers[key]
		if server == nil {
			if server = h.tryOpen(key, c.HealthCheckPort, listenOn, now); server == nil {
				if left := h.failures[key].retryAt.Sub(now); retry == 0 || left < retry {
					retry = left
				}
				continue
			}
		}
		server.endpoints.Store(&c.LocalEndpoints)
	}
	return retry
}

// tryOpen opens the server of a Service unless that has failed a short time ago. It returns nil if the server is not open. A failure is
// reported once.
func (h *healthChecks) tryOpen(key types.NamespacedName, port uint16, listenOn []netip.Addr, now time.Time) *healthCheck {
	failed := h.failures[key]
	if failed != nil && now.Before(failed.retryAt) {
		return nil
	}
	server := &healthCheck{port: port, addresses: slices.Clone(listenOn)}
	server.endpoints.Store(&familyCounts{})
	err := h.open(key, server)
	if err == nil {
		if failed != nil {
			h.log.Info("serving health check node port after failures", "service", key, "port", port)
		}
		delete(h.failures, key)
		h.servers[key] = server
		return server
	}
	if failed == nil {
		failed = &listenFailure{port: port, addresses: slices.Clone(listenOn)}
		h.failures[key] = failed
		message := fmt.Sprintf("node %s failed to start healthcheck %q on port %d: %v", h.nodeName, key.String(), port, err)
		h.events.Event(&corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
			ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}, corev1.EventTypeWarning, "FailedToStartServiceHealthcheck", message)
		h.log.Error("failed to serve health check node port", "service", key, "port", port, "error", err)
	}
	failed.delay = min(max(2*failed.delay, retryMin), retryMax)
	failed.retryAt = now.Add(failed.delay)
	return nil
}

func (h *healthChecks) open(key types.NamespacedName, server *healthCheck) error {
	for _, address := range server.addresses {
		listener, err := net.Listen("tcp", netip.AddrPortFrom(address, server.port).String())
		if err != nil {
			server.close()
			return err
		}
		s := &http.Server{Handler: h.handler(key, server), ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10}
		server.servers = append(server.servers, s)
		h.running.Go(func() {
			if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				h.log.Error("failed to serve health check node port", "service", key, "error", err)
			}
		})
	}
	return nil
}

func (c *healthCheck) close() {
	for _, s := range c.servers {
		_ = s.Close()
	}
}

// close closes all servers and waits for their end.
func (h *healthChecks) close() {
	for _, server := range h.servers {
		server.close()
	}
	h.running.Wait()
}

// handler responds with the number of endpoints on this node of the family by which it is asked, in kube-proxy's format.
func (h *healthChecks) handler(key types.NamespacedName, server *healthCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		count, healthy := server.endpoints.Load().of(isAskedByIPv4(r)), h.health.Healthy(time.Now())
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(count))
		if count == 0 || !healthy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintf(w, "{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": %q\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}", key.Namespace, key.Name, count, healthy)
	})
}

// isAskedByIPv4 reports whether a request was sent to an IPv4 address of the node.
func isAskedByIPv4(r *http.Request) bool {
	address, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && address.AddrPort().Addr().Unmap().Is4()
}
