package system

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"skiff/internal/api"
	"skiff/internal/apiserver/authn"
	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/kubelet"
	"skiff/internal/kubelet/alignment"
	"skiff/internal/kubelet/cgroup"
	"skiff/internal/kubelet/cpus"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/devices"
	"skiff/internal/kubelet/dra"
	"skiff/internal/kubelet/environment"
	"skiff/internal/kubelet/evict"
	"skiff/internal/kubelet/images"
	"skiff/internal/kubelet/memory"
	"skiff/internal/kubelet/metrics"
	"skiff/internal/kubelet/node"
	"skiff/internal/kubelet/objects"
	"skiff/internal/kubelet/pluginregistry"
	"skiff/internal/kubelet/podresources"
	"skiff/internal/kubelet/shutdown"
	"skiff/internal/kubelet/status"
	"skiff/internal/kubelet/topology"
	"skiff/internal/kubelet/usage"
	"skiff/internal/kubelet/volume"
	"skiff/internal/localpath"
	"skiff/internal/network/dns"
	"skiff/internal/network/overlay"
	"skiff/internal/pki"
	"skiff/internal/tracing"
	"skiff/internal/version"
)

// nodeOptions are what the node of this host is made from.
type nodeOptions struct {
	config.Node
	// dataDir holds the state of containerd and of the pod network, root the kubelet's.
	dataDir, root string
	// localPathDir is the parent of the directories of volumes that skiff provisions on this node.
	localPathDir string
	// rootFlag is the flag that root is set with.
	rootFlag string
	// staticPods is the directory of static pods, if the configuration file names none.
	staticPods string
	// backend is how the pods of other nodes are reached; empty: not by this process.
	backend overlay.Backend
	// clusterCIDRs and serviceCIDRs are the cluster's, as far as they are configured here.
	clusterCIDRs, serviceCIDRs []netip.Prefix
	clusterDomain              string
	// clusterDNS is the address of the cluster's DNS, unless the configuration file has it; empty: there is none.
	clusterDNS []string
	// servesDNS runs the cluster's DNS on the node.
	servesDNS bool
	// identity returns the serving certificate of the kubelet's server and its client CAs; nil: those of the kubelet's own configuration.
	identity func(name string, addresses []string) (*nodeIdentity, error)
	// certificateDir is the directory of the certificates that the cluster issues to the node.
	certificateDir string
	// sandboxProfile is the seccomp profile of sandboxes; empty with a container runtime that skiff does not run.
	sandboxProfile string
	// caFile holds the CA of the cluster that the node has joined with a token; empty: it has not joined with a token.
	caFile string
	// proxy are the options of the Service proxy; nil: it runs elsewhere.
	proxy *proxyOptions
	// progress shows the start of the node; it may be nil. ready is called once the API server has the node as ready; it may be nil.
	progress *progress
	ready    func()
	// enforcesPolicies runs what enforces network policies on the node.
	enforcesPolicies bool
}

// kubeletConfiguration is the KubeletConfiguration of the node.
func (o *nodeOptions) kubeletConfiguration() (*kubeletconfig.KubeletConfiguration, error) {
	settings, err := o.KubeletConfiguration()
	if err == nil && o.caFile != "" {
		settings.ServerTLSBootstrap = true
		if settings.Authentication.X509.ClientCAFile == "" {
			settings.Authentication.X509.ClientCAFile = o.caFile
		}
	}
	return settings, err
}

// runNode runs the node inside `skiff server`. It acts as the user of its node, with no more rights than any other node has. ready is called once it is
// ready.
func (s *server) runNode(ctx context.Context, ready func()) error {
	options, err := s.nodeOptions()
	if err != nil {
		return err
	}
	options.progress, options.ready = s.progress, ready
	name, err := options.NodeName()
	if err != nil {
		return err
	}
	user := authn.User{Username: "system:node:" + name, Groups: []string{"system:nodes", "system:authenticated"}}
	local, err := client.NewLocal(s.api.Local(user), api.Scheme(), api.Named())
	if err != nil {
		return err
	}
	return runNode(ctx, local, options, s.log)
}

