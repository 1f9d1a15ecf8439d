package scheduler

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"skiff/internal/scheduler/binding"
	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/queue"
	"skiff/internal/scheduler/snapshot"
)

// newBinder makes the Binder of a scheduler. Its Writer is set later.
func (s *Scheduler) newBinder() *binding.Binder {
	return binding.New(binding.Config{
		Log: s.log, WithSnapshot: s.withSnapshot, Background: s.background, BindWithExtender: s.bindWithExtender, RecordEvent: s.recordEvent,
		Timed: func(extensionPoint string, profile *plugins.Profile) func(error) {
			return s.metrics.timed(extensionPoint, profile)
		},
		ClaimCreated: func(claim *resourcev1.ResourceClaim, err error) { s.metrics.claimCreated(claim, err) },
	})
}

// withSnapshot calls do with the snapshot and s.mu held.
func (s *Scheduler) withSnapshot(do func(cluster *snapshot.Snapshot)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(s.snapshot)
}

// assume counts the pod as running on the chosen node and binds it in the background. The caller holds s.mu.
func (s *Scheduler) assume(ctx context.Context, p *queue.QueuedPod, d *decision.Decision, began time.Time) {
	info := p.PodInfo
	done := s.metrics.timed("Reserve", d.Profile)
	reservation, err := binding.Reserve(s.snapshot, d)
	done(err)
	if err != nil {
		s.metrics.attempted(info.Pod, err, began)
		s.failed(ctx, p, d, err)
		return
	}
	s.snapshot.Assume(info, d.Node)
	// The pod leaves the queue here. If binding fails, it is queued again as it was.
	s.queue.Done(info.Pod.UID)
	s.backgroundThen(func() func() {
		err := s.binder.Bind(ctx, d, reservation)
		if err == nil {
			s.metrics.bound(p, began)
			s.recordEvent(d.Profile, info.Pod, corev1.EventTypeNormal, "Scheduled",
				fmt.Sprintf("Successfully assigned %v/%v to %v", info.Pod.Namespace, info.Pod.Name, d.Node))
			return nil
		}
		s.metrics.attempted(info.Pod, err, began)
		return func() { s.bindingFailed(ctx, p, d, reservation, err) }
	})
}

// bindingFailed reverts a decision that could not be written. The caller holds s.mu.
func (s *Scheduler) bindingFailed(ctx context.Context, p *queue.QueuedPod, d *decision.Decision, r *binding.Reservation, err error) {
	pod := p.PodInfo.Pod
	s.binder.Release(ctx, s.snapshot, pod, r)
	if !s.snapshot.Forget(pod.UID) {
		return // deleted, or bound by another scheduler
	}
	s.moveQueuedPods(plugins.Event{Resource: plugins.AssignedPod, Action: plugins.Delete, Old: placed(pod)})
	s.wakeUp()
	current, ok := s.lists.pods(pod.Namespace, pod.Name)
	if !ok || current.UID != pod.UID || current.Spec.NodeName != "" || current.DeletionTimestamp != nil {
		return
	}
	if info := s.readPod(current); info != nil {
		p.PodInfo = info
	}
	if ctx.Err() != nil {
		s.queue.Add(p.PodInfo, time.Now()) // for the next Run
		return
	}
	s.log.Warn("failed to bind pod", "pod", snapshot.ObjectKey(pod), "node", d.Node, "error", err)
	s.queue.All[pod.UID] = p
	p.Location = queue.NotQueued
	s.failed(ctx, p, d, err)
}
