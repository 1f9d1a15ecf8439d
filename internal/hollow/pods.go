package hollow

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/podstate"
)

// watchPods enqueues the pods of hollow nodes when they change.
func (f *fleet) watchPods() error {
	enqueue := func(pod *corev1.Pod) {
		if _, hollow := f.number[pod.Spec.NodeName]; hollow {
			f.queue.Add(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
		}
	}
	return f.informer.AddEventHandler(enqueue, func(_, pod *corev1.Pod) { enqueue(pod) }, nil)
}

// work syncs one pod. It returns false when the queue is shut down.
func (f *fleet) work(ctx context.Context) bool {
	key, shutdown := f.queue.Get()
	if shutdown {
		return false
	}
	defer f.queue.Done(key)
	pod, ok := f.informer.Get(key.Namespace, key.Name)
	if !ok {
		f.queue.Forget(key)
		return true
	}
	p := f.plan(pod, time.Now())
	if err := f.carryOut(ctx, pod, &p); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		f.queue.AddRateLimited(key)
		return true
	}
	f.queue.Forget(key)
	if p.requeueAfter > 0 {
		f.queue.AddAfter(key, p.requeueAfter)
	}
	return true
}

func (f *fleet) carryOut(ctx context.Context, pod *corev1.Pod, p *podPlan) error {
	if p.status != nil {
		if p.status.PodIP == "" && pod.Status.PodIP == "" && p.status.Phase == corev1.PodRunning {
			p.status.PodIP = p.status.HostIP
			if !pod.Spec.HostNetwork {
				p.status.PodIP = f.podAddress()
			}
			p.status.PodIPs = []corev1.PodIP{{IP: p.status.PodIP}}
		}
		// Pods and their statuses always encode.
		patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": p.status})
		_, err := f.pods.Patch(ctx, pod.Namespace, pod.Name, client.RawPatch(client.StrategicPatch, patch), client.WriteOptions{Subresource: "status"})
		if err != nil {
			return fmt.Errorf("patch pod status: %w", err)
		}
	}
	if p.remove {
		zero := int64(0)
		err := f.pods.Delete(ctx, pod.Namespace, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
		if err != nil {
			return fmt.Errorf("delete pod: %w", err)
		}
	}
	return nil
}

// podPlan is the actions for a pod.
type podPlan struct {
	// status is a patch of the pod's status.
	status *corev1.PodStatus
	remove bool
	// requeueAfter is when to sync the pod again if nothing changes; 0 for never.
	requeueAfter time.Duration
}

// plan computes the actions for a pod.
func (f *fleet) plan(pod *corev1.Pod, now time.Time) podPlan {
	status := &pod.Status
	terminal := podstate.IsTerminal(pod)
	switch {
	case pod.DeletionTimestamp != nil:
		return f.planTermination(pod, now, terminal)
	case terminal:
		return podPlan{}
	case status.Phase != corev1.PodRunning:
		if wait := f.StartDelay - now.Sub(scheduledAt(pod)); wait > 0 {
			return podPlan{requeueAfter: wait}
		}
		return podPlan{status: f.running(pod, now), requeueAfter: f.untilFinished(pod, now)}
	case status.ObservedGeneration != pod.Generation && pod.Generation > 0 || !conditionsCurrent(pod):
		return podPlan{status: f.running(pod, now)}
	}
	if wait := f.untilFinished(pod, now); wait > 0 {
		return podPlan{requeueAfter: wait}
	} else if wait < 0 {
		return podPlan{}
	}
	_, code, _ := behaviour(pod)
	if code == 0 || pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
		return podPlan{status: finished(pod, now, code)}
	}
	return podPlan{} // it would be restarted and fail again
}

// planTermination computes the actions for a pod that is being deleted.
func (f *fleet) planTermination(pod *corev1.Pod, now time.Time, over bool) podPlan {
	stop := f.StopDelay
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		stop = min(stop, time.Duration(*grace)*time.Second)
		// The deletion timestamp is when the grace period ends.
		began := pod.DeletionTimestamp.Add(-time.Duration(*grace) * time.Second)
		if wait := stop - now.Sub(began); wait > 0 && !over {
			return podPlan{requeueAfter: wait}
		}
	}
	// The owner of a finalizer expects a terminal phase.
	if len(pod.Finalizers) > 0 && !over {
		return podPlan{status: finished(pod, now, 137)}
	}
	if pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0 {
		return podPlan{} // only finalizers are left
	}
	return podPlan{remove: true}
}

func scheduledAt(pod *corev1.Pod) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}

// untilFinished is how long a pod still runs; negative for one that does not terminate.
func (f *fleet) untilFinished(pod *corev1.Pod, now time.Time) time.Duration {
	runs, _, ends := behaviour(pod)
	if !ends {
		return -1
	}
	started := now
	if pod.Status.StartTime != nil {
		started = pod.Status.StartTime.Time
	}
	return max(0, max(runs, f.FinishDelay)-now.Sub(started))
}

