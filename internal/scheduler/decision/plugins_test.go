package decision

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// refusalsOf says of every node why it cannot take the pod; nodes that can are missing.
func refusalsOf(t testing.TB, s *snapshot.Snapshot, pod *corev1.Pod, profile *plugins.Profile) map[string]string {
	t.Helper()
	d, err := Schedule(s, snapshottest.PodInfo(t, pod), profile)
	if err != nil && !IsUnschedulable(err) {
		t.Fatal(err)
	}
	verdicts, current := d.Explain()
	if !current {
		t.Error("the decision just made is not on record")
	}
	refusals := map[string]string{}
	for _, v := range verdicts {
		if v.Refusal != nil {
			refusals[v.Node] = strings.Join(v.Refusal.Reasons, ", ")
		}
	}
	return refusals
}

func TestFilters(t *testing.T) {
	const (
		affinityText  = "node(s) didn't match Pod's node affinity/selector"
		portText      = "node(s) didn't have free ports for the requested pod ports"
		taintText     = "node(s) had untolerated taint(s)"
		skewText      = "node(s) didn't match pod topology spread constraints"
		missingText   = skewText + " (missing required label)"
		nearText      = "node(s) didn't match pod affinity rules"
		awayText      = "node(s) didn't match pod anti-affinity rules"
		unwelcomeText = "node(s) didn't satisfy existing pods anti-affinity rules"
	)
	host, zoneKey := corev1.LabelHostname, corev1.LabelTopologyZone
	hard, green := corev1.DoNotSchedule, schedulertest.Labelled("color", "green")
	minDomains := func(n int32) func(*corev1.TopologySpreadConstraint) {
		return func(c *corev1.TopologySpreadConstraint) { c.MinDomains = &n }
	}
	honorTaints := func(c *corev1.TopologySpreadConstraint) { c.NodeTaintsPolicy = ptr.To(corev1.NodeInclusionPolicyHonor) }
	ignoreAffinity := func(c *corev1.TopologySpreadConstraint) {
		c.NodeAffinityPolicy = ptr.To(corev1.NodeInclusionPolicyIgnore)
	}
	keys := func(k ...string) func(*corev1.TopologySpreadConstraint) {
		return func(c *corev1.TopologySpreadConstraint) { c.MatchLabelKeys = k }
	}
	sidecar := func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{
			Name: "s", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}},
		}}
	}
	initContainer := func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{
			Name: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}},
		}}
	}
	wholePod := func(p *corev1.Pod) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}}
	}
	resized := func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}}}
	}
	inNamespaces := func(selector *metav1.LabelSelector, namespaces ...string) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			t := &p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
			t.NamespaceSelector, t.Namespaces = selector, namespaces
		}
	}
	terminating := func(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }
	tests := map[string]struct {
		nodes   []*corev1.Node
		running []*corev1.Pod
		pod     *corev1.Pod
		want    map[string]string
	}{
		"NodeUnschedulable": {
			nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.Cordoned), schedulertest.TestNode("b")}, pod: schedulertest.TestPod("p"), want: map[string]string{"a": "node(s) were unschedulable"},
		},
		"NodeUnschedulable, tolerated": {
			nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.Cordoned)},
			pod:   schedulertest.TestPod("p", schedulertest.Tolerating(corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists})),
		},
		"NodeName": {
			nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, pod: schedulertest.TestPod("p", schedulertest.OnNode("b")), want: map[string]string{"a": "node(s) didn't match the requested node name"},
		},
		"TaintToleration": {
			nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.Taint("k", "v", corev1.TaintEffectNoSchedule)), schedulertest.TestNode("b", schedulertest.Taint("k", "v", corev1.TaintEffectNoExecute)),
				schedulertest.TestNode("c", schedulertest.Taint("k", "v", corev1.TaintEffectPreferNoSchedule)), schedulertest.TestNode("d")},
			pod: schedulertest.TestPod("p"), want: map[string]string{"a": taintText, "b": taintText},
		},
		"TaintToleration, one of two tolerated": {
			nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.Taint("k", "v", corev1.TaintEffectNoSchedule)), schedulertest.TestNode("b", schedulertest.Taint("k", "v", corev1.TaintEffectNoSchedule), schedulertest.Taint("l", "", corev1.TaintEffectNoSchedule))},
			pod:   schedulertest.TestPod("p", schedulertest.Tolerating(corev1.Toleration{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule})), want: map[string]string{"b": taintText},
		},
		"NodeAffinity, selector": {
			nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel("disk", "ssd")), schedulertest.TestNode("b", schedulertest.NodeLabel("disk", "hdd")), schedulertest.TestNode("c")},
			pod:   schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd")), want: map[string]string{"b": affinityText, "c": affinityText},
		},
		"NodeAffinity, operators": {
			nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel("n", "5")), schedulertest.TestNode("b", schedulertest.NodeLabel("n", "9")), schedulertest.TestNode("c", schedulertest.NodeLabel("n", "x")), schedulertest.TestNode("d")},
			pod:   schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("n", corev1.NodeSelectorOpGt, "6"), schedulertest.Expression("n", corev1.NodeSelectorOpDoesNotExist))),
			want:  map[string]string{"a": affinityText, "c": affinityText},
		},
		"NodeAffinity, not in": {
			nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel("n", "5")), schedulertest.TestNode("b", schedulertest.NodeLabel("n", "9")), schedulertest.TestNode("c")},
			pod:   schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("n", corev1.NodeSelectorOpNotIn, "5", "6"))), want: map[string]string{"a": affinityText},
		},
		"NodeAffinity, an empty term matches nothing": {
			nodes: []*corev1.Node{schedulertest.TestNode("a")}, pod: schedulertest.TestPod("p", schedulertest.RequiresNodes(corev1.NodeSelectorTerm{})), want: map[string]string{"a": affinityText},
		},
		"NodeAffinity, named nodes": {
			nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c", schedulertest.Cordoned)},
			pod:   schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("a"), schedulertest.Named("c"))),
			want:  map[string]string{"b": "node(s) didn't satisfy plugin(s) [NodeAffinity]", "c": "node(s) were unschedulable"},
		},
		"NodePorts": {
			nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c"), schedulertest.TestNode("d")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.Port(80, "", "TCP")), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.Port(80, "", "UDP")),
				schedulertest.TestPod("3", schedulertest.OnNode("c"), schedulertest.Port(80, "10.0.0.1", "TCP")), schedulertest.TestPod("4", schedulertest.OnNode("d"), schedulertest.Port(80, "127.0.0.1", "TCP"))},
			pod: schedulertest.TestPod("p", schedulertest.Port(80, "127.0.0.1", "TCP")), want: map[string]string{"a": portText, "d": portText},
		},
		"NodeResourcesFit": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c", schedulertest.NodeHas(corev1.ResourcePods, "1"))},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("3500m"), schedulertest.RequestingMemory("31Gi")), schedulertest.TestPod("2", schedulertest.OnNode("c"))},
			pod:     schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.RequestingMemory("2Gi")), want: map[string]string{"a": "Insufficient cpu, Insufficient memory", "c": "Too many pods"},
		},
		"NodeResourcesFit, extended and storage": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeHas("example.com/gpu", "2")), schedulertest.TestNode("b"), schedulertest.TestNode("c", schedulertest.NodeHas("example.com/gpu", "2"), schedulertest.NodeHas(corev1.ResourceEphemeralStorage, "1Gi"))},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.Requesting("example.com/gpu", "1"))},
			pod:     schedulertest.TestPod("p", schedulertest.Requesting("example.com/gpu", "1"), schedulertest.Requesting(corev1.ResourceEphemeralStorage, "2Gi")),
			want:    map[string]string{"b": "Insufficient example.com/gpu", "c": "Insufficient ephemeral-storage"},
		},
		"NodeResourcesFit, sidecars add up": {
			nodes: []*corev1.Node{schedulertest.TestNode("a")}, pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("2500m"), sidecar), want: map[string]string{"a": "Insufficient cpu"},
		},
		"NodeResourcesFit, init containers do not": {
			nodes: []*corev1.Node{schedulertest.TestNode("a")}, pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("2500m"), initContainer),
		},
		"NodeResourcesFit, overhead": {
			nodes: []*corev1.Node{schedulertest.TestNode("a")}, pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("3500m"), func(p *corev1.Pod) {
				p.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("600m")}
			}), want: map[string]string{"a": "Insufficient cpu"},
		},
		"NodeResourcesFit, a pod that asks as a whole": {
			nodes: []*corev1.Node{schedulertest.TestNode("a")}, running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), wholePod)},
			pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("1500m")), want: map[string]string{"a": "Insufficient cpu"},
		},
		"NodeResourcesFit, a pod being resized holds what it has": {
			nodes: []*corev1.Node{schedulertest.TestNode("a")}, running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), resized)},
			pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("1500m")), want: map[string]string{"a": "Insufficient cpu"},
		},
		"PodTopologySpread": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.Zone("2")), schedulertest.TestNode("d")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green), schedulertest.TestPod("2", schedulertest.OnNode("b"), green), schedulertest.TestPod("3", schedulertest.OnNode("c"), green), schedulertest.TestPod("4", schedulertest.OnNode("c"), green, schedulertest.Namespace("other"))},
			pod:     schedulertest.TestPod("p", green, schedulertest.Spread(zoneKey, 1, hard, "color=green")), want: map[string]string{"a": skewText, "b": skewText, "d": missingText},
		},
		"PodTopologySpread, pods on their way out do not count": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.Zone("2"))},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green, terminating)},
			pod:     schedulertest.TestPod("p", green, schedulertest.Spread(zoneKey, 1, hard, "color=green")),
		},
		"PodTopologySpread, too few domains": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.Zone("2"))},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green), schedulertest.TestPod("2", schedulertest.OnNode("c"), green)},
			pod:     schedulertest.TestPod("p", green, schedulertest.Spread(zoneKey, 1, hard, "color=green", minDomains(3))), want: map[string]string{"a": skewText, "c": skewText},
		},
		"PodTopologySpread, nodes the pod does not select do not count": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.NodeLabel("x", "y")), schedulertest.TestNode("b", schedulertest.Zone("2"))},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green)},
			pod:     schedulertest.TestPod("p", green, schedulertest.Selecting("x", "y"), schedulertest.Spread(zoneKey, 1, hard, "color=green")), want: map[string]string{"b": affinityText},
		},
		"PodTopologySpread, unless told to": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.NodeLabel("x", "y")), schedulertest.TestNode("b", schedulertest.Zone("2"))},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green)},
			pod:     schedulertest.TestPod("p", green, schedulertest.Selecting("x", "y"), schedulertest.Spread(zoneKey, 1, hard, "color=green", ignoreAffinity)), want: map[string]string{"a": skewText, "b": affinityText},
		},
		"PodTopologySpread, tainted nodes": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("2"), schedulertest.Taint("k", "", corev1.TaintEffectNoSchedule))},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green)},
			pod:     schedulertest.TestPod("p", green, schedulertest.Spread(zoneKey, 1, hard, "color=green", honorTaints)), want: map[string]string{"b": taintText},
		},
		"PodTopologySpread, match label keys": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green, schedulertest.Labelled("hash", "old"))},
			pod:     schedulertest.TestPod("p", green, schedulertest.Labelled("hash", "new"), schedulertest.Spread(host, 1, hard, "color=green", keys("hash"))),
		},
		"InterPodAffinity": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.Zone("2")), schedulertest.TestNode("d")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green)},
			pod:     schedulertest.TestPod("p", schedulertest.WithAffinity(zoneKey, "color", "green")), want: map[string]string{"c": nearText, "d": nearText},
		},
		"InterPodAffinity, the first of its kind": {
			nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b")},
			pod:   schedulertest.TestPod("p", green, schedulertest.WithAffinity(zoneKey, "color", "green")), want: map[string]string{"b": nearText},
		},
		"InterPodAffinity, one pod must match all terms": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1"))},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green), schedulertest.TestPod("2", schedulertest.OnNode("a"), schedulertest.Labelled("size", "big"))},
			pod:     schedulertest.TestPod("p", schedulertest.WithAffinity(zoneKey, "color", "green"), schedulertest.WithAffinity(host, "size", "big")), want: map[string]string{"a": nearText},
		},
		"InterPodAffinity, away": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.Zone("2")), schedulertest.TestNode("d")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green)},
			pod:     schedulertest.TestPod("p", schedulertest.WithAntiAffinity(zoneKey, "color", "green")), want: map[string]string{"a": awayText, "b": awayText},
		},
		"InterPodAffinity, existing pods want to be alone": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.WithAntiAffinity(host, "color", "green"))},
			pod:     schedulertest.TestPod("p", green), want: map[string]string{"a": unwelcomeText},
		},
		"InterPodAffinity, other namespaces are others": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green, schedulertest.Namespace("other"))},
			pod:     schedulertest.TestPod("p", schedulertest.WithAntiAffinity(host, "color", "green")),
		},
		"InterPodAffinity, namespaces by name": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green, schedulertest.Namespace("other"))},
			pod:     schedulertest.TestPod("p", schedulertest.WithAntiAffinity(host, "color", "green"), inNamespaces(nil, "other")), want: map[string]string{"a": awayText},
		},
		"InterPodAffinity, namespaces by label": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green, schedulertest.Namespace("red-team")), schedulertest.TestPod("2", schedulertest.OnNode("b"), green, schedulertest.Namespace("blue-team"))},
			pod:     schedulertest.TestPod("p", schedulertest.WithAntiAffinity(host, "color", "green"), inNamespaces(&metav1.LabelSelector{MatchLabels: map[string]string{"team": "red"}})), want: map[string]string{"a": awayText},
		},
		"InterPodAffinity, all namespaces": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green, schedulertest.Namespace("red-team"))},
			pod:     schedulertest.TestPod("p", schedulertest.WithAntiAffinity(host, "color", "green"), inNamespaces(&metav1.LabelSelector{})), want: map[string]string{"a": awayText},
		},
		"the first refusal in order counts": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.Taint("k", "", corev1.TaintEffectNoSchedule)), schedulertest.TestNode("b", schedulertest.Zone("2"))},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green)},
			pod:     schedulertest.TestPod("p", schedulertest.Selecting("no", "where"), schedulertest.WithAntiAffinity(zoneKey, "color", "green")), want: map[string]string{"a": taintText, "b": affinityText},
		},
		"ended pods hold nothing": {
			nodes: []*corev1.Node{schedulertest.TestNode("a")}, running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })},
			pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("4")),
		},
		"nominated pods keep their place": {
			nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.RequestingCPU("3"), schedulertest.Priority(10), schedulertest.NominatedTo("a")), schedulertest.TestPod("2", schedulertest.RequestingCPU("3"), schedulertest.Priority(1), schedulertest.NominatedTo("b"))},
			pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("2"), schedulertest.Priority(5)), want: map[string]string{"a": "Insufficient cpu"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := snapshottest.New(t, test.nodes)
			for _, team := range []string{"red", "blue"} {
				s.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team + "-team", Labels: map[string]string{"team": team}}})
			}
			for _, p := range test.running {
				info := snapshottest.PodInfo(t, p)
				s.SetPod(info)
				s.Nominate(info, p.UID, p.Status.NominatedNodeName)
			}
			if test.want == nil {
				test.want = map[string]string{}
			}
			profile := plugins.DefaultProfile()
			// Twice: the second time from what was learned the first time.
			for range 2 {
				if got := refusalsOf(t, s, test.pod, profile); !maps.Equal(got, test.want) {
					t.Errorf("refused by %v, want %v", got, test.want)
				}
			}
			// And pods that arrive after the pod is known must count just as those that were there before.
			late := snapshottest.New(t, test.nodes)
			for name, set := range s.Namespaces {
				late.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: set}})
			}
			refusalsOf(t, late, test.pod, profile)
			for _, p := range test.running {
				info := snapshottest.PodInfo(t, p)
				late.SetPod(info)
				late.Nominate(info, p.UID, p.Status.NominatedNodeName)
			}
			if got := refusalsOf(t, late, test.pod, profile); !maps.Equal(got, test.want) {
				t.Errorf("with pods that came later, refused by %v, want %v", got, test.want)
			}
		})
	}
}

