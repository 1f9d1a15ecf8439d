package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/network/cni"
	"skiff/internal/network/hostnet"
	"skiff/internal/network/nft"
	"skiff/internal/network/syncloop"
)

// Config is what a Policy needs.
type Config struct {
	// Informers are those of the process. They are run by the caller.
	Informers *client.Informers
	NodeName  string
	// Table is the name of the nftables table. Two nodes that share a network namespace need different ones.
	Table string
	// Attachments returns the pods that the CNI plugin has connected; nil: there are none.
	Attachments func() ([]cni.Attachment, error)
	// KubeletPod returns a pod that the kubelet runs, by its UID there. The kubelet has static pods that are not in the API, and others before their event
	// arrives here. nil: only pods in the API are known.
	KubeletPod func(types.UID) (*corev1.Pod, bool)
	// MinSyncPeriod is the least time between two changes of the rules. A change after a longer pause is applied at once.
	MinSyncPeriod time.Duration
	// SyncPeriod is the time between two comparisons of the kernel's rules with the wanted ones.
	SyncPeriod time.Duration
	// Metrics may be nil.
	Metrics *Metrics
	Log     *slog.Logger
}

// Policy enforces the policies of a node's pods.
type Policy struct {
	Config
	pods       client.Informer[*corev1.Pod]
	namespaces client.Informer[*corev1.Namespace]
	policies   client.Informer[*networkingv1.NetworkPolicy]
	synced     []func() bool
	loop       *syncloop.Loop

	// The following are used by the sync loop alone. affected are addresses whose connections are to be inspected when the rules are in the kernel.
	compiler *Compiler
	writer   *nft.Writer
	affected map[netip.Addr]bool
	// conntrack is the connection by which connections are deleted; nil: it is not open. It is kept, as that of the writer is.
	conntrack *netlink.Handle
	// answers are looked for at answersDue.
	answers    map[datagrams]int
	answersDue time.Time

	mu      sync.Mutex
	changed changes
	// announced are the addresses that the CNI plugin has reserved for pods.
	announced map[types.NamespacedName]*announcement
}

// changes are the objects that have changed since the last sync.
type changes struct {
	pods, policies map[types.NamespacedName]bool
	namespaces     map[string]bool
	// since is the time of the first change.
	since time.Time
}

func newChanges() changes {
	return changes{pods: map[types.NamespacedName]bool{}, policies: map[types.NamespacedName]bool{}, namespaces: map[string]bool{}}
}

// New makes a Policy. It registers its informers and starts nothing.
func New(c Config) (*Policy, error) {
	model := nft.NewModel(c.Table)
	p := &Policy{
		Config: c, pods: client.InformerFor[*corev1.Pod](c.Informers), namespaces: client.InformerFor[*corev1.Namespace](c.Informers),
		policies: client.InformerFor[*networkingv1.NetworkPolicy](c.Informers), compiler: NewCompiler(model),
		writer: nft.NewWriter(model, c.Log), affected: map[netip.Addr]bool{}, changed: newChanges(), announced: map[types.NamespacedName]*announcement{},
	}
	p.loop = syncloop.New(syncloop.Config{
		Sync: p.sync, Compare: p.compare, ComparePeriod: c.SyncPeriod, MinSyncPeriod: c.MinSyncPeriod, Log: c.Log,
	})
	return p, errors.Join(p.pods.SetTransform(trimPod), p.handleEvents())
}

// handleEvents registers the event handlers.
func (p *Policy) handleEvents() error {
	pod := func(o *corev1.Pod) { p.markChanged(func(c *changes) { c.pods[keyOf(o)] = true }) }
	namespace := func(o *corev1.Namespace) { p.markChanged(func(c *changes) { c.namespaces[o.Name] = true }) }
	policy := func(o *networkingv1.NetworkPolicy) { p.markChanged(func(c *changes) { c.policies[keyOf(o)] = true }) }
	registered := func(synced func() bool, err error) error {
		p.synced = append(p.synced, synced)
		return err
	}
	return errors.Join(
		registered(p.pods.AddEventHandlerWithSync(pod, func(old, o *corev1.Pod) {
			if isRelevant(old, o) {
				pod(o)
			}
		}, pod)),
		registered(p.namespaces.AddEventHandlerWithSync(namespace, func(old, o *corev1.Namespace) {
			if !maps.Equal(old.Labels, o.Labels) {
				namespace(o)
			}
		}, namespace)),
		registered(p.policies.AddEventHandlerWithSync(policy, func(_, o *networkingv1.NetworkPolicy) { policy(o) }, policy)),
	)
}

// isRelevant reports whether a change of a pod may change rules. The spec fields that matter do not change, except the node.
func isRelevant(old, o *corev1.Pod) bool {
	return old.UID != o.UID || old.Spec.NodeName != o.Spec.NodeName || old.Status.Phase != o.Status.Phase || !maps.Equal(old.Labels, o.Labels) ||
		!slices.Equal(old.Status.PodIPs, o.Status.PodIPs)
}

// markChanged records a change and wakes the sync loop.
func (p *Policy) markChanged(record func(*changes)) {
	p.mu.Lock()
	record(&p.changed)
	if p.changed.since.IsZero() {
		p.changed.since = time.Now()
	}
	p.mu.Unlock()
	p.loop.Signal()
}

