package schedulertest

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type NodeOption func(*corev1.Node)

// TestNode is a node with 4 CPUs, 32Gi and 110 pods allocatable, unless options change it.
func TestNode(name string, options ...NodeOption) *corev1.Node {
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

func NodeLabel(key, value string) NodeOption {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func Zone(value string) NodeOption { return NodeLabel(corev1.LabelTopologyZone, value) }

func NodeHas(name corev1.ResourceName, quantity string) NodeOption {
	return func(n *corev1.Node) { n.Status.Allocatable[name] = resource.MustParse(quantity) }
}

func Taint(key, value string, effect corev1.TaintEffect) NodeOption {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: effect})
	}
}

func Cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func NodeImage(name string, size int64) NodeOption {
	return func(n *corev1.Node) {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{name}, SizeBytes: size})
	}
}

type PodOption func(*corev1.Pod)

// TestPod is a pod with one container without requests.
func TestPod(name string, options ...PodOption) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec:       corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Containers: []corev1.Container{{Name: "c", Image: "pause"}}},
	}
	for _, o := range options {
		o(p)
	}
	return p
}

func OnNode(node string) PodOption { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func Requesting(name corev1.ResourceName, quantity string) PodOption {
	return func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		if c.Resources.Requests == nil {
			c.Resources.Requests = corev1.ResourceList{}
		}
		c.Resources.Requests[name] = resource.MustParse(quantity)
	}
}

func RequestingCPU(quantity string) PodOption    { return Requesting(corev1.ResourceCPU, quantity) }
func RequestingMemory(quantity string) PodOption { return Requesting(corev1.ResourceMemory, quantity) }

func Labelled(key, value string) PodOption {
	return func(p *corev1.Pod) {
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[key] = value
	}
}

func Namespace(name string) PodOption { return func(p *corev1.Pod) { p.Namespace = name } }
func Priority(n int32) PodOption      { return func(p *corev1.Pod) { p.Spec.Priority = &n } }
func NominatedTo(node string) PodOption {
	return func(p *corev1.Pod) { p.Status.NominatedNodeName = node }
}

func Tolerating(t corev1.Toleration) PodOption {
	return func(p *corev1.Pod) { p.Spec.Tolerations = append(p.Spec.Tolerations, t) }
}

func Selecting(key, value string) PodOption {
	return func(p *corev1.Pod) {
		if p.Spec.NodeSelector == nil {
			p.Spec.NodeSelector = map[string]string{}
		}
		p.Spec.NodeSelector[key] = value
	}
}

func Port(number int32, ip string, protocol corev1.Protocol) PodOption {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{HostPort: number, HostIP: ip, Protocol: protocol})
	}
}

func AffinityOf(p *corev1.Pod) *corev1.Affinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	return p.Spec.Affinity
}

func RequiresNodes(terms ...corev1.NodeSelectorTerm) PodOption {
	return func(p *corev1.Pod) {
		AffinityOf(p).NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}
	}
}

func Expression(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
}

func Named(names ...string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: names}}}
}

func PodTermOf(topologyKey string, matchLabels map[string]string) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{TopologyKey: topologyKey, LabelSelector: &metav1.LabelSelector{MatchLabels: matchLabels}}
}

func WithAffinity(topologyKey, key, value string) PodOption {
	return func(p *corev1.Pod) {
		a := AffinityOf(p)
		if a.PodAffinity == nil {
			a.PodAffinity = &corev1.PodAffinity{}
		}
		a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, PodTermOf(topologyKey, map[string]string{key: value}))
	}
}

func WithAntiAffinity(topologyKey, key, value string) PodOption {
	return func(p *corev1.Pod) {
		a := AffinityOf(p)
		if a.PodAntiAffinity == nil {
			a.PodAntiAffinity = &corev1.PodAntiAffinity{}
		}
		a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, PodTermOf(topologyKey, map[string]string{key: value}))
	}
}

func WithPreferredAffinity(weight int32, topologyKey, key, value string) PodOption {
	return func(p *corev1.Pod) {
		a := AffinityOf(p)
		if a.PodAffinity == nil {
			a.PodAffinity = &corev1.PodAffinity{}
		}
		a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.WeightedPodAffinityTerm{Weight: weight, PodAffinityTerm: PodTermOf(topologyKey, map[string]string{key: value})})
	}
}

// Spread adds a topology spread constraint for the pods with a label, given as "key=value".
func Spread(topologyKey string, maxSkew int32, when corev1.UnsatisfiableConstraintAction, label string, more ...func(*corev1.TopologySpreadConstraint)) PodOption {
	key, value, _ := strings.Cut(label, "=")
	return func(p *corev1.Pod) {
		c := corev1.TopologySpreadConstraint{TopologyKey: topologyKey, MaxSkew: maxSkew, WhenUnsatisfiable: when, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}}
		for _, m := range more {
			m(&c)
		}
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
	}
}

func TestNodes(n int, options ...func(i int) NodeOption) []*corev1.Node {
	var nodes []*corev1.Node
	for i := range n {
		var own []NodeOption
		for _, o := range options {
			own = append(own, o(i))
		}
		nodes = append(nodes, TestNode(fmt.Sprintf("node-%05d", i), own...))
	}
	return nodes
}