// behaviour returns how long the pod's containers would run, and their exit code. Only pods of Jobs terminate. The commands sleep and exit
// are simulated, because tests use them.
func behaviour(pod *corev1.Pod) (runs time.Duration, code int32, ends bool) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind != "Job" || pod.Spec.RestartPolicy == corev1.RestartPolicyAlways {
		return 0, 0, false
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		words := strings.Fields(strings.Join(slices.Concat(c.Command, c.Args), " "))
		if len(words) == 0 && strings.Contains(c.Image, "pause") {
			return 0, 0, false
		}
		for w, word := range words {
			switch {
			case word == "pause":
				return 0, 0, false
			case word == "sleep" && w+1 < len(words):
				seconds, err := strconv.Atoi(strings.TrimRight(words[w+1], ";s"))
				if err != nil {
					return 0, 0, false
				}
				runs = max(runs, time.Duration(seconds)*time.Second)
			case word == "exit" && w+1 < len(words):
				if n, err := strconv.Atoi(strings.Trim(words[w+1], `;"'`)); err == nil {
					code = max(code, int32(n))
				}
			case word == "false" && len(words) == 1:
				code = max(code, 1)
			}
		}
	}
	return runs, code, true
}

// running is the status of a pod whose containers run.
func (f *fleet) running(pod *corev1.Pod, now time.Time) *corev1.PodStatus {
	at := metav1.NewTime(now)
	if pod.Status.StartTime != nil {
		at = *pod.Status.StartTime
	}
	host := nodeAddress(f.number[pod.Spec.NodeName])
	s := &corev1.PodStatus{
		Phase: corev1.PodRunning, ObservedGeneration: pod.Generation, StartTime: &at,
		HostIP: host, HostIPs: []corev1.HostIP{{IP: host}}, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs,
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			s.InitContainerStatuses = append(s.InitContainerStatuses, containerStatus(pod, c, running, true))
		} else {
			s.InitContainerStatuses = append(s.InitContainerStatuses, containerStatus(pod, c, terminated(pod, c, at, at, 0), true))
		}
	}
	for i := range pod.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, containerStatus(pod, &pod.Spec.Containers[i], running, true))
	}
	s.Conditions = conditions(pod, now, true, "")
	return s
}

// finished is the status of a pod whose containers have ended.
func finished(pod *corev1.Pod, now time.Time, code int32) *corev1.PodStatus {
	at := metav1.NewTime(now)
	started := at
	if pod.Status.StartTime != nil {
		started = *pod.Status.StartTime
	}
	s := &corev1.PodStatus{Phase: corev1.PodSucceeded, ObservedGeneration: pod.Generation}
	reason := "PodCompleted"
	if code != 0 {
		s.Phase, reason = corev1.PodFailed, "PodFailed"
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		s.ContainerStatuses = append(s.ContainerStatuses, containerStatus(pod, c, terminated(pod, c, started, at, code), false))
	}
	s.Conditions = conditions(pod, now, false, reason)
	return s
}

func terminated(pod *corev1.Pod, c *corev1.Container, from, to metav1.Time, code int32) corev1.ContainerState {
	reason := "Completed"
	if code != 0 {
		reason = "Error"
	}
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, StartedAt: from, FinishedAt: to, ContainerID: containerID(pod, c)}}
}

func containerID(pod *corev1.Pod, c *corev1.Container) string {
	return "hollow://" + string(pod.UID) + "-" + c.Name
}

func containerStatus(pod *corev1.Pod, c *corev1.Container, state corev1.ContainerState, ready bool) corev1.ContainerStatus {
	started := state.Running != nil
	return corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, ImageID: "hollow://" + c.Image, ContainerID: containerID(pod, c), State: state, Ready: ready, Started: &started,
		AllocatedResources: c.Resources.Requests, Resources: &corev1.ResourceRequirements{Requests: c.Resources.Requests, Limits: c.Resources.Limits},
	}
}

// readinessGatesTrue reports whether all conditions the pod's readiness depends on are true.
func readinessGatesTrue(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool {
		return !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == g.ConditionType && c.Status == corev1.ConditionTrue
		})
	})
}

// conditionsCurrent reports whether a running pod's readiness is what its gates say.
func conditionsCurrent(pod *corev1.Pod) bool {
	if len(pod.Spec.ReadinessGates) == 0 {
		return true
	}
	want := corev1.ConditionFalse
	if readinessGatesTrue(pod) {
		want = corev1.ConditionTrue
	}
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == want })
}

// conditions are those a kubelet reports.
func conditions(pod *corev1.Pod, now time.Time, running bool, reason string) []corev1.PodCondition {
	var all []corev1.PodCondition
	add := func(kind corev1.PodConditionType, ok bool, reason string) {
		c := corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, ObservedGeneration: pod.Generation, LastTransitionTime: metav1.NewTime(now)}
		if !ok {
			c.Status, c.Reason = corev1.ConditionFalse, reason
		}
		for _, old := range pod.Status.Conditions {
			if old.Type == kind && old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
		all = append(all, c)
	}
	add(corev1.PodReadyToStartContainers, running, "")
	add(corev1.PodInitialized, true, "")
	gates := readinessGatesTrue(pod)
	if running && !gates {
		reason = "ReadinessGatesNotReady"
	}
	add(corev1.PodReady, running && gates, reason)
	add(corev1.ContainersReady, running, reason)
	add(corev1.PodScheduled, true, "")
	return all
}
