package cri

import (
	"encoding/json"
	"hash/fnv"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"
)

// The labels and annotations of sandboxes and containers. They are upstream's, so that a restarted kubelet finds its containers and
// tools such as crictl recognise them.
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

// Hash is a hash of the fields of a container that cannot change without a restart: its name and image. It is recorded in AnnotationHash
// and equal to upstream's, so that a node can switch kubelets without restarting containers.
func Hash(c *corev1.Container) string {
	// A map of strings always encodes.
	text, _ := json.Marshal(map[string]string{"name": c.Name, "image": c.Image})
	h := fnv.New32a()
	h.Write([]byte(dump.ForHash(text)))
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}
