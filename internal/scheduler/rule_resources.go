package scheduler

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
)

const (
	nodeResourcesFitName         = "NodeResourcesFit"
	balancedAllocationName       = "NodeResourcesBalancedAllocation"
	imageLocalityName            = "ImageLocality"
	maxCustomScore               = 10
	imageMinimum           int64 = 23 * 1024 * 1024
	imageMaximum           int64 = 1000 * 1024 * 1024
)

// nodeResourcesFit keeps pods from nodes that have not enough of what they ask, and scores what is left or taken.
type nodeResourcesFit struct {
	ignored       []string
	ignoredGroups []string
	strategy      configv1.ScoringStrategyType
	resources     []configv1.ResourceSpec
	shape         []configv1.UtilizationShapePoint
}

func newNodeResourcesFit(args *configv1.NodeResourcesFitArgs) Rule {
	r := &nodeResourcesFit{ignored: args.IgnoredResources, ignoredGroups: args.IgnoredResourceGroups, strategy: configv1.LeastAllocated}
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

func (*nodeResourcesFit) Name() string { return nodeResourcesFitName }

// want is an amount of one resource, by the number of its columns.
type want struct {
	resource int
	name     corev1.ResourceName
	amount   int64
	// devices are what nodes give that do not offer the resource itself; DynamicResources looks for them.
	devices bool
}

// missing reports whether a node has not enough left.
func (w *want) missing(s *Snapshot, node int32) bool {
	has := s.allocatable[w.resource][node]
	return w.amount > has-s.requested[w.resource][node] && !(w.devices && has == 0)
}

// wants are what a pod asks for, in the order in which refusals name them.
func (r *nodeResourcesFit) wants(s *Snapshot, p *PodInfo) []want {
	q := &p.Request
	var all []want
	for _, w := range []want{
		{resource: cpu, name: corev1.ResourceCPU, amount: q.MilliCPU}, {resource: memory, name: corev1.ResourceMemory, amount: q.Memory},
		{resource: storage, name: corev1.ResourceEphemeralStorage, amount: q.Storage},
	} {
		if w.amount > 0 {
			all = append(all, w)
		}
	}
	for _, a := range q.Extended {
		if extended(a.Resource) {
			group, _, _ := strings.Cut(string(a.Resource), "/")
			if slices.Contains(r.ignored, string(a.Resource)) || slices.Contains(r.ignoredGroups, group) {
				continue
			}
		}
		if a.Value > 0 {
			all = append(all, want{
				resource: s.resource(a.Resource), name: a.Resource, amount: a.Value, devices: s.devices.classFor(a.Resource) != nil,
			})
		}
	}
	return all
}

func (r *nodeResourcesFit) Filter(s *Snapshot, p *PodInfo) (Filter, *Refusal) {
	wants := r.wants(s, p)
	// Refusals are made once for each combination of what is missing.
	known := map[string]*Refusal{}
	volatile := slices.ContainsFunc(wants, func(w want) bool { return w.devices })
	return Filter{Volatile: volatile, Check: func(node int32) *Refusal {
		if s.requested[pods][node]+1 <= s.allocatable[pods][node] {
			fits := true
			for i := range wants {
				if wants[i].missing(s, node) {
					fits = false
					break
				}
			}
			if fits {
				return nil
			}
		}
		return r.refusal(s, node, wants, known)
	}}, nil
}

func (r *nodeResourcesFit) refusal(s *Snapshot, node int32, wants []want, known map[string]*Refusal) *Refusal {
	var buffer [16]byte
	missing := buffer[:0]
	unresolvable := byte(0)
	if s.requested[pods][node]+1 > s.allocatable[pods][node] {
		missing = append(missing, 0)
	}
	for i := range wants {
		w := &wants[i]
		if w.missing(s, node) {
			missing = append(missing, byte(i+1))
			if w.amount > s.allocatable[w.resource][node] {
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
			reasons = append(reasons, "Insufficient "+string(wants[i-1].name))
		}
	}
	refusal := refuse(nodeResourcesFitName, unresolvable == 1, reasons...)
	known[string(missing)] = refusal
	return refusal
}

// scored is one resource in a score.
type scored struct {
	resource int
	weight   int64
	// asked is what the pod adds; used is what scores take as used already.
	asked int64
	used  func(node int32) int64
	// devices is set when a device class stands for the resource: its devices count on nodes that do not offer the resource itself.
	devices func(node int32) deviceCount
}

// on is how much of the resource a node has, and how much of that is used.
func (x *scored) on(s *Snapshot, node int32) (capacity, used int64) {
	if capacity = s.allocatable[x.resource][node]; capacity == 0 && x.devices != nil {
		count := x.devices(node)
		return count.all, count.taken
	}
	return capacity, x.used(node)
}

// countsDevices reports whether scores change as devices do, and not only as nodes and their pods do.
func countsDevices(resources []scored) bool {
	return slices.ContainsFunc(resources, func(x scored) bool { return x.devices != nil })
}

// scoredResources are the resources a score looks at. assume makes containers without requests count.
func scoredResources(s *Snapshot, p *PodInfo, resources []configv1.ResourceSpec, assume bool) []scored {
	var all []scored
	for _, spec := range resources {
		name := corev1.ResourceName(spec.Name)
		x := scored{weight: spec.Weight}
		switch name {
		case corev1.ResourceCPU:
			x.resource, x.asked = cpu, p.Request.MilliCPU
			if assume {
				x.asked = p.Request.AssumedMilliCPU
			}
		case corev1.ResourceMemory:
			x.resource, x.asked = memory, p.Request.Memory
			if assume {
				x.asked = p.Request.AssumedMemory
			}
		case corev1.ResourceEphemeralStorage:
			x.resource, x.asked = storage, p.Request.Storage
		default:
			i := slices.IndexFunc(p.Request.Extended, func(a Amount) bool { return a.Resource == name })
			if i < 0 || p.Request.Extended[i].Value == 0 {
				continue // a resource the pod does not ask for says nothing
			}
			x.resource, x.asked = s.resource(name), p.Request.Extended[i].Value
			if class := s.devices.classFor(name); class != nil {
				x.devices = s.countDevices(class)
			}
		}
		r := x.resource
		if assume && r <= memory {
			x.used = func(node int32) int64 { return s.assumed[r][node] }
		} else {
			x.used = func(node int32) int64 { return s.requested[r][node] }
		}
		all = append(all, x)
	}
	return all
}

func (r *nodeResourcesFit) Score(s *Snapshot, p *PodInfo) Scorer {
	// As in upstream, what a pod asks for as a whole decides where it fits, but not which of those nodes is best.
	resources := scoredResources(s, p.parts(), r.resources, true)
	if r.strategy == configv1.RequestedToCapacityRatio {
		return Scorer{Volatile: countsDevices(resources), Of: func(node int32) int64 { return ratioScore(s, resources, r.shape, node) }}
	}
	most := r.strategy == configv1.MostAllocated
	return Scorer{Volatile: countsDevices(resources), Of: func(node int32) int64 {
		var sum, weights int64
		for i := range resources {
			x := &resources[i]
			capacity, used := x.on(s, node)
			if capacity == 0 {
				continue
			}
			used = min(used+x.asked, capacity)
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

func ratioScore(s *Snapshot, resources []scored, shape []configv1.UtilizationShapePoint, node int32) int64 {
	var sum, weights int64
	for i := range resources {
		x := &resources[i]
		capacity, used := x.on(s, node)
		if capacity == 0 {
			continue
		}
		utilization := int64(100)
		if used += x.asked; used <= capacity {
			utilization = used * 100 / capacity
		}
		if score := brokenLine(shape, utilization); score > 0 {
			sum += x.weight * score
			weights += x.weight
		}
	}
	if weights == 0 {
		return 0
	}
	return int64(math.Round(float64(sum) / float64(weights)))
}

// brokenLine is the score of a utilization, on straight lines between the points of a shape.
func brokenLine(shape []configv1.UtilizationShapePoint, utilization int64) int64 {
	const factor = MaxScore / maxCustomScore
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

func (r *nodeResourcesFit) Hints() []Hint {
	return []Hint{
		{Resource: AssignedPod, Action: Delete, Helps: func(_ *Snapshot, _ *corev1.Pod, old, _ any) bool { return hasPlace(asPod(old)) }},
		{Resource: AssignedPod, Action: UpdatePodScaleDown, Helps: freesSomeOf},
		{Resource: TargetPod, Action: UpdatePodScaleDown},
		{Resource: NodeResource, Action: Add | UpdateNodeAllocatable, Helps: r.nodeHelps},
		{Resource: DeviceClassResource, Action: Add | Update, Helps: classHelps},
	}
}

// freesSomeOf reports whether a pod on a node now asks for less of something another pod wants.
func freesSomeOf(_ *Snapshot, pod *corev1.Pod, old, now any) bool {
	if asPod(now).Spec.NodeName == "" {
		return false
	}
	before, after, wanted := requestOf(asPod(old), true), requestOf(asPod(now), true), requestOf(pod, false)
	if wanted.MilliCPU > 0 && before.MilliCPU > after.MilliCPU || wanted.Memory > 0 && before.Memory > after.Memory ||
		wanted.Storage > 0 && before.Storage > after.Storage {
		return true
	}
	amount := func(r *Request, name corev1.ResourceName) int64 {
		for _, a := range r.Extended {
			if a.Resource == name {
				return a.Value
			}
		}
		return 0
	}
	return slices.ContainsFunc(wanted.Extended, func(a Amount) bool { return amount(&before, a.Resource) > amount(&after, a.Resource) })
}

// nodeHelps reports whether a node could take the pod if it were empty, and offers more than before.
func (r *nodeResourcesFit) nodeHelps(s *Snapshot, pod *corev1.Pod, old, now any) bool {
	info, err := NewPodInfo(pod)
	if err != nil {
		return true
	}
	one := NewSnapshot()
	if s != nil {
		one.devices.classes = s.devices.classes
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
		is, was := asNode(now).Status.Allocatable[name], before.Status.Allocatable[name]
		return is.Cmp(was) > 0
	}
	return more(corev1.ResourcePods) || slices.ContainsFunc(r.wants(one, info), func(w want) bool {
		return w.devices && one.allocatable[w.resource][0] == 0 || more(w.name)
	})
}

// classHelps reports whether a device class has come to stand for something the pod asks.
func classHelps(_ *Snapshot, pod *corev1.Pod, old, now any) bool {
	before, had := old.(*resourcev1.DeviceClass)
	class := now.(*resourcev1.DeviceClass)
	name := ptr.Deref(class.Spec.ExtendedResourceName, "")
	if had && ptr.Deref(before.Spec.ExtendedResourceName, "") == name {
		return false
	}
	wanted := requestOf(pod, false)
	return slices.ContainsFunc(wanted.Extended, func(a Amount) bool {
		return string(a.Resource) == name || !had && string(a.Resource) == resourcev1.ResourceDeviceClassPrefix+class.Name
	})
}

// balancedAllocation prefers nodes whose resources are used evenly once the pod is there.
type balancedAllocation struct {
	resources []configv1.ResourceSpec
}

func newBalancedAllocation(args *configv1.NodeResourcesBalancedAllocationArgs) Rule {
	return &balancedAllocation{resources: withDefaultResources(args.Resources)}
}

func (*balancedAllocation) Name() string { return balancedAllocationName }

func (r *balancedAllocation) Score(s *Snapshot, p *PodInfo) Scorer {
	resources := scoredResources(s, p, r.resources, false)
	if !slices.ContainsFunc(resources, func(x scored) bool { return x.asked > 0 }) {
		return Scorer{} // such pods would all gather on the best balanced node
	}
	return Scorer{Volatile: countsDevices(resources), Of: func(node int32) int64 {
		with, without := evenness(s, resources, node, true), evenness(s, resources, node, false)
		return MaxScore/2 + (MaxScore/2+with-without)/2
	}}
}

// evenness is MaxScore less the standard deviation of the used shares of a node's resources.
func evenness(s *Snapshot, resources []scored, node int32, withPod bool) int64 {
	var buffer [8]float64
	shares, total := buffer[:0], 0.0
	for i := range resources {
		x := &resources[i]
		capacity, used := x.on(s, node)
		if capacity == 0 {
			continue
		}
		if withPod {
			used += x.asked
		}
		share := min(float64(used)/float64(capacity), 1)
		shares = append(shares, share)
		total += share
	}
	deviation := 0.0
	if n := len(shares); n == 2 {
		deviation = math.Abs((shares[0] - shares[1]) / 2)
	} else if n > 2 {
		mean, sum := total/float64(n), 0.0
		for _, share := range shares {
			sum += (share - mean) * (share - mean)
		}
		deviation = math.Sqrt(sum / float64(n))
	}
	return int64((1 - deviation) * MaxScore)
}

// imageLocality prefers nodes that hold the pod's images, more so the larger and the more widespread they are.
type imageLocality struct{}

func (imageLocality) Name() string { return imageLocalityName }

// imagesOfPod are the images a pod needs, one entry for each use.
func imagesOfPod(pod *corev1.Pod) (names []string) {
	for i := range pod.Spec.InitContainers {
		names = append(names, normalImage(pod.Spec.InitContainers[i].Image))
	}
	for i := range pod.Spec.Containers {
		names = append(names, normalImage(pod.Spec.Containers[i].Image))
	}
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].Image; v != nil {
			names = append(names, normalImage(v.Reference))
		}
	}
	return names
}

func (imageLocality) Score(s *Snapshot, p *PodInfo) Scorer {
	names := imagesOfPod(p.Pod)
	if len(names) == 0 {
		return Scorer{}
	}
	most := imageMaximum * int64(len(names))
	// Mostly no node holds any of them; that is found out once, not node by node.
	var version uint64
	known := false
	return Scorer{Of: func(node int32) int64 {
		if version != s.imagesVersion {
			version = s.imagesVersion
			known = slices.ContainsFunc(names, func(name string) bool { return s.images[name] != nil })
		}
		if !known {
			return 0
		}
		held := s.nodes[node].images
		var sum int64
		for _, name := range names {
			if _, has := held[name]; has {
				i := s.images[name]
				sum += int64(float64(i.size) * (float64(i.nodes) / float64(s.count)))
			}
		}
		sum = min(max(sum, imageMinimum), most)
		return MaxScore * (sum - imageMinimum) / (most - imageMinimum)
	}}
}

// imagesSeen tells a table when the worth of its pod's images has changed on nodes that did not change themselves.
type imagesSeen struct {
	names    []string
	versions []uint64
	nodes    int
}

func (s *Snapshot) imagesOf(p *PodInfo) imagesSeen {
	x := imagesSeen{names: imagesOfPod(p.Pod)}
	x.versions = make([]uint64, len(x.names))
	x.refresh(s)
	return x
}

func (x *imagesSeen) refresh(s *Snapshot) {
	x.nodes = s.count
	for i, name := range x.names {
		x.versions[i] = s.imageVersion(name)
	}
}

func (s *Snapshot) imageVersion(name string) uint64 {
	if i := s.images[name]; i != nil {
		return i.version
	}
	return 0
}

func (x *imagesSeen) current(s *Snapshot) bool {
	held := false
	for i, name := range x.names {
		version := s.imageVersion(name)
		if version != x.versions[i] {
			return false
		}
		held = held || version != 0
	}
	return !held || x.nodes == s.count
}
