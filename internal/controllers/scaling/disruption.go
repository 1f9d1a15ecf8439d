package scaling

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-helpers/apps/poddisruptionbudget"
	"k8s.io/utils/ptr"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

const (
	// deletionTimeout is the time an evicted pod may take to be deleted. After that it counts as healthy again.
	deletionTimeout = 2 * time.Minute
	// staleTimeout is the time after which the DisruptionTarget condition of a pod that is not deleted is cleared.
	staleTimeout = 2 * time.Minute
	// podKeyPrefix marks keys of pods. Object names contain no slash.
	podKeyPrefix = "pod/"
	// noPods is the event reason for budgets without pods, or whose pods could not be listed.
	noPods = "NoPods"
)

// Disruption maintains the status of PodDisruptionBudgets: how many of their pods are healthy and how many disruptions are
// allowed. It also clears stale DisruptionTarget conditions of pods.
var Disruption = controller.Definition{
	Name: "disruption-controller", Aliases: []string{"disruption"}, Component: "controllermanager", Queue: "disruption", Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		c := &disruption{
			setup:        s,
			budgets:      client.InformerFor[*policyv1.PodDisruptionBudget](s.Informers),
			pods:         client.InformerFor[*corev1.Pod](s.Informers),
			controllers:  client.InformerFor[*corev1.ReplicationController](s.Informers),
			sets:         client.InformerFor[*appsv1.ReplicaSet](s.Informers),
			deployments:  client.InformerFor[*appsv1.Deployment](s.Informers),
			statefulSets: client.InformerFor[*appsv1.StatefulSet](s.Informers),
		}
		var err error
		if c.api, err = newAPI(s.Client); err != nil {
			return nil, err
		}
		if err := controller.WatchPrimary[*policyv1.PodDisruptionBudget](s); err != nil {
			return nil, err
		}
		if c.selectors, err = client.SelectorsOf(s.Informers, selectorOf); err != nil {
			return nil, err
		}
		if err := c.pods.EnsureLabelIndex(); err != nil {
			return nil, fmt.Errorf("index pods by label: %w", err)
		}
		if err := c.pods.AddEventHandler(c.enqueueForPod, func(_, pod *corev1.Pod) { c.enqueueForPod(pod) }, c.enqueueForPod); err != nil {
			return nil, fmt.Errorf("watch pods: %w", err)
		}
		return c, nil
	},
}

type disruption struct {
	setup        *controller.Setup
	api          *api
	budgets      client.Informer[*policyv1.PodDisruptionBudget]
	pods         client.Informer[*corev1.Pod]
	controllers  client.Informer[*corev1.ReplicationController]
	sets         client.Informer[*appsv1.ReplicaSet]
	deployments  client.Informer[*appsv1.Deployment]
	statefulSets client.Informer[*appsv1.StatefulSet]
	selectors    client.Selectors[*policyv1.PodDisruptionBudget]
}

// selectorOf returns the selector of a budget.
func selectorOf(budget *policyv1.PodDisruptionBudget) (labels.Selector, error) {
	return metav1.LabelSelectorAsSelector(budget.Spec.Selector)
}

// enqueueForPod enqueues the budgets that select a pod, and the pod itself if its DisruptionTarget condition may become stale.
func (c *disruption) enqueueForPod(pod *corev1.Pod) {
	covering := c.selectors.Matching(pod)
	for _, budget := range covering {
		c.setup.Enqueue(controller.KeyOf(budget))
	}
	if len(covering) > 1 && pod.DeletionTimestamp == nil {
		c.setup.Events.Eventf(pod, corev1.EventTypeWarning, "MultiplePodDisruptionBudgets",
			"Pod %q/%q matches multiple PodDisruptionBudgets.  Chose %q arbitrarily.", pod.Namespace, pod.Name, covering[0].Name)
	}
	if delay, stale := staleDisruptionTarget(pod, time.Now()); stale {
		c.setup.EnqueueAfter(controller.Key{Namespace: pod.Namespace, Name: podKeyPrefix + pod.Name}, delay)
	}
}

