package plugins

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// spreadPods makes pods by node: "a a b" are two on a, and one on b, all with the label app=x.
func spreadPods(text string, options ...schedulertest.PodOption) []*corev1.Pod {
	return schedulertest.PodsOn(text, append([]schedulertest.PodOption{schedulertest.Labelled("app", "x")}, options...)...)
}

// spreadRow is a cluster, a pod, and what spreading refuses.
type spreadRow struct {
	what    string
	nodes   []*corev1.Node
	running []*corev1.Pod
	pod     *corev1.Pod
	want    map[string]string
}

// checkNeighbours asks in every order of arrival: pods before the newcomer is known, after it, and after others have come and gone.
func checkNeighbours(t *testing.T, rule string, rows []spreadRow) {
	t.Helper()
	for _, row := range rows {
		t.Run(row.what, func(t *testing.T) {
			profile := DefaultProfile()
			ask := func(how string, s *snapshot.Snapshot) {
				t.Helper()
				if got := neighbourRefusals(t, s, row.pod, profile, rule); !maps.Equal(got, row.want) {
					t.Errorf("%s: refused %v, want %v", how, got, row.want)
				}
			}
			before := snapshottest.New(t, row.nodes, row.running...)
			ask("at first sight", before)
			after := snapshottest.New(t, row.nodes)
			neighbourRefusals(t, after, row.pod, profile, rule)
			for _, p := range slices.Backward(row.running) {
				after.SetPod(snapshottest.PodInfo(t, p))
			}
			ask("with pods that came later", after)
			late := snapshottest.New(t, nil, row.running...)
			for _, n := range row.nodes {
				late.SetNode(n)
			}
			ask("with nodes that came later", late)
			for _, n := range row.nodes {
				bare := n.DeepCopy()
				bare.Labels, bare.Spec.Taints = nil, nil
				after.SetNode(bare)
			}
			neighbourRefusals(t, after, row.pod, profile, rule)
			for _, n := range row.nodes {
				after.SetNode(n)
			}
			ask("after nodes were something else for a while", after)
			for _, p := range row.running {
				before.DeletePod(p.UID)
			}
			neighbourRefusals(t, before, row.pod, profile, rule)
			for _, p := range row.running {
				before.SetPod(snapshottest.PodInfo(t, p))
			}
			ask("after pods went and came again", before)
		})
	}
}

