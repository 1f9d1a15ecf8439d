// Package node has RuntimeClass.
package node

import "skiff/internal/kind"

// Kinds are the kinds of group node.k8s.io.
func Kinds() []*kind.Kind {
	return []*kind.Kind{RuntimeClass}
}
