package cgroup

import (
	"cmp"
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/systemd"
)

// The cgroup drivers: who creates the cgroups of pods, and how they are named. Kubelet and container runtime must use the same.
const (
	// Cgroupfs creates them in the file system: /kubepods/burstable/pod<uid>.
	Cgroupfs = "cgroupfs"
	// Systemd has systemd create them as slices: /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice.
	Systemd = "systemd"
)

const (
	sliceSuffix = ".slice"
	// unitTimeout bounds the time in which systemd starts or stops a slice.
	unitTimeout = 2 * time.Minute
	// defaultPeriod is the CFS period in microseconds that systemd uses unless it is given another one.
	defaultPeriod = 100_000
	// quotaStep is the precision of systemd's CPU quota, one percent of a CPU, in microseconds per second.
	quotaStep = 10_000
)

// DefaultDriver is the driver for a container runtime that can use either: systemd's where systemd manages the cgroups of version 2. A second
// program that creates and limits cgroups beside systemd would have its changes reverted.
func DefaultDriver() string {
	if systemd.IsRunning() && IsUnified() {
		return Systemd
	}
	return Cgroupfs
}

// IsUnified reports whether the host has cgroups of version 2 only.
func IsUnified() bool {
	var fs unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
}

// path is the path of a cgroup below the mount points.
func (g *Groups) path(group string) string {
	path := filepath.Join(g.settings.Root, group)
	if g.systemd == nil {
		return path
	}
	return slicePath(path)
}

// slicePath is the path of a slice. systemd nests slices by their names: a-b.slice is in a.slice. A hyphen within a name is escaped.
func slicePath(path string) string {
	slices, name := "/", ""
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if part == "" {
			continue
		}
		name += strings.ReplaceAll(part, "-", "_")
		slices = filepath.Join(slices, name+sliceSuffix)
		name += "-"
	}
	return slices
}

// slice is the name of a cgroup's unit.
func (g *Groups) slice(group string) string { return filepath.Base(g.path(group)) }

// uidOf returns the UID of the pod whose cgroup has a name.
func (g *Groups) uidOf(name string) (types.UID, bool) {
	if g.systemd != nil {
		name = strings.TrimSuffix(name, sliceSuffix)
		name = strings.ReplaceAll(name[strings.LastIndexByte(name, '-')+1:], "_", "-")
	}
	uid, ok := strings.CutPrefix(name, podPrefix)
	return types.UID(uid), ok && uid != ""
}

// containerNames are the names that container runtimes give to the cgroup of a container, by driver and runtime.
func containerNames(id string) []string {
	return []string{id, "cri-containerd-" + id + ".scope", "crio-" + id + ".scope", "crio-" + id, "docker-" + id + ".scope"}
}

// startSlice has systemd create a cgroup with limits. One that exists gets the limits.
func (g *Groups) startSlice(group string, l Limits) error {
	ctx, cancel := context.WithTimeout(context.Background(), unitTimeout)
	defer cancel()
	parent := g.slice(filepath.Dir(group))
	if group == podsCgroup && g.settings.Root == "/" {
		parent = "-" + sliceSuffix
	}
	properties := []systemd.Property{
		{Name: "Description", Value: "Kubernetes pods"}, {Name: "Wants", Value: []string{parent}}, {Name: "DefaultDependencies", Value: false},
		{Name: "MemoryAccounting", Value: true}, {Name: "CPUAccounting", Value: true}, {Name: "IOAccounting", Value: true}, {Name: "TasksAccounting", Value: true},
	}
	err := g.systemd.StartTransient(ctx, g.slice(group), append(properties, l.properties(g.version)...))
	if errors.Is(err, systemd.ErrUnitExists) {
		return g.setProperties(group, l)
	}
	return err
}

// setProperties changes the limits of a slice. Without that systemd would restore the old ones when it reloads its configuration.
func (g *Groups) setProperties(group string, l Limits) error {
	properties := l.properties(g.version)
	if len(properties) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), unitTimeout)
	defer cancel()
	return g.systemd.SetProperties(ctx, g.slice(group), properties)
}

// stopSlice has systemd remove a cgroup.
func (g *Groups) stopSlice(group string) error {
	ctx, cancel := context.WithTimeout(context.Background(), unitTimeout)
	defer cancel()
	return g.systemd.Stop(ctx, g.slice(group))
}

// properties are the limits that systemd knows. It has none for huge pages.
func (l Limits) properties(version int) []systemd.Property {
	var all []systemd.Property
	add := func(name string, value uint64) { all = append(all, systemd.Property{Name: name, Value: value}) }
	limit := func(name string, value *int64) {
		switch {
		case value == nil:
		case *value < 0:
			add(name, math.MaxUint64)
		default:
			add(name, uint64(*value))
		}
	}
	shares, memory := "CPUWeight", "MemoryMax"
	if version == 1 {
		shares, memory = "CPUShares", "MemoryLimit"
	}
	if l.Shares != nil {
		value := *l.Shares
		if version == 2 {
			value = weightOf(value)
		}
		add(shares, value)
	}
	if l.Quota != nil {
		if l.Period != defaultPeriod {
			add("CPUQuotaPeriodUSec", uint64(l.Period))
		}
		add("CPUQuotaPerSecUSec", quotaPerSecond(*l.Quota, l.Period))
	}
	limit(memory, l.Memory)
	if version == 2 {
		limit("MemoryMin", l.MemoryMin)
		limit("MemoryLow", l.MemoryLow)
		limit("MemoryHigh", l.MemoryHigh)
	}
	if l.Pids != nil {
		// systemd does not accept zero.
		limit("TasksMax", new(cmp.Or(*l.Pids, 1)))
	}
	return all
}

// quotaPerSecond converts a CFS quota to microseconds per second, rounded up to systemd's precision: the containers of a pod may use what the
// pod is given.
func quotaPerSecond(quota, period int64) uint64 {
	if quota < 0 {
		return math.MaxUint64
	}
	perSecond := uint64(quota) * uint64(time.Second/time.Microsecond) / uint64(period)
	return (perSecond + quotaStep - 1) / quotaStep * quotaStep
}
