package plugins

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/resourcename"
	"skiff/internal/scheduler/snapshot"
)

// extendedResource is an extended resource a pod requests, and the device class that backs it, if any.
type extendedResource struct {
	name  corev1.ResourceName
	class *resourcev1.DeviceClass
}

// extendedDevices are the extended resources of one pod that device classes may back.
type extendedDevices struct {
	pod       *corev1.Pod
	resources []extendedResource
	// Stale is the claim of an earlier attempt. It must be deleted before the pod is scheduled.
	Stale *resourcev1.ResourceClaim
	// claims caches the claim for each set of resources that a node's allocatable does not have.
	claims map[string]*snapshot.ExtendedClaim
}

var (
	staleExtendedClaim = Refuse(DynamicResourcesName, true, "cannot schedule extended resource claim")
	resourceNotOffered = Refuse(DynamicResourcesName, true, "cannot fit resource")
)

// newExtendedDevices returns nil if no device class backs a resource the pod requests.
func newExtendedDevices(s *snapshot.Snapshot, p *snapshot.PodInfo) *extendedDevices {
	if !s.Devices.HasClassFor(p.Request.Extended) {
		return nil
	}
	e := &extendedDevices{pod: p.Pod, Stale: s.Devices.ExtendedClaimOf(p.Pod), claims: map[string]*snapshot.ExtendedClaim{}}
	for _, a := range p.Request.Extended {
		if a.Value > 0 && (resourcename.IsExtended(a.Resource) || strings.HasPrefix(string(a.Resource), resourcev1.ResourceDeviceClassPrefix)) {
			e.resources = append(e.resources, extendedResource{name: a.Resource, class: s.Devices.ClassFor(a.Resource)})
		}
	}
	return e
}

// claimOn returns the claim that the pod needs on a node; nil if the node's allocatable has all the resources.
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

// newExtendedClaim makes a claim for extended resources of a pod. Its name is not a valid one: the API server generates the real name.
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

// extendedRequests returns the device requests of a claim for extended resources, and which containers use them. Containers and
// restartable init containers have requests of their own. Other init containers end before later containers start: they use the
// devices of those and, for the rest, one request that they share.
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

// requestedOf returns how much of a resource a container requests.
func requestedOf(c *corev1.Container, name corev1.ResourceName) int64 {
	quantity := c.Resources.Requests[name]
	n, whole := quantity.AsInt64()
	if !whole {
		return 0
	}
	return n
}

// requestFor makes a device request for one container. Its name has the index of the container and that of the resource among the
// container's requests, as in upstream.
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
