package authz

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/apiserver/authn"
)

// growingPod is a pod of a node with a secret of its own, a ConfigMap that all pods use, and a claim.
func growingPod(i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: named("ns", fmt.Sprint("pod-", i)), Spec: corev1.PodSpec{
		NodeName: fmt.Sprint("node-", i), ServiceAccountName: "default", ImagePullSecrets: []corev1.LocalObjectReference{local(fmt.Sprint("secret-", i))},
		Volumes: []corev1.Volume{
			{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local("common")}}},
			{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("claim-", i)}}},
		},
	}}
}

// growingVolume is a volume of a claim, with a secret that all volumes have.
func growingVolume(i int, claim string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: named("", fmt.Sprint("volume-", i)), Spec: corev1.PersistentVolumeSpec{
		ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: claim},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			NodeStageSecretRef: &corev1.SecretReference{Namespace: "kube-system", Name: "storage"},
		}},
	}}
}

// What a change of an object and a request of a node cost does not depend on how many nodes, pods and volumes there are.
func TestNodeGraphSteps(t *testing.T) {
	const small, factor = 20, 4
	read := func(resource, namespace, name string) func(*NodeGraph) {
		return func(g *NodeGraph) {
			a := &Attributes{User: authn.User{Username: "system:node:node-0", Groups: []string{"system:nodes"}}, Verb: "get", ResourceRequest: true, Resource: resource, Namespace: namespace, Name: name}
			if decision, reason, _ := NewNode(g).Authorize(t.Context(), a); decision != Allow {
				t.Errorf("%s %s: %s", resource, name, reason)
			}
		}
	}
	changed := growingPod(0)
	changed.Spec.Volumes = changed.Spec.Volumes[:1]
	for _, action := range []struct {
		name string
		do   func(*NodeGraph)
	}{
		{"pod, added", func(g *NodeGraph) { g.Set(growingPod(1_000_000)) }},
		{"pod, unchanged", func(g *NodeGraph) { g.Set(growingPod(0)) }},
		{"pod, without its claim", func(g *NodeGraph) { g.Set(changed) }},
		{"pod, deleted", func(g *NodeGraph) { g.Delete(growingPod(1)) }},
		{"volume, added", func(g *NodeGraph) { g.Set(growingVolume(1_000_000, "claim-2")) }},
		{"volume, of another claim", func(g *NodeGraph) { g.Set(growingVolume(2, "claim-3")) }},
		{"volume, deleted", func(g *NodeGraph) { g.Delete(growingVolume(4, "claim-4")) }},
		{"read a secret", read("secrets", "ns", "secret-0")},
		{"read a common ConfigMap", read("configmaps", "ns", "common")},
		{"read a claim", read("persistentvolumeclaims", "ns", "claim-0")},
		{"read a volume", read("persistentvolumes", "", "volume-0")},
		{"read the secret of all volumes", read("secrets", "kube-system", "storage")},
		{"read a pod", read("pods", "ns", "pod-0")},
	} {
		var steps [2]int
		for i, n := range []int{small, small * factor} {
			graph := NewNodeGraph()
			for object := range n {
				graph.Set(growingPod(object))
				graph.Set(growingVolume(object, fmt.Sprint("claim-", object)))
			}
			graph.onStep = func() { steps[i]++ }
			action.do(graph)
		}
		if steps[0] != steps[1] || steps[0] > 10 {
			t.Errorf("%s: %d steps among %d objects of each kind, and %d among %d", action.name, steps[0], small, steps[1], small*factor)
		}
	}
}

// Volumes that name the same claim cost as much each as others.
func TestNodeGraphVolumesOfOneClaim(t *testing.T) {
	const small, factor = 50, 4
	var steps [2]int
	for i, n := range []int{small, small * factor} {
		graph := NewNodeGraph()
		graph.onStep = func() { steps[i]++ }
		graph.Set(growingPod(0))
		for volume := range n {
			graph.Set(growingVolume(volume, "claim-0"))
		}
		for volume := range n {
			graph.Delete(growingVolume(volume, "claim-0"))
		}
		if len(graph.volumesByClaim)+len(graph.volumes) != 0 || graph.isRelated(related{relatedSecret, "kube-system", "storage"}, "node-0") {
			t.Error("deleted volumes are still there")
		}
	}
	if steps[1] > factor*steps[0] {
		t.Errorf("%d steps for %d volumes of a claim, and %d for %d", steps[0], small, steps[1], small*factor)
	}
}
