package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

const dynamicResourcesName = "DynamicResources"

// dynamicResources keeps pods to nodes where the devices they claim are, and chooses devices for claims that have none.
type dynamicResources struct {
	// filterTimeout is how long devices are looked for on one node; 0 is without end. bindingTimeout is how long a pod waits
	// for its devices to be ready.
	filterTimeout, bindingTimeout time.Duration
}

func newDynamicResources(args *configv1.DynamicResourcesArgs) Rule {
	r := &dynamicResources{filterTimeout: configv1.DynamicResourcesFilterTimeoutDefault, bindingTimeout: configv1.DynamicResourcesBindingTimeoutDefault}
	if args.FilterTimeout != nil {
		r.filterTimeout = args.FilterTimeout.Duration
	}
	if args.BindingTimeout != nil {
		r.bindingTimeout = args.BindingTimeout.Duration
	}
	return r
}

func (*dynamicResources) Name() string { return dynamicResourcesName }

var (
	refusedClaimElsewhere = refuse(dynamicResourcesName, true, "resourceclaim not available on the node")
	refusedDevices        = refuse(dynamicResourcesName, true, "cannot allocate all claims")
)

// wantsDevices reports whether a pod claims devices, or asks for resources that device classes stand for.
func (s *Snapshot) wantsDevices(p *PodInfo) bool {
	return len(p.Pod.Spec.ResourceClaims) > 0 || s.devices.standFor(p.Request.Extended)
}

// lacksClaims reports whether resource claims of a pod are still to be made, or on their way out.
func (s *Scheduler) lacksClaims(pod *corev1.Pod) bool {
	profile := s.profiles[pod.Spec.SchedulerName]
	if len(pod.Spec.ResourceClaims) == 0 || profile == nil || profile.devices == nil {
		return false
	}
	_, err := s.snapshot.devices.claimsOf(pod)
	return err != nil
}

// deviceRequest is what one pod claims, read once.
type deviceRequest struct {
	rule *dynamicResources
	// held claims have their devices; open ones do not.
	held, open []*resourcev1.ResourceClaim
	selections []*nodeSelection // of held claims; nil lets all nodes in
	usable     []bool           // of held claims; false when their devices failed to get ready
	extended   *extendedDevices // nil when the pod asks for none
	allocator  structured.Allocator
}

func (r *dynamicResources) request(s *Snapshot, p *PodInfo) (*deviceRequest, *Refusal) {
	claims, err := s.devices.claimsOf(p.Pod)
	if err != nil {
		return nil, refuse(dynamicResourcesName, true, err.Error())
	}
	q := &deviceRequest{rule: r, extended: s.extendedDevices(p)}
	for _, claim := range claims {
		if a := claim.Status.Allocation; a != nil {
			q.held = append(q.held, claim)
			var selection *nodeSelection
			if a.NodeSelector != nil {
				selection = s.selection(nil, a.NodeSelector)
			}
			q.selections = append(q.selections, selection)
			q.usable = append(q.usable, r.usable(claim))
			continue
		}
		if s.devices.pending(keyOf(claim)) {
			return nil, refuse(dynamicResourcesName, true, fmt.Sprintf("resource claim %s is in the process of being allocated", keyOf(claim)))
		}
		if refusal := s.checkClasses(claim); refusal != nil {
			return nil, refusal
		}
		q.open = append(q.open, claim)
	}
	if len(q.open) > 0 || q.extended != nil {
		q.allocator, err = structured.NewAllocator(context.Background(), deviceFeatures, s.devices.allocated(), classLister{&s.devices}, s.devices.sliceList(), s.devices.expressions)
		if err != nil {
			return nil, &Refusal{Rule: dynamicResourcesName, Err: err}
		}
	}
	return q, nil
}

