// Package cgroup keeps the control groups of a node's pods: what they may use, what they do use, and their end.
//
// Below the root stands kubepods, which holds what all pods together may have. Guaranteed pods are directly in it, the others in its
// groups burstable and besteffort: <root>/kubepods[/burstable|/besteffort]/pod<uid>. The runtime makes a group for each container
// below its pod's.
//
// Both versions of control groups are known. In version 2 there is one tree; in version 1 each controller has a tree of its own, and the same
// path is made in all of them. What limits mean in files is computed as values (limits.go). Controllers that the host does not have
// are left out and reported by Missing.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"skiff/internal/api/podspec"
)

const (
	podsGroup = "kubepods"
	podPrefix = "pod"
)

// classGroups are the groups of the classes of service.
var classGroups = map[corev1.PodQOSClass]string{
	corev1.PodQOSGuaranteed: podsGroup,
	corev1.PodQOSBurstable:  podsGroup + "/burstable",
	corev1.PodQOSBestEffort: podsGroup + "/besteffort",
}

// Settings say how pods are held.
type Settings struct {
	// Root is the group everything is below; "/" or empty is the host's own. Two nodes on one machine have two.
	Root string
	// PodPids is how many processes a pod may have; none is set for 0 and below.
	PodPids int64
	// NoCPUQuota leaves limits of CPU unenforced. CPUPeriod is over which time they are counted, 100 ms where it is zero.
	NoCPUQuota bool
	CPUPeriod  time.Duration
	// MountInfo tells where control groups are mounted; empty is that of this process.
	MountInfo string
}

// Groups are the control groups of one node.
type Groups struct {
	settings Settings
	version  int
	// trees has a directory for each controller, which in version 2 is the same. others are trees without a controller we use: the runtime
	// makes groups there too.
	trees   map[string]string
	others  []string
	missing []string
	pages   []int64
	write   func(path, value string) error

	mu sync.Mutex
	// burstable is the weight last set for all burstable pods.
	burstable uint64
}

// controllers are those we set limits of or read from.
var controllers = []string{"cpu", "cpuacct", "memory", "pids", "hugetlb"}

// New looks at what the host has. It makes no group.
func New(s Settings) (*Groups, error) {
	if s.MountInfo == "" {
		s.MountInfo = "/proc/self/mountinfo"
	}
	if s.CPUPeriod == 0 {
		s.CPUPeriod = 100 * time.Millisecond
	}
	s.Root = filepath.Join("/", s.Root)
	g := &Groups{settings: s, trees: map[string]string{}, write: writeFile, pages: hugePageSizes()}
	if err := g.findTrees(); err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	for _, c := range controllers {
		if _, ok := g.trees[c]; !ok && (g.version == 1 || c != "cpuacct") {
			g.missing = append(g.missing, c)
		}
	}
	return g, nil
}

// Version is 1 or 2.
func (g *Groups) Version() int { return g.version }

// Missing are the controllers this host does not have: limits of their kind are not enforced.
func (g *Groups) Missing() []string { return g.missing }

// findTrees reads where control groups are mounted.
func (g *Groups) findTrees() error {
	file, err := os.Open(g.settings.MountInfo)
	if err != nil {
		return err
	}
	defer file.Close()
	unified := ""
	for lines := bufio.NewScanner(file); lines.Scan(); {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		switch at := left[4]; right[0] {
		case "cgroup2":
			if unified == "" {
				unified = at
			}
		case "cgroup":
			known := false
			for _, option := range strings.Split(right[2], ",") {
				if slices.Contains(controllers, option) {
					if old, ok := g.trees[option]; !ok || len(at) < len(old) {
						g.trees[option] = at
					}
					known = true
				}
			}
			if !known {
				g.others = append(g.others, at)
			}
		}
	}
	switch {
	case len(g.trees) > 0:
		g.version = 1
		if unified != "" {
			g.others = append(g.others, unified)
		}
	case unified != "":
		g.version = 2
		available, err := os.ReadFile(filepath.Join(unified, "cgroup.controllers"))
		if err != nil {
			return err
		}
		for _, c := range strings.Fields(string(available)) {
			if slices.Contains(controllers, c) {
				g.trees[c] = unified
			}
		}
		if len(g.trees) == 0 {
			g.others = []string{unified}
		}
	default:
		return errors.New("none are mounted")
	}
	return nil
}

