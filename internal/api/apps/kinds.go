// Package apps has the rows of the workloads: Deployment, ReplicaSet, StatefulSet, DaemonSet, and ControllerRevision,
// which holds their history. All of them make pods from a template that their selector must match; what follows from
// that stands in workload.go.
package apps

import "skiff/internal/kind"

// Kinds are the kinds of group apps.
func Kinds() []*kind.Kind {
	return []*kind.Kind{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet}
}
