// Package dns is the cluster's DNS server, which runs on every node.
//
// It serves the Kubernetes DNS specification 1.1.0: the records of Services, endpoints and pods, which it answers from an index of the
// informers' objects, so that a change is visible as soon as the informer has it. Other names are forwarded to the host's name servers, or
// to those that the ConfigMap kube-system/kube-dns sets, and their responses are cached. Names, TTLs and metrics are those of CoreDNS as
// kubeadm installs it.
//
// The server listens on the address of the Service kube-system/kube-dns, which each node has on its loopback interface: a query of a
// pod never leaves its node, and nothing is translated. The Service has a label that keeps service proxies from handling it. Without
// that label it belongs to a DNS server that a user has installed, and skiff's does not listen.
//
// A query is answered in the goroutine that has read it, from packet to packet without an object in between (query.go, records.go,
// response.go); only queries that have to be forwarded get a goroutine and a seat (forward.go).
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"skiff/internal/client"
	"skiff/internal/kind"
)

// metricsPort is the port of the metrics, as in CoreDNS.
const metricsPort = 9153

// logInterval is the least time between two log messages about failures of queries.
const logInterval = time.Minute

// Config is what a Server needs.
type Config struct {
	// ClusterDomain is the zone of the cluster, such as cluster.local.
	ClusterDomain string
	Client        *client.Client
	Informers     *client.Informers
	// Addresses gives this host the addresses to listen on.
	Addresses AddressHolder
	// ResolvConf is the host's resolv.conf; empty: the host has no name servers.
	ResolvConf string
	Events     client.EventRecorder
	Log        *slog.Logger
}

// AddressHolder gives a host the addresses of the DNS server.
type AddressHolder interface {
	// Set makes the addresses those of the host, and removes those of former calls. It is idempotent.
	Set(ips []netip.Addr) error
}

// Server is the DNS server of a node.
type Server struct {
	config    Config
	zoneLabel string
	index     *index
	metrics   *metrics
	forwarder *forwarder
	log       *slog.Logger

	success, denial *responseCache
	settings        atomic.Pointer[settings]
	hostServers     atomic.Pointer[[]netip.AddrPort]
	// configData is the last content of the ConfigMap, valid or not. The goroutine that follows the ConfigMap uses it alone.
	configData map[string]string
	// generation counts the changes of settings and host servers.
	generation atomic.Uint64
	// own are the addresses of the Service.
	own            atomic.Pointer[[]netip.Addr]
	addressChanged chan struct{}
	// addressCheck is addressCheckPeriod, except in tests.
	addressCheck time.Duration
	// ports are 53 and 9153, except in tests.
	ports  ports
	synced []func() bool
	// allSynced is set when all informers have delivered their first list.
	allSynced atomic.Bool
	loop      loopDetector
	workers   sync.Pool

	logForward, logPanic, logAccept rate.Sometimes
}

// ports are the ports to listen on.
type ports struct{ dns, metrics uint16 }

// New creates a server. Its handlers are added to the informers, which must not have been started.
func New(c Config) (*Server, error) {
	s, err := newServer(c)
	if err != nil {
		return nil, err
	}
	return s, s.addHandlers()
}

// newServer creates a server with an empty index.
func newServer(c Config) (*Server, error) {
	zone, err := parseDomain(c.ClusterDomain)
	if err != nil {
		return nil, fmt.Errorf("cluster domain: %w", err)
	}
	s := &Server{
		config: c, zoneLabel: zone.String(), index: newIndex(zone), metrics: newMetrics(), log: c.Log, addressChanged: make(chan struct{}, 1),
		addressCheck: addressCheckPeriod, ports: ports{dns: dnsPort, metrics: metricsPort},
		logForward: rate.Sometimes{First: 1, Interval: logInterval}, logPanic: rate.Sometimes{First: 1, Interval: logInterval},
		logAccept: rate.Sometimes{First: 1, Interval: logInterval},
	}
	s.forwarder = newForwarder(s.metrics)
	s.success, s.denial = newResponseCache(s.metrics.successEvicted.Inc), newResponseCache(s.metrics.denialEvicted.Inc)
	s.metrics.registerCaches(s.success, s.denial)
	s.settings.Store(&settings{})
	s.hostServers.Store(&[]netip.AddrPort{})
	s.own.Store(&[]netip.Addr{})
	s.workers.New = func() any { return s.newWorker() }
	return s, nil
}

