package system

import (
	"context"

	"golang.org/x/sync/errgroup"

	"skiff/internal/api/admissionregistration"
	admissionwebhook "skiff/internal/apiserver/admission/webhook"
	"skiff/internal/kind"
	"skiff/internal/webhook"
)

// webhooks are the admission plugins that call webhooks, and what calls the conversion webhooks of custom resources.
type webhooks struct {
	// services says how the server reaches pods behind Services.
	services   *webhook.Services
	clients    *webhook.Clients
	mutating   *admissionwebhook.Mutating
	validating *admissionwebhook.Validating
	metrics    *webhook.Metrics
	// admissionMetrics are shared by both plugins.
	admissionMetrics *admissionwebhook.Metrics
}

func newWebhooks(a *accessControl) *webhooks {
	w := &webhooks{services: &webhook.Services{Objects: proxiedObjects{a}}, metrics: webhook.NewMetrics(), admissionMetrics: admissionwebhook.NewMetrics(serverID())}
	w.clients = webhook.New(webhook.Options{Services: w.services, Egress: a.egress, Metrics: w.metrics})
	options := admissionwebhook.Options{
		Clients: w.clients, Client: func() kind.Client { return a.client },
		Objects:    func() admissionwebhook.Objects { return a.policy.Objects },
		Authorizer: a.authorizer, Metrics: w.admissionMetrics, ConditionMetrics: a.matchConditions, Log: a.log,
	}
	options.Kind = admissionregistration.MutatingWebhookConfiguration
	w.mutating = admissionwebhook.NewMutating(options)
	options.Kind = admissionregistration.ValidatingWebhookConfiguration
	w.validating = admissionwebhook.NewValidating(options)
	return w
}

// run reads configurations in files again until ctx is done.
func (w *webhooks) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return w.mutating.Run(ctx) })
	group.Go(func() error { return w.validating.Run(ctx) })
	return group.Wait()
}
