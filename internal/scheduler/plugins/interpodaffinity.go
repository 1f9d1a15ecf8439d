package plugins

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"skiff/internal/scheduler/snapshot"
)

// interPodAffinity filters and scores nodes by required and preferred pod affinity and anti-affinity.
type interPodAffinity struct {
	// hardWeight is the weight of required affinity terms of pods on nodes that match the pod.
	hardWeight int64
	// ignoreExistingPreferred ignores preferred terms of pods on nodes when the pod itself has none.
	ignoreExistingPreferred bool
}

func newInterPodAffinity(args *configv1.InterPodAffinityArgs) Plugin {
	r := &interPodAffinity{hardWeight: 1, ignoreExistingPreferred: args.IgnorePreferredTermsOfExistingPods}
	if weight := args.HardPodAffinityWeight; weight != nil {
		r.hardWeight = int64(*weight)
	}
	return r
}

func (*interPodAffinity) Name() string { return InterPodAffinityName }

// AffinityState is the state of InterPodAffinity for one pod. It points at counters and existing terms of the snapshot, which are kept
// up to date there.
type AffinityState struct {
	// required has one counter for each required affinity term; all count pods that match all terms.
	required []*snapshot.Counter
	// matchesSelf is set when the pod matches its own required affinity, so that it may be scheduled as the first such pod.
	matchesSelf  bool
	antiAffinity []*snapshot.Counter
	// existingAntiAffinity is the anti-affinity of pods on nodes against the pod.
	existingAntiAffinity []*snapshot.ExistingTerm
	Preferred            []preferredTerm
}

// preferredTerm adds weight, which may be negative, for each pod of a domain. Either counter or existing is set.
type preferredTerm struct {
	counter  *snapshot.Counter
	existing *snapshot.ExistingTerm
	weight   int64
}

func (t *preferredTerm) counts() (pods []int32, column *snapshot.LabelColumn, total int) {
	if t.counter != nil {
		return t.counter.Pods, t.counter.Column, t.counter.Total
	}
	return t.existing.Pods, t.existing.Column, t.existing.Total
}

// State returns the state for a pod.
func (r *interPodAffinity) State(s *snapshot.Snapshot, p *snapshot.PodInfo) (a AffinityState) {
	if len(p.Affinity) > 0 {
		resolved := make([]snapshot.Term, len(p.Affinity))
		for i := range p.Affinity {
			resolved[i] = s.ResolveNamespaces(p.Affinity[i])
		}
		for i := range resolved {
			a.required = append(a.required, s.CounterFor(snapshot.CounterSpec{Terms: resolved, Column: s.LabelColumn(resolved[i].TopologyKey)}))
		}
		a.matchesSelf = s.MatchesAll(resolved, p.Pod)
	}
	for i := range p.AntiAffinity {
		a.antiAffinity = append(a.antiAffinity, s.TermCounter(p.AntiAffinity[i]))
	}
	for i := range p.PreferredAffinity {
		t := &p.PreferredAffinity[i]
		a.Preferred = append(a.Preferred, preferredTerm{counter: s.TermCounter(t.Term), weight: t.Weight})
	}
	for i := range p.PreferredAntiAffinity {
		t := &p.PreferredAntiAffinity[i]
		a.Preferred = append(a.Preferred, preferredTerm{counter: s.TermCounter(t.Term), weight: -t.Weight})
	}
	r.addExisting(s, p.Pod, &a)
	return a
}

// addExisting adds the terms of existing pods that match the pod.
func (r *interPodAffinity) addExisting(s *snapshot.Snapshot, pod *corev1.Pod, a *AffinityState) {
	scoreExisting := !r.ignoreExistingPreferred || len(a.Preferred) > 0
	s.ExistingTermIndex.Candidates(pod, func(existing *snapshot.ExistingTerm) {
		if !s.Matches(&existing.Term, pod) {
			return
		}
		switch existing.Key.Kind {
		case snapshot.RequiredAntiAffinityTerm:
			a.existingAntiAffinity = append(a.existingAntiAffinity, existing)
		case snapshot.RequiredAffinityTerm:
			if scoreExisting && r.hardWeight > 0 {
				a.Preferred = append(a.Preferred, preferredTerm{existing: existing, weight: r.hardWeight})
			}
		case snapshot.PreferredAffinityTerm:
			if scoreExisting {
				a.Preferred = append(a.Preferred, preferredTerm{existing: existing, weight: existing.Key.Weight})
			}
		case snapshot.PreferredAntiAffinityTerm:
			if scoreExisting {
				a.Preferred = append(a.Preferred, preferredTerm{existing: existing, weight: -existing.Key.Weight})
			}
		}
	})
}

