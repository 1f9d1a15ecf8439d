package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/controller"
	"skiff/internal/podstate"
)

// fleet reads nodes and the daemons on them, written "n1=a:1,b:2!": node n1 with pod a of revision 1 and pod b of revision 2. Behind a node's name "#"
// is a taint that keeps new pods away and "##" one that drives out all. Behind a pod "!" is not ready, "~" ready for a second, "-" leaving, "x" failed,
// "o" succeeded, "^" waiting to get there. A node in brackets is gone.
func fleet(t *testing.T, text string) (nodes []*corev1.Node, pods []*corev1.Pod) {
	t.Helper()
	for word := range strings.FieldsSeq(text) {
		name, daemons, _ := strings.Cut(word, "=")
		isGone := strings.HasPrefix(name, "(")
		name = strings.Trim(name, "()")
		bare := strings.TrimRight(name, "#")
		node := aNode(bare)
		switch len(name) - len(bare) {
		case 1:
			tainted("k", corev1.TaintEffectNoSchedule)(node)
		case 2:
			tainted("k", corev1.TaintEffectNoExecute)(node)
		}
		if !isGone {
			nodes = append(nodes, node)
		}
		for one := range strings.SplitSeq(daemons, ",") {
			if one == "" {
				continue
			}
			podName, rest, _ := strings.Cut(one, ":")
			revision := int(rest[0] - '0')
			pod := daemon(podName, bare, revision)
			for _, sign := range rest[1:] {
				map[rune]change[*corev1.Pod]{'!': notReady, '~': readyFor(time.Second), '-': beingDeleted, '^': waiting(bare),
					'x': func(p *corev1.Pod) { notReady(p); inPhase(corev1.PodFailed)(p) },
					'o': func(p *corev1.Pod) { notReady(p); inPhase(corev1.PodSucceeded)(p) }}[sign](pod)
			}
			pods = append(pods, pod)
		}
	}
	return nodes, pods
}

