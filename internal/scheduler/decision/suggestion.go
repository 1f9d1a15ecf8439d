package decision

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

// maxSuggestions bounds the suggestions of an explanation.
const maxSuggestions = 5

// step is a change that resolves one refusal.
type step struct {
	// kind is equal for steps that differ in size only.
	kind, text string
	// size compares steps of a kind.
	size float64
}

// hardSize is the size of a step that cannot be measured, so that it sorts last.
const hardSize = 1 << 20

// Suggestions runs all filters on all nodes, without stopping at the first refusal, and returns the smallest changes that would resolve all
// refusals of a node.
func (d *Decision) Suggestions() []Suggestion {
	s := d.Snapshot
	if d.Table == nil {
		if d.Refusal == nil {
			return []Suggestion{{Steps: []string{"add a node"}}}
		}
		return []Suggestion{{Steps: d.Refusal.Reasons}}
	}
	topo, err := TopologyFor(s, d.Pod, d.Profile)
	if err != nil {
		return nil
	}
	groups := map[string]*candidateSuggestion{}
	for i := range s.NodeInfos {
		if s.NodeInfos[i].Node == nil {
			continue
		}
		c := d.suggestionFor(topo, int32(i))
		if c == nil {
			continue
		}
		known := groups[c.kind]
		switch {
		case known == nil:
			groups[c.kind] = c
		case c.before(known):
			c.others = known.others + 1
			groups[c.kind] = c
		default:
			known.others++
		}
	}
	all := make([]*candidateSuggestion, 0, len(groups))
	for _, c := range groups {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *candidateSuggestion) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	var suggestions []Suggestion
	for _, c := range all[:min(len(all), maxSuggestions)] {
		change := Suggestion{Node: c.node, Others: c.others}
		for _, st := range c.steps {
			change.Steps = append(change.Steps, st.text)
		}
		suggestions = append(suggestions, change)
	}
	return suggestions
}

type candidateSuggestion struct {
	node, kind string
	steps      []step
	size       float64
	others     int
}

// before orders suggestions by number of steps, size and node name.
func (c *candidateSuggestion) before(other *candidateSuggestion) bool {
	switch {
	case len(c.steps) != len(other.steps):
		return len(c.steps) < len(other.steps)
	case c.size != other.size:
		return c.size < other.size
	}
	return c.node < other.node
}

// suggestionFor returns the steps for one node; nil if it is feasible.
func (d *Decision) suggestionFor(topo *topology, node int32) *candidateSuggestion {
	s := d.Snapshot
	c := &candidateSuggestion{node: s.NodeInfos[node].Name}
	for f := range d.Table.filters {
		if r := d.Table.filters[f].check(node); r != nil {
			c.steps = append(c.steps, d.steps(node, r)...)
		}
	}
	for _, code := range topo.refusals(node, d.Profile.SpreadOrder >= 0, d.Profile.AffinityOrder >= 0) {
		c.steps = append(c.steps, d.steps(node, plugins.TopologyRefusals[code])...)
	}
	if len(c.steps) == 0 && d.Overrides[node] != nil {
		c.steps = []step{{kind: "nominated", text: "wait: the free resources are reserved for a nominated pod of the same or higher priority"}}
	}
	if len(c.steps) == 0 {
		return nil
	}
	for _, st := range c.steps {
		c.kind += st.kind + "\x00"
		c.size += st.size
	}
	return c
}

