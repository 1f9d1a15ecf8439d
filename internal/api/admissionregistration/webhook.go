package admissionregistration

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/api/webhookconfig"
	"skiff/internal/kind"
)

// The two types of webhooks differ in one field. The validation is written for the one that has it.
type webhook = admissionregistrationv1.MutatingWebhook

// defaultWebhook fills in how a webhook is called.
func defaultWebhook(failure **admissionregistrationv1.FailurePolicyType, match **admissionregistrationv1.MatchPolicyType, timeout **int32) {
	kind.SetDefault(failure, admissionregistrationv1.Fail)
	kind.SetDefault(match, admissionregistrationv1.Equivalent)
	kind.SetDefault(timeout, 10)
}

// defaultTarget fills in which objects a webhook is called for, and its client's port.
func defaultTarget(namespaces, objects **metav1.LabelSelector, client *admissionregistrationv1.WebhookClientConfig, rules []admissionregistrationv1.RuleWithOperations) {
	kind.SetDefault(namespaces, metav1.LabelSelector{})
	kind.SetDefault(objects, metav1.LabelSelector{})
	if client.Service != nil {
		kind.SetDefault(&client.Service.Port, 443)
	}
	for i := range rules {
		defaultRule(&rules[i].Rule)
	}
}

// allowances is what stored webhooks may keep although new ones may not have it.
type allowances struct {
	conditions  bool
	sideEffects bool
	versions    bool
	sameNames   bool
	labels      bool
	stored      sets.Set[string]
}

func allowancesFor(hooks, old []webhook) allowances {
	t := allowances{conditions: len(hooks) == len(old), stored: sets.New[string]()}
	names := sets.New[string]()
	for i := range old {
		hook := &old[i]
		t.conditions = t.conditions && reflect.DeepEqual(hooks[i].MatchConditions, hook.MatchConditions)
		t.sideEffects = t.sideEffects || hook.SideEffects == nil || !slices.Contains(allowedSideEffects, *hook.SideEffects)
		t.versions = t.versions || len(hook.AdmissionReviewVersions) > 0 && !slices.ContainsFunc(hook.AdmissionReviewVersions, isReviewVersion)
		t.sameNames = t.sameNames || names.Has(hook.Name)
		names.Insert(hook.Name)
		for _, selector := range []*metav1.LabelSelector{hook.NamespaceSelector, hook.ObjectSelector} {
			t.labels = t.labels || selector != nil && len(metavalidation.ValidateLabelSelector(selector, metavalidation.LabelSelectorValidationOptions{}, nil)) > 0
		}
		for _, condition := range hook.MatchConditions {
			t.stored.Insert(condition.Expression)
		}
	}
	return t
}

// validateWebhooks validates the webhooks of a configuration; with update, old is the stored list.
func validateWebhooks(hooks, old []webhook, update bool) field.ErrorList {
	var errs field.ErrorList
	var allow allowances
	if update {
		allow = allowancesFor(hooks, old)
	}
	names := sets.New[string]()
	for i := range hooks {
		hook, path := &hooks[i], field.NewPath("webhooks").Index(i)
		errs = append(errs, validateWebhook(hook, allow, path)...)
		errs = append(errs, validateReviewVersions(hook.AdmissionReviewVersions, allow.versions, path.Child("admissionReviewVersions"))...)
		if hook.Name != "" && names.Has(hook.Name) && !allow.sameNames {
			errs = append(errs, field.Duplicate(path.Child("name"), hook.Name))
		}
		names.Insert(hook.Name)
	}
	return errs
}

// allowedSideEffects are the allowed side effects: none that persist after a dry run.
var allowedSideEffects = []admissionregistrationv1.SideEffectClass{admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.SideEffectClassNoneOnDryRun}

