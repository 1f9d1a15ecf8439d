package scheduler

import (
	"errors"
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

const defaultPreemptionName = "DefaultPreemption"

// defaultPreemption makes room for a pod by moving away pods of lower priority.
type defaultPreemption struct {
	// candidates looked at are this share of the nodes in question, but at least so many.
	percentage, absolute int
}

func newDefaultPreemption(args *configv1.DefaultPreemptionArgs) Rule {
	r := &defaultPreemption{percentage: 10, absolute: 100}
	if args.MinCandidateNodesPercentage != nil {
		r.percentage = int(*args.MinCandidateNodesPercentage)
	}
	if args.MinCandidateNodesAbsolute != nil {
		r.absolute = int(*args.MinCandidateNodesAbsolute)
	}
	return r
}

func (*defaultPreemption) Name() string { return defaultPreemptionName }

// Preemption is a way to make room: the pods to move away from a node.
type Preemption struct {
	Node string
	// Victims are ordered by importance, the most important first.
	Victims []*corev1.Pod
	// Violations counts victims a disruption budget would protect.
	Violations int
}

// ErrHopeless says that no pod's going away would help.
var ErrHopeless = errors.New("preemption does not help")

// Preempt looks for room that a pod would have if pods of lower priority went away, after Schedule found none. Extenders may
// narrow the choice by review, which may be nil. The message is what the pod's condition tells about it; the error, if there is
// no way, is ErrHopeless or what else is in the way. The snapshot is as before when Preempt returns.
func Preempt(d *Decision, budgets []*policyv1.PodDisruptionBudget, review func([]Preemption) ([]Preemption, error)) (way *Preemption, message string, err error) {
	if ok, message := d.mayPreempt(); !ok {
		return nil, message, errors.New(message)
	}
	near, err := d.snapshot.neighbourhoodFor(d.Pod, d.profile)
	if err != nil {
		return nil, err.Error(), err
	}
	candidates, statuses, err := d.candidates(near, budgets)
	switch {
	case err != nil:
		return nil, err.Error(), err
	case len(candidates) == 0:
		return nil, d.helpless(statuses).Error(), ErrHopeless
	}
	if review != nil {
		if candidates, err = review(candidates); err != nil {
			return nil, err.Error(), err
		}
	}
	best := choose(candidates)
	if best == nil {
		const message = "no candidate node for preemption"
		return nil, message, errors.New(message)
	}
	return best, fmt.Sprintf("found a potential placement for pod on node %v, preempting %d victims", best.Node, len(best.Victims)), nil
}

// mayPreempt reports whether the pod may move others away now.
func (d *Decision) mayPreempt() (bool, string) {
	pod, s := d.Pod.Pod, d.snapshot
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever {
		return false, "not eligible due to preemptionPolicy=Never."
	}
	node, known := s.nodeNumber[pod.Status.NominatedNodeName]
	if pod.Status.NominatedNodeName == "" || !known || s.nodes[node].object == nil {
		return true, ""
	}
	if r := d.refusalAt(node); r != nil && r.Unresolvable {
		return true, ""
	}
	for _, p := range s.nodes[node].pods {
		if priorityOf(p.info.Pod) < priorityOf(pod) && leavingByPreemption(p.info.Pod) {
			return false, "not eligible due to a terminating pod on the nominated node."
		}
	}
	return true, ""
}

func leavingByPreemption(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
	})
}

// helpless tells why moving pods away would not help.
func (d *Decision) helpless(statuses map[int32]*Refusal) *FitError {
	e := &FitError{Nodes: d.Nodes, Reasons: map[string]int{}}
	for _, r := range statuses {
		for _, reason := range r.Reasons {
			e.Reasons[reason]++
		}
	}
	if rest := d.Nodes - len(statuses); rest > 0 {
		e.Reasons["Preemption is not helpful for scheduling"] += rest
	}
	return e
}

// candidates are the nodes where moving pods away would help, and what was said of those where it would not. The error is what kept
// rules from deciding, if there are no candidates.
func (d *Decision) candidates(near *neighbourhood, budgets []*policyv1.PodDisruptionBudget) ([]Preemption, map[int32]*Refusal, error) {
	s := d.snapshot
	statuses := map[int32]*Refusal{}
	var nodes []int32
	for i := range s.nodes {
		if s.nodes[i].object == nil || d.limited == nil && d.table != nil && i >= len(d.table.cells) {
			continue
		}
		if r := d.refusalAt(int32(i)); r != nil && !r.Unresolvable && d.table != nil {
			nodes = append(nodes, int32(i))
		}
	}
	if len(nodes) == 0 {
		return nil, statuses, nil
	}
	enough := min(max(len(nodes)*d.profile.preemption.percentage/100, d.profile.preemption.absolute), len(nodes))
	offset := int(s.services) % len(nodes)
	var safe, violating []Preemption
	var failures []error
	for i := range nodes {
		node := nodes[(offset+i)%len(nodes)]
		found, refusal := d.victims(near, node, budgets)
		switch {
		case refusal != nil:
			statuses[node] = refusal
			if refusal.Err != nil {
				failures = append(failures, filterError(refusal))
			}
			continue
		case found.Violations == 0:
			safe = append(safe, *found)
		default:
			violating = append(violating, *found)
		}
		if len(safe) > 0 && len(safe)+len(violating) >= enough {
			break
		}
	}
	if len(safe)+len(violating) == 0 && len(failures) > 0 {
		return nil, statuses, utilerrors.NewAggregate(failures)
	}
	return append(safe, violating...), statuses, nil
}

var refusedNoVictims = refuse(defaultPreemptionName, true, "No preemption victims found for incoming pod")

