package plugins

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/snapshot"
)

// classedResource is an extended resource a pod asks for, and the class that stands for it, if one does.
type extendedResource struct {
	name  corev1.ResourceName
	class *resourcev1.DeviceClass
}

// extendedDevices is what one pod asks for by names of extended resources.
type extendedDevices struct {
	pod       *corev1.Pod
	resources []extendedResource
	// Stale is a claim made for the pod when it was tried before. It goes before the pod is tried again.
	Stale *resourcev1.ResourceClaim
	// claims are made once for each set of resources that nodes do not offer themselves.
	claims map[string]*snapshot.ExtendedClaim
}

var (
	staleExtendedClaim = Refuse(DynamicResourcesName, true, "cannot schedule extended resource claim")
	resourceNotOffered = Refuse(DynamicResourcesName, true, "cannot fit resource")
)

// newExtendedDevices reads what a pod asks for; nil when no class stands for any of it.
func newExtendedDevices(s *snapshot.Snapshot, p *snapshot.PodInfo) *extendedDevices {
	if !s.Devices.HasClassFor(p.Request.Extended) {
		return nil
	}
	e := &extendedDevices{pod: p.Pod, Stale: s.Devices.ExtendedClaimOf(p.Pod), claims: map[string]*snapshot.ExtendedClaim{}}
	for _, a := range p.Request.Extended {
		if a.Value > 0 && (snapshot.IsExtendedResource(a.Resource) || strings.HasPrefix(string(a.Resource), resourcev1.ResourceDeviceClassPrefix)) {
			e.resources = append(e.resources, extendedResource{name: a.Resource, class: s.Devices.ClassFor(a.Resource)})
		}
	}
	return e
}

// on is the claim that the pod needs on a node; nil when the node offers everything itself.
func (e *extendedDevices) claimOn(s *snapshot.Snapshot, node int32) (*snapshot.ExtendedClaim, *Refusal) {
	if e.Stale != nil {
		return nil, staleExtendedClaim
	}
	var missing []extendedResource
	key := ""
	for _, r := range e.resources {
		amount, listed := s.NodeInfos[node].Node.Status.Allocatable[r.name]
		if r.class != nil && amount.IsZero() {
			missing = append(missing, r)
			key += string(r.name) + "\x00"
		} else if !listed {
			return nil, resourceNotOffered
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	if e.claims[key] == nil {
		e.claims[key] = newExtendedClaim(e.pod, missing)
	}
	return e.claims[key], nil
}

// newExtendedClaim makes a claim for resources of a pod. Its name is not one the API server would take: it gives the claim another.
func newExtendedClaim(pod *corev1.Pod, resources []extendedResource) *snapshot.ExtendedClaim {
	requests, mappings := extendedRequests(pod, resources)
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true)}
	return &snapshot.ExtendedClaim{Mappings: mappings, Claim: &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: "<extended-resources>/" + string(pod.UID), GenerateName: pod.Name + "-extended-resources-",
			Annotations: map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}, OwnerReferences: []metav1.OwnerReference{owner},
		},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: requests}},
	}}
}

// extendedRequests are the requests for resources of a pod, and who uses them. Containers that stay have requests of their own. Init
// containers are done before later containers start: they use what those will have and, for the rest, one request among them all.
func extendedRequests(pod *corev1.Pod, resources []extendedResource) (requests []resourcev1.DeviceRequest, mappings []corev1.ContainerExtendedResourceRequest) {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	endsEarly := func(i int) bool {
		policy := containers[i].RestartPolicy
		return i < len(pod.Spec.InitContainers) && (policy == nil || *policy != corev1.ContainerRestartPolicyAlways)
	}
	for _, r := range resources {
		uses := func(i int, request string) corev1.ContainerExtendedResourceRequest {
			return corev1.ContainerExtendedResourceRequest{ContainerName: containers[i].Name, ResourceName: string(r.name), RequestName: request}
		}
		own := make([]*resourcev1.DeviceRequest, len(containers))
		for i := range containers {
			if n := requestedOf(&containers[i], r.name); n > 0 && !endsEarly(i) {
				own[i] = requestFor(i, &containers[i], r, n)
				requests = append(requests, *own[i])
				mappings = append(mappings, uses(i, own[i].Name))
			}
		}
		var shared *resourcev1.DeviceRequest
		var sharing []int
		for i := range containers {
			n := requestedOf(&containers[i], r.name)
			if n == 0 || !endsEarly(i) {
				continue
			}
			for _, later := range own[i:] {
				if later != nil && n > 0 {
					mappings = append(mappings, uses(i, later.Name))
					n -= later.Exactly.Count
				}
			}
			if n > 0 {
				sharing = append(sharing, len(mappings))
				mappings = append(mappings, uses(i, ""))
				if shared == nil || shared.Exactly.Count < n {
					shared = requestFor(i, &containers[i], r, n)
				}
			}
		}
		for _, i := range sharing {
			mappings[i].RequestName = shared.Name
		}
		if shared != nil {
			requests = append(requests, *shared)
		}
	}
	slices.SortFunc(requests, func(a, b resourcev1.DeviceRequest) int { return strings.Compare(a.Name, b.Name) })
	return requests, mappings
}

// askedOf is how much of a resource a container asks for.
func requestedOf(c *corev1.Container, name corev1.ResourceName) int64 {
	quantity := c.Resources.Requests[name]
	n, whole := quantity.AsInt64()
	if !whole {
		return 0
	}
	return n
}

// requestFor asks for devices for one container. Its name tells the container's place and the resource's place among what it asks.
func requestFor(i int, c *corev1.Container, r extendedResource, count int64) *resourcev1.DeviceRequest {
	index := 0
	for name := range c.Resources.Requests {
		if name < r.name {
			index++
		}
	}
	return &resourcev1.DeviceRequest{
		Name: fmt.Sprintf("container-%d-request-%d", i, index),
		Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: r.class.Name, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count,
		},
	}
}
