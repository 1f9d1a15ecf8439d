package snapshot

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// MaxCounters bounds the cached counters. Beyond it the least recently used half is dropped.
const MaxCounters = 4096

// Counter counts, in every domain of one topology key, the pods that match all its terms. It is built when a pod first needs it and
// updated with every pod added or removed, so that later pods with the same terms need no scan.
type Counter struct {
	key   string
	terms []Term // a pod counts when it matches all of them
	// skipTerminating leaves out terminating pods (topology spread does; affinity does not).
	skipTerminating bool
	Column          *LabelColumn
	// eligible limits the nodes whose pods are counted; nil means all nodes.
	eligible      func(node int32) bool
	eligibleNodes []bool // by node: eligible, when eligible is set

	Pods          []int32 // by domain
	Domains       []int32 // by domain: eligible nodes; a domain exists if it has any
	Total         int     // pods counted in domains
	WithoutDomain int32   // pods on eligible nodes that do not have the topology key
	lastUsed      uint64
}

// ExistingTerm counts, in every domain of a term's topology key, the existing pods that have that term, which applies to incoming pods.
type ExistingTerm struct {
	Key    existingTermKey
	Term   Term
	Column *LabelColumn
	Pods   []int32 // by domain
	Total  int     // pods that have the term, including those on nodes without the topology key
}

type existingTermKey struct {
	Kind              termKind
	Weight            int64
	term, topologyKey string
}

type termKind uint8

const (
	RequiredAntiAffinityTerm termKind = iota
	RequiredAffinityTerm
	PreferredAffinityTerm
	PreferredAntiAffinityTerm
)

func grow(counts []int32, domain int32) []int32 {
	for int(domain) >= len(counts) {
		counts = append(counts, 0)
	}
	return counts
}

// PodsInDomain is the number of pods in a node's domain, and whether the node is in one.
func PodsInDomain(pods []int32, column *LabelColumn, node int32) (int32, bool) {
	domain := column.ValueOf[node]
	if domain == NoValue {
		return 0, false
	}
	if int(domain) >= len(pods) {
		return 0, true
	}
	return pods[domain], true
}

// CounterSpec says what a counter counts.
type CounterSpec struct {
	Terms           []Term // a pod counts when it matches all of them
	Column          *LabelColumn
	SkipTerminating bool
	// Eligible limits the nodes whose pods are counted; nil means all nodes. EligibleKey identifies the function in the cache key.
	EligibleKey string
	Eligible    func(node int32) bool
}

// CounterFor returns the counter of a spec. It is built from the pods on nodes when it is first needed.
func (s *Snapshot) CounterFor(spec CounterSpec) *Counter {
	var key strings.Builder
	for i := range spec.Terms {
		key.WriteString(spec.Terms[i].key + "\x00")
	}
	key.WriteString("\x01" + spec.Column.Key + "\x01" + spec.EligibleKey)
	if spec.SkipTerminating {
		key.WriteString("\x01t")
	}
	s.UseClock++
	if c := s.Counters[key.String()]; c != nil {
		c.lastUsed = s.UseClock
		return c
	}
	if len(s.Counters) >= MaxCounters {
		s.dropCounters()
	}
	c := &Counter{
		key: key.String(), terms: slices.Clone(spec.Terms), Column: spec.Column, skipTerminating: spec.SkipTerminating,
		eligible: spec.Eligible, lastUsed: s.UseClock,
	}
	s.Counters[c.key] = c
	s.counterIndex.add(&c.terms[0], c)
	for i := range s.NodeInfos {
		c.addNode(s, int32(i))
	}
	for _, p := range s.podsInNamespacesOf(&c.terms[0]) {
		if c.matches(s, p.Info.Pod) {
			p.counters = append(p.counters, c)
			c.add(p.Node, 1)
		}
	}
	return c
}

// podsOfTerms returns the pods in the namespaces that a term may match.
func (s *Snapshot) podsInNamespacesOf(t *Term) []*PodEntry {
	if t.allNamespaces() || len(t.namespaces) == 0 {
		var all []*PodEntry
		for _, pods := range s.podsByNamespace {
			all = append(all, pods...)
		}
		return all
	}
	var all []*PodEntry
	for _, namespace := range t.namespaces {
		all = append(all, s.podsByNamespace[namespace]...)
	}
	return all
}

func (c *Counter) matches(s *Snapshot, pod *corev1.Pod) bool {
	if c.skipTerminating && pod.DeletionTimestamp != nil {
		return false
	}
	return s.MatchesAll(c.terms, pod)
}

