package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"skiff/internal/scheduler/binding"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

// evict deletes the victims of a preemption in the background. The caller holds s.mu.
func (s *Scheduler) evict(ctx context.Context, info *snapshot.PodInfo, preemption *plugins.Preemption) {
	pod := info.Pod
	victims := slices.DeleteFunc(slices.Clone(preemption.Victims), func(v *corev1.Pod) bool { return v.DeletionTimestamp != nil })
	if len(victims) == 0 {
		s.queue.Unblock(pod.UID, time.Now(), false)
		return
	}
	var weaker []*corev1.Pod
	if number, ok := s.snapshot.NodeNumbers[preemption.Node]; ok {
		for _, p := range s.snapshot.NominatedPods[number] {
			if snapshot.PriorityOf(p.Info.Pod) < snapshot.PriorityOf(pod) {
				weaker = append(weaker, p.Info.Pod)
			}
		}
	}
	s.backgroundThen(func() func() {
		failed := false
		for _, w := range weaker {
			s.binder.Nominate(ctx, w, "")
		}
		for _, victim := range victims {
			if err := s.evictOne(ctx, info, victim, preemption.Node); err != nil && !apierrors.IsNotFound(err) {
				s.log.Warn("failed to evict victim", "pod", snapshot.ObjectKey(pod), "victim", snapshot.ObjectKey(victim), "error", err)
				failed = true
				break // evicting the others would not help without this one
			}
		}
		return func() {
			s.queue.Unblock(pod.UID, time.Now(), failed)
			s.wakeUp()
		}
	})
}

// evictOne deletes one victim. A victim that still waits for volumes or devices is not bound yet: its binding is cancelled instead.
func (s *Scheduler) evictOne(ctx context.Context, by *snapshot.PodInfo, victim *corev1.Pod, node string) error {
	message := fmt.Sprintf("Preempted by pod %v on node %v", by.Pod.UID, node)
	if s.binder.Cancel(victim.UID, errors.New("preempted by "+plugins.DefaultPreemptionName)) {
		message += " (in kube-scheduler memory)."
	} else if err := s.deleteVictim(ctx, by, victim); err != nil {
		return err
	}
	if profile := s.profiles[by.Pod.Spec.SchedulerName]; profile != nil {
		s.recordEvent(profile, victim, corev1.EventTypeNormal, "Preempted", message)
	}
	return nil
}

func (s *Scheduler) deleteVictim(ctx context.Context, by *snapshot.PodInfo, victim *corev1.Pod) error {
	condition := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
		Message: fmt.Sprintf("%s: preempting to accommodate a higher priority pod", by.Pod.Spec.SchedulerName),
	}
	if patch := binding.ConditionPatch(victim, condition, nil); patch != nil {
		if err := s.binder.Writer.PatchStatus(ctx, victim, patch); err != nil {
			return fmt.Errorf("mark victim: %w", err)
		}
	}
	if err := s.binder.Writer.DeletePod(ctx, victim); err != nil {
		return fmt.Errorf("delete victim: %w", err)
	}
	return nil
}

// setCondition writes to the pod's status why it is not scheduled, and its nominated node. The caller holds s.mu.
func (s *Scheduler) setCondition(ctx context.Context, pod *corev1.Pod, reason, message, nominated string) {
	condition := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message}
	patch := binding.ConditionPatch(pod, condition, &nominated)
	if patch == nil {
		return
	}
	s.background(func() {
		if err := s.binder.Writer.PatchStatus(ctx, pod, patch); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			s.log.Warn("failed to write pod status", "pod", snapshot.ObjectKey(pod), "error", err)
		}
	})
}
