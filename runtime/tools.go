//go:build tools

// Package runtime pins the container runtime that skiff starts and ships beside itself: containerd, its shim and runc. They are built
// from their Go modules, never copied into the tree, and stand in a module of their own so that their dependencies stay out of skiff's.
package runtime

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/opencontainers/runc"
)
