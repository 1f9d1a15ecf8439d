package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/network/nft"
	"skiff/internal/network/syncloop"
)

const (
	// baseOwner owns what does not depend on Services. No Service has this name.
	baseOwner = ""
	// byService is the index of EndpointSlices.
	byService = "service"
	// nodeWait is how long the first sync waits for the Node object.
	nodeWait = 30 * time.Second
)

// Config is what a Proxy needs.
type Config struct {
	Client *client.Client
	// Informers are those of the process. They are run by the caller.
	Informers *client.Informers
	NodeName  string
	Settings  Settings
	// LocalByPodCIDRs recognizes packets of pods by the pod CIDRs of the node instead of Settings.Local.
	LocalByPodCIDRs bool
	// NodeIP replaces the primary address of its family in the Node object.
	NodeIP netip.Addr
	// NodePortAddresses are where node ports are served.
	NodePortAddresses NodePortAddresses
	// MinSyncPeriod is the least time between two changes of the rules. A change after a longer pause is applied at once.
	MinSyncPeriod time.Duration
	// SyncPeriod is the time between two comparisons of the kernel's rules with the wanted ones.
	SyncPeriod time.Duration
	Metrics    *Metrics
	Events     client.EventRecorder
	Log        *slog.Logger
}

// Proxy keeps the rules of a node.
type Proxy struct {
	Config
	services client.Informer[*corev1.Service]
	slices   client.Informer[*discoveryv1.EndpointSlice]
	cidrs    client.Informer[*networkingv1.ServiceCIDR]
	synced   []func() bool
	health   *Health
	checks   *healthChecks
	writer   *nft.Writer
	model    *nft.Model
	loop     *syncloop.Loop

	// The following are used by the sync loop alone. compiled are the Services that mean something besides their rules, without those.
	compiled  map[types.NamespacedName]Compiled
	node      Node
	datagrams datagramChanges
	// deleteFlows deletes the flows of a family that a filter selects. flowsFailed is whether the last ones could not be deleted.
	deleteFlows func(*flowFilter, bool) (int, error)
	flowsFailed bool

	mu sync.Mutex
	// changed are the Services to compile, with the times of the changes that caused that.
	changed map[types.NamespacedName][]time.Time
	// baseChanged is set when the node or the ServiceCIDRs have changed.
	baseChanged bool
	nodeObject  *corev1.Node
	// pendingServices and pendingEndpoints count changes that are not in the rules yet.
	pendingServices, pendingEndpoints int
}

// New makes a proxy. It registers its informers and starts nothing.
func New(c Config) (*Proxy, error) {
	p := &Proxy{
		Config: c, model: nft.NewModel(c.Settings.Table), compiled: map[types.NamespacedName]Compiled{},
		changed: map[types.NamespacedName][]time.Time{}, baseChanged: true, datagrams: datagramChanges{}, deleteFlows: deleteFlows, health: newHealth(2 * c.SyncPeriod),
		services: client.InformerFor[*corev1.Service](c.Informers), slices: client.InformerFor[*discoveryv1.EndpointSlice](c.Informers),
		cidrs: client.InformerFor[*networkingv1.ServiceCIDR](c.Informers),
	}
	p.loop = syncloop.New(syncloop.Config{
		Sync: p.sync, Compare: p.compare, ComparePeriod: c.SyncPeriod, MinSyncPeriod: c.MinSyncPeriod, Log: c.Log,
	})
	p.health.node = p.currentNode
	p.health.metrics = c.Metrics
	p.checks = newHealthChecks(c.NodeName, p.health, c.Events, c.Log)
	p.writer = nft.NewWriter(p.model, c.Log)
	if err := p.slices.AddMetadataIndex(byService, func(s client.Metadata) []string { return []string{serviceOf(s).String()} }); err != nil {
		return nil, fmt.Errorf("index EndpointSlices by Service: %w", err)
	}
	return p, errors.Join(p.services.SetEncoded(trimService), p.slices.SetEncoded(trimSlice), p.handleEvents())
}

