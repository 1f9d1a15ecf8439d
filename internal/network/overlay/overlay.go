package overlay

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/client"
	"skiff/internal/network/hostnet"
	"skiff/internal/network/syncloop"
)

const (
	// minSyncPeriod is the least time between two changes. A change after a longer pause is applied at once.
	minSyncPeriod = 50 * time.Millisecond
	// verifyPeriod is the time between two comparisons with the kernel's state.
	verifyPeriod = 30 * time.Second
	// watchRetry is the time until a failed watch of the kernel's state is repeated.
	watchRetry = 500 * time.Millisecond
	// maxReported bounds the nodes that are named in the status.
	maxReported = 5
)

// Config is what an Overlay needs.
type Config struct {
	Client *client.Client
	// Informers are those of the process. They are run by the caller.
	Informers *client.Informers
	// Settings are those of the node. Networks are read from the host.
	Settings   Settings
	PrivateKey Key
	// SetTunnel, if set, is called with the link to other nodes.
	SetTunnel func(Tunnel)
	// Changed is called when the status has changed. It must not block.
	Changed func()
	Log     *slog.Logger
}

// Status says how the network is.
type Status struct {
	// Synced is whether the routes to the pods of all other nodes are set up.
	Synced bool
	// Error is what keeps the node from the network; nil: nothing does.
	Error error
	// Problems are the other nodes that cannot be reached.
	Problems []Problem
}

// Message describes the other nodes that cannot be reached. It is empty if there are none.
func (s Status) Message() string {
	var texts []string
	for i, p := range s.Problems {
		if i == maxReported {
			texts = append(texts, fmt.Sprintf("and %d more", len(s.Problems)-i))
			break
		}
		texts = append(texts, p.String())
	}
	return strings.Join(texts, "; ")
}

// Overlay keeps the routes to the pods of other nodes.
type Overlay struct {
	Config
	nodes  client.Informer[*corev1.Node]
	synced func() bool
	writer *Writer
	loop   *syncloop.Loop

	mu sync.Mutex
	// known are the nodes, by name.
	known  map[string]Node
	status Status
	// forget makes the next sync read the kernel's state.
	forget bool
	// wanted is the state of the last sync.
	wanted State
}

// New makes an overlay. It registers its informer and starts nothing.
func New(c Config) (*Overlay, error) {
	o := &Overlay{
		Config: c, nodes: client.InformerFor[*corev1.Node](c.Informers), known: map[string]Node{}, wanted: NewState(),
		writer: NewWriter(HostKernel{PrivateKey: c.PrivateKey}, c.Log),
	}
	o.loop = syncloop.New(syncloop.Config{
		Sync: o.sync, Compare: o.forgetKernel, ComparePeriod: verifyPeriod, MinSyncPeriod: minSyncPeriod, Log: c.Log,
	})
	var err error
	set := func(object *corev1.Node) { o.setNode(NodeOf(object)) }
	o.synced, err = o.nodes.AddEventHandlerWithSync(set, func(_, object *corev1.Node) { set(object) }, func(object *corev1.Node) { o.deleteNode(object.Name) })
	if err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	return o, nil
}

// setNode records a node. Most changes of Nodes are heartbeats and change nothing here.
func (o *Overlay) setNode(node Node) {
	o.mu.Lock()
	old, exists := o.known[node.Name]
	o.known[node.Name] = node
	o.mu.Unlock()
	if !exists || !old.equal(node) {
		o.loop.Signal()
	}
}

func (o *Overlay) deleteNode(name string) {
	o.mu.Lock()
	delete(o.known, name)
	o.mu.Unlock()
	o.loop.Signal()
}

// Status returns the current status.
func (o *Overlay) Status() Status {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.status
}

// setStatus records the status. It logs what has changed.
func (o *Overlay) setStatus(s Status) {
	o.mu.Lock()
	old := o.status
	o.status = s
	o.mu.Unlock()
	for _, p := range s.Problems {
		if !slices.Contains(old.Problems, p) {
			o.Log.Warn("failed to set up the route to the pods of another node", "node", p.Node, "reason", p.Reason)
		}
	}
	same := old.Synced == s.Synced && slices.Equal(old.Problems, s.Problems) && fmt.Sprint(old.Error) == fmt.Sprint(s.Error)
	if !same && o.Changed != nil {
		o.Changed()
	}
}

