package status

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kubelet/cri"
)

var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// pod has an init container for each name with a dot before it, a sidecar for each with a plus, and a regular one for the rest.
func pod(policy corev1.RestartPolicy, names ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Generation: 3}, Spec: corev1.PodSpec{RestartPolicy: policy}}
	always := corev1.ContainerRestartPolicyAlways
	for _, name := range names {
		switch name[0] {
		case '.':
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: name[1:], Image: "image"})
		case '+':
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: name[1:], Image: "image", RestartPolicy: &always})
		default:
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: "image"})
		}
	}
	return p
}

// seen is a runtime with a ready sandbox and containers such as "a running", "a 3" for an exit code, "a created", "a unknown";
// the newest first.
func runtimeOf(containers ...string) *cri.Pod {
	r := &cri.Pod{UID: "u", IPs: []string{"10.0.0.1"}, Sandboxes: []*cri.Sandbox{{ID: "s", Ready: true, Network: &cri.SandboxNetwork{IPs: []string{"10.0.0.1"}}}}}
	for i, text := range containers {
		name, state, _ := strings.Cut(text, " ")
		c := &cri.Container{ID: fmt.Sprint(name, len(containers)-i), Name: name, SandboxID: "s", Image: "image", CreatedAt: at, StartedAt: at}
		switch state {
		case "running":
			c.State = cri.Running
		case "created":
			c.State = cri.Created
		case "unknown":
			c.State = cri.Unknown
		default:
			c.State, c.Reason, c.FinishedAt = cri.Exited, "Error", at
			if _, err := fmt.Sscan(state, &c.ExitCode); err != nil {
				panic(err)
			}
			if c.ExitCode == 0 {
				c.Reason = "Completed"
			}
		}
		r.Containers = append(r.Containers, c)
	}
	return r
}

func observedFrom(runtime *cri.Pod) Observed {
	return Observed{Runtime: runtime, RuntimeName: "containerd", Old: &corev1.PodStatus{}, HostIPs: []string{"192.0.2.1"}, Now: at}
}

const (
	always    = corev1.RestartPolicyAlways
	onFailure = corev1.RestartPolicyOnFailure
	never     = corev1.RestartPolicyNever
)

func TestPhase(t *testing.T) {
	for _, row := range []struct {
		name  string
		pod   *corev1.Pod
		seen  *cri.Pod
		ended bool
		want  corev1.PodPhase
	}{
		{"nothing yet", pod(always, "a"), &cri.Pod{}, false, corev1.PodPending},
		{"sandbox only", pod(always, "a"), runtimeOf(), false, corev1.PodPending},
		{"created", pod(always, "a"), runtimeOf("a created"), false, corev1.PodPending},
		{"runs", pod(always, "a"), runtimeOf("a running"), false, corev1.PodRunning},
		{"one of two runs", pod(always, "a", "b"), runtimeOf("a running"), false, corev1.PodPending},
		{"ended, always", pod(always, "a"), runtimeOf("a 0"), false, corev1.PodRunning},
		{"succeeded, on failure", pod(onFailure, "a"), runtimeOf("a 0"), false, corev1.PodSucceeded},
		{"failed, on failure", pod(onFailure, "a"), runtimeOf("a 1"), false, corev1.PodRunning},
		{"succeeded, never", pod(never, "a"), runtimeOf("a 0"), false, corev1.PodSucceeded},
		{"failed, never", pod(never, "a"), runtimeOf("a 1"), false, corev1.PodFailed},
		{"one failed, one runs, never", pod(never, "a", "b"), runtimeOf("a 1", "b running"), false, corev1.PodRunning},
		{"one failed, one succeeded, never", pod(never, "a", "b"), runtimeOf("a 1", "b 0"), false, corev1.PodFailed},
		{"failed, always, over", pod(always, "a"), runtimeOf("a 137"), true, corev1.PodFailed},
		{"succeeded, always, over", pod(always, "a"), runtimeOf("a 0"), true, corev1.PodSucceeded},
		{"init runs", pod(always, ".i", "a"), runtimeOf("i running"), false, corev1.PodPending},
		{"init done", pod(always, ".i", "a"), runtimeOf("i 0"), false, corev1.PodPending},
		{"init failed, always", pod(always, ".i", "a"), runtimeOf("i 1"), false, corev1.PodPending},
		{"init failed, never", pod(never, ".i", "a"), runtimeOf("i 1"), false, corev1.PodFailed},
		{"init done, runs", pod(always, ".i", "a"), runtimeOf("a running", "i 0"), false, corev1.PodRunning},
		{"init forgotten, runs", pod(always, ".i", "a"), runtimeOf("a running"), false, corev1.PodRunning},
		{"sidecar runs, rest not", pod(always, "+s", "a"), runtimeOf("s running"), false, corev1.PodPending},
		{"sidecar and rest run", pod(always, "+s", "a"), runtimeOf("a running", "s running"), false, corev1.PodRunning},
		{"sidecar ended, rest runs", pod(always, "+s", "a"), runtimeOf("a running", "s 1"), false, corev1.PodRunning},
		{"sidecar runs, rest succeeded", pod(never, "+s", "a"), runtimeOf("a 0", "s running"), false, corev1.PodRunning},
		{"sidecar ended, rest succeeded", pod(never, "+s", "a"), runtimeOf("a 0", "s 137"), false, corev1.PodSucceeded},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := observedFrom(row.seen)
			s.Ended = row.ended
			if got := Of(row.pod, s).Phase; got != row.want {
				t.Errorf("phase %s, want %s", got, row.want)
			}
		})
	}
}

