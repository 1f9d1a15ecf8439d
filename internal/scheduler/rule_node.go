package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

const (
	nodeNameName          = "NodeName"
	nodeUnschedulableName = "NodeUnschedulable"
	taintTolerationName   = "TaintToleration"
	nodeAffinityName      = "NodeAffinity"
	nodePortsName         = "NodePorts"
)

// nodeName keeps a pod that names its node to that node.
type nodeName struct{}

func (nodeName) Name() string { return nodeNameName }

var refusedNodeName = refuse(nodeNameName, true, "node(s) didn't match the requested node name")

func (nodeName) Filter(s *Snapshot, p *PodInfo) (Filter, *Refusal) {
	name := p.Pod.Spec.NodeName
	if name == "" {
		return Filter{}, nil
	}
	return Filter{Check: func(node int32) *Refusal {
		if s.nodes[node].name != name {
			return refusedNodeName
		}
		return nil
	}}, nil
}

func (nodeName) Hints() []Hint { return []Hint{{Resource: NodeResource, Action: Add}} }

// nodeUnschedulable keeps pods from nodes somebody has closed.
type nodeUnschedulable struct{}

func (nodeUnschedulable) Name() string { return nodeUnschedulableName }

var (
	refusedUnschedulable = refuse(nodeUnschedulableName, true, "node(s) were unschedulable")
	taintUnschedulable   = &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
)

func (nodeUnschedulable) Filter(s *Snapshot, p *PodInfo) (Filter, *Refusal) {
	if tolerates(p.Pod.Spec.Tolerations, taintUnschedulable) {
		return Filter{}, nil
	}
	return Filter{Check: func(node int32) *Refusal {
		if s.closed[node] {
			return refusedUnschedulable
		}
		return nil
	}}, nil
}

func (nodeUnschedulable) Hints() []Hint {
	return []Hint{
		{Resource: NodeResource, Action: Add | UpdateNodeTaint, Helps: func(_ *Snapshot, _ *corev1.Pod, old, now any) bool {
			before := asNode(old)
			return (before == nil || before.Spec.Unschedulable) && !asNode(now).Spec.Unschedulable
		}},
		{Resource: TargetPod, Action: UpdatePodToleration, Helps: func(_ *Snapshot, _ *corev1.Pod, _, now any) bool {
			return tolerates(asPod(now).Spec.Tolerations, taintUnschedulable)
		}},
	}
}

// taintToleration keeps pods from nodes whose taints they do not tolerate, and prefers nodes without such taints.
type taintToleration struct{}

func (taintToleration) Name() string { return taintTolerationName }

var refusedTaint = refuse(taintTolerationName, true, "node(s) had untolerated taint(s)")

func (taintToleration) Filter(s *Snapshot, p *PodInfo) (Filter, *Refusal) {
	t := &tolerance{snapshot: s, tolerations: p.Pod.Spec.Tolerations}
	return Filter{Check: func(node int32) *Refusal {
		if s.taints[node] != 0 && t.of(node).refused != nil {
			return refusedTaint
		}
		return nil
	}}, nil
}

func (taintToleration) Score(s *Snapshot, p *PodInfo) Scorer {
	t := &tolerance{snapshot: s, tolerations: p.Pod.Spec.Tolerations}
	return Scorer{Scale: LeastIsBest, Of: func(node int32) int64 {
		if s.taints[node] == 0 {
			return 0
		}
		return t.of(node).disliked
	}}
}

func (taintToleration) Hints() []Hint {
	refused := func(n *corev1.Node, pod *corev1.Pod) bool {
		return n == nil || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return keepsAway(&t) && !tolerates(pod.Spec.Tolerations, &t)
		})
	}
	return []Hint{
		{Resource: NodeResource, Action: Add | UpdateNodeTaint, Helps: func(_ *Snapshot, pod *corev1.Pod, old, now any) bool {
			return refused(asNode(old), pod) && !refused(asNode(now), pod)
		}},
		{Resource: TargetPod, Action: UpdatePodToleration},
	}
}

// nodeAffinity keeps pods to the nodes they select, and to those they prefer if it can.
type nodeAffinity struct {
	// added is demanded and preferred of all pods of the profile.
	added *corev1.NodeAffinity
}

func newNodeAffinity(args *configv1.NodeAffinityArgs) Rule {
	return &nodeAffinity{added: args.AddedAffinity}
}

func (*nodeAffinity) Name() string { return nodeAffinityName }