// nodeOptions are the options of the node inside `skiff server`.
func (s *server) nodeOptions() (o nodeOptions, err error) {
	c := s.config
	o = nodeOptions{Node: c.Node, dataDir: c.DataDir, root: c.Node.KubeletDir(c.DataDir), rootFlag: "root-dir", clusterDomain: c.ClusterDomain,
		localPathDir: localPathDir(c.DataDir)}
	o.identity = func(name string, addresses []string) (*nodeIdentity, error) {
		return serverNodeIdentity(pki.Dir(filepath.Join(c.DataDir, "pki")), s.certs.ca, name, addresses, s.log)
	}
	cluster, err := s.clusterNetwork()
	if err != nil {
		return o, err
	}
	o.backend, o.clusterCIDRs = cluster.Backend, cluster.CIDRs
	if o.serviceCIDRs, err = c.ServiceCIDRs(); err != nil {
		return o, err
	}
	o.servesDNS = c.Provides(config.ClusterDNS)
	o.clusterDNS = clusterDNS(o.serviceCIDRs)
	if c.Runs(config.ComponentProxy) {
		o.proxy = &proxyOptions{nodePortAddresses: c.NodePortAddresses}
	}
	o.enforcesPolicies = c.Runs(config.ComponentPolicy)
	return o, nil
}

// runNode runs the components of a node until ctx is done.
func runNode(ctx context.Context, c *client.Client, o nodeOptions, log *slog.Logger) error {
	group, ctx := errgroup.WithContext(ctx)
	start := starter(ctx, group)
	n, err := newNodeComponents(c, o, log)
	if err != nil {
		return err
	}
	unlock, err := openKubeletDir(n.root, n.dataDir, n.rootFlag)
	if err != nil {
		return err
	}
	defer unlock()
	n.runtimeReady = n.progress.begin("container runtime")
	runtime, err := n.containerRuntime()
	if err != nil {
		return err
	}
	connection, err := cri.Dial(runtime.endpoint, n.metrics.Operation)
	if err != nil {
		return err
	}
	defer connection.Close()
	n.runtime = cri.New(connection)
	if runtime.run == nil {
		if err := n.adaptToRuntime(ctx, runtime); err != nil {
			return err
		}
	}
	n.cniBinDir, n.cniConfDir = runtime.cniBinDir, runtime.cniConfDir
	if err := n.checkCIDRs(); err != nil {
		return err
	}
	if err := n.build(); err != nil {
		return err
	}
	if runtime.run != nil {
		start("containerd", runtime.run)
	}
	for component, run := range n.runs {
		start(component, run)
	}
	if *n.settings.EnableServer {
		start("kubelet server", n.serve)
	}
	if *n.settings.HealthzPort != 0 {
		start("kubelet health checks", n.serveHealthz)
	}
	start("kubelet certificates", n.proof.run)
	start("addresses", n.watchAddress)
	start("CPU manager", func(ctx context.Context) error { return n.runCPUs(ctx, runtime) })
	start("kubelet", func(ctx context.Context) error { return n.runKubelet(ctx, runtime) })
	return group.Wait()
}

// runKubelet runs the kubelet when the container runtime is ready. It does not wait for the pod network: static pods and pods in the host's
// network may be what provides it.
func (n *nodeComponents) runKubelet(ctx context.Context, runtime *containerRuntime) error {
	select {
	case <-runtime.ready:
	case <-ctx.Done():
		return nil
	}
	n.runtimeReady()
	if err := n.collectPodNetwork(ctx); err != nil {
		n.log.Warn("failed to remove the network of pods that no longer exist", "error", err)
	}
	return n.kubelet.Run(ctx)
}

