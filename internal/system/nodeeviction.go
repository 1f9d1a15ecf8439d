package system

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/api/podspec"
	"skiff/internal/kubelet"
	"skiff/internal/kubelet/cgroup"
	"skiff/internal/kubelet/evict"
	"skiff/internal/kubelet/node"
	"skiff/internal/kubelet/shutdown"
	"skiff/internal/kubelet/status"
)

// thresholds are the eviction thresholds of the configuration.
func (n *nodeComponents) thresholds() ([]evict.Threshold, error) {
	s := n.settings
	return evict.Parse(s.EvictionHard, s.EvictionSoft, s.EvictionSoftGracePeriod, s.EvictionMinimumReclaim, slices.Contains(s.EnforceNodeAllocatable, "pods"))
}

// buildEviction makes what evicts pods under memory, disk and PID pressure.
func (n *nodeComponents) buildEviction() error {
	thresholds, err := n.thresholds()
	if err != nil {
		return err
	}
	source := &evict.Observer{
		Root: n.root, ImageDir: n.root,
		Node:    func() (evict.Memory, error) { return memoryOf(n.cgroups.NodeStats()) },
		AllPods: func() (evict.Memory, error) { return memoryOf(n.cgroups.PodsStats()) },
		Pod:     func(pod *corev1.Pod) (evict.PodUsage, bool) { return podUsage(n.cgroups, pod) },
		Layers: func(ctx context.Context) (map[types.UID]map[string]evict.Disk, error) {
			stats, err := n.runtime.ListContainerStats(ctx)
			return evict.WritableLayers(stats), err
		},
	}
	n.evictor = evict.New(evict.Config{
		Thresholds: thresholds, PressureTransitionPeriod: n.settings.EvictionPressureTransitionPeriod.Duration,
		MaxPodGracePeriodSeconds: int64(n.settings.EvictionMaxPodGracePeriod), IsCritical: kubelet.IsCritical,
	}, evict.Dependencies{
		Actor: evictionActor{n}, Source: source, Events: n.recorder, NodeEvent: n.node.Event, Changed: n.node.Changed, Log: n.log.With("component", "eviction"),
	})
	n.runs["eviction"] = func(ctx context.Context) error { return n.runEviction(ctx, source) }
	n.runs["QoS cgroups"] = func(ctx context.Context) error { return n.runQOSCgroups(ctx) }
	return nil
}

// runEviction runs the eviction once the runtime reports the file system of images, which may differ from the kubelet's.
func (n *nodeComponents) runEviction(ctx context.Context, source *evict.Observer) error {
	for ctx.Err() == nil {
		mountpoint, err := n.runtime.ImageFilesystem(ctx)
		if err == nil && mountpoint != "" {
			source.ImageDir = mountpoint
			return n.evictor.Run(ctx)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}

// qosCgroupPeriod is the time between two updates of the CPU weight of burstable pods.
const qosCgroupPeriod = 10 * time.Second

// runQOSCgroups keeps the CPU weight of burstable pods at the sum of their requests until ctx is done.
func (n *nodeComponents) runQOSCgroups(ctx context.Context) error {
	ticker := time.NewTicker(qosCgroupPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := n.cgroups.UpdateClasses(n.kubelet.Active()); err != nil {
			n.log.Warn("failed to set the CPU weight of burstable pods", "error", err)
		}
	}
}

func memoryOf(s cgroup.Stats, err error) (evict.Memory, error) {
	return evict.Memory{WorkingSet: int64(s.Memory.WorkingSet), Limit: int64(s.Memory.Limit)}, err
}

// podUsage reads the memory and PID usage of a pod.
func podUsage(groups *cgroup.Groups, pod *corev1.Pod) (evict.PodUsage, bool) {
	whole, err := groups.PodStats(pod.UID)
	if err != nil {
		return evict.PodUsage{}, false
	}
	usage := evict.PodUsage{Memory: int64(whole.Memory.WorkingSet), Processes: int64(whole.Processes)}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		_, id, _ := strings.Cut(s.ContainerID, "://")
		if id == "" {
			continue
		}
		// A container that has ended uses no memory, but may use disk space.
		stats, _ := groups.ContainerStats(pod.UID, id)
		usage.Containers = append(usage.Containers, evict.ContainerUsage{Name: s.Name, Memory: int64(stats.Memory.WorkingSet)})
	}
	return usage, true
}

// pressure is the pressure conditions of the node.
func (n *nodeComponents) pressure() node.Pressure {
	var p node.Pressure
	for _, c := range n.evictor.Conditions() {
		p.Memory = p.Memory || c == corev1.NodeMemoryPressure
		p.Disk = p.Disk || c == corev1.NodeDiskPressure
		p.PID = p.PID || c == corev1.NodePIDPressure
	}
	return p
}

// rejectPod returns why a node under pressure or in shutdown does not admit a pod, or nil if it does.
func (n *nodeComponents) rejectPod(pod *corev1.Pod) *status.Reason {
	if ok, why := evict.Admits(n.evictor.Conditions(), pod, podspec.QOSClass(pod), kubelet.IsCritical(pod)); !ok {
		return &status.Reason{Reason: evict.Reason, Message: why}
	}
	if n.shutdown.ShuttingDown() {
		return &status.Reason{Reason: shutdown.RejectedReason, Message: shutdown.RejectedMessage}
	}
	return nil
}

// evictionActor carries out evictions.
type evictionActor struct {
	*nodeComponents
}

// Pods are the running pods with their latest status.
func (e evictionActor) Pods() []*corev1.Pod {
	statuses := map[types.UID]corev1.PodStatus{}
	for _, pod := range e.kubelet.Pods() {
		statuses[pod.UID] = pod.Status
	}
	var pods []*corev1.Pod
	for _, pod := range e.kubelet.Active() {
		copied := *pod
		copied.Status = statuses[pod.UID]
		pods = append(pods, &copied)
	}
	return pods
}

// Evict implements evict.Actor.
func (e evictionActor) Evict(_ context.Context, eviction evict.Eviction) error {
	why := status.Reason{Reason: evict.Reason, Message: eviction.Message}
	if !e.kubelet.Evict(eviction.Pod.UID, why, &eviction.Grace, eviction.Condition(time.Now())) {
		return fmt.Errorf("pod %s/%s is not running", eviction.Pod.Namespace, eviction.Pod.Name)
	}
	e.metrics.Evicted(eviction.Signal)
	return nil
}

// Removed implements evict.Actor.
func (e evictionActor) Removed(pod *corev1.Pod) bool {
	if slices.ContainsFunc(e.kubelet.Active(), func(p *corev1.Pod) bool { return p.UID == pod.UID }) {
		return false
	}
	_, err := e.cgroups.PodStats(pod.UID)
	return errors.Is(err, fs.ErrNotExist)
}

// DeleteUnusedContainers implements evict.Actor.
func (e evictionActor) DeleteUnusedContainers(ctx context.Context) error {
	e.kubelet.FreeContainers(ctx)
	return nil
}

// DeleteUnusedImages implements evict.Actor.
func (e evictionActor) DeleteUnusedImages(ctx context.Context) error {
	return e.collector.DeleteUnused(ctx)
}
