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

// ownMounts are those of a container that are no volumes: the pod's hosts file and the file for its last words.
func (k *Kubelet) ownMounts(pod *corev1.Pod, c *corev1.Container, ips []string) ([]cri.Mount, error) {
	var mounts []cri.Mount
	brings := func(path string) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return filepath.Clean(m.MountPath) == path })
	}
	if len(ips) > 0 && !brings(hostsPath) {
		mount, err := k.hostsMount(pod, ips)
		if err != nil {
			return nil, wrapped("make /etc/hosts of the pod", err)
		}
		mounts = append(mounts, mount)
	}
	if path := c.TerminationMessagePath; path != "" && !brings(path) {
		mount, err := k.terminationMount(pod, c)
		if err != nil {
			return nil, wrapped("make the file for the termination message", err)
		}
		mounts = append(mounts, mount)
	}
	return mounts, nil
}

// hostsMount writes the pod's hosts file. It is written in place: containers that run have this very file mounted.
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

// terminationMount makes the file a container leaves its last words in, a new one for each start.
func (k *Kubelet) terminationMount(pod *corev1.Pod, c *corev1.Container) (cri.Mount, error) {
	dir := filepath.Join(k.podDir(pod.UID), "containers", c.Name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return cri.Mount{}, err
	}
	path := filepath.Join(dir, fmt.Sprintf("%08x", rand.Uint32()))
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return cri.Mount{}, err
	}
	inside := c.TerminationMessagePath
	if !filepath.IsAbs(inside) {
		inside = "/" + inside
	}
	// Whoever the container runs as writes it.
	return cri.Mount{ContainerPath: inside, HostPath: path}, os.Chmod(path, 0o666)
}
