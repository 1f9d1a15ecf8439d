package workload

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

// daemonSetSync is the state of one sync of a DaemonSet.
type daemonSetSync struct {
	daemonSetView
	plan      *controller.Plan
	placement placement
	pods      []*corev1.Pod            // claimed by the set
	onNode    map[string][]*corev1.Pod // the same by node, without deleted terminal pods
	hash      string                   // of the current template
	old       []*appsv1.ControllerRevision

	creates []string // nodes
	deletes []*corev1.Pod
}

func (v daemonSetView) reconcile() controller.Plan {
	var plan controller.Plan
	selector, err := metav1.LabelSelectorAsSelector(v.set.Spec.Selector)
	if err != nil {
		return plan // rejected by validation
	}
	if selector.Empty() {
		plan.Events = []controller.Event{{Object: v.set, Type: corev1.EventTypeWarning, Reason: "SelectingAll",
			Message: "This daemon set is selecting all pods. A non-empty selector is required."}}
		return plan
	}
	l := &daemonSetSync{daemonSetView: v, plan: &plan, placement: placementOf(v.set), onNode: map[string][]*corev1.Pod{}}
	history := controller.Claim(&plan, controller.Claimer{Owner: v.set, Kind: daemonSetKind}, func(r *appsv1.ControllerRevision) bool { return selector.Matches(labels.Set(r.Labels)) }, v.revisions)
	l.pods = controller.Claim(&plan, controller.Claimer{Owner: v.set, Kind: daemonSetKind}, func(pod *corev1.Pod) bool { return selector.Matches(labels.Set(pod.Labels)) }, v.pods)
	for _, pod := range l.pods {
		if node := targetNode(pod); node != "" && !(podstate.IsTerminal(pod) && pod.DeletionTimestamp != nil) {
			l.onNode[node] = append(l.onNode[node], pod)
		}
	}
	slices.SortFunc(l.nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	if !l.ensureRevision(history) {
		return plan
	}
	l.manage()
	if len(l.creates)+len(l.deletes) == 0 && v.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		l.rollingUpdate()
	}
	l.addWrites()
	l.truncateHistory()
	l.planStatus()
	return plan
}

// ensureRevision finds or creates the revision of the set's template. It returns false if the sync cannot continue.
func (l *daemonSetSync) ensureRevision(history []*appsv1.ControllerRevision) bool {
	patch, err := templatePatch(&l.set.Spec.Template)
	if err != nil {
		l.plan.Events = append(l.plan.Events, controller.Event{Object: l.set, Type: corev1.EventTypeWarning, Reason: "FailedRevision", Message: err.Error()})
		return false
	}
	var writes []controller.Write
	for i, r := range history {
		// Revisions created before the label existed use their name as the hash.
		if r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == "" {
			c := r.DeepCopy()
			metav1.SetMetaDataLabel(&c.ObjectMeta, appsv1.DefaultDaemonSetUniqueLabelKey, r.Name)
			history[i] = c
			writes = append(writes, controller.Updating(c))
		}
	}
	l.plan.AddStep(writes...)
	slices.SortStableFunc(history, compareRevisions)
	equal := revisionsWithData(history, patch)
	l.old = filter(history, func(r *appsv1.ControllerRevision) bool { return !bytes.Equal(r.Data.Raw, patch) })
	if len(equal) == 0 {
		return l.newRevision(patch)
	}
	current := last(equal)
	l.hash = current.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]
	if duplicates := equal[:len(equal)-1]; len(duplicates) > 0 {
		l.mergeRevisions(duplicates)
		return false // the cached pods still have the old labels
	}
	if next := nextRevision(l.old); current.Revision < next {
		l.plan.AddStep(controller.Updating(withRevisionNumber(current, next)))
	}
	return true
}