// directories are the places of a group, one in each tree that fits.
func (g *Groups) dirs(group string, everywhere bool) []string {
	var all []string
	for _, tree := range g.trees {
		all = append(all, filepath.Join(tree, g.settings.Root, group))
	}
	if everywhere {
		for _, tree := range g.others {
			all = append(all, filepath.Join(tree, g.settings.Root, group))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Setup makes the groups all pods are in. all is what they may have together: the node's allocatable resources where those are to be
// enforced, and otherwise its capacity, because a new group's weight would starve them. "pid" in it bounds processes.
func (g *Groups) Setup(all corev1.ResourceList) error {
	limits := NodeLimits(all)
	unlimited := Limits{HugePages: g.allPages(1 << 62)}
	weakest := unlimited
	weakest.Shares = new(uint64(minShares))
	for _, step := range []struct {
		group  string
		limits Limits
	}{
		{podsGroup, limits}, {classGroups[corev1.PodQOSBurstable], unlimited}, {classGroups[corev1.PodQOSBestEffort], weakest},
	} {
		if err := g.create(step.group); err != nil {
			return err
		}
		if err := g.apply(step.group, step.limits); err != nil {
			return err
		}
	}
	return nil
}

// allPages bounds every size of huge pages the host has.
func (g *Groups) allPages(limit int64) map[int64]int64 {
	pages := map[int64]int64{}
	for _, size := range g.pages {
		pages[size] = limit
	}
	return pages
}

// Path is a pod's group, as the runtime is told: below the trees' own roots.
func (g *Groups) Path(pod *corev1.Pod) string {
	return filepath.Join(g.settings.Root, podGroup(pod))
}

// podGroup is a pod's group below the root.
func podGroup(pod *corev1.Pod) string {
	class := pod.Status.QOSClass
	if class == "" {
		class = podspec.QOSClass(pod)
	}
	return filepath.Join(classGroups[class], podPrefix+string(pod.UID))
}

// Ensure makes a pod's group, if it is not there, and returns its path.
func (g *Groups) Ensure(pod *corev1.Pod) (string, error) {
	group := podGroup(pod)
	if g.exists(group) {
		return g.Path(pod), nil
	}
	if err := g.create(group); err != nil {
		return "", err
	}
	return g.Path(pod), g.apply(group, g.podLimits(pod))
}

func (g *Groups) podLimits(pod *corev1.Pod) Limits { return PodLimits(pod, g.settings, g.pages) }

func (g *Groups) exists(group string) bool {
	return !slices.ContainsFunc(g.dirs(group, false), func(dir string) bool {
		_, err := os.Stat(dir)
		return err != nil
	})
}

// Grow raises the limits of a pod's group to what the pod may have now, and lowers none. A resize calls it before its containers
// are changed, and Update after: a container's limits never exceed its pod's.
func (g *Groups) Grow(pod *corev1.Pod) error {
	group := podGroup(pod)
	now, err := g.read(group)
	if err != nil {
		return err
	}
	return g.apply(group, larger(now, g.podLimits(pod)))
}

// Update sets the limits of a pod's group to what the pod may have now.
func (g *Groups) Update(pod *corev1.Pod) error { return g.apply(podGroup(pod), g.podLimits(pod)) }

// UpdateClasses weighs the burstable pods, all together, by what they request. pods are all that are active.
func (g *Groups) UpdateClasses(pods []*corev1.Pod) error {
	var milli int64
	for _, pod := range pods {
		if podGroup(pod) == filepath.Join(classGroups[corev1.PodQOSBurstable], podPrefix+string(pod.UID)) {
			requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
			milli += requests.Cpu().MilliValue()
		}
	}
	shares := sharesOf(milli)
	g.mu.Lock()
	defer g.mu.Unlock()
	if shares == g.burstable {
		return nil
	}
	if err := g.apply(classGroups[corev1.PodQOSBurstable], Limits{Shares: &shares}); err != nil {
		return err
	}
	g.burstable = shares
	return nil
}

// create makes a group in all trees.
func (g *Groups) create(group string) error {
	for _, dir := range g.dirs(group, false) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make control group %s: %w", group, err)
		}
	}
	if g.version == 2 {
		return g.delegate(group)
	}
	return nil
}

// delegate hands the controllers down to a group of version 2, and on to the groups below it.
func (g *Groups) delegate(group string) error {
	var wanted []string
	for _, c := range slices.Sorted(maps.Keys(g.trees)) {
		wanted = append(wanted, "+"+c)
	}
	if len(wanted) == 0 {
		return nil
	}
	tree := g.trees[strings.TrimPrefix(wanted[0], "+")]
	at := tree
	for _, step := range append([]string{""}, strings.Split(strings.Trim(filepath.Join(g.settings.Root, group), "/"), "/")...) {
		at = filepath.Join(at, step)
		file := filepath.Join(at, "cgroup.subtree_control")
		have, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("hand controllers down: %w", err)
		}
		enabled := strings.Fields(string(have))
		var lacking []string
		for _, c := range wanted {
			if !slices.Contains(enabled, c[1:]) {
				lacking = append(lacking, c)
			}
		}
		if len(lacking) == 0 {
			continue
		}
		if err := g.write(file, strings.Join(lacking, " ")); err != nil {
			return fmt.Errorf("hand controllers down to control group %s: %w", group, err)
		}
	}
	return nil
}

// apply writes limits into a group.
func (g *Groups) apply(group string, l Limits) error {
	for _, s := range l.settings(g.version) {
		tree, ok := g.trees[s.controller]
		if !ok {
			continue
		}
		path := filepath.Join(tree, g.settings.Root, group, s.file)
		if err := g.write(path, s.value); err != nil {
			if s.optional && errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return fmt.Errorf("limit control group %s: set %s to %s: %w", group, s.file, s.value, err)
		}
	}
	return nil
}

func writeFile(path, value string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

// Pods are those that have a group in any tree.
func (g *Groups) Pods() ([]types.UID, error) {
	found := map[types.UID]bool{}
	for _, class := range classGroups {
		for _, dir := range g.dirs(class, true) {
			entries, err := os.ReadDir(dir)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("list control groups of pods: %w", err)
			}
			for _, entry := range entries {
				if uid, ok := strings.CutPrefix(entry.Name(), podPrefix); ok && entry.IsDir() && uid != "" {
					found[types.UID(uid)] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}
