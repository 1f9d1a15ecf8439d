// Package workloads has the nodes and pods that schedulers are measured with, after upstream's own measurements of its scheduler: the
// same for skiff and for upstream, through the API and without it.
package workloads

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Workload is a kind of pod. First many pods are there before those that count.
type Workload struct {
	Name string
	// First pods are placed before measuring, and Pods while measuring, on 5,000 nodes.
	First, Pods int
	change      func(*corev1.Pod)
}

// All are the workloads, plain pods first.
var All = []Workload{
	{Name: "plain pods", First: 1000, Pods: 10000, change: func(*corev1.Pod) {}},
	{Name: "pod affinity", First: 1000, Pods: 3000, change: func(p *corev1.Pod) {
		p.Labels = map[string]string{"color": "blue"}
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(corev1.LabelTopologyZone, "blue")}}}
	}},
	{Name: "pod anti-affinity", First: 1000, Pods: 3000, change: func(p *corev1.Pod) {
		p.Labels = map[string]string{"color": "green"}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(corev1.LabelHostname, "green")}}}
	}},
	{Name: "preferred pod affinity", First: 1000, Pods: 3000, change: func(p *corev1.Pod) {
		p.Labels = map[string]string{"color": "red"}
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: term(corev1.LabelHostname, "red")}}}}
	}},
	{Name: "topology spread", First: 1000, Pods: 3000, change: func(p *corev1.Pod) {
		p.Labels = map[string]string{"color": "blue"}
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{spread(corev1.LabelTopologyZone, 5, corev1.DoNotSchedule)}
	}},
	{Name: "preferred topology spread", First: 1000, Pods: 3000, change: func(p *corev1.Pod) {
		p.Labels = map[string]string{"color": "blue"}
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{spread(corev1.LabelTopologyZone, 5, corev1.ScheduleAnyway)}
	}},
}

func term(key, color string) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"color": color}}}
}

func spread(key string, skew int32, action corev1.UnsatisfiableConstraintAction) corev1.TopologySpreadConstraint {
	return corev1.TopologySpreadConstraint{TopologyKey: key, MaxSkew: skew, WhenUnsatisfiable: action, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"color": "blue"}}}
}

// Node has 4 CPUs, 32Gi and room for 110 pods, in one of three zones.
func Node(i int) *corev1.Node {
	name := fmt.Sprintf("node-%d", i)
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3)}},
		Status: corev1.NodeStatus{
			Capacity: resources, Allocatable: resources, Phase: corev1.NodeRunning,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// Pod asks for a tenth of a CPU and 500Mi.
func (w *Workload) Pod(i int) *corev1.Pod {
	name := fmt.Sprintf("pod-%d", i)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Containers: []corev1.Container{{
			Name: "pause", Image: "registry.k8s.io/pause:3.10.1", Ports: []corev1.ContainerPort{{ContainerPort: 80, Protocol: corev1.ProtocolTCP}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("500Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("500Mi")},
			},
		}}},
	}
	w.change(p)
	return p
}
