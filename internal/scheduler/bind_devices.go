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

// reserveDevices allocates the devices of a pod on its node.
func reserveDevices(cluster *snapshot.Snapshot, d *decision.Decision, r *reservation) error {
	plugin := d.Profile.DynamicResources
	if plugin == nil || !cluster.WantsDevices(d.Pod) {
		return nil
	}
	request, refusal := plugin.PodDevices(cluster, d.Pod)
	if refusal == nil {
		var allocations []snapshot.ClaimAllocation
		if allocations, refusal = request.AllocateOn(cluster, d.NodeNumber); refusal == nil {
			for _, claim := range request.Allocated {
				allocations = append(allocations, snapshot.ClaimAllocation{Claim: claim})
			}
			r.devices = allocations
			cluster.Devices.AssumeAllocations(r.devices)
			return nil
		}
	}
	if refusal.Err != nil {
		return refusal.Err
	}
	return fmt.Errorf("devices on node %s: %v", d.Node, refusal.Reasons)
}

// prepareDevices writes the allocations of the pod's claims and waits until the devices are ready.
func (s *Scheduler) prepareDevices(ctx context.Context, d *decision.Decision, allocations []snapshot.ClaimAllocation) error {
	for i := range allocations {
		if err := s.bindDevices(ctx, d.Pod.Pod, &allocations[i]); err != nil {
			return err
		}
	}
	return s.awaitDevices(ctx, d, allocations)
}

// bindDevices writes the allocation of a claim and reserves the claim for the pod.
func (s *Scheduler) bindDevices(ctx context.Context, pod *corev1.Pod, g *snapshot.ClaimAllocation) error {
	if resourceclaim.IsReservedForPod(pod, g.Claim, false) {
		return nil
	}
	if g.Extended != nil {
		if err := s.createExtendedResourceClaim(ctx, g); err != nil {
			return err
		}
	}
	updated, err := s.changeClaim(ctx, g.Claim, func(claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		return s.writeAllocation(ctx, claim, g.Allocation, pod)
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.snapshot.Devices.AllocationWritten(g, updated)
	s.mu.Unlock()
	if g.Extended == nil {
		return nil
	}
	patch := statusPatch(pod, map[string]any{"extendedResourceClaimStatus": corev1.PodExtendedResourceClaimStatus{
		RequestMappings: g.Extended.Mappings, ResourceClaimName: updated.Name,
	}})
	if err := s.writer.patchStatus(ctx, pod, patch); err != nil {
		return fmt.Errorf("update pod %s ExtendedResourceClaimStatus: %w", snapshot.ObjectKey(pod), err)
	}
	return nil
}

// writeAllocation writes the allocation of a claim, if it has none yet, and reserves the claim for a pod.
func (s *Scheduler) writeAllocation(ctx context.Context, claim *resourcev1.ResourceClaim, allocation *resourcev1.AllocationResult, pod *corev1.Pod) (*resourcev1.ResourceClaim, error) {
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
			finalized, err := s.writer.updateDeviceClaim(ctx, claim)
			if err != nil {
				return nil, fmt.Errorf("add finalizer to claim %s: %w", snapshot.ObjectKey(claim), err)
			}
			claim = finalized.DeepCopy()
		}
		what, claim.Status.Allocation = "allocation and reservation", allocation.DeepCopy()
	}
	claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
	if claim.Status.Allocation.AllocationTimestamp == nil {
		now := metav1.Now()
		claim.Status.Allocation.AllocationTimestamp = &now
	}
	updated, err := s.writer.updateDeviceClaimStatus(ctx, claim)
	if err != nil {
		return nil, fmt.Errorf("add %s to claim %s: %w", what, snapshot.ObjectKey(claim), err)
	}
	return updated, nil
}

