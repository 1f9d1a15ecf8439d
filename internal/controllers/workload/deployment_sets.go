package workload

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/dump"
	"k8s.io/utils/ptr"

	"skiff/internal/controller"
	"skiff/internal/kind"
)

// Annotations of ReplicaSets and Deployments. kubectl reads the revision; the others are used by the controller only.
const (
	revisionAnnotation        = "deployment.kubernetes.io/revision"
	revisionHistoryAnnotation = "deployment.kubernetes.io/revision-history"
	desiredReplicasAnnotation = "deployment.kubernetes.io/desired-replicas"
	maxReplicasAnnotation     = "deployment.kubernetes.io/max-replicas"
)

// maxRevisionHistoryChars limits the length of the revision history annotation.
const maxRevisionHistoryChars = 2000

// isControllerAnnotation reports whether an annotation is not copied from a deployment to its sets: it belongs to the controller
// or to kubectl apply.
func isControllerAnnotation(key string) bool {
	switch key {
	case corev1.LastAppliedConfigAnnotation, revisionAnnotation, revisionHistoryAnnotation,
		desiredReplicasAnnotation, maxReplicasAnnotation, appsv1.DeprecatedRollbackTo:
		return true
	}
	return false
}

// templateHash is upstream's hash of a template, so that both controllers find each other's sets: FNV of the template as the spew
// library dumps it and of the collision count, in an alphabet without vowels.
func templateHash(template *corev1.PodTemplateSpec, collisions *int32) string {
	hash := fnv.New32a()
	_, _ = fmt.Fprintf(hash, "%v", dump.ForHash(*template))
	if collisions != nil {
		suffix := make([]byte, 8)
		binary.LittleEndian.PutUint32(suffix, uint32(*collisions))
		_, _ = hash.Write(suffix)
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(hash.Sum32()), 10))
}

// replicaSetName is the name of a set, truncated to the maximum length.
func replicaSetName(deployment, hash string) string {
	maxLength := validation.DNS1123SubdomainMaxLength - 1 - len(hash)
	return deployment[:min(len(deployment), maxLength)] + "-" + hash
}

// sameTemplate compares templates without the hash label.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	return apiequality.Semantic.DeepEqual(withoutHash(a), withoutHash(b))
}

func withoutHash(template *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	if _, ok := template.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; !ok {
		return template
	}
	clone := *template
	clone.Labels = maps.Clone(template.Labels)
	delete(clone.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return &clone
}

// revisionOf parses a set's revision. It is zero without the annotation; false means that it is malformed.
func revisionOf(set *appsv1.ReplicaSet) (int64, bool) {
	value, ok := set.Annotations[revisionAnnotation]
	if !ok {
		return 0, true
	}
	revision, err := strconv.ParseInt(value, 10, 64)
	return revision, err == nil
}

func highestRevision(sets []*appsv1.ReplicaSet) (highest int64) {
	for _, set := range sets {
		if revision, ok := revisionOf(set); ok {
			highest = max(highest, revision)
		}
	}
	return highest
}

// previousRevision is the second highest revision.
func previousRevision(sets []*appsv1.ReplicaSet) (second int64) {
	highest := int64(0)
	for _, set := range sets {
		switch revision, ok := revisionOf(set); {
		case !ok:
		case revision >= highest:
			second, highest = highest, revision
		default:
			second = max(second, revision)
		}
	}
	return second
}

func annotatedReplicas(set *appsv1.ReplicaSet, key string) (int32, bool) {
	n, err := strconv.ParseUint(set.Annotations[key], 10, 32)
	return int32(n), err == nil && n <= math.MaxInt32
}

// scaledValue resolves a number or percentage of total. nil is zero; malformed values are rejected by validation.
func scaledValue(value *intstr.IntOrString, total int32, roundUp bool) int32 {
	if value == nil {
		return 0
	}
	n, _ := intstr.GetScaledValueFromIntOrPercent(value, int(total), roundUp)
	return int32(n)
}

// updateRevision gives the current set the highest revision and copies it to the deployment.
func (r *rollout) updateRevision() {
	if r.current == nil {
		return
	}
	c := r.current.DeepCopy()
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	if r.annotate(c) || c.Spec.MinReadySeconds != r.deployment.Spec.MinReadySeconds {
		c.Spec.MinReadySeconds = r.deployment.Spec.MinReadySeconds
		edited := r.mutableCopy(r.current)
		edited.Annotations, edited.Spec.MinReadySeconds = c.Annotations, c.Spec.MinReadySeconds
	}
	r.revision = c.Annotations[revisionAnnotation]
	if r.hasDeadline() && r.condition(appsv1.DeploymentProgressing) == nil {
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "FoundNewReplicaSet", fmt.Sprintf("Found new replica set %q", c.Name))
	}
}