func TestPodTopologySpreadFilter(t *testing.T) {
	x := schedulertest.Labelled("app", "x")
	onZones := func(more ...func(*corev1.TopologySpreadConstraint)) schedulertest.PodOption {
		return schedulertest.Spread(schedulertest.SpreadZone, 1, schedulertest.SpreadHard, "app=x", more...)
	}
	onHosts := func(more ...func(*corev1.TopologySpreadConstraint)) schedulertest.PodOption {
		return schedulertest.Spread(schedulertest.SpreadHost, 1, schedulertest.SpreadHard, "app=x", more...)
	}
	three := []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.Zone("2"))}
	four := append(slices.Clone(three), schedulertest.TestNode("d", schedulertest.Zone("2")))
	noZone := append(slices.Clone(three), schedulertest.TestNode("d"))
	refused := func(names string) map[string]string {
		all := map[string]string{}
		for _, name := range strings.Fields(names) {
			if missing, found := strings.CutSuffix(name, "?"); found {
				all[missing] = schedulertest.KeyReason
			} else {
				all[name] = schedulertest.SkewReason
			}
		}
		return all
	}
	everything := &metav1.LabelSelector{}
	within := func(values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: values}}}
	}
	checkNeighbours(t, PodTopologySpreadName, []spreadRow{
		{"nobody is there", three, nil, schedulertest.TestPod("p", x, onZones()), refused("")},
		{"one in a zone", three, spreadPods("a"), schedulertest.TestPod("p", x, onZones()), refused("a b")},
		{"one in each zone", three, spreadPods("a c"), schedulertest.TestPod("p", x, onZones()), refused("")},
		{"two and one", three, spreadPods("a b c"), schedulertest.TestPod("p", x, onZones()), refused("a b")},
		{"a skew of two", three, spreadPods("a"), schedulertest.TestPod("p", x, schedulertest.Spread(schedulertest.SpreadZone, 2, schedulertest.SpreadHard, "app=x")), refused("")},
		{"a skew of two, two are there", three, spreadPods("a b"), schedulertest.TestPod("p", x, schedulertest.Spread(schedulertest.SpreadZone, 2, schedulertest.SpreadHard, "app=x")), refused("a b")},
		{"a very large skew", three, spreadPods("a a a a"), schedulertest.TestPod("p", x, schedulertest.Spread(schedulertest.SpreadZone, math.MaxInt32, schedulertest.SpreadHard, "app=x")), refused("")},
		{"on hosts", three, spreadPods("a c"), schedulertest.TestPod("p", x, onHosts()), refused("a c")},
		{"a pod that does not count itself may make the skew full", three, spreadPods("a"), schedulertest.TestPod("p", onZones()), refused("")},
		{"a pod that does not count itself, more", three, spreadPods("a a"), schedulertest.TestPod("p", onZones()), refused("a b")},
		{"pods of another namespace do not count", three, spreadPods("a", schedulertest.Namespace("other")), schedulertest.TestPod("p", x, onZones()), refused("")},
		{"in the other namespace they do", three, spreadPods("a", schedulertest.Namespace("other")), schedulertest.TestPod("p", x, schedulertest.Namespace("other"), onZones()), refused("a b")},
		{"pods with another label do not count", three, spreadPods("a", schedulertest.Labelled("app", "y")), schedulertest.TestPod("p", x, onZones()), refused("")},
		{"pods on their way out do not count", three, spreadPods("a", schedulertest.Terminating), schedulertest.TestPod("p", x, onZones()), refused("")},
		{"pods that have ended do not count", three, spreadPods("a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), schedulertest.TestPod("p", x, onZones()), refused("")},
		{"a node without the key is refused, whatever is there", noZone, nil, schedulertest.TestPod("p", x, onZones()), refused("d?")},
		{"its pods do not count", noZone, spreadPods("d d d"), schedulertest.TestPod("p", x, onZones()), refused("d?")},
		{"a key nobody has", three, nil, schedulertest.TestPod("p", x, schedulertest.Spread("rack", 1, schedulertest.SpreadHard, "app=x")), refused("a? b? c?")},
		{"an empty value is a domain", []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("")), schedulertest.TestNode("b", schedulertest.Zone("1"))}, spreadPods("a"), schedulertest.TestPod("p", x, onZones()), refused("a")},
		{"one domain is never skewed", three[:2], spreadPods("a a b"), schedulertest.TestPod("p", x, onZones()), refused("")},

		{"two constraints must both hold", four, spreadPods("a c"), schedulertest.TestPod("p", x, onZones(), onHosts()), refused("a c")},
		{"two constraints, spreadSkewExceeded zones", four, spreadPods("a a c d d d"), schedulertest.TestPod("p", x, onZones(), onHosts()), refused("a c d")},
		{"two constraints that leave nothing", three, spreadPods("a a b b c c c"), schedulertest.TestPod("p", x, onZones(), onHosts()), refused("a b c")},
		{"one constraint twice, the narrower counts", three, spreadPods("a"), schedulertest.TestPod("p", x, schedulertest.Spread(schedulertest.SpreadZone, 2, schedulertest.SpreadHard, "app=x"), onZones()), refused("a b")},
		{"constraints of two selectors", three, slices.Concat(spreadPods("a"), spreadPods("c", schedulertest.Labelled("app", "y"), schedulertest.Labelled("tier", "web"))), schedulertest.TestPod("p", x, schedulertest.Labelled("tier", "web"), onZones(), schedulertest.Spread(schedulertest.SpreadZone, 1, schedulertest.SpreadHard, "tier=web")), refused("a b c")},
		{"a node must have all keys to count for either", []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.NodeLabel("rack", "r")), schedulertest.TestNode("b", schedulertest.Zone("2"))}, spreadPods("a"),
			schedulertest.TestPod("p", x, onZones(), schedulertest.Spread("rack", 5, schedulertest.SpreadHard, "app=x")), refused("b?")},
		{"soft constraints refuse nobody", three, spreadPods("a a a"), schedulertest.TestPod("p", x, schedulertest.Spread(schedulertest.SpreadZone, 1, schedulertest.SpreadSoft, "app=x")), refused("")},
		{"a soft key is not demanded", noZone, nil, schedulertest.TestPod("p", x, onHosts(), schedulertest.Spread(schedulertest.SpreadZone, 1, schedulertest.SpreadSoft, "app=x")), refused("")},

		{"as many domains as demanded", three, spreadPods("a c"), schedulertest.TestPod("p", x, onZones(schedulertest.SpreadMinDomains(2))), refused("")},
		{"fewer domains than demanded: the fewest is nothing", three, spreadPods("a c"), schedulertest.TestPod("p", x, onZones(schedulertest.SpreadMinDomains(3))), refused("a b c")},
		{"fewer domains than demanded, one is below the maximal skew", three, spreadPods("a"), schedulertest.TestPod("p", x, onZones(schedulertest.SpreadMinDomains(3))), refused("a b")},
		{"fewer domains than demanded, a larger skew", three, spreadPods("a c"), schedulertest.TestPod("p", x, schedulertest.Spread(schedulertest.SpreadZone, 2, schedulertest.SpreadHard, "app=x", schedulertest.SpreadMinDomains(9))), refused("")},
		{"one domain demanded is as none", three, spreadPods("a c"), schedulertest.TestPod("p", x, onZones(schedulertest.SpreadMinDomains(1))), refused("")},
		{"domains are those of nodes that count", []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("2")), schedulertest.TestNode("c", schedulertest.Zone("3"), schedulertest.Taint("k", "v", schedulertest.NoSchedule))}, spreadPods("a b"),
			schedulertest.TestPod("p", x, onZones(schedulertest.SpreadMinDomains(3), schedulertest.SpreadPolicies("", corev1.NodeInclusionPolicyHonor))), refused("a b")},

		{"no selector matches nobody", three, spreadPods("a a"), schedulertest.TestPod("p", x, onZones(schedulertest.SpreadSelector(nil))), refused("")},
		{"an empty selector counts nobody but the pod itself", three, spreadPods("a a"), schedulertest.TestPod("p", x, onZones(schedulertest.SpreadSelector(everything))), refused("")},
		{"a selector of values", three, slices.Concat(spreadPods("a"), spreadPods("c", schedulertest.Labelled("app", "y"))), schedulertest.TestPod("p", x, onZones(schedulertest.SpreadSelector(within("x", "y")))), refused("")},
		{"a selector of values, one side", three, slices.Concat(spreadPods("a"), spreadPods("b", schedulertest.Labelled("app", "y"))), schedulertest.TestPod("p", x, schedulertest.Spread(schedulertest.SpreadZone, 2, schedulertest.SpreadHard, "=", schedulertest.SpreadSelector(within("x", "y")))), refused("a b")},
		{"labels of the pod narrow the selector", three, spreadPods("a", schedulertest.Labelled("hash", "old")), schedulertest.TestPod("p", x, schedulertest.Labelled("hash", "new"), onZones(schedulertest.SpreadByLabels("hash"))), refused("")},
		{"labels of the pod, the same", three, spreadPods("a", schedulertest.Labelled("hash", "new")), schedulertest.TestPod("p", x, schedulertest.Labelled("hash", "new"), onZones(schedulertest.SpreadByLabels("hash"))), refused("a b")},
		{"labels the pod does not have narrow nothing", three, spreadPods("a", schedulertest.Labelled("hash", "old")), schedulertest.TestPod("p", x, onZones(schedulertest.SpreadByLabels("hash"))), refused("a b")},
		{"two labels, one of which the pod has", three, spreadPods("a", schedulertest.Labelled("hash", "new")), schedulertest.TestPod("p", x, schedulertest.Labelled("hash", "new"), onZones(schedulertest.SpreadByLabels("other", "hash"))), refused("a b")},
		{"labels make nothing of no selector", three, spreadPods("a"), schedulertest.TestPod("p", x, onZones(schedulertest.SpreadSelector(nil), schedulertest.SpreadByLabels("app"))), refused("")},
		{"labels make something of an empty selector", three, spreadPods("a"), schedulertest.TestPod("p", x, onZones(schedulertest.SpreadSelector(everything), schedulertest.SpreadByLabels("app"))), refused("a b")},
	})
}

