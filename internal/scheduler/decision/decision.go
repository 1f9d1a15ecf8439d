package decision

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

// ErrNoNodes says that there is no node at all.
var ErrNoNodes = errors.New("no nodes available to schedule pods")

// Decision is where a pod goes, or why it goes nowhere. It carries what every rule said of every node, but in the tables'
// own form: nothing is written out before Explain asks for it.
type Decision struct {
	Pod *snapshot.PodInfo
	// Node is the chosen one, empty when there is none.
	Node string
	// Feasible nodes could take the pod, out of Nodes.
	Feasible, Nodes int

	Snapshot   *snapshot.Snapshot
	Profile    *plugins.Profile
	NodeNumber int32
	Refusal    *plugins.Refusal // of all nodes at once
	Table      *table
	position   uint64
	// nodeGeneration are the nodes that had come until then.
	nodeGeneration uint64
	// topology holds what PodTopologySpread and InterPodAffinity said, if they matter; its scores are in the order of topologyScores.
	topology       *topologyRecord
	topologyScores []recordedScore
	// Overrides are refusals because of pods nominated to a node.
	Overrides map[int32]*plugins.Refusal
	// Limited decisions looked at these nodes only.
	Limited map[int32]*plugins.Refusal
	// limitedScores holds the scores of limited decisions that had a choice.
	limitedScores map[int32]map[string]int64
	// SkipAffinity is set when no affinity filtered any node before anything was simulated. As in upstream, InterPodAffinity is then
	// skipped while pods are moved in a simulation.
	SkipAffinity bool
	// Nominated decisions took the node that was kept for the pod, and looked at no other.
	Nominated bool
	// RecordDropped is set when Explain has nothing to read any more.
	RecordDropped bool
}

// topologyRecord is what PodTopologySpread and InterPodAffinity say of the nodes. It is small, for every such decision has one.
type topologyRecord struct {
	refusals []uint8 // by node: code among topologyRefusals
	scores   [2]plugins.ScoreRecord
}

// recordedScore names a slot of a topologyRecord.
type recordedScore struct {
	plugin string
	weight int64
}

// FitError says why no node can take a pod, in upstream's words.
type FitError struct {
	Nodes int
	// Refusal is against all nodes at once, when set.
	Refusal *plugins.Refusal
	// Reasons counts nodes by reason. A node may have several.
	Reasons map[string]int
	// Plugins that refused a node.
	Plugins []string
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
func (d *Decision) refusalAt(node int32) *plugins.Refusal {
	if d.Refusal != nil {
		return d.Refusal
	}
	if d.Limited != nil {
		if r, checked := d.Limited[node]; checked {
			return r
		}
		return refusalOfOthers(d.Table)
	}
	if r := d.Overrides[node]; r != nil {
		return r
	}
	return d.refusalIn(d.Table.cells[node], node)
}

func (d *Decision) refusalIn(local cell, node int32) *plugins.Refusal {
	if d.topology != nil && d.topology.refusals[node] != 0 {
		return plugins.TopologyRefusals[d.topology.refusals[node]]
	}
	return d.Table.refusals[local.refusal]
}

// FitError gathers the refusals of a decision that found no node.
func (d *Decision) FitError() *FitError {
	e := &FitError{Nodes: d.Nodes, Refusal: d.Refusal, Reasons: map[string]int{}}
	note := func(r *plugins.Refusal, nodes int) {
		if r == nil || nodes == 0 {
			return
		}
		for _, reason := range r.Reasons {
			e.Reasons[reason] += nodes
		}
		if !slices.Contains(e.Plugins, r.Plugin) {
			e.Plugins = append(e.Plugins, r.Plugin)
		}
	}
	switch {
	case d.Refusal != nil:
		e.Plugins = []string{d.Refusal.Plugin}
	case d.Limited != nil:
		for _, r := range d.Limited {
			note(r, 1)
		}
		note(refusalOfOthers(d.Table), d.Nodes-len(d.Limited))
	case d.topology == nil && d.Overrides == nil:
		for code, r := range d.Table.refusals {
			note(r, int(d.Table.refused[code]))
		}
	default:
		for node := range d.Table.cells {
			note(d.refusalAt(int32(node)), 1)
		}
	}
	slices.Sort(e.Plugins)
	return e
}

func refusalOfOthers(t *table) *plugins.Refusal {
	return plugins.Refuse(plugins.NodeAffinityName, true, fmt.Sprintf("node(s) didn't satisfy plugin(s) [%s]", plugins.NodeAffinityName))
}

// Verdict is what the rules said of one node.
type Verdict struct {
	Node string `json:"node"`
	// Refusal is nil when the node could take the pod.
	Refusal *plugins.Refusal `json:"refusal,omitempty"`
	// Scores are weighted, by rule; Total is their sum.
	Scores map[string]int64 `json:"scores,omitempty"`
	Total  int64            `json:"total"`
}

// Explain writes out what was said of every node, best first, then the refused ones by name. current is false when the decision
// was made too long ago for its record to be kept; then what Explain says of a node may be what would be said now.
func (d *Decision) Explain() (verdicts []Verdict, current bool) {
	s := d.Snapshot
	current = true
	var cells []cell
	if d.Table != nil && d.Limited == nil {
		var ok bool
		if cells, ok = d.Table.restore(d.position); !ok {
			cells, current = d.Table.cells, false
		}
	}
	largest := d.largestRaw(cells)
	for i := range s.NodeInfos {
		node := int32(i)
		if s.NodeInfos[i].Node == nil {
			continue
		}
		v := Verdict{Node: s.NodeInfos[i].Name}
		switch {
		case d.Refusal != nil:
			v.Refusal = d.Refusal
		case d.Limited != nil:
			v.Refusal = d.refusalAt(node)
			d.explainLimited(&v, node)
		case i >= len(cells) || cells[i].refusal == nodeAbsent || s.NodeInfos[i].Generation > d.nodeGeneration:
			continue // it has come since
		case d.Overrides[node] != nil:
			v.Refusal = d.Overrides[node]
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
	largest := make([]int64, len(d.Table.normalized))
	for i := range cells {
		if cells[i].refusal != 0 || d.refusalIn(cells[i], int32(i)) != nil || d.Overrides[int32(i)] != nil {
			continue
		}
		for x := range d.Table.normalized {
			largest[x] = max(largest[x], d.Table.normalized[x].raw[i])
		}
	}
	return largest
}

// explainLimited writes out the scores of a limited decision.
func (d *Decision) explainLimited(v *Verdict, node int32) {
	if d.limitedScores[node] == nil {
		return
	}
	v.Scores = maps.Clone(d.limitedScores[node])
	for i, x := range d.topologyScores {
		v.Scores[x.plugin] = x.weight * d.topology.scores[i].ScoreOf(node)
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
	for i := range d.Table.scorers {
		x := &d.Table.scorers[i]
		add(x.name, x.weight*int64(c.scores[i]))
	}
	for i := range d.Table.normalized {
		x := &d.Table.normalized[i]
		add(x.name, x.weight*x.normalization.Normalize(x.raw[node], largest[i]))
	}
	for i, x := range d.topologyScores {
		add(x.plugin, x.weight*d.topology.scores[i].ScoreOf(node))
	}
}

// IsUnschedulable reports whether an error of Schedule means that no node can take the pod.
func IsUnschedulable(err error) bool {
	var fit *FitError
	return errors.Is(err, ErrNoNodes) || errors.As(err, &fit)
}
