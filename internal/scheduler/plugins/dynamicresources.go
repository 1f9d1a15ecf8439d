package plugins

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"skiff/internal/scheduler/snapshot"
)

// dynamicResources filters nodes by the devices of a pod's resource claims, and allocates devices to unallocated claims.
type dynamicResources struct {
	// filterTimeout bounds the allocation on one node; 0 means no limit. BindingTimeout bounds the wait for binding conditions.
	filterTimeout, BindingTimeout time.Duration
}

func newDynamicResources(args *configv1.DynamicResourcesArgs) Plugin {
	r := &dynamicResources{filterTimeout: configv1.DynamicResourcesFilterTimeoutDefault, BindingTimeout: configv1.DynamicResourcesBindingTimeoutDefault}
	if args.FilterTimeout != nil {
		r.filterTimeout = args.FilterTimeout.Duration
	}
	if args.BindingTimeout != nil {
		r.BindingTimeout = args.BindingTimeout.Duration
	}
	return r
}

func (*dynamicResources) Name() string { return DynamicResourcesName }

var (
	ClaimNotAvailable = Refuse(DynamicResourcesName, true, "resourceclaim not available on the node")
	cannotAllocate    = Refuse(DynamicResourcesName, true, "cannot allocate all claims")
)

// PodDevices are the resource claims of one pod.
type PodDevices struct {
	plugin *dynamicResources
	// Allocated claims have devices; unallocated ones do not.
	Allocated, unallocated []*resourcev1.ResourceClaim
	selections             []*snapshot.NodeSelection // of allocated claims; nil means all nodes
	usable                 []bool                    // of allocated claims; false if their binding conditions failed or timed out
	Extended               *extendedDevices          // nil if the pod requests none
	allocator              structured.Allocator
}

// PodDevices reads a pod's claims. A Refusal rejects all nodes.
func (r *dynamicResources) PodDevices(s *snapshot.Snapshot, p *snapshot.PodInfo) (*PodDevices, *Refusal) {
	claims, err := s.Devices.PodResourceClaims(p.Pod)
	if err != nil {
		return nil, Refuse(DynamicResourcesName, true, err.Error())
	}
	q := &PodDevices{plugin: r, Extended: newExtendedDevices(s, p)}
	for _, claim := range claims {
		if a := claim.Status.Allocation; a != nil {
			q.Allocated = append(q.Allocated, claim)
			var selection *snapshot.NodeSelection
			if a.NodeSelector != nil {
				selection = s.NodeSelection(nil, a.NodeSelector)
			}
			q.selections = append(q.selections, selection)
			q.usable = append(q.usable, r.devicesUsable(claim))
			continue
		}
		if s.Devices.AllocationPending(snapshot.ObjectKey(claim)) {
			return nil, Refuse(DynamicResourcesName, true, fmt.Sprintf("resource claim %s is in the process of being allocated", snapshot.ObjectKey(claim)))
		}
		if refusal := checkClasses(s, claim); refusal != nil {
			return nil, refusal
		}
		q.unallocated = append(q.unallocated, claim)
	}
	if len(q.unallocated) > 0 || q.Extended != nil {
		q.allocator, err = s.Devices.Allocator(context.Background())
		if err != nil {
			return nil, &Refusal{Plugin: DynamicResourcesName, Err: err}
		}
	}
	return q, nil
}

// checkClasses rejects a claim that refers to a device class that does not exist.
func checkClasses(s *snapshot.Snapshot, claim *resourcev1.ResourceClaim) *Refusal {
	check := func(request, class string) *Refusal {
		if class == "" {
			return &Refusal{Plugin: DynamicResourcesName, Err: fmt.Errorf("request %s: unsupported request type", request)}
		}
		if s.Devices.Classes[class] == nil {
			return Refuse(DynamicResourcesName, true, fmt.Sprintf("request %s: device class %s does not exist", request, class))
		}
		return nil
	}
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		switch {
		case request.Exactly != nil:
			if refusal := check(request.Name, request.Exactly.DeviceClassName); refusal != nil {
				return refusal
			}
		case len(request.FirstAvailable) == 0:
			return Refuse(DynamicResourcesName, true, fmt.Sprintf("resource claim %s, request %s: unknown request type", snapshot.ObjectKey(claim), request.Name))
		default:
			for n := range request.FirstAvailable {
				sub := &request.FirstAvailable[n]
				if refusal := check(resourceclaim.CreateSubRequestRef(request.Name, sub.Name), sub.DeviceClassName); refusal != nil {
					return refusal
				}
			}
		}
	}
	return nil
}

