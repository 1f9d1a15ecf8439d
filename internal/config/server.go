package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Server is the configuration of `skiff server`: an API server with the other components of a cluster in the same process.
type Server struct {
	APIServer
	// ConfigFile has values for flags.
	ConfigFile string
	// NoNode leaves out the node, and Without further components that run elsewhere: upstream's, or skiff's own on another host.
	NoNode  bool
	Without []string
	// Disable names the parts of the cluster that a user installs instead of skiff's own.
	Disable  []string
	Node     Node
	PodCIDRs PodCIDRs
	// NetworkBackend is how the pods of other nodes are reached.
	NetworkBackend string
	NodeLifecycle  NodeLifecycle
	NodeProxy
	Servers Servers
}

// The components of `skiff server` that --without can leave out.
const (
	ComponentControllers = "controllers"
	ComponentScheduler   = "scheduler"
	// ComponentProxy is the Service proxy of the node. `skiff agent` can leave it out too.
	ComponentProxy = "proxy"
	// ComponentPolicy enforces network policies on the node. `skiff agent` can leave it out too.
	ComponentPolicy = "policy"
)

var (
	optionalComponents     = []string{ComponentControllers, ComponentScheduler, ComponentProxy, ComponentPolicy}
	optionalNodeComponents = []string{ComponentProxy, ComponentPolicy}
)

// validateWithout checks the components to leave out.
func validateWithout(without, optional []string) error {
	var errs []error
	for _, component := range without {
		if !slices.Contains(optional, component) {
			errs = append(errs, fmt.Errorf("--without: %q is not one of %s", component, strings.Join(optional, ", ")))
		}
	}
	return errors.Join(errs...)
}

// ClusterDNS is the part of the cluster that --disable=dns leaves to a DNS server that the user installs.
const ClusterDNS = "dns"

var optionalParts = []string{ClusterDNS}

// networkBackends are the values of --network-backend, the default first.
var networkBackends = []string{"vxlan", "host-gw", "wireguard", "none"}

// minServiceBits is the number of host bits of the smallest service CIDR that has an address for the cluster's DNS, the tenth.
const minServiceBits = 4

// DefaultServer is the configuration of a server started without flags.
func DefaultServer() Server {
	return Server{
		APIServer: DefaultAPIServer(), ConfigFile: DefaultFile, PodCIDRs: PodCIDRs{ClusterCIDR: "10.42.0.0/16"}, NetworkBackend: networkBackends[0], NodeLifecycle: defaultNodeLifecycle(),
		Servers: Servers{PeerPort: DefaultPeerPort},
	}
}

// Flags binds the configuration to command-line flags.
func (c *Server) Flags(groups *FlagGroups) {
	configFlag(groups, &c.ConfigFile)
	c.genericFlags(groups)
	fs := groups.Common(groupGeneric)
	fs.BoolVar(&c.NoNode, "no-node", c.NoNode, "Run the control plane without a node on this host.")
	listVar(fs, &c.Without, "without", "Components not to run in this process, separated by commas: controllers, scheduler, proxy, policy.")
	listVar(fs, &c.Disable, "disable", "Parts of the cluster that skiff does not provide, because another implementation is installed, separated by commas: dns.")
	c.servingFlags(groups)
	c.Servers.flags(groups)
	c.Node.flags(groups, "node-name", "kubelet-config")
	c.Node.rootDirFlag(groups)
	c.networkingFlags(groups, "service-cidr")
	c.PodCIDRs.flags(groups)
	groups.Common(groupNetworking).StringVar(&c.NetworkBackend, "network-backend", c.NetworkBackend,
		"How the nodes of the cluster reach each other's pods: vxlan, host-gw for nodes on one network segment, wireguard, or none for a network plugin that is installed separately.")
	c.NodeProxy.flags(groups)
	c.Etcd.flags(groups)
	c.Encryption.flags(groups)
	c.Snapshots.flags(groups)
	c.accessFlags(groups)
	c.NodeLifecycle.flags(groups)
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *Server) Validate() error {
	errs := []error{c.APIServer.validate("service-cidr"), c.Node.validate("node-name"), c.PodCIDRs.validate(), c.NodeLifecycle.validate()}
	errs = append(errs, validateWithout(c.Without, optionalComponents), c.NodeProxy.validate(!c.NoNode && c.Runs(ComponentProxy)))
	errs = append(errs, c.validateDisable(), c.Servers.validate(len(c.Etcd.Servers) > 0))
	if !slices.Contains(networkBackends, c.NetworkBackend) {
		errs = append(errs, fmt.Errorf("--network-backend: %q is not one of %s", c.NetworkBackend, strings.Join(networkBackends, ", ")))
	}
	if c.NoNode && !reflect.DeepEqual(c.Node, Node{}) {
		errs = append(errs, errors.New("--no-node: the flags of the node have no effect without a node"))
	}
	return errors.Join(errs...)
}

// validateDisable checks --disable, and that the parts that are not disabled can work.
func (c *Server) validateDisable() error {
	for _, part := range c.Disable {
		if !slices.Contains(optionalParts, part) {
			return fmt.Errorf("--disable: %q is not one of %s", part, strings.Join(optionalParts, ", "))
		}
	}
	// An invalid --service-cidr is reported by its own validation.
	cidrs, err := c.ServiceCIDRs()
	if err != nil || len(cidrs) == 0 || !c.Provides(ClusterDNS) || cidrs[0].Addr().BitLen()-cidrs[0].Bits() >= minServiceBits {
		return nil
	}
	return fmt.Errorf("--service-cidr: %s has no tenth address for the cluster's DNS; use a larger CIDR or --disable=%s", cidrs[0], ClusterDNS)
}

// Provides reports whether a part of the cluster is skiff's own.
func (c *Server) Provides(part string) bool { return !slices.Contains(c.Disable, part) }

// Runs reports whether a component runs in the server's process.
func (c *Server) Runs(component string) bool { return !slices.Contains(c.Without, component) }
