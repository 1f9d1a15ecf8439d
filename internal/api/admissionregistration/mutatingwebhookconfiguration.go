package admissionregistration

import (
	"reflect"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

type mutatingConfiguration = admissionregistrationv1.MutatingWebhookConfiguration

// MutatingWebhookConfiguration lists webhooks that may change objects before they are stored.
var MutatingWebhookConfiguration = kind.Of(kind.Definition[*mutatingConfiguration]{
	GVK: admissionregistrationv1.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration"), Plural: "mutatingwebhookconfigurations", Categories: categories,
	List: &admissionregistrationv1.MutatingWebhookConfigurationList{},
	Default: func(config *mutatingConfiguration) {
		for i := range config.Webhooks {
			hook := &config.Webhooks[i]
			defaultWebhook(&hook.FailurePolicy, &hook.MatchPolicy, &hook.TimeoutSeconds)
			defaultTarget(&hook.NamespaceSelector, &hook.ObjectSelector, &hook.ClientConfig, hook.Rules)
			kind.SetDefault(&hook.ReinvocationPolicy, admissionregistrationv1.NeverReinvocationPolicy)
		}
	},
	Validate: func(_ *kind.Request, config, old *mutatingConfiguration) field.ErrorList {
		if old != nil {
			return validateWebhooks(config.Webhooks, old.Webhooks, true)
		}
		return append(validateWebhooks(config.Webhooks, nil, false), validateNameOnCreate(config.Name)...)
	},
	Warn: func(config, old *mutatingConfiguration) []string {
		return append(warnNameOnUpdate(config.Name, old != nil), warnExcludedResources(config.Webhooks)...)
	},
	SpecChanged: func(config, old *mutatingConfiguration) bool {
		return !reflect.DeepEqual(config.Webhooks, old.Webhooks)
	},
	DenyUnconditionalUpdate: true,
	Columns:                 webhookColumns(),
	Row: func(config *mutatingConfiguration, now time.Time) []any {
		return []any{config.Name, int64(len(config.Webhooks)), kind.Age(config.CreationTimestamp, now)}
	},
})

func webhookColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Webhooks", "integer", "Webhooks indicates the number of webhooks registered in this configuration"),
		kind.AgeColumn(),
	}
}
