package scheduler

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
)

const dynamicResourcesName = "DynamicResources"

// dynamicResources keeps pods to nodes where the devices they claim are, and chooses devices for claims that have none.
type dynamicResources struct{}

func (dynamicResources) Name() string { return dynamicResourcesName }

var (
	refusedClaimElsewhere = refuse(dynamicResourcesName, true, "resourceclaim not available on the node")
	refusedDevices        = refuse(dynamicResourcesName, true, "cannot allocate all claims")
)

// deviceRequest is what one pod claims, read once.
type deviceRequest struct {
	// held claims have their devices; open ones do not.
	held, open []*resourcev1.ResourceClaim
	selections []*nodeSelection // of held claims; nil lets all nodes in
	allocator  structured.Allocator
}

func (s *Snapshot) deviceRequest(pod *corev1.Pod) (*deviceRequest, *Refusal) {
	claims, err := s.devices.claimsOf(pod)
	if err != nil {
		return nil, refuse(dynamicResourcesName, true, err.Error())
	}
	r := &deviceRequest{}
	for _, claim := range claims {
		if a := claim.Status.Allocation; a != nil {
			r.held = append(r.held, claim)
			var selection *nodeSelection
			if a.NodeSelector != nil {
				selection = s.selection(nil, a.NodeSelector)
			}
			r.selections = append(r.selections, selection)
			continue
		}
		if s.devices.assumed[keyOf(claim)] != nil {
			return nil, refuse(dynamicResourcesName, true, fmt.Sprintf("resource claim %s is in the process of being allocated", keyOf(claim)))
		}
		if refusal := s.checkClasses(claim); refusal != nil {
			return nil, refusal
		}
		r.open = append(r.open, claim)
	}
	if len(r.open) > 0 {
		r.allocator, err = structured.NewAllocator(context.Background(), deviceFeatures, s.devices.allocated(), classLister{&s.devices}, s.devices.sliceList(), s.devices.expressions)
		if err != nil {
			return nil, &Refusal{Rule: dynamicResourcesName, Err: err}
		}
	}
	return r, nil
}

// checkClasses reports a device class that a claim names and that does not exist.
func (s *Snapshot) checkClasses(claim *resourcev1.ResourceClaim) *Refusal {
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		classes := map[string]string{}
		if request.Exactly != nil {
			classes[request.Name] = request.Exactly.DeviceClassName
		}
		for _, sub := range request.FirstAvailable {
			classes[request.Name+"/"+sub.Name] = sub.DeviceClassName
		}
		if len(classes) == 0 {
			return refuse(dynamicResourcesName, true, fmt.Sprintf("resource claim %s, request %s: unknown request type", keyOf(claim), request.Name))
		}
		for name, class := range classes {
			if s.devices.classes[class] == nil {
				return refuse(dynamicResourcesName, true, fmt.Sprintf("request %s: device class %s does not exist", name, class))
			}
		}
	}
	return nil
}

// on finds devices for the open claims on a node.
func (r *deviceRequest) on(s *Snapshot, node int32) ([]resourcev1.AllocationResult, *Refusal) {
	for _, selection := range r.selections {
		if selection != nil && !selection.matches(node) {
			return nil, refusedClaimElsewhere
		}
	}
	if len(r.open) == 0 {
		return nil, nil
	}
	results, err := r.allocator.Allocate(context.Background(), s.nodes[node].object, r.open)
	switch {
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return nil, refuse(dynamicResourcesName, true, err.Error())
	case err != nil:
		return nil, &Refusal{Rule: dynamicResourcesName, Err: err}
	case len(results) != len(r.open):
		return nil, refusedDevices
	}
	return results, nil
}

func (dynamicResources) Filter(s *Snapshot, p *PodInfo) (Filter, *Refusal) {
	if len(p.Pod.Spec.ResourceClaims) == 0 {
		return Filter{}, nil
	}
	r, refusal := s.deviceRequest(p.Pod)
	if refusal != nil || len(r.held)+len(r.open) == 0 {
		return Filter{}, refusal
	}
	return Filter{Volatile: true, Check: func(node int32) *Refusal {
		_, refusal := r.on(s, node)
		return refusal
	}}, nil
}

// Score prefers nodes where the alternatives a claim names first can be had.
func (dynamicResources) Score(s *Snapshot, p *PodInfo) Scorer {
	if len(p.Pod.Spec.ResourceClaims) == 0 {
		return Scorer{}
	}
	r, refusal := s.deviceRequest(p.Pod)
	if refusal != nil {
		return Scorer{}
	}
	alternatives := false
	for _, claim := range r.open {
		for i := range claim.Spec.Devices.Requests {
			alternatives = alternatives || len(claim.Spec.Devices.Requests[i].FirstAvailable) > 0
		}
	}
	if !alternatives {
		return Scorer{}
	}
	return Scorer{Volatile: true, Scale: MostIsBest, Of: func(node int32) (sum int64) {
		results, refusal := r.on(s, node)
		if refusal != nil {
			return 0
		}
		for i, claim := range r.open {
			sum += alternativeScore(claim, &results[i])
		}
		return sum
	}}
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

func (dynamicResources) Hints() []Hint {
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
	if before != nil && before.Status.Allocation != nil && (after == nil || after.Status.Allocation == nil) {
		return true
	}
	if after == nil {
		return false
	}
	claims, err := s.devices.claimsOf(pod)
	if err != nil {
		return false // something else is still missing
	}
	for _, claim := range claims {
		if claim.UID == after.UID {
			return before == nil || !equality.Semantic.DeepEqual(&before.Status, &after.Status)
		}
	}
	return false
}