// daemonOrders are the nodes a plan makes pods for and the pods it deletes: "+n1 -a".
func daemonOrders(plan controller.Plan) string {
	var words []string
	for _, w := range writesOf(plan) {
		if pod := asPod(w.Object); pod != nil {
			switch w.Verb {
			case controller.Create:
				words = append(words, "+"+targetNode(pod))
			case controller.Delete:
				words = append(words, "-"+pod.Name)
			default:
				words = append(words, "@"+pod.Name)
			}
		}
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

func rollingDaemons(unavailable, surge string) change[*appsv1.DaemonSet] {
	return func(s *appsv1.DaemonSet) {
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: amount(unavailable), MaxSurge: amount(surge)}
	}
}
func daemonsOnDelete(s *appsv1.DaemonSet) {
	s.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
}
func daemonsWait(seconds int32) change[*appsv1.DaemonSet] {
	return func(s *appsv1.DaemonSet) { s.Spec.MinReadySeconds = seconds }
}

// daemons looks at a set of image:2 that had image:1 before.
func daemons(t *testing.T, set *appsv1.DaemonSet, text string) controller.Plan {
	t.Helper()
	nodes, pods := fleet(t, text)
	return daemonSetView{set: set, nodes: nodes, pods: pods, revisions: []*appsv1.ControllerRevision{daemonRevision(t, 1), daemonRevision(t, 2)}, now: now}.reconcile()
}

func TestDaemonStep(t *testing.T) {
	of := func(changes ...change[*appsv1.DaemonSet]) *appsv1.DaemonSet {
		return aDaemonSet(append([]change[*appsv1.DaemonSet]{daemonImage(2)}, changes...)...)
	}
	surging := of(rollingDaemons("0", "1"))
	for _, test := range []struct {
		what        string
		set         *appsv1.DaemonSet
		fleet, want string
	}{
		// One pod for each node.
		{"no nodes", of(), "", ""},
		{"a pod for every node", of(), "n1 n2 n3", "+n1 +n2 +n3"},
		{"a pod where one is missing", of(), "n1=a:2 n2 n3=c:2", "+n2"},
		{"one that waits counts", of(), "n1=a:2^", ""},
		{"one that leaves is waited for", of(), "n1=a:2-", ""},
		{"one that failed is replaced", of(), "n1=a:2x", "-a"},
		{"one that succeeded is replaced", of(), "n1=a:2o", "-a"},
		{"one that ended and leaves is not waited for", of(), "n1=a:2x-", "+n1"},
		{"two of a kind: the older stays, by name when they are as old", of(), "n1=b:2,a:2", "-b"},
		{"two of a kind: the one that is there stays", of(), "n1=a:2^,b:2", "-a"},
		{"three of a kind", of(), "n1=a:2,b:2,c:2", "-b -c"},
		{"one beside one that leaves", of(), "n1=a:2,b:2-", ""},
		{"one beside one that failed", of(), "n1=a:2,b:2x", "-b"},
		{"a node that takes no new pods", of(), "n1#", ""},
		{"a node that takes no new pods keeps the one it has", of(), "n1#=a:2", ""},
		{"a node that takes no new pods keeps one of two", of(), "n1#=a:2,b:2", "-b"},
		{"a node that takes no new pods: a failed one goes", of(), "n1#=a:2x", "-a"},
		{"a node that drives out all", of(), "n1##=a:2,b:2x", "-a -b"},
		{"a node that drives out all: one that leaves already", of(), "n1##=a:2-", ""},
		{"a node that is gone: who waits for it goes", of(), "(n1)=a:2^", "-a"},
		{"a node that is gone: who is there is not ours to delete", of(), "(n1)=a:2", ""},
		{"a node that is gone: who waits and leaves", of(), "(n1)=a:2^-", ""},
		// A new template, in place.
		{"one at a time", of(), "n1=a:1 n2=b:1 n3=c:1", "-a"},
		{"one is on its way", of(), "n1=a:1- n2=b:1 n3=c:1", ""},
		{"one is not ready yet", of(), "n1=a:2! n2=b:1 n3=c:1", ""},
		{"one is not ready for long", of(daemonsWait(10)), "n1=a:2~ n2=b:1 n3=c:1", ""},
		{"one is ready", of(), "n1=a:2 n2=b:1 n3=c:1", "-b"},
		{"the last", of(), "n1=a:2 n2=b:2 n3=c:1", "-c"},
		{"what is sick goes at once", of(), "n1=a:1! n2=b:1! n3=c:1", "-a -b"},
		{"what is sick goes at once, whatever the budget", of(), "n1=a:1! n2=b:2! n3=c:1", "-a"},
		{"what is not ready for long is sick", of(daemonsWait(10)), "n1=a:1~ n2=b:1", "-a"},
		{"two at a time", of(rollingDaemons("2", "0")), "n1=a:1 n2=b:1 n3=c:1", "-a -b"},
		{"two at a time, one is on its way", of(rollingDaemons("2", "0")), "n1=a:1- n2=b:1 n3=c:1", "-b"},
		{"half of three, rounded up", of(rollingDaemons("50%", "0")), "n1=a:1 n2=b:1 n3=c:1", "-a -b"},
		{"a tenth of three, rounded up", of(rollingDaemons("10%", "0")), "n1=a:1 n2=b:1 n3=c:1", "-a"},
		{"all at once", of(rollingDaemons("100%", "0")), "n1=a:1 n2=b:1 n3=c:1", "-a -b -c"},
		{"none and none: one all the same", of(rollingDaemons("0", "0")), "n1=a:1 n2=b:1", "-a"},
		{"no bounds given: one", of(func(s *appsv1.DaemonSet) { s.Spec.UpdateStrategy.RollingUpdate = nil }), "n1=a:1 n2=b:1", "-a"},
		{"a percentage counts nodes that want a pod", of(rollingDaemons("50%", "0")), "n1=a:1 n2=b:1 n3#", "-a"},
		{"not while a pod is missing", of(), "n1=a:1 n2=b:1 n3", "+n3"},
		{"not while a pod is too much", of(), "n1=a:1,x:1 n2=b:1", "-x"},
		{"only when deleted", of(daemonsOnDelete), "n1=a:1 n2=b:1", ""},
		{"only when deleted: what is missing comes new", of(daemonsOnDelete), "n1=a:1 n2", "+n2"},
		{"on a node that takes no new pods it is replaced all the same", of(), "n1#=a:1 n2=b:2", "-a"},
		{"on a node that is gone it counts too", of(), "(n1)=a:1! n2=b:1", "-a"},
		// A new template, beside the old one.
		{"surge: one beside one", surging, "n1=a:1 n2=b:1 n3=c:1", "+n1"},
		{"surge: wait for it", surging, "n1=a:1,x:2! n2=b:1", ""},
		{"surge: wait until it is ready for long", of(rollingDaemons("0", "1"), daemonsWait(10)), "n1=a:1,x:2~ n2=b:1", ""},
		{"surge: it is ready, the old one goes", surging, "n1=a:1,x:2 n2=b:1", "-a"},
		{"surge: the old one leaves, the next begins", surging, "n1=a:1-,x:2 n2=b:1", "+n2"},
		{"surge: sick old ones get a new one at once", surging, "n1=a:1! n2=b:1! n3=c:1", "+n1 +n2 +n3"},
		{"surge: an old one that gets sick gives way to one that is not ready", surging, "n1=a:1!,x:2! n2=b:1", "-a"},
		{"surge: two at a time", of(rollingDaemons("0", "2")), "n1=a:1 n2=b:1 n3=c:1", "+n1 +n2"},
		{"surge: two at a time, one is on its way", of(rollingDaemons("0", "2")), "n1=a:1,x:2! n2=b:1 n3=c:1", "+n2"},
		{"surge: a third, rounded up", of(rollingDaemons("0", "34%")), "n1=a:1 n2=b:1 n3=c:1", "+n1 +n2"},
		{"surge: doubles of the new", surging, "n1=a:1,x:2!,y:2!", "-y"},
		{"surge: doubles of the old", surging, "n1=a:1,b:1,x:2!", "-b"},
		{"surge: two old ones and no new one", surging, "n1=a:1,b:1", "-b"},
		{"surge: all failed", surging, "n1=a:1x", "+n1 -a"},
		{"surge: a failed pod on a node that takes no new pods is not replaced", surging, "n1#=a:1x", "-a"},
		{"surge: one that leaves makes room", surging, "n1=a:1-", "+n1"},
		{"surge: a node that takes no new pods keeps the old one while another node's is sick", surging, "n1#=a:1 n2=b:1!", "+n2"},
		{"surge: a node that takes no new pods loses the old one when enough others are well", surging, "n1#=a:1 n2=b:1", "+n2 -a"},
		{"surge: a node that takes no new pods loses a sick one", surging, "n1#=a:1! n2=b:2", "-a"},
		{"surge: a node that takes no new pods loses one when all others are up", surging, "n1#=a:1 n2=b:2", "-a"},
		{"surge: done", surging, "n1=a:2 n2=b:2", ""},
		{"surge of nothing is no surge", of(rollingDaemons("1", "0%")), "n1=a:1 n2=b:1", "-a"},
	} {
		expect(t, test.what, daemonOrders(daemons(t, test.set, test.fleet)), test.want)
	}
}

// TestDaemonGenerations: clients of old number templates; a pod with the number of today is up to date though its hash is not.
func TestDaemonGenerations(t *testing.T) {
	for _, test := range []struct {
		generation, label string
		want              string
	}{
		{"", "", "-a"}, {"3", "3", ""}, {"3", "2", "-a"}, {"3", "", "-a"}, {"x", "x", "-a"}, {"03", "3", ""}, {"03", "03", "-a"}, {"", "3", "-a"}, {"9223372036854775808", "9223372036854775807", "-a"},
	} {
		set := aDaemonSet(daemonImage(2), func(s *appsv1.DaemonSet) {
			if test.generation != "" {
				s.Annotations = map[string]string{appsv1.DeprecatedTemplateGeneration: test.generation}
			}
		})
		pod := daemon("a", "n1", 1)
		if test.label != "" {
			pod.Labels["pod-template-generation"] = test.label
		}
		plan := daemonSetView{set: set, nodes: []*corev1.Node{aNode("n1")}, pods: []*corev1.Pod{pod}, revisions: []*appsv1.ControllerRevision{daemonRevision(t, 1), daemonRevision(t, 2)}, now: now}.reconcile()
		expect(t, fmt.Sprintf("set %q, pod %q", test.generation, test.label), daemonOrders(plan), test.want)
		made := daemonPod(set, "n1", "h")
		want := map[string]string{"3": "3", "03": "3"}[test.generation]
		if got := made.Labels["pod-template-generation"]; got != want {
			t.Errorf("%q: a new pod says %q", test.generation, got)
		}
	}
}

func TestDaemonNumbers(t *testing.T) {
	type counts struct{ desired, current, misplaced, ready, available, unavailable, updated int32 }
	for _, test := range []struct {
		what  string
		set   *appsv1.DaemonSet
		fleet string
		want  counts
	}{
		{"nothing", aDaemonSet(daemonImage(2)), "", counts{}},
		{"nodes without pods", aDaemonSet(daemonImage(2)), "n1 n2", counts{2, 0, 0, 0, 0, 2, 0}},
		{"all is well", aDaemonSet(daemonImage(2)), "n1=a:2 n2=b:2", counts{2, 2, 0, 2, 2, 0, 2}},
		{"one is old", aDaemonSet(daemonImage(2)), "n1=a:2 n2=b:1", counts{2, 2, 0, 2, 2, 0, 1}},
		{"one is not ready", aDaemonSet(daemonImage(2)), "n1=a:2 n2=b:2!", counts{2, 2, 0, 1, 1, 1, 2}},
		{"one is not ready for long", aDaemonSet(daemonImage(2), daemonsWait(10)), "n1=a:2 n2=b:2~", counts{2, 2, 0, 2, 1, 1, 2}},
		{"one waits", aDaemonSet(daemonImage(2)), "n1=a:2^!", counts{1, 1, 0, 0, 0, 1, 1}},
		{"one leaves", aDaemonSet(daemonImage(2)), "n1=a:2-", counts{1, 1, 0, 1, 1, 0, 1}},
		{"one ended", aDaemonSet(daemonImage(2)), "n1=a:2x", counts{1, 1, 0, 0, 0, 1, 1}},
		{"one ended and leaves", aDaemonSet(daemonImage(2)), "n1=a:2x-", counts{1, 0, 0, 0, 0, 1, 0}},
		{"two on a node count once, the older", aDaemonSet(daemonImage(2)), "n1=a:1,b:2!", counts{1, 1, 0, 1, 1, 0, 0}},
		{"two on a node: the one that is there", aDaemonSet(daemonImage(2)), "n1=a:2^!,b:1", counts{1, 1, 0, 1, 1, 0, 0}},
		{"where it should not run but may stay", aDaemonSet(daemonImage(2)), "n1#=a:2 n2=b:2", counts{1, 1, 1, 1, 1, 0, 1}},
		{"where it must not be", aDaemonSet(daemonImage(2)), "n1##=a:2,b:2 n2=c:2", counts{1, 1, 1, 1, 1, 0, 1}},
		{"on a node that is gone", aDaemonSet(daemonImage(2)), "(n1)=a:2 n2=b:2", counts{1, 1, 0, 1, 1, 0, 1}},
	} {
		changed := daemons(t, test.set, test.fleet).Status(controller.ApplyResult{})
		if changed == nil {
			t.Errorf("%s: no status", test.what)
			continue
		}
		s := changed.(*appsv1.DaemonSet).Status
		got := counts{s.DesiredNumberScheduled, s.CurrentNumberScheduled, s.NumberMisscheduled, s.NumberReady, s.NumberAvailable, s.NumberUnavailable, s.UpdatedNumberScheduled}
		if got != test.want || s.ObservedGeneration != 1 {
			t.Errorf("%s: %+v, want %+v", test.what, got, test.want)
		}
		if again := daemons(t, changed.(*appsv1.DaemonSet), test.fleet).Status(controller.ApplyResult{}); again != nil {
			t.Errorf("%s: a second sync reports again", test.what)
		}
	}
}

func TestDaemonRevisions(t *testing.T) {
	edited := func(n int, change func(*appsv1.ControllerRevision)) *appsv1.ControllerRevision {
		r := daemonRevision(t, n)
		change(r)
		return r
	}
	orphaned := func(r *appsv1.ControllerRevision) { r.OwnerReferences = nil }
	numbered := func(n int64) func(*appsv1.ControllerRevision) {
		return func(r *appsv1.ControllerRevision) { r.Revision = n }
	}
	one, two := daemonRevision(t, 1), daemonRevision(t, 2)
	foreign := edited(2, func(r *appsv1.ControllerRevision) { r.OwnerReferences[0].UID = "before" })
	for _, test := range []struct {
		what       string
		history    []*appsv1.ControllerRevision
		namesake   *appsv1.ControllerRevision
		want       string
		number     int64 // of the revision that is written, 0 for none
		collisions int32 // counted in the status
	}{
		{"the first", nil, nil, "create ControllerRevision " + two.Name, 1, 0},
		{"the next", []*appsv1.ControllerRevision{one}, nil, "create ControllerRevision " + two.Name, 2, 0},
		{"behind a gap", []*appsv1.ControllerRevision{edited(1, numbered(7))}, nil, "create ControllerRevision " + two.Name, 8, 0},
		{"known", []*appsv1.ControllerRevision{one, two}, nil, "", 0, 0},
		{"known, in another order", []*appsv1.ControllerRevision{two, one}, nil, "", 0, 0},
		{"known and alone", []*appsv1.ControllerRevision{two}, nil, "", 0, 0},
		{"known, but without a number", []*appsv1.ControllerRevision{edited(2, numbered(0))}, nil, "update ControllerRevision " + two.Name, 1, 0},
		{"back to one of old", []*appsv1.ControllerRevision{two, edited(3, numbered(5))}, nil, "update ControllerRevision " + two.Name, 6, 0},
		{"as new as an old one", []*appsv1.ControllerRevision{edited(1, numbered(2)), two}, nil, "update ControllerRevision " + two.Name, 3, 0},
		{"an orphan is adopted", []*appsv1.ControllerRevision{edited(2, orphaned)}, nil, "patch ControllerRevision " + two.Name, 0, 0},
		{"one that no longer matches is released", []*appsv1.ControllerRevision{two, edited(1, func(r *appsv1.ControllerRevision) { r.Labels["app"] = "db" })}, nil, "patch ControllerRevision " + one.Name, 0, 0},
		{"the name is taken by another template", nil, edited(1, orphaned), "", 0, 1},
		{"the name is taken by the same template of a set before", nil, foreign, "", 0, 0},
		{"the name is taken by the same template of nobody", nil, edited(2, func(r *appsv1.ControllerRevision) { orphaned(r); r.Labels = nil }), "", 0, 0},
	} {
		plan := daemonSetView{set: aDaemonSet(daemonImage(2)), revisions: test.history, revisionOfSameName: test.namesake, now: now}.reconcile()
		expect(t, test.what, told(plan), test.want)
		number := int64(0)
		for _, w := range writesOf(plan) {
			if w.Verb == controller.Create || w.Verb == controller.Update {
				number = w.Object.(*appsv1.ControllerRevision).Revision
			}
		}
		if number != test.number {
			t.Errorf("%s: number %d, want %d", test.what, number, test.number)
		}
		var collisions int32
		if changed := plan.Status(controller.ApplyResult{}); changed != nil {
			collisions = ptr.Deref(changed.(*appsv1.DaemonSet).Status.CollisionCount, 0)
		}
		if collisions != test.collisions {
			t.Errorf("%s: %d collisions", test.what, collisions)
		}
	}
	counted := aDaemonSet(daemonImage(2), func(s *appsv1.DaemonSet) { s.Status.CollisionCount = new(int32(4)) })
	plan := daemonSetView{set: counted, revisionOfSameName: one, now: now}.reconcile()
	if got := *plan.Status(controller.ApplyResult{}).(*appsv1.DaemonSet).Status.CollisionCount; got != 5 || *counted.Status.CollisionCount != 4 {
		t.Errorf("%d collisions", got)
	}
	set := aDaemonSet(daemonImage(2), func(s *appsv1.DaemonSet) { s.Annotations = map[string]string{"a": "1"} })
	made := daemonSetView{set: set, now: now}.reconcile().Steps[0].Writes[0].Object.(*appsv1.ControllerRevision)
	tmpl := template("image:2")
	patch, err := templatePatch(&tmpl)
	if err != nil {
		t.Fatal(err)
	}
	want := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "log-" + daemonHash(2), Annotations: map[string]string{"a": "1"}, Labels: map[string]string{"app": "web", "controller-revision-hash": daemonHash(2)},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "log", UID: "uid-log", Controller: new(true), BlockOwnerDeletion: new(true)}}}, Revision: 1}
	want.Data.Raw = patch
	same(t, "a revision", made, want)
}

