package plugins

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/resourcename"
	"skiff/internal/scheduler/snapshot"
)

// MaxCustomScore is the highest score of a point of a utilization shape.
const MaxCustomScore = 10

// NodeResourcesFit filters nodes with insufficient free resources, and scores them by a strategy: LeastAllocated, MostAllocated or
// RequestedToCapacityRatio.
type NodeResourcesFit struct {
	ignored       []string
	ignoredGroups []string
	strategy      configv1.ScoringStrategyType
	resources     []configv1.ResourceSpec
	shape         []configv1.UtilizationShapePoint
}

func newNodeResourcesFit(args *configv1.NodeResourcesFitArgs) Plugin {
	r := &NodeResourcesFit{ignored: args.IgnoredResources, ignoredGroups: args.IgnoredResourceGroups, strategy: configv1.LeastAllocated}
	if st := args.ScoringStrategy; st != nil {
		r.strategy, r.resources = st.Type, st.Resources
		if st.RequestedToCapacityRatio != nil {
			r.shape = st.RequestedToCapacityRatio.Shape
		}
	}
	r.resources = withDefaultResources(r.resources)
	return r
}

func withDefaultResources(resources []configv1.ResourceSpec) []configv1.ResourceSpec {
	if len(resources) == 0 {
		return []configv1.ResourceSpec{{Name: "cpu", Weight: 1}, {Name: "memory", Weight: 1}}
	}
	resources = slices.Clone(resources)
	for i := range resources {
		if resources[i].Weight == 0 {
			resources[i].Weight = 1
		}
	}
	return resources
}

func (*NodeResourcesFit) Name() string { return NodeResourcesFitName }

// ResourceRequest is an amount of one resource, by the number of its columns.
type ResourceRequest struct {
	Resource int
	Name     corev1.ResourceName
	Amount   int64
	// devices is set if a device class backs the resource: on nodes whose allocatable does not have it, DynamicResources allocates devices.
	devices bool
}

// Exceeds reports whether the request exceeds the node's free resources.
func (w *ResourceRequest) Exceeds(s *snapshot.Snapshot, node int32) bool {
	has := s.Allocatable[w.Resource][node]
	return w.Amount > has-s.Requested[w.Resource][node] && !(w.devices && has == 0)
}

// Requests returns a pod's requests that are not ignored, in the order of the reasons in refusals.
func (r *NodeResourcesFit) Requests(s *snapshot.Snapshot, p *snapshot.PodInfo) []ResourceRequest {
	q := &p.Request
	var all []ResourceRequest
	for _, w := range []ResourceRequest{
		{Resource: snapshot.ResourceCPU, Name: corev1.ResourceCPU, Amount: q.MilliCPU}, {Resource: snapshot.ResourceMemory, Name: corev1.ResourceMemory, Amount: q.Memory},
		{Resource: snapshot.ResourceEphemeralStorage, Name: corev1.ResourceEphemeralStorage, Amount: q.Storage},
	} {
		if w.Amount > 0 {
			all = append(all, w)
		}
	}
	for _, a := range q.Extended {
		if resourcename.IsExtended(a.Resource) {
			group, _, _ := strings.Cut(string(a.Resource), "/")
			if slices.Contains(r.ignored, string(a.Resource)) || slices.Contains(r.ignoredGroups, group) {
				continue
			}
		}
		if a.Value > 0 {
			all = append(all, ResourceRequest{
				Resource: s.Resource(a.Resource), Name: a.Resource, Amount: a.Value, devices: s.Devices.ClassFor(a.Resource) != nil,
			})
		}
	}
	return all
}

func (r *NodeResourcesFit) Filter(s *snapshot.Snapshot, p *snapshot.PodInfo) (Filter, *Refusal) {
	requests := r.Requests(s, p)
	// Refusals are cached by the set of insufficient resources.
	known := map[string]*Refusal{}
	volatile := slices.ContainsFunc(requests, func(w ResourceRequest) bool { return w.devices })
	return Filter{Volatile: volatile, Check: func(node int32) *Refusal {
		if s.Requested[snapshot.ResourcePods][node]+1 <= s.Allocatable[snapshot.ResourcePods][node] {
			fits := true
			for i := range requests {
				if requests[i].Exceeds(s, node) {
					fits = false
					break
				}
			}
			if fits {
				return nil
			}
		}
		return r.refusal(s, node, requests, known)
	}}, nil
}

