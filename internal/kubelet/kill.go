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

// killPod stops all containers of a pod at once, sidecars after those they serve, and then its sandboxes. pod is nil for a
// pod of which only the runtime knows. grace overrides the pod's own.
func (k *Kubelet) killPod(ctx context.Context, pod *corev1.Pod, runtime *cri.Pod, grace *int64) error {
	running := runtime.Running()
	order := newOrder(pod, running)
	errs := make([]error, len(running))
	var stopping sync.WaitGroup
	for i, c := range running {
		stopping.Go(func() {
			errs[i] = k.killContainer(ctx, pod, runtime, c, "", killUnknown, grace, order)
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

// killContainer stops one container: its preStop hook, its turn among the sidecars and its signal all share its grace period.
func (k *Kubelet) killContainer(ctx context.Context, pod *corev1.Pod, runtime *cri.Pod, c *cri.Container, message string, why killReason, override *int64, order *order) error {
	defer order.ended(c.Name)
	if pod == nil {
		pod = restored(c)
	}
	spec := specOf(pod, c.Name)
	if spec == nil {
		spec = &restored(c).Spec.Containers[0]
	}
	grace := graceOf(pod, spec, why)
	if override != nil {
		grace = *override
	}
	if message == "" {
		message = fmt.Sprintf("Stopping container %s", c.Name)
	}
	if k.announce(c.ID) {
		k.containerEvent(pod, spec, corev1.EventTypeNormal, "Killing", message)
	}
	began := time.Now()
	if spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil && grace > 0 && c.State == cri.Running {
		k.preStop(ctx, pod, runtime, spec, c.ID, time.Duration(grace)*time.Second)
	}
	left := time.Duration(grace)*time.Second - time.Since(began)
	order.wait(ctx, c.Name, left)
	seconds := max(grace-int64(time.Since(began).Seconds()), minKillGrace)
	if err := k.Runtime.StopContainer(ctx, c.ID, seconds); err != nil && !cri.NotFound(err) {
		return fmt.Errorf("stop container %s: %w", c.Name, err)
	}
	return nil
}

// minKillGrace is the least a container gets to end by itself.
const minKillGrace = 2

// preStop runs a container's hook for as long as it may take.
func (k *Kubelet) preStop(ctx context.Context, pod *corev1.Pod, runtime *cri.Pod, spec *corev1.Container, id string, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if _, err := k.hook(ctx, pod, runtime.IPs, spec, id, spec.Lifecycle.PreStop); err != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		k.containerEvent(pod, spec, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
}

// hook runs a lifecycle handler. message tells what went wrong, for the container's status.
func (k *Kubelet) hook(ctx context.Context, pod *corev1.Pod, ips []string, c *corev1.Container, id string, h *corev1.LifecycleHandler) (message string, err error) {
	where := fmt.Sprintf("for Container %q in Pod %q failed - error", c.Name, describe(pod))
	switch {
	case h.Exec != nil:
		output, err := k.exec(ctx, id, h.Exec.Command, 0)
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

// graceOf is how many seconds a container gets to end.
func graceOf(pod *corev1.Pod, c *corev1.Container, why killReason) int64 {
	if pod.DeletionGracePeriodSeconds != nil {
		return *pod.DeletionGracePeriodSeconds
	}
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		return minKillGrace
	}
	var p *corev1.Probe
	switch why {
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

// restored is as much of a container's pod as the runtime remembers: enough to stop it.
func restored(c *cri.Container) *corev1.Pod {
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
		_ = json.Unmarshal([]byte(text), &spec.Ports) // ports that cannot be read are only missed by a hook that names one
	}
	return pod
}

// order lets sidecars end after the regular containers, and each after those that started behind it. A nil order has none.
type order struct {
	mu    sync.Mutex
	done  map[string]chan struct{}
	after map[string][]string
}

func newOrder(pod *corev1.Pod, running []*cri.Container) *order {
	if pod == nil {
		return nil
	}
	o := &order{done: map[string]chan struct{}{}, after: map[string][]string{}}
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

// wait returns when it is a container's turn to end, or when its time is up.
func (o *order) wait(ctx context.Context, name string, most time.Duration) {
	if o == nil || most <= 0 {
		return
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	for _, before := range o.after[name] {
		o.mu.Lock()
		done := o.done[before]
		o.mu.Unlock()
		if done == nil {
			continue // it does not run
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

// ended notes that a container has ended.
func (o *order) ended(name string) {
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
