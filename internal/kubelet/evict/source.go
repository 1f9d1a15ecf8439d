package evict

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kubelet/cgroup"
	"skiff/internal/kubelet/cri"
)

// Cgroups reads the usage of cgroups. *cgroup.Groups implements it.
type Cgroups interface {
	// NodeStats returns the usage of the whole node.
	NodeStats() (cgroup.Stats, error)
	// PodsStats returns the usage of all pods, limited to the node's allocatable memory; a limit of 0 means none.
	PodsStats() (cgroup.Stats, error)
	PodStats(uid types.UID) (cgroup.Stats, error)
	ContainerStats(uid types.UID, container string) (cgroup.Stats, error)
}

// Runtime reports the disk usage of containers and images. *cri.Runtime implements it.
type Runtime interface {
	// ImageFilesystem returns the mount point of images and writable layers.
	ImageFilesystem(ctx context.Context) (string, error)
	ListContainerStats(ctx context.Context) ([]cri.ContainerStats, error)
}

// Observer is the Source of a real node. It measures disks and PIDs itself, and reads memory from cgroups.
type Observer struct {
	// Root is the kubelet's directory with the pods' volumes, PodLogsDir the directory of their logs.
	Root, PodLogsDir string

	Cgroups Cgroups
	Runtime Runtime

	// imageDir is the runtime's directory, which may be on another file system than Root.
	imageDir string
}

// Prepare finds the file system of images.
func (o *Observer) Prepare(ctx context.Context) error {
	mountpoint, err := o.Runtime.ImageFilesystem(ctx)
	if err != nil {
		return fmt.Errorf("find the file system of images: %w", err)
	}
	if mountpoint == "" {
		return errors.New("the runtime reports no file system of images")
	}
	o.imageDir = mountpoint
	return nil
}

// Usage measures the node and the given pods.
func (o *Observer) Usage(ctx context.Context, pods []*corev1.Pod, disks func(*corev1.Pod) bool) (Usage, error) {
	u, err := Observe(o.Root, o.imageDir)
	if err != nil {
		return u, err
	}
	node, err := o.Cgroups.NodeStats()
	if err != nil {
		return u, fmt.Errorf("read memory statistics of the node: %w", err)
	}
	u.Signals[MemoryAvailable] = availableMemory(node)
	if all, err := o.Cgroups.PodsStats(); err == nil && all.Memory.Limit > 0 {
		u.Signals[AllocatableMemoryAvailable] = availableMemory(all)
	}
	var layers map[types.UID]map[string]Disk
	for _, pod := range pods {
		usage, ok := o.podUsage(pod)
		if !ok {
			continue
		}
		if disks == nil || disks(pod) {
			if layers == nil {
				stats, err := o.Runtime.ListContainerStats(ctx)
				if err != nil {
					return u, fmt.Errorf("read writable layers: %w", err)
				}
				layers = writableLayers(stats)
			}
			o.addDisks(ctx, &usage, pod, layers[pod.UID])
		}
		u.Pods[pod.UID] = usage
	}
	return u, nil
}

func availableMemory(s cgroup.Stats) Observation {
	limit := int64(s.Memory.Limit)
	return Observation{Available: limit - int64(s.Memory.WorkingSet), Capacity: limit}
}

// podUsage returns the memory and processes of a pod and its containers, false if there are no statistics.
func (o *Observer) podUsage(pod *corev1.Pod) (PodUsage, bool) {
	whole, err := o.Cgroups.PodStats(pod.UID)
	if err != nil {
		return PodUsage{}, false
	}
	usage := PodUsage{Memory: int64(whole.Memory.WorkingSet), Processes: int64(whole.Processes)}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		_, id, _ := strings.Cut(s.ContainerID, "://")
		if id == "" {
			continue
		}
		// A container that has ended uses no memory, but may use disk space.
		stats, _ := o.Cgroups.ContainerStats(pod.UID, id)
		usage.Containers = append(usage.Containers, ContainerUsage{Name: s.Name, Memory: int64(stats.Memory.WorkingSet)})
	}
	return usage, true
}

// addDisks adds a pod's disk usage: its containers' writable layers and logs, and its volumes on the node's file system.
func (o *Observer) addDisks(ctx context.Context, usage *PodUsage, pod *corev1.Pod, layers map[string]Disk) {
	usage.Volumes = map[string]Disk{}
	logs := filepath.Join(o.PodLogsDir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
	for i := range usage.Containers {
		c := &usage.Containers[i]
		c.Rootfs, c.Logs = layers[c.Name], DiskUsage(ctx, filepath.Join(logs, c.Name))
		usage.Disk = usage.Disk.add(c.Rootfs).add(c.Logs)
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		plugin := ""
		switch {
		case v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumDefault:
			plugin = "kubernetes.io~empty-dir"
		case v.ConfigMap != nil:
			plugin = "kubernetes.io~configmap"
		default:
			continue
		}
		usage.Volumes[v.Name] = DiskUsage(ctx, filepath.Join(o.Root, "pods", string(pod.UID), "volumes", plugin, v.Name))
		usage.Disk = usage.Disk.add(usage.Volumes[v.Name])
	}
}

// writableLayers groups the runtime's statistics by pod and container name.
func writableLayers(stats []cri.ContainerStats) map[types.UID]map[string]Disk {
	layers := map[types.UID]map[string]Disk{}
	for _, s := range stats {
		if layers[s.PodUID] == nil {
			layers[s.PodUID] = map[string]Disk{}
		}
		var written Disk
		if layer := s.WritableLayer; layer != nil {
			written = Disk{Bytes: int64(layer.UsedBytes), Inodes: int64(layer.InodesUsed)}
		}
		layers[s.PodUID][s.ContainerName] = layers[s.PodUID][s.ContainerName].add(written)
	}
	return layers
}
