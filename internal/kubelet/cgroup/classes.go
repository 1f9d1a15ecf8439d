package cgroup

import (
	"context"
	"log/slog"
	"path/filepath"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// classUpdateInterval is the time between two updates of the QoS classes.
const classUpdateInterval = 10 * time.Second

// RunClasses keeps the cgroups of QoS classes at the sum of what their pods request until ctx is done. pods returns all active pods.
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
			log.Warn("failed to update the cgroups of QoS classes", "error", err)
		}
	}
}

// updateClasses sets the limits of the QoS classes that follow from their pods. pods are all active pods. Unchanged limits are not written.
func (g *Groups) updateClasses(pods []*corev1.Pod) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for group, limits := range g.classLimits(pods) {
		if reflect.DeepEqual(g.classes[group], limits) {
			continue
		}
		if err := g.apply(group, limits); err != nil {
			return err
		}
		g.classes[group] = limits
	}
	return nil
}

// classLimits are the limits that follow from the pods: the CPU weight of burstable pods, and the protected memory.
func (g *Groups) classLimits(pods []*corev1.Pod) map[string]Limits {
	burstable := qosCgroups[corev1.PodQOSBurstable]
	var milliCPU int64
	memory := map[string]int64{} // by cgroup of the class
	for _, pod := range pods {
		class := filepath.Dir(podCgroup(pod))
		requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
		memory[class] += requests.Memory().Value()
		if class == burstable {
			milliCPU += requests.Cpu().MilliValue()
		}
	}
	limits := map[string]Limits{burstable: {Shares: new(uint64(SharesOf(milliCPU)))}}
	if g.settings.TieredReservation && g.version == 2 {
		low := memory[burstable]
		limits[burstable] = Limits{Shares: limits[burstable].Shares, MemoryLow: &low}
		// The kernel protects a cgroup no more than its ancestors.
		limits[podsCgroup] = Limits{MemoryMin: new(memory[podsCgroup] + low), MemoryLow: &low}
	}
	return limits
}
