// Package discovery has the kinds of discovery.k8s.io: the endpoints of services.
package discovery

import "skiff/internal/kind"

// Kinds are the kinds of the group.
func Kinds() []*kind.Kind {
	return []*kind.Kind{EndpointSlice}
}
