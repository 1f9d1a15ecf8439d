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
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"skiff/internal/api"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/authn"
	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/kubelet"
	"skiff/internal/kubelet/cgroup"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/devices"
	"skiff/internal/kubelet/environment"
	"skiff/internal/kubelet/evict"
	"skiff/internal/kubelet/metrics"
	"skiff/internal/kubelet/node"
	"skiff/internal/kubelet/objects"
	"skiff/internal/kubelet/podresources"
	"skiff/internal/kubelet/runtime"
	"skiff/internal/kubelet/shutdown"
	"skiff/internal/kubelet/status"
	"skiff/internal/kubelet/usage"
	"skiff/internal/kubelet/volume"
	"skiff/internal/network/cni"
	"skiff/internal/pki"
)

// nodeSettings are what the node of this host is made from.
type nodeSettings struct {
	config.Node
	// dataDir holds the runtime and the network's state, root what belongs to pods.
	dataDir, root string
	// staticPods is the directory of static pods, if the configuration file names none.
	staticPods string
	// clusterRanges and serviceRanges are the cluster's addresses, as far as they are known here.
	clusterRanges, serviceRanges []netip.Prefix
	clusterDomain                string
	// identity makes what the node's server proves itself by; nil: what its own configuration says.
	identity func(name string, addresses []string) (*nodeIdentity, error)
	// certificates is the directory of the certificates that the cluster gives to the node.
	certificates string
	// sandboxProfile is the seccomp profile of sandboxes; empty with a runtime of somebody else's, and the pause image that it has.
	sandboxProfile string
	// authorityFile holds the authority of the cluster that the node has joined by a token; empty: it is a node in another way.
	authorityFile string
}

// runServerNode runs the node inside `skiff server`. It acts as the node it is, with no more rights than a node elsewhere has.
func runServerNode(ctx context.Context, c config.Server, certs *certificates, server *apiserver.Server, log *slog.Logger) error {
	name, err := c.Node.NodeName()
	if err != nil {
		return err
	}
	user := authn.User{Username: "system:node:" + name, Groups: []string{"system:nodes", "system:authenticated"}}
	local, err := client.NewLocal(server.Local(user), api.Scheme(), api.Named())
	if err != nil {
		return err
	}
	settings := nodeSettings{Node: c.Node, dataDir: c.DataDir, root: filepath.Join(c.DataDir, "kubelet"), clusterDomain: c.ClusterDomain}
	settings.identity = func(name string, addresses []string) (*nodeIdentity, error) {
		return serverNodeIdentity(pki.Dir(filepath.Join(c.DataDir, "pki")), certs.authority, name, addresses, log)
	}
	if settings.serviceRanges, err = c.ServiceCIDRs(); err != nil {
		return err
	}
	for text := range strings.SplitSeq(c.PodCIDRs.ClusterCIDR, ",") {
		if prefix, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			settings.clusterRanges = append(settings.clusterRanges, prefix)
		}
	}
	return runNode(ctx, local, settings, log)
}

// runNode runs the parts of a node until ctx ends.
func runNode(ctx context.Context, c *client.Client, s nodeSettings, log *slog.Logger) error {
	settings, err := s.configuration()
	if err != nil {
		return err
	}
	name, err := s.NodeName()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	start := func(part string, run func(context.Context) error) {
		group.Go(func() error { return wrap(part, run(ctx)) })
	}
	endpoint, networkBin, networkConf := s.ContainerRuntimeEndpoint, "/opt/cni/bin", "/etc/cni/net.d"
	var ready <-chan struct{}
	if endpoint == "" {
		own, err := ownRuntime(s.dataDir, log)
		if err != nil {
			return err
		}
		start("containerd", own.Run)
		endpoint, networkBin, networkConf = own.Endpoint(), filepath.Join(s.dataDir, "cni/bin"), filepath.Join(s.dataDir, "cni/net.d")
		s.sandboxProfile, ready = own.SandboxProfile(), own.Ready()
	} else {
		there := make(chan struct{})
		close(there)
		ready = there
	}
	counts := metrics.New(name)
	runtimeClient, err := cri.Dial(endpoint, counts.Operation)
	if err != nil {
		return err
	}
	defer runtimeClient.Close()
	var given []string
	if s.IP != "" {
		given = strings.Split(s.IP, ",")
	}
	addresses, err := node.Addresses(given)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.root, 0o750); err != nil {
		return fmt.Errorf("make the kubelet's directory: %w", err)
	}
	n := &nodeParts{
		nodeSettings: s, settings: settings, name: name, addresses: addresses, client: c, runtime: cri.New(runtimeClient), metrics: counts,
		ranges: make(chan []string, 1), log: log,
	}
	if err := n.make(); err != nil {
		return err
	}
	for part, run := range n.runs {
		start(part, run)
	}
	start("kubelet server", n.serve)
	start("usage", n.usage.Run)
	start("kubelet certificates", n.proof.run)
	start("kubelet", func(ctx context.Context) error {
		if err := n.preparePodNetwork(ctx, networkBin, networkConf); err != nil {
			return err
		}
		select {
		case <-ready: // and the images that lay ready are in
			if err := n.collectPodNetwork(ctx); err != nil {
				n.log.Warn("leftovers of the pod network are not collected", "error", err)
			}
			return n.kubelet.Run(ctx)
		case <-ctx.Done():
			return nil
		}
	})
	return group.Wait()
}

