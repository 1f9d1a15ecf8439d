package storage

import (
	"fmt"
	"maps"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

// CSIStorageCapacity is the remaining capacity of a storage class in one part of the cluster.
var CSIStorageCapacity = kind.Of(kind.Definition[*storagev1.CSIStorageCapacity]{
	GVK: storagev1.SchemeGroupVersion.WithKind("CSIStorageCapacity"), Plural: "csistoragecapacities", Namespaced: true,
	List:     &storagev1.CSIStorageCapacityList{},
	Validate: validateCSIStorageCapacity,
	Warn: func(capacity, _ *storagev1.CSIStorageCapacity) []string {
		return warnNodeSelector(capacity.NodeTopology, field.NewPath("nodeTopology"))
	},
	DenyUnconditionalUpdate: true,
})

func validateCSIStorageCapacity(_ *kind.Request, capacity, old *storagev1.CSIStorageCapacity) field.ErrorList {
	topology, class := field.NewPath("nodeTopology"), field.NewPath("storageClassName")
	var options metav1validation.LabelSelectorValidationOptions
	if old != nil {
		options.AllowInvalidLabelValueInSelector = len(metav1validation.ValidateLabelSelector(old.NodeTopology, options, nil)) > 0
	}
	errs := metav1validation.ValidateLabelSelector(capacity.NodeTopology, options, topology)
	for _, message := range validation.NameIsDNSSubdomain(capacity.StorageClassName, false) {
		errs = append(errs, field.Invalid(class, capacity.StorageClassName, message))
	}
	if amount := capacity.Capacity; amount != nil && amount.Cmp(resource.Quantity{}) < 0 {
		errs = append(errs, field.Invalid(field.NewPath("capacity"), amount.String(), validation.IsNegativeErrorMsg))
	}
	if old != nil {
		errs = append(errs, validation.ValidateImmutableField(capacity.NodeTopology, old.NodeTopology, topology)...)
		errs = append(errs, validation.ValidateImmutableField(capacity.StorageClassName, old.StorageClassName, class)...)
	}
	return errs
}

// warnNodeSelector warns of deprecated node labels in a node selector.
func warnNodeSelector(selector *metav1.LabelSelector, path *field.Path) []string {
	if selector == nil {
		return nil
	}
	var warnings []string
	for i, requirement := range selector.MatchExpressions {
		if advice, deprecated := podspec.DeprecatedNodeLabels[requirement.Key]; deprecated {
			warnings = append(warnings, fmt.Sprintf("%s: %s is %s", path.Child("matchExpressions").Index(i).Child("key"), requirement.Key, advice))
		}
	}
	for _, label := range slices.Sorted(maps.Keys(selector.MatchLabels)) {
		if advice, deprecated := podspec.DeprecatedNodeLabels[label]; deprecated {
			warnings = append(warnings, fmt.Sprintf("%s: %s", path.Child("matchLabels").Child(label), advice))
		}
	}
	return warnings
}
