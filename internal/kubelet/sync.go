package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/api/podspec"
	"skiff/internal/container"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/probe"
	"skiff/internal/kubelet/status"
	"skiff/internal/podstate"
)

// networkRetry is the time after which a pod that waits for the network is synced again, unless the network is ready before.
const networkRetry = 5 * time.Second

// rounds bounds how often one sync observes and acts before the worker waits for the next wake-up.
const rounds = 8

// sync drives a pod that should run towards its desired state. over reports that all its containers are done or it was rejected.
func (w *worker) sync(ctx context.Context) (next time.Time, over bool, err error) {
	pod := w.current()
	if podstate.IsStatic(pod) && w.k.predecessor(pod) {
		return time.Time{}, false, nil // forget wakes this worker when the predecessor is removed
	}
	runtime, err := w.k.Runtime.ReadPod(ctx, w.uid)
	if err != nil {
		return time.Time{}, false, err
	}
	if w.replaceOldManifest(runtime) {
		return time.Now(), false, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.mu.Lock()
	w.cancelSync = cancel
	ending := w.ending()
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.cancelSync = nil
		w.mu.Unlock()
	}()
	if ending {
		return time.Now(), false, nil
	}
	admitted, err := w.admit(ctx, pod, runtime)
	if err != nil || !admitted {
		return time.Time{}, true, err
	}
	w.k.Objects.Register(pod)
	for range rounds {
		var requeue bool
		if next, requeue, over, err = w.syncOnce(ctx, runtime); err != nil || over || !requeue {
			break
		}
		if runtime, err = w.k.Runtime.ReadPod(ctx, w.uid); err != nil {
			break
		}
	}
	w.mu.Lock()
	ending = w.ending()
	w.mu.Unlock()
	if ending {
		return time.Now(), false, nil
	}
	return next, over, err
}

// syncOnce plans and acts once. requeue reports that it acted, so that the pod must be observed again.
func (w *worker) syncOnce(ctx context.Context, runtime *cri.Pod) (next time.Time, requeue, over bool, err error) {
	if err := w.reallocate(ctx); err != nil {
		return time.Time{}, false, false, err
	}
	pod := w.active()
	w.readActuated(pod, runtime)
	w.updateProbes(pod, runtime)
	now := time.Now()
	podStatus := w.status(pod, runtime, false)
	plan := planPod(pod, w.observedState(pod, runtime, podStatus), now)
	if plan.Fail != nil {
		w.k.podEvent(pod, corev1.EventTypeNormal, plan.Fail.Reason, "%s", plan.Fail.Message)
		w.mu.Lock()
		w.evicted = &eviction{Reason: *plan.Fail}
		w.mu.Unlock()
		return time.Time{}, false, true, nil
	}
	if w.recordBackOffs(pod, plan.Wait) {
		podStatus = w.status(pod, runtime, false)
	}
	w.recordPodStart(pod, podStatus)
	w.resizeProgress(pod, &plan)
	if podstate.IsPhaseTerminal(podStatus.Phase) {
		w.k.writer.Set(w.uid, podStatus, true)
		return time.Time{}, false, true, nil
	}
	if plan.Nothing() {
		w.k.writer.Set(w.uid, podStatus, true)
	} else {
		w.k.writer.SetDeferred(w.uid, podStatus, true)
	}
	if !plan.Nothing() && !w.networkReady(pod) {
		return now.Add(networkRetry), false, false, nil
	}
	if err := w.prepare(ctx, pod, &plan); err != nil {
		return time.Time{}, false, false, err
	}
	if plan.Nothing() {
		return w.nextSync(plan.Wake), false, false, nil
	}
	err = w.act(ctx, pod, runtime, &plan)
	var start *startError
	if errors.As(err, &start) {
		// The reason is in the container's status; it is not an error of the sync.
		if fresh, readErr := w.k.Runtime.ReadPod(ctx, w.uid); readErr == nil {
			runtime = fresh
		}
		w.updateProbes(pod, runtime)
		w.k.writer.Set(w.uid, w.status(pod, runtime, false), true)
		return w.earlier(now.Add(startRetry), plan.Wake), start.progress, false, nil
	}
	return time.Time{}, true, false, err
}

