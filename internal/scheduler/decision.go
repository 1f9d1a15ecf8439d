package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ErrNoNodes says that there is no node at all.
var ErrNoNodes = errors.New("no nodes available to schedule pods")

// Decision is where a pod goes, or why it goes nowhere. It carries what every rule said of every node, but in the tables'
// own form: nothing is written out before Explain asks for it.
type Decision struct {
	Pod *PodInfo
	// Node is the chosen one, empty when there is none.
	Node string
	// Feasible nodes could take the pod, out of Nodes.
	Feasible, Nodes int

	snapshot *Snapshot
	profile  *Profile
	number   int32
	refusal  *Refusal // of all nodes at once
	table    *table
	position uint64
	// arrivals are the nodes that had come until then.
	arrivals uint64
	// beside holds what rules about neighbours said, when there are any; its scores are in the order of besideNames.
	beside      *besideRecord
	besideNames []besideName
	// overrides are refusals because of pods nominated to a node.
	overrides map[int32]*Refusal
	// limited decisions looked at these nodes only.
	limited map[int32]*Refusal
	// few holds the scores of limited decisions that had a choice.
	few map[int32]map[string]int64
	// alone is set when no affinity, neither the pod's own nor that of pods on nodes, had a say before anything was tried. As in
	// upstream, affinity then has none while pods are moved to see what would be.
	alone bool
	// nominated decisions took the node that was kept for the pod, and looked at no other.
	nominated bool
	// faded decisions have lost part of their record.
	faded bool
}

// besideRecord is what rules about neighbours say of the nodes. It is small, for every such decision has one.
type besideRecord struct {
	refusals []uint8 // by node: code among besideRefusals
	scores   [2]besideScores
}

// besideScores are one rule's scores: by node, or by domain when all nodes of one have the same.
type besideScores struct {
	values []uint8
	// domainOf is nil when the values are by node. The nodes of no domain have the last value.
	domainOf []int32
}

func (x *besideScores) of(node int32) int64 {
	if x.domainOf == nil {
		return int64(x.values[node])
	}
	if domain := x.domainOf[node]; domain != none {
		return int64(x.values[domain])
	}
	return int64(x.values[len(x.values)-1])
}

// besideName names a slot of a besideRecord.
type besideName struct {
	name   string
	weight int64
}

// The refusals of rules about neighbours, by code in a besideRecord.
var besideRefusals = []*Refusal{
	nil,
	refuse(podTopologySpreadName, true, "node(s) didn't match pod topology spread constraints (missing required label)"),
	refuse(podTopologySpreadName, false, "node(s) didn't match pod topology spread constraints"),
	refuse(interPodAffinityName, true, "node(s) didn't match pod affinity rules"),
	refuse(interPodAffinityName, false, "node(s) didn't match pod anti-affinity rules"),
	refuse(interPodAffinityName, false, "node(s) didn't satisfy existing pods anti-affinity rules"),
}

const (
	missingLabel uint8 = iota + 1
	skewed
	noAffinity
	antiAffinity
	unwelcome
)

// FitError says why no node can take a pod, in upstream's words.
type FitError struct {
	Nodes int
	// Refusal is against all nodes at once, when set.
	Refusal *Refusal
	// Reasons counts nodes by reason. A node may have several.
	Reasons map[string]int
	// Rules that refused a node.
	Rules []string
	// Preemption is what trying to make room said.
	Preemption string
}

func (e *FitError) Error() string {
	text := fmt.Sprintf("0/%d nodes are available:", e.Nodes)
	if e.Refusal != nil {
		text += " " + strings.Join(e.Refusal.Reasons, ", ") + "."
	} else if histogram := reasonTexts(e.Reasons); len(histogram) > 0 {
		text += " " + strings.Join(histogram, ", ") + "."
	}
	if e.Preemption != "" {
		text += " " + e.Preemption
	}
	return text
}

func reasonTexts(reasons map[string]int) []string {
	texts := make([]string, 0, len(reasons))
	for reason, nodes := range reasons {
		texts = append(texts, fmt.Sprintf("%d %s", nodes, reason))
	}
	slices.Sort(texts)
	return texts
}

// refusalAt is why a node cannot take the pod, or nil. The table must not have moved since the decision.
func (d *Decision) refusalAt(node int32) *Refusal {
	if d.refusal != nil {
		return d.refusal
	}
	if d.limited != nil {
		if r, looked := d.limited[node]; looked {
			return r
		}
		return refusalOfOthers(d.table)
	}
	if r := d.overrides[node]; r != nil {
		return r
	}
	return d.refusalIn(d.table.cells[node], node)
}

func (d *Decision) refusalIn(local cell, node int32) *Refusal {
	if d.beside != nil && d.beside.refusals[node] != 0 {
		return besideRefusals[d.beside.refusals[node]]
	}
	return d.table.refusals[local.refusal]
}