var (
	refusedAffinity = refuse(nodeAffinityName, true, "node(s) didn't match Pod's node affinity/selector")
	refusedEnforced = refuse(nodeAffinityName, true, "node(s) didn't match scheduler-enforced node affinity")
	refusedConflict = refuse(nodeAffinityName, true, "pod affinity terms conflict")
)

func (r *nodeAffinity) Filter(s *Snapshot, p *PodInfo) (Filter, *Refusal) {
	var f Filter
	selected := s.requiredSelection(p.Pod)
	var enforced *nodeSelection
	if r.added != nil && r.added.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		enforced = s.selection(nil, r.added.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	if selected == nil && enforced == nil {
		return f, nil
	}
	f.Check = func(node int32) *Refusal {
		if enforced != nil && !enforced.matches(node) {
			return refusedEnforced
		}
		if selected != nil && !selected.matches(node) {
			return refusedAffinity
		}
		return nil
	}
	names, limited := namedNodes(p.Pod)
	if limited && len(names) == 0 {
		return f, refusedConflict
	}
	f.Only, f.Limited = names, limited
	return f, nil
}

// namedNodes are the nodes a pod names, when all its terms name some.
func namedNodes(pod *corev1.Pod) (names []string, limited bool) {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil, false
	}
	terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		var named []string
		any := false
		for _, f := range terms[i].MatchFields {
			if f.Key != metav1.ObjectNameField || f.Operator != corev1.NodeSelectorOpIn {
				continue
			}
			if !any {
				named, any = slices.Clone(f.Values), true
			} else {
				named = slices.DeleteFunc(named, func(name string) bool { return !slices.Contains(f.Values, name) })
			}
		}
		if !any {
			return nil, false
		}
		names = append(names, named...)
	}
	slices.Sort(names)
	return slices.Compact(names), len(terms) > 0
}

func (r *nodeAffinity) Score(s *Snapshot, p *PodInfo) Scorer {
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
		selection selectionTerm
		weight    int64
	}
	var preferences []preference
	for i := range preferred {
		if t := &preferred[i].Preference; preferred[i].Weight != 0 && len(t.MatchExpressions)+len(t.MatchFields) > 0 {
			preferences = append(preferences, preference{s.selectionTerm(t), int64(preferred[i].Weight)})
		}
	}
	return Scorer{Scale: MostIsBest, Of: func(node int32) (sum int64) {
		for i := range preferences {
			if preferences[i].selection.matches(s, node) {
				sum += preferences[i].weight
			}
		}
		return sum
	}}
}

func (r *nodeAffinity) Hints() []Hint {
	enforced := func(n *corev1.Node) bool {
		if r.added == nil || r.added.RequiredDuringSchedulingIgnoredDuringExecution == nil {
			return true
		}
		selector, err := nodeaffinity.NewNodeSelector(r.added.RequiredDuringSchedulingIgnoredDuringExecution)
		return err != nil || selector.Match(n)
	}
	return []Hint{{Resource: NodeResource, Action: Add | UpdateNodeLabel, Helps: func(_ *Snapshot, pod *corev1.Pod, old, now any) bool {
		before, after := asNode(old), asNode(now)
		required := nodeaffinity.GetRequiredNodeAffinity(pod)
		match, err := required.Match(after)
		switch {
		case !enforced(after):
			return false
		case err != nil:
			return true // a term that cannot be read may match after all
		case !match || before == nil || !enforced(before):
			return match
		}
		match, err = required.Match(before)
		return !match || err != nil
	}}}
}

// nodeSelection is a pod's required selection of nodes, in terms of columns.
type nodeSelection struct {
	snapshot *Snapshot
	exact    []requirement
	// terms are alternatives; when limited, at least one must match.
	terms   []selectionTerm
	limited bool
}

// selectionTerm matches nodes that meet all its requirements.
type selectionTerm struct {
	requirements []requirement
	fields       []fieldRequirement
	never        bool
}

// requirement is a demand on one label. What a value means to it is found out once for each value.
type requirement struct {
	column   *labelColumn
	operator corev1.NodeSelectorOperator
	values   []string
	known    []bool // by value: whether it is wanted
}

// fieldRequirement is a demand on one field. The name is the only field nodes have here; all others are empty.
type fieldRequirement struct {
	named bool
	value string
	not   bool
}

// requiredSelection reads which nodes a pod selects; nil means all.
func (s *Snapshot) requiredSelection(pod *corev1.Pod) *nodeSelection {
	var required *corev1.NodeSelector
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		required = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	if len(pod.Spec.NodeSelector) == 0 && required == nil {
		return nil
	}
	return s.selection(pod.Spec.NodeSelector, required)
}