// steps returns the steps that would resolve one refusal.
func (d *Decision) steps(node int32, r *plugins.Refusal) []step {
	s, pod := d.Snapshot, d.Pod.Pod
	fixed := func(text string) []step { return []step{{kind: text, text: text}} }
	switch r.Plugin {
	case plugins.NodeUnschedulableName:
		return fixed("uncordon the node")
	case plugins.TaintTolerationName:
		return tolerateAll(s.TaintSets[s.NodeTaintSets[node]].Taints, pod.Spec.Tolerations)
	case plugins.NodeAffinityName:
		if r == plugins.NodeAffinityMismatch {
			return missingSelection(s.RequiredSelection(pod), node)
		}
		return fixed("change the node affinity that the scheduler's configuration adds")
	case plugins.NodePortsName:
		return fixed("use other host ports, or free them on the node")
	case plugins.NodeResourcesFitName:
		return d.missingResources(node)
	case plugins.PodTopologySpreadName:
		if r == plugins.TopologyRefusals[plugins.SpreadLabelMissing] {
			return fixed("label the node with the topology keys of the pod's spread constraints")
		}
		return fixed("relax the topology spread constraints, or have fewer of the pods they count in the node's domain")
	case plugins.InterPodAffinityName:
		return fixed(map[*plugins.Refusal]string{
			plugins.TopologyRefusals[plugins.AffinityMismatch]:             "relax the pod affinity, or run a pod it asks for in the node's domain",
			plugins.TopologyRefusals[plugins.AntiAffinityMismatch]:         "relax the pod anti-affinity, or move the pods it forbids out of the node's domain",
			plugins.TopologyRefusals[plugins.ExistingAntiAffinityMismatch]: "move the pods whose anti-affinity forbids this one out of the node's domain",
		}[r])
	}
	if r.Err != nil {
		return fixed(r.Err.Error())
	}
	var steps []step
	for _, reason := range r.Reasons {
		steps = append(steps, fixed(reason)...)
	}
	return steps
}

// tolerateAll returns a step for each untolerated taint.
func tolerateAll(taints []corev1.Taint, tolerations []corev1.Toleration) (steps []step) {
	for i := range taints {
		if t := &taints[i]; snapshot.PreventsScheduling(t) && !snapshot.Tolerates(tolerations, t) {
			text := fmt.Sprintf("tolerate the taint %s, or remove it", t.ToString())
			steps = append(steps, step{kind: text, text: text})
		}
	}
	return steps
}

// missingSelection returns the steps that would make a node match the node selector and affinity, by the term with the fewest steps.
func missingSelection(n *snapshot.NodeSelection, node int32) []step {
	if !n.HasTerms {
		return missingLabels(n.NodeSelector, node)
	}
	best := []step{{kind: "affinity", text: "change the pod's node affinity, which no node can match", size: hardSize}}
	for i := range n.Terms {
		t := &n.Terms[i]
		missing := append(missingLabels(slices.Concat(n.NodeSelector, t.Requirements), node), missingFields(t, n.Snapshot, node)...)
		if i == 0 || len(missing) < len(best) {
			best = missing
		}
	}
	if len(n.Terms) == 0 {
		return append(missingLabels(n.NodeSelector, node), best...)
	}
	return best
}

// missingFields returns the steps for matchFields and invalid terms.
func missingFields(t *snapshot.SelectionTerm, s *snapshot.Snapshot, node int32) (steps []step) {
	for i := range t.Fields {
		if !t.Fields[i].Matches(s, node) {
			steps = append(steps, step{kind: "name", text: "change the names of nodes in the pod's node affinity", size: hardSize})
		}
	}
	if t.MatchesNothing {
		steps = append(steps, step{kind: "field", text: "change the fields in the pod's node affinity, which no node can match", size: hardSize})
	}
	return steps
}

// missingLabels returns one step for each label that does not satisfy all its requirements.
func missingLabels(requirements []snapshot.Requirement, node int32) (steps []step) {
	seen := map[string]bool{}
	for i := range requirements {
		key := requirements[i].Column.Key
		if seen[key] {
			continue
		}
		seen[key] = true
		var same []*snapshot.Requirement
		met := true
		for j := range requirements[i:] {
			if r := &requirements[i+j]; r.Column.Key == key {
				same, met = append(same, r), met && r.Matches(node)
			}
		}
		switch {
		case met:
		case len(same) == 1:
			steps = append(steps, changeLabel(same[0]))
		default:
			steps = append(steps, changeLabelForAll(key, same))
		}
	}
	return steps
}

// changeLabelForAll returns the step that makes a label satisfy several requirements.
func changeLabelForAll(key string, requirements []*snapshot.Requirement) step {
	matches := func(value string) bool {
		return !slices.ContainsFunc(requirements, func(r *snapshot.Requirement) bool { return !r.MatchesValue(value) })
	}
	var values []string
	removable, anyValue, excluded := true, true, 0
	for _, r := range requirements {
		if r.Operator == corev1.NodeSelectorOpNotIn {
			excluded += len(r.Values)
		}
	}
	for _, r := range requirements {
		switch r.Operator {
		case corev1.NodeSelectorOpNotIn:
			continue
		case corev1.NodeSelectorOpDoesNotExist:
			anyValue = false
			continue
		case corev1.NodeSelectorOpIn:
			values, anyValue = append(values, r.Values...), false
		case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
			anyValue = false
			values = append(values, valuesBeyond(r, excluded)...)
		}
		removable = false
	}
	slices.Sort(values)
	values = slices.DeleteFunc(slices.Compact(values), func(value string) bool { return !matches(value) })
	text := ""
	switch {
	case removable:
		text = fmt.Sprintf("remove the node's label %s", key)
	case len(values) > 0:
		text = fmt.Sprintf("label the node %s=%s", key, strings.Join(values, " or "))
	case anyValue:
		text = fmt.Sprintf("label the node %s with what the pod does not exclude", key)
	default:
		return step{kind: "affinity", text: "change the pod's node affinity, which no node can match", size: hardSize}
	}
	return step{kind: text, text: text + ", or relax the pod's node selector"}
}

