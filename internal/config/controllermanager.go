package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"
)

// Serving is the HTTPS endpoint at which a component that runs alone serves health checks and metrics, with upstream's flag names.
type Serving struct {
	BindAddress string
	// SecurePort 0 disables serving.
	SecurePort int
	// CertFile and KeyFile are the serving certificate; if they are empty, the component signs one itself.
	CertFile, KeyFile string
	// ClientCAFile holds the CAs of client certificates. If it is empty, those that the API server publishes are used.
	ClientCAFile string
	// AuthenticationKubeconfig and AuthorizationKubeconfig reach the API server that reviews tokens and access. If they are empty, the
	// component's own is used.
	AuthenticationKubeconfig, AuthorizationKubeconfig string
	// AlwaysAllowPaths are served without authorization.
	AlwaysAllowPaths []string
	Profiling        bool
}

func defaultServing(port int) Serving {
	return Serving{BindAddress: "0.0.0.0", SecurePort: port, AlwaysAllowPaths: []string{"/healthz", "/readyz", "/livez"}}
}

func (c *Serving) flags(groups *FlagGroups) {
	fs := groups.Common(groupServing)
	fs.StringVar(&c.BindAddress, "bind-address", c.BindAddress, "IP address on which to serve health checks and metrics.")
	fs.IntVar(&c.SecurePort, "secure-port", c.SecurePort, "Port on which to serve health checks and metrics with TLS. 0 means that they are not served.")
	fs.StringVar(&c.CertFile, "tls-cert-file", c.CertFile, "Path to the serving certificate. Defaults to one signed at start.")
	fs.StringVar(&c.KeyFile, "tls-private-key-file", c.KeyFile, "Path to the private key of --tls-cert-file.")
	fs.StringVar(&c.ClientCAFile, "client-ca-file", c.ClientCAFile,
		"Path to the CA certificates of clients. Defaults to the CAs that the API server publishes.")
	fs = groups.Advanced(groupServing)
	fs.StringVar(&c.AuthenticationKubeconfig, "authentication-kubeconfig", c.AuthenticationKubeconfig,
		"Path to the kubeconfig of the API server that reviews tokens. Defaults to --kubeconfig.")
	fs.StringVar(&c.AuthorizationKubeconfig, "authorization-kubeconfig", c.AuthorizationKubeconfig,
		"Path to the kubeconfig of the API server that reviews access. Defaults to --kubeconfig.")
	listVar(fs, &c.AlwaysAllowPaths, "authorization-always-allow-paths", "Paths to serve without authorization, separated by commas.")
	fs.BoolVar(&c.Profiling, "profiling", c.Profiling, "Serve profiles at /debug/pprof/.")
}

func (c *Serving) validate() error {
	switch {
	case net.ParseIP(c.BindAddress) == nil:
		return fmt.Errorf("--bind-address: %q is not an IP address", c.BindAddress)
	case c.SecurePort < 0 || c.SecurePort > 65535:
		return fmt.Errorf("--secure-port: %d is not a port", c.SecurePort)
	case (c.CertFile == "") != (c.KeyFile == ""):
		return errors.New("--tls-cert-file: certificate and key are needed together")
	}
	return nil
}

// PodCIDRs configures the allocation of pod CIDRs to nodes, with upstream's flag names.
type PodCIDRs struct {
	// ClusterCIDR is one range, or one of each IP family separated by a comma.
	ClusterCIDR string
	// NodeMaskSize, or one for each IP family, is the prefix length of a node's pod CIDR. 0 means 24 for IPv4 and 64 for IPv6.
	NodeMaskSize, NodeMaskSizeIPv4, NodeMaskSizeIPv6 int
}

func (c *PodCIDRs) flags(groups *FlagGroups) {
	groups.Common(groupNetworking).StringVar(&c.ClusterCIDR, "cluster-cidr", c.ClusterCIDR, "CIDR for pod IPs, or two separated by a comma for dual-stack.")
	fs := groups.Advanced(groupNetworking)
	fs.IntVar(&c.NodeMaskSize, "node-cidr-mask-size", c.NodeMaskSize, "Prefix length of a node's pod CIDR. Defaults to 24 for IPv4 and 64 for IPv6.")
	fs.IntVar(&c.NodeMaskSizeIPv4, "node-cidr-mask-size-ipv4", c.NodeMaskSizeIPv4, "Prefix length of a node's IPv4 pod CIDR in dual-stack clusters. Defaults to 24.")
	fs.IntVar(&c.NodeMaskSizeIPv6, "node-cidr-mask-size-ipv6", c.NodeMaskSizeIPv6, "Prefix length of a node's IPv6 pod CIDR in dual-stack clusters. Defaults to 64.")
}