// addNode records a node's domain and eligibility. The node's pods must not be counted at this time.
func (c *Counter) addNode(s *Snapshot, node int32) {
	if c.eligible != nil {
		for int(node) >= len(c.eligibleNodes) {
			c.eligibleNodes = append(c.eligibleNodes, false)
		}
		c.eligibleNodes[node] = s.NodeInfos[node].Node != nil && c.eligible(node)
	}
	c.countDomain(s, node, 1)
}

func (c *Counter) countDomain(s *Snapshot, node, delta int32) {
	domain := c.Column.ValueOf[node]
	if domain == NoValue || s.NodeInfos[node].Node == nil || c.eligible != nil && !c.eligibleNodes[node] {
		return
	}
	c.Domains = grow(c.Domains, domain)
	c.Domains[domain] += delta
}

// add adds delta to the count of a node's domain.
func (c *Counter) add(node, delta int32) {
	domain := c.Column.ValueOf[node]
	if c.eligible != nil && !c.eligibleNodes[node] {
		return
	}
	if domain == NoValue {
		c.WithoutDomain += delta
		return
	}
	c.Pods = grow(c.Pods, domain)
	c.Pods[domain] += delta
	c.Total += int(delta)
}

// MinPods returns the smallest count of any domain, and the number of domains.
func (c *Counter) MinPods() (least int32, domains int) {
	least = 1<<31 - 1
	for d, nodes := range c.Domains {
		if nodes == 0 {
			continue
		}
		domains++
		var n int32
		if d < len(c.Pods) {
			n = c.Pods[d]
		}
		least = min(least, n)
	}
	return least, domains
}

// dropCounters removes the least recently used half of the counters.
func (s *Snapshot) dropCounters() {
	all := make([]*Counter, 0, len(s.Counters))
	for _, c := range s.Counters {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *Counter) int { return int(a.lastUsed) - int(b.lastUsed) })
	dropped := map[*Counter]bool{}
	for _, c := range all[:len(all)/2] {
		dropped[c] = true
		delete(s.Counters, c.key)
		s.counterIndex.remove(c)
	}
	for _, p := range s.PodEntries {
		p.counters = slices.DeleteFunc(p.counters, func(c *Counter) bool { return dropped[c] })
	}
	s.TopologyVersion++
}

// countTerms adds delta to the counts of all affinity terms of a pod, in its node's domains.
func (s *Snapshot) countTerms(p *PodEntry, delta int32) {
	info := p.Info
	if len(info.Affinity)+len(info.AntiAffinity)+len(info.PreferredAffinity)+len(info.PreferredAntiAffinity) == 0 {
		return
	}
	for i := range info.AntiAffinity {
		s.countTerm(p.Node, RequiredAntiAffinityTerm, &info.AntiAffinity[i], 0, delta)
	}
	for i := range info.Affinity {
		s.countTerm(p.Node, RequiredAffinityTerm, &info.Affinity[i], 0, delta)
	}
	for i := range info.PreferredAffinity {
		t := &info.PreferredAffinity[i]
		s.countTerm(p.Node, PreferredAffinityTerm, &t.Term, t.Weight, delta)
	}
	for i := range info.PreferredAntiAffinity {
		t := &info.PreferredAntiAffinity[i]
		s.countTerm(p.Node, PreferredAntiAffinityTerm, &t.Term, t.Weight, delta)
	}
}

func (s *Snapshot) countTerm(node int32, kind termKind, t *Term, weight int64, delta int32) {
	key := existingTermKey{Kind: kind, Weight: weight, term: t.key, topologyKey: t.TopologyKey}
	existing := s.ExistingTerms[key]
	if existing == nil {
		existing = &ExistingTerm{Key: key, Term: *t, Column: s.LabelColumn(t.TopologyKey)}
		s.ExistingTerms[key] = existing
		s.ExistingTermIndex.add(&existing.Term, existing)
		s.TopologyVersion++
	}
	existing.Total += int(delta)
	if domain := existing.Column.ValueOf[node]; domain != NoValue {
		existing.Pods = grow(existing.Pods, domain)
		existing.Pods[domain] += delta
	}
}

// DropUnusedTerms removes terms that no pod has any more, once there are many. Until then they stay, because cached affinity states
// point at them.
func (s *Snapshot) DropUnusedTerms() {
	if len(s.ExistingTerms) < s.MaxExistingTerms {
		return
	}
	for key, existing := range s.ExistingTerms {
		if existing.Total == 0 {
			delete(s.ExistingTerms, key)
			s.ExistingTermIndex.remove(existing)
		}
	}
	s.TopologyVersion++
	s.MaxExistingTerms = 2*len(s.ExistingTerms) + 1024
}

// TermCounter returns the counter of one affinity term.
func (s *Snapshot) TermCounter(t Term) *Counter {
	t = s.ResolveNamespaces(t)
	return s.CounterFor(CounterSpec{Terms: []Term{t}, Column: s.LabelColumn(t.TopologyKey)})
}