// valuesBeyond returns the numbers next to the limit of a Gt or Lt requirement, one more than are excluded. Labels are never negative.
func valuesBeyond(r *snapshot.Requirement, excluded int) (values []string) {
	limit, err := strconv.ParseInt(strings.Join(r.Values, ""), 10, 64)
	if err != nil {
		return nil
	}
	next := int64(-1)
	if r.Operator == corev1.NodeSelectorOpGt {
		limit, next = max(limit, -1), 1
	}
	for range excluded + 1 {
		if limit += next; limit < 0 {
			break // below 0, or overflow
		}
		values = append(values, strconv.FormatInt(limit, 10))
	}
	return values
}

// changeLabel returns the step that makes a label satisfy one requirement.
func changeLabel(r *snapshot.Requirement) step {
	key, text := r.Column.Key, ""
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		text = fmt.Sprintf("label the node %s=%s", key, strings.Join(r.Values, " or "))
	case corev1.NodeSelectorOpExists:
		text = fmt.Sprintf("label the node %s", key)
	case corev1.NodeSelectorOpGt:
		text = fmt.Sprintf("label the node %s with more than %s", key, strings.Join(r.Values, ""))
	case corev1.NodeSelectorOpLt:
		text = fmt.Sprintf("label the node %s with less than %s", key, strings.Join(r.Values, ""))
	default:
		text = fmt.Sprintf("remove the node's label %s", key)
	}
	return step{kind: text, text: text + ", or relax the pod's node selector"}
}

func (d *Decision) missingResources(node int32) (steps []step) {
	s := d.Snapshot
	if tooMany := s.Requested[snapshot.ResourcePods][node] + 1 - s.Allocatable[snapshot.ResourcePods][node]; tooMany > 0 {
		what := "a pod"
		if tooMany > 1 {
			what = fmt.Sprint(tooMany, " pods")
		}
		steps = append(steps, step{kind: "pods", text: fmt.Sprintf("remove %s from the node, which can hold %d", what, s.Allocatable[snapshot.ResourcePods][node]), size: float64(tooMany)})
	}
	fit := &plugins.NodeResourcesFit{}
	for _, w := range fit.Requests(s, d.Pod) {
		if !w.Exceeds(s, node) {
			continue
		}
		has, used := s.Allocatable[w.Resource][node], s.Requested[w.Resource][node]
		short := w.Amount - (has - used)
		text := fmt.Sprintf("request %s less %s", quantity(w, short), w.Name)
		switch {
		case has == 0:
			text = fmt.Sprintf("do not request %s, of which the node has none", w.Name)
		case used >= has:
			text = fmt.Sprintf("do not request %s, or free as much: %s of %s are requested already", w.Name, quantity(w, used), quantity(w, has))
		case w.Amount > has:
			text += fmt.Sprintf(", for the node has %s in all", quantity(w, has))
		default:
			text += fmt.Sprintf(", or free as much: %s of %s are requested already", quantity(w, used), quantity(w, has))
		}
		steps = append(steps, step{kind: string(w.Name), text: text, size: float64(short) / float64(w.Amount)})
	}
	return steps
}

// quantity formats an amount.
func quantity(w plugins.ResourceRequest, amount int64) string {
	switch w.Resource {
	case snapshot.ResourceCPU:
		return resource.NewMilliQuantity(amount, resource.DecimalSI).String()
	case snapshot.ResourceMemory, snapshot.ResourceEphemeralStorage:
		return resource.NewQuantity(amount, resource.BinarySI).String()
	}
	return resource.NewQuantity(amount, resource.DecimalSI).String()
}
