package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Remove ends the processes that are left in a pod's group and removes the group, with those below it, from all trees.
func (g *Groups) Remove(uid types.UID) error {
	var problems []error
	for _, class := range classGroups {
		for _, dir := range g.dirs(filepath.Join(class, podPrefix+string(uid)), true) {
			if err := removeTree(dir); err != nil {
				problems = append(problems, fmt.Errorf("remove control group of pod %s: %w", uid, err))
			}
		}
	}
	return errors.Join(problems...)
}

// Teardown removes everything of this node. Processes of pods that still run are ended.
func (g *Groups) Teardown() error {
	var problems []error
	for _, dir := range g.dirs(podsGroup, true) {
		if err := removeTree(dir); err != nil {
			problems = append(problems, fmt.Errorf("remove control groups of pods: %w", err))
		}
		if g.settings.Root == "/" {
			continue
		}
		// The root itself goes if it is ours alone.
		if err := os.Remove(filepath.Dir(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EBUSY) && !errors.Is(err, syscall.ENOTEMPTY) {
			problems = append(problems, fmt.Errorf("remove control groups of pods: %w", err))
		}
	}
	return errors.Join(problems...)
}

// removeTree removes a group of one tree. A group can go only when its last process is gone from the kernel, which takes a moment
// after it was killed, so it is tried for a while.
func removeTree(dir string) error {
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

// removeDirs removes a group and those below it, the innermost first.
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

// kill ends all processes of a group and of those below it. What it misses is met the next time.
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
			// 0 stands for a process we cannot see, and would mean our own.
			if pid, err := strconv.Atoi(line); err == nil && pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		return nil
	})
}
