package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/controllers/apiservice"
	"skiff/internal/pki"
)

// hook is a webhook that requests wait for.
type hook struct {
	// name says whose it is.
	name string
	// isRequired is whether requests fail without it.
	isRequired bool
	// breaks are the requests that fail.
	breaks string
	// unavailable is why its Service has no server; empty: it may have one, or the webhook has a URL.
	unavailable string
	// caExpires is when the last CA of its bundle expires; zero: it has none.
	caExpires time.Time
	// service is its Service; zero: it has a URL.
	service types.NamespacedName
	port    int32
}

// webhookState is all webhooks.
type webhookState struct {
	now   time.Time
	hooks []hook
}

const (
	// definitionPage is how many CustomResourceDefinitions are read at a time: schemas may have a megabyte.
	definitionPage = 25
	// maxHooks bounds the webhooks of which the Services are read.
	maxHooks = 1000
	// webhookPort is the port of a webhook's Service that names none.
	webhookPort = 443
)

// readWebhooks reads the webhooks of admission and of conversion, and the Services behind them.
func (c Cluster) readWebhooks(ctx context.Context) (webhookState, error) {
	s := webhookState{now: time.Now()}
	err := client.For[*admissionregistrationv1.ValidatingWebhookConfiguration](c.Client).EachPage(ctx, "", client.Selector{}, pageSize,
		func(page []*admissionregistrationv1.ValidatingWebhookConfiguration) error {
			for _, configuration := range page {
				for _, w := range configuration.Webhooks {
					s.add("validating webhook "+w.Name+" of "+configuration.Name, w.FailurePolicy, w.Rules, w.ClientConfig)
				}
			}
			return nil
		})
	if err != nil {
		return s, err
	}
	err = client.For[*admissionregistrationv1.MutatingWebhookConfiguration](c.Client).EachPage(ctx, "", client.Selector{}, pageSize,
		func(page []*admissionregistrationv1.MutatingWebhookConfiguration) error {
			for _, configuration := range page {
				for _, w := range configuration.Webhooks {
					s.add("mutating webhook "+w.Name+" of "+configuration.Name, w.FailurePolicy, w.Rules, w.ClientConfig)
				}
			}
			return nil
		})
	if err != nil {
		return s, err
	}
	err = client.For[*apiextensionsv1.CustomResourceDefinition](c.Client).EachPage(ctx, "", client.Selector{}, definitionPage, func(page []*apiextensionsv1.CustomResourceDefinition) error {
		for _, definition := range page {
			s.addConversion(definition)
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	return s, c.readServices(ctx, s.hooks)
}

// add adds a webhook of admission.
func (s *webhookState) add(name string, policy *admissionregistrationv1.FailurePolicyType, rules []admissionregistrationv1.RuleWithOperations, at admissionregistrationv1.WebhookClientConfig) {
	h := hook{name: name, isRequired: policy == nil || *policy == admissionregistrationv1.Fail, breaks: rulesText(rules), caExpires: lastExpiry(at.CABundle)}
	if at.Service != nil {
		h.service, h.port = types.NamespacedName{Namespace: at.Service.Namespace, Name: at.Service.Name}, portOf(at.Service.Port)
	}
	s.hooks = append(s.hooks, h)
}

// addConversion adds the webhook that converts the versions of a custom resource, if there is one.
func (s *webhookState) addConversion(d *apiextensionsv1.CustomResourceDefinition) {
	if d.Spec.Conversion == nil || d.Spec.Conversion.Webhook == nil || d.Spec.Conversion.Webhook.ClientConfig == nil || d.Spec.Conversion.Strategy != apiextensionsv1.WebhookConverter {
		return
	}
	at := d.Spec.Conversion.Webhook.ClientConfig
	h := hook{name: "conversion webhook of " + d.Name, isRequired: true, breaks: "requests for " + d.Name + " in other versions than the stored one", caExpires: lastExpiry(at.CABundle)}
	if at.Service != nil {
		h.service, h.port = types.NamespacedName{Namespace: at.Service.Namespace, Name: at.Service.Name}, portOf(at.Service.Port)
	}
	s.hooks = append(s.hooks, h)
}

func portOf(port *int32) int32 {
	if port == nil {
		return webhookPort
	}
	return *port
}

// maxRules is how many rules of a webhook are named.
const maxRules = 3

// rulesText names the requests that a webhook is called for.
func rulesText(rules []admissionregistrationv1.RuleWithOperations) string {
	var texts []string
	for _, r := range rules {
		if len(texts) == maxRules {
			texts = append(texts, "and others")
			break
		}
		var operations []string
		for _, o := range r.Operations {
			operations = append(operations, string(o))
		}
		text := strings.Join(operations, " and ") + " of " + some(r.Resources)
		if groups := strings.Trim(strings.Join(r.APIGroups, ", "), ", "); groups != "" && groups != "*" {
			text += " in " + groups
		}
		texts = append(texts, text)
	}
	return "requests: " + strings.Join(texts, "; ")
}

// lastExpiry is when the last certificate of a bundle expires; zero without certificates.
func lastExpiry(bundle []byte) (last time.Time) {
	certs, err := pki.ParseCertificates(bundle)
	if err != nil {
		return last
	}
	for _, c := range certs {
		if c.NotAfter.After(last) {
			last = c.NotAfter
		}
	}
	return last
}

// readServices finds out which Services have no server.
func (c Cluster) readServices(ctx context.Context, hooks []hook) error {
	type target struct {
		types.NamespacedName
		port int32
	}
	known := map[target]string{}
	for i := range hooks {
		h := &hooks[i]
		at := target{h.service, h.port}
		if h.service.Name == "" || !h.isRequired || len(known) >= maxHooks {
			continue
		}
		message, ok := known[at]
		if !ok {
			var err error
			if message, err = c.unavailable(ctx, h.service, h.port); err != nil {
				return err
			}
			known[at] = message
		}
		h.unavailable = message
	}
	return nil
}

// unavailable is why a Service has no server at a port.
func (c Cluster) unavailable(ctx context.Context, key types.NamespacedName, port int32) (string, error) {
	service, err := client.For[*corev1.Service](c.Client).Get(ctx, key.Namespace, key.Name)
	if apierrors.IsNotFound(err) {
		service, err = nil, nil
	}
	if err != nil {
		return "", err
	}
	var all []*discoveryv1.EndpointSlice
	ofService := client.Selector{Labels: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: key.Name})}
	err = client.For[*discoveryv1.EndpointSlice](c.Client).EachPage(ctx, key.Namespace, ofService, pageSize, func(page []*discoveryv1.EndpointSlice) error {
		all = append(all, page...)
		return nil
	})
	_, message := apiservice.Unavailable(key, port, service, all)
	return message, err
}

func decideWebhooks(s webhookState) (findings []Finding) {
	for _, h := range s.hooks {
		if h.unavailable != "" && h.isRequired {
			findings = append(findings, Finding{
				Severity: Error, Problem: h.name + " has no server: " + h.unavailable, Breaks: h.breaks, When: whenNow,
				Fix: "start its server, or delete the webhook if what it was for is gone, or set its failurePolicy to Ignore",
			})
		}
		if left := h.caExpires.Sub(s.now); !h.caExpires.IsZero() && left < certificateWarning {
			f := Finding{
				Severity: Warning, Problem: "the CA bundle of the " + h.name + " expires", Breaks: h.breaks, When: on(h.caExpires, s.now), Fix: "renew the certificate of its server, and the bundle with it",
			}
			if !h.isRequired {
				f.Breaks = "the webhook is not called any more; requests succeed without it"
			} else if left < certificateError {
				f.Severity = Error
			}
			findings = append(findings, f)
		}
	}
	return bounded(findings)
}

// maxFindings is how many findings of one check are reported one by one.
const maxFindings = 20

// bounded keeps the first findings of many.
func bounded(findings []Finding) []Finding {
	if len(findings) <= maxFindings {
		return findings
	}
	slices.SortStableFunc(findings, func(a, b Finding) int { return strings.Compare(string(a.Severity), string(b.Severity)) })
	last := findings[maxFindings]
	last.Problem = fmt.Sprintf("%d more findings like this one: %s", len(findings)-maxFindings, last.Problem)
	return append(findings[:maxFindings:maxFindings], last)
}
