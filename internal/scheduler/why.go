package scheduler

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

// Why explains the last decision about a pod, or what would be decided now.
func (s *Scheduler) Why(namespace, name string) (*decision.Explanation, error) {
	pod, ok := s.lists.pods(namespace, name)
	if !ok {
		return nil, decision.ErrPodNotFound
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	profile := s.profiles[pod.Spec.SchedulerName]
	if profile == nil {
		return nil, fmt.Errorf("%w: its schedulerName is %q", decision.ErrOtherScheduler, pod.Spec.SchedulerName)
	}
	e := &decision.Explanation{Namespace: namespace, Name: name, Node: pod.Spec.NodeName}
	if message := plugins.GateMessage(pod); message != "" && profile.SchedulingGates && pod.Spec.NodeName == "" {
		e.Message, e.Nodes = message, s.snapshot.NodeCount
		e.Changes = []decision.Suggestion{{Steps: []string{"remove the pod's scheduling gates"}}}
		return e, nil
	}
	last := s.decisions.Last(pod.UID)
	if last != nil && !last.Decision.RecordDropped && (pod.Spec.NodeName == "" || last.Decision.Node == pod.Spec.NodeName) {
		if verdicts, current := last.Decision.Explain(); current {
			e.Describe(last.Decision, last.Err)
			e.Verdicts, e.Decided = verdicts, &metav1.Time{Time: last.At}
		}
	}
	if e.Decided != nil && e.Node != "" {
		return e, nil
	}
	return e, s.explainNow(e, pod, profile)
}

// explainNow adds what would be decided now, and for a pod that has no place what would have to change.
func (s *Scheduler) explainNow(e *decision.Explanation, pod *corev1.Pod, profile *plugins.Profile) error {
	asked := *pod
	asked.Spec.NodeName = ""
	info, err := snapshot.NewPodInfo(&asked)
	if err != nil {
		return err
	}
	s.without(pod.UID, func() {
		d, failure := decision.Schedule(s.snapshot, info, profile)
		if e.Decided == nil {
			e.Describe(d, failure)
			e.Verdicts, _ = d.Explain()
		}
		if pod.Spec.NodeName != "" {
			// What would be decided now is not where the pod is.
			e.Node, e.Message = pod.Spec.NodeName, ""
		} else if failure != nil {
			s.helpOut(e, d)
		}
	})
	return nil
}

// without looks at the cluster as if a pod were not there.
func (s *Scheduler) without(uid types.UID, do func()) {
	p := s.snapshot.PodEntries[uid]
	if p == nil {
		do()
		return
	}
	services, served := s.snapshot.Placements, s.snapshot.LastPlacement[p.Node]
	s.snapshot.RemovePod(p)
	do()
	s.snapshot.AddPod(p)
	s.snapshot.Placements, s.snapshot.LastPlacement[p.Node] = services, served
}

// helpOut tells how a pod that fits nowhere could run.
func (s *Scheduler) helpOut(e *decision.Explanation, d *decision.Decision) {
	e.Changes = d.Suggestions()
	if d.Profile.Preemption == nil || d.Table == nil {
		return
	}
	if way, _, err := decision.Preempt(d, s.lists.budgets(), nil); err == nil {
		e.Preemption = &decision.PreemptionPreview{Node: way.Node, Victims: len(way.Victims)}
	}
}

// WhatIf decides about pods as if they were created now, one after another, and changes nothing. Verdicts about every node are
// added if wanted.
func (s *Scheduler) WhatIf(pods []*corev1.Pod, verdicts bool) ([]decision.Explanation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whatIfAll(pods, verdicts)
}

// whatIfAll is WhatIf for callers that hold s.mu.
func (s *Scheduler) whatIfAll(pods []*corev1.Pod, verdicts bool) ([]decision.Explanation, error) {
	all := make([]decision.Explanation, 0, len(pods))
	var undo []func()
	defer func() {
		for _, back := range slices.Backward(undo) {
			back()
		}
	}()
	services, served := s.snapshot.Placements, slices.Clone(s.snapshot.LastPlacement)
	undo = append(undo, func() { s.snapshot.Placements = services; copy(s.snapshot.LastPlacement, served) })
	for i, pod := range pods {
		e, back, err := s.whatIf(i, pod, verdicts)
		if err != nil {
			return nil, err
		}
		if back != nil {
			undo = append(undo, back)
		}
		all = append(all, *e)
	}
	return all, nil
}

// whatIf decides about one pod and assumes that it is there from now on, until back is called.
func (s *Scheduler) whatIf(i int, pod *corev1.Pod, verdicts bool) (e *decision.Explanation, back func(), err error) {
	pod = pod.DeepCopy()
	if pod.Spec.SchedulerName == "" {
		pod.Spec.SchedulerName = corev1.DefaultSchedulerName
	}
	// A name of its own, so that it is not taken for a pod that exists.
	pod.UID = types.UID(fmt.Sprintf("what-if/%d/%s", i, snapshot.ObjectKey(pod)))
	pod.Spec.NodeName, pod.Status = "", corev1.PodStatus{}
	profile := s.profiles[pod.Spec.SchedulerName]
	if profile == nil {
		return nil, nil, fmt.Errorf("pod %s: %w: its schedulerName is %q", snapshot.ObjectKey(pod), decision.ErrOtherScheduler, pod.Spec.SchedulerName)
	}
	e = &decision.Explanation{Namespace: pod.Namespace, Name: pod.Name}
	if message := plugins.GateMessage(pod); message != "" && profile.SchedulingGates {
		e.Message, e.Nodes = message, s.snapshot.NodeCount
		return e, nil, nil
	}
	info, err := snapshot.NewPodInfo(pod)
	if err != nil {
		return nil, nil, fmt.Errorf("pod %s: %w", snapshot.ObjectKey(pod), err)
	}
	d, failure := decision.Schedule(s.snapshot, info, profile)
	e.Describe(d, failure)
	if verdicts {
		e.Verdicts, _ = d.Explain()
	}
	if failure != nil {
		s.helpOut(e, d)
		return e, nil, nil
	}
	plan, err := s.reserve(d)
	if err != nil {
		e.Node, e.Message = "", err.Error()
		return e, nil, nil
	}
	s.snapshot.Assume(info, d.Node)
	return e, func() { s.snapshot.Forget(pod.UID); s.release(plan) }, nil
}

// Pending counts the pods that want a node, by place in the queue.
func (s *Scheduler) Pending() (active, backoff, waiting, flying int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue.Len()
}