// Which nodes count: those the pod may go to, as far as the constraint says so.
func TestPodTopologySpreadCountsNodes(t *testing.T) {
	x := schedulertest.Labelled("app", "x")
	honor, ignore := corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore
	nodes := []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.NodeLabel("disk", "ssd")), schedulertest.TestNode("b", schedulertest.Zone("2"), schedulertest.NodeLabel("disk", "ssd")), schedulertest.TestNode("c", schedulertest.Zone("3")), schedulertest.TestNode("d", schedulertest.Zone("4"), schedulertest.NodeLabel("disk", "ssd"), schedulertest.Taint("k", "v", schedulertest.NoSchedule))}
	ssd, tolerant := schedulertest.Selecting("disk", "ssd"), schedulertest.Toleration("k", schedulertest.TolExists, "", "")
	required := schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpIn, "ssd"))
	row := func(what, at string, pod []schedulertest.PodOption, affinity, taints corev1.NodeInclusionPolicy, refused string) spreadRow {
		want := map[string]string{}
		for _, name := range strings.Fields(refused) {
			want[name] = schedulertest.SkewReason
		}
		return spreadRow{what, nodes, spreadPods(at), schedulertest.TestPod("p", append(pod, x, schedulertest.Spread(schedulertest.SpreadZone, 1, schedulertest.SpreadHard, "app=x", schedulertest.SpreadPolicies(affinity, taints)))...), want}
	}
	rows := []spreadRow{
		row("nodes without a label are selected", "a c c", []schedulertest.PodOption{schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpAbsent))}, "", "", ""),
		row("all nodes count for a pod that selects none", "a b d", nil, "", "", "a b"),
		row("tainted nodes count unless told", "a b c", nil, "", "", "a b c"),
		row("tainted nodes do not count", "a b c", nil, "", honor, ""),
		row("tainted nodes count when told to", "a b c", nil, "", ignore, "a b c"),
		row("tainted nodes that are tolerated count", "a b c", []schedulertest.PodOption{tolerant}, "", honor, "a b c"),
		row("tainted nodes that are tolerated otherwise do not", "a b c", []schedulertest.PodOption{schedulertest.Toleration("k", schedulertest.TolEqual, "w", "")}, "", honor, ""),
		row("nodes that are not selected do not count", "a b d", []schedulertest.PodOption{ssd}, "", "", ""),
		row("nodes that are not selected count when told to", "a b d", []schedulertest.PodOption{ssd}, ignore, "", "a b"),
		row("told what is the rule anyway", "a b d", []schedulertest.PodOption{ssd}, honor, "", ""),
		row("affinity selects as selectors do", "a b d", []schedulertest.PodOption{required}, "", "", ""),
		row("affinity that is not minded", "a b d", []schedulertest.PodOption{required}, ignore, "", "a b"),
		row("both", "a b", []schedulertest.PodOption{ssd}, honor, honor, ""),
		row("both, and one is free", "a", []schedulertest.PodOption{ssd}, honor, honor, "a"),
		row("neither", "a b d", []schedulertest.PodOption{ssd}, ignore, ignore, "a b"),
		row("pods on nodes that do not count are not counted", "a b c c c", []schedulertest.PodOption{ssd, tolerant}, "", "", "a b"),
	}
	checkNeighbours(t, PodTopologySpreadName, rows)
	// Pods that differ only in what they tolerate or select have counts of their own, whoever came first.
	for _, at := range []string{"a b c", "a b c c c", "d d"} {
		running := spreadPods(at)
		s := snapshottest.New(t, nodes, running...)
		for range 2 {
			for _, row := range rows {
				shared, fresh := neighbourRefusals(t, s, row.pod, DefaultProfile(), PodTopologySpreadName), neighbourRefusals(t, snapshottest.New(t, nodes, running...), row.pod, DefaultProfile(), PodTopologySpreadName)
				if !maps.Equal(shared, fresh) {
					t.Errorf("with pods on %s, %s: %v on a shared snapshot, %v on a new one", at, row.what, shared, fresh)
				}
			}
		}
	}
}

