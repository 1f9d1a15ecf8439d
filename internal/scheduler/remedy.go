package scheduler

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// maxChangesTold bounds the ways to help a pod that an explanation names.
const maxChangesTold = 5

// Change is what would have to be different for a pod to run on a node. All steps are needed.
type Change struct {
	Node string `json:"node,omitempty"`
	// Others is how many other nodes would take the pod after a change of the same kind, though maybe a larger one.
	Others int      `json:"others,omitempty"`
	Steps  []string `json:"steps"`
}

// step takes one refusal away.
type step struct {
	// kind is equal for steps that differ in size only.
	kind, text string
	// size compares steps of a kind.
	size float64
}

// hardSize is the size of a step that is not a matter of a little more or less.
const hardSize = 1 << 20

// smallestChanges asks all rules about all nodes, not only the first that refuses, and tells what is in the way where least is.
func (d *Decision) smallestChanges() []Change {
	s := d.snapshot
	if d.table == nil {
		if d.refusal == nil {
			return []Change{{Steps: []string{"add a node"}}}
		}
		return []Change{{Steps: d.refusal.Reasons}}
	}
	near, err := s.neighbourhoodFor(d.Pod, d.profile)
	if err != nil {
		return nil
	}
	groups := map[string]*candidateChange{}
	for i := range s.nodes {
		if s.nodes[i].object == nil {
			continue
		}
		c := d.changeFor(near, int32(i))
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
	all := make([]*candidateChange, 0, len(groups))
	for _, c := range groups {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *candidateChange) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	var told []Change
	for _, c := range all[:min(len(all), maxChangesTold)] {
		change := Change{Node: c.node, Others: c.others}
		for _, st := range c.steps {
			change.Steps = append(change.Steps, st.text)
		}
		told = append(told, change)
	}
	return told
}

type candidateChange struct {
	node, kind string
	steps      []step
	size       float64
	others     int
}

// before orders changes: the fewest steps, the smallest, the node's name.
func (c *candidateChange) before(other *candidateChange) bool {
	switch {
	case len(c.steps) != len(other.steps):
		return len(c.steps) < len(other.steps)
	case c.size != other.size:
		return c.size < other.size
	}
	return c.node < other.node
}

// changeFor gathers what is in the way on one node; nil when nothing is.
func (d *Decision) changeFor(near *neighbourhood, node int32) *candidateChange {
	s := d.snapshot
	c := &candidateChange{node: s.nodes[node].name}
	for f := range d.table.filters {
		if r := d.table.filters[f].check(node); r != nil {
			c.steps = append(c.steps, d.remedies(node, r)...)
		}
	}
	for _, code := range near.obstacles(node, d.profile.spreadOrder >= 0, d.profile.affinityOrder >= 0) {
		c.steps = append(c.steps, d.remedies(node, besideRefusals[code])...)
	}
	if len(c.steps) == 0 && d.overrides[node] != nil {
		c.steps = []step{{kind: "nominated", text: "wait: room is kept for a nominated pod of the same or higher priority"}}
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

// remedies are the steps that would take one refusal away.
func (d *Decision) remedies(node int32, r *Refusal) []step {
	s, pod := d.snapshot, d.Pod.Pod
	fixed := func(text string) []step { return []step{{kind: text, text: text}} }
	switch r.Rule {
	case nodeUnschedulableName:
		return fixed("uncordon the node")
	case taintTolerationName:
		return tolerateAll(s.taintSets[s.taints[node]].taints, pod.Spec.Tolerations)
	case nodeAffinityName:
		if r == refusedAffinity {
			return s.requiredSelection(pod).missing(node)
		}
		return fixed("change the node affinity that the scheduler's configuration adds")
	case nodePortsName:
		return fixed("use other host ports, or free them on the node")
	case nodeResourcesFitName:
		return d.missingResources(node)
	case podTopologySpreadName:
		if r == besideRefusals[missingLabel] {
			return fixed("label the node with the topology keys of the pod's spread constraints")
		}
		return fixed("relax the topology spread constraints, or have fewer of the pods they count in the node's domain")
	case interPodAffinityName:
		return fixed(map[*Refusal]string{
			besideRefusals[noAffinity]:   "relax the pod affinity, or run a pod it asks for in the node's domain",
			besideRefusals[antiAffinity]: "relax the pod anti-affinity, or move the pods it forbids out of the node's domain",
			besideRefusals[unwelcome]:    "move the pods whose anti-affinity forbids this one out of the node's domain",
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

// tolerateAll are the steps past the taints that keep a pod away.
func tolerateAll(taints []corev1.Taint, tolerations []corev1.Toleration) (steps []step) {
	for i := range taints {
		if t := &taints[i]; keepsAway(t) && !tolerates(tolerations, t) {
			text := fmt.Sprintf("tolerate the taint %s, or remove it", t.ToString())
			steps = append(steps, step{kind: text, text: text})
		}
	}
	return steps
}

// missing are the steps that would make a node one that is selected: by the alternative that lacks least.
func (n *nodeSelection) missing(node int32) []step {
	if !n.limited {
		return missingLabels(n.exact, node)
	}
	best := []step{{kind: "affinity", text: "change the pod's node affinity, which no node can match", size: hardSize}}
	for i := range n.terms {
		t := &n.terms[i]
		lacks := append(missingLabels(slices.Concat(n.exact, t.requirements), node), t.missingFields(n.snapshot, node)...)
		if i == 0 || len(lacks) < len(best) {
			best = lacks
		}
	}
	if len(n.terms) == 0 {
		return append(missingLabels(n.exact, node), best...)
	}
	return best
}

// missingFields are the steps beyond labels.
func (t *selectionTerm) missingFields(s *Snapshot, node int32) (steps []step) {
	for i := range t.fields {
		if !t.fields[i].met(s, node) {
			steps = append(steps, step{kind: "name", text: "change the names of nodes in the pod's node affinity", size: hardSize})
		}
	}
	if t.never {
		steps = append(steps, step{kind: "field", text: "change the fields in the pod's node affinity, which no node can match", size: hardSize})
	}
	return steps
}

// missingLabels are the labels a node lacks, or has too much, to meet all demands: one step for each label, however much is demanded of it.
func missingLabels(demands []requirement, node int32) (steps []step) {
	seen := map[string]bool{}
	for i := range demands {
		key := demands[i].column.key
		if seen[key] {
			continue
		}
		seen[key] = true
		var same []*requirement
		met := true
		for j := range demands[i:] {
			if r := &demands[i+j]; r.column.key == key {
				same, met = append(same, r), met && r.met(node)
			}
		}
		switch {
		case met:
		case len(same) == 1:
			steps = append(steps, same[0].remedy())
		default:
			steps = append(steps, remedyTogether(key, same))
		}
	}
	return steps
}

// remedyTogether is one label that meets several demands.
func remedyTogether(key string, demands []*requirement) step {
	wanted := func(value string) bool {
		return !slices.ContainsFunc(demands, func(r *requirement) bool { return !r.wants(value) })
	}
	var values []string
	absent, open, excluded := true, true, 0
	for _, r := range demands {
		if r.operator == corev1.NodeSelectorOpNotIn {
			excluded += len(r.values)
		}
	}
	for _, r := range demands {
		switch r.operator {
		case corev1.NodeSelectorOpNotIn:
			continue
		case corev1.NodeSelectorOpDoesNotExist:
			open = false
			continue
		case corev1.NodeSelectorOpIn:
			values, open = append(values, r.values...), false
		case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
			open = false
			values = append(values, beyond(r, excluded)...)
		}
		absent = false
	}
	slices.Sort(values)
	values = slices.DeleteFunc(slices.Compact(values), func(value string) bool { return !wanted(value) })
	text := ""
	switch {
	case absent:
		text = fmt.Sprintf("remove the node's label %s", key)
	case len(values) > 0:
		text = fmt.Sprintf("label the node %s=%s", key, strings.Join(values, " or "))
	case open:
		text = fmt.Sprintf("label the node %s with what the pod does not exclude", key)
	default:
		return step{kind: "affinity", text: "change the pod's node affinity, which no node can match", size: hardSize}
	}
	return step{kind: text, text: text + ", or relax the pod's node selector"}
}

// beyond are the numbers next to a limit, as many as it takes to find one among them that is not excluded. Labels are never negative.
func beyond(r *requirement, excluded int) (values []string) {
	limit, err := strconv.ParseInt(strings.Join(r.values, ""), 10, 64)
	if err != nil {
		return nil
	}
	next := int64(-1)
	if r.operator == corev1.NodeSelectorOpGt {
		limit, next = max(limit, -1), 1
	}
	for range excluded + 1 {
		if limit += next; limit < 0 {
			break // too far down, or past the largest number
		}
		values = append(values, strconv.FormatInt(limit, 10))
	}
	return values
}

// remedy is the label a node lacks, or has too much.
func (r *requirement) remedy() step {
	key, text := r.column.key, ""
	switch r.operator {
	case corev1.NodeSelectorOpIn:
		text = fmt.Sprintf("label the node %s=%s", key, strings.Join(r.values, " or "))
	case corev1.NodeSelectorOpExists:
		text = fmt.Sprintf("label the node %s", key)
	case corev1.NodeSelectorOpGt:
		text = fmt.Sprintf("label the node %s with more than %s", key, strings.Join(r.values, ""))
	case corev1.NodeSelectorOpLt:
		text = fmt.Sprintf("label the node %s with less than %s", key, strings.Join(r.values, ""))
	default:
		text = fmt.Sprintf("remove the node's label %s", key)
	}
	return step{kind: text, text: text + ", or relax the pod's node selector"}
}

func (d *Decision) missingResources(node int32) (steps []step) {
	s := d.snapshot
	if tooMany := s.requested[pods][node] + 1 - s.allocatable[pods][node]; tooMany > 0 {
		what := "a pod"
		if tooMany > 1 {
			what = fmt.Sprint(tooMany, " pods")
		}
		steps = append(steps, step{kind: "pods", text: fmt.Sprintf("remove %s from the node, which can hold %d", what, s.allocatable[pods][node]), size: float64(tooMany)})
	}
	fit := &nodeResourcesFit{}
	for _, w := range fit.wants(s, d.Pod) {
		if !w.missing(s, node) {
			continue
		}
		has, used := s.allocatable[w.resource][node], s.requested[w.resource][node]
		short := w.amount - (has - used)
		text := fmt.Sprintf("request %s less %s", quantity(w, short), w.name)
		switch {
		case has == 0:
			text = fmt.Sprintf("do not request %s, of which the node has none", w.name)
		case used >= has:
			text = fmt.Sprintf("do not request %s, or free as much: %s of %s are requested already", w.name, quantity(w, used), quantity(w, has))
		case w.amount > has:
			text += fmt.Sprintf(", for the node has %s in all", quantity(w, has))
		default:
			text += fmt.Sprintf(", or free as much: %s of %s are requested already", quantity(w, used), quantity(w, has))
		}
		steps = append(steps, step{kind: string(w.name), text: text, size: float64(short) / float64(w.amount)})
	}
	return steps
}

// quantity writes an amount as users do.
func quantity(w want, amount int64) string {
	switch w.resource {
	case cpu:
		return resource.NewMilliQuantity(amount, resource.DecimalSI).String()
	case memory, storage:
		return resource.NewQuantity(amount, resource.BinarySI).String()
	}
	return resource.NewQuantity(amount, resource.DecimalSI).String()
}