func TestFitErrorText(t *testing.T) {
	nodes := []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}
	for _, name := range []string{"c", "d", "e"} {
		nodes = append(nodes, schedulertest.TestNode(name, schedulertest.Taint("k", "v", corev1.TaintEffectNoSchedule)))
	}
	s := snapshottest.New(t, nodes)
	d, err := Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.RequestingCPU("5"))), plugins.DefaultProfile())
	want := "0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had untolerated taint(s)."
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	var fit *FitError
	if !errors.As(err, &fit) || fmt.Sprint(fit.Plugins) != "[NodeResourcesFit TaintToleration]" {
		t.Errorf("rules %v", fit.Plugins)
	}
	_, message, err := Preempt(d, nil, nil)
	fit.Preemption = "preemption: " + message
	want += " preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling."
	if !errors.Is(err, ErrPreemptionNotHelpful) || fit.Error() != want {
		t.Errorf("%v: %s, want %s", err, fit, want)
	}
	if _, err := Schedule(snapshot.NewSnapshot(), snapshottest.PodInfo(t, schedulertest.TestPod("p")), plugins.DefaultProfile()); !errors.Is(err, ErrNoNodes) {
		t.Errorf("without nodes: %v", err)
	}
}

// scoresOf is what one rule says of each node, unweighted.
func scoresOf(t testing.TB, s *snapshot.Snapshot, pod *corev1.Pod, profile *plugins.Profile, rule string, weight int64) map[string]int64 {
	t.Helper()
	d, err := Schedule(s, snapshottest.PodInfo(t, pod), profile)
	if err != nil {
		t.Fatal(err)
	}
	verdicts, _ := d.Explain()
	scores := map[string]int64{}
	best := verdicts[0].Total
	for _, v := range verdicts {
		if v.Refusal == nil {
			scores[v.Node] = v.Scores[rule] / weight
			if v.Total > best {
				t.Errorf("node %s has %d, more than the chosen %s with %d", v.Node, v.Total, d.Node, best)
			}
		}
	}
	return scores
}

