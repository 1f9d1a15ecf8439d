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
	s := &daemonSetSync{daemonSetView: v, plan: &plan, placement: placementOf(v.set), onNode: map[string][]*corev1.Pod{}}
	history := controller.Claim(&plan, controller.Claimer{Owner: v.set, Kind: daemonSetKind}, func(r *appsv1.ControllerRevision) bool { return selector.Matches(labels.Set(r.Labels)) }, v.revisions)
	s.pods = controller.Claim(&plan, controller.Claimer{Owner: v.set, Kind: daemonSetKind}, func(pod *corev1.Pod) bool { return selector.Matches(labels.Set(pod.Labels)) }, v.pods)
	for _, pod := range s.pods {
		if node := targetNode(pod); node != "" && !(podstate.IsTerminal(pod) && pod.DeletionTimestamp != nil) {
			s.onNode[node] = append(s.onNode[node], pod)
		}
	}
	slices.SortFunc(s.nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	if !s.ensureRevision(history) {
		return plan
	}
	s.manage()
	if len(s.creates)+len(s.deletes) == 0 && v.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		s.rollingUpdate()
	}
	s.addWrites()
	s.truncateHistory()
	s.planStatus()
	return plan
}

// ensureRevision finds or creates the revision of the set's template. It returns false if the sync cannot continue.
func (s *daemonSetSync) ensureRevision(history []*appsv1.ControllerRevision) bool {
	patch, err := templatePatch(&s.set.Spec.Template)
	if err != nil {
		s.plan.Events = append(s.plan.Events, controller.Event{Object: s.set, Type: corev1.EventTypeWarning, Reason: "FailedRevision", Message: err.Error()})
		return false
	}
	var writes []controller.Write
	for i, r := range history {
		// Revisions created before the label existed use their name as the hash.
		if r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == "" {
			c := r.DeepCopy()
			metav1.SetMetaDataLabel(&c.ObjectMeta, appsv1.DefaultDaemonSetUniqueLabelKey, r.Name)
			history[i] = c
			writes = append(writes, controller.NewUpdate(c))
		}
	}
	s.plan.AddStep(writes...)
	slices.SortStableFunc(history, compareRevisions)
	equal := revisionsWithData(history, patch)
	s.old = filter(history, func(r *appsv1.ControllerRevision) bool { return !bytes.Equal(r.Data.Raw, patch) })
	if len(equal) == 0 {
		return s.newRevision(patch)
	}
	current := last(equal)
	s.hash = current.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]
	if duplicates := equal[:len(equal)-1]; len(duplicates) > 0 {
		s.mergeRevisions(duplicates)
		return false // the cached pods still have the old labels
	}
	if next := nextRevision(s.old); current.Revision < next {
		s.plan.AddStep(controller.NewUpdate(withRevisionNumber(current, next)))
	}
	return true
}

// newRevision plans the revision of a template that has none.
func (s *daemonSetSync) newRevision(patch []byte) bool {
	s.hash = templateHash(&s.set.Spec.Template, s.set.Status.CollisionCount)
	if s.revisionOfSameName != nil {
		if bytes.Equal(s.revisionOfSameName.Data.Raw, patch) {
			return true // same template: left by a former set of this name, or its labels were changed
		}
		// Hash collision with another template: increase the collision count, which is part of the hash.
		s.plan.Status = func(controller.ApplyResult) kind.Object {
			changed := *s.set
			changed.Status.CollisionCount = new(ptr.Deref(s.set.Status.CollisionCount, 0) + 1)
			return &changed
		}
		return false
	}
	r := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.set.Name + "-" + s.hash, Namespace: s.set.Namespace, Annotations: s.set.Annotations,
			Labels:          maps.Clone(s.set.Spec.Template.Labels),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.set, daemonSetKind)},
		},
		Data: runtime.RawExtension{Raw: patch}, Revision: nextRevision(s.old),
	}
	metav1.SetMetaDataLabel(&r.ObjectMeta, appsv1.DefaultDaemonSetUniqueLabelKey, s.hash)
	s.plan.AddStep(controller.NewCreate(r))
	return true
}

// mergeRevisions deletes duplicates of the current revision and relabels their pods.
func (s *daemonSetSync) mergeRevisions(duplicates []*appsv1.ControllerRevision) {
	var relabel, remove []controller.Write
	for _, pod := range s.pods {
		if pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] != s.hash {
			patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, appsv1.DefaultDaemonSetUniqueLabelKey, s.hash)
			relabel = append(relabel, controller.NewPatch(pod, client.MergePatch, patch))
		}
	}
	for _, r := range duplicates {
		remove = append(remove, controller.NewDelete(r))
	}
	s.plan.AddStep(relabel...)
	s.plan.AddStep(remove...)
}

