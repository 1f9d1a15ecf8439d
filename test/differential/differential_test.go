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

// TestDecisionsAreUpstreams compares both schedulers' decisions about several pods on each of many random clusters.
func TestDecisionsAreUpstreams(t *testing.T) {
	compareMany(t, newRandomCluster, (*randomCluster).pod, 40)
}

// TestStorageAndDevicesAreUpstreams does the same on clusters where only volumes and devices constrain pods.
func TestStorageAndDevicesAreUpstreams(t *testing.T) {
	compareMany(t, newStorageCluster, (*randomCluster).storagePod, 500)
}

// compareMany compares decisions on many random clusters. At least one in `preemptions` pods must be able to preempt, or the test
// covers too little.
func compareMany(t *testing.T, newRandomCluster func(seed uint64) *randomCluster, newPod func(w *randomCluster, name string, isNew bool) *corev1.Pod, preemptions int) {
	t.Helper()
	klog.SetLogger(logr.Discard())
	const podsEach = 5
	schedulable, rejected, preempting, failed := 0, 0, 0, 0
	for seed := *first; seed < *first+uint64(*clusters); seed++ {
		w := newRandomCluster(seed)
		var pods []*corev1.Pod
		for i := range podsEach {
			pods = append(pods, newPod(w, fmt.Sprintf("new-%d", i), true))
		}
		for _, a := range compare(t, seed, w, pods) {
			switch {
			case a.failed != "":
				failed++
			case len(a.feasible(w)) > 0:
				schedulable++
			default:
				rejected++
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
	t.Logf("%d clusters, %d pods: %d schedulable, %d unschedulable of which %d can preempt, %d failed with an error", *clusters, total, schedulable, rejected, preempting, failed)
	if total >= 500 && (schedulable < total/4 || rejected < total/10 || preempting < total/preemptions) {
		t.Error("too few pods were schedulable, unschedulable or able to preempt")
	}
}

func compare(t *testing.T, seed uint64, w *randomCluster, pods []*corev1.Pod) (results []*result) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	upstreamSide, err := newUpstreamScheduler(ctx, w, pods)
	if err != nil {
		t.Fatal(err)
	}
	skiffSnapshot, err := newSkiffSnapshot(w, pods)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		want, err := upstreamSide.decide(pod)
		if err != nil {
			t.Fatalf("cluster %d: %s: upstream: %v", seed, pod.Name, err)
		}
		got, node, err := decideWithSkiff(skiffSnapshot, w, pod)
		if err != nil {
			t.Fatalf("cluster %d: %s: %v", seed, pod.Name, err)
		}
		results = append(results, want)
		name := fmt.Sprintf("cluster %d: %s", seed, pod.Name)
		if got.failed != want.failed {
			t.Errorf("%s: failed %q, upstream %q", name, got.failed, want.failed)
		}
		if got.failed != "" || want.failed != "" {
			continue // after an error not all nodes were filtered
		}
		if want.failed != "" {
			continue // there are no results for nodes
		}
		if node != "" && node == pod.Status.NominatedNodeName {
			// The nominated node is used if it is feasible, without filtering the others.
			if !slices.Contains(want.feasible(w), node) {
				t.Errorf("%s uses its nominated node %s, which upstream rejects: %s", name, node, want.rejected[node])
			}
			continue
		}
		if compareResults(t, name, w, pod, got, want, node); t.Failed() {
			spec, _ := yaml.Marshal(pod)
			t.Logf("%s", spec)
			return results
		}
	}
	return results
}

func compareResults(t *testing.T, name string, w *randomCluster, pod *corev1.Pod, got, want *result, node string) {
	t.Helper()
	for _, n := range w.nodes {
		if got.rejected[n.Name] != want.rejected[n.Name] {
			t.Errorf("%s: node %s: rejected with %q, upstream with %q", name, n.Name, got.rejected[n.Name], want.rejected[n.Name])
		}
	}
	slices.Sort(got.resolvable)
	slices.Sort(want.resolvable)
	if !slices.Equal(got.resolvable, want.resolvable) {
		t.Errorf("%s: preemption may help on nodes %v, upstream's are %v; %v", name, got.resolvable, want.resolvable, want.rejected)
	}
	if t.Failed() {
		return
	}
	if len(want.scores) > 0 {
		if best := slices.Max(slices.Collect(maps.Values(want.scores))); want.scores[node] != best {
			t.Errorf("%s: selects %s, which upstream scores %d (%s), but the highest score is %d", name, node, want.scores[node], want.scoreDetails[node], best)
		}
	}
	// A single feasible node is selected without scoring.
	if len(want.scores) > 1 {
		for n, score := range want.scores {
			if got.scores[n] != score && len(got.scoreDetails[n]) > 0 {
				t.Errorf("%s: node %s: %d (%s), upstream %d (%s)", name, n, got.scores[n], got.scoreDetails[n], score, want.scoreDetails[n])
			}
		}
	}
	if w.miscountsTerminating(pod) {
		return
	}
	if !maps.Equal(got.victims, want.victims) {
		t.Errorf("%s: victims %v, upstream's %v, but %v", name, got.victims, want.victims, want.preemptionErrors)
	} else if !slices.Equal(got.chosen, want.chosen) {
		t.Errorf("%s: selects candidate %v, upstream %v, of %v", name, got.chosen, want.chosen, want.victims)
	}
}

// miscountsTerminating reports whether upstream's preemption counts wrongly: topology spread does not count terminating pods, but
// upstream subtracts them when it simulates their removal.
func (w *randomCluster) miscountsTerminating(pod *corev1.Pod) bool {
	return len(pod.Spec.TopologySpreadConstraints) > 0 && slices.ContainsFunc(w.pods, func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil && p.Namespace == pod.Namespace && p.Labels["color"] == pod.Labels["color"]
	})
}
