package differential

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"skiff/internal/scheduler/plugins"
)

// pluginsWithHints are the plugins whose queueing hints are compared: those about nodes, resources, affinity and topology spread.
var pluginsWithHints = []string{"NodeName", "NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit", "PodTopologySpread", "InterPodAffinity", "NodeDeclaredFeatures", "SchedulingGates"}

// ourActions maps upstream's action types to skiff's.
var ourActions = map[fwk.ActionType]plugins.Action{
	fwk.Add: plugins.Add, fwk.Delete: plugins.Delete, fwk.UpdateNodeAllocatable: plugins.UpdateNodeAllocatable, fwk.UpdateNodeLabel: plugins.UpdateNodeLabel,
	fwk.UpdateNodeTaint: plugins.UpdateNodeTaint, fwk.UpdateNodeDeclaredFeature: plugins.UpdateNodeFeature, fwk.UpdatePodLabel: plugins.UpdatePodLabel,
	fwk.UpdatePodScaleDown: plugins.UpdatePodScaleDown, fwk.UpdatePodToleration: plugins.UpdatePodToleration, fwk.UpdatePodSchedulingGatesEliminated: plugins.UpdatePodGates,
	fwk.UpdatePodGeneratedResourceClaim: plugins.UpdatePodClaims, fwk.Update: plugins.Update,
}

var ourResources = map[fwk.EventResource]plugins.Resource{fwk.Node: plugins.NodeResource, fwk.AssignedPod: plugins.AssignedPod, fwk.TargetPod: plugins.TargetPod}

// change is a change of one object in a cluster.
type change struct {
	event    fwk.ClusterEvent
	old, now any
}

// changes returns a random change: an update may have several action types.
func (w *randomCluster) changes(target *corev1.Pod) (pod *corev1.Pod, all []change) {
	one := func(resource fwk.EventResource, action fwk.ActionType, old, now any) []change {
		return []change{{fwk.ClusterEvent{Resource: resource, ActionType: action}, old, now}}
	}
	several := func(events []fwk.ClusterEvent, old, now any) (all []change) {
		for _, e := range events {
			all = append(all, change{e, old, now})
		}
		return all
	}
	onNode := func(name string) *corev1.Pod {
		p := w.pod(name, false)
		p.Spec.NodeName = w.nodes[w.random.IntN(len(w.nodes))].Name
		return p
	}
	switch w.random.IntN(7) {
	case 0:
		return target, one(fwk.Node, fwk.Add, nil, w.node(90))
	case 1:
		return target, one(fwk.Node, fwk.Delete, w.node(91), nil)
	case 2:
		old, now := w.node(92), w.node(92)
		if w.oneIn(3) { // a small change
			now = old.DeepCopy()
			switch w.random.IntN(4) {
			case 0:
				now.Labels["disk"] = w.pick("ssd", "hdd")
			case 1:
				now.Spec.Taints = nil
			case 2:
				now.Spec.Unschedulable = !old.Spec.Unschedulable
			case 3:
				now.Status.Allocatable["cpu"] = quantities("cpu", w.pick("1", "2", "16"))["cpu"]
			}
		}
		if w.oneIn(4) {
			now.Status.DeclaredFeatures = []string{"UserNamespacesHostNetworkSupport"}
		}
		return target, several(framework.NodeSchedulingPropertiesChange(now, old), old, now)
	case 3:
		return target, one(fwk.AssignedPod, fwk.Add, nil, onNode("added"))
	case 4:
		p := onNode("removed")
		if w.oneIn(5) {
			p.Status.NominatedNodeName, p.Spec.NodeName = p.Spec.NodeName, ""
		}
		return target, one(fwk.AssignedPod, fwk.Delete, p, nil)
	case 5:
		old := onNode("changed")
		now := old.DeepCopy()
		if w.oneIn(2) {
			now.Labels["color"] = w.pick("green", "blue", "red", "grey")
		} else {
			now.Spec.Containers[0].Resources.Requests = w.container("c").Resources.Requests
		}
		return target, several(framework.PodSchedulingPropertiesChange(now, old, false), old, now)
	}
	now := target.DeepCopy()
	switch w.random.IntN(5) {
	case 0:
		now.Labels["color"] = w.pick("green", "blue", "red", "grey")
	case 1:
		now.Spec.Tolerations = append(now.Spec.Tolerations, corev1.Toleration{Key: w.pick("dedicated", corev1.TaintNodeUnschedulable), Operator: corev1.TolerationOpExists})
	case 2:
		now.Spec.Containers[0].Resources.Requests = w.container("c").Resources.Requests
	case 3:
		off := false
		now.Spec.HostNetwork, now.Spec.HostUsers = true, &off
	case 4:
		target = target.DeepCopy()
		target.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "gate"}}
		if w.oneIn(2) {
			now.Spec.SchedulingGates = target.Spec.SchedulingGates
		}
	}
	return now, several(framework.PodSchedulingPropertiesChange(now, target, true), target, now)
}

