// Package usage measures what a node, its pods and their containers use, for the stats summary (`kubectl top` and
// autoscalers) and for metrics.
//
// Cumulative usage is read from cgroups on request. Usage rates are the difference of two samples. Run takes a sample
// every ten seconds while there are regular requests; the first request after a while waits a second for the second
// sample. Without requests nothing is sampled.
package usage

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"skiff/internal/kubelet/cgroup"
	"skiff/internal/kubelet/cri"
)

// Cgroups reads the statistics of cgroups.
type Cgroups interface {
	NodeStats() (cgroup.Stats, error)
	PodsStats() (cgroup.Stats, error)
	PodStats(uid types.UID) (cgroup.Stats, error)
	ContainerStats(uid types.UID, id string) (cgroup.Stats, error)
}

// Usage measures usage. Its fields must not change once it is in use.
type Usage struct {
	NodeName string
	Cgroups  Cgroups
	Runtime  interface {
		ListContainerStats(ctx context.Context) ([]cri.ContainerStats, error)
	}
	// Pods returns the pods of the node.
	Pods func() []*corev1.Pod
	// Volumes returns the usage of the volumes of pods, by UID; nil: volumes are not measured.
	Volumes func(ctx context.Context, pods []*corev1.Pod) map[types.UID][]statsapi.VolumeStats
	// Root is a directory on the node's root file system.
	Root string
	// Started is when the node started.
	Started time.Time

	mu                    sync.Mutex
	rates                 map[string]*cpuRateSample // by cgroup
	lastQuery, lastSample time.Time                 // when the last request was served, and the last sample taken
}

const (
	// sampleInterval is how often Run takes a sample, sampleAfterQuery for how long after the last request.
	sampleInterval   = 10 * time.Second
	sampleAfterQuery = 5 * time.Minute
)

// cpuRateSample is the CPU usage rate between the last two samples.
type cpuRateSample struct {
	usage     uint64
	at        time.Time
	nanoCores *uint64 // nil before the second sample
	current   bool    // whether it is part of the last sample
}

// Run takes samples until ctx is done.
func (u *Usage) Run(ctx context.Context) error {
	ticker := time.NewTicker(sampleInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		u.mu.Lock()
		queried := !u.lastQuery.IsZero() && time.Since(u.lastQuery) < sampleAfterQuery
		u.mu.Unlock()
		if queried {
			u.sample(ctx)
		}
	}
}

// sample takes a sample of all cgroups, and drops those that no longer exist.
func (u *Usage) sample(ctx context.Context) {
	u.mu.Lock()
	u.lastSample = time.Now()
	for _, r := range u.rates {
		r.current = false
	}
	u.mu.Unlock()
	_, _ = u.read(ctx, true) // the next request reports the error
	u.mu.Lock()
	defer u.mu.Unlock()
	for name, r := range u.rates {
		if !r.current {
			delete(u.rates, name)
		}
	}
}

// refresh makes sure that there is a recent sample to compare with.
func (u *Usage) refresh(ctx context.Context) {
	u.mu.Lock()
	u.lastQuery = time.Now()
	stale := time.Since(u.lastSample) > 2*sampleInterval
	u.mu.Unlock()
	if !stale {
		return
	}
	u.sample(ctx)
	select {
	case <-ctx.Done():
	case <-time.After(minRatePeriod):
	}
}

// minRatePeriod is the minimum time between two samples for a rate.
const minRatePeriod = time.Second

// cpuRate stores a sample and returns the CPU usage rate.
func (u *Usage) cpuRate(name string, s cgroup.Stats) *uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.rates == nil {
		u.rates = map[string]*cpuRateSample{}
	}
	r := u.rates[name]
	if r == nil {
		u.rates[name] = &cpuRateSample{usage: s.CPU.Usage, at: s.Time, current: true}
		return nil
	}
	r.current = true
	if elapsed := s.Time.Sub(r.at); elapsed >= minRatePeriod && s.CPU.Usage >= r.usage {
		nanoCores := uint64(float64(s.CPU.Usage-r.usage) / elapsed.Seconds())
		r.usage, r.at, r.nanoCores = s.CPU.Usage, s.Time, &nanoCores
	}
	return r.nanoCores
}

// Summary returns the usage of everything. CPU and memory alone are cheap; disk usage is queried from the runtime.
func (u *Usage) Summary(ctx context.Context, onlyCPUAndMemory bool) (*statsapi.Summary, error) {
	u.refresh(ctx)
	return u.read(ctx, onlyCPUAndMemory)
}

func (u *Usage) read(ctx context.Context, onlyCPUAndMemory bool) (*statsapi.Summary, error) {
	summary := &statsapi.Summary{Node: statsapi.NodeStats{NodeName: u.NodeName, StartTime: metav1.NewTime(u.Started)}, Pods: []statsapi.PodStats{}}
	node, err := u.Cgroups.NodeStats()
	if err != nil {
		return nil, fmt.Errorf("read node statistics: %w", err)
	}
	summary.Node.CPU, summary.Node.Memory, summary.Node.IO = u.cpu("node", node), memory(node), ioStats(node)
	if pods, err := u.Cgroups.PodsStats(); err == nil {
		summary.Node.SystemContainers = []statsapi.ContainerStats{{
			Name: statsapi.SystemContainerPods, StartTime: metav1.NewTime(u.Started), CPU: u.cpu("pods", pods), Memory: memory(pods), IO: ioStats(pods),
		}}
	}
	layers := map[string]*cri.FilesystemUsage{}
	if !onlyCPUAndMemory {
		summary.Node.Fs = fsStats(u.Root)
		if layers, err = u.layers(ctx); err != nil {
			return nil, err
		}
	}
	pods := u.Pods()
	var volumes map[types.UID][]statsapi.VolumeStats
	if !onlyCPUAndMemory && u.Volumes != nil {
		volumes = u.Volumes(ctx, pods)
	}
	for _, pod := range pods {
		if stats, ok := u.pod(pod, layers); ok {
			stats.VolumeStats = volumes[pod.UID]
			summary.Pods = append(summary.Pods, stats)
		}
	}
	return summary, nil
}