// checkClasses reports the first device class that a claim names and that does not exist.
func (s *Snapshot) checkClasses(claim *resourcev1.ResourceClaim) *Refusal {
	check := func(request, class string) *Refusal {
		if class == "" {
			return &Refusal{Rule: dynamicResourcesName, Err: fmt.Errorf("request %s: unsupported request type", request)}
		}
		if s.devices.classes[class] == nil {
			return refuse(dynamicResourcesName, true, fmt.Sprintf("request %s: device class %s does not exist", request, class))
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
			return refuse(dynamicResourcesName, true, fmt.Sprintf("resource claim %s, request %s: unknown request type", keyOf(claim), request.Name))
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

// on finds devices for the open claims on a node, and for what the pod asks as extended resources.
func (q *deviceRequest) on(s *Snapshot, node int32) ([]claimGrant, *Refusal) {
	open := q.open
	var extra *extendedClaim
	if q.extended != nil {
		var refusal *Refusal
		if extra, refusal = q.extended.on(s, node); refusal != nil {
			return nil, refusal
		}
		if extra != nil {
			open = append(slices.Clip(open), extra.claim)
		}
	}
	grants, refusal := q.allocate(s, node, open)
	if refusal != nil {
		return nil, refusal
	}
	for i := range q.held {
		if q.unavailable(i, node) {
			return nil, refusedClaimElsewhere
		}
	}
	if extra != nil {
		grants[len(open)-1].extended = extra
	}
	return grants, nil
}

// unavailable reports whether a held claim keeps the pod from a node.
func (q *deviceRequest) unavailable(held int, node int32) bool {
	selection := q.selections[held]
	return !q.usable[held] || selection != nil && !selection.matches(node)
}

// allocate finds devices for claims on a node.
func (q *deviceRequest) allocate(s *Snapshot, node int32, open []*resourcev1.ResourceClaim) ([]claimGrant, *Refusal) {
	if len(open) == 0 {
		return nil, nil
	}
	ctx := context.Background()
	if q.rule.filterTimeout > 0 {
		limited, cancel := context.WithTimeout(ctx, q.rule.filterTimeout)
		defer cancel()
		ctx = limited
	}
	results, err := q.allocator.Allocate(ctx, s.nodes[node].object, open)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, &Refusal{Rule: dynamicResourcesName, Err: fmt.Errorf("node %s: timed out trying to allocate devices", s.nodes[node].name)}
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return nil, refuse(dynamicResourcesName, true, err.Error())
	case err != nil:
		return nil, &Refusal{Rule: dynamicResourcesName, Err: err}
	case len(results) != len(open):
		return nil, refusedDevices
	}
	grants := make([]claimGrant, len(open))
	for i, claim := range open {
		grants[i] = claimGrant{claim: claim, allocation: &results[i]}
	}
	return grants, nil
}

func (r *dynamicResources) Filter(s *Snapshot, p *PodInfo) (Filter, *Refusal) {
	if !s.wantsDevices(p) {
		return Filter{}, nil
	}
	q, refusal := r.request(s, p)
	if refusal != nil || len(q.held)+len(q.open) == 0 && q.extended == nil {
		return Filter{}, refusal
	}
	return Filter{Volatile: true, Check: func(node int32) *Refusal {
		_, refusal := q.on(s, node)
		return refusal
	}}, nil
}

// Score prefers nodes where the alternatives a claim names first can be had. What claims hold already counts too: it is the same
// everywhere, and makes the rest weigh less.
func (r *dynamicResources) Score(s *Snapshot, p *PodInfo) Scorer {
	if len(p.Pod.Spec.ResourceClaims) == 0 {
		return Scorer{}
	}
	q, refusal := r.request(s, p)
	if refusal != nil {
		return Scorer{}
	}
	if len(q.open) == 0 && q.extended == nil {
		return Scorer{}
	}
	var held int64
	for _, claim := range q.held {
		held += alternativeScore(claim, claim.Status.Allocation)
	}
	if held == 0 && !slices.ContainsFunc(q.open, namesAlternatives) {
		return Scorer{}
	}
	return Scorer{Volatile: true, Scale: MostIsBest, Of: func(node int32) (sum int64) {
		grants, refusal := q.on(s, node)
		if refusal != nil {
			return 0
		}
		sum = held
		for _, g := range grants {
			sum += alternativeScore(g.claim, g.allocation)
		}
		return sum
	}}
}

func namesAlternatives(claim *resourcev1.ResourceClaim) bool {
	return slices.ContainsFunc(claim.Spec.Devices.Requests, func(r resourcev1.DeviceRequest) bool { return len(r.FirstAvailable) > 0 })
}

func alternativeScore(claim *resourcev1.ResourceClaim, allocation *resourcev1.AllocationResult) (sum int64) {
	given := map[string]bool{}
	for i := range allocation.Devices.Results {
		given[allocation.Devices.Results[i].Request] = true
	}
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		for n, sub := range request.FirstAvailable {
			if given[resourceclaim.CreateSubRequestRef(request.Name, sub.Name)] {
				sum += int64(resourcev1.FirstAvailableDeviceRequestMaxSize - n)
			}
		}
	}
	return sum
}

func (*dynamicResources) Hints() []Hint {
	return []Hint{
		{Resource: NodeResource, Action: Add | UpdateNodeLabel | UpdateNodeAllocatable},
		{Resource: ResourceClaimResource, Action: Add | Update | Delete, Helps: claimChangeHelps},
		{Resource: TargetPod, Action: UpdatePodClaims, Helps: func(s *Snapshot, _ *corev1.Pod, _, now any) bool {
			_, err := s.devices.claimsOf(asPod(now))
			return err == nil
		}},
		{Resource: DeviceClassResource, Action: Add | Update},
		{Resource: ResourceSliceResource, Action: Add | Update},
		{Resource: DeviceTaintRuleResource, Action: Update | Delete},
	}
}

// claimChangeHelps reports whether devices have become free, or a claim of the pod's own has changed.
func claimChangeHelps(s *Snapshot, pod *corev1.Pod, old, now any) bool {
	before, _ := old.(*resourcev1.ResourceClaim)
	after, _ := now.(*resourcev1.ResourceClaim)
	if after == nil {
		// Its devices are free; or it is the claim of an earlier attempt, and the pod may be tried again.
		return before != nil && (before.Status.Allocation != nil || standsForExtended(before) && metav1.IsControlledBy(before, pod))
	}
	claims, err := s.devices.claimsOf(pod)
	if err != nil {
		return false // something else is still missing
	}
	if before != nil && before.Status.Allocation != nil && after.Status.Allocation == nil {
		return true
	}
	return slices.ContainsFunc(claims, func(claim *resourcev1.ResourceClaim) bool { return claim.UID == after.UID }) &&
		(before == nil || !equality.Semantic.DeepEqual(&before.Status, &after.Status))
}
