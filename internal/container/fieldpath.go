package container

import (
	corev1 "k8s.io/api/core/v1"
)

// FieldPath returns the field path of a container in events, such as spec.containers{web}. It is empty if the pod has no
// such container.
func FieldPath(spec *corev1.PodSpec, name string) string {
	for kind, c := range All(spec) {
		if c.Name == name {
			return "spec." + listFields[kind] + "{" + name + "}"
		}
	}
	return ""
}
