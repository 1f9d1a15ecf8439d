package scheduler

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A pod that names several nodes is scored on them by all rules, not only by those that need no other node to compare with.
func TestFewNodes(t *testing.T) {
	prefer := corev1.TaintEffectPreferNoSchedule
	for _, test := range []struct {
		what    string
		nodes   []*corev1.Node
		running []*corev1.Pod
		pod     *corev1.Pod
		want    string
		rule    string // that decides, when there is a choice
	}{
		{
			what: "one of them exists", nodes: []*corev1.Node{testNode("a"), testNode("b")}, pod: testPod("p", requiresNodes(named("a"), named("z"))), want: "a",
		},
		{
			what: "the one without a taint", nodes: []*corev1.Node{testNode("a", taint("k", "v", prefer)), testNode("b"), testNode("c")},
			running: []*corev1.Pod{testPod("x", on("b"), asksCPU("1"))}, pod: testPod("p", requiresNodes(named("a"), named("b"))), want: "b", rule: taintTolerationName,
		},
		{
			what: "the one with more room", nodes: []*corev1.Node{testNode("a"), testNode("b"), testNode("c")},
			running: []*corev1.Pod{testPod("x", on("a"), asksCPU("1"))}, pod: testPod("p", requiresNodes(named("a"), named("b"))), want: "b", rule: nodeResourcesFitName,
		},
		{
			what: "the one near its friends", nodes: []*corev1.Node{testNode("a"), testNode("b"), testNode("c")},
			running: []*corev1.Pod{testPod("x", on("b"), asksCPU("1"), labelled("app", "db"))},
			pod:     testPod("p", requiresNodes(named("a"), named("b")), prefersNear(50, corev1.LabelHostname, "app", "db")), want: "b", rule: interPodAffinityName,
		},
		{
			what: "the one where fewer are", nodes: []*corev1.Node{testNode("a"), testNode("b", nodeHas(corev1.ResourceCPU, "1")), testNode("c")},
			running: []*corev1.Pod{testPod("x", on("a"), labelled("app", "db"))},
			pod:     testPod("p", labelled("app", "db"), requiresNodes(named("a"), named("b")), spread(corev1.LabelHostname, 1, corev1.ScheduleAnyway, "app", "db")), want: "b", rule: podTopologySpreadName,
		},
		{
			what: "none that is full", nodes: []*corev1.Node{testNode("a"), testNode("b"), testNode("c")},
			running: []*corev1.Pod{testPod("x", on("a"), asksCPU("4"))}, pod: testPod("p", asksCPU("1"), requiresNodes(named("a"), named("b"))), want: "b",
		},
		{
			what: "not the best of all", nodes: []*corev1.Node{testNode("a"), testNode("b", nodeHas(corev1.ResourceCPU, "64"))},
			pod: testPod("p", asksCPU("1"), requiresNodes(named("a"))), want: "a",
		},
	} {
		t.Run(test.what, func(t *testing.T) {
			d, err := Schedule(cluster(t, test.nodes, test.running...), infoOf(t, test.pod), DefaultProfile())
			if err != nil || d.Node != test.want {
				t.Fatalf("goes to %q, %v, want %q", d.Node, err, test.want)
			}
			if test.rule == "" {
				return
			}
			verdicts, _ := d.Explain()
			if verdicts[0].Node != test.want || verdicts[0].Scores[test.rule] <= verdicts[1].Scores[test.rule] || verdicts[0].Total <= verdicts[1].Total {
				t.Errorf("%s does not decide: %+v", test.rule, verdicts[:2])
			}
		})
	}
}

// What a pod asks for as a whole decides where it fits; what its containers ask for, which node is best.
func TestPodLevelRequests(t *testing.T) {
	whole := func(cpu string) podOption {
		return func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
		}
	}
	s := cluster(t, []*corev1.Node{testNode("a"), testNode("b", nodeHas(corev1.ResourceCPU, "2"))})
	if got := refusalsOf(t, s, testPod("p", asksCPU("1"), whole("3")), DefaultProfile()); len(got) != 1 || got["b"] != "Insufficient cpu" {
		t.Errorf("refused: %v", got)
	}
	score := func(pod *corev1.Pod) int64 {
		d, err := Schedule(s, infoOf(t, pod), DefaultProfile())
		if err != nil {
			t.Fatal(err)
		}
		verdicts, _ := d.Explain()
		for _, v := range verdicts {
			if v.Node == "a" {
				return v.Scores[nodeResourcesFitName]
			}
		}
		return -1
	}
	// Pods that are equal as wholes are not equal in their parts.
	small, large := score(testPod("p", asksCPU("100m"), whole("1500m"))), score(testPod("q", asksCPU("1400m"), whole("1500m")))
	if small <= large || small != score(testPod("r", asksCPU("100m"))) {
		t.Errorf("scores %d and %d", small, large)
	}
}

// Pods nominated to a node count there, but affinity that had no say before has none through them: as in upstream.
func TestNominatedNeighbours(t *testing.T) {
	nodes := []*corev1.Node{testNode("a"), testNode("b")}
	unfriendly := testPod("n", priority(10), asksCPU("3"), away(corev1.LabelHostname, "app", "web"))
	newcomer := testPod("p", labelled("app", "web"), priority(1))
	s := cluster(t, nodes)
	s.Nominate(infoOf(t, unfriendly), unfriendly.UID, "a")
	if got := refusalsOf(t, s, newcomer, DefaultProfile()); len(got) != 0 {
		t.Errorf("refused: %v", got)
	}
	// As soon as affinity has a say anywhere, the nominated pod's counts too.
	s = cluster(t, nodes, testPod("x", on("b"), away(corev1.LabelHostname, "app", "web")))
	s.Nominate(infoOf(t, unfriendly), unfriendly.UID, "a")
	if got := refusalsOf(t, s, newcomer, DefaultProfile()); len(got) != 2 {
		t.Errorf("refused: %v, want both", got)
	}
	// Room kept for a nominated pod is not given away, except to who is more important.
	s = cluster(t, nodes)
	s.Nominate(infoOf(t, unfriendly), unfriendly.UID, "a")
	for _, test := range []struct {
		pod  *corev1.Pod
		want int
	}{{testPod("p", asksCPU("2"), priority(1)), 1}, {testPod("p", asksCPU("2"), priority(10)), 1}, {testPod("p", asksCPU("2"), priority(11)), 0}} {
		if got := refusalsOf(t, s, test.pod, DefaultProfile()); len(got) != test.want {
			t.Errorf("priority %d: refused %v", *test.pod.Spec.Priority, got)
		}
	}
	// A node that is refused anyway is refused as it will be.
	s = cluster(t, []*corev1.Node{testNode("a", nodeHas(corev1.ResourcePods, "1"))})
	s.Nominate(infoOf(t, testPod("n", priority(10))), "n", "a")
	if got := refusalsOf(t, s, testPod("p", asksCPU("9")), DefaultProfile())["a"]; got != "Too many pods, Insufficient cpu" {
		t.Errorf("refused: %s", got)
	}
}
