package node

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// PodRange is a range of pod addresses that is divided into one subnet per node.
type PodRange struct {
	// Prefix is the whole range: --cluster-cidr.
	Prefix netip.Prefix
	// NodeBits is the prefix length of a node's subnet: --node-cidr-mask-size, by default 24 or 64.
	NodeBits int
}

// ParsePodRanges parses --cluster-cidr: one range, or one of each family. Prefix lengths of zero mean 24 and 64.
func ParsePodRanges(cidrs string, bits4, bits6 int) ([]PodRange, error) {
	var ranges []PodRange
	for text := range strings.SplitSeq(cidrs, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("cluster CIDR %q: %w", text, err)
		}
		r := PodRange{Prefix: prefix.Masked(), NodeBits: bits4}
		switch {
		case !prefix.Addr().Is4():
			if r.NodeBits = bits6; bits6 == 0 {
				r.NodeBits = 64
			}
		case bits4 == 0:
			r.NodeBits = 24
		}
		if r.NodeBits < prefix.Bits() || r.NodeBits > prefix.Addr().BitLen() || !prefix.Addr().Is4() && r.NodeBits-prefix.Bits() > 16 {
			return nil, fmt.Errorf("cluster CIDR %s cannot be divided into node CIDRs of /%d: the difference must not be negative, nor more than 16 bits for IPv6", prefix, r.NodeBits)
		}
		if len(ranges) == 1 && ranges[0].Prefix.Addr().Is4() == prefix.Addr().Is4() || len(ranges) == 2 {
			return nil, fmt.Errorf("cluster CIDR %q: one range, or one of each family", cidrs)
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// unavailableRetryPeriod is the period in which a node without a pod CIDR is reported again, so that its event does not expire.
const unavailableRetryPeriod = 30 * time.Minute

// PodCIDR allocates a subnet of each range to every node. reserved ranges are never allocated, such as those of services. It is
// disabled without ranges.
//
// The subnets in use are tracked as nodes change, so that an allocation does not depend on the number of nodes. When a range is
// exhausted, nodes wait until a subnet is released; their updates do not cause further attempts.
func PodCIDR(ranges []PodRange, reserved []netip.Prefix) controller.Definition {
	return controller.Definition{
		Name: "node-ipam-controller", Aliases: []string{"nodeipam"}, Component: "cidrAllocator", Queue: "cidrallocator_node", Workers: 1,
		DisabledByDefault: len(ranges) == 0,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			if len(ranges) == 0 {
				return nil, errors.New("no cluster CIDR is set")
			}
			c := newPodCIDRs(ranges, reserved)
			c.setup, c.nodes = s, client.InformerFor[*corev1.Node](s.Informers)
			wake := func(nodes []string) {
				for _, name := range nodes {
					s.Enqueue(controller.Key{Name: name})
				}
			}
			observe := func(node *corev1.Node) {
				wake(c.observe(node))
				if c.needsAllocation(node) {
					s.Enqueue(controller.KeyOf(node))
				}
			}
			forget := func(node *corev1.Node) { wake(c.forget(node.Name)) }
			observed, err := c.nodes.AddEventHandlerWithSync(observe, func(_, node *corev1.Node) { observe(node) }, forget)
			if err != nil {
				return nil, fmt.Errorf("watch nodes: %w", err)
			}
			return controller.AfterInitialEvents(s, observed, c), nil
		},
	}
}

type podCIDRs struct {
	setup *controller.Setup
	nodes client.Informer[*corev1.Node]

	mu    sync.Mutex
	pools []*subnetPool
	held  map[string]heldPrefixes // by node
	// waiting are the names of nodes for which no subnet was free, the oldest first, and waitingByName their elements.
	waiting       *list.List
	waitingByName map[string]*list.Element
}

// heldPrefixes are the prefixes of a node: those of its spec, or those allocated to it and not written yet.
type heldPrefixes struct {
	node     types.UID
	prefixes []netip.Prefix
}

func newPodCIDRs(ranges []PodRange, reserved []netip.Prefix) *podCIDRs {
	c := &podCIDRs{held: map[string]heldPrefixes{}, waiting: list.New(), waitingByName: map[string]*list.Element{}}
	for _, r := range ranges {
		c.pools = append(c.pools, newSubnetPool(r))
	}
	c.occupy(reserved)
	return c
}

// needsAllocation reports whether a node has no pod CIDR and does not wait for a free one already.
func (c *podCIDRs) needsAllocation(node *corev1.Node) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(node.Spec.PodCIDRs) == 0 && node.DeletionTimestamp == nil && c.waitingByName[node.Name] == nil
}

