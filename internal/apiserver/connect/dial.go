package connect

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
)

var errNotAllowed = errors.New("address not allowed")

// checkedControl checks the resolved address of a connection, so that DNS rebinding cannot bypass the check.
func checkedControl(check func(address string) error) func(context.Context, string, string, syscall.RawConn) error {
	return func(_ context.Context, _, address string, _ syscall.RawConn) error { return check(address) }
}

// rejectLocal rejects addresses that are not of another host or pod: loopback, link-local (cloud metadata services), multicast and
// unspecified.
func rejectLocal(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !reachable(at.Addr()) {
		return errNotAllowed
	}
	return nil
}

func reachable(ip netip.Addr) bool {
	ip = ip.Unmap()
	return ip.IsGlobalUnicast() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast()
}

// reachableText is reachable for an address in text form.
func reachableText(text string) bool {
	ip, err := netip.ParseAddr(text)
	return err == nil && reachable(ip)
}
