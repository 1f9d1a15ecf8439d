package plugins

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"skiff/internal/scheduler/snapshot"
)

// DefaultPreemption evicts pods of lower priority so that a pod can be scheduled.
type DefaultPreemption struct {
	// Percentage of the potential nodes that are dry-run as candidates, but at least Absolute nodes.
	Percentage, Absolute int
}

// NewDefaultPreemption makes the plugin from its arguments.
func NewDefaultPreemption(args *configv1.DefaultPreemptionArgs) Plugin {
	r := &DefaultPreemption{Percentage: 10, Absolute: 100}
	if args.MinCandidateNodesPercentage != nil {
		r.Percentage = int(*args.MinCandidateNodesPercentage)
	}
	if args.MinCandidateNodesAbsolute != nil {
		r.Absolute = int(*args.MinCandidateNodesAbsolute)
	}
	return r
}

func (*DefaultPreemption) Name() string { return DefaultPreemptionName }

// Preemption is a candidate: a node and the victims to evict from it.
type Preemption struct {
	Node string
	// Victims are ordered by importance, the most important first.
	Victims []*corev1.Pod
	// Violations is the number of victims whose eviction violates a PodDisruptionBudget.
	Violations int
}

// TerminatingByPreemption reports whether a pod is terminating because it was preempted.
func TerminatingByPreemption(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
	})
}

var NoPreemptionVictims = Refuse(DefaultPreemptionName, true, "No preemption victims found for incoming pod")

// startTime returns when a pod started; a pod that has not started is the latest.
func startTime(pod *corev1.Pod) int64 {
	if pod.Status.StartTime == nil {
		return math.MaxInt64
	}
	return pod.Status.StartTime.UnixNano()
}

// ByImportance orders pods by priority, highest first, then by start time, earliest first.
func ByImportance(a, b *corev1.Pod) int {
	if x, y := snapshot.PriorityOf(a), snapshot.PriorityOf(b); x != y {
		return int(int64(y) - int64(x))
	}
	switch x, y := startTime(a), startTime(b); {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// BudgetsOf returns the PodDisruptionBudgets that select a pod. It is called for every pod that might be evicted, so it must not go through all
// budgets.
type BudgetsOf func(pod *corev1.Pod) []*policyv1.PodDisruptionBudget

// BudgetSelector is the selector of a budget. As in upstream, one that is empty selects no pods here.
func BudgetSelector(b *policyv1.PodDisruptionBudget) (labels.Selector, error) {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err == nil && selector.Empty() {
		selector = labels.Nothing()
	}
	return selector, err
}

// SplitByPDB separates the pods whose eviction would violate a PodDisruptionBudget from the others.
func SplitByPDB(all []*snapshot.PodEntry, budgets BudgetsOf) (protected, others []*snapshot.PodEntry) {
	// used is the number of pods that were counted for a budget.
	used := map[*policyv1.PodDisruptionBudget]int32{}
	for _, p := range all {
		if violatesBudget(p.Info.Pod, budgets, used) {
			protected = append(protected, p)
		} else {
			others = append(others, p)
		}
	}
	return protected, others
}

func violatesBudget(pod *corev1.Pod, budgets BudgetsOf, used map[*policyv1.PodDisruptionBudget]int32) bool {
	if budgets == nil || len(pod.Labels) == 0 {
		return false
	}
	for _, b := range budgets(pod) {
		if _, counted := b.Status.DisruptedPods[pod.Name]; counted {
			continue
		}
		if used[b]++; used[b] > b.Status.DisruptionsAllowed {
			return true
		}
	}
	return false
}

// ChooseCandidate picks a candidate by upstream's criteria: fewest PDB violations, then the lowest highest victim priority, the smallest sum
// of priorities, the fewest victims, and the latest start time of the highest-priority victims.
func ChooseCandidate(candidates []Preemption) *Preemption {
	criteria := []func(*Preemption) int64{
		func(c *Preemption) int64 { return int64(c.Violations) },
		func(c *Preemption) int64 { return int64(snapshot.PriorityOf(c.Victims[0])) },
		func(c *Preemption) (sum int64) {
			for _, v := range c.Victims {
				sum += int64(snapshot.PriorityOf(v)) + math.MaxInt32 + 1
			}
			return sum
		},
		func(c *Preemption) int64 { return int64(len(c.Victims)) },
		func(c *Preemption) int64 { return -earliestStart(c.Victims) },
	}
	left := make([]*Preemption, 0, len(candidates))
	for i := range candidates {
		if len(candidates[i].Victims) > 0 {
			left = append(left, &candidates[i])
		}
	}
	if len(left) == 0 {
		return nil
	}
	for _, criterion := range criteria {
		least := int64(math.MaxInt64)
		for _, c := range left {
			least = min(least, criterion(c))
		}
		left = slices.DeleteFunc(left, func(c *Preemption) bool { return criterion(c) != least })
	}
	return left[0]
}

// earliestStart returns the earliest start time of the victims with the highest priority.
func earliestStart(victims []*corev1.Pod) int64 {
	highest, earliest := snapshot.PriorityOf(victims[0]), startTime(victims[0])
	for _, v := range victims[1:] {
		switch p := snapshot.PriorityOf(v); {
		case p > highest:
			highest, earliest = p, startTime(v)
		case p == highest:
			earliest = min(earliest, startTime(v))
		}
	}
	return earliest
}
