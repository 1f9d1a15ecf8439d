package scheduler

import (
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
)

// deviceObjects is what the snapshot knows of devices: which there are, and who has them.
type deviceObjects struct {
	claims  map[string]*resourcev1.ResourceClaim // by namespace/name
	slices  map[string]*resourcev1.ResourceSlice
	classes map[string]*resourcev1.DeviceClass
	rules   map[string]*resourcev1.DeviceTaintRule
	// assumed claims are allocated by us, and the API server has not told yet.
	assumed     map[string]*assumedClaim
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

func newDeviceObjects() deviceObjects {
	return deviceObjects{
		claims: map[string]*resourcev1.ResourceClaim{}, slices: map[string]*resourcev1.ResourceSlice{}, classes: map[string]*resourcev1.DeviceClass{}, rules: map[string]*resourcev1.DeviceTaintRule{},
		assumed: map[string]*assumedClaim{}, expressions: cel.NewCache(100, cel.Features{EnableConsumableCapacity: true}),
	}
}

func (d *deviceObjects) set(object metav1.Object) {
	switch o := object.(type) {
	case *resourcev1.ResourceClaim:
		d.claims[keyOf(o)] = o
		if a := d.assumed[keyOf(o)]; a != nil && (a.claim.UID != o.UID || a.written && !older(o, a.claim)) {
			delete(d.assumed, keyOf(o))
		}
	case *resourcev1.ResourceSlice:
		d.slices[o.Name] = o
	case *resourcev1.DeviceClass:
		d.classes[o.Name] = o
	case *resourcev1.DeviceTaintRule:
		d.rules[o.Name] = o
	}
}

func (d *deviceObjects) delete(object metav1.Object) {
	switch o := object.(type) {
	case *resourcev1.ResourceClaim:
		delete(d.claims, keyOf(o))
		delete(d.assumed, keyOf(o))
	case *resourcev1.ResourceSlice:
		delete(d.slices, o.Name)
	case *resourcev1.DeviceClass:
		delete(d.classes, o.Name)
	case *resourcev1.DeviceTaintRule:
		delete(d.rules, o.Name)
	}
}

// older reports whether an object the API server told of is older than what it answered to a write.
func older(told, answered metav1.Object) bool {
	return told.GetResourceVersion() != answered.GetResourceVersion() && !newer(told, answered)
}

// claim is a claim as the API server has it, so far as we know.
func (d *deviceObjects) claim(key string) *resourcev1.ResourceClaim {
	if a := d.assumed[key]; a != nil && a.written {
		return a.claim
	}
	return d.claims[key]
}

// pending reports whether we are about to write that a claim has its devices.
func (d *deviceObjects) pending(key string) bool {
	a := d.assumed[key]
	return a != nil && !a.written
}

// claimsOf are the resource claims a pod uses. A claim that is still to be made for it is an error, as is one on its way out.
func (d *deviceObjects) claimsOf(pod *corev1.Pod) (all []*resourcev1.ResourceClaim, err error) {
	for i := range pod.Spec.ResourceClaims {
		name, own, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue // the template was optional
		}
		key := pod.Namespace + "/" + *name
		claim := d.claim(key)
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

// allocated is what all claims together hold, assumed ones included.
func (d *deviceObjects) allocated() structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	for key, claim := range d.claims {
		if d.assumed[key] == nil {
			take(&state, claim)
		}
	}
	for _, a := range d.assumed {
		take(&state, a.claim)
	}
	return state
}

// take notes the devices that a claim holds.
func take(state *structured.AllocatedState, claim *resourcev1.ResourceClaim) {
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

// tainted is a slice with the taints that rules add to its devices; the slice itself when none does.
func (d *deviceObjects) tainted(slice *resourcev1.ResourceSlice, rules []*resourcev1.DeviceTaintRule) *resourcev1.ResourceSlice {
	changed := slice
	for _, rule := range rules {
		selector := rule.Spec.DeviceSelector
		if selector == nil || !speaksOf(selector.Driver, slice.Spec.Driver) || !speaksOf(selector.Pool, slice.Spec.Pool.Name) {
			continue
		}
		for i := range slice.Spec.Devices {
			if !speaksOf(selector.Device, slice.Spec.Devices[i].Name) {
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

// speaksOf reports whether a part of a selector allows a name: without one, any.
func speaksOf(part *string, name string) bool { return part == nil || *part == name }

// sliceList are all slices, in an order that does not change by itself, with the taints rules give their devices.
func (d *deviceObjects) sliceList() []*resourcev1.ResourceSlice {
	names := make([]string, 0, len(d.slices))
	for name := range d.slices {
		names = append(names, name)
	}
	slices.Sort(names)
	rules := slices.SortedFunc(maps.Values(d.rules), func(a, b *resourcev1.DeviceTaintRule) int { return strings.Compare(a.Name, b.Name) })
	all := make([]*resourcev1.ResourceSlice, len(names))
	for i, name := range names {
		all[i] = d.tainted(d.slices[name], rules)
	}
	return all
}

// classLister gives the allocator the device classes.
type classLister struct{ devices *deviceObjects }

func (l classLister) List() (all []*resourcev1.DeviceClass, err error) {
	for _, class := range l.devices.classes {
		all = append(all, class)
	}
	return all, nil
}

func (l classLister) Get(name string) (*resourcev1.DeviceClass, error) {
	if class := l.devices.classes[name]; class != nil {
		return class, nil
	}
	return nil, apierrors.NewNotFound(resourcev1.Resource("deviceclass"), name)
}

// claimGrant is an allocation decided for a claim; nil when the claim had one already and is only reserved.
type claimGrant struct {
	// claim is what the API server answered once the grant is written.
	claim      *resourcev1.ResourceClaim
	allocation *resourcev1.AllocationResult
	// extended is set when the claim stands for extended resources: then it is made when it is written.
	extended *extendedClaim
	// made claims were not there before.
	made bool
}

// assume decides allocations: from now on the devices are taken.
func (d *deviceObjects) assume(grants []claimGrant) {
	for _, g := range grants {
		if g.allocation == nil {
			continue
		}
		claim := g.claim.DeepCopy()
		claim.Status.Allocation = g.allocation
		d.assumed[keyOf(claim)] = &assumedClaim{claim: claim}
	}
}

// write notes that the API server has a grant. The claim is under its own name now, which it may have been given only then.
func (d *deviceObjects) write(g *claimGrant, answer *resourcev1.ResourceClaim) {
	if d.pending(keyOf(g.claim)) {
		delete(d.assumed, keyOf(g.claim))
	}
	if told := d.claims[keyOf(answer)]; told == nil && g.extended != nil || told != nil && older(told, answer) {
		d.assumed[keyOf(answer)] = &assumedClaim{claim: answer, written: true}
	}
	g.claim = answer
}

// revert takes back what assume decided and nobody has written.
func (d *deviceObjects) revert(grants []claimGrant) {
	for _, g := range grants {
		if g.allocation != nil && d.pending(keyOf(g.claim)) {
			delete(d.assumed, keyOf(g.claim))
		}
	}
}