func (s *daemonSetSync) isUpdated(pod *corev1.Pod) bool {
	generation, ok := templateGeneration(s.set)
	return pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == s.hash || ok && pod.Labels["pod-template-generation"] == generation
}

func (s *daemonSetSync) available(pod *corev1.Pod) bool {
	return available(pod, s.set.Spec.MinReadySeconds, s.now)
}

// allowsSurge reports whether a new pod may run on a node together with the old one.
func (s *daemonSetSync) allowsSurge() bool {
	rolling := s.set.Spec.UpdateStrategy.RollingUpdate
	return s.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType && rolling != nil && scaledValue(rolling.MaxSurge, 1, true) > 0
}

// manage creates pods on nodes that should have one and deletes pods from nodes that should not.
func (s *daemonSetSync) manage() {
	known := map[string]bool{}
	for _, node := range s.nodes {
		known[node.Name] = true
		run, keep := s.placement.shouldRun(node)
		pods := s.onNode[node.Name]
		switch {
		case run && len(pods) == 0:
			s.creates = append(s.creates, node.Name)
		case keep:
			s.manageNode(node.Name, run, pods)
		default:
			s.deletes = append(s.deletes, filter(pods, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil })...)
		}
	}
	// Pods pinned to a deleted node would stay pending forever.
	for node, pods := range s.onNode {
		if !known[node] {
			s.deletes = append(s.deletes, filter(pods, func(pod *corev1.Pod) bool { return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil })...)
		}
	}
}