func (c *PodCIDRs) validate() error {
	if c.ClusterCIDR == "" {
		return nil
	}
	prefixes, err := parseCIDRs(c.ClusterCIDR)
	if err != nil {
		return fmt.Errorf("--cluster-cidr: %w", err)
	}
	switch {
	case c.NodeMaskSize != 0 && (c.NodeMaskSizeIPv4 != 0 || c.NodeMaskSizeIPv6 != 0):
		return errors.New("--node-cidr-mask-size: cannot be used with --node-cidr-mask-size-ipv4 or --node-cidr-mask-size-ipv6")
	case c.NodeMaskSize != 0 && len(prefixes) > 1:
		return errors.New("--node-cidr-mask-size: cannot be used in dual-stack clusters; use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6")
	}
	for _, p := range prefixes {
		if mask := c.MaskSize(p.Addr().Is4()); mask < p.Bits() || mask > p.Addr().BitLen() || !p.Addr().Is4() && mask-p.Bits() > 16 {
			return fmt.Errorf("--cluster-cidr: %s cannot be divided into pod CIDRs of /%d: the node mask must be longer than the range's, by at most 16 bits for IPv6", p, mask)
		}
	}
	return nil
}

// MaskSize is the prefix length of a node's pod CIDR in one IP family.
func (c *PodCIDRs) MaskSize(is4 bool) int {
	switch {
	case c.NodeMaskSize != 0:
		return c.NodeMaskSize
	case is4 && c.NodeMaskSizeIPv4 != 0:
		return c.NodeMaskSizeIPv4
	case is4:
		return 24
	case c.NodeMaskSizeIPv6 != 0:
		return c.NodeMaskSizeIPv6
	}
	return 64
}

// NodeLifecycle configures when a node counts as unreachable and how fast its pods are evicted, with upstream's flag names.
type NodeLifecycle struct {
	MonitorGracePeriod, StartupGracePeriod time.Duration
	EvictionRate, SecondaryEvictionRate    float64
	LargeClusterSizeThreshold              int
	UnhealthyZoneThreshold                 float64
}

func defaultNodeLifecycle() NodeLifecycle {
	return NodeLifecycle{
		MonitorGracePeriod: 50 * time.Second, StartupGracePeriod: time.Minute, EvictionRate: 0.1, SecondaryEvictionRate: 0.01,
		LargeClusterSizeThreshold: 50, UnhealthyZoneThreshold: 0.55,
	}
}

func (c *NodeLifecycle) flags(groups *FlagGroups) {
	fs := groups.Advanced(groupNodeLifecycle)
	fs.DurationVar(&c.MonitorGracePeriod, "node-monitor-grace-period", c.MonitorGracePeriod, "Time without a heartbeat after which a node is marked unhealthy.")
	fs.DurationVar(&c.StartupGracePeriod, "node-startup-grace-period", c.StartupGracePeriod, "Time without a heartbeat after which a starting node is marked unhealthy.")
	fs.Float64Var(&c.EvictionRate, "node-eviction-rate", c.EvictionRate, "Nodes per second whose pods are evicted in a healthy zone.")
	fs.Float64Var(&c.SecondaryEvictionRate, "secondary-node-eviction-rate", c.SecondaryEvictionRate,
		"Nodes per second whose pods are evicted in an unhealthy zone. It is 0 if the zone has at most --large-cluster-size-threshold nodes.")
	fs.IntVar(&c.LargeClusterSizeThreshold, "large-cluster-size-threshold", c.LargeClusterSizeThreshold,
		"Number of nodes above which --secondary-node-eviction-rate applies to an unhealthy zone.")
	fs.Float64Var(&c.UnhealthyZoneThreshold, "unhealthy-zone-threshold", c.UnhealthyZoneThreshold,
		"Fraction of nodes in a zone that must be unhealthy for the zone to be unhealthy.")
}

func (c *NodeLifecycle) validate() error {
	switch {
	case c.MonitorGracePeriod <= 0:
		return fmt.Errorf("--node-monitor-grace-period: %s is not positive", c.MonitorGracePeriod)
	case c.StartupGracePeriod <= 0:
		return fmt.Errorf("--node-startup-grace-period: %s is not positive", c.StartupGracePeriod)
	case c.EvictionRate < 0:
		return fmt.Errorf("--node-eviction-rate: %v is negative", c.EvictionRate)
	case c.SecondaryEvictionRate < 0:
		return fmt.Errorf("--secondary-node-eviction-rate: %v is negative", c.SecondaryEvictionRate)
	case c.UnhealthyZoneThreshold < 0 || c.UnhealthyZoneThreshold > 1:
		return fmt.Errorf("--unhealthy-zone-threshold: %v is not between 0 and 1", c.UnhealthyZoneThreshold)
	}
	return nil
}

