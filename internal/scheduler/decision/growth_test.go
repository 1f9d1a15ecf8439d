package decision

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// The sizes of clusters whose work is compared.
const (
	growthNodes  = 50
	growthFactor = 4
)

// countingPlugin counts the nodes that it filters and scores.
type countingPlugin struct{ filtered, scored *int }

func (countingPlugin) Name() string { return "Counting" }

func (p countingPlugin) Filter(*snapshot.Snapshot, *snapshot.PodInfo) (plugins.Filter, *plugins.Refusal) {
	return plugins.Filter{Check: func(int32) *plugins.Refusal { *p.filtered++; return nil }}, nil
}

func (p countingPlugin) Score(*snapshot.Snapshot, *snapshot.PodInfo) plugins.Scorer {
	return plugins.Scorer{Score: func(int32) int64 { *p.scored++; return 1 }}
}

// growingCluster has nodes with a running pod each.
func growingCluster(t *testing.T, nodes int) *snapshot.Snapshot {
	var all []*corev1.Node
	for i := range nodes {
		all = append(all, schedulertest.TestNode(fmt.Sprint("n", i)))
	}
	s := snapshottest.New(t, all)
	for i := range nodes {
		s.SetPod(snapshottest.PodInfo(t, schedulertest.TestPod(fmt.Sprint("running", i), schedulertest.OnNode(fmt.Sprint("n", i)), schedulertest.RequestingCPU("3"),
			schedulertest.Labelled("app", fmt.Sprint("a", i)))))
	}
	return s
}

// A pod like one before costs the nodes that have changed since, however many there are. The first one costs each node once.
func TestEvaluationsPerPod(t *testing.T) {
	var first, later [2]int
	for i, nodes := range []int{growthNodes, growthNodes * growthFactor} {
		s, evaluated := growingCluster(t, nodes), 0
		profile := plugins.DefaultProfile()
		counting := countingPlugin{&evaluated, &evaluated}
		profile.Filters = append(profile.Filters, counting)
		profile.Scorers = []plugins.WeightedScorePlugin{{Plugin: counting, Weight: 1}}
		for pod := range 10 {
			before := evaluated
			d, err := Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod(fmt.Sprint("p", pod), schedulertest.RequestingCPU("100m"))), profile)
			if err != nil {
				t.Fatal(err)
			}
			s.Assume(d.Pod, d.Node)
			if pod == 0 {
				first[i] = evaluated - before
			} else {
				later[i] = max(later[i], evaluated-before)
			}
		}
	}
	if first[0] != 2*growthNodes || first[1] != 2*growthNodes*growthFactor {
		t.Errorf("the first pod costs %d evaluations among %d nodes, and %d among %d; want two for each", first[0], growthNodes, first[1], growthNodes*growthFactor)
	}
	if later[0] != later[1] || later[0] > 2 {
		t.Errorf("later pods cost %d evaluations among %d nodes, and %d among %d; want at most 2", later[0], growthNodes, later[1], growthNodes*growthFactor)
	}
}

// Preemption asks for the budgets of the pods that might be evicted, once for each, not for all budgets on every node.
func TestBudgetsPerPreemption(t *testing.T) {
	var asked [2]int
	for i, nodes := range []int{growthNodes, growthNodes * growthFactor} {
		s := growingCluster(t, nodes)
		pod := snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.RequestingCPU("2"), schedulertest.Priority(1)))
		d, err := Schedule(s, pod, plugins.DefaultProfile())
		if !IsUnschedulable(err) {
			t.Fatal(err)
		}
		budgets := func(*corev1.Pod) []*policyv1.PodDisruptionBudget { asked[i]++; return nil }
		if _, _, err := Preempt(d, budgets, nil); err != nil {
			t.Fatal(err)
		}
	}
	if asked[0] != growthNodes || asked[1] > growthNodes*growthFactor {
		t.Errorf("budgets are asked for %d pods on %d nodes, and %d on %d", asked[0], growthNodes, asked[1], growthNodes*growthFactor)
	}
}
