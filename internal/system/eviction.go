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
	"skiff/internal/client"
	"skiff/internal/kubelet"
	"skiff/internal/kubelet/cgroup"
	"skiff/internal/kubelet/evict"
	"skiff/internal/kubelet/images"
	"skiff/internal/kubelet/node"
	"skiff/internal/kubelet/shutdown"
	"skiff/internal/kubelet/status"
)

// classesEvery is how often the weight of the burstable pods is compared with what they request.
const classesEvery = 10 * time.Second

// thresholds are how little of memory, disk and processes may be left.
func (n *nodeParts) thresholds() ([]evict.Threshold, error) {
	s := n.settings
	return evict.Parse(s.EvictionHard, s.EvictionSoft, s.EvictionSoftGracePeriod, s.EvictionMinimumReclaim, slices.Contains(s.EnforceNodeAllocatable, "pods"))
}

// makeGuard makes what keeps the node from running out of memory, disk and processes.
func (n *nodeParts) makeGuard(groups *cgroup.Groups, collector *images.Collector, recorder client.EventRecorder) error {
	thresholds, err := n.thresholds()
	if err != nil {
		return err
	}
	observer := &evict.Observer{
		Root: n.root, ImageDir: n.root,
		Node: func() (evict.Memory, error) { return memoryOf(groups.NodeStats()) }, AllPods: func() (evict.Memory, error) { return memoryOf(groups.PodsStats()) },
		Pod: func(pod *corev1.Pod) (evict.PodUsage, bool) { return podUsage(groups, pod) },
		Layers: func(ctx context.Context) (map[types.UID]map[string]evict.Disk, error) {
			stats, err := n.runtime.ListContainerStats(ctx)
			return evict.WritableLayers(stats), err
		},
	}
	n.guard = evict.New(evict.Config{
		Thresholds: thresholds, PressureTransitionPeriod: n.settings.EvictionPressureTransitionPeriod.Duration, MaxPodGracePeriodSeconds: int64(n.settings.EvictionMaxPodGracePeriod), IsCritical: kubelet.IsCritical,
	}, evict.Dependencies{
		Actor: evictor{n, groups, collector}, Source: observer, Events: recorder, NodeEvent: n.node.Event, Changed: n.node.Changed, Log: n.log.With("part", "eviction"),
	})
	n.runs["eviction"] = func(ctx context.Context) error {
		// Images may have a disk of their own; until the runtime says so they are where everything is.
		for ctx.Err() == nil {
			mountpoint, err := n.runtime.ImageFilesystem(ctx)
			if err == nil && mountpoint != "" {
				observer.ImageDir = mountpoint
				return n.guard.Run(ctx)
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		return nil
	}
	n.runs["pod classes"] = func(ctx context.Context) error {
		ticker := time.NewTicker(classesEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
			if err := groups.UpdateClasses(n.kubelet.Active()); err != nil {
				n.log.Warn("the weight of burstable pods is not set", "error", err)
			}
		}
	}
	return nil
}

func memoryOf(s cgroup.Stats, err error) (evict.Memory, error) {
	return evict.Memory{WorkingSet: int64(s.Memory.WorkingSet), Limit: int64(s.Memory.Limit)}, err
}

// podUsage reads what a pod uses of memory and processes.
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
		// One that has ended uses no memory, but may have left something on the disk.
		stats, _ := groups.ContainerStats(pod.UID, id)
		usage.Containers = append(usage.Containers, evict.ContainerUsage{Name: s.Name, Memory: int64(stats.Memory.WorkingSet)})
	}
	return usage, true
}

// pressure is what the node tells the API it runs short of.
func (n *nodeParts) pressure() node.Pressure {
	var p node.Pressure
	for _, c := range n.guard.Conditions() {
		p.Memory = p.Memory || c == corev1.NodeMemoryPressure
		p.Disk = p.Disk || c == corev1.NodeDiskPressure
		p.PID = p.PID || c == corev1.NodePIDPressure
	}
	return p
}

// refuse says why a node under pressure, or one that is shutting down, does not take a pod, or is nil.
func (n *nodeParts) refuse(pod *corev1.Pod) *status.Reason {
	if ok, why := evict.Admits(n.guard.Conditions(), pod, podspec.QOSClass(pod), kubelet.IsCritical(pod)); !ok {
		return &status.Reason{Reason: evict.Reason, Message: why}
	}
	if n.shutdown.ShuttingDown() {
		return &status.Reason{Reason: shutdown.RejectedReason, Message: shutdown.RejectedMessage}
	}
	return nil
}

// evictor has the kubelet carry out what the guard decides.
type evictor struct {
	*nodeParts
	groups    *cgroup.Groups
	collector *images.Collector
}

// Pods are those that run, with the status said last.
func (e evictor) Pods() []*corev1.Pod {
	shown := map[types.UID]corev1.PodStatus{}
	for _, pod := range e.kubelet.Pods() {
		shown[pod.UID] = pod.Status
	}
	var pods []*corev1.Pod
	for _, pod := range e.kubelet.Active() {
		copied := *pod
		copied.Status = shown[pod.UID]
		pods = append(pods, &copied)
	}
	return pods
}

func (e evictor) Evict(_ context.Context, eviction evict.Eviction) error {
	why := status.Reason{Reason: evict.Reason, Message: eviction.Message}
	if !e.kubelet.Evict(eviction.Pod.UID, why, &eviction.Grace, eviction.Condition(time.Now())) {
		return fmt.Errorf("pod %s/%s is gone already", eviction.Pod.Namespace, eviction.Pod.Name)
	}
	e.metrics.Evicted(eviction.Signal)
	return nil
}

func (e evictor) Removed(pod *corev1.Pod) bool {
	if slices.ContainsFunc(e.kubelet.Active(), func(p *corev1.Pod) bool { return p.UID == pod.UID }) {
		return false
	}
	_, err := e.groups.PodStats(pod.UID)
	return errors.Is(err, fs.ErrNotExist)
}

func (e evictor) DeleteUnusedContainers(ctx context.Context) error {
	e.kubelet.FreeContainers(ctx)
	return nil
}

func (e evictor) DeleteUnusedImages(ctx context.Context) error { return e.collector.DeleteUnused(ctx) }
