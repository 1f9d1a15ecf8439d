package hollow

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestPlan(t *testing.T) {
	now := time.Unix(10000, 0)
	ago := func(d time.Duration) *metav1.Time { at := metav1.NewTime(now.Add(-d)); return &at }
	pod := func(change ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u", Generation: 1},
			Spec: corev1.PodSpec{NodeName: "hollow-1", RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "c", Image: "web"}},
				InitContainers: []corev1.Container{{Name: "i", Image: "init"}}},
			Status: corev1.PodStatus{Phase: corev1.PodPending},
		}
		for _, f := range change {
			f(p)
		}
		return p
	}
	running := func(p *corev1.Pod) {
		p.Status.Phase, p.Status.ObservedGeneration, p.Status.StartTime = corev1.PodRunning, p.Generation, ago(time.Minute)
	}
	justStarted := func(p *corev1.Pod) { running(p); p.Status.StartTime = ago(0) }
	job := func(image string, command ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Controller: ptr.To(true)}}
			p.Spec.Containers[0].Image, p.Spec.Containers[0].Command = image, command
		}
	}
	deleted := func(grace int64, since time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.DeletionGracePeriodSeconds = &grace
			p.DeletionTimestamp = ago(since - time.Duration(grace)*time.Second)
		}
	}
	finalizer := func(p *corev1.Pod) { p.Finalizers = []string{"x/y"} }
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	tests := map[string]struct {
		pod  *corev1.Pod
		want string // phase written, whether removed, when to requeue
	}{
		"a new pod runs":                        {pod(), "Running false -1ns"},
		"a running pod is left alone":           {pod(running), " false 0s"},
		"a changed pod is observed":             {pod(running, func(p *corev1.Pod) { p.Generation = 7 }), "Running false 0s"},
		"a job's pod runs a moment":             {pod(justStarted, job("busybox", "date")), " false 1s"},
		"a job's pod succeeds":                  {pod(running, job("busybox", "date")), "Succeeded false 0s"},
		"a job's pod fails":                     {pod(running, job("busybox", "sh", "-c", "exit 3")), "Failed false 0s"},
		"a job's pod that sleeps":               {pod(running, job("busybox", "sleep", "100")), " false 40s"},
		"a job's pod that never ends":           {pod(running, job("registry.k8s.io/pause:3.10")), " false 0s"},
		"an ended pod is left alone":            {pod(ended), " false 0s"},
		"a deleted pod goes when it has had":    {pod(running, deleted(30, time.Second)), " true 0s"},
		"a deleted pod takes its time":          {pod(running, deleted(30, 200*time.Millisecond)), " false 300ms"},
		"but not more than its grace":           {pod(running, deleted(0, 0)), " false 0s"},
		"a held pod tells how it ended":         {pod(running, deleted(30, time.Second), finalizer), "Failed false 0s"},
		"and goes then":                         {pod(running, deleted(30, time.Second), finalizer, ended), " true 0s"},
		"and is not removed over and over":      {pod(running, deleted(0, time.Second), finalizer, ended), " false 0s"},
		"a pod deleted before it ran goes, too": {pod(deleted(30, time.Second)), " true 0s"},
	}
	f := &fleet{Config: Config{StopDelay: 500 * time.Millisecond}.withDefaults(), number: map[string]int{"hollow-1": 1}}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := f.plan(test.pod, now)
			phase := corev1.PodPhase("")
			if p.status != nil {
				phase = p.status.Phase
			}
			if got := fmt.Sprint(phase, " ", p.remove, " ", p.requeueAfter); got != test.want {
				t.Errorf("plan %q, want %q", got, test.want)
			}
		})
	}
	t.Run("status", func(t *testing.T) {
		s := f.plan(pod(), now).status
		if s.HostIP == "" || s.ObservedGeneration != 1 || !s.ContainerStatuses[0].Ready || s.ContainerStatuses[0].State.Running == nil ||
			s.InitContainerStatuses[0].State.Terminated == nil {
			t.Errorf("status %+v", s)
		}
		for _, c := range s.Conditions {
			if c.Status != corev1.ConditionTrue || c.ObservedGeneration != 1 {
				t.Errorf("condition %+v", c)
			}
		}
		gated := f.plan(pod(func(p *corev1.Pod) { p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x/y"}} }), now).status
		for _, c := range gated.Conditions {
			if c.Type == corev1.PodReady && c.Status != corev1.ConditionFalse {
				t.Error("a pod whose readiness gate is shut is ready")
			}
		}
	})
}
