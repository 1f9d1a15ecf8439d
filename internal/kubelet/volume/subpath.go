package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"golang.org/x/sys/unix"

	"skiff/internal/kubelet/environment"
)

// subPath is the path inside a volume that a container wants, expanded and checked. "" is the volume itself.
func subPath(mount *corev1.VolumeMount, env []corev1.EnvVar) (string, error) {
	path := mount.SubPath
	if mount.SubPathExpr != "" {
		var err error
		if path, err = environment.ExpandStrictly(mount.SubPathExpr, env); err != nil {
			return "", err
		}
	}
	if filepath.IsAbs(path) {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", path)
	}
	if err := noBacksteps(path); err != nil {
		return "", fmt.Errorf("unable to provision SubPath `%s`: %w", path, err)
	}
	return path, nil
}

// bindSubPath makes what is at a path inside a volume visible at a place of the kubelet's own, which the runtime then mounts. The runtime
// resolves paths by name; by then a container could have turned part of it into a symlink to anywhere. The place lives as
// long as the pod, since the runtime looks at it again when it starts the container.
//
// The texts of errors say nothing of what is on the host.
func (v *Volumes) bindSubPath(pod *corev1.Pod, containerName string, index int, volume string, m *mounted, path string) (string, error) {
	root, err := openDir(m.path)
	if err != nil {
		return "", err
	}
	defer unix.Close(root)
	var stat unix.Stat_t
	if err := unix.Fstat(root, &stat); err != nil {
		return "", err
	}
	source, err := makeBeneath(root, path, stat.Mode&0o7777)
	if err != nil {
		v.Log.Warn("subPath is not opened", "pod", pod.UID, "volume", volume, "path", path, "error", err)
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) {
			return "", fmt.Errorf("failed to create subPath directory for volumeMount %q of container %q", volume, containerName)
		}
		return "", fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", volume, containerName)
	}
	defer unix.Close(source)
	target := filepath.Join(v.podDir(pod.UID), "volume-subpaths", volume, containerName, strconv.Itoa(index))
	if err := bindAt(source, target); err != nil {
		v.Log.Warn("subPath is not bound", "pod", pod.UID, "volume", volume, "path", path, "error", err)
		return "", fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", volume, containerName)
	}
	return target, nil
}

// bindAt binds a file or directory at a place, in place of what was bound there for an earlier start of the container.
func bindAt(source int, target string) error {
	var stat unix.Stat_t
	if err := unix.Fstat(source, &stat); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if err := unmountBelow(target); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := os.Mkdir(target, 0o750); err != nil {
			return err
		}
	} else if err := os.WriteFile(target, nil, 0o640); err != nil {
		return err
	}
	return bind(source, target, false)
}
