package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/apps/poddisruptionbudget"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
	"skiff/internal/podstate"
)

var budgetResource = schema.GroupResource{Group: policyv1.GroupName, Resource: "poddisruptionbudgets"}

const (
	// evictionAttempts and evictionPause bound how long an eviction contends with other writers of the pod.
	evictionAttempts = 20
	evictionPause    = 500 * time.Millisecond
	// disruptedPodsLimit is how many evictions the disruption controller may not have processed yet.
	disruptedPodsLimit = 2000
	wouldViolate       = "Cannot evict pod as it would violate the pod's disruption budget."
)

// evictPod deletes a pod if its disruption budget allows it.
func evictPod(ctx context.Context, client kind.Client, req *kind.Request, parent types.NamespacedName, body kind.Object) (runtime.Object, error) {
	eviction := body.(*policyv1.Eviction)
	if eviction.Name != parent.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	options := &metav1.DeleteOptions{}
	if eviction.DeleteOptions != nil {
		options = eviction.DeleteOptions.DeepCopy()
	}
	if ptr.Deref(options.IgnoreStoreReadErrorWithClusterBreakingPotential, false) {
		return nil, kind.NewInvalid(policyv1.SchemeGroupVersion.WithKind("Eviction").GroupKind(), parent.Name, field.ErrorList{
			field.Invalid(field.NewPath("deleteOptions", "ignoreStoreReadErrorWithClusterBreakingPotential"), true,
				"can not be set for pod eviction, try after removing the option")})
	}
	if req.DryRun && len(options.DryRun) == 0 {
		options.DryRun = []string{metav1.DryRunAll}
	}
	e := &evictionRun{client: client, now: req.Now, namespace: parent.Namespace, name: parent.Name, options: options}
	if err := e.run(ctx); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// evictionRun is one eviction in progress.
type evictionRun struct {
	client          kind.Client
	now             metav1.Time
	namespace, name string
	options         *metav1.DeleteOptions // the client's
}

func (e *evictionRun) dryRun() bool { return len(e.options.DryRun) > 0 }

// hasResourceVersion reports whether the client set the resourceVersion of the pod to evict.
func (e *evictionRun) hasResourceVersion() bool {
	return e.options.Preconditions != nil && e.options.Preconditions.ResourceVersion != nil
}

func (e *evictionRun) run(ctx context.Context) error {
	pod, deleted, err := e.deleteUnguarded(ctx)
	if err != nil || deleted {
		return err
	}
	budget, err := e.budgetFor(ctx, pod)
	if err != nil {
		return err
	}
	options, unhealthy := e.options, false
	if budget != nil {
		if unhealthy = mayEvictUnhealthy(pod, budget); unhealthy {
			// The budget is not charged as long as the pod has not become healthy meanwhile.
			options = withVersion(options, pod.ResourceVersion)
		} else if err := e.takeDisruption(ctx, budget); err != nil {
			return err
		}
	}
	err = e.markAndDelete(ctx, options)
	if unhealthy && apierrors.IsConflict(err) && !e.hasResourceVersion() {
		return budgetNotReady(budget.Name)
	}
	return err
}

// deleteUnguarded deletes a pod to which no budget applies: one that is terminal, pending or already being deleted.
func (e *evictionRun) deleteUnguarded(ctx context.Context) (pod *corev1.Pod, deleted bool, err error) {
	for attempt := 1; ; attempt++ {
		obj, err := e.client.Get(ctx, podResource, e.namespace, e.name)
		if err != nil {
			return nil, false, err
		}
		pod = obj.(*corev1.Pod)
		if err := checkUID(pod, e.options.Preconditions); err != nil {
			return nil, false, err // the pod is not the one the client means; retrying does not help
		}
		ending := podstate.IsTerminal(pod) || pod.DeletionTimestamp != nil
		if !ending && pod.Status.Phase != corev1.PodPending {
			return pod, false, nil
		}
		options := e.options
		if !ending && !e.hasResourceVersion() {
			options = withVersion(options, pod.ResourceVersion) // the pod must not have started meanwhile
		}
		err = e.markAndDelete(ctx, options)
		if !apierrors.IsConflict(err) || e.hasResourceVersion() || attempt == evictionAttempts {
			return pod, err == nil, err
		}
		select {
		case <-ctx.Done():
			return nil, false, ctx.Err()
		case <-time.After(evictionPause):
		}
	}
}

func withVersion(options *metav1.DeleteOptions, version string) *metav1.DeleteOptions {
	options = options.DeepCopy()
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	options.Preconditions.ResourceVersion = &version
	return options
}

// markAndDelete sets the DisruptionTarget condition and deletes the pod.
func (e *evictionRun) markAndDelete(ctx context.Context, options *metav1.DeleteOptions) error {
	if !e.dryRun() {
		marked, err := e.client.Update(ctx, podResource, e.namespace, e.name, func(obj kind.Object) error {
			pod := obj.(*corev1.Pod)
			if err := checkPreconditions(pod, options.Preconditions); err != nil {
				return err
			}
			setPodCondition(&pod.Status, corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
			}, e.now)
			return nil
		})
		if err != nil {
			return err
		}
		if options.Preconditions != nil && options.Preconditions.ResourceVersion != nil {
			options = withVersion(options, marked.GetResourceVersion())
		}
	}
	return e.client.Delete(ctx, podResource, e.namespace, e.name, options)
}