func TestScores(t *testing.T) {
	green := schedulertest.Labelled("color", "green")
	soft := corev1.ScheduleAnyway
	prefersNodes := func(weight int32, key, value string) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			a := schedulertest.AffinityOf(p)
			if a.NodeAffinity == nil {
				a.NodeAffinity = &corev1.NodeAffinity{}
			}
			a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
				corev1.PreferredSchedulingTerm{Weight: weight, Preference: schedulertest.Expression(key, corev1.NodeSelectorOpIn, value)})
		}
	}
	const mb = 1024 * 1024
	tests := map[string]struct {
		rule    string
		weight  int64
		config  configv1.KubeSchedulerProfile
		nodes   []*corev1.Node
		running []*corev1.Pod
		pod     *corev1.Pod
		want    map[string]int64
	}{
		"least allocated": {
			rule: plugins.NodeResourcesFitName, weight: 1, nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.RequestingMemory("8Gi"))},
			// a: cpu (4-2)/4=50, memory (32-16)/32=50; b: 75, 75.
			pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.RequestingMemory("8Gi")), want: map[string]int64{"a": 50, "b": 75},
		},
		"least allocated, containers without requests count a little": {
			rule: plugins.NodeResourcesFitName, weight: 1, nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourceCPU, "1"), schedulertest.NodeHas(corev1.ResourceMemory, "1000Mi")), schedulertest.TestNode("b", schedulertest.NodeHas(corev1.ResourceCPU, "1"), schedulertest.NodeHas(corev1.ResourceMemory, "1000Mi"))},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"))},
			pod:     schedulertest.TestPod("p"), want: map[string]int64{"a": 70, "b": 85},
		},
		"most allocated": {
			rule: plugins.NodeResourcesFitName, weight: 1, config: schedulertest.ProfileWith(plugins.NodeResourcesFitName, `{"scoringStrategy":{"type":"MostAllocated","resources":[{"name":"cpu","weight":3},{"name":"memory","weight":1}]}}`),
			nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.RequestingMemory("8Gi"))},
			pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.RequestingMemory("16Gi")), want: map[string]int64{"a": (3*50 + 75) / 4, "b": (3*25 + 50) / 4},
		},
		"requested to capacity ratio": {
			rule: plugins.NodeResourcesFitName, weight: 1, config: schedulertest.ProfileWith(plugins.NodeResourcesFitName, `{"scoringStrategy":{"type":"RequestedToCapacityRatio","resources":[{"name":"example.com/gpu","weight":1}],"requestedToCapacityRatio":{"shape":[{"utilization":0,"score":0},{"utilization":100,"score":10}]}}}`),
			nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeHas("example.com/gpu", "4")), schedulertest.TestNode("b", schedulertest.NodeHas("example.com/gpu", "4"))}, running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.Requesting("example.com/gpu", "2"))},
			pod: schedulertest.TestPod("p", schedulertest.Requesting("example.com/gpu", "1")), want: map[string]int64{"a": 75, "b": 25},
		},
		"balanced allocation": {
			rule: plugins.BalancedAllocationName, weight: 1, nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"))},
			// a becomes balanced (75 to 100), b becomes unbalanced (100 to 75).
			pod: schedulertest.TestPod("p", schedulertest.RequestingMemory("16Gi")), want: map[string]int64{"a": 50 + (50+25)/2, "b": 50 + (50-25)/2},
		},
		"image locality": {
			rule: plugins.ImageLocalityName, weight: 1, nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("pause:latest", 1000*mb)), schedulertest.TestNode("b")},
			// 1000 MB on one of two nodes count as 500.
			pod: schedulertest.TestPod("p"), want: map[string]int64{"a": 100 * (500 - 23) / (1000 - 23), "b": 0},
		},
		"node affinity": {
			rule: plugins.NodeAffinityName, weight: 2, nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel("x", "1"), schedulertest.NodeLabel("y", "1")), schedulertest.TestNode("b", schedulertest.NodeLabel("x", "1")), schedulertest.TestNode("c")},
			pod: schedulertest.TestPod("p", prefersNodes(30, "x", "1"), prefersNodes(10, "y", "1")), want: map[string]int64{"a": 100, "b": 75, "c": 0},
		},
		"taint toleration": {
			rule: plugins.TaintTolerationName, weight: 3, nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.Taint("k", "", corev1.TaintEffectPreferNoSchedule), schedulertest.Taint("l", "", corev1.TaintEffectPreferNoSchedule)), schedulertest.TestNode("b", schedulertest.Taint("k", "", corev1.TaintEffectPreferNoSchedule)), schedulertest.TestNode("c")},
			pod: schedulertest.TestPod("p"), want: map[string]int64{"a": 0, "b": 50, "c": 100},
		},
		"topology spread": {
			rule: plugins.PodTopologySpreadName, weight: 2, nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green), schedulertest.TestPod("2", schedulertest.OnNode("a"), green), schedulertest.TestPod("3", schedulertest.OnNode("b"), green)},
			// Counts 2, 1, 0 times log(5), rounded: 3, 2, 0; then 100*(3+0-s)/3.
			pod: schedulertest.TestPod("p", green, schedulertest.Spread(corev1.LabelHostname, 1, soft, "color=green")), want: map[string]int64{"a": 0, "b": 33, "c": 100},
		},
		"topology spread of a service's pods": {
			rule: plugins.PodTopologySpreadName, weight: 2, nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.Zone("2"))},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.Labelled("app", "web"))},
			// Hosts: 1*log(5)+2, 2, 2; zones: 1*log(4)+4, the same, 4. Sums rounded: 9, 7, 6.
			pod: schedulertest.TestPod("p", schedulertest.Labelled("app", "web")), want: map[string]int64{"a": 100 * (9 + 6 - 9) / 9, "b": 100 * (9 + 6 - 7) / 9, "c": 100 * (9 + 6 - 6) / 9},
		},
		"inter-pod affinity": {
			rule: plugins.InterPodAffinityName, weight: 2, nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("2")), schedulertest.TestNode("c", schedulertest.Zone("3"))},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), green), schedulertest.TestPod("2", schedulertest.OnNode("a"), green), schedulertest.TestPod("3", schedulertest.OnNode("b"), green)},
			pod:     schedulertest.TestPod("p", schedulertest.WithPreferredAffinity(5, corev1.LabelTopologyZone, "color", "green")), want: map[string]int64{"a": 100, "b": 50, "c": 0},
		},
		"inter-pod affinity of existing pods": {
			rule: plugins.InterPodAffinityName, weight: 2, nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.WithPreferredAffinity(4, corev1.LabelHostname, "color", "green")), schedulertest.TestPod("2", schedulertest.OnNode("b"), green, schedulertest.WithAffinity(corev1.LabelHostname, "color", "green"))},
			pod:     schedulertest.TestPod("p", green), want: map[string]int64{"a": 100, "b": 25, "c": 0},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			profile, err := plugins.NewProfile(&test.config)
			if err != nil {
				t.Fatal(err)
			}
			s := snapshottest.New(t, test.nodes)
			s.SetService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}}})
			scoresOf(t, s, test.pod, profile, test.rule, test.weight)
			for _, p := range test.running {
				s.SetPod(snapshottest.PodInfo(t, p))
			}
			if got := scoresOf(t, s, test.pod, profile, test.rule, test.weight); !maps.Equal(got, test.want) {
				t.Errorf("scores %v, want %v", got, test.want)
			}
		})
	}
}

