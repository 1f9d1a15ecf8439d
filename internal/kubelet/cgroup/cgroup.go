// Package cgroup creates and removes the cgroups of a node's pods, sets their limits and reads their usage.
//
// The cgroup kubepods, below the root cgroup, limits all pods together. Guaranteed pods are directly in it, the others in its children
// burstable and besteffort: <root>/kubepods[/burstable|/besteffort]/pod<uid>. The runtime creates a cgroup for each container below its
// pod's. On hosts with systemd they are slices, which systemd creates (driver.go).
//
// Both cgroup versions are supported. Version 2 has one hierarchy; in version 1 each controller has its own, and the same path is created
// in all of them. The files and values of limits are computed by pure functions (limits.go). Controllers that the host does not have, or that
// cannot be delegated to the cgroups of pods (delegate.go), are ignored and reported by Missing.
package cgroup

import (
	"cmp"
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

	"github.com/moby/sys/mountinfo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/api/podspec"
	"skiff/internal/systemd"
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
	// HasExclusiveCPUs, if set, reports whether a pod has exclusive CPUs. The CPU time of such a pod is not limited.
	HasExclusiveCPUs func(uid types.UID) bool
	// Driver is Cgroupfs or Systemd; empty means Cgroupfs.
	Driver string
	// SystemdAddress is the D-Bus address of systemd; empty means that of the host.
	SystemdAddress string
	// TieredReservation protects the memory that pods request: that of guaranteed pods with memory.min, that of burstable ones with memory.low.
	TieredReservation bool
	// MemoryThrottlingFactor is the part of the memory between request and limit above which a pod with resources of its own is throttled; 0
	// means never. Both need version 2.
	MemoryThrottlingFactor float64
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
	systemd          *systemd.Manager // nil: the driver is Cgroupfs
	pageSizes        []int64
	write            func(path, value string) error

	mu sync.Mutex
	// classes are the limits last set for the cgroups of QoS classes.
	classes map[string]Limits
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
	g := &Groups{settings: s, hierarchies: map[string]string{}, write: writeFile, pageSizes: HugePageSizes(), classes: map[string]Limits{}}
	if s.Driver == Systemd {
		g.systemd = &systemd.Manager{Address: s.SystemdAddress}
	}
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
		dirs = append(dirs, filepath.Join(hierarchy, g.path(group)))
	}
	if all {
		for _, hierarchy := range g.otherHierarchies {
			dirs = append(dirs, filepath.Join(hierarchy, g.path(group)))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// Setup creates kubepods and the cgroups of the QoS classes. all limits all pods together: the node's allocatable resources if they are
// enforced, otherwise its capacity, because the default weight of a new cgroup would starve the pods. The resource "pid" limits processes.
func (g *Groups) Setup(all corev1.ResourceList) error {
	if err := g.delegateToPods(); err != nil {
		return err
	}
	limits := NodeLimits(all)
	unlimited := Limits{HugePages: g.hugePageLimits(1 << 62)}
	minimal := unlimited
	minimal.Shares = new(uint64(minShares))
	if g.version == 2 {
		// An earlier run may have protected memory.
		limits.MemoryMin, limits.MemoryLow, unlimited.MemoryLow = new(int64(0)), new(int64(0)), new(int64(0))
	}
	for _, step := range []struct {
		group  string
		limits Limits
	}{
		{podsCgroup, limits}, {qosCgroups[corev1.PodQOSBurstable], unlimited}, {qosCgroups[corev1.PodQOSBestEffort], minimal},
	} {
		if err := g.create(step.group, step.limits); err != nil {
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

// parent is a pod's cgroup as the runtime expects it: the path below the mount points, or the name of the slice.
func (g *Groups) parent(pod *corev1.Pod) string {
	if g.systemd != nil {
		return g.slice(podCgroup(pod))
	}
	return g.path(podCgroup(pod))
}

// podCgroup is the path of a pod's cgroup below Root.
func podCgroup(pod *corev1.Pod) string {
	return filepath.Join(qosCgroups[podspec.QOSClass(pod)], podPrefix+string(pod.UID))
}

// Ensure creates a pod's cgroup if it does not exist, and returns the cgroup parent for the runtime. The limits of a cgroup that exists are set again
// before the pod starts: a kubelet that was killed may have created it without. Those of a pod that runs are left to Grow and Update.
func (g *Groups) Ensure(pod *corev1.Pod, starts bool) (string, error) {
	group := podCgroup(pod)
	if !starts && g.exists(group) {
		return g.parent(pod), nil
	}
	return g.parent(pod), g.create(group, g.podLimits(pod))
}

func (g *Groups) podLimits(pod *corev1.Pod) Limits { return PodLimits(pod, g.settings, g.pageSizes) }

func (g *Groups) exists(group string) bool { return g.existsPath(g.path(group)) }

// existsPath reports whether there is a cgroup at a path below the mount points of all controllers in use.
func (g *Groups) existsPath(path string) bool {
	for _, hierarchy := range g.hierarchies {
		if _, err := os.Stat(filepath.Join(hierarchy, path)); err != nil {
			return false
		}
		if g.version == 2 {
			break // all controllers have the same
		}
	}
	return true
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

// create creates a cgroup with limits in all hierarchies.
func (g *Groups) create(group string, l Limits) error {
	if g.systemd != nil {
		if err := g.startSlice(group, l); err != nil {
			return fmt.Errorf("create cgroup %s: %w", group, err)
		}
	}
	for _, dir := range g.dirs(group, false) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("create cgroup %s: %w", group, err)
		}
	}
	if g.version == 2 {
		if err := g.delegate(group); err != nil {
			return err
		}
	}
	return g.writeLimits(group, l)
}

// apply sets the limits of a cgroup.
func (g *Groups) apply(group string, l Limits) error {
	if g.systemd != nil {
		if err := g.setProperties(group, l); err != nil {
			return fmt.Errorf("set limits of cgroup %s: %w", group, err)
		}
	}
	return g.writeLimits(group, l)
}

// writeLimits writes the limits of a cgroup to its files.
func (g *Groups) writeLimits(group string, l Limits) error { return g.writeLimitsAt(g.path(group), l) }

// writeLimitsAt writes the limits of the cgroup at a path below the mount points.
func (g *Groups) writeLimitsAt(group string, l Limits) error {
	for _, s := range l.settings(g.version) {
		hierarchy, ok := g.hierarchies[s.controller]
		if !ok {
			continue
		}
		path := filepath.Join(hierarchy, group, s.file)
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
				if uid, ok := g.uidOf(entry.Name()); ok && entry.IsDir() {
					found[uid] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}