// Autoscaling configures the horizontal pod autoscaler, with upstream's flag names.
type Autoscaling struct {
	SyncPeriod, DownscaleStabilization  time.Duration
	Tolerance                           float64
	CPUInitialization, InitialReadiness time.Duration
}

func defaultAutoscaling() Autoscaling {
	return Autoscaling{SyncPeriod: 15 * time.Second, DownscaleStabilization: 5 * time.Minute, Tolerance: 0.1,
		CPUInitialization: 5 * time.Minute, InitialReadiness: 30 * time.Second}
}

func (c *Autoscaling) flags(groups *FlagGroups) {
	fs := groups.Advanced("Horizontal pod autoscaler")
	fs.DurationVar(&c.SyncPeriod, "horizontal-pod-autoscaler-sync-period", c.SyncPeriod, "Time between two syncs of an autoscaler.")
	fs.DurationVar(&c.DownscaleStabilization, "horizontal-pod-autoscaler-downscale-stabilization", c.DownscaleStabilization,
		"Time over which the highest recommendation is kept before scaling down.")
	fs.Float64Var(&c.Tolerance, "horizontal-pod-autoscaler-tolerance", c.Tolerance,
		"Minimum change of the ratio between actual and desired metrics that causes scaling, as a fraction.")
	fs.DurationVar(&c.CPUInitialization, "horizontal-pod-autoscaler-cpu-initialization-period", c.CPUInitialization,
		"Time after a pod's start during which its CPU samples might be skipped.")
	fs.DurationVar(&c.InitialReadiness, "horizontal-pod-autoscaler-initial-readiness-delay", c.InitialReadiness,
		"Time after a pod's start during which readiness changes are treated as initial readiness.")
}

func (c *Autoscaling) validate() error {
	if c.SyncPeriod <= 0 {
		return fmt.Errorf("--horizontal-pod-autoscaler-sync-period: %s is not positive", c.SyncPeriod)
	}
	if c.Tolerance < 0 {
		return fmt.Errorf("--horizontal-pod-autoscaler-tolerance: %v is negative", c.Tolerance)
	}
	return nil
}

// ControllerManager is the configuration of `skiff controller-manager`, with upstream's flag names.
type ControllerManager struct {
	ClientConnection
	Serving     Serving
	Controllers []string
	LeaderElect bool
	// UseServiceAccounts makes each controller act as its own service account in kube-system instead of as the kubeconfig's user.
	UseServiceAccounts bool
	// RootCAFile is published in every namespace; ServiceAccountKeyFile signs the tokens of token secrets; ClusterSigningCertFile and
	// ClusterSigningKeyFile sign approved certificate requests. A controller whose file is missing does not run.
	RootCAFile             string
	ServiceAccountKeyFile  string
	ClusterSigningCertFile string
	ClusterSigningKeyFile  string
	// AllocateNodeCIDRs allocates pod CIDRs to nodes from PodCIDRs, except the addresses of ServiceCIDR.
	AllocateNodeCIDRs bool
	PodCIDRs          PodCIDRs
	ServiceCIDR       string
	NodeLifecycle     NodeLifecycle
	Autoscaling       Autoscaling
	// TerminatedPods is the number of terminated pods to keep; 0 or less keeps all.
	TerminatedPods int
	// LegacyTokenCleanUpPeriod is the time after which an unused token secret is invalidated.
	LegacyTokenCleanUpPeriod time.Duration
	// EndpointsPerSlice and MirroredPerSubset limit the size of endpoint slices.
	EndpointsPerSlice, MirroredPerSubset int
}

// DefaultControllerManager is the configuration of a controller manager started without flags.
func DefaultControllerManager() ControllerManager {
	return ControllerManager{
		ClientConnection: defaultClientConnection(), Serving: defaultServing(10257), Controllers: []string{"*"}, LeaderElect: true,
		NodeLifecycle: defaultNodeLifecycle(), Autoscaling: defaultAutoscaling(), TerminatedPods: 12500, LegacyTokenCleanUpPeriod: 365 * 24 * time.Hour,
		EndpointsPerSlice: 100, MirroredPerSubset: 1000,
	}
}