// handleEvents registers the event handlers.
func (p *Proxy) handleEvents() error {
	service := func(s client.Metadata) { p.serviceChanged(keyOf(s)) }
	slice := func(s client.Metadata) { p.endpointsChanged(serviceOf(s), triggerTime(s)) }
	cidr := func(*networkingv1.ServiceCIDR) { p.cidrsChanged() }
	registered := func(synced func() bool, err error) error {
		p.synced = append(p.synced, synced)
		return err
	}
	return errors.Join(
		registered(p.services.AddMetadataHandlerWithSync(service, func(_, s client.Metadata) { service(s) }, service)),
		registered(p.slices.AddMetadataHandlerWithSync(slice, func(old, s client.Metadata) {
			if serviceOf(old) != serviceOf(s) {
				slice(old)
			}
			slice(s)
		}, func(s client.Metadata) { p.endpointsChanged(serviceOf(s), time.Time{}) })),
		registered(p.cidrs.AddEventHandlerWithSync(cidr, func(_, s *networkingv1.ServiceCIDR) { cidr(s) }, cidr)),
	)
}

func keyOf(s client.Metadata) types.NamespacedName {
	return types.NamespacedName{Namespace: s.GetNamespace(), Name: s.GetName()}
}

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// serviceOf is the Service of an EndpointSlice.
func serviceOf(s client.Metadata) types.NamespacedName {
	return types.NamespacedName{Namespace: s.GetNamespace(), Name: s.GetLabels()[discoveryv1.LabelServiceName]}
}

// triggerTime is when the change of a pod or Service that led to this EndpointSlice was made; zero: not known.
func triggerTime(s client.Metadata) time.Time {
	at, err := time.Parse(time.RFC3339Nano, s.GetAnnotations()[corev1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return time.Time{}
	}
	return at
}

func (p *Proxy) serviceChanged(key types.NamespacedName) {
	p.mu.Lock()
	p.pendingServices++
	markChanged(p.changed, key, time.Time{})
	pending := p.pendingServices
	p.mu.Unlock()
	p.Metrics.serviceChange(pending)
	p.signal()
}

func (p *Proxy) endpointsChanged(key types.NamespacedName, trigger time.Time) {
	if key.Name == "" {
		return
	}
	p.mu.Lock()
	p.pendingEndpoints++
	markChanged(p.changed, key, trigger)
	pending := p.pendingEndpoints
	p.mu.Unlock()
	p.Metrics.endpointChange(pending)
	p.signal()
}

// maxTriggers bounds the changes of one Service whose latency is measured in one sync.
const maxTriggers = 100

// markChanged adds a Service to those that have changed, and the time of what caused that unless it is zero.
func markChanged(changed map[types.NamespacedName][]time.Time, key types.NamespacedName, trigger time.Time) {
	triggers := changed[key]
	if !trigger.IsZero() && len(triggers) < maxTriggers {
		triggers = append(triggers, trigger)
	}
	changed[key] = triggers
}

func (p *Proxy) cidrsChanged() {
	p.mu.Lock()
	p.baseChanged = true
	p.mu.Unlock()
	p.signal()
}

// signal wakes the sync loop.
func (p *Proxy) signal() {
	p.health.queued(time.Now())
	p.Metrics.queued()
	p.loop.Signal()
}

// Health reports whether the rules are up to date.
func (p *Proxy) Health() *Health { return p.health }

// Run keeps the rules until ctx is done. They stay in the kernel: a proxy that is started again goes on with them.
func (p *Proxy) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { p.watchNode(ctx); return nil })
	group.Go(func() error {
		if p.waitForObjects(ctx) {
			p.loop.Run(ctx)
		}
		return nil
	})
	err := group.Wait()
	p.writer.Close()
	p.checks.close()
	return err
}

