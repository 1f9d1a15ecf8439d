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

	"skiff/internal/api/apps"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

// claimPatience is how long a pod waits for a claim of its name that is being deleted.
const claimPatience = 2 * time.Second

// statefulLook is a set while one look at it is decided.
type statefulLook struct {
	statefulView
	plan *controller.Plan
	// ordered: one pod after the other, each only when those before it are available.
	ordered         bool
	current, update *appsv1.ControllerRevision
	history         []*appsv1.ControllerRevision // the oldest first
	collisions      int32
	replicas        []*corev1.Pod // by ordinal; nil where there is none
	condemned       []*corev1.Pod // beyond the set's ordinals, the highest first

	// outdated are the pods of an old revision this look deletes.
	outdated []*corev1.Pod

	// The writes of this look. Claims come before the pods that need them.
	makeClaims, makePods, updates, deletes []controller.Write
}

func (v statefulView) reconcile() controller.Plan {
	var plan controller.Plan
	selector, err := metav1.LabelSelectorAsSelector(v.set.Spec.Selector)
	if err != nil {
		return plan // validation keeps such selectors out
	}
	l := &statefulLook{statefulView: v, plan: &plan, ordered: v.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement}
	ours := filter(v.revisions, func(r *appsv1.ControllerRevision) bool { return selector.Matches(labels.Set(r.Labels)) })
	l.history = controller.Claim(&plan, v.set, statefulSetKind, func(*appsv1.ControllerRevision) bool { return true }, ours)
	slices.SortStableFunc(l.history, byRevision)
	pods := controller.Claim(&plan, v.set, statefulSetKind, func(pod *corev1.Pod) bool {
		parent, _ := parentAndOrdinal(pod)
		return parent == v.set.Name && selector.Matches(labels.Set(pod.Labels))
	}, v.pods)
	if err := l.revise(); err != nil {
		plan.Events = []controller.Event{{Object: v.set, Type: corev1.EventTypeWarning, Reason: "FailedRevision", Message: err.Error()}}
		return plan
	}
	l.arrange(pods)
	if v.set.DeletionTimestamp == nil && l.settleReplicas() && l.settleCondemned() {
		l.roll()
	}
	plan.AddStep(l.makeClaims...)
	plan.AddStep(l.makePods...)
	plan.AddStep(l.updates...)
	plan.AddStep(l.deletes...)
	l.report()
	l.truncate(pods)
	return plan
}

// revise finds or makes the revision of the set's template, and the one pods have been at so far.
func (l *statefulLook) revise() error {
	if l.set.Status.CollisionCount != nil {
		l.collisions = *l.set.Status.CollisionCount
	}
	patch, err := templatePatch(&l.set.Spec.Template)
	if err != nil {
		return fmt.Errorf("write down the template: %w", err)
	}
	next := nextRevision(l.history)
	equal := equalTo(l.history, patch)
	switch newest := last(l.history); {
	case newest != nil && bytes.Equal(newest.Data.Raw, patch), newest != nil && len(equal) == 0 && l.sameWhenDefaulted(newest, patch):
		l.update = newest
	case len(equal) > 0:
		// Back to a template of old: its revision becomes the newest.
		l.update = renumbered(last(equal), next)
		l.plan.AddStep(controller.Updating(l.update))
	default:
		l.update = l.newRevision(patch, next)
	}
	l.current = l.update
	for _, r := range l.history {
		if r.Name == l.set.Status.CurrentRevision {
			l.current = r
		}
	}
	return nil
}

