package dns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"skiff/internal/atomicfile"
	"skiff/internal/network/hostnet"
)

// HostAddresses gives the host addresses on its loopback interface. The file remembers them, so that they can be removed after a crash.
type HostAddresses struct {
	File string
}

// Set implements AddressHolder.
func (h HostAddresses) Set(ips []netip.Addr) error {
	old, err := h.read()
	if err != nil {
		return err
	}
	if len(ips) == 0 && len(old) == 0 {
		return nil
	}
	link, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback interface: %w", err)
	}
	present, err := addressesOf(link)
	if err != nil {
		return err
	}
	// An address that the host has already is not ours, unless an earlier call has added it.
	var wanted []netip.Addr
	for _, ip := range ips {
		if !slices.Contains(present, ip) || slices.Contains(old, ip) {
			wanted = append(wanted, ip)
		}
	}
	if err := h.write(append(slices.Clone(old), wanted...)); err != nil {
		return err
	}
	for _, ip := range wanted {
		if err := netlink.AddrAdd(link, hostAddress(ip)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add address %s to the loopback interface: %w", ip, err)
		}
	}
	for _, ip := range old {
		if slices.Contains(wanted, ip) {
			continue
		}
		if err := netlink.AddrDel(link, hostAddress(ip)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %s from the loopback interface: %w", ip, err)
		}
	}
	return h.write(wanted)
}

// hostAddress is an address without a network. There is no duplicate address detection: every node has the address.
func hostAddress(ip netip.Addr) *netlink.Addr {
	address := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}}
	if ip.Is6() {
		address.Flags = unix.IFA_F_NODAD
	}
	return address
}

// addressesOf are the addresses of an interface that have no network.
func addressesOf(link netlink.Link) ([]netip.Addr, error) {
	list, err := hostnet.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of the loopback interface: %w", err)
	}
	var ips []netip.Addr
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ones, bits := a.Mask.Size(); ok && ones == bits {
			ips = append(ips, ip.Unmap())
		}
	}
	return ips, nil
}

// read returns the addresses that have been added.
func (h HostAddresses) read() ([]netip.Addr, error) {
	data, err := os.ReadFile(h.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var ips []netip.Addr
	if err == nil {
		err = json.Unmarshal(data, &ips)
	}
	if err != nil {
		return nil, fmt.Errorf("read the addresses of the DNS server: %w", err)
	}
	return ips, nil
}

// write remembers the addresses.
func (h HostAddresses) write(ips []netip.Addr) error {
	if len(ips) == 0 {
		if err := os.Remove(h.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	data, err := json.Marshal(slices.Compact(ips))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(h.File), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(h.File, data, 0o600)
}
