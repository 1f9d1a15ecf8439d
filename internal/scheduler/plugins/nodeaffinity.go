package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"skiff/internal/scheduler/snapshot"
)

// nodeAffinity filters nodes by nodeSelector and required node affinity, and scores them by preferred node affinity.
type nodeAffinity struct {
	// added is the profile's addedAffinity, which applies to all its pods.
	added *corev1.NodeAffinity
}

func newNodeAffinity(args *configv1.NodeAffinityArgs) Plugin {
	return &nodeAffinity{added: args.AddedAffinity}
}

func (*nodeAffinity) Name() string { return NodeAffinityName }

var (
	NodeAffinityMismatch     = Refuse(NodeAffinityName, true, "node(s) didn't match Pod's node affinity/selector")
	enforcedAffinityMismatch = Refuse(NodeAffinityName, true, "node(s) didn't match scheduler-enforced node affinity")
	affinityConflict         = Refuse(NodeAffinityName, true, "pod affinity terms conflict")
)

func (r *nodeAffinity) Filter(s *snapshot.Snapshot, p *snapshot.PodInfo) (Filter, *Refusal) {
	var f Filter
	selected := s.RequiredSelection(p.Pod)
	var enforced *snapshot.NodeSelection
	if r.added != nil && r.added.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		enforced = s.NodeSelection(nil, r.added.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	if selected == nil && enforced == nil {
		return f, nil
	}
	f.Check = func(node int32) *Refusal {
		if enforced != nil && !enforced.Matches(node) {
			return enforcedAffinityMismatch
		}
		if selected != nil && !selected.Matches(node) {
			return NodeAffinityMismatch
		}
		return nil
	}
	names, limited := namedNodes(p.Pod)
	if limited && len(names) == 0 {
		return f, affinityConflict
	}
	f.NodeNames, f.LimitedToNames = names, limited
	return f, nil
}

// namedNodes returns the node names of a pod's required terms. limited is set if every term selects nodes by name.
func namedNodes(pod *corev1.Pod) (names []string, limited bool) {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil, false
	}
	terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		var named []string
		found := false
		for _, f := range terms[i].MatchFields {
			if f.Key != metav1.ObjectNameField || f.Operator != corev1.NodeSelectorOpIn {
				continue
			}
			if !found {
				named, found = slices.Clone(f.Values), true
			} else {
				named = slices.DeleteFunc(named, func(name string) bool { return !slices.Contains(f.Values, name) })
			}
		}
		if !found {
			return nil, false
		}
		names = append(names, named...)
	}
	slices.Sort(names)
	return slices.Compact(names), len(terms) > 0
}

func (r *nodeAffinity) Score(s *snapshot.Snapshot, p *snapshot.PodInfo) Scorer {
	var preferred []corev1.PreferredSchedulingTerm
	if a := p.Pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		preferred = append(preferred, a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if len(preferred) > 0 {
		if _, err := nodeaffinity.NewPreferredSchedulingTerms(preferred); err != nil {
			return Scorer{Err: err}
		}
	}
	if r.added != nil {
		preferred = append(preferred, r.added.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if len(preferred) == 0 {
		return Scorer{}
	}
	type preference struct {
		selection snapshot.SelectionTerm
		weight    int64
	}
	var preferences []preference
	for i := range preferred {
		if t := &preferred[i].Preference; preferred[i].Weight != 0 && len(t.MatchExpressions)+len(t.MatchFields) > 0 {
			preferences = append(preferences, preference{s.SelectionTerm(t), int64(preferred[i].Weight)})
		}
	}
	return Scorer{Normalization: HigherIsBetter, Score: func(node int32) (sum int64) {
		for i := range preferences {
			if preferences[i].selection.Matches(s, node) {
				sum += preferences[i].weight
			}
		}
		return sum
	}}
}

func (r *nodeAffinity) Hints() []QueueingHint {
	enforced := func(n *corev1.Node) bool {
		if r.added == nil || r.added.RequiredDuringSchedulingIgnoredDuringExecution == nil {
			return true
		}
		selector, err := nodeaffinity.NewNodeSelector(r.added.RequiredDuringSchedulingIgnoredDuringExecution)
		return err != nil || selector.Match(n)
	}
	return []QueueingHint{{Resource: NodeResource, Action: Add | UpdateNodeLabel, Helps: func(_ *snapshot.Snapshot, pod *corev1.Pod, old, now any) bool {
		before, after := asNode(old), asNode(now)
		required := nodeaffinity.GetRequiredNodeAffinity(pod)
		match, err := required.Match(after)
		switch {
		case !enforced(after):
			return false
		case err != nil:
			return true // as in upstream, an invalid term does not hold the pod back
		case !match || before == nil || !enforced(before):
			return match
		}
		match, err = required.Match(before)
		return !match || err != nil
	}}}
}