func TestPodTopologySpreadScore(t *testing.T) {
	x := schedulertest.Labelled("app", "x")
	zones := []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.Zone("2")), schedulertest.TestNode("d", schedulertest.Zone("3"))}
	// scores turns what each node counts into scores: the fewest is best.
	scores := func(raw map[string]float64) map[string]int64 {
		least, most := int64(math.MaxInt64), int64(0)
		whole := map[string]int64{}
		for name, n := range raw {
			if n >= 0 {
				whole[name] = int64(math.Round(n))
				least, most = min(least, whole[name]), max(most, whole[name])
			}
		}
		all := map[string]int64{}
		for name, n := range raw {
			switch {
			case n < 0: // does not count
				all[name] = 0
			case most == 0:
				all[name] = 100
			default:
				all[name] = 100 * (most + least - whole[name]) / most
			}
		}
		return all
	}
	ln := func(n int) float64 { return math.Log(float64(n + 2)) }
	soft := func(key string, skew int32, more ...func(*corev1.TopologySpreadConstraint)) schedulertest.PodOption {
		return schedulertest.Spread(key, skew, schedulertest.SpreadSoft, "app=x", more...)
	}
	for _, test := range []struct {
		what    string
		nodes   []*corev1.Node
		running []*corev1.Pod
		pod     *corev1.Pod
		want    map[string]int64
	}{
		{"no constraint, no say", zones, spreadPods("a"), schedulertest.TestPod("p", x), nil},
		{"hard constraints have no say in scores", zones, nil, schedulertest.TestPod("p", x, schedulertest.Spread(schedulertest.SpreadZone, 1, schedulertest.SpreadHard, "app=x")), nil},
		{"nobody is there: all are best", zones, nil, schedulertest.TestPod("p", x, soft(schedulertest.SpreadZone, 1)), map[string]int64{"a": 100, "b": 100, "c": 100, "d": 100}},
		{"one in a zone", zones, spreadPods("a"), schedulertest.TestPod("p", x, soft(schedulertest.SpreadZone, 1)), scores(map[string]float64{"a": ln(3), "b": ln(3), "c": 0, "d": 0})},
		{"by zone, not by node", zones, spreadPods("a b c"), schedulertest.TestPod("p", x, soft(schedulertest.SpreadZone, 1)), scores(map[string]float64{"a": 2 * ln(3), "b": 2 * ln(3), "c": ln(3), "d": 0})},
		{"by host", zones, spreadPods("a a c"), schedulertest.TestPod("p", x, soft(schedulertest.SpreadHost, 1)), scores(map[string]float64{"a": 2 * ln(4), "b": 0, "c": ln(4), "d": 0})},
		{"a larger skew waters differences down", zones, spreadPods("a a c"), schedulertest.TestPod("p", x, soft(schedulertest.SpreadHost, 5)), scores(map[string]float64{"a": 2*ln(4) + 4, "b": 4, "c": ln(4) + 4, "d": 4})},
		{"all alike: all are best", zones, spreadPods("a b c d"), schedulertest.TestPod("p", x, soft(schedulertest.SpreadHost, 1)), map[string]int64{"a": 100, "b": 100, "c": 100, "d": 100}},
		{"zone and host", zones, spreadPods("a a c"), schedulertest.TestPod("p", x, soft(schedulertest.SpreadZone, 1), soft(schedulertest.SpreadHost, 1)), scores(map[string]float64{"a": 2*ln(3) + 2*ln(4), "b": 2 * ln(3), "c": ln(3) + ln(4), "d": 0})},
		{"host and zone of different skew", zones, spreadPods("a a c"), schedulertest.TestPod("p", x, soft(schedulertest.SpreadHost, 2), soft(schedulertest.SpreadZone, 3)), scores(map[string]float64{"a": 2*ln(4) + 1 + 2*ln(3) + 2, "b": 1 + 2*ln(3) + 2, "c": ln(4) + 1 + ln(3) + 2, "d": 3})},
		{"two keys that are not hosts", []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.NodeLabel("rack", "r")), schedulertest.TestNode("b", schedulertest.Zone("1"), schedulertest.NodeLabel("rack", "s")), schedulertest.TestNode("c", schedulertest.Zone("2"), schedulertest.NodeLabel("rack", "s"))}, spreadPods("a"),
			schedulertest.TestPod("p", x, soft(schedulertest.SpreadZone, 1), soft("rack", 1)), scores(map[string]float64{"a": 2 * ln(2), "b": ln(2), "c": 0})},
		{"pods that do not count", zones, slices.Concat(spreadPods("a", schedulertest.Terminating), spreadPods("b", schedulertest.Namespace("other")), spreadPods("c", schedulertest.Labelled("app", "y"))), schedulertest.TestPod("p", x, soft(schedulertest.SpreadZone, 1)), map[string]int64{"a": 100, "b": 100, "c": 100, "d": 100}},
		{"a node without the key scores nothing", append(slices.Clone(zones), schedulertest.TestNode("e")), spreadPods("a e"), schedulertest.TestPod("p", x, soft(schedulertest.SpreadZone, 1)), scores(map[string]float64{"a": ln(3), "b": ln(3), "c": 0, "d": 0, "e": -1})},
		{"a node without one of two keys scores nothing, and does not count for either", append(slices.Clone(zones), schedulertest.TestNode("e")), spreadPods("a e"), schedulertest.TestPod("p", x, soft(schedulertest.SpreadZone, 1), soft(schedulertest.SpreadHost, 1)), scores(map[string]float64{"a": ln(3) + ln(4), "b": ln(3), "c": 0, "d": 0, "e": -1})},
		{"a node without one of two keys is no domain of the other", []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.NodeLabel("rack", "r")), schedulertest.TestNode("b", schedulertest.Zone("2"), schedulertest.NodeLabel("rack", "r")), schedulertest.TestNode("e", schedulertest.Zone("3"))}, spreadPods("a a a"),
			schedulertest.TestPod("p", x, soft(schedulertest.SpreadZone, 1), soft("rack", 1)), scores(map[string]float64{"a": 3*ln(2) + 3*ln(1), "b": 3 * ln(1), "e": -1})},
		{"no node has the key", zones, spreadPods("a"), schedulertest.TestPod("p", x, soft("rack", 1)), map[string]int64{"a": 0, "b": 0, "c": 0, "d": 0}},
		{"domains are those of nodes that can take the pod", zones, spreadPods("a"), schedulertest.TestPod("p", x, schedulertest.Selecting(schedulertest.SpreadZone, "1"), soft(schedulertest.SpreadHost, 1)), scores(map[string]float64{"a": ln(2), "b": 0})},
		{"pods on nodes that cannot take the pod count in their domain, if they are selected", []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.Cordoned), schedulertest.TestNode("b", schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.Zone("2"))}, spreadPods("a"), schedulertest.TestPod("p", x, soft(schedulertest.SpreadZone, 1)), scores(map[string]float64{"b": ln(2), "c": 0})},
		{"pods on nodes that are not selected do not count", []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("1"), schedulertest.NodeLabel("disk", "ssd")), schedulertest.TestNode("c", schedulertest.Zone("2"), schedulertest.NodeLabel("disk", "ssd"))}, spreadPods("a"), schedulertest.TestPod("p", x, schedulertest.Selecting("disk", "ssd"), soft(schedulertest.SpreadZone, 1)), map[string]int64{"b": 100, "c": 100}},
		{"unless told", []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("1"), schedulertest.NodeLabel("disk", "ssd")), schedulertest.TestNode("c", schedulertest.Zone("2"), schedulertest.NodeLabel("disk", "ssd"))}, spreadPods("a"),
			schedulertest.TestPod("p", x, schedulertest.Selecting("disk", "ssd"), soft(schedulertest.SpreadZone, 1, schedulertest.SpreadPolicies(corev1.NodeInclusionPolicyIgnore, ""))), scores(map[string]float64{"b": ln(2), "c": 0})},
		{"pods on tainted nodes count unless told", []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.Taint("k", "v", schedulertest.NoSchedule)), schedulertest.TestNode("b", schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.Zone("2"))}, spreadPods("a"), schedulertest.TestPod("p", x, soft(schedulertest.SpreadZone, 1)), scores(map[string]float64{"b": ln(2), "c": 0})},
		{"told, they do not", []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.Taint("k", "v", schedulertest.NoSchedule)), schedulertest.TestNode("b", schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.Zone("2"))}, spreadPods("a"), schedulertest.TestPod("p", x, soft(schedulertest.SpreadZone, 1, schedulertest.SpreadPolicies("", corev1.NodeInclusionPolicyHonor))), map[string]int64{"b": 100, "c": 100}},
		{"labels of the pod narrow the selector", zones, spreadPods("a", schedulertest.Labelled("hash", "old")), schedulertest.TestPod("p", x, schedulertest.Labelled("hash", "new"), soft(schedulertest.SpreadZone, 1, schedulertest.SpreadByLabels("hash"))), map[string]int64{"a": 100, "b": 100, "c": 100, "d": 100}},
		{"an empty selector counts nobody", zones, spreadPods("a a"), schedulertest.TestPod("p", x, soft(schedulertest.SpreadZone, 1, schedulertest.SpreadSelector(&metav1.LabelSelector{}))), map[string]int64{"a": 100, "b": 100, "c": 100, "d": 100}},
		{"no selector counts nobody", zones, spreadPods("a a"), schedulertest.TestPod("p", x, soft(schedulertest.SpreadHost, 1, schedulertest.SpreadSelector(nil))), map[string]int64{"a": 100, "b": 100, "c": 100, "d": 100}},
		{"nodes of one host name are nodes of their own", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel(schedulertest.SpreadHost, "h")), schedulertest.TestNode("b", schedulertest.NodeLabel(schedulertest.SpreadHost, "h")), schedulertest.TestNode("c")}, spreadPods("a"), schedulertest.TestPod("p", x, soft(schedulertest.SpreadHost, 1)), scores(map[string]float64{"a": ln(3), "b": 0, "c": 0})},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := snapshottest.New(t, test.nodes)
			if got := neighbourScores(t, s, test.pod, DefaultProfile(), PodTopologySpreadName, 2); (got == nil) != (test.want == nil) {
				t.Errorf("without pods: %v", got)
			}
			for _, p := range test.running {
				s.SetPod(snapshottest.PodInfo(t, p))
			}
			for range 2 {
				if got := neighbourScores(t, s, test.pod, DefaultProfile(), PodTopologySpreadName, 2); !maps.Equal(got, test.want) {
					t.Errorf("scores %v, want %v", got, test.want)
				}
			}
		})
	}
}