// Sync reconciles a budget, or a pod with a DisruptionTarget condition.
func (c *disruption) Sync(ctx context.Context, key controller.Key) error {
	if name, isPod := strings.CutPrefix(key.Name, podKeyPrefix); isPod {
		if pod, ok := c.pods.Get(key.Namespace, name); ok {
			return c.setup.Apply(ctx, key, clearDisruptionTarget(pod, time.Now()))
		}
		return nil
	}
	budget, ok := c.budgets.Get(key.Namespace, key.Name)
	if !ok {
		return nil
	}
	v := budgetView{budget: budget, now: time.Now()}
	selector, err := selectorOf(budget)
	if err != nil {
		v.err, v.failureEvent = err, controller.Event{Object: budget, Type: corev1.EventTypeWarning, Reason: noPods, Message: fmt.Sprintf("Failed to get pods: %v", err)}
	} else {
		v.pods = c.pods.List(budget.Namespace, selector)
		c.setup.SpaceSyncs(key, len(v.pods))
		c.countExpectedPods(ctx, &v)
	}
	return c.setup.Apply(ctx, key, v.reconcile())
}

// countExpectedPods sums up the scale of the pods' controllers, if the budget is relative to it.
func (c *disruption) countExpectedPods(ctx context.Context, v *budgetView) {
	if v.budget.Spec.MaxUnavailable == nil && (v.budget.Spec.MinAvailable == nil || v.budget.Spec.MinAvailable.Type == intstr.Int) {
		return
	}
	scales := map[types.UID]int32{}
	for _, pod := range v.pods {
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil {
			v.unmanaged = append(v.unmanaged, pod.Name)
			continue
		}
		if _, counted := scales[owner.UID]; counted {
			continue
		}
		uid, replicas, err := c.scaleOf(ctx, pod.Namespace, owner)
		if err == nil && uid == "" {
			err = fmt.Errorf("found no controllers for pod %q", pod.Name)
		}
		if err != nil {
			v.err, v.failureEvent = err, controller.Event{Object: v.budget, Type: corev1.EventTypeWarning, Reason: "CalculateExpectedPodCountFailed",
				Message: fmt.Sprintf("Failed to calculate the number of expected pods: %v", err)}
			return
		}
		scales[uid] = replicas
	}
	for _, n := range scales {
		v.scale += n
	}
}

// scaleOf returns the UID and desired replicas of a pod's controller: for a ReplicaSet, those of its Deployment. The UID is empty
// if the controller does not exist.
func (c *disruption) scaleOf(ctx context.Context, namespace string, owner *metav1.OwnerReference) (types.UID, int32, error) {
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return "", 0, err
	}
	switch (schema.GroupKind{Group: gv.Group, Kind: owner.Kind}) {
	case schema.GroupKind{Kind: "ReplicationController"}:
		if rc, ok := c.controllers.Get(namespace, owner.Name); ok && rc.UID == owner.UID {
			return rc.UID, ptr.Deref(rc.Spec.Replicas, 1), nil
		}
	case schema.GroupKind{Group: "apps", Kind: "StatefulSet"}:
		if set, ok := c.statefulSets.Get(namespace, owner.Name); ok && set.UID == owner.UID {
			return set.UID, ptr.Deref(set.Spec.Replicas, 1), nil
		}
	case schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}, schema.GroupKind{Group: "extensions", Kind: "ReplicaSet"}:
		set, ok := c.sets.Get(namespace, owner.Name)
		if !ok || set.UID != owner.UID {
			break
		}
		parent := metav1.GetControllerOfNoCopy(set)
		if parent == nil || parent.Kind != "Deployment" {
			return set.UID, ptr.Deref(set.Spec.Replicas, 1), nil
		}
		if d, ok := c.deployments.Get(namespace, parent.Name); ok && d.UID == parent.UID {
			return d.UID, ptr.Deref(d.Spec.Replicas, 1), nil
		}
	}
	return c.scaleFromSubresource(ctx, namespace, gv.WithKind(owner.Kind), owner)
}