func TestConditions(t *testing.T) {
	no := func(*corev1.Container, string) bool { return false }
	gated := pod(always, "a")
	gated.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.org/gate"}}
	open := gated.DeepCopy()
	open.Status.Conditions = []corev1.PodCondition{{Type: "example.org/gate", Status: corev1.ConditionTrue}}
	closed := gated.DeepCopy()
	closed.Status.Conditions = []corev1.PodCondition{{Type: "example.org/gate", Status: corev1.ConditionFalse}}
	for _, row := range []struct {
		name   string
		pod    *corev1.Pod
		seen   *cri.Pod
		ready  func(*corev1.Container, string) bool
		want   string // type=status(reason: message), in the order of the API
		absent corev1.PodConditionType
	}{
		{"nothing yet", pod(always, "a"), &cri.Pod{}, nil,
			"PodReadyToStartContainers=False(PodSandboxNotReady: no pod sandbox exists) Initialized=True Ready=False(ContainersNotReady: containers with unready status: [a]) ContainersReady=False(ContainersNotReady: containers with unready status: [a]) PodScheduled=True", ""},
		{"runs", pod(always, "a"), runtimeOf("a running"), nil, "PodReadyToStartContainers=True Initialized=True Ready=True ContainersReady=True PodScheduled=True", ""},
		{"not ready", pod(always, "a", "b"), runtimeOf("a running", "b running"), no,
			"PodReadyToStartContainers=True Initialized=True Ready=False(ContainersNotReady: containers with unready status: [a b]) ContainersReady=False(ContainersNotReady: containers with unready status: [a b]) PodScheduled=True", ""},
		{"initializing", pod(always, ".i", ".j", "a"), runtimeOf("i running"), nil,
			"PodReadyToStartContainers=True Initialized=False(ContainersNotInitialized: containers with incomplete status: [i j]) Ready=False(ContainersNotReady: containers with unready status: [a]) ContainersReady=False(ContainersNotReady: containers with unready status: [a]) PodScheduled=True", ""},
		{"succeeded", pod(never, "a"), runtimeOf("a 0"), nil,
			"PodReadyToStartContainers=True Initialized=True(PodCompleted: ) Ready=False(PodCompleted: ) ContainersReady=False(PodCompleted: ) PodScheduled=True", ""},
		{"failed", pod(never, "a"), runtimeOf("a 1"), nil,
			"PodReadyToStartContainers=True Initialized=True Ready=False(PodFailed: ) ContainersReady=False(PodFailed: ) PodScheduled=True", ""},
		{"gate missing", gated, runtimeOf("a running"), nil,
			`PodReadyToStartContainers=True Initialized=True Ready=False(ReadinessGatesNotReady: corresponding condition of pod readiness gate "example.org/gate" does not exist.) ContainersReady=True PodScheduled=True`, ""},
		{"gate closed", closed, runtimeOf("a running"), nil,
			`example.org/gate=False PodReadyToStartContainers=True Initialized=True Ready=False(ReadinessGatesNotReady: the status of pod readiness gate "example.org/gate" is not "True", but False) ContainersReady=True PodScheduled=True`, ""},
		{"gate open", open, runtimeOf("a running"), nil,
			"example.org/gate=True PodReadyToStartContainers=True Initialized=True Ready=True ContainersReady=True PodScheduled=True", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := observedFrom(row.seen)
			s.Ready = row.ready
			var words []string
			for _, c := range Of(row.pod, s).Conditions {
				word := fmt.Sprintf("%s=%s", c.Type, c.Status)
				if c.Reason != "" {
					word += fmt.Sprintf("(%s: %s)", c.Reason, c.Message)
				}
				words = append(words, word)
				if strings.Contains(string(c.Type), "/") {
					continue
				}
				if c.ObservedGeneration != 3 || !c.LastTransitionTime.Time.Equal(at) {
					t.Errorf("condition %+v", c)
				}
			}
			if got := strings.Join(words, " "); got != row.want {
				t.Errorf("conditions\n%s, want\n%s", got, row.want)
			}
		})
	}
}

