package workload

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

// burst bounds the pods created or deleted in one look.
const burst = 500

var (
	replicaSetKind            = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
	replicationControllerKind = corev1.SchemeGroupVersion.WithKind("ReplicationController")
)

// ReplicaSet keeps as many pods of one template as a ReplicaSet says.
var ReplicaSet = controller.Definition{
	Name: "replicaset-controller", Aliases: []string{"replicaset"}, Queue: "replicaset", Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		sets, err := controller.DependentsOf[*appsv1.ReplicaSet](s)
		if err != nil {
			return nil, err
		}
		return newReplicas(s, replicaSetKind, asReplicas, func(rs *appsv1.ReplicaSet) []*appsv1.ReplicaSet {
			if owner := metav1.GetControllerOfNoCopy(rs); owner != nil {
				return sets.ControlledBy(owner.UID)
			}
			return nil
		})
	},
}

// ReplicationController does the same for the older kind.
var ReplicationController = controller.Definition{
	Name: "replicationcontroller-controller", Aliases: []string{"replicationcontroller"}, Component: "replication-controller",
	Queue: "replicationmanager", Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		return newReplicas(s, replicationControllerKind, asReplicasOfController, nil)
	},
}

// replicas is a ReplicaSet or ReplicationController as this controller sees it.
type replicas struct {
	object          kind.Object
	kind            schema.GroupVersionKind
	want            int32
	minReadySeconds int32
	selector        labels.Selector
	template        *corev1.PodTemplateSpec
	status          appsv1.ReplicaSetStatus
	// withStatus returns a copy of the object with another status.
	withStatus func(appsv1.ReplicaSetStatus) kind.Object
}

func asReplicas(rs *appsv1.ReplicaSet) (replicas, error) {
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	return replicas{
		object: rs, kind: replicaSetKind, want: orOne(rs.Spec.Replicas), minReadySeconds: rs.Spec.MinReadySeconds,
		selector: selector, template: &rs.Spec.Template, status: rs.Status,
		withStatus: func(status appsv1.ReplicaSetStatus) kind.Object {
			changed := *rs
			changed.Status = status
			return &changed
		},
	}, err
}