// networkReady reports whether a pod can be started. Pods in the host's network need no other, and may be what provides it.
func (w *worker) networkReady(pod *corev1.Pod) bool {
	if w.k.NetworkError == nil || pod.Spec.HostNetwork {
		return true
	}
	err := w.k.NetworkError()
	if err != nil {
		w.eventOnce("network", err.Error(), func() {
			w.k.podEvent(pod, corev1.EventTypeWarning, "NetworkNotReady", "network is not ready: %v", err)
		})
	}
	return err == nil
}

// earlier is the earlier of two times; zero means never.
func (w *worker) earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// nextSync is when to sync a pod again that needs no actions: when a volume must be refreshed, or to retry a deferred resize or the creation
// of a mirror pod.
func (w *worker) nextSync(wake time.Time) time.Time {
	wake = w.earlier(wake, w.k.Volumes.RefreshAt(w.uid))
	if w.resize.pending != nil {
		wake = w.earlier(wake, time.Now().Add(resizeRetry))
	}
	if !w.k.mirrored(w.current()) {
		wake = w.earlier(wake, time.Now().Add(maxRetry))
	}
	return wake
}

// observedState returns the state that a plan is computed from.
func (w *worker) observedState(pod *corev1.Pod, runtime *cri.Pod, podStatus *corev1.PodStatus) observedState {
	s := observedState{
		Runtime: runtime, Liveness: map[string]probe.Result{}, Startup: map[string]probe.Result{},
		Actuated: w.actuated, ActuatedPod: w.resize.actuatedPod, Restarts: w.restarts,
	}
	for _, c := range runtime.Containers {
		if result, found := w.k.probes.Result(w.uid, c.ID, probe.Liveness); found {
			s.Liveness[c.ID] = result
		}
		if result, found := w.k.probes.Result(w.uid, c.ID, probe.Startup); found {
			s.Startup[c.ID] = result
		}
	}
	for _, c := range podStatus.Conditions {
		if c.Type == corev1.AllContainersRestarting && c.Status == corev1.ConditionTrue {
			s.RestartAll = true
		}
	}
	if podStatus.StartTime != nil {
		s.StartedAt = podStatus.StartTime.Time
	}
	return s
}

// status computes the status of the pod.
func (w *worker) status(pod *corev1.Pod, runtime *cri.Pod, over bool) *corev1.PodStatus {
	old, found := w.k.writer.Get(w.uid)
	if !found {
		old = w.statusInAPI(pod)
	}
	s := status.Observed{
		Runtime: runtime, RuntimeName: w.k.runtimeName, Old: old, Failed: w.failed, HostIPs: w.k.HostIPs(), Ended: over,
		Started: func(c *corev1.Container, id string) bool {
			if c.StartupProbe == nil {
				return true
			}
			result, _ := w.k.probes.Result(w.uid, id, probe.Startup)
			return result == probe.Passed
		},
		Ready: func(c *corev1.Container, id string) bool {
			if c.ReadinessProbe == nil {
				return true
			}
			result, _ := w.k.probes.Result(w.uid, id, probe.Readiness)
			return result == probe.Passed
		},
		Resize: w.resize.conditions(), Actuated: w.actuated, RecursiveReadOnly: w.k.RecursiveReadOnly,
		QOSClass: podspec.QOSClass(pod), Now: time.Now(),
	}
	s.Devices = func(c *corev1.Container) []corev1.ResourceStatus { return w.k.deviceHealth(pod, c) }
	s.PodResources, s.PodRequests = podResources(pod, w.resize.actuatedPod)
	w.mu.Lock()
	if e := w.evicted; e != nil {
		s.Evicted = &e.Reason
	}
	w.mu.Unlock()
	computed := status.Of(pod, s)
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.evicted; e != nil && e.target != nil && !slices.ContainsFunc(computed.Conditions, func(c corev1.PodCondition) bool { return c.Type == e.target.Type }) {
		computed.Conditions = append(computed.Conditions, *e.target)
	}
	return &computed
}