// scaleFromSubresource reads the scale subresource of a controller.
func (c *disruption) scaleFromSubresource(ctx context.Context, namespace string, gvk schema.GroupVersionKind, owner *metav1.OwnerReference) (types.UID, int32, error) {
	target, err := c.api.find(ctx, gvk)
	if meta.IsNoMatchError(err) {
		err = &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
	}
	if err != nil {
		return "", 0, err
	}
	if !target.scalable {
		return "", 0, fmt.Errorf("%s does not implement the scale subresource", target.GroupResource())
	}
	scale, err := c.api.scale(ctx, target, namespace, owner.Name)
	if apierrors.IsNotFound(err) || err == nil && scale.UID != owner.UID {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	return scale.UID, scale.Spec.Replicas, nil
}

// budgetView is the observed state of one budget.
type budgetView struct {
	budget       *policyv1.PodDisruptionBudget
	pods         []*corev1.Pod
	scale        int32 // desired replicas of the pods' controllers
	unmanaged    []string
	err          error // why the pods could not be counted
	failureEvent controller.Event
	now          time.Time
}

func (v budgetView) reconcile() (plan controller.Plan) {
	expected, desired, err := v.podCounts()
	if err != nil && v.err == nil {
		v.err, v.failureEvent = err, controller.Event{Object: v.budget, Type: corev1.EventTypeWarning, Reason: "CalculateExpectedPodCountFailed",
			Message: fmt.Sprintf("Failed to calculate the number of expected pods: %v", err)}
	}
	if len(v.pods) == 0 && v.failureEvent.Reason != noPods {
		plan.Events = append(plan.Events, controller.Event{Object: v.budget, Type: corev1.EventTypeNormal, Reason: noPods, Message: "No matching pods found"})
	}
	if v.err != nil {
		plan.Events = append(plan.Events, v.failureEvent)
		plan.Status = func(controller.ApplyResult) kind.Object { return v.failSafeStatus() }
		return plan
	}
	if len(v.unmanaged) > 0 {
		plan.Events = append(plan.Events, controller.Event{Object: v.budget, Type: corev1.EventTypeWarning, Reason: "UnmanagedPods",
			Message: fmt.Sprintf("Pods selected by this PodDisruptionBudget (selector: %v) were found to be unmanaged. As a result, the status of the PDB cannot be "+
				"calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" "+
				"field of the PDB to an integer value.", v.budget.Spec.Selector)})
	}
	disrupted := v.disrupted(&plan)
	status := policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: v.budget.Generation, DisruptedPods: disrupted,
		CurrentHealthy: v.healthy(disrupted), DesiredHealthy: desired, ExpectedPods: expected, Conditions: v.budget.Status.Conditions,
	}
	if expected > 0 {
		status.DisruptionsAllowed = max(0, status.CurrentHealthy-desired)
	}
	plan.Status = func(controller.ApplyResult) kind.Object { return v.changedStatus(status) }
	return plan
}

// podCounts returns the expected number of pods and how many of them must be healthy.
func (v budgetView) podCounts() (expected, desired int32, err error) {
	spec := v.budget.Spec
	switch {
	case spec.MaxUnavailable != nil:
		maxUnavailable, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, int(v.scale), true)
		return v.scale, max(0, v.scale-int32(maxUnavailable)), err
	case spec.MinAvailable != nil && spec.MinAvailable.Type == intstr.Int:
		return int32(len(v.pods)), spec.MinAvailable.IntVal, nil
	case spec.MinAvailable != nil:
		minAvailable, err := intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, int(v.scale), true)
		return v.scale, int32(minAvailable), err
	}
	return 0, 0, nil
}