func TestPodTopologySpreadDefaults(t *testing.T) {
	ln := func(n int) float64 { return math.Log(float64(n + 2)) }
	x := schedulertest.Labelled("app", "x")
	nodes := []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.Zone("2")), schedulertest.TestNode("d")}
	round := func(f float64) int64 { return int64(math.Round(f)) }
	// Hosts with skew 3, zones with skew 5; nodes without a zone are one zone more, and are spared its part.
	raw := map[string]int64{"a": round(ln(4) + 2 + ln(3) + 4), "b": round(2 + ln(3) + 4), "c": 2 + 4, "d": 2}
	system := map[string]int64{}
	for name, n := range raw {
		system[name] = 100 * (raw["a"] + raw["d"] - n) / raw["a"]
	}
	list := func(constraints string) string {
		return `{"defaultingType":"List","defaultConstraints":[` + constraints + `]}`
	}
	const zoneSoft = `{"maxSkew":1,"topologyKey":"topology.kubernetes.io/zone","whenUnsatisfiable":"ScheduleAnyway"}`
	const zoneHard = `{"maxSkew":1,"topologyKey":"topology.kubernetes.io/zone","whenUnsatisfiable":"DoNotSchedule"}`
	byZone := map[string]int64{"a": 0, "b": 0, "c": 100, "d": 0}
	for _, test := range []struct {
		what, arguments string
		pod             *corev1.Pod
		want            map[string]int64
		refused         string
	}{
		{"a pod of a service", "", schedulertest.TestPod("p", x), system, ""},
		{"told what is the rule anyway", `{"defaultingType":"System"}`, schedulertest.TestPod("p", x), system, ""},
		{"a pod nobody else looks like", "", schedulertest.TestPod("p", schedulertest.Labelled("app", "lonely")), nil, ""},
		{"a pod without labels", "", schedulertest.TestPod("p"), nil, ""},
		{"a pod of another namespace", "", schedulertest.TestPod("p", x, schedulertest.Namespace("other")), nil, ""},
		{"a pod with a constraint of its own has no others", "", schedulertest.TestPod("p", x, schedulertest.Spread(schedulertest.SpreadZone, 1, schedulertest.SpreadHard, "app=y")), nil, "d?"},
		{"a list in place of the rule", list(zoneSoft), schedulertest.TestPod("p", x), byZone, ""},
		{"a list, for a pod with its own", list(zoneSoft), schedulertest.TestPod("p", x, schedulertest.Spread(schedulertest.SpreadHost, 9, schedulertest.SpreadHard, "app=x")), nil, ""},
		{"a list, for a pod nobody looks like", list(zoneSoft), schedulertest.TestPod("p"), nil, ""},
		{"a hard one in the list", list(zoneHard), schedulertest.TestPod("p", x), nil, "a b d?"},
		{"a hard one and a soft one", list(zoneHard + "," + zoneSoft), schedulertest.TestPod("p", x), map[string]int64{"c": 100}, "a b d?"},
		{"an empty list", list(""), schedulertest.TestPod("p", x), nil, ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			profile, err := NewProfile(ptr.To(schedulertest.ProfileWith(PodTopologySpreadName, test.arguments)))
			if err != nil {
				t.Fatal(err)
			}
			s := snapshottest.New(t, nodes, spreadPods("a")...)
			s.SetService(schedulertest.SpreadService("web", map[string]string{"app": "x"}))
			if got := neighbourScores(t, s, test.pod, profile, PodTopologySpreadName, 2); !maps.Equal(got, test.want) {
				t.Errorf("scores %v, want %v", got, test.want)
			}
			want := map[string]string{}
			for _, name := range strings.Fields(test.refused) {
				if missing, found := strings.CutSuffix(name, "?"); found {
					want[missing] = schedulertest.KeyReason
				} else {
					want[name] = schedulertest.SkewReason
				}
			}
			if got := neighbourRefusals(t, s, test.pod, profile, PodTopologySpreadName); !maps.Equal(got, want) {
				t.Errorf("refused %v, want %v", got, want)
			}
		})
	}
}

// To the built-in defaults, nodes without a zone and nodes of a zone without a name are in one zone; only the latter are scored by it.
func TestPodTopologySpreadDefaultsAndNamelessZones(t *testing.T) {
	round := func(hosts, zones int, onHost, inZone float64) int64 {
		return int64(math.Round(onHost*math.Log(float64(hosts+2)) + 2 + inZone*math.Log(float64(zones+2)) + 4))
	}
	nodes := []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("")), schedulertest.TestNode("b", schedulertest.Zone("1")), schedulertest.TestNode("c"), schedulertest.TestNode("d")}
	s := snapshottest.New(t, nodes, spreadPods("a c c d")...)
	s.SetService(schedulertest.SpreadService("web", map[string]string{"app": "x"}))
	check := func(what string, raw map[string]int64) {
		t.Helper()
		least, most := slices.Min(slices.Collect(maps.Values(raw))), slices.Max(slices.Collect(maps.Values(raw)))
		want := map[string]int64{}
		for name, n := range raw {
			want[name] = 100 * (most + least - n) / most
		}
		if got := neighbourScores(t, s, schedulertest.TestPod("p", schedulertest.Labelled("app", "x")), DefaultProfile(), PodTopologySpreadName, 2); !maps.Equal(got, want) {
			t.Errorf("%s: scores %v, want %v", what, got, want)
		}
	}
	check("two zones, the first and the one without a name, which has all four pods",
		map[string]int64{"a": round(4, 2, 1, 4), "b": round(4, 2, 0, 0), "c": int64(math.Round(2*math.Log(6) + 2)), "d": int64(math.Round(math.Log(6) + 2))})
	s.SetNode(schedulertest.TestNode("c", schedulertest.Zone("1")))
	s.DeleteNode("d")
	check("after nodes have moved and gone", map[string]int64{"a": round(3, 2, 1, 1), "b": round(3, 2, 0, 2), "c": round(3, 2, 2, 2)})
}