// nodeParts are the parts of a node, tied together.
type nodeParts struct {
	nodeSettings
	settings  *kubeletconfig.KubeletConfiguration
	name      string
	addresses []string
	client    *client.Client
	runtime   *cri.Runtime
	metrics   *metrics.Metrics
	// ranges brings the node's pod addresses when they are known.
	ranges chan []string
	log    *slog.Logger

	kubelet *kubelet.Kubelet
	node    *node.Node
	proof   *nodeIdentity
	usage   *usage.Usage
	guard   *evict.Evictor
	devices *devices.Devices
	// shutdown ends the pods before the host goes down.
	shutdown *shutdown.Shutdown
	// network is the pod network where it is skiff's own.
	network *cni.Settings
	// runs has what has to run beside the kubelet, by name.
	runs map[string]func(context.Context) error
}

// make makes the parts, and what they need on this host. It starts nothing.
func (n *nodeParts) make() error {
	if err := n.makeIdentity(); err != nil {
		return err
	}
	events := client.NewEventBroadcaster(n.client)
	recorder := events.NewRecorder("kubelet").WithHost(n.name)
	informers := client.NewInformers(n.client)
	services := client.InformerFor[*corev1.Service](informers)
	classes := kubelet.RuntimeClasses{Classes: client.InformerFor[*nodev1.RuntimeClass](informers)}
	named := objects.New(n.client, func(uid types.UID) { n.kubelet.Changed(uid) }, n.log.With("part", "objects"))
	if err := n.makeNode(recorder); err != nil {
		return err
	}
	host := cri.DetectHost(filepath.Join(n.root, "seccomp"))
	host.CPUQuota, host.CPUPeriod = *n.settings.CPUCFSQuota, n.settings.CPUCFSQuotaPeriod.Duration.Microseconds()
	host.SeccompDefault, host.SandboxSeccomp = *n.settings.SeccompDefault, n.sandboxProfile
	groups, err := cgroup.New(cgroup.Settings{
		Root: n.settings.CgroupRoot, PodPids: *n.settings.PodPidsLimit, NoCPUQuota: !host.CPUQuota, CPUPeriod: n.settings.CPUCFSQuotaPeriod.Duration,
	})
	if err != nil {
		return err
	}
	n.usage = &usage.Usage{
		NodeName: n.name, Cgroups: groups, Runtime: n.runtime, Pods: func() []*corev1.Pod { return n.kubelet.Pods() }, Root: n.root, Started: time.Now(),
	}
	pulls, collector, err := newImages(n.client, n.nodeSettings, n.settings, n.runtime, named, recorder, n.node.Node, n.log)
	if err != nil {
		return err
	}
	n.runs["image collector"] = collector.Run
	if err := n.makeGuard(groups, collector, recorder); err != nil {
		return err
	}
	volumes := volume.New(volume.Options{
		Root: n.root, Client: n.client, Objects: named, NodeName: n.name, Node: n.node.Node, Image: pulls.EnsureVolume, Events: recorder,
		RecursiveReadOnly: func(*corev1.Pod) bool { return true }, Log: n.log.With("part", "volumes"),
	})
	resolver, err := n.resolver()
	if err != nil {
		return err
	}
	logSize := resource.MustParse(n.settings.ContainerLogMaxSize)
	n.kubelet = kubelet.New(kubelet.Config{
		NodeName: n.name, Root: n.root, Client: n.client, Runtime: n.runtime, Volumes: volumes, Images: pulls, Cgroups: groups, Objects: named,
		Devices: n.devices, Handlers: classes,
		Services: func(namespace string) ([]*corev1.Service, error) {
			if !services.HasSynced() {
				return nil, errors.New("services have not yet been read at least once, cannot construct envvars")
			}
			return services.List(namespace, nil), nil
		},
		Node: n.node.Node, HostIPs: func() []string { return n.addresses }, Events: recorder, Host: host, DNS: resolver,
		MaxContainerRestartPeriod: n.settings.CrashLoopBackOff.MaxContainerRestartPeriod.Duration,
		StaticPods:                cmp.Or(n.settings.StaticPodPath, n.staticPods), StaticPodURL: n.settings.StaticPodURL,
		StaticPodHeader: n.settings.StaticPodURLHeader, StaticPodPeriod: n.settings.FileCheckFrequency.Duration, StaticPodURLPeriod: n.settings.HTTPCheckFrequency.Duration,
		LogMaxSize: logSize.Value(), LogMaxFiles: int(*n.settings.ContainerLogMaxFiles), AllowedSysctls: n.settings.AllowedUnsafeSysctls,
		Reject: n.refuse, RuntimeChanged: n.node.Changed, RecursiveReadOnly: true, Metrics: n.metrics,
		Log: n.log.With("part", "kubelet"),
	})
	n.metrics.All.MustRegister(metrics.NodeCollector{
		Pods: n.kubelet.Pods, Active: n.kubelet.Active, Runtime: n.runtime, Volumes: volumes.Count, Claims: volumes.Claims, Shutdown: n.shutdown.Times,
	})
	n.runs["objects"], n.runs["informers"], n.runs["events"], n.runs["node"] = named.Run, informers.Run, events.Run, n.node.Run
	n.runs["volumes"] = volumes.Run
	// Before the first pod mounts or starts anything.
	return errors.Join(volumes.Prepare(), n.setUpGroups(groups))
}

