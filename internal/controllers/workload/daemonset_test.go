package workload

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"skiff/internal/controller"
)

func aNode(name string, changes ...change[*corev1.Node]) *corev1.Node {
	return with(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "a"}}}, changes...)
}

func tainted(key string, effect corev1.TaintEffect) change[*corev1.Node] {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect}) }
}

func rollingBy(unavailable, surge int32) change[*appsv1.DaemonSet] {
	return func(s *appsv1.DaemonSet) {
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromInt32(unavailable)), MaxSurge: new(intstr.FromInt32(surge))}
	}
}

func daemonImage(n int) change[*appsv1.DaemonSet] {
	return func(s *appsv1.DaemonSet) { s.Spec.Template = template(fmt.Sprintf("image:%d", n)) }
}

func daemonHash(n int) string {
	tmpl := template(fmt.Sprintf("image:%d", n))
	return templateHash(&tmpl, nil)
}

func daemonRevision(t *testing.T, n int) *appsv1.ControllerRevision {
	t.Helper()
	tmpl := template(fmt.Sprintf("image:%d", n))
	patch, err := templatePatch(&tmpl)
	if err != nil {
		t.Fatal(err)
	}
	r := newRevision(aDaemonSet(), daemonSetKind, revisionContent{labels: tmpl.Labels, patch: patch, number: int64(n), collisions: 0})
	r.Name, r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = "log-"+daemonHash(n), daemonHash(n)
	return r
}

// daemon is a pod of the set on a node, of revision n, ready for long.
func daemon(name, node string, n int, changes ...change[*corev1.Pod]) *corev1.Pod {
	return aPod(name, append([]change[*corev1.Pod]{ownedBy(aDaemonSet(), "DaemonSet"), onNode(node), readyFor(time.Hour), labelled(appsv1.DefaultDaemonSetUniqueLabelKey, daemonHash(n))}, changes...)...)
}

func notReady(p *corev1.Pod) { p.Status.Conditions = nil }

// waiting makes a pod that is pinned to a node but not there.
func waiting(node string) change[*corev1.Pod] {
	return func(p *corev1.Pod) { p.Spec.NodeName, p.Spec.Affinity = "", withRequiredNode(nil, node) }
}

func TestPlacement(t *testing.T) {
	selecting := func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.NodeSelector = map[string]string{"zone": "b"} }
	named := func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.NodeName = "other" }
	hostNetwork := func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.HostNetwork = true }
	tolerant := func(s *appsv1.DaemonSet) {
		s.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}}
	}
	for _, test := range []struct {
		what      string
		set       *appsv1.DaemonSet
		node      *corev1.Node
		run, stay bool
	}{
		{"any node", aDaemonSet(), aNode("n"), true, true},
		{"not selected", aDaemonSet(selecting), aNode("n"), false, false},
		{"another node is named", aDaemonSet(named), aNode("n"), false, false},
		{"a taint against new pods", aDaemonSet(), aNode("n", tainted("k", corev1.TaintEffectNoSchedule)), false, true},
		{"a taint against all pods", aDaemonSet(), aNode("n", tainted("k", corev1.TaintEffectNoExecute)), false, false},
		{"a taint that only asks", aDaemonSet(), aNode("n", tainted("k", corev1.TaintEffectPreferNoSchedule)), true, true},
		{"a tolerated taint", aDaemonSet(tolerant), aNode("n", tainted("k", corev1.TaintEffectNoExecute)), true, true},
		{"a cordoned node", aDaemonSet(), aNode("n", tainted(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)), true, true},
		{"a node nobody hears of", aDaemonSet(), aNode("n", tainted(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)), true, true},
		{"a node without network", aDaemonSet(), aNode("n", tainted(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)), false, true},
		{"a node without network, for a pod of the host's", aDaemonSet(hostNetwork), aNode("n", tainted(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)), true, true},
	} {
		if run, stay := placementOf(test.set).shouldRun(test.node); run != test.run || stay != test.stay {
			t.Errorf("%s: run %v, stay %v", test.what, run, stay)
		}
	}
	spec := &corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(5))}}}
	if got := daemonTolerations(spec); len(got) != 6 || got[0].TolerationSeconds != nil || spec.Tolerations[0].TolerationSeconds == nil {
		t.Errorf("%+v", got)
	}
}

