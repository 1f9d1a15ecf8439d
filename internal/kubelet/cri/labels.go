package cri

import (
	"encoding/json"
	"hash/fnv"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"
)

// The labels and annotations that sandboxes and containers carry. They are upstream's, so that a kubelet that restarts finds its
// containers again, and tools that look at the runtime recognise them.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"

	AnnotationHash                     = "io.kubernetes.container.hash"
	AnnotationRestartCount             = "io.kubernetes.container.restartCount"
	AnnotationTerminationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationTerminationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationPreStop                  = "io.kubernetes.container.preStopHandler"
	AnnotationPorts                    = "io.kubernetes.container.ports"
	AnnotationDeletionGrace            = "io.kubernetes.pod.deletionGracePeriod"
	AnnotationTerminationGrace         = "io.kubernetes.pod.terminationGracePeriod"
)

// Hash identifies what of a container cannot change without a restart: its name and image. It is written into AnnotationHash, and
// is the same as upstream's, so that a node can change its kubelet without restarting containers.
func Hash(c *corev1.Container) string {
	// A map of strings always encodes.
	text, _ := json.Marshal(map[string]string{"name": c.Name, "image": c.Image})
	h := fnv.New32a()
	h.Write([]byte(dump.ForHash(text)))
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}
