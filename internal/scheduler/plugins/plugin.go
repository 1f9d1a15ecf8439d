package plugins

import (
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/snapshot"
)

// MaxScore is the highest score of a plugin for a node.
const MaxScore = 100

// Plugin is a scheduler plugin. Its extension points are the further interfaces it implements: FilterPlugin, ScorePlugin, HintPlugin.
// Plugins are made from a profile's arguments and have no state: all state is in the Snapshot.
type Plugin interface {
	Name() string
}

// FilterPlugin rejects nodes for a pod.
type FilterPlugin interface {
	Plugin
	// Filter reads the pod, like PreFilter in upstream. A zero Filter rejects no node. A Refusal rejects all nodes.
	Filter(s *snapshot.Snapshot, p *snapshot.PodInfo) (Filter, *Refusal)
}

// Filter is the filter of one plugin for one pod.
type Filter struct {
	// Check returns nil if the plugin does not reject the node.
	Check func(node int32) *Refusal
	// Volatile is set if results may change without a change of the node or its pods, or differ for pods with the same LocalKey: they are
	// not cached. Other filters must depend only on what PodInfo.LocalKey covers and on the node.
	Volatile bool
	// NodeNames are the only nodes to check, if LimitedToNames is set.
	NodeNames      []string
	LimitedToNames bool
}

// ScorePlugin scores nodes for a pod.
type ScorePlugin interface {
	Plugin
	// Score reads the pod, like PreScore in upstream. A zero Scorer scores no node.
	Score(s *snapshot.Snapshot, p *snapshot.PodInfo) Scorer
}

// Scorer is the score function of one plugin for one pod.
type Scorer struct {
	// Score returns 0 to MaxScore, or any number >= 0 if Normalization maps it to that range.
	Score         func(node int32) int64
	Normalization Normalization
	Volatile      bool
	// Err is set if the plugin failed. Scheduling fails if more than one node is feasible.
	Err error
}

// Normalization maps raw scores to 0 to MaxScore.
type Normalization uint8

const (
	// NotNormalized: raw scores are used as they are.
	NotNormalized Normalization = iota
	// HigherIsBetter: the largest raw score becomes MaxScore, the others in proportion.
	HigherIsBetter
	// LowerIsBetter: the largest raw score becomes 0, zero becomes MaxScore.
	LowerIsBetter
)

// Normalize maps a raw score, given the largest of all feasible nodes.
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

// Refusal is a plugin's rejection of a node, upstream's Status.
type Refusal struct {
	Plugin  string   `json:"plugin"`
	Reasons []string `json:"reasons,omitempty"`
	// Unresolvable refusals cannot be resolved by preemption.
	Unresolvable bool `json:"unresolvable,omitempty"`
	// Err is set if the plugin failed. Scheduling fails with it.
	Err error `json:"-"`
}

// Refuse makes a Refusal.
func Refuse(plugin string, unresolvable bool, reasons ...string) *Refusal {
	return &Refusal{Plugin: plugin, Reasons: reasons, Unresolvable: unresolvable}
}

// HintPlugin has queueing hints: the events that may make a pod schedulable that the plugin has rejected.
type HintPlugin interface {
	Plugin
	Hints() []QueueingHint
}

// QueueingHint registers a plugin for events.
type QueueingHint struct {
	Resource Resource
	Action   Action
	// Helps reports whether an event, given by the old and new object, may make the pod schedulable; either object may be nil. A nil
	// function means that every event may.
	Helps func(s *snapshot.Snapshot, pod *corev1.Pod, old, now any) bool
}

// Status is upstream's name of the status code, for metrics.
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