// Run enforces policies until ctx is done. The rules stay in the kernel: one that is started again goes on with them.
func (p *Policy) Run(ctx context.Context) error {
	if err := p.restoreAttachments(); err != nil {
		return err
	}
	// The first rules must not lack a policy.
	if syncloop.WaitUntil(ctx, p.hasSynced) {
		p.loop.Run(ctx)
	}
	p.writer.Close()
	p.closeConntrack()
	return nil
}

// hasSynced reports whether all objects have been read.
func (p *Policy) hasSynced() bool {
	return !slices.ContainsFunc(p.synced, func(synced func() bool) bool { return !synced() })
}

// compare makes the next sync replace the table if the kernel's is not as it should be, and inspect announced pods.
func (p *Policy) compare() {
	p.writer.Compare()
	p.recheckAnnounced()
}

// take returns what has changed, and the announcements.
func (p *Policy) take() (changes, map[types.NamespacedName]*announcement) {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.changed
	p.changed = newChanges()
	return taken, maps.Clone(p.announced)
}

// sync compiles what has changed, sends it to the kernel and cuts the connections that have become denied. It returns the time after which it should
// be called again; 0: after the next change.
func (p *Policy) sync(context.Context) (time.Duration, error) {
	started := time.Now()
	changed, announced := p.take()
	for name := range changed.namespaces {
		namespace, ok := p.namespaces.Get("", name)
		if !ok {
			p.compiler.SetNamespace(name, nil)
			continue
		}
		p.compiler.SetNamespace(name, namespace.Labels)
	}
	for key := range changed.policies {
		p.syncPolicy(key)
	}
	var ready []*announcement
	for key := range changed.pods {
		p.syncPod(key, announced[key])
	}
	for key, a := range announced {
		if !a.isWaiting() {
			continue
		}
		if _, known := p.announcedPod(key, a); known {
			p.syncPod(key, a)
			ready = append(ready, a)
		}
	}
	maps.Copy(p.affected, p.compiler.Flush())
	result, err := p.writer.Apply()
	if err == nil {
		for _, a := range ready {
			a.inForce()
		}
		err = p.cut(time.Now())
	}
	p.Metrics.synced(started, changed.since, p.compiler.Stats(), err)
	again := result.Again
	if len(p.answers) > 0 {
		if due := max(time.Until(p.answersDue), time.Millisecond); again == 0 || due < again {
			again = due
		}
	}
	return again, err
}

// syncPolicy gives a policy to the compiler.
func (p *Policy) syncPolicy(key types.NamespacedName) {
	object, ok := p.policies.Get(key.Namespace, key.Name)
	if !ok {
		p.compiler.DeletePolicy(key)
		return
	}
	if err := p.compiler.SetPolicy(object); err != nil {
		p.Log.Error("failed to read a NetworkPolicy, what cannot be read allows nothing", "policy", key.String(), "error", err)
	}
}

// syncPod gives a pod to the compiler.
func (p *Policy) syncPod(key types.NamespacedName, a *announcement) {
	var addresses []netip.Addr
	object, isAnnounced := p.announcedPod(key, a)
	if isAnnounced {
		addresses = a.addresses
	} else {
		object, _ = p.pods.Get(key.Namespace, key.Name)
		if a != nil && !a.isWaiting() && (object == nil || a.isOlder(object)) {
			p.forgetAnnouncement(key, a)
		}
	}
	if object != nil {
		if pod, hasNetwork := NewPod(object, p.NodeName, addresses); hasNetwork {
			p.compiler.SetPod(pod)
			return
		}
	}
	p.compiler.DeletePod(key)
}

func (p *Policy) closeConntrack() {
	if p.conntrack != nil {
		p.conntrack.Close()
		p.conntrack = nil
	}
}

// cut deletes the connections that have become denied, and those that answers of connections cut before have begun.
func (p *Policy) cut(now time.Time) error {
	answersDue := len(p.answers) > 0 && !now.Before(p.answersDue)
	if len(p.affected) == 0 && !answersDue {
		return nil
	}
	addresses, err := hostnet.Addresses()
	if err != nil {
		return err
	}
	host := map[netip.Addr]bool{}
	for _, a := range addresses {
		host[a] = true
	}
	var answers map[datagrams]int
	if answersDue {
		answers = p.answers
	}
	denied := newDeniedFlows(p.compiler, p.affected, host, answers)
	if p.conntrack == nil {
		if p.conntrack, err = netlink.NewHandle(unix.NETLINK_NETFILTER); err != nil {
			return fmt.Errorf("open a connection to conntrack: %w", err)
		}
	}
	deleted, err := cutDenied(p.conntrack, denied)
	p.Metrics.cut(deleted)
	if err != nil {
		p.closeConntrack()
		return err
	}
	p.affected = map[netip.Addr]bool{}
	next := denied.nextAnswers()
	if !answersDue {
		maps.Copy(next, p.answers) // their time has not come yet
	}
	if answersDue || len(p.answers) == 0 {
		p.answersDue = now.Add(answerDelay)
	}
	p.answers = next
	return nil
}
