package scheduler

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

func reserveDevices(cluster *snapshot.Snapshot, d *decision.Decision, r *reservation) error {
	rule := d.Profile.DynamicResources
	if rule == nil || !cluster.WantsDevices(d.Pod) {
		return nil
	}
	request, refusal := rule.PodDevices(cluster, d.Pod)
	if refusal == nil {
		var grants []snapshot.ClaimAllocation
		if grants, refusal = request.AllocateOn(cluster, d.NodeNumber); refusal == nil {
			for _, claim := range request.Allocated {
				grants = append(grants, snapshot.ClaimAllocation{Claim: claim})
			}
			r.devices = grants
			cluster.Devices.AssumeAllocations(r.devices)
			return nil
		}
	}
	if refusal.Err != nil {
		return refusal.Err
	}
	return fmt.Errorf("devices on node %s: %v", d.Node, refusal.Reasons)
}

// prepareDevices writes down which devices the pod has, and waits until they are there.
func (s *Scheduler) prepareDevices(ctx context.Context, d *decision.Decision, grants []snapshot.ClaimAllocation) error {
	for i := range grants {
		if err := s.bindDevices(ctx, d.Pod.Pod, &grants[i]); err != nil {
			return err
		}
	}
	return s.awaitDevices(ctx, d, grants)
}

// bindDevices writes down that a claim has its devices, and that the pod uses it.
func (s *Scheduler) bindDevices(ctx context.Context, pod *corev1.Pod, g *snapshot.ClaimAllocation) error {
	if resourceclaim.IsReservedForPod(pod, g.Claim, false) {
		return nil
	}
	if g.Extended != nil {
		if err := s.makeExtendedClaim(ctx, g); err != nil {
			return err
		}
	}
	answer, err := s.changeClaim(ctx, g.Claim, func(claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		return s.grant(ctx, claim, g.Allocation, pod)
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.snapshot.Devices.AllocationWritten(g, answer)
	s.mu.Unlock()
	if g.Extended == nil {
		return nil
	}
	patch := statusPatch(pod, map[string]any{"extendedResourceClaimStatus": corev1.PodExtendedResourceClaimStatus{
		RequestMappings: g.Extended.Mappings, ResourceClaimName: answer.Name,
	}})
	if err := s.writer.patchStatus(ctx, pod, patch); err != nil {
		return fmt.Errorf("update pod %s ExtendedResourceClaimStatus: %w", snapshot.ObjectKey(pod), err)
	}
	return nil
}

// grant gives a claim its devices, if it has none yet, and reserves it for a pod.
func (s *Scheduler) grant(ctx context.Context, claim *resourcev1.ResourceClaim, allocation *resourcev1.AllocationResult, pod *corev1.Pod) (*resourcev1.ResourceClaim, error) {
	what := "reservation"
	switch {
	case claim.DeletionTimestamp != nil:
		return nil, fmt.Errorf("claim %s got deleted in the meantime", snapshot.ObjectKey(claim))
	case allocation != nil && claim.Status.Allocation != nil:
		return nil, fmt.Errorf("claim %s got allocated elsewhere in the meantime", snapshot.ObjectKey(claim))
	case allocation == nil && claim.Status.Allocation == nil:
		return nil, fmt.Errorf("claim %s got deallocated elsewhere in the meantime", snapshot.ObjectKey(claim))
	case allocation != nil:
		if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
			claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
			updated, err := s.writer.updateDeviceClaim(ctx, claim)
			if err != nil {
				return nil, fmt.Errorf("add finalizer to claim %s: %w", snapshot.ObjectKey(claim), err)
			}
			claim = updated.DeepCopy()
		}
		what, claim.Status.Allocation = "allocation and reservation", allocation.DeepCopy()
	}
	claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
	if claim.Status.Allocation.AllocationTimestamp == nil {
		now := metav1.Now()
		claim.Status.Allocation.AllocationTimestamp = &now
	}
	answer, err := s.writer.updateDeviceClaimStatus(ctx, claim)
	if err != nil {
		return nil, fmt.Errorf("add %s to claim %s: %w", what, snapshot.ObjectKey(claim), err)
	}
	return answer, nil
}

// changeClaim changes a copy of a claim. When somebody else was faster, it is done again with the claim as it is then.
func (s *Scheduler) changeClaim(ctx context.Context, claim *resourcev1.ResourceClaim, change func(*resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error)) (*resourcev1.ResourceClaim, error) {
	for try := 1; ; try++ {
		answer, err := change(claim.DeepCopy())
		if !apierrors.IsConflict(err) || try == 5 {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(jitter(10 * time.Millisecond)):
		}
		if claim, err = s.writer.getDeviceClaim(ctx, claim); err != nil {
			return nil, fmt.Errorf("get updated claim after conflict: %w", err)
		}
	}
}

// makeExtendedClaim makes the claim that stands for a pod's extended resources.
func (s *Scheduler) makeExtendedClaim(ctx context.Context, g *snapshot.ClaimAllocation) error {
	claim := g.Claim.DeepCopy()
	claim.Name = ""
	made, err := s.writer.createDeviceClaim(ctx, claim)
	if err != nil {
		return fmt.Errorf("create claim for extended resources %s: %w", snapshot.ObjectKey(g.Claim), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshot.Devices.RevertAllocations([]snapshot.ClaimAllocation{*g})
	g.Claim, g.Created = made, true
	s.snapshot.Devices.AssumeAllocations([]snapshot.ClaimAllocation{*g})
	return nil
}

// releaseDevices takes back what was written for a pod that could not be bound after all.
func (s *Scheduler) releaseDevices(ctx context.Context, pod *corev1.Pod, grants []snapshot.ClaimAllocation) {
	for i := range grants {
		claim := grants[i].Claim
		switch {
		case grants[i].Created:
			s.background(func() { s.deleteClaim(ctx, claim) })
		case resourceclaim.IsReservedForPod(pod, claim, false):
			s.background(func() { s.dropReservation(ctx, pod, claim) })
		}
	}
}

// dropReservation takes a pod off the list of those that use a claim.
func (s *Scheduler) dropReservation(ctx context.Context, pod *corev1.Pod, claim *resourcev1.ResourceClaim) {
	_, err := s.changeClaim(ctx, claim, func(claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		claim.Status.ReservedFor = slices.DeleteFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == pod.UID })
		return s.writer.updateDeviceClaimStatus(ctx, claim)
	})
	s.warn(ctx, err, "claim is not freed", claim)
}

// warn tells of a claim that could not be written, unless it is gone or everything ends anyway.
func (s *Scheduler) warn(ctx context.Context, err error, what string, claim *resourcev1.ResourceClaim) {
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		s.log.Warn(what, "claim", snapshot.ObjectKey(claim), "error", err)
	}
}