// AllocateOn allocates devices on a node for the unallocated claims and for extended resources that device classes back.
func (q *PodDevices) AllocateOn(s *snapshot.Snapshot, node int32) ([]snapshot.ClaimAllocation, *Refusal) {
	unallocated := q.unallocated
	var extended *snapshot.ExtendedClaim
	if q.Extended != nil {
		var refusal *Refusal
		if extended, refusal = q.Extended.claimOn(s, node); refusal != nil {
			return nil, refusal
		}
		if extended != nil {
			unallocated = append(slices.Clip(unallocated), extended.Claim)
		}
	}
	allocations, refusal := q.allocate(s, node, unallocated)
	if refusal != nil {
		return nil, refusal
	}
	for i := range q.Allocated {
		if q.Unavailable(i, node) {
			return nil, ClaimNotAvailable
		}
	}
	if extended != nil {
		allocations[len(unallocated)-1].Extended = extended
	}
	return allocations, nil
}

// Unavailable reports whether an allocated claim, given by index, cannot be used on a node.
func (q *PodDevices) Unavailable(claim int, node int32) bool {
	selection := q.selections[claim]
	return !q.usable[claim] || selection != nil && !selection.Matches(node)
}

// allocate runs upstream's allocator for claims on a node.
func (q *PodDevices) allocate(s *snapshot.Snapshot, node int32, unallocated []*resourcev1.ResourceClaim) ([]snapshot.ClaimAllocation, *Refusal) {
	if len(unallocated) == 0 {
		return nil, nil
	}
	ctx := context.Background()
	if q.plugin.filterTimeout > 0 {
		limited, cancel := context.WithTimeout(ctx, q.plugin.filterTimeout)
		defer cancel()
		ctx = limited
	}
	results, err := q.allocator.Allocate(ctx, s.NodeInfos[node].Node, unallocated)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, &Refusal{Plugin: DynamicResourcesName, Err: fmt.Errorf("node %s: timed out trying to allocate devices", s.NodeInfos[node].Name)}
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return nil, Refuse(DynamicResourcesName, true, err.Error())
	case err != nil:
		return nil, &Refusal{Plugin: DynamicResourcesName, Err: err}
	case len(results) != len(unallocated):
		return nil, cannotAllocate
	}
	allocations := make([]snapshot.ClaimAllocation, len(unallocated))
	for i, claim := range unallocated {
		allocations[i] = snapshot.ClaimAllocation{Claim: claim, Allocation: &results[i]}
	}
	return allocations, nil
}

func (r *dynamicResources) Filter(s *snapshot.Snapshot, p *snapshot.PodInfo) (Filter, *Refusal) {
	if !s.WantsDevices(p) {
		return Filter{}, nil
	}
	q, refusal := r.PodDevices(s, p)
	if refusal != nil || len(q.Allocated)+len(q.unallocated) == 0 && q.Extended == nil {
		return Filter{}, refusal
	}
	return Filter{Volatile: true, Check: func(node int32) *Refusal {
		_, refusal := q.AllocateOn(s, node)
		return refusal
	}}, nil
}

// Score prefers nodes where the first of a request's FirstAvailable alternatives can be allocated. Allocated claims add the same score on
// all nodes, which matters for normalization.
func (r *dynamicResources) Score(s *snapshot.Snapshot, p *snapshot.PodInfo) Scorer {
	if len(p.Pod.Spec.ResourceClaims) == 0 {
		return Scorer{}
	}
	q, refusal := r.PodDevices(s, p)
	if refusal != nil {
		return Scorer{}
	}
	if len(q.unallocated) == 0 && q.Extended == nil {
		return Scorer{}
	}
	var allocatedScore int64
	for _, claim := range q.Allocated {
		allocatedScore += subrequestScore(claim, claim.Status.Allocation)
	}
	if allocatedScore == 0 && !slices.ContainsFunc(q.unallocated, hasAlternatives) {
		return Scorer{}
	}
	return Scorer{Volatile: true, Normalization: HigherIsBetter, Score: func(node int32) (sum int64) {
		allocations, refusal := q.AllocateOn(s, node)
		if refusal != nil {
			return 0
		}
		sum = allocatedScore
		for _, g := range allocations {
			sum += subrequestScore(g.Claim, g.Allocation)
		}
		return sum
	}}
}

func hasAlternatives(claim *resourcev1.ResourceClaim) bool {
	return slices.ContainsFunc(claim.Spec.Devices.Requests, func(r resourcev1.DeviceRequest) bool { return len(r.FirstAvailable) > 0 })
}

func subrequestScore(claim *resourcev1.ResourceClaim, allocation *resourcev1.AllocationResult) (sum int64) {
	allocated := map[string]bool{}
	for i := range allocation.Devices.Results {
		allocated[allocation.Devices.Results[i].Request] = true
	}
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		for n, sub := range request.FirstAvailable {
			if allocated[resourceclaim.CreateSubRequestRef(request.Name, sub.Name)] {
				sum += int64(resourcev1.FirstAvailableDeviceRequestMaxSize - n)
			}
		}
	}
	return sum
}

