package core

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
	"skiff/internal/resourcename"
)

const (
	notInteger  = "must be an integer"
	notPositive = "must be greater than zero"
)

var (
	containerResources = sets.New(corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage)
	countedResources   = sets.New(
		corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
		corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
		corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
	)
	quotaResources = countedResources.Union(containerResources).Union(sets.New(
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsStorage,
		corev1.ResourceRequestsEphemeralStorage, corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
		corev1.ResourceLimitsEphemeralStorage,
	))
	standardResources = quotaResources.Union(sets.New(corev1.ResourceStorage))
)

func isQuotaHugePages(name corev1.ResourceName) bool {
	return podspec.IsHugePages(name) || strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix)
}

func isQuotaResource(name corev1.ResourceName) bool {
	return quotaResources.Has(name) || isQuotaHugePages(name)
}

func validateResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	if errs := kind.Invalid(path, name, validation.IsQualifiedName(string(name))); len(errs) > 0 {
		return errs
	}
	if !strings.Contains(string(name), "/") && !standardResources.Has(name) && !isQuotaHugePages(name) {
		return field.ErrorList{field.Invalid(path, name, "must be a standard resource type or fully qualified")}
	}
	return nil
}

func validateQuotaResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	errs := validateResourceName(name, path)
	if !strings.Contains(string(name), "/") && !isQuotaResource(name) {
		errs = append(errs, field.Invalid(path, name, "must be a standard resource for quota"))
	}
	return errs
}

// validateQuantity refuses negative amounts, and fractions of integer resources.
func validateQuantity(name corev1.ResourceName, quantity resource.Quantity, path *field.Path) (errs field.ErrorList) {
	if quantity.Sign() < 0 {
		errs = append(errs, field.Invalid(path, quantity.String(), apivalidation.IsNegativeErrorMsg))
	}
	if (countedResources.Has(name) || resourcename.IsExtended(name)) && quantity.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(path, quantity, notInteger))
	}
	return errs
}

func validatePositive(quantity resource.Quantity, path *field.Path) field.ErrorList {
	if quantity.Sign() <= 0 {
		return field.ErrorList{field.Invalid(path, quantity.String(), notPositive)}
	}
	return nil
}

// supported returns an error if value is not among the allowed ones.
func supported[T ~string](path *field.Path, value T, allowed sets.Set[T]) field.ErrorList {
	if allowed.Has(value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, sets.List(allowed))}
}

// required returns an error if value is empty.
func required(path *field.Path, value string) field.ErrorList {
	if value != "" {
		return nil
	}
	return field.ErrorList{field.Required(path, "")}
}
