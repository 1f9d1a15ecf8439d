package config

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"
)

// Serving is how a part that runs alone offers its health and metrics, with upstream's flag names.
type Serving struct {
	BindAddress string
	// SecurePort 0: nothing is served.
	SecurePort int
	// CertFile and KeyFile are shown to clients; without them, a certificate the part signs itself.
	CertFile, KeyFile string
	// ClientCAFile are the authorities whose client certificates are believed. Empty: those the API server publishes.
	ClientCAFile string
	// AuthenticationKubeconfig and AuthorizationKubeconfig reach the API server that knows users and rules. Empty: the part's own.
	AuthenticationKubeconfig, AuthorizationKubeconfig string
	// OpenPaths need nobody's leave.
	OpenPaths []string
	Profiling bool
}

func defaultServing(port int) Serving {
	return Serving{BindAddress: "0.0.0.0", SecurePort: port, OpenPaths: []string{"/healthz", "/readyz", "/livez"}}
}

func (c *Serving) flags(fs *flag.FlagSet) {
	fs.StringVar(&c.BindAddress, "bind-address", c.BindAddress, "address to serve health and metrics on")
	fs.IntVar(&c.SecurePort, "secure-port", c.SecurePort, "port to serve health and metrics on, with TLS; 0: they are not served")
	fs.StringVar(&c.CertFile, "tls-cert-file", c.CertFile, "certificate to show to clients; default: one made at the start")
	fs.StringVar(&c.KeyFile, "tls-private-key-file", c.KeyFile, "key of that certificate")
	fs.StringVar(&c.ClientCAFile, "client-ca-file", c.ClientCAFile, "authorities whose client certificates are believed; default: those the API server publishes")
	fs.StringVar(&c.AuthenticationKubeconfig, "authentication-kubeconfig", c.AuthenticationKubeconfig, "file that says where to ask who sends a request; default: --kubeconfig")
	fs.StringVar(&c.AuthorizationKubeconfig, "authorization-kubeconfig", c.AuthorizationKubeconfig, "file that says where to ask whether a request is allowed; default: --kubeconfig")
	fs.Var((*commaList)(&c.OpenPaths), "authorization-always-allow-paths", "paths that everyone may ask for")
	fs.BoolVar(&c.Profiling, "profiling", c.Profiling, "serve /debug/pprof to those who may")
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

// PodAddresses is the range that is cut into the nodes' pod CIDRs, with upstream's flag names.
type PodAddresses struct {
	// ClusterCIDR is one range, or one of each family, separated by a comma.
	ClusterCIDR string
	// NodeMask, or one for each family, is the length of a node's prefix. Zero: 24, and 64 for IPv6.
	NodeMask, NodeMask4, NodeMask6 int
}

func (c *PodAddresses) flags(fs *flag.FlagSet) {
	fs.StringVar(&c.ClusterCIDR, "cluster-cidr", c.ClusterCIDR, "addresses for pods; two ranges, separated by a comma, for two IP families")
	fs.IntVar(&c.NodeMask, "node-cidr-mask-size", c.NodeMask, "length of a node's part of the pod addresses; default: 24, for IPv6 64")
	fs.IntVar(&c.NodeMask4, "node-cidr-mask-size-ipv4", c.NodeMask4, "the same for IPv4, with two IP families")
	fs.IntVar(&c.NodeMask6, "node-cidr-mask-size-ipv6", c.NodeMask6, "the same for IPv6, with two IP families")
}

func (c *PodAddresses) validate() error {
	if c.ClusterCIDR == "" {
		return nil
	}
	prefixes, err := parseRanges(c.ClusterCIDR)
	if err != nil {
		return fmt.Errorf("--cluster-cidr: %w", err)
	}
	switch {
	case c.NodeMask != 0 && (c.NodeMask4 != 0 || c.NodeMask6 != 0):
		return errors.New("--node-cidr-mask-size: it is for one IP family; with two, only --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 are")
	case c.NodeMask != 0 && len(prefixes) > 1:
		return errors.New("--node-cidr-mask-size: it is for one IP family; use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6")
	}
	for _, p := range prefixes {
		if mask := c.Mask(p.Addr().Is4()); mask < p.Bits() || mask > p.Addr().BitLen() || !p.Addr().Is4() && mask-p.Bits() > 16 {
			return fmt.Errorf("--cluster-cidr: %s cannot be cut into nodes' ranges of /%d: the difference must not be negative, nor above 16 bits of IPv6", p, mask)
		}
	}
	return nil
}

// Mask is the length of a node's prefix in one family.
func (c *PodAddresses) Mask(is4 bool) int {
	switch {
	case c.NodeMask != 0:
		return c.NodeMask
	case is4 && c.NodeMask4 != 0:
		return c.NodeMask4
	case is4:
		return 24
	case c.NodeMask6 != 0:
		return c.NodeMask6
	}
	return 64
}

// NodeLoss says when a node counts as lost and how fast pods are taken from lost nodes, with upstream's flag names.
type NodeLoss struct {
	MonitorGrace, StartupGrace  time.Duration
	EvictionRate, SecondaryRate float64
	LargeCluster                int
	UnhealthyZone               float64
}

func defaultNodeLoss() NodeLoss {
	return NodeLoss{MonitorGrace: 50 * time.Second, StartupGrace: time.Minute, EvictionRate: 0.1, SecondaryRate: 0.01, LargeCluster: 50, UnhealthyZone: 0.55}
}

func (c *NodeLoss) flags(fs *flag.FlagSet) {
	fs.DurationVar(&c.MonitorGrace, "node-monitor-grace-period", c.MonitorGrace, "how long a node may be silent before it counts as lost")
	fs.DurationVar(&c.StartupGrace, "node-startup-grace-period", c.StartupGrace, "how long a new node may be silent")
	fs.Float64Var(&c.EvictionRate, "node-eviction-rate", c.EvictionRate, "nodes per second and zone whose pods are driven off, in a healthy zone")
	fs.Float64Var(&c.SecondaryRate, "secondary-node-eviction-rate", c.SecondaryRate, "the same in a zone where many nodes are lost; in a small one none")
	fs.IntVar(&c.LargeCluster, "large-cluster-size-threshold", c.LargeCluster, "how many nodes a zone needs not to be small")
	fs.Float64Var(&c.UnhealthyZone, "unhealthy-zone-threshold", c.UnhealthyZone, "share of lost nodes from which a zone counts as unhealthy")
}

func (c *NodeLoss) validate() error {
	switch {
	case c.MonitorGrace <= 0:
		return fmt.Errorf("--node-monitor-grace-period: %s is no time at all", c.MonitorGrace)
	case c.StartupGrace <= 0:
		return fmt.Errorf("--node-startup-grace-period: %s is no time at all", c.StartupGrace)
	case c.EvictionRate < 0:
		return fmt.Errorf("--node-eviction-rate: %v is not a rate", c.EvictionRate)
	case c.SecondaryRate < 0:
		return fmt.Errorf("--secondary-node-eviction-rate: %v is not a rate", c.SecondaryRate)
	case c.UnhealthyZone < 0 || c.UnhealthyZone > 1:
		return fmt.Errorf("--unhealthy-zone-threshold: %v is not a share", c.UnhealthyZone)
	}
	return nil
}

// Autoscaling says how workloads are scaled, with upstream's flag names.
type Autoscaling struct {
	SyncPeriod, DownscaleStabilization  time.Duration
	Tolerance                           float64
	CPUInitialization, InitialReadiness time.Duration
}

func defaultAutoscaling() Autoscaling {
	return Autoscaling{SyncPeriod: 15 * time.Second, DownscaleStabilization: 5 * time.Minute, Tolerance: 0.1,
		CPUInitialization: 5 * time.Minute, InitialReadiness: 30 * time.Second}
}

func (c *Autoscaling) flags(fs *flag.FlagSet) {
	fs.DurationVar(&c.SyncPeriod, "horizontal-pod-autoscaler-sync-period", c.SyncPeriod, "how often each workload that scales is looked at")
	fs.DurationVar(&c.DownscaleStabilization, "horizontal-pod-autoscaler-downscale-stabilization", c.DownscaleStabilization, "for how long the highest advice counts before pods are taken away")
	fs.Float64Var(&c.Tolerance, "horizontal-pod-autoscaler-tolerance", c.Tolerance, "how far usage may be from its target before anything is done")
	fs.DurationVar(&c.CPUInitialization, "horizontal-pod-autoscaler-cpu-initialization-period", c.CPUInitialization, "how long a pod's CPU usage may be that of its start")
	fs.DurationVar(&c.InitialReadiness, "horizontal-pod-autoscaler-initial-readiness-delay", c.InitialReadiness, "how long a pod may take to be ready for the first time")
}

func (c *Autoscaling) validate() error {
	if c.SyncPeriod <= 0 {
		return fmt.Errorf("--horizontal-pod-autoscaler-sync-period: %s is no time at all", c.SyncPeriod)
	}
	if c.Tolerance < 0 {
		return fmt.Errorf("--horizontal-pod-autoscaler-tolerance: %v is not a share", c.Tolerance)
	}
	return nil
}

// ControllerManager is what `skiff controller-manager` runs by, with upstream's flag names.
type ControllerManager struct {
	Connection
	Serving     Serving
	Controllers []string
	LeaderElect bool
	// UseServiceAccounts: each controller acts as its own service account in kube-system instead of as who the kubeconfig says.
	UseServiceAccounts bool
	// RootCAFile is published in every namespace; ServiceAccountKeyFile signs the tokens kept in secrets; ClusterSigningCertFile and
	// ClusterSigningKeyFile sign approved certificate requests. Controllers that need one that is missing are off.
	RootCAFile             string
	ServiceAccountKeyFile  string
	ClusterSigningCertFile string
	ClusterSigningKeyFile  string
	// AllocateNodeCIDRs cuts PodAddresses into the nodes' pod CIDRs; what Services have is left out.
	AllocateNodeCIDRs bool
	PodAddresses      PodAddresses
	ServiceCIDR       string
	NodeLoss          NodeLoss
	Autoscaling       Autoscaling
	// TerminatedPods is how many pods that have ended are kept; none or less: all.
	TerminatedPods int
	// LegacyTokenLife is how long a token in a secret may go unused.
	LegacyTokenLife time.Duration
	// EndpointsPerSlice and MirroredPerSubset bound endpoint slices.
	EndpointsPerSlice, MirroredPerSubset int
}

// DefaultControllerManager is the configuration of a controller manager started without flags.
func DefaultControllerManager() ControllerManager {
	return ControllerManager{
		Connection: defaultConnection(), Serving: defaultServing(10257), Controllers: []string{"*"}, LeaderElect: true,
		NodeLoss: defaultNodeLoss(), Autoscaling: defaultAutoscaling(), TerminatedPods: 12500, LegacyTokenLife: 365 * 24 * time.Hour, EndpointsPerSlice: 100, MirroredPerSubset: 1000,
	}
}

// Flags binds the settings to command-line flags.
func (c *ControllerManager) Flags(fs *flag.FlagSet) {
	c.flags(fs)
	c.Serving.flags(fs)
	fs.Var((*commaList)(&c.Controllers), "controllers", "controllers to run: * is all that are on by default, name one more, -name one less")
	fs.BoolVar(&c.LeaderElect, "leader-elect", c.LeaderElect, "work only while no other manager of the cluster does")
	fs.BoolVar(&c.UseServiceAccounts, "use-service-account-credentials", c.UseServiceAccounts, "let each controller act as its own service account, with no more rights than it needs")
	fs.StringVar(&c.RootCAFile, "root-ca-file", c.RootCAFile, "certificates by which clients know the API server, for every namespace")
	fs.StringVar(&c.ServiceAccountKeyFile, "service-account-private-key-file", c.ServiceAccountKeyFile, "key that signs the tokens kept in secrets")
	fs.StringVar(&c.ClusterSigningCertFile, "cluster-signing-cert-file", c.ClusterSigningCertFile, "authority that signs approved certificate requests")
	fs.StringVar(&c.ClusterSigningKeyFile, "cluster-signing-key-file", c.ClusterSigningKeyFile, "key of that authority")
	fs.BoolVar(&c.AllocateNodeCIDRs, "allocate-node-cidrs", c.AllocateNodeCIDRs, "give every node its part of --cluster-cidr")
	c.PodAddresses.flags(fs)
	fs.StringVar(&c.ServiceCIDR, "service-cluster-ip-range", c.ServiceCIDR, "addresses of Services, which no node gets for its pods")
	c.NodeLoss.flags(fs)
	c.Autoscaling.flags(fs)
	fs.IntVar(&c.TerminatedPods, "terminated-pod-gc-threshold", c.TerminatedPods, "how many pods that have ended are kept; 0 or less: all")
	fs.DurationVar(&c.LegacyTokenLife, "legacy-service-account-token-clean-up-period", c.LegacyTokenLife, "how long a token in a secret may go unused before it is declared invalid, and as long again before it is deleted")
	fs.IntVar(&c.EndpointsPerSlice, "max-endpoints-per-slice", c.EndpointsPerSlice, "how many endpoints a slice holds")
	fs.IntVar(&c.MirroredPerSubset, "mirroring-max-endpoints-per-subset", c.MirroredPerSubset, "how many addresses of an Endpoints subset are mirrored")
}

// Validate checks the settings and names the flag at fault.
func (c *ControllerManager) Validate() error {
	errs := []error{c.validate(), c.Serving.validate(), c.PodAddresses.validate(), c.NodeLoss.validate(), c.Autoscaling.validate()}
	if (c.ClusterSigningCertFile == "") != (c.ClusterSigningKeyFile == "") {
		errs = append(errs, errors.New("--cluster-signing-cert-file: certificate and key are needed together"))
	}
	if c.AllocateNodeCIDRs && c.PodAddresses.ClusterCIDR == "" {
		errs = append(errs, errors.New("--allocate-node-cidrs: there is nothing to give without --cluster-cidr"))
	}
	if _, err := c.ServiceCIDRs(); err != nil {
		errs = append(errs, fmt.Errorf("--service-cluster-ip-range: %w", err))
	}
	if c.EndpointsPerSlice < 1 || c.EndpointsPerSlice > 1000 {
		errs = append(errs, fmt.Errorf("--max-endpoints-per-slice: %d is not from 1 to 1000", c.EndpointsPerSlice))
	}
	if c.MirroredPerSubset < 1 || c.MirroredPerSubset > 1000 {
		errs = append(errs, fmt.Errorf("--mirroring-max-endpoints-per-subset: %d is not from 1 to 1000", c.MirroredPerSubset))
	}
	return errors.Join(errs...)
}

// ServiceCIDRs parses ServiceCIDR, which may be empty.
func (c *ControllerManager) ServiceCIDRs() ([]netip.Prefix, error) {
	if c.ServiceCIDR == "" {
		return nil, nil
	}
	return parseRanges(c.ServiceCIDR)
}

// parseRanges reads one range of addresses, or two of different families.
func parseRanges(text string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for text := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("%q is not a range of addresses", text)
		}
		if p != p.Masked() {
			return nil, fmt.Errorf("%s has bits beyond its mask; did you mean %s?", p, p.Masked())
		}
		prefixes = append(prefixes, p)
	}
	if len(prefixes) > 2 {
		return nil, errors.New("at most two ranges are allowed")
	}
	if len(prefixes) == 2 && prefixes[0].Addr().Is4() == prefixes[1].Addr().Is4() {
		return nil, errors.New("two ranges must be of different IP families")
	}
	return prefixes, nil
}