func TestDaemonHistoryLimit(t *testing.T) {
	for _, test := range []struct {
		what  string
		limit *int32
		pods  string
		want  string
	}{
		{"as many as the limit", new(int32(4)), "n1=a:5", ""},
		{"one more", new(int32(3)), "n1=a:5", "1"},
		{"keep none", new(int32(0)), "n1=a:5", "1 2 3 4"},
		{"no limit is ten", nil, "n1=a:5", ""},
		{"one that a pod has is kept, another goes for it", new(int32(3)), "n1=a:1", "2"},
		{"one that a leaving pod has is kept", new(int32(3)), "n1=a:1-", "2"},
		{"all are in use", new(int32(0)), "n1=a:1 n2=b:2 n3=c:3 n4=d:4", ""},
	} {
		set := aDaemonSet(daemonImage(5), daemonsOnDelete, func(s *appsv1.DaemonSet) { s.Spec.RevisionHistoryLimit = test.limit })
		var history []*appsv1.ControllerRevision
		number := map[string]string{}
		for n := 1; n <= 5; n++ {
			r := daemonRevision(t, n)
			history, number[r.Name] = append(history, r), fmt.Sprint(n)
		}
		nodes, pods := fleet(t, test.pods)
		var deleted []string
		for _, w := range writesOf(daemonSetView{set: set, nodes: nodes, pods: pods, revisions: backwards(history), now: now}.reconcile()) {
			if n := number[w.Object.GetName()]; w.Verb == controller.Delete && n != "" {
				deleted = append(deleted, n)
			}
		}
		expect(t, test.what, strings.Join(deleted, " "), test.want)
	}
}

