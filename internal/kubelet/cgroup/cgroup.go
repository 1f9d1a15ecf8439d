// Package cgroup creates and removes the cgroups of a node's pods, sets their limits and reads their usage.
//
// The cgroup kubepods, below the root cgroup, limits all pods together. Guaranteed pods are directly in it, the others in its children
// burstable and besteffort: <root>/kubepods[/burstable|/besteffort]/pod<uid>. The runtime creates a cgroup for each container below its
// pod's.
//
// Both cgroup versions are supported. Version 2 has one hierarchy; in version 1 each controller has its own, and the same path is created
// in all of them. The files and values of limits are computed by pure functions (limits.go). Controllers that the host does not have are
// ignored and reported by Missing.
package cgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"skiff/internal/api/podspec"
)

const (
	podsCgroup = "kubepods"
	podPrefix  = "pod"
)

// qosCgroups are the cgroups of the QoS classes.
var qosCgroups = map[corev1.PodQOSClass]string{
	corev1.PodQOSGuaranteed: podsCgroup,
	corev1.PodQOSBurstable:  podsCgroup + "/burstable",
	corev1.PodQOSBestEffort: podsCgroup + "/besteffort",
}

// Settings configure the cgroups of pods.
type Settings struct {
	// Root is the parent of kubepods; "/" or empty is the root cgroup. Two nodes on one host need different ones.
	Root string
	// PodPids is the maximum number of processes of a pod; unlimited if not positive.
	PodPids int64
	// NoCPUQuota disables the enforcement of CPU limits. CPUPeriod is the CFS period; zero means 100 ms.
	NoCPUQuota bool
	CPUPeriod  time.Duration
	// MountInfo is the mountinfo file to find cgroups with; empty means /proc/self/mountinfo.
	MountInfo string
}

// Groups manages the cgroups of one node.
type Groups struct {
	settings Settings
	version  int
	// hierarchies has the mount point of each controller, the same for all in version 2. otherHierarchies have no controller in use; the
	// runtime creates cgroups there too.
	hierarchies      map[string]string
	otherHierarchies []string
	missing          []string
	pageSizes        []int64
	write            func(path, value string) error

	mu sync.Mutex
	// burstableShares is the cpu.shares last set for the burstable QoS class.
	burstableShares uint64
}

// controllers are the controllers in use.
var controllers = []string{"cpu", "cpuacct", "memory", "pids", "hugetlb"}

// New finds the host's cgroup hierarchies. It creates no cgroup.
func New(s Settings) (*Groups, error) {
	if s.MountInfo == "" {
		s.MountInfo = "/proc/self/mountinfo"
	}
	if s.CPUPeriod == 0 {
		s.CPUPeriod = 100 * time.Millisecond
	}
	s.Root = filepath.Join("/", s.Root)
	g := &Groups{settings: s, hierarchies: map[string]string{}, write: writeFile, pageSizes: HugePageSizes()}
	if err := g.findHierarchies(); err != nil {
		return nil, fmt.Errorf("find cgroup hierarchies: %w", err)
	}
	for _, c := range controllers {
		if _, ok := g.hierarchies[c]; !ok && (g.version == 1 || c != "cpuacct") {
			g.missing = append(g.missing, c)
		}
	}
	return g, nil
}

// Version is the cgroup version, 1 or 2.
func (g *Groups) Version() int { return g.version }

// Missing are the controllers that the host does not have; their limits are not enforced.
func (g *Groups) Missing() []string { return g.missing }

