package policy

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/network/nft"
)

// baseOwner owns the part of the table that depends on no object.
const baseOwner = ""

// Compiler keeps the table of a node equal to what NetworkPolicies, Pods and Namespaces say. Set and Delete methods record what has changed, and
// Flush changes the model. It does no I/O and is not safe for concurrent use.
type Compiler struct {
	model *nft.Model

	pods       map[types.NamespacedName]*pod
	podsIn     map[string]map[*pod]bool // by namespace
	podsWith   map[string]map[*pod]bool // by label
	holders    map[netip.Addr][]*pod
	namespaces map[string]labels.Set
	policies   map[string]map[string]*policy // by namespace and name

	selectors map[string]*selector
	profiles  [directionCount]map[string]*profile
	classes   [directionCount]map[string]*class
	// names are the named ports in egress rules of profiles, and how often they are used.
	names map[portName]int
	// tables are the owners of tables of intervals and sets of ports, and how often they are used.
	tables map[string]int

	// dirtyTargets are pods whose profile, and dirtyPeers pods whose class has to be computed.
	dirtyTargets, dirtyPeers map[*pod]bool
	// deleted are pods that Flush forgets.
	deleted map[*pod]bool
	// affected are addresses whose connections may have become denied.
	affected map[netip.Addr]bool
}

// pod is a pod that the compiler has.
type pod struct {
	Pod
	// addresses are those of Pod.Addresses that no other pod holds instead.
	addresses []netip.Addr
	// flushed are the addresses at the last Flush.
	flushed []netip.Addr
	// selectors are those that match the pod as a peer, by text.
	selectors map[string]*selector
	profiles  [directionCount]*profile
	classes   [directionCount]*class
}

// selector is a selector of peers that profiles use.
type selector struct {
	peerSelector
	members map[*pod]bool
	// uses counts the profiles of each direction.
	uses [directionCount]int
}

// NewCompiler makes a compiler of an empty model.
func NewCompiler(m *nft.Model) *Compiler {
	c := &Compiler{
		model: m, pods: map[types.NamespacedName]*pod{}, podsIn: map[string]map[*pod]bool{}, podsWith: map[string]map[*pod]bool{},
		holders: map[netip.Addr][]*pod{}, namespaces: map[string]labels.Set{}, policies: map[string]map[string]*policy{}, selectors: map[string]*selector{},
		names: map[portName]int{}, tables: map[string]int{}, dirtyTargets: map[*pod]bool{}, dirtyPeers: map[*pod]bool{}, deleted: map[*pod]bool{}, affected: map[netip.Addr]bool{},
	}
	for _, d := range directions {
		c.profiles[d], c.classes[d] = map[string]*profile{}, map[string]*class{}
	}
	m.Replace(baseOwner, base())
	return c
}

// SetPod adds or changes a pod.
func (c *Compiler) SetPod(object Pod) {
	p := c.pods[object.Key]
	if p != nil && p.equal(&object) {
		return
	}
	if p == nil {
		p = &pod{selectors: map[string]*selector{}}
		c.pods[object.Key] = p
	}
	delete(c.deleted, p)
	old := p.Pod
	p.Pod = object
	c.unindexLabels(p, &old)
	for _, label := range labelsOf(&p.Pod) {
		addTo(c.podsWith, label, p)
	}
	addTo(c.podsIn, p.Key.Namespace, p)
	c.setAddresses(p, old.Addresses)
	for _, s := range c.selectors {
		c.setMember(p, s)
	}
	c.dirtyTargets[p], c.dirtyPeers[p] = true, true
}

// DeletePod removes a pod.
func (c *Compiler) DeletePod(key types.NamespacedName) {
	if p := c.pods[key]; p != nil {
		// It is forgotten by Flush, so that a pod of the same name that is added before takes its place.
		c.SetPod(Pod{Key: key})
		c.deleted[p] = true
	}
}

// forgetDeleted removes deleted pods from the indexes.
func (c *Compiler) forgetDeleted() {
	for p := range c.deleted {
		delete(c.pods, p.Key)
		if delete(c.podsIn[p.Key.Namespace], p); len(c.podsIn[p.Key.Namespace]) == 0 {
			delete(c.podsIn, p.Key.Namespace)
		}
		for _, s := range p.selectors {
			delete(s.members, p)
		}
	}
	clear(c.deleted)
}

func labelsOf(p *Pod) []string {
	all := make([]string, 0, len(p.Labels))
	for key, value := range p.Labels {
		all = append(all, client.LabelIndexValue("", key, value))
	}
	return all
}

// unindexLabels removes a pod from the index of its old labels.
func (c *Compiler) unindexLabels(p *pod, old *Pod) {
	for _, label := range labelsOf(old) {
		if delete(c.podsWith[label], p); len(c.podsWith[label]) == 0 {
			delete(c.podsWith, label)
		}
	}
}

func addTo(index map[string]map[*pod]bool, key string, p *pod) {
	if index[key] == nil {
		index[key] = map[*pod]bool{}
	}
	index[key][p] = true
}

