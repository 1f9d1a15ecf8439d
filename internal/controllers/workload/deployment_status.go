package workload

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/controller"
	"skiff/internal/kind"
)

// hasDeadline reports whether the deployment has a progress deadline.
func (r *rollout) hasDeadline() bool {
	deadline := r.deployment.Spec.ProgressDeadlineSeconds
	return deadline != nil && *deadline != math.MaxInt32
}

func (r *rollout) condition(t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range r.conditions {
		if r.conditions[i].Type == t {
			return &r.conditions[i]
		}
	}
	return nil
}

// setCondition replaces a condition if its status or reason changed. The transition time changes with the status only.
func (r *rollout) setCondition(t appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string) {
	r.putCondition(appsv1.DeploymentCondition{Type: t, Status: status, Reason: reason, Message: message,
		LastUpdateTime: metav1.NewTime(r.now), LastTransitionTime: metav1.NewTime(r.now)})
}

func (r *rollout) putCondition(condition appsv1.DeploymentCondition) {
	if previous := r.condition(condition.Type); previous != nil {
		if previous.Status == condition.Status && previous.Reason == condition.Reason {
			return
		}
		if previous.Status == condition.Status {
			condition.LastTransitionTime = previous.LastTransitionTime
		}
	}
	r.removeCondition(condition.Type)
	r.conditions = append(r.conditions, condition)
}

func (r *rollout) removeCondition(t appsv1.DeploymentConditionType) {
	r.conditions = filter(r.conditions, func(c appsv1.DeploymentCondition) bool { return c.Type != t })
}

// updatePausedCondition records in the conditions that the rollout was paused or resumed. A resumed rollout starts with a new
// deadline.
func (r *rollout) updatePausedCondition() {
	progressing := r.condition(appsv1.DeploymentProgressing)
	if !r.hasDeadline() || progressing != nil && progressing.Reason == "ProgressDeadlineExceeded" {
		return
	}
	isPaused := progressing != nil && progressing.Reason == "DeploymentPaused"
	switch {
	case r.deployment.Spec.Paused && !isPaused:
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionUnknown, "DeploymentPaused", "Deployment is paused")
	case !r.deployment.Spec.Paused && isPaused:
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionUnknown, "DeploymentResumed", "Deployment is resumed")
	}
}

// planStatus plans the status from the status of the sets. During a rollout it also updates the progress conditions.
func (r *rollout) planStatus(rolling bool) {
	status := r.calculateStatus()
	if rolling {
		r.updateProgress(&status)
	}
	changed := r.changedDeployment(status)
	r.plan.Status = func(result controller.ApplyResult) kind.Object {
		if result.Err != nil {
			return nil
		}
		return changed
	}
	if rolling {
		r.requeueAtDeadline(&status)
	}
}

// planUnchangedStatus writes conditions, revision and collision count, but keeps the replica counts.
func (r *rollout) planUnchangedStatus() {
	changed := r.changedDeployment(r.deployment.Status)
	r.plan.Status = func(controller.ApplyResult) kind.Object { return changed }
}

// calculateStatus calculates the replica counts and the Available condition from the sets before this sync.
func (r *rollout) calculateStatus() appsv1.DeploymentStatus {
	sets := r.all()
	status := appsv1.DeploymentStatus{ObservedGeneration: r.deployment.Generation}
	desired, terminating, allReported := int32(0), int32(0), true
	for _, set := range sets {
		desired += ptr.Deref(set.Spec.Replicas, 1)
		status.Replicas += set.Status.Replicas
		status.ReadyReplicas += set.Status.ReadyReplicas
		status.AvailableReplicas += set.Status.AvailableReplicas
		switch {
		case set.Status.TerminatingReplicas != nil:
			terminating += *set.Status.TerminatingReplicas
		case set.Status.ObservedGeneration != 0:
			allReported = false // a controller that does not report terminating replicas
		}
	}
	if r.current != nil {
		status.UpdatedReplicas = r.current.Status.Replicas
	}
	status.UnavailableReplicas = max(0, desired-status.AvailableReplicas)
	if allReported {
		status.TerminatingReplicas = &terminating
	}
	if status.AvailableReplicas >= r.desiredReplicas()-r.maxUnavailable() {
		r.setCondition(appsv1.DeploymentAvailable, corev1.ConditionTrue, "MinimumReplicasAvailable", "Deployment has minimum availability.")
	} else {
		r.setCondition(appsv1.DeploymentAvailable, corev1.ConditionFalse, "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
	}
	return status
}

// complete reports whether all desired replicas have the new template and are available, and no old pods are left.
func complete(d *appsv1.Deployment, status *appsv1.DeploymentStatus) bool {
	want := ptr.Deref(d.Spec.Replicas, 1)
	return status.UpdatedReplicas == want && status.Replicas == want && status.AvailableReplicas == want && status.ObservedGeneration >= d.Generation
}

// updateProgress updates the Progressing and ReplicaFailure conditions.
func (r *rollout) updateProgress(status *appsv1.DeploymentStatus) {
	if !r.hasDeadline() {
		r.removeCondition(appsv1.DeploymentProgressing)
	}
	progressing := r.condition(appsv1.DeploymentProgressing)
	subject := fmt.Sprintf("Deployment %q", r.deployment.Name)
	if r.current != nil {
		subject = fmt.Sprintf("ReplicaSet %q", r.current.Name)
	}
	available := progressing != nil && progressing.Reason == "NewReplicaSetAvailable"
	// The condition may still refer to the previous set, if a controller stopped before it could update it.
	stale := available && r.current != nil && strings.HasPrefix(progressing.Message, "ReplicaSet ") && !strings.HasPrefix(progressing.Message, subject)
	done := status.Replicas == status.UpdatedReplicas && available && !stale
	if r.hasDeadline() && !done {
		switch {
		case complete(r.deployment, status):
			if stale {
				r.removeCondition(appsv1.DeploymentProgressing)
			}
			r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "NewReplicaSetAvailable", subject+" has successfully progressed.")
		case r.progressed(status):
			r.renewProgressing(progressing, subject+" is progressing.")
		case r.timedOut():
			r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionFalse, "ProgressDeadlineExceeded", subject+" has timed out progressing.")
		}
	}
	if failure := r.replicaFailure(); failure != nil {
		r.putCondition(*failure)
	} else {
		r.removeCondition(appsv1.DeploymentReplicaFailure)
	}
}

