package snapshot

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// DeviceObjects holds the objects of dynamic resource allocation: claims, slices, classes and taint rules.
type DeviceObjects struct {
	Claims     map[string]*resourcev1.ResourceClaim // by namespace/name
	slices     map[string]*resourcev1.ResourceSlice
	Classes    map[string]*resourcev1.DeviceClass
	taintRules map[string]*resourcev1.DeviceTaintRule
	// Assumed holds the claims that the scheduler has allocated and that have not been observed from the API server yet. It is exported
	// for tests.
	Assumed     map[string]*assumedClaim
	expressions *cel.Cache
}

// assumedClaim is a claim with its assumed allocation. Once written, it is the API server's response to the write, and is kept until the
// watch delivers that version.
type assumedClaim struct {
	claim   *resourcev1.ResourceClaim
	written bool
}

// deviceFeatures are the features enabled in upstream's allocator.
var deviceFeatures = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, ConsumableCapacity: true, FractionalCapacityRange: true,
	DeviceBindingAndStatus: true,
}

// NewDeviceObjects returns an empty set. Only NewSnapshot and tests use it.
func NewDeviceObjects() DeviceObjects {
	return DeviceObjects{
		Claims: map[string]*resourcev1.ResourceClaim{}, slices: map[string]*resourcev1.ResourceSlice{}, Classes: map[string]*resourcev1.DeviceClass{}, taintRules: map[string]*resourcev1.DeviceTaintRule{},
		Assumed: map[string]*assumedClaim{}, expressions: cel.NewCache(100, cel.Features{EnableConsumableCapacity: true}),
	}
}

// SetObject adds or updates an object. Other kinds are ignored.
func (d *DeviceObjects) SetObject(object metav1.Object) {
	switch o := object.(type) {
	case *resourcev1.ResourceClaim:
		d.Claims[ObjectKey(o)] = o
		if a := d.Assumed[ObjectKey(o)]; a != nil && (a.claim.UID != o.UID || a.written && !isOlder(o, a.claim)) {
			delete(d.Assumed, ObjectKey(o))
		}
	case *resourcev1.ResourceSlice:
		d.slices[o.Name] = o
	case *resourcev1.DeviceClass:
		d.Classes[o.Name] = o
	case *resourcev1.DeviceTaintRule:
		d.taintRules[o.Name] = o
	}
}

// DeleteObject removes an object.
func (d *DeviceObjects) DeleteObject(object metav1.Object) {
	switch o := object.(type) {
	case *resourcev1.ResourceClaim:
		delete(d.Claims, ObjectKey(o))
		delete(d.Assumed, ObjectKey(o))
	case *resourcev1.ResourceSlice:
		delete(d.slices, o.Name)
	case *resourcev1.DeviceClass:
		delete(d.Classes, o.Name)
	case *resourcev1.DeviceTaintRule:
		delete(d.taintRules, o.Name)
	}
}

// isOlder reports whether an object observed by the watch is older than the response to a write.
func isOlder(observed, written metav1.Object) bool {
	return observed.GetResourceVersion() != written.GetResourceVersion() && !IsNewer(observed, written)
}

// Claim returns the newest known version of a claim, from the watch or from the response to a write.
func (d *DeviceObjects) Claim(key string) *resourcev1.ResourceClaim {
	if a := d.Assumed[key]; a != nil && a.written {
		return a.claim
	}
	return d.Claims[key]
}

// AllocationPending reports whether an allocation of the claim is assumed and not yet written.
func (d *DeviceObjects) AllocationPending(key string) bool {
	a := d.Assumed[key]
	return a != nil && !a.written
}

// PodResourceClaims returns the resource claims a pod uses. It fails if one is not created yet or is being deleted.
func (d *DeviceObjects) PodResourceClaims(pod *corev1.Pod) (all []*resourcev1.ResourceClaim, err error) {
	for i := range pod.Spec.ResourceClaims {
		name, own, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue // no claim was needed for this template
		}
		key := pod.Namespace + "/" + *name
		claim := d.Claim(key)
		if claim == nil {
			return nil, fmt.Errorf("could not find ResourceClaim %q", key)
		}
		if claim.DeletionTimestamp != nil {
			return nil, fmt.Errorf("resourceclaim %q is being deleted", *name)
		}
		if own {
			if err := resourceclaim.IsForPod(pod, claim, false); err != nil {
				return nil, err
			}
		}
		all = append(all, claim)
	}
	return all, nil
}