// addHandlers adds the handlers that keep the index.
func (s *Server) addHandlers() error {
	x, informers := s.index, s.config.Informers
	return errors.Join(
		handle(s, client.InformerFor[*corev1.Namespace](informers), x.setNamespace, x.deleteNamespace),
		handle(s, client.InformerFor[*discoveryv1.EndpointSlice](informers), x.setEndpointSlice, x.deleteEndpointSlice),
		handle(s, client.InformerFor[*corev1.Service](informers),
			func(service *corev1.Service) {
				x.setService(service)
				s.serviceChanged(service, false)
			},
			func(service *corev1.Service) {
				x.deleteService(service)
				s.serviceChanged(service, true)
			}),
		handle(s, client.InformerFor[*corev1.Node](informers),
			func(node *corev1.Node) { x.setRanges("node/"+node.Name, node.Spec.PodCIDRs) },
			func(node *corev1.Node) { x.setRanges("node/"+node.Name, nil) }),
		handle(s, client.InformerFor[*networkingv1.ServiceCIDR](informers),
			func(cidr *networkingv1.ServiceCIDR) { x.setRanges("servicecidr/"+cidr.Name, cidr.Spec.CIDRs) },
			func(cidr *networkingv1.ServiceCIDR) { x.setRanges("servicecidr/"+cidr.Name, nil) }),
	)
}

// handle calls set for each object of an informer and for its changes, and remove when it is deleted.
func handle[T kind.Object](s *Server, informer client.Informer[T], set, remove func(T)) error {
	hasSynced, err := informer.AddChangeHandlerWithSync(set, remove)
	s.synced = append(s.synced, hasSynced)
	return err
}

// hasSynced reports whether the index has all objects. Before that, a name that is not found may nevertheless exist.
func (s *Server) hasSynced() bool {
	if s.allSynced.Load() {
		return true
	}
	for _, synced := range s.synced {
		if !synced() {
			return false
		}
	}
	s.allSynced.Store(true)
	return true
}

// serviceChanged follows the Service of the cluster's DNS: the server listens on its addresses.
func (s *Server) serviceChanged(service *corev1.Service, deleted bool) {
	if service.Namespace != ServiceNamespace || service.Name != ServiceName {
		return
	}
	ips := []netip.Addr{}
	if !deleted && IsOwnService(service) {
		for _, text := range service.Spec.ClusterIPs {
			if ip, err := netip.ParseAddr(text); err == nil {
				ips = append(ips, ip.Unmap())
			}
		}
	}
	if slices.Equal(ips, s.ownAddresses()) {
		return
	}
	s.own.Store(&ips)
	select {
	case s.addressChanged <- struct{}{}:
	default:
	}
}

// ownAddresses are the addresses of the cluster's DNS, if it is skiff's.
func (s *Server) ownAddresses() []netip.Addr { return *s.own.Load() }

// Run serves until ctx is done. It returns when the host no longer has the server's addresses.
func (s *Server) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.runListeners(ctx) })
	group.Go(func() error {
		s.followConfigMap(ctx)
		return nil
	})
	group.Go(func() error {
		s.runLoopDetection(ctx)
		return nil
	})
	if s.config.ResolvConf != "" {
		group.Go(func() error {
			files := &resolvConf{path: s.config.ResolvConf, resolvedPath: resolvedFile}
			files.follow(ctx, s.setHostServers, func(err error) { s.log.Error("failed to read the host's name servers", "error", err) })
			return nil
		})
	}
	return group.Wait()
}

// setHostServers replaces the host's name servers.
func (s *Server) setHostServers(servers []netip.AddrPort) {
	if slices.Equal(servers, *s.hostServers.Load()) {
		return
	}
	s.hostServers.Store(&servers)
	s.upstreamsChanged()
	var texts []string
	for _, server := range servers {
		texts = append(texts, server.String())
	}
	s.log.Info("forwarding DNS queries to the host's name servers", "servers", strings.Join(texts, ","))
}

// upstreamsChanged forgets what other name servers have answered.
func (s *Server) upstreamsChanged() {
	s.generation.Add(1)
	s.success.purge()
	s.denial.purge()
	s.forwarder.reset()
	s.loop.trigger()
}
