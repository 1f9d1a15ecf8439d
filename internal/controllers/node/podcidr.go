package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// PodCIDR allocates a subnet of each range to every node. reserved ranges are never allocated, such as those of services. It is
// disabled without ranges.
//
// All nodes are reconciled under one key: an allocation depends on all others, and the key is not synced again before the informer
// has observed the previous allocations.
func PodCIDR(ranges []PodRange, reserved []netip.Prefix) controller.Definition {
	return controller.Definition{
		Name: "node-ipam-controller", Aliases: []string{"nodeipam"}, Component: "cidrAllocator", Queue: "cidrallocator_node", Workers: 1,
		DisabledByDefault: len(ranges) == 0,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			if len(ranges) == 0 {
				return nil, errors.New("no cluster CIDR is set")
			}
			c := &podCIDRs{ranges: ranges, reserved: reserved, candidates: make([]uint64, len(ranges)), nodes: client.InformerFor[*corev1.Node](s.Informers)}
			all := controller.Key{Name: "nodes"}
			need := func(node *corev1.Node) {
				if len(node.Spec.PodCIDRs) == 0 {
					s.Enqueue(all)
				}
			}
			onDelete := func(*corev1.Node) { s.Enqueue(all) } // a subnet becomes free
			if err := c.nodes.AddEventHandler(need, func(_, node *corev1.Node) { need(node) }, onDelete); err != nil {
				return nil, fmt.Errorf("watch nodes: %w", err)
			}
			return controller.NewSyncer(s, c), nil
		},
	}
}

type podCIDRs struct {
	ranges     []PodRange
	reserved   []netip.Prefix
	nodes      client.Informer[*corev1.Node]
	candidates []uint64 // next subnet to try, per range; used by the only worker
}

// podCIDRView is the observed state of all nodes.
type podCIDRView struct {
	nodes      []*corev1.Node
	ranges     []PodRange
	reserved   []netip.Prefix
	candidates []uint64
}

// Observe gathers all nodes.
func (c *podCIDRs) Observe(controller.Key) (podCIDRView, bool) {
	return podCIDRView{nodes: c.nodes.List("", nil), ranges: c.ranges, reserved: c.reserved, candidates: c.candidates}, true
}

// Reconcile allocates subnets to nodes without one.
func (c *podCIDRs) Reconcile(v podCIDRView) controller.Plan {
	plan, candidates := v.reconcile()
	c.candidates = candidates
	return plan
}

// reconcile returns the plan and the next candidates. Subnets are allocated round-robin, so that a released one is not reused
// immediately: routes to it may still exist.
func (v podCIDRView) reconcile() (plan controller.Plan, candidates []uint64) {
	used := make([]map[uint64]bool, len(v.ranges))
	for i, r := range v.ranges {
		used[i] = map[uint64]bool{}
		for _, t := range v.reserved {
			r.markUsed(t, used[i])
		}
		for _, node := range v.nodes {
			for _, text := range node.Spec.PodCIDRs {
				if prefix, err := netip.ParsePrefix(text); err == nil {
					r.markUsed(prefix.Masked(), used[i])
				}
			}
		}
	}
	candidates = slices.Clone(v.candidates)
	nodes := slices.Clone(v.nodes)
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	var writes []controller.Write
	for _, node := range nodes {
		if len(node.Spec.PodCIDRs) > 0 || node.DeletionTimestamp != nil {
			continue
		}
		cidrs := make([]string, 0, len(v.ranges))
		indexes := make([]uint64, len(v.ranges))
		for i, r := range v.ranges {
			index, ok := r.nextFree(candidates[i], used[i])
			if !ok {
				break
			}
			indexes[i] = index
			cidrs = append(cidrs, r.subnet(index).String())
		}
		if len(cidrs) < len(v.ranges) {
			plan.Events = append(plan.Events, statusChangeEvent(node, "CIDRNotAvailable"))
			continue
		}
		for i, index := range indexes {
			used[i][index], candidates[i] = true, (index+1)%v.ranges[i].subnetCount()
		}
		// Marshalling strings cannot fail.
		patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": node.UID}, "spec": map[string]any{"podCIDR": cidrs[0], "podCIDRs": cidrs}})
		writes = append(writes, controller.NewPatch(node, client.StrategicPatch, patch).Ignoring(metav1.StatusReasonNotFound).
			OnFailure(statusChangeEvent(node, "CIDRAssignmentFailed")))
	}
	plan.AddStep(writes...)
	return plan, candidates
}

func statusChangeEvent(node *corev1.Node, status string) controller.Event {
	return controller.Event{Object: node, Type: corev1.EventTypeNormal, Reason: status, Message: fmt.Sprintf("Node %s status is now: %s", node.Name, status)}
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

// markUsed marks the subnets that overlap with a prefix.
func (r PodRange) markUsed(prefix netip.Prefix, used map[uint64]bool) {
	if !r.Prefix.Overlaps(prefix) {
		return
	}
	if prefix.Bits() <= r.Prefix.Bits() {
		for n := range r.subnetCount() {
			used[n] = true
		}
		return
	}
	first := r.subnetIndex(prefix.Addr())
	count := uint64(1)
	if prefix.Bits() < r.NodeBits {
		count = 1 << (r.NodeBits - prefix.Bits())
	}
	for n := range count {
		used[first+n] = true
	}
}

// nextFree finds a free subnet, starting at the candidate and wrapping around.
func (r PodRange) nextFree(candidate uint64, used map[uint64]bool) (uint64, bool) {
	for i := range r.subnetCount() {
		if n := (candidate + i) % r.subnetCount(); !used[n] {
			return n, true
		}
	}
	return 0, false
}
