// Package controllers lists all controllers and runs the enabled ones, inside the API server's process or in a process of their
// own. The controllers are grouped in directories; each is one file, or a few for the large ones. The loop they share is package
// controller.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/controllers/cleanup"
	"skiff/internal/controllers/identity"
	"skiff/internal/controllers/network"
	"skiff/internal/controllers/node"
	"skiff/internal/controllers/policy"
	"skiff/internal/controllers/resourceclaim"
	"skiff/internal/controllers/scaling"
	"skiff/internal/controllers/volume"
	"skiff/internal/controllers/workload"
)

// All returns all controllers. The names are upstream's, as in --controllers.
func All(settings Settings) []controller.Definition {
	return []controller.Definition{
		workload.ReplicaSet,
		workload.ReplicationController,
		workload.Deployment,
		workload.Job,
		workload.StatefulSet,
		workload.DaemonSet,
		workload.CronJob,
		workload.TTLAfterFinished,
		cleanup.Namespace(settings.namespaceGrace()),
		cleanup.GarbageCollector,
		cleanup.ResourceQuota,
		cleanup.StorageVersionMigrator,
		cleanup.Pods(settings.terminatedPods()),
		cleanup.CertificateRequests,
		cleanup.PodCertificateRequests,
		cleanup.LegacyTokens(ptr.Deref(settings.LegacyTokenLifetime, cleanup.DefaultLegacyTokenUnusedPeriod)),
		cleanup.ServerLeases,
		identity.ServiceAccount,
		identity.Tokens(settings.TokenSigner, settings.RootCA),
		identity.RootCA(settings.RootCA),
		identity.TrustBundle(settings.RootCA),
		identity.ClusterRoleAggregation,
		identity.CertificateApproving(settings.BindNodeNames),
		identity.ServingApproving(settings.ServerNames),
		identity.CertificateSigning(settings.Signing),
		identity.BootstrapSigner,
		identity.BootstrapTokenCleaner,
		network.EndpointSlice(ptr.Deref(settings.EndpointsPerSlice, network.DefaultEndpointsPerSlice)),
		network.Endpoints,
		network.EndpointSliceMirroring(ptr.Deref(settings.MirroredPerSubset, network.DefaultMirroredPerSubset)),
		network.ServiceCIDR,
		network.LoadBalancer(ptr.Deref(settings.ReservedPorts, network.DefaultReservedPorts)),
		node.Lifecycle(ptr.Deref(settings.NodeLifecycle, node.DefaultLifecycle)),
		node.TaintEviction,
		node.PodCIDR(settings.PodRanges, settings.ServiceRanges),
		node.TTL,
		policy.ValidatingStatus,
		resourceclaim.ResourceClaim,
		resourceclaim.DeviceTaintEviction,
		scaling.Disruption,
		scaling.Autoscaler(ptr.Deref(settings.Autoscaler, scaling.DefaultAutoscaler)),
		volume.Binder,
		volume.ClaimProtection,
		volume.VolumeProtection,
		volume.AttributesClassProtection,
		volume.Ephemeral,
		volume.Expand,
		volume.AttachDetach(ptr.Deref(settings.UnmountWait, volume.DefaultMaxUnmountWait)),
		volume.LocalPath(ptr.Deref(settings.LocalPath, volume.LocalPathSettings{Dir: volume.DefaultLocalPathDir})),
		volume.LocalPathCleaner,
	}
}

// Config configures which controllers run, and how.
type Config struct {
	Client *client.Client
	// Informers may be shared with other components of the process; their owner runs them after New. If nil, Run creates its own.
	Informers *client.Informers
	// Events may be shared. If nil, Run creates its own.
	Events *client.EventBroadcaster
	// Enabled is the value of --controllers: "*" enables all that are on by default, "name" enables and "-name" disables one.
	// Empty means "*".
	Enabled []string
	// Accounts makes each controller use its own service account (accounts.go). Informers and leader election use the credentials
	// of Client, as upstream.
	Accounts bool
	// Workers overrides the number of workers by controller name.
	Workers map[string]int
	// Settings are the settings of single controllers.
	Settings Settings
	// LeaderElection, if set, lets only one of several processes run the controllers.
	LeaderElection *controller.LeaderElection
	// Metrics may be nil.
	Metrics *controller.Metrics
	Log     *slog.Logger
}

