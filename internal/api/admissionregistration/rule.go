package admissionregistration

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

var (
	failurePolicies      = []admissionregistrationv1.FailurePolicyType{admissionregistrationv1.Fail, admissionregistrationv1.Ignore}
	matchPolicies        = []admissionregistrationv1.MatchPolicyType{admissionregistrationv1.Equivalent, admissionregistrationv1.Exact}
	scopes               = []admissionregistrationv1.ScopeType{admissionregistrationv1.AllScopes, admissionregistrationv1.ClusterScope, admissionregistrationv1.NamespacedScope}
	operations           = []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll, admissionregistrationv1.Connect, admissionregistrationv1.Create, admissionregistrationv1.Delete, admissionregistrationv1.Update}
	mutatingOperations   = []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll, admissionregistrationv1.Connect, admissionregistrationv1.Create, admissionregistrationv1.Update}
	reinvocationPolicies = []admissionregistrationv1.ReinvocationPolicyType{admissionregistrationv1.IfNeededReinvocationPolicy, admissionregistrationv1.NeverReinvocationPolicy}
)

// validateOneOf validates an enumeration. The value may be absent unless required.
func validateOneOf[T ~string](value *T, allowed []T, required bool, path *field.Path) field.ErrorList {
	switch {
	case value == nil && required:
		return field.ErrorList{field.Required(path, "")}
	case value != nil && !slices.Contains(allowed, *value):
		return field.ErrorList{field.NotSupported(path, *value, allowed)}
	}
	return nil
}

func defaultRule(rule *admissionregistrationv1.Rule) {
	kind.SetDefault(&rule.Scope, admissionregistrationv1.AllScopes)
}

func defaultMatchResources(match *admissionregistrationv1.MatchResources) {
	if match == nil {
		return
	}
	kind.SetDefault(&match.MatchPolicy, admissionregistrationv1.Equivalent)
	kind.SetDefault(&match.NamespaceSelector, metav1.LabelSelector{})
	kind.SetDefault(&match.ObjectSelector, metav1.LabelSelector{})
	for i := range match.ResourceRules {
		defaultRule(&match.ResourceRules[i].Rule)
	}
	for i := range match.ExcludeResourceRules {
		defaultRule(&match.ExcludeResourceRules[i].Rule)
	}
}

// validateConstraints validates what a policy applies to, which is required.
func validateConstraints(match *admissionregistrationv1.MatchResources, path *field.Path) field.ErrorList {
	if match == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := validateMatchResources(match, path)
	if len(match.ResourceRules) == 0 {
		errs = append(errs, field.Required(path.Child("resourceRules"), ""))
	}
	return errs
}

func validateMatchResources(match *admissionregistrationv1.MatchResources, path *field.Path) field.ErrorList {
	if match == nil {
		return nil
	}
	errs := validateOneOf(match.MatchPolicy, matchPolicies, true, path.Child("matchPolicy"))
	for _, selector := range []struct {
		name  string
		value *metav1.LabelSelector
	}{{"namespaceSelector", match.NamespaceSelector}, {"objectSelector", match.ObjectSelector}} {
		if selector.value == nil {
			errs = append(errs, field.Required(path.Child(selector.name), ""))
			continue
		}
		errs = append(errs, metavalidation.ValidateLabelSelector(selector.value, metavalidation.LabelSelectorValidationOptions{}, path.Child(selector.name))...)
	}
	for i := range match.ResourceRules {
		errs = append(errs, validateNamedRule(&match.ResourceRules[i], path.Child("resourceRules").Index(i))...)
	}
	for i := range match.ExcludeResourceRules {
		errs = append(errs, validateNamedRule(&match.ExcludeResourceRules[i], path.Child("excludeResourceRules").Index(i))...)
	}
	return errs
}

// validateMutable: an object that is being deleted cannot be mutated.
func validateMutable(match *admissionregistrationv1.MatchResources, path *field.Path) field.ErrorList {
	if match == nil {
		return nil
	}
	var errs field.ErrorList
	for _, rule := range match.ResourceRules {
		for _, operation := range rule.Operations {
			errs = append(errs, validateOneOf(&operation, mutatingOperations, true, path.Child("resourceRules", "operations"))...)
		}
	}
	return errs
}

func validateNamedRule(rule *admissionregistrationv1.NamedRuleWithOperations, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, name := range rule.ResourceNames {
		idxPath := path.Child("resourceNames").Index(i)
		for _, message := range content.IsPathSegmentName(name) {
			errs = append(errs, field.Invalid(idxPath, name, message))
		}
		if seen.Has(name) {
			errs = append(errs, field.Duplicate(idxPath, name))
		}
		seen.Insert(name)
	}
	return append(errs, validateRule(&rule.RuleWithOperations, path)...)
}

func validateRule(rule *admissionregistrationv1.RuleWithOperations, path *field.Path) field.ErrorList {
	errs := validateList(rule.Operations, "operations", path.Child("operations"))
	for i := range rule.Operations {
		errs = append(errs, validateOneOf(&rule.Operations[i], operations, true, path.Child("operations").Index(i))...)
	}
	errs = append(errs, validateList(rule.APIGroups, "API groups", path.Child("apiGroups"))...)
	errs = append(errs, validateList(rule.APIVersions, "API versions", path.Child("apiVersions"))...)
	for i, version := range rule.APIVersions {
		if version == "" {
			errs = append(errs, field.Required(path.Child("apiVersions").Index(i), ""))
		}
	}
	errs = append(errs, validateResources(rule.Resources, path.Child("resources"))...)
	return append(errs, validateOneOf(rule.Scope, scopes, false, path.Child("scope"))...)
}

// validateList: a list must not be empty, and an asterisk must be its only entry.
func validateList[T ~string](list []T, what string, path *field.Path) field.ErrorList {
	switch {
	case len(list) == 0:
		return field.ErrorList{field.Required(path, "")}
	case len(list) > 1 && slices.Contains(list, "*"):
		return field.ErrorList{field.Invalid(path, list, "if '*' is present, must not specify other "+what)}
	}
	return nil
}

// validateResources validates a list of resources, each with or without a subresource. A wildcard may not cover another
// entry.
func validateResources(resources []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(resources) == 0 {
		errs = append(errs, field.Required(path, ""))
	}
	allSubresources, allResources := sets.New[string](), sets.New[string]()
	plainAfterWildcard := false
	for i, entry := range resources {
		idxPath := path.Index(i)
		if entry == "" {
			errs = append(errs, field.Required(idxPath, ""))
			continue
		}
		resource, subresource, divided := strings.Cut(entry, "/")
		if !divided {
			plainAfterWildcard = entry != "*"
			continue
		}
		if allSubresources.Has(resource) {
			errs = append(errs, field.Invalid(idxPath, entry, fmt.Sprintf("if '%s/*' is present, must not specify %s", resource, entry)))
		}
		if allResources.Has(subresource) {
			errs = append(errs, field.Invalid(idxPath, entry, fmt.Sprintf("if '*/%s' is present, must not specify %s", subresource, entry)))
		}
		if subresource == "*" {
			allSubresources.Insert(resource)
		}
		if resource == "*" {
			allResources.Insert(subresource)
		}
	}
	if len(resources) > 1 && slices.Contains(resources, "*/*") {
		errs = append(errs, field.Invalid(path, resources, "if '*/*' is present, must not specify other resources"))
	}
	if slices.Contains(resources, "*") && plainAfterWildcard {
		errs = append(errs, field.Invalid(path, resources, "if '*' is present, must not specify other resources without subresources"))
	}
	return errs
}
