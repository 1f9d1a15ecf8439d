package scheduler

import (
	"slices"
)

// maxNeighbourhoods bounds what is kept for pods that may come again.
const maxNeighbourhoods = 4096

// neighbourhood is what a pod means to other pods and they to it: which counts decide where it may and should go. It is made once
// for all pods of one make and points at counts that follow the cluster by themselves.
type neighbourhood struct {
	version uint64

	hard []spreadLimit
	soft []spreadWish
	// whole demands that a node has all topology keys of the wishes, or it scores nothing.
	whole bool

	affinity []*counter // one for each term; all count pods that match all terms
	self     bool       // the pod matches its own affinity, so it may be the first of its kind
	anti     []*counter
	against  []*holder // anti-affinity of pods already there

	attraction []attraction

	// affinityFirst is set where affinity is asked before spreading.
	affinityFirst bool
}

// spreadLimit is a constraint that must hold.
type spreadLimit struct {
	counter    *counter
	maxSkew    int32
	minDomains int
	self       int32 // 1 when the pod itself will count
}

// spreadWish is a constraint that should hold.
type spreadWish struct {
	counter *counter
	// label is the topology key's own column; for hostnames the counter counts by node.
	label   *labelColumn
	host    bool
	maxSkew int64
}

// attraction adds weight for each pod of a domain, or takes it away.
type attraction struct {
	counter *counter
	holder  *holder
	weight  int64
}

func (a *attraction) of() (pods []int32, column *labelColumn, total int) {
	if a.counter != nil {
		return a.counter.pods, a.counter.column, a.counter.total
	}
	return a.holder.pods, a.holder.column, a.holder.total
}

// neighbourhoodFor returns a pod's neighbourhood.
func (s *Snapshot) neighbourhoodFor(p *PodInfo, profile *Profile) (*neighbourhood, error) {
	key := profile.Name + "\x00" + p.neighbourKey()
	if n := s.neighbourhoods[key]; n != nil && n.version == s.neighbourVersion {
		return n, nil
	}
	s.dropHolders()
	if len(s.neighbourhoods) >= maxNeighbourhoods {
		clear(s.neighbourhoods)
	}
	n := &neighbourhood{affinityFirst: profile.affinityOrder >= 0 && profile.affinityOrder < profile.spreadOrder}
	if profile.spread != nil {
		if err := profile.spread.read(s, p, n); err != nil {
			return nil, err
		}
	}
	if profile.affinity != nil {
		profile.affinity.read(s, p, n)
	}
	n.limit(profile)
	n.version = s.neighbourVersion
	s.neighbourhoods[key] = n
	return n, nil
}

// limit leaves out what the profile does not want to hear.
func (n *neighbourhood) limit(profile *Profile) {
	if profile.spreadOrder < 0 {
		n.hard = nil
	}
	if profile.spreadWeight == 0 {
		n.soft = nil
	}
	if profile.affinityOrder < 0 {
		n.affinity, n.anti, n.against = nil, nil, nil
	}
	if profile.affinityWeight == 0 {
		n.attraction = nil
	}
}

// quiet reports whether neighbours have no say: nothing to filter by, nothing to score by.
func (n *neighbourhood) quiet() bool {
	if len(n.hard)+len(n.soft)+len(n.affinity) > 0 {
		return false
	}
	for _, c := range n.anti {
		if c.total > 0 {
			return false
		}
	}
	for _, h := range n.against {
		if h.total > 0 {
			return false
		}
	}
	for i := range n.attraction {
		if _, _, total := n.attraction[i].of(); total > 0 {
			return false
		}
	}
	return true
}

// alone reports whether no affinity keeps the pod from any node.
func (n *neighbourhood) alone() bool {
	return len(n.affinity)+len(n.anti) == 0 &&
		!slices.ContainsFunc(n.against, func(h *holder) bool { return slices.ContainsFunc(h.pods, func(pods int32) bool { return pods > 0 }) })
}

// check tells whether neighbours let the pod run on one node: the code of the refusal, or 0.
func (n *neighbourhood) check(node int32, spread, affinity bool) uint8 {
	if affinity && n.affinityFirst {
		if code := n.checkAffinity(node); code != 0 {
			return code
		}
	}
	if spread {
		for i := range n.hard {
			fewest := n.hard[i].fewest()
			if code := n.hard[i].check(node, fewest); code != 0 {
				return code
			}
		}
	}
	if affinity && !n.affinityFirst {
		return n.checkAffinity(node)
	}
	return 0
}

