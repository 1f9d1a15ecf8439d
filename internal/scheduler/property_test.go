package scheduler

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// world is a cluster as objects, beside the snapshot that has followed every change to it.
type world struct {
	t        testing.TB
	random   *rand.Rand
	nodes    map[string]*corev1.Node
	pods     map[types.UID]*corev1.Pod
	snapshot *Snapshot
	made     int
}

func newWorld(t testing.TB, seed uint64) *world {
	return &world{t: t, random: rand.New(rand.NewPCG(seed, 1)), nodes: map[string]*corev1.Node{}, pods: map[types.UID]*corev1.Pod{}, snapshot: NewSnapshot()}
}

func (w *world) oneIn(n int) bool { return w.random.IntN(n) == 0 }

func pick[T any](w *world, all ...T) T { return all[w.random.IntN(len(all))] }

func (w *world) randomNode(name string) *corev1.Node {
	n := testNode(name, nodeHas(corev1.ResourceCPU, pick(w, "1", "2", "4")), nodeHas(corev1.ResourcePods, pick(w, "3", "10")))
	if !w.oneIn(5) {
		n.Labels[corev1.LabelTopologyZone] = pick(w, "z1", "z2", "z3")
	}
	if w.oneIn(3) {
		n.Labels["disk"] = pick(w, "ssd", "hdd")
	}
	if w.oneIn(6) {
		taint("dedicated", pick(w, "x", "y"), pick(w, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule))(n)
	}
	if w.oneIn(10) {
		cordoned(n)
	}
	if w.oneIn(4) {
		nodeImage("pause:latest", 900<<20)(n)
	}
	if w.oneIn(5) {
		nodeHas("example.com/gpu", "2")(n)
	}
	return n
}

func (w *world) randomPod() *corev1.Pod {
	w.made++
	color := pick(w, "green", "blue", "red")
	options := []podOption{labelled("color", color), namespace(pick(w, "default", "other")), priority(int32(w.random.IntN(3)))}
	maybe := func(n int, o podOption) {
		if w.oneIn(n) {
			options = append(options, o)
		}
	}
	maybe(2, asksCPU(pick(w, "100m", "500m", "1")))
	maybe(3, asksMemory(pick(w, "1Gi", "8Gi")))
	maybe(8, asks("example.com/gpu", "1"))
	maybe(8, selecting("disk", "ssd"))
	maybe(8, tolerating(corev1.Toleration{Key: "dedicated", Operator: corev1.TolerationOpExists}))
	maybe(10, port(int32(80+w.random.IntN(2)), "", "TCP"))
	maybe(6, away(pick(w, corev1.LabelHostname, corev1.LabelTopologyZone), "color", pick(w, "green", "blue")))
	maybe(8, near(pick(w, corev1.LabelHostname, corev1.LabelTopologyZone), "color", color))
	maybe(8, prefersNear(int32(1+w.random.IntN(9)), corev1.LabelTopologyZone, "color", "red"))
	maybe(6, spread(pick(w, corev1.LabelHostname, corev1.LabelTopologyZone), int32(1+w.random.IntN(2)), corev1.DoNotSchedule, "color", color))
	maybe(6, spread(pick(w, corev1.LabelHostname, corev1.LabelTopologyZone), 1, corev1.ScheduleAnyway, "color", color))
	maybe(12, requiresNodes(named("n1"), named("n2")))
	return testPod(fmt.Sprint("pod-", w.made), options...)
}

// step changes one thing.
func (w *world) step() {
	switch k := w.random.IntN(20); {
	case k == 0 || len(w.nodes) < 3:
		n := w.randomNode(fmt.Sprint("n", w.random.IntN(12)))
		w.nodes[n.Name] = n
		w.snapshot.SetNode(n)
	case k == 1:
		for name := range w.nodes {
			delete(w.nodes, name)
			w.snapshot.DeleteNode(name)
			break
		}
	case k < 5:
		for uid := range w.pods {
			delete(w.pods, uid)
			w.snapshot.DeletePod(uid)
			break
		}
	case k == 5:
		for uid, p := range w.pods {
			p = p.DeepCopy()
			p.Labels["color"] = pick(w, "green", "blue", "red")
			if w.oneIn(3) {
				p.DeletionTimestamp = &metav1.Time{}
			}
			w.pods[uid] = p
			w.snapshot.SetPod(infoOf(w.t, p))
			break
		}
	default:
		w.schedule(w.randomPod())
	}
}

