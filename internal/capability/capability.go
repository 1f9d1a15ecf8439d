// Package capability tells which capabilities this process has: parts of root's privileges, of which a container usually has only some.
package capability

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Set is a set of capabilities.
type Set uint64

// Effective returns the capabilities that the kernel checks.
func Effective() (Set, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0, fmt.Errorf("read capabilities: %w", err)
	}
	return Set(data[0].Effective) | Set(data[1].Effective)<<32, nil
}

// Has reports whether a capability, such as unix.CAP_NET_ADMIN, is in the set.
func (s Set) Has(capability int) bool { return s&(1<<capability) != 0 }