func (n *neighbourhood) checkAffinity(node int32) uint8 {
	switch {
	case len(n.affinity) > 0 && !n.attracted(node, n.first()):
		return noAffinity
	case n.repelled(node):
		return antiAffinity
	case n.unwelcome(node):
		return unwelcome
	}
	return 0
}

// repelled reports whether the pod's own anti-affinity keeps it from a node, and unwelcome whether that of pods there does.
func (n *neighbourhood) repelled(node int32) bool {
	return slices.ContainsFunc(n.anti, func(c *counter) bool { pods, _ := at(c.pods, c.column, node); return pods > 0 })
}

func (n *neighbourhood) unwelcome(node int32) bool {
	return slices.ContainsFunc(n.against, func(h *holder) bool { pods, _ := at(h.pods, h.column, node); return pods > 0 })
}

// obstacles are all refusals of a node, each once, where check tells the first.
func (n *neighbourhood) obstacles(node int32, spread, affinity bool) (codes []uint8) {
	if spread {
		for i := range n.hard {
			if code := n.hard[i].check(node, n.hard[i].fewest()); code != 0 && !slices.Contains(codes, code) {
				codes = append(codes, code)
			}
		}
	}
	if !affinity {
		return codes
	}
	if len(n.affinity) > 0 && !n.attracted(node, n.first()) {
		codes = append(codes, noAffinity)
	}
	if n.repelled(node) {
		codes = append(codes, antiAffinity)
	}
	if n.unwelcome(node) {
		codes = append(codes, unwelcome)
	}
	return codes
}

// fewest is what the emptiest domain has; 0 when there are fewer domains than the constraint demands.
func (l *spreadLimit) fewest() int32 {
	fewest, domains := l.counter.fewest()
	if domains < l.minDomains {
		return 0
	}
	return fewest
}

func (l *spreadLimit) check(node, fewest int32) uint8 {
	pods, has := at(l.counter.pods, l.counter.column, node)
	if !has {
		return missingLabel
	}
	if int64(pods)+int64(l.self)-int64(fewest) > int64(l.maxSkew) {
		return skewed
	}
	return 0
}

// first reports whether the pod may be the first of its kind: nobody matches its affinity yet, but it matches itself.
func (n *neighbourhood) first() bool {
	return n.self && !slices.ContainsFunc(n.affinity, func(c *counter) bool { return c.total > 0 })
}

func (n *neighbourhood) attracted(node int32, first bool) bool {
	present := true
	for _, c := range n.affinity {
		pods, has := at(c.pods, c.column, node)
		if !has {
			return false
		}
		present = present && pods > 0
	}
	return present || first
}

// keep leaves in list the nodes neighbours let the pod run on, and notes the others' refusals. The loops run over columns, one
// constraint after another.
func (n *neighbourhood) keep(list []int32, refusals []uint8) []int32 {
	if n.affinityFirst {
		return n.keepSpread(n.keepAffinity(list, refusals), refusals)
	}
	return n.keepAffinity(n.keepSpread(list, refusals), refusals)
}

func (n *neighbourhood) keepSpread(list []int32, refusals []uint8) []int32 {
	for i := range n.hard {
		l := &n.hard[i]
		fewest := l.fewest()
		kept := list[:0]
		for _, node := range list {
			if code := l.check(node, fewest); code != 0 {
				refusals[node] = code
			} else {
				kept = append(kept, node)
			}
		}
		list = kept
	}
	return list
}

func (n *neighbourhood) keepAffinity(list []int32, refusals []uint8) []int32 {
	if len(n.affinity) > 0 {
		first := n.first()
		kept := list[:0]
		for _, node := range list {
			if n.attracted(node, first) {
				kept = append(kept, node)
			} else {
				refusals[node] = noAffinity
			}
		}
		list = kept
	}
	for _, c := range n.anti {
		if c.total > 0 {
			list = without(list, refusals, c.pods, c.column, antiAffinity)
		}
	}
	for _, h := range n.against {
		if h.total > 0 {
			list = without(list, refusals, h.pods, h.column, unwelcome)
		}
	}
	return list
}

// without leaves out the nodes of domains that have pods.
func without(list []int32, refusals []uint8, pods []int32, column *labelColumn, code uint8) []int32 {
	kept := list[:0]
	for _, node := range list {
		if domain := column.of[node]; domain != none && int(domain) < len(pods) && pods[domain] > 0 {
			refusals[node] = code
		} else {
			kept = append(kept, node)
		}
	}
	return kept
}