func (*dynamicResources) Hints() []QueueingHint {
	return []QueueingHint{
		{Resource: NodeResource, Action: Add | UpdateNodeLabel | UpdateNodeAllocatable},
		{Resource: ResourceClaimResource, Action: Add | Update | Delete, Helps: resourceClaimHint},
		{Resource: TargetPod, Action: UpdatePodClaims, Helps: func(s *snapshot.Snapshot, _ *corev1.Pod, _, now any) bool {
			_, err := s.Devices.PodResourceClaims(asPod(now))
			return err == nil
		}},
		{Resource: DeviceClassResource, Action: Add | Update},
		{Resource: ResourceSliceResource, Action: Add | Update},
		{Resource: DeviceTaintRuleResource, Action: Update | Delete},
	}
}

// resourceClaimHint reports whether devices were deallocated, or a claim of the pod has changed.
func resourceClaimHint(s *snapshot.Snapshot, pod *corev1.Pod, old, now any) bool {
	before, _ := old.(*resourcev1.ResourceClaim)
	after, _ := now.(*resourcev1.ResourceClaim)
	if after == nil {
		// Its devices are free; or it was the pod's extended resource claim of an earlier attempt.
		return before != nil && (before.Status.Allocation != nil || snapshot.IsExtendedResourceClaim(before) && metav1.IsControlledBy(before, pod))
	}
	claims, err := s.Devices.PodResourceClaims(pod)
	if err != nil {
		return false // another claim is still missing
	}
	if before != nil && before.Status.Allocation != nil && after.Status.Allocation == nil {
		return true
	}
	return slices.ContainsFunc(claims, func(claim *resourcev1.ResourceClaim) bool { return claim.UID == after.UID }) &&
		(before == nil || !equality.Semantic.DeepEqual(&before.Status, &after.Status))
}

var (
	ErrDeviceBindingFailed  = errors.New("device binding failed")
	ErrDeviceBindingTimeout = errors.New("device binding timeout")
)

// BindingConditionsMet reports whether the binding conditions of a claim's devices are true. It fails if a failure condition is true.
func BindingConditionsMet(claim *resourcev1.ResourceClaim) (bool, error) {
	if claim.Status.Allocation == nil {
		return false, nil
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if len(r.BindingConditions) == 0 {
			continue
		}
		conditions, found := deviceConditions(claim, r)
		if !found {
			return false, nil
		}
		for _, name := range r.BindingFailureConditions {
			if c := meta.FindStatusCondition(conditions, name); c != nil && c.Status == metav1.ConditionTrue {
				return false, fmt.Errorf("%w: claim=%s, reason=%s, message=%q", ErrDeviceBindingFailed, claim.Name, c.Reason, c.Message)
			}
		}
		for _, name := range r.BindingConditions {
			if !meta.IsStatusConditionTrue(conditions, name) {
				return false, nil
			}
		}
	}
	return true, nil
}

// deviceConditions returns the conditions that a driver has reported for an allocated device.
func deviceConditions(claim *resourcev1.ResourceClaim, r *resourcev1.DeviceRequestAllocationResult) (conditions []metav1.Condition, found bool) {
	for i := range claim.Status.Devices {
		d := &claim.Status.Devices[i]
		share := ""
		if r.ShareID != nil {
			share = string(*r.ShareID)
		}
		known := ""
		if d.ShareID != nil {
			known = *d.ShareID
		}
		if d.Driver == r.Driver && d.Pool == r.Pool && d.Device == r.Device && share == known {
			return d.Conditions, true
		}
	}
	return nil, false
}

// HasBindingConditions reports whether devices of a claim have binding conditions.
func HasBindingConditions(claim *resourcev1.ResourceClaim) bool {
	return claim.Status.Allocation != nil && slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
		return len(r.BindingConditions) > 0
	})
}

// BindingTimedOut reports whether a claim has waited for its binding conditions for longer than BindingTimeout.
func (r *dynamicResources) BindingTimedOut(claim *resourcev1.ResourceClaim) bool {
	a := claim.Status.Allocation
	return HasBindingConditions(claim) && a.AllocationTimestamp != nil && time.Since(a.AllocationTimestamp.Time) > r.BindingTimeout
}

// devicesUsable reports whether the binding conditions of an allocated claim are met or may still be met in time.
func (r *dynamicResources) devicesUsable(claim *resourcev1.ResourceClaim) bool {
	ready, err := BindingConditionsMet(claim)
	return err == nil && (ready || !r.BindingTimedOut(claim))
}
