package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kubelet/cri"
)

// Log collectors find the logs of containers in one directory, as links whose names say to which pod they belong: /var/log/containers beside
// /var/log/pods.

// LogLinksDir is the directory of links beside the directory of the logs of pods.
func LogLinksDir(podLogs string) string { return filepath.Join(filepath.Dir(podLogs), "containers") }

// linkLog makes the link to the log of a container. Failures are logged: the container runs without it.
func (k *Kubelet) linkLog(pod *corev1.Pod, c *corev1.Container, id string, attempt uint32) {
	name := fmt.Sprintf("%s_%s_%s-%s.log", pod.Name, pod.Namespace, c.Name, id)
	log := filepath.Join(cri.PodLogDirectory(k.LogsDir(), pod), cri.ContainerLogPath(c.Name, attempt))
	if err := os.Symlink(log, filepath.Join(LogLinksDir(k.LogsDir()), name)); err != nil && !errors.Is(err, fs.ErrExist) {
		k.Log.Warn("failed to link the log of a container", "pod", describe(pod), "container", c.Name, "error", err)
	}
}

// RemoveDeadLogLinks removes the links to logs in the directory of the logs of pods that do not exist any more. isContainer reports whether the container
// with an ID exists: its log may just be being rotated.
func RemoveDeadLogLinks(podLogs string, isContainer func(id string) bool) error {
	dir := LogLinksDir(podLogs)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		target, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(target, podLogs+"/") {
			continue // not one of ours
		}
		id := strings.TrimSuffix(path[strings.LastIndexByte(path, '-')+1:], ".log")
		if _, err := os.Stat(target); !errors.Is(err, fs.ErrNotExist) || isContainer(id) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
