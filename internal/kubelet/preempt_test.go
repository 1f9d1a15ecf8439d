package kubelet

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"skiff/internal/podstate"
)

// victim is a running pod: its QoS class follows from its requests.
func victim(name, cpu, memory string, more ...func(*corev1.Pod)) *corev1.Pod {
	pod := planned(regular("a", needs(cpu, "", memory, "")))
	pod.Name = name
	for _, change := range more {
		change(pod)
	}
	return pod
}

func guaranteed(pod *corev1.Pod) {
	c := &pod.Spec.Containers[0]
	c.Resources.Limits = c.Resources.Requests.DeepCopy()
}

func prioritized(n int32) func(*corev1.Pod) { return func(pod *corev1.Pod) { pod.Spec.Priority = &n } }

func static(pod *corev1.Pod) {
	pod.Annotations = map[string]string{podstate.ConfigSourceAnnotationKey: "file"}
}

func mirrored(pod *corev1.Pod) {
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
}

func overhead(cpu string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
}

func lacking(name corev1.ResourceName, amount int64) rejection {
	return rejection{resource: name, missing: amount}
}

func TestPreemptable(t *testing.T) {
	for _, row := range []struct {
		name        string
		victim, pod *corev1.Pod
		want        bool
	}{
		{"critical before ordinary", victim("v", "", ""), victim("p", "", "", prioritized(podstate.SystemCriticalPriority)), true},
		{"just below critical is ordinary", victim("v", "", "", prioritized(podstate.SystemCriticalPriority-1)), victim("p", "", "", static), true},
		{"static before ordinary", victim("v", "", ""), victim("p", "", "", static), true},
		{"static before static", victim("v", "", "", static), victim("p", "", "", static), false},
		{"a mirror is critical", victim("v", "", "", mirrored), victim("p", "", "", static), false},
		{"higher among critical", victim("v", "", "", prioritized(podstate.SystemCriticalPriority)), victim("p", "", "", prioritized(podstate.SystemCriticalPriority+1000)), true},
		{"the same among critical", victim("v", "", "", prioritized(podstate.SystemCriticalPriority)), victim("p", "", "", prioritized(podstate.SystemCriticalPriority)), false},
		{"ordinary, but higher", victim("v", "", "", prioritized(5)), victim("p", "", "", prioritized(6)), true},
		{"ordinary, and lower", victim("v", "", "", prioritized(6)), victim("p", "", "", prioritized(5)), false},
		{"ordinary without a priority", victim("v", "", ""), victim("p", "", "", prioritized(5)), false},
		{"neither has a priority", victim("v", "", ""), victim("p", "", ""), false},
	} {
		if got := preemptable(row.victim, row.pod); got != row.want {
			t.Errorf("%s: %t, want %t", row.name, got, row.want)
		}
	}
}

