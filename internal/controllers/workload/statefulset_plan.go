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
	s := &statefulSetSync{statefulSetView: v, plan: &plan, ordered: v.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement}
	revisions := filter(v.revisions, func(r *appsv1.ControllerRevision) bool { return selector.Matches(labels.Set(r.Labels)) })
	s.history = controller.Claim(&plan, controller.Claimer{Owner: v.set, Kind: statefulSetKind}, func(*appsv1.ControllerRevision) bool { return true }, revisions)
	slices.SortStableFunc(s.history, compareRevisions)
	pods := controller.Claim(&plan, controller.Claimer{Owner: v.set, Kind: statefulSetKind}, func(pod *corev1.Pod) bool {
		parent, _ := parentAndOrdinal(pod)
		return parent == v.set.Name && selector.Matches(labels.Set(pod.Labels))
	}, v.pods)
	if err := s.resolveRevisions(); err != nil {
		plan.Events = []controller.Event{{Object: v.set, Type: corev1.EventTypeWarning, Reason: "FailedRevision", Message: err.Error()}}
		return plan
	}
	s.sortPods(pods)
	if v.set.DeletionTimestamp == nil && s.processReplicas() && s.processCondemned() {
		s.rollingUpdate()
	}
	plan.AddStep(s.claimCreates...)
	plan.AddStep(s.podCreates...)
	plan.AddStep(s.updates...)
	plan.AddStep(s.deletes...)
	s.planStatus()
	s.truncateHistory(pods)
	return plan
}

// resolveRevisions finds or creates the update revision, and finds the current revision.
func (s *statefulSetSync) resolveRevisions() error {
	if s.set.Status.CollisionCount != nil {
		s.collisions = *s.set.Status.CollisionCount
	}
	patch, err := templatePatch(&s.set.Spec.Template)
	if err != nil {
		return fmt.Errorf("encode template: %w", err)
	}
	nextNumber := nextRevision(s.history)
	equal := revisionsWithData(s.history, patch)
	switch newest := last(s.history); {
	case newest != nil && bytes.Equal(newest.Data.Raw, patch), newest != nil && len(equal) == 0 && s.sameWhenDefaulted(newest, patch):
		s.update = newest
	case len(equal) > 0:
		// The template equals an older revision, which becomes the newest.
		s.update = withRevisionNumber(last(equal), nextNumber)
		s.plan.AddStep(controller.NewUpdate(s.update))
	default:
		s.update = s.newRevision(patch, nextNumber)
	}
	s.current = s.update
	for _, r := range s.history {
		if r.Name == s.set.Status.CurrentRevision {
			s.current = r
		}
	}
	return nil
}

// newRevision plans a new revision with an unused name.
func (s *statefulSetSync) newRevision(patch []byte, number int64) *appsv1.ControllerRevision {
	for {
		r := newRevision(s.set, statefulSetKind, revisionContent{labels: s.set.Spec.Template.Labels, patch: patch, number: number, collisions: s.collisions})
		var other *appsv1.ControllerRevision
		if s.revisionByName != nil {
			other = s.revisionByName(r.Name)
		}
		switch {
		case other == nil:
			s.plan.AddStep(controller.NewCreate(r))
			return r
		case bytes.Equal(other.Data.Raw, patch):
			return other
		}
		s.collisions++
	}
}