func TestTransitionTimesStay(t *testing.T) {
	s := observedFrom(runtimeOf("a running"))
	first := Of(pod(always, "a"), s)
	s.Old, s.Now = &first, at.Add(time.Hour)
	second := Of(pod(always, "a"), s)
	if !equality.Semantic.DeepEqual(first, second) {
		t.Errorf("nothing happened, but the status changed:\n%+v\n%+v", first, second)
	}
	s.Runtime = runtimeOf("a 1")
	third := Of(pod(always, "a"), s)
	if c := condition(third.Conditions, corev1.PodReady); !c.LastTransitionTime.Time.Equal(at.Add(time.Hour)) {
		t.Errorf("ready changed, but not its time: %+v", c)
	}
	if c := condition(third.Conditions, corev1.PodScheduled); !c.LastTransitionTime.Time.Equal(at) {
		t.Errorf("scheduled did not change, but its time did: %+v", c)
	}
}

func TestContainers(t *testing.T) {
	running := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		Name: "a", ContainerID: "containerd://old", RestartCount: 4, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}}
	ended := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		Name: "a", ContainerID: "containerd://old", RestartCount: 4, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 5}},
	}}}
	for _, row := range []struct {
		name   string
		pod    *corev1.Pod
		seen   *cri.Pod
		old    corev1.PodStatus
		failed map[string]Reason
		want   string // state, restarts, last state
	}{
		{"not made", pod(always, "a"), runtimeOf(), corev1.PodStatus{}, nil, "waiting ContainerCreating, 0, -"},
		{"not made, init containers first", pod(always, ".i", "a"), runtimeOf(), corev1.PodStatus{}, nil, "waiting PodInitializing, 0, -"},
		{"cannot be made", pod(always, "a"), runtimeOf(), corev1.PodStatus{}, map[string]Reason{"a": {"ErrImagePull", "no"}}, "waiting ErrImagePull no, 0, -"},
		{"runs", pod(always, "a"), runtimeOf("a running"), corev1.PodStatus{}, nil, "running, 0, -"},
		{"runs, an old failure does not count", pod(always, "a"), runtimeOf("a running"), corev1.PodStatus{}, map[string]Reason{"a": {"ErrImagePull", "no"}}, "running, 0, -"},
		{"ended", pod(always, "a"), runtimeOf("a 2"), corev1.PodStatus{}, nil, "terminated 2 Error, 0, -"},
		{"waits to be restarted", pod(always, "a"), runtimeOf("a 2"), corev1.PodStatus{}, map[string]Reason{"a": {"CrashLoopBackOff", "wait"}}, "waiting CrashLoopBackOff wait, 0, terminated 2 Error"},
		{"ended for good, does not wait", pod(never, "a"), runtimeOf("a 2"), corev1.PodStatus{}, map[string]Reason{"a": {"CrashLoopBackOff", "wait"}}, "terminated 2 Error, 0, -"},
		{"restarted", pod(always, "a"), runtimeOf("a running", "a 2"), corev1.PodStatus{}, nil, "running, 0, terminated 2 Error"},
		{"restarted, last run forgotten", pod(always, "a"), runtimeOf("a running"), ended, nil, "running, 5, terminated 5 "},
		{"forgotten while it ran", pod(always, "a"), runtimeOf(), running, nil, "waiting ContainerCreating, 5, terminated 137 ContainerStatusUnknown"},
		{"forgotten after it ended", pod(never, "a"), runtimeOf(), ended, nil, "terminated 5 , 4, -"},
		{"unknown after it ran", pod(always, "a"), runtimeOf("a unknown"), running, nil, "terminated 137 ContainerStatusUnknown, 5, -"},
		{"counts do not go back", pod(always, "a"), runtimeOf("a running"), running, nil, "running, 4, -"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := observedFrom(row.seen)
			s.Old, s.Failed = &row.old, row.failed
			got := Of(row.pod, s).ContainerStatuses[0]
			if text := fmt.Sprintf("%s, %d, %s", describe(got.State), got.RestartCount, describe(got.LastTerminationState)); text != row.want {
				t.Errorf("status %q, want %q", text, row.want)
			}
		})
	}
}