func checkPreconditions(pod *corev1.Pod, wanted *metav1.Preconditions) error {
	if err := checkUID(pod, wanted); err != nil || wanted == nil {
		return err
	}
	if version := ptr.Deref(wanted.ResourceVersion, ""); version != "" && version != pod.ResourceVersion {
		return preconditionConflict(pod, "the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", version, pod.ResourceVersion)
	}
	return nil
}

func checkUID(pod *corev1.Pod, wanted *metav1.Preconditions) error {
	if wanted == nil || ptr.Deref(wanted.UID, "") == "" || *wanted.UID == pod.UID {
		return nil
	}
	return preconditionConflict(pod, "the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *wanted.UID, pod.UID)
}

func preconditionConflict(pod *corev1.Pod, format string, args ...any) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: "Pod"}, pod.Name, fmt.Errorf(format, args...))
}

// budgetFor is the budget that covers the pod, or nil. More than one is an error.
func (e *evictionRun) budgetFor(ctx context.Context, pod *corev1.Pod) (*policyv1.PodDisruptionBudget, error) {
	objs, err := e.client.List(ctx, budgetResource, e.namespace)
	if err != nil {
		return nil, err
	}
	var found *policyv1.PodDisruptionBudget
	for _, obj := range objs {
		budget := obj.(*policyv1.PodDisruptionBudget)
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue // an invalid selector selects nothing
		}
		if found != nil {
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 500,
				Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."}}
		}
		found = budget
	}
	return found, nil
}

// mayEvictUnhealthy reports whether an unhealthy pod may be evicted without charging the budget.
func mayEvictUnhealthy(pod *corev1.Pod, budget *policyv1.PodDisruptionBudget) bool {
	if podstate.IsReady(pod) {
		return false
	}
	status := &budget.Status
	return ptr.Deref(budget.Spec.UnhealthyPodEvictionPolicy, policyv1.IfHealthyBudget) == policyv1.AlwaysAllow ||
		status.CurrentHealthy >= status.DesiredHealthy && status.DesiredHealthy > 0
}

// takeDisruption takes one disruption from the budget.
func (e *evictionRun) takeDisruption(ctx context.Context, budget *policyv1.PodDisruptionBudget) error {
	if e.dryRun() {
		return takeFromBudget(budget.DeepCopy(), e.name, e.now)
	}
	_, err := e.client.Update(ctx, budgetResource, e.namespace, budget.Name, func(obj kind.Object) error {
		return takeFromBudget(obj.(*policyv1.PodDisruptionBudget), e.name, e.now)
	})
	if apierrors.IsConflict(err) {
		return apierrors.NewTimeoutError(fmt.Sprintf("couldn't update PodDisruptionBudget %q due to conflicts", budget.Name), 10)
	}
	return err
}

// takeFromBudget refuses when the budget is used up or not yet computed. It records the pod, so that the disruption controller does
// not count it as available until it is deleted.
func takeFromBudget(budget *policyv1.PodDisruptionBudget, pod string, now metav1.Time) error {
	status := &budget.Status
	switch {
	case status.ObservedGeneration < budget.Generation:
		return budgetNotReady(budget.Name)
	case status.DisruptionsAllowed < 0:
		return budgetForbids(budget.Name, "pdb disruptions allowed is negative", "pdb disruptions allowed is negative")
	case len(status.DisruptedPods) > disruptedPodsLimit:
		return budgetForbids(budget.Name, "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
			"too many pending evictions not confirmed by PDB controller")
	case status.DisruptionsAllowed == 0:
		return withCause(apierrors.NewTooManyRequests(wouldViolate, 0), budgetMessage(budget))
	}
	status.DisruptionsAllowed--
	if status.DisruptionsAllowed == 0 {
		poddisruptionbudget.UpdateDisruptionAllowedCondition(budget)
	}
	if status.DisruptedPods == nil {
		status.DisruptedPods = map[string]metav1.Time{}
	}
	status.DisruptedPods[pod] = now
	return nil
}

func withCause(err *apierrors.StatusError, message string) error {
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: message})
	return err
}

func budgetNotReady(budget string) error {
	return withCause(apierrors.NewTooManyRequests(wouldViolate, 10),
		fmt.Sprintf("The disruption budget %s is still being processed by the server.", budget))
}

func budgetForbids(budget, reason, cause string) error {
	return withCause(apierrors.NewForbidden(schema.GroupResource{Group: policyv1.GroupName, Resource: "poddisruptionbudget"}, budget, errors.New(reason)),
		fmt.Sprintf("The disruption budget %s does not allow evicting pods currently: %s", budget, cause))
}

func budgetMessage(budget *policyv1.PodDisruptionBudget) string {
	status := &budget.Status
	condition := meta.FindStatusCondition(status.Conditions, policyv1.DisruptionAllowedCondition)
	explained := condition != nil && condition.Status == metav1.ConditionFalse && condition.Message != ""
	switch {
	case explained && condition.Reason == policyv1.SyncFailedReason: // the numbers below are meaningless then
		return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently because it failed sync: %s", budget.Name, condition.Message)
	case status.CurrentHealthy <= status.DesiredHealthy:
		return fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", budget.Name, status.DesiredHealthy, status.CurrentHealthy)
	case explained:
		return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently (%s): %s", budget.Name, condition.Reason, condition.Message)
	}
	return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", budget.Name)
}