// findHierarchies finds the mount points of cgroups.
func (g *Groups) findHierarchies() error {
	file, err := os.Open(g.settings.MountInfo)
	if err != nil {
		return err
	}
	defer file.Close()
	mounts, err := mountinfo.GetMountsFromReader(file, mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return err
	}
	unified := ""
	for _, mount := range mounts {
		if mount.FSType == "cgroup2" {
			unified = cmp.Or(unified, mount.Mountpoint)
			continue
		}
		used := false
		for option := range strings.SplitSeq(mount.VFSOptions, ",") {
			if slices.Contains(controllers, option) {
				if old, ok := g.hierarchies[option]; !ok || len(mount.Mountpoint) < len(old) {
					g.hierarchies[option] = mount.Mountpoint
				}
				used = true
			}
		}
		if !used {
			g.otherHierarchies = append(g.otherHierarchies, mount.Mountpoint)
		}
	}
	switch {
	case len(g.hierarchies) > 0:
		g.version = 1
		if unified != "" {
			g.otherHierarchies = append(g.otherHierarchies, unified)
		}
	case unified != "":
		g.version = 2
		available, err := os.ReadFile(filepath.Join(unified, "cgroup.controllers"))
		if err != nil {
			return err
		}
		for _, c := range strings.Fields(string(available)) {
			if slices.Contains(controllers, c) {
				g.hierarchies[c] = unified
			}
		}
		if len(g.hierarchies) == 0 {
			g.otherHierarchies = []string{unified}
		}
	default:
		return errors.New("no cgroup filesystem is mounted")
	}
	return nil
}

