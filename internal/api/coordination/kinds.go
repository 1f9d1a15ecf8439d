// Package coordination has the kinds of coordination.k8s.io: leases, by which components say that they are alive and
// which of them leads.
package coordination

import "skiff/internal/kind"

// Kinds lists the kinds of the group.
func Kinds() []*kind.Kind {
	return []*kind.Kind{Lease}
}
