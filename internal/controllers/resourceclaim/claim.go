package resourceclaim

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// claimView is the observed state of a claim.
type claimView struct {
	claim *resourceapi.ResourceClaim
	// consumers are the entries of status.reservedFor that still use the claim.
	consumers []resourceapi.ResourceClaimConsumerReference
	// owner is the pod of the name of the owner, nil if there is none.
	owner *corev1.Pod
}

// syncClaim removes pods that are done from the reservations of a claim, deallocates a claim that lost its last one, and deletes the claim
// of a pod that is done. The finalizer is removed last: the claim must not disappear while its devices are allocated.
func (c *claims) syncClaim(ctx context.Context, key controller.Key) error {
	claim, ok := c.claims.Get(key.Namespace, key.Name)
	if !ok {
		return nil
	}
	v, err := c.observeClaim(ctx, claim)
	if err != nil {
		return err
	}
	current := claim
	if released := v.released(); released != nil {
		if current, err = c.capture(ctx, key, controller.NewUpdateStatus(released).Ignoring(metav1.StatusReasonNotFound)); err != nil || current == nil {
			return err
		}
	}
	var plan controller.Plan
	if unlocked := v.withoutFinalizer(current); unlocked != nil {
		plan.AddStep(controller.NewUpdate(unlocked).Ignoring(metav1.StatusReasonNotFound))
	}
	if v.isUnneeded() {
		plan.AddStep(controller.NewDelete(claim))
	}
	return c.setup.Apply(ctx, key, plan)
}

// observeClaim gathers the consumers of a claim and its owner.
func (c *claims) observeClaim(ctx context.Context, claim *resourceapi.ResourceClaim) (claimView, error) {
	v := claimView{claim: claim}
	for _, consumer := range claim.Status.ReservedFor {
		isUsing, err := c.isUsing(ctx, claim.Namespace, consumer)
		if err != nil {
			return claimView{}, err
		}
		if isUsing {
			v.consumers = append(v.consumers, consumer)
		}
	}
	if owner := podOwner(claim); owner != nil {
		v.owner, _ = c.pods.Get(claim.Namespace, owner.Name)
	}
	return v, nil
}

// isUsing reports whether a consumer may still use a claim. A pod that is not cached is read from the server: it may be newer than the
// cache, and its reservation must not be removed. Consumers other than pods are kept.
func (c *claims) isUsing(ctx context.Context, namespace string, consumer resourceapi.ResourceClaimConsumerReference) (bool, error) {
	if consumer.APIGroup != "" || consumer.Resource != "pods" {
		return true, nil
	}
	if pod, ok := c.pods.Get(namespace, consumer.Name); ok {
		return pod.UID == consumer.UID && !isDone(pod), nil
	}
	pod, err := client.For[*corev1.Pod](c.setup.Client).Get(ctx, namespace, consumer.Name)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read pod %s/%s of a resource claim: %w", namespace, consumer.Name, err)
	}
	return pod.UID == consumer.UID, nil
}

// released returns the claim without the reservations that ended, and without its allocation when none is left. It returns nil if its
// status is up to date. A claim that was never reserved stays allocated until it is deleted: a driver need not set both together.
func (v claimView) released() *resourceapi.ResourceClaim {
	ended := len(v.consumers) < len(v.claim.Status.ReservedFor)
	deleted := v.claim.DeletionTimestamp != nil && len(v.consumers) == 0 && v.claim.Status.Allocation != nil && hasFinalizer(v.claim)
	if !ended && !deleted {
		return nil
	}
	claim := v.claim.DeepCopy()
	claim.Status.ReservedFor = v.consumers
	if len(v.consumers) == 0 && hasFinalizer(claim) {
		claim.Status.Allocation = nil
	}
	return claim
}

// withoutFinalizer returns the current claim without the finalizer, or nil if the finalizer must stay or is not there. The scheduler adds
// it before it allocates, so an unallocated claim keeps it unless its last reservation has just ended or the claim is being deleted.
func (v claimView) withoutFinalizer(current *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	ended := len(v.claim.Status.ReservedFor) > 0 && len(v.consumers) == 0
	deleted := v.claim.DeletionTimestamp != nil && len(v.consumers) == 0
	if !ended && !deleted || !hasFinalizer(current) || current.Status.Allocation != nil {
		return nil
	}
	unlocked := current.DeepCopy()
	unlocked.Finalizers = slices.DeleteFunc(unlocked.Finalizers, func(f string) bool { return f == resourceapi.Finalizer })
	return unlocked
}

// isUnneeded reports whether the claim was created for a pod that was replaced or is done. Claims of pods that do not exist are left to the
// garbage collector: such a pod may be newer than the cache.
func (v claimView) isUnneeded() bool {
	owner := podOwner(v.claim)
	return len(v.consumers) == 0 && v.claim.DeletionTimestamp == nil && owner != nil && v.owner != nil && (v.owner.UID != owner.UID || isDone(v.owner))
}

func hasFinalizer(claim *resourceapi.ResourceClaim) bool {
	return slices.Contains(claim.Finalizers, resourceapi.Finalizer)
}

// podOwner returns the reference to the pod that controls a claim, or nil.
func podOwner(claim *resourceapi.ResourceClaim) *metav1.OwnerReference {
	if owner := metav1.GetControllerOfNoCopy(claim); owner != nil && owner.APIVersion == "v1" && owner.Kind == "Pod" {
		return owner
	}
	return nil
}
