package scheduler

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type nodeOption func(*corev1.Node)

// testNode is a node with 4 CPUs, 32Gi and room for 110 pods, unless the options say otherwise.
func testNode(name string, options ...nodeOption) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("32Gi"),
			corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		}},
	}
	for _, o := range options {
		o(n)
	}
	return n
}

func nodeLabel(key, value string) nodeOption {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func zone(value string) nodeOption { return nodeLabel(corev1.LabelTopologyZone, value) }

func nodeHas(name corev1.ResourceName, quantity string) nodeOption {
	return func(n *corev1.Node) { n.Status.Allocatable[name] = resource.MustParse(quantity) }
}

func taint(key, value string, effect corev1.TaintEffect) nodeOption {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: effect})
	}
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func nodeImage(name string, size int64) nodeOption {
	return func(n *corev1.Node) {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{name}, SizeBytes: size})
	}
}

type podOption func(*corev1.Pod)

// testPod is a pod with one container that asks for nothing.
func testPod(name string, options ...podOption) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec:       corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Containers: []corev1.Container{{Name: "c", Image: "pause"}}},
	}
	for _, o := range options {
		o(p)
	}
	return p
}

func on(node string) podOption { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func asks(name corev1.ResourceName, quantity string) podOption {
	return func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		if c.Resources.Requests == nil {
			c.Resources.Requests = corev1.ResourceList{}
		}
		c.Resources.Requests[name] = resource.MustParse(quantity)
	}
}

func asksCPU(quantity string) podOption    { return asks(corev1.ResourceCPU, quantity) }
func asksMemory(quantity string) podOption { return asks(corev1.ResourceMemory, quantity) }

func labelled(key, value string) podOption {
	return func(p *corev1.Pod) {
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[key] = value
	}
}

func namespace(name string) podOption { return func(p *corev1.Pod) { p.Namespace = name } }
func priority(n int32) podOption      { return func(p *corev1.Pod) { p.Spec.Priority = &n } }
func nominatedTo(node string) podOption {
	return func(p *corev1.Pod) { p.Status.NominatedNodeName = node }
}

func tolerating(t corev1.Toleration) podOption {
	return func(p *corev1.Pod) { p.Spec.Tolerations = append(p.Spec.Tolerations, t) }
}

func selecting(key, value string) podOption {
	return func(p *corev1.Pod) {
		if p.Spec.NodeSelector == nil {
			p.Spec.NodeSelector = map[string]string{}
		}
		p.Spec.NodeSelector[key] = value
	}
}

func port(number int32, ip string, protocol corev1.Protocol) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{HostPort: number, HostIP: ip, Protocol: protocol})
	}
}

func affinityOf(p *corev1.Pod) *corev1.Affinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	return p.Spec.Affinity
}

func requiresNodes(terms ...corev1.NodeSelectorTerm) podOption {
	return func(p *corev1.Pod) {
		affinityOf(p).NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}
	}
}

func expression(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
}

func named(names ...string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: names}}}
}

func podTermOf(topologyKey string, matchLabels map[string]string) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{TopologyKey: topologyKey, LabelSelector: &metav1.LabelSelector{MatchLabels: matchLabels}}
}

func near(topologyKey, key, value string) podOption {
	return func(p *corev1.Pod) {
		a := affinityOf(p)
		if a.PodAffinity == nil {
			a.PodAffinity = &corev1.PodAffinity{}
		}
		a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, podTermOf(topologyKey, map[string]string{key: value}))
	}
}

func away(topologyKey, key, value string) podOption {
	return func(p *corev1.Pod) {
		a := affinityOf(p)
		if a.PodAntiAffinity == nil {
			a.PodAntiAffinity = &corev1.PodAntiAffinity{}
		}
		a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, podTermOf(topologyKey, map[string]string{key: value}))
	}
}

func prefersNear(weight int32, topologyKey, key, value string) podOption {
	return func(p *corev1.Pod) {
		a := affinityOf(p)
		if a.PodAffinity == nil {
			a.PodAffinity = &corev1.PodAffinity{}
		}
		a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.WeightedPodAffinityTerm{Weight: weight, PodAffinityTerm: podTermOf(topologyKey, map[string]string{key: value})})
	}
}

func spread(topologyKey string, maxSkew int32, when corev1.UnsatisfiableConstraintAction, key, value string, more ...func(*corev1.TopologySpreadConstraint)) podOption {
	return func(p *corev1.Pod) {
		c := corev1.TopologySpreadConstraint{TopologyKey: topologyKey, MaxSkew: maxSkew, WhenUnsatisfiable: when, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}}
		for _, m := range more {
			m(&c)
		}
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
	}
}

func infoOf(t testing.TB, pod *corev1.Pod) *PodInfo {
	t.Helper()
	info, err := NewPodInfo(pod)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// cluster makes a snapshot of nodes and of pods that run on them.
func cluster(t testing.TB, nodes []*corev1.Node, running ...*corev1.Pod) *Snapshot {
	t.Helper()
	s := NewSnapshot()
	for _, n := range nodes {
		s.SetNode(n)
	}
	for _, p := range running {
		s.SetPod(infoOf(t, p))
	}
	return s
}

func nodesNamed(n int, options ...func(i int) nodeOption) []*corev1.Node {
	var nodes []*corev1.Node
	for i := range n {
		var own []nodeOption
		for _, o := range options {
			own = append(own, o(i))
		}
		nodes = append(nodes, testNode(fmt.Sprintf("node-%05d", i), own...))
	}
	return nodes
}
