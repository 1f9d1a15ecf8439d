package scheduler

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// maxCounters bounds the counts kept for pods that may come again. Beyond it the ones unused longest are dropped.
const maxCounters = 4096

// counter counts, in every domain of one topology key, the pods that match some terms. It is made when a pod first needs it and
// from then on follows every pod that comes and goes, so that the next pod finds the answer ready.
type counter struct {
	key   string
	terms []term // a pod counts when it matches all of them
	// skipTerminating leaves out pods that are on their way out (spreading does; affinity does not).
	skipTerminating bool
	column          *labelColumn
	// eligible limits the nodes that count; nil lets all count.
	eligible func(node int32) bool
	counts   []bool // by node: eligible, when eligible is set

	pods    []int32 // by domain
	domains []int32 // by domain: nodes that count, to know which domains exist
	total   int     // pods counted in domains
	outside int32   // pods on nodes that count and are in no domain
	used    uint64
}

// holder counts, in every domain of a term's topology key, the pods that carry that term: what they demand of newcomers.
type holder struct {
	key    holderKey
	term   term
	column *labelColumn
	pods   []int32 // by domain
	total  int     // pods that carry the term, in domains or not
}

type holderKey struct {
	kind              holderKind
	weight            int64
	term, topologyKey string
}

type holderKind uint8

const (
	holdsAntiAffinity holderKind = iota
	holdsAffinity
	holdsPreferredAffinity
	holdsPreferredAntiAffinity
)

func grow(counts []int32, domain int32) []int32 {
	for int(domain) >= len(counts) {
		counts = append(counts, 0)
	}
	return counts
}

// at is the number of pods in a node's domain, and whether the node is in one.
func at(pods []int32, column *labelColumn, node int32) (int32, bool) {
	domain := column.of[node]
	if domain == none {
		return 0, false
	}
	if int(domain) >= len(pods) {
		return 0, true
	}
	return pods[domain], true
}

// counterFor returns the counter of some terms, making it from the pods there are if need be. eligibleKey tells apart counters
// that differ only in which nodes count.
func (s *Snapshot) counterFor(terms []term, column *labelColumn, skipTerminating bool, eligibleKey string, eligible func(int32) bool) *counter {
	var key strings.Builder
	for i := range terms {
		key.WriteString(terms[i].key + "\x00")
	}
	key.WriteString("\x01" + column.key + "\x01" + eligibleKey)
	if skipTerminating {
		key.WriteString("\x01t")
	}
	s.clock++
	if c := s.counters[key.String()]; c != nil {
		c.used = s.clock
		return c
	}
	if len(s.counters) >= maxCounters {
		s.dropCounters()
	}
	c := &counter{key: key.String(), terms: slices.Clone(terms), column: column, skipTerminating: skipTerminating, eligible: eligible, used: s.clock}
	s.counters[c.key] = c
	s.counterIndex.add(&c.terms[0], c)
	for i := range s.nodes {
		c.noteNode(s, int32(i))
	}
	for _, p := range s.podsOfTerms(&c.terms[0]) {
		if c.takes(s, p.info.Pod) {
			p.counted = append(p.counted, c)
			c.add(p.node, 1)
		}
	}
	return c
}

// podsOfTerms are the pods a term may speak of, by its namespaces.
func (s *Snapshot) podsOfTerms(t *term) []*podEntry {
	if t.everywhere() || len(t.namespaces) == 0 {
		var all []*podEntry
		for _, pods := range s.byNamespace {
			all = append(all, pods...)
		}
		return all
	}
	var all []*podEntry
	for _, namespace := range t.namespaces {
		all = append(all, s.byNamespace[namespace]...)
	}
	return all
}

func (c *counter) takes(s *Snapshot, pod *corev1.Pod) bool {
	if c.skipTerminating && pod.DeletionTimestamp != nil {
		return false
	}
	return s.matchesAll(c.terms, pod)
}