// Flags binds the configuration to command-line flags.
func (c *ControllerManager) Flags(groups *FlagGroups) {
	fs := groups.Common(groupGeneric)
	c.flags(fs)
	listVar(fs, &c.Controllers, "controllers",
		"Controllers to run, separated by commas: '*' means those that are on by default, 'name' adds a controller, '-name' removes one.")
	fs.BoolVar(&c.LeaderElect, "leader-elect", c.LeaderElect, "Run the controllers only while holding the leader election lease.")
	fs.BoolVar(&c.UseServiceAccounts, "use-service-account-credentials", c.UseServiceAccounts, "Run each controller with a service account of its own.")
	c.Serving.flags(groups)
	fs = groups.Common("Certificates and keys")
	fs.StringVar(&c.RootCAFile, "root-ca-file", c.RootCAFile, "Path to the CA certificate of the API server, which is published in every namespace.")
	fs.StringVar(&c.ServiceAccountKeyFile, "service-account-private-key-file", c.ServiceAccountKeyFile, "Path to the private key that signs service account tokens.")
	fs.StringVar(&c.ClusterSigningCertFile, "cluster-signing-cert-file", c.ClusterSigningCertFile, "Path to the CA certificate that signs certificate requests.")
	fs.StringVar(&c.ClusterSigningKeyFile, "cluster-signing-key-file", c.ClusterSigningKeyFile, "Path to the private key of --cluster-signing-cert-file.")
	fs = groups.Common(groupNetworking)
	fs.BoolVar(&c.AllocateNodeCIDRs, "allocate-node-cidrs", c.AllocateNodeCIDRs, "Allocate a pod CIDR from --cluster-cidr to each node.")
	c.PodCIDRs.flags(groups)
	fs.StringVar(&c.ServiceCIDR, "service-cluster-ip-range", c.ServiceCIDR, "CIDR of service IPs, which no node gets for its pods.")
	c.NodeLifecycle.flags(groups)
	c.Autoscaling.flags(groups)
	fs = groups.Advanced("Controllers")
	fs.IntVar(&c.TerminatedPods, "terminated-pod-gc-threshold", c.TerminatedPods,
		"Number of terminated pods above which the oldest are deleted. 0 or less means that none are deleted.")
	fs.DurationVar(&c.LegacyTokenCleanUpPeriod, "legacy-service-account-token-clean-up-period", c.LegacyTokenCleanUpPeriod,
		"Time after its last use at which a token secret is marked invalid; after the same time again it is deleted.")
	fs.IntVar(&c.EndpointsPerSlice, "max-endpoints-per-slice", c.EndpointsPerSlice, "Maximum number of endpoints in an EndpointSlice.")
	fs.IntVar(&c.MirroredPerSubset, "mirroring-max-endpoints-per-subset", c.MirroredPerSubset,
		"Maximum number of addresses of an Endpoints subset that are mirrored to an EndpointSlice.")
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *ControllerManager) Validate() error {
	errs := []error{c.validate(), c.Serving.validate(), c.PodCIDRs.validate(), c.NodeLifecycle.validate(), c.Autoscaling.validate()}
	if (c.ClusterSigningCertFile == "") != (c.ClusterSigningKeyFile == "") {
		errs = append(errs, errors.New("--cluster-signing-cert-file: certificate and key are needed together"))
	}
	if c.AllocateNodeCIDRs && c.PodCIDRs.ClusterCIDR == "" {
		errs = append(errs, errors.New("--allocate-node-cidrs: requires --cluster-cidr"))
	}
	if _, err := c.ServiceCIDRs(); err != nil {
		errs = append(errs, fmt.Errorf("--service-cluster-ip-range: %w", err))
	}
	if c.EndpointsPerSlice < 1 || c.EndpointsPerSlice > 1000 {
		errs = append(errs, fmt.Errorf("--max-endpoints-per-slice: %d is not between 1 and 1000", c.EndpointsPerSlice))
	}
	if c.MirroredPerSubset < 1 || c.MirroredPerSubset > 1000 {
		errs = append(errs, fmt.Errorf("--mirroring-max-endpoints-per-subset: %d is not between 1 and 1000", c.MirroredPerSubset))
	}
	return errors.Join(errs...)
}

// ServiceCIDRs parses ServiceCIDR, which may be empty.
func (c *ControllerManager) ServiceCIDRs() ([]netip.Prefix, error) {
	if c.ServiceCIDR == "" {
		return nil, nil
	}
	return parseCIDRs(c.ServiceCIDR)
}

// parseCIDRs parses one CIDR, or two of different IP families separated by a comma.
func parseCIDRs(text string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for text := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("%q is not a CIDR", text)
		}
		if p != p.Masked() {
			return nil, fmt.Errorf("%s has host bits set; did you mean %s?", p, p.Masked())
		}
		prefixes = append(prefixes, p)
	}
	if len(prefixes) > 2 {
		return nil, errors.New("at most two CIDRs are allowed")
	}
	if len(prefixes) == 2 && prefixes[0].Addr().Is4() == prefixes[1].Addr().Is4() {
		return nil, errors.New("two CIDRs must be of different IP families")
	}
	return prefixes, nil
}