// TestDoubledRevisions: of several revisions of today's template the newest stays, and pods made from the others are counted as made from it.
func TestDoubledRevisions(t *testing.T) {
	double := func(name string, number int64) *appsv1.ControllerRevision {
		r := daemonRevision(t, 2)
		r.Name, r.Revision, r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = "log-"+name, number, name
		return r
	}
	for _, test := range []struct {
		what      string
		revisions []*appsv1.ControllerRevision
		want      string
	}{
		{"two", []*appsv1.ControllerRevision{double("x", 1), double("y", 2)}, "patch Pod a + patch Pod b, delete ControllerRevision log-x"},
		{"two, in another order", []*appsv1.ControllerRevision{double("y", 2), double("x", 1)}, "patch Pod a + patch Pod b, delete ControllerRevision log-x"},
		{"three", []*appsv1.ControllerRevision{double("x", 1), double("y", 2), double("z", 3)}, "patch Pod a + patch Pod b + patch Pod c, delete ControllerRevision log-x + delete ControllerRevision log-y"},
	} {
		pods := []*corev1.Pod{daemon("a", "n1", 1), daemon("b", "n2", 1, labelled(appsv1.DefaultDaemonSetUniqueLabelKey, "x")), daemon("c", "n3", 1, labelled(appsv1.DefaultDaemonSetUniqueLabelKey, "y"))}
		plan := daemonSetView{set: aDaemonSet(daemonImage(2)), pods: pods, revisions: test.revisions, now: now}.reconcile()
		expect(t, test.what, told(plan), test.want)
		if plan.Status != nil {
			t.Errorf("%s: a status is reported of pods whose labels are about to change", test.what)
		}
	}
}

