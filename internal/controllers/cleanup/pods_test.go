package cleanup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/test/inprocess"
	"skiff/test/world"
)

var (
	noon = time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
	// states of pods
	running, pending, succeeded, failed = phase(corev1.PodRunning), phase(corev1.PodPending), phase(corev1.PodSucceeded), phase(corev1.PodFailed)
	unknown, phaseless                  = phase(corev1.PodUnknown), phase("")
)

type podChange = func(*corev1.Pod)

func phase(p corev1.PodPhase) podChange { return func(pod *corev1.Pod) { pod.Status.Phase = p } }

func onNode(name string) podChange { return func(p *corev1.Pod) { p.Spec.NodeName = name } }

func deletedPod(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(noon)) }

func evicted(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" }

func aged(hours int) podChange {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(noon.Add(-time.Duration(hours) * time.Hour)) }
}

func aPod(name string, changes ...podChange) *corev1.Pod {
	p := podOf("default", name)
	p.UID, p.Generation = types.UID("uid-"+name), 4
	aged(1)(p)
	for _, c := range changes {
		c(p)
	}
	return p
}

func aNode(ready corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
	n := &corev1.Node{Spec: corev1.NodeSpec{Taints: taints}}
	if ready != "" {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue}, {Type: corev1.NodeReady, Status: ready}}
	}
	return n
}

func TestDoomedPods(t *testing.T) {
	outTaint := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
	bareTaint := corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoSchedule}
	nodes := map[string]*corev1.Node{
		"good": aNode("True"), "down": aNode("False"), "out": aNode("Unknown", outTaint), "out-false": aNode("False", outTaint), "out-mute": aNode("", outTaint),
		"out-bare": aNode("False", bareTaint), "back": aNode("True", outTaint), "other": aNode("False", corev1.Taint{Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute}),
	}
	pods := func(all ...*corev1.Pod) []*corev1.Pod { return all }
	good := onNode("good")
	for _, test := range []struct {
		what string
		keep int
		pods []*corev1.Pod
		want string // "!": with a condition
	}{
		{"none", 10, nil, ""},
		{"nothing wrong", 10, pods(aPod("a", good, running), aPod("b", pending)), ""},
		{"a node that is gone", 10, pods(aPod("a", onNode("gone"), running), aPod("b", onNode("missing"), running)), "a!"},
		{"all on a node that is gone, whatever their phase", 10, pods(aPod("a", onNode("gone"), pending), aPod("b", onNode("gone"), succeeded), aPod("c", onNode("gone"), failed), aPod("d", onNode("gone"), unknown)), "a! b! c! d!"},
		{"deleted, on a node that is gone", 10, pods(aPod("a", onNode("gone"), running, deletedPod)), "a!"},
		{"deleted, on a node that may be gone", 10, pods(aPod("a", onNode("missing"), running, deletedPod)), ""},
		{"deleted without a node", 10, pods(aPod("a", pending, deletedPod), aPod("b", good, running, deletedPod)), "a"},
		{"deleted without a node, ended", 10, pods(aPod("a", failed, deletedPod)), "a"},
		{"deleted on a node out of service", 10, pods(aPod("a", onNode("out"), running, deletedPod), aPod("b", onNode("out"), succeeded, deletedPod)), "a b"},
		{"out of service and it says it is not ready", 10, pods(aPod("a", onNode("out-false"), running, deletedPod)), "a"},
		{"out of service and it says nothing", 10, pods(aPod("a", onNode("out-mute"), running, deletedPod)), "a"},
		{"out of service without a value, with another effect", 10, pods(aPod("a", onNode("out-bare"), running, deletedPod)), "a"},
		{"out of service, but it is ready", 10, pods(aPod("a", onNode("back"), running, deletedPod)), ""},
		{"out of service, but the pod was not deleted", 10, pods(aPod("a", onNode("out"), running)), ""},
		{"deleted, on a node that is down", 10, pods(aPod("a", onNode("down"), running, deletedPod), aPod("b", onNode("other"), running, deletedPod)), ""},
		{"ended, fewer than are kept", 3, pods(aPod("a", good, succeeded), aPod("b", good, failed)), ""},
		{"ended, as many as are kept", 2, pods(aPod("a", good, succeeded), aPod("b", good, failed)), ""},
		{"ended, one more than are kept", 2, pods(aPod("a", good, succeeded), aPod("b", good, failed), aPod("c", good, failed)), "a"},
		{"those that run do not count", 1, pods(aPod("a", good, succeeded), aPod("b", good, running), aPod("c", pending), aPod("d", good, unknown)), ""},
		{"ended, the oldest", 1, pods(aPod("a", good, succeeded), aPod("b", good, failed, aged(3)), aPod("c", good, succeeded, aged(2))), "b c"},
		{"of the same age by name", 1, pods(aPod("c", good, succeeded), aPod("a", good, succeeded), aPod("b", good, succeeded)), "a b"},
		{"evicted ones first, however young", 1, pods(aPod("a", good, evicted), aPod("b", good, failed, aged(3))), "a"},
		{"evicted ones among themselves by age", 1, pods(aPod("a", good, evicted), aPod("b", good, evicted, aged(3)), aPod("c", good, failed, aged(9))), "b a"},
		{"the word Evicted of one that succeeded counts nothing", 1, pods(aPod("a", good, evicted, succeeded), aPod("b", good, failed, aged(3))), "b"},
		{"ended, all are kept", 0, pods(aPod("a", good, succeeded), aPod("b", good, succeeded)), ""},
		{"a negative number keeps all", -1, pods(aPod("a", good, succeeded), aPod("b", good, succeeded)), ""},
		{"for two reasons, once", 1, pods(aPod("a", onNode("gone"), failed), aPod("b", good, failed)), "a!"},
		{"what goes for another reason still counts", 1, pods(aPod("a", onNode("gone"), failed, aged(1)), aPod("b", good, failed, aged(5))), "a! b"},
	} {
		var got []string
		for _, d := range (podsView{pods: test.pods, nodes: nodes, deletedNodes: map[string]bool{"gone": true, "missing": false}, terminatedThreshold: test.keep}).podsToDelete() {
			name := d.pod.Name
			if d.condition != nil {
				name += "!"
			}
			got = append(got, name)
		}
		if text := strings.Join(got, " "); text != test.want {
			t.Errorf("%s: %q, want %q", test.what, text, test.want)
		}
	}
}

