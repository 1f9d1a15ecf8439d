// Package coordination has the kinds of coordination.k8s.io: leases, which components use for heartbeats and leader
// election.
package coordination

import "skiff/internal/kind"

// Kinds are the kinds of the group.
func Kinds() []*kind.Kind {
	return []*kind.Kind{Lease}
}
