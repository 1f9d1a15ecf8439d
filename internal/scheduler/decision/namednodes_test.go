package decision

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot/snapshottest"
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
			what: "one of them exists", nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, pod: schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("a"), schedulertest.Named("z"))), want: "a",
		},
		{
			what: "the one without a taint", nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.Taint("k", "v", prefer)), schedulertest.TestNode("b"), schedulertest.TestNode("c")},
			running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("b"), schedulertest.RequestingCPU("1"))}, pod: schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("a"), schedulertest.Named("b"))), want: "b", rule: plugins.TaintTolerationName,
		},
		{
			what: "the one with more free resources", nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c")},
			running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"))}, pod: schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("a"), schedulertest.Named("b"))), want: "b", rule: plugins.NodeResourcesFitName,
		},
		{
			what: "the one near its friends", nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c")},
			running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("b"), schedulertest.RequestingCPU("1"), schedulertest.Labelled("app", "db"))},
			pod:     schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("a"), schedulertest.Named("b")), schedulertest.WithPreferredAffinity(50, corev1.LabelHostname, "app", "db")), want: "b", rule: plugins.InterPodAffinityName,
		},
		{
			what: "the one where fewer are", nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b", schedulertest.NodeHas(corev1.ResourceCPU, "1")), schedulertest.TestNode("c")},
			running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.Labelled("app", "db"))},
			pod:     schedulertest.TestPod("p", schedulertest.Labelled("app", "db"), schedulertest.RequiresNodes(schedulertest.Named("a"), schedulertest.Named("b")), schedulertest.Spread(corev1.LabelHostname, 1, corev1.ScheduleAnyway, "app=db")), want: "b", rule: plugins.PodTopologySpreadName,
		},
		{
			what: "none that is full", nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c")},
			running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"))}, pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.RequiresNodes(schedulertest.Named("a"), schedulertest.Named("b"))), want: "b",
		},
		{
			what: "not the best of all", nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b", schedulertest.NodeHas(corev1.ResourceCPU, "64"))},
			pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.RequiresNodes(schedulertest.Named("a"))), want: "a",
		},
	} {
		t.Run(test.what, func(t *testing.T) {
			d, err := Schedule(snapshottest.New(t, test.nodes, test.running...), snapshottest.PodInfo(t, test.pod), plugins.DefaultProfile())
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
	whole := func(cpu string) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
		}
	}
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b", schedulertest.NodeHas(corev1.ResourceCPU, "2"))})
	if got := refusalsOf(t, s, schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), whole("3")), plugins.DefaultProfile()); len(got) != 1 || got["b"] != "Insufficient cpu" {
		t.Errorf("refused: %v", got)
	}
	score := func(pod *corev1.Pod) int64 {
		d, err := Schedule(s, snapshottest.PodInfo(t, pod), plugins.DefaultProfile())
		if err != nil {
			t.Fatal(err)
		}
		verdicts, _ := d.Explain()
		for _, v := range verdicts {
			if v.Node == "a" {
				return v.Scores[plugins.NodeResourcesFitName]
			}
		}
		return -1
	}
	// Pods that are equal as wholes are not equal in their parts.
	small, large := score(schedulertest.TestPod("p", schedulertest.RequestingCPU("100m"), whole("1500m"))), score(schedulertest.TestPod("q", schedulertest.RequestingCPU("1400m"), whole("1500m")))
	if small <= large || small != score(schedulertest.TestPod("r", schedulertest.RequestingCPU("100m"))) {
		t.Errorf("scores %d and %d", small, large)
	}
}

// Pods nominated to a node count there, but affinity that had no say before has none through them: as in upstream.
func TestNominatedNeighbours(t *testing.T) {
	nodes := []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}
	unfriendly := schedulertest.TestPod("n", schedulertest.Priority(10), schedulertest.RequestingCPU("3"), schedulertest.WithAntiAffinity(corev1.LabelHostname, "app", "web"))
	newcomer := schedulertest.TestPod("p", schedulertest.Labelled("app", "web"), schedulertest.Priority(1))
	s := snapshottest.New(t, nodes)
	s.Nominate(snapshottest.PodInfo(t, unfriendly), unfriendly.UID, "a")
	if got := refusalsOf(t, s, newcomer, plugins.DefaultProfile()); len(got) != 0 {
		t.Errorf("refused: %v", got)
	}
	// As soon as affinity has a say anywhere, the nominated pod's counts too.
	s = snapshottest.New(t, nodes, schedulertest.TestPod("x", schedulertest.OnNode("b"), schedulertest.WithAntiAffinity(corev1.LabelHostname, "app", "web")))
	s.Nominate(snapshottest.PodInfo(t, unfriendly), unfriendly.UID, "a")
	if got := refusalsOf(t, s, newcomer, plugins.DefaultProfile()); len(got) != 2 {
		t.Errorf("refused: %v, want both", got)
	}
	// Room kept for a nominated pod is not given away, except to who is more important.
	s = snapshottest.New(t, nodes)
	s.Nominate(snapshottest.PodInfo(t, unfriendly), unfriendly.UID, "a")
	for _, test := range []struct {
		pod  *corev1.Pod
		want int
	}{{schedulertest.TestPod("p", schedulertest.RequestingCPU("2"), schedulertest.Priority(1)), 1}, {schedulertest.TestPod("p", schedulertest.RequestingCPU("2"), schedulertest.Priority(10)), 1}, {schedulertest.TestPod("p", schedulertest.RequestingCPU("2"), schedulertest.Priority(11)), 0}} {
		if got := refusalsOf(t, s, test.pod, plugins.DefaultProfile()); len(got) != test.want {
			t.Errorf("priority %d: refused %v", *test.pod.Spec.Priority, got)
		}
	}
	// A node that is refused anyway is refused as it will be.
	s = snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourcePods, "1"))})
	s.Nominate(snapshottest.PodInfo(t, schedulertest.TestPod("n", schedulertest.Priority(10))), "n", "a")
	if got := refusalsOf(t, s, schedulertest.TestPod("p", schedulertest.RequestingCPU("9")), plugins.DefaultProfile())["a"]; got != "Too many pods, Insufficient cpu" {
		t.Errorf("refused: %s", got)
	}
}