// annotate copies the deployment's annotations to the set and sets the next revision. It reports whether anything changed.
func (r *rollout) annotate(set *appsv1.ReplicaSet) (changed bool) {
	for key, value := range r.deployment.Annotations {
		if previous, ok := set.Annotations[key]; !isControllerAnnotation(key) && (!ok || previous != value) {
			set.Annotations[key] = value
			changed = true
		}
	}
	next := highestRevision(r.old) + 1
	previous, had := set.Annotations[revisionAnnotation]
	revision, ok := revisionOf(set)
	if !ok && previous != "" {
		return false // malformed: leave the set as it is
	}
	if revision >= next {
		return changed
	}
	set.Annotations[revisionAnnotation] = strconv.FormatInt(next, 10)
	if had {
		appendRevisionHistory(set, previous)
	}
	return true
}

// appendRevisionHistory appends a former revision of the set to its history and drops the oldest ones if it gets too long.
func appendRevisionHistory(set *appsv1.ReplicaSet, revision string) {
	history := strings.Split(set.Annotations[revisionHistoryAnnotation], ",")
	if history[0] == "" {
		set.Annotations[revisionHistoryAnnotation] = revision
		return
	}
	history = append(history, revision)
	for len(strings.Join(history, ",")) > maxRevisionHistoryChars && len(history) > 1 {
		history = history[1:]
	}
	set.Annotations[revisionHistoryAnnotation] = strings.Join(history, ",")
}

// ensureCurrentSet reports whether a set for the deployment's template exists; if not, the plan creates it and the next sync
// continues.
func (r *rollout) ensureCurrentSet() bool {
	if r.current != nil {
		r.updateRevision()
		return true
	}
	if r.setOfSameName != nil {
		// Hash collision with another template: increase the collision count, which is part of the hash.
		collisions := int32(1)
		if r.collisions != nil {
			collisions = *r.collisions + 1
		}
		r.collisions = &collisions
		r.planUnchangedStatus()
		return false
	}
	set := r.newSet()
	failed := controller.Event{Object: r.deployment, Type: corev1.EventTypeWarning, Reason: "ReplicaSetCreateError",
		Message: fmt.Sprintf("Failed to create new replica set %q: %%s", set.Name)}
	write := controller.NewCreate(set).OnFailure(failed).WithoutEventOn(metav1.StatusReasonAlreadyExists)
	if size := ptr.Deref(set.Spec.Replicas, 1); size > 0 {
		write = write.OnSuccess(r.scalingEvent(set.Name, 0, size))
	}
	r.plan.AddStep(write)
	r.plan.Status = func(result controller.ApplyResult) kind.Object { return r.statusAfterCreate(set, result) }
	return false
}

// newSet returns the set of the deployment's template with the initial number of replicas.
func (r *rollout) newSet() *appsv1.ReplicaSet {
	d := r.deployment
	hash := templateHash(&d.Spec.Template, d.Status.CollisionCount)
	template := *d.Spec.Template.DeepCopy()
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	selector := d.Spec.Selector.DeepCopy()
	if selector.MatchLabels == nil {
		selector.MatchLabels = map[string]string{}
	}
	selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	size := r.newSetReplicas(0, r.totalReplicas(r.old))
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: replicaSetName(d.Name, hash), Namespace: d.Namespace, Labels: template.Labels, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, deploymentKind)},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: &size, MinReadySeconds: d.Spec.MinReadySeconds, Selector: selector, Template: template},
	}
	r.annotate(set)
	r.annotateReplicas(set)
	return set
}

// statusAfterCreate returns the deployment with a condition that the set was created, or why not.
func (r *rollout) statusAfterCreate(set *appsv1.ReplicaSet, result controller.ApplyResult) kind.Object {
	switch {
	case result.Err == nil && !slices.ContainsFunc(result.Written, func(obj kind.Object) bool { return obj.GetName() == set.Name }):
		return nil // the namespace is terminating
	case result.Err == nil:
		r.revision = set.Annotations[revisionAnnotation]
		if r.hasDeadline() {
			r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "NewReplicaSetCreated", fmt.Sprintf("Created new replica set %q", set.Name))
		}
	case result.FailedVerb() == controller.Create && !apierrors.IsAlreadyExists(result.Err) && r.hasDeadline():
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionFalse, "ReplicaSetCreateError",
			fmt.Sprintf("Failed to create new replica set %q: %s", set.Name, result.ErrorMessage()))
	default:
		return nil
	}
	return r.changedDeployment(r.deployment.Status)
}
