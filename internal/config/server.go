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
	// NoNode leaves out the node, and Without further components that run elsewhere: upstream's, or skiff's own on another host.
	NoNode        bool
	Without       []string
	Node          Node
	PodCIDRs      PodCIDRs
	NodeLifecycle NodeLifecycle
}

// The components of `skiff server` that --without can leave out.
const (
	ComponentControllers = "controllers"
	ComponentScheduler   = "scheduler"
)

var optionalComponents = []string{ComponentControllers, ComponentScheduler}

// DefaultServer is the configuration of a server started without flags.
func DefaultServer() Server {
	return Server{APIServer: DefaultAPIServer(), PodCIDRs: PodCIDRs{ClusterCIDR: "10.42.0.0/16"}, NodeLifecycle: defaultNodeLifecycle()}
}

// Flags binds the configuration to command-line flags.
func (c *Server) Flags(groups *FlagGroups) {
	c.genericFlags(groups)
	fs := groups.Common(groupGeneric)
	fs.BoolVar(&c.NoNode, "no-node", c.NoNode, "Run the control plane without a node on this host.")
	listVar(fs, &c.Without, "without", "Components not to run in this process, separated by commas: controllers, scheduler.")
	c.servingFlags(groups)
	c.Node.flags(groups, "node-name", "kubelet-config")
	c.networkingFlags(groups, "service-cidr")
	c.PodCIDRs.flags(groups)
	c.Etcd.flags(groups)
	c.Encryption.flags(groups)
	c.accessFlags(groups)
	c.NodeLifecycle.flags(groups)
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *Server) Validate() error {
	errs := []error{c.APIServer.validate("service-cidr"), c.Node.validate("node-name"), c.PodCIDRs.validate(), c.NodeLifecycle.validate()}
	for _, component := range c.Without {
		if !slices.Contains(optionalComponents, component) {
			errs = append(errs, fmt.Errorf("--without: %q is not one of %s", component, strings.Join(optionalComponents, ", ")))
		}
	}
	if c.NoNode && !reflect.DeepEqual(c.Node, Node{}) {
		errs = append(errs, errors.New("--no-node: the flags of the node have no effect without a node"))
	}
	return errors.Join(errs...)
}

// Runs reports whether a component runs in the server's process.
func (c *Server) Runs(component string) bool { return !slices.Contains(c.Without, component) }
