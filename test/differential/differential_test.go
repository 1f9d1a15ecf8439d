package differential

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"
)

var (
	clusters = flag.Int("clusters", 150, "random clusters to compare on")
	first    = flag.Uint64("seed", 1, "seed of the first cluster")
)

// TestDecisionsAreUpstreams asks both schedulers about several pods on each of many clusters.
func TestDecisionsAreUpstreams(t *testing.T) {
	compareMany(t, newWorld, (*world).pod, 40)
}

// TestStorageAndDevicesAreUpstreams does the same where volumes and devices are all that matters.
func TestStorageAndDevicesAreUpstreams(t *testing.T) {
	compareMany(t, newStorageWorld, (*world).storagePod, 500)
}

// compareMany compares on many worlds. At least one pod in so many should be able to make room, or the worlds are too easy.
func compareMany(t *testing.T, newWorld func(seed uint64) *world, newPod func(w *world, name string, isNew bool) *corev1.Pod, preemptions int) {
	t.Helper()
	klog.SetLogger(logr.Discard())
	const podsEach = 5
	placed, refused, preempting, failed := 0, 0, 0, 0
	for seed := *first; seed < *first+uint64(*clusters); seed++ {
		w := newWorld(seed)
		var pods []*corev1.Pod
		for i := range podsEach {
			pods = append(pods, newPod(w, fmt.Sprintf("new-%d", i), true))
		}
		for _, a := range compare(t, seed, w, pods) {
			switch {
			case a.failed != "":
				failed++
			case len(a.feasible(w)) > 0:
				placed++
			default:
				refused++
			}
			if len(a.victims) > 0 {
				preempting++
			}
		}
		if t.Failed() {
			t.Logf("go test ./test/differential -seed %d -clusters 1", seed)
			return
		}
	}
	total := *clusters * podsEach
	t.Logf("%d clusters, %d pods: %d placed, %d refused of which %d could make room, %d could not be decided", *clusters, total, placed, refused, preempting, failed)
	if total >= 500 && (placed < total/4 || refused < total/10 || preempting < total/preemptions) {
		t.Error("the pods were too easy or too hard to tell anything")
	}
}

func compare(t *testing.T, seed uint64, w *world, pods []*corev1.Pod) (answers []*answer) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	them, err := newTheirs(ctx, w, pods)
	if err != nil {
		t.Fatal(err)
	}
	us, err := newOurs(w, pods)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		want, err := them.decide(pod)
		if err != nil {
			t.Fatalf("cluster %d: %s: upstream: %v", seed, pod.Name, err)
		}
		got, node, err := decideOurs(us, w, pod)
		if err != nil {
			t.Fatalf("cluster %d: %s: %v", seed, pod.Name, err)
		}
		answers = append(answers, want)
		name := fmt.Sprintf("cluster %d: %s", seed, pod.Name)
		if got.failed != want.failed {
			t.Errorf("%s: failed %q, upstream %q", name, got.failed, want.failed)
		}
		if got.failed != "" || want.failed != "" {
			continue // who fails has not looked at all nodes
		}
		if want.failed != "" {
			continue // neither says anything of nodes
		}
		if node != "" && node == pod.Status.NominatedNodeName {
			// The nominated node is taken if it can be, without a look at the others.
			if !slices.Contains(want.feasible(w), node) {
				t.Errorf("%s takes its nominated node %s, which upstream refuses: %s", name, node, want.refused[node])
			}
			continue
		}
		if compareAnswers(t, name, w, pod, got, want, node); t.Failed() {
			spec, _ := yaml.Marshal(pod)
			t.Logf("%s", spec)
			return answers
		}
	}
	return answers
}

func compareAnswers(t *testing.T, name string, w *world, pod *corev1.Pod, got, want *answer, node string) {
	t.Helper()
	for _, n := range w.nodes {
		if got.refused[n.Name] != want.refused[n.Name] {
			t.Errorf("%s: node %s: refusal %q, upstream's %q", name, n.Name, got.refused[n.Name], want.refused[n.Name])
		}
	}
	slices.Sort(got.resolvable)
	slices.Sort(want.resolvable)
	if !slices.Equal(got.resolvable, want.resolvable) {
		t.Errorf("%s: nodes %v might be made free, upstream says %v; %v", name, got.resolvable, want.resolvable, want.refused)
	}
	if t.Failed() {
		return
	}
	if len(want.scores) > 0 {
		if best := slices.Max(slices.Collect(maps.Values(want.scores))); want.scores[node] != best {
			t.Errorf("%s: goes to %s, which upstream gives %d (%s), but the best has %d", name, node, want.scores[node], want.written[node], best)
		}
	}
	// One feasible node is taken without scores.
	if len(want.scores) > 1 {
		for n, score := range want.scores {
			if got.scores[n] != score && len(got.written[n]) > 0 {
				t.Errorf("%s: node %s: %d (%s), upstream %d (%s)", name, n, got.scores[n], got.written[n], score, want.written[n])
			}
		}
	}
	if w.leavingConfuses(pod) {
		return
	}
	if !maps.Equal(got.victims, want.victims) {
		t.Errorf("%s: victims %v, upstream's %v, but %v", name, got.victims, want.victims, want.helpless)
	} else if !slices.Equal(got.chosen, want.chosen) {
		t.Errorf("%s: chooses %v, upstream %v, of %v", name, got.chosen, want.chosen, want.victims)
	}
}

// leavingConfuses reports whether upstream's preemption counts wrongly: spreading does not count pods that are on their way out, but
// upstream takes them off the count all the same when it tries what would be without them.
func (w *world) leavingConfuses(pod *corev1.Pod) bool {
	return len(pod.Spec.TopologySpreadConstraints) > 0 && slices.ContainsFunc(w.pods, func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil && p.Namespace == pod.Namespace && p.Labels["color"] == pod.Labels["color"]
	})
}