// sameWhenDefaulted reports whether the newest revision equals the set's template after defaulting: new API defaults must not
// restart all pods.
func (s *statefulSetSync) sameWhenDefaulted(newest *appsv1.ControllerRevision, patch []byte) bool {
	template, err := templateOf(newest)
	if err != nil {
		return false
	}
	set := s.set.DeepCopy()
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
func (s *statefulSetSync) sortPods(pods []*corev1.Pod) {
	s.replicas = make([]*corev1.Pod, ptr.Deref(s.set.Spec.Replicas, 1))
	for _, pod := range pods {
		switch {
		case inRange(s.set, pod):
			s.replicas[ordinalOf(pod)-startOrdinal(s.set)] = pod
		case ordinalOf(pod) >= 0:
			s.condemned = append(s.condemned, pod)
		}
	}
	slices.SortFunc(s.condemned, func(a, b *corev1.Pod) int { return cmp.Compare(ordinalOf(b), ordinalOf(a)) })
}

func (s *statefulSetSync) available(pod *corev1.Pod) bool {
	return pod != nil && pod.DeletionTimestamp == nil && available(pod, s.set.Spec.MinReadySeconds, s.now)
}

// processReplicas creates and updates the set's replicas, in order if required. It returns false if it has to wait.
func (s *statefulSetSync) processReplicas() bool {
	for i, pod := range s.replicas {
		if !s.processReplica(i, pod) && s.ordered {
			return false
		}
	}
	return true
}

// processReplica reconciles one replica. It reports whether the replica is up to date.
func (s *statefulSetSync) processReplica(i int, pod *corev1.Pod) bool {
	switch {
	case pod == nil:
		s.create(i + startOrdinal(s.set))
		return false
	case podstate.IsTerminal(pod):
		if pod.DeletionTimestamp == nil {
			s.delete(pod)
		}
		return false
	}
	pending := pod.Status.Phase == corev1.PodPending
	if pending {
		s.ensureClaims(pod)
	}
	if s.ordered && (pod.Status.Phase != corev1.PodRunning || !s.available(pod)) {
		if pending {
			s.updates = append(s.updates, s.newClaimOwnerUpdates(pod)...)
		}
		return false
	}
	s.updatePod(pod)
	return true
}

// create plans a pod and the claims it needs.
func (s *statefulSetSync) create(ordinal int) {
	pod, err := s.newPod(ordinal)
	if err != nil {
		s.plan.Events = append(s.plan.Events, controller.Event{Object: s.set, Type: corev1.EventTypeWarning, Reason: "FailedCreate", Message: err.Error()})
		return
	}
	if s.hasStaleClaim(pod) {
		s.plan.Requeue(claimRequeueDelay)
		return
	}
	if deleting := s.ensureClaims(pod); len(deleting) > 0 {
		s.plan.Events = append(s.plan.Events, controller.Event{Object: s.set, Type: corev1.EventTypeWarning, Reason: "FailedCreate",
			Message: fmt.Sprintf("Create Pod %s in StatefulSet %s failed error: %s", pod.Name, s.set.Name, claimsBeingDeleted(deleting))})
		return
	}
	s.podCreates = append(s.podCreates, s.withEvents(controller.NewCreate(pod).WithoutEventOn(metav1.StatusReasonAlreadyExists), "Create", pod))
}

// newPod returns the pod of an ordinal. Below the partition it has the current revision, otherwise the update revision.
func (s *statefulSetSync) newPod(ordinal int) (*corev1.Pod, error) {
	revision := s.update
	if strategy := s.set.Spec.UpdateStrategy; strategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		old := int(s.set.Status.CurrentReplicas)
		if strategy.RollingUpdate != nil {
			old = int(ptr.Deref(strategy.RollingUpdate.Partition, 0))
		}
		if ordinal < startOrdinal(s.set)+old {
			revision = s.current
		}
	}
	template := &s.set.Spec.Template
	if revision != s.update {
		var err error
		if template, err = templateOf(revision); err != nil {
			return nil, fmt.Errorf("decode revision %s: %w", revision.Name, err)
		}
	}
	pod := newPodFromTemplate(template, s.set, statefulSetKind)
	pod.GenerateName = podNamePrefix(s.set.Name)
	pod.Name = fmt.Sprintf("%s-%d", s.set.Name, ordinal)
	s.updateIdentity(pod)
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, s.set.Spec.ServiceName
	s.updateStorage(pod)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.StatefulSetRevisionLabel, revision.Name)
	return pod, nil
}

// updateIdentity sets the pod's name and index labels.
func (s *statefulSetSync) updateIdentity(pod *corev1.Pod) {
	pod.Labels = maps.Clone(pod.Labels)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.StatefulSetPodNameLabel, pod.Name)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.PodIndexLabel, strconv.Itoa(ordinalOf(pod)))
}