// hasNamespaceSelector reports whether a pod's affinity terms have a namespace selector. Upstream's hints do not resolve it and miss
// such pods; skiff's hints do.
func hasNamespaceSelector(object any) bool {
	p, ok := object.(*corev1.Pod)
	if !ok || p == nil || p.Spec.Affinity == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	if a := p.Spec.Affinity.PodAffinity; a != nil {
		terms = append(terms, a.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	if a := p.Spec.Affinity.PodAntiAffinity; a != nil {
		terms = append(terms, a.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool { return t.NamespaceSelector != nil })
}

// TestHintsAreUpstreams compares which changes may make a pod schedulable that a plugin has rejected.
func TestHintsAreUpstreams(t *testing.T) {
	klog.SetLogger(logr.Discard())
	skiffHints := map[string][]plugins.QueueingHint{}
	for _, maker := range plugins.Registry {
		name, err := maker.Make(nil)
		if err != nil {
			t.Fatal(err)
		}
		if h, ok := name.(plugins.HintPlugin); ok {
			skiffHints[maker.Name] = h.Hints()
		}
	}
	compared, helpful := map[string]int{}, map[string]int{}
	for seed := *first; seed < *first+uint64(*clusters)/3; seed++ {
		w := newRandomCluster(seed)
		var pods []*corev1.Pod
		for i := range 5 {
			pods = append(pods, w.pod(fmt.Sprintf("new-%d", i), true))
		}
		ctx, cancel := context.WithCancel(t.Context())
		upstreamSide, err := newUpstreamScheduler(ctx, w, pods)
		if err != nil {
			t.Fatal(err)
		}
		snapshot, err := newSkiffSnapshot(w, pods)
		if err != nil {
			t.Fatal(err)
		}
		upstreamHints := map[string][]fwk.ClusterEventWithHint{}
		for _, plugin := range upstreamSide.framework.EnqueueExtensions() {
			if upstreamHints[plugin.Name()], err = plugin.EventsToRegister(ctx); err != nil {
				t.Fatal(err)
			}
		}
		for range 60 {
			pod, changes := w.changes(pods[w.random.IntN(len(pods))])
			for _, c := range changes {
				for _, name := range pluginsWithHints {
					want := slices.ContainsFunc(upstreamHints[name], func(h fwk.ClusterEventWithHint) bool {
						if h.Event.Resource != c.event.Resource || h.Event.ActionType&c.event.ActionType == 0 {
							return false
						}
						if h.QueueingHintFn == nil {
							return true
						}
						hint, err := h.QueueingHintFn(logr.Discard(), pod, c.old, c.now)
						return err != nil || hint == fwk.Queue
					})
					got := slices.ContainsFunc(skiffHints[name], func(h plugins.QueueingHint) bool {
						return h.Resource == ourResources[c.event.Resource] && h.Action&ourActions[c.event.ActionType] != 0 && (h.Helps == nil || h.Helps(snapshot, pod, c.old, c.now))
					})
					compared[name]++
					if want {
						helpful[name]++
					}
					if got != want && !(got && name == "InterPodAffinity" && (hasNamespaceSelector(pod) || hasNamespaceSelector(c.old) || hasNamespaceSelector(c.now))) {
						t.Errorf("cluster %d: %s, %s: helps is %t, upstream says %t\npod %+v\nold %+v\nnow %+v", seed, name, c.event.Label(), got, want, pod.Spec, c.old, c.now)
					}
				}
			}
		}
		if cancel(); t.Failed() {
			return
		}
	}
	t.Logf("compared %v, may help %v", compared, helpful)
	for _, name := range pluginsWithHints {
		if *clusters >= 150 && helpful[name] < 10 {
			t.Errorf("%s: only %d of %d changes may help, too few to compare", name, helpful[name], compared[name])
		}
	}
}
