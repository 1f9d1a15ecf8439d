package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/container"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/probe"
	"skiff/internal/kubelet/status"
)

// killPod stops all containers of a pod concurrently, sidecars after the regular containers, and then its sandboxes. pod is nil for an
// orphaned pod. grace, if set, overrides the pod's grace period.
func (k *Kubelet) killPod(ctx context.Context, pod *corev1.Pod, runtime *cri.Pod, grace *int64) error {
	running := runtime.Running()
	order := newStopOrder(pod, running)
	errs := make([]error, len(running))
	var stopping sync.WaitGroup
	for i, c := range running {
		stopping.Go(func() {
			errs[i] = k.killContainer(ctx, pod, runtime, containerStop{container: c, grace: grace, order: order})
		})
	}
	stopping.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, s := range runtime.Sandboxes {
		if err := k.Runtime.StopPodSandbox(ctx, s.ID); err != nil && !cri.NotFound(err) {
			errs = append(errs, fmt.Errorf("stop sandbox %s: %w", s.ID, err))
		}
	}
	return errors.Join(errs...)
}

// containerStop is a container to stop.
type containerStop struct {
	container *cri.Container
	// message is that of the event; empty for a default.
	message string
	reason  killReason
	// grace, if set, overrides the container's grace period in seconds.
	grace *int64
	// order, if set, makes the container wait for others to stop.
	order *stopOrder
}

// killContainer stops one container. Its preStop hook, waiting for other containers and its stop signal all share its grace period.
func (k *Kubelet) killContainer(ctx context.Context, pod *corev1.Pod, runtime *cri.Pod, stop containerStop) error {
	c := stop.container
	defer stop.order.markStopped(c.Name)
	if pod == nil {
		pod = podFromContainer(c)
	}
	spec := specOf(pod, c.Name)
	if spec == nil {
		spec = &podFromContainer(c).Spec.Containers[0]
	}
	grace := graceOf(pod, spec, stop.reason)
	if stop.grace != nil {
		grace = *stop.grace
	}
	grace = min(grace, maxKillGrace)
	message := stop.message
	if message == "" {
		message = fmt.Sprintf("Stopping container %s", c.Name)
	}
	if k.markKilling(c.ID) {
		k.containerEvent(pod, spec, corev1.EventTypeNormal, "Killing", message)
	}
	began := time.Now()
	if spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil && grace > 0 && c.State == cri.Running {
		k.preStop(ctx, hookTarget{pod: pod, ips: runtime.IPs, container: spec, id: c.ID}, time.Duration(grace)*time.Second)
	}
	left := time.Duration(grace)*time.Second - time.Since(began)
	stop.order.wait(ctx, c.Name, left)
	seconds := max(grace-int64(time.Since(began).Seconds()), minKillGrace)
	if err := k.Runtime.StopContainer(ctx, c.ID, seconds); err != nil && !cri.NotFound(err) {
		return fmt.Errorf("stop container %s: %w", c.Name, err)
	}
	return nil
}

// minKillGrace and maxKillGrace are the shortest and the longest grace period of a container in seconds. The API has no maximum; a longer one would
// overflow the durations of the kubelet and of the runtime.
const minKillGrace, maxKillGrace = 2, 1<<31 - 1

// hookTarget is the container that a lifecycle hook runs for.
type hookTarget struct {
	pod       *corev1.Pod
	ips       []string
	container *corev1.Container
	id        string
}

