package cgroup

import (
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
)

// Reserve limits a cgroup of the host, which must exist, to the resources that are reserved for it. With onlyCPU it gets its share of the CPUs and no limits.
// The path is below the mount points, not below Root.
func (g *Groups) Reserve(path string, reserved corev1.ResourceList, onlyCPU bool) error {
	path = filepath.Join("/", path)
	if !g.existsPath(path) {
		return fmt.Errorf("cgroup %q does not exist", path)
	}
	limits := NodeLimits(reserved)
	if onlyCPU {
		limits = Limits{Shares: limits.Shares}
	}
	return g.writeLimitsAt(path, limits)
}