func TestVolumeRules(t *testing.T) {
	const class = "local"
	wait, now := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	claim := func(name string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid-of-claim"},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: ptr.To(class), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}
		for _, f := range change {
			f(c)
		}
		return c
	}
	boundTo := func(pv string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName = pv
			c.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		}
	}
	pv := func(name string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
		}
		for _, f := range change {
			f(v)
		}
		return v
	}
	onNode := func(name string) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) {
			v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{schedulertest.Expression(corev1.LabelHostname, corev1.NodeSelectorOpIn, name)}}}
		}
	}
	csi := func(handle string) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) {
			v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: handle}
		}
	}
	storageClass := func(mode storagev1.VolumeBindingMode, provisioner string) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: provisioner, VolumeBindingMode: &mode}
	}
	uses := func(name string) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
		}
	}
	disk := func(readOnly bool) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "d", VolumeSource: corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "d", ReadOnly: readOnly}}})
		}
	}
	limit := func(node string, n int32) *storagev1.CSINode {
		return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "csi.example.com", Allocatable: &storagev1.VolumeNodeResources{Count: &n}}}}}
	}
	noProvisioner := "kubernetes.io/no-provisioner"
	tests := map[string]struct {
		objects []metav1.Object
		running []*corev1.Pod
		pod     *corev1.Pod
		want    map[string]string
		all     string // refusal of all nodes at once
	}{
		"missing claim": {pod: schedulertest.TestPod("p", uses("c")), all: `persistentvolumeclaim "c" not found`},
		"unbound immediate claim": {
			objects: []metav1.Object{claim("c"), storageClass(now, "x")}, pod: schedulertest.TestPod("p", uses("c")), all: "pod has unbound immediate PersistentVolumeClaims",
		},
		"bound volume of one node": {
			objects: []metav1.Object{claim("c", boundTo("v")), pv("v", onNode("a"))}, pod: schedulertest.TestPod("p", uses("c")), want: map[string]string{"b": snapshot.ReasonNodeConflict},
		},
		"bound volume that is gone": {
			objects: []metav1.Object{claim("c", boundTo("v"))}, pod: schedulertest.TestPod("p", uses("c")), all: `persistentvolume "v" not found`,
		},
		"wait for first consumer, a volume on one node": {
			objects: []metav1.Object{claim("c"), pv("v", onNode("a")), storageClass(wait, noProvisioner)}, pod: schedulertest.TestPod("p", uses("c")), want: map[string]string{"b": snapshot.ReasonBindConflict},
		},
		"wait for first consumer, provisioned anywhere": {
			objects: []metav1.Object{claim("c"), storageClass(wait, "csi.example.com")}, pod: schedulertest.TestPod("p", uses("c")),
		},
		"wait for first consumer, no capacity": {
			objects: []metav1.Object{claim("c"), storageClass(wait, "csi.example.com"), &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "csi.example.com"}, Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr.To(true)}},
				&storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "y"}, StorageClassName: class, Capacity: ptr.To(resource.MustParse("5Gi")), NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: "b"}}}},
			pod: schedulertest.TestPod("p", uses("c")), want: map[string]string{"a": snapshot.ReasonNotEnoughSpace},
		},
		"zone": {
			objects: []metav1.Object{claim("c", boundTo("v")), pv("v", func(v *corev1.PersistentVolume) { v.Labels = map[string]string{corev1.LabelTopologyZone: "zb__zc"} })},
			pod:     schedulertest.TestPod("p", uses("c")), want: map[string]string{"a": "node(s) had no available volume zone"},
		},
		"limits": {
			objects: []metav1.Object{claim("c", boundTo("v")), claim("c2", boundTo("v2")), pv("v", csi("1")), pv("v2", csi("2")), limit("a", 1), limit("b", 1)},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), uses("c2"))}, pod: schedulertest.TestPod("p", uses("c")), want: map[string]string{"a": "node(s) exceed max volume count"},
		},
		"limits, the same volume twice is one": {
			objects: []metav1.Object{claim("c", boundTo("v")), pv("v", csi("1")), limit("a", 1)},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), uses("c"))}, pod: schedulertest.TestPod("p", uses("c")),
		},
		"disk in use":       {running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), disk(false))}, pod: schedulertest.TestPod("p", disk(true)), want: map[string]string{"a": "node(s) had no available disk"}},
		"disk read by many": {running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), disk(true))}, pod: schedulertest.TestPod("p", disk(true))},
		"claim for one pod": {
			objects: []metav1.Object{claim("c", boundTo("v"), func(c *corev1.PersistentVolumeClaim) {
				c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
			}), pv("v")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), uses("c"))}, pod: schedulertest.TestPod("p", uses("c")), want: map[string]string{"a": plugins.ReadWriteOncePodInUse.Reasons[0], "b": plugins.ReadWriteOncePodInUse.Reasons[0]},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("za")), schedulertest.TestNode("b", schedulertest.Zone("zb"))})
			for _, o := range test.objects {
				s.SetObject(o)
			}
			for _, p := range test.running {
				s.SetPod(snapshottest.PodInfo(t, p))
			}
			if test.all != "" {
				test.want = map[string]string{"a": test.all, "b": test.all}
			} else if test.want == nil {
				test.want = map[string]string{}
			}
			if got := refusalsOf(t, s, test.pod, plugins.DefaultProfile()); !maps.Equal(got, test.want) {
				t.Errorf("refused by %v, want %v", got, test.want)
			}
		})
	}
}

