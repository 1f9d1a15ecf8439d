package system

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/clientcmd"

	"skiff/internal/api"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/authn"
	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/controller"
	"skiff/internal/controllers"
	"skiff/internal/controllers/identity"
	"skiff/internal/controllers/node"
	"skiff/internal/controllers/scaling"
	"skiff/internal/health"
	"skiff/internal/hollow"
	"skiff/internal/pki"
	"skiff/internal/scheduler"
)

// partsUser is who the parts inside the server act as. It is trusted: nothing but this process can be it.
var partsUser = authn.User{Username: "system:skiff", Groups: []string{authn.GroupMasters}}

// runParts runs the controllers and the scheduler inside the server's process, as far as they are wanted, until ctx ends. They
// share one client, one set of informers and one registry of metrics.
func runParts(ctx context.Context, c config.Server, server *apiserver.Server, settings controllers.Settings, registry *prometheus.Registry, why *schedulerDoor, log *slog.Logger) error {
	local, err := client.NewLocal(server.Local(partsUser), api.Scheme(), api.Named())
	if err != nil {
		return err
	}
	informers, events := client.NewInformers(local), client.NewEventBroadcaster(local)
	var runs []func(context.Context) error
	metrics, err := controller.NewMetrics(registry)
	if err != nil {
		return err
	}
	if c.Runs(config.ComponentControllers) {
		wanted := controllers.Config{
			Client: local, Informers: informers, Events: events, Settings: settings, Metrics: metrics, Log: log.With("part", "controllers"),
			// Nodes join by themselves: `skiff agent`.
			Enabled: []string{"*", identity.ServingApprovingName, identity.BootstrapTokenCleaner.Name},
		}
		if len(c.Etcd.Servers) > 0 {
			wanted.Informers = nil // of their own: loops run once, and so do the informers that feed them
			runs = append(runs, competing("kube-controller-manager", wanted.Log, func(ctx context.Context, elected *controller.LeaderElection) error {
				wanted.LeaderElection = elected
				return controllers.Run(ctx, wanted)
			}))
		} else {
			set, err := controllers.New(wanted)
			if err != nil {
				return err
			}
			runs = append(runs, set.Run)
		}
	}
	if c.Runs(config.ComponentScheduler) {
		counted, err := scheduler.NewMetrics(registry)
		if err != nil {
			return err
		}
		log := log.With("part", "scheduler")
		s, err := scheduler.New(scheduler.Config{Client: local, Informers: informers, Events: events, Metrics: counted, Log: log})
		if err != nil {
			return err
		}
		// It follows the cluster and answers questions also while another server's scheduler works.
		why.open(s)
		run := s.Run
		if len(c.Etcd.Servers) > 0 {
			run = competing("kube-scheduler", log, func(ctx context.Context, elected *controller.LeaderElection) error {
				return elected.Run(ctx, local, metrics, s.Run)
			})
		}
		runs = append(runs, run)
	}
	if len(runs) == 0 {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range append(runs, informers.Run, events.Run) {
		group.Go(func() error { return run(ctx) })
	}
	return group.Wait()
}

// competing runs a part of a server that is not alone with its store: of several, one works. A server that loses the lead goes on serving,
// and competes again.
func competing(lease string, log *slog.Logger, work func(context.Context, *controller.LeaderElection) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			elected, err := election(lease)
			if err != nil {
				return err
			}
			if err = work(ctx, elected); ctx.Err() != nil || !errors.Is(err, controller.ErrLeadershipLost) {
				return err
			}
			log.Warn("another server may have taken over; competing again")
		}
	}
}

// signingAuthorities lets one authority sign for everybody.
func signingAuthorities(a *pki.CA) identity.SigningCAs {
	return identity.SigningCAs{KubeletServing: a, KubeletClient: a, APIServerClient: a, LegacyUnknown: a}
}

// RunControllerManager runs the controllers alone, against an API server elsewhere, until ctx ends.
func RunControllerManager(ctx context.Context, c config.ControllerManager) error {
	log, remote, err := connect(c.ClientConnection)
	if err != nil {
		return err
	}
	informers, events := client.NewInformers(remote), client.NewEventBroadcaster(remote)
	settings := controllers.Config{Client: remote, Informers: informers, Events: events, Enabled: c.Controllers, Accounts: c.UseServiceAccounts, Log: log}
	if settings.Settings, err = controllerSettings(c); err != nil {
		return err
	}
	post := &watchpost{config: c.Serving, registry: newRegistry(), remote: remote, kubeconfig: c.Kubeconfig, log: log}
	if settings.Metrics, err = controller.NewMetrics(post.registry); err != nil {
		return err
	}
	if err := client.RegisterMetrics(post.registry); err != nil {
		return err
	}
	post.checks = []health.Check{{Name: "informer-sync", ReadinessOnly: true, Check: informers.Check}}
	if c.LeaderElect {
		if settings.LeaderElection, err = election("kube-controller-manager"); err != nil {
			return err
		}
		post.checks = append(post.checks, health.Check{Name: "leaderElection", Check: settings.LeaderElection.Check})
	}
	set, err := controllers.New(settings)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{post.run, informers.Run, events.Run, set.Run} {
		group.Go(func() error { return wrap("controllers", run(ctx)) })
	}
	return group.Wait()
}