func (r *NodeResourcesFit) refusal(s *snapshot.Snapshot, node int32, requests []ResourceRequest, known map[string]*Refusal) *Refusal {
	var buffer [16]byte
	missing := buffer[:0]
	unresolvable := byte(0)
	if s.Requested[snapshot.ResourcePods][node]+1 > s.Allocatable[snapshot.ResourcePods][node] {
		missing = append(missing, 0)
	}
	for i := range requests {
		w := &requests[i]
		if w.Exceeds(s, node) {
			missing = append(missing, byte(i+1))
			if w.Amount > s.Allocatable[w.Resource][node] {
				unresolvable = 1
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	missing = append(missing, unresolvable)
	if known := known[string(missing)]; known != nil {
		return known
	}
	var reasons []string
	for _, i := range missing[:len(missing)-1] {
		if i == 0 {
			reasons = append(reasons, "Too many pods")
		} else {
			reasons = append(reasons, "Insufficient "+string(requests[i-1].Name))
		}
	}
	refusal := Refuse(NodeResourcesFitName, unresolvable == 1, reasons...)
	known[string(missing)] = refusal
	return refusal
}

// scoredResource is one resource in a score.
type scoredResource struct {
	resource int
	weight   int64
	// requested is the pod's request; used is what pods on the node request.
	requested int64
	used      func(node int32) int64
	// devices is set if a device class backs the resource: it counts devices on nodes whose allocatable does not have the resource.
	devices func(node int32) snapshot.DeviceCount
}

// usage returns a node's capacity of the resource, and how much of it is used.
func (x *scoredResource) usage(s *snapshot.Snapshot, node int32) (capacity, used int64) {
	if capacity = s.Allocatable[x.resource][node]; capacity == 0 && x.devices != nil {
		count := x.devices(node)
		return count.Total, count.Allocated
	}
	return capacity, x.used(node)
}

// countsDevices reports whether scores depend on devices, and not only on nodes and their pods.
func countsDevices(resources []scoredResource) bool {
	return slices.ContainsFunc(resources, func(x scoredResource) bool { return x.devices != nil })
}

// scoredResources returns the resources to score by. nonZero applies default requests to containers without any.
func scoredResources(s *snapshot.Snapshot, p *snapshot.PodInfo, resources []configv1.ResourceSpec, nonZero bool) []scoredResource {
	var all []scoredResource
	for _, spec := range resources {
		name := corev1.ResourceName(spec.Name)
		x := scoredResource{weight: spec.Weight}
		switch name {
		case corev1.ResourceCPU:
			x.resource, x.requested = snapshot.ResourceCPU, p.Request.MilliCPU
			if nonZero {
				x.requested = p.Request.NonZeroMilliCPU
			}
		case corev1.ResourceMemory:
			x.resource, x.requested = snapshot.ResourceMemory, p.Request.Memory
			if nonZero {
				x.requested = p.Request.NonZeroMemory
			}
		case corev1.ResourceEphemeralStorage:
			x.resource, x.requested = snapshot.ResourceEphemeralStorage, p.Request.Storage
		default:
			i := slices.IndexFunc(p.Request.Extended, func(a snapshot.Amount) bool { return a.Resource == name })
			if i < 0 || p.Request.Extended[i].Value == 0 {
				continue // a resource that the pod does not request is not scored
			}
			x.resource, x.requested = s.Resource(name), p.Request.Extended[i].Value
			if class := s.Devices.ClassFor(name); class != nil {
				x.devices = s.CountDevices(class)
			}
		}
		r := x.resource
		if nonZero && r <= snapshot.ResourceMemory {
			x.used = func(node int32) int64 { return s.NonZeroRequested[r][node] }
		} else {
			x.used = func(node int32) int64 { return s.Requested[r][node] }
		}
		all = append(all, x)
	}
	return all
}

func (r *NodeResourcesFit) Score(s *snapshot.Snapshot, p *snapshot.PodInfo) Scorer {
	// As in upstream, pod-level resources are used for filtering but not for scoring.
	resources := scoredResources(s, p.WithoutPodLevelResources(), r.resources, true)
	if r.strategy == configv1.RequestedToCapacityRatio {
		return Scorer{Volatile: countsDevices(resources), Score: func(node int32) int64 { return ratioScore(s, resources, r.shape, node) }}
	}
	most := r.strategy == configv1.MostAllocated
	return Scorer{Volatile: countsDevices(resources), Score: func(node int32) int64 {
		var sum, weights int64
		for i := range resources {
			x := &resources[i]
			capacity, used := x.usage(s, node)
			if capacity == 0 {
				continue
			}
			used = min(used+x.requested, capacity)
			if most {
				sum += x.weight * (used * MaxScore / capacity)
			} else {
				sum += x.weight * ((capacity - used) * MaxScore / capacity)
			}
			weights += x.weight
		}
		if weights == 0 {
			return 0
		}
		return sum / weights
	}}
}

func ratioScore(s *snapshot.Snapshot, resources []scoredResource, shape []configv1.UtilizationShapePoint, node int32) int64 {
	var sum, weights int64
	for i := range resources {
		x := &resources[i]
		capacity, used := x.usage(s, node)
		if capacity == 0 {
			continue
		}
		utilization := int64(100)
		if used += x.requested; used <= capacity {
			utilization = used * 100 / capacity
		}
		if score := brokenLinear(shape, utilization); score > 0 {
			sum += x.weight * score
			weights += x.weight
		}
	}
	if weights == 0 {
		return 0
	}
	return int64(math.Round(float64(sum) / float64(weights)))
}

// brokenLinear returns the score of a utilization by linear interpolation between the points of a shape.
func brokenLinear(shape []configv1.UtilizationShapePoint, utilization int64) int64 {
	const factor = MaxScore / MaxCustomScore
	for i := range shape {
		x, y := int64(shape[i].Utilization), int64(shape[i].Score)*factor
		if utilization > x {
			continue
		}
		if i == 0 {
			return y
		}
		x0, y0 := int64(shape[i-1].Utilization), int64(shape[i-1].Score)*factor
		return y0 + (y-y0)*(utilization-x0)/(x-x0)
	}
	return int64(shape[len(shape)-1].Score) * factor
}

func (r *NodeResourcesFit) Hints() []QueueingHint {
	return []QueueingHint{
		{Resource: AssignedPod, Action: Delete, Helps: func(_ *snapshot.Snapshot, _ *corev1.Pod, old, _ any) bool { return occupiesNode(asPod(old)) }},
		{Resource: AssignedPod, Action: UpdatePodScaleDown, Helps: scaleDownHint},
		{Resource: TargetPod, Action: UpdatePodScaleDown},
		{Resource: NodeResource, Action: Add | UpdateNodeAllocatable, Helps: r.nodeHelps},
		{Resource: DeviceClassResource, Action: Add | Update, Helps: deviceClassHint},
	}
}

// scaleDownHint reports whether a pod on a node now requests less of a resource that the unschedulable pod requests.
func scaleDownHint(_ *snapshot.Snapshot, pod *corev1.Pod, old, now any) bool {
	if asPod(now).Spec.NodeName == "" {
		return false
	}
	before, after, wanted := snapshot.PodRequests(asPod(old), true), snapshot.PodRequests(asPod(now), true), snapshot.PodRequests(pod, false)
	if wanted.MilliCPU > 0 && before.MilliCPU > after.MilliCPU || wanted.Memory > 0 && before.Memory > after.Memory ||
		wanted.Storage > 0 && before.Storage > after.Storage {
		return true
	}
	amount := func(r *snapshot.Request, name corev1.ResourceName) int64 {
		for _, a := range r.Extended {
			if a.Resource == name {
				return a.Value
			}
		}
		return 0
	}
	return slices.ContainsFunc(wanted.Extended, func(a snapshot.Amount) bool { return amount(&before, a.Resource) > amount(&after, a.Resource) })
}

// nodeHelps reports whether the pod would fit on the node if it were empty, and the node's allocatable has grown.
func (r *NodeResourcesFit) nodeHelps(s *snapshot.Snapshot, pod *corev1.Pod, old, now any) bool {
	info, err := snapshot.NewPodInfo(pod)
	if err != nil {
		return true
	}
	one := snapshot.NewSnapshot()
	if s != nil {
		one.Devices.Classes = s.Devices.Classes
	}
	one.SetNode(asNode(now))
	f, _ := r.Filter(one, info)
	if refusal := f.Check(0); refusal != nil {
		return false
	}
	before := asNode(old)
	if before == nil {
		return true
	}
	more := func(name corev1.ResourceName) bool {
		isNow, was := asNode(now).Status.Allocatable[name], before.Status.Allocatable[name]
		return isNow.Cmp(was) > 0
	}
	return more(corev1.ResourcePods) || slices.ContainsFunc(r.Requests(one, info), func(w ResourceRequest) bool {
		return w.devices && one.Allocatable[w.Resource][0] == 0 || more(w.Name)
	})
}

// deviceClassHint reports whether a device class now backs an extended resource that the pod requests.
func deviceClassHint(_ *snapshot.Snapshot, pod *corev1.Pod, old, now any) bool {
	before, had := old.(*resourcev1.DeviceClass)
	class := now.(*resourcev1.DeviceClass)
	name := ptr.Deref(class.Spec.ExtendedResourceName, "")
	if had && ptr.Deref(before.Spec.ExtendedResourceName, "") == name {
		return false
	}
	wanted := snapshot.PodRequests(pod, false)
	return slices.ContainsFunc(wanted.Extended, func(a snapshot.Amount) bool {
		return string(a.Resource) == name || !had && string(a.Resource) == resourcev1.ResourceDeviceClassPrefix+class.Name
	})
}