// fitError gathers the refusals of a decision that found no node.
func (d *Decision) fitError() *FitError {
	e := &FitError{Nodes: d.Nodes, Refusal: d.refusal, Reasons: map[string]int{}}
	note := func(r *Refusal, nodes int) {
		if r == nil || nodes == 0 {
			return
		}
		for _, reason := range r.Reasons {
			e.Reasons[reason] += nodes
		}
		if !slices.Contains(e.Rules, r.Rule) {
			e.Rules = append(e.Rules, r.Rule)
		}
	}
	switch {
	case d.refusal != nil:
		e.Rules = []string{d.refusal.Rule}
	case d.limited != nil:
		for _, r := range d.limited {
			note(r, 1)
		}
		note(refusalOfOthers(d.table), d.Nodes-len(d.limited))
	case d.beside == nil && d.overrides == nil:
		for code, r := range d.table.refusals {
			note(r, int(d.table.refused[code]))
		}
	default:
		for node := range d.table.cells {
			note(d.refusalAt(int32(node)), 1)
		}
	}
	slices.Sort(e.Rules)
	return e
}

func refusalOfOthers(t *table) *Refusal {
	return refuse(nodeAffinityName, true, fmt.Sprintf("node(s) didn't satisfy plugin(s) [%s]", nodeAffinityName))
}

// Verdict is what the rules said of one node.
type Verdict struct {
	Node string `json:"node"`
	// Refusal is nil when the node could take the pod.
	Refusal *Refusal `json:"refusal,omitempty"`
	// Scores are weighted, by rule; Total is their sum.
	Scores map[string]int64 `json:"scores,omitempty"`
	Total  int64            `json:"total"`
}

// Explain writes out what was said of every node, best first, then the refused ones by name. current is false when the decision
// was made too long ago for its record to be kept; then what Explain says of a node may be what would be said now.
func (d *Decision) Explain() (verdicts []Verdict, current bool) {
	s := d.snapshot
	current = true
	var cells []cell
	if d.table != nil && d.limited == nil {
		var ok bool
		if cells, ok = d.table.restore(d.position); !ok {
			cells, current = d.table.cells, false
		}
	}
	largest := d.largestRaw(cells)
	for i := range s.nodes {
		node := int32(i)
		if s.nodes[i].object == nil {
			continue
		}
		v := Verdict{Node: s.nodes[i].name}
		switch {
		case d.refusal != nil:
			v.Refusal = d.refusal
		case d.limited != nil:
			v.Refusal = d.refusalAt(node)
			d.explainFew(&v, node)
		case i >= len(cells) || cells[i].refusal == absent || s.nodes[i].arrival > d.arrivals:
			continue // it has come since
		case d.overrides[node] != nil:
			v.Refusal = d.overrides[node]
		default:
			v.Refusal = d.refusalIn(cells[i], node)
			if v.Refusal == nil {
				d.explainScores(&v, cells[i], node, largest)
			}
		}
		verdicts = append(verdicts, v)
	}
	slices.SortStableFunc(verdicts, func(a, b Verdict) int {
		if (a.Refusal == nil) != (b.Refusal == nil) {
			if a.Refusal == nil {
				return -1
			}
			return 1
		}
		if a.Node == d.Node || b.Node == d.Node {
			if a.Node == d.Node {
				return -1
			}
			return 1
		}
		if a.Total != b.Total {
			return int(b.Total - a.Total)
		}
		return strings.Compare(a.Node, b.Node)
	})
	return verdicts, current
}

// largestRaw finds, for each scaled rule, the largest number among the nodes that could take the pod.
func (d *Decision) largestRaw(cells []cell) []int64 {
	if cells == nil {
		return nil
	}
	largest := make([]int64, len(d.table.scales))
	for i := range cells {
		if cells[i].refusal != 0 || d.refusalIn(cells[i], int32(i)) != nil || d.overrides[int32(i)] != nil {
			continue
		}
		for x := range d.table.scales {
			largest[x] = max(largest[x], d.table.scales[x].raw[i])
		}
	}
	return largest
}

// explainFew writes out the scores of a limited decision.
func (d *Decision) explainFew(v *Verdict, node int32) {
	if d.few[node] == nil {
		return
	}
	v.Scores = maps.Clone(d.few[node])
	for i, x := range d.besideNames {
		v.Scores[x.name] = x.weight * d.beside.scores[i].of(node)
	}
	for _, score := range v.Scores {
		v.Total += score
	}
}

func (d *Decision) explainScores(v *Verdict, c cell, node int32, largest []int64) {
	v.Scores = map[string]int64{}
	add := func(name string, weighted int64) {
		v.Scores[name] += weighted
		v.Total += weighted
	}
	for i := range d.table.scorers {
		x := &d.table.scorers[i]
		add(x.name, x.weight*int64(c.scores[i]))
	}
	for i := range d.table.scales {
		x := &d.table.scales[i]
		add(x.name, x.weight*x.scale.scaled(x.raw[node], largest[i]))
	}
	for i, x := range d.besideNames {
		add(x.name, x.weight*d.beside.scores[i].of(node))
	}
}
