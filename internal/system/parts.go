package system

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"

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
	"skiff/internal/hollow"
	"skiff/internal/pki"
	"skiff/internal/scheduler"
)

// partsUser is who the parts inside the server act as. It is trusted: nothing but this process can be it.
var partsUser = authn.User{Username: "system:skiff", Groups: []string{authn.GroupMasters}}

// runParts runs the controllers and the scheduler inside the server's process, as far as they are wanted, until ctx ends. They
// share one client and one set of informers.
func runParts(ctx context.Context, c config.Server, server *apiserver.Server, settings controllers.Settings, log *slog.Logger) error {
	local, err := client.NewLocal(server.Local(partsUser), api.Scheme(), api.Kinds(api.Settings{}))
	if err != nil {
		return err
	}
	informers, events := client.NewInformers(local), client.NewEvents(local)
	var runs []func(context.Context) error
	if c.Runs(config.PartControllers) {
		set, err := controllers.New(controllers.Config{
			Client: local, Informers: informers, Events: events, Settings: settings, Log: log.With("part", "controllers"),
		})
		if err != nil {
			return err
		}
		runs = append(runs, set.Run)
	}
	if c.Runs(config.PartScheduler) {
		s, err := scheduler.New(scheduler.Config{Client: local, Informers: informers, Events: events, Log: log.With("part", "scheduler")})
		if err != nil {
			return err
		}
		runs = append(runs, s.Run)
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

// signingAuthorities lets one authority sign for everybody.
func signingAuthorities(a *pki.Authority) identity.SigningAuthorities {
	return identity.SigningAuthorities{KubeletServing: a, KubeletClient: a, APIServerClient: a, LegacyUnknown: a}
}

// schedule runs a scheduler with informers and events of its own.
func schedule(ctx context.Context, c *client.Client, configFile string, log *slog.Logger) error {
	informers, events := client.NewInformers(c), client.NewEvents(c)
	settings := scheduler.Config{Client: c, Informers: informers, Events: events, Log: log}
	if configFile != "" {
		configuration, err := scheduler.ReadConfiguration(configFile)
		if err != nil {
			return err
		}
		settings.Configuration = configuration
	}
	s, err := scheduler.New(settings)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{informers.Run, events.Run, s.Run} {
		group.Go(func() error { return run(ctx) })
	}
	return group.Wait()
}

// RunControllerManager runs the controllers alone, against an API server elsewhere, until ctx ends.
func RunControllerManager(ctx context.Context, c config.ControllerManager) error {
	log, remote, err := connect(c.Connection)
	if err != nil {
		return err
	}
	settings := controllers.Config{Client: remote, Enabled: c.Controllers, Log: log}
	if settings.Settings, err = controllerSettings(c); err != nil {
		return err
	}
	if c.LeaderElect {
		if settings.LeaderElection, err = election("kube-controller-manager"); err != nil {
			return err
		}
	}
	return wrap("controllers", controllers.Run(ctx, settings))
}

// controllerSettings reads the keys that single controllers need.
func controllerSettings(c config.ControllerManager) (controllers.Settings, error) {
	var s controllers.Settings
	var err error
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
		a, err := pki.ReadAuthority(c.ClusterSigningCertFile, c.ClusterSigningKeyFile)
		if err != nil {
			return s, fmt.Errorf("--cluster-signing-cert-file: %w", err)
		}
		s.Signing = signingAuthorities(a)
	}
	return s, nil
}

// RunScheduler runs the scheduler alone, against an API server elsewhere, until ctx ends.
func RunScheduler(ctx context.Context, c config.Scheduler) error {
	log, remote, err := connect(c.Connection)
	if err != nil {
		return err
	}
	run := func(ctx context.Context) error { return schedule(ctx, remote, c.ConfigFile, log) }
	if !c.LeaderElect {
		return wrap("scheduler", run(ctx))
	}
	leader, err := election("kube-scheduler")
	if err != nil {
		return err
	}
	return wrap("scheduler", leader.Lead(ctx, remote, nil, run))
}

// RunHollow plays nodes without containers until ctx ends.
func RunHollow(ctx context.Context, c config.Hollow) error {
	log, remote, err := connect(c.Connection)
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
func connect(c config.Connection) (*slog.Logger, *client.Client, error) {
	log, err := newLogger(c.LogLevel)
	if err != nil {
		return nil, nil, err
	}
	settings, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	remote, err := client.New(settings, api.Scheme(), api.Kinds(api.Settings{}))
	return log, remote, err
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
