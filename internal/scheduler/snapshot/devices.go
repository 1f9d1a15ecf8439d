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

// DeviceObjects is what the snapshot knows of devices: which there are, and who has them.
type DeviceObjects struct {
	Claims     map[string]*resourcev1.ResourceClaim // by namespace/name
	slices     map[string]*resourcev1.ResourceSlice
	Classes    map[string]*resourcev1.DeviceClass
	taintRules map[string]*resourcev1.DeviceTaintRule
	// Assumed claims are allocated by us, and the API server has not told yet.
	Assumed     map[string]*assumedClaim
	expressions *cel.Cache
}

// assumedClaim is a claim as it will be. Once it is written, it is as the API server has it, and stands until that is heard.
type assumedClaim struct {
	claim   *resourcev1.ResourceClaim
	written bool
}

// deviceFeatures are what upstream's allocator is asked to mind.
var deviceFeatures = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, ConsumableCapacity: true, FractionalCapacityRange: true,
	DeviceBindingAndStatus: true,
}

func NewDeviceObjects() DeviceObjects {
	return DeviceObjects{
		Claims: map[string]*resourcev1.ResourceClaim{}, slices: map[string]*resourcev1.ResourceSlice{}, Classes: map[string]*resourcev1.DeviceClass{}, taintRules: map[string]*resourcev1.DeviceTaintRule{},
		Assumed: map[string]*assumedClaim{}, expressions: cel.NewCache(100, cel.Features{EnableConsumableCapacity: true}),
	}
}

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

// isOlder reports whether an object the API server told of is older than what it answered to a write.
func isOlder(observed, written metav1.Object) bool {
	return observed.GetResourceVersion() != written.GetResourceVersion() && !IsNewer(observed, written)
}

// Claim is a claim as the API server has it, so far as we know.
func (d *DeviceObjects) Claim(key string) *resourcev1.ResourceClaim {
	if a := d.Assumed[key]; a != nil && a.written {
		return a.claim
	}
	return d.Claims[key]
}

// AllocationPending reports whether we are about to write that a claim has its devices.
func (d *DeviceObjects) AllocationPending(key string) bool {
	a := d.Assumed[key]
	return a != nil && !a.written
}

// PodResourceClaims are the resource claims a pod uses. A claim that is still to be made for it is an error, as is one on its way out.
func (d *DeviceObjects) PodResourceClaims(pod *corev1.Pod) (all []*resourcev1.ResourceClaim, err error) {
	for i := range pod.Spec.ResourceClaims {
		name, own, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue // the template was optional
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

// Allocated is what all claims together hold, assumed ones included.
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

// addAllocated notes the devices that a claim holds.
func addAllocated(state *structured.AllocatedState, claim *resourcev1.ResourceClaim) {
	if claim.Status.Allocation == nil {
		return
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if r.AdminAccess != nil && *r.AdminAccess {
			continue // watching a device does not take it
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

// withTaints is a slice with the taints that rules add to its devices; the slice itself when none does.
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

// nameMatches reports whether a part of a selector allows a name: without one, any.
func nameMatches(part *string, name string) bool { return part == nil || *part == name }

// sliceList are all slices, in an order that does not change by itself, with the taints rules give their devices.
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

// Allocator finds free devices for claims.
func (d *DeviceObjects) Allocator(ctx context.Context) (structured.Allocator, error) {
	return structured.NewAllocator(ctx, deviceFeatures, d.Allocated(), classLister{d}, d.sliceList(), d.expressions)
}

// classLister gives the allocator the device classes.
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

// ClaimAllocation is an allocation decided for a claim; nil when the claim had one already and is only reserved.
type ClaimAllocation struct {
	// Claim is what the API server answered once the grant is written.
	Claim      *resourcev1.ResourceClaim
	Allocation *resourcev1.AllocationResult
	// Extended is set when the claim stands for extended resources: then it is made when it is written.
	Extended *ExtendedClaim
	// Created claims were not there before.
	Created bool
}

// AssumeAllocations decides allocations: from now on the devices are taken.
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

// AllocationWritten notes that the API server has a grant. The claim is under its own name now, which it may have been given only then.
func (d *DeviceObjects) AllocationWritten(g *ClaimAllocation, written *resourcev1.ResourceClaim) {
	if d.AllocationPending(ObjectKey(g.Claim)) {
		delete(d.Assumed, ObjectKey(g.Claim))
	}
	if observed := d.Claims[ObjectKey(written)]; observed == nil && g.Extended != nil || observed != nil && isOlder(observed, written) {
		d.Assumed[ObjectKey(written)] = &assumedClaim{claim: written, written: true}
	}
	g.Claim = written
}

// RevertAllocations takes back what assume decided and nobody has written.
func (d *DeviceObjects) RevertAllocations(allocations []ClaimAllocation) {
	for _, g := range allocations {
		if g.Allocation != nil && d.AllocationPending(ObjectKey(g.Claim)) {
			delete(d.Assumed, ObjectKey(g.Claim))
		}
	}
}

// A device class may stand for an extended resource. Pods that ask for the resource get devices of the class on nodes that do not
// offer the resource themselves: the scheduler makes a claim for them.

// ClassFor is the device class that stands for a resource. Of several the newest does; every class stands for a name of its own.
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

// HaveClassFor reports whether classes stand for something a pod asks.
func (d *DeviceObjects) HasClassFor(amounts []Amount) bool {
	return slices.ContainsFunc(amounts, func(a Amount) bool { return a.Value > 0 && d.ClassFor(a.Resource) != nil })
}

// ExtendedClaimOf is the claim made for a pod's extended resources, if there is one.
func (d *DeviceObjects) ExtendedClaimOf(pod *corev1.Pod) *resourcev1.ResourceClaim {
	for _, claim := range d.Claims {
		if IsExtendedResourceClaim(claim) && metav1.IsControlledBy(claim, pod) {
			return claim
		}
	}
	return nil
}

func IsExtendedResourceClaim(claim *resourcev1.ResourceClaim) bool {
	return claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true"
}

// DeviceCount is how many devices there are, and how many of them are taken.
type DeviceCount struct{ Total, Allocated int64 }

// CountDevices tells how many devices of a class nodes have, for scores that look at resources the class stands for.
func (s *Snapshot) CountDevices(class *resourcev1.DeviceClass) func(node int32) DeviceCount {
	state := s.Devices.Allocated()
	byName := map[string]DeviceCount{}
	type group struct {
		where *NodeSelection // nil is everywhere
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

// Matches reports whether a device is of a class. A selector that fails matches nothing.
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

// WantsDevices reports whether a pod claims devices, or asks for resources that device classes stand for.
func (s *Snapshot) WantsDevices(p *PodInfo) bool {
	return len(p.Pod.Spec.ResourceClaims) > 0 || s.Devices.HasClassFor(p.Request.Extended)
}

// ExtendedClaim is a claim that stands for extended resources, and which of its requests each container uses.
type ExtendedClaim struct {
	Claim    *resourcev1.ResourceClaim
	Mappings []corev1.ContainerExtendedResourceRequest
}
