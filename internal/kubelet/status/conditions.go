package status

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/container"
)

// The reasons of conditions.
const (
	podCompleted             = "PodCompleted"
	podFailed                = "PodFailed"
	containersNotReady       = "ContainersNotReady"
	containersNotInitialized = "ContainersNotInitialized"
	gatesNotReady            = "ReadinessGatesNotReady"
	sandboxNotReady          = "PodSandboxNotReady"
	restartAllStarted        = "RestartAllContainersStarted"
)

// owned are the conditions that the kubelet writes. DisruptionTarget is also written by others.
var owned = []corev1.PodConditionType{
	corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized, corev1.ContainersReady, corev1.PodResizeInProgress, corev1.PodResizePending,
	corev1.PodReadyToStartContainers, corev1.AllContainersRestarting,
}

func condition(list []corev1.PodCondition, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range list {
		if list[i].Type == kind {
			return &list[i]
		}
	}
	return nil
}

// conditions returns the unchanged conditions of others and the kubelet's own.
func (b *builder) conditions(status *corev1.PodStatus) []corev1.PodCondition {
	var all []corev1.PodCondition
	for _, c := range b.pod.Status.Conditions {
		if !slices.Contains(owned, c.Type) {
			all = append(all, c)
		}
	}
	all = append(all, b.Resize...)
	if target := condition(b.Old.Conditions, corev1.DisruptionTarget); target != nil && condition(all, corev1.DisruptionTarget) == nil {
		all = append(all, *target)
	}
	ready := b.containersReady(status)
	podReady := ready
	podReady.Type = corev1.PodReady
	if ready.Status == corev1.ConditionTrue {
		podReady = b.gates(all)
	}
	all = append(all, b.readyToStart(), b.initialized(status), podReady, ready, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	if container.HasRestartAllRule(&b.pod.Spec) {
		all = append(all, b.allRestarting(status.Phase))
	}
	for i := range all {
		c := &all[i]
		if !slices.Contains(owned, c.Type) || c.Type == corev1.PodResizeInProgress || c.Type == corev1.PodResizePending {
			continue
		}
		c.ObservedGeneration = b.pod.Generation
		c.LastTransitionTime = metav1.NewTime(b.Now)
		if old := condition(b.Old.Conditions, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	return all
}

func (b *builder) readyToStart() corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}
	if why, _, _ := b.Runtime.NeedsSandbox(b.pod.Spec.HostNetwork); why != "" {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, sandboxNotReady, why
	}
	return c
}

// containersReady is true when all regular containers and sidecars are ready.
func (b *builder) containersReady(status *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}
	switch status.Phase {
	case corev1.PodSucceeded:
		c.Reason = podCompleted
		return c
	case corev1.PodFailed:
		c.Reason = podFailed
		return c
	}
	var unready []string
	for kind, spec := range container.All(&b.pod.Spec) {
		var s *corev1.ContainerStatus
		switch {
		case kind == container.Regular:
			s = find(status.ContainerStatuses, spec.Name)
		case kind == container.Init && container.IsSidecar(spec):
			s = find(status.InitContainerStatuses, spec.Name)
		}
		if s != nil && !s.Ready {
			unready = append(unready, spec.Name)
		}
	}
	if len(unready) > 0 {
		c.Reason, c.Message = containersNotReady, fmt.Sprintf("containers with unready status: %s", unready)
		return c
	}
	c.Status = corev1.ConditionTrue
	return c
}

// gates computes the condition Ready of a pod whose containers are ready from its readiness gates.
func (b *builder) gates(conditions []corev1.PodCondition) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
	var closed []string
	for _, gate := range b.pod.Spec.ReadinessGates {
		switch found := condition(conditions, gate.ConditionType); {
		case found == nil:
			closed = append(closed, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case found.Status != corev1.ConditionTrue:
			closed = append(closed, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", gate.ConditionType, found.Status))
		}
	}
	if len(closed) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, gatesNotReady, strings.Join(closed, ", ")
	}
	return c
}

// initialized is true when all init containers are completed, and stays true when sidecars restart.
func (b *builder) initialized(status *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	if status.Phase == corev1.PodSucceeded {
		c.Reason = podCompleted
		return c
	}
	for _, s := range status.ContainerStatuses {
		if s.Started != nil && *s.Started || s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil {
			return c
		}
	}
	var incomplete []string
	for i := range b.pod.Spec.InitContainers {
		spec := &b.pod.Spec.InitContainers[i]
		s := find(status.InitContainerStatuses, spec.Name)
		done := s.Ready
		if container.IsSidecar(spec) {
			done = s.Started != nil && *s.Started
		}
		if !done {
			incomplete = append(incomplete, spec.Name)
		}
	}
	if len(incomplete) == 0 {
		return c
	}
	if old := condition(b.Old.Conditions, corev1.PodInitialized); old != nil && old.Status == corev1.ConditionTrue {
		return c
	}
	c.Status, c.Reason, c.Message = corev1.ConditionFalse, containersNotInitialized, fmt.Sprintf("containers with incomplete status: %s", incomplete)
	return c
}

func (b *builder) allRestarting(phase corev1.PodPhase) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.AllContainersRestarting, Status: corev1.ConditionFalse}
	switch {
	case phase == corev1.PodSucceeded:
		c.Reason = podCompleted
	case phase == corev1.PodFailed:
		c.Reason = podFailed
	case b.restarting && len(b.Runtime.Containers) > 0:
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, restartAllStarted, "container exited with restart policy rule"
	}
	return c
}
