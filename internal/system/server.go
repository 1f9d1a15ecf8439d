// Package system puts the components together and runs them. It is the only package that imports all of them; only cmd imports it.
package system

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"skiff/internal/api"
	"skiff/internal/api/bootstrap"
	"skiff/internal/api/core"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/authz"
	streams "skiff/internal/apiserver/connect"
	"skiff/internal/apiserver/fairness"
	"skiff/internal/backup"
	"skiff/internal/client"
	"skiff/internal/cluster"
	"skiff/internal/config"
	"skiff/internal/controllers"
	"skiff/internal/controllers/clusterauthentication"
	"skiff/internal/controllers/flowcontrol"
	"skiff/internal/controllers/volume"
	"skiff/internal/egress"
	"skiff/internal/heap"
	kubeletbootstrap "skiff/internal/kubelet/bootstrap"
	"skiff/internal/listeners"
	"skiff/internal/openapi"
	"skiff/internal/scheduler"
	"skiff/internal/store"
	"skiff/internal/store/cache"
	"skiff/internal/store/encryption"
	"skiff/internal/store/etcd"
	"skiff/internal/systemd"
	"skiff/internal/tracing"
	"skiff/internal/upgrade"
	"skiff/internal/version"
)

// RunAPIServer runs the API server without the other components until ctx is done.
func RunAPIServer(ctx context.Context, c config.APIServer) error {
	withoutOthers := config.Server{
		APIServer: c, NoNode: true, Without: []string{config.ComponentControllers, config.ComponentScheduler}, Servers: config.Servers{PeerPort: config.DefaultPeerPort},
	}
	return runServer(ctx, &server{config: withoutOthers, isAPIServerOnly: true, flags: config.FlagValues(&c)})
}

// RunServer runs a cluster until ctx is done: API server, controllers, scheduler and a node, as configured. It returns after the requests
// in flight have finished and everything it started has ended.
func RunServer(ctx context.Context, c config.Server) error {
	return runServer(ctx, &server{config: c, flags: config.FlagValues(&c)})
}

// runServer runs a server of which the configuration is set.
func runServer(ctx context.Context, s *server) error {
	s.release = cmp.Or(s.release, upgrade.Current())
	s.logLevel = &slog.LevelVar{}
	if err := s.logLevel.UnmarshalText([]byte(s.config.LogLevel)); err != nil {
		return fmt.Errorf("--log-level: %w", err)
	}
	s.progress = newProgress(s.logLevel, os.Stderr)
	s.log = s.progress.log
	s.notifier = systemd.NewNotifier()
	if !s.config.NoNode && !s.config.Servers.Reset {
		if err := checkNode(&s.config.Node, s.config.DataDir, ", or 'skiff server --no-node' for a control plane alone"); err != nil {
			return err
		}
	}
	unlock, err := openDataDir(s.config.DataDir)
	if err != nil {
		return err
	}
	defer unlock()
	return explainDir(s.runLocked(ctx), s.config.DataDir, "data-dir")
}

// runLocked runs the server in its data directory, which is locked.
func (s *server) runLocked(ctx context.Context) error {
	if _, err := finishRestore(s.config.DataDir, time.Now()); err != nil {
		return err
	}
	if err := s.checkDataDir(); err != nil {
		return err
	}
	if s.config.Servers.Reset {
		return s.resetCluster(ctx)
	}
	started := time.Now()
	defer s.progress.run(fmt.Sprintf("Starting skiff %s, with data in %s", version.String(), s.config.DataDir))()
	s.registry, s.queries, s.podResources = newRegistry(s.config.FeatureGates), &deferredHandler{}, &deferredHandler{}
	s.shutdown = make(chan struct{})
	defer s.close()
	if err := s.open(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // a server that waits for others was ended
		}
		return err
	}
	return s.run(ctx, started)
}

