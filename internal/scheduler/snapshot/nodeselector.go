package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// NodeSelection is a pod's nodeSelector and required node affinity, compiled to label columns.
type NodeSelection struct {
	Snapshot     *Snapshot
	NodeSelector []Requirement
	// Terms are alternatives: if HasTerms is set, at least one must match.
	Terms    []SelectionTerm
	HasTerms bool
}

// SelectionTerm matches nodes that meet all its requirements.
type SelectionTerm struct {
	Requirements   []Requirement
	Fields         []fieldRequirement
	MatchesNothing bool
}

// Requirement is a requirement on one label. The result is cached by value.
type Requirement struct {
	Column         *LabelColumn
	Operator       corev1.NodeSelectorOperator
	Values         []string
	matchesByValue []bool // by value: whether it satisfies the requirement
}

// fieldRequirement is a requirement on one field. Only metadata.name is supported; all other fields are empty.
type fieldRequirement struct {
	isName bool
	value  string
	not    bool
}

// RequiredSelection compiles a pod's nodeSelector and required node affinity; nil means all nodes.
func (s *Snapshot) RequiredSelection(pod *corev1.Pod) *NodeSelection {
	var required *corev1.NodeSelector
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		required = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	if len(pod.Spec.NodeSelector) == 0 && required == nil {
		return nil
	}
	return s.NodeSelection(pod.Spec.NodeSelector, required)
}

func (s *Snapshot) NodeSelection(exact map[string]string, required *corev1.NodeSelector) *NodeSelection {
	n := &NodeSelection{Snapshot: s, HasTerms: required != nil}
	for _, key := range slices.Sorted(maps.Keys(exact)) {
		n.NodeSelector = append(n.NodeSelector, Requirement{Column: s.LabelColumn(key), Operator: corev1.NodeSelectorOpIn, Values: []string{exact[key]}})
	}
	if required != nil {
		for i := range required.NodeSelectorTerms {
			// An empty term matches nothing.
			if t := &required.NodeSelectorTerms[i]; len(t.MatchExpressions)+len(t.MatchFields) > 0 {
				n.Terms = append(n.Terms, s.SelectionTerm(t))
			}
		}
	}
	return n
}

func (s *Snapshot) SelectionTerm(t *corev1.NodeSelectorTerm) SelectionTerm {
	// An invalid term matches nothing.
	if _, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{*t}}); err != nil {
		return SelectionTerm{MatchesNothing: true}
	}
	var x SelectionTerm
	for _, e := range t.MatchExpressions {
		x.Requirements = append(x.Requirements, Requirement{Column: s.LabelColumn(e.Key), Operator: e.Operator, Values: e.Values})
	}
	for _, f := range t.MatchFields {
		x.Fields = append(x.Fields, fieldRequirement{isName: f.Key == metav1.ObjectNameField, value: f.Values[0], not: f.Operator == corev1.NodeSelectorOpNotIn})
	}
	return x
}

func (n *NodeSelection) Matches(node int32) bool {
	for i := range n.NodeSelector {
		if !n.NodeSelector[i].Matches(node) {
			return false
		}
	}
	if !n.HasTerms {
		return true
	}
	for i := range n.Terms {
		if n.Terms[i].Matches(n.Snapshot, node) {
			return true
		}
	}
	return false
}

func (t *SelectionTerm) Matches(s *Snapshot, node int32) bool {
	if t.MatchesNothing {
		return false
	}
	for i := range t.Requirements {
		if !t.Requirements[i].Matches(node) {
			return false
		}
	}
	for i := range t.Fields {
		if !t.Fields[i].Matches(s, node) {
			return false
		}
	}
	return true
}

func (r *fieldRequirement) Matches(s *Snapshot, node int32) bool {
	has := ""
	if r.isName {
		has = s.NodeInfos[node].Name
	}
	return (r.value == has) != r.not
}

func (r *Requirement) Matches(node int32) bool {
	value := r.Column.ValueOf[node]
	if value == NoValue {
		return r.Operator == corev1.NodeSelectorOpNotIn || r.Operator == corev1.NodeSelectorOpDoesNotExist
	}
	for int(value) >= len(r.matchesByValue) {
		r.matchesByValue = append(r.matchesByValue, r.MatchesValue(r.Column.Values[len(r.matchesByValue)]))
	}
	return r.matchesByValue[value]
}

// MatchesValue reports whether a value of the label satisfies the requirement.
func (r *Requirement) MatchesValue(value string) bool {
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		return slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpNotIn:
		return !slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpExists:
		return true
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		has, err := strconv.ParseInt(value, 10, 64)
		limit, _ := strconv.ParseInt(r.Values[0], 10, 64) // NewNodeSelector rejects limits that are not numbers
		return err == nil && (r.Operator == corev1.NodeSelectorOpGt && has > limit || r.Operator == corev1.NodeSelectorOpLt && has < limit)
	}
	return false
}

func (r *Requirement) String() string {
	return fmt.Sprintf("%s %s %v", r.Column.Key, r.Operator, r.Values)
}
