package system

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/config"
	"skiff/internal/kubelet/evict"
	"skiff/internal/kubelet/node"
	"skiff/internal/kubelet/shutdown"
	"skiff/internal/kubelet/status"
)

// thresholds are the eviction thresholds of the configuration.
func (n *nodeComponents) thresholds() ([]evict.Threshold, error) {
	s := n.settings
	return evict.Parse(s.EvictionHard, s.EvictionSoft, s.EvictionSoftGracePeriod, s.EvictionMinimumReclaim, slices.Contains(s.EnforceNodeAllocatable, config.EnforcePods))
}

// buildEviction makes what evicts pods under memory, disk and PID pressure.
func (n *nodeComponents) buildEviction() error {
	thresholds, err := n.thresholds()
	if err != nil {
		return err
	}
	n.evictor = evict.New(evict.Config{
		Thresholds: thresholds, PressureTransitionPeriod: n.settings.EvictionPressureTransitionPeriod.Duration,
		MaxPodGracePeriodSeconds: int64(n.settings.EvictionMaxPodGracePeriod),
	}, evict.Dependencies{
		Actor: evictionActor{n}, Source: &evict.Observer{Root: n.root, PodLogsDir: n.podLogsDir(), Cgroups: n.cgroups, Runtime: n.runtime},
		Events: n.recorder, NodeEvent: n.node.Event, Changed: n.node.Changed, Log: n.log.With("component", "eviction"),
	})
	n.runs["eviction"] = n.evictor.Run
	return nil
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
	if ok, why := evict.Admits(n.evictor.Conditions(), pod); !ok {
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