func TestDaemonEvents(t *testing.T) {
	for _, test := range []struct {
		what, fleet string
		want        []string
	}{
		{"a failed pod", "n1=a:2x", []string{"SuccessfulDelete: Deleted pod: a", "FailedDaemonPod: Found failed daemon pod default/a on node n1, will try to kill it"}},
		{"a succeeded pod", "n1=a:2o", []string{"SuccessfulDelete: Deleted pod: a", "SucceededDaemonPod: Found succeeded daemon pod default/a on node n1, will try to delete it"}},
		{"a missing pod", "n1", []string{"SuccessfulCreate: Created pod: "}},
		{"an old pod", "n1=a:1", []string{"SuccessfulDelete: Deleted pod: a"}},
		{"a failed pod where it must not be is no news", "n1##=a:2x", []string{"SuccessfulDelete: Deleted pod: a"}},
		{"nothing", "n1=a:2", nil},
	} {
		if got := events(daemons(t, aDaemonSet(daemonImage(2)), test.fleet)); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q", test.what, got)
		}
	}
}

// TestDaemonBackoff: a pod that fails is replaced at once, and then ever more slowly, by node and template.
func TestDaemonBackoff(t *testing.T) {
	pause := map[string]time.Duration{"n1": 3 * time.Second, "n2": 9 * time.Second, "n3": 0}
	nodes, pods := fleet(t, "n1=a:2x n2=b:2x n3=c:2x n4=d:2")
	plan := daemonSetView{set: aDaemonSet(daemonImage(2)), nodes: nodes, pods: pods, revisions: []*appsv1.ControllerRevision{daemonRevision(t, 2)}, backoff: func(node string) time.Duration { return pause[node] }, now: now}.reconcile()
	expect(t, "plan", told(plan), "delete Pod c, again 3s")
	if got := len(events(plan)); got != 2 {
		t.Errorf("%d events", got)
	}
	set := aDaemonSet()
	if a, b := failureKey(set, "n1"), failureKey(set, "n2"); a == b || a != failureKey(set, "n1") {
		t.Errorf("%s, %s", a, b)
	}
	next := aDaemonSet(func(s *appsv1.DaemonSet) { s.Status.ObservedGeneration = 2 })
	if failureKey(set, "n1") == failureKey(next, "n1") {
		t.Error("a new template is punished for the one before")
	}
}

