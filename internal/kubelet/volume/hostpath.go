package volume

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const hostPathPlugin = "kubernetes.io/host-path"

// setUpHostPath checks the type of a host path, creating it where the type allows that.
func setUpHostPath(source *corev1.HostPathVolumeSource, readOnly bool) (*mounted, error) {
	if err := rejectParentReferences(source.Path); err != nil {
		return nil, fmt.Errorf("invalid HostPath `%s`: %w", source.Path, err)
	}
	m := &mounted{plugin: hostPathPlugin, path: source.Path, readOnly: readOnly}
	if source.Type == nil {
		return m, nil
	}
	switch *source.Type {
	case corev1.HostPathUnset:
		return m, nil
	case corev1.HostPathDirectoryOrCreate:
		if !exists(source.Path) {
			return m, os.MkdirAll(source.Path, 0o755)
		}
		return m, checkHostPathType(source.Path, corev1.HostPathDirectory, "directory")
	case corev1.HostPathDirectory:
		return m, checkHostPathType(source.Path, corev1.HostPathDirectory, "directory")
	case corev1.HostPathFileOrCreate:
		if !exists(source.Path) {
			return m, makeFile(source.Path)
		}
		return m, checkHostPathType(source.Path, corev1.HostPathFile, "file")
	case corev1.HostPathFile:
		return m, checkHostPathType(source.Path, corev1.HostPathFile, "file")
	case corev1.HostPathSocket:
		return m, checkHostPathType(source.Path, corev1.HostPathSocket, "socket file")
	case corev1.HostPathCharDev:
		return m, checkHostPathType(source.Path, corev1.HostPathCharDev, "character device")
	case corev1.HostPathBlockDev:
		return m, checkHostPathType(source.Path, corev1.HostPathBlockDev, "block device")
	}
	return nil, fmt.Errorf("%s is an invalid volume type", *source.Type)
}

func rejectParentReferences(path string) error {
	if slices.Contains(strings.Split(path, "/"), "..") {
		return errors.New("must not contain '..'")
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func makeFile(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}

func checkHostPathType(path string, want corev1.HostPathType, called string) error {
	have, err := hostPathType(path)
	if err != nil {
		return fmt.Errorf("hostPath type check failed, %s is not a %s, unable to determine its type: %w", path, called, err)
	}
	if have != want {
		return fmt.Errorf("hostPath type check failed: %s is not a %s, it's a %s", path, called, have)
	}
	return nil
}

func hostPathType(path string) (corev1.HostPathType, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("path %q does not exist", path)
	}
	if err != nil {
		return "", err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return corev1.HostPathDirectory, nil
	case mode.IsRegular():
		return corev1.HostPathFile, nil
	case mode&os.ModeSocket != 0:
		return corev1.HostPathSocket, nil
	case mode&os.ModeCharDevice != 0:
		return corev1.HostPathCharDev, nil
	case mode&os.ModeDevice != 0:
		return corev1.HostPathBlockDev, nil
	}
	return "", errors.New("only recognise file, directory, socket, block device and character device")
}
