package plugins

import (
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/snapshot"
)

// MaxScore is the best a rule can say of a node.
const MaxScore = 100

// Plugin is one thing the scheduler looks at. What it can do is told by the further interfaces it has: FilterRule, ScoreRule,
// HintRule. Rules are made from a profile's arguments and keep no state of their own: all state is in the Snapshot.
type Plugin interface {
	Name() string
}

// FilterPlugin says on which nodes a pod cannot run.
type FilterPlugin interface {
	Plugin
	// Filter reads the pod once. A zero Filter has nothing against any node. A Refusal is against all of them at once.
	Filter(s *snapshot.Snapshot, p *snapshot.PodInfo) (Filter, *Refusal)
}

// Filter is what one rule has to say about one pod.
type Filter struct {
	// Check returns nil when the pod can run on the node as far as this rule is concerned.
	Check func(node int32) *Refusal
	// Volatile answers change without the node or its pods changing, or differ for pods of the same make. They are asked again
	// for every pod. A filter that is not volatile must depend on what PodInfo's local key covers and on the node alone.
	Volatile bool
	// NodeNames names the nodes that come into question at all, when Limited is set.
	NodeNames      []string
	LimitedToNames bool
}

// ScorePlugin says on which nodes a pod runs better.
type ScorePlugin interface {
	Plugin
	// Score reads the pod once. A zero Scorer has nothing to say.
	Score(s *snapshot.Snapshot, p *snapshot.PodInfo) Scorer
}

// Scorer is what one rule has to say in favour of nodes.
type Scorer struct {
	// Of returns 0 to MaxScore, or any number of at least 0 when Scale brings it into that range.
	Score         func(node int32) int64
	Normalization Normalization
	Volatile      bool
	// Err is set when the rule could not read the pod. Scheduling stops where there is a choice of nodes.
	Err error
}

// Normalization is how raw numbers become scores.
type Normalization uint8

const (
	// AsIs: the numbers are scores.
	NotNormalized Normalization = iota
	// MostIsBest: the largest number becomes MaxScore, the others in proportion.
	HigherIsBetter
	// LeastIsBest: the largest number becomes 0, zero becomes MaxScore.
	LowerIsBetter
)

// Normalize brings a raw number into the range of scores, given the largest.
func (x Normalization) Normalize(raw, largest int64) int64 {
	switch {
	case x == NotNormalized:
		return raw
	case largest == 0 && x == LowerIsBetter:
		return MaxScore
	case largest == 0:
		return 0
	case x == LowerIsBetter:
		return MaxScore - MaxScore*raw/largest
	default:
		return MaxScore * raw / largest
	}
}

// Refusal is why a rule keeps a pod from a node.
type Refusal struct {
	Plugin  string   `json:"plugin"`
	Reasons []string `json:"reasons,omitempty"`
	// Unresolvable refusals stay even if other pods of the node went away.
	Unresolvable bool `json:"unresolvable,omitempty"`
	// Err is set when the rule could not decide. Scheduling stops.
	Err error `json:"-"`
}

func Refuse(plugin string, unresolvable bool, reasons ...string) *Refusal {
	return &Refusal{Plugin: plugin, Reasons: reasons, Unresolvable: unresolvable}
}

// HintPlugin says which changes may help a pod that this rule has refused.
type HintPlugin interface {
	Plugin
	Hints() []QueueingHint
}

// QueueingHint names a kind of change, and tells whether one such change may help a pod.
type QueueingHint struct {
	Resource Resource
	Action   Action
	// Helps is asked with the objects before and after; either may be nil. A nil function means that every change helps.
	Helps func(s *snapshot.Snapshot, pod *corev1.Pod, old, now any) bool
}

// Status is how upstream names what a rule says.
func (r *Refusal) Status() string {
	switch {
	case r == nil:
		return "Success"
	case r.Err != nil:
		return "Error"
	case r.Unresolvable:
		return "UnschedulableAndUnresolvable"
	}
	return "Unschedulable"
}