func TestDaemonSetPlan(t *testing.T) {
	nodes := []*corev1.Node{aNode("n1"), aNode("n2"), aNode("n3")}
	one := daemonRevision(t, 1)
	pods := func(all ...*corev1.Pod) []*corev1.Pod { return all }
	three := pods(daemon("a", "n1", 1), daemon("b", "n2", 1), daemon("c", "n3", 1))
	next := func(changes ...change[*appsv1.DaemonSet]) *appsv1.DaemonSet {
		return aDaemonSet(append([]change[*appsv1.DaemonSet]{daemonImage(2)}, changes...)...)
	}
	revision2 := "create ControllerRevision log-" + daemonHash(2)
	for _, test := range []struct {
		what  string
		set   *appsv1.DaemonSet
		nodes []*corev1.Node
		pods  []*corev1.Pod
		want  string
	}{
		{"one pod for each node", aDaemonSet(), nodes, nil, "create Pod log- + create Pod log- + create Pod log-"},
		{"enough", aDaemonSet(), nodes, three, ""},
		{"pods that wait count for their node", aDaemonSet(), nodes, pods(daemon("a", "n1", 1), daemon("b", "n2", 1), daemon("c", "", 1, waiting("n3"))), ""},
		{"one too many: the older stays", aDaemonSet(), nodes[:1], pods(daemon("a", "n1", 1, created(time.Minute)), daemon("b", "n1", 1)), "delete Pod a"},
		{"one too many: the one that is there stays", aDaemonSet(), nodes[:1], pods(daemon("a", "", 1, waiting("n1")), daemon("b", "n1", 1, created(time.Second))), "delete Pod a"},
		{"a failed pod is replaced", aDaemonSet(), nodes[:1], pods(daemon("a", "n1", 1, inPhase(corev1.PodFailed))), "delete Pod a"},
		{"one that ended is replaced", aDaemonSet(), nodes[:1], pods(daemon("a", "n1", 1, inPhase(corev1.PodSucceeded))), "delete Pod a"},
		{"one that leaves is waited for", aDaemonSet(), nodes[:1], pods(daemon("a", "n1", 1, beingDeleted)), ""},
		{"one that ended and leaves is not", aDaemonSet(), nodes[:1], pods(daemon("a", "n1", 1, beingDeleted, inPhase(corev1.PodFailed))), "create Pod log-"},
		{"not wanted here any more", aDaemonSet(), []*corev1.Node{aNode("n1", tainted("k", corev1.TaintEffectNoExecute))}, pods(daemon("a", "n1", 1)), "delete Pod a"},
		{"not wanted for new ones: it stays", aDaemonSet(), []*corev1.Node{aNode("n1", tainted("k", corev1.TaintEffectNoSchedule))}, pods(daemon("a", "n1", 1)), ""},
		{"its node is gone before it got there", aDaemonSet(), nil, pods(daemon("a", "", 1, waiting("n9")), daemon("b", "n9", 1)), "delete Pod a"},
		{"a new template: one at a time", next(), nodes, three, revision2 + ", delete Pod a"},
		{"not before the last is available", next(), nodes, pods(daemon("a", "n1", 2, notReady), daemon("b", "n2", 1), daemon("c", "n3", 1)), revision2},
		{"what is unavailable goes anyway", next(), nodes, pods(daemon("a", "n1", 1), daemon("b", "n2", 1, notReady), daemon("c", "n3", 1, notReady)), revision2 + ", delete Pod b + delete Pod c"},
		{"two at a time", next(rollingBy(2, 0)), nodes, three, revision2 + ", delete Pod a + delete Pod b"},
		{"none, none: one all the same", next(rollingBy(0, 0)), nodes, three, revision2 + ", delete Pod a"},
		{"only when deleted", next(func(s *appsv1.DaemonSet) { s.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType }), nodes, three, revision2},
		{"surge: new pods beside old ones", next(rollingBy(0, 2)), nodes, three, revision2 + ", create Pod log- + create Pod log-"},
		{"surge: the old one goes when the new one is available", next(rollingBy(0, 1)), nodes[:1], pods(daemon("a", "n1", 1), daemon("b", "n1", 2)), revision2 + ", delete Pod a"},
		{"surge: the old one goes when it is of no use", next(rollingBy(0, 1)), nodes[:1], pods(daemon("a", "n1", 1, notReady), daemon("b", "n1", 2, notReady)), revision2 + ", delete Pod a"},
		{"surge: it waits", next(rollingBy(0, 1)), nodes[:1], pods(daemon("a", "n1", 1), daemon("b", "n1", 2, notReady)), revision2},
		{"surge: doubles go", next(rollingBy(0, 1)), nodes[:1], pods(daemon("a", "n1", 1), daemon("b", "n1", 2, notReady), daemon("c", "n1", 2, notReady, created(time.Minute))), revision2 + ", delete Pod c"},
		{"an orphan is adopted", aDaemonSet(), nodes[:1], pods(daemon("a", "n1", 1, func(p *corev1.Pod) { p.OwnerReferences = nil })), "patch Pod a"},
		{"a foreign is released", aDaemonSet(), nodes[:1], pods(daemon("a", "n1", 1, labelled("app", "db"))), "patch Pod a, create Pod log-"},
		{"ready, but not for long", aDaemonSet(func(s *appsv1.DaemonSet) { s.Spec.MinReadySeconds = 30 }), nodes[:1], pods(daemon("a", "n1", 1, readyFor(10*time.Second))), "again 20s"},
	} {
		plan := daemonSetView{set: test.set, nodes: slices.Clone(test.nodes), pods: test.pods, revisions: []*appsv1.ControllerRevision{one}, now: now}.reconcile()
		expect(t, test.what, told(plan), test.want)
	}
	paused := daemonSetView{set: aDaemonSet(), nodes: nodes[:1], pods: pods(daemon("a", "n1", 1, inPhase(corev1.PodFailed))), revisions: []*appsv1.ControllerRevision{one},
		backoff: func(string) time.Duration { return 4 * time.Second }, now: now}.reconcile()
	expect(t, "a pod that fails again and again", told(paused), "again 4s")
	told := daemonSetView{set: aDaemonSet(), nodes: nodes[:1], pods: pods(daemon("a", "n1", 1, inPhase(corev1.PodFailed))), revisions: []*appsv1.ControllerRevision{one}, now: now}.reconcile()
	if got := events(told); !slices.Equal(got, []string{"SuccessfulDelete: Deleted pod: a", "FailedDaemonPod: Found failed daemon pod default/a on node n1, will try to kill it"}) {
		t.Errorf("events %q", got)
	}
	everything := daemonSetView{set: aDaemonSet(func(s *appsv1.DaemonSet) { s.Spec.Selector = &metav1.LabelSelector{} }), nodes: nodes, now: now}.reconcile()
	if len(everything.Steps) != 0 || everything.Events[0].Reason != "SelectingAll" {
		t.Errorf("%+v", everything)
	}
}

