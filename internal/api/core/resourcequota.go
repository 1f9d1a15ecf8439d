package core

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

var ResourceQuota = kind.Of(kind.Definition[*corev1.ResourceQuota]{
	GVK: corev1.SchemeGroupVersion.WithKind("ResourceQuota"), Plural: "resourcequotas", Short: []string{"quota"}, Namespaced: true,
	List: &corev1.ResourceQuotaList{},

	Default: func(obj *corev1.ResourceQuota) {
		podspec.RoundUpToMilli(obj.Spec.Hard)
		podspec.RoundUpToMilli(obj.Status.Hard)
		podspec.RoundUpToMilli(obj.Status.Used)
	},
	Validate: validateResourceQuota,
	Warn:     warnResourceQuota,

	CopyStatus: func(to, from *corev1.ResourceQuota) { to.Status = from.Status },
	ValidateStatus: func(_ *kind.Request, obj, _ *corev1.ResourceQuota) field.ErrorList {
		errs := validateHard(obj.Status.Hard, field.NewPath("status", "hard"))
		return append(errs, validateHard(obj.Status.Used, field.NewPath("status", "used"))...)
	},
	ReturnDeleted: true,

	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Request", "string", "Request represents a minimum amount of cpu/memory that a container may consume."),
		kind.Column("Limit", "string", "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node."),
		kind.AgeColumn(),
	},
	Row: func(obj *corev1.ResourceQuota, now time.Time) []any {
		var requests, limits []string
		names := sets.KeySet(obj.Status.Hard)
		for _, name := range sets.List(names) {
			used, hard := obj.Status.Used[name], obj.Status.Hard[name]
			text := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
			if strings.HasPrefix(string(name), "limits.") {
				limits = append(limits, text)
			} else {
				requests = append(requests, text)
			}
		}
		return []any{obj.Name, strings.Join(requests, ", "), strings.Join(limits, ", "), kind.Age(obj.CreationTimestamp, now)}
	},
})

func validateResourceQuota(_ *kind.Request, obj, old *corev1.ResourceQuota) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateHard(obj.Spec.Hard, spec.Child("hard"))
	errs = append(errs, validateScopes(&obj.Spec, spec.Child("scopes"))...)
	if obj.Spec.ScopeSelector != nil {
		errs = append(errs, validateScopeSelector(&obj.Spec, spec.Child("scopeSelector", "matchExpressions"))...)
	}
	if old == nil {
		errs = append(errs, validateHard(obj.Status.Hard, field.NewPath("status", "hard"))...)
		errs = append(errs, validateHard(obj.Status.Used, field.NewPath("status", "used"))...)
	} else if !sets.New(old.Spec.Scopes...).Equal(sets.New(obj.Spec.Scopes...)) {
		errs = append(errs, field.Invalid(spec.Child("scopes"), obj.Spec.Scopes, apivalidation.FieldImmutableErrorMsg))
	}
	return errs
}

func validateHard(list corev1.ResourceList, path *field.Path) (errs field.ErrorList) {
	for name, quantity := range list {
		idxPath := path.Key(string(name))
		errs = append(errs, validateQuotaResourceName(name, idxPath)...)
		errs = append(errs, validateQuantity(name, quantity, idxPath)...)
	}
	return errs
}

var (
	quotaScopes = sets.New(
		corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating,
		corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort,
		corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity,
		corev1.ResourceQuotaScopeVolumeAttributesClass,
	)
	podQuotas = sets.New(
		corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceLimitsCPU,
		corev1.ResourceLimitsMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
	)
	claimQuotas = sets.New(corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage)
)

// scopeFits reports whether a scope applies to a resource of a quota.
func scopeFits(scope corev1.ResourceQuotaScope, name corev1.ResourceName) bool {
	switch scope {
	case corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeNotBestEffort,
		corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return podQuotas.Has(name)
	case corev1.ResourceQuotaScopeBestEffort:
		return name == corev1.ResourcePods
	case corev1.ResourceQuotaScopeVolumeAttributesClass:
		return claimQuotas.Has(name)
	}
	return true
}

func scopesConflict(scopes []corev1.ResourceQuotaScope) (conflicts int) {
	for _, pair := range [][2]corev1.ResourceQuotaScope{
		{corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort},
		{corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating},
	} {
		if slices.Contains(scopes, pair[0]) && slices.Contains(scopes, pair[1]) {
			conflicts++
		}
	}
	return conflicts
}

func validateScopes(spec *corev1.ResourceQuotaSpec, path *field.Path) (errs field.ErrorList) {
	for _, scope := range spec.Scopes {
		if !quotaScopes.Has(scope) {
			errs = append(errs, field.Invalid(path, spec.Scopes, "unsupported scope"))
		}
		for name := range spec.Hard {
			if isQuotaResource(name) && !scopeFits(scope, name) {
				errs = append(errs, field.Invalid(path, spec.Scopes, "unsupported scope applied to resource"))
			}
		}
	}
	for range scopesConflict(spec.Scopes) {
		errs = append(errs, field.Invalid(path, spec.Scopes, "conflicting scopes"))
	}
	return errs
}

func validateScopeSelector(spec *corev1.ResourceQuotaSpec, path *field.Path) (errs field.ErrorList) {
	var scopes []corev1.ResourceQuotaScope
	for _, expression := range spec.ScopeSelector.MatchExpressions {
		if !quotaScopes.Has(expression.ScopeName) {
			errs = append(errs, field.Invalid(path.Child("scopeName"), expression.ScopeName, "unsupported scope"))
		}
		for name := range spec.Hard {
			if isQuotaResource(name) && !scopeFits(expression.ScopeName, name) {
				errs = append(errs, field.Invalid(path, spec.ScopeSelector, "unsupported scope applied to resource"))
			}
		}
		switch expression.ScopeName {
		case corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopeTerminating,
			corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
			if expression.Operator != corev1.ScopeSelectorOpExists {
				errs = append(errs, field.Invalid(path.Child("operator"), expression.Operator,
					"must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"))
			}
		}
		switch expression.Operator {
		case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
			if len(expression.Values) == 0 {
				errs = append(errs, field.Required(path.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"))
			}
		case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
			if len(expression.Values) > 0 {
				errs = append(errs, field.Invalid(path.Child("values"), expression.Values, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"))
			}
		default:
			errs = append(errs, field.Invalid(path.Child("operator"), expression.Operator, "not a valid selector operator"))
		}
		scopes = append(scopes, expression.ScopeName)
	}
	for range scopesConflict(scopes) {
		errs = append(errs, field.Invalid(path, spec.Scopes, "conflicting scopes"))
	}
	return errs
}

func warnResourceQuota(obj, old *corev1.ResourceQuota) (warnings []string) {
	if old != nil {
		return nil
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceStorage, corev1.ResourceEphemeralStorage} {
		requestName, limitName := corev1.DefaultResourceRequestsPrefix+name, "limits."+name
		request, hasRequest := obj.Spec.Hard[requestName]
		if !hasRequest && (name == corev1.ResourceCPU || name == corev1.ResourceMemory) {
			// The plain names of these two mean requests.
			if request, hasRequest = obj.Spec.Hard[name]; hasRequest {
				requestName = name
			}
		}
		limit, hasLimit := obj.Spec.Hard[limitName]
		if hasRequest && hasLimit && request.Cmp(limit) > 0 {
			warnings = append(warnings, fmt.Sprintf("ResourceQuota %s (%s) should be less than %s (%s)", requestName, request.String(), limitName, limit.String()))
		}
	}
	return warnings
}
