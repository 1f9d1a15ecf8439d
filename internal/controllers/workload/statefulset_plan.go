package workload

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"skiff/internal/api/apps"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

// claimRequeueDelay is the delay before a claim that is being deleted is checked again.
const claimRequeueDelay = 2 * time.Second

// statefulSetSync is the state of one sync of a StatefulSet.
type statefulSetSync struct {
	statefulSetView
	plan *controller.Plan
	// ordered: pods are created one after the other, each when its predecessors are available.
	ordered         bool
	current, update *appsv1.ControllerRevision
	history         []*appsv1.ControllerRevision // the oldest first
	collisions      int32
	replicas        []*corev1.Pod // by ordinal; nil where the pod is missing
	condemned       []*corev1.Pod // outside of the set's ordinals, the highest first

	// outdated are the pods of an old revision that this sync deletes.
	outdated []*corev1.Pod

	// The writes of this sync. Claims are created before the pods that use them.
	claimCreates, podCreates, updates, deletes []controller.Write
}

func (v statefulSetView) reconcile() controller.Plan {
	var plan controller.Plan
	selector, err := metav1.LabelSelectorAsSelector(v.set.Spec.Selector)
	if err != nil {
		return plan // rejected by validation
	}
	l := &statefulSetSync{statefulSetView: v, plan: &plan, ordered: v.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement}
	ours := filter(v.revisions, func(r *appsv1.ControllerRevision) bool { return selector.Matches(labels.Set(r.Labels)) })
	l.history = controller.Claim(&plan, controller.Claimer{Owner: v.set, Kind: statefulSetKind}, func(*appsv1.ControllerRevision) bool { return true }, ours)
	slices.SortStableFunc(l.history, compareRevisions)
	pods := controller.Claim(&plan, controller.Claimer{Owner: v.set, Kind: statefulSetKind}, func(pod *corev1.Pod) bool {
		parent, _ := parentAndOrdinal(pod)
		return parent == v.set.Name && selector.Matches(labels.Set(pod.Labels))
	}, v.pods)
	if err := l.resolveRevisions(); err != nil {
		plan.Events = []controller.Event{{Object: v.set, Type: corev1.EventTypeWarning, Reason: "FailedRevision", Message: err.Error()}}
		return plan
	}
	l.sortPods(pods)
	if v.set.DeletionTimestamp == nil && l.processReplicas() && l.processCondemned() {
		l.rollingUpdate()
	}
	plan.AddStep(l.claimCreates...)
	plan.AddStep(l.podCreates...)
	plan.AddStep(l.updates...)
	plan.AddStep(l.deletes...)
	l.planStatus()
	l.truncateHistory(pods)
	return plan
}

// resolveRevisions finds or creates the update revision, and finds the current revision.
func (l *statefulSetSync) resolveRevisions() error {
	if l.set.Status.CollisionCount != nil {
		l.collisions = *l.set.Status.CollisionCount
	}
	patch, err := templatePatch(&l.set.Spec.Template)
	if err != nil {
		return fmt.Errorf("encode template: %w", err)
	}
	nextNumber := nextRevision(l.history)
	equal := revisionsWithData(l.history, patch)
	switch newest := last(l.history); {
	case newest != nil && bytes.Equal(newest.Data.Raw, patch), newest != nil && len(equal) == 0 && l.sameWhenDefaulted(newest, patch):
		l.update = newest
	case len(equal) > 0:
		// The template equals an older revision, which becomes the newest.
		l.update = withRevisionNumber(last(equal), nextNumber)
		l.plan.AddStep(controller.Updating(l.update))
	default:
		l.update = l.newRevision(patch, nextNumber)
	}
	l.current = l.update
	for _, r := range l.history {
		if r.Name == l.set.Status.CurrentRevision {
			l.current = r
		}
	}
	return nil
}

// newRevision plans a new revision with an unused name.
func (l *statefulSetSync) newRevision(patch []byte, number int64) *appsv1.ControllerRevision {
	for {
		r := newRevision(l.set, statefulSetKind, revisionContent{labels: l.set.Spec.Template.Labels, patch: patch, number: number, collisions: l.collisions})
		var other *appsv1.ControllerRevision
		if l.revisionByName != nil {
			other = l.revisionByName(r.Name)
		}
		switch {
		case other == nil:
			l.plan.AddStep(controller.Creating(r))
			return r
		case bytes.Equal(other.Data.Raw, patch):
			return other
		}
		l.collisions++
	}
}

