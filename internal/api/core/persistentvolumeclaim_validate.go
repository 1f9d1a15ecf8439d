package core

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
	"skiff/internal/resourcename"
)

func validateClaim(_ *kind.Request, obj, old *corev1.PersistentVolumeClaim) field.ErrorList {
	errs := validateClaimSpec(&obj.Spec, old, field.NewPath("spec"))
	if old != nil {
		errs = append(errs, validateClaimUpdate(obj, old)...)
	}
	return errs
}

// validateClaimSpec allows stored violations of newer validations in an update.
func validateClaimSpec(spec *corev1.PersistentVolumeClaimSpec, old *corev1.PersistentVolumeClaim, path *field.Path) (errs field.ErrorList) {
	if len(spec.AccessModes) == 0 {
		errs = append(errs, field.Required(path.Child("accessModes"), "at least 1 access mode is required"))
	}
	if spec.Selector != nil {
		lenient := old != nil && len(metavalidation.ValidateLabelSelector(old.Spec.Selector, metavalidation.LabelSelectorValidationOptions{}, nil)) > 0
		errs = append(errs, metavalidation.ValidateLabelSelector(spec.Selector, metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: lenient}, path.Child("selector"))...)
	}
	errs = append(errs, validateAccessModes(spec.AccessModes, path.Child("accessModes"))...)
	storagePath := path.Child("resources").Key(string(corev1.ResourceStorage))
	if storage, set := spec.Resources.Requests[corev1.ResourceStorage]; !set {
		errs = append(errs, field.Required(storagePath, ""))
	} else {
		errs = append(errs, validatePositive(storage, storagePath)...)
	}
	if class := spec.StorageClassName; class != nil && *class != "" {
		errs = append(errs, kind.Invalid(path.Child("storageClassName"), *class, apivalidation.NameIsDNSSubdomain(*class, false))...)
	}
	if spec.VolumeMode != nil {
		errs = append(errs, supported(path.Child("volumeMode"), *spec.VolumeMode, volumeModes)...)
	}
	errs = append(errs, validateDataSources(spec, old, path)...)
	if class := spec.VolumeAttributesClassName; class != nil && *class != "" {
		errs = append(errs, kind.Invalid(path.Child("volumeAttributesClassName"), *class, apivalidation.NameIsDNSSubdomain(*class, false))...)
	}
	return errs
}

func validateDataSources(spec *corev1.PersistentVolumeClaimSpec, old *corev1.PersistentVolumeClaim, path *field.Path) (errs field.ErrorList) {
	anyGroup := old != nil && (old.Spec.DataSource != nil && old.Spec.DataSource.APIGroup != nil || old.Spec.DataSourceRef != nil && old.Spec.DataSourceRef.APIGroup != nil)
	source, ref := spec.DataSource, spec.DataSourceRef
	if source != nil {
		errs = append(errs, validateDataSource(source.APIGroup, source.Kind, source.Name, anyGroup, path.Child("dataSource"))...)
	}
	if ref == nil {
		return errs
	}
	errs = append(errs, validateDataSource(ref.APIGroup, ref.Kind, ref.Name, anyGroup, path.Child("dataSourceRef"))...)
	if ref.Namespace != nil && *ref.Namespace != "" {
		errs = append(errs, kind.Invalid(path.Child("dataSourceRef", "namespace"), *ref.Namespace, apivalidation.ValidateNamespaceName(*ref.Namespace, false))...)
		if source != nil {
			errs = append(errs, field.Invalid(path, path.Child("dataSource"), "may not be specified when dataSourceRef.namespace is specified"))
		}
	} else if source != nil && !(reflect.DeepEqual(source.APIGroup, ref.APIGroup) && source.Kind == ref.Kind && source.Name == ref.Name) {
		errs = append(errs, field.Invalid(path, path.Child("dataSource"), "must match dataSourceRef"))
	}
	return errs
}