// updateStorage adds the volumes of the claims, which replace volumes of the same name.
func (s *statefulSetSync) updateStorage(pod *corev1.Pod) {
	var volumes []corev1.Volume
	isClaim := map[string]bool{}
	for i := range s.set.Spec.VolumeClaimTemplates {
		claim := &s.set.Spec.VolumeClaimTemplates[i]
		isClaim[claim.Name] = true
		volumes = append(volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(s.set, claim, ordinalOf(pod))}}})
	}
	pod.Spec.Volumes = append(volumes, filter(pod.Spec.Volumes, func(v corev1.Volume) bool { return !isClaim[v.Name] })...)
}

func (s *statefulSetSync) identityMatches(pod *corev1.Pod) bool {
	return pod.Labels[appsv1.StatefulSetPodNameLabel] == pod.Name
}

func (s *statefulSetSync) storageMatches(pod *corev1.Pod) bool {
	for i := range s.set.Spec.VolumeClaimTemplates {
		claim := &s.set.Spec.VolumeClaimTemplates[i]
		want := claimName(s.set, claim, ordinalOf(pod))
		if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == claim.Name && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == want
		}) {
			return false
		}
	}
	return true
}

// updatePod restores a pod's labels, volumes and the owners of its claims.
func (s *statefulSetSync) updatePod(pod *corev1.Pod) {
	claims := s.newClaimOwnerUpdates(pod)
	if !s.identityMatches(pod) || !s.storageMatches(pod) {
		changed := pod.DeepCopy()
		s.updateIdentity(changed)
		if !s.storageMatches(pod) {
			s.updateStorage(changed)
			s.ensureClaims(changed)
		}
		s.updates = append(s.updates, s.withEvents(controller.NewUpdate(changed), "Update", pod))
	} else if n := len(claims); n > 0 {
		claims[n-1] = s.withEvents(claims[n-1], "Update", pod)
	}
	s.updates = append(s.updates, claims...)
}

func (s *statefulSetSync) delete(pod *corev1.Pod) {
	s.deletes = append(s.deletes, s.withEvents(controller.NewDelete(pod), "Delete", pod))
}

// withEvents adds the events of a write about a pod.
func (s *statefulSetSync) withEvents(w controller.Write, verb string, pod *corev1.Pod) controller.Write {
	subject := fmt.Sprintf("%s Pod %s in StatefulSet %s", verb, pod.Name, s.set.Name)
	return w.OnSuccess(controller.Event{Object: s.set, Type: corev1.EventTypeNormal, Reason: "Successful" + verb, Message: subject + " successful"}).
		OnFailure(controller.Event{Object: s.set, Type: corev1.EventTypeWarning, Reason: "Failed" + verb, Message: subject + " failed error: %s"})
}

// processCondemned deletes the condemned pods, the highest ordinal first. It returns false if it has to wait.
func (s *statefulSetSync) processCondemned() bool {
	for _, pod := range s.condemned {
		s.updates = append(s.updates, s.newClaimOwnerUpdates(pod)...)
	}
	// The first unhealthy condemned pod may be deleted although it is unavailable.
	var firstUnhealthy *corev1.Pod
	for _, pod := range slices.Backward(s.condemned) {
		if !s.available(pod) {
			firstUnhealthy = pod
			break
		}
	}
	for _, pod := range s.condemned {
		if !s.ordered {
			if pod.DeletionTimestamp == nil {
				s.delete(pod)
			}
			continue
		}
		if pod.DeletionTimestamp == nil && (pod == firstUnhealthy || pod.Status.Phase == corev1.PodRunning && s.available(pod)) {
			s.delete(pod)
		}
		return false
	}
	return true
}