// observe tracks the prefixes of a node. It returns nodes to enqueue because subnets were released.
func (c *podCIDRs) observe(node *corev1.Node) (wake []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.held[node.Name]
	now := heldPrefixes{node: node.UID}
	for _, text := range node.Spec.PodCIDRs {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			now.prefixes = append(now.prefixes, prefix.Masked())
		}
	}
	if before.node == now.node && (len(node.Spec.PodCIDRs) == 0 || slices.Equal(before.prefixes, now.prefixes)) {
		return nil // nothing changed, or an allocation is not written yet
	}
	c.held[node.Name] = now
	c.occupy(now.prefixes)
	c.release(before.prefixes)
	c.stopWaiting(node.Name)
	return c.nextWaiting()
}

// forget releases the prefixes of a deleted node. It returns nodes to enqueue.
func (c *podCIDRs) forget(node string) (wake []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release(c.held[node].prefixes)
	delete(c.held, node)
	c.stopWaiting(node)
	return c.nextWaiting()
}

// stopWaiting removes a node from those that wait. The caller holds mu.
func (c *podCIDRs) stopWaiting(node string) {
	if element := c.waitingByName[node]; element != nil {
		c.waiting.Remove(element)
		delete(c.waitingByName, node)
	}
}

// occupy and release change the use of all subnets that overlap with the prefixes. The caller holds mu.
func (c *podCIDRs) occupy(prefixes []netip.Prefix) {
	for _, pool := range c.pools {
		for _, prefix := range prefixes {
			pool.occupy(prefix)
		}
	}
}

func (c *podCIDRs) release(prefixes []netip.Prefix) {
	for _, pool := range c.pools {
		for _, prefix := range prefixes {
			pool.release(prefix)
		}
	}
}

// free is the number of nodes that can get subnets of all ranges. The caller holds mu.
func (c *podCIDRs) free() uint64 {
	free := c.pools[0].free()
	for _, pool := range c.pools[1:] {
		free = min(free, pool.free())
	}
	return free
}

// nextWaiting removes as many nodes from those that wait as there are free subnets, and returns them. The caller holds mu.
func (c *podCIDRs) nextWaiting() (nodes []string) {
	free := c.free()
	for c.waiting.Len() > 0 && uint64(len(nodes)) < free {
		name := c.waiting.Front().Value.(string)
		c.stopWaiting(name)
		nodes = append(nodes, name)
	}
	return nodes
}

// allocate returns a subnet of each range for a node: those allocated before if they have not been written. Without a free subnet it
// returns none, and the node waits. If it is the first that does, the exhausted ranges are returned.
func (c *podCIDRs) allocate(node *corev1.Node) (prefixes []netip.Prefix, exhausted []PodRange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before := c.held[node.Name]; before.node == node.UID && len(before.prefixes) > 0 {
		return before.prefixes, nil
	}
	if c.free() == 0 {
		if c.waiting.Len() == 0 {
			exhausted = c.exhausted()
		}
		if c.waitingByName[node.Name] == nil {
			c.waitingByName[node.Name] = c.waiting.PushBack(node.Name)
		}
		return nil, exhausted
	}
	for _, pool := range c.pools {
		prefixes = append(prefixes, pool.next())
	}
	c.occupy(prefixes)
	c.held[node.Name] = heldPrefixes{node: node.UID, prefixes: prefixes}
	return prefixes, nil
}

// exhausted returns the ranges without a free subnet. The caller holds mu.
func (c *podCIDRs) exhausted() (ranges []PodRange) {
	for _, pool := range c.pools {
		if pool.free() == 0 {
			ranges = append(ranges, pool.PodRange)
		}
	}
	return ranges
}

// Sync allocates subnets to a node without.
func (c *podCIDRs) Sync(ctx context.Context, key controller.Key) error {
	node, ok := c.nodes.Get("", key.Name)
	if !ok || len(node.Spec.PodCIDRs) > 0 || node.DeletionTimestamp != nil {
		c.mu.Lock()
		others := c.nextWaiting() // this node does not need what was released for it
		c.mu.Unlock()
		for _, name := range others {
			c.setup.Enqueue(controller.Key{Name: name})
		}
		return nil
	}
	prefixes, exhausted := c.allocate(node)
	for _, r := range exhausted {
		c.setup.Log.Warn("failed to allocate pod CIDR: the cluster CIDR has no free subnet; use a larger --cluster-cidr or --node-cidr-mask-size",
			"clusterCIDR", r.Prefix.String(), "nodeMaskSize", r.NodeBits, "subnets", r.subnetCount())
	}
	return c.setup.Apply(ctx, key, planAllocation(node, prefixes))
}

