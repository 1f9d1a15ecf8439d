package system

import (
	"context"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"skiff/internal/api"
	"skiff/internal/apiserver/extension"
	"skiff/internal/client"
	"skiff/internal/controllers/customresource"
	resources "skiff/internal/customresource"
)

// runCustomResources serves the resources that CustomResourceDefinitions define, and maintains the status of the definitions.
func (s *server) runCustomResources(ctx context.Context) error {
	local, err := client.NewLocal(s.api.Local(apiServerUser), api.Scheme(), api.Named())
	if err != nil {
		return err
	}
	log := s.log.With("component", "custom-resources")
	served := extension.New(extension.Config{
		Server: s.api, Local: s.api.Local(apiServerUser), OpenAPI: s.documents, NewConverter: s.newConverter,
		OnSynced: s.hooks.definitions.Done, Log: log,
	})
	config := customresource.Config{Client: local, Served: served.Served, Serve: served.Serve, Unserve: served.Unserve, Instances: s.api.KindClient(), Log: log}
	if s.store.Shared() {
		config.EstablishingDelay = customresource.DefaultEstablishingDelay
	}
	controllers, err := customresource.New(config)
	if err != nil {
		return err
	}
	served.OnChange = controllers.Enqueue
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return served.Run(ctx) })
	group.Go(func() error { return controllers.Run(ctx) })
	return group.Wait()
}

// newConverter makes the client of a definition's conversion webhook.
func (s *server) newConverter(crd *apiextensionsv1.CustomResourceDefinition) (resources.Converter, error) {
	converter, err := s.access.webhooks.clients.NewConverter(crd)
	if err != nil {
		return nil, err
	}
	return converter, nil
}