// deleteClaim deletes a claim made for extended resources, with the finalizer that keeps its devices.
func (s *Scheduler) deleteClaim(ctx context.Context, claim *resourcev1.ResourceClaim) {
	_, err := s.changeClaim(ctx, claim, func(claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
		return s.writer.updateDeviceClaim(ctx, claim)
	})
	if err == nil {
		err = s.writer.deleteDeviceClaim(ctx, claim)
	}
	s.warn(ctx, err, "claim for extended resources is not deleted", claim)
}

// deallocateUnusedClaims gives back the devices of a claim that nobody but this pod uses and that keeps it from a node it could run on.
// It tells what it did: then the pod is tried again when the claim is free.
func (s *Scheduler) deallocateUnusedClaims(ctx context.Context, d *decision.Decision) string {
	rule, pod := d.Profile.DynamicResources, d.Pod.Pod
	if rule == nil || d.Refusal != nil || !s.snapshot.WantsDevices(d.Pod) {
		return ""
	}
	request, refusal := rule.PodDevices(s.snapshot, d.Pod)
	if refusal != nil {
		return ""
	}
	others := func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID != pod.UID }
	for i, claim := range request.Allocated {
		if slices.ContainsFunc(claim.Status.ReservedFor, others) || !decision.ClaimBlocksNode(request, d, i) {
			continue
		}
		free := claim.DeepCopy()
		free.Status.Allocation, free.Status.ReservedFor, free.Status.Devices = nil, nil, nil
		s.background(func() {
			_, err := s.writer.updateDeviceClaimStatus(ctx, free)
			s.warn(ctx, err, "claim is not freed", free)
		})
		return "deallocation of ResourceClaim completed"
	}
	if request.Extended == nil || request.Extended.Stale == nil {
		return ""
	}
	if stale := request.Extended.Stale; stale.DeletionTimestamp == nil {
		s.background(func() { s.deleteClaim(ctx, stale) })
	}
	return "deletion of ResourceClaim completed"
}

// awaitDevices waits until drivers say that the pod's devices are there.
func (s *Scheduler) awaitDevices(ctx context.Context, d *decision.Decision, grants []snapshot.ClaimAllocation) error {
	if !slices.ContainsFunc(grants, func(g snapshot.ClaimAllocation) bool { return plugins.HasBindingConditions(g.Claim) }) {
		return nil
	}
	s.recordEvent(d.Profile, d.Pod.Pod, corev1.EventTypeNormal, "BindingConditionsPending", "waiting for binding conditions for device on node "+d.Node)
	deadline := time.NewTimer(d.Profile.DynamicResources.BindingTimeout)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		ready, err := s.allDevicesReady(d, grants)
		s.mu.Unlock()
		if ready || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.C:
			return fmt.Errorf("%w: %w", plugins.ErrDeviceBindingTimeout, context.DeadlineExceeded)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *Scheduler) allDevicesReady(d *decision.Decision, grants []snapshot.ClaimAllocation) (bool, error) {
	if s.snapshot.PodEntries[d.Pod.Pod.UID] == nil {
		return false, fmt.Errorf("pod does not exist any more: %s", snapshot.ObjectKey(d.Pod.Pod))
	}
	for _, g := range grants {
		claim := s.snapshot.Devices.Claim(snapshot.ObjectKey(g.Claim))
		if claim == nil {
			return false, fmt.Errorf("could not find ResourceClaim %q", snapshot.ObjectKey(g.Claim))
		}
		ready, err := plugins.BindingConditionsMet(claim)
		if err == nil && !ready && d.Profile.DynamicResources.BindingTimedOut(claim) {
			err = fmt.Errorf("%w: claim=%s", plugins.ErrDeviceBindingTimeout, claim.Name)
		}
		if !ready || err != nil {
			return false, err
		}
	}
	return true, nil
}