// rollingUpdate replaces pods of an old revision, the highest ordinal first, as maxUnavailable allows.
func (s *statefulSetSync) rollingUpdate() {
	strategy := s.set.Spec.UpdateStrategy
	if strategy.Type != appsv1.RollingUpdateStatefulSetStrategyType && strategy.Type != "" {
		return
	}
	partition, budget := 0, 1
	if strategy.RollingUpdate != nil {
		partition = int(ptr.Deref(strategy.RollingUpdate.Partition, 0))
		if strategy.RollingUpdate.MaxUnavailable != nil {
			budget = max(1, int(scaledValue(strategy.RollingUpdate.MaxUnavailable, ptr.Deref(s.set.Spec.Replicas, 1), false)))
		}
	}
	replace := func(pod *corev1.Pod) {
		s.delete(pod)
		s.outdated = append(s.outdated, pod)
	}
	isOld := func(pod *corev1.Pod) bool {
		return pod != nil && pod.DeletionTimestamp == nil && pod.Labels[appsv1.StatefulSetRevisionLabel] != s.update.Name
	}
	for _, pod := range s.replicas {
		if !s.available(pod) {
			budget--
		}
	}
	if !s.ordered {
		// Replacing unavailable pods does not reduce availability.
		for i := len(s.replicas) - 1; i >= partition; i-- {
			if pod := s.replicas[i]; isOld(pod) && !s.available(pod) && !podstate.IsTerminal(pod) {
				replace(pod)
			}
		}
	}
	for i := len(s.replicas) - 1; i >= partition && budget > 0; i-- {
		if pod := s.replicas[i]; isOld(pod) && (s.ordered || s.available(pod)) {
			replace(pod)
			budget--
		}
	}
}

// planStatus calculates the status. A pod this sync deletes for the update no longer counts as a current replica.
func (s *statefulSetSync) planStatus() {
	status := appsv1.StatefulSetStatus{
		ObservedGeneration: s.set.Generation, CurrentRevision: s.current.Name, UpdateRevision: s.update.Name,
		CollisionCount: &s.collisions, Conditions: s.set.Status.Conditions,
	}
	want := ptr.Deref(s.set.Spec.Replicas, 1)
	pods := append(filter(s.replicas, func(pod *corev1.Pod) bool { return pod != nil }), s.condemned...)
	for _, pod := range pods {
		status.Replicas++
		if pod.Status.Phase == corev1.PodRunning && podstate.IsReady(pod) {
			status.ReadyReplicas++
			if available(pod, s.set.Spec.MinReadySeconds, s.now) {
				status.AvailableReplicas++
			}
		}
		if pod.DeletionTimestamp == nil {
			switch revision := pod.Labels[appsv1.StatefulSetRevisionLabel]; {
			case revision == s.current.Name && revision == s.update.Name:
				status.CurrentReplicas++
				status.UpdatedReplicas++
			case revision == s.current.Name && slices.Contains(s.outdated, pod):
			case revision == s.current.Name:
				status.CurrentReplicas++
			case revision == s.update.Name:
				status.UpdatedReplicas++
			}
		}
	}
	if status.UpdatedReplicas == want && status.ReadyReplicas == want && status.Replicas == want {
		status.CurrentReplicas, status.CurrentRevision = status.UpdatedReplicas, status.UpdateRevision
	}
	if s.set.Spec.MinReadySeconds > 0 && status.ReadyReplicas != status.AvailableReplicas {
		s.plan.Requeue(seconds(s.set.Spec.MinReadySeconds))
		s.plan.Requeue(nextAvailable(pods, s.set.Spec.MinReadySeconds, s.now))
	}
	s.plan.Status = func(result controller.ApplyResult) kind.Object {
		if failedBeforeStatus(result) || apiequality.Semantic.DeepEqual(status, s.set.Status) {
			return nil
		}
		changed := *s.set
		changed.Status = status
		return &changed
	}
}

// truncateHistory deletes the oldest unreferenced revisions beyond the history limit.
func (s *statefulSetSync) truncateHistory(pods []*corev1.Pod) {
	live := map[string]bool{s.current.Name: true, s.update.Name: true}
	for _, pod := range pods {
		live[pod.Labels[appsv1.StatefulSetRevisionLabel]] = true
	}
	unreferenced := filter(s.history, func(r *appsv1.ControllerRevision) bool { return !live[r.Name] })
	limit := 10
	if s.set.Spec.RevisionHistoryLimit != nil {
		limit = int(*s.set.Spec.RevisionHistoryLimit)
	}
	if limit < 0 {
		return
	}
	var deletes []controller.Write
	for i := range len(unreferenced) - limit {
		deletes = append(deletes, controller.NewDelete(unreferenced[i]))
	}
	s.plan.AddStep(deletes...)
}