// DisableFilter drops the state for filtering, for profiles that do not use it.
func (a *AffinityState) DisableFilter() {
	a.required, a.antiAffinity, a.existingAntiAffinity = nil, nil, nil
}

// DisableScore drops the state for scoring.
func (a *AffinityState) DisableScore() { a.Preferred = nil }

// Inactive reports whether affinity neither filters nor scores any node at present.
func (a *AffinityState) Inactive() bool {
	return len(a.required) == 0 &&
		!slices.ContainsFunc(a.antiAffinity, func(c *snapshot.Counter) bool { return c.Total > 0 }) &&
		!slices.ContainsFunc(a.existingAntiAffinity, func(existing *snapshot.ExistingTerm) bool { return existing.Total > 0 }) &&
		!slices.ContainsFunc(a.Preferred, func(t preferredTerm) bool { _, _, total := t.counts(); return total > 0 })
}

// FiltersNothing reports whether neither the pod's affinity nor that of existing pods can reject a node.
func (a *AffinityState) FiltersNothing() bool {
	return len(a.required)+len(a.antiAffinity) == 0 && !slices.ContainsFunc(a.existingAntiAffinity, func(existing *snapshot.ExistingTerm) bool {
		return slices.ContainsFunc(existing.Pods, func(pods int32) bool { return pods > 0 })
	})
}

// Check returns the code of the first refusal of a node, or 0.
func (a *AffinityState) Check(node int32) uint8 {
	switch {
	case len(a.required) > 0 && !a.satisfied(node, a.isFirst()):
		return AffinityMismatch
	case a.antiAffinityViolated(node):
		return AntiAffinityMismatch
	case a.existingAntiAffinityViolated(node):
		return ExistingAntiAffinityMismatch
	}
	return 0
}

// Refusals returns the codes of all refusals of a node, where Check returns the first.
func (a *AffinityState) Refusals(node int32) (codes []uint8) {
	if len(a.required) > 0 && !a.satisfied(node, a.isFirst()) {
		codes = append(codes, AffinityMismatch)
	}
	if a.antiAffinityViolated(node) {
		codes = append(codes, AntiAffinityMismatch)
	}
	if a.existingAntiAffinityViolated(node) {
		codes = append(codes, ExistingAntiAffinityMismatch)
	}
	return codes
}

func (a *AffinityState) antiAffinityViolated(node int32) bool {
	return slices.ContainsFunc(a.antiAffinity, func(c *snapshot.Counter) bool {
		pods, _ := snapshot.PodsInDomain(c.Pods, c.Column, node)
		return pods > 0
	})
}

func (a *AffinityState) existingAntiAffinityViolated(node int32) bool {
	return slices.ContainsFunc(a.existingAntiAffinity, func(existing *snapshot.ExistingTerm) bool {
		pods, _ := snapshot.PodsInDomain(existing.Pods, existing.Column, node)
		return pods > 0
	})
}

// isFirst reports whether no pod matches the required affinity yet, but the pod matches it itself: then any node with the topology keys
// is allowed.
func (a *AffinityState) isFirst() bool {
	return a.matchesSelf && !slices.ContainsFunc(a.required, func(c *snapshot.Counter) bool { return c.Total > 0 })
}

func (a *AffinityState) satisfied(node int32, first bool) bool {
	present := true
	for _, c := range a.required {
		pods, has := snapshot.PodsInDomain(c.Pods, c.Column, node)
		if !has {
			return false
		}
		present = present && pods > 0
	}
	return present || first
}