// newRevision plans the revision of a template that has none.
func (l *daemonSetSync) newRevision(patch []byte) bool {
	l.hash = templateHash(&l.set.Spec.Template, l.set.Status.CollisionCount)
	if l.revisionOfSameName != nil {
		if bytes.Equal(l.revisionOfSameName.Data.Raw, patch) {
			return true // same template: left by a former set of this name, or its labels were changed
		}
		// Hash collision with another template: increase the collision count, which is part of the hash.
		l.plan.Status = func(controller.ApplyResult) kind.Object {
			changed := *l.set
			changed.Status.CollisionCount = new(ptr.Deref(l.set.Status.CollisionCount, 0) + 1)
			return &changed
		}
		return false
	}
	r := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: l.set.Name + "-" + l.hash, Namespace: l.set.Namespace, Annotations: l.set.Annotations,
			Labels:          maps.Clone(l.set.Spec.Template.Labels),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(l.set, daemonSetKind)},
		},
		Data: runtime.RawExtension{Raw: patch}, Revision: nextRevision(l.old),
	}
	metav1.SetMetaDataLabel(&r.ObjectMeta, appsv1.DefaultDaemonSetUniqueLabelKey, l.hash)
	l.plan.AddStep(controller.Creating(r))
	return true
}

// mergeRevisions deletes duplicates of the current revision and relabels their pods.
func (l *daemonSetSync) mergeRevisions(duplicates []*appsv1.ControllerRevision) {
	var relabel, remove []controller.Write
	for _, pod := range l.pods {
		if pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] != l.hash {
			patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, appsv1.DefaultDaemonSetUniqueLabelKey, l.hash)
			relabel = append(relabel, controller.Patching(pod, client.MergePatch, patch))
		}
	}
	for _, r := range duplicates {
		remove = append(remove, controller.Deleting(r))
	}
	l.plan.AddStep(relabel...)
	l.plan.AddStep(remove...)
}

func (l *daemonSetSync) isUpdated(pod *corev1.Pod) bool {
	generation, counted := templateGeneration(l.set)
	return pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == l.hash || counted && pod.Labels["pod-template-generation"] == generation
}

func (l *daemonSetSync) available(pod *corev1.Pod) bool {
	return available(pod, l.set.Spec.MinReadySeconds, l.now)
}

// allowsSurge reports whether a new pod may run on a node together with the old one.
func (l *daemonSetSync) allowsSurge() bool {
	rolling := l.set.Spec.UpdateStrategy.RollingUpdate
	return l.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType && rolling != nil && scaledValue(rolling.MaxSurge, 1, true) > 0
}

// manage creates pods on nodes that should have one and deletes pods from nodes that should not.
func (l *daemonSetSync) manage() {
	known := map[string]bool{}
	for _, node := range l.nodes {
		known[node.Name] = true
		run, keep := l.placement.shouldRun(node)
		pods := l.onNode[node.Name]
		switch {
		case run && len(pods) == 0:
			l.creates = append(l.creates, node.Name)
		case keep:
			l.manageNode(node.Name, run, pods)
		default:
			l.deletes = append(l.deletes, filter(pods, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil })...)
		}
	}
	// Pods pinned to a deleted node would stay pending forever.
	for node, pods := range l.onNode {
		if !known[node] {
			l.deletes = append(l.deletes, filter(pods, func(pod *corev1.Pod) bool { return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil })...)
		}
	}
}

// manageNode keeps one running pod on an eligible node.
func (l *daemonSetSync) manageNode(node string, run bool, pods []*corev1.Pod) {
	var running []*corev1.Pod
	deleteWithEvent := func(eventType, reason, text string, pod *corev1.Pod) {
		l.plan.Events = append(l.plan.Events, controller.Event{Object: l.set, Type: eventType, Reason: reason,
			Message: fmt.Sprintf(text, pod.Namespace+"/"+pod.Name, node)})
		l.deletes = append(l.deletes, pod)
	}
	for _, pod := range pods {
		switch {
		case pod.DeletionTimestamp != nil:
		case pod.Status.Phase == corev1.PodFailed:
			if l.backoff != nil {
				if delay := l.backoff(node); delay > 0 {
					l.plan.Requeue(delay)
					continue
				}
			}
			deleteWithEvent(corev1.EventTypeWarning, "FailedDaemonPod", "Found failed daemon pod %s on node %s, will try to kill it", pod)
		case pod.Status.Phase == corev1.PodSucceeded:
			deleteWithEvent(corev1.EventTypeNormal, "SucceededDaemonPod", "Found succeeded daemon pod %s on node %s, will try to delete it", pod)
		default:
			running = append(running, pod)
		}
	}
	slices.SortFunc(running, scheduledThenOlder)
	if !l.allowsSurge() {
		if len(running) > 1 {
			l.deletes = append(l.deletes, running[1:]...)
		}
		return
	}
	if len(running) == 0 && run {
		l.creates = append(l.creates, node)
		return
	}
	l.manageSurge(running)
}

