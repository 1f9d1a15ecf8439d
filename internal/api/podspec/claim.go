package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// ValidateClaimSpec validates the spec of a claim template, in a pod or in a workload.
func ValidateClaimSpec(spec *corev1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	val := &validator{}
	val.claimSpec(spec, path)
	return val.errs
}

// claimSpec validates the spec of a pod's ephemeral claim.
func (val *validator) claimSpec(spec *corev1.PersistentVolumeClaimSpec, path *field.Path) {
	if len(spec.AccessModes) == 0 {
		val.required(path.Child("accessModes"), "at least 1 access mode is required")
	}
	if spec.Selector != nil {
		val.selector(path.Child("selector"), spec.Selector, false)
	}
	val.accessModes(spec.AccessModes, path.Child("accessModes"))
	storage, set := spec.Resources.Requests[corev1.ResourceStorage]
	storagePath := path.Child("resources").Key(string(corev1.ResourceStorage))
	switch {
	case !set:
		val.required(storagePath, "")
	case storage.Sign() <= 0:
		val.invalid(storagePath, storage.String(), "must be greater than zero")
	}
	if name := ptr.Deref(spec.StorageClassName, ""); name != "" {
		val.subdomain(path.Child("storageClassName"), name)
	}
	optionalOneOf(val, path.Child("volumeMode"), spec.VolumeMode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)
	source, ref := spec.DataSource, spec.DataSourceRef
	if source != nil {
		val.dataSource(source.Name, source.Kind, source.APIGroup, path.Child("dataSource"))
	}
	if ref != nil {
		val.dataSource(ref.Name, ref.Kind, ref.APIGroup, path.Child("dataSourceRef"))
		if namespace := ptr.Deref(ref.Namespace, ""); namespace != "" {
			val.invalidEach(path.Child("dataSourceRef", "namespace"), namespace, validation.ValidateNamespaceName(namespace, false))
		}
	}
	if source != nil && ref != nil {
		if ptr.Deref(ref.Namespace, "") != "" {
			val.invalid(path, path.Child("dataSource"), "may not be specified when dataSourceRef.namespace is specified")
		} else if !equality.Semantic.DeepEqual(source.APIGroup, ref.APIGroup) || source.Kind != ref.Kind || source.Name != ref.Name {
			val.invalid(path, path.Child("dataSource"), "must match dataSourceRef")
		}
	}
	if name := ptr.Deref(spec.VolumeAttributesClassName, ""); name != "" {
		val.subdomain(path.Child("volumeAttributesClassName"), name)
	}
}

func (val *validator) accessModes(modes []corev1.PersistentVolumeAccessMode, path *field.Path) {
	exclusive, shared := false, false
	for _, mode := range modes {
		switch mode {
		case corev1.ReadWriteOncePod:
			exclusive = true
		case corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce:
			shared = true
		default:
			oneOf(val, path, mode, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)
		}
	}
	if exclusive && shared {
		val.forbidden(path, "may not use ReadWriteOncePod with other access modes")
	}
}

func (val *validator) dataSource(name, kind string, group *string, path *field.Path) {
	val.nonEmpty(path.Child("name"), name)
	val.nonEmpty(path.Child("kind"), kind)
	if ptr.Deref(group, "") != "" {
		val.subdomain(path.Child("apiGroup"), *group)
	} else if kind != "PersistentVolumeClaim" {
		val.invalid(path, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup")
	}
}
