package netns

import (
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// Traces returns what a cluster could leave in the network namespace of this thread: links, addresses, routes, rules of routing and nftables tables.
func Traces() (found []string, err error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		found = append(found, "link "+l.Attrs().Name)
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	for _, a := range addresses {
		found = append(found, "address "+a.IPNet.String())
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		found = append(found, "route "+r.String())
	}
	rules, err := netlink.RuleList(netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		found = append(found, "rule "+r.String())
	}
	connection, err := nftables.New()
	if err != nil {
		return nil, err
	}
	tables, err := connection.ListTables()
	for _, table := range tables {
		found = append(found, "table "+table.Name)
	}
	return found, err
}