func validateWebhook(hook *webhook, allow allowances, path *field.Path) field.ErrorList {
	errs := utilvalidation.IsFullyQualifiedName(path.Child("name"), hook.Name)
	for i := range hook.Rules {
		errs = append(errs, validateRule(&hook.Rules[i], path.Child("rules").Index(i))...)
	}
	errs = append(errs, validateOneOf(hook.FailurePolicy, failurePolicies, false, path.Child("failurePolicy"))...)
	errs = append(errs, validateOneOf(hook.MatchPolicy, matchPolicies, false, path.Child("matchPolicy"))...)
	errs = append(errs, validateOneOf(hook.ReinvocationPolicy, reinvocationPolicies, false, path.Child("reinvocationPolicy"))...)
	allowed := allowedSideEffects
	if allow.sideEffects {
		allowed = append(slices.Clone(allowedSideEffects), admissionregistrationv1.SideEffectClassSome, admissionregistrationv1.SideEffectClassUnknown)
	}
	if hook.SideEffects == nil {
		names := make([]string, len(allowed))
		for i := range allowed {
			names[i] = string(allowed[i])
		}
		errs = append(errs, field.Required(path.Child("sideEffects"), "must specify one of "+strings.Join(names, ", ")))
	}
	errs = append(errs, validateOneOf(hook.SideEffects, allowed, false, path.Child("sideEffects"))...)
	if seconds := hook.TimeoutSeconds; seconds != nil && (*seconds > 30 || *seconds < 1) {
		errs = append(errs, field.Invalid(path.Child("timeoutSeconds"), *seconds, "the timeout value must be between 1 and 30 seconds"))
	}
	options := metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: allow.labels}
	if hook.NamespaceSelector != nil {
		errs = append(errs, metavalidation.ValidateLabelSelector(hook.NamespaceSelector, options, path.Child("namespaceSelector"))...)
	}
	if hook.ObjectSelector != nil {
		errs = append(errs, metavalidation.ValidateLabelSelector(hook.ObjectSelector, options, path.Child("objectSelector"))...)
	}
	errs = append(errs, validateClientConfig(&hook.ClientConfig, path.Child("clientConfig"))...)
	if !allow.conditions {
		errs = append(errs, validateMatchConditions(hook.MatchConditions, allow.stored, false, path.Child("matchConditions"))...)
	}
	return errs
}

var reviewVersions = []string{"v1", "v1beta1"}

func isReviewVersion(version string) bool { return slices.Contains(reviewVersions, version) }

func validateReviewVersions(versions []string, mayBeUnknown bool, path *field.Path) field.ErrorList {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(path, "must specify one of "+strings.Join(reviewVersions, ", "))}
	}
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, version := range versions {
		if seen.Has(version) {
			errs = append(errs, field.Invalid(path.Index(i), version, "duplicate version"))
			continue
		}
		seen.Insert(version)
		for _, message := range utilvalidation.IsDNS1035Label(version) {
			errs = append(errs, field.Invalid(path.Index(i), version, message))
		}
	}
	if !mayBeUnknown && !slices.ContainsFunc(versions, isReviewVersion) {
		errs = append(errs, field.Invalid(path, versions, "must include at least one of "+strings.Join(reviewVersions, ", ")))
	}
	return errs
}

func validateClientConfig(config *admissionregistrationv1.WebhookClientConfig, path *field.Path) field.ErrorList {
	switch {
	case (config.URL == nil) == (config.Service == nil):
		return field.ErrorList{field.Required(path, "exactly one of url or service is required")}
	case config.URL != nil:
		return webhookconfig.ValidateURL(*config.URL, path.Child("url"))
	}
	service := webhookconfig.Service{
		Namespace: config.Service.Namespace, Name: config.Service.Name, Path: ptr.Deref(config.Service.Path, ""), Port: ptr.Deref(config.Service.Port, 0),
	}
	return webhookconfig.ValidateService(service, path.Child("service"))
}

// excludedResources are the resources for which no webhook is called, because webhooks themselves depend on them.
var excludedResources = []schema.GroupResource{
	{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
	{Group: "authentication.k8s.io", Resource: "tokenreviews"},
	{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
	{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
	{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
	{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
}

// warnExcludedResources lists the rules that never match. Wildcards are not listed: they cover everything that can be intercepted.
func warnExcludedResources(hooks []webhook) []string {
	var warnings []string
	for i := range hooks {
		for j, rule := range hooks[i].Rules {
			if slices.Contains(rule.APIGroups, "*") || slices.Contains(rule.Resources, "*") {
				continue
			}
			seen := sets.New[schema.GroupResource]()
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					named := schema.GroupResource{Group: group, Resource: resource}
					if slices.Contains(excludedResources, named) && !seen.Has(named) {
						seen.Insert(named)
						warnings = append(warnings, fmt.Sprintf("webhooks[%d].rules[%d]: %s is excluded from admission webhooks; this rule will have no effect", i, j, named))
					}
				}
			}
		}
	}
	return warnings
}