func validateDataSource(apiGroup *string, sourceKind, name string, anyGroup bool, path *field.Path) field.ErrorList {
	errs := required(path.Child("name"), name)
	errs = append(errs, required(path.Child("kind"), sourceKind)...)
	if apiGroup == nil || *apiGroup == "" {
		if sourceKind != "PersistentVolumeClaim" {
			errs = append(errs, field.Invalid(path, sourceKind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup"))
		}
	} else if !anyGroup {
		errs = append(errs, kind.Invalid(path.Child("apiGroup"), *apiGroup, validation.IsDNS1123Subdomain(*apiGroup))...)
	}
	return errs
}

// validateClaimUpdate: a claim is immutable, except that it may be bound, expanded, get a class if it had none, and change
// its attributes class once it is bound.
func validateClaimUpdate(obj, old *corev1.PersistentVolumeClaim) (errs field.ErrorList) {
	changed, before := obj.DeepCopy(), old.DeepCopy()
	normalizeDataSources(&before.Spec)
	if before.Spec.VolumeName == "" {
		before.Spec.VolumeName = changed.Spec.VolumeName
	}
	const classAnnotation = corev1.BetaStorageClassAnnotation
	newClass, oldClass := obj.Spec.StorageClassName, old.Spec.StorageClassName
	newAnnotation, newAnnotated := obj.Annotations[classAnnotation]
	oldAnnotation, oldAnnotated := old.Annotations[classAnnotation]
	given := newClass != nil && oldClass == nil
	if given && oldAnnotated && *newClass == oldAnnotation && (!newAnnotated || newAnnotation == oldAnnotation) {
		// The class moves from the old annotation into its field.
		changed.Spec.StorageClassName = nil
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, classAnnotation, oldAnnotation)
	} else {
		if newAnnotation != oldAnnotation {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations", classAnnotation), newAnnotation, apivalidation.FieldImmutableErrorMsg))
		}
		if given && (!oldAnnotated || *newClass == oldAnnotation) {
			changed.Spec.StorageClassName = before.Spec.StorageClassName
		}
	}
	if obj.Status.Phase == corev1.ClaimBound {
		if changed.Spec.Resources.Requests != nil {
			changed.Spec.Resources.Requests[corev1.ResourceStorage] = old.Spec.Resources.Requests[corev1.ResourceStorage]
		}
		changed.Spec.VolumeAttributesClassName = before.Spec.VolumeAttributesClassName
	}
	if !equality.Semantic.DeepEqual(changed.Spec, before.Spec) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"),
			fmt.Sprintf("spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n%v", diff.Diff(before.Spec, changed.Spec))))
	}
	errs = append(errs, validateClaimSize(obj, old)...)
	errs = append(errs, apivalidation.ValidateImmutableField(obj.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
	return append(errs, validateAttributesClassChange(obj, old)...)
}

// validateClaimSize: after a failed expansion a claim may request less, but never less than its capacity.
func validateClaimSize(obj, old *corev1.PersistentVolumeClaim) field.ErrorList {
	size, before := obj.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]
	if size.Cmp(before) < 0 && size.Cmp(old.Status.Capacity[corev1.ResourceStorage]) <= 0 {
		return field.ErrorList{field.Forbidden(field.NewPath("spec", "resources", "requests", "storage"), "field can not be less than status.capacity")}
	}
	return nil
}

func validateAttributesClassChange(obj, old *corev1.PersistentVolumeClaim) field.ErrorList {
	class := obj.Spec.VolumeAttributesClassName
	if old.Status.CurrentVolumeAttributesClassName == nil || equality.Semantic.DeepEqual(old.Spec.VolumeAttributesClassName, class) {
		return nil
	}
	path := field.NewPath("spec", "volumeAttributesClassName")
	switch {
	case class == nil:
		return field.ErrorList{field.Forbidden(path, "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil")}
	case *class == "":
		return field.ErrorList{field.Forbidden(path, "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil")}
	}
	return nil
}

var resizeStatuses = sets.New(
	corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible,
	corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress,
	corev1.PersistentVolumeClaimNodeResizeInfeasible,
)

func validateClaimStatus(_ *kind.Request, obj, _ *corev1.PersistentVolumeClaim) (errs field.ErrorList) {
	if len(obj.Spec.AccessModes) == 0 {
		errs = append(errs, field.Required(field.NewPath("Spec", "accessModes"), ""))
	}
	valid := func(list corev1.ResourceList, name corev1.ResourceName, path *field.Path) {
		if quantity := list[name]; quantity.Value() < 0 {
			errs = append(errs, field.Invalid(path.Key(string(name)), quantity.Value(), "must be a valid resource quantity"))
		}
	}
	for name := range obj.Status.Capacity {
		valid(obj.Status.Capacity, name, field.NewPath("status", "capacity"))
	}
	path := field.NewPath("status", "allocatedResourceStatuses")
	for name, status := range obj.Status.AllocatedResourceStatuses {
		errs = append(errs, validateClaimResource(name, path)...)
		if !resizeStatuses.Has(status) {
			errs = append(errs, field.NotSupported(path, name, sets.List(resizeStatuses)))
		}
	}
	path = field.NewPath("status", "allocatedResources")
	for name := range obj.Status.AllocatedResources {
		if wrong := validateClaimResource(name, path); len(wrong) > 0 {
			errs = append(errs, wrong...)
		} else {
			valid(obj.Status.AllocatedResources, name, path)
		}
	}
	return errs
}

func validateClaimResource(name corev1.ResourceName, path *field.Path) field.ErrorList {
	if errs := kind.Invalid(path, name, validation.IsQualifiedName(string(name))); len(errs) > 0 {
		return errs
	}
	if resourcename.IsNative(name) && name != corev1.ResourceStorage {
		return field.ErrorList{field.NotSupported(path, name, []corev1.ResourceName{corev1.ResourceStorage})}
	}
	return nil
}
