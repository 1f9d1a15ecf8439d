package system

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// TestAddressWatch: a node is started again when its host has lost the node's address and keeps another, not before.
func TestAddressWatch(t *testing.T) {
	a, b, c := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	type addresses []netip.Addr // of which the last is the primary one
	for _, row := range []struct {
		name  string
		reads []addresses
		want  netip.Addr
	}{
		{"the same", []addresses{{a}, {a}, {a}}, netip.Addr{}},
		{"another primary one", []addresses{{a, b}, {a, b}, {a, b}}, netip.Addr{}},
		{"none for a while", []addresses{{}, {}, {a}}, netip.Addr{}},
		{"another for a moment", []addresses{{b}, {a}, {b}, {}, {b}, {a}}, netip.Addr{}},
		{"another", []addresses{{a}, {}, {b}, {b}}, b},
		{"two others", []addresses{{b}, {c}, {c}}, c},
	} {
		synctest.Test(t, func(t *testing.T) {
			at := -1
			w := addressWatch{
				current: a,
				own: func() ([]netip.Addr, error) {
					if at = min(at+1, len(row.reads)-1); at%2 == 1 && len(row.reads[at]) == 0 {
						return nil, errors.New("interrupted")
					}
					return row.reads[at], nil
				},
				primary: func() (netip.Addr, error) {
					read := row.reads[at]
					if len(read) == 0 {
						return netip.Addr{}, errors.New("none")
					}
					return read[len(read)-1], nil
				},
				uplink: func() (netip.Addr, error) { return a, nil },
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			change, _ := errors.AsType[addressChange](w.Run(ctx))
			if change.to != row.want {
				t.Errorf("%s: changed to %s, want %s", row.name, change.to, row.want)
			}
		})
	}
}

// TestFirstDefaultRoute: a node that was started before its host had a default route, with the address of a bridge for containers, gets the address that
// others reach. One that had it keeps its address when another interface has the default route.
func TestFirstDefaultRoute(t *testing.T) {
	bridge, uplink, other := netip.MustParseAddr("172.17.0.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")
	none := netip.Addr{}
	for _, row := range []struct {
		name    string
		current netip.Addr
		uplinks []netip.Addr // at the start, and then
		want    netip.Addr
	}{
		{"never one", bridge, []netip.Addr{none, none, none}, none},
		{"later", bridge, []netip.Addr{none, none, uplink, uplink}, uplink},
		{"for a moment", bridge, []netip.Addr{none, uplink, none, none}, none},
		{"another one", uplink, []netip.Addr{uplink, other, other, other}, none},
	} {
		synctest.Test(t, func(t *testing.T) {
			at := -1
			w := addressWatch{
				current: row.current, own: func() ([]netip.Addr, error) { return []netip.Addr{bridge, uplink, other}, nil },
				primary: func() (netip.Addr, error) { return other, nil },
				uplink:  func() (netip.Addr, error) { at = min(at+1, len(row.uplinks)-1); return row.uplinks[at], nil },
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			change, _ := errors.AsType[addressChange](w.Run(ctx))
			if change.to != row.want {
				t.Errorf("%s: changed to %s, want %s", row.name, change.to, row.want)
			}
		})
	}
}

// TestRunWithAddress: only another address starts a node again.
func TestRunWithAddress(t *testing.T) {
	failure := errors.New("failure")
	results := []error{
		fmt.Errorf("addresses: %w", addressChange{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}), failure, nil,
	}
	runs := 0
	err := runWithAddress(t.Context(), func(context.Context) error {
		runs++
		return results[runs-1]
	}, slog.New(slog.DiscardHandler))
	if runs != 2 || !errors.Is(err, failure) {
		t.Errorf("%d runs, %v", runs, err)
	}
}
