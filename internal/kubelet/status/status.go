// Package status computes the statuses of pods and writes them to the API.
//
// Of is a pure function: from a pod's spec, the state in the runtime and the previous status it computes the pod's status, with
// upstream's reasons and messages. Writer writes a status only if it differs from the one in the API, never changes a terminal phase back,
// and deletes a terminated pod from the API once its resources are released.
package status

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/container"
	"skiff/internal/kubelet/cri"
	"skiff/internal/podstate"
)

// Reason is why a container or pod is not running, as in its status.
type Reason struct {
	Reason, Message string
}

// Observed is the input of Of besides the pod.
type Observed struct {
	Runtime *cri.Pod
	// RuntimeName is the prefix of container IDs, such as containerd.
	RuntimeName string
	// Old is the previous status, or the one in the API at first.
	Old *corev1.PodStatus
	// Failed is why the last start of a container failed, by container name.
	Failed map[string]Reason
	// Started and Ready return the probe results of a container; a container without the probe is started and ready as soon as it runs.
	// nil means that there are no probes.
	Started, Ready func(c *corev1.Container, id string) bool
	// HostIPs are the node's addresses, the primary one first.
	HostIPs []string
	// Ended is set when all containers have stopped and will not be restarted, whatever the restart policy.
	Ended bool
	// Evicted, if set, makes the pod failed with its reason and message.
	Evicted *Reason
	// Resize has the conditions of a resize in progress.
	Resize []corev1.PodCondition
	// Actuated are the resources last applied, by container name. What the runtime reports takes precedence.
	Actuated map[string]corev1.ResourceRequirements
	// Devices returns the health of a container's devices; nil if there are none.
	Devices func(c *corev1.Container) []corev1.ResourceStatus
	// PodResources and PodRequests are the pod-level resources.
	PodResources *corev1.ResourceRequirements
	PodRequests  corev1.ResourceList
	// RecursiveReadOnly reports whether the runtime supports recursive read-only mounts.
	RecursiveReadOnly bool
	QOSClass          corev1.PodQOSClass
	Now               time.Time
}

// Of computes the status of a pod. The pod's spec has the allocated resources.
func Of(pod *corev1.Pod, s Observed) corev1.PodStatus {
	b := &builder{pod: pod, Observed: s, restarting: allRestarting(pod, s.Runtime, s.Old)}
	status := corev1.PodStatus{
		QOSClass: s.QOSClass, ObservedGeneration: max(pod.Generation, s.Old.ObservedGeneration), StartTime: s.Old.StartTime,
		NominatedNodeName: s.Old.NominatedNodeName, Resources: s.PodResources, AllocatedResources: s.PodRequests,
		ResourceClaimStatuses: pod.Status.ResourceClaimStatuses, ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus,
	}
	if status.StartTime.IsZero() {
		now := metav1.NewTime(s.Now)
		status.StartTime = &now
	}
	status.ContainerStatuses = b.containers(container.Regular, s.Old.ContainerStatuses)
	status.InitContainerStatuses = b.containers(container.Init, s.Old.InitContainerStatuses)
	status.EphemeralContainerStatuses = b.containers(container.Ephemeral, s.Old.EphemeralContainerStatuses)
	b.addresses(&status)
	b.probes(&status)

	initialized := anyRegularStarted(pod, s.Runtime)
	status.Phase = phase(pod, &status, s.Ended, initialized)
	for _, before := range []*corev1.PodStatus{s.Old, &pod.Status} {
		if podstate.IsPhaseTerminal(before.Phase) && !podstate.IsPhaseTerminal(status.Phase) {
			status.Phase = before.Phase
		}
	}
	if status.Phase == s.Old.Phase {
		status.Reason, status.Message = first(s.Old.Reason, pod.Status.Reason), first(s.Old.Message, pod.Status.Message)
	}
	if s.Evicted != nil {
		status.Phase, status.Reason, status.Message = corev1.PodFailed, s.Evicted.Reason, s.Evicted.Message
	}
	if podstate.IsTerminal(pod) {
		status.Phase = pod.Status.Phase // a terminal phase never changes
	}
	if podstate.IsPhaseTerminal(status.Phase) && status.PodIP == "" {
		// The runtime does not report the addresses of a stopped sandbox; the status keeps them.
		status.PodIP, status.PodIPs = s.Old.PodIP, s.Old.PodIPs
	}
	status.Conditions = b.conditions(&status)
	normalize(pod, &status)
	return status
}

