package plugins

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// schedulingGates is the PreEnqueue plugin for spec.schedulingGates. The queue implements it.
type schedulingGates struct{}

func (schedulingGates) Name() string { return SchedulingGatesName }

func (schedulingGates) Hints() []QueueingHint {
	return []QueueingHint{{Resource: TargetPod, Action: UpdatePodGates}}
}

// GateMessage is the message of a gated pod's condition; it is empty for a pod without gates.
func GateMessage(pod *corev1.Pod) string {
	if len(pod.Spec.SchedulingGates) == 0 {
		return ""
	}
	names := make([]string, len(pod.Spec.SchedulingGates))
	for i, gate := range pod.Spec.SchedulingGates {
		names[i] = gate.Name
	}
	return fmt.Sprintf("waiting for scheduling gates: [%s]", strings.Join(names, " "))
}