// schedule decides about a pod and puts it there, as the scheduler would: first assumed, later confirmed.
func (w *world) schedule(pod *corev1.Pod) {
	info := infoOf(w.t, pod)
	d, err := Schedule(w.snapshot, info, worldProfile)
	w.compare(pod, d)
	if err != nil {
		if !IsUnschedulable(err) {
			w.t.Fatal(err)
		}
		return
	}
	w.snapshot.Assume(info, d.Node)
	if w.oneIn(10) {
		w.snapshot.Forget(pod.UID)
		return
	}
	bound := pod.DeepCopy()
	bound.Spec.NodeName = d.Node
	w.pods[pod.UID] = bound
	w.snapshot.SetPod(infoOf(w.t, bound))
}

var worldProfile = DefaultProfile()

// compare checks a decision against one made by a snapshot that has seen nothing but the cluster as it is now.
func (w *world) compare(pod *corev1.Pod, d *Decision) {
	w.t.Helper()
	fresh := NewSnapshot()
	for _, n := range w.nodes {
		fresh.SetNode(n)
	}
	for _, p := range w.pods {
		fresh.SetPod(infoOf(w.t, p))
	}
	other, _ := Schedule(fresh, infoOf(w.t, pod), worldProfile)
	got, want := w.verdicts(d), w.verdicts(other)
	if !reflect.DeepEqual(got, want) || d.Feasible != other.Feasible {
		w.t.Fatalf("pod %s: what was followed and what is differ:\n%v\n%v", pod.Name, got, want)
	}
	if d.Node != "" && w.best(d) != w.best(other) {
		w.t.Fatalf("pod %s goes to %s with %d, but the best has %d", pod.Name, d.Node, w.best(d), w.best(other))
	}
}

func (w *world) verdicts(d *Decision) map[string]string {
	all := map[string]string{}
	verdicts, _ := d.Explain()
	for _, v := range verdicts {
		all[v.Node] = fmt.Sprint(v.Total, v.Scores)
		if v.Refusal != nil {
			all[v.Node] = fmt.Sprint(v.Refusal.Rule, v.Refusal.Reasons)
		}
	}
	return all
}

func (w *world) best(d *Decision) int64 {
	verdicts, _ := d.Explain()
	return verdicts[0].Total
}

// check looks at the cluster with other eyes than the scheduler's.
func (w *world) check() {
	for name, n := range w.nodes {
		var milli, gpu, count int64
		for _, p := range w.pods {
			if p.Spec.NodeName != name {
				continue
			}
			count++
			milli += p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
			q := p.Spec.Containers[0].Resources.Requests["example.com/gpu"]
			gpu += q.Value()
		}
		number := w.snapshot.nodeNumber[name]
		if milli != w.snapshot.requested[cpu][number] || count != w.snapshot.requested[pods][number] {
			w.t.Fatalf("node %s: %d pods ask for %dm, the snapshot says %d and %dm", name, count, milli, w.snapshot.requested[pods][number], w.snapshot.requested[cpu][number])
		}
		_ = n
		_ = gpu
	}
}

func TestIncrementalEqualsFresh(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed)
			for range 400 {
				w.step()
				w.check()
			}
		})
	}
}