func describe(s corev1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Waiting != nil:
		return strings.TrimSpace("waiting " + s.Waiting.Reason + " " + s.Waiting.Message)
	case s.Terminated != nil:
		return fmt.Sprintf("terminated %d %s", s.Terminated.ExitCode, s.Terminated.Reason)
	}
	return "-"
}

func TestResources(t *testing.T) {
	q := func(text string) *resource.Quantity { v := resource.MustParse(text); return &v }
	p := pod(always, "a")
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: *q("1"), corev1.ResourceMemory: *q("1Gi")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: *q("2"), corev1.ResourceMemory: *q("2Gi")},
	}
	r := runtimeOf("a running")
	r.Containers[0].Resources = cri.Resources{CPURequest: q("500m"), CPULimit: q("1500m"), MemoryLimit: q("1536Mi")}
	s := observedFrom(r)
	s.Actuated = map[string]corev1.ResourceRequirements{"a": {Requests: corev1.ResourceList{corev1.ResourceMemory: *q("512Mi")}}}
	got := Of(p, s).ContainerStatuses[0]
	if text := fmt.Sprint(got.Resources.Requests.Cpu(), got.Resources.Limits.Cpu(), got.Resources.Requests.Memory(), got.Resources.Limits.Memory()); text != "500m 1500m 512Mi 1536Mi" {
		t.Errorf("resources are those asked for, not those it has: %s", text)
	}
	if got.AllocatedResources.Cpu().String() != "1" {
		t.Errorf("allocated %v", got.AllocatedResources)
	}
}

func TestAddresses(t *testing.T) {
	for _, row := range []struct {
		name       string
		ips, hosts []string
		want       string
	}{
		{"one", []string{"10.0.0.1"}, []string{"192.0.2.1"}, "[10.0.0.1]"},
		{"both families", []string{"fd00::1", "10.0.0.1"}, []string{"192.0.2.1"}, "[10.0.0.1 fd00::1]"},
		{"node prefers IPv6", []string{"10.0.0.1", "fd00::1"}, []string{"2001:db8::1"}, "[fd00::1 10.0.0.1]"},
		{"more than one of a family", []string{"10.0.0.1", "10.0.0.2"}, nil, "[10.0.0.1]"},
	} {
		if got := fmt.Sprint(SortIPs(row.ips, row.hosts)); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

func TestMerge(t *testing.T) {
	api := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
		{Type: "example.org/theirs", Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
	}}}
	failed := &corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue},
	}}
	early := merge(api, failed, true)
	if early.Phase != corev1.PodRunning || early.Reason != "" || condition(early.Conditions, corev1.DisruptionTarget) != nil {
		t.Errorf("a pod whose containers may run was reported as ended: %+v", early)
	}
	late := merge(api, failed, false)
	if late.Phase != corev1.PodFailed || condition(late.Conditions, corev1.DisruptionTarget) == nil || condition(late.Conditions, "example.org/theirs") == nil {
		t.Errorf("ended: %+v", late)
	}
	if c := condition(late.Conditions, corev1.PodReady); c.Status != corev1.ConditionFalse || c.Reason != "PodFailed" {
		t.Errorf("a failed pod is ready: %+v", c)
	}
	over := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
	if back := merge(over, &corev1.PodStatus{Phase: corev1.PodRunning}, true); back.Phase != corev1.PodSucceeded {
		t.Errorf("a pod came back to life: %s", back.Phase)
	}
}

func TestFinal(t *testing.T) {
	p := pod(always, ".i", ".j", "a")
	status := &corev1.PodStatus{
		Phase:                 corev1.PodPending,
		InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}, {Name: "j", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}},
		ContainerStatuses:     []corev1.ContainerStatus{{Name: "a", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}},
	}
	last := final(p, status)
	if last.Phase != corev1.PodFailed || last.InitContainerStatuses[0].State.Terminated == nil || last.InitContainerStatuses[1].State.Waiting == nil || last.ContainerStatuses[0].State.Waiting == nil {
		t.Errorf("final status %+v", last)
	}
	p = pod(always, "a")
	last = final(p, &corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}})
	if end := last.ContainerStatuses[0].State.Terminated; last.Phase != corev1.PodFailed || end == nil || end.Reason != StatusUnknown || end.ExitCode != 137 {
		t.Errorf("final status %+v", last)
	}
}