// changeClaim changes a copy of a claim. After a conflict it repeats the change with the current claim.
func (s *Scheduler) changeClaim(ctx context.Context, claim *resourcev1.ResourceClaim, change func(*resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error)) (*resourcev1.ResourceClaim, error) {
	for try := 1; ; try++ {
		updated, err := change(claim.DeepCopy())
		if !apierrors.IsConflict(err) || try == 5 {
			return updated, err
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

// createExtendedResourceClaim creates the claim for the extended resources of a pod.
func (s *Scheduler) createExtendedResourceClaim(ctx context.Context, g *snapshot.ClaimAllocation) error {
	claim := g.Claim.DeepCopy()
	claim.Name = ""
	created, err := s.writer.createDeviceClaim(ctx, claim)
	if err != nil {
		return fmt.Errorf("create claim for extended resources %s: %w", snapshot.ObjectKey(g.Claim), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshot.Devices.RevertAllocations([]snapshot.ClaimAllocation{*g})
	g.Claim, g.Created = created, true
	s.snapshot.Devices.AssumeAllocations([]snapshot.ClaimAllocation{*g})
	return nil
}

// releaseDevices reverts what was written to claims for a pod that could not be bound. The caller holds s.mu.
func (s *Scheduler) releaseDevices(ctx context.Context, pod *corev1.Pod, allocations []snapshot.ClaimAllocation) {
	for i := range allocations {
		claim := allocations[i].Claim
		switch {
		case allocations[i].Created:
			s.background(func() { s.deleteClaim(ctx, claim) })
		case resourceclaim.IsReservedForPod(pod, claim, false):
			s.background(func() { s.dropReservation(ctx, pod, claim) })
		}
	}
}

// dropReservation removes a pod from status.reservedFor of a claim.
func (s *Scheduler) dropReservation(ctx context.Context, pod *corev1.Pod, claim *resourcev1.ResourceClaim) {
	_, err := s.changeClaim(ctx, claim, func(claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		claim.Status.ReservedFor = slices.DeleteFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == pod.UID })
		return s.writer.updateDeviceClaimStatus(ctx, claim)
	})
	s.warn(ctx, err, "failed to remove reservation from claim", claim)
}

// warn logs that a claim could not be written, unless the claim is deleted or ctx has ended.
func (s *Scheduler) warn(ctx context.Context, err error, message string, claim *resourcev1.ResourceClaim) {
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		s.log.Warn(message, "claim", snapshot.ObjectKey(claim), "error", err)
	}
}

// deleteClaim deletes a claim for extended resources, after removing its finalizer.
func (s *Scheduler) deleteClaim(ctx context.Context, claim *resourcev1.ResourceClaim) {
	_, err := s.changeClaim(ctx, claim, func(claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
		return s.writer.updateDeviceClaim(ctx, claim)
	})
	if err == nil {
		err = s.writer.deleteDeviceClaim(ctx, claim)
	}
	s.warn(ctx, err, "failed to delete claim for extended resources", claim)
}

// deallocateUnusedClaims deallocates a claim that is used by no other pod and whose allocation keeps this pod from a node it could run
// on. It returns a message if it did; then the pod is retried when the claim is deallocated. The caller holds s.mu.
func (s *Scheduler) deallocateUnusedClaims(ctx context.Context, d *decision.Decision) string {
	plugin, pod := d.Profile.DynamicResources, d.Pod.Pod
	if plugin == nil || d.Refusal != nil || !s.snapshot.WantsDevices(d.Pod) {
		return ""
	}
	request, refusal := plugin.PodDevices(s.snapshot, d.Pod)
	if refusal != nil {
		return ""
	}
	others := func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID != pod.UID }
	for i, claim := range request.Allocated {
		if slices.ContainsFunc(claim.Status.ReservedFor, others) || !decision.ClaimBlocksNode(request, d, i) {
			continue
		}
		deallocated := claim.DeepCopy()
		deallocated.Status.Allocation, deallocated.Status.ReservedFor, deallocated.Status.Devices = nil, nil, nil
		s.background(func() {
			_, err := s.writer.updateDeviceClaimStatus(ctx, deallocated)
			s.warn(ctx, err, "failed to deallocate claim", deallocated)
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

// awaitDevices waits until the binding conditions of the pod's devices are met.
func (s *Scheduler) awaitDevices(ctx context.Context, d *decision.Decision, allocations []snapshot.ClaimAllocation) error {
	if !slices.ContainsFunc(allocations, func(g snapshot.ClaimAllocation) bool { return plugins.HasBindingConditions(g.Claim) }) {
		return nil
	}
	s.recordEvent(d.Profile, d.Pod.Pod, corev1.EventTypeNormal, "BindingConditionsPending", "waiting for binding conditions for device on node "+d.Node)
	deadline := time.NewTimer(d.Profile.DynamicResources.BindingTimeout)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		ready, err := s.allDevicesReady(d, allocations)
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

// allDevicesReady reports whether the binding conditions of all claims are met. The caller holds s.mu.
func (s *Scheduler) allDevicesReady(d *decision.Decision, allocations []snapshot.ClaimAllocation) (bool, error) {
	if s.snapshot.PodEntries[d.Pod.Pod.UID] == nil {
		return false, fmt.Errorf("pod does not exist any more: %s", snapshot.ObjectKey(d.Pod.Pod))
	}
	for _, g := range allocations {
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