func TestChooseVictims(t *testing.T) {
	const cpu, memory = corev1.ResourceCPU, corev1.ResourceMemory
	mebi := int64(1 << 20)
	for _, row := range []struct {
		name    string
		running []*corev1.Pod
		missing []rejection
		want    string
		wrong   string
	}{
		{name: "no other pods", missing: []rejection{lacking(cpu, 100)}, wrong: "no set of running pods found to reclaim resources: [(res: cpu, q: 100), ]"},
		{
			name: "all pods together are not enough", running: []*corev1.Pod{victim("a", "50m", "")}, missing: []rejection{lacking(cpu, 100), lacking(memory, 5)},
			wrong: "no set of running pods found to reclaim resources: [(res: cpu, q: 50), (res: memory, q: 5), ]",
		},
		{
			name: "critical pods are not preempted", running: []*corev1.Pod{victim("a", "200m", "", static)}, missing: []rejection{lacking(cpu, 100)},
			wrong: "no set of running pods found to reclaim resources: [(res: cpu, q: 100), ]",
		},
		{name: "exactly enough", running: []*corev1.Pod{victim("a", "100m", "")}, missing: []rejection{lacking(cpu, 100)}, want: "a"},
		{name: "the number of pods", running: []*corev1.Pod{victim("burst", "1", ""), victim("best", "", "")}, missing: []rejection{lacking(corev1.ResourcePods, 1)}, want: "best"},
		{
			name: "guaranteed pods are kept if others suffice", running: []*corev1.Pod{victim("g", "100m", "10Mi", guaranteed), victim("b", "100m", "")}, missing: []rejection{lacking(cpu, 100)}, want: "b",
		},
		{
			name: "a guaranteed one where others do not suffice", running: []*corev1.Pod{victim("g", "100m", "10Mi", guaranteed), victim("b", "50m", "")}, missing: []rejection{lacking(cpu, 100)}, want: "g",
		},
		{
			name: "one that covers all, not two that do together", running: []*corev1.Pod{victim("a", "60m", ""), victim("b", "60m", ""), victim("c", "100m", "")}, missing: []rejection{lacking(cpu, 100)}, want: "c",
		},
		{
			name: "of several that cover all, the one with the smallest requests", running: []*corev1.Pod{victim("a", "300m", ""), victim("b", "100m", ""), victim("c", "200m", "")}, missing: []rejection{lacking(cpu, 100)}, want: "b",
		},
		{
			name: "memory counts before CPU", running: []*corev1.Pod{victim("a", "100m", "20Mi"), victim("b", "900m", "10Mi")}, missing: []rejection{lacking(cpu, 100)}, want: "b",
		},
		{name: "of equals the last", running: []*corev1.Pod{victim("a", "100m", ""), victim("b", "100m", "")}, missing: []rejection{lacking(cpu, 100)}, want: "b"},
		{
			name: "the largest first where none covers all", running: []*corev1.Pod{victim("a", "60m", ""), victim("b", "90m", ""), victim("c", "10m", "")}, missing: []rejection{lacking(cpu, 100)}, want: "b c",
		},
		{
			name: "resources weigh the same whatever their size", running: []*corev1.Pod{victim("a", "100m", ""), victim("b", "", "100Mi"), victim("c", "60m", "60Mi")},
			missing: []rejection{lacking(cpu, 100), lacking(memory, 100*mebi)}, want: "c a b",
		},
		{
			name: "the overhead of a RuntimeClass counts", running: []*corev1.Pod{victim("plain", "50m", ""), victim("boxed", "50m", "", overhead("60m"))}, missing: []rejection{lacking(cpu, 100)}, want: "boxed",
		},
		{
			name: "classes from the least to the best", running: []*corev1.Pod{victim("g", "100m", "10Mi", guaranteed), victim("b", "100m", ""), victim("e", "", "")},
			missing: []rejection{lacking(cpu, 200), lacking(corev1.ResourcePods, 3)}, want: "e b g",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			chosen, err := selectVictims(victim("critical", "", "", static), row.running, row.missing)
			var names []string
			for _, pod := range chosen {
				names = append(names, pod.Name)
			}
			wrong := ""
			if err != nil {
				wrong = err.Error()
			}
			if got := strings.Join(names, " "); got != row.want || wrong != row.wrong {
				t.Errorf("chose %q, error %q; want %q, error %q", got, wrong, row.want, row.wrong)
			}
		})
	}
}

func TestPatience(t *testing.T) {
	for _, row := range []struct {
		grace *int64
		want  time.Duration
	}{{nil, 45 * time.Second}, {new(int64(0)), 10 * time.Second}, {new(int64(6)), 10 * time.Second}, {new(int64(60)), 90 * time.Second}} {
		pod := victim("v", "", "")
		pod.Spec.TerminationGracePeriodSeconds = row.grace
		if got := preemptionTimeout(pod); got != row.want {
			t.Errorf("grace %v: %s, want %s", row.grace, got, row.want)
		}
	}
}

// TestPreemption admits a critical pod on a full node.
func TestPreemption(t *testing.T) {
	b := newTestKubelet(t)
	full := b.until(b.create(regular("a", needs("3", "", "", ""))), "running", running)
	small := b.until(b.create(regular("a", needs("500m", "", "", ""))), "running", running)
	critical := b.create(prioritized(podstate.SystemCriticalPriority), regular("a", needs("2", "", "", "")))
	b.until(critical, "running", running)
	gone := b.until(full, "ended", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if gone.Status.Reason != "Preempting" || gone.Status.Message != "Preempted in order to admit critical pod" {
		t.Errorf("%s: %s", gone.Status.Reason, gone.Status.Message)
	}
	if !conditionTrue(gone, corev1.DisruptionTarget) {
		t.Errorf("it does not say who ended it: %+v", gone.Status.Conditions)
	}
	b.until(small, "not preempted", running)
	hopeless := b.create(prioritized(podstate.SystemCriticalPriority), regular("a", needs("40", "", "", "")))
	refused := b.until(hopeless, "refused", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	const want = "Pod was rejected: Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 38000), ]"
	if refused.Status.Reason != "UnexpectedAdmissionError" || refused.Status.Message != want {
		t.Errorf("%s: %s", refused.Status.Reason, refused.Status.Message)
	}
	b.until(small, "still running", running)
}