// server is a control plane, and perhaps a node, in one process.
type server struct {
	config config.Server
	// isAPIServerOnly is set for `skiff apiserver`, which leaves the objects of the cluster's other components to them.
	isAPIServerOnly bool

	listener   net.Listener
	certs      *certificates
	encryption *encryption.Encryption // nil: objects are stored unencrypted
	store      store.Store
	saver      *backup.Saver // nil: there is no embedded etcd of which snapshots could be saved
	// peer is set if etcd is a member of a cluster of servers, which members changes.
	peer    *etcd.Peer
	members *etcd.Store
	// release is what this program writes, releases has those of all servers of the cluster.
	release  upgrade.Record
	releases *cluster.Releases
	cache    *cache.Cache
	access   *accessControl
	hooks    *postStartHooks
	registry *prometheus.Registry
	egress   *egress.Selector  // nil: all servers are reached by the network of the host
	tracing  *tracing.Provider // nil: no request is traced
	// queries serves the queries to the scheduler once it has started, and podResources its metrics of pods.
	queries, podResources *deferredHandler
	api                   *apiserver.Server
	// documents are the OpenAPI documents that api serves.
	documents *openapi.Documents
	// flags are shown by /flagz, and logLevel can be changed at /debug/flags/v.
	flags    map[string]string
	logLevel *slog.LevelVar
	// shutdown is closed when the shutdown begins.
	shutdown chan struct{}
	// notifier reports to systemd when the API server is ready.
	notifier systemd.Notifier
	// progress shows the start of the server.
	progress *progress
	log      *slog.Logger
}

// open opens the listener and the store and makes the API server. It starts nothing. The server must be closed, also after an error.
func (s *server) open(ctx context.Context) (err error) {
	if s.listener, err = listenAPI(ctx, s.config.APIServer); err != nil {
		return listeners.Explain(err, "choose another --secure-port")
	}
	// Port 0 chooses a free port; everything from here on uses the one that was chosen.
	s.config.SecurePort = s.listener.Addr().(*net.TCPAddr).Port
	if err = s.joinCluster(ctx); err != nil {
		return err
	}
	loaded := s.progress.begin("certificates")
	if s.certs, err = newCertificates(s.config.APIServer, time.Now(), s.log.With("component", "certificates")); err != nil {
		return err
	}
	loaded()
	if s.egress, err = egress.Read(s.config.EgressSelectorFile); err != nil {
		return fmt.Errorf("--egress-selector-config-file: %w", err)
	}
	if s.tracing, err = newTracing(ctx, s.config.TracingFile, s.egress.Dialer(egress.ControlPlane)); err != nil {
		return fmt.Errorf("--tracing-config-file: %w", err)
	}
	if s.encryption, err = newEncryption(s.config.Encryption, s.log); err != nil {
		return err
	}
	opened := s.progress.begin("etcd")
	if err = s.openStoreServing(ctx); err != nil {
		return err
	}
	if err = s.openReleases(ctx); err != nil {
		return err
	}
	opened()
	s.cache = cache.New(s.store, s.log.With("component", "cache"))
	if s.access, err = newAccessControl(s.config.APIServer, s.certs, s.egress, s.log); err != nil {
		return err
	}
	if proxy := s.proxyConfig(); proxy.ThroughKubelets {
		s.access.webhooks.services.Dial = streams.PodDialer(proxy)
	}
	s.hooks = newPostStartHooks(s.access.fairness != nil)
	s.api, s.documents, err = newAPIServer(s.config.APIServer, s.apiServerOptions(), s.log)
	return err
}

func (s *server) apiServerOptions() apiServerOptions {
	checks := append([]apiserver.HealthCheck{{Name: "log", Check: s.progress.output.check}, {Name: "etcd", Check: s.store.Healthy}}, s.hooks.all.Checks()...)
	checks = append(checks, apiserver.HealthCheck{Name: "autoregister-completion", Startup: true, Check: s.hooks.autoregistration.Check})
	if name := s.encryption.HealthCheck(); name != "" {
		checks = append(checks, apiserver.HealthCheck{Name: name, Check: s.encryption.Healthy})
	}
	paths := map[string]http.Handler{}
	if s.peer != nil {
		paths[cluster.Root] = s.clusterHandler()
	}
	if s.config.Runs(config.ComponentScheduler) {
		paths[scheduler.Root], paths[scheduler.PodResourcesPath] = s.queries, s.podResources
	}
	if s.saver != nil {
		paths[backup.Path], paths[backup.Path+"/"] = s.saver, s.saver
	}
	return apiServerOptions{
		cache: s.cache, access: s.access, proxy: s.proxyConfig(), storeHealthy: s.store.Healthy, checks: checks, paths: paths, registry: s.registry,
		tracing: s.tracing, flags: s.flags, logLevel: s.logLevel,
	}
}

