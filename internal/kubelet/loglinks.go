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

// logSuffix is the end of the names of links, maxLogName the length of the rest: file systems have names of at most 255 bytes.
const (
	logSuffix  = ".log"
	maxLogName = 255 - len(logSuffix)
)

// linkLog makes the link to the log of a container. Failures are logged: the container runs without it.
func (k *Kubelet) linkLog(pod *corev1.Pod, c *corev1.Container, id string, attempt uint32) {
	name := fmt.Sprintf("%s_%s_%s-%s", pod.Name, pod.Namespace, c.Name, id)
	link := filepath.Join(LogLinksDir(k.LogsDir()), name[:min(len(name), maxLogName)]+logSuffix)
	log := filepath.Join(cri.PodLogDirectory(k.LogsDir(), pod), cri.ContainerLogPath(c.Name, attempt))
	err := os.Symlink(log, link)
	if errors.Is(err, fs.ErrExist) {
		// The name was cut, and is that of an earlier start too.
		if err = os.Remove(link); err == nil {
			err = os.Symlink(log, link)
		}
	}
	if err != nil {
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
		id := strings.TrimSuffix(path[strings.LastIndexByte(path, '-')+1:], logSuffix)
		if _, err := os.Stat(target); !errors.Is(err, fs.ErrNotExist) || isContainer(id) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
