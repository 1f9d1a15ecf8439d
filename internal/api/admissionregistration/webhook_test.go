package admissionregistration

import (
	"reflect"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind/kindtest"
)

func rule(change func(*admissionregistrationv1.RuleWithOperations)) admissionregistrationv1.RuleWithOperations {
	rule := admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{"CREATE"},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
	}
	if change != nil {
		change(&rule)
	}
	return rule
}

func configuration(changes ...func(*webhook)) *mutatingConfiguration {
	config := &mutatingConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	if len(changes) == 0 {
		changes = []func(*webhook){nil}
	}
	for _, change := range changes {
		hook := webhook{
			Name: "a.example.com", SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://example.com/hook")},
			Rules:        []admissionregistrationv1.RuleWithOperations{rule(nil)},
		}
		if change != nil {
			change(&hook)
		}
		config.Webhooks = append(config.Webhooks, hook)
	}
	return config
}

// validating converts the configuration to the other kind.
func validating(config *mutatingConfiguration) *validatingConfiguration {
	out := &validatingConfiguration{ObjectMeta: config.ObjectMeta}
	for _, hook := range config.Webhooks {
		out.Webhooks = append(out.Webhooks, admissionregistrationv1.ValidatingWebhook{
			Name: hook.Name, ClientConfig: hook.ClientConfig, Rules: hook.Rules, FailurePolicy: hook.FailurePolicy, MatchPolicy: hook.MatchPolicy,
			NamespaceSelector: hook.NamespaceSelector, ObjectSelector: hook.ObjectSelector, SideEffects: hook.SideEffects,
			TimeoutSeconds: hook.TimeoutSeconds, AdmissionReviewVersions: hook.AdmissionReviewVersions, MatchConditions: hook.MatchConditions,
		})
	}
	return out
}