// close releases what open has opened.
func (s *server) close() {
	if s.listener != nil {
		s.listener.Close()
	}
	if s.store != nil {
		if err := s.store.Close(); err != nil {
			s.log.Error("failed to close the store", "error", err)
		}
	}
}

// run runs the server until ctx is done or a component fails.
func (s *server) run(ctx context.Context, started time.Time) error {
	ctx, shutDown := context.WithCancel(ctx)
	defer shutDown()
	foundation := newStage(ctx, shutDown)
	foundation.start("audit", s.access.auditor.Run)
	foundation.start("tracing", s.tracing.Run)
	foundation.start("encryption", s.encryption.Run)
	if s.saver != nil {
		foundation.start("snapshots", s.saver.Run)
	}
	if s.peer != nil {
		foundation.start("etcd", s.watchMembership)
	}
	foundation.start("cache", s.runCache)
	foundation.start("certificates", s.renewCertificates)
	foundation.start("heap", heap.ReleaseWhenIdle)
	foundation.start("access control", s.access.run)
	dependents := newStage(ctx, shutDown)
	cached := s.progress.begin("cache")
	dependents.start("cluster", func(ctx context.Context) error {
		select {
		case <-s.cache.Ready():
			cached()
			s.hooks.cache.Done()
			return s.runCluster(ctx, started)
		case <-ctx.Done():
			return nil
		}
	})
	// The order of the shutdown: each stage ends before what it needs. The store is closed last.
	served := wrap("API server", s.serveAPI(ctx))
	stopped := dependents.stop()
	return errors.Join(served, stopped, foundation.stop())
}

// stage is a group of components that are stopped together. Unlike the components of one errgroup they go on running when ctx is done,
// until stop is called.
type stage struct {
	ctx      context.Context
	cancel   context.CancelFunc
	shutDown context.CancelFunc
	group    errgroup.Group
}

// newStage returns a stage whose components shut down the server when they fail.
func newStage(ctx context.Context, shutDown context.CancelFunc) *stage {
	s := &stage{shutDown: shutDown}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return s
}

func (s *stage) start(component string, run func(context.Context) error) {
	s.group.Go(func() error {
		err := wrap(component, run(s.ctx))
		if err != nil {
			s.shutDown()
		}
		return err
	})
}

// stop stops the components and returns after the last one has ended.
func (s *stage) stop() error {
	s.cancel()
	return s.group.Wait()
}

// newTracing makes the spans of the API server; nil without a configuration file.
func newTracing(ctx context.Context, file string, dial egress.DialFunc) (*tracing.Provider, error) {
	if file == "" {
		return nil, nil
	}
	c, err := tracing.ReadConfiguration(file)
	if err != nil {
		return nil, err
	}
	return tracing.New(ctx, c, tracing.Options{Service: "apiserver", InstanceID: serverID(), Dial: dial})
}

// serveAPI serves the API until ctx is done and the last request has ended.
func (s *server) serveAPI(ctx context.Context) error {
	s.log.Info("serving API", "component", "apiserver", "address", s.listener.Addr().String())
	service := apiService{
		server: newHTTPServer(s.api.Handler(), s.certs.serving.Clone(), s.config.HTTP2MaxStreams), http2Server: s.config.HTTP2Server,
		shutdown: s.config.Shutdown, requestTimeout: s.config.RequestTimeout,
		begin: s.beginShutdown, endLongRunning: s.api.EndLongRunning, log: s.log.With("component", "apiserver"),
	}
	return service.serve(ctx, s.listener)
}

// beginShutdown makes readiness fail and removes the server from the endpoints of the service `kubernetes`.
func (s *server) beginShutdown() {
	s.api.BeginShutdown()
	close(s.shutdown)
}