// sameWhenDefaulted reports whether the newest revision equals the set's template after defaulting: new API defaults must not
// restart all pods.
func (l *statefulSetSync) sameWhenDefaulted(newest *appsv1.ControllerRevision, patch []byte) bool {
	template, err := templateOf(newest)
	if err != nil {
		return false
	}
	set := l.set.DeepCopy()
	set.Spec.Template = *template
	apps.StatefulSet.Default(set)
	defaulted, err := templatePatch(&set.Spec.Template)
	return err == nil && bytes.Equal(defaulted, patch)
}

func last[T any](all []*T) *T {
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

// sortPods splits the pods into replicas and condemned pods.
func (l *statefulSetSync) sortPods(pods []*corev1.Pod) {
	l.replicas = make([]*corev1.Pod, ptr.Deref(l.set.Spec.Replicas, 1))
	for _, pod := range pods {
		switch {
		case inRange(l.set, pod):
			l.replicas[ordinalOf(pod)-startOrdinal(l.set)] = pod
		case ordinalOf(pod) >= 0:
			l.condemned = append(l.condemned, pod)
		}
	}
	slices.SortFunc(l.condemned, func(a, b *corev1.Pod) int { return cmp.Compare(ordinalOf(b), ordinalOf(a)) })
}

func (l *statefulSetSync) available(pod *corev1.Pod) bool {
	return pod != nil && pod.DeletionTimestamp == nil && available(pod, l.set.Spec.MinReadySeconds, l.now)
}

// processReplicas creates and updates the set's replicas, in order if required. It returns false if it has to wait.
func (l *statefulSetSync) processReplicas() bool {
	for i, pod := range l.replicas {
		if !l.processReplica(i, pod) && l.ordered {
			return false
		}
	}
	return true
}

// processReplica reconciles one replica. It reports whether the replica is up to date.
func (l *statefulSetSync) processReplica(i int, pod *corev1.Pod) bool {
	switch {
	case pod == nil:
		l.create(i + startOrdinal(l.set))
		return false
	case podstate.IsTerminal(pod):
		if pod.DeletionTimestamp == nil {
			l.delete(pod)
		}
		return false
	}
	pending := pod.Status.Phase == corev1.PodPending
	if pending {
		l.ensureClaims(pod)
	}
	if l.ordered && (pod.Status.Phase != corev1.PodRunning || !l.available(pod)) {
		if pending {
			l.updates = append(l.updates, l.updatingClaimOwners(pod)...)
		}
		return false
	}
	l.updatePod(pod)
	return true
}

// create plans a pod and the claims it needs.
func (l *statefulSetSync) create(ordinal int) {
	pod, err := l.newPod(ordinal)
	if err != nil {
		l.plan.Events = append(l.plan.Events, controller.Event{Object: l.set, Type: corev1.EventTypeWarning, Reason: "FailedCreate", Message: err.Error()})
		return
	}
	if l.hasStaleClaim(pod) {
		l.plan.Requeue(claimRequeueDelay)
		return
	}
	if deleting := l.ensureClaims(pod); len(deleting) > 0 {
		l.plan.Events = append(l.plan.Events, controller.Event{Object: l.set, Type: corev1.EventTypeWarning, Reason: "FailedCreate",
			Message: fmt.Sprintf("Create Pod %s in StatefulSet %s failed error: %s", pod.Name, l.set.Name, claimsBeingDeleted(deleting))})
		return
	}
	l.podCreates = append(l.podCreates, l.withEvents(controller.Creating(pod).WithoutEventOn(metav1.StatusReasonAlreadyExists), "Create", pod))
}

// newPod returns the pod of an ordinal. Below the partition it has the current revision, otherwise the update revision.
func (l *statefulSetSync) newPod(ordinal int) (*corev1.Pod, error) {
	revision := l.update
	if strategy := l.set.Spec.UpdateStrategy; strategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		old := int(l.set.Status.CurrentReplicas)
		if strategy.RollingUpdate != nil {
			old = int(ptr.Deref(strategy.RollingUpdate.Partition, 0))
		}
		if ordinal < startOrdinal(l.set)+old {
			revision = l.current
		}
	}
	template := &l.set.Spec.Template
	if revision != l.update {
		var err error
		if template, err = templateOf(revision); err != nil {
			return nil, fmt.Errorf("decode revision %s: %w", revision.Name, err)
		}
	}
	pod := newPodFromTemplate(template, l.set, statefulSetKind)
	pod.GenerateName = podNamePrefix(l.set.Name)
	pod.Name = fmt.Sprintf("%s-%d", l.set.Name, ordinal)
	l.updateIdentity(pod)
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, l.set.Spec.ServiceName
	l.updateStorage(pod)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.StatefulSetRevisionLabel, revision.Name)
	return pod, nil
}

