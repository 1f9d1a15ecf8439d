// Package apiservice registers the group versions that the API server serves itself as local APIServices, and maintains the condition Available
// of all APIServices. It runs inside every API server, without leader election. Servers that share a store may write the same objects; a
// conflict is resolved by the next sync.
package apiservice

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

type apiService = apiregistrationv1.APIService

// maxBackoff is the longest time until an APIService is checked again after a failure. Its server may become reachable without any change
// that could be watched.
const maxBackoff = 30 * time.Second

// Config is what the controllers need.
type Config struct {
	Client *client.Client
	// BuiltIn are the group versions that the server serves itself, besides custom resources.
	BuiltIn []schema.GroupVersion
	// Check requests the discovery of an APIService from its Service. The error is the message of the condition Available.
	Check func(ctx context.Context, service *apiregistrationv1.APIService) error
	// OnRegistered is called once, when the APIServices of all built-in group versions are available.
	OnRegistered func()
	Metrics      *Metrics
	Log          *slog.Logger
}

// New returns the controllers of APIServices. It starts nothing.
func New(c Config) (*controller.Group, error) {
	return controller.NewGroup(c.Client, c.Log,
		controller.Definition{Name: "autoregister", New: func(s *controller.Setup) (controller.Syncer, error) { return newRegistration(c, s) }},
		controller.Definition{Name: "apiservice-availability-controller", Workers: 5, MaxBackoff: maxBackoff, New: func(s *controller.Setup) (controller.Syncer, error) {
			return newAvailability(c, s)
		}})
}