// TestDaemonsAlwaysArrive plays sets in a model of pods alone, in place and beside, with pods that fail and nodes that change their mind. There is never more than
// allowed missing or doubled because of the update, and in the end one pod of today's template runs on every node that wants one.
func TestDaemonsAlwaysArrive(t *testing.T) {
	for seed := range uint64(120) {
		random := rand.New(rand.NewPCG(seed, 7))
		surge, unavailable := int32(random.IntN(3)), int32(1+random.IntN(3))
		if surge > 0 {
			unavailable = 0
		}
		set := aDaemonSet(daemonImage(2), rollingDaemons(fmt.Sprint(unavailable), fmt.Sprint(surge)))
		var nodes []*corev1.Node
		var pods []*corev1.Pod
		made := 0
		for i := range 1 + random.IntN(6) {
			name := fmt.Sprint("n", i)
			nodes = append(nodes, with(aNode(name), []change[*corev1.Node]{func(*corev1.Node) {}, func(*corev1.Node) {}, tainted("k", corev1.TaintEffectNoSchedule), tainted("k", corev1.TaintEffectNoExecute)}[random.IntN(4)]))
			for range random.IntN(3) {
				made++
				pods = append(pods, daemon(fmt.Sprint("p", made), name, 1+random.IntN(2), []change[*corev1.Pod]{readyFor(time.Hour), notReady, beingDeleted, inPhase(corev1.PodFailed)}[random.IntN(4)]))
			}
		}
		for round := 0; ; round++ {
			if round > 200 {
				t.Fatalf("seed %d: no end", seed)
			}
			plan := daemonSetView{set: set, nodes: slices.Clone(nodes), pods: slices.Clone(pods), revisions: []*appsv1.ControllerRevision{daemonRevision(t, 1), daemonRevision(t, 2)}, now: now}.reconcile()
			busy := slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil || !podstate.IsReady(p) })
			if len(plan.Steps) == 0 && !busy {
				break
			}
			for i, pod := range pods {
				if pod.DeletionTimestamp != nil {
					pods = slices.Delete(slices.Clone(pods), i, i+1)
					break
				}
				if !podstate.IsTerminal(pod) && !podstate.IsReady(pod) {
					pods[i] = with(pod.DeepCopy(), readyFor(time.Hour))
					break
				}
			}
			for _, w := range writesOf(plan) {
				pod := asPod(w.Object)
				if pod == nil {
					continue
				}
				if w.Verb == controller.Create {
					made++
					pods = append(pods, with(pod.DeepCopy(), func(p *corev1.Pod) {
						p.Name, p.Spec.NodeName, p.Status.Phase, p.CreationTimestamp = fmt.Sprint("p", made), targetNode(p), corev1.PodRunning, ago(time.Minute)
					}))
					continue
				}
				if i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.Name == pod.Name }); i >= 0 {
					pods[i] = with(pods[i].DeepCopy(), beingDeleted)
				}
			}
		}
		for _, node := range nodes {
			run, stay := placementOf(set).shouldRun(node)
			var here []*corev1.Pod
			for _, pod := range pods {
				if pod.Spec.NodeName == node.Name {
					here = append(here, pod)
				}
			}
			switch {
			case run && (len(here) != 1 || here[0].Labels[appsv1.DefaultDaemonSetUniqueLabelKey] != daemonHash(2)), !stay && len(here) != 0, len(here) > 1:
				t.Errorf("seed %d: node %s (run %v, stay %v) has %s", seed, node.Name, run, stay, names(here))
			}
		}
	}
}

