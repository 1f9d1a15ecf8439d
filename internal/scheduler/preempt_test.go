package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func started(minutesAgo int) podOption {
	at := metav1.NewTime(time.Unix(100000, 0).Add(-time.Duration(minutesAgo) * time.Minute))
	return func(p *corev1.Pod) { p.Status.StartTime = &at }
}

func TestPreempt(t *testing.T) {
	budget := func(allowed int32, key, value string) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
		}
	}
	never := corev1.PreemptNever
	leaving := func(p *corev1.Pod) {
		p.DeletionTimestamp = &metav1.Time{}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler}}
	}
	green := labelled("color", "green")
	two := []*corev1.Node{testNode("a"), testNode("b")}
	tests := map[string]struct {
		nodes   []*corev1.Node
		running []*corev1.Pod
		budgets []*policyv1.PodDisruptionBudget
		pod     *corev1.Pod
		node    string
		victims []string
		message string
	}{
		"the least important pods go, and only as many as needed": {
			nodes:   two[:1],
			running: []*corev1.Pod{testPod("p3", on("a"), asksCPU("1"), priority(3)), testPod("p1", on("a"), asksCPU("1"), priority(1)), testPod("p2", on("a"), asksCPU("2"), priority(2))},
			pod:     testPod("p", asksCPU("1"), priority(10)), node: "a", victims: []string{"p1"}, message: "found a potential placement for pod on node a, preempting 1 victims",
		},
		"pods of equal priority stay": {
			nodes: two[:1], running: []*corev1.Pod{testPod("1", on("a"), asksCPU("4"), priority(10))}, pod: testPod("p", asksCPU("1"), priority(10)),
			message: "0/1 nodes are available: 1 No preemption victims found for incoming pod.",
		},
		"going does not help": {
			nodes: two[:1], running: []*corev1.Pod{testPod("1", on("a"), asksCPU("1")), testPod("2", on("a"), asksCPU("2"), priority(20))}, pod: testPod("p", asksCPU("3"), priority(10)),
			message: "0/1 nodes are available: 1 Insufficient cpu.",
		},
		"a pod that never preempts": {
			nodes: two[:1], running: []*corev1.Pod{testPod("1", on("a"), asksCPU("4"))}, pod: testPod("p", asksCPU("1"), priority(10), func(p *corev1.Pod) { p.Spec.PreemptionPolicy = &never }),
			message: "not eligible due to preemptionPolicy=Never.",
		},
		"victims are still leaving": {
			nodes: two[:1], running: []*corev1.Pod{testPod("1", on("a"), asksCPU("4"), leaving)}, pod: testPod("p", asksCPU("1"), priority(10), nominatedTo("a")),
			message: "not eligible due to a terminating pod on the nominated node.",
		},
		"budgets are kept where possible": {
			nodes: two, running: []*corev1.Pod{testPod("1", on("a"), asksCPU("4"), priority(1), green), testPod("2", on("b"), asksCPU("4"), priority(5))},
			budgets: []*policyv1.PodDisruptionBudget{budget(0, "color", "green")}, pod: testPod("p", asksCPU("1"), priority(10)), node: "b", victims: []string{"2"},
			message: "found a potential placement for pod on node b, preempting 1 victims",
		},
		"budgets are broken where not": {
			nodes: two[:1], running: []*corev1.Pod{testPod("1", on("a"), asksCPU("4"), priority(1), green)},
			budgets: []*policyv1.PodDisruptionBudget{budget(0, "color", "green")}, pod: testPod("p", asksCPU("1"), priority(10)), node: "a", victims: []string{"1"},
			message: "found a potential placement for pod on node a, preempting 1 victims",
		},
		"of two on a node the unprotected one goes": {
			nodes: two[:1], running: []*corev1.Pod{testPod("1", on("a"), asksCPU("2"), priority(1), green), testPod("2", on("a"), asksCPU("2"), priority(5))},
			budgets: []*policyv1.PodDisruptionBudget{budget(0, "color", "green")}, pod: testPod("p", asksCPU("1"), priority(10)), node: "a", victims: []string{"2"},
			message: "found a potential placement for pod on node a, preempting 1 victims",
		},
		"the node whose victim matters least": {
			nodes: two, running: []*corev1.Pod{testPod("1", on("a"), asksCPU("4"), priority(3)), testPod("2", on("b"), asksCPU("2"), priority(2)), testPod("3", on("b"), asksCPU("2"), priority(2))},
			pod: testPod("p", asksCPU("4"), priority(10)), node: "b", victims: []string{"2", "3"}, message: "found a potential placement for pod on node b, preempting 2 victims",
		},
		"the node with fewer victims": {
			nodes: two, running: []*corev1.Pod{testPod("1", on("a"), asksCPU("4"), priority(2)), testPod("2", on("b"), asksCPU("2"), priority(2)), testPod("3", on("b"), asksCPU("2"), priority(2))},
			pod: testPod("p", asksCPU("4"), priority(10)), node: "a", victims: []string{"1"}, message: "found a potential placement for pod on node a, preempting 1 victims",
		},
		"the victim that ran shortest": {
			nodes: two, running: []*corev1.Pod{testPod("1", on("a"), asksCPU("4"), started(10)), testPod("2", on("b"), asksCPU("4"), started(5))},
			pod: testPod("p", asksCPU("4"), priority(10)), node: "b", victims: []string{"2"}, message: "found a potential placement for pod on node b, preempting 1 victims",
		},
		"an enemy goes": {
			nodes: two[:1], running: []*corev1.Pod{testPod("1", on("a"), green), testPod("2", on("a"))},
			pod: testPod("p", away(corev1.LabelHostname, "color", "green"), priority(10)), node: "a", victims: []string{"1"}, message: "found a potential placement for pod on node a, preempting 1 victims",
		},
		"room kept for a nominated pod counts": {
			nodes: two[:1], running: []*corev1.Pod{testPod("1", on("a"), asksCPU("2")), testPod("n", asksCPU("2"), priority(20), nominatedTo("a"))},
			pod: testPod("p", asksCPU("3"), priority(10)), message: "0/1 nodes are available: 1 Insufficient cpu.",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := cluster(t, test.nodes)
			for _, p := range test.running {
				info := infoOf(t, p)
				s.SetPod(info)
				s.Nominate(info, p.UID, p.Status.NominatedNodeName)
			}
			d, err := Schedule(s, infoOf(t, test.pod), DefaultProfile())
			if !IsUnschedulable(err) {
				t.Fatalf("the pod needs no help: %v", err)
			}
			before := fmt.Sprint(s.requested, s.served)
			way, message, _ := Preempt(d, test.budgets, nil)
			if message != test.message {
				t.Errorf("message %q, want %q", message, test.message)
			}
			if after := fmt.Sprint(s.requested, s.served); after != before {
				t.Errorf("looking has changed something:\n%s\n%s", before, after)
			}
			var node string
			var victims []string
			if way != nil {
				node = way.Node
				for _, v := range way.Victims {
					victims = append(victims, v.Name)
				}
			}
			if node != test.node || !slices.Equal(victims, test.victims) {
				t.Errorf("%v on %q, want %v on %q", victims, node, test.victims, test.node)
			}
		})
	}
}
