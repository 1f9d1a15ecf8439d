package system

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/clientcmd"

	"skiff/internal/api"
	"skiff/internal/apiserver/authn"
	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/controller"
	"skiff/internal/controllers"
	"skiff/internal/controllers/identity"
	"skiff/internal/scheduler"
)

// componentsUser is the user as which the controllers and the scheduler inside the server act. No credential authenticates as it.
var componentsUser = authn.User{Username: "system:skiff", Groups: []string{authn.GroupMasters}}

// components are the controllers and the scheduler inside the server's process. They share one client, one set of informers and one metrics
// registry.
type components struct {
	*server
	client    *client.Client
	informers *client.Informers
	events    *client.EventBroadcaster
	metrics   *controller.Metrics
}

// runComponents runs the controllers and the scheduler, as configured, until ctx is done.
func (s *server) runComponents(ctx context.Context) error {
	local, err := client.NewLocal(s.api.Local(componentsUser), api.Scheme(), api.Named())
	if err != nil {
		return err
	}
	c := &components{server: s, client: local, informers: client.NewInformers(local), events: client.NewEventBroadcaster(local).WithLog(s.log)}
	if c.metrics, err = controller.NewMetrics(s.registry); err != nil {
		return err
	}
	var runs []func(context.Context) error
	if s.config.Runs(config.ComponentControllers) {
		run, err := c.controllers()
		if err != nil {
			return err
		}
		runs = append(runs, run)
	}
	if s.config.Runs(config.ComponentScheduler) {
		run, err := c.scheduler()
		if err != nil {
			return err
		}
		runs = append(runs, run)
	}
	if len(runs) == 0 {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range append(runs, c.informers.Run, c.events.Run) {
		group.Go(func() error { return run(ctx) })
	}
	return group.Wait()
}

// controllers returns what runs the controllers.
func (c *components) controllers() (func(context.Context) error, error) {
	settings, err := c.controllerSettings()
	if err != nil {
		return nil, err
	}
	options := controllers.Config{
		Client: c.client, Informers: c.informers, Events: c.events, Settings: settings, Metrics: c.metrics, Log: c.log.With("component", "controllers"),
		// Nodes that join with a token need no approval: `skiff agent`.
		Enabled: []string{"*", identity.ServingApprovingName, identity.BootstrapTokenCleaner.Name},
	}
	if !c.sharesStore() {
		set, err := controllers.New(options)
		if err != nil {
			return nil, err
		}
		return set.Run, nil
	}
	// Controllers run once per object, and so do informers: each term as leader needs new ones.
	options.Informers = nil
	return runElected("kube-controller-manager", options.Log, func(ctx context.Context, election *controller.LeaderElection) error {
		options.LeaderElection = election
		return controllers.Run(ctx, options)
	}), nil
}

// scheduler returns what runs the scheduler.
func (c *components) scheduler() (func(context.Context) error, error) {
	metrics, err := scheduler.NewMetrics(c.registry)
	if err != nil {
		return nil, err
	}
	log := c.log.With("component", "scheduler")
	s, err := scheduler.New(scheduler.Config{Client: c.client, Informers: c.informers, Events: c.events, Metrics: metrics, Log: log})
	if err != nil {
		return nil, err
	}
	// It follows the cluster and answers queries also while it does not lead.
	c.queries.set(s.Handler())
	c.podResources.set(collectorHandler(scheduler.PodResources(c.informers)))
	if !c.sharesStore() {
		return s.Run, nil
	}
	return runElected("kube-scheduler", log, func(ctx context.Context, election *controller.LeaderElection) error {
		return election.Run(ctx, c.client, c.metrics, s.Run)
	}), nil
}

// acquirePeriod is how often a server tries to become the leader, so that another leads within two seconds after one has ended.
const acquirePeriod = 500 * time.Millisecond

// runElected returns what runs a component while this server holds a lease. A server that loses the lease goes on serving and tries to
// acquire it again.
func runElected(lease string, log *slog.Logger, run func(context.Context, *controller.LeaderElection) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			election, err := newLeaderElection(lease)
			if err != nil {
				return err
			}
			election.AcquirePeriod = acquirePeriod
			if err = run(ctx, election); ctx.Err() != nil || !errors.Is(err, controller.ErrLeadershipLost) {
				return err
			}
			log.Warn("leader election lost, trying to acquire the lease again", "lease", lease)
		}
	}
}

// connect makes the logger and the client of a component that runs alone.
func connect(c config.ClientConnection) (*slog.Logger, *client.Client, error) {
	log, err := newLogger(c.LogLevel)
	if err != nil {
		return nil, nil, err
	}
	remote, err := dial(c.Kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return log, remote, nil
}

// dial makes a client of the API server in a kubeconfig.
func dial(kubeconfig string) (*client.Client, error) {
	settings, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	return newClient(settings)
}

// newLeaderElection is the election of one instance of a component by a lease.
func newLeaderElection(name string) (*controller.LeaderElection, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	suffix := make([]byte, 8)
	if _, err := rand.Read(suffix); err != nil {
		return nil, err
	}
	return &controller.LeaderElection{Namespace: "kube-system", Name: name, Identity: host + "_" + hex.EncodeToString(suffix)}, nil
}
