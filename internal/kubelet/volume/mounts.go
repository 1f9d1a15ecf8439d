package volume

import (
	"fmt"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kubelet/cri"
)

// Mounts returns the mounts of a container for volumes that Mount has set up. env is the container's environment, for
// subPathExpr. The returned function is called once the container was created or could not be.
func (v *Volumes) Mounts(pod *corev1.Pod, c *corev1.Container, env []corev1.EnvVar) ([]cri.Mount, func(), error) {
	release := func() {} // subPath mounts are removed with the pod's volumes
	mounts := make([]cri.Mount, 0, len(c.VolumeMounts))
	for i := range c.VolumeMounts {
		mount, err := v.containerMount(pod, c, i, env)
		if err != nil {
			return nil, release, err
		}
		mounts = append(mounts, mount)
	}
	return mounts, release, nil
}

func (v *Volumes) containerMount(pod *corev1.Pod, c *corev1.Container, index int, env []corev1.EnvVar) (cri.Mount, error) {
	volumeMount := &c.VolumeMounts[index]
	m := v.mounted(pod.UID, volumeMount.Name)
	if m == nil || m.block {
		return cri.Mount{}, fmt.Errorf("cannot find volume %q to mount into container %q", volumeMount.Name, c.Name)
	}
	path, err := subPath(volumeMount, env)
	if err != nil {
		return cri.Mount{}, err
	}
	mount := cri.Mount{
		ContainerPath: volumeMount.MountPath, ReadOnly: volumeMount.ReadOnly || m.readOnly, SELinuxRelabel: m.managed && hasSELinux(),
		MountOptions: volumeMount.BindMountOptions,
	}
	if !filepath.IsAbs(mount.ContainerPath) {
		mount.ContainerPath = "/" + mount.ContainerPath
	}
	if mount.Propagation, err = propagation(volumeMount.MountPropagation); err != nil {
		return cri.Mount{}, err
	}
	if mount.RecursiveReadOnly, err = v.recursiveReadOnly(pod, volumeMount); err != nil {
		return cri.Mount{}, fmt.Errorf("failed to resolve recursive read-only mode: %w", err)
	}
	switch {
	case m.image != "":
		mount.Image, mount.ImageSubPath = m.image, path
	case path == "":
		mount.HostPath = m.path
	default:
		mount.HostPath, err = v.bindSubPath(subPathMount{pod: pod.UID, container: c.Name, index: index, volume: volumeMount.Name, path: path}, m)
	}
	return mount, err
}

// hasSELinux reports whether SELinux is enabled on this host.
var hasSELinux = sync.OnceValue(func() bool { return exists("/sys/fs/selinux/enforce") })

// propagation is the propagation mode of a mount; empty for None.
func propagation(mode *corev1.MountPropagationMode) (corev1.MountPropagationMode, error) {
	switch {
	case mode == nil, *mode == corev1.MountPropagationNone:
		return "", nil
	case *mode == corev1.MountPropagationHostToContainer, *mode == corev1.MountPropagationBidirectional:
		return *mode, nil
	}
	return "", fmt.Errorf("invalid MountPropagation mode: %q", *mode)
}

func (v *Volumes) recursiveReadOnly(pod *corev1.Pod, mount *corev1.VolumeMount) (bool, error) {
	if mount.RecursiveReadOnly == nil || *mount.RecursiveReadOnly == corev1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	if !mount.ReadOnly {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not read-only", mount.Name)
	}
	if mode := mount.MountPropagation; mode != nil && *mode != corev1.MountPropagationNone {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not compatible with propagation %q", mount.Name, *mode)
	}
	supported := v.RecursiveReadOnly != nil && v.RecursiveReadOnly(pod)
	switch *mount.RecursiveReadOnly {
	case corev1.RecursiveReadOnlyIfPossible:
		return supported, nil
	case corev1.RecursiveReadOnlyEnabled:
		if !supported {
			return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime", mount.Name)
		}
		return true, nil
	}
	return false, fmt.Errorf("unknown recursive read-only mode %q", *mount.RecursiveReadOnly)
}

// Devices returns the block volumes of a container.
func (v *Volumes) Devices(pod *corev1.Pod, c *corev1.Container) ([]cri.Device, error) {
	var devices []cri.Device
	for _, volumeMount := range c.VolumeDevices {
		if !filepath.IsAbs(volumeMount.DevicePath) {
			return nil, fmt.Errorf("error DevicePath `%s` must be an absolute path", volumeMount.DevicePath)
		}
		m := v.mounted(pod.UID, volumeMount.Name)
		if m == nil || !m.block {
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", volumeMount.Name, c.Name)
		}
		permissions := "mrw"
		if m.readOnly {
			permissions = "r"
		}
		devices = append(devices, cri.Device{HostPath: m.path, ContainerPath: volumeMount.DevicePath, Permissions: permissions})
	}
	return devices, nil
}
