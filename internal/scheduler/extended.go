package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// A device class may stand for an extended resource. Pods that ask for the resource get devices of the class on nodes that do not
// offer the resource themselves: the scheduler makes a claim for them.

// classFor is the device class that stands for a resource. Of several the newest does; every class stands for a name of its own.
func (d *deviceObjects) classFor(name corev1.ResourceName) (found *resourcev1.DeviceClass) {
	if class, own := strings.CutPrefix(string(name), resourcev1.ResourceDeviceClassPrefix); own {
		return d.classes[class]
	}
	for _, class := range d.classes {
		if ptr.Deref(class.Spec.ExtendedResourceName, "") != string(name) {
			continue
		}
		if found == nil || found.CreationTimestamp.Before(&class.CreationTimestamp) ||
			found.CreationTimestamp.Equal(&class.CreationTimestamp) && class.Name < found.Name {
			found = class
		}
	}
	return found
}

// standFor reports whether classes stand for something a pod asks.
func (d *deviceObjects) standFor(amounts []Amount) bool {
	return slices.ContainsFunc(amounts, func(a Amount) bool { return a.Value > 0 && d.classFor(a.Resource) != nil })
}

// classedResource is an extended resource a pod asks for, and the class that stands for it, if one does.
type classedResource struct {
	name  corev1.ResourceName
	class *resourcev1.DeviceClass
}

// extendedDevices is what one pod asks for by names of extended resources.
type extendedDevices struct {
	pod       *corev1.Pod
	resources []classedResource
	// stale is a claim made for the pod when it was tried before. It goes before the pod is tried again.
	stale *resourcev1.ResourceClaim
	// claims are made once for each set of resources that nodes do not offer themselves.
	claims map[string]*extendedClaim
}

// extendedClaim is a claim that stands for extended resources, and which of its requests each container uses.
type extendedClaim struct {
	claim    *resourcev1.ResourceClaim
	mappings []corev1.ContainerExtendedResourceRequest
}

var (
	refusedStaleClaim = refuse(dynamicResourcesName, true, "cannot schedule extended resource claim")
	refusedNotOffered = refuse(dynamicResourcesName, true, "cannot fit resource")
)

// extendedDevices reads what a pod asks for; nil when no class stands for any of it.
func (s *Snapshot) extendedDevices(p *PodInfo) *extendedDevices {
	if !s.devices.standFor(p.Request.Extended) {
		return nil
	}
	e := &extendedDevices{pod: p.Pod, stale: s.devices.extendedClaimOf(p.Pod), claims: map[string]*extendedClaim{}}
	for _, a := range p.Request.Extended {
		if a.Value > 0 && (extended(a.Resource) || strings.HasPrefix(string(a.Resource), resourcev1.ResourceDeviceClassPrefix)) {
			e.resources = append(e.resources, classedResource{name: a.Resource, class: s.devices.classFor(a.Resource)})
		}
	}
	return e
}

// extendedClaimOf is the claim made for a pod's extended resources, if there is one.
func (d *deviceObjects) extendedClaimOf(pod *corev1.Pod) *resourcev1.ResourceClaim {
	for _, claim := range d.claims {
		if standsForExtended(claim) && metav1.IsControlledBy(claim, pod) {
			return claim
		}
	}
	return nil
}

func standsForExtended(claim *resourcev1.ResourceClaim) bool {
	return claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true"
}

// on is the claim that the pod needs on a node; nil when the node offers everything itself.
func (e *extendedDevices) on(s *Snapshot, node int32) (*extendedClaim, *Refusal) {
	if e.stale != nil {
		return nil, refusedStaleClaim
	}
	var missing []classedResource
	key := ""
	for _, r := range e.resources {
		amount, listed := s.nodes[node].object.Status.Allocatable[r.name]
		if r.class != nil && amount.IsZero() {
			missing = append(missing, r)
			key += string(r.name) + "\x00"
		} else if !listed {
			return nil, refusedNotOffered
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
func newExtendedClaim(pod *corev1.Pod, resources []classedResource) *extendedClaim {
	requests, mappings := extendedRequests(pod, resources)
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true)}
	return &extendedClaim{mappings: mappings, claim: &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: "<extended-resources>/" + string(pod.UID), GenerateName: pod.Name + "-extended-resources-",
			Annotations: map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}, OwnerReferences: []metav1.OwnerReference{owner},
		},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: requests}},
	}}
}