// victims finds the fewest and least important pods that must leave a node for the pod to fit there: it takes all away that may
// be, then lets them back one by one, the most important first and those a budget protects before the others, as long as the
// pod still fits.
func (d *Decision) victims(near *neighbourhood, node int32, budgets []*policyv1.PodDisruptionBudget) (found *Preemption, refusal *Refusal) {
	s := d.snapshot
	var weaker []*podEntry
	for _, p := range s.nodes[node].pods {
		if priorityOf(p.info.Pod) < priorityOf(d.Pod.Pod) {
			weaker = append(weaker, p)
		}
	}
	if len(weaker) == 0 {
		return nil, refusedNoVictims
	}
	slices.SortStableFunc(weaker, func(a, b *podEntry) int { return byImportance(a.info.Pod, b.info.Pod) })
	s.trying(node, func() {
		for _, p := range weaker {
			s.removePod(p)
		}
		if refusal = d.checkAmid(near, node); refusal != nil {
			for _, p := range weaker {
				s.addPod(p)
			}
			return
		}
		found = d.reprieve(near, node, weaker, budgets)
	})
	if found != nil && len(found.Victims) == 0 {
		return nil, &Refusal{Err: fmt.Errorf("expected at least one victim pod on node %q", found.Node)}
	}
	return found, refusal
}

func (d *Decision) reprieve(near *neighbourhood, node int32, weaker []*podEntry, budgets []*policyv1.PodDisruptionBudget) *Preemption {
	s := d.snapshot
	found := &Preemption{Node: s.nodes[node].name}
	var gone []*podEntry
	protected, others := splitByBudget(weaker, budgets)
	stays := func(p *podEntry) bool {
		s.addPod(p)
		if d.checkAmid(near, node) == nil {
			return true
		}
		s.removePod(p)
		gone = append(gone, p)
		return false
	}
	for _, p := range protected {
		if !stays(p) {
			found.Violations++
		}
	}
	for _, p := range others {
		stays(p)
	}
	for _, p := range gone {
		s.addPod(p)
	}
	slices.SortStableFunc(gone, func(a, b *podEntry) int { return byImportance(a.info.Pod, b.info.Pod) })
	for _, p := range gone {
		found.Victims = append(found.Victims, p.info.Pod)
	}
	return found
}

// checkAmid is checkWithNominated inside a rehearsal.
func (d *Decision) checkAmid(near *neighbourhood, node int32) *Refusal {
	s := d.snapshot
	coming := d.nominatedBefore(node)
	for _, p := range coming {
		s.addPod(p)
	}
	refusal := d.check(near, node)
	for _, p := range slices.Backward(coming) {
		s.removePod(p)
	}
	if refusal != nil || len(coming) == 0 {
		return refusal
	}
	return d.check(near, node)
}

// startOf is when a pod began to run. One that has not begun counts as the latest.
func startOf(pod *corev1.Pod) int64 {
	if pod.Status.StartTime == nil {
		return math.MaxInt64
	}
	return pod.Status.StartTime.UnixNano()
}

// byImportance puts the pod of higher priority first, then the one that runs longer.
func byImportance(a, b *corev1.Pod) int {
	if x, y := priorityOf(a), priorityOf(b); x != y {
		return int(int64(y) - int64(x))
	}
	switch x, y := startOf(a), startOf(b); {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// splitByBudget tells apart the pods whose leaving a disruption budget would not allow.
func splitByBudget(all []*podEntry, budgets []*policyv1.PodDisruptionBudget) (protected, others []*podEntry) {
	allowed := make([]int32, len(budgets))
	selectors := make([]labels.Selector, len(budgets))
	for i, b := range budgets {
		allowed[i] = b.Status.DisruptionsAllowed
		if selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && !selector.Empty() {
			selectors[i] = selector
		}
	}
	for _, p := range all {
		pod := p.info.Pod
		violates := false
		for i, b := range budgets {
			if len(pod.Labels) == 0 || b.Namespace != pod.Namespace || selectors[i] == nil || !selectors[i].Matches(labels.Set(pod.Labels)) {
				continue
			}
			if _, counted := b.Status.DisruptedPods[pod.Name]; counted {
				continue
			}
			if allowed[i]--; allowed[i] < 0 {
				violates = true
				break
			}
		}
		if violates {
			protected = append(protected, p)
		} else {
			others = append(others, p)
		}
	}
	return protected, others
}

// choose picks the way that hurts least: fewest violated budgets, then the least important most important victim, the smallest sum
// of priorities, the fewest victims, and the victim that has run shortest.
func choose(candidates []Preemption) *Preemption {
	measures := []func(*Preemption) int64{
		func(c *Preemption) int64 { return int64(c.Violations) },
		func(c *Preemption) int64 { return int64(priorityOf(c.Victims[0])) },
		func(c *Preemption) (sum int64) {
			for _, v := range c.Victims {
				sum += int64(priorityOf(v)) + math.MaxInt32 + 1
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
	for _, measure := range measures {
		least := int64(math.MaxInt64)
		for _, c := range left {
			least = min(least, measure(c))
		}
		left = slices.DeleteFunc(left, func(c *Preemption) bool { return measure(c) != least })
	}
	return left[0]
}

// earliestStart is when the first of the most important victims began to run.
func earliestStart(victims []*corev1.Pod) int64 {
	highest, earliest := priorityOf(victims[0]), startOf(victims[0])
	for _, v := range victims[1:] {
		switch p := priorityOf(v); {
		case p > highest:
			highest, earliest = p, startOf(v)
		case p == highest:
			earliest = min(earliest, startOf(v))
		}
	}
	return earliest
}
