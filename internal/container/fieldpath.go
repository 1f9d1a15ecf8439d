package container

import (
	corev1 "k8s.io/api/core/v1"
)

// FieldPath is how events name a container of a pod, such as spec.containers{web}. It is empty for a container the pod does not have.
func FieldPath(spec *corev1.PodSpec, name string) string {
	for kind, c := range All(spec) {
		if c.Name == name {
			return "spec." + lists[kind] + "{" + name + "}"
		}
	}
	return ""
}
