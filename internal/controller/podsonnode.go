package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/client"
)

// nodeIndex indexes pods by the name of their node.
const nodeIndex = "node"

// IndexPodsByNode adds the index that PodsOnNode reads to the shared informer of pods.
func IndexPodsByNode(pods client.Informer[*corev1.Pod]) error {
	if err := pods.EnsureIndex(nodeIndex, func(pod *corev1.Pod) []string { return []string{pod.Spec.NodeName} }); err != nil {
		return fmt.Errorf("index pods by node: %w", err)
	}
	return nil
}

// PodsOnNode returns the pods that are bound to a node. The informer must have the index of IndexPodsByNode.
func PodsOnNode(pods client.Informer[*corev1.Pod], node string) []*corev1.Pod {
	// ByIndex fails only if there is no index.
	found, _ := pods.ByIndex(nodeIndex, node)
	return found
}