func TestPodTopologySpreadHints(t *testing.T) {
	x, y := schedulertest.Labelled("app", "x"), schedulertest.Labelled("app", "y")
	hard := schedulertest.Spread(schedulertest.SpreadZone, 1, schedulertest.SpreadHard, "app=x")
	pod := schedulertest.TestPod("p", x, hard)
	onlySoft := schedulertest.TestPod("p", x, schedulertest.Spread(schedulertest.SpreadZone, 1, schedulertest.SpreadSoft, "app=x"))
	both := schedulertest.TestPod("p", x, hard, schedulertest.Spread(schedulertest.SpreadHost, 1, schedulertest.SpreadHard, "tier=web"))
	honoring := schedulertest.TestPod("p", x, schedulertest.Spread(schedulertest.SpreadZone, 1, schedulertest.SpreadHard, "app=x", schedulertest.SpreadPolicies("", corev1.NodeInclusionPolicyHonor)))
	other := func(options ...schedulertest.PodOption) *corev1.Pod {
		return schedulertest.TestPod("other", append([]schedulertest.PodOption{schedulertest.OnNode("n")}, options...)...)
	}
	tolerant := schedulertest.Toleration("k", schedulertest.TolExists, "", "")
	broken := schedulertest.TestPod("p", x, schedulertest.Spread(schedulertest.SpreadZone, 1, schedulertest.SpreadHard, "=", schedulertest.SpreadSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Odd"}}})))
	checkHints(t, DefaultProfile(), PodTopologySpreadName, snapshottest.New(t, nil), []ruleHint{
		{"one of those counted came", pod, rulePodCame(other(x)), true},
		{"one of those counted went", pod, rulePodWent(other(x)), true},
		{"somebody else came", pod, rulePodCame(other(y)), false},
		{"somebody else went", pod, rulePodWent(other(y)), false},
		{"one of those counted by the second constraint came", both, rulePodCame(other(schedulertest.Labelled("tier", "web"))), true},
		{"one of another namespace came", pod, rulePodCame(other(x, schedulertest.Namespace("other"))), false},
		{"one of another namespace went", pod, rulePodWent(other(x, schedulertest.Namespace("other"))), false},
		{"one that is only nominated came", pod, rulePodCame(schedulertest.TestPod("other", x, schedulertest.NominatedTo("n"))), true},
		{"one without a place came", pod, rulePodCame(schedulertest.TestPod("other", x)), false},
		{"one without a place went", pod, rulePodWent(schedulertest.TestPod("other", x)), false},
		{"one has become one of those counted", pod, rulePodIs(other(y), other(x)), true},
		{"one has ceased to be one of those counted", pod, rulePodIs(other(x), other(y)), true},
		{"one of those counted has another label", pod, rulePodIs(other(x), other(x, schedulertest.Labelled("more", "of"))), false},
		{"one asks for less", pod, rulePodIs(other(x, schedulertest.RequestingCPU("2")), other(x, schedulertest.RequestingCPU("1"))), false},
		{"soft constraints were not what refused", onlySoft, rulePodCame(other(x)), false},

		{"the pod itself has become one of those counted", pod, ruleItselfIs(schedulertest.TestPod("p", hard), pod), true},
		{"the pod itself is one of those counted no longer", pod, ruleItselfIs(pod, schedulertest.TestPod("p", y, hard)), true},
		{"the pod itself has another label", pod, ruleItselfIs(pod, schedulertest.TestPod("p", x, hard, schedulertest.Labelled("more", "of"))), false},
		{"the pod itself tolerates more, which does not count", pod, ruleItselfIs(pod, schedulertest.TestPod("p", x, hard, tolerant)), false},
		{"the pod itself tolerates more, which counts", honoring, ruleItselfIs(honoring, schedulertest.TestPod("p", x, tolerant)), true},
		{"the pod itself asks for less", pod, ruleItselfIs(schedulertest.TestPod("p", x, hard, schedulertest.RequestingCPU("2")), schedulertest.TestPod("p", x, hard, schedulertest.RequestingCPU("1"))), false},

		{"a node with the key came", pod, ruleNodeCame(schedulertest.TestNode("n", schedulertest.Zone("1"))), true},
		{"a node without the key came", pod, ruleNodeCame(schedulertest.TestNode("n")), false},
		{"a node with one of two keys came", both, ruleNodeCame(schedulertest.TestNode("n")), false},
		{"a node with both keys came", both, ruleNodeCame(schedulertest.TestNode("n", schedulertest.Zone("1"))), true},
		{"a node with the key went", pod, ruleNodeWent(schedulertest.TestNode("n", schedulertest.Zone("1"))), true},
		{"a node without the key went", pod, ruleNodeWent(schedulertest.TestNode("n")), false},
		{"a node got the key", pod, ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.Zone("1"))), true},
		{"a node lost the key", pod, ruleNodeIs(schedulertest.TestNode("n", schedulertest.Zone("1")), schedulertest.TestNode("n")), true},
		{"a node moved", pod, ruleNodeIs(schedulertest.TestNode("n", schedulertest.Zone("1")), schedulertest.TestNode("n", schedulertest.Zone("2"))), true},
		{"a node has another label", pod, ruleNodeIs(schedulertest.TestNode("n", schedulertest.Zone("1")), schedulertest.TestNode("n", schedulertest.Zone("1"), schedulertest.NodeLabel("x", "y"))), false},
		{"a node without the key has another label", pod, ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.NodeLabel("x", "y"))), false},
		{"a node got a taint", pod, ruleNodeIs(schedulertest.TestNode("n", schedulertest.Zone("1")), schedulertest.TestNode("n", schedulertest.Zone("1"), schedulertest.Taint("k", "v", schedulertest.NoSchedule))), true},
		{"a node without the key got a taint", pod, ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.Taint("k", "v", schedulertest.NoSchedule))), false},
		{"a node was opened", pod, ruleNodeIs(schedulertest.TestNode("n", schedulertest.Zone("1"), schedulertest.Cordoned), schedulertest.TestNode("n", schedulertest.Zone("1"))), false},
		{"a node has more free resources", pod, ruleNodeIs(schedulertest.TestNode("n", schedulertest.Zone("1")), schedulertest.TestNode("n", schedulertest.Zone("1"), schedulertest.NodeHas(corev1.ResourceCPU, "9"))), false},
		{"what cannot be read is tried: a pod", broken, rulePodCame(other(y)), true},
		{"what cannot be read is tried: a node", broken, ruleNodeCame(schedulertest.TestNode("n")), true},
		{"what cannot be read is tried: itself", broken, ruleItselfIs(schedulertest.TestPod("p", x), schedulertest.TestPod("p", y)), true},
	})
}

// Default constraints that are hard wait for what a pod's own would wait for.
func TestPodTopologySpreadHintsOfDefaults(t *testing.T) {
	profile, err := NewProfile(ptr.To(schedulertest.ProfileWith(PodTopologySpreadName, `{"defaultingType":"List","defaultConstraints":[{"maxSkew":1,"topologyKey":"topology.kubernetes.io/zone","whenUnsatisfiable":"DoNotSchedule"}]}`)))
	if err != nil {
		t.Fatal(err)
	}
	s := snapshottest.New(t, nil)
	s.SetService(schedulertest.SpreadService("web", map[string]string{"app": "x"}))
	x := schedulertest.TestPod("p", schedulertest.Labelled("app", "x"))
	checkHints(t, profile, PodTopologySpreadName, s, []ruleHint{
		{"one of the service came", x, rulePodCame(schedulertest.TestPod("o", schedulertest.OnNode("n"), schedulertest.Labelled("app", "x"))), true},
		{"one of another service came", x, rulePodCame(schedulertest.TestPod("o", schedulertest.OnNode("n"), schedulertest.Labelled("app", "y"))), false},
		{"a node with the key came", x, ruleNodeCame(schedulertest.TestNode("n", schedulertest.Zone("1"))), true},
		{"a node without came", x, ruleNodeCame(schedulertest.TestNode("n")), false},
		{"a pod nobody looks like has no constraints: any node", schedulertest.TestPod("p"), ruleNodeCame(schedulertest.TestNode("n")), true},
		{"a pod nobody looks like: no pod", schedulertest.TestPod("p"), rulePodCame(schedulertest.TestPod("o", schedulertest.OnNode("n"))), false},
	})
}