// nodeComponents are the components of a node.
type nodeComponents struct {
	nodeOptions
	settings  *kubeletconfig.KubeletConfiguration
	name      string
	addresses []string
	client    *client.Client
	runtime   *cri.Runtime
	metrics   *metrics.Metrics
	tracing   *tracing.Provider // nil: no spans are recorded
	// started is when the node was started. runtimeReady ends the start of its container runtime.
	started      time.Time
	runtimeReady func()
	// runtimeProblem is why skiff's own container runtime is not ready; nil: it is run by something else.
	runtimeProblem func() error
	// podCIDRs receives the node's pod CIDRs once they are allocated.
	podCIDRs chan []string
	log      *slog.Logger

	events    *client.EventBroadcaster
	recorder  client.EventRecorder
	informers *client.Informers
	objects   *objects.Cache
	cgroups   *cgroup.Groups
	host      cri.Host
	kubelet   *kubelet.Kubelet
	node      *node.Node
	proof     *nodeIdentity
	usage     *usage.Usage
	volumes   *volume.Volumes
	puller    *images.Images
	collector *images.Collector
	evictor   *evict.Evictor
	devices   *devices.Devices
	claims    *dra.Claims
	topology  *topology.Topology
	cpus      *cpus.CPUs
	memory    *memory.Memory
	admission *alignment.Admission
	// evictionReserved are the resources that the hard eviction thresholds keep free.
	evictionReserved corev1.ResourceList
	// shutdown terminates pods before the host shuts down.
	shutdown *shutdown.Shutdown
	// network is the pod network, if skiff sets it up.
	network *nodeNetwork
	// cniBinDir and cniConfDir are those of the container runtime.
	cniBinDir, cniConfDir string
	// cniVersion is the version of the CNI specification that the container runtime is given; empty means the plugin's own.
	cniVersion string
	// runs are what runs besides the kubelet, by name of the component.
	runs map[string]func(context.Context) error
}

// newNodeComponents reads the configuration of a node and makes its state directory.
func newNodeComponents(c *client.Client, o nodeOptions, log *slog.Logger) (*nodeComponents, error) {
	n := &nodeComponents{nodeOptions: o, client: c, started: time.Now(), podCIDRs: make(chan []string, 1), log: log, runs: map[string]func(context.Context) error{}}
	var err error
	if n.settings, err = n.kubeletConfiguration(); err != nil {
		return nil, err
	}
	for _, warning := range config.KubeletWarnings(n.settings) {
		log.Warn("ignored a field of the KubeletConfiguration", "warning", warning)
	}
	if err := setUpProcess(n.settings); err != nil {
		return nil, err
	}
	if n.name, err = n.NodeName(); err != nil {
		return nil, err
	}
	if err := n.setTracing(); err != nil {
		return nil, err
	}
	n.metrics = metrics.New(n.name)
	n.metrics.All.MustRegister(version.Metric(), config.FeatureGates(n.settings.FeatureGates))
	if n.addresses, err = n.ownAddresses(); err != nil {
		return nil, err
	}
	return n, nil
}

// setTracing makes the spans of the kubelet if they are configured.
func (n *nodeComponents) setTracing() (err error) {
	c := n.settings.Tracing
	if c == nil {
		return nil
	}
	if errs := tracing.Validate(c, field.NewPath("tracing")); len(errs) > 0 {
		return fmt.Errorf("KubeletConfiguration: %w", errs.ToAggregate())
	}
	if n.tracing, err = tracing.New(context.Background(), c, tracing.Options{Service: "kubelet", InstanceID: n.name}); err != nil {
		return fmt.Errorf("KubeletConfiguration: tracing: %w", err)
	}
	n.runs["tracing"] = n.tracing.Run
	return nil
}

