package system

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"

	"skiff/internal/apiserver/authn"
	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/controller"
	"skiff/internal/controllers"
	"skiff/internal/controllers/identity"
	"skiff/internal/controllers/node"
	"skiff/internal/controllers/scaling"
	"skiff/internal/health"
	"skiff/internal/pki"
)

// RunControllerManager runs the controllers alone until ctx is done.
func RunControllerManager(ctx context.Context, c config.ControllerManager) error {
	log, remote, err := connect(c.ClientConnection)
	if err != nil {
		return err
	}
	informers, events := client.NewInformers(remote), client.NewEventBroadcaster(remote).WithLog(log)
	settings := controllers.Config{Client: remote, Informers: informers, Events: events, Enabled: c.Controllers, Accounts: c.UseServiceAccounts, Log: log}
	if settings.Settings, err = controllerManagerSettings(c); err != nil {
		return err
	}
	endpoint := &componentServer{config: c.Serving, registry: newRegistry(nil), remote: remote, kubeconfig: c.Kubeconfig, log: log}
	if settings.Metrics, err = controller.NewMetrics(endpoint.registry); err != nil {
		return err
	}
	if err := client.RegisterMetrics(endpoint.registry); err != nil {
		return err
	}
	endpoint.checks = []health.Check{{Name: "informer-sync", ReadinessOnly: true, Check: informers.Check}}
	if c.LeaderElect {
		if settings.LeaderElection, err = newLeaderElection("kube-controller-manager"); err != nil {
			return err
		}
		endpoint.checks = append(endpoint.checks, health.Check{Name: "leaderElection", Check: settings.LeaderElection.Check})
	}
	set, err := controllers.New(settings)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{endpoint.run, informers.Run, events.Run, set.Run} {
		group.Go(func() error { return wrap("controllers", run(ctx)) })
	}
	return group.Wait()
}

// nodeLifecycle are the settings of the node lifecycle controller.
func nodeLifecycle(c config.NodeLifecycle) *node.LifecycleSettings {
	return &node.LifecycleSettings{
		Grace: c.MonitorGracePeriod, StartupGrace: c.StartupGracePeriod, EvictionRate: c.EvictionRate, SecondaryRate: c.SecondaryEvictionRate,
		LargeZone: c.LargeClusterSizeThreshold, UnhealthyZone: c.UnhealthyZoneThreshold,
	}
}

// controllerManagerSettings are the settings of single controllers, with the keys that some need.
func controllerManagerSettings(c config.ControllerManager) (controllers.Settings, error) {
	s := controllers.Settings{
		TerminatedPods: &c.TerminatedPods, LegacyTokenLifetime: &c.LegacyTokenCleanUpPeriod, EndpointsPerSlice: &c.EndpointsPerSlice, MirroredPerSubset: &c.MirroredPerSubset,
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
		// Tokens of token secrets have the legacy issuer, independent of the server's own.
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
		s.Signing = signingCAs(a)
	}
	return s, nil
}

// podRanges are the ranges from which nodes get their pod CIDRs.
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

// signingCAs are the CAs of all signers: one for all of them.
func signingCAs(a *pki.CA) identity.SigningCAs {
	return identity.SigningCAs{KubeletServing: a, KubeletClient: a, APIServerClient: a, LegacyUnknown: a}
}