func asReplicasOfController(rc *corev1.ReplicationController) (replicas, error) {
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
		object: rc, kind: replicationControllerKind, want: orOne(rc.Spec.Replicas), minReadySeconds: rc.Spec.MinReadySeconds,
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

func orOne(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// replicasController serves both kinds.
type replicasController[T kind.Object] struct {
	owners   client.Informer[T]
	pods     controller.Dependents[*corev1.Pod]
	view     func(T) (replicas, error)
	siblings func(T) []T // the sets with the same owner; nil: a kind that has none
}

func newReplicas[T kind.Object](s *controller.Setup, of schema.GroupVersionKind, view func(T) (replicas, error), siblings func(T) []T) (controller.Syncer, error) {
	c := &replicasController[T]{owners: client.InformerFor[T](s.Informers), view: view, siblings: siblings}
	var err error
	if c.pods, err = controller.DependentsOf[*corev1.Pod](s); err != nil {
		return nil, err
	}
	if err := controller.WatchPrimary[T](s); err != nil {
		return nil, err
	}
	selector := func(owner T) (labels.Selector, error) { r, err := view(owner); return r.selector, err }
	if err := controller.WatchDependents[*corev1.Pod](s, of, selector); err != nil {
		return nil, err
	}
	return controller.NewSyncer(s, c), nil
}

// replicasView is what decides about one set.
type replicasView struct {
	replicas
	pods []*corev1.Pod // the set's own and the orphans of its namespace
	// related are the pods of all sets with the same owner. They matter only when pods are too many.
	related []*corev1.Pod
	now     time.Time
}

// Observe gathers the set and its pods.
func (c *replicasController[T]) Observe(key controller.Key) (replicasView, bool) {
	owner, ok := c.owners.Get(key.Namespace, key.Name)
	if !ok {
		return replicasView{}, false
	}
	r, err := c.view(owner)
	if err != nil {
		return replicasView{}, false // a selector that cannot be read selects nothing; validation keeps it out
	}
	v := replicasView{replicas: r, pods: c.pods.Claimable(owner), now: time.Now()}
	if c.siblings != nil && count(v.pods, podstate.IsActive) > r.want {
		for _, sibling := range c.siblings(owner) {
			v.related = append(v.related, c.pods.ControlledBy(sibling.GetUID())...)
		}
	}
	return v, true
}

// Reconcile adopts and releases, creates what is missing, deletes what is too much and reports.
func (c *replicasController[T]) Reconcile(v replicasView) controller.Plan { return v.reconcile() }

func (v replicasView) reconcile() controller.Plan {
	var plan controller.Plan
	matches := func(pod *corev1.Pod) bool { return v.selector.Matches(labels.Set(pod.Labels)) }
	mine := controller.Claim(&plan, v.object, v.kind, matches, filter(v.pods, podstate.IsActive))
	if v.object.GetDeletionTimestamp() == nil {
		plan.AddStep(v.adjust(mine)...)
	}
	ending := count(v.pods, func(pod *corev1.Pod) bool {
		return podstate.IsTerminating(pod) && metav1.IsControlledBy(pod, v.object) && matches(pod)
	})
	status := v.count(mine, ending)
	plan.Status = func(outcome controller.ApplyResult) kind.Object { return v.report(status, outcome) }
	if v.minReadySeconds > 0 && status.ReadyReplicas != status.AvailableReplicas {
		plan.Requeue(seconds(v.minReadySeconds))
		plan.Requeue(nextAvailable(mine, v.minReadySeconds, v.now))
	}
	return plan
}

// adjust creates or deletes pods until there are as many as wanted.
func (v replicasView) adjust(pods []*corev1.Pod) []controller.Write {
	missing := int(v.want) - len(pods)
	var writes []controller.Write
	if missing > 0 {
		create := creatingPod(podFrom(v.template, v.object, v.kind), v.object)
		for range min(missing, burst) {
			writes = append(writes, create)
		}
		return writes
	}
	for _, pod := range v.surplus(pods, min(-missing, burst)) {
		writes = append(writes, deletingPod(pod, v.object))
	}
	return writes
}

// surplus chooses the pods to delete.
func (v replicasView) surplus(pods []*corev1.Pod, n int) []*corev1.Pod {
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

// count fills the numbers of the status.
func (v replicasView) count(pods []*corev1.Pod, ending int32) appsv1.ReplicaSetStatus {
	status := v.status
	template := labels.Set(v.template.Labels).AsSelectorPreValidated()
	status.ObservedGeneration = v.object.GetGeneration()
	status.Replicas = int32(len(pods))
	status.FullyLabeledReplicas = count(pods, func(pod *corev1.Pod) bool { return template.Matches(labels.Set(pod.Labels)) })
	status.ReadyReplicas = count(pods, podstate.IsReady)
	status.AvailableReplicas = count(pods, func(pod *corev1.Pod) bool { return available(pod, v.minReadySeconds, v.now) })
	if v.kind == replicaSetKind {
		status.TerminatingReplicas = &ending
	}
	return status
}

// report sets or clears the condition that pods could not be created or deleted, and returns the object if its status changed.
func (v replicasView) report(status appsv1.ReplicaSetStatus, outcome controller.ApplyResult) kind.Object {
	reason := map[controller.Verb]string{controller.Create: "FailedCreate", controller.Delete: "FailedDelete"}[outcome.FailedVerb()]
	if outcome.Err != nil && reason == "" {
		return nil // whose the pods are is not settled: the numbers would be a guess
	}
	others := filter(status.Conditions, func(c appsv1.ReplicaSetCondition) bool { return c.Type != appsv1.ReplicaSetReplicaFailure })
	switch {
	case outcome.Err == nil:
		status.Conditions = others
	case len(others) == len(status.Conditions):
		status.Conditions = append(others, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: reason, Message: outcome.ErrorMessage(), LastTransitionTime: metav1.NewTime(v.now)})
	}
	if apiequality.Semantic.DeepEqual(status, v.status) {
		return nil
	}
	return v.withStatus(status)
}
