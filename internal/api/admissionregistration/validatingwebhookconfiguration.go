package admissionregistration

import (
	"reflect"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

type validatingConfiguration = admissionregistrationv1.ValidatingWebhookConfiguration

// ValidatingWebhookConfiguration lists webhooks that may refuse requests.
var ValidatingWebhookConfiguration = kind.Of(kind.Definition[*validatingConfiguration]{
	GVK: admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration"), Plural: "validatingwebhookconfigurations", Categories: categories,
	List: &admissionregistrationv1.ValidatingWebhookConfigurationList{},
	Default: func(config *validatingConfiguration) {
		for i := range config.Webhooks {
			hook := &config.Webhooks[i]
			defaultWebhook(&hook.FailurePolicy, &hook.MatchPolicy, &hook.TimeoutSeconds)
			defaultTarget(&hook.NamespaceSelector, &hook.ObjectSelector, &hook.ClientConfig, hook.Rules)
		}
	},
	Validate: func(_ *kind.Request, config, old *validatingConfiguration) field.ErrorList {
		if old != nil {
			return validateWebhooks(asWebhooks(config), asWebhooks(old), true)
		}
		return append(validateWebhooks(asWebhooks(config), nil, false), validateNameOnCreate(config.Name)...)
	},
	Warn: func(config, old *validatingConfiguration) []string {
		return append(warnNameOnUpdate(config.Name, old != nil), warnExcludedResources(asWebhooks(config))...)
	},
	SpecChanged: func(config, old *validatingConfiguration) bool {
		return !reflect.DeepEqual(config.Webhooks, old.Webhooks)
	},
	DenyUnconditionalUpdate: true,
	Columns:                 webhookColumns(),
	Row: func(config *validatingConfiguration, now time.Time) []any {
		return []any{config.Name, int64(len(config.Webhooks)), kind.Age(config.CreationTimestamp, now)}
	},
})

// asWebhooks converts validating webhooks to the type that the common validation takes.
func asWebhooks(config *validatingConfiguration) []webhook {
	hooks := make([]webhook, len(config.Webhooks))
	for i := range config.Webhooks {
		hook := &config.Webhooks[i]
		hooks[i] = webhook{
			Name: hook.Name, ClientConfig: hook.ClientConfig, Rules: hook.Rules, FailurePolicy: hook.FailurePolicy, MatchPolicy: hook.MatchPolicy,
			NamespaceSelector: hook.NamespaceSelector, ObjectSelector: hook.ObjectSelector, SideEffects: hook.SideEffects,
			TimeoutSeconds: hook.TimeoutSeconds, AdmissionReviewVersions: hook.AdmissionReviewVersions, MatchConditions: hook.MatchConditions,
		}
	}
	return hooks
}