// renewCertificates renews the server's certificates.
func (s *server) renewCertificates(ctx context.Context) error {
	return s.certs.renewers.Run(ctx, s.log.With("component", "certificates"))
}

// runCluster runs what reads the cache. Controllers, scheduler and node start when the bootstrap objects exist.
func (s *server) runCluster(ctx context.Context, started time.Time) error {
	group, ctx := errgroup.WithContext(ctx)
	start := starter(ctx, group)
	ready := s.progress.begin("API server")
	start("node authorizer", func(ctx context.Context) error {
		return s.access.syncNodeGraph(ctx, func() { s.hooks.nodeAuthorizer.Done() })
	})
	start("admission indexes", func(ctx context.Context) error {
		s.hooks.admission.Done()
		return s.access.followObjects(ctx)
	})
	start("flow control", s.runFlowControl)
	start("custom resources", s.runCustomResources)
	start("aggregation", s.runAggregation)
	start("bootstrap", func(ctx context.Context) error {
		if err := s.bootstrap(ctx); err != nil {
			return err
		}
		start("cluster authentication", s.runClusterAuthentication)
		start("service repair", s.runServiceRepair)
		if s.sharesStore() {
			start("API server endpoints", s.runEndpoints)
			start("server versions", s.releases.Run)
		}
		if !s.isAPIServerOnly {
			start("cluster DNS", s.runDNSService)
			start("cluster network", s.runClusterNetwork)
		}
		start("controllers and scheduler", s.runComponents)
		if !s.config.NoNode {
			nodeReady := s.progress.begin("node")
			start("node", func(ctx context.Context) error { return s.runNode(ctx, nodeReady) })
		}
		s.reportReady(ctx, started, ready)
		return nil
	})
	return group.Wait()
}

// runServiceRepair repairs the allocations of service IPs and node ports.
func (s *server) runServiceRepair(ctx context.Context) error {
	core.RunRepair(ctx, s.api.KindClient(), s.config.NodePortRange, s.hooks.serviceRepair.Done, s.log.With("component", "service-repair"))
	return nil
}

// reportReady logs when the API server is ready, and reports it to systemd. ready ends its step of the start.
func (s *server) reportReady(ctx context.Context, started time.Time, ready func()) {
	if !s.hooks.all.Wait(ctx) {
		return
	}
	ready()
	s.log.Info("API server ready", "component", "apiserver", "address", s.listener.Addr().String(),
		"duration", time.Since(started).Round(time.Millisecond).String(), "kubeconfig", filepath.Join(s.config.DataDir, adminKubeconfig))
	if err := s.notifier.Ready(); err != nil {
		s.log.Warn("failed to report readiness to systemd", "error", err)
	}
	s.progress.finish(s.showNext)
}

// showNext shows what can be done when the server has started. pending are the parts that have not.
func (s *server) showNext(total time.Duration, pending []string) {
	if merge := s.config.MergeKubeconfig; merge.Path != "" {
		s.progress.show(total, pending, kubectlFor(merge)+" get nodes")
		return
	}
	s.progress.show(total, pending, "export KUBECONFIG="+filepath.Join(s.config.DataDir, adminKubeconfig), "kubectl get nodes")
}

// bootstrap creates the objects and the RBAC policy that every cluster has from the start.
func (s *server) bootstrap(ctx context.Context) error {
	cidrs, err := s.config.ServiceCIDRs()
	if err != nil {
		return err
	}
	address, err := s.endpointAddress()
	if err != nil {
		return err
	}
	objects := bootstrap.Cluster{
		ServiceCIDRs: cidrs, APIServer: netip.AddrPortFrom(address, uint16(s.config.SecurePort)), SharesEndpoints: s.sharesStore(),
		NodeGroup: kubeletbootstrap.NodeGroup,
	}
	if s.peer != nil {
		objects.ServerGroup = cluster.ServerGroup
	}
	if !s.isAPIServerOnly {
		network, err := s.clusterNetwork()
		if err != nil {
			return err
		}
		objects.Network = network.ConfigMap()
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := s.untilSpace(ctx, func() error { return bootstrap.EnsureObjects(ctx, s.api.KindClient(), objects) }); err != nil {
			return err
		}
		s.hooks.objects.Done()
		return nil
	})
	group.Go(func() error {
		if err := s.untilSpace(ctx, func() error { return authz.Reconcile(ctx, s.api.KindClient(), authz.BootstrapPolicy()) }); err != nil {
			return fmt.Errorf("reconcile RBAC policy: %w", err)
		}
		s.hooks.roles.Done()
		return nil
	})
	return group.Wait()
}