// updateProbes starts the probes of running containers and stops those of others.
func (w *worker) updateProbes(pod *corev1.Pod, runtime *cri.Pod) {
	probed := probe.Probed(&pod.Spec)
	ip := podIP(pod, runtime, w.k.HostIPs())
	var running []probe.Running
	for _, c := range runtime.Containers {
		spec := probed[c.Name]
		if spec == nil || c.State != cri.Running {
			continue
		}
		r := probe.Running{Container: spec, ID: c.ID, StartedAt: c.StartedAt}
		for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for i := range list {
				if list[i].ContainerID == w.k.runtimeName+"://"+c.ID {
					r.WasReady, r.WasStarted = list[i].Ready, list[i].Started != nil && *list[i].Started
				}
			}
		}
		running = append(running, r)
	}
	w.k.mu.Lock()
	ctx := w.k.ctx
	w.k.mu.Unlock()
	w.k.probes.Follow(ctx, pod, ip, running)
}

func podIP(pod *corev1.Pod, runtime *cri.Pod, hostIPs []string) string {
	ips := status.SortIPs(runtime.IPs, hostIPs)
	if pod.Spec.HostNetwork {
		ips = hostIPs
	}
	if len(ips) == 0 {
		return ""
	}
	return ips[0]
}

// recordBackOffs records which containers are in CrashLoopBackOff. It reports whether that has changed.
func (w *worker) recordBackOffs(pod *corev1.Pod, waits []Wait) bool {
	changed := false
	for _, wait := range waits {
		c := wait.Container
		message := fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", wait.Delay, c.Name, describe(pod))
		reason := status.Reason{Reason: "CrashLoopBackOff", Message: message}
		if w.failed[c.Name] != reason {
			w.failed[c.Name] = reason
			changed = true
		}
		w.eventOnce("backoff/"+c.Name, wait.Until.String(), func() {
			w.k.containerEvent(pod, c, corev1.EventTypeWarning, "BackOff", fmt.Sprintf("Back-off restarting failed container %s in pod %s", c.Name, describe(pod)))
		})
	}
	return changed
}

// prepare creates what containers need besides a sandbox: the pod's cgroup, directories and volumes.
func (w *worker) prepare(ctx context.Context, pod *corev1.Pod, plan *Actions) error {
	if plan.KillPod && !plan.NewSandbox {
		return nil
	}
	if w.cgroup == "" {
		parent, err := w.k.Cgroups.Ensure(pod, plan.NewSandbox)
		if err != nil {
			w.k.podEvent(pod, corev1.EventTypeWarning, "FailedCreatePodContainer", "unable to ensure pod container exists: %v", err)
			return fmt.Errorf("failed to ensure that the pod: %v cgroups exist and are correctly applied: %w", pod.UID, err)
		}
		w.cgroup = parent
	}
	w.ensureMirror(ctx, pod)
	if !w.prepared {
		for _, dir := range []string{w.k.podDir(pod.UID), cri.PodLogDirectory(w.k.LogsDir(), pod)} {
			if err := os.MkdirAll(dir, 0o750); err != nil {
				w.k.podEvent(pod, corev1.EventTypeWarning, "Failed", "error making pod data directories: %v", err)
				return err
			}
		}
		w.prepared = true
	}
	if err := w.k.Volumes.Mount(ctx, pod); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, one := range split(err) {
			w.k.podEvent(pod, corev1.EventTypeWarning, mountReason(one), "%v", one)
		}
		return err
	}
	return nil
}

// mountReason is the reason of the event about a volume that could not be mounted: volumes that containers use as devices have another one.
func mountReason(err error) string {
	var failed interface {
		error
		Reason() string
	}
	if errors.As(err, &failed) {
		return failed.Reason()
	}
	return "FailedMount"
}

