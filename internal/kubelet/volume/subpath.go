package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kubelet/environment"
)

// subPath returns the expanded and validated subPath of a mount. "" is the volume itself.
func subPath(mount *corev1.VolumeMount, env []corev1.EnvVar) (string, error) {
	path := mount.SubPath
	if mount.SubPathExpr != "" {
		var err error
		if path, err = environment.ExpandStrict(mount.SubPathExpr, env); err != nil {
			return "", err
		}
	}
	if filepath.IsAbs(path) {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", path)
	}
	if err := rejectParentReferences(path); err != nil {
		return "", fmt.Errorf("unable to provision SubPath `%s`: %w", path, err)
	}
	return path, nil
}

// subPathMount identifies a volumeMount with a subPath.
type subPathMount struct {
	pod       types.UID
	container string
	index     int // of the mount in the container
	volume    string
	path      string
}

// bindSubPath bind-mounts a path inside a volume at a path that only the kubelet can change, which the runtime then
// mounts. The runtime resolves paths by name, and by then a container could have replaced a component with a symlink. The
// bind mount lives as long as the pod, because the runtime uses it whenever it starts the container.
//
// Errors do not reveal anything about the host's files.
func (v *Volumes) bindSubPath(s subPathMount, m *mounted) (string, error) {
	root, err := openDir(m.path)
	if err != nil {
		return "", err
	}
	defer unix.Close(root)
	var stat unix.Stat_t
	if err := unix.Fstat(root, &stat); err != nil {
		return "", err
	}
	source, err := makeBeneath(root, s.path, stat.Mode&0o7777)
	if err != nil {
		v.Log.Warn("failed to open subPath", "pod", s.pod, "volume", s.volume, "path", s.path, "error", err)
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) {
			return "", fmt.Errorf("failed to create subPath directory for volumeMount %q of container %q", s.volume, s.container)
		}
		return "", fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", s.volume, s.container)
	}
	defer unix.Close(source)
	target := filepath.Join(v.podDir(s.pod), subPathsDir, s.volume, s.container, strconv.Itoa(s.index))
	if err := bindAt(source, target); err != nil {
		v.Log.Warn("failed to bind-mount subPath", "pod", s.pod, "volume", s.volume, "path", s.path, "error", err)
		return "", fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", s.volume, s.container)
	}
	return target, nil
}

// bindAt bind-mounts a file or directory on target, replacing the mount of an earlier start of the container.
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