// Set is a set of controllers that are ready to run.
type Set struct {
	config Config
	loops  []*controller.Loop
	events []*client.EventBroadcaster // of the service accounts
}

// New sets up the enabled controllers. Run the informers after it, then the set.
func New(c Config) (*Set, error) {
	definitions, err := Select(All(c.Settings), c.Enabled)
	if err != nil {
		return nil, err
	}
	s := &Set{config: c}
	for _, d := range definitions {
		if n := c.Workers[d.Name]; n > 0 {
			d.Workers = n
		}
		environment := controller.Environment{Client: c.Client, Informers: c.Informers, Events: c.Events, Metrics: c.Metrics, Log: c.Log}
		if account := accounts[d.Name]; c.Accounts && account != "" {
			if environment.Client, err = c.Client.AsServiceAccount(metav1.NamespaceSystem, account); err != nil {
				return nil, err
			}
			environment.Events = client.NewEventBroadcaster(environment.Client).WithLog(c.Log)
			s.events = append(s.events, environment.Events)
		}
		loop, err := controller.NewLoop(d, environment)
		if err != nil {
			return nil, err
		}
		s.loops = append(s.loops, loop)
	}
	return s, nil
}

// Run runs the controllers until ctx is done or leadership is lost. The informers must be running.
func (s *Set) Run(ctx context.Context) error {
	if err := s.config.Informers.WaitForSync(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if s.config.LeaderElection == nil {
		return s.work(ctx)
	}
	election := s.config.LeaderElection
	if election.Events == nil {
		election.Events = s.config.Events.NewRecorder(election.Name)
	}
	return election.Run(ctx, s.config.Client, s.config.Metrics, s.work)
}

func (s *Set) work(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, events := range s.events {
		group.Go(func() error { return events.Run(ctx) })
	}
	for _, loop := range s.loops {
		group.Go(func() error { return loop.Run(ctx) })
	}
	return group.Wait()
}

// Run runs the enabled controllers until ctx is done, with its own informers and event broadcaster if none are configured.
func Run(ctx context.Context, c Config) error {
	group, ctx := errgroup.WithContext(ctx)
	ownInformers := c.Informers == nil
	if ownInformers {
		c.Informers = client.NewInformers(c.Client)
	}
	if c.Events == nil {
		c.Events = client.NewEventBroadcaster(c.Client).WithLog(c.Log)
		group.Go(func() error { return c.Events.Run(ctx) })
	}
	set, err := New(c)
	if err == nil {
		if ownInformers {
			group.Go(func() error { return c.Informers.Run(ctx) })
		}
		group.Go(func() error { return set.Run(ctx) })
	} else {
		group.Go(func() error { return err })
	}
	return group.Wait()
}

// Select returns the enabled controllers. An unknown name is an error.
func Select(all []controller.Definition, wanted []string) ([]controller.Definition, error) {
	if len(wanted) == 0 {
		wanted = []string{"*"}
	}
	var unknown []error
	for _, name := range wanted {
		bare := strings.TrimPrefix(name, "-")
		if name != "*" && !slices.ContainsFunc(all, func(d controller.Definition) bool { return named(d, bare) }) {
			unknown = append(unknown, fmt.Errorf("%q is not in the list of known controllers", bare))
		}
	}
	if len(unknown) > 0 {
		return nil, errors.Join(unknown...)
	}
	var selected []controller.Definition
	for _, d := range all {
		if enabled(d, wanted) {
			selected = append(selected, d)
		}
	}
	return selected, nil
}

// enabled reports whether a controller is enabled. Its name takes precedence over "*", and the first match wins.
func enabled(d controller.Definition, wanted []string) bool {
	for _, name := range wanted {
		if bare, not := strings.CutPrefix(name, "-"); named(d, bare) {
			return !not
		}
	}
	return slices.Contains(wanted, "*") && !d.DisabledByDefault
}

func named(d controller.Definition, name string) bool {
	return d.Name == name || slices.Contains(d.Aliases, name)
}