// build makes the components, and what they need on this host. It starts nothing. The order matters: each step uses what the steps before it
// have made.
func (n *nodeComponents) build() error {
	n.events = client.NewEventBroadcaster(n.client).WithLog(n.log)
	n.recorder = n.events.NewRecorder("kubelet").WithHost(n.name)
	n.informers = client.NewInformers(n.client)
	n.objects = objects.New(n.client, func(uid types.UID) { n.kubelet.Changed(uid) }, n.log.With("component", "objects"))
	n.runs["events"], n.runs["informers"], n.runs["objects"] = n.events.Run, n.informers.Run, n.objects.Run
	for _, step := range []func() error{
		n.buildIdentity, n.readTopology, n.buildNode, n.buildCPUsAndMemory, n.buildShutdownAndDevices, n.buildAdmission, n.buildCgroups, n.setUpCgroups, n.buildImages, n.buildEviction, n.buildVolumes, n.buildKubelet, n.buildDNS,
		n.buildProxy, n.buildNetwork, n.buildPolicy,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	// Before the first pod mounts or starts anything.
	return n.volumes.Prepare()
}

// buildCgroups makes the cgroups of pods and what reads their usage.
func (n *nodeComponents) buildCgroups() (err error) {
	n.host = cri.DetectHost(filepath.Join(n.root, "seccomp"))
	n.host.CPUQuota, n.host.CPUPeriod = *n.settings.CPUCFSQuota, n.settings.CPUCFSQuotaPeriod.Duration.Microseconds()
	n.host.SeccompDefault, n.host.SandboxSeccomp = *n.settings.SeccompDefault, n.sandboxProfile
	n.host.SingleProcessOOMKill = *n.settings.SingleProcessOOMKill
	n.host.LimitedSwap = n.settings.MemorySwap.SwapBehavior == "LimitedSwap"
	n.setMemoryQoS()
	n.cgroups, err = cgroup.New(cgroup.Settings{
		Root: n.settings.CgroupRoot, PodPids: *n.settings.PodPidsLimit, NoCPUQuota: !n.host.CPUQuota, CPUPeriod: n.settings.CPUCFSQuotaPeriod.Duration,
		HasExclusiveCPUs: n.cpus.HasExclusive,
		Driver:           n.settings.CgroupDriver, TieredReservation: n.host.TieredReservation, MemoryThrottlingFactor: n.host.MemoryThrottlingFactor,
	})
	if err != nil {
		return err
	}
	n.log.Info("cgroups of pods", "version", n.cgroups.Version(), "driver", n.settings.CgroupDriver)
	if n.cgroups.Version() == 1 && *n.settings.FailCgroupV1 {
		return errors.New("failCgroupV1: this host has cgroup version 1")
	}
	n.usage = &usage.Usage{
		NodeName: n.name, Cgroups: n.cgroups, Runtime: n.runtime, Pods: func() []*corev1.Pod { return n.kubelet.Pods() }, Root: n.root, Started: time.Now(),
		Volumes: func(ctx context.Context, pods []*corev1.Pod) map[types.UID][]statsapi.VolumeStats {
			return n.volumes.Stats(ctx, pods)
		},
	}
	n.runs["usage"] = n.usage.Run
	n.runs["QoS cgroups"] = func(ctx context.Context) error { return n.cgroups.RunClasses(ctx, n.kubelet.Active, n.log) }
	return nil
}

// volumesInUse are the attached volumes in use, for the node's status.
func (n *nodeComponents) volumesInUse() ([]corev1.UniqueVolumeName, bool) {
	names, err := n.volumes.InUse()
	if err != nil {
		n.log.Warn("failed to read the volumes in use", "error", err)
	}
	return names, err == nil
}

// setMemoryQoS sets how the memory of containers is protected and throttled. That needs cgroup version 2.
func (n *nodeComponents) setMemoryQoS() {
	tiered, factor := n.settings.MemoryReservationPolicy == kubeletconfig.TieredReservationMemoryReservationPolicy, n.settings.MemoryThrottlingFactor
	if !n.host.CgroupV2 {
		if tiered || factor != nil {
			n.log.Warn("ignored a field of the KubeletConfiguration", "warning", "memoryReservationPolicy and memoryThrottlingFactor need cgroup version 2")
		}
		return
	}
	n.host.TieredReservation = tiered
	if factor != nil {
		n.host.MemoryThrottlingFactor = *factor
		n.host.AllocatableMemory = func() int64 { return n.node.Node().Status.Allocatable.Memory().Value() }
	}
}

// buildVolumes makes what mounts the volumes of pods, and the registry of CSI and DRA drivers.
func (n *nodeComponents) buildVolumes() error {
	n.volumes = volume.New(volume.Options{
		Root: n.root, LocalPathDir: n.localPathDir, Client: n.client, Objects: n.objects, NodeName: n.name, Node: n.node.Node, Image: n.puller.EnsureVolume, Events: n.recorder,
		RecursiveReadOnly: func(*corev1.Pod) bool { return true }, InUseChanged: n.node.Changed, StatsPeriod: n.settings.VolumeStatsAggPeriod.Duration, Metrics: n.metrics, Log: n.log.With("component", "volumes"),
	})
	n.runs["volumes"] = n.volumes.Run
	registry := &pluginregistry.Registry{
		Dir: filepath.Join(n.root, "plugins_registry"), Log: n.log.With("component", "plugin registry"),
		Handlers: map[string]pluginregistry.Handler{pluginregistry.CSIDriver: n.volumes.CSIDrivers(), pluginregistry.DRADriver: n.claims.Drivers()},
	}
	n.runs["plugin registry"] = registry.Run
	return nil
}

// buildKubelet makes the kubelet itself.
func (n *nodeComponents) buildKubelet() error {
	services := client.InformerFor[*corev1.Service](n.informers)
	classes := kubelet.RuntimeClasses{Classes: client.InformerFor[*nodev1.RuntimeClass](n.informers)}
	resolver := environment.DNSSettings{ClusterDNS: n.settings.ClusterDNS, ClusterDomain: cmp.Or(n.settings.ClusterDomain, n.clusterDomain)}
	if len(resolver.ClusterDNS) == 0 {
		resolver.ClusterDNS = n.clusterDNS
	}
	n.checkHostDNS(resolver.ClusterDomain)
	logSize := resource.MustParse(n.settings.ContainerLogMaxSize)
	n.kubelet = kubelet.New(kubelet.Config{
		NodeName: n.name, Root: n.root, Client: n.client, Runtime: n.runtime, Volumes: n.volumes, Images: n.puller, Cgroups: n.cgroups, Objects: n.objects,
		Allocator: n.admission, CPUs: n.cpus, Memory: n.memory, StaticCPUs: n.settings.CPUManagerPolicy == cpus.Static,
		StaticMemory: n.settings.MemoryManagerPolicy == memory.Static, Devices: n.devices, ResourceClaims: n.claims, Handlers: classes,
		Services: nodeServices{services}, Node: n.node.Node, HostIPs: func() []string { return n.addresses }, Events: n.recorder, Host: n.host, DNS: resolver, HostDNS: n.hostDNS,
		MaxContainerRestartPeriod: n.settings.CrashLoopBackOff.MaxContainerRestartPeriod.Duration,
		StaticPods:                cmp.Or(n.settings.StaticPodPath, n.staticPods), StaticPodURL: n.settings.StaticPodURL,
		StaticPodHeader: n.settings.StaticPodURLHeader, StaticPodPeriod: n.settings.FileCheckFrequency.Duration, StaticPodURLPeriod: n.settings.HTTPCheckFrequency.Duration,
		PodLogsDir: n.podLogsDir(), LogMaxSize: logSize.Value(), LogMaxFiles: int(*n.settings.ContainerLogMaxFiles),
		LogMonitorInterval: n.settings.ContainerLogMonitorInterval.Duration, AllowedSysctls: n.settings.AllowedUnsafeSysctls,
		Reject: n.rejectPod, RuntimeChanged: n.node.Changed, NetworkError: n.node.NetworkError, RecursiveReadOnly: true, Metrics: n.metrics, Tracing: n.tracing,
		Log: n.log.With("component", "kubelet"),
	})
	n.metrics.All.MustRegister(metrics.NodeCollector{
		Pods: n.kubelet.Pods, Active: n.kubelet.Active, Runtime: n.runtime, Volumes: n.volumes.Count, VolumeStats: n.volumes.Stats, Shutdown: n.shutdown.Times,
	})
	return nil
}

// nodeServices are the Services that the environment of containers is computed from. Other components of the node may have them packed, so that those
// that are not needed are not read.
type nodeServices struct {
	informer client.Informer[*corev1.Service]
}

var errServicesUnknown = errors.New("services have not yet been read at least once, cannot construct envvars")

// List implements kubelet.Services.
func (s nodeServices) List(namespace string) ([]*corev1.Service, error) {
	if !s.informer.HasSynced() {
		return nil, errServicesUnknown
	}
	return s.informer.List(namespace, nil), nil
}

// Get implements kubelet.Services.
func (s nodeServices) Get(namespace, name string) (*corev1.Service, error) {
	if !s.informer.HasSynced() {
		return nil, errServicesUnknown
	}
	service, _ := s.informer.Get(namespace, name)
	return service, nil
}

// podLogsDir is the directory of the logs of all pods.
func (n *nodeComponents) podLogsDir() string {
	return cmp.Or(n.settings.PodLogsDir, config.PodLogsDir(n.root))
}

// checkSwap returns an error if the node must not start on a host with swap.
func checkSwap(s *kubeletconfig.KubeletConfiguration, host node.Host) error {
	if *s.FailSwapOn && host.Swap > 0 {
		return errors.New("failSwapOn: swap is enabled on this host")
	}
	return nil
}

// buildNode makes what registers the node and reports its status.
func (n *nodeComponents) buildNode() error {
	thresholds, err := n.thresholds()
	if err != nil {
		return err
	}
	host, err := node.ReadHost(n.root)
	if err != nil {
		return err
	}
	if err := checkSwap(n.settings, host); err != nil {
		return err
	}
	n.evictionReserved = evict.Reserved(thresholds, node.Capacity(host, node.Settings{}))
	labels := map[string]string{}
	for _, label := range n.Labels {
		key, value, _ := strings.Cut(label, "=")
		labels[key] = value
	}
	n.node = node.New(node.Settings{
		Name: n.name, IPs: n.addresses, Labels: labels, Taints: n.settings.RegisterWithTaints, Port: n.settings.Port, MaxPods: int64(n.settings.MaxPods),
		PodsPerCore: int64(n.settings.PodsPerCore), Root: n.root, LeaseDurationSeconds: n.settings.NodeLeaseDurationSeconds, ProviderID: n.settings.ProviderID,
		Annotations:      map[string]string{localpath.DirAnnotation: n.localPathDir},
		SkipRegistration: !*n.settings.RegisterNode, MaxImages: n.settings.NodeStatusMaxImages,
		StatusUpdateFrequency: n.settings.NodeStatusUpdateFrequency.Duration, StatusReportFrequency: n.settings.NodeStatusReportFrequency.Duration,
		SystemReserved: reserved(n.settings.SystemReserved), KubeReserved: reserved(n.settings.KubeReserved),
		EvictionReserved: n.evictionReserved,
	}, node.Dependencies{
		Client: n.client, Runtime: n.runtime, Events: n.recorder, Pressure: n.pressure,
		Problems: n.notReadyErrors, Network: n.networkStatus, NetworkReady: func() { n.kubelet.SyncAll() },
		Observed: n.observed, VolumesInUse: n.volumesInUse,
		VolumesReported: func(names []corev1.UniqueVolumeName) { n.volumes.ReportedInUse(names) },
		Devices: func() (d node.Devices) {
			d.Capacity, d.Allocatable, d.Removed = n.devices.Capacity(time.Now())
			return d
		},
		PodCIDRs: func(cidrs []string) {
			select {
			case n.podCIDRs <- cidrs:
			default:
			}
		},
		Log: n.log.With("component", "node"),
	})
	n.runs["node"] = n.node.Run
	return nil
}

// observed is called when the node's object was read.
func (n *nodeComponents) observed() {
	n.volumes.NodeChanged()
	if n.ready == nil {
		return
	}
	for _, c := range n.node.Node().Status.Conditions {
		// The condition of an earlier start says nothing about this one. Times in the API have whole seconds.
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(n.started.Truncate(time.Second)) {
			n.ready()
		}
	}
}

// buildShutdownAndDevices makes what handles the shutdown of the host, the device plugins, the devices of resource claims, and the server of
// pod resources.
func (n *nodeComponents) buildShutdownAndDevices() (err error) {
	n.shutdown = shutdown.New(shutdown.Options{
		Periods: shutdown.Periods(n.settings), Pods: func() []*corev1.Pod { return n.kubelet.Active() }, KillPod: n.killForShutdown,
		NodeEvent: n.node.Event, Changed: n.node.Changed, StateFile: filepath.Join(n.root, "graceful_node_shutdown_state"), Log: n.log.With("component", "shutdown"),
	})
	n.devices = devices.New(devices.Options{
		Dir: filepath.Join(n.root, "device-plugins"), NUMANodes: n.topology.NUMANodeIDs(), ActivePods: n.activeOrPending,
		Changed: n.node.Changed, PodChanged: func(uid types.UID) { n.kubelet.Changed(uid) }, Log: n.log.With("component", "devices"),
	})
	n.claims, err = dra.New(dra.Options{
		Dir: n.root, NodeName: n.name, Client: n.client, ActivePods: n.activeOrPending,
		PodChanged: func(uid types.UID) { n.kubelet.Changed(uid) }, Log: n.log.With("component", "resource claims"),
	})
	if err != nil {
		return err
	}
	n.metrics.All.MustRegister(n.claims.Collectors()...)
	n.runs["resource claims"] = n.claims.Run
	resources := &podresources.Server{
		Dir: filepath.Join(n.root, "pod-resources"), Devices: n.devices, Claims: n.claims, CPUs: n.cpus, Memory: n.memory,
		Log:  n.log.With("component", "pod resources"),
		Pods: func() []*corev1.Pod { return n.kubelet.Active() }, Pod: func(namespace, name string) (*corev1.Pod, bool) { return n.kubelet.Pod(namespace, name) },
	}
	n.runs["shutdown"], n.runs["devices"], n.runs["pod resources"] = n.shutdown.Run, n.devices.Run, resources.Run
	return nil
}

// notReadyErrors are the reasons why the node is not ready, besides the status of its container runtime.
func (n *nodeComponents) notReadyErrors() (errs []error) {
	if n.runtimeProblem != nil {
		if err := n.runtimeProblem(); err != nil {
			errs = append(errs, err)
		}
	}
	if err := n.kubelet.RuntimeError(); err != nil {
		errs = append(errs, err)
	}
	if n.shutdown.ShuttingDown() {
		errs = append(errs, node.ErrShuttingDown)
	}
	return errs
}

// killForShutdown terminates a pod because the host shuts down.
func (n *nodeComponents) killForShutdown(pod *corev1.Pod, grace int64) <-chan struct{} {
	freed := n.kubelet.Released(pod.UID)
	n.kubelet.Evict(pod.UID, status.Reason{Reason: shutdown.Reason, Message: shutdown.Message}, &grace, shutdown.Condition(pod, time.Now()))
	return freed
}

// reserved parses the resources that are reserved for the system.
func reserved(amounts map[string]string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, text := range amounts {
		if q, err := resource.ParseQuantity(text); err == nil {
			list[corev1.ResourceName(name)] = q
		}
	}
	return list
}

// hostDNS reads the resolver configuration of the host, which pods with the dnsPolicy Default get; nil: it is disabled.
func (n *nodeComponents) hostDNS() (*environment.DNSConfig, error) {
	if *n.settings.ResolverConfig == "" {
		return nil, nil
	}
	text, err := os.ReadFile(dns.HostResolvConf(*n.settings.ResolverConfig))
	if err != nil {
		return nil, fmt.Errorf("resolvConf: %w", err)
	}
	config, err := environment.ParseResolver(string(text))
	if err != nil {
		return nil, fmt.Errorf("resolvConf: %w", err)
	}
	return config, nil
}

// checkHostDNS reports a resolver configuration of the host that pods cannot have. The node starts nevertheless: the configuration is read for each pod,
// and pods wait until it can be read.
func (n *nodeComponents) checkHostDNS(clusterDomain string) {
	config, err := n.hostDNS()
	problem := ""
	switch {
	case err != nil:
		problem = err.Error()
	case config != nil:
		problem = environment.CheckResolver(*n.settings.ResolverConfig, config, clusterDomain)
	}
	if problem == "" {
		return
	}
	n.log.Warn("pods cannot have the host's resolver configuration", "problem", problem)
	n.node.Event(corev1.EventTypeWarning, "CheckLimitsForResolvConf", problem)
}

// podLimits are the limits of all pods together: what the host has, without what is reserved if that is enforced.
func podLimits(s *kubeletconfig.KubeletConfiguration, host node.Host) corev1.ResourceList {
	limits := node.Capacity(host, node.Settings{MaxPods: int64(s.MaxPods), PodsPerCore: int64(s.PodsPerCore)})
	if slices.Contains(s.EnforceNodeAllocatable, config.EnforcePods) {
		limits = node.EnforcedAllocatable(limits, node.Settings{SystemReserved: reserved(s.SystemReserved), KubeReserved: reserved(s.KubeReserved)})
	}
	return limits
}

// setUpCgroups makes the cgroups that all pods are in.
func (n *nodeComponents) setUpCgroups() error {
	host, err := node.ReadHost(n.root)
	if err != nil {
		return err
	}
	if err := n.cgroups.Setup(podLimits(n.settings, host)); err != nil {
		n.node.Event(corev1.EventTypeWarning, "FailedNodeAllocatableEnforcement", fmt.Sprintf("Failed to update Node Allocatable Limits %q: %v", n.settings.CgroupRoot, err))
		return err
	}
	n.host.MissingControllers = n.cgroups.Missing()
	if missing := n.host.MissingControllers; len(missing) > 0 {
		n.log.Warn("cgroup controllers are missing on this host, their limits are not enforced", "missing", missing)
	}
	n.node.Event(corev1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
	return n.enforceReserved()
}

// enforceReserved limits the cgroups of the system and of Kubernetes' daemons to what is reserved for them, if that is configured.
func (n *nodeComponents) enforceReserved() error {
	s := n.settings
	for _, r := range []struct {
		key, title, group string
		amounts           map[string]string
	}{
		{config.EnforceSystemReserved, "System Reserved", s.SystemReservedCgroup, s.SystemReserved},
		{config.EnforceKubeReserved, "Kube Reserved", s.KubeReservedCgroup, s.KubeReserved},
	} {
		all := slices.Contains(s.EnforceNodeAllocatable, r.key)
		if !all && !slices.Contains(s.EnforceNodeAllocatable, r.key+config.EnforceOnlyCPU) {
			continue
		}
		if err := n.cgroups.Reserve(r.group, reserved(r.amounts), !all); err != nil {
			message := fmt.Sprintf("Failed to enforce %s Cgroup Limits on %q: %v", r.title, r.group, err)
			n.node.Event(corev1.EventTypeWarning, "FailedNodeAllocatableEnforcement", message)
			return errors.New(message)
		}
		n.node.Event(corev1.EventTypeNormal, "NodeAllocatableEnforced", fmt.Sprintf("Updated limits on %s cgroup %s", strings.ToLower(r.title), r.group))
	}
	return nil
}
