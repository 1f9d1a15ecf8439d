// Package node has tests of a node with real containers: containerd and runc as skiff ships them, in the test's own
// namespaces.
package node
