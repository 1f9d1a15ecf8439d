package namespaces

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// uplink is the only link besides loopback: a bridge, so that further hosts can be connected.
const uplink = "uplink"

// setUpNetwork configures an address and a default route that leads nowhere.
func setUpNetwork() error {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return err
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: uplink}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add bridge: %w", err)
	}
	return addLink(bridge, NodeAddress)
}