// manageSurge keeps at most one old and one new pod on a node. The old one is deleted when the new one is available or the old one
// is not ready.
func (l *daemonSetSync) manageSurge(running []*corev1.Pod) {
	if len(running) <= 1 {
		return
	}
	var current, old *corev1.Pod
	for _, pod := range running {
		switch isNew := pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == l.hash; {
		case isNew && current == nil:
			current = pod
		case !isNew && old == nil:
			old = pod
		default:
			l.deletes = append(l.deletes, pod)
		}
	}
	if current != nil && old != nil && (!podstate.IsReady(old) || l.available(current)) {
		l.deletes = append(l.deletes, old)
	}
}

func scheduledThenOlder(a, b *corev1.Pod) int {
	return cmp.Or(falseFirst(a.Spec.NodeName == "", b.Spec.NodeName == ""), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// rollingUpdate replaces pods of old templates, limited by maxUnavailable or maxSurge.
func (l *daemonSetSync) rollingUpdate() {
	desired := int32(0)
	shouldRun := map[string]bool{}
	for _, node := range l.nodes {
		if run, _ := l.placement.shouldRun(node); run {
			desired++
			shouldRun[node.Name] = true
		}
	}
	var surge, unavailable int32
	if rolling := l.set.Spec.UpdateStrategy.RollingUpdate; rolling != nil {
		surge, unavailable = scaledValue(rolling.MaxSurge, desired, true), scaledValue(rolling.MaxUnavailable, desired, true)
	}
	if desired > 0 && surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	nodes := slices.Sorted(maps.Keys(l.onNode))
	for node := range shouldRun {
		if l.onNode[node] == nil {
			nodes = append(nodes, node)
		}
	}
	if surge == 0 {
		l.rollWithoutSurge(nodes, unavailable)
	} else {
		l.rollWithSurge(nodes, shouldRun, desired, surge)
	}
}

// podsByRevision returns the updated and the outdated pod of a node; false if there is more than one of either.
func (l *daemonSetSync) podsByRevision(node string) (current, old *corev1.Pod, ok bool) {
	for _, pod := range l.onNode[node] {
		if pod.DeletionTimestamp != nil {
			continue
		}
		slot := &old
		if l.isUpdated(pod) {
			slot = &current
		}
		if *slot != nil {
			return nil, nil, false
		}
		*slot = pod
	}
	return current, old, true
}

// rollWithoutSurge deletes old pods: the unavailable ones, and available ones as long as maxUnavailable allows.
func (l *daemonSetSync) rollWithoutSurge(nodes []string, budget int32) {
	var candidates []*corev1.Pod
	for _, node := range nodes {
		current, old, ok := l.podsByRevision(node)
		switch {
		case !ok, current == nil && old == nil, current != nil && old != nil:
			budget--
		case current != nil:
			if !l.available(current) {
				budget--
			}
		case !l.available(old):
			l.deletes = append(l.deletes, old)
			budget--
		default:
			candidates = append(candidates, old)
		}
	}
	l.deletes = append(l.deletes, candidates[:max(0, min(int(budget), len(candidates)))]...)
}

// rollWithSurge creates new pods on nodes with old ones, as maxSurge allows, and deletes old pods whose replacement is available.
func (l *daemonSetSync) rollWithSurge(nodes []string, shouldRun map[string]bool, desired, surge int32) {
	var candidates []string
	var unwanted []*corev1.Pod
	availableNodes := int32(0)
	for _, node := range nodes {
		current, old, ok := l.podsByRevision(node)
		if !ok {
			surge--
			continue
		}
		if pod := cmp.Or(old, current); pod != nil && l.available(pod) {
			availableNodes++
		}
		switch {
		case old == nil:
		case current != nil && l.available(current):
			l.deletes = append(l.deletes, old)
		case current != nil:
			surge--
		case !shouldRun[node] && !l.available(old):
			l.deletes = append(l.deletes, old)
		case !shouldRun[node]:
			unwanted = append(unwanted, old)
		case !l.available(old):
			l.creates = append(l.creates, node)
		default:
			candidates = append(candidates, node)
		}
	}
	l.deletes = append(l.deletes, unwanted[:max(0, min(int(availableNodes-desired), len(unwanted)))]...)
	l.creates = append(l.creates, candidates[:max(0, min(int(surge), len(candidates)))]...)
}

func (l *daemonSetSync) addWrites() {
	var creates, deletes []controller.Write
	for _, node := range l.creates[:min(len(l.creates), burstReplicas)] {
		creates = append(creates, creatingPod(daemonPod(l.set, node, l.hash), l.set))
	}
	for _, pod := range l.deletes[:min(len(l.deletes), burstReplicas)] {
		deletes = append(deletes, deletingPod(pod, l.set))
	}
	// Delete first: deletions must happen even if creates are rejected.
	l.plan.AddStep(deletes...)
	l.plan.AddStep(creates...)
}

// truncateHistory deletes the oldest revisions without pods beyond the history limit.
func (l *daemonSetSync) truncateHistory() {
	limit := 10
	if l.set.Spec.RevisionHistoryLimit != nil {
		limit = int(*l.set.Spec.RevisionHistoryLimit)
	}
	surplus := len(l.old) - limit
	live := map[string]bool{}
	for _, pod := range l.pods {
		live[pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
	}
	var deletes []controller.Write
	for _, r := range l.old {
		if surplus > len(deletes) && !live[r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] {
			deletes = append(deletes, controller.Deleting(r))
		}
	}
	l.plan.AddStep(deletes...)
}

// planStatus plans the status, which counts nodes, not pods.
func (l *daemonSetSync) planStatus() {
	status := l.set.Status
	status.ObservedGeneration = l.set.Generation
	status.DesiredNumberScheduled, status.CurrentNumberScheduled, status.NumberMisscheduled = 0, 0, 0
	status.NumberReady, status.NumberAvailable, status.UpdatedNumberScheduled = 0, 0, 0
	for _, node := range l.nodes {
		run, _ := l.placement.shouldRun(node)
		pods := l.onNode[node.Name]
		switch {
		case !run && len(pods) > 0:
			status.NumberMisscheduled++
		case run:
			status.DesiredNumberScheduled++
		}
		if !run || len(pods) == 0 {
			continue
		}
		status.CurrentNumberScheduled++
		pod := slices.MinFunc(pods, scheduledThenOlder)
		if podstate.IsReady(pod) {
			status.NumberReady++
			if l.available(pod) {
				status.NumberAvailable++
			}
		}
		if l.isUpdated(pod) {
			status.UpdatedNumberScheduled++
		}
	}
	status.NumberUnavailable = status.DesiredNumberScheduled - status.NumberAvailable
	l.plan.Status = func(result controller.ApplyResult) kind.Object {
		if isInconclusive(result) || apiequality.Semantic.DeepEqual(status, l.set.Status) {
			return nil
		}
		changed := *l.set
		changed.Status = status
		return &changed
	}
	if l.set.Spec.MinReadySeconds > 0 && status.NumberReady != status.NumberAvailable {
		l.plan.Requeue(seconds(l.set.Spec.MinReadySeconds))
		l.plan.Requeue(nextAvailable(l.pods, l.set.Spec.MinReadySeconds, l.now))
	}
}
