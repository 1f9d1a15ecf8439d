// Package node holds tests of a node with real containers: containerd and runc as skiff ships them, in namespaces of the test's own.
package node