// updateIdentity sets the pod's name and index labels.
func (l *statefulSetSync) updateIdentity(pod *corev1.Pod) {
	pod.Labels = maps.Clone(pod.Labels)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.StatefulSetPodNameLabel, pod.Name)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.PodIndexLabel, strconv.Itoa(ordinalOf(pod)))
}

// updateStorage adds the volumes of the claims, which replace volumes of the same name.
func (l *statefulSetSync) updateStorage(pod *corev1.Pod) {
	var volumes []corev1.Volume
	isClaim := map[string]bool{}
	for i := range l.set.Spec.VolumeClaimTemplates {
		claim := &l.set.Spec.VolumeClaimTemplates[i]
		isClaim[claim.Name] = true
		volumes = append(volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(l.set, claim, ordinalOf(pod))}}})
	}
	pod.Spec.Volumes = append(volumes, filter(pod.Spec.Volumes, func(v corev1.Volume) bool { return !isClaim[v.Name] })...)
}

func (l *statefulSetSync) identityMatches(pod *corev1.Pod) bool {
	return pod.Labels[appsv1.StatefulSetPodNameLabel] == pod.Name
}

func (l *statefulSetSync) storageMatches(pod *corev1.Pod) bool {
	for i := range l.set.Spec.VolumeClaimTemplates {
		claim := &l.set.Spec.VolumeClaimTemplates[i]
		want := claimName(l.set, claim, ordinalOf(pod))
		if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == claim.Name && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == want
		}) {
			return false
		}
	}
	return true
}

// updatePod restores a pod's labels, volumes and the owners of its claims.
func (l *statefulSetSync) updatePod(pod *corev1.Pod) {
	claims := l.updatingClaimOwners(pod)
	if !l.identityMatches(pod) || !l.storageMatches(pod) {
		changed := pod.DeepCopy()
		l.updateIdentity(changed)
		if !l.storageMatches(pod) {
			l.updateStorage(changed)
			l.ensureClaims(changed)
		}
		l.updates = append(l.updates, l.withEvents(controller.Updating(changed), "Update", pod))
	} else if n := len(claims); n > 0 {
		claims[n-1] = l.withEvents(claims[n-1], "Update", pod)
	}
	l.updates = append(l.updates, claims...)
}

func (l *statefulSetSync) delete(pod *corev1.Pod) {
	l.deletes = append(l.deletes, l.withEvents(controller.Deleting(pod), "Delete", pod))
}

// withEvents adds the events of a write about a pod.
func (l *statefulSetSync) withEvents(w controller.Write, verb string, pod *corev1.Pod) controller.Write {
	subject := fmt.Sprintf("%s Pod %s in StatefulSet %s", verb, pod.Name, l.set.Name)
	return w.OnSuccess(controller.Event{Object: l.set, Type: corev1.EventTypeNormal, Reason: "Successful" + verb, Message: subject + " successful"}).
		OnFailure(controller.Event{Object: l.set, Type: corev1.EventTypeWarning, Reason: "Failed" + verb, Message: subject + " failed error: %s"})
}

// processCondemned deletes the condemned pods, the highest ordinal first. It returns false if it has to wait.
func (l *statefulSetSync) processCondemned() bool {
	for _, pod := range l.condemned {
		l.updates = append(l.updates, l.updatingClaimOwners(pod)...)
	}
	// The first unhealthy condemned pod may be deleted although it is unavailable.
	var firstUnhealthy *corev1.Pod
	for _, pod := range slices.Backward(l.condemned) {
		if !l.available(pod) {
			firstUnhealthy = pod
			break
		}
	}
	for _, pod := range l.condemned {
		if !l.ordered {
			if pod.DeletionTimestamp == nil {
				l.delete(pod)
			}
			continue
		}
		if pod.DeletionTimestamp == nil && (pod == firstUnhealthy || pod.Status.Phase == corev1.PodRunning && l.available(pod)) {
			l.delete(pod)
		}
		return false
	}
	return true
}