// nodeLifecycle is what the controller that watches over nodes is told.
func nodeLifecycle(c config.NodeLifecycle) *node.LifecycleSettings {
	return &node.LifecycleSettings{
		Grace: c.MonitorGracePeriod, StartupGrace: c.StartupGracePeriod, EvictionRate: c.EvictionRate, SecondaryRate: c.SecondaryEvictionRate,
		LargeZone: c.LargeClusterSizeThreshold, UnhealthyZone: c.UnhealthyZoneThreshold,
	}
}

// controllerSettings is what single controllers are told, with the keys some of them need.
func controllerSettings(c config.ControllerManager) (controllers.Settings, error) {
	s := controllers.Settings{
		TerminatedPods: &c.TerminatedPods, LegacyTokenLife: &c.LegacyTokenCleanUpPeriod, EndpointsPerSlice: &c.EndpointsPerSlice, MirroredPerSubset: &c.MirroredPerSubset,
		NodeLifecycle: nodeLifecycle(c.NodeLifecycle),
		Autoscaler: &scaling.AutoscalerSettings{
			SyncPeriod: c.Autoscaling.SyncPeriod, DownscaleStabilization: c.Autoscaling.DownscaleStabilization, Tolerance: c.Autoscaling.Tolerance,
			CPUInitialization: c.Autoscaling.CPUInitialization, InitialReadiness: c.Autoscaling.InitialReadiness,
		},
	}
	var err error
	if s.ServiceRanges, err = c.ServiceCIDRs(); err != nil {
		return s, fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	if c.AllocateNodeCIDRs {
		if s.PodRanges, err = podRanges(c.PodCIDRs); err != nil {
			return s, err
		}
	}
	if c.RootCAFile != "" {
		if s.RootCA, err = os.ReadFile(c.RootCAFile); err != nil {
			return s, fmt.Errorf("--root-ca-file: %w", err)
		}
	}
	if c.ServiceAccountKeyFile != "" {
		key, err := pki.ReadSigner(c.ServiceAccountKeyFile)
		if err != nil {
			return s, fmt.Errorf("--service-account-private-key-file: %w", err)
		}
		// Tokens in secrets carry the name of the old issuer, whoever the server's own is.
		issuer, err := authn.NewIssuer(authn.IssuerConfig{Issuer: "kubernetes/serviceaccount", Key: key})
		if err != nil {
			return s, fmt.Errorf("--service-account-private-key-file: %w", err)
		}
		s.TokenSigner = issuer
	}
	if c.ClusterSigningCertFile != "" {
		a, err := pki.ReadCA(c.ClusterSigningCertFile, c.ClusterSigningKeyFile)
		if err != nil {
			return s, fmt.Errorf("--cluster-signing-cert-file: %w", err)
		}
		s.Signing = signingAuthorities(a)
	}
	return s, nil
}

// podRanges is what is cut into the nodes' pod CIDRs.
func podRanges(c config.PodCIDRs) ([]node.PodRange, error) {
	if c.ClusterCIDR == "" {
		return nil, nil
	}
	ranges, err := node.ParsePodRanges(c.ClusterCIDR, c.MaskSize(true), c.MaskSize(false))
	if err != nil {
		return nil, fmt.Errorf("--cluster-cidr: %w", err)
	}
	return ranges, nil
}

// RunHollow plays nodes without containers until ctx ends.
func RunHollow(ctx context.Context, c config.Hollow) error {
	log, remote, err := connect(c.ClientConnection)
	if err != nil {
		return err
	}
	labels, err := c.LabelMap()
	if err != nil {
		return err
	}
	return wrap("hollow nodes", hollow.Run(ctx, hollow.Config{
		Client: remote, Nodes: c.Nodes, NamePrefix: c.NamePrefix, CPU: c.CPU, Memory: c.Memory, Pods: c.Pods,
		Labels: labels, Zones: c.Zones, Log: log,
	}))
}

// connect makes the client of a part that runs alone.
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

// dial makes a client of the API server that a kubeconfig names.
func dial(kubeconfig string) (*client.Client, error) {
	settings, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	return client.New(settings, api.Scheme(), api.Named())
}

// election is the lease that parts of one name compete for.
func election(name string) (*controller.LeaderElection, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	random := make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		return nil, err
	}
	return &controller.LeaderElection{Namespace: "kube-system", Name: name, Identity: host + "_" + hex.EncodeToString(random)}, nil
}