func (s *Snapshot) selection(exact map[string]string, required *corev1.NodeSelector) *nodeSelection {
	n := &nodeSelection{snapshot: s, limited: required != nil}
	for _, key := range slices.Sorted(maps.Keys(exact)) {
		n.exact = append(n.exact, requirement{column: s.column(key), operator: corev1.NodeSelectorOpIn, values: []string{exact[key]}})
	}
	if required != nil {
		for i := range required.NodeSelectorTerms {
			// An empty term matches nothing.
			if t := &required.NodeSelectorTerms[i]; len(t.MatchExpressions)+len(t.MatchFields) > 0 {
				n.terms = append(n.terms, s.selectionTerm(t))
			}
		}
	}
	return n
}

func (s *Snapshot) selectionTerm(t *corev1.NodeSelectorTerm) selectionTerm {
	// A term that cannot be read matches nothing.
	if _, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{*t}}); err != nil {
		return selectionTerm{never: true}
	}
	var x selectionTerm
	for _, e := range t.MatchExpressions {
		x.requirements = append(x.requirements, requirement{column: s.column(e.Key), operator: e.Operator, values: e.Values})
	}
	for _, f := range t.MatchFields {
		x.fields = append(x.fields, fieldRequirement{named: f.Key == metav1.ObjectNameField, value: f.Values[0], not: f.Operator == corev1.NodeSelectorOpNotIn})
	}
	return x
}

func (n *nodeSelection) matches(node int32) bool {
	for i := range n.exact {
		if !n.exact[i].met(node) {
			return false
		}
	}
	if !n.limited {
		return true
	}
	for i := range n.terms {
		if n.terms[i].matches(n.snapshot, node) {
			return true
		}
	}
	return false
}

func (t *selectionTerm) matches(s *Snapshot, node int32) bool {
	if t.never {
		return false
	}
	for i := range t.requirements {
		if !t.requirements[i].met(node) {
			return false
		}
	}
	for i := range t.fields {
		if !t.fields[i].met(s, node) {
			return false
		}
	}
	return true
}

func (r *fieldRequirement) met(s *Snapshot, node int32) bool {
	has := ""
	if r.named {
		has = s.nodes[node].name
	}
	return (r.value == has) != r.not
}

func (r *requirement) met(node int32) bool {
	value := r.column.of[node]
	if value == none {
		return r.operator == corev1.NodeSelectorOpNotIn || r.operator == corev1.NodeSelectorOpDoesNotExist
	}
	for int(value) >= len(r.known) {
		r.known = append(r.known, r.wants(r.column.values[len(r.known)]))
	}
	return r.known[value]
}

// wants reports whether a node with the label's value is meant.
func (r *requirement) wants(value string) bool {
	switch r.operator {
	case corev1.NodeSelectorOpIn:
		return slices.Contains(r.values, value)
	case corev1.NodeSelectorOpNotIn:
		return !slices.Contains(r.values, value)
	case corev1.NodeSelectorOpExists:
		return true
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		has, err := strconv.ParseInt(value, 10, 64)
		limit, _ := strconv.ParseInt(r.values[0], 10, 64) // terms whose limit is no number are not asked
		return err == nil && (r.operator == corev1.NodeSelectorOpGt && has > limit || r.operator == corev1.NodeSelectorOpLt && has < limit)
	}
	return false
}

func (r *requirement) String() string {
	return fmt.Sprintf("%s %s %v", r.column.key, r.operator, r.values)
}

// nodePorts keeps pods from nodes whose ports they want are taken.
type nodePorts struct{}

func (nodePorts) Name() string { return nodePortsName }

var refusedPorts = refuse(nodePortsName, false, "node(s) didn't have free ports for the requested pod ports")

func (nodePorts) Filter(s *Snapshot, p *PodInfo) (Filter, *Refusal) {
	if len(p.ports) == 0 {
		return Filter{}, nil
	}
	wanted := p.ports
	return Filter{Check: func(node int32) *Refusal {
		if portsConflict(wanted, s.nodes[node].ports) {
			return refusedPorts
		}
		return nil
	}}, nil
}

func portsConflict(wanted, used []hostPort) bool {
	for _, w := range wanted {
		for _, u := range used {
			if w.conflicts(u) {
				return true
			}
		}
	}
	return false
}

func (nodePorts) Hints() []Hint {
	return []Hint{
		{Resource: AssignedPod, Action: Delete, Helps: func(_ *Snapshot, pod *corev1.Pod, old, _ any) bool {
			return hasPlace(asPod(old)) && portsConflict(hostPortsOf(pod), hostPortsOf(asPod(old)))
		}},
		{Resource: NodeResource, Action: Add},
	}
}
