package namespaces

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// groupPrefix is the prefix of the cgroup of a run; the PID of the outer process follows.
const groupPrefix = "skiff-test-"

// hierarchy is a mounted cgroup hierarchy.
type hierarchy struct {
	path, kind, options string // kind is cgroup (v1) or cgroup2
}

// mountedGroups lists the mounted cgroup hierarchies.
func mountedGroups() ([]hierarchy, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	var all []hierarchy
	for _, m := range mounts {
		h := hierarchy{path: m.Mountpoint, kind: m.FSType}
		if m.FSType == "cgroup" {
			// Options of the hierarchy: its controllers, without those of the mount.
			var options []string
			for option := range strings.SplitSeq(m.VFSOptions, ",") {
				if option != "rw" && option != "ro" {
					options = append(options, option)
				}
			}
			h.options = strings.Join(options, ",")
		}
		all = append(all, h)
	}
	return all, nil
}

// makeGroups creates the run's cgroup in every hierarchy.
func makeGroups(group string) error {
	hierarchies, err := mountedGroups()
	if err != nil {
		return err
	}
	for _, h := range hierarchies {
		if h.kind == "cgroup2" {
			// A controller is only available if the parent enables it; those used by v1 are not.
			controllers, err := os.ReadFile(filepath.Join(h.path, "cgroup.controllers"))
			if err != nil {
				return err
			}
			for name := range strings.FieldsSeq(string(controllers)) {
				_ = os.WriteFile(filepath.Join(h.path, "cgroup.subtree_control"), []byte("+"+name), 0)
			}
		}
		dir := filepath.Join(h.path, group)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("create cgroup: %w", err)
		}
		// A new v1 cpuset has no CPUs until some are assigned.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(h.path, file))
			if h.kind != "cgroup" || err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
				return fmt.Errorf("set %s: %w", file, err)
			}
		}
	}
	return nil
}

// enterGroups moves this process into the run's cgroups and makes them the roots of its cgroup namespace.
func enterGroups(group string) error {
	hierarchies, err := mountedGroups()
	if err != nil {
		return err
	}
	for _, h := range hierarchies {
		if err := os.WriteFile(filepath.Join(h.path, group, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	return unix.Unshare(unix.CLONE_NEWCGROUP)
}

// mountGroups mounts the hierarchies again, rooted at the run's cgroups, at the same paths.
func mountGroups(hierarchies []hierarchy) error {
	const root = "/sys/fs/cgroup"
	for i, h := range hierarchies {
		if i == 0 && h.path != root {
			if err := unix.Mount("tmpfs", root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755"); err != nil {
				return fmt.Errorf("mount %s: %w", root, err)
			}
		}
		if err := os.MkdirAll(h.path, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(h.kind, h.path, h.kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, h.options); err != nil {
			return fmt.Errorf("mount cgroup hierarchy at %s: %w", h.path, err)
		}
	}
	return nil
}

// removeGroups removes the run's cgroups. Their processes have been killed, but may still be exiting.
func removeGroups(group string) {
	hierarchies, err := mountedGroups()
	if err != nil {
		return
	}
	for _, h := range hierarchies {
		for range 100 {
			if removeTree(filepath.Join(h.path, group)) == nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// removeTree removes a cgroup and its descendants, deepest first.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeStaleGroups removes the cgroups of runs whose outer process was killed.
func removeStaleGroups() {
	hierarchies, err := mountedGroups()
	if err != nil {
		return
	}
	for _, h := range hierarchies {
		stale, err := filepath.Glob(filepath.Join(h.path, groupPrefix+"*"))
		if err != nil {
			return
		}
		for _, dir := range stale {
			pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), groupPrefix))
			if err == nil && unix.Kill(pid, 0) != nil {
				_ = removeTree(dir)
			}
		}
	}
}
