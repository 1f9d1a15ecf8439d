package evict

import (
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kubelet/cri"
)

// Memory is a memory usage and its limit.
type Memory struct{ WorkingSet, Limit int64 }

// Observer is the Source of a real node. It measures disks and PIDs itself; its functions provide the memory statistics
// of cgroups.
type Observer struct {
	// Root is the kubelet's directory with the pods' volumes and logs. ImageDir is the runtime's.
	Root, ImageDir string
	// Node is the memory of the whole node. AllPods is that of all pods, limited to the node's allocatable memory; a
	// limit of 0 means none.
	Node, AllPods func() (Memory, error)
	// Pod returns the memory and processes of a pod and its containers, false if there are no statistics.
	Pod func(pod *corev1.Pod) (PodUsage, bool)
	// Layers returns the writable layers of containers, by pod and container name. It may be nil.
	Layers func(ctx context.Context) (map[types.UID]map[string]Disk, error)
}

// Usage measures the node and the given pods.
func (o *Observer) Usage(ctx context.Context, pods []*corev1.Pod, disks func(*corev1.Pod) bool) (Usage, error) {
	u, err := Observe(o.Root, o.ImageDir)
	if err != nil {
		return u, err
	}
	node, err := o.Node()
	if err != nil {
		return u, fmt.Errorf("read memory statistics of the node: %w", err)
	}
	u.Signals[MemoryAvailable] = Observation{Available: node.Limit - node.WorkingSet, Capacity: node.Limit}
	if all, err := o.AllPods(); err == nil && all.Limit > 0 {
		u.Signals[AllocatableMemoryAvailable] = Observation{Available: all.Limit - all.WorkingSet, Capacity: all.Limit}
	}
	var layers map[types.UID]map[string]Disk
	for _, pod := range pods {
		usage, ok := o.Pod(pod)
		if !ok {
			continue
		}
		if disks == nil || disks(pod) {
			if layers == nil && o.Layers != nil {
				if layers, err = o.Layers(ctx); err != nil {
					return u, fmt.Errorf("read writable layers: %w", err)
				}
			}
			o.addDisks(&usage, pod, layers[pod.UID])
		}
		u.Pods[pod.UID] = usage
	}
	return u, nil
}

// addDisks adds a pod's disk usage: its containers' writable layers and logs, and its volumes on the node's file system.
func (o *Observer) addDisks(usage *PodUsage, pod *corev1.Pod, layers map[string]Disk) {
	usage.Volumes = map[string]Disk{}
	logs := filepath.Join(o.Root, "logs", pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
	for i := range usage.Containers {
		c := &usage.Containers[i]
		c.Rootfs, c.Logs = layers[c.Name], DiskUsage(filepath.Join(logs, c.Name))
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
		usage.Volumes[v.Name] = DiskUsage(filepath.Join(o.Root, "pods", string(pod.UID), "volumes", plugin, v.Name))
		usage.Disk = usage.Disk.add(usage.Volumes[v.Name])
	}
}

// WritableLayers groups the runtime's statistics by pod and container name.
func WritableLayers(stats []cri.ContainerStats) map[types.UID]map[string]Disk {
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