// untilSpace repeats a write while the store has no space for it. The API is served meanwhile, but not ready.
func (s *server) untilSpace(ctx context.Context, write func() error) error {
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		err := write()
		if !apiserver.IsNoSpace(err) {
			return err
		}
		s.log.Error("failed to write the objects that every cluster has", "error", err, "retry", pause.String())
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// localClient makes a client of this server for the controllers that run in every API server.
func (s *server) localClient() (*client.Client, error) {
	return client.NewLocal(s.api.Local(apiServerUser), api.Scheme(), api.Named())
}

// runClusterAuthentication publishes how this server authenticates clients.
func (s *server) runClusterAuthentication(ctx context.Context) error {
	local, err := s.localClient()
	if err != nil {
		return err
	}
	headers := s.config.Authentication.RequestHeader
	return clusterauthentication.Run(ctx, clusterauthentication.Config{
		Client: local, ClientCAs: s.certs.clientCAs, FrontProxyCAs: s.certs.frontProxyCAs, FrontProxyNames: s.certs.frontProxyNames,
		UsernameHeaders: headers.UsernameHeaders, UIDHeaders: headers.UIDHeaders, GroupHeaders: headers.GroupHeaders, ExtraHeaderPrefixes: headers.ExtraHeaderPrefixes,
		OnPublished: s.hooks.clusterAuthentication.Done, Log: s.log.With("component", "cluster-authentication"),
	})
}

// runFlowControl keeps the objects of priority and fairness and, if it is enabled, applies them.
func (s *server) runFlowControl(ctx context.Context) error {
	local, err := s.localClient()
	if err != nil {
		return err
	}
	c := flowcontrol.Config{
		Client: local, OnBootstrapped: s.hooks.flowControlObjects.Done, WaitReady: s.hooks.all.Wait, Log: s.log.With("component", "flow-control"),
	}
	group, ctx := errgroup.WithContext(ctx)
	if f := s.access.fairness; f != nil {
		c.Configure, c.DanglingCondition = f.Configure, fairness.Dangling
		c.OnConfigured = s.hooks.flowControlConfiguration.Done
		group.Go(func() error { return f.Run(ctx) })
	}
	group.Go(func() error { return flowcontrol.New(c).Run(ctx) })
	return group.Wait()
}

// controllerSettings are the settings of the controllers inside the server.
func (s *server) controllerSettings() (settings controllers.Settings, err error) {
	settings = controllers.Settings{
		RootCA: s.certs.rootCAs, TokenSigner: s.access.issuer, Signing: signingCAs(s.certs.ca),
		BindNodeNames: true, NodeLifecycle: nodeLifecycle(s.config.NodeLifecycle),
		LocalPath: &volume.LocalPathSettings{Dir: localPathDir(s.config.DataDir)},
	}
	if settings.ServerNames, err = serverNames(s.config.APIServer); err != nil {
		return settings, err
	}
	if settings.ServiceRanges, err = s.config.ServiceCIDRs(); err != nil {
		return settings, err
	}
	if !s.store.Shared() {
		// No other API server has to observe the deletion of a namespace first.
		settings.NamespaceGrace = new(time.Duration)
	}
	settings.PodRanges, err = podRanges(s.config.PodCIDRs)
	return settings, err
}

// starter returns a function that runs a component in a group until ctx is done; its errors name the component.
func starter(ctx context.Context, group *errgroup.Group) func(component string, run func(context.Context) error) {
	return func(component string, run func(context.Context) error) {
		group.Go(func() error { return wrap(component, run(ctx)) })
	}
}

// wrap adds the name of a component to its error. That ctx is done is not an error.
func wrap(component string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return nil
	}
	return fmt.Errorf("%s: %w", component, err)
}
