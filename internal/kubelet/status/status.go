// Package status says how a pod is, and tells the API.
//
// Of is pure: from a pod's spec, what the runtime reports and what was said before, it makes the pod's whole status, with
// upstream's reasons and messages. Writer sends statuses, each only when it differs from what the API has, never lets a pod that
// has ended come back to life, and deletes a pod from the API once everything about it is gone from the node.
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

// Reason is why a container does not run, as its state shows it.
type Reason struct {
	Reason, Message string
}

// Observed is everything a status is made from besides the pod itself.
type Observed struct {
	Runtime *cri.Pod
	// RuntimeName stands before container ids: containerd://…
	RuntimeName string
	// Old is the status said last, or the API's when none was said yet.
	Old *corev1.PodStatus
	// Failed has, by container, why it could not be started last time.
	Failed map[string]Reason
	// Started and Ready have the results of probes for a container; a container without the probe is started, and ready, as soon
	// as it runs. nil means that there are no probes.
	Started, Ready func(c *corev1.Container, id string) bool
	// HostIPs are the node's addresses, the primary one first.
	HostIPs []string
	// Ended says that all containers have stopped for good, whatever the restart policies say.
	Ended bool
	// Evicted, if set, makes the pod failed with its reason and message.
	Evicted *Reason
	// Resize has the conditions of a resize under way.
	Resize []corev1.PodCondition
	// Actuated has, by container, the resources as they were last applied. The runtime's own report goes before.
	Actuated map[string]corev1.ResourceRequirements
	// Devices tells how the devices of a container are; nil where there are none.
	Devices func(container string) []corev1.ResourceStatus
	// PodResources are the resources of the pod as a whole, for the status.
	PodResources *corev1.ResourceRequirements
	PodRequests  corev1.ResourceList
	// RecursiveReadOnly says that the runtime can make mounts below a read-only mount read-only too.
	RecursiveReadOnly bool
	QOSClass          corev1.PodQOSClass
	Now               time.Time
}

// Static reports whether a pod comes from a file of this node and not from the API.
func Static(pod *corev1.Pod) bool {
	source := pod.Annotations["kubernetes.io/config.source"]
	return source != "" && source != "api"
}

// Of makes the status of a pod. The pod's spec has the resources as they are allocated.
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
		status.Phase = pod.Status.Phase // the API has said it: it cannot be taken back
	}
	if podstate.IsPhaseTerminal(status.Phase) && status.PodIP == "" {
		// The runtime forgets the addresses of a sandbox that has stopped; the status does not.
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

// anyRegularStarted reports whether a regular container has been started in the sandbox there is now: then all init containers
// are done, whether or not the runtime still knows them.
func anyRegularStarted(pod *corev1.Pod, seen *cri.Pod) bool {
	for i := range pod.Spec.Containers {
		if c := seen.Active(pod.Spec.Containers[i].Name); c != nil && (c.State == cri.Running || c.State == cri.Exited) {
			return true
		}
	}
	return false
}

// addresses fills in those of pod and node, the primary family first.
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

// SortIPs picks one address of each family, that of the node's primary address first.
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

// normalize cuts what the API would cut: times to seconds, messages to a share of what a pod may say.
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