// split returns the errors of a joined error.
func split(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// terminate stops the pod's containers.
func (w *worker) terminate(ctx context.Context) error {
	w.mu.Lock()
	rejected := w.rejected
	w.mu.Unlock()
	if rejected {
		return nil // it has no containers
	}
	runtime, err := w.k.Runtime.ReadPod(ctx, w.uid)
	if err != nil {
		return err
	}
	pod := w.allocatedPod()
	if len(runtime.Containers) > 0 || len(runtime.Sandboxes) > 0 {
		w.k.writer.Set(w.uid, w.status(pod, runtime, false), len(runtime.Running()) > 0)
	}
	w.k.probes.StopLivenessAndStartup(w.uid)
	w.mu.Lock()
	killing, cancel := context.WithCancel(ctx)
	w.cancelKill, w.killGrace = cancel, w.grace()
	grace := w.killGrace
	w.mu.Unlock()
	killed := make(chan error, 1)
	go func() { killed <- w.k.killPod(killing, pod, runtime, &grace) }()
	for waiting := true; waiting; {
		select {
		case err = <-killed:
			waiting = false
		case <-w.wake:
			// The status shows readiness and terminated containers while the others are being stopped.
			if now, err := w.k.Runtime.ReadPod(ctx, w.uid); err == nil {
				w.k.writer.Set(w.uid, w.status(w.allocatedPod(), now, false), true)
			}
		}
	}
	w.mu.Lock()
	w.cancelKill = nil
	w.mu.Unlock()
	interrupted := killing.Err() != nil && ctx.Err() == nil
	cancel()
	if interrupted {
		return context.Canceled // retried at once with the shorter grace period
	}
	if err != nil {
		if ctx.Err() == nil {
			w.eventOnce("kill", err.Error(), func() {
				w.k.podEvent(pod, corev1.EventTypeWarning, "FailedKillPod", "error killing pod: %v", err)
			})
		}
		return fmt.Errorf("error killing terminating pod: %w", err)
	}
	w.k.probes.Forget(w.uid)
	ips := runtime.IPs
	if runtime, err = w.k.Runtime.ReadPod(ctx, w.uid); err != nil {
		return err
	}
	if left := runtime.Running(); len(left) > 0 {
		return fmt.Errorf("container %s is still running after it was stopped", left[0].ID)
	}
	runtime.IPs = ips
	// Before the pod counts as terminated: its claims may then be allocated to other pods.
	if w.k.ResourceClaims != nil {
		if err := w.k.ResourceClaims.Unprepare(ctx, pod); err != nil {
			return err
		}
	}
	w.k.writer.Set(w.uid, w.status(pod, runtime, true), false)
	return nil
}

// allocatedPod returns the pod with its allocated resources, or unchanged if it was not admitted.
func (w *worker) allocatedPod() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.allocated == nil {
		return w.pod
	}
	return w.allocated.applied(w.pod)
}

// cleanUp releases the volumes and cgroup of a terminated pod. Once its source has removed the pod, its containers and logs are removed too,
// and done reports that nothing remains.
func (w *worker) cleanUp(ctx context.Context) (done bool, err error) {
	w.mu.Lock()
	pod, removed := w.pod, w.removed
	w.mu.Unlock()
	if !w.cleaned {
		if err := w.k.Volumes.Unmount(ctx, w.uid); err != nil {
			return false, wrapped("unmount volumes", err)
		}
		w.k.Objects.Unregister(w.uid)
		if err := w.k.Cgroups.Remove(w.uid); err != nil {
			return false, wrapped("remove cgroup", err)
		}
		w.cleaned = true
		close(w.released)
		w.k.writer.Finish(pod)
		w.k.retryDeferredResizes()
	}
	if !removed {
		return false, nil
	}
	if podstate.IsStatic(pod) {
		w.k.deleteMirrorOf(ctx, pod)
	}
	if err := w.k.removeContainers(ctx, w.uid); err != nil {
		return false, err
	}
	if err := w.k.Volumes.RemoveDir(ctx, w.uid); err != nil {
		return false, wrapped("remove directory", err)
	}
	if err := os.RemoveAll(cri.PodLogDirectory(w.k.LogsDir(), pod)); err != nil {
		return false, err
	}
	return true, nil
}

// specOf returns a container of a pod's spec by name, or nil.
func specOf(pod *corev1.Pod, name string) *corev1.Container {
	for _, c := range container.All(&pod.Spec) {
		if c.Name == name {
			return c
		}
	}
	return nil
}
