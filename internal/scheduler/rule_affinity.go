package scheduler

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

const interPodAffinityName = "InterPodAffinity"

// interPodAffinity brings pods near others or keeps them away, as either side wishes.
type interPodAffinity struct {
	// hardWeight is what a pod's required affinity is worth to those it is required of.
	hardWeight int64
	// ignoreOthers disregards what pods already there prefer, when the pod itself prefers nothing.
	ignoreOthers bool
}

func newInterPodAffinity(args *configv1.InterPodAffinityArgs) Rule {
	r := &interPodAffinity{hardWeight: 1, ignoreOthers: args.IgnorePreferredTermsOfExistingPods}
	if weight := args.HardPodAffinityWeight; weight != nil {
		r.hardWeight = int64(*weight)
	}
	return r
}

func (*interPodAffinity) Name() string { return interPodAffinityName }

func (r *interPodAffinity) read(s *Snapshot, p *PodInfo, n *neighbourhood) {
	if len(p.affinity) > 0 {
		resolved := make([]term, len(p.affinity))
		for i := range p.affinity {
			resolved[i] = s.resolved(p.affinity[i])
		}
		for i := range resolved {
			n.affinity = append(n.affinity, s.counterFor(resolved, s.column(resolved[i].topologyKey), false, "", nil))
		}
		n.self = s.matchesAll(resolved, p.Pod)
	}
	for i := range p.antiAffinity {
		n.anti = append(n.anti, s.termCounter(p.antiAffinity[i]))
	}
	for i := range p.preferredAffinity {
		t := &p.preferredAffinity[i]
		n.attraction = append(n.attraction, attraction{counter: s.termCounter(t.term), weight: t.weight})
	}
	for i := range p.preferredAntiAffinity {
		t := &p.preferredAntiAffinity[i]
		n.attraction = append(n.attraction, attraction{counter: s.termCounter(t.term), weight: -t.weight})
	}
	minding := !r.ignoreOthers || len(n.attraction) > 0
	s.holderIndex.candidates(p.Pod, func(h *holder) {
		if !s.matches(&h.term, p.Pod) {
			return
		}
		switch h.key.kind {
		case holdsAntiAffinity:
			n.against = append(n.against, h)
		case holdsAffinity:
			if minding && r.hardWeight > 0 {
				n.attraction = append(n.attraction, attraction{holder: h, weight: r.hardWeight})
			}
		case holdsPreferredAffinity:
			if minding {
				n.attraction = append(n.attraction, attraction{holder: h, weight: h.key.weight})
			}
		case holdsPreferredAntiAffinity:
			if minding {
				n.attraction = append(n.attraction, attraction{holder: h, weight: -h.key.weight})
			}
		}
	})
}

func (s *Snapshot) termCounter(t term) *counter {
	t = s.resolved(t)
	return s.counterFor([]term{t}, s.column(t.topologyKey), false, "", nil)
}

// attractionScores adds what affinity says of the nodes in list to totals, and writes it to the record, if there is one. It reports false when
// there is nothing to say.
func (n *neighbourhood) attractionScores(s *Snapshot, list []int32, totals []int64, record *besideScores, weight int64) bool {
	raw := s.scratch(len(list))
	clear(raw)
	any := false
	for a := range n.attraction {
		pods, column, total := n.attraction[a].of()
		if total == 0 {
			continue
		}
		any = true
		worth := n.attraction[a].weight
		for i, node := range list {
			if domain := column.of[node]; domain != none && int(domain) < len(pods) {
				raw[i] += worth * int64(pods[domain])
			}
		}
	}
	if !any {
		return false
	}
	kept := record.byNode(len(s.nodes))
	clear(kept)
	least, most := int64(math.MaxInt64), int64(math.MinInt64)
	for i := range list {
		least, most = min(least, raw[i]), max(most, raw[i])
	}
	if most == least {
		return true
	}
	for i, node := range list {
		if raw[i] == least {
			continue // it scores nothing
		}
		score := int64(float64(MaxScore) * (float64(raw[i]-least) / float64(most-least)))
		totals[i] += weight * score
		if kept != nil {
			kept[node] = uint8(score)
		}
	}
	return true
}

func (r *interPodAffinity) Hints() []Hint {
	return []Hint{
		{Resource: AssignedPod, Action: Add | UpdatePodLabel | Delete, Helps: r.podHelps},
		{Resource: TargetPod, Action: UpdatePodLabel},
		{Resource: NodeResource, Action: Add | UpdateNodeLabel, Helps: r.nodeHelps},
	}
}

func (r *interPodAffinity) podHelps(s *Snapshot, pod *corev1.Pod, old, now any) bool {
	before, after := asPod(old), asPod(now)
	if before != nil && !hasPlace(before) || after != nil && !hasPlace(after) {
		return false
	}
	info, err := NewPodInfo(pod)
	if err != nil {
		return true
	}
	wanted := func(p *corev1.Pod) bool { return p != nil && s.matchesAll(info.affinity, p) }
	feared := func(p *corev1.Pod) bool { return p != nil && s.matchesAny(info.antiAffinity, p) }
	if !wanted(before) && wanted(after) || feared(before) && !feared(after) {
		return true
	}
	if before != nil && after == nil {
		gone, err := NewPodInfo(before)
		return err != nil || s.matchesAny(gone.antiAffinity, pod)
	}
	return false
}

func (r *interPodAffinity) nodeHelps(_ *Snapshot, pod *corev1.Pod, old, now any) bool {
	before, after := asNode(old), asNode(now)
	info, err := NewPodInfo(pod)
	if err != nil {
		return true
	}
	for i := range info.affinity {
		key := info.affinity[i].topologyKey
		value, has := after.Labels[key]
		if !has {
			continue
		}
		if before == nil {
			return true
		}
		if was, had := before.Labels[key]; !had || was != value {
			return true
		}
	}
	for i := range info.antiAffinity {
		if before == nil {
			return true
		}
		key := info.antiAffinity[i].topologyKey
		was, had := before.Labels[key]
		value, has := after.Labels[key]
		if had && (!has || was != value) {
			return true
		}
	}
	return false
}
