package system

import (
	"context"

	"golang.org/x/sync/errgroup"

	"skiff/internal/apiserver/aggregation"
	"skiff/internal/controllers/apiservice"
	"skiff/internal/webhook"
)

// runAggregation passes requests on to aggregated API servers, registers what this server serves itself, and maintains the status of
// APIServices.
func (s *server) runAggregation(ctx context.Context) error {
	local, err := s.localClient()
	if err != nil {
		return err
	}
	log := s.log.With("component", "aggregation")
	certificates, availability := webhook.NewCertificateMetrics("apiserver_kube_aggregator"), apiservice.NewMetrics()
	s.registry.MustRegister(certificates, availability)
	aggregated := aggregation.New(aggregation.Config{
		Server: s.api, Local: s.api.Local(apiServerUser), OpenAPI: s.documents, Clients: s.access.webhooks.clients,
		ClientCertificate: s.certs.proxyClient, ForwardRedirects: !s.config.Aggregation.RejectRedirects, Metrics: certificates,
		OnRegistered: s.hooks.apiServices.Done, OnDiscovered: s.hooks.aggregatedDiscovery.Done, Log: log,
	})
	controllers, err := apiservice.New(apiservice.Config{
		Client: local, BuiltIn: s.api.BuiltInVersions(), Check: aggregated.Check,
		OnRegistered: s.hooks.autoregistration.Done, Metrics: availability, Log: log,
	})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return aggregated.Run(ctx) })
	group.Go(func() error { return controllers.Run(ctx) })
	return group.Wait()
}