// disrupted returns the evicted pods that have not been deleted yet, without those past the deletion timeout.
func (v budgetView) disrupted(plan *controller.Plan) map[string]metav1.Time {
	pending := map[string]metav1.Time{}
	for _, pod := range v.pods {
		at, evicted := v.budget.Status.DisruptedPods[pod.Name]
		if !evicted || pod.DeletionTimestamp != nil {
			continue
		}
		if left := at.Add(deletionTimeout).Sub(v.now); left >= 0 {
			pending[pod.Name] = at
			plan.Requeue(left + time.Millisecond)
			continue
		}
		plan.Events = append(plan.Events, controller.Event{Object: pod, Type: corev1.EventTypeWarning, Reason: "NotDeleted",
			Message: fmt.Sprintf("Pod was expected by PDB %s/%s to be deleted but it wasn't", v.budget.Namespace, v.budget.Namespace)})
	}
	return pending
}

// healthy counts the pods that are ready and neither deleted nor about to be.
func (v budgetView) healthy(disrupted map[string]metav1.Time) (n int32) {
	for _, pod := range v.pods {
		at, evicted := disrupted[pod.Name]
		disrupting := evicted && at.Add(deletionTimeout).After(v.now)
		if !disrupting && pod.DeletionTimestamp == nil && podstate.IsReady(pod) {
			n++
		}
	}
	return n
}

// changedStatus returns the budget with a new status, or nil when nothing changes.
func (v budgetView) changedStatus(status policyv1.PodDisruptionBudgetStatus) kind.Object {
	changed := v.budget.DeepCopy()
	changed.Status = *status.DeepCopy()
	if len(changed.Status.DisruptedPods) == 0 {
		changed.Status.DisruptedPods = nil
	}
	if poddisruptionbudget.ConditionsAreUpToDate(changed) && apiequality.Semantic.DeepEqual(changed.Status, v.budget.Status) {
		return nil
	}
	poddisruptionbudget.UpdateDisruptionAllowedCondition(changed)
	return changed
}

// failSafeStatus returns the budget with no disruptions allowed, because the pods could not be counted.
func (v budgetView) failSafeStatus() kind.Object {
	changed := v.budget.DeepCopy()
	changed.Status.DisruptionsAllowed = 0
	meta.SetStatusCondition(&changed.Status.Conditions, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
		Message: v.err.Error(), ObservedGeneration: changed.Status.ObservedGeneration, LastTransitionTime: metav1.NewTime(v.now)})
	if apiequality.Semantic.DeepEqual(changed.Status, v.budget.Status) {
		return nil
	}
	return changed
}

// staleDisruptionTarget reports whether a pod has a DisruptionTarget condition without being deleted, and when it becomes stale.
// Conditions set by kubelets are excluded.
func staleDisruptionTarget(pod *corev1.Pod, now time.Time) (time.Duration, bool) {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget })
	if i < 0 || pod.DeletionTimestamp != nil || podstate.IsTerminal(pod) {
		return 0, false
	}
	c := pod.Status.Conditions[i]
	if c.Status != corev1.ConditionTrue || c.Reason == corev1.PodReasonTerminationByKubelet {
		return 0, false
	}
	return max(0, staleTimeout-now.Sub(c.LastTransitionTime.Time)), true
}

// clearDisruptionTarget sets a stale condition to False.
func clearDisruptionTarget(pod *corev1.Pod, now time.Time) (plan controller.Plan) {
	delay, stale := staleDisruptionTarget(pod, now)
	if !stale {
		return plan
	}
	if delay > 0 {
		plan.Requeue(delay)
		return plan
	}
	c := map[string]any{"type": corev1.DisruptionTarget, "status": corev1.ConditionFalse, "lastTransitionTime": metav1.NewTime(now), "reason": nil, "message": nil,
		"observedGeneration": pod.Generation}
	// Marshalling strings and times cannot fail.
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": map[string]any{"conditions": []any{c}}})
	w := controller.NewPatch(pod, client.StrategicPatch, patch).Ignoring(metav1.StatusReasonNotFound)
	w.Verb = controller.PatchStatus
	plan.AddStep(w)
	return plan
}
