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
	nodePortAddressesFlag(groups, &c.NodePortAddresses)
}

// nodePortAddressesFlag binds --nodeport-addresses.
func nodePortAddressesFlag(groups *FlagGroups, list *[]string) {
	listVar(groups.Advanced(groupNetworking), list, "nodeport-addresses",
		"Addresses on which node ports are served, separated by commas: CIDRs, primary for the addresses of the node, or all. Defaults to primary.")
}

// validate checks the configuration of a proxy that runs or does not.
func (c *NodeProxy) validate(runs bool) error {
	if !runs && len(c.NodePortAddresses) > 0 {
		return errors.New("--nodeport-addresses: has no effect without the Service proxy")
	}
	return nil
}