// makeNode makes what tells the API of this node.
func (n *nodeParts) makeNode(recorder client.EventRecorder) error {
	thresholds, err := n.thresholds()
	if err != nil {
		return err
	}
	host, err := node.ReadHost(n.root)
	if err != nil {
		return err
	}
	labels := map[string]string{}
	for _, label := range n.Labels {
		key, value, _ := strings.Cut(label, "=")
		labels[key] = value
	}
	n.node = node.New(node.Settings{
		Name: n.name, IPs: n.addresses, Labels: labels, Taints: n.settings.RegisterWithTaints, Port: n.settings.Port, MaxPods: int64(n.settings.MaxPods),
		PodsPerCore: int64(n.settings.PodsPerCore), Root: n.root, LeaseDurationSeconds: n.settings.NodeLeaseDurationSeconds, ProviderID: n.settings.ProviderID,
		StatusUpdateFrequency: n.settings.NodeStatusUpdateFrequency.Duration, StatusReportFrequency: n.settings.NodeStatusReportFrequency.Duration,
		SystemReserved: reserved(n.settings.SystemReserved), KubeReserved: reserved(n.settings.KubeReserved),
		EvictionReserved: evict.Reserved(thresholds, node.Capacity(host, node.Settings{})),
	}, node.Dependencies{
		Client: n.client, Runtime: n.runtime, Events: recorder, Pressure: n.pressure,
		Problems: n.problems,
		Devices: func() (told node.Devices) {
			told.Capacity, told.Allocatable, told.Removed = n.devices.Capacity(time.Now())
			return told
		},
		PodCIDRs: func(ranges []string) {
			select {
			case n.ranges <- ranges:
			default:
			}
		},
		Log: n.log.With("part", "node"),
	})
	n.shutdown = shutdown.New(shutdown.Options{
		Periods: shutdown.Periods(n.settings), Pods: func() []*corev1.Pod { return n.kubelet.Active() }, KillPod: n.endForShutdown,
		NodeEvent: n.node.Event, Changed: n.node.Changed, StateFile: filepath.Join(n.root, "graceful_node_shutdown_state"), Log: n.log.With("part", "shutdown"),
	})
	n.devices = devices.New(devices.Options{
		Dir: filepath.Join(n.root, "device-plugins"), ActivePods: func() ([]*corev1.Pod, bool) { return n.kubelet.ActiveOrPending() },
		Changed: n.node.Changed, PodChanged: func(uid types.UID) { n.kubelet.Changed(uid) }, Log: n.log.With("part", "devices"),
	})
	resources := &podresources.Server{
		Dir: filepath.Join(n.root, "pod-resources"), Devices: n.devices, Log: n.log.With("part", "pod resources"),
		Pods: func() []*corev1.Pod { return n.kubelet.Active() }, Pod: func(namespace, name string) (*corev1.Pod, bool) { return n.kubelet.Pod(namespace, name) },
	}
	n.runs = map[string]func(context.Context) error{"shutdown": n.shutdown.Run, "devices": n.devices.Run, "pod resources": resources.Run}
	return nil
}