// newRevision plans a new revision under a name that is free.
func (l *statefulLook) newRevision(patch []byte, number int64) *appsv1.ControllerRevision {
	for {
		r := newRevision(l.set, statefulSetKind, l.set.Spec.Template.Labels, patch, number, l.collisions)
		var other *appsv1.ControllerRevision
		if l.taken != nil {
			other = l.taken(r.Name)
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

// sameWhenDefaulted says that the newest revision is the set's template but for fields that got a default since it was written: a
// new version of the API must not restart all pods.
func (l *statefulLook) sameWhenDefaulted(newest *appsv1.ControllerRevision, patch []byte) bool {
	template, err := templateOf(newest)
	if err != nil {
		return false
	}
	set := l.set.DeepCopy()
	set.Spec.Template = *template
	apps.StatefulSet.Default(set)
	again, err := templatePatch(&set.Spec.Template)
	return err == nil && bytes.Equal(again, patch)
}

func last[T any](all []*T) *T {
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

// arrange sorts the pods into those the set wants and those it does not.
func (l *statefulLook) arrange(pods []*corev1.Pod) {
	l.replicas = make([]*corev1.Pod, orOne(l.set.Spec.Replicas))
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

func (l *statefulLook) available(pod *corev1.Pod) bool {
	return pod != nil && pod.DeletionTimestamp == nil && available(pod, l.set.Spec.MinReadySeconds, l.now)
}

// settleReplicas brings the wanted pods into being, in order if so asked. It says whether there is nothing to wait for.
func (l *statefulLook) settleReplicas() bool {
	for i, pod := range l.replicas {
		if !l.settleReplica(i, pod) && l.ordered {
			return false
		}
	}
	return true
}

// settleReplica does what one replica needs. It says whether the replica is as it should be.
func (l *statefulLook) settleReplica(i int, pod *corev1.Pod) bool {
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
			l.updates = append(l.updates, l.ownClaims(pod)...)
		}
		return false
	}
	l.correct(pod)
	return true
}

// create plans a pod and the claims it needs.
func (l *statefulLook) create(ordinal int) {
	pod, err := l.newPod(ordinal)
	if err != nil {
		l.plan.Events = append(l.plan.Events, controller.Event{Object: l.set, Type: corev1.EventTypeWarning, Reason: "FailedCreate", Message: err.Error()})
		return
	}
	if l.hasStaleClaim(pod) {
		l.plan.Requeue(claimPatience)
		return
	}
	if leaving := l.ensureClaims(pod); len(leaving) > 0 {
		l.plan.Events = append(l.plan.Events, controller.Event{Object: l.set, Type: corev1.EventTypeWarning, Reason: "FailedCreate",
			Message: fmt.Sprintf("Create Pod %s in StatefulSet %s failed error: %s", pod.Name, l.set.Name, claimsLeaving(leaving))})
		return
	}
	l.makePods = append(l.makePods, l.telling(controller.Creating(pod).WithoutEventOn(metav1.StatusReasonAlreadyExists), "Create", pod))
}

// newPod is the pod of an ordinal. Below the partition, or where the old revision still stands, it is made from the old template.
func (l *statefulLook) newPod(ordinal int) (*corev1.Pod, error) {
	revision := l.update
	if strategy := l.set.Spec.UpdateStrategy; strategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		old := int(l.set.Status.CurrentReplicas)
		if strategy.RollingUpdate != nil {
			old = int(orZero(strategy.RollingUpdate.Partition))
		}
		if ordinal < startOrdinal(l.set)+old {
			revision = l.current
		}
	}
	template := &l.set.Spec.Template
	if revision != l.update {
		var err error
		if template, err = templateOf(revision); err != nil {
			return nil, fmt.Errorf("read revision %s: %w", revision.Name, err)
		}
	}
	pod := podFrom(template, l.set, statefulSetKind)
	pod.GenerateName = podPrefix(l.set.Name)
	pod.Name = fmt.Sprintf("%s-%d", l.set.Name, ordinal)
	l.identify(pod)
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, l.set.Spec.ServiceName
	l.mount(pod)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.StatefulSetRevisionLabel, revision.Name)
	return pod, nil
}

func orZero(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}

// identify gives a pod the labels of its place.
func (l *statefulLook) identify(pod *corev1.Pod) {
	pod.Labels = maps.Clone(pod.Labels)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.StatefulSetPodNameLabel, pod.Name)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.PodIndexLabel, strconv.Itoa(ordinalOf(pod)))
}

