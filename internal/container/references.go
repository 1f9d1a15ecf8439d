package container

import (
	"fmt"
	"iter"

	corev1 "k8s.io/api/core/v1"
)

// SecretNames yields the names of all secrets a pod references.
func SecretNames(spec *corev1.PodSpec) iter.Seq[string] {
	return func(yield func(string) bool) {
		visit := func(name string) bool { return name == "" || yield(name) }
		for _, reference := range spec.ImagePullSecrets {
			if !visit(reference.Name) {
				return
			}
		}
		for _, c := range All(spec) {
			for _, from := range c.EnvFrom {
				if from.SecretRef != nil && !visit(from.SecretRef.Name) {
					return
				}
			}
			for _, env := range c.Env {
				if env.ValueFrom != nil && env.ValueFrom.SecretKeyRef != nil && !visit(env.ValueFrom.SecretKeyRef.Name) {
					return
				}
			}
		}
		for i := range spec.Volumes {
			for _, name := range volumeSecrets(&spec.Volumes[i].VolumeSource) {
				if !visit(name) {
					return
				}
			}
		}
	}
}

// volumeSecrets returns the names of the secrets a volume references.
func volumeSecrets(v *corev1.VolumeSource) (names []string) {
	local := func(reference *corev1.LocalObjectReference) {
		if reference != nil {
			names = append(names, reference.Name)
		}
	}
	switch {
	case v.Secret != nil:
		names = append(names, v.Secret.SecretName)
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			if source.Secret != nil {
				local(&source.Secret.LocalObjectReference)
			}
		}
	case v.CSI != nil:
		local(v.CSI.NodePublishSecretRef)
	case v.AzureFile != nil:
		names = append(names, v.AzureFile.SecretName)
	case v.CephFS != nil:
		local(v.CephFS.SecretRef)
	case v.Cinder != nil:
		local(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		local(v.FlexVolume.SecretRef)
	case v.RBD != nil:
		local(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		local(v.ScaleIO.SecretRef)
	case v.ISCSI != nil:
		local(v.ISCSI.SecretRef)
	case v.StorageOS != nil:
		local(v.StorageOS.SecretRef)
	}
	return names
}

// usesConfigMap reports whether a pod references a config map.
func usesConfigMap(spec *corev1.PodSpec) bool {
	for _, c := range All(spec) {
		for _, from := range c.EnvFrom {
			if from.ConfigMapRef != nil && from.ConfigMapRef.Name != "" {
				return true
			}
		}
		for _, env := range c.Env {
			if env.ValueFrom != nil && env.ValueFrom.ConfigMapKeyRef != nil && env.ValueFrom.ConfigMapKeyRef.Name != "" {
				return true
			}
		}
	}
	for _, volume := range spec.Volumes {
		if volume.ConfigMap != nil && volume.ConfigMap.Name != "" {
			return true
		}
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if source.ConfigMap != nil && source.ConfigMap.Name != "" {
				return true
			}
		}
	}
	return false
}

// ReferredObject returns the first resource that a pod references, "" if there is none. An unknown volume source is an
// error, because it could reference anything.
func ReferredObject(spec *corev1.PodSpec) (string, error) {
	if spec.ServiceAccountName != "" {
		return "serviceaccounts", nil
	}
	for range SecretNames(spec) {
		return "secrets", nil
	}
	if usesConfigMap(spec) {
		return "configmaps", nil
	}
	if len(spec.ResourceClaims) > 0 {
		return "resourceclaims", nil
	}
	for i := range spec.Volumes {
		if referred, err := referredByVolume(&spec.Volumes[i]); referred != "" || err != nil {
			return referred, err
		}
	}
	return "", nil
}

func referredByVolume(v *corev1.Volume) (string, error) {
	switch {
	case v.AWSElasticBlockStore != nil, v.AzureDisk != nil, v.CephFS != nil, v.Cinder != nil, v.DownwardAPI != nil,
		v.EmptyDir != nil, v.FC != nil, v.FlexVolume != nil, v.Flocker != nil, v.GCEPersistentDisk != nil, v.GitRepo != nil,
		v.HostPath != nil, v.Image != nil, v.ISCSI != nil, v.NFS != nil, v.PhotonPersistentDisk != nil, v.PortworxVolume != nil,
		v.Quobyte != nil, v.RBD != nil, v.ScaleIO != nil, v.StorageOS != nil, v.VsphereVolume != nil:
		return "", nil
	case v.ConfigMap != nil:
		return "configmaps (via configmap volumes)", nil
	case v.Secret != nil:
		return "secrets (via secret volumes)", nil
	case v.CSI != nil:
		return "csidrivers (via CSI volumes)", nil
	case v.Glusterfs != nil:
		return "endpoints (via glusterFS volumes)", nil
	case v.PersistentVolumeClaim != nil:
		return "persistentvolumeclaims", nil
	case v.Ephemeral != nil:
		return "persistentvolumeclaims (via ephemeral volumes)", nil
	case v.AzureFile != nil:
		return "secrets (via azureFile volumes)", nil
	case v.Projected != nil:
		return referredByProjection(v)
	}
	return "", fmt.Errorf("unknown volume type for volume  %q", v.Name)
}

func referredByProjection(v *corev1.Volume) (string, error) {
	for _, s := range v.Projected.Sources {
		switch {
		case s.ConfigMap != nil:
			return "configmaps (via projected volumes)", nil
		case s.Secret != nil:
			return "secrets (via projected volumes)", nil
		case s.ServiceAccountToken != nil:
			return "serviceaccounts (via projected volumes)", nil
		case s.ClusterTrustBundle != nil:
			return "clustertrustbundles", nil
		case s.PodCertificate != nil:
			return "podcertificates", nil
		case s.DownwardAPI == nil:
			return "", fmt.Errorf("unknown source for projected volume %q", v.Name)
		}
	}
	return "", nil
}
