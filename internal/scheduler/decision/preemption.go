package decision

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

// ErrPreemptionNotHelpful means that removing pods of lower priority would not make the pod schedulable.
var ErrPreemptionNotHelpful = errors.New("preemption does not help")

// Preempt looks for a node the pod would fit on if pods of lower priority were removed, after Schedule found none. Extenders may narrow
// the choice by review, which may be nil. The message is what the pod's condition says about it; the error, if there is no such node,
// is ErrPreemptionNotHelpful or what kept plugins from deciding. The snapshot is as before when Preempt returns.
func Preempt(d *Decision, budgets plugins.BudgetsOf, review func([]plugins.Preemption) ([]plugins.Preemption, error)) (best *plugins.Preemption, message string, err error) {
	candidates, message, err := PreemptionCandidates(d, budgets)
	if err != nil {
		return nil, message, err
	}
	if review != nil {
		if candidates, err = review(candidates); err != nil {
			return nil, err.Error(), err
		}
	}
	return ChoosePreemption(candidates)
}

// PreemptionCandidates is the first step of Preempt: the nodes where removing pods would help. There is at least one without an error.
func PreemptionCandidates(d *Decision, budgets plugins.BudgetsOf) (candidates []plugins.Preemption, message string, err error) {
	if ok, message := d.mayPreempt(); !ok {
		return nil, message, errors.New(message)
	}
	topo, err := TopologyFor(d.Snapshot, d.Pod, d.Profile)
	if err != nil {
		return nil, err.Error(), err
	}
	candidates, statuses, err := d.candidates(topo, budgets)
	switch {
	case err != nil:
		return nil, err.Error(), err
	case len(candidates) == 0:
		return nil, d.preemptionNotHelpful(statuses).Error(), ErrPreemptionNotHelpful
	}
	return candidates, "", nil
}

// ChoosePreemption is the last step of Preempt: the candidate that disrupts least.
func ChoosePreemption(candidates []plugins.Preemption) (best *plugins.Preemption, message string, err error) {
	if best = plugins.ChooseCandidate(candidates); best == nil {
		const message = "no candidate node for preemption"
		return nil, message, errors.New(message)
	}
	return best, fmt.Sprintf("found a potential placement for pod on node %v, preempting %d victims", best.Node, len(best.Victims)), nil
}

// mayPreempt reports whether the pod may preempt others now, and otherwise why not.
func (d *Decision) mayPreempt() (bool, string) {
	pod, s := d.Pod.Pod, d.Snapshot
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever {
		return false, "not eligible due to preemptionPolicy=Never."
	}
	node, known := s.NodeNumbers[pod.Status.NominatedNodeName]
	if pod.Status.NominatedNodeName == "" || !known || s.NodeInfos[node].Node == nil {
		return true, ""
	}
	if r := d.refusalAt(node); r != nil && r.Unresolvable {
		return true, ""
	}
	for _, p := range s.NodeInfos[node].Pods {
		if snapshot.PriorityOf(p.Info.Pod) < snapshot.PriorityOf(pod) && plugins.TerminatingByPreemption(p.Info.Pod) {
			return false, "not eligible due to a terminating pod on the nominated node."
		}
	}
	return true, ""
}

// preemptionNotHelpful is the reason why removing pods would not help.
func (d *Decision) preemptionNotHelpful(statuses map[int32]*plugins.Refusal) *FitError {
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

// candidates are the nodes where removing pods would help, and the refusals of those where it would not. The error is why plugins failed,
// if there are no candidates.
func (d *Decision) candidates(topo *topology, budgets plugins.BudgetsOf) ([]plugins.Preemption, map[int32]*plugins.Refusal, error) {
	s := d.Snapshot
	statuses := map[int32]*plugins.Refusal{}
	var nodes []int32
	for i := range s.NodeInfos {
		if s.NodeInfos[i].Node == nil || d.Limited == nil && d.Table != nil && i >= len(d.Table.cells) {
			continue
		}
		if r := d.refusalAt(int32(i)); r != nil && !r.Unresolvable && d.Table != nil {
			nodes = append(nodes, int32(i))
		}
	}
	if len(nodes) == 0 {
		return nil, statuses, nil
	}
	enough := min(max(len(nodes)*d.Profile.Preemption.Percentage/100, d.Profile.Preemption.Absolute), len(nodes))
	offset := int(s.Placements) % len(nodes)
	var safe, violating []plugins.Preemption
	var failures []error
	for i := range nodes {
		node := nodes[(offset+i)%len(nodes)]
		found, refusal := d.victims(topo, node, budgets)
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

// victims finds the fewest and least important pods that must be removed from a node for the pod to fit there. It removes all pods of
// lower priority, then adds them back one by one as long as the pod still fits: first those that a PodDisruptionBudget protects, and
// the most important first.
func (d *Decision) victims(topo *topology, node int32, budgets plugins.BudgetsOf) (found *plugins.Preemption, refusal *plugins.Refusal) {
	s := d.Snapshot
	var weaker []*snapshot.PodEntry
	for _, p := range s.NodeInfos[node].Pods {
		if snapshot.PriorityOf(p.Info.Pod) < snapshot.PriorityOf(d.Pod.Pod) {
			weaker = append(weaker, p)
		}
	}
	if len(weaker) == 0 {
		return nil, plugins.NoPreemptionVictims
	}
	slices.SortStableFunc(weaker, func(a, b *snapshot.PodEntry) int { return plugins.ByImportance(a.Info.Pod, b.Info.Pod) })
	s.Simulate(func(sim *snapshot.Simulation) {
		for _, p := range weaker {
			sim.Remove(p)
		}
		if refusal = d.CheckWithNominated(topo, node); refusal == nil {
			found = d.reprieve(topo, node, sim, weaker, budgets)
		}
	})
	if found != nil && len(found.Victims) == 0 {
		return nil, &plugins.Refusal{Err: fmt.Errorf("expected at least one victim pod on node %q", found.Node)}
	}
	return found, refusal
}

// reprieve puts pods back on the node, the most important first, as long as the pod still fits. The others are the victims.
func (d *Decision) reprieve(topo *topology, node int32, sim *snapshot.Simulation, weaker []*snapshot.PodEntry, budgets plugins.BudgetsOf) *plugins.Preemption {
	found := &plugins.Preemption{Node: d.Snapshot.NodeInfos[node].Name}
	var victims []*snapshot.PodEntry
	protected, others := plugins.SplitByPDB(weaker, budgets)
	reprieved := func(p *snapshot.PodEntry) bool {
		sim.Add(p)
		if d.CheckWithNominated(topo, node) == nil {
			return true
		}
		sim.Remove(p)
		victims = append(victims, p)
		return false
	}
	for _, p := range protected {
		if !reprieved(p) {
			found.Violations++
		}
	}
	for _, p := range others {
		reprieved(p)
	}
	slices.SortStableFunc(victims, func(a, b *snapshot.PodEntry) int { return plugins.ByImportance(a.Info.Pod, b.Info.Pod) })
	for _, p := range victims {
		found.Victims = append(found.Victims, p.Info.Pod)
	}
	return found
}