// mount gives a pod the volumes of its claims; a volume of the template with the same name gives way.
func (l *statefulLook) mount(pod *corev1.Pod) {
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

func (l *statefulLook) hasIdentity(pod *corev1.Pod) bool {
	return pod.Labels[appsv1.StatefulSetPodNameLabel] == pod.Name
}

func (l *statefulLook) hasStorage(pod *corev1.Pod) bool {
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

// correct brings back a pod's labels, volumes and the owners of its claims.
func (l *statefulLook) correct(pod *corev1.Pod) {
	claims := l.ownClaims(pod)
	if !l.hasIdentity(pod) || !l.hasStorage(pod) {
		changed := pod.DeepCopy()
		l.identify(changed)
		if !l.hasStorage(pod) {
			l.mount(changed)
			l.ensureClaims(changed)
		}
		l.updates = append(l.updates, l.telling(controller.Updating(changed), "Update", pod))
	} else if n := len(claims); n > 0 {
		claims[n-1] = l.telling(claims[n-1], "Update", pod)
	}
	l.updates = append(l.updates, claims...)
}

func (l *statefulLook) delete(pod *corev1.Pod) {
	l.deletes = append(l.deletes, l.telling(controller.Deleting(pod), "Delete", pod))
}

// telling adds the events of a write to a pod.
func (l *statefulLook) telling(w controller.Write, verb string, pod *corev1.Pod) controller.Write {
	about := fmt.Sprintf("%s Pod %s in StatefulSet %s", verb, pod.Name, l.set.Name)
	return w.OnSuccess(controller.Event{Object: l.set, Type: corev1.EventTypeNormal, Reason: "Successful" + verb, Message: about + " successful"}).
		OnFailure(controller.Event{Object: l.set, Type: corev1.EventTypeWarning, Reason: "Failed" + verb, Message: about + " failed error: %s"})
}

// settleCondemned deletes the pods beyond the set's ordinals, the highest first. It says whether there is nothing to wait for.
func (l *statefulLook) settleCondemned() bool {
	for _, pod := range l.condemned {
		l.updates = append(l.updates, l.ownClaims(pod)...)
	}
	// An unavailable pod at the front is no reason to keep it: only those behind it wait for it.
	var firstSick *corev1.Pod
	for _, pod := range slices.Backward(l.condemned) {
		if !l.available(pod) {
			firstSick = pod
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
		if pod.DeletionTimestamp == nil && (pod == firstSick || pod.Status.Phase == corev1.PodRunning && l.available(pod)) {
			l.delete(pod)
		}
		return false
	}
	return true
}

// roll replaces pods of an old revision, the highest ordinal first, as many as may be unavailable.
func (l *statefulLook) roll() {
	strategy := l.set.Spec.UpdateStrategy
	if strategy.Type != appsv1.RollingUpdateStatefulSetStrategyType && strategy.Type != "" {
		return
	}
	partition, budget := 0, 1
	if strategy.RollingUpdate != nil {
		partition = int(orZero(strategy.RollingUpdate.Partition))
		if strategy.RollingUpdate.MaxUnavailable != nil {
			budget = max(1, int(scaledValue(strategy.RollingUpdate.MaxUnavailable, orOne(l.set.Spec.Replicas), false)))
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
		// What is unavailable anyway costs nothing.
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

// report decides the status from the pods as they are. A pod that is deleted to be replaced is no longer one of the current revision.
func (l *statefulLook) report() {
	status := appsv1.StatefulSetStatus{
		ObservedGeneration: l.set.Generation, CurrentRevision: l.current.Name, UpdateRevision: l.update.Name,
		CollisionCount: &l.collisions, Conditions: l.set.Status.Conditions,
	}
	want := orOne(l.set.Spec.Replicas)
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
	l.plan.Status = func(outcome controller.ApplyResult) kind.Object {
		if isUnsettled(outcome) || apiequality.Semantic.DeepEqual(status, l.set.Status) {
			return nil
		}
		changed := *l.set
		changed.Status = status
		return &changed
	}
}

// truncate deletes the oldest revisions nothing refers to, beyond the history limit.
func (l *statefulLook) truncate(pods []*corev1.Pod) {
	live := map[string]bool{l.current.Name: true, l.update.Name: true}
	for _, pod := range pods {
		live[pod.Labels[appsv1.StatefulSetRevisionLabel]] = true
	}
	unused := filter(l.history, func(r *appsv1.ControllerRevision) bool { return !live[r.Name] })
	limit := 10
	if l.set.Spec.RevisionHistoryLimit != nil {
		limit = int(*l.set.Spec.RevisionHistoryLimit)
	}
	if limit < 0 {
		return
	}
	var deletes []controller.Write
	for i := range len(unused) - limit {
		deletes = append(deletes, controller.Deleting(unused[i]))
	}
	l.plan.AddStep(deletes...)
}
