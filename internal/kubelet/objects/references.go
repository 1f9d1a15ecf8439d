package objects

import (
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/container"
)

// references are the objects a pod references, in its own namespace except for trust bundles, which are cluster-scoped.
type references struct {
	configMaps, secrets map[string]bool
	bundles             bool
}

// referencesOf returns all references of a pod to objects that its node reads.
func referencesOf(pod *corev1.Pod) references {
	n := references{configMaps: map[string]bool{}, secrets: map[string]bool{}}
	for _, reference := range pod.Spec.ImagePullSecrets {
		n.secret(reference.Name)
	}
	for _, c := range container.All(&pod.Spec) {
		for _, from := range c.EnvFrom {
			if from.ConfigMapRef != nil {
				n.configMap(from.ConfigMapRef.Name)
			}
			if from.SecretRef != nil {
				n.secret(from.SecretRef.Name)
			}
		}
		for _, variable := range c.Env {
			if from := variable.ValueFrom; from != nil && from.ConfigMapKeyRef != nil {
				n.configMap(from.ConfigMapKeyRef.Name)
			} else if from != nil && from.SecretKeyRef != nil {
				n.secret(from.SecretKeyRef.Name)
			}
		}
	}
	for i := range pod.Spec.Volumes {
		n.volume(&pod.Spec.Volumes[i])
	}
	return n
}

func (n *references) volume(v *corev1.Volume) {
	switch {
	case v.ConfigMap != nil:
		n.configMap(v.ConfigMap.Name)
	case v.Secret != nil:
		n.secret(v.Secret.SecretName)
	case v.CSI != nil && v.CSI.NodePublishSecretRef != nil:
		n.secret(v.CSI.NodePublishSecretRef.Name)
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			if source.ConfigMap != nil {
				n.configMap(source.ConfigMap.Name)
			}
			if source.Secret != nil {
				n.secret(source.Secret.Name)
			}
			n.bundles = n.bundles || source.ClusterTrustBundle != nil
		}
	}
}

func (n *references) configMap(name string) { add(n.configMaps, name) }
func (n *references) secret(name string)    { add(n.secrets, name) }

// add ignores the empty name, which old pods may have.
func add(set map[string]bool, name string) {
	if name != "" {
		set[name] = true
	}
}