func TestWebhooks(t *testing.T) {
	type change = func(*webhook)
	url := func(url string) change { return func(h *webhook) { h.ClientConfig.URL = &url } }
	service := func(service admissionregistrationv1.ServiceReference) change {
		return func(h *webhook) { h.ClientConfig = admissionregistrationv1.WebhookClientConfig{Service: &service} }
	}
	condition := func(conditions ...admissionregistrationv1.MatchCondition) change {
		return func(h *webhook) { h.MatchConditions = conditions }
	}
	for _, test := range []struct {
		name   string
		change change
		want   []string
	}{
		{name: "valid"},
		{name: "name", change: func(h *webhook) { h.Name = "a" }, want: []string{"webhooks[0].name: Invalid value: should be a domain with at least three segments"}},
		{name: "policies", change: func(h *webhook) {
			h.FailurePolicy, h.MatchPolicy = ptr.To(admissionregistrationv1.FailurePolicyType("x")), ptr.To(admissionregistrationv1.MatchPolicyType("x"))
		}, want: []string{"webhooks[0].failurePolicy: Unsupported value", "webhooks[0].matchPolicy: Unsupported value"}},
		{name: "side effects", change: func(h *webhook) { h.SideEffects = ptr.To(admissionregistrationv1.SideEffectClassSome) }, want: []string{"webhooks[0].sideEffects: Unsupported value"}},
		{name: "no side effects", change: func(h *webhook) { h.SideEffects = nil }, want: []string{"webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun"}},
		{name: "timeout", change: func(h *webhook) { h.TimeoutSeconds = ptr.To[int32](31) }, want: []string{"webhooks[0].timeoutSeconds: Invalid value: the timeout value must be between 1 and 30 seconds"}},
		{name: "selector", change: func(h *webhook) {
			h.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b b"}}
		}, want: []string{"webhooks[0].objectSelector.matchLabels: Invalid value"}},
		{name: "no versions", change: func(h *webhook) { h.AdmissionReviewVersions = nil }, want: []string{"webhooks[0].admissionReviewVersions: Required value: must specify one of v1, v1beta1"}},
		{name: "versions", change: func(h *webhook) { h.AdmissionReviewVersions = []string{"v9", "v9", "9"} }, want: []string{
			"webhooks[0].admissionReviewVersions[1]: Invalid value: duplicate version", "webhooks[0].admissionReviewVersions[2]: Invalid value",
			"webhooks[0].admissionReviewVersions: Invalid value: must include at least one of v1, v1beta1"}},
		{name: "no client", change: func(h *webhook) { h.ClientConfig.URL = nil }, want: []string{"webhooks[0].clientConfig: Required value: exactly one of url or service is required"}},
		{name: "url", change: url("http://u@/?q#f"), want: []string{
			"webhooks[0].clientConfig.url: Invalid value: 'https' is the only allowed URL scheme", "webhooks[0].clientConfig.url: Invalid value: host must be specified",
			"webhooks[0].clientConfig.url: Invalid value: user information", "webhooks[0].clientConfig.url: Invalid value: fragments", "webhooks[0].clientConfig.url: Invalid value: query parameters"}},
		{name: "no url", change: url("%"), want: []string{"webhooks[0].clientConfig.url: Required value: url must be a valid URL"}},
		{name: "service", change: service(admissionregistrationv1.ServiceReference{Name: "n", Namespace: "ns", Path: ptr.To("/a/b/")})},
		{name: "bad service", change: service(admissionregistrationv1.ServiceReference{Namespace: "ns", Port: ptr.To[int32](0), Path: ptr.To("a//B")}), want: []string{
			"webhooks[0].clientConfig.service.name: Required value", "webhooks[0].clientConfig.service.port: Invalid value: port is not valid",
			"webhooks[0].clientConfig.service.path: Invalid value: must start with a '/'", "webhooks[0].clientConfig.service.path: Invalid value: segment[0] may not be empty", "webhooks[0].clientConfig.service.path: Invalid value: segment[1] may not be empty", "webhooks[0].clientConfig.service.path: Invalid value: segment[2]"}},
		{name: "condition", change: condition(admissionregistrationv1.MatchCondition{Name: "a", Expression: "object.metadata.name == 'x' && authorizer.group('').resource('pods').check('get').allowed()"})},
		{name: "conditions", change: condition(
			admissionregistrationv1.MatchCondition{Name: "a", Expression: "nosuch"}, admissionregistrationv1.MatchCondition{Name: "a", Expression: "1"},
			admissionregistrationv1.MatchCondition{}, admissionregistrationv1.MatchCondition{Name: "-", Expression: "params == null"}), want: []string{
			"webhooks[0].matchConditions[0].expression: Invalid value: compilation failed", "webhooks[0].matchConditions[1].expression: Invalid value: must evaluate to bool but got int",
			"webhooks[0].matchConditions[1].name: Duplicate value", "webhooks[0].matchConditions[2].expression: Required value", "webhooks[0].matchConditions[2].name: Required value",
			"webhooks[0].matchConditions[3].name: Invalid value", "webhooks[0].matchConditions[3].expression: Invalid value: undeclared reference to 'params'"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(MutatingWebhookConfiguration, nil, configuration(test.change))
			kindtest.Errors(t, errs, test.want...)
			_, errs = kindtest.Create(ValidatingWebhookConfiguration, nil, validating(configuration(test.change)))
			kindtest.Errors(t, errs, test.want...)
		})
	}
	_, errs := kindtest.Create(MutatingWebhookConfiguration, nil, configuration(func(h *webhook) { h.ReinvocationPolicy = ptr.To(admissionregistrationv1.ReinvocationPolicyType("x")) }, nil))
	kindtest.Errors(t, errs, "webhooks[0].reinvocationPolicy: Unsupported value", "webhooks[1].name: Duplicate value")
	static := configuration()
	static.Name = "a.static.k8s.io"
	_, errs = kindtest.Create(MutatingWebhookConfiguration, nil, static)
	kindtest.Errors(t, errs, "metadata.name: Invalid value: names ending with \".static.k8s.io\" are reserved")
	_, errs = kindtest.Update(MutatingWebhookConfiguration, nil, static, static)
	kindtest.Errors(t, errs)
}

func TestRules(t *testing.T) {
	type change = func(*admissionregistrationv1.RuleWithOperations)
	resources := func(resources ...string) change {
		return func(r *admissionregistrationv1.RuleWithOperations) { r.Resources = resources }
	}
	for _, test := range []struct {
		name   string
		change change
		want   []string
	}{
		{name: "subresources", change: resources("pods", "pods/*", "*/scale")},
		{name: "empty", change: func(r *admissionregistrationv1.RuleWithOperations) { *r = admissionregistrationv1.RuleWithOperations{} }, want: []string{
			"webhooks[0].rules[0].operations: Required value", "webhooks[0].rules[0].apiGroups: Required value", "webhooks[0].rules[0].apiVersions: Required value", "webhooks[0].rules[0].resources: Required value"}},
		{name: "asterisks", change: func(r *admissionregistrationv1.RuleWithOperations) {
			r.Operations, r.APIGroups, r.APIVersions = []admissionregistrationv1.OperationType{"*", "EAT"}, []string{"*", "a"}, []string{"*", ""}
		}, want: []string{
			"webhooks[0].rules[0].operations: Invalid value: must not specify other operations", "webhooks[0].rules[0].operations[1]: Unsupported value",
			"webhooks[0].rules[0].apiGroups: Invalid value: other API groups", "webhooks[0].rules[0].apiVersions: Invalid value: other API versions", "webhooks[0].rules[0].apiVersions[1]: Required value"}},
		{name: "scope", change: func(r *admissionregistrationv1.RuleWithOperations) {
			r.Scope = ptr.To(admissionregistrationv1.ScopeType("x"))
		}, want: []string{"webhooks[0].rules[0].scope: Unsupported value"}},
		{name: "all and one", change: resources("*", "pods", ""), want: []string{"webhooks[0].rules[0].resources: Invalid value: other resources without subresources", "webhooks[0].rules[0].resources[2]: Required value"}},
		{name: "everything and one", change: resources("*/*", "a"), want: []string{"webhooks[0].rules[0].resources: Invalid value: if '*/*' is present"}},
		{name: "covered", change: resources("a/*", "a/b", "*/c", "d/c"), want: []string{"webhooks[0].rules[0].resources[1]: Invalid value: if 'a/*' is present, must not specify a/b", "webhooks[0].rules[0].resources[3]: Invalid value: if '*/c' is present, must not specify d/c"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(MutatingWebhookConfiguration, nil, configuration(func(h *webhook) { h.Rules[0] = rule(test.change) }))
			kindtest.Errors(t, errs, test.want...)
		})
	}
}

