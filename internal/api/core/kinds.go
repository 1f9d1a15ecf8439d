// Package core has the kinds of the core group, API version v1: what a cluster is made of. One file per kind holds its
// row and rules; the larger ones keep their validation in a file of its own. Beside the rows stand the two things that
// reach beyond one object: how services get their addresses and ports (servicealloc.go and the files beside it), and the
// objects every cluster starts with (bootstrap.go).
package core

import "skiff/internal/kind"

// Kinds lists the kinds of the group. RangeAllocation is stored but not served.
func Kinds() []*kind.Kind {
	return []*kind.Kind{
		Binding,
		ComponentStatus,
		ConfigMap,
		Endpoints,
		Event,
		LimitRange,
		Namespace,
		Node,
		PersistentVolume,
		PersistentVolumeClaim,
		Pod,
		PodTemplate,
		RangeAllocation,
		ReplicationController,
		ResourceQuota,
		Secret,
		Service,
		ServiceAccount,
	}
}
