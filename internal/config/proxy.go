package config

import (
	"errors"
)

// NodeProxy is the configuration of the Service proxy of a node.
type NodeProxy struct {
	// NodePortAddresses are CIDRs and keywords; empty: the node's own addresses.
	NodePortAddresses []string
}

func (c *NodeProxy) flags(groups *FlagGroups) {
	listVar(groups.Advanced(groupNetworking), &c.NodePortAddresses, "nodeport-addresses",
		"Addresses on which node ports are served, separated by commas: CIDRs, primary for the addresses of the node, or all. Defaults to primary.")
}

// validate checks the configuration of a proxy that runs or does not.
func (c *NodeProxy) validate(runs bool) error {
	if !runs && len(c.NodePortAddresses) > 0 {
		return errors.New("--nodeport-addresses: has no effect without the Service proxy")
	}
	return nil
}

// Proxy is the configuration of `skiff proxy`, with upstream's flag names.
type Proxy struct {
	ClientConnection
	// ConfigFile is a KubeProxyConfiguration. It may also name the kubeconfig. The flags below take precedence over its fields.
	ConfigFile                             string
	HostnameOverride, ClusterCIDR          string
	HealthzBindAddress, MetricsBindAddress string
	NodeProxy
	// Cleanup removes the rules instead of keeping them.
	Cleanup bool
}

// DefaultProxy is the configuration of a proxy started without flags.
func DefaultProxy() Proxy { return Proxy{ClientConnection: defaultClientConnection()} }

// Flags binds the configuration to command-line flags.
func (c *Proxy) Flags(groups *FlagGroups) {
	fs := groups.Common(groupGeneric)
	c.ClientConnection.flags(fs)
	fs.StringVar(&c.ConfigFile, "config", c.ConfigFile, "Path to a KubeProxyConfiguration file.")
	fs.StringVar(&c.HostnameOverride, "hostname-override", c.HostnameOverride, "Name of the node this proxy runs on. Defaults to the hostname.")
	fs.BoolVar(&c.Cleanup, "cleanup", c.Cleanup, "Remove the rules of the proxy and exit.")
	fs = groups.Common(groupNetworking)
	fs.StringVar(&c.ClusterCIDR, "cluster-cidr", c.ClusterCIDR, "CIDR of the pods of the cluster, or two separated by a comma for dual-stack.")
	c.NodeProxy.flags(groups)
	fs = groups.Common(groupServing)
	fs.StringVar(&c.HealthzBindAddress, "healthz-bind-address", c.HealthzBindAddress, "IP address and port of the health check server. Defaults to 0.0.0.0:10256.")
	fs.StringVar(&c.MetricsBindAddress, "metrics-bind-address", c.MetricsBindAddress, "IP address and port of the metrics server. Defaults to 127.0.0.1:10249.")
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *Proxy) Validate() error {
	if c.ConfigFile == "" && !c.Cleanup {
		return c.ClientConnection.validate()
	}
	return nil
}