// TestDaemonPlacement: every way a node can say yes or no.
func TestDaemonPlacement(t *testing.T) {
	tolerating := func(all ...corev1.Toleration) change[*appsv1.DaemonSet] {
		return func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.Tolerations = all }
	}
	requiring := func(key string, op corev1.NodeSelectorOperator, values ...string) change[*appsv1.DaemonSet] {
		return func(s *appsv1.DaemonSet) {
			s.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}}}}}
		}
	}
	named := func(name string) change[*appsv1.DaemonSet] {
		return func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.NodeName = name }
	}
	value := func(key, value string, effect corev1.TaintEffect) change[*corev1.Node] {
		return func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: effect})
		}
	}
	const noSchedule, noExecute, prefer = corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule
	for _, test := range []struct {
		what      string
		set       *appsv1.DaemonSet
		node      *corev1.Node
		run, stay bool
	}{
		{"by name", aDaemonSet(named("n")), aNode("n"), true, true},
		{"by another name", aDaemonSet(named("m")), aNode("n"), false, false},
		{"by affinity", aDaemonSet(requiring("zone", corev1.NodeSelectorOpIn, "a", "b")), aNode("n"), true, true},
		{"not by affinity", aDaemonSet(requiring("zone", corev1.NodeSelectorOpNotIn, "a")), aNode("n"), false, false},
		{"a label that exists", aDaemonSet(requiring("zone", corev1.NodeSelectorOpExists)), aNode("n"), true, true},
		{"a label that does not", aDaemonSet(requiring("rack", corev1.NodeSelectorOpExists)), aNode("n"), false, false},
		{"affinity that cannot be read", aDaemonSet(requiring("zone", "Odd")), aNode("n"), false, false},
		{"preferred affinity does not matter", aDaemonSet(func(s *appsv1.DaemonSet) {
			s.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "rack", Operator: "Exists"}}}}}}}
		}), aNode("n"), true, true},
		{"a cordoned node without the taint", aDaemonSet(), aNode("n", func(n *corev1.Node) { n.Spec.Unschedulable = true }), true, true},
		{"a node that is not ready", aDaemonSet(), aNode("n", tainted(corev1.TaintNodeNotReady, noExecute)), true, true},
		{"a node that is not ready, for new pods", aDaemonSet(), aNode("n", tainted(corev1.TaintNodeNotReady, noSchedule)), false, true},
		{"a node without disk", aDaemonSet(), aNode("n", tainted(corev1.TaintNodeDiskPressure, noSchedule)), true, true},
		{"a node without memory", aDaemonSet(), aNode("n", tainted(corev1.TaintNodeMemoryPressure, noSchedule)), true, true},
		{"a node without processes", aDaemonSet(), aNode("n", tainted(corev1.TaintNodePIDPressure, noSchedule)), true, true},
		{"a node out of service", aDaemonSet(), aNode("n", tainted(corev1.TaintNodeOutOfService, noExecute)), false, false},
		{"tolerated by key and value", aDaemonSet(tolerating(corev1.Toleration{Key: "k", Value: "v", Effect: noExecute})), aNode("n", value("k", "v", noExecute)), true, true},
		{"another value", aDaemonSet(tolerating(corev1.Toleration{Key: "k", Value: "w", Effect: noExecute})), aNode("n", value("k", "v", noExecute)), false, false},
		{"another effect", aDaemonSet(tolerating(corev1.Toleration{Key: "k", Operator: corev1.TolerationOpExists, Effect: noSchedule})), aNode("n", value("k", "v", noExecute)), false, false},
		{"all effects of a key", aDaemonSet(tolerating(corev1.Toleration{Key: "k", Operator: corev1.TolerationOpExists})), aNode("n", tainted("k", noExecute), tainted("k", noSchedule)), true, true},
		{"a toleration without key tolerates everything", aDaemonSet(tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})), aNode("n", tainted("k", noExecute), tainted("l", noSchedule)), true, true},
		{"one of two taints", aDaemonSet(tolerating(corev1.Toleration{Key: "k", Operator: corev1.TolerationOpExists})), aNode("n", tainted("k", noExecute), tainted("l", noExecute)), false, false},
		{"tolerated for a while is tolerated", aDaemonSet(tolerating(corev1.Toleration{Key: "k", Operator: corev1.TolerationOpExists, Effect: noExecute, TolerationSeconds: new(int64(1))})), aNode("n", tainted("k", noExecute)), true, true},
		{"only asked not to", aDaemonSet(), aNode("n", tainted("k", prefer)), true, true},
		{"refused for new and driven out", aDaemonSet(), aNode("n", tainted("k", noSchedule), tainted("l", noExecute)), false, false},
	} {
		if run, stay := placementOf(test.set).shouldRun(test.node); run != test.run || stay != test.stay {
			t.Errorf("%s: run %v, stay %v", test.what, run, stay)
		}
	}
}

