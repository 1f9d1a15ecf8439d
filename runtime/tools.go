//go:build tools

// Package runtime pins the container runtime that is shipped with skiff: containerd, its shim and runc. They are built from their Go
// modules. This is a separate module, so that their dependencies are not skiff's.
package runtime

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/opencontainers/runc"
)
