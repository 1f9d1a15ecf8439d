package core

import (
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

var (
	volumeAccessModes = sets.New(corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOncePod)
	volumeModes       = sets.New(corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)
	reclaimPolicies   = sets.New(corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain)
)

func validatePersistentVolume(_ *kind.Request, obj, old *corev1.PersistentVolume) field.ErrorList {
	lenient := old != nil && old.Spec.NodeAffinity != nil && hasInvalidLabelValue(old.Spec.NodeAffinity.Required)
	errs := validatePersistentVolumeSpec(&obj.Spec, obj.Name, false, lenient, field.NewPath("spec"))
	errs = append(errs, validateMountOptions(obj)...)
	if old != nil {
		errs = append(errs, validatePersistentVolumeUpdate(obj, old)...)
	}
	return errs
}

// ValidateInlineVolume validates the inline volume of a VolumeAttachment.
func ValidateInlineVolume(spec *corev1.PersistentVolumeSpec, path *field.Path) field.ErrorList {
	return validatePersistentVolumeSpec(spec, "", true, false, path)
}

func validatePersistentVolumeSpec(spec *corev1.PersistentVolumeSpec, name string, inline, lenient bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if inline {
		errs = validateInline(spec, at)
	}
	if len(spec.AccessModes) == 0 {
		errs = append(errs, field.Required(at.Child("accessModes"), ""))
	}
	errs = append(errs, validateAccessModes(spec.AccessModes, at.Child("accessModes"))...)
	affine := false
	if !inline {
		errs = append(errs, validateCapacity(spec.Capacity, at.Child("capacity"))...)
		if spec.PersistentVolumeReclaimPolicy != "" {
			errs = append(errs, supported(at.Child("persistentVolumeReclaimPolicy"), spec.PersistentVolumeReclaimPolicy, reclaimPolicies)...)
		}
		if affinity := spec.NodeAffinity; affinity != nil {
			affine = true
			if affinity.Required == nil {
				errs = append(errs, field.Required(at.Child("nodeAffinity", "required"), "must specify required node constraints"))
			} else {
				errs = append(errs, podspec.ValidateNodeSelector(affinity.Required, lenient, at.Child("nodeAffinity", "required"))...)
			}
		}
	}
	errs = append(errs, validateVolumeSources(spec, name, affine, at)...)
	if spec.HostPath != nil && path.Clean(spec.HostPath.Path) == "/" && spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		errs = append(errs, field.Forbidden(at.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'"))
	}
	if !inline {
		if spec.StorageClassName != "" {
			errs = append(errs, kind.Invalid(at.Child("storageClassName"), spec.StorageClassName, apivalidation.NameIsDNSSubdomain(spec.StorageClassName, false))...)
		}
		if spec.VolumeMode != nil {
			errs = append(errs, supported(at.Child("volumeMode"), *spec.VolumeMode, volumeModes)...)
		}
	}
	if class := spec.VolumeAttributesClassName; class != nil {
		if *class == "" {
			errs = append(errs, field.Required(at.Child("volumeAttributesClassName"), "an empty string is disallowed"))
		} else {
			errs = append(errs, kind.Invalid(at.Child("volumeAttributesClassName"), *class, apivalidation.NameIsDNSSubdomain(*class, false))...)
		}
		if spec.CSI == nil {
			errs = append(errs, field.Required(at.Child("csi"), "has to be specified when using volumeAttributesClassName"))
		}
	}
	return errs
}

// validateInline: an inline volume has a source and nothing else, in particular no claim and no class.
func validateInline(spec *corev1.PersistentVolumeSpec, at *field.Path) (errs field.ErrorList) {
	const inlineVolumes = "in the context of inline volumes"
	forbid := func(set bool, name string) {
		if set {
			errs = append(errs, field.Forbidden(at.Child(name), "may not be specified "+inlineVolumes))
		}
	}
	forbid(spec.ClaimRef != nil, "claimRef")
	forbid(len(spec.Capacity) > 0, "capacity")
	if spec.CSI == nil {
		errs = append(errs, field.Required(at.Child("csi"), "has to be specified "+inlineVolumes))
	}
	if policy := spec.PersistentVolumeReclaimPolicy; policy != "" && policy != corev1.PersistentVolumeReclaimRetain {
		errs = append(errs, field.Forbidden(at.Child("persistentVolumeReclaimPolicy"), "may only be "+string(corev1.PersistentVolumeReclaimRetain)+" "+inlineVolumes))
	}
	forbid(spec.NodeAffinity != nil, "nodeAffinity")
	forbid(spec.StorageClassName != "", "storageClassName")
	if spec.VolumeMode != nil && *spec.VolumeMode != corev1.PersistentVolumeFilesystem {
		errs = append(errs, field.Forbidden(at.Child("volumeMode"), "may not specify volumeMode other than "+string(corev1.PersistentVolumeFilesystem)+" "+inlineVolumes))
	}
	return errs
}

func validateAccessModes(modes []corev1.PersistentVolumeAccessMode, at *field.Path) (errs field.ErrorList) {
	once, others := false, false
	for _, mode := range modes {
		errs = append(errs, supported(at, mode, volumeAccessModes)...)
		if mode == corev1.ReadWriteOncePod {
			once = true
		} else if volumeAccessModes.Has(mode) {
			others = true
		}
	}
	if once && others {
		errs = append(errs, field.Forbidden(at, "may not use ReadWriteOncePod with other access modes"))
	}
	return errs
}

func validateCapacity(capacity corev1.ResourceList, at *field.Path) (errs field.ErrorList) {
	if len(capacity) == 0 {
		errs = append(errs, field.Required(at, ""))
	}
	if _, storage := capacity[corev1.ResourceStorage]; !storage || len(capacity) > 1 {
		errs = append(errs, field.NotSupported(at, capacity, []corev1.ResourceName{corev1.ResourceStorage}))
	}
	for name, quantity := range capacity {
		if quantity.Value() < 0 {
			errs = append(errs, field.Invalid(at.Key(string(name)), quantity.Value(), "must be a valid resource quantity"))
		}
		errs = append(errs, validatePositive(quantity, at.Key(string(name)))...)
	}
	return errs
}

// validateMountOptions: the old annotation is valid only with the volume types that supported it.
func validateMountOptions(obj *corev1.PersistentVolume) field.ErrorList {
	if _, set := obj.Annotations[corev1.MountOptionAnnotation]; !set {
		return nil
	}
	switch source := obj.Spec.PersistentVolumeSource; {
	case source.GCEPersistentDisk != nil, source.AWSElasticBlockStore != nil, source.Glusterfs != nil, source.NFS != nil,
		source.RBD != nil, source.Quobyte != nil, source.ISCSI != nil, source.Cinder != nil, source.CephFS != nil,
		source.AzureFile != nil, source.VsphereVolume != nil, source.AzureDisk != nil, source.PhotonPersistentDisk != nil:
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("metadata", "annotations", corev1.MountOptionAnnotation), "may not specify mount options for this volume type")}
}

func validatePersistentVolumeUpdate(obj, old *corev1.PersistentVolume) (errs field.ErrorList) {
	source := obj.Spec.PersistentVolumeSource
	if old.Spec.CSI != nil && old.Spec.CSI.ControllerExpandSecretRef == nil && source.CSI != nil {
		// The secret for expansion may be added later, once.
		source = *source.DeepCopy()
		source.CSI.ControllerExpandSecretRef = nil
	}
	if !equality.Semantic.DeepEqual(source, old.Spec.PersistentVolumeSource) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "persistentvolumesource"),
			fmt.Sprintf("spec.persistentvolumesource is immutable after creation\n%v", diff.Diff(old.Spec.PersistentVolumeSource, source))))
	}
	errs = append(errs, apivalidation.ValidateImmutableField(obj.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
	if old.Spec.NodeAffinity != nil && !equality.Semantic.DeepEqual(obj.Spec.NodeAffinity, withGALabels(old.Spec.NodeAffinity, obj.Spec.NodeAffinity)) {
		errs = append(errs, field.Invalid(field.NewPath("nodeAffinity"), obj.Spec.NodeAffinity, apivalidation.FieldImmutableErrorMsg+", except for updating from beta label to GA"))
	}
	if old.Spec.VolumeAttributesClassName != nil && obj.Spec.VolumeAttributesClassName == nil {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "volumeAttributesClassName"), "update from non-nil value to nil is forbidden"))
	}
	return errs
}