// dirs are the directories of a cgroup: one in each hierarchy with a controller in use, or in all hierarchies.
func (g *Groups) dirs(group string, all bool) []string {
	var dirs []string
	for _, hierarchy := range g.hierarchies {
		dirs = append(dirs, filepath.Join(hierarchy, g.settings.Root, group))
	}
	if all {
		for _, hierarchy := range g.otherHierarchies {
			dirs = append(dirs, filepath.Join(hierarchy, g.settings.Root, group))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// Setup creates kubepods and the cgroups of the QoS classes. all limits all pods together: the node's allocatable resources if they are
// enforced, otherwise its capacity, because the default weight of a new cgroup would starve the pods. The resource "pid" limits processes.
func (g *Groups) Setup(all corev1.ResourceList) error {
	limits := NodeLimits(all)
	unlimited := Limits{HugePages: g.hugePageLimits(1 << 62)}
	minimal := unlimited
	minimal.Shares = new(uint64(minShares))
	for _, step := range []struct {
		group  string
		limits Limits
	}{
		{podsCgroup, limits}, {qosCgroups[corev1.PodQOSBurstable], unlimited}, {qosCgroups[corev1.PodQOSBestEffort], minimal},
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

// hugePageLimits returns the same limit for every huge page size of the host.
func (g *Groups) hugePageLimits(limit int64) map[int64]int64 {
	pages := map[int64]int64{}
	for _, size := range g.pageSizes {
		pages[size] = limit
	}
	return pages
}

// Path is the path of a pod's cgroup below the mount points, as the runtime expects it.
func (g *Groups) Path(pod *corev1.Pod) string {
	return filepath.Join(g.settings.Root, podCgroup(pod))
}

// podCgroup is the path of a pod's cgroup below Root.
func podCgroup(pod *corev1.Pod) string {
	return filepath.Join(qosCgroups[podspec.QOSClass(pod)], podPrefix+string(pod.UID))
}

// Ensure creates a pod's cgroup if it does not exist, and returns its path.
func (g *Groups) Ensure(pod *corev1.Pod) (string, error) {
	group := podCgroup(pod)
	if g.exists(group) {
		return g.Path(pod), nil
	}
	if err := g.create(group); err != nil {
		return "", err
	}
	return g.Path(pod), g.apply(group, g.podLimits(pod))
}

func (g *Groups) podLimits(pod *corev1.Pod) Limits { return PodLimits(pod, g.settings, g.pageSizes) }

func (g *Groups) exists(group string) bool {
	return !slices.ContainsFunc(g.dirs(group, false), func(dir string) bool {
		_, err := os.Stat(dir)
		return err != nil
	})
}

// Grow raises the limits of a pod's cgroup to those of the pod, and lowers none. A resize calls it before the containers are changed, and
// Update after: a container's limits never exceed its pod's.
func (g *Groups) Grow(pod *corev1.Pod) error {
	group := podCgroup(pod)
	current, err := g.read(group)
	if err != nil {
		return err
	}
	return g.apply(group, raised(current, g.podLimits(pod)))
}

// Update sets the limits of a pod's cgroup to those of the pod.
func (g *Groups) Update(pod *corev1.Pod) error { return g.apply(podCgroup(pod), g.podLimits(pod)) }

// classUpdateInterval is the time between two updates of the weight of the burstable QoS class.
const classUpdateInterval = 10 * time.Second

// RunClasses keeps the weight of the burstable QoS class at the sum of its pods' CPU requests until ctx is done. pods returns all active
// pods.
func (g *Groups) RunClasses(ctx context.Context, pods func() []*corev1.Pod, log *slog.Logger) error {
	ticker := time.NewTicker(classUpdateInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := g.updateClasses(pods()); err != nil {
			log.Warn("failed to set the CPU weight of burstable pods", "error", err)
		}
	}
}

// updateClasses sets the weight of the burstable QoS class to the sum of its pods' CPU requests. pods are all active pods.
func (g *Groups) updateClasses(pods []*corev1.Pod) error {
	var milli int64
	for _, pod := range pods {
		if podCgroup(pod) == filepath.Join(qosCgroups[corev1.PodQOSBurstable], podPrefix+string(pod.UID)) {
			requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
			milli += requests.Cpu().MilliValue()
		}
	}
	shares := uint64(SharesOf(milli))
	g.mu.Lock()
	defer g.mu.Unlock()
	if shares == g.burstableShares {
		return nil
	}
	if err := g.apply(qosCgroups[corev1.PodQOSBurstable], Limits{Shares: &shares}); err != nil {
		return err
	}
	g.burstableShares = shares
	return nil
}

// create creates a cgroup in all hierarchies.
func (g *Groups) create(group string) error {
	for _, dir := range g.dirs(group, false) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("create cgroup %s: %w", group, err)
		}
	}
	if g.version == 2 {
		return g.delegate(group)
	}
	return nil
}

// delegate enables the controllers in cgroup.subtree_control of a cgroup and its ancestors (version 2).
func (g *Groups) delegate(group string) error {
	var wanted []string
	for _, c := range slices.Sorted(maps.Keys(g.hierarchies)) {
		wanted = append(wanted, "+"+c)
	}
	if len(wanted) == 0 {
		return nil
	}
	hierarchy := g.hierarchies[strings.TrimPrefix(wanted[0], "+")]
	at := hierarchy
	for _, step := range append([]string{""}, strings.Split(strings.Trim(filepath.Join(g.settings.Root, group), "/"), "/")...) {
		at = filepath.Join(at, step)
		file := filepath.Join(at, "cgroup.subtree_control")
		content, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read cgroup.subtree_control: %w", err)
		}
		enabled := strings.Fields(string(content))
		var missing []string
		for _, c := range wanted {
			if !slices.Contains(enabled, c[1:]) {
				missing = append(missing, c)
			}
		}
		if len(missing) == 0 {
			continue
		}
		if err := g.write(file, strings.Join(missing, " ")); err != nil {
			return fmt.Errorf("enable controllers for cgroup %s: %w", group, err)
		}
	}
	return nil
}

// apply sets the limits of a cgroup.
func (g *Groups) apply(group string, l Limits) error {
	for _, s := range l.settings(g.version) {
		hierarchy, ok := g.hierarchies[s.controller]
		if !ok {
			continue
		}
		path := filepath.Join(hierarchy, g.settings.Root, group, s.file)
		if err := g.write(path, s.value); err != nil {
			if s.optional && errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return fmt.Errorf("set cgroup %s of %s to %s: %w", s.file, group, s.value, err)
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

// Pods lists the pods that have a cgroup in any hierarchy.
func (g *Groups) Pods() ([]types.UID, error) {
	found := map[types.UID]bool{}
	for _, class := range qosCgroups {
		for _, dir := range g.dirs(class, true) {
			entries, err := os.ReadDir(dir)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("list cgroups of pods: %w", err)
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
