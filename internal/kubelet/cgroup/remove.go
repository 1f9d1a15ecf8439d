package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Remove kills the remaining processes in a pod's cgroup and removes the cgroup and its children from all hierarchies.
func (g *Groups) Remove(uid types.UID) error {
	var problems []error
	for _, class := range qosCgroups {
		if err := g.remove(filepath.Join(class, podPrefix+string(uid))); err != nil {
			problems = append(problems, fmt.Errorf("remove cgroup of pod %s: %w", uid, err))
		}
	}
	return errors.Join(problems...)
}

// remove removes a cgroup and its children from all hierarchies and kills the processes in them.
func (g *Groups) remove(group string) error {
	var problems []error
	dirs := slices.DeleteFunc(g.dirs(group, true), func(dir string) bool {
		_, err := os.Stat(dir)
		return errors.Is(err, fs.ErrNotExist)
	})
	if g.systemd != nil && len(dirs) > 0 {
		// systemd would give the processes of the scopes in the slice time to exit.
		for _, dir := range dirs {
			kill(dir)
		}
		problems = append(problems, g.stopSlice(group))
	}
	for _, dir := range dirs {
		problems = append(problems, removeCgroup(dir))
	}
	return errors.Join(problems...)
}

// Teardown removes all cgroups of this node and kills the processes in them.
func (g *Groups) Teardown() error {
	var problems []error
	if err := g.remove(podsCgroup); err != nil {
		problems = append(problems, fmt.Errorf("remove cgroups of pods: %w", err))
	}
	for _, dir := range g.dirs(podsCgroup, true) {
		if g.settings.Root == "/" || g.systemd != nil {
			continue
		}
		// The root is removed too if nothing else is in it.
		if err := os.Remove(filepath.Dir(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EBUSY) && !errors.Is(err, syscall.ENOTEMPTY) {
			problems = append(problems, fmt.Errorf("remove cgroups of pods: %w", err))
		}
	}
	return errors.Join(problems...)
}

// RemoveNode removes the cgroups of a node, and kills the processes in them. Those of another kubelet on the host have the same names: if isShared is set, or
// if pods that are not own have processes, only the cgroups of own pods are removed. It returns whether others stay.
func (g *Groups) RemoveNode(own func(types.UID) bool, isShared bool) (othersStay bool, err error) {
	pods, err := g.Pods()
	if err != nil {
		return false, err
	}
	isOthers := func(uid types.UID) bool { return !own(uid) && g.hasProcesses(uid) }
	if !isShared && !slices.ContainsFunc(pods, isOthers) {
		return false, g.Teardown()
	}
	var problems []error
	for _, uid := range pods {
		if own(uid) {
			problems = append(problems, g.Remove(uid))
		} else {
			othersStay = true
		}
	}
	return othersStay, errors.Join(problems...)
}

// hasProcesses reports whether there are processes in a pod's cgroup.
func (g *Groups) hasProcesses(uid types.UID) (found bool) {
	for _, class := range qosCgroups {
		for _, dir := range g.dirs(filepath.Join(class, podPrefix+string(uid)), true) {
			_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() || entry.Name() != "cgroup.procs" {
					return nil // a cgroup that is gone meanwhile has no processes
				}
				if text, err := os.ReadFile(path); err == nil && len(strings.TrimSpace(string(text))) > 0 {
					found = true
					return fs.SkipAll
				}
				return nil
			})
		}
	}
	return found
}

// removeCgroup removes a cgroup from one hierarchy. That fails until its last process has exited, which takes a moment after it was
// killed, so it is retried for about two seconds.
func removeCgroup(dir string) error {
	wait := time.Millisecond
	for {
		err := removeDirs(dir)
		if err == nil || wait > time.Second {
			return err
		}
		kill(dir)
		time.Sleep(wait)
		wait *= 2
	}
}

// removeDirs removes a cgroup and its children, the innermost first.
func removeDirs(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeDirs(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// kill kills all processes in a cgroup and its children. Processes that are forked meanwhile are killed by the next call.
func kill(dir string) {
	if err := writeFile(filepath.Join(dir, "cgroup.kill"), "1"); err == nil {
		return
	}
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() != "cgroup.procs" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		for _, line := range strings.Fields(string(text)) {
			// 0 stands for a process in another PID namespace, and would signal our own process group.
			if pid, err := strconv.Atoi(line); err == nil && pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		return nil
	})
}
