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
	refs := references{configMaps: map[string]bool{}, secrets: map[string]bool{}}
	for _, reference := range pod.Spec.ImagePullSecrets {
		refs.secret(reference.Name)
	}
	for _, c := range container.All(&pod.Spec) {
		for _, from := range c.EnvFrom {
			if from.ConfigMapRef != nil {
				refs.configMap(from.ConfigMapRef.Name)
			}
			if from.SecretRef != nil {
				refs.secret(from.SecretRef.Name)
			}
		}
		for _, variable := range c.Env {
			if from := variable.ValueFrom; from != nil && from.ConfigMapKeyRef != nil {
				refs.configMap(from.ConfigMapKeyRef.Name)
			} else if from != nil && from.SecretKeyRef != nil {
				refs.secret(from.SecretKeyRef.Name)
			}
		}
	}
	for i := range pod.Spec.Volumes {
		refs.volume(&pod.Spec.Volumes[i])
	}
	return refs
}

func (r *references) volume(v *corev1.Volume) {
	switch {
	case v.ConfigMap != nil:
		r.configMap(v.ConfigMap.Name)
	case v.Secret != nil:
		r.secret(v.Secret.SecretName)
	case v.CSI != nil && v.CSI.NodePublishSecretRef != nil:
		r.secret(v.CSI.NodePublishSecretRef.Name)
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			if source.ConfigMap != nil {
				r.configMap(source.ConfigMap.Name)
			}
			if source.Secret != nil {
				r.secret(source.Secret.Name)
			}
			r.bundles = r.bundles || source.ClusterTrustBundle != nil
		}
	}
}

func (r *references) configMap(name string) { add(r.configMaps, name) }
func (r *references) secret(name string)    { add(r.secrets, name) }

// add ignores the empty name, which old pods may have.
func add(set map[string]bool, name string) {
	if name != "" {
		set[name] = true
	}
}