func TestDaemonTolerations(t *testing.T) {
	always := []corev1.Toleration{
		{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute"}, {Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute"},
		{Key: "node.kubernetes.io/disk-pressure", Operator: "Exists", Effect: "NoSchedule"}, {Key: "node.kubernetes.io/memory-pressure", Operator: "Exists", Effect: "NoSchedule"},
		{Key: "node.kubernetes.io/pid-pressure", Operator: "Exists", Effect: "NoSchedule"}, {Key: "node.kubernetes.io/unschedulable", Operator: "Exists", Effect: "NoSchedule"},
	}
	network := corev1.Toleration{Key: "node.kubernetes.io/network-unavailable", Operator: "Exists", Effect: "NoSchedule"}
	own := corev1.Toleration{Key: "mine", Operator: "Exists"}
	brief := func(n int64) corev1.Toleration {
		return corev1.Toleration{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &n}
	}
	wide := corev1.Toleration{Key: "node.kubernetes.io/not-ready", Operator: "Exists"}
	for _, test := range []struct {
		what string
		spec corev1.PodSpec
		want []corev1.Toleration
	}{
		{"none of its own", corev1.PodSpec{}, always},
		{"its own come first", corev1.PodSpec{Tolerations: []corev1.Toleration{own}}, append([]corev1.Toleration{own}, always...)},
		{"on the host's network", corev1.PodSpec{HostNetwork: true}, append(slices.Clone(always), network)},
		{"one for a while gives way, in its place", corev1.PodSpec{Tolerations: []corev1.Toleration{brief(5), own}}, append([]corev1.Toleration{always[0], own}, always[1:]...)},
		{"all for a while give way", corev1.PodSpec{Tolerations: []corev1.Toleration{brief(5), brief(9)}}, append([]corev1.Toleration{always[0], always[0]}, always[1:]...)},
		{"a wider one stays beside", corev1.PodSpec{Tolerations: []corev1.Toleration{wide}}, append([]corev1.Toleration{wide}, always...)},
		{"all of them already", corev1.PodSpec{Tolerations: always}, always},
	} {
		before := test.spec.DeepCopy()
		same(t, test.what, daemonTolerations(&test.spec), test.want)
		same(t, test.what+", the template", &test.spec, before)
	}
}

func TestTargetNode(t *testing.T) {
	field := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	required := func(terms ...corev1.NodeSelectorTerm) change[*corev1.Pod] {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
		}
	}
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want string
	}{
		{"it is there", aPod("a", onNode("n1")), "n1"},
		{"it is there, though made for another", aPod("a", onNode("n1"), required(field("metadata.name", "In", "n2"))), "n1"},
		{"it is made for one", aPod("a", required(field("metadata.name", "In", "n2"))), "n2"},
		{"in a second term", aPod("a", required(corev1.NodeSelectorTerm{}, field("metadata.name", "In", "n3"))), "n3"},
		{"nothing is specified", aPod("a"), ""},
		{"an affinity without nodes", aPod("a", func(p *corev1.Pod) { p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}} }), ""},
		{"no terms", aPod("a", required()), ""},
		{"another field", aPod("a", required(field("metadata.uid", "In", "n2"))), ""},
		{"another operator", aPod("a", required(field("metadata.name", "NotIn", "n2"))), ""},
		{"two names", aPod("a", required(field("metadata.name", "In", "n2", "n3"))), ""},
		{"what daemons are given", aPod("a", waiting("n7")), "n7"},
	} {
		if got := targetNode(test.pod); got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
	kept := &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}, NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 3}},
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{field("metadata.name", "In", "old")}}}}
	before := kept.DeepCopy()
	after := withRequiredNode(kept, "new")
	if terms := after.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms; len(terms) != 1 || terms[0].MatchFields[0].Values[0] != "new" || after.PodAntiAffinity == nil || after.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0].Weight != 3 {
		t.Errorf("%+v", after)
	}
	same(t, "the template's affinity", kept, before)
}
