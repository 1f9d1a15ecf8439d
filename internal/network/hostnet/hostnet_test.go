package hostnet

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
)

// A table that changed while it was read is read again, but not for ever.
func TestDump(t *testing.T) {
	for _, interruptions := range []int{0, 1, dumpTries - 1, dumpTries} {
		calls := 0
		got, err := Dump(func() ([]int, error) {
			calls++
			if calls <= interruptions {
				return nil, netlink.ErrDumpInterrupted
			}
			return []int{calls}, nil
		})
		if interruptions == dumpTries {
			if err == nil || calls != dumpTries {
				t.Errorf("%d interruptions: %v after %d calls", interruptions, err, calls)
			}
		} else if err != nil || len(got) != 1 || got[0] != interruptions+1 {
			t.Errorf("%d interruptions: %v, %v", interruptions, got, err)
		}
	}
}

func TestPrefixes(t *testing.T) {
	for _, text := range []string{"10.42.1.0/24", "0.0.0.0/0", "10.42.1.2/32", "fd42::/64", "::/0"} {
		p := netip.MustParsePrefix(text)
		if got := PrefixOf(IPNet(p)); got != p {
			t.Errorf("%s is %s for netlink and back", p, got)
		}
	}
	// The standard library has IPv4 addresses in 16 bytes.
	mapped := &net.IPNet{IP: net.ParseIP("10.42.1.0"), Mask: net.CIDRMask(96+24, 128)}
	if got := PrefixOf(mapped); got.String() != "10.42.1.0/24" {
		t.Errorf("%s is %s", mapped, got)
	}
}

// A sysctl that has the value is not written: the file may be read-only, as it is for users other than root.
func TestSetSysctl(t *testing.T) {
	const name = "net/core/somaxconn"
	value, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := SetSysctl(name, string(value[:len(value)-1])); err != nil {
		t.Error(err)
	}
	if err := SetSysctl("net/core/none", "1"); err == nil {
		t.Error("a sysctl that does not exist was set")
	}
}