// Allocated returns the devices allocated to all claims, assumed allocations included.
func (d *DeviceObjects) Allocated() structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	for key, claim := range d.Claims {
		if d.Assumed[key] == nil {
			addAllocated(&state, claim)
		}
	}
	for _, a := range d.Assumed {
		addAllocated(&state, a.claim)
	}
	return state
}

// addAllocated adds the devices allocated to a claim.
func addAllocated(state *structured.AllocatedState, claim *resourcev1.ResourceClaim) {
	if claim.Status.Allocation == nil {
		return
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if r.AdminAccess != nil && *r.AdminAccess {
			continue // admin access does not allocate the device
		}
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		if r.ShareID == nil {
			state.AllocatedDevices.Insert(id)
			continue
		}
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
		if r.ConsumedCapacity != nil {
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	}
}

// withTaints returns the slice with the taints that DeviceTaintRules add to its devices; the slice itself if there are none.
func (d *DeviceObjects) withTaints(slice *resourcev1.ResourceSlice, rules []*resourcev1.DeviceTaintRule) *resourcev1.ResourceSlice {
	changed := slice
	for _, rule := range rules {
		selector := rule.Spec.DeviceSelector
		if selector == nil || !nameMatches(selector.Driver, slice.Spec.Driver) || !nameMatches(selector.Pool, slice.Spec.Pool.Name) {
			continue
		}
		for i := range slice.Spec.Devices {
			if !nameMatches(selector.Device, slice.Spec.Devices[i].Name) {
				continue
			}
			if changed == slice {
				changed = slice.DeepCopy()
			}
			changed.Spec.Devices[i].Taints = append(changed.Spec.Devices[i].Taints, rule.Spec.Taint)
		}
	}
	return changed
}

// nameMatches reports whether an optional selector field matches a name; nil matches any.
func nameMatches(part *string, name string) bool { return part == nil || *part == name }

// sliceList returns all slices sorted by name, with the taints of DeviceTaintRules added.
func (d *DeviceObjects) sliceList() []*resourcev1.ResourceSlice {
	names := make([]string, 0, len(d.slices))
	for name := range d.slices {
		names = append(names, name)
	}
	slices.Sort(names)
	rules := slices.SortedFunc(maps.Values(d.taintRules), func(a, b *resourcev1.DeviceTaintRule) int { return strings.Compare(a.Name, b.Name) })
	all := make([]*resourcev1.ResourceSlice, len(names))
	for i, name := range names {
		all[i] = d.withTaints(d.slices[name], rules)
	}
	return all
}

// Allocator returns upstream's allocator over the present state.
func (d *DeviceObjects) Allocator(ctx context.Context) (structured.Allocator, error) {
	return structured.NewAllocator(ctx, deviceFeatures, d.Allocated(), classLister{d}, d.sliceList(), d.expressions)
}

// classLister implements the allocator's DeviceClassLister.
type classLister struct{ devices *DeviceObjects }

func (l classLister) List() (all []*resourcev1.DeviceClass, err error) {
	for _, class := range l.devices.Classes {
		all = append(all, class)
	}
	return all, nil
}

func (l classLister) Get(name string) (*resourcev1.DeviceClass, error) {
	if class := l.devices.Classes[name]; class != nil {
		return class, nil
	}
	return nil, apierrors.NewNotFound(resourcev1.Resource("deviceclass"), name)
}

// ClaimAllocation is an allocation decided for a claim. Allocation is nil when the claim was allocated before and is only reserved.
type ClaimAllocation struct {
	// Claim is replaced by the API server's response once the allocation is written.
	Claim      *resourcev1.ResourceClaim
	Allocation *resourcev1.AllocationResult
	// Extended is set for a claim that backs extended resources: the scheduler creates it before it writes the allocation.
	Extended *ExtendedClaim
	// Created is set when the scheduler has created the claim.
	Created bool
}

// AssumeAllocations marks the devices as allocated, before that is written.
func (d *DeviceObjects) AssumeAllocations(allocations []ClaimAllocation) {
	for _, g := range allocations {
		if g.Allocation == nil {
			continue
		}
		claim := g.Claim.DeepCopy()
		claim.Status.Allocation = g.Allocation
		d.Assumed[ObjectKey(claim)] = &assumedClaim{claim: claim}
	}
}

// AllocationWritten replaces an assumed allocation by the response to its write. An extended resource claim gets its name only then.
func (d *DeviceObjects) AllocationWritten(g *ClaimAllocation, written *resourcev1.ResourceClaim) {
	if d.AllocationPending(ObjectKey(g.Claim)) {
		delete(d.Assumed, ObjectKey(g.Claim))
	}
	if observed := d.Claims[ObjectKey(written)]; observed == nil && g.Extended != nil || observed != nil && isOlder(observed, written) {
		d.Assumed[ObjectKey(written)] = &assumedClaim{claim: written, written: true}
	}
	g.Claim = written
}

// RevertAllocations undoes AssumeAllocations for allocations that were not written.
func (d *DeviceObjects) RevertAllocations(allocations []ClaimAllocation) {
	for _, g := range allocations {
		if g.Allocation != nil && d.AllocationPending(ObjectKey(g.Claim)) {
			delete(d.Assumed, ObjectKey(g.Claim))
		}
	}
}

// ClassFor returns the device class that backs an extended resource, by spec.extendedResourceName or by the implicit name that every
// class has. Of several classes the newest is used. Pods that request the resource get devices of the class on nodes whose
// allocatable does not have the resource; the scheduler creates a claim for them.
func (d *DeviceObjects) ClassFor(name corev1.ResourceName) (found *resourcev1.DeviceClass) {
	if class, own := strings.CutPrefix(string(name), resourcev1.ResourceDeviceClassPrefix); own {
		return d.Classes[class]
	}
	for _, class := range d.Classes {
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

// HasClassFor reports whether a device class backs any of the requested resources.
func (d *DeviceObjects) HasClassFor(amounts []Amount) bool {
	return slices.ContainsFunc(amounts, func(a Amount) bool { return a.Value > 0 && d.ClassFor(a.Resource) != nil })
}

// ExtendedClaimOf returns the claim that was created for a pod's extended resources, or nil.
func (d *DeviceObjects) ExtendedClaimOf(pod *corev1.Pod) *resourcev1.ResourceClaim {
	for _, claim := range d.Claims {
		if IsExtendedResourceClaim(claim) && metav1.IsControlledBy(claim, pod) {
			return claim
		}
	}
	return nil
}

// IsExtendedResourceClaim reports whether the scheduler created the claim for a pod's extended resources.
func IsExtendedResourceClaim(claim *resourcev1.ResourceClaim) bool {
	return claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true"
}

// DeviceCount is a number of devices, and how many of them are allocated.
type DeviceCount struct{ Total, Allocated int64 }

// CountDevices returns a function that counts a node's devices of a class, for scoring extended resources that the class backs.
func (s *Snapshot) CountDevices(class *resourcev1.DeviceClass) func(node int32) DeviceCount {
	state := s.Devices.Allocated()
	byName := map[string]DeviceCount{}
	type group struct {
		where *NodeSelection // nil means all nodes
		count DeviceCount
	}
	var groups []group
	for _, slice := range s.Devices.sliceList() {
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			if !s.Devices.Matches(class, slice.Spec.Driver, device) {
				continue
			}
			one := DeviceCount{Total: 1}
			if structured.IsDeviceAllocated(structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, device.Name), &state) {
				one.Allocated = 1
			}
			name, selector := slice.Spec.NodeName, slice.Spec.NodeSelector
			if ptr.Deref(slice.Spec.PerDeviceNodeSelection, false) {
				name, selector = device.NodeName, device.NodeSelector
			}
			switch {
			case ptr.Deref(name, "") != "":
				sum := byName[*name]
				byName[*name] = DeviceCount{sum.Total + one.Total, sum.Allocated + one.Allocated}
			case selector != nil:
				groups = append(groups, group{where: s.NodeSelection(nil, selector), count: one})
			default:
				groups = append(groups, group{count: one})
			}
		}
	}
	return func(node int32) DeviceCount {
		sum := byName[s.NodeInfos[node].Name]
		for _, g := range groups {
			if g.where == nil || g.where.Matches(node) {
				sum = DeviceCount{sum.Total + g.count.Total, sum.Allocated + g.count.Allocated}
			}
		}
		return sum
	}
}

// Matches reports whether a class selects a device. A selector that fails to compile or run matches nothing.
func (d *DeviceObjects) Matches(class *resourcev1.DeviceClass, driver string, device *resourcev1.Device) bool {
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

// WantsDevices reports whether a pod has resource claims, or requests extended resources that device classes back.
func (s *Snapshot) WantsDevices(p *PodInfo) bool {
	return len(p.Pod.Spec.ResourceClaims) > 0 || s.Devices.HasClassFor(p.Request.Extended)
}

// ExtendedClaim is a claim that backs a pod's extended resources, and which of its requests each container uses.
type ExtendedClaim struct {
	Claim    *resourcev1.ResourceClaim
	Mappings []corev1.ContainerExtendedResourceRequest
}