// Filter keeps the nodes in list that affinity allows, and sets the refusal codes of the others. The loops run over columns, term by term.
func (a *AffinityState) Filter(list []int32, refusals []uint8) []int32 {
	if len(a.required) > 0 {
		first := a.isFirst()
		kept := list[:0]
		for _, node := range list {
			if a.satisfied(node, first) {
				kept = append(kept, node)
			} else {
				refusals[node] = AffinityMismatch
			}
		}
		list = kept
	}
	for _, c := range a.antiAffinity {
		if c.Total > 0 {
			list = removeDomainsWithPods(list, refusals, c.Pods, c.Column, AntiAffinityMismatch)
		}
	}
	for _, existing := range a.existingAntiAffinity {
		if existing.Total > 0 {
			list = removeDomainsWithPods(list, refusals, existing.Pods, existing.Column, ExistingAntiAffinityMismatch)
		}
	}
	return list
}

// removeDomainsWithPods removes the nodes of domains that have pods.
func removeDomainsWithPods(list []int32, refusals []uint8, pods []int32, column *snapshot.LabelColumn, code uint8) []int32 {
	kept := list[:0]
	for _, node := range list {
		if domain := column.ValueOf[node]; domain != snapshot.NoValue && int(domain) < len(pods) && pods[domain] > 0 {
			refusals[node] = code
		} else {
			kept = append(kept, node)
		}
	}
	return kept
}

// AddScores adds the normalized scores. It reports false if no term matches any pod.
func (a *AffinityState) AddScores(s *snapshot.Snapshot, x Scoring) bool {
	list, totals := x.Nodes, x.Totals
	raw := s.ScratchBuffer(len(list))
	clear(raw)
	matched := false
	for t := range a.Preferred {
		pods, column, total := a.Preferred[t].counts()
		if total == 0 {
			continue
		}
		matched = true
		weight := a.Preferred[t].weight
		for i, node := range list {
			if domain := column.ValueOf[node]; domain != snapshot.NoValue && int(domain) < len(pods) {
				raw[i] += weight * int64(pods[domain])
			}
		}
	}
	if !matched {
		return false
	}
	recorded := x.Record.ByNode(len(s.NodeInfos))
	clear(recorded)
	least, most := int64(math.MaxInt64), int64(math.MinInt64)
	for i := range list {
		least, most = min(least, raw[i]), max(most, raw[i])
	}
	if most == least {
		return true
	}
	for i, node := range list {
		if raw[i] == least {
			continue // its score is 0
		}
		score := int64(float64(MaxScore) * (float64(raw[i]-least) / float64(most-least)))
		totals[i] += x.Weight * score
		if recorded != nil {
			recorded[node] = uint8(score)
		}
	}
	return true
}

func (r *interPodAffinity) Hints() []QueueingHint {
	return []QueueingHint{
		{Resource: AssignedPod, Action: Add | UpdatePodLabel | Delete, Helps: r.podHelps},
		{Resource: TargetPod, Action: UpdatePodLabel},
		{Resource: NodeResource, Action: Add | UpdateNodeLabel, Helps: r.nodeHelps},
	}
}

func (r *interPodAffinity) podHelps(s *snapshot.Snapshot, pod *corev1.Pod, old, now any) bool {
	before, after := asPod(old), asPod(now)
	if before != nil && !occupiesNode(before) || after != nil && !occupiesNode(after) {
		return false
	}
	info, err := snapshot.NewPodInfo(pod)
	if err != nil {
		return true
	}
	wanted := func(p *corev1.Pod) bool { return p != nil && s.MatchesAll(info.Affinity, p) }
	avoided := func(p *corev1.Pod) bool { return p != nil && s.MatchesAny(info.AntiAffinity, p) }
	if !wanted(before) && wanted(after) || avoided(before) && !avoided(after) {
		return true
	}
	if before != nil && after == nil {
		deleted, err := snapshot.NewPodInfo(before)
		return err != nil || s.MatchesAny(deleted.AntiAffinity, pod)
	}
	return false
}

func (r *interPodAffinity) nodeHelps(_ *snapshot.Snapshot, pod *corev1.Pod, old, now any) bool {
	before, after := asNode(old), asNode(now)
	info, err := snapshot.NewPodInfo(pod)
	if err != nil {
		return true
	}
	for i := range info.Affinity {
		key := info.Affinity[i].TopologyKey
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
	for i := range info.AntiAffinity {
		if before == nil {
			return true
		}
		key := info.AntiAffinity[i].TopologyKey
		was, had := before.Labels[key]
		value, has := after.Labels[key]
		if had && (!has || was != value) {
			return true
		}
	}
	return false
}
