package podspec

import (
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// QOSClass is the QoS class of a pod as its status records it. The class of a pod without one is computed.
func QOSClass(pod *corev1.Pod) corev1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	return ComputeQOSClass(pod)
}

// ComputeQOSClass is the QoS class that follows from a pod's spec: Guaranteed if every container has equal requests and
// limits, BestEffort if none has any, Burstable otherwise.
func ComputeQOSClass(pod *corev1.Pod) corev1.PodQOSClass {
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		return qosClass(pod.Spec.Resources)
	}
	class := corev1.PodQOSClass("")
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			class = joinClass(class, qosClass(&containers[i].Resources))
		}
	}
	if class == "" {
		return corev1.PodQOSBestEffort
	}
	return class
}

func qosClass(r *corev1.ResourceRequirements) corev1.PodQOSClass {
	return joinClass(resourceClass(r, corev1.ResourceCPU), resourceClass(r, corev1.ResourceMemory))
}

func resourceClass(r *corev1.ResourceRequirements, name corev1.ResourceName) corev1.PodQOSClass {
	request, limit := r.Requests[name], r.Limits[name]
	switch {
	case !request.Equal(limit):
		return corev1.PodQOSBurstable
	case request.IsZero():
		return corev1.PodQOSBestEffort
	}
	return corev1.PodQOSGuaranteed
}

// joinClass combines the classes of two parts. "" is the class of no part.
func joinClass(a, b corev1.PodQOSClass) corev1.PodQOSClass {
	if a == "" || a == b {
		return b
	}
	return corev1.PodQOSBurstable
}

// DefaultPodResources sets the defaults of the pod-level resources from those of the containers. It needs the final list
// of containers, so it runs after admission, not with the other defaults.
func DefaultPodResources(spec *corev1.PodSpec) {
	r := spec.Resources
	if r == nil || len(r.Requests) == 0 && len(r.Limits) == 0 {
		return
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: spec.Containers, InitContainers: spec.InitContainers}}
	limits := resourcehelper.AggregateContainerLimits(pod, resourcehelper.PodResourcesOptions{})
	requests := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	setResource := func(list *corev1.ResourceList, name corev1.ResourceName, from corev1.ResourceList) {
		if _, set := (*list)[name]; set || !resourcehelper.IsSupportedPodLevelResource(name) {
			return
		}
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[name] = from[name].DeepCopy()
	}
	// Huge pages cannot be overcommitted: the pod's limit is the sum of its containers' limits, unless there is a request.
	for name := range limits {
		if _, requested := r.Requests[name]; IsHugePages(name) && !requested {
			setResource(&r.Limits, name, limits)
		}
	}
	for name := range requests {
		if canOvercommit(name) {
			setResource(&r.Requests, name, requests)
		}
	}
	for name := range r.Limits {
		setResource(&r.Requests, name, r.Limits)
	}
	// The containers determine a limit only if every one of them has a limit.
	for name := range r.Requests {
		if anyContainer(spec, func(c *corev1.Container) bool { _, limited := c.Resources.Limits[name]; return !limited }) {
			continue
		}
		source := limits
		if limit, set := limits[name]; !set {
			continue
		} else if request := r.Requests[name]; request.Cmp(limit) > 0 {
			source = r.Requests
		}
		setResource(&r.Limits, name, source)
	}
}