// extendedRequests are the requests for resources of a pod, and who uses them. Containers that stay have requests of their own. Init
// containers are done before later containers start: they use what those will have and, for the rest, one request among them all.
func extendedRequests(pod *corev1.Pod, resources []classedResource) (requests []resourcev1.DeviceRequest, mappings []corev1.ContainerExtendedResourceRequest) {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	passes := func(i int) bool {
		policy := containers[i].RestartPolicy
		return i < len(pod.Spec.InitContainers) && (policy == nil || *policy != corev1.ContainerRestartPolicyAlways)
	}
	for _, r := range resources {
		uses := func(i int, request string) corev1.ContainerExtendedResourceRequest {
			return corev1.ContainerExtendedResourceRequest{ContainerName: containers[i].Name, ResourceName: string(r.name), RequestName: request}
		}
		own := make([]*resourcev1.DeviceRequest, len(containers))
		for i := range containers {
			if n := askedOf(&containers[i], r.name); n > 0 && !passes(i) {
				own[i] = requestFor(i, &containers[i], r, n)
				requests = append(requests, *own[i])
				mappings = append(mappings, uses(i, own[i].Name))
			}
		}
		var shared *resourcev1.DeviceRequest
		var sharing []int
		for i := range containers {
			n := askedOf(&containers[i], r.name)
			if n == 0 || !passes(i) {
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
func askedOf(c *corev1.Container, name corev1.ResourceName) int64 {
	quantity := c.Resources.Requests[name]
	n, whole := quantity.AsInt64()
	if !whole {
		return 0
	}
	return n
}

// requestFor asks for devices for one container. Its name tells the container's place and the resource's place among what it asks.
func requestFor(i int, c *corev1.Container, r classedResource, count int64) *resourcev1.DeviceRequest {
	place := 0
	for name := range c.Resources.Requests {
		if name < r.name {
			place++
		}
	}
	return &resourcev1.DeviceRequest{
		Name: fmt.Sprintf("container-%d-request-%d", i, place),
		Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: r.class.Name, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count,
		},
	}
}

// deviceCount is how many devices there are, and how many of them are taken.
type deviceCount struct{ all, taken int64 }

// countDevices tells how many devices of a class nodes have, for scores that look at resources the class stands for.
func (s *Snapshot) countDevices(class *resourcev1.DeviceClass) func(node int32) deviceCount {
	state := s.devices.allocated()
	byName := map[string]deviceCount{}
	type group struct {
		where *nodeSelection // nil is everywhere
		count deviceCount
	}
	var groups []group
	for _, slice := range s.devices.sliceList() {
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			if !s.devices.matches(class, slice.Spec.Driver, device) {
				continue
			}
			one := deviceCount{all: 1}
			if structured.IsDeviceAllocated(structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, device.Name), &state) {
				one.taken = 1
			}
			name, selector := slice.Spec.NodeName, slice.Spec.NodeSelector
			if ptr.Deref(slice.Spec.PerDeviceNodeSelection, false) {
				name, selector = device.NodeName, device.NodeSelector
			}
			switch {
			case ptr.Deref(name, "") != "":
				sum := byName[*name]
				byName[*name] = deviceCount{sum.all + one.all, sum.taken + one.taken}
			case selector != nil:
				groups = append(groups, group{where: s.selection(nil, selector), count: one})
			default:
				groups = append(groups, group{count: one})
			}
		}
	}
	return func(node int32) deviceCount {
		sum := byName[s.nodes[node].name]
		for _, g := range groups {
			if g.where == nil || g.where.matches(node) {
				sum = deviceCount{sum.all + g.count.all, sum.taken + g.count.taken}
			}
		}
		return sum
	}
}

// matches reports whether a device is of a class. A selector that fails matches nothing.
func (d *deviceObjects) matches(class *resourcev1.DeviceClass, driver string, device *resourcev1.Device) bool {
	for _, selector := range class.Spec.Selectors {
		if selector.CEL == nil {
			continue
		}
		compiled := d.expressions.GetOrCompile(selector.CEL.Expression)
		if compiled.Error != nil {
			return false
		}
		met, _, err := compiled.DeviceMatches(context.Background(), cel.Device{
			Driver: driver, AllowMultipleAllocations: device.AllowMultipleAllocations, Attributes: device.Attributes, Capacity: device.Capacity,
		})
		if err != nil || !met {
			return false
		}
	}
	return true
}
