package binding

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

// prepareDevices writes the allocations of the pod's claims and waits until the devices are ready.
func (b *Binder) prepareDevices(ctx context.Context, d *decision.Decision, allocations []snapshot.ClaimAllocation) error {
	for i := range allocations {
		if err := b.bindDevices(ctx, d.Pod.Pod, &allocations[i]); err != nil {
			return err
		}
	}
	return b.awaitDevices(ctx, d, allocations)
}

// bindDevices writes the allocation of a claim and reserves the claim for the pod.
func (b *Binder) bindDevices(ctx context.Context, pod *corev1.Pod, allocated *snapshot.ClaimAllocation) error {
	if resourceclaim.IsReservedForPod(pod, allocated.Claim, false) {
		return nil
	}
	if allocated.Extended != nil {
		if err := b.createExtendedResourceClaim(ctx, allocated); err != nil {
			return err
		}
	}
	updated, err := b.changeClaim(ctx, allocated.Claim, func(claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		return b.writeAllocation(ctx, claim, allocated.Allocation, pod)
	})
	if err != nil {
		return err
	}
	b.WithSnapshot(func(cluster *snapshot.Snapshot) { cluster.Devices.AllocationWritten(allocated, updated) })
	if allocated.Extended == nil {
		return nil
	}
	patch := statusPatch(pod, map[string]any{"extendedResourceClaimStatus": corev1.PodExtendedResourceClaimStatus{
		RequestMappings: allocated.Extended.Mappings, ResourceClaimName: updated.Name,
	}})
	if err := b.Writer.PatchStatus(ctx, pod, patch); err != nil {
		return fmt.Errorf("update pod %s ExtendedResourceClaimStatus: %w", snapshot.ObjectKey(pod), err)
	}
	return nil
}

// writeAllocation writes the allocation of a claim, if it has none yet, and reserves the claim for a pod.
func (b *Binder) writeAllocation(ctx context.Context, claim *resourcev1.ResourceClaim, allocation *resourcev1.AllocationResult, pod *corev1.Pod) (*resourcev1.ResourceClaim, error) {
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
			finalized, err := b.Writer.UpdateResourceClaim(ctx, claim)
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
	updated, err := b.Writer.UpdateResourceClaimStatus(ctx, claim)
	if err != nil {
		return nil, fmt.Errorf("add %s to claim %s: %w", what, snapshot.ObjectKey(claim), err)
	}
	return updated, nil
}

// changeClaim changes a copy of a claim. After a conflict it repeats the change with the current claim.
func (b *Binder) changeClaim(ctx context.Context, claim *resourcev1.ResourceClaim, change func(*resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error)) (*resourcev1.ResourceClaim, error) {
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
		if claim, err = b.Writer.GetResourceClaim(ctx, claim); err != nil {
			return nil, fmt.Errorf("get updated claim after conflict: %w", err)
		}
	}
}

// createExtendedResourceClaim creates the claim for the extended resources of a pod.
func (b *Binder) createExtendedResourceClaim(ctx context.Context, allocated *snapshot.ClaimAllocation) error {
	claim := allocated.Claim.DeepCopy()
	claim.Name = ""
	created, err := b.Writer.CreateResourceClaim(ctx, claim)
	b.ClaimCreated(claim, err)
	if err != nil {
		return fmt.Errorf("create claim for extended resources %s: %w", snapshot.ObjectKey(allocated.Claim), err)
	}
	b.WithSnapshot(func(cluster *snapshot.Snapshot) {
		cluster.Devices.RevertAllocations([]snapshot.ClaimAllocation{*allocated})
		allocated.Claim, allocated.Created = created, true
		cluster.Devices.AssumeAllocations([]snapshot.ClaimAllocation{*allocated})
	})
	return nil
}