func TestVolumePlanIsAssumedAndReverted(t *testing.T) {
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a")})
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claimOf := func(name string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "u"},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("x"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: size}},
		}
	}
	for _, o := range []metav1.Object{
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &mode},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{StorageClassName: "x", Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable}},
		claimOf("one"), claimOf("two"),
	} {
		s.SetObject(o)
	}
	pod := func(claim string) *corev1.Pod {
		return schedulertest.TestPod("p-"+claim, func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "d", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
		})
	}
	claims, err := s.Volumes.PodVolumeClaims(pod("one"))
	if err != nil {
		t.Fatal(err)
	}
	plan, reasons, err := s.Volumes.FindPodVolumes(claims, s.NodeInfos[0].Node, nil)
	if err != nil || len(reasons) > 0 || len(plan.StaticBindings) != 1 {
		t.Fatalf("plan %+v, %v, %v", plan, reasons, err)
	}
	if err := s.Volumes.AssumePodVolumes(&plan, "a"); err != nil {
		t.Fatal(err)
	}
	if got := refusalsOf(t, s, pod("two"), plugins.DefaultProfile()); got["a"] != snapshot.ReasonBindConflict {
		t.Errorf("the volume is given away twice: %v", got)
	}
	s.Volumes.RevertAssumedPodVolumes(&plan)
	if got := refusalsOf(t, s, pod("two"), plugins.DefaultProfile()); len(got) != 0 {
		t.Errorf("the volume is not free again: %v", got)
	}
}