// rollingUpdate replaces pods of an old revision, the highest ordinal first, as maxUnavailable allows.
func (l *statefulSetSync) rollingUpdate() {
	strategy := l.set.Spec.UpdateStrategy
	if strategy.Type != appsv1.RollingUpdateStatefulSetStrategyType && strategy.Type != "" {
		return
	}
	partition, budget := 0, 1
	if strategy.RollingUpdate != nil {
		partition = int(ptr.Deref(strategy.RollingUpdate.Partition, 0))
		if strategy.RollingUpdate.MaxUnavailable != nil {
			budget = max(1, int(scaledValue(strategy.RollingUpdate.MaxUnavailable, ptr.Deref(l.set.Spec.Replicas, 1), false)))
		}
	}
	replace := func(pod *corev1.Pod) {
		l.delete(pod)
		l.outdated = append(l.outdated, pod)
	}
	isOld := func(pod *corev1.Pod) bool {
		return pod != nil && pod.DeletionTimestamp == nil && pod.Labels[appsv1.StatefulSetRevisionLabel] != l.update.Name
	}
	for _, pod := range l.replicas {
		if !l.available(pod) {
			budget--
		}
	}
	if !l.ordered {
		// Replacing unavailable pods does not reduce availability.
		for i := len(l.replicas) - 1; i >= partition; i-- {
			if pod := l.replicas[i]; isOld(pod) && !l.available(pod) && !podstate.IsTerminal(pod) {
				replace(pod)
			}
		}
	}
	for i := len(l.replicas) - 1; i >= partition && budget > 0; i-- {
		if pod := l.replicas[i]; isOld(pod) && (l.ordered || l.available(pod)) {
			replace(pod)
			budget--
		}
	}
}

// planStatus calculates the status. A pod this sync deletes for the update no longer counts as a current replica.
func (l *statefulSetSync) planStatus() {
	status := appsv1.StatefulSetStatus{
		ObservedGeneration: l.set.Generation, CurrentRevision: l.current.Name, UpdateRevision: l.update.Name,
		CollisionCount: &l.collisions, Conditions: l.set.Status.Conditions,
	}
	want := ptr.Deref(l.set.Spec.Replicas, 1)
	pods := append(filter(l.replicas, func(pod *corev1.Pod) bool { return pod != nil }), l.condemned...)
	for _, pod := range pods {
		status.Replicas++
		if pod.Status.Phase == corev1.PodRunning && podstate.IsReady(pod) {
			status.ReadyReplicas++
			if available(pod, l.set.Spec.MinReadySeconds, l.now) {
				status.AvailableReplicas++
			}
		}
		if pod.DeletionTimestamp == nil {
			switch revision := pod.Labels[appsv1.StatefulSetRevisionLabel]; {
			case revision == l.current.Name && revision == l.update.Name:
				status.CurrentReplicas++
				status.UpdatedReplicas++
			case revision == l.current.Name && slices.Contains(l.outdated, pod):
			case revision == l.current.Name:
				status.CurrentReplicas++
			case revision == l.update.Name:
				status.UpdatedReplicas++
			}
		}
	}
	if status.UpdatedReplicas == want && status.ReadyReplicas == want && status.Replicas == want {
		status.CurrentReplicas, status.CurrentRevision = status.UpdatedReplicas, status.UpdateRevision
	}
	if l.set.Spec.MinReadySeconds > 0 && status.ReadyReplicas != status.AvailableReplicas {
		l.plan.Requeue(seconds(l.set.Spec.MinReadySeconds))
		l.plan.Requeue(nextAvailable(pods, l.set.Spec.MinReadySeconds, l.now))
	}
	l.plan.Status = func(result controller.ApplyResult) kind.Object {
		if isInconclusive(result) || apiequality.Semantic.DeepEqual(status, l.set.Status) {
			return nil
		}
		changed := *l.set
		changed.Status = status
		return &changed
	}
}

// truncateHistory deletes the oldest unreferenced revisions beyond the history limit.
func (l *statefulSetSync) truncateHistory(pods []*corev1.Pod) {
	live := map[string]bool{l.current.Name: true, l.update.Name: true}
	for _, pod := range pods {
		live[pod.Labels[appsv1.StatefulSetRevisionLabel]] = true
	}
	unreferenced := filter(l.history, func(r *appsv1.ControllerRevision) bool { return !live[r.Name] })
	limit := 10
	if l.set.Spec.RevisionHistoryLimit != nil {
		limit = int(*l.set.Spec.RevisionHistoryLimit)
	}
	if limit < 0 {
		return
	}
	var deletes []controller.Write
	for i := range len(unreferenced) - limit {
		deletes = append(deletes, controller.Deleting(unreferenced[i]))
	}
	l.plan.AddStep(deletes...)
}
