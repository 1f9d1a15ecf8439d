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

// ErrNoNodes is returned if the cluster has no nodes.
var ErrNoNodes = errors.New("no nodes available to schedule pods")

// Decision is the outcome of scheduling a pod. It has the results of all plugins on all nodes in the compact form of tables, which Explain
// expands.
type Decision struct {
	Pod *snapshot.PodInfo
	// Node is the chosen node, empty if there is none.
	Node string
	// Feasible is the number of feasible nodes, out of Nodes.
	Feasible, Nodes int

	Snapshot   *snapshot.Snapshot
	Profile    *plugins.Profile
	NodeNumber int32
	Refusal    *plugins.Refusal // of all nodes, by PreFilter
	Table      *table
	position   uint64
	// nodeGeneration is the snapshot's NodeGeneration at the time: later nodes are not explained.
	nodeGeneration uint64
	// topology has the results of PodTopologySpread and InterPodAffinity, if active; its scores are in the order of topologyScores.
	topology       *topologyRecord
	topologyScores []recordedScore
	// Overrides are refusals with the nominated pods of a node added.
	Overrides map[int32]*plugins.Refusal
	// Limited, if set, has the results of the only nodes that were checked, because PreFilter limited them; nil means feasible.
	Limited map[int32]*plugins.Refusal
	// limitedScores has the scores of a limited decision with more than one feasible node.
	limitedScores map[int32]map[string]int64
	// SkipAffinity is set when no affinity filtered any node before anything was simulated. As in upstream, InterPodAffinity is then
	// skipped while pods are moved in a simulation.
	SkipAffinity bool
	// Nominated is set if the pod's nominated node was chosen without checking other nodes.
	Nominated bool
	// RecordDropped is set if the record was dropped: Explain has nothing to return.
	RecordDropped bool
}

// topologyRecord has the results of PodTopologySpread and InterPodAffinity by node. It is compact, because every decision with active
// topology has one.
type topologyRecord struct {
	refusals []uint8 // by node: code among topologyRefusals
	scores   [2]plugins.ScoreRecord
}

// recordedScore is the plugin and weight of a slot of a topologyRecord.
type recordedScore struct {
	plugin string
	weight int64
}

// FitError is the reason why no node is feasible, with upstream's message.
type FitError struct {
	Nodes int
	// Refusal is set if PreFilter rejected all nodes.
	Refusal *plugins.Refusal
	// Reasons is the number of nodes by reason. A node may have several.
	Reasons map[string]int
	// Plugins that rejected a node.
	Plugins []string
	// Preemption is the message of the preemption attempt.
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

// refusalAt returns the refusal of a node, or nil. The table must not have changed since the decision.
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

// FitError returns the refusals of a decision without feasible node.
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

// Verdict is the result of all plugins for one node.
type Verdict struct {
	Node string `json:"node"`
	// Refusal is nil if the node is feasible.
	Refusal *plugins.Refusal `json:"refusal,omitempty"`
	// Scores are weighted, by plugin; Total is their sum.
	Scores map[string]int64 `json:"scores,omitempty"`
	Total  int64            `json:"total"`
}

// Explain returns the verdicts of all nodes: feasible nodes by score, then rejected nodes by name. current is false if the table's history
// does not reach back to the decision; then verdicts may be those of the present state.
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
			continue // added since
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

// largestRaw returns, for each normalized plugin, the largest raw score of the feasible nodes.
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

// explainLimited sets the scores of a limited decision.
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

// IsUnschedulable reports whether an error of Schedule means that no node is feasible.
func IsUnschedulable(err error) bool {
	var fit *FitError
	return errors.Is(err, ErrNoNodes) || errors.As(err, &fit)
}