// noteNode takes note of a node's domain and of whether the node counts. The node's pods must not be counted at this time.
func (c *counter) noteNode(s *Snapshot, node int32) {
	if c.eligible != nil {
		for int(node) >= len(c.counts) {
			c.counts = append(c.counts, false)
		}
		c.counts[node] = s.nodes[node].object != nil && c.eligible(node)
	}
	c.noteDomain(s, node, 1)
}

func (c *counter) noteDomain(s *Snapshot, node, delta int32) {
	domain := c.column.of[node]
	if domain == none || s.nodes[node].object == nil || c.eligible != nil && !c.counts[node] {
		return
	}
	c.domains = grow(c.domains, domain)
	c.domains[domain] += delta
}

// add counts a pod in, or out, on a node.
func (c *counter) add(node, delta int32) {
	domain := c.column.of[node]
	if c.eligible != nil && !c.counts[node] {
		return
	}
	if domain == none {
		c.outside += delta
		return
	}
	c.pods = grow(c.pods, domain)
	c.pods[domain] += delta
	c.total += int(delta)
}

// fewest is the smallest count of any domain, and how many domains there are.
func (c *counter) fewest() (fewest int32, domains int) {
	fewest = 1<<31 - 1
	for d, nodes := range c.domains {
		if nodes == 0 {
			continue
		}
		domains++
		var n int32
		if d < len(c.pods) {
			n = c.pods[d]
		}
		fewest = min(fewest, n)
	}
	return fewest, domains
}

// dropCounters forgets the half of the counters that nobody asked for longest.
func (s *Snapshot) dropCounters() {
	all := make([]*counter, 0, len(s.counters))
	for _, c := range s.counters {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *counter) int { return int(a.used) - int(b.used) })
	dropped := map[*counter]bool{}
	for _, c := range all[:len(all)/2] {
		dropped[c] = true
		delete(s.counters, c.key)
		s.counterIndex.remove(&c.terms[0], func(other *counter) bool { return other == c })
	}
	for _, p := range s.pods {
		p.counted = slices.DeleteFunc(p.counted, func(c *counter) bool { return dropped[c] })
	}
	clear(s.neighbourhoods)
}

// hold counts the terms a pod carries in, or out, on its node.
func (s *Snapshot) hold(p *podEntry, delta int32) {
	info := p.info
	if len(info.affinity)+len(info.antiAffinity)+len(info.preferredAffinity)+len(info.preferredAntiAffinity) == 0 {
		return
	}
	for i := range info.antiAffinity {
		s.holdTerm(p.node, holdsAntiAffinity, &info.antiAffinity[i], 0, delta)
	}
	for i := range info.affinity {
		s.holdTerm(p.node, holdsAffinity, &info.affinity[i], 0, delta)
	}
	for i := range info.preferredAffinity {
		t := &info.preferredAffinity[i]
		s.holdTerm(p.node, holdsPreferredAffinity, &t.term, t.weight, delta)
	}
	for i := range info.preferredAntiAffinity {
		t := &info.preferredAntiAffinity[i]
		s.holdTerm(p.node, holdsPreferredAntiAffinity, &t.term, t.weight, delta)
	}
}

func (s *Snapshot) holdTerm(node int32, kind holderKind, t *term, weight int64, delta int32) {
	key := holderKey{kind: kind, weight: weight, term: t.key, topologyKey: t.topologyKey}
	h := s.holders[key]
	if h == nil {
		h = &holder{key: key, term: *t, column: s.column(t.topologyKey)}
		s.holders[key] = h
		s.holderIndex.add(&h.term, h)
		s.neighbourVersion++
	}
	h.total += int(delta)
	if domain := h.column.of[node]; domain != none {
		h.pods = grow(h.pods, domain)
		h.pods[domain] += delta
	}
}

// dropHolders forgets terms that no pod carries any more, when there are many. A holder stays until then: what was learned
// about a pod points at it.
func (s *Snapshot) dropHolders() {
	if len(s.holders) < s.holdersKept {
		return
	}
	for key, h := range s.holders {
		if h.total == 0 {
			delete(s.holders, key)
			s.holderIndex.remove(&h.term, func(other *holder) bool { return other == h })
		}
	}
	s.neighbourVersion++
	s.holdersKept = 2*len(s.holders) + 1024
}
