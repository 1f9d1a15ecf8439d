package scheduler

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/scheduler/binding"
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
	profile := s.profiles[pod.Spec.SchedulerName]
	if profile == nil {
		return nil, fmt.Errorf("%w: its schedulerName is %q", decision.ErrOtherScheduler, pod.Spec.SchedulerName)
	}
	e := &decision.Explanation{Namespace: namespace, Name: name, Node: pod.Spec.NodeName}
	if s.explainRecorded(e, pod, profile) {
		return e, nil
	}
	return e, s.explainNow(e, pod, profile)
}

// explainRecorded explains a pod from what is recorded. It reports false when what would be decided now belongs to the explanation.
func (s *Scheduler) explainRecorded(e *decision.Explanation, pod *corev1.Pod, profile *plugins.Profile) (complete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if message := plugins.GateMessage(pod); message != "" && profile.SchedulingGates && pod.Spec.NodeName == "" {
		e.Message, e.Nodes = message, s.snapshot.NodeCount
		e.Changes = []decision.Suggestion{{Steps: []string{"remove the pod's scheduling gates"}}}
		return true
	}
	last := s.decisions.Last(pod.UID)
	if last != nil && !last.Decision.RecordDropped && (pod.Spec.NodeName == "" || last.Decision.Node == pod.Spec.NodeName) {
		if verdicts, current := last.Decision.Explain(); current {
			e.Describe(last.Decision, last.Err)
			e.Verdicts, e.Decided = verdicts, &metav1.Time{Time: last.At}
		}
	}
	return e.Decided != nil && e.Node != ""
}

// fork makes a private copy of the snapshot for one query, so that queries never change the scheduler's own. The lock is held only
// while the columns are copied.
func (s *Scheduler) fork() *snapshot.Snapshot {
	begin := func() *snapshot.Fork {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.snapshot.Fork()
	}
	return begin().Snapshot()
}

// explainNow adds what would be decided now, and for a pod that has no node what would have to change.
func (s *Scheduler) explainNow(e *decision.Explanation, pod *corev1.Pod, profile *plugins.Profile) error {
	pending := *pod
	pending.Spec.NodeName = ""
	info, err := snapshot.NewPodInfo(&pending)
	if err != nil {
		return err
	}
	cluster := s.fork()
	if p := cluster.PodEntries[pod.UID]; p != nil {
		cluster.RemovePod(p)
	}
	d, failure := decision.Schedule(cluster, info, profile)
	if e.Decided == nil {
		e.Describe(d, failure)
		e.Verdicts, _ = d.Explain()
	}
	if pod.Spec.NodeName != "" {
		// What would be decided now is not where the pod is.
		e.Node, e.Message = pod.Spec.NodeName, ""
	} else if failure != nil {
		s.suggest(e, d)
	}
	return nil
}

// suggest adds changes that would make the pod schedulable.
func (s *Scheduler) suggest(e *decision.Explanation, d *decision.Decision) {
	e.Changes = d.Suggestions()
	if d.Profile.Preemption == nil || d.Table == nil {
		return
	}
	if best, _, err := decision.Preempt(d, s.lists.budgets, nil); err == nil {
		e.Preemption = &decision.PreemptionPreview{Node: best.Node, Victims: len(best.Victims)}
	}
}

// WhatIf decides about pods as if they were created now, one after another, on a private copy of the snapshot. Verdicts about every
// node are added if wanted.
func (s *Scheduler) WhatIf(ctx context.Context, pods []*corev1.Pod, verdicts bool) ([]decision.Explanation, error) {
	return s.whatIf(ctx, s.fork(), pods, verdicts)
}

// whatIf decides about pods on a copy of the snapshot, until ctx is done.
func (s *Scheduler) whatIf(ctx context.Context, cluster *snapshot.Snapshot, pods []*corev1.Pod, verdicts bool) ([]decision.Explanation, error) {
	all := make([]decision.Explanation, 0, len(pods))
	for i, pod := range pods {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		e, err := s.whatIfPod(cluster, i, pod, verdicts)
		if err != nil {
			return nil, err
		}
		all = append(all, *e)
	}
	return all, nil
}

// whatIfPod decides about one pod and assumes that it is there from now on.
func (s *Scheduler) whatIfPod(cluster *snapshot.Snapshot, i int, pod *corev1.Pod, verdicts bool) (*decision.Explanation, error) {
	pod = pod.DeepCopy()
	if pod.Spec.SchedulerName == "" {
		pod.Spec.SchedulerName = corev1.DefaultSchedulerName
	}
	// A UID of its own, so that it is not taken for a pod that exists.
	pod.UID = types.UID(fmt.Sprintf("what-if/%d/%s", i, snapshot.ObjectKey(pod)))
	pod.Spec.NodeName, pod.Status = "", corev1.PodStatus{}
	profile := s.profiles[pod.Spec.SchedulerName]
	if profile == nil {
		return nil, fmt.Errorf("pod %s: %w: its schedulerName is %q", snapshot.ObjectKey(pod), decision.ErrOtherScheduler, pod.Spec.SchedulerName)
	}
	e := &decision.Explanation{Namespace: pod.Namespace, Name: pod.Name}
	if message := plugins.GateMessage(pod); message != "" && profile.SchedulingGates {
		e.Message, e.Nodes = message, cluster.NodeCount
		return e, nil
	}
	info, err := snapshot.NewPodInfo(pod)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", snapshot.ObjectKey(pod), err)
	}
	d, failure := decision.Schedule(cluster, info, profile)
	e.Describe(d, failure)
	if verdicts {
		e.Verdicts, _ = d.Explain()
	}
	if failure != nil {
		s.suggest(e, d)
		return e, nil
	}
	if _, err := binding.Reserve(cluster, d); err != nil {
		e.Node, e.Message = "", err.Error()
		return e, nil
	}
	cluster.Assume(info, d.Node)
	return e, nil
}

// Pending counts the pods without a node, by their location in the queue.
func (s *Scheduler) Pending() (active, backoff, unschedulable, inFlight int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue.Len()
}
