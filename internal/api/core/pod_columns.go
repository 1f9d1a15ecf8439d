package core

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

var podColumns = []metav1.TableColumnDefinition{
	kind.NameColumn(),
	kind.Column("Ready", "string", "The aggregate readiness state of this pod for accepting traffic."),
	kind.Column("Status", "string", "The aggregate status of the containers in this pod."),
	kind.Column("Restarts", "string", "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted."),
	kind.AgeColumn(),
	kind.Wide("IP", "string", corev1.PodStatus{}.SwaggerDoc()["podIP"]),
	kind.Wide("Node", "string", corev1.PodSpec{}.SwaggerDoc()["nodeName"]),
	kind.Wide("Nominated Node", "string", corev1.PodStatus{}.SwaggerDoc()["nominatedNodeName"]),
	kind.Wide("Readiness Gates", "string", corev1.PodSpec{}.SwaggerDoc()["readinessGates"]),
}

// nodeLost is the reason of a pod whose kubelet does not respond.
const nodeLost = "NodeLost"

func podRowConditions(obj *corev1.Pod) []metav1.TableRowCondition {
	completed := metav1.TableRowCondition{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(obj.Status.Phase)}
	switch obj.Status.Phase {
	case corev1.PodSucceeded:
		completed.Message = "The pod has completed successfully."
	case corev1.PodFailed:
		completed.Message = "The pod failed."
	default:
		return nil
	}
	return []metav1.TableRowCondition{completed}
}

func podRow(obj *corev1.Pod, now time.Time) []any {
	s := summarizePod(obj)
	restarts := strconv.Itoa(s.restarts.count)
	if s.restarts.count != 0 && !s.restarts.last.IsZero() {
		restarts += fmt.Sprintf(" (%s ago)", kind.Age(s.restarts.last, now))
	}
	return []any{
		obj.Name, fmt.Sprintf("%d/%d", s.ready, s.total), s.status, restarts, kind.Age(obj.CreationTimestamp, now),
		orElse(podIP(obj), "<none>"), orElse(obj.Spec.NodeName, "<none>"), orElse(obj.Status.NominatedNodeName, "<none>"), readinessGates(obj),
	}
}

func readinessGates(obj *corev1.Pod) string {
	if len(obj.Spec.ReadinessGates) == 0 {
		return "<none>"
	}
	open := 0
	for _, gate := range obj.Spec.ReadinessGates {
		if podstate.IsConditionTrue(obj, gate.ConditionType) {
			open++
		}
	}
	return fmt.Sprintf("%d/%d", open, len(obj.Spec.ReadinessGates))
}

// restarts counts the restarts of containers, and the time of the last one.
type restarts struct {
	count int
	last  metav1.Time
}

func (r *restarts) add(c *corev1.ContainerStatus) {
	r.count += int(c.RestartCount)
	if terminated := c.LastTerminationState.Terminated; terminated != nil && r.last.Before(&terminated.FinishedAt) {
		r.last = terminated.FinishedAt
	}
}

// podSummary is what a table row shows of a pod's containers.
type podSummary struct {
	status       string
	ready, total int
	restarts     restarts
}

func summarizePod(obj *corev1.Pod) podSummary {
	s := podSummary{status: orElse(obj.Status.Reason, string(obj.Status.Phase)), total: len(obj.Spec.Containers)}
	for _, condition := range obj.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonSchedulingGated {
			s.status = corev1.PodReasonSchedulingGated
		}
	}
	sidecars := map[string]bool{}
	for i := range obj.Spec.InitContainers {
		if c := &obj.Spec.InitContainers[i]; podspec.Restartable(c) {
			sidecars[c.Name] = true
			s.total++
		}
	}
	initializing, lasting := s.initContainers(obj, sidecars)
	if !initializing || podstate.IsConditionTrue(obj, corev1.PodInitialized) {
		s.restarts = lasting
		s.containers(obj)
	}
	if obj.DeletionTimestamp != nil {
		if obj.Status.Reason == nodeLost {
			s.status = "Unknown"
		} else if !podstate.IsTerminal(obj) {
			s.status = "Terminating"
		}
	}
	return s
}

// initContainers summarizes the init containers up to the first that is not done, and reports whether there is one.
// lasting are the restarts of sidecars, which keep counting when initialization is over.
func (s *podSummary) initContainers(obj *corev1.Pod, sidecars map[string]bool) (initializing bool, lasting restarts) {
	for i := range obj.Status.InitContainerStatuses {
		c := &obj.Status.InitContainerStatuses[i]
		s.restarts.add(c)
		if sidecars[c.Name] {
			lasting.add(c)
		}
		terminated, waiting := c.State.Terminated, c.State.Waiting
		switch {
		case terminated != nil && terminated.ExitCode == 0:
			continue
		case sidecars[c.Name] && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case terminated != nil:
			s.status = "Init:" + terminatedReason(terminated)
		case waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing":
			s.status = "Init:" + waiting.Reason
		default:
			s.status = fmt.Sprintf("Init:%d/%d", i, len(obj.Spec.InitContainers))
		}
		return true, lasting
	}
	return false, lasting
}

// containers summarizes the regular containers, the last first: the first one determines the status.
func (s *podSummary) containers(obj *corev1.Pod) {
	running, failure := false, ""
	for i := len(obj.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &obj.Status.ContainerStatuses[i]
		s.restarts.add(c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.status = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.status = terminatedReason(c.State.Terminated)
			if c.State.Terminated.ExitCode != 0 {
				failure = s.status
			}
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	// One completed container does not mean that the pod has completed.
	if s.status == "Completed" {
		switch {
		case running && podstate.IsReady(obj):
			s.status = "Running"
		case failure != "":
			s.status = failure
		case running:
			s.status = "NotReady"
		}
	}
}

func terminatedReason(terminated *corev1.ContainerStateTerminated) string {
	switch {
	case terminated.Reason != "":
		return terminated.Reason
	case terminated.Signal != 0:
		return fmt.Sprintf("Signal:%d", terminated.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", terminated.ExitCode)
}
