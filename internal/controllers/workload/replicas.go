package workload

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

// burstReplicas is the maximum number of pods created or deleted in one sync.
const burstReplicas = 500

var (
	replicaSetKind            = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
	replicationControllerKind = corev1.SchemeGroupVersion.WithKind("ReplicationController")
)

// ReplicaSet maintains the desired number of pods of a ReplicaSet.
var ReplicaSet = controller.Definition{
	Name: "replicaset-controller", Aliases: []string{"replicaset"}, Queue: "replicaset", Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		sets, err := controller.DependentsOf[*appsv1.ReplicaSet](s)
		if err != nil {
			return nil, err
		}
		return newReplicasController(s, replicaSetKind, fromReplicaSet, func(rs *appsv1.ReplicaSet) []*appsv1.ReplicaSet {
			if owner := metav1.GetControllerOfNoCopy(rs); owner != nil {
				return sets.ControlledBy(owner.UID)
			}
			return nil
		})
	},
}

// ReplicationController is the same for ReplicationControllers.
var ReplicationController = controller.Definition{
	Name: "replicationcontroller-controller", Aliases: []string{"replicationcontroller"}, Component: "replication-controller",
	Queue: "replicationmanager", Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		return newReplicasController(s, replicationControllerKind, fromReplicationController, nil)
	},
}

// replicas is the common form of a ReplicaSet and a ReplicationController.
type replicas struct {
	object          kind.Object
	kind            schema.GroupVersionKind
	desired         int32
	minReadySeconds int32
	selector        labels.Selector
	template        *corev1.PodTemplateSpec
	status          appsv1.ReplicaSetStatus
	// withStatus returns a copy of the object with the status.
	withStatus func(appsv1.ReplicaSetStatus) kind.Object
}

func fromReplicaSet(rs *appsv1.ReplicaSet) (replicas, error) {
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	return replicas{
		object: rs, kind: replicaSetKind, desired: ptr.Deref(rs.Spec.Replicas, 1), minReadySeconds: rs.Spec.MinReadySeconds,
		selector: selector, template: &rs.Spec.Template, status: rs.Status,
		withStatus: func(status appsv1.ReplicaSetStatus) kind.Object {
			changed := *rs
			changed.Status = status
			return &changed
		},
	}, err
}

func fromReplicationController(rc *corev1.ReplicationController) (replicas, error) {
	template := rc.Spec.Template
	if template == nil {
		template = &corev1.PodTemplateSpec{}
	}
	status := appsv1.ReplicaSetStatus{
		Replicas: rc.Status.Replicas, FullyLabeledReplicas: rc.Status.FullyLabeledReplicas, ReadyReplicas: rc.Status.ReadyReplicas,
		AvailableReplicas: rc.Status.AvailableReplicas, ObservedGeneration: rc.Status.ObservedGeneration,
	}
	for _, c := range rc.Status.Conditions {
		status.Conditions = append(status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message})
	}
	return replicas{
		object: rc, kind: replicationControllerKind, desired: ptr.Deref(rc.Spec.Replicas, 1), minReadySeconds: rc.Spec.MinReadySeconds,
		selector: labels.SelectorFromSet(rc.Spec.Selector), template: template, status: status,
		withStatus: func(status appsv1.ReplicaSetStatus) kind.Object {
			changed := *rc
			changed.Status = corev1.ReplicationControllerStatus{
				Replicas: status.Replicas, FullyLabeledReplicas: status.FullyLabeledReplicas, ReadyReplicas: status.ReadyReplicas,
				AvailableReplicas: status.AvailableReplicas, ObservedGeneration: status.ObservedGeneration,
			}
			for _, c := range status.Conditions {
				changed.Status.Conditions = append(changed.Status.Conditions, corev1.ReplicationControllerCondition{
					Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message})
			}
			return &changed
		},
	}, nil
}

// replicasController reconciles both kinds.
type replicasController[T kind.Object] struct {
	owners   client.Informer[T]
	pods     controller.Dependents[*corev1.Pod]
	convert  func(T) (replicas, error)
	siblings func(T) []T // the sets with the same owner; nil for ReplicationControllers
}

func newReplicasController[T kind.Object](s *controller.Setup, ownerKind schema.GroupVersionKind, convert func(T) (replicas, error), siblings func(T) []T) (controller.Syncer, error) {
	c := &replicasController[T]{owners: client.InformerFor[T](s.Informers), convert: convert, siblings: siblings}
	var err error
	if c.pods, err = controller.DependentsOf[*corev1.Pod](s); err != nil {
		return nil, err
	}
	if err := controller.WatchPrimary[T](s); err != nil {
		return nil, err
	}
	selector := func(owner T) (labels.Selector, error) { r, err := convert(owner); return r.selector, err }
	if err := controller.WatchDependents[*corev1.Pod](s, ownerKind, selector); err != nil {
		return nil, err
	}
	return controller.NewSyncer(s, c), nil
}

// replicasView is the observed state of one set.
type replicasView struct {
	replicas
	pods []*corev1.Pod // those it controls and the orphans of its namespace
	// related are the pods of all sets with the same owner. They are only needed for scaling down.
	related []*corev1.Pod
	now     time.Time
}

