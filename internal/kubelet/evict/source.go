package evict

import (
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Memory is what is used of how much.
type Memory struct{ WorkingSet, Limit int64 }

// Observer is the Source of a real node. Disks and processes it looks at itself; memory is told by whoever keeps the control groups.
type Observer struct {
	// Root is the kubelet's directory, with the pods' volumes and logs; ImageDirectory is the runtime's.
	Root, ImageDir string
	// Machine is the memory of the whole machine, Together that of all pods, with what they may have as its limit, 0 for none.
	Machine, Together func() (Memory, error)
	// Pod tells memory and processes of a pod and its containers, false for one nothing is known of.
	Pod func(pod *corev1.Pod) (PodUsage, bool)
	// Layers are what containers have written beside their images, by pod and container. It may be nil.
	Layers func(ctx context.Context) (map[types.UID]map[string]Disk, error)
}

// Usage looks at the node.
func (o *Observer) Usage(ctx context.Context, pods []*corev1.Pod, disks func(*corev1.Pod) bool) (Usage, error) {
	u, err := Observe(o.Root, o.ImageDir)
	if err != nil {
		return u, err
	}
	machine, err := o.Machine()
	if err != nil {
		return u, fmt.Errorf("look at the machine's memory: %w", err)
	}
	u.Signals[MemoryAvailable] = Observation{Available: machine.Limit - machine.WorkingSet, Capacity: machine.Limit}
	if together, err := o.Together(); err == nil && together.Limit > 0 {
		u.Signals[AllocatableMemoryAvailable] = Observation{Available: together.Limit - together.WorkingSet, Capacity: together.Limit}
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
					return u, fmt.Errorf("look at containers' layers: %w", err)
				}
			}
			o.addDisks(&usage, pod, layers[pod.UID])
		}
		u.Pods[pod.UID] = usage
	}
	return u, nil
}

// addDisks counts what a pod has on disks: its containers' layers and logs, and its volumes that lie on the node.
func (o *Observer) addDisks(usage *PodUsage, pod *corev1.Pod, layers map[string]Disk) {
	usage.Volumes = map[string]Disk{}
	logs := filepath.Join(o.Root, "logs", pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
	for i := range usage.Containers {
		c := &usage.Containers[i]
		c.Root, c.Logs = layers[c.Name], DiskOf(filepath.Join(logs, c.Name))
		usage.Disk = usage.Disk.plus(c.Root).plus(c.Logs)
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
		usage.Volumes[v.Name] = DiskOf(filepath.Join(o.Root, "pods", string(pod.UID), "volumes", plugin, v.Name))
		usage.Disk = usage.Disk.plus(usage.Volumes[v.Name])
	}
}

// LayersOf sorts what a runtime tells of its containers by pod and container.
func LayersOf(stats []*runtimeapi.ContainerStats) map[types.UID]map[string]Disk {
	layers := map[types.UID]map[string]Disk{}
	for _, s := range stats {
		labels := s.GetAttributes().GetLabels()
		uid, name := types.UID(labels["io.kubernetes.pod.uid"]), labels["io.kubernetes.container.name"]
		if layers[uid] == nil {
			layers[uid] = map[string]Disk{}
		}
		written := s.GetWritableLayer()
		layers[uid][name] = layers[uid][name].plus(Disk{Bytes: int64(written.GetUsedBytes().GetValue()), Inodes: int64(written.GetInodesUsed().GetValue())})
	}
	return layers
}
