// Package core has the kinds of the core group, API version v1. One file per kind has its Definition and functions; larger
// kinds have their validation in a separate file. Two things cover more than one object: the allocation of addresses and
// ports for services (servicealloc.go and the other files named service*.go), and the objects that every cluster starts
// with (bootstrap.go).
package core

import "skiff/internal/kind"

// Kinds are the kinds of the group. RangeAllocation is stored but not served.
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
