package plugins

import (
	"skiff/internal/scheduler/snapshot"
)

// The refusals of PodTopologySpread and InterPodAffinity depend on other nodes, so decisions record them by node as small codes.
// 0 is no refusal.
const (
	SpreadLabelMissing uint8 = iota + 1
	SpreadSkewExceeded
	AffinityMismatch
	AntiAffinityMismatch
	ExistingAntiAffinityMismatch
)

// TopologyRefusals are the refusals by code.
var TopologyRefusals = []*Refusal{
	nil,
	Refuse(PodTopologySpreadName, true, "node(s) didn't match pod topology spread constraints (missing required label)"),
	Refuse(PodTopologySpreadName, false, "node(s) didn't match pod topology spread constraints"),
	Refuse(InterPodAffinityName, true, "node(s) didn't match pod affinity rules"),
	Refuse(InterPodAffinityName, false, "node(s) didn't match pod anti-affinity rules"),
	Refuse(InterPodAffinityName, false, "node(s) didn't satisfy existing pods anti-affinity rules"),
}

// Scoring is the input and output of AddScores.
type Scoring struct {
	Nodes  []int32
	Totals []int64 // by index in Nodes
	Weight int64
	Record *ScoreRecord // nil when scores are not recorded
}

// ScoreRecord keeps one plugin's scores: by node, or by domain when all nodes of a domain have the same.
type ScoreRecord struct {
	Values []uint8
	// DomainOf is nil when the values are by node. Nodes without the label have the last value.
	DomainOf []int32
}

// Of is the score of a node.
func (x *ScoreRecord) ScoreOf(node int32) int64 {
	if x.DomainOf == nil {
		return int64(x.Values[node])
	}
	if domain := x.DomainOf[node]; domain != snapshot.NoValue {
		return int64(x.Values[domain])
	}
	return int64(x.Values[len(x.Values)-1])
}

// ByNode returns a buffer for scores by node, of any content, or nil if there is no record.
func (x *ScoreRecord) ByNode(nodes int) []uint8 {
	if x == nil {
		return nil
	}
	x.Values, x.DomainOf = snapshot.Sized(&x.Values, nodes), nil
	return x.Values
}

// byDomain records scores by domain; the last is that of the nodes without the label.
func (x *ScoreRecord) byDomain(label *snapshot.LabelColumn, scores []int64) {
	if x == nil {
		return
	}
	x.Values, x.DomainOf = snapshot.Sized(&x.Values, len(scores)), label.Share()
	for i, score := range scores {
		x.Values[i] = uint8(score)
	}
}