// TestRandomPodsThatEnded: as many are left as are kept, and none that is left is older than one that went.
func TestRandomPodsThatEnded(t *testing.T) {
	const seed = 9
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 500 {
		keep := random.IntN(6)
		var pods []*corev1.Pod
		ended := 0
		for i := range random.IntN(12) {
			pod := aPod(fmt.Sprint("p", i), onNode("good"), aged(random.IntN(4)), []podChange{running, succeeded, failed, evicted}[random.IntN(4)])
			if pod.Status.Phase != corev1.PodRunning {
				ended++
			}
			pods = append(pods, pod)
		}
		view := podsView{pods: pods, nodes: map[string]*corev1.Node{"good": aNode("True")}, terminatedThreshold: keep}
		doomed := view.podsToDelete()
		want := 0
		if keep > 0 {
			want = max(0, ended-keep)
		}
		if len(doomed) != want {
			t.Fatalf("seed %d, round %d: %d go of %d, %d are kept", seed, round, len(doomed), ended, keep)
		}
		isGone := map[*corev1.Pod]bool{}
		for _, d := range doomed {
			isGone[d.pod] = true
		}
		for gone := range isGone {
			for _, left := range pods {
				sooner := left.Status.Reason == "Evicted" && gone.Status.Reason != "Evicted" || left.Status.Reason == gone.Status.Reason && left.CreationTimestamp.Before(&gone.CreationTimestamp)
				if left.Status.Phase != corev1.PodRunning && !isGone[left] && sooner {
					t.Fatalf("seed %d, round %d: %s went before %s", seed, round, gone.Name, left.Name)
				}
			}
		}
		random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		again := map[*corev1.Pod]bool{}
		for _, d := range view.podsToDelete() {
			again[d.pod] = true
		}
		if !maps.Equal(isGone, again) {
			t.Fatalf("seed %d, round %d: the order of the list matters", seed, round)
		}
	}
}

func TestHowDoomedPodsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the time is midnight
		const mark = `patch status of p {"metadata":{"uid":"uid-p"},"status":{`
		why := &corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists", ObservedGeneration: 4}
		withWhy := func(at string) string {
			return mark + `"conditions":[{"type":"DisruptionTarget","observedGeneration":4,"status":"True","lastProbeTime":null,"lastTransitionTime":"` + at + `","reason":"DeletionByPodGC","message":"PodGC: node no longer exists"}],"observedGeneration":4,"phase":"Failed"}}; `
		}
		const plain = mark + `"observedGeneration":4,"phase":"Failed"}}; `
		const deletion = "delete p at once, uid-p only"
		had := func(status corev1.ConditionStatus) podChange {
			return func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: status, Reason: "PreemptionByScheduler", LastTransitionTime: metav1.NewTime(noon)}}
			}
		}
		for _, test := range []struct {
			what string
			d    podDeletion
			want string
		}{
			{"it runs", podDeletion{aPod("p", running), nil}, plain + deletion},
			{"it waits", podDeletion{aPod("p", pending), nil}, plain + deletion},
			{"it has no phase", podDeletion{aPod("p", phaseless), nil}, plain + deletion},
			{"nobody knows", podDeletion{aPod("p", unknown), nil}, plain + deletion},
			{"it succeeded", podDeletion{aPod("p", succeeded), nil}, deletion},
			{"it failed", podDeletion{aPod("p", failed), nil}, deletion},
			{"its node is gone", podDeletion{aPod("p", running), why}, withWhy("2000-01-01T00:00:00Z") + deletion},
			{"its node is gone, and it had ended", podDeletion{aPod("p", failed), why}, deletion},
			{"its node is gone, and it was to go already", podDeletion{aPod("p", running, had("True")), why}, withWhy("2026-06-15T12:00:00Z") + deletion},
			{"its node is gone, and it was not to go", podDeletion{aPod("p", running, had("False")), why}, withWhy("2000-01-01T00:00:00Z") + deletion},
		} {
			var got []string
			for _, step := range test.d.plan().Steps {
				for _, w := range step.Writes {
					if w.Verb == controller.Delete {
						if *w.DeleteOptions.GracePeriodSeconds == 0 {
							got = append(got, fmt.Sprintf("delete %s at once, %s only", w.Object.GetName(), *w.DeleteOptions.Preconditions.UID))
						}
						continue
					}
					got = append(got, fmt.Sprintf("%s %s %s", w.Verb, w.Object.GetName(), w.Patch))
				}
			}
			if text := strings.Join(got, "; "); text != test.want {
				t.Errorf("%s: %s\nwant %s", test.what, text, test.want)
			}
		}
	})
}