// planAllocation writes the prefixes to a node. Without prefixes it reports that there is none.
func planAllocation(node *corev1.Node, prefixes []netip.Prefix) (plan controller.Plan) {
	if len(prefixes) == 0 {
		plan.Events = append(plan.Events, statusChangeEvent(node, "CIDRNotAvailable"))
		plan.Requeue(unavailableRetryPeriod)
		return plan
	}
	cidrs := make([]string, len(prefixes))
	for i, prefix := range prefixes {
		cidrs[i] = prefix.String()
	}
	// Marshalling strings cannot fail.
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": node.UID}, "spec": map[string]any{"podCIDR": cidrs[0], "podCIDRs": cidrs}})
	plan.AddStep(controller.NewPatch(node, client.StrategicPatch, patch).Ignoring(metav1.StatusReasonNotFound).
		OnFailure(statusChangeEvent(node, "CIDRAssignmentFailed")))
	return plan
}

func statusChangeEvent(node *corev1.Node, status string) controller.Event {
	return controller.Event{Object: node, Type: corev1.EventTypeNormal, Reason: status, Message: fmt.Sprintf("Node %s status is now: %s", node.Name, status)}
}

// subnetPool tracks which subnets of a range are in use.
//
// Subnets that were never in use are allocated first, then those that have been free for the longest time: routes to a released one may
// still exist. All subnets below fresh are in use or in released.
type subnetPool struct {
	PodRange
	users      map[uint64]int // number of prefixes that overlap with a subnet in use
	fresh      uint64
	released   []uint64 // the longest free first; some may be in use again
	isReleased map[uint64]bool
}

func newSubnetPool(r PodRange) *subnetPool {
	return &subnetPool{PodRange: r, users: map[uint64]int{}, isReleased: map[uint64]bool{}}
}

// free is the number of free subnets.
func (p *subnetPool) free() uint64 { return p.subnetCount() - uint64(len(p.users)) }

// next returns a free subnet, which the caller occupies. There must be one.
func (p *subnetPool) next() netip.Prefix {
	for p.fresh < p.subnetCount() {
		n := p.fresh
		p.fresh++
		if p.users[n] == 0 {
			return p.subnet(n)
		}
	}
	for {
		n := p.released[0]
		p.released = p.released[1:]
		delete(p.isReleased, n)
		if p.users[n] == 0 {
			return p.subnet(n)
		}
	}
}

// occupy marks the subnets that overlap with a prefix as in use by one more.
func (p *subnetPool) occupy(prefix netip.Prefix) {
	first, count := p.overlapping(prefix)
	for n := first; n < first+count; n++ {
		p.users[n]++
	}
}

// release is the opposite of occupy.
func (p *subnetPool) release(prefix netip.Prefix) {
	first, count := p.overlapping(prefix)
	for n := first; n < first+count; n++ {
		if p.users[n]--; p.users[n] > 0 {
			continue
		}
		delete(p.users, n)
		if n < p.fresh && !p.isReleased[n] {
			p.isReleased[n] = true
			p.released = append(p.released, n)
		}
	}
}

// subnetCount is the number of subnets in the range.
func (r PodRange) subnetCount() uint64 { return 1 << (r.NodeBits - r.Prefix.Bits()) }

// subnet returns the n-th subnet.
func (r PodRange) subnet(n uint64) netip.Prefix {
	bytes := r.Prefix.Addr().AsSlice()
	for i := 0; i < 64 && n>>i > 0; i++ {
		if n>>i&1 == 1 {
			bit := r.NodeBits - 1 - i
			bytes[bit/8] |= 1 << (7 - bit%8)
		}
	}
	// The slice has the length of an address.
	address, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(address, r.NodeBits)
}

// subnetIndex returns the index of the subnet that contains an address.
func (r PodRange) subnetIndex(address netip.Addr) (n uint64) {
	bytes := address.AsSlice()
	for bit := r.Prefix.Bits(); bit < r.NodeBits; bit++ {
		n = n<<1 | uint64(bytes[bit/8]>>(7-bit%8)&1)
	}
	return n
}

// overlapping returns the subnets that overlap with a prefix: the index of the first and their number.
func (r PodRange) overlapping(prefix netip.Prefix) (first, count uint64) {
	if !r.Prefix.Overlaps(prefix) {
		return 0, 0
	}
	if prefix.Bits() <= r.Prefix.Bits() {
		return 0, r.subnetCount()
	}
	first, count = r.subnetIndex(prefix.Addr()), 1
	if prefix.Bits() < r.NodeBits {
		count = 1 << (r.NodeBits - prefix.Bits())
	}
	return first, count
}