// preStop runs a container's preStop hook.
func (k *Kubelet) preStop(ctx context.Context, t hookTarget, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := k.hook(ctx, t, t.container.Lifecycle.PreStop); err != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		k.containerEvent(t.pod, t.container, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
}

// hook runs a lifecycle hook. message describes a failure, for the container's status.
func (k *Kubelet) hook(ctx context.Context, t hookTarget, h *corev1.LifecycleHandler) (message string, err error) {
	pod, c, ips := t.pod, t.container, t.ips
	where := fmt.Sprintf("for Container %q in Pod %q failed - error", c.Name, describe(pod))
	switch {
	case h.Exec != nil:
		output, err := k.exec(ctx, t.id, h.Exec.Command, 0)
		if err != nil {
			return fmt.Sprintf("Exec lifecycle hook (%v) %s: %v, message: %q", h.Exec.Command, where, err, output), err
		}
	case h.HTTPGet != nil:
		ip := ""
		if pod.Spec.HostNetwork {
			ips = k.HostIPs()
		}
		if sorted := status.SortIPs(ips, k.HostIPs()); len(sorted) > 0 {
			ip = sorted[0]
		}
		fellBack, err := probe.Hook(ctx, h.HTTPGet, c, ip)
		if err != nil {
			return fmt.Sprintf("HTTP lifecycle hook (%s) %s: %v", h.HTTPGet.Path, where, err), err
		}
		if fellBack {
			k.podEvent(pod, corev1.EventTypeWarning, "LifecycleHTTPFallback", "request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", ip)
		}
	case h.Sleep != nil:
		select {
		case <-time.After(time.Duration(h.Sleep.Seconds) * time.Second):
		case <-ctx.Done():
			err := errors.New("container terminated before sleep hook finished")
			return fmt.Sprintf("Sleep lifecycle hook (%d) %s: %v", h.Sleep.Seconds, where, err), err
		}
	default:
		err := fmt.Errorf("invalid handler: %v", h)
		return fmt.Sprintf("Cannot run handler: %v", err), err
	}
	return "", nil
}

// graceOf is the grace period of a container in seconds.
func graceOf(pod *corev1.Pod, c *corev1.Container, reason killReason) int64 {
	if pod.DeletionGracePeriodSeconds != nil {
		return *pod.DeletionGracePeriodSeconds
	}
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		return minKillGrace
	}
	var p *corev1.Probe
	switch reason {
	case killLiveness:
		p = c.LivenessProbe
	case killStartup:
		p = c.StartupProbe
	}
	if p != nil && p.TerminationGracePeriodSeconds != nil {
		return *p.TerminationGracePeriodSeconds
	}
	return *pod.Spec.TerminationGracePeriodSeconds
}

// podFromContainer restores the parts of a container's pod that are needed to stop it, from its labels and annotations.
func podFromContainer(c *cri.Container) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: c.Name}}}}
	pod.Name, pod.Namespace = c.Labels[cri.LabelPodName], c.Labels[cri.LabelPodNamespace]
	pod.UID = uidOf(c.Labels)
	seconds := func(key string) *int64 {
		if n, err := strconv.ParseInt(c.Annotations[key], 10, 64); err == nil {
			return &n
		}
		return nil
	}
	pod.DeletionGracePeriodSeconds = seconds(cri.AnnotationDeletionGrace)
	pod.Spec.TerminationGracePeriodSeconds = seconds(cri.AnnotationTerminationGrace)
	spec := &pod.Spec.Containers[0]
	var hook corev1.LifecycleHandler
	if text := c.Annotations[cri.AnnotationPreStop]; text != "" && json.Unmarshal([]byte(text), &hook) == nil {
		spec.Lifecycle = &corev1.Lifecycle{PreStop: &hook}
	}
	if text := c.Annotations[cri.AnnotationPorts]; text != "" {
		_ = json.Unmarshal([]byte(text), &spec.Ports) // only needed for hooks with named ports
	}
	return pod
}

// stopOrder makes sidecars stop after the regular containers, and in reverse order of their start. A nil stopOrder imposes no order.
type stopOrder struct {
	mu    sync.Mutex
	done  map[string]chan struct{}
	after map[string][]string
}

func newStopOrder(pod *corev1.Pod, running []*cri.Container) *stopOrder {
	if pod == nil {
		return nil
	}
	o := &stopOrder{done: map[string]chan struct{}{}, after: map[string][]string{}}
	for _, c := range running {
		o.done[c.Name] = make(chan struct{})
	}
	var regular, sidecars []string
	for kind, c := range container.All(&pod.Spec) {
		switch {
		case kind == container.Regular:
			regular = append(regular, c.Name)
		case kind == container.Init && container.IsSidecar(c):
			sidecars = append(sidecars, c.Name)
		}
	}
	for i, name := range sidecars {
		o.after[name] = regular
		if i+1 < len(sidecars) {
			o.after[name] = append(regular[:len(regular):len(regular)], sidecars[i+1])
		}
	}
	if len(sidecars) == 0 {
		return nil
	}
	return o
}

// wait returns when a container may stop, or after the timeout.
func (o *stopOrder) wait(ctx context.Context, name string, timeout time.Duration) {
	if o == nil || timeout <= 0 {
		return
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for _, before := range o.after[name] {
		o.mu.Lock()
		done := o.done[before]
		o.mu.Unlock()
		if done == nil {
			continue // it is not running
		}
		select {
		case <-done:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// markStopped records that a container has stopped.
func (o *stopOrder) markStopped(name string) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if done := o.done[name]; done != nil {
		select {
		case <-done:
		default:
			close(done)
		}
	}
}
