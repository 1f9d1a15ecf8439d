package kubelet

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"skiff/internal/api/podspec"
	"skiff/internal/container"
	"skiff/internal/kubelet/cpus"
	"skiff/internal/kubelet/cri"
)

// setCPUsAndMemory sets the CPUs and the NUMA nodes that a container may use.
func (k *Kubelet) setCPUsAndMemory(s *cri.ContainerSettings, pod *corev1.Pod, c *corev1.Container) {
	if k.CPUs != nil {
		s.CPUs = k.CPUs.Of(pod.UID, c.Name)
	}
	if k.Memory != nil {
		s.NUMANodes = k.Memory.NUMANodes(pod.UID, c.Name).String()
	}
}

// created records that a container was created, and is about to start.
func (k *Kubelet) created(pod *corev1.Pod, c *corev1.Container, id string, set cpuset.CPUSet) {
	if k.CPUs != nil {
		k.CPUs.Applied(cpus.Container{UID: pod.UID, Name: c.Name, ID: id}, set)
	}
	if k.Memory != nil {
		k.Memory.Starting(pod, c)
	}
}

// hostForContainer returns the properties of the host for a container. The CPU quota of one with exclusive CPUs is not limited: the quota would
// throttle it although nobody else can use its CPUs.
func (k *Kubelet) hostForContainer(uid types.UID, name string) cri.Host {
	h := k.Host
	h.UnlimitedCPUQuota = k.CPUs != nil && !k.CPUs.Exclusive(uid, name).IsEmpty()
	return h
}

// hostForPod is hostForContainer for a pod's sandbox.
func (k *Kubelet) hostForPod(uid types.UID) cri.Host {
	h := k.Host
	h.UnlimitedCPUQuota = k.CPUs != nil && k.CPUs.HasExclusive(uid)
	return h
}

// assignedInfeasible says why the requests of a pod cannot be changed while CPUs or memory are assigned to its containers; empty: they may.
func (k *Kubelet) assignedInfeasible(pod *corev1.Pod, allocated map[string]*corev1.Container) string {
	if podspec.QOSClass(pod) != corev1.PodQOSGuaranteed {
		return ""
	}
	changes := func(name corev1.ResourceName) bool {
		for kind, c := range container.All(&pod.Spec) {
			before := allocated[c.Name]
			if kind == container.Ephemeral || before == nil {
				continue
			}
			now, old := c.Resources.Requests[name], before.Resources.Requests[name]
			if now.Cmp(old) != 0 {
				return true
			}
		}
		return false
	}
	if k.StaticCPUs && changes(corev1.ResourceCPU) {
		return fmt.Sprintf("Resize is infeasible for Guaranteed Pods alongside CPU Manager policy %q", cpus.Static)
	}
	if k.StaticMemory && changes(corev1.ResourceMemory) {
		return fmt.Sprintf("Resize is infeasible for Guaranteed Pods alongside Memory Manager policy %q", kubeletconfig.StaticMemoryManagerPolicy)
	}
	return ""
}