// dropReservation removes a pod from status.reservedFor of a claim.
func (b *Binder) dropReservation(ctx context.Context, pod *corev1.Pod, claim *resourcev1.ResourceClaim) {
	_, err := b.changeClaim(ctx, claim, func(claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		claim.Status.ReservedFor = slices.DeleteFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == pod.UID })
		return b.Writer.UpdateResourceClaimStatus(ctx, claim)
	})
	b.warn(ctx, err, "failed to remove reservation from claim", claim)
}

// deleteClaim deletes a claim for extended resources, after removing its finalizer.
func (b *Binder) deleteClaim(ctx context.Context, claim *resourcev1.ResourceClaim) {
	_, err := b.changeClaim(ctx, claim, func(claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
		return b.Writer.UpdateResourceClaim(ctx, claim)
	})
	if err == nil {
		err = b.Writer.DeleteResourceClaim(ctx, claim)
	}
	b.warn(ctx, err, "failed to delete claim for extended resources", claim)
}

// warn logs that a claim could not be written, unless the claim is deleted or ctx has ended.
func (b *Binder) warn(ctx context.Context, err error, message string, claim *resourcev1.ResourceClaim) {
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		b.Log.Warn(message, "claim", snapshot.ObjectKey(claim), "error", err)
	}
}

// DeallocateUnusedClaims deallocates a claim that is used by no other pod and whose allocation keeps this pod from a node it could run
// on. It returns a message if it did; then the pod is retried when the claim is deallocated. The caller holds the snapshot's lock.
func (b *Binder) DeallocateUnusedClaims(ctx context.Context, cluster *snapshot.Snapshot, d *decision.Decision) string {
	plugin, pod := d.Profile.DynamicResources, d.Pod.Pod
	if plugin == nil || d.Refusal != nil || !cluster.WantsDevices(d.Pod) {
		return ""
	}
	request, refusal := plugin.PodDevices(cluster, d.Pod)
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
		b.Background(func() {
			_, err := b.Writer.UpdateResourceClaimStatus(ctx, deallocated)
			b.warn(ctx, err, "failed to deallocate claim", deallocated)
		})
		return "deallocation of ResourceClaim completed"
	}
	if request.Extended == nil || request.Extended.Stale == nil {
		return ""
	}
	if stale := request.Extended.Stale; stale.DeletionTimestamp == nil {
		b.Background(func() { b.deleteClaim(ctx, stale) })
	}
	return "deletion of ResourceClaim completed"
}

// awaitDevices waits until the binding conditions of the pod's devices are met.
func (b *Binder) awaitDevices(ctx context.Context, d *decision.Decision, allocations []snapshot.ClaimAllocation) error {
	if !slices.ContainsFunc(allocations, func(allocated snapshot.ClaimAllocation) bool { return plugins.HasBindingConditions(allocated.Claim) }) {
		return nil
	}
	b.RecordEvent(d.Profile, d.Pod.Pod, corev1.EventTypeNormal, "BindingConditionsPending", "waiting for binding conditions for device on node "+d.Node)
	deadline := time.NewTimer(d.Profile.DynamicResources.BindingTimeout)
	defer deadline.Stop()
	for {
		var ready bool
		var err error
		b.WithSnapshot(func(cluster *snapshot.Snapshot) { ready, err = allDevicesReady(cluster, d, allocations) })
		if ready || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.C:
			return fmt.Errorf("%w: %w", plugins.ErrDeviceBindingTimeout, context.DeadlineExceeded)
		case <-time.After(pollInterval):
		}
	}
}

// allDevicesReady reports whether the binding conditions of all claims are met.
func allDevicesReady(cluster *snapshot.Snapshot, d *decision.Decision, allocations []snapshot.ClaimAllocation) (bool, error) {
	if cluster.PodEntries[d.Pod.Pod.UID] == nil {
		return false, fmt.Errorf("pod does not exist any more: %s", snapshot.ObjectKey(d.Pod.Pod))
	}
	for _, allocated := range allocations {
		claim := cluster.Devices.Claim(snapshot.ObjectKey(allocated.Claim))
		if claim == nil {
			return false, fmt.Errorf("could not find ResourceClaim %q", snapshot.ObjectKey(allocated.Claim))
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