type builder struct {
	pod *corev1.Pod
	Observed
	restarting bool
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// anyRegularStarted reports whether a regular container was started in the current sandbox. Then all init containers are completed, even if
// the runtime no longer has them.
func anyRegularStarted(pod *corev1.Pod, seen *cri.Pod) bool {
	for i := range pod.Spec.Containers {
		if c := seen.Active(pod.Spec.Containers[i].Name); c != nil && (c.State == cri.Running || c.State == cri.Exited) {
			return true
		}
	}
	return false
}

// addresses sets the addresses of pod and node, the primary family first.
func (b *builder) addresses(status *corev1.PodStatus) {
	for _, ip := range b.HostIPs {
		status.HostIPs = append(status.HostIPs, corev1.HostIP{IP: ip})
	}
	if len(b.HostIPs) > 0 {
		status.HostIP = b.HostIPs[0]
	}
	ips := b.Runtime.IPs
	if b.pod.Spec.HostNetwork {
		ips = b.HostIPs
		if old := b.Old.PodIPs; len(old) > 0 && len(old) >= len(ips) {
			status.PodIPs, status.PodIP = old, old[0].IP
			return
		}
	}
	for _, ip := range SortIPs(ips, b.HostIPs) {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(status.PodIPs) > 0 {
		status.PodIP = status.PodIPs[0].IP
	}
}

// SortIPs returns one address of each family, that of the node's primary address first.
func SortIPs(ips, hostIPs []string) []string {
	six := func(ip string) bool { return strings.Contains(ip, ":") }
	primary := len(hostIPs) > 0 && six(hostIPs[0])
	var sorted []string
	for _, family := range []bool{primary, !primary} {
		if i := slices.IndexFunc(ips, func(ip string) bool { return six(ip) == family }); i >= 0 {
			sorted = append(sorted, ips[i])
		}
	}
	return sorted
}

// maxMessages bounds the termination messages of one pod.
const maxMessages = 12 << 10

// normalize truncates times to seconds, as the API does, and termination messages to their share of maxMessages.
func normalize(pod *corev1.Pod, status *corev1.PodStatus) {
	share := maxMessages
	if n := len(pod.Spec.Containers) + len(pod.Spec.InitContainers) + len(pod.Spec.EphemeralContainers); n > 0 {
		share /= n
	}
	second := func(t *metav1.Time) { *t = t.Rfc3339Copy() }
	state := func(s *corev1.ContainerState) {
		if s.Running != nil {
			second(&s.Running.StartedAt)
		}
		if s.Terminated != nil {
			second(&s.Terminated.StartedAt)
			second(&s.Terminated.FinishedAt)
			if len(s.Terminated.Message) > share {
				s.Terminated.Message = s.Terminated.Message[:share]
			}
		}
	}
	if status.StartTime != nil {
		at := status.StartTime.Rfc3339Copy()
		status.StartTime = &at
	}
	for i := range status.Conditions {
		second(&status.Conditions[i].LastProbeTime)
		second(&status.Conditions[i].LastTransitionTime)
	}
	for _, list := range [][]corev1.ContainerStatus{status.ContainerStatuses, status.InitContainerStatuses, status.EphemeralContainerStatuses} {
		for i := range list {
			state(&list[i].State)
			state(&list[i].LastTerminationState)
		}
	}
}
