package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

var (
	errDevicesFailed = errors.New("device binding failed")
	errDevicesLate   = errors.New("device binding timeout")
)

func (s *Scheduler) reserveDevices(d *Decision, r *reservation) error {
	rule := d.profile.devices
	if rule == nil || !s.snapshot.wantsDevices(d.Pod) {
		return nil
	}
	request, refusal := rule.request(s.snapshot, d.Pod)
	if refusal == nil {
		var grants []claimGrant
		if grants, refusal = request.on(s.snapshot, d.number); refusal == nil {
			for _, claim := range request.held {
				grants = append(grants, claimGrant{claim: claim})
			}
			r.devices = grants
			s.snapshot.devices.assume(r.devices)
			return nil
		}
	}
	if refusal.Err != nil {
		return refusal.Err
	}
	return fmt.Errorf("devices on node %s: %v", d.Node, refusal.Reasons)
}

// prepareDevices writes down which devices the pod has, and waits until they are there.
func (s *Scheduler) prepareDevices(ctx context.Context, d *Decision, grants []claimGrant) error {
	for i := range grants {
		if err := s.bindDevices(ctx, d.Pod.Pod, &grants[i]); err != nil {
			return err
		}
	}
	return s.awaitDevices(ctx, d, grants)
}

// bindDevices writes down that a claim has its devices, and that the pod uses it.
func (s *Scheduler) bindDevices(ctx context.Context, pod *corev1.Pod, g *claimGrant) error {
	if resourceclaim.IsReservedForPod(pod, g.claim, false) {
		return nil
	}
	if g.extended != nil {
		if err := s.makeExtendedClaim(ctx, g); err != nil {
			return err
		}
	}
	answer, err := s.changeClaim(ctx, g.claim, func(claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		return s.grant(ctx, claim, g.allocation, pod)
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.snapshot.devices.write(g, answer)
	s.mu.Unlock()
	if g.extended == nil {
		return nil
	}
	patch := statusPatch(pod, map[string]any{"extendedResourceClaimStatus": corev1.PodExtendedResourceClaimStatus{
		RequestMappings: g.extended.mappings, ResourceClaimName: answer.Name,
	}})
	if err := s.writer.patchStatus(ctx, pod, patch); err != nil {
		return fmt.Errorf("update pod %s ExtendedResourceClaimStatus: %w", keyOf(pod), err)
	}
	return nil
}

// grant gives a claim its devices, if it has none yet, and reserves it for a pod.
func (s *Scheduler) grant(ctx context.Context, claim *resourcev1.ResourceClaim, allocation *resourcev1.AllocationResult, pod *corev1.Pod) (*resourcev1.ResourceClaim, error) {
	what := "reservation"
	switch {
	case claim.DeletionTimestamp != nil:
		return nil, fmt.Errorf("claim %s got deleted in the meantime", keyOf(claim))
	case allocation != nil && claim.Status.Allocation != nil:
		return nil, fmt.Errorf("claim %s got allocated elsewhere in the meantime", keyOf(claim))
	case allocation == nil && claim.Status.Allocation == nil:
		return nil, fmt.Errorf("claim %s got deallocated elsewhere in the meantime", keyOf(claim))
	case allocation != nil:
		if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
			claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
			updated, err := s.writer.updateDeviceClaim(ctx, claim)
			if err != nil {
				return nil, fmt.Errorf("add finalizer to claim %s: %w", keyOf(claim), err)
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
		return nil, fmt.Errorf("add %s to claim %s: %w", what, keyOf(claim), err)
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
func (s *Scheduler) makeExtendedClaim(ctx context.Context, g *claimGrant) error {
	claim := g.claim.DeepCopy()
	claim.Name = ""
	made, err := s.writer.createDeviceClaim(ctx, claim)
	if err != nil {
		return fmt.Errorf("create claim for extended resources %s: %w", keyOf(g.claim), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshot.devices.revert([]claimGrant{*g})
	g.claim, g.made = made, true
	s.snapshot.devices.assume([]claimGrant{*g})
	return nil
}

// giveBackDevices takes back what was written for a pod that could not be bound after all.
func (s *Scheduler) giveBackDevices(ctx context.Context, pod *corev1.Pod, grants []claimGrant) {
	for i := range grants {
		claim := grants[i].claim
		switch {
		case grants[i].made:
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
		s.log.Warn(what, "claim", keyOf(claim), "error", err)
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

// freeIdleDevices gives back the devices of a claim that nobody but this pod uses and that keeps it from a node it could run on.
// It tells what it did: then the pod is tried again when the claim is free.
func (s *Scheduler) freeIdleDevices(ctx context.Context, d *Decision) string {
	rule, pod := d.profile.devices, d.Pod.Pod
	if rule == nil || d.refusal != nil || !s.snapshot.wantsDevices(d.Pod) {
		return ""
	}
	request, refusal := rule.request(s.snapshot, d.Pod)
	if refusal != nil {
		return ""
	}
	others := func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID != pod.UID }
	for i, claim := range request.held {
		if slices.ContainsFunc(claim.Status.ReservedFor, others) || !request.keepsAway(d, i) {
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
	if request.extended == nil || request.extended.stale == nil {
		return ""
	}
	if stale := request.extended.stale; stale.DeletionTimestamp == nil {
		s.background(func() { s.deleteClaim(ctx, stale) })
	}
	return "deletion of ResourceClaim completed"
}

// keepsAway reports whether a held claim keeps the pod from a node that nothing else keeps it from.
func (q *deviceRequest) keepsAway(d *Decision, held int) bool {
	verdicts, _ := d.Explain()
	return slices.ContainsFunc(verdicts, func(v Verdict) bool {
		return v.Refusal == refusedClaimElsewhere && q.unavailable(held, d.snapshot.nodeNumber[v.Node])
	})
}

// devicesReady reports whether the devices of a claim say that a pod may be bound. An error means that they never will.
func devicesReady(claim *resourcev1.ResourceClaim) (bool, error) {
	if claim.Status.Allocation == nil {
		return false, nil
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if len(r.BindingConditions) == 0 {
			continue
		}
		conditions, told := deviceConditions(claim, r)
		if !told {
			return false, nil
		}
		for _, name := range r.BindingFailureConditions {
			if c := meta.FindStatusCondition(conditions, name); c != nil && c.Status == metav1.ConditionTrue {
				return false, fmt.Errorf("%w: claim=%s, reason=%s, message=%q", errDevicesFailed, claim.Name, c.Reason, c.Message)
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

// deviceConditions are what a driver has told of an allocated device.
func deviceConditions(claim *resourcev1.ResourceClaim, r *resourcev1.DeviceRequestAllocationResult) (conditions []metav1.Condition, told bool) {
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

// waitsForDevices reports whether devices of a claim have conditions to be met before a pod is bound.
func waitsForDevices(claim *resourcev1.ResourceClaim) bool {
	return claim.Status.Allocation != nil && slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
		return len(r.BindingConditions) > 0
	})
}

// late reports whether a claim has waited for its devices for longer than the profile allows.
func (r *dynamicResources) late(claim *resourcev1.ResourceClaim) bool {
	a := claim.Status.Allocation
	return waitsForDevices(claim) && a.AllocationTimestamp != nil && time.Since(a.AllocationTimestamp.Time) > r.bindingTimeout
}

// usable reports whether the devices of an allocated claim are ready or may still become so.
func (r *dynamicResources) usable(claim *resourcev1.ResourceClaim) bool {
	ready, err := devicesReady(claim)
	return err == nil && (ready || !r.late(claim))
}

// awaitDevices waits until drivers say that the pod's devices are there.
func (s *Scheduler) awaitDevices(ctx context.Context, d *Decision, grants []claimGrant) error {
	if !slices.ContainsFunc(grants, func(g claimGrant) bool { return waitsForDevices(g.claim) }) {
		return nil
	}
	s.tell(d.profile, d.Pod.Pod, corev1.EventTypeNormal, "BindingConditionsPending", "waiting for binding conditions for device on node "+d.Node)
	deadline := time.NewTimer(d.profile.devices.bindingTimeout)
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
			return fmt.Errorf("%w: %w", errDevicesLate, context.DeadlineExceeded)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *Scheduler) allDevicesReady(d *Decision, grants []claimGrant) (bool, error) {
	if s.snapshot.pods[d.Pod.Pod.UID] == nil {
		return false, fmt.Errorf("pod does not exist any more: %s", keyOf(d.Pod.Pod))
	}
	for _, g := range grants {
		claim := s.snapshot.devices.claim(keyOf(g.claim))
		if claim == nil {
			return false, fmt.Errorf("could not find ResourceClaim %q", keyOf(g.claim))
		}
		ready, err := devicesReady(claim)
		if err == nil && !ready && d.profile.devices.late(claim) {
			err = fmt.Errorf("%w: claim=%s", errDevicesLate, claim.Name)
		}
		if !ready || err != nil {
			return false, err
		}
	}
	return true, nil
}