// problems are what keeps the node from being ready, besides its runtime's own word.
func (n *nodeParts) problems() (errs []error) {
	if err := n.kubelet.RuntimeError(); err != nil {
		errs = append(errs, err)
	}
	if n.shutdown.ShuttingDown() {
		errs = append(errs, node.ErrShuttingDown)
	}
	return errs
}

// endForShutdown ends a pod because the host goes down.
func (n *nodeParts) endForShutdown(pod *corev1.Pod, grace int64) <-chan struct{} {
	freed := n.kubelet.Released(pod.UID)
	n.kubelet.Evict(pod.UID, status.Reason{Reason: shutdown.Reason, Message: shutdown.Message}, &grace, shutdown.Condition(pod, time.Now()))
	return freed
}

func reserved(amounts map[string]string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, text := range amounts {
		if q, err := resource.ParseQuantity(text); err == nil {
			list[corev1.ResourceName(name)] = q
		}
	}
	return list
}

// resolver says how pods find names.
func (n *nodeParts) resolver() (environment.DNSSettings, error) {
	s := environment.DNSSettings{ClusterDNS: n.settings.ClusterDNS, ClusterDomain: cmp.Or(n.settings.ClusterDomain, n.clusterDomain)}
	path := *n.settings.ResolverConfig
	if path == "" {
		return s, nil
	}
	text, err := os.ReadFile(path)
	if err == nil {
		s.Host, err = environment.ParseResolver(string(text))
	}
	if err != nil {
		return s, fmt.Errorf("resolvConf: %w", err)
	}
	return s, nil
}

// setUpGroups makes the control groups that all pods are in.
func (n *nodeParts) setUpGroups(groups *cgroup.Groups) error {
	host, err := node.ReadHost(n.root)
	if err != nil {
		return err
	}
	settings := node.Settings{MaxPods: int64(n.settings.MaxPods), PodsPerCore: int64(n.settings.PodsPerCore)}
	err = groups.Setup(node.EnforcedAllocatable(node.Capacity(host, settings), node.Settings{
		SystemReserved: reserved(n.settings.SystemReserved), KubeReserved: reserved(n.settings.KubeReserved),
	}))
	if err != nil {
		n.node.Event(corev1.EventTypeWarning, "FailedNodeAllocatableEnforcement", fmt.Sprintf("Failed to update Node Allocatable Limits %q: %v", n.settings.CgroupRoot, err))
		return err
	}
	if missing := groups.Missing(); len(missing) > 0 {
		n.log.Warn("this host does not have all controllers of control groups: their limits are not enforced", "missing", missing)
	}
	n.node.Event(corev1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
	return nil
}

// ownRuntime is the containerd that lies beside this program.
func ownRuntime(dataDir string, log *slog.Logger) (*runtime.Containerd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return runtime.New(runtime.Options{DataDir: dataDir, Programs: filepath.Dir(program), Log: log.With("part", "containerd")})
}

// preparePodNetwork waits until the node has its range of pod addresses, and then configures the network, unless somebody else does.
func (n *nodeParts) preparePodNetwork(ctx context.Context, bin, conf string) error {
	others, err := cni.Others(conf)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		n.log.Info("the pod network is configured by somebody else", "configuration", others)
		return nil
	}
	var texts []string
	for len(texts) == 0 {
		select {
		case texts = <-n.ranges:
		case <-ctx.Done():
			return nil
		}
	}
	settings := cni.Settings{DataDir: filepath.Join(n.dataDir, "cni/state"), ClusterCIDRs: n.clusterRanges, ServiceCIDRs: n.serviceRanges}
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("read the node's range of pod addresses: %w", err)
		}
		settings.PodCIDRs = append(settings.PodCIDRs, prefix)
	}
	if len(settings.ClusterCIDRs) == 0 {
		settings.ClusterCIDRs = slices.Clone(settings.PodCIDRs)
	}
	if err := cni.Install(bin); err != nil {
		return err
	}
	settings = settings.WithDefaults()
	if err := cni.Setup(settings); err != nil {
		return fmt.Errorf("prepare the pod network: %w", err)
	}
	n.network = &settings
	return cni.Configure(conf, settings)
}

// collectPodNetwork takes away what pods that ended while nobody looked have left in the network. The kubelet does not run yet.
func (n *nodeParts) collectPodNetwork(ctx context.Context) error {
	if n.network == nil {
		return nil
	}
	sandboxes, err := n.runtime.ListPodSandboxes(ctx, "")
	if err != nil {
		return err
	}
	var live []cni.Identity
	for _, s := range sandboxes {
		live = append(live, cni.Identity{Container: s.ID, Interface: "eth0"})
	}
	_, err = cni.Collect(*n.network, live)
	return err
}
