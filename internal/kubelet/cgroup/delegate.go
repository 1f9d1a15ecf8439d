package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// hostCgroup is the cgroup that the processes of a container are moved to, below the root of its cgroup namespace.
const hostCgroup = "init"

// delegateToPods enables the controllers for kubepods. Those that cannot be enabled are done without. In version 1 nothing has to be enabled.
func (g *Groups) delegateToPods() error {
	if g.version != 2 || len(g.hierarchies) == 0 {
		return nil
	}
	root := g.unified()
	if err := leaveRoot(root); err != nil {
		return fmt.Errorf("move processes out of the root cgroup: %w", err)
	}
	for _, dir := range ancestors(root, filepath.Dir(g.path(podsCgroup))) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("create cgroup %s: %w", dir, err)
		}
		failed, err := g.enable(dir)
		if err != nil {
			return err
		}
		for _, controller := range slices.Sorted(maps.Keys(failed)) {
			g.dropController(controller)
		}
	}
	return nil
}

// unified is the mount point of version 2.
func (g *Groups) unified() string {
	for _, hierarchy := range g.hierarchies {
		return hierarchy
	}
	return ""
}

// dropController does without a controller of version 2.
func (g *Groups) dropController(controller string) {
	root := g.hierarchies[controller]
	delete(g.hierarchies, controller)
	g.missing = append(g.missing, controller)
	if len(g.hierarchies) == 0 {
		g.otherHierarchies = []string{root}
	}
}

// delegate enables the controllers for the children of a cgroup and of its ancestors (version 2).
func (g *Groups) delegate(group string) error {
	if len(g.hierarchies) == 0 {
		return nil
	}
	for _, dir := range ancestors(g.unified(), g.path(group)) {
		failed, err := g.enable(dir)
		if err != nil {
			return err
		}
		for controller, err := range failed {
			return fmt.Errorf("enable controller %s for cgroup %s: %w", controller, group, err)
		}
	}
	return nil
}

// enable enables the controllers for the children of a cgroup, one by one: written together, one that fails would keep the others disabled.
func (g *Groups) enable(dir string) (failed map[string]error, err error) {
	file := filepath.Join(dir, "cgroup.subtree_control")
	content, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read enabled controllers: %w", err)
	}
	enabled := strings.Fields(string(content))
	failed = map[string]error{}
	for _, controller := range slices.Sorted(maps.Keys(g.hierarchies)) {
		if slices.Contains(enabled, controller) {
			continue
		}
		if err := g.write(file, "+"+controller); err != nil {
			failed[controller] = err
		}
	}
	return failed, nil
}

// ancestors are the directories from the root of a hierarchy to a path below it.
func ancestors(root, path string) []string {
	dirs := []string{root}
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if part != "" {
			dirs = append(dirs, filepath.Join(dirs[len(dirs)-1], part))
		}
	}
	return dirs
}

// leaveRoot moves the processes out of the root of a cgroup namespace: inside a container it is an ordinary cgroup, and the kernel enables
// controllers only for the children of a cgroup without processes. The root cgroup of a host is exempt from that.
func leaveRoot(root string) error {
	if _, err := os.Stat(filepath.Join(root, "cgroup.type")); err != nil {
		return nil // that of the host
	}
	target := filepath.Join(root, hostCgroup)
	// Processes that are forked meanwhile are moved by the next round.
	for range 10 {
		text, err := os.ReadFile(filepath.Join(root, "cgroup.procs"))
		if err != nil {
			return err
		}
		pids := strings.Fields(string(text))
		if len(pids) == 0 {
			return nil
		}
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		for _, pid := range pids {
			if err := writeFile(filepath.Join(target, "cgroup.procs"), pid); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("move process %s: %w", pid, err)
			}
		}
	}
	return errors.New("new processes appear in it")
}
