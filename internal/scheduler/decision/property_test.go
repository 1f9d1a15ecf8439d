package decision

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// world is a cluster as objects, beside the snapshot that has followed every change to it.
type world struct {
	t testing.TB
	*schedulertest.RandomObjects
	nodes    map[string]*corev1.Node
	pods     map[types.UID]*corev1.Pod
	snapshot *snapshot.Snapshot
}

func newWorld(t testing.TB, seed uint64) *world {
	return &world{t: t, RandomObjects: schedulertest.NewRandomObjects(seed), nodes: map[string]*corev1.Node{}, pods: map[types.UID]*corev1.Pod{}, snapshot: snapshot.NewSnapshot()}
}

// step changes one thing.
func (w *world) step() {
	switch k := w.Random.IntN(20); {
	case k == 0 || len(w.nodes) < 3:
		n := w.RandomNode(fmt.Sprint("n", w.Random.IntN(12)))
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
			p.Labels["color"] = schedulertest.Pick(w.RandomObjects, "green", "blue", "red")
			if w.OneIn(3) {
				p.DeletionTimestamp = &metav1.Time{}
			}
			w.pods[uid] = p
			w.snapshot.SetPod(snapshottest.PodInfo(w.t, p))
			break
		}
	default:
		w.schedule(w.RandomPod())
	}
}

// schedule decides about a pod and puts it there, as the scheduler would: first assumed, later confirmed.
func (w *world) schedule(pod *corev1.Pod) {
	info := snapshottest.PodInfo(w.t, pod)
	d, err := Schedule(w.snapshot, info, worldProfile)
	w.compare(pod, d)
	if err != nil {
		if !IsUnschedulable(err) {
			w.t.Fatal(err)
		}
		return
	}
	w.snapshot.Assume(info, d.Node)
	if w.OneIn(10) {
		w.snapshot.Forget(pod.UID)
		return
	}
	bound := pod.DeepCopy()
	bound.Spec.NodeName = d.Node
	w.pods[pod.UID] = bound
	w.snapshot.SetPod(snapshottest.PodInfo(w.t, bound))
}

var worldProfile = plugins.DefaultProfile()

// compare checks a decision against one made by a snapshot that has seen nothing but the cluster as it is now.
func (w *world) compare(pod *corev1.Pod, d *Decision) {
	w.t.Helper()
	fresh := snapshot.NewSnapshot()
	for _, n := range w.nodes {
		fresh.SetNode(n)
	}
	for _, p := range w.pods {
		fresh.SetPod(snapshottest.PodInfo(w.t, p))
	}
	other, _ := Schedule(fresh, snapshottest.PodInfo(w.t, pod), worldProfile)
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
			all[v.Node] = fmt.Sprint(v.Refusal.Plugin, v.Refusal.Reasons)
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
		number := w.snapshot.NodeNumbers[name]
		if milli != w.snapshot.Requested[snapshot.ResourceCPU][number] || count != w.snapshot.Requested[snapshot.ResourcePods][number] {
			w.t.Fatalf("node %s: %d pods ask for %dm, the snapshot says %d and %dm", name, count, milli, w.snapshot.Requested[snapshot.ResourcePods][number], w.snapshot.Requested[snapshot.ResourceCPU][number])
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
			n := w.RandomNode(fmt.Sprint("n", i))
			w.nodes[n.Name] = n
			w.snapshot.SetNode(n)
		}
		for range 120 {
			w.schedule(w.RandomPod())
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
			n := w.RandomNode(fmt.Sprint("n", i))
			w.nodes[n.Name] = n
			w.snapshot.SetNode(n)
		}
		for range 60 {
			w.schedule(w.RandomPod())
		}
		pod := w.RandomPod()
		pod.Spec.Priority = new(int32)
		*pod.Spec.Priority = 10
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("900m")}
		d, err := Schedule(w.snapshot, snapshottest.PodInfo(t, pod), worldProfile)
		var fit *FitError
		if !errors.As(err, &fit) {
			continue
		}
		way, message, err := Preempt(d, nil, nil)
		again, _ := Schedule(w.snapshot, snapshottest.PodInfo(t, pod), worldProfile)
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
			s := snapshot.NewSnapshot()
			for _, n := range w.nodes {
				s.SetNode(n)
			}
			for uid, p := range w.pods {
				if !slices.ContainsFunc(gone, func(v *corev1.Pod) bool { return v.UID == uid }) {
					s.SetPod(snapshottest.PodInfo(t, p))
				}
			}
			return refusalsOf(t, s, pod, worldProfile)[way.Node] == ""
		}
		if !fitsWithout(way.Victims) {
			t.Errorf("seed %d: with %d victims gone the pod does not fit on %s", seed, len(way.Victims), way.Node)
		}
		for i, v := range way.Victims {
			if snapshot.PriorityOf(v) >= snapshot.PriorityOf(pod) || v.Spec.NodeName != way.Node {
				t.Errorf("seed %d: victim %s is of priority %d on %s", seed, v.Name, snapshot.PriorityOf(v), v.Spec.NodeName)
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
		pod := w.RandomPod()
		delete(pod.Spec.Containers[0].Resources.Requests, "example.com/gpu")
		fast, ok := snapshot.PlainRequest(pod, false)
		if !ok {
			t.Fatal("a plain pod is not plain")
		}
		// An overhead of nothing leads around the short cut.
		pod.Spec.Overhead = corev1.ResourceList{}
		if slow := snapshot.PodRequests(pod, false); !snapshot.SameRequest(&fast, &slow) {
			t.Fatalf("%+v and %+v", fast, slow)
		}
	}
}