// waitForObjects waits until all objects have been read. A node that does not exist is not waited for forever.
func (p *Proxy) waitForObjects(ctx context.Context) bool {
	deadline := time.Now().Add(nodeWait)
	hasNode := false
	return syncloop.WaitUntil(ctx, func() bool {
		hasNode = hasNode || p.currentNode() != nil
		if !hasNode && time.Now().After(deadline) {
			p.Log.Warn("failed to read the Node object, zone and addresses of the node are not known yet", "node", p.NodeName)
			hasNode = true
		}
		return hasNode && !slices.ContainsFunc(p.synced, func(synced func() bool) bool { return !synced() })
	})
}

// compare makes the next sync replace the table if the kernel's is not as it should be, and read the host's addresses again.
func (p *Proxy) compare() {
	if len(p.NodePortAddresses.CIDRs) > 0 {
		p.cidrsChanged()
	}
	p.writer.Compare()
}

// batch is what a sync takes from the event handlers.
type batch struct {
	changed     map[types.NamespacedName][]time.Time
	baseChanged bool
	node        *corev1.Node
}

func (p *Proxy) take() batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := batch{changed: p.changed, baseChanged: p.baseChanged, node: p.nodeObject}
	p.changed, p.baseChanged = map[types.NamespacedName][]time.Time{}, false
	p.pendingServices, p.pendingEndpoints = 0, 0
	return b
}

// sync compiles what has changed and sends it to the kernel. It returns the time after which it should be called again; 0: after the
// next change.
func (p *Proxy) sync(context.Context) (time.Duration, error) {
	started := time.Now()
	b := p.take()
	if b.baseChanged {
		node := p.newNode(b.node)
		if p.node.Name == "" || !p.node.equal(node) {
			p.node = node
			if p.LocalByPodCIDRs {
				p.Settings.Local = LocalTraffic{CIDRs: node.PodCIDRs}
			}
			p.model.Replace(baseOwner, base(p.Settings, node))
			// Zone and addresses decide about endpoints.
			for _, key := range p.services.Keys() {
				markChanged(b.changed, key, time.Time{})
			}
		}
	}
	p.compile(b.changed)
	result, err := p.writer.Apply()
	p.Metrics.synced(started, result, err)
	if err != nil {
		return 0, err
	}
	p.health.updated(time.Now())
	if p.loop.IsSignaled() {
		p.health.queued(time.Now()) // a change that came meanwhile
	}
	for _, triggers := range b.changed {
		p.Metrics.programmed(triggers)
	}
	p.reportPolicies()
	again := sooner(result.Again, p.cleanFlows())
	if result.Rebuilt {
		// A whole table takes many times the memory of all later changes.
		debug.FreeOSMemory()
	}
	return sooner(again, p.checks.sync(p.compiled, p.node, time.Now())), nil
}

// sooner is the shorter one of two times; 0 stands for never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// compile compiles Services.
func (p *Proxy) compile(changed map[types.NamespacedName][]time.Time) {
	for _, key := range slices.SortedFunc(maps.Keys(changed), compareKeys) {
		old := p.compiled[key]
		var c Compiled
		if service, ok := p.services.Get(key.Namespace, key.Name); ok {
			// The index exists: New has made it.
			ofService, _ := p.slices.ByIndex(byService, key.String())
			c = Compile(p.Settings, p.node, service, ofService)
		}
		p.datagrams.add(key, old.Datagrams, c.Datagrams)
		p.model.Replace(key.String(), c.Part)
		c.Part = nft.Part{} // the model has it
		if c.isEmpty() {
			delete(p.compiled, key)
		} else {
			p.compiled[key] = c
		}
	}
}

func (p *Proxy) reportPolicies() {
	internal, external := map[bool]int{}, map[bool]int{}
	for _, c := range p.compiled {
		for _, is4 := range c.NoLocalInternal {
			internal[is4]++
		}
		for _, is4 := range c.NoLocalExternal {
			external[is4]++
		}
	}
	p.Metrics.noLocalEndpoints(internal, external)
}
