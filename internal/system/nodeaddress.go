package system

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"skiff/internal/kubelet/node"
	"skiff/internal/network/hostnet"
)

// addressPeriod is how often the host's addresses are read. A new one is used when it has been there twice in succession.
const addressPeriod = 10 * time.Second

// ownAddresses are the addresses of the node: the configured ones, or the one at which others reach the host.
func (n *nodeComponents) ownAddresses() ([]string, error) {
	if n.IP != "" {
		configured := strings.Split(n.IP, ",")
		return configured, node.CheckAddresses(configured)
	}
	address, err := hostnet.PrimaryAddress(n.serviceCIDRs...)
	if err != nil {
		return nil, fmt.Errorf("find the node's address: %w", err)
	}
	return []string{address.String()}, nil
}

// addressChange is the error of a node whose host has another address: certificates, routes and the status of pods have the old one.
type addressChange struct{ from, to netip.Addr }

func (e addressChange) Error() string {
	return fmt.Sprintf("the address of this host has changed from %s to %s", e.from, e.to)
}

// watchAddress returns an addressChange if the address of the node was not configured and the host loses it, for example because DHCP assigns another.
func (n *nodeComponents) watchAddress(ctx context.Context) error {
	if n.IP != "" {
		return nil
	}
	current, err := netip.ParseAddr(n.addresses[0])
	if err != nil {
		return err
	}
	w := addressWatch{
		current: current, own: hostnet.Addresses,
		primary: func() (netip.Addr, error) { return hostnet.PrimaryAddress(n.serviceCIDRs...) },
		uplink:  func() (netip.Addr, error) { return hostnet.UplinkAddress(n.serviceCIDRs...) },
	}
	return w.Run(ctx)
}

// addressWatch watches the addresses of a host.
type addressWatch struct {
	current netip.Addr
	// own lists the addresses of the host, primary chooses one of them; uplink chooses one of the interface with the default route, if there is one.
	own             func() ([]netip.Addr, error)
	primary, uplink func() (netip.Addr, error)
	// isProvisional is set if the current address was not of the interface with the default route.
	isProvisional bool
}

// Run returns an addressChange when the host does not have the current address any more and has another, or gets its first default route: the current
// address may be that of a bridge for containers. A host that has no address is waited for.
func (w addressWatch) Run(ctx context.Context) error {
	ticker := time.NewTicker(addressPeriod)
	defer ticker.Stop()
	ofUplink, err := w.uplink()
	w.isProvisional = err == nil && ofUplink != w.current
	var before netip.Addr
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		next := w.next()
		if next.IsValid() && next == before {
			return addressChange{w.current, next}
		}
		before = next
	}
}

// next returns the address that replaces the current one; none if that is to be kept, or there is no other.
func (w addressWatch) next() netip.Addr {
	own, err := w.own()
	if err != nil {
		return netip.Addr{}
	}
	if slices.Contains(own, w.current) {
		if address, err := w.uplink(); w.isProvisional && err == nil && address != w.current {
			return address
		}
		return netip.Addr{}
	}
	address, err := w.primary()
	if err != nil {
		return netip.Addr{}
	}
	return address
}

// runWithAddress runs a node again when its host has another address. Its pods go on.
func runWithAddress(ctx context.Context, run func(context.Context) error, log *slog.Logger) error {
	for {
		err := run(ctx)
		change, ok := errors.AsType[addressChange](err)
		if !ok || ctx.Err() != nil {
			return err
		}
		log.Info("the address of this host has changed, starting the node again", "from", change.from.String(), "to", change.to.String())
	}
}