// layers returns the writable layers of containers by container ID.
func (u *Usage) layers(ctx context.Context) (map[string]*cri.FilesystemUsage, error) {
	containers, err := u.Runtime.ListContainerStats(ctx)
	if err != nil {
		return nil, fmt.Errorf("list container statistics: %w", err)
	}
	layers := map[string]*cri.FilesystemUsage{}
	for _, c := range containers {
		layers[c.ID] = c.WritableLayer
	}
	return layers, nil
}

// pod returns the usage of a pod that has a cgroup, and of its running containers.
func (u *Usage) pod(pod *corev1.Pod, layers map[string]*cri.FilesystemUsage) (statsapi.PodStats, bool) {
	group, err := u.Cgroups.PodStats(pod.UID)
	if err != nil {
		return statsapi.PodStats{}, false // not running
	}
	stats := statsapi.PodStats{
		PodRef: statsapi.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)},
		CPU:    u.cpu(string(pod.UID), group), Memory: memory(group), IO: ioStats(group), Containers: []statsapi.ContainerStats{},
		ProcessStats: &statsapi.ProcessStats{ProcessCount: &group.Processes},
	}
	if pod.Status.StartTime != nil {
		stats.StartTime = *pod.Status.StartTime
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			if c, ok := u.container(pod, &list[i], layers); ok {
				stats.Containers = append(stats.Containers, c)
			}
		}
	}
	return stats, true
}

func (u *Usage) container(pod *corev1.Pod, status *corev1.ContainerStatus, layers map[string]*cri.FilesystemUsage) (statsapi.ContainerStats, bool) {
	if status.State.Running == nil {
		return statsapi.ContainerStats{}, false
	}
	id := containerID(status.ContainerID)
	group, err := u.Cgroups.ContainerStats(pod.UID, id)
	if err != nil {
		return statsapi.ContainerStats{}, false // it has exited meanwhile
	}
	stats := statsapi.ContainerStats{Name: status.Name, StartTime: status.State.Running.StartedAt, CPU: u.cpu(id, group), Memory: memory(group), IO: ioStats(group)}
	if layer := layers[id]; layer != nil {
		stats.Rootfs = &statsapi.FsStats{
			Time: metav1.NewTime(layer.Time), UsedBytes: &layer.UsedBytes, InodesUsed: &layer.InodesUsed,
		}
	}
	return stats, true
}

func (u *Usage) cpu(name string, s cgroup.Stats) *statsapi.CPUStats {
	return &statsapi.CPUStats{
		Time: metav1.NewTime(s.Time), UsageCoreNanoSeconds: &s.CPU.Usage, UsageNanoCores: u.cpuRate(name, s), PSI: psiStats(s.Pressures.CPU),
	}
}

// ioStats is the pressure on I/O; nil on hosts without pressure stall information.
func ioStats(s cgroup.Stats) *statsapi.IOStats {
	if s.Pressures.IO == nil {
		return nil
	}
	return &statsapi.IOStats{Time: metav1.NewTime(s.Time), PSI: psiStats(s.Pressures.IO)}
}

// psiStats is the pressure on a resource. Totals are in microseconds, as upstream reports them.
func psiStats(p *cgroup.Pressure) *statsapi.PSIStats {
	if p == nil {
		return nil
	}
	data := func(s cgroup.Stall) statsapi.PSIData {
		return statsapi.PSIData{Total: s.Total, Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
	}
	return &statsapi.PSIStats{Full: data(p.Full), Some: data(p.Some)}
}

func memory(s cgroup.Stats) *statsapi.MemoryStats {
	m := &statsapi.MemoryStats{
		Time: metav1.NewTime(s.Time), UsageBytes: &s.Memory.Usage, WorkingSetBytes: &s.Memory.WorkingSet, RSSBytes: &s.Memory.RSS,
		PageFaults: &s.Memory.PageFaults, MajorPageFaults: &s.Memory.MajorPageFaults, PSI: psiStats(s.Pressures.Memory),
	}
	if s.Memory.Limit > 0 {
		available := uint64(0)
		if s.Memory.Limit > s.Memory.WorkingSet {
			available = s.Memory.Limit - s.Memory.WorkingSet
		}
		m.AvailableBytes = &available
	}
	return m
}

// fsStats returns the usage of a directory's file system; nil if that fails.
func fsStats(dir string) *statsapi.FsStats {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return nil
	}
	block := uint64(s.Bsize)
	capacity, available, used := s.Blocks*block, s.Bavail*block, (s.Blocks-s.Bfree)*block
	inodes, free, inodesUsed := s.Files, s.Ffree, s.Files-s.Ffree
	return &statsapi.FsStats{
		Time: metav1.Now(), CapacityBytes: &capacity, AvailableBytes: &available, UsedBytes: &used, Inodes: &inodes, InodesFree: &free, InodesUsed: &inodesUsed,
	}
}
