package node

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/world"
)

// taint is a NoExecute taint: "key" or "key=value".
func taint(text string) corev1.Taint {
	key, value, _ := strings.Cut(text, "=")
	return corev1.Taint{Key: key, Value: value, Effect: out}
}

func taints(texts ...string) (all []corev1.Taint) {
	for _, text := range texts {
		all = append(all, taint(text))
	}
	return all
}

func TestDrivingTaints(t *testing.T) {
	node := aNode("n", tainted("a", no), tainted("b", out), tainted("c", prefer), tainted("d", out), tainted("b", no))
	if got := taintWords(noExecuteTaints(node)); got != "b:NoExecute d:NoExecute" {
		t.Errorf("%s", got)
	}
	if got := noExecuteTaints(aNode("n", tainted("a", no))); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

func TestPatience(t *testing.T) {
	const exists, equal = corev1.TolerationOpExists, corev1.TolerationOpEqual
	is := func(key string, op corev1.TolerationOperator, value string, effect corev1.TaintEffect, seconds ...int64) change[*corev1.Pod] {
		tol := corev1.Toleration{Key: key, Operator: op, Value: value, Effect: effect}
		if len(seconds) > 0 {
			tol.TolerationSeconds = &seconds[0]
		}
		return toleration(tol)
	}
	const never = -1 * time.Second
	for _, test := range []struct {
		what   string
		taints []corev1.Taint
		pod    *corev1.Pod
		want   time.Duration
	}{
		{"no taints", nil, aPod("p"), infiniteToleration},
		{"no tolerations", taints("a"), aPod("p"), never},
		{"another key", taints("a"), aPod("p", tolerates("b")), never},
		{"the key exists", taints("a=x"), aPod("p", tolerates("a")), infiniteToleration},
		{"no key and Exists tolerates everything", taints("a", "b=x"), aPod("p", is("", exists, "", "")), infiniteToleration},
		{"no key and Equal compares values alone", taints("a=x"), aPod("p", is("", equal, "x", "")), infiniteToleration},
		{"no effect means every effect", taints("a"), aPod("p", is("a", exists, "", "")), infiniteToleration},
		{"another effect", taints("a"), aPod("p", is("a", exists, "", no)), never},
		{"an equal value", taints("a=x"), aPod("p", is("a", equal, "x", out)), infiniteToleration},
		{"another value", taints("a=x"), aPod("p", is("a", equal, "y", out)), never},
		{"no operator means Equal", taints("a=x"), aPod("p", is("a", "", "x", out)), infiniteToleration},
		{"no operator and another value", taints("a=x"), aPod("p", is("a", "", "", out)), never},
		{"both values empty", taints("a"), aPod("p", is("a", equal, "", out)), infiniteToleration},
		{"an operator nobody knows", taints("a=x"), aPod("p", is("a", "Like", "x", out)), never},
		{"greater than, which is not in use yet", taints("a=5"), aPod("p", is("a", corev1.TolerationOpGt, "3", out)), never},
		{"one of two is not tolerated", taints("a", "b"), aPod("p", tolerates("a")), never},
		{"both are", taints("a", "b"), aPod("p", tolerates("b"), tolerates("a")), infiniteToleration},
		{"for a while", taints("a"), aPod("p", tolerates("a", 60)), time.Minute},
		{"for one second", taints("a"), aPod("p", tolerates("a", 1)), time.Second},
		{"for no time", taints("a"), aPod("p", tolerates("a", 0)), 0},
		{"for less than no time", taints("a"), aPod("p", tolerates("a", -5)), 0},
		{"the shorter of two", taints("a", "b"), aPod("p", tolerates("a", 60), tolerates("b", 5)), 5 * time.Second},
		{"the shorter of two, the other way round", taints("b", "a"), aPod("p", tolerates("a", 60), tolerates("b", 5)), 5 * time.Second},
		{"one for a while, one for ever", taints("a", "b"), aPod("p", tolerates("a"), tolerates("b", 5)), 5 * time.Second},
		{"a negative time beside a while", taints("a", "b"), aPod("p", tolerates("a", 60), tolerates("b", -1)), 0},
		{"of two that match, the first counts", taints("a"), aPod("p", tolerates("a", 60), tolerates("a", 5)), time.Minute},
		{"of two that match, the first counts, for ever", taints("a"), aPod("p", tolerates("a"), tolerates("a", 5)), infiniteToleration},
		{"a time for a taint that is not there", taints("a"), aPod("p", tolerates("a"), tolerates("b", 5)), infiniteToleration},
		{"everything for a while", taints("a", "b"), aPod("p", is("", exists, "", out, 30)), 30 * time.Second},
		{"the longest time there is", taints("a"), aPod("p", tolerates("a", math.MaxInt64)), infiniteToleration},
		{"longer than can be counted", taints("a"), aPod("p", tolerates("a", math.MaxInt64/int64(time.Second)+1)), infiniteToleration},
		{"as long as can be counted", taints("a"), aPod("p", tolerates("a", math.MaxInt64/int64(time.Second))), math.MaxInt64 / time.Second * time.Second},
	} {
		got, tolerated := evictionView{pod: test.pod, taints: test.taints}.minTolerationTime()
		if !tolerated {
			got = never
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", test.what, got, test.want)
		}
	}
}

const (
	evictMark   = `patch status of Pod p {"metadata":{"uid":"uid-p"},"status":{"conditions":[{"type":"DisruptionTarget","observedGeneration":3,"status":"True","lastProbeTime":null,"lastTransitionTime":"2026-03-01T12:00:00Z","reason":"DeletionByTaintManager","message":"Taint manager: deleting due to NoExecute taint"}]}}`
	evictDelete = "delete Pod p"
	evictTold   = `Normal TaintManagerEviction "Marking for deletion Pod default/p"`
	cancelTold  = `Normal TaintManagerEviction "Cancelling deletion of Pod default/p"`
	evictAll    = evictMark + "; " + evictDelete + "; " + evictTold
)

func generation(g int64) change[*corev1.Pod] { return func(p *corev1.Pod) { p.Generation = g } }

func TestTaintEviction(t *testing.T) {
	in := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	marked := podSays(corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager", Message: "Taint manager: deleting due to NoExecute taint"})
	for _, test := range []struct {
		what   string
		pod    *corev1.Pod
		taints []corev1.Taint
		due    time.Time
		want   string
		keeps  time.Time
	}{
		{"no taints", aPod("p"), nil, time.Time{}, "", time.Time{}},
		{"not tolerated", aPod("p"), taints("a"), time.Time{}, evictAll, now},
		{"tolerated for good", aPod("p", tolerates("a")), taints("a"), time.Time{}, "", time.Time{}},
		{"one of two tolerated", aPod("p", tolerates("a")), taints("a", "b"), time.Time{}, evictAll, now},
		{"tolerated for a while", aPod("p", tolerates("a", 60)), taints("a"), time.Time{}, "again 1m0s", in(60)},
		{"for the shorter while", aPod("p", tolerates("a", 60), tolerates("b", 5)), taints("a", "b"), time.Time{}, "again 5s", in(5)},
		{"for no time", aPod("p", tolerates("a", 0)), taints("a"), time.Time{}, evictAll, now},
		{"the time given stays", aPod("p", tolerates("a", 60)), taints("a"), in(20), "again 20s", in(20)},
		{"the time given stays when a taint for a shorter while comes", aPod("p", tolerates("a", 60), tolerates("b", 5)), taints("a", "b"), in(20), "again 20s", in(20)},
		{"the time given stays when a taint for no time comes", aPod("p", tolerates("a", 60), tolerates("b", 0)), taints("a", "b"), in(20), "again 20s", in(20)},
		{"the time given stays when tolerations are added", aPod("p", tolerates("a", 600)), taints("a"), in(20), "again 20s", in(20)},
		{"a moment before", aPod("p", tolerates("a", 60)), taints("a"), now.Add(1), "again 0s", now.Add(1)},
		{"the time is up", aPod("p", tolerates("a", 60)), taints("a"), now, evictAll, now},
		{"the time was up and the deletion failed", aPod("p", tolerates("a", 60)), taints("a"), in(-5), evictAll, in(-5)},
		{"a taint that is not tolerated comes", aPod("p", tolerates("a", 60)), taints("a", "b"), in(20), evictMark + "; " + evictDelete + "; " + cancelTold + "; " + evictTold, now},
		{"the taints go", aPod("p", tolerates("a", 60)), nil, in(20), cancelTold, time.Time{}},
		{"the taints go after its time was up", aPod("p", tolerates("a", 60)), nil, in(-1), "", time.Time{}},
		{"it tolerates for good now", aPod("p", tolerates("a")), taints("a"), in(20), cancelTold, time.Time{}},
		{"marked already", aPod("p", marked), taints("a"), time.Time{}, evictDelete + "; " + evictTold, now},
		{"being deleted for another reason", aPod("p", podDeleted), taints("a"), time.Time{}, evictMark + "; " + evictTold, now},
		{"being deleted for this reason", aPod("p", podDeleted, marked), taints("a"), time.Time{}, "", now},
		{"being deleted and tolerated for a while", aPod("p", podDeleted, tolerates("a", 60)), taints("a"), time.Time{}, "again 1m0s", in(60)},
	} {
		generation(3)(test.pod)
		was := test.pod.DeepCopy()
		plan, due := evictionView{pod: test.pod, taints: test.taints, scheduledAt: test.due, now: now}.reconcile()
		if got := words(plan); got != test.want || !due.Equal(test.keeps) {
			t.Errorf("%s: %s, due %v\nwant %s, due %v", test.what, got, due, test.want, test.keeps)
		}
		if !reflect.DeepEqual(was, test.pod) {
			t.Errorf("%s: the pod of the cache has changed", test.what)
		}
	}
}

func TestTheMarkOfAnEvictedPod(t *testing.T) {
	const message = "Taint manager: deleting due to NoExecute taint"
	hour := ago(time.Hour)
	is := func(status corev1.ConditionStatus, reason, message string) corev1.PodCondition {
		return corev1.PodCondition{Type: corev1.DisruptionTarget, Status: status, Reason: reason, Message: message, LastTransitionTime: hour}
	}
	for _, test := range []struct {
		what string
		has  []corev1.PodCondition
		want string // the transition time that is written; "" when nothing is
	}{
		{"no conditions", nil, "2026-03-01T12:00:00Z"},
		{"other conditions", []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}, "2026-03-01T12:00:00Z"},
		{"the same", []corev1.PodCondition{is("True", "DeletionByTaintManager", message)}, ""},
		{"False before", []corev1.PodCondition{is("False", "DeletionByTaintManager", message)}, "2026-03-01T12:00:00Z"},
		{"for another reason before: no transition", []corev1.PodCondition{is("True", "PreemptionByScheduler", message)}, "2026-03-01T11:00:00Z"},
		{"with another message before: no transition", []corev1.PodCondition{is("True", "DeletionByTaintManager", "x")}, "2026-03-01T11:00:00Z"},
	} {
		write, needed := evictionView{pod: aPod("p", podSays(test.has...), generation(3)), now: now}.markDisruptionTarget()
		want := strings.Replace(strings.TrimPrefix(evictMark, "patch status of Pod p "), "2026-03-01T12:00:00Z", test.want, 1)
		if needed != (test.want != "") || needed && string(write.Patch) != want {
			t.Errorf("%s: %v %s\nwant %s", test.what, needed, write.Patch, want)
		}
	}
}

// queueModel is a timer per pod, as the documentation of taints has it: a pod that tolerates all taints, but one for a while only, gets a
// timer when it is first seen so; the timer runs, whatever else changes, until the taints are gone, tolerated for ever or not at all.
type queueModel struct{ fires int } // the second; -1: no timer

func (m *queueModel) see(second int, taints []string, tolerations map[string]int) (evicted bool) {
	least, tolerated := math.MaxInt, true
	for _, key := range taints {
		seconds, ok := tolerations[key]
		tolerated = tolerated && ok
		if seconds >= 0 {
			least = min(least, seconds)
		}
	}
	switch {
	case !tolerated:
		return true
	case least == math.MaxInt:
		m.fires = -1
	case m.fires < 0:
		m.fires = second + least
	}
	return m.fires >= 0 && m.fires <= second
}

// TestRandomTaints lets taints of a pod's node come and go and compares with timers.
func TestRandomTaints(t *testing.T) {
	const seed = 5
	random := rand.New(rand.NewPCG(seed, 0))
	keys := []string{"a", "b", "c"}
	for round := range 1000 {
		tolerations := map[string]int{}
		pod := aPod("p")
		for _, key := range keys {
			switch random.IntN(5) {
			case 0: // not tolerated
			case 1:
				tolerations[key] = -1
				tolerates(key)(pod)
			default:
				tolerations[key] = random.IntN(30)
				tolerates(key, int64(tolerations[key]))(pod)
			}
		}
		model := queueModel{fires: -1}
		v := evictionView{pod: pod}
		for second := 0; second < 60; second += 1 + random.IntN(5) {
			var present []string
			for _, key := range keys {
				if random.IntN(2) == 0 {
					present = append(present, key)
				}
			}
			v.now, v.taints = now.Add(time.Duration(second)*time.Second), taints(present...)
			plan, due := v.reconcile()
			v.scheduledAt = due
			evicted := len(plan.Steps) > 0
			if want := model.see(second, present, tolerations); evicted != want {
				t.Fatalf("seed %d, round %d, second %d: evicted %v, want %v (taints %v, tolerations %v)", seed, round, second, evicted, want, present, tolerations)
			}
			if evicted {
				break
			}
			if waits := plan.RequeueAfter > 0; waits != (model.fires >= 0) || waits && plan.RequeueAfter != time.Duration(model.fires-second)*time.Second {
				t.Fatalf("seed %d, round %d, second %d: waits %s, want until %d", seed, round, second, plan.RequeueAfter, model.fires)
			}
		}
	}
}

// TestEvictionsInAWorld plays taints and pods that come, change and go, and lists when pods are gone and what was told.
func TestEvictionsInAWorld(t *testing.T) {
	marking := func(name string) string { return "TaintManagerEviction: Marking for deletion Pod default/" + name }
	cancelling := func(name string) string { return "TaintManagerEviction: Cancelling deletion of Pod default/" + name }
	setTaints := func(w *world.World, node string, taints ...corev1.Taint) {
		world.Edit(w, "", node, func(n *corev1.Node) { n.Spec.Taints = taints })
	}
	for _, test := range []struct {
		what string
		play func(w *world.World)
		gone bool
		told []string
	}{
		{"a taint nobody tolerates", func(w *world.World) { newPod(w, "p", "n"); setTaints(w, "n", taint("a")) }, true, []string{marking("p")}},
		{"a pod that comes to a tainted node", func(w *world.World) { setTaints(w, "n", taint("a")); newPod(w, "p", "n") }, true, []string{marking("p")}},
		{"a taint that keeps pods away drives none off", func(w *world.World) { newPod(w, "p", "n"); setTaints(w, "n", corev1.Taint{Key: "a", Effect: no}) }, false, nil},
		{"another node's taint", func(w *world.World) { newPod(w, "p", "n"); setTaints(w, "other", taint("a")) }, false, nil},
		{"a while, not over", func(w *world.World) {
			newPod(w, "p", "n", forSeconds("a", 60))
			setTaints(w, "n", taint("a"))
			w.Pass(57 * time.Second)
		}, false, nil},
		{"a while, over", func(w *world.World) {
			newPod(w, "p", "n", forSeconds("a", 60))
			setTaints(w, "n", taint("a"))
			w.Pass(60 * time.Second)
		}, true, []string{marking("p")}},
		{"the taint goes in time", func(w *world.World) {
			newPod(w, "p", "n", forSeconds("a", 60))
			setTaints(w, "n", taint("a"))
			w.Pass(30 * time.Second)
			setTaints(w, "n")
			w.Pass(30 * time.Minute)
		}, false, []string{cancelling("p")}},
		{"the taint goes and comes: the time begins anew", func(w *world.World) {
			newPod(w, "p", "n", forSeconds("a", 60))
			setTaints(w, "n", taint("a"))
			w.Pass(50 * time.Second)
			setTaints(w, "n")
			w.Pass(time.Second)
			setTaints(w, "n", taint("a"))
			w.Pass(50 * time.Second)
		}, false, []string{cancelling("p")}},
		{"a second taint does not prolong the time", func(w *world.World) {
			newPod(w, "p", "n", forSeconds("a", 60), forSeconds("b", 600))
			setTaints(w, "n", taint("a"))
			w.Pass(30 * time.Second)
			setTaints(w, "n", taint("b"))
			w.Pass(30 * time.Second)
		}, true, []string{marking("p")}},
		{"a taint that is not tolerated comes while it waits", func(w *world.World) {
			newPod(w, "p", "n", forSeconds("a", 60))
			setTaints(w, "n", taint("a"))
			w.Pass(30 * time.Second)
			setTaints(w, "n", taint("a"), taint("b"))
		}, true, []string{cancelling("p")}}, // no time passes before the next event, which makes their names equal
		{"a pod that goes while it waits", func(w *world.World) {
			newPod(w, "p", "n", forSeconds("a", 60))
			setTaints(w, "n", taint("a"))
			w.Pass(30 * time.Second)
			w.Remove(world.Get[*corev1.Pod](w, "default", "p"))
		}, true, []string{cancelling("p")}},
		{"a successor of the same name has its own time", func(w *world.World) {
			newPod(w, "p", "n", forSeconds("a", 60))
			setTaints(w, "n", taint("a"))
			w.Pass(50 * time.Second)
			w.Remove(world.Get[*corev1.Pod](w, "default", "p"))
			newPod(w, "p", "n", forSeconds("a", 60))
			w.Pass(50 * time.Second)
		}, false, []string{cancelling("p")}},
		{"a toleration is added while it waits", func(w *world.World) {
			newPod(w, "p", "n", forSeconds("a", 60))
			setTaints(w, "n", taint("a"))
			w.Pass(30 * time.Second)
			world.Edit(w, "default", "p", func(p *corev1.Pod) {
				p.Spec.Tolerations = append([]corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}}, p.Spec.Tolerations...)
			})
			w.Pass(30 * time.Minute)
		}, false, []string{cancelling("p")}},
		{"the node is gone", func(w *world.World) { newPod(w, "p", "nowhere"); w.Pass(30 * time.Minute) }, false, nil},
		{"out of service drives pods off like any other taint", func(w *world.World) {
			newPod(w, "p", "n")
			setTaints(w, "n", corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: out})
		}, true, []string{marking("p")}},
	} {
		t.Run(test.what, func(t *testing.T) {
			world.In(t, func(w *world.World) {
				defer w.Run(TaintEviction)()
				newNodes(w, "n", "other")
				test.play(w)
				w.Pass(500 * time.Millisecond)
				if got := world.Gone[*corev1.Pod](w, "default", "p"); got != test.gone {
					t.Errorf("the pod is gone: %v", got)
				}
				w.Pass(time.Second)
				if got := slices.Sorted(slices.Values(w.Events("p"))); !slices.Equal(got, test.told) {
					t.Errorf("told %q, want %q", got, test.told)
				}
			})
		})
	}
}

// TestEvictedPodsSayWhy: a pod with a grace period is still there and has the condition.
func TestEvictedPodsSayWhy(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(TaintEviction)()
		newNodes(w, "n")
		for i := range 3 {
			world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", i)}, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}})
		}
		w.Remove(world.Get[*corev1.Pod](w, "default", "p2")) // somebody deleted it before
		world.Edit(w, "", "n", func(n *corev1.Node) { n.Spec.Taints = taints("a") })
		w.Pass(time.Second)
		for _, pod := range world.List[*corev1.Pod](w) {
			if pod.DeletionTimestamp == nil || *pod.DeletionGracePeriodSeconds != 30 || len(pod.Status.Conditions) != 1 || pod.Status.Conditions[0].Type != corev1.DisruptionTarget || pod.Status.Conditions[0].Reason != "DeletionByTaintManager" {
				t.Errorf("%s: deleted %v, %+v", pod.Name, pod.DeletionTimestamp, pod.Status.Conditions)
			}
		}
		w.AssertSettled(TaintEviction)
	})
}