// gaLabels are the labels that had a beta name.
var gaLabels = map[string]string{
	corev1.LabelFailureDomainBetaZone:   corev1.LabelTopologyZone,
	corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
	corev1.LabelInstanceType:            corev1.LabelInstanceTypeStable,
	"beta.kubernetes.io/os":             corev1.LabelOSStable,
	"beta.kubernetes.io/arch":           corev1.LabelArchStable,
}

// withGALabels is the old affinity with those labels renamed that the new one has renamed.
func withGALabels(old, changed *corev1.VolumeNodeAffinity) *corev1.VolumeNodeAffinity {
	old = old.DeepCopy()
	if old.Required == nil || changed == nil || changed.Required == nil {
		return old
	}
	rename := func(before, after []corev1.NodeSelectorRequirement) {
		for i := range before[:min(len(before), len(after))] {
			if ga := gaLabels[before[i].Key]; ga != "" && ga == after[i].Key {
				before[i].Key = ga
			}
		}
	}
	terms := changed.Required.NodeSelectorTerms
	for i, term := range old.Required.NodeSelectorTerms[:min(len(old.Required.NodeSelectorTerms), len(terms))] {
		rename(term.MatchExpressions, terms[i].MatchExpressions)
		rename(term.MatchFields, terms[i].MatchFields)
	}
	return old
}

func hasInvalidLabelValue(selector *corev1.NodeSelector) bool {
	if selector == nil {
		return false
	}
	for _, term := range selector.NodeSelectorTerms {
		for _, requirement := range term.MatchExpressions {
			for _, value := range requirement.Values {
				if len(validation.IsValidLabelValue(value)) > 0 {
					return true
				}
			}
		}
	}
	return false
}

// accessModes formats access modes for tables: RWO,ROX,RWX,RWOP, each once, always in this order.
func accessModes(modes []corev1.PersistentVolumeAccessMode) string {
	has := sets.New(modes...)
	var short []string
	for _, mode := range []struct {
		mode corev1.PersistentVolumeAccessMode
		text string
	}{{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"}} {
		if has.Has(mode.mode) {
			short = append(short, mode.text)
		}
	}
	return strings.Join(short, ",")
}
