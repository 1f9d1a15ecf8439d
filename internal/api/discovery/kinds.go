// Package discovery has the kinds of discovery.k8s.io: where the endpoints of services are.
package discovery

import "skiff/internal/kind"

// Kinds lists the kinds of the group.
func Kinds() []*kind.Kind {
	return []*kind.Kind{EndpointSlice}
}