// renewProgressing updates the condition even if it is unchanged: the deadline counts from the last progress.
func (r *rollout) renewProgressing(previous *appsv1.DeploymentCondition, message string) {
	condition := appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "ReplicaSetUpdated", Message: message,
		LastUpdateTime: metav1.NewTime(r.now), LastTransitionTime: metav1.NewTime(r.now)}
	if previous != nil && previous.Status == corev1.ConditionTrue {
		condition.LastTransitionTime = previous.LastTransitionTime
	}
	r.removeCondition(appsv1.DeploymentProgressing)
	r.conditions = append(r.conditions, condition)
}

// progressed reports whether, compared to the last status, there are more updated, fewer old, or more ready or available pods.
func (r *rollout) progressed(status *appsv1.DeploymentStatus) bool {
	previous := r.deployment.Status
	return status.UpdatedReplicas > previous.UpdatedReplicas ||
		status.Replicas-status.UpdatedReplicas < previous.Replicas-previous.UpdatedReplicas ||
		status.ReadyReplicas > previous.ReadyReplicas || status.AvailableReplicas > previous.AvailableReplicas
}

func (r *rollout) timedOut() bool {
	progressing := r.condition(appsv1.DeploymentProgressing)
	if progressing == nil || progressing.Reason == "NewReplicaSetAvailable" {
		return false
	}
	return progressing.Reason == "ProgressDeadlineExceeded" || r.deadline(progressing).Before(r.now)
}

func (r *rollout) deadline(progressing *appsv1.DeploymentCondition) time.Time {
	return progressing.LastUpdateTime.Add(seconds(*r.deployment.Spec.ProgressDeadlineSeconds))
}

// replicaFailure returns the failure condition of the current set, or of an old one.
func (r *rollout) replicaFailure() *appsv1.DeploymentCondition {
	sets := r.all()
	if r.current != nil {
		sets = append([]*appsv1.ReplicaSet{r.current}, r.old...)
	}
	for _, set := range sets {
		for _, c := range set.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure {
				return &appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: c.Status, Reason: c.Reason, Message: c.Message,
					LastTransitionTime: c.LastTransitionTime, LastUpdateTime: c.LastTransitionTime}
			}
		}
	}
	return nil
}

// requeueAtDeadline requeues the key for when the progress deadline passes.
func (r *rollout) requeueAtDeadline(status *appsv1.DeploymentStatus) {
	progressing := r.condition(appsv1.DeploymentProgressing)
	if !r.hasDeadline() || progressing == nil || complete(r.deployment, status) || progressing.Reason == "ProgressDeadlineExceeded" {
		return
	}
	r.plan.Requeue(max(0, r.deadline(progressing).Sub(r.now)) + time.Second)
}

// changedDeployment returns the deployment with a new status and revision, or nil if nothing changed. The revision is an annotation and
// written together with the status.
func (r *rollout) changedDeployment(status appsv1.DeploymentStatus) kind.Object {
	status.Conditions = r.conditions
	status.CollisionCount = r.collisions
	sameRevision := r.revision == r.deployment.Annotations[revisionAnnotation]
	if sameRevision && apiequality.Semantic.DeepEqual(status, r.deployment.Status) {
		return nil
	}
	changed := *r.deployment
	changed.Status = status
	if !sameRevision {
		if changed.Annotations = maps.Clone(changed.Annotations); changed.Annotations == nil {
			changed.Annotations = map[string]string{}
		}
		changed.Annotations[revisionAnnotation] = r.revision
	}
	return &changed
}
