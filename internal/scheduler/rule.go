package scheduler

import (
	corev1 "k8s.io/api/core/v1"
)

// MaxScore is the best a rule can say of a node.
const MaxScore = 100

// Rule is one thing the scheduler looks at. What it can do is told by the further interfaces it has: FilterRule, ScoreRule,
// HintRule. Rules are made from a profile's arguments and keep no state of their own: all state is in the Snapshot.
type Rule interface {
	Name() string
}

// FilterRule says on which nodes a pod cannot run.
type FilterRule interface {
	Rule
	// Filter reads the pod once. A zero Filter has nothing against any node. A Refusal is against all of them at once.
	Filter(s *Snapshot, p *PodInfo) (Filter, *Refusal)
}

// Filter is what one rule has to say about one pod.
type Filter struct {
	// Check returns nil when the pod can run on the node as far as this rule is concerned.
	Check func(node int32) *Refusal
	// Volatile answers change without the node or its pods changing, or differ for pods of the same make. They are asked again
	// for every pod. A filter that is not volatile must depend on what PodInfo's local key covers and on the node alone.
	Volatile bool
	// Only names the nodes that come into question at all, when Limited is set.
	Only    []string
	Limited bool
}

// ScoreRule says on which nodes a pod runs better.
type ScoreRule interface {
	Rule
	// Score reads the pod once. A zero Scorer has nothing to say.
	Score(s *Snapshot, p *PodInfo) Scorer
}

// Scorer is what one rule has to say in favour of nodes.
type Scorer struct {
	// Of returns 0 to MaxScore, or any number of at least 0 when Scale brings it into that range.
	Of       func(node int32) int64
	Scale    Scale
	Volatile bool
	// Err is set when the rule could not read the pod. Scheduling stops where there is a choice of nodes.
	Err error
}

// Scale is how raw numbers become scores.
type Scale uint8

const (
	// AsIs: the numbers are scores.
	AsIs Scale = iota
	// MostIsBest: the largest number becomes MaxScore, the others in proportion.
	MostIsBest
	// LeastIsBest: the largest number becomes 0, zero becomes MaxScore.
	LeastIsBest
)

// scaled brings a raw number into the range of scores, given the largest.
func (x Scale) scaled(raw, largest int64) int64 {
	switch {
	case x == AsIs:
		return raw
	case largest == 0 && x == LeastIsBest:
		return MaxScore
	case largest == 0:
		return 0
	case x == LeastIsBest:
		return MaxScore - MaxScore*raw/largest
	default:
		return MaxScore * raw / largest
	}
}

// Refusal is why a rule keeps a pod from a node.
type Refusal struct {
	Rule    string   `json:"rule"`
	Reasons []string `json:"reasons,omitempty"`
	// Unresolvable refusals stay even if other pods of the node went away.
	Unresolvable bool `json:"unresolvable,omitempty"`
	// Err is set when the rule could not decide. Scheduling stops.
	Err error `json:"-"`
}

func refuse(rule string, unresolvable bool, reasons ...string) *Refusal {
	return &Refusal{Rule: rule, Reasons: reasons, Unresolvable: unresolvable}
}

// HintRule says which changes may help a pod that this rule has refused.
type HintRule interface {
	Rule
	Hints() []Hint
}

// Hint names a kind of change, and tells whether one such change may help a pod.
type Hint struct {
	Resource Resource
	Action   Action
	// Helps is asked with the objects before and after; either may be nil. A nil function means that every change helps.
	Helps func(s *Snapshot, pod *corev1.Pod, old, now any) bool
}

// hasPlace reports whether a pod takes up room somewhere: it is on a node, or nominated to one.
func hasPlace(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" || pod.Status.NominatedNodeName != ""
}

// Node returns a node by its number, for rules.
func (s *Snapshot) Node(node int32) *corev1.Node { return s.nodes[node].object }

// PodsOn returns the pods on a node, for rules.
func (s *Snapshot) PodsOn(node int32) []*corev1.Pod {
	var all []*corev1.Pod
	for _, p := range s.nodes[node].pods {
		all = append(all, p.info.Pod)
	}
	return all
}