func TestDaemonPod(t *testing.T) {
	set := aDaemonSet(func(s *appsv1.DaemonSet) {
		s.Annotations = map[string]string{appsv1.DeprecatedTemplateGeneration: "4"}
		s.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}, NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: "In", Values: []string{"a"}}}}}}}}
	})
	pod := daemonPod(set, "n1", "hash")
	if targetNode(pod) != "n1" || pod.Spec.NodeName != "" || pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] != "hash" || pod.Labels["pod-template-generation"] != "4" || pod.Spec.Affinity.PodAffinity == nil || len(pod.Spec.Tolerations) != 6 {
		t.Errorf("%+v", pod)
	}
	if terms := set.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms; len(terms[0].MatchFields) != 0 {
		t.Error("the template was changed")
	}
	for _, pod := range []*corev1.Pod{aPod("a"), aPod("a", func(p *corev1.Pod) { p.Spec.Affinity = &corev1.Affinity{} })} {
		if targetNode(pod) != "" {
			t.Errorf("a pod for no node: %s", targetNode(pod))
		}
	}
}

func TestDaemonHistory(t *testing.T) {
	syncPlan := func(set *appsv1.DaemonSet, namesake *appsv1.ControllerRevision, pods []*corev1.Pod, revisions ...*appsv1.ControllerRevision) controller.Plan {
		return daemonSetView{set: set, pods: pods, revisions: revisions, revisionOfSameName: namesake, now: now}.reconcile()
	}
	one, two := daemonRevision(t, 1), daemonRevision(t, 2)
	made := syncPlan(aDaemonSet(daemonImage(3)), nil, nil, one, two).Steps[0].Writes[0].Object.(*appsv1.ControllerRevision)
	if made.Revision != 3 || made.Name != "log-"+daemonHash(3) || made.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] != daemonHash(3) {
		t.Errorf("%+v", made)
	}
	back := syncPlan(aDaemonSet(), nil, nil, one, two)
	expect(t, "back to an old template", told(back), "update ControllerRevision "+one.Name)
	if r := back.Steps[0].Writes[0].Object.(*appsv1.ControllerRevision); r.Revision != 3 {
		t.Errorf("renumbered to %d", r.Revision)
	}
	collision := syncPlan(aDaemonSet(), two, nil)
	if len(collision.Steps) != 0 || *collision.Status(controller.ApplyResult{}).(*appsv1.DaemonSet).Status.CollisionCount != 1 {
		t.Errorf("a name that is taken: %s", told(collision))
	}
	double := one.DeepCopy()
	double.Name, double.Revision, double.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = "log-double", 0, "double"
	merged := syncPlan(aDaemonSet(), nil, []*corev1.Pod{daemon("a", "n1", 1, labelled(appsv1.DefaultDaemonSetUniqueLabelKey, "double"))}, one, double)
	expect(t, "doubles are merged", told(merged), "patch Pod a, delete ControllerRevision log-double")
	unlabelled := one.DeepCopy()
	delete(unlabelled.Labels, appsv1.DefaultDaemonSetUniqueLabelKey)
	expect(t, "a revision without the label", told(syncPlan(aDaemonSet(), nil, nil, unlabelled)), "update ControllerRevision "+one.Name)
	limited := aDaemonSet(daemonImage(4), func(s *appsv1.DaemonSet) {
		s.Spec.RevisionHistoryLimit = new(int32(1))
		s.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
	})
	kept := syncPlan(limited, nil, []*corev1.Pod{daemon("a", "n1", 1)}, one, two, daemonRevision(t, 3), daemonRevision(t, 4))
	expect(t, "old ones go, but not those of pods", told(kept), fmt.Sprintf("delete ControllerRevision %s + delete ControllerRevision %s", min(two.Name, "log-"+daemonHash(3)), max(two.Name, "log-"+daemonHash(3))))
}

func TestDaemonStatus(t *testing.T) {
	nodes := []*corev1.Node{aNode("n1"), aNode("n2"), aNode("n3"), aNode("n4", tainted("k", corev1.TaintEffectNoSchedule))}
	pods := []*corev1.Pod{daemon("a", "n1", 1), daemon("b", "n2", 2, notReady), daemon("d", "n4", 1)}
	set := aDaemonSet(func(s *appsv1.DaemonSet) { s.Generation = 7 })
	plan := daemonSetView{set: set, nodes: nodes, pods: pods, revisions: []*appsv1.ControllerRevision{daemonRevision(t, 1)}, now: now}.reconcile()
	want := appsv1.DaemonSetStatus{DesiredNumberScheduled: 3, CurrentNumberScheduled: 2, NumberMisscheduled: 1, NumberReady: 1, NumberAvailable: 1, NumberUnavailable: 2, UpdatedNumberScheduled: 1, ObservedGeneration: 7}
	if got := plan.Status(controller.ApplyResult{}).(*appsv1.DaemonSet).Status; got.String() != want.String() {
		t.Errorf("%+v", got)
	}
}