// manageNode keeps one running pod on an eligible node.
func (s *daemonSetSync) manageNode(node string, run bool, pods []*corev1.Pod) {
	var running []*corev1.Pod
	deleteWithEvent := func(eventType, reason, text string, pod *corev1.Pod) {
		s.plan.Events = append(s.plan.Events, controller.Event{Object: s.set, Type: eventType, Reason: reason,
			Message: fmt.Sprintf(text, pod.Namespace+"/"+pod.Name, node)})
		s.deletes = append(s.deletes, pod)
	}
	for _, pod := range pods {
		switch {
		case pod.DeletionTimestamp != nil:
		case pod.Status.Phase == corev1.PodFailed:
			if s.backoff != nil {
				if delay := s.backoff(node); delay > 0 {
					s.plan.Requeue(delay)
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
	if !s.allowsSurge() {
		if len(running) > 1 {
			s.deletes = append(s.deletes, running[1:]...)
		}
		return
	}
	if len(running) == 0 && run {
		s.creates = append(s.creates, node)
		return
	}
	s.manageSurge(running)
}

// manageSurge keeps at most one old and one new pod on a node. The old one is deleted when the new one is available or the old one
// is not ready.
func (s *daemonSetSync) manageSurge(running []*corev1.Pod) {
	if len(running) <= 1 {
		return
	}
	var current, old *corev1.Pod
	for _, pod := range running {
		switch isNew := pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == s.hash; {
		case isNew && current == nil:
			current = pod
		case !isNew && old == nil:
			old = pod
		default:
			s.deletes = append(s.deletes, pod)
		}
	}
	if current != nil && old != nil && (!podstate.IsReady(old) || s.available(current)) {
		s.deletes = append(s.deletes, old)
	}
}

func scheduledThenOlder(a, b *corev1.Pod) int {
	return cmp.Or(compareBool(a.Spec.NodeName == "", b.Spec.NodeName == ""), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// rollingUpdate replaces pods of old templates, limited by maxUnavailable or maxSurge.
func (s *daemonSetSync) rollingUpdate() {
	desired := int32(0)
	shouldRun := map[string]bool{}
	for _, node := range s.nodes {
		if run, _ := s.placement.shouldRun(node); run {
			desired++
			shouldRun[node.Name] = true
		}
	}
	var surge, unavailable int32
	if rolling := s.set.Spec.UpdateStrategy.RollingUpdate; rolling != nil {
		surge, unavailable = scaledValue(rolling.MaxSurge, desired, true), scaledValue(rolling.MaxUnavailable, desired, true)
	}
	if desired > 0 && surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	nodes := slices.Sorted(maps.Keys(s.onNode))
	for node := range shouldRun {
		if s.onNode[node] == nil {
			nodes = append(nodes, node)
		}
	}
	if surge == 0 {
		s.rollWithoutSurge(nodes, unavailable)
	} else {
		s.rollWithSurge(nodes, shouldRun, desired, surge)
	}
}

// podsByRevision returns the updated and the outdated pod of a node; false if there is more than one of either.
func (s *daemonSetSync) podsByRevision(node string) (current, old *corev1.Pod, ok bool) {
	for _, pod := range s.onNode[node] {
		if pod.DeletionTimestamp != nil {
			continue
		}
		slot := &old
		if s.isUpdated(pod) {
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
func (s *daemonSetSync) rollWithoutSurge(nodes []string, budget int32) {
	var candidates []*corev1.Pod
	for _, node := range nodes {
		current, old, ok := s.podsByRevision(node)
		switch {
		case !ok, current == nil && old == nil, current != nil && old != nil:
			budget--
		case current != nil:
			if !s.available(current) {
				budget--
			}
		case !s.available(old):
			s.deletes = append(s.deletes, old)
			budget--
		default:
			candidates = append(candidates, old)
		}
	}
	s.deletes = append(s.deletes, candidates[:max(0, min(int(budget), len(candidates)))]...)
}

// rollWithSurge creates new pods on nodes with old ones, as maxSurge allows, and deletes old pods whose replacement is available.
func (s *daemonSetSync) rollWithSurge(nodes []string, shouldRun map[string]bool, desired, surge int32) {
	var candidates []string
	var unwanted []*corev1.Pod
	availableNodes := int32(0)
	for _, node := range nodes {
		current, old, ok := s.podsByRevision(node)
		if !ok {
			surge--
			continue
		}
		if pod := cmp.Or(old, current); pod != nil && s.available(pod) {
			availableNodes++
		}
		switch {
		case old == nil:
		case current != nil && s.available(current):
			s.deletes = append(s.deletes, old)
		case current != nil:
			surge--
		case !shouldRun[node] && !s.available(old):
			s.deletes = append(s.deletes, old)
		case !shouldRun[node]:
			unwanted = append(unwanted, old)
		case !s.available(old):
			s.creates = append(s.creates, node)
		default:
			candidates = append(candidates, node)
		}
	}
	s.deletes = append(s.deletes, unwanted[:max(0, min(int(availableNodes-desired), len(unwanted)))]...)
	s.creates = append(s.creates, candidates[:max(0, min(int(surge), len(candidates)))]...)
}

func (s *daemonSetSync) addWrites() {
	var creates, deletes []controller.Write
	for _, node := range s.creates[:min(len(s.creates), burstReplicas)] {
		creates = append(creates, newPodCreate(daemonPod(s.set, node, s.hash), s.set))
	}
	for _, pod := range s.deletes[:min(len(s.deletes), burstReplicas)] {
		deletes = append(deletes, newPodDelete(pod, s.set))
	}
	// Delete first: deletions must happen even if creates are rejected.
	s.plan.AddStep(deletes...)
	s.plan.AddStep(creates...)
}

// truncateHistory deletes the oldest revisions without pods beyond the history limit.
func (s *daemonSetSync) truncateHistory() {
	limit := 10
	if s.set.Spec.RevisionHistoryLimit != nil {
		limit = int(*s.set.Spec.RevisionHistoryLimit)
	}
	surplus := len(s.old) - limit
	live := map[string]bool{}
	for _, pod := range s.pods {
		live[pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
	}
	var deletes []controller.Write
	for _, r := range s.old {
		if surplus > len(deletes) && !live[r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] {
			deletes = append(deletes, controller.NewDelete(r))
		}
	}
	s.plan.AddStep(deletes...)
}

// planStatus plans the status, which counts nodes, not pods.
func (s *daemonSetSync) planStatus() {
	status := s.set.Status
	status.ObservedGeneration = s.set.Generation
	status.DesiredNumberScheduled, status.CurrentNumberScheduled, status.NumberMisscheduled = 0, 0, 0
	status.NumberReady, status.NumberAvailable, status.UpdatedNumberScheduled = 0, 0, 0
	for _, node := range s.nodes {
		run, _ := s.placement.shouldRun(node)
		pods := s.onNode[node.Name]
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
			if s.available(pod) {
				status.NumberAvailable++
			}
		}
		if s.isUpdated(pod) {
			status.UpdatedNumberScheduled++
		}
	}
	status.NumberUnavailable = status.DesiredNumberScheduled - status.NumberAvailable
	s.plan.Status = func(result controller.ApplyResult) kind.Object {
		if failedBeforeStatus(result) || apiequality.Semantic.DeepEqual(status, s.set.Status) {
			return nil
		}
		changed := *s.set
		changed.Status = status
		return &changed
	}
	if s.set.Spec.MinReadySeconds > 0 && status.NumberReady != status.NumberAvailable {
		s.plan.Requeue(seconds(s.set.Spec.MinReadySeconds))
		s.plan.Requeue(nextAvailable(s.pods, s.set.Spec.MinReadySeconds, s.now))
	}
}