// TestNeverOverAllocatable fills random clusters whose nodes stay as they are.
func TestNeverOverAllocatable(t *testing.T) {
	for seed := range uint64(10) {
		w := newWorld(t, 1000+seed)
		for i := range 6 {
			n := w.randomNode(fmt.Sprint("n", i))
			w.nodes[n.Name] = n
			w.snapshot.SetNode(n)
		}
		for range 120 {
			w.schedule(w.randomPod())
		}
		for name, n := range w.nodes {
			used := corev1.ResourceList{}
			count := int64(0)
			for _, p := range w.pods {
				if p.Spec.NodeName != name {
					continue
				}
				count++
				for r, q := range p.Spec.Containers[0].Resources.Requests {
					sum := used[r]
					sum.Add(q)
					used[r] = sum
				}
			}
			for r, sum := range used {
				if has := n.Status.Allocatable[r]; sum.Cmp(has) > 0 {
					t.Errorf("seed %d: node %s has %s of %s but pods ask for %s", seed, name, &has, r, &sum)
				}
			}
			if count > n.Status.Allocatable.Pods().Value() {
				t.Errorf("seed %d: node %s holds %d pods", seed, name, count)
			}
		}
	}
}

// TestPreemptionTakesNoMoreThanNeeded preempts in random clusters: with the victims gone the pod fits; with any one of them back it
// does not; and looking for victims leaves no trace.
func TestPreemptionTakesNoMoreThanNeeded(t *testing.T) {
	found := 0
	for seed := range uint64(60) {
		w := newWorld(t, 2000+seed)
		for i := range 4 {
			n := w.randomNode(fmt.Sprint("n", i))
			w.nodes[n.Name] = n
			w.snapshot.SetNode(n)
		}
		for range 60 {
			w.schedule(w.randomPod())
		}
		pod := w.randomPod()
		pod.Spec.Priority = new(int32)
		*pod.Spec.Priority = 10
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("900m")}
		d, err := Schedule(w.snapshot, infoOf(t, pod), worldProfile)
		var fit *FitError
		if !errors.As(err, &fit) {
			continue
		}
		way, message, err := Preempt(d, nil, nil)
		again, _ := Schedule(w.snapshot, infoOf(t, pod), worldProfile)
		w.compare(pod, again)
		w.check()
		if way == nil {
			if message == "" || err == nil {
				t.Errorf("seed %d: no way and no word", seed)
			}
			continue
		}
		found++
		fitsWithout := func(gone []*corev1.Pod) bool {
			s := NewSnapshot()
			for _, n := range w.nodes {
				s.SetNode(n)
			}
			for uid, p := range w.pods {
				if !slices.ContainsFunc(gone, func(v *corev1.Pod) bool { return v.UID == uid }) {
					s.SetPod(infoOf(t, p))
				}
			}
			return refusalsOf(t, s, pod, worldProfile)[way.Node] == ""
		}
		if !fitsWithout(way.Victims) {
			t.Errorf("seed %d: with %d victims gone the pod does not fit on %s", seed, len(way.Victims), way.Node)
		}
		for i, v := range way.Victims {
			if priorityOf(v) >= priorityOf(pod) || v.Spec.NodeName != way.Node {
				t.Errorf("seed %d: victim %s is of priority %d on %s", seed, v.Name, priorityOf(v), v.Spec.NodeName)
			}
			if fitsWithout(slices.Delete(slices.Clone(way.Victims), i, i+1)) {
				t.Errorf("seed %d: victim %s had not to go", seed, v.Name)
			}
		}
	}
	if found < 5 {
		t.Fatalf("only %d clusters needed preemption", found)
	}
}

func TestPlainRequestEqualsLibrary(t *testing.T) {
	w := newWorld(t, 7)
	for range 200 {
		pod := w.randomPod()
		delete(pod.Spec.Containers[0].Resources.Requests, "example.com/gpu")
		fast, ok := plainRequest(pod, false)
		if !ok {
			t.Fatal("a plain pod is not plain")
		}
		// An overhead of nothing leads around the short cut.
		pod.Spec.Overhead = corev1.ResourceList{}
		if slow := requestOf(pod, false); !sameRequest(&fast, &slow) {
			t.Fatalf("%+v and %+v", fast, slow)
		}
	}
}