// Size counts the pods.
func (v replicasView) Size() int { return len(v.pods) + len(v.related) }

// Observe gathers the set and its pods.
func (c *replicasController[T]) Observe(key controller.Key) (replicasView, bool) {
	owner, ok := c.owners.Get(key.Namespace, key.Name)
	if !ok {
		return replicasView{}, false
	}
	r, err := c.convert(owner)
	if err != nil {
		return replicasView{}, false // an invalid selector, rejected by validation
	}
	v := replicasView{replicas: r, pods: c.pods.Claimable(owner, r.selector), now: time.Now()}
	if c.siblings != nil && count(v.pods, podstate.IsActive) > r.desired {
		for _, sibling := range c.siblings(owner) {
			v.related = append(v.related, c.pods.ControlledBy(sibling.GetUID())...)
		}
	}
	return v, true
}

// Reconcile adopts and releases pods, creates or deletes pods, and updates the status.
func (c *replicasController[T]) Reconcile(v replicasView) controller.Plan { return v.reconcile() }

func (v replicasView) reconcile() controller.Plan {
	var plan controller.Plan
	matches := func(pod *corev1.Pod) bool { return v.selector.Matches(labels.Set(pod.Labels)) }
	claimed := controller.Claim(&plan, controller.Claimer{Owner: v.object, Kind: v.kind}, matches, filter(v.pods, podstate.IsActive))
	if v.object.GetDeletionTimestamp() == nil {
		plan.AddStep(v.manageReplicas(claimed)...)
	}
	terminating := count(v.pods, func(pod *corev1.Pod) bool {
		return podstate.IsTerminating(pod) && metav1.IsControlledBy(pod, v.object) && matches(pod)
	})
	status := v.calculateStatus(claimed, terminating)
	plan.Status = func(result controller.ApplyResult) kind.Object { return v.changedStatus(status, result) }
	if v.minReadySeconds > 0 && status.ReadyReplicas != status.AvailableReplicas {
		plan.Requeue(seconds(v.minReadySeconds))
		plan.Requeue(nextAvailable(claimed, v.minReadySeconds, v.now))
	}
	return plan
}

// manageReplicas creates or deletes pods to reach the desired number.
func (v replicasView) manageReplicas(pods []*corev1.Pod) []controller.Write {
	missing := int(v.desired) - len(pods)
	var writes []controller.Write
	if missing > 0 {
		create := newPodCreate(newPodFromTemplate(v.template, v.object, v.kind), v.object)
		for range min(missing, burstReplicas) {
			writes = append(writes, create)
		}
		return writes
	}
	for _, pod := range v.podsToDelete(pods, min(-missing, burstReplicas)) {
		writes = append(writes, newPodDelete(pod, v.object))
	}
	return writes
}

// podsToDelete chooses the pods to delete.
func (v replicasView) podsToDelete(pods []*corev1.Pod, n int) []*corev1.Pod {
	if n < len(pods) {
		onNode := map[string]int{}
		for _, pod := range v.related {
			if podstate.IsActive(pod) {
				onNode[pod.Spec.NodeName]++
			}
		}
		sortForDeletion(pods, func(pod *corev1.Pod) int { return onNode[pod.Spec.NodeName] }, v.now)
	}
	return pods[:n]
}

// calculateStatus calculates the replica counts of the status.
func (v replicasView) calculateStatus(pods []*corev1.Pod, terminating int32) appsv1.ReplicaSetStatus {
	status := v.status
	template := labels.Set(v.template.Labels).AsSelectorPreValidated()
	status.ObservedGeneration = v.object.GetGeneration()
	status.Replicas = int32(len(pods))
	status.FullyLabeledReplicas = count(pods, func(pod *corev1.Pod) bool { return template.Matches(labels.Set(pod.Labels)) })
	status.ReadyReplicas = count(pods, podstate.IsReady)
	status.AvailableReplicas = count(pods, func(pod *corev1.Pod) bool { return available(pod, v.minReadySeconds, v.now) })
	if v.kind == replicaSetKind {
		status.TerminatingReplicas = &terminating
	}
	return status
}

// changedStatus sets or clears the ReplicaFailure condition and returns the object if its status changed.
func (v replicasView) changedStatus(status appsv1.ReplicaSetStatus, result controller.ApplyResult) kind.Object {
	reason := map[controller.Verb]string{controller.Create: "FailedCreate", controller.Delete: "FailedDelete"}[result.FailedVerb()]
	if result.Err != nil && reason == "" {
		return nil // adoption failed: the counts would be wrong
	}
	others := filter(status.Conditions, func(c appsv1.ReplicaSetCondition) bool { return c.Type != appsv1.ReplicaSetReplicaFailure })
	switch {
	case result.Err == nil:
		status.Conditions = others
	case len(others) == len(status.Conditions):
		status.Conditions = append(others, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: reason, Message: result.ErrorMessage(), LastTransitionTime: metav1.NewTime(v.now)})
	}
	if apiequality.Semantic.DeepEqual(status, v.status) {
		return nil
	}
	return v.withStatus(status)
}