func TestStoredWebhooksKeepTheirSins(t *testing.T) {
	sin := func(h *webhook) {
		h.SideEffects, h.AdmissionReviewVersions = ptr.To(admissionregistrationv1.SideEffectClassUnknown), []string{"v9"}
		h.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "a", Expression: "nosuch"}}
		h.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "In", Values: []string{"b b"}}}}
	}
	old := configuration(sin, sin)
	_, errs := kindtest.Update(MutatingWebhookConfiguration, nil, configuration(sin, sin), old)
	kindtest.Errors(t, errs)
	_, errs = kindtest.Update(MutatingWebhookConfiguration, nil, configuration(sin, func(h *webhook) {
		h.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "b", Expression: "nosuch"}}
	}), old)
	kindtest.Errors(t, errs, "webhooks[0].matchConditions[0].expression: Invalid value", "webhooks[1].matchConditions[0].expression: Invalid value")
}

func TestWebhookDefaults(t *testing.T) {
	config := configuration(func(h *webhook) {
		h.ClientConfig = admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{}}
	})
	MutatingWebhookConfiguration.Default(config)
	hook := config.Webhooks[0]
	if *hook.FailurePolicy != "Fail" || *hook.MatchPolicy != "Equivalent" || *hook.TimeoutSeconds != 10 || *hook.ReinvocationPolicy != "Never" ||
		hook.NamespaceSelector == nil || hook.ObjectSelector == nil || *hook.ClientConfig.Service.Port != 443 || *hook.Rules[0].Scope != "*" {
		t.Errorf("defaults = %+v", hook)
	}
	again := config.DeepCopy()
	MutatingWebhookConfiguration.Default(again)
	if MutatingWebhookConfiguration.SpecChanged(again, config) {
		t.Error("defaults are not idempotent")
	}
	again.Webhooks[0].Name = "b.example.com"
	if !MutatingWebhookConfiguration.SpecChanged(again, config) {
		t.Error("a change of the hooks must raise the generation")
	}
}

func TestWebhookWarnings(t *testing.T) {
	config := configuration(func(h *webhook) {
		h.Rules = []admissionregistrationv1.RuleWithOperations{
			rule(func(r *admissionregistrationv1.RuleWithOperations) {
				r.APIGroups, r.Resources = []string{"*"}, []string{"tokenreviews"}
			}),
			rule(func(r *admissionregistrationv1.RuleWithOperations) {
				r.APIGroups, r.Resources = []string{"authentication.k8s.io"}, []string{"tokenreviews", "tokenreviews", "x"}
			}),
		}
	})
	config.Name = "a.static.k8s.io"
	want := []string{"webhooks[0].rules[1]: tokenreviews.authentication.k8s.io is excluded from admission webhooks; this rule will have no effect"}
	if got := MutatingWebhookConfiguration.Warn(config, nil); !reflect.DeepEqual(got, want) {
		t.Errorf("warnings = %q, want %q", got, want)
	}
	if got := MutatingWebhookConfiguration.Warn(config, config); len(got) != 2 {
		t.Errorf("warnings = %q, want one more about the name", got)
	}
}

func TestWebhookRow(t *testing.T) {
	if got, want := MutatingWebhookConfiguration.Row(configuration(nil, nil), time.Now()), []any{"c", int64(2), "<unknown>"}; !reflect.DeepEqual(got, want) {
		t.Errorf("row = %v, want %v", got, want)
	}
}