// setAddresses updates who holds the addresses that a pod has and had.
func (c *Compiler) setAddresses(p *pod, old []netip.Addr) {
	changed := map[*pod]bool{p: true}
	for _, a := range old {
		if !slices.Contains(p.Addresses, a) {
			if c.holders[a] = slices.DeleteFunc(c.holders[a], func(other *pod) bool { return other == p }); len(c.holders[a]) == 0 {
				delete(c.holders, a)
			}
		}
	}
	for _, a := range p.Addresses {
		if !slices.Contains(c.holders[a], p) {
			c.holders[a] = append(c.holders[a], p)
		}
	}
	for _, a := range slices.Concat(old, p.Addresses) {
		for _, other := range c.holders[a] {
			changed[other] = true
		}
	}
	for q := range changed {
		var held []netip.Addr
		for _, a := range q.Addresses {
			if c.holder(a) == q && !slices.Contains(held, a) {
				held = append(held, a)
			}
		}
		if slices.Equal(held, q.addresses) {
			continue
		}
		q.addresses = held
		c.dirtyTargets[q], c.dirtyPeers[q] = true, true
	}
}

// holder is the pod that has an address, or nil. Of two pods it is the one whose address was announced, or else the younger one.
func (c *Compiler) holder(a netip.Addr) *pod {
	var best *pod
	for _, p := range c.holders[a] {
		if best == nil || p.precedes(best) {
			best = p
		}
	}
	return best
}

func (p *pod) precedes(other *pod) bool {
	if p.Announced != other.Announced {
		return p.Announced
	}
	if !p.Created.Equal(other.Created) {
		return p.Created.After(other.Created)
	}
	return compareKeys(p.Key, other.Key) < 0
}

// setMember evaluates a selector for a pod.
func (c *Compiler) setMember(p *pod, s *selector) {
	matches := s.matches(&p.Pod, c.namespaces[p.Key.Namespace])
	if matches == s.members[p] {
		return
	}
	if matches {
		s.members[p], p.selectors[s.text] = true, s
	} else {
		delete(s.members, p)
		delete(p.selectors, s.text)
	}
	c.dirtyPeers[p] = true
}

// SetNamespace adds or changes a namespace. One that is deleted has no labels.
func (c *Compiler) SetNamespace(name string, set labels.Set) {
	if maps.Equal(c.namespaces[name], set) {
		return
	}
	c.namespaces[name] = set
	if len(set) == 0 {
		delete(c.namespaces, name)
	}
	for _, s := range c.selectors {
		if s.namespace != "" {
			continue
		}
		for p := range c.podsIn[name] {
			c.setMember(p, s)
		}
	}
}

// SetPolicy adds or changes a policy. Peers that cannot be read are denied, with an error. If the pods that the policy applies to cannot be read, it is as
// it was before.
func (c *Compiler) SetPolicy(object *networkingv1.NetworkPolicy) error {
	p, err := newPolicy(object)
	if p == nil {
		return err
	}
	in := c.policies[object.Namespace]
	if old := in[object.Name]; old != nil {
		if old.id == p.id {
			return err
		}
		c.markTargets(old)
	}
	if in == nil {
		in = map[string]*policy{}
		c.policies[object.Namespace] = in
	}
	in[object.Name] = p
	c.markTargets(p)
	return err
}

// DeletePolicy removes a policy.
func (c *Compiler) DeletePolicy(key types.NamespacedName) {
	in := c.policies[key.Namespace]
	if old := in[key.Name]; old != nil {
		c.markTargets(old)
		if delete(in, key.Name); len(in) == 0 {
			delete(c.policies, key.Namespace)
		}
	}
}

// markTargets marks the pods that a policy selects.
func (c *Compiler) markTargets(p *policy) {
	for target := range c.podsIn[p.key.Namespace] {
		if target.Local && p.selector.Matches(target.Labels) {
			c.dirtyTargets[target] = true
		}
	}
}

// selector returns the selector with a text, and makes it if needed.
func (c *Compiler) selector(s peerSelector) *selector {
	if known := c.selectors[s.text]; known != nil {
		return known
	}
	made := &selector{peerSelector: s, members: map[*pod]bool{}}
	c.selectors[s.text] = made
	for p := range c.candidates(s) {
		c.setMember(p, made)
	}
	return made
}

// candidates are the pods that a selector may match.
func (c *Compiler) candidates(s peerSelector) map[*pod]bool {
	if key, value, ok := client.RequiredLabel(s.pods); ok {
		return c.podsWith[client.LabelIndexValue("", key, value)]
	}
	if s.namespace != "" {
		return c.podsIn[s.namespace]
	}
	all := make(map[*pod]bool, len(c.pods))
	for _, p := range c.pods {
		all[p] = true
	}
	return all
}

// Stats are the sizes of what a compiler has.
type Stats struct {
	Policies, IsolatedPods, Profiles, Classes int
}

// Stats returns the sizes of what the compiler has.
func (c *Compiler) Stats() (s Stats) {
	for _, in := range c.policies {
		s.Policies += len(in)
	}
	isolated := map[*pod]bool{}
	for _, d := range directions {
		s.Profiles += len(c.profiles[d])
		s.Classes += len(c.classes[d])
		for _, f := range c.profiles[d] {
			maps.Copy(isolated, f.targets)
		}
	}
	s.IsolatedPods = len(isolated)
	return s
}

// joinSorted joins texts in order.
func joinSorted(texts []string) string {
	slices.Sort(texts)
	return strings.Join(texts, "\n")
}
