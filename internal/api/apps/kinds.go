// Package apps has the kinds of workloads: Deployment, ReplicaSet, StatefulSet, DaemonSet, and ControllerRevision,
// which stores their history. All of them make pods from a template that their selector must match; what they have in
// common is in workload.go.
package apps

import "skiff/internal/kind"

// Kinds are the kinds of group apps.
func Kinds() []*kind.Kind {
	return []*kind.Kind{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet}
}