func TestWithMatchLabelKeys(t *testing.T) {
	read := func(text string) labels.Selector {
		selector, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return selector
	}
	own := map[string]string{"a": "1", "b": ""}
	for _, test := range []struct {
		what     string
		selector labels.Selector
		keys     []string
		want     string
	}{
		{"no keys", read("x=y"), nil, "x=y"},
		{"a key", read("x=y"), []string{"a"}, "a=1,x=y"},
		{"a key with the empty value", read("x=y"), []string{"b"}, "b=,x=y"},
		{"a key the pod does not have", read("x=y"), []string{"c"}, "x=y"},
		{"some of the keys", read("x=y"), []string{"c", "b", "a"}, "a=1,b=,x=y"},
		{"a key the selector has", read("a in (1,2)"), []string{"a"}, "a=1,a in (1,2)"},
		{"everything is narrowed", labels.Everything(), []string{"a"}, "a=1"},
		{"nothing stays nothing", labels.Nothing(), []string{"a"}, ""},
	} {
		got := selectorWithMatchLabelKeys(test.selector, test.keys, own)
		if got.String() != test.want || snapshot.MatchesNothing(got) != snapshot.MatchesNothing(test.selector) {
			t.Errorf("%s: %s, want %s", test.what, got, test.want)
		}
	}
}

// spreadModel answers by counting pods anew, node by node, in plain words.
type spreadModel struct {
	nodes []*corev1.Node
	pods  []*corev1.Pod
	pod   *corev1.Pod
}

type spreadDomains map[string]int

func (m *spreadModel) selector(c *corev1.TopologySpreadConstraint) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
	if err != nil {
		panic(err)
	}
	if requirements, selectable := selector.Requirements(); selectable {
		for _, key := range c.MatchLabelKeys {
			if value, has := m.pod.Labels[key]; has {
				selector = labels.SelectorFromSet(labels.Set{key: value}).Add(requirements...)
				requirements, _ = selector.Requirements()
			}
		}
	}
	return selector
}

func (m *spreadModel) constraints(action corev1.UnsatisfiableConstraintAction) (all []*corev1.TopologySpreadConstraint) {
	for i := range m.pod.Spec.TopologySpreadConstraints {
		if c := &m.pod.Spec.TopologySpreadConstraints[i]; c.WhenUnsatisfiable == action {
			all = append(all, c)
		}
	}
	return all
}

func (m *spreadModel) counts(n *corev1.Node, c *corev1.TopologySpreadConstraint, all []*corev1.TopologySpreadConstraint) bool {
	for _, other := range all {
		if _, has := n.Labels[other.TopologyKey]; !has {
			return false
		}
	}
	if c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor {
		if match, _ := nodeaffinity.GetRequiredNodeAffinity(m.pod).Match(n); !match {
			return false
		}
	}
	if c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor {
		for i := range n.Spec.Taints {
			if taint := &n.Spec.Taints[i]; taint.Effect != schedulertest.PreferNo && !snapshot.Tolerates(m.pod.Spec.Tolerations, taint) {
				return false
			}
		}
	}
	return true
}

func (m *spreadModel) matching(n *corev1.Node, c *corev1.TopologySpreadConstraint) (count int) {
	selector := m.selector(c)
	for _, p := range m.pods {
		if p.Spec.NodeName == n.Name && p.Namespace == m.pod.Namespace && p.DeletionTimestamp == nil && !selector.Empty() && selector.Matches(labels.Set(p.Labels)) {
			count++
		}
	}
	return count
}

func (m *spreadModel) domains(c *corev1.TopologySpreadConstraint, all []*corev1.TopologySpreadConstraint) spreadDomains {
	domains := spreadDomains{}
	for _, n := range m.nodes {
		if m.counts(n, c, all) {
			domains[n.Labels[c.TopologyKey]] += m.matching(n, c)
		}
	}
	return domains
}

func (m *spreadModel) refusal(n *corev1.Node) string {
	hard := m.constraints(schedulertest.SpreadHard)
	for _, c := range hard {
		value, has := n.Labels[c.TopologyKey]
		if !has {
			return schedulertest.KeyReason
		}
		domains := m.domains(c, hard)
		fewest := 0
		if len(domains) >= int(ptr.Deref(c.MinDomains, 1)) {
			fewest = slices.Min(slices.Collect(maps.Values(domains)))
		}
		self := 0
		if m.selector(c).Matches(labels.Set(m.pod.Labels)) {
			self = 1
		}
		if domains[value]+self-fewest > int(c.MaxSkew) {
			return schedulertest.SkewReason
		}
	}
	return ""
}

func (m *spreadModel) scores(feasible []*corev1.Node) map[string]int64 {
	soft := m.constraints(schedulertest.SpreadSoft)
	if len(soft) == 0 {
		return nil
	}
	complete := func(n *corev1.Node) bool {
		return !slices.ContainsFunc(soft, func(c *corev1.TopologySpreadConstraint) bool { _, has := n.Labels[c.TopologyKey]; return !has })
	}
	raw, least, most := map[string]int64{}, int64(math.MaxInt64), int64(0)
	for _, n := range feasible {
		if !complete(n) {
			continue
		}
		sum := 0.0
		for _, c := range soft {
			size, values := 0, map[string]bool{}
			for _, other := range feasible {
				if complete(other) {
					size++
					values[other.Labels[c.TopologyKey]] = true
				}
			}
			count := m.matching(n, c)
			if c.TopologyKey != schedulertest.SpreadHost {
				size, count = len(values), m.domains(c, soft)[n.Labels[c.TopologyKey]]
			}
			sum += float64(count)*math.Log(float64(size+2)) + float64(c.MaxSkew-1)
		}
		raw[n.Name] = int64(math.Round(sum))
		least, most = min(least, raw[n.Name]), max(most, raw[n.Name])
	}
	scores := map[string]int64{}
	for _, n := range feasible {
		switch _, counts := raw[n.Name]; {
		case !counts:
			scores[n.Name] = 0
		case most == 0:
			scores[n.Name] = 100
		default:
			scores[n.Name] = 100 * (most + least - raw[n.Name]) / most
		}
	}
	return scores
}