// Run keeps the routes until ctx is done. They stay in the kernel.
func (o *Overlay) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { o.watchKernel(ctx); return nil })
	group.Go(func() error {
		// Routes to nodes that have not been read would be removed.
		if syncloop.WaitUntil(ctx, o.synced) {
			o.loop.Run(ctx)
		}
		return nil
	})
	return group.Wait()
}

func (o *Overlay) forgetKernel() {
	o.mu.Lock()
	o.forget = true
	o.mu.Unlock()
}

// take returns the nodes, and whether the kernel's state has to be read.
func (o *Overlay) take() (nodes []Node, forget bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	nodes = make([]Node, 0, len(o.known))
	for _, n := range o.known {
		nodes = append(nodes, n)
	}
	forget, o.forget = o.forget, false
	return nodes, forget
}

// sync applies the state that follows from the nodes.
func (o *Overlay) sync(ctx context.Context) (time.Duration, error) {
	nodes, forget := o.take()
	own := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == o.Settings.NodeName })
	if own < 0 || len(nodes[own].PodCIDRs) == 0 {
		return 0, nil // the change that brings the pod CIDR causes the next sync
	}
	networks, err := hostnet.Networks()
	if err != nil {
		o.setStatus(Status{Error: err})
		return 0, err
	}
	// The networks of skiff's own links are not segments that other nodes are on.
	o.Settings.Networks = slices.DeleteFunc(networks, func(n hostnet.Network) bool { return slices.Contains(ownLinks, n.Link) })
	if err := o.publishKey(ctx, nodes[own]); err != nil {
		o.setStatus(Status{Error: err})
		return 0, err
	}
	state, problems := Compile(o.Settings, nodes)
	o.mu.Lock()
	o.wanted = state
	o.mu.Unlock()
	if o.SetTunnel != nil {
		o.SetTunnel(state.tunnel())
	}
	if forget {
		o.writer.Forget()
	}
	if _, err := o.writer.Apply(state); err != nil {
		o.setStatus(Status{Error: err, Problems: problems})
		return 0, err
	}
	o.setStatus(Status{Synced: true, Problems: problems})
	return 0, nil
}

// publishKey writes the WireGuard key to the node's own object.
func (o *Overlay) publishKey(ctx context.Context, own Node) error {
	key := o.Settings.PublicKey.String()
	if o.Settings.Backend != WireGuard || own.PublicKey == key {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{PublicKeyAnnotation: key}}})
	if err != nil {
		return err
	}
	if _, err := client.For[*corev1.Node](o.Client).Patch(ctx, "", own.Name, client.RawPatch(client.MergePatch, patch), client.WriteOptions{}); err != nil {
		return fmt.Errorf("publish the WireGuard key: %w", err)
	}
	return nil
}

// watchKernel makes the loop repair what other programs remove. Without it, that happens with the next comparison.
func (o *Overlay) watchKernel(ctx context.Context) {
	for ctx.Err() == nil {
		// What has happened before the watch is not known.
		o.forgetKernel()
		o.loop.Signal()
		if err := o.followKernel(ctx); err != nil && ctx.Err() == nil {
			o.Log.Warn("failed to watch links and routes", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchRetry):
		}
	}
}

func (o *Overlay) followKernel(ctx context.Context) error {
	links, routes := make(chan netlink.LinkUpdate, 16), make(chan netlink.RouteUpdate, 16)
	done := make(chan struct{})
	defer func() {
		close(done)
		// The subscriptions end by closing the channels.
		for range links { //nolint:revive // drained
		}
		for range routes { //nolint:revive // drained
		}
	}()
	failed := func(error) {}
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{ErrorCallback: failed}); err != nil {
		close(links)
		close(routes)
		return err
	}
	if err := netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{ErrorCallback: failed}); err != nil {
		close(routes)
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case update, open := <-links:
			if !open {
				return nil
			}
			isDown := update.Header.Type == unix.RTM_DELLINK || update.Attrs().Flags&net.FlagUp == 0
			if isDown && o.isWantedLink(update.Attrs().Name) {
				o.forgetKernel()
				o.loop.Signal()
			}
		case update, open := <-routes:
			if !open {
				return nil
			}
			if update.Type == unix.RTM_DELROUTE && update.Protocol == RouteProtocol && update.Dst != nil && o.isWantedRoute(hostnet.PrefixOf(update.Dst)) {
				o.forgetKernel()
				o.loop.Signal()
			}
		}
	}
}

func (o *Overlay) isWantedLink(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.wanted.Links[name]
	return ok
}

func (o *Overlay) isWantedRoute(p netip.Prefix) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.wanted.Routes[p]
	return ok
}