func TestMissingNodesAreQuarantined(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	create(t, c, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "unseen"}})
	cleaner := &podGC{setup: &controller.Setup{Client: c}, missingSince: map[string]time.Time{}}
	on := func(node string) *corev1.Pod { return aPod("on-"+node, onNode(node)) }
	v := podsView{pods: []*corev1.Pod{on("lost"), on("unseen"), on("here"), aPod("nowhere")}, nodes: map[string]*corev1.Node{"here": {}}}
	for _, test := range []struct {
		after time.Duration
		gone  []string
	}{{0, nil}, {30 * time.Second, nil}, {40*time.Second - 1, nil}, {40 * time.Second, []string{"lost"}}, {60 * time.Second, []string{"lost"}}} {
		gone, err := cleaner.findDeletedNodes(t.Context(), v, noon.Add(test.after))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for name, is := range gone {
			if is {
				names = append(names, name)
			}
		}
		if !slices.Equal(names, test.gone) {
			t.Errorf("after %v: %v, want %v", test.after, names, test.gone)
		}
	}
	v.nodes["lost"] = &corev1.Node{}
	if _, err := cleaner.findDeletedNodes(t.Context(), v, noon.Add(time.Minute)); err != nil || !cleaner.missingSince["lost"].IsZero() || cleaner.missingSince["unseen"].IsZero() {
		t.Errorf("a node that is back is still missing: %v, %v", cleaner.missingSince, err)
	}
	delete(v.nodes, "lost")
	if gone, err := cleaner.findDeletedNodes(t.Context(), v, noon.Add(2*time.Minute)); err != nil || gone["lost"] {
		t.Errorf("lost again, its quarantine begins anew: %v, %v", gone, err)
	}
	v.pods = nil
	if _, err := cleaner.findDeletedNodes(t.Context(), v, noon.Add(2*time.Minute)); err != nil || len(cleaner.missingSince) != 0 {
		t.Errorf("nobody names a node: %v, %v", cleaner.missingSince, err)
	}
}

// unreadable refuses to read one object.
type unreadable struct {
	client.Local
	name string
}

func (u unreadable) Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (kind.Object, error) {
	if name == u.name {
		return nil, errors.New("no answer")
	}
	return u.Local.Get(ctx, gvr, namespace, name)
}

// TestANodeThatCannotBeAskedFor does not save the pods of one that is gone.
func TestUnreadableNodeDoesNotAffectOthers(t *testing.T) {
	c := inprocess.Client(t, unreadable{inprocess.Server(t, t.Context()), "unclear"})
	cleaner := &podGC{setup: &controller.Setup{Client: c}, missingSince: map[string]time.Time{"unclear": noon, "lost": noon}}
	v := podsView{pods: []*corev1.Pod{aPod("a", onNode("unclear")), aPod("b", onNode("lost"))}}
	gone, err := cleaner.findDeletedNodes(t.Context(), v, noon.Add(time.Hour))
	if !maps.Equal(gone, map[string]bool{"lost": true}) || err == nil || err.Error() != "get node unclear: no answer" {
		t.Errorf("%v, %v", gone, err)
	}
}

// TestPodsInAWorld: pods of nodes that are gone or out of service, and those that ended, go when they must; nothing else does.
func TestPodsInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(Pods(2))()
		for _, name := range []string{"good", "leaves", "out"} {
			world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		pod := func(name, node string, p corev1.PodPhase) {
			made := podOf("default", name)
			made.Spec.NodeName = node
			world.Create(w, made)
			world.EditStatus(w, "default", name, func(pod *corev1.Pod) { pod.Status.Phase = p })
			w.Pass(time.Second)
		}
		pod("stays", "good", corev1.PodRunning)
		pod("orphan", "leaves", corev1.PodRunning)
		pod("stuck", "out", corev1.PodRunning)
		for i := range 4 {
			pod(fmt.Sprint("ended-", i), "good", corev1.PodSucceeded)
		}
		left := func() string {
			var names []string
			for _, p := range world.List[*corev1.Pod](w) {
				names = append(names, p.Name)
			}
			slices.Sort(names)
			return strings.Join(names, " ")
		}
		w.Pass(20 * time.Second)
		if got := left(); got != "ended-2 ended-3 orphan stays stuck" {
			t.Errorf("of those that ended two are kept: %s", got)
		}
		w.Remove(world.Get[*corev1.Node](w, "", "leaves"))
		w.Remove(world.Get[*corev1.Pod](w, "default", "stuck")) // no kubelet ends it
		w.Pass(39 * time.Second)
		if got := left(); got != "ended-2 ended-3 orphan stays stuck" {
			t.Errorf("too early: %s", got)
		}
		world.Edit(w, "", "out", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
		})
		w.Pass(50 * time.Second)
		if got := left(); got != "ended-2 ended-3 stays" {
			t.Errorf("the pods of nodes that are gone or out of service: %s", got)
		}
		w.AssertSettled(Pods(2))
	})
}