// Random clusters that change under the snapshot's feet: what spreading says is what the model says, each time.
func TestPodTopologySpreadEqualsModel(t *testing.T) {
	profile := DefaultProfile()
	refused, scored := 0, 0
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 31))
		nodeOf := func(i int) *corev1.Node {
			n := schedulertest.TestNode(fmt.Sprint("n", i), func(n *corev1.Node) {
				maps.Copy(n.Labels, schedulertest.RandomLabels(r, []string{schedulertest.SpreadZone, "rack"}, "1", "2", "3"))
				maps.Copy(n.Labels, schedulertest.RandomLabels(r, []string{"disk"}, "ssd", "hdd"))
			})
			if schedulertest.OneIn(r, 5) {
				schedulertest.Taint("k", "v", schedulertest.OneOf(r, schedulertest.NoSchedule, schedulertest.PreferNo))(n)
			}
			return n
		}
		constraint := func() schedulertest.PodOption {
			selector := schedulertest.OneOf(r, &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}, &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}, nil, &metav1.LabelSelector{},
				&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"y"}}}})
			more := []func(*corev1.TopologySpreadConstraint){schedulertest.SpreadSelector(selector)}
			if schedulertest.OneIn(r, 3) {
				more = append(more, schedulertest.SpreadPolicies(schedulertest.OneOf(r, "", corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore), schedulertest.OneOf(r, "", corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)))
			}
			if schedulertest.OneIn(r, 4) {
				more = append(more, schedulertest.SpreadByLabels(schedulertest.OneOf(r, "tier", "app", "no")))
			}
			when := schedulertest.OneOf(r, schedulertest.SpreadHard, schedulertest.SpreadSoft)
			if when == schedulertest.SpreadHard && schedulertest.OneIn(r, 4) {
				more = append(more, schedulertest.SpreadMinDomains(int32(1+r.IntN(4))))
			}
			return schedulertest.Spread(schedulertest.OneOf(r, schedulertest.SpreadZone, schedulertest.SpreadHost, "rack"), int32(1+r.IntN(3)), when, "=", more...)
		}
		podOf := func(name string) *corev1.Pod {
			return schedulertest.TestPod(name, schedulertest.Namespace(schedulertest.OneOf(r, "default", "default", "other")), func(p *corev1.Pod) {
				p.Labels = schedulertest.RandomLabels(r, []string{"app", "tier"}, "x", "y")
				if schedulertest.OneIn(r, 8) {
					schedulertest.Terminating(p)
				}
			})
		}
		m := &spreadModel{}
		for i := range 5 {
			m.nodes = append(m.nodes, nodeOf(i))
		}
		s := snapshottest.New(t, m.nodes)
		var askers []*corev1.Pod
		for i := range 4 {
			asker := podOf(fmt.Sprint("asker", i))
			asker.DeletionTimestamp = nil
			for _, o := range schedulertest.SomeOf(r, 3, constraint) {
				o(asker)
			}
			if schedulertest.OneIn(r, 3) {
				schedulertest.Selecting("disk", "ssd")(asker)
			}
			if schedulertest.OneIn(r, 3) {
				schedulertest.Toleration("k", schedulertest.TolExists, "", "")(asker)
			}
			askers = append(askers, asker)
		}
		for step := range 60 {
			switch r.IntN(6) {
			case 0:
				i := r.IntN(len(m.nodes))
				m.nodes[i] = nodeOf(i)
				s.SetNode(m.nodes[i])
			case 1:
				if i := r.IntN(len(m.pods) + 1); i < len(m.pods) {
					s.DeletePod(m.pods[i].UID)
					m.pods = slices.Delete(m.pods, i, i+1)
				}
			default:
				p := podOf(fmt.Sprint("pod", step))
				p.Spec.NodeName = schedulertest.OneOf(r, m.nodes...).Name
				m.pods = append(m.pods, p)
				s.SetPod(snapshottest.PodInfo(t, p))
			}
			m.pod = schedulertest.OneOf(r, askers...)
			want := map[string]string{}
			var feasible []*corev1.Node
			for _, n := range m.nodes {
				match, _ := nodeaffinity.GetRequiredNodeAffinity(m.pod).Match(n)
				tainted := slices.ContainsFunc(n.Spec.Taints, func(x corev1.Taint) bool {
					return x.Effect != schedulertest.PreferNo && !snapshot.Tolerates(m.pod.Spec.Tolerations, &x)
				})
				if !match || tainted {
					continue // refused before spreading is asked
				}
				if why := m.refusal(n); why != "" {
					want[n.Name] = why
					refused++
				} else {
					feasible = append(feasible, n)
				}
			}
			if got := neighbourRefusals(t, s, m.pod, profile, PodTopologySpreadName); !maps.Equal(got, want) {
				t.Fatalf("seed %d, step %d: pod %+v: refused %v, want %v", seed, step, m.pod.Spec.TopologySpreadConstraints, got, want)
			}
			if len(feasible) == 0 {
				continue
			}
			scores := m.scores(feasible)
			if got := neighbourScores(t, s, m.pod, profile, PodTopologySpreadName, 2); !maps.Equal(got, scores) {
				t.Fatalf("seed %d, step %d: pod %+v: scores %v, want %v", seed, step, m.pod.Spec.TopologySpreadConstraints, got, scores)
			}
			if scores != nil {
				scored++
			}
		}
	}
	if refused < 500 || scored < 500 {
		t.Errorf("%d refusals and %d scores: too few to tell anything", refused, scored)
	}
}

// A set's pods are spread by the selector of the set, once it is known, and as it is now.
func TestPodTopologySpreadFollowsOwners(t *testing.T) {
	nodes := []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}
	pod := schedulertest.TestPod("p", schedulertest.Labelled("app", "x"), schedulertest.SpreadOwned("apps/v1", "ReplicaSet", "rs"))
	set := func(match map[string]string) *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "rs"}, Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: match}}}
	}
	s := snapshottest.New(t, nodes, spreadPods("a")...)
	for _, step := range []struct {
		what string
		do   func()
		on   string // where the pod is drawn to, when it is spread at all
	}{
		{"nobody knows the set", func() {}, ""},
		{"the set is known", func() { s.SetReplicaSet(set(map[string]string{"app": "x"})) }, "b"},
		{"another of its pods came", func() {
			for _, p := range spreadPods("b b", schedulertest.Labelled("more", "of")) {
				s.SetPod(snapshottest.PodInfo(t, p))
			}
		}, "a"},
		{"the set selects others now", func() { s.SetReplicaSet(set(map[string]string{"app": "x", "more": "of"})) }, "a"},
		{"the set selects the first again", func() { s.SetReplicaSet(set(map[string]string{"app": "x"})) }, "a"},
		{"the set is gone", func() { s.DeleteController("apps/v1", "ReplicaSet", "default", "rs") }, ""},
	} {
		step.do()
		scores := neighbourScores(t, s, pod, DefaultProfile(), PodTopologySpreadName, 2)
		best := ""
		if scores["a"] > scores["b"] {
			best = "a"
		} else if scores["b"] > scores["a"] {
			best = "b"
		}
		if best != step.on || (scores == nil) != (step.on == "") {
			t.Errorf("%s: scores %v, want %q to be best", step.what, scores, step.on)
		}
	}
}
