package kubelet

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/environment"
)

const hostsPath = "/etc/hosts"

// kubeletMounts are the mounts of a container that are not volumes: the pod's hosts file and the termination message file.
func (k *Kubelet) kubeletMounts(pod *corev1.Pod, c *corev1.Container, ips []string) ([]cri.Mount, error) {
	var mounts []cri.Mount
	mounted := func(path string) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return filepath.Clean(m.MountPath) == path })
	}
	if len(ips) > 0 && !mounted(hostsPath) {
		mount, err := k.hostsMount(pod, ips)
		if err != nil {
			return nil, wrapped("create hosts file", err)
		}
		mounts = append(mounts, mount)
	}
	if path := c.TerminationMessagePath; path != "" && !mounted(path) {
		mount, err := k.terminationMount(pod, c)
		if err != nil {
			return nil, wrapped("create termination message file", err)
		}
		mounts = append(mounts, mount)
	}
	return mounts, nil
}

// hostsMount writes the pod's hosts file. It is written in place because running containers have the same inode mounted.
func (k *Kubelet) hostsMount(pod *corev1.Pod, ips []string) (cri.Mount, error) {
	var node []byte
	if pod.Spec.HostNetwork {
		var err error
		if node, err = os.ReadFile(hostsPath); err != nil {
			return cri.Mount{}, err
		}
	}
	text, err := environment.Hosts(pod, ips, k.DNS.ClusterDomain, node)
	if err != nil {
		return cri.Mount{}, err
	}
	path := filepath.Join(k.podDir(pod.UID), "etc-hosts")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return cri.Mount{}, err
	}
	return cri.Mount{ContainerPath: hostsPath, HostPath: path}, os.Chmod(path, 0o644)
}

// terminationMount creates the termination message file of a container, a new one for each start.
func (k *Kubelet) terminationMount(pod *corev1.Pod, c *corev1.Container) (cri.Mount, error) {
	dir := filepath.Join(k.podDir(pod.UID), "containers", c.Name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return cri.Mount{}, err
	}
	path := filepath.Join(dir, fmt.Sprintf("%08x", rand.Uint32()))
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return cri.Mount{}, err
	}
	containerPath := c.TerminationMessagePath
	if !filepath.IsAbs(containerPath) {
		containerPath = "/" + containerPath
	}
	// The container may run as any user.
	return cri.Mount{ContainerPath: containerPath, HostPath: path}, os.Chmod(path, 0o666)
}
