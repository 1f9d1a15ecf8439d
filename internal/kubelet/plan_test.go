package kubelet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/container"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/probe"
)

var testNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// The pods of the tables: options that add to a spec.
type podOption func(*corev1.Pod)

func planned(options ...podOption) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways}}
	pod.Name, pod.Namespace, pod.UID = "p", "ns", "u"
	for _, o := range options {
		o(pod)
	}
	return pod
}

func policy(p corev1.RestartPolicy) podOption {
	return func(pod *corev1.Pod) { pod.Spec.RestartPolicy = p }
}

var always, onFailure, never = policy(corev1.RestartPolicyAlways), policy(corev1.RestartPolicyOnFailure), policy(corev1.RestartPolicyNever)

type containerOption func(*corev1.Container)

func built(name string, options []containerOption) corev1.Container {
	c := corev1.Container{Name: name, Image: "image"}
	for _, o := range options {
		o(&c)
	}
	return c
}

func regular(name string, options ...containerOption) podOption {
	return func(pod *corev1.Pod) { pod.Spec.Containers = append(pod.Spec.Containers, built(name, options)) }
}

func initial(name string, options ...containerOption) podOption {
	return func(pod *corev1.Pod) { pod.Spec.InitContainers = append(pod.Spec.InitContainers, built(name, options)) }
}

func sidecar(name string, options ...containerOption) podOption {
	return initial(name, append(options, own(corev1.ContainerRestartPolicyAlways))...)
}

func ephemeral(name, target string) podOption {
	return func(pod *corev1.Pod) {
		pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name, Image: "image"}, TargetContainerName: target,
		})
	}
}

func own(p corev1.ContainerRestartPolicy) containerOption {
	return func(c *corev1.Container) { c.RestartPolicy = &p }
}

func rule(action corev1.ContainerRestartRuleAction, operator corev1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) containerOption {
	return func(c *corev1.Container) {
		c.RestartPolicyRules = append(c.RestartPolicyRules, corev1.ContainerRestartRule{
			Action: action, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: operator, Values: codes},
		})
	}
}

func withProbes(c *corev1.Container) {
	c.StartupProbe, c.LivenessProbe = &corev1.Probe{}, &corev1.Probe{}
}

// needs sets requests and limits: "cpu request/cpu limit memory request/memory limit".
func needs(cpuRequest, cpuLimit, memoryRequest, memoryLimit string) containerOption {
	return func(c *corev1.Container) {
		c.Resources = requirements(cpuRequest, cpuLimit, memoryRequest, memoryLimit)
	}
}

func requirements(cpuRequest, cpuLimit, memoryRequest, memoryLimit string) corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	set := func(list corev1.ResourceList, name corev1.ResourceName, text string) {
		if text != "" {
			list[name] = resource.MustParse(text)
		}
	}
	set(r.Requests, corev1.ResourceCPU, cpuRequest)
	set(r.Limits, corev1.ResourceCPU, cpuLimit)
	set(r.Requests, corev1.ResourceMemory, memoryRequest)
	set(r.Limits, corev1.ResourceMemory, memoryLimit)
	return r
}

func restartOn(name corev1.ResourceName) containerOption {
	return func(c *corev1.Container) {
		c.ResizePolicy = append(c.ResizePolicy, corev1.ContainerResizePolicy{ResourceName: name, RestartPolicy: corev1.RestartContainer})
	}
}

// The node of the tables: its observed state.
type stateOption func(*observedState)

func observe(options ...stateOption) observedState {
	s := observedState{
		Runtime: &cri.Pod{UID: "u"}, Liveness: map[string]probe.Result{}, Startup: map[string]probe.Result{},
		Actuated: map[string]corev1.ResourceRequirements{}, Restarts: newRestarts(0), StartedAt: testNow.Add(-time.Minute),
	}
	for _, o := range options {
		o(&s)
	}
	return s
}

// sandboxes adds sandboxes, the newest first: r is ready, n not, a has no address, h shares the host's network.
func sandboxes(states string) stateOption {
	return func(s *observedState) {
		for i, state := range states {
			sandbox := &cri.Sandbox{
				ID: fmt.Sprint("s", len(states)-1-i), Attempt: uint32(len(states) - 1 - i), Ready: true, Network: &cri.SandboxNetwork{IPs: []string{"10.0.0.1"}},
			}
			switch state {
			case 'n':
				sandbox.Ready = false
			case 'a':
				sandbox.Network.IPs = nil
			case 'h':
				sandbox.HostNetwork = true
			}
			s.Runtime.Sandboxes = append(s.Runtime.Sandboxes, sandbox)
		}
	}
}

var ready = sandboxes("r")

func has(name string, state cri.State, change func(*cri.Container)) stateOption {
	return func(s *observedState) {
		c := &cri.Container{ID: name + "-id", Name: name, State: state, Hash: cri.Hash(&corev1.Container{Name: name, Image: "image"}), FinishedAt: testNow}
		if len(s.Runtime.Sandboxes) > 0 {
			c.SandboxID = s.Runtime.Sandboxes[0].ID
		}
		if change != nil {
			change(c)
		}
		s.Runtime.Containers = append(s.Runtime.Containers, c)
	}
}

func runs(name string) stateOption    { return has(name, cri.Running, nil) }
func created(name string) stateOption { return has(name, cri.Created, nil) }
func unknown(name string) stateOption { return has(name, cri.Unknown, nil) }

func exited(name string, code int32) stateOption {
	return has(name, cri.Exited, func(c *cri.Container) { c.ExitCode = code })
}

func earlier(name string, code int32) stateOption { // in a sandbox that is gone
	return has(name, cri.Exited, func(c *cri.Container) { c.ExitCode, c.SandboxID = code, "gone" })
}

func changed(name string) stateOption {
	return has(name, cri.Running, func(c *cri.Container) { c.Hash = "other" })
}

func alive(name string, r probe.Result) stateOption {
	return func(s *observedState) { s.Liveness[name+"-id"] = r }
}

func startup(name string, r probe.Result) stateOption {
	return func(s *observedState) { s.Startup[name+"-id"] = r }
}

// restarted says how long ago a container of the pod was restarted, and what delay it then had.
func restartedAt(c corev1.Container, ago, delay time.Duration) stateOption {
	return func(s *observedState) {
		s.Restarts.entries[restartKey(&c)] = restartEntry{delay: delay, restartedAt: testNow.Add(-ago)}
	}
}

func endedAgo(name string, code int32, ago time.Duration) stateOption {
	return has(name, cri.Exited, func(c *cri.Container) { c.ExitCode, c.FinishedAt = code, testNow.Add(-ago) })
}

func actuated(name string, r corev1.ResourceRequirements) stateOption {
	return func(s *observedState) { s.Actuated[name] = r }
}

func startedAgo(d time.Duration) stateOption {
	return func(s *observedState) { s.StartedAt = testNow.Add(-d) }
}

func restartAll(s *observedState) { s.RestartAll = true }

// text is a plan in words, so that tables can be read.
func (a Actions) text() string {
	var words []string
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	if a.Fail != nil {
		add("fail %s", a.Fail.Reason)
	}
	if a.KillPod {
		add("kill pod")
	}
	for _, k := range a.Kill {
		add("kill %s%s", k.Name, [...]string{"", "(liveness)", "(startup)"}[k.Reason])
	}
	for _, r := range a.Reset {
		add("remove %s%s", r.Name, map[bool]string{true: "!", false: ""}[r.Stop])
	}
	if a.NewSandbox {
		add("sandbox %d", a.Attempt)
	}
	for _, r := range a.Resize {
		add("resize %s %s", r.Container.Name, r.Resource)
	}
	if a.ResizePod {
		add("resize pod")
	}
	for _, s := range a.Start {
		target := ""
		if s.Target != "" {
			target = ">" + s.Target
		}
		add("start %s%s%s", [...]string{"init ", "", "ephemeral "}[s.Kind], s.Container.Name, target)
	}
	for _, w := range a.Wait {
		add("wait %s %s", w.Container.Name, w.Delay)
	}
	if len(words) == 0 {
		return "nothing"
	}
	return strings.Join(words, ", ")
}

type planRow struct {
	name  string
	pod   *corev1.Pod
	state observedState
	want  string
}

func checkPlans(t *testing.T, rows []planRow) {
	t.Helper()
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			before := len(r.state.Restarts.entries)
			if got := planPod(r.pod, r.state, testNow).text(); got != r.want {
				t.Errorf("plan is %q, want %q", got, r.want)
			}
			if len(r.state.Restarts.entries) != before {
				t.Error("planning changed what it looked at")
			}
		})
	}
}

const (
	restart        = corev1.ContainerRestartRuleActionRestart
	restartThemAll = corev1.ContainerRestartRuleActionRestartAllContainers
	in             = corev1.ContainerRestartRuleOnExitCodesOpIn
	notIn          = corev1.ContainerRestartRuleOnExitCodesOpNotIn
	ownAlways      = corev1.ContainerRestartPolicyAlways
	ownOnFailure   = corev1.ContainerRestartPolicyOnFailure
	ownNever       = corev1.ContainerRestartPolicyNever
	memory         = corev1.ResourceMemory
	cpu            = corev1.ResourceCPU
	nothing        = "nothing"
	killAll        = "kill pod"
	passed, notYet = probe.Passed, probe.Undecided
	failed         = probe.Failed
	newSandbox0    = "kill pod, sandbox 0, start a"
	newSandbox1    = "kill pod, sandbox 1, start a"
)

func hostNetwork(pod *corev1.Pod) { pod.Spec.HostNetwork = true }

func deleted(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: testNow} }

func deadline(seconds int64) podOption {
	return func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = &seconds }
}

func TestPlanSandbox(t *testing.T) {
	a := regular("a")
	checkPlans(t, []planRow{
		{"new pod", planned(a), observe(), newSandbox0},
		{"new pod of two containers", planned(a, regular("b")), observe(), "kill pod, sandbox 0, start a, start b"},
		{"new pod that never restarts", planned(never, a), observe(), newSandbox0},
		{"new pod that restarts on failure", planned(onFailure, a), observe(), newSandbox0},
		{"new pod on the host's network", planned(hostNetwork, a), observe(), newSandbox0},
		{"new pod with init containers starts the first", planned(initial("i"), initial("j"), a), observe(), "kill pod, sandbox 0, start init i"},
		{"new pod with a sidecar starts it first", planned(sidecar("s"), a), observe(), "kill pod, sandbox 0, start init s"},
		{"sandbox ready, container missing", planned(a), observe(ready), "start a"},
		{"sandbox died", planned(a), observe(sandboxes("n"), earlier("a", 0)), newSandbox1},
		{"sandbox died, container runs", planned(a), observe(sandboxes("n"), runs("a")), newSandbox1},
		{"sandbox died twice", planned(a), observe(sandboxes("nn"), earlier("a", 0)), "kill pod, sandbox 2, start a"},
		{"two sandboxes ready", planned(a), observe(sandboxes("rr"), runs("a")), "kill pod, sandbox 2, start a"},
		{"old sandbox dead, new one ready", planned(a), observe(sandboxes("rn"), runs("a")), nothing},
		{"newest sandbox dead, old one ready", planned(a), observe(sandboxes("nr"), runs("a")), "kill pod, sandbox 2, start a"},
		{"sandbox without address", planned(a), observe(sandboxes("a"), runs("a")), newSandbox1},
		{"sandbox without address on the host's network", planned(hostNetwork, a), observe(sandboxes("h"), runs("a")), nothing},
		{"pod moved to the host's network", planned(hostNetwork, a), observe(ready, runs("a")), newSandbox1},
		{"pod moved off the host's network", planned(a), observe(sandboxes("h"), runs("a")), newSandbox1},
		{"sandbox died, never restarts, has run", planned(never, a), observe(sandboxes("n"), earlier("a", 1)), killAll},
		{"sandbox died, never restarts, was still running", planned(never, a), observe(sandboxes("n"), runs("a")), killAll},
		{"sandbox died before a container was made, never restarts", planned(never, a), observe(sandboxes("n")), newSandbox1},
		{"sandbox died, on failure, succeeded", planned(onFailure, a), observe(sandboxes("n"), earlier("a", 0)), killAll},
		{"sandbox died, on failure, failed", planned(onFailure, a), observe(sandboxes("n"), earlier("a", 1)), newSandbox1},
		{"sandbox died, on failure, one of two succeeded", planned(onFailure, a, regular("b")), observe(sandboxes("n"), earlier("a", 0), earlier("b", 1)), "kill pod, sandbox 1, start b"},
		{"sandbox died, own policy on failure, succeeded", planned(regular("a", own(ownOnFailure))), observe(sandboxes("n"), earlier("a", 0)), killAll},
		{"sandbox died, own policy always, pod on failure", planned(onFailure, regular("a", own(ownAlways))), observe(sandboxes("n"), earlier("a", 0)), newSandbox1},
		{"sandbox died, init containers run again", planned(initial("i"), a), observe(sandboxes("n"), earlier("i", 0), earlier("a", 0)), "kill pod, sandbox 1, start init i"},
		{"sandbox died, on failure, all done, with init containers", planned(onFailure, initial("i"), a), observe(sandboxes("n"), earlier("i", 0), earlier("a", 0)), killAll},
		{"sandbox died, ephemeral containers do not come back", planned(a, ephemeral("e", "")), observe(sandboxes("n"), earlier("a", 0), earlier("e", 0)), newSandbox1},
	})
}

func TestPlanRegular(t *testing.T) {
	a, b := regular("a"), regular("b")
	checkPlans(t, []planRow{
		{"runs", planned(a), observe(ready, runs("a")), nothing},
		{"both run", planned(a, b), observe(ready, runs("a"), runs("b")), nothing},
		{"one missing", planned(a, b), observe(ready, runs("a")), "start b"},
		{"created but not started", planned(a), observe(ready, created("a")), "start a"},
		{"created but not started, never restarts", planned(never, a), observe(ready, created("a")), "start a"},
		{"unknown", planned(a), observe(ready, unknown("a")), "kill a, start a"},
		{"unknown, never restarts", planned(never, a), observe(ready, unknown("a")), "kill a, start a"},
		{"always, succeeded", planned(always, a), observe(ready, exited("a", 0)), "start a"},
		{"always, failed", planned(always, a), observe(ready, exited("a", 1)), "start a"},
		{"on failure, succeeded", planned(onFailure, a), observe(ready, exited("a", 0)), killAll},
		{"on failure, failed", planned(onFailure, a), observe(ready, exited("a", 1)), "start a"},
		{"never, succeeded", planned(never, a), observe(ready, exited("a", 0)), killAll},
		{"never, failed", planned(never, a), observe(ready, exited("a", 1)), killAll},
		{"never, one done, other runs", planned(never, a, b), observe(ready, exited("a", 1), runs("b")), nothing},
		{"on failure, one done, other failed", planned(onFailure, a, b), observe(ready, exited("a", 0), exited("b", 2)), "start b"},
		{"on failure, both done", planned(onFailure, a, b), observe(ready, exited("a", 0), exited("b", 0)), killAll},
		{"never, one done, other missing", planned(never, a, b), observe(ready, exited("a", 0)), "start b"},
		{"image changed", planned(a), observe(ready, changed("a")), "kill a, start a"},
		{"image changed, never restarts", planned(never, a), observe(ready, changed("a")), "kill a, start a"},
		{"image of one changed", planned(a, b), observe(ready, runs("a"), changed("b")), "kill b, start b"},
		{"old runs do not count", planned(never, a), observe(ready, runs("a"), exited("a", 1)), nothing},
		{"deleted pods start nothing", planned(deleted, a), observe(ready, exited("a", 1)), killAll},
	})
}

func TestPlanOwnPolicyAndRules(t *testing.T) {
	checkPlans(t, []planRow{
		{"own always, pod never, succeeded", planned(never, regular("a", own(ownAlways))), observe(ready, exited("a", 0)), "start a"},
		{"own always, pod never, failed", planned(never, regular("a", own(ownAlways))), observe(ready, exited("a", 1)), "start a"},
		{"own on failure, pod never, succeeded", planned(never, regular("a", own(ownOnFailure))), observe(ready, exited("a", 0)), killAll},
		{"own on failure, pod never, failed", planned(never, regular("a", own(ownOnFailure))), observe(ready, exited("a", 1)), "start a"},
		{"own never, pod always, succeeded", planned(regular("a", own(ownNever))), observe(ready, exited("a", 0)), killAll},
		{"own never, pod always, failed", planned(regular("a", own(ownNever))), observe(ready, exited("a", 1)), killAll},
		{"own never, other of the pod's policy", planned(regular("a", own(ownNever)), regular("b")), observe(ready, exited("a", 1), exited("b", 1)), "start b"},
		{"own never with rule, code listed", planned(never, regular("a", own(ownNever), rule(restart, in, 42))), observe(ready, exited("a", 42)), "start a"},
		{"own never with rule, code not listed", planned(never, regular("a", own(ownNever), rule(restart, in, 42))), observe(ready, exited("a", 41)), killAll},
		{"own never with rule of two codes", planned(never, regular("a", own(ownNever), rule(restart, in, 41, 42))), observe(ready, exited("a", 41)), "start a"},
		{"own never with inverted rule, code listed", planned(never, regular("a", own(ownNever), rule(restart, notIn, 42))), observe(ready, exited("a", 42)), killAll},
		{"own never with inverted rule, code not listed", planned(never, regular("a", own(ownNever), rule(restart, notIn, 42))), observe(ready, exited("a", 1)), "start a"},
		{"own never with inverted rule, succeeded", planned(never, regular("a", own(ownNever), rule(restart, notIn, 42))), observe(ready, exited("a", 0)), "start a"},
		{"second rule matches", planned(never, regular("a", own(ownNever), rule(restart, in, 1), rule(restart, in, 2))), observe(ready, exited("a", 2)), "start a"},
		{"rules without own policy do not count", planned(never, regular("a", rule(restart, in, 42))), observe(ready, exited("a", 42)), killAll},
		{"own on failure with rule for success", planned(never, regular("a", own(ownOnFailure), rule(restart, in, 0))), observe(ready, exited("a", 0)), "start a"},
		{"init container, own never, failed", planned(initial("i", own(ownNever)), regular("a")), observe(ready, exited("i", 1)), killAll},
		{"init container, own on failure, pod never, failed", planned(never, initial("i", own(ownOnFailure)), regular("a")), observe(ready, exited("i", 1)), "start init i"},
		{"init container, rule matches, pod never", planned(never, initial("i", own(ownNever), rule(restart, in, 7)), regular("a")), observe(ready, exited("i", 7)), "start init i"},
		{"init container, rule does not match, pod never", planned(never, initial("i", own(ownNever), rule(restart, in, 7)), regular("a")), observe(ready, exited("i", 8)), killAll},
		{"restart all removes the others first", planned(regular("a", own(ownNever), rule(restartThemAll, in, 42)), regular("b")), observe(ready, exited("a", 42), runs("b"), restartAll), "remove b!, remove a"},
		{"restart all removes init containers too", planned(initial("i"), regular("a", own(ownNever), rule(restartThemAll, in, 42))), observe(ready, exited("i", 0), exited("a", 42), restartAll), "remove i, remove a"},
		{"restart all of three", planned(sidecar("s"), regular("a"), regular("b", own(ownNever), rule(restartThemAll, in, 1))), observe(ready, runs("s"), runs("a"), exited("b", 1), restartAll), "remove a!, remove s!, remove b"},
		{"restart all removes old runs as well", planned(regular("a", own(ownNever), rule(restartThemAll, in, 42))), observe(ready, exited("a", 42), exited("a", 1), restartAll), "remove a, remove a"},
		{"after restart all everything starts", planned(regular("a", own(ownNever), rule(restartThemAll, in, 42)), regular("b")), observe(ready), "start a, start b"},
	})
}

func TestPlanInit(t *testing.T) {
	i, j, a := initial("i"), initial("j"), regular("a")
	checkPlans(t, []planRow{
		{"none started", planned(i, j, a), observe(ready), "start init i"},
		{"first runs", planned(i, j, a), observe(ready, runs("i")), nothing},
		{"first done", planned(i, j, a), observe(ready, exited("i", 0)), "start init j"},
		{"second runs", planned(i, j, a), observe(ready, exited("i", 0), runs("j")), nothing},
		{"all done", planned(i, j, a), observe(ready, exited("i", 0), exited("j", 0)), "start a"},
		{"all done, first removed", planned(i, j, a), observe(ready, exited("j", 0)), "start a"},
		{"first failed", planned(i, j, a), observe(ready, exited("i", 1)), "start init i"},
		{"second failed", planned(i, j, a), observe(ready, exited("i", 0), exited("j", 1)), "start init j"},
		{"first failed, on failure", planned(onFailure, i, a), observe(ready, exited("i", 1)), "start init i"},
		{"first failed, never", planned(never, i, j, a), observe(ready, exited("i", 1)), killAll},
		{"second failed, never", planned(never, i, j, a), observe(ready, exited("i", 0), exited("j", 1)), killAll},
		{"first done, never", planned(never, i, j, a), observe(ready, exited("i", 0)), "start init j"},
		{"first created but not started", planned(i, a), observe(ready, created("i")), "start init i"},
		{"first unknown", planned(i, a), observe(ready, unknown("i")), "kill i, start init i"},
		{"first unknown, never", planned(never, i, a), observe(ready, unknown("i")), killAll},
		{"first unknown, never but own always", planned(never, initial("i", own(ownOnFailure)), a), observe(ready, unknown("i")), "kill i, start init i"},
		{"initialized, init containers removed", planned(i, j, a), observe(ready, runs("a")), nothing},
		{"initialized, container ended", planned(i, j, a), observe(ready, exited("a", 1)), "start a"},
		{"initialized in a sandbox that is gone", planned(i, a), observe(ready, earlier("a", 1)), "start init i"},
		{"done in a sandbox that is gone", planned(i, a), observe(ready, earlier("i", 0)), "start init i"},
		{"initialized, an old failure does not count", planned(never, i, a), observe(ready, exited("i", 1), runs("a")), nothing},
		{"image of a done init container changed", planned(i, a), observe(ready, has("i", cri.Exited, func(c *cri.Container) { c.Hash = "other" }), runs("a")), nothing},
		{"done, regular one created", planned(i, a), observe(ready, exited("i", 0), created("a")), "start a"},
	})
}

func TestPlanSidecars(t *testing.T) {
	s, u, i, a := sidecar("s"), sidecar("u"), initial("i"), regular("a")
	probed := sidecar("s", withProbes)
	checkPlans(t, []planRow{
		{"none started", planned(s, a), observe(ready), "start init s"},
		{"runs, no startup probe", planned(s, a), observe(ready, runs("s")), "start a"},
		{"runs, next init container starts", planned(s, i, a), observe(ready, runs("s")), "start init i"},
		{"runs, init container runs", planned(s, i, a), observe(ready, runs("s"), runs("i")), nothing},
		{"runs, init container done", planned(s, i, a), observe(ready, runs("s"), exited("i", 0)), "start a"},
		{"two, first runs", planned(s, u, a), observe(ready, runs("s")), "start init u"},
		{"two, both run", planned(s, u, a), observe(ready, runs("s"), runs("u")), "start a"},
		{"startup not asked yet", planned(probed, a), observe(ready, runs("s")), nothing},
		{"startup undecided", planned(probed, a), observe(ready, runs("s"), startup("s", notYet)), nothing},
		{"startup passed", planned(probed, a), observe(ready, runs("s"), startup("s", passed), alive("s", passed)), "start a"},
		{"startup failed", planned(probed, a), observe(ready, runs("s"), startup("s", failed)), "kill s(startup), start init s"},
		{"liveness failed before the others started", planned(probed, a), observe(ready, runs("s"), startup("s", passed), alive("s", failed)), "kill s(liveness), start init s, start a"},
		{"liveness failed later", planned(probed, a), observe(ready, runs("s"), runs("a"), startup("s", passed), alive("s", failed)), "kill s(liveness), start init s"},
		{"ended while the others run", planned(s, a), observe(ready, exited("s", 0), runs("a")), "start init s"},
		{"failed while the others run", planned(s, a), observe(ready, exited("s", 1), runs("a")), "start init s"},
		{"failed, pod never restarts", planned(never, s, a), observe(ready, exited("s", 1), runs("a")), "start init s"},
		{"ended before the others started", planned(s, a), observe(ready, exited("s", 1)), "start init s"},
		{"ended while a later init container runs", planned(s, i, a), observe(ready, exited("s", 1), runs("i")), "start init s"},
		{"removed while the others run", planned(s, a), observe(ready, runs("a")), "start init s"},
		{"removed while a later init container runs", planned(s, i, a), observe(ready, runs("i")), "start init s"},
		{"unknown while the others run", planned(s, a), observe(ready, unknown("s"), runs("a")), "kill s, start init s"},
		{"created but not started", planned(s, a), observe(ready, created("s")), "start init s"},
		{"image changed", planned(s, a), observe(ready, changed("s"), runs("a")), "kill s, start init s"},
		{"two ended while the others run", planned(s, u, a), observe(ready, exited("s", 1), exited("u", 1), runs("a")), "start init s, start init u"},
		{"regular ones done, never", planned(never, s, a), observe(ready, runs("s"), exited("a", 0)), killAll},
		{"regular ones done, on failure", planned(onFailure, s, a), observe(ready, runs("s"), exited("a", 0)), killAll},
		{"regular ones failed, never", planned(never, s, a), observe(ready, runs("s"), exited("a", 1)), killAll},
		{"regular ones done, sidecar ended too", planned(never, s, a), observe(ready, exited("s", 0), exited("a", 0)), killAll},
		{"regular one restarts, sidecar goes on", planned(s, a), observe(ready, runs("s"), exited("a", 1)), "start a"},
		{"init container failed permanently with a sidecar", planned(never, s, i, a), observe(ready, runs("s"), exited("i", 1)), killAll},
		{"init container fails with a sidecar", planned(s, i, a), observe(ready, runs("s"), exited("i", 1)), "start init i"},
	})
}

func TestPlanProbes(t *testing.T) {
	a := regular("a", withProbes)
	checkPlans(t, []planRow{
		{"not asked yet", planned(a), observe(ready, runs("a")), nothing},
		{"liveness passed", planned(a), observe(ready, runs("a"), alive("a", passed)), nothing},
		{"liveness failed", planned(a), observe(ready, runs("a"), alive("a", failed)), "kill a(liveness), start a"},
		{"liveness failed, on failure", planned(onFailure, a), observe(ready, runs("a"), alive("a", failed)), "kill a(liveness), start a"},
		{"liveness failed, never", planned(never, a), observe(ready, runs("a"), alive("a", failed)), "kill pod, kill a(liveness)"},
		{"liveness failed, never, another runs", planned(never, a, regular("b")), observe(ready, runs("a"), runs("b"), alive("a", failed)), "kill a(liveness)"},
		{"liveness failed, own always, pod never", planned(never, regular("a", withProbes, own(ownAlways))), observe(ready, runs("a"), alive("a", failed)), "kill a(liveness), start a"},
		{"liveness failed, own never, pod always", planned(regular("a", withProbes, own(ownNever)), regular("b")), observe(ready, runs("a"), runs("b"), alive("a", failed)), "kill a(liveness)"},
		{"liveness failed, own never, rules do not count", planned(regular("a", withProbes, own(ownNever), rule(restart, notIn, 0)), regular("b")), observe(ready, runs("a"), runs("b"), alive("a", failed)), "kill a(liveness)"},
		{"startup undecided", planned(a), observe(ready, runs("a"), startup("a", notYet)), nothing},
		{"startup failed", planned(a), observe(ready, runs("a"), startup("a", failed)), "kill a(startup), start a"},
		{"startup failed, never", planned(never, a), observe(ready, runs("a"), startup("a", failed)), "kill pod, kill a(startup)"},
		{"liveness goes before startup", planned(a), observe(ready, runs("a"), startup("a", failed), alive("a", failed)), "kill a(liveness), start a"},
		{"a changed image goes before probes", planned(never, a), observe(ready, changed("a"), alive("a", failed)), "kill a, start a"},
		{"the failure of a container that is gone", planned(a), observe(ready, runs("a"), alive("old", failed)), nothing},
	})
}

func TestPlanEphemeral(t *testing.T) {
	a, e := regular("a"), ephemeral("e", "")
	checkPlans(t, []planRow{
		{"starts", planned(a, e), observe(ready, runs("a")), "start ephemeral e"},
		{"starts with a target", planned(a, ephemeral("e", "a")), observe(ready, runs("a")), "start ephemeral e>a"},
		{"starts before init containers are done", planned(initial("i"), a, e), observe(ready, runs("i")), "start ephemeral e"},
		{"starts before the next init container", planned(initial("i"), initial("j"), a, e), observe(ready, exited("i", 0)), "start ephemeral e, start init j"},
		{"runs", planned(a, e), observe(ready, runs("a"), runs("e")), nothing},
		{"ended", planned(a, e), observe(ready, runs("a"), exited("e", 0)), nothing},
		{"failed", planned(a, e), observe(ready, runs("a"), exited("e", 1)), nothing},
		{"created but not started is not changed", planned(a, e), observe(ready, runs("a"), created("e")), nothing},
		{"two", planned(a, e, ephemeral("f", "")), observe(ready, runs("a"), exited("e", 0)), "start ephemeral f"},
		{"does not keep a pod alive", planned(never, a, e), observe(ready, exited("a", 0), runs("e")), killAll},
		{"does not start in a pod that is over", planned(never, a, e), observe(ready, exited("a", 0)), killAll},
	})
}

func TestPlanBackOff(t *testing.T) {
	a := regular("a")
	c := planned(a).Spec.Containers[0]
	i := planned(initial("i"), a).Spec.InitContainers[0]
	s := planned(sidecar("s"), a).Spec.InitContainers[0]
	checkPlans(t, []planRow{
		{"first end", planned(a), observe(ready, endedAgo("a", 1, 0)), "start a"},
		{"second end", planned(a), observe(ready, endedAgo("a", 1, 0), restartedAt(c, 5*time.Second, 10*time.Second)), "wait a 10s"},
		{"second end, a moment before the delay is over", planned(a), observe(ready, endedAgo("a", 1, 9999*time.Millisecond), restartedAt(c, 20*time.Second, 10*time.Second)), "wait a 10s"},
		{"second end, delay over", planned(a), observe(ready, endedAgo("a", 1, 10*time.Second), restartedAt(c, 20*time.Second, 10*time.Second)), "start a"},
		{"third end", planned(a), observe(ready, endedAgo("a", 1, time.Second), restartedAt(c, 2*time.Second, 20*time.Second)), "wait a 20s"},
		{"successes wait too", planned(a), observe(ready, endedAgo("a", 0, time.Second), restartedAt(c, 2*time.Second, 20*time.Second)), "wait a 20s"},
		{"longest delay", planned(a), observe(ready, endedAgo("a", 1, 299*time.Second), restartedAt(c, 300*time.Second, 300*time.Second)), "wait a 5m0s"},
		{"longest delay over", planned(a), observe(ready, endedAgo("a", 1, 300*time.Second), restartedAt(c, 400*time.Second, 300*time.Second)), "start a"},
		{"ran for ten minutes", planned(a), observe(ready, endedAgo("a", 1, 0), restartedAt(c, 601*time.Second, 300*time.Second)), "start a"},
		{"ran for almost ten minutes", planned(a), observe(ready, endedAgo("a", 1, 0), restartedAt(c, 599*time.Second, 300*time.Second)), "wait a 5m0s"},
		{"one waits, the other starts", planned(a, regular("b")), observe(ready, endedAgo("a", 1, 0), endedAgo("b", 1, 0), restartedAt(c, time.Second, 10*time.Second)), "start b, wait a 10s"},
		{"a waiting container keeps its pod alive", planned(a), observe(ready, endedAgo("a", 1, 0), restartedAt(c, time.Second, 10*time.Second)), "wait a 10s"},
		{"an init container that waits", planned(initial("i"), a), observe(ready, endedAgo("i", 1, 0), restartedAt(i, time.Second, 10*time.Second)), "wait i 10s"},
		{"a sidecar that waits holds nothing back", planned(sidecar("s"), a), observe(ready, endedAgo("s", 1, 0), exited("a", 1), restartedAt(s, time.Second, 10*time.Second)), "start a, wait s 10s"},
		{"another image has another chance", planned(regular("a", func(c *corev1.Container) { c.Image = "other" })), observe(ready, endedAgo("a", 1, 0), restartedAt(c, time.Second, 10*time.Second)), "start a"},
		{"other resources are another chance", planned(regular("a", needs("1", "", "", ""))), observe(ready, endedAgo("a", 1, 0), restartedAt(c, time.Second, 10*time.Second)), "start a"},
		{"a new sandbox does not end the wait", planned(a), observe(sandboxes("n"), endedAgo("a", 1, 0), restartedAt(c, time.Second, 10*time.Second)), "kill pod, sandbox 1, wait a 10s"},
		{"a killed container counts from its last end", planned(regular("a", withProbes)), observe(ready, runs("a"), endedAgo("a", 1, time.Minute), alive("a", failed), restartedAt(c, 50*time.Second, 10*time.Second)), "kill a(liveness), start a"},
	})
}

func TestPlanResize(t *testing.T) {
	small, large := requirements("1", "2", "1Gi", "2Gi"), requirements("2", "4", "2Gi", "4Gi")
	sized := func(r corev1.ResourceRequirements) containerOption {
		return func(c *corev1.Container) { c.Resources = r }
	}
	a := func(r corev1.ResourceRequirements, more ...containerOption) podOption {
		return regular("a", append(more, sized(r))...)
	}
	b := func(r corev1.ResourceRequirements) podOption { return regular("b", sized(r)) }
	checkPlans(t, []planRow{
		{"as it was", planned(a(small)), observe(ready, runs("a"), actuated("a", small)), nothing},
		{"nothing known of what was applied", planned(a(large)), observe(ready, runs("a")), nothing},
		{"memory before cpu when growing", planned(a(large)), observe(ready, runs("a"), actuated("a", small)), "resize a memory, resize a cpu"},
		{"memory before cpu when shrinking", planned(a(small)), observe(ready, runs("a"), actuated("a", large)), "resize a memory, resize a cpu"},
		{"only cpu limit", planned(a(requirements("1", "3", "1Gi", "2Gi"))), observe(ready, runs("a"), actuated("a", small)), "resize a cpu"},
		{"only cpu request", planned(a(requirements("1500m", "2", "1Gi", "2Gi"))), observe(ready, runs("a"), actuated("a", small)), "resize a cpu"},
		{"only memory limit", planned(a(requirements("1", "2", "1Gi", "3Gi"))), observe(ready, runs("a"), actuated("a", small)), "resize a memory"},
		{"only memory request", planned(a(requirements("1", "2", "2Gi", "2Gi"))), observe(ready, runs("a"), actuated("a", small)), "resize a memory"},
		{"what shrinks goes before what grows", planned(a(large), b(small)), observe(ready, runs("a"), runs("b"), actuated("a", small), actuated("b", large)), "resize b memory, resize a memory, resize b cpu, resize a cpu"},
		{"restart for memory", planned(a(large, restartOn(memory))), observe(ready, runs("a"), actuated("a", small)), "kill a, resize pod, start a"},
		{"restart for cpu", planned(a(large, restartOn(cpu))), observe(ready, runs("a"), actuated("a", small)), "kill a, resize pod, start a"},
		{"restart for memory, only cpu changes", planned(a(requirements("1", "3", "1Gi", "2Gi"), restartOn(memory))), observe(ready, runs("a"), actuated("a", small)), "resize a cpu"},
		{"restart for cpu, only memory changes", planned(a(requirements("1", "2", "1Gi", "3Gi"), restartOn(cpu))), observe(ready, runs("a"), actuated("a", small)), "resize a memory"},
		{"restart is done whatever the policy", planned(never, a(large, restartOn(memory))), observe(ready, runs("a"), actuated("a", small)), "kill a, resize pod, start a"},
		{"a container that is not running starts with its new size", planned(a(large)), observe(ready, exited("a", 1), actuated("a", small)), "resize pod, start a"},
		{"a failed probe goes before a resize", planned(a(large, withProbes)), observe(ready, runs("a"), alive("a", failed), actuated("a", small)), "kill a(liveness), resize pod, start a"},
		{"sidecars are resized", planned(sidecar("s", sized(large)), regular("a")), observe(ready, runs("s"), runs("a"), actuated("s", small)), "resize s memory, resize s cpu"},
		{"sidecars are restarted for it", planned(sidecar("s", sized(large), restartOn(memory)), regular("a")), observe(ready, runs("s"), runs("a"), actuated("s", small)), "kill s, resize pod, start init s"},
		{"init containers are resized", planned(initial("i", sized(large)), regular("a")), observe(ready, runs("i"), actuated("i", small)), "resize i memory, resize i cpu"},
	})
}

func TestPlanDeadline(t *testing.T) {
	a := regular("a")
	checkPlans(t, []planRow{
		{"before", planned(deadline(60), a), observe(ready, runs("a"), startedAgo(59*time.Second)), nothing},
		{"at", planned(deadline(60), a), observe(ready, runs("a"), startedAgo(60*time.Second)), "fail DeadlineExceeded"},
		{"after", planned(deadline(60), a), observe(ready, runs("a"), startedAgo(time.Hour)), "fail DeadlineExceeded"},
		{"not started", planned(deadline(1), a), observe(func(s *observedState) { s.StartedAt = time.Time{} }), newSandbox0},
		{"while init containers run", planned(deadline(60), initial("i"), a), observe(ready, runs("i"), startedAgo(time.Minute)), "fail DeadlineExceeded"},
		{"while waiting", planned(deadline(60), a), observe(ready, exited("a", 1), startedAgo(time.Minute)), "fail DeadlineExceeded"},
	})
}

func TestPlanWake(t *testing.T) {
	a := regular("a")
	c := planned(a).Spec.Containers[0]
	for _, row := range []struct {
		name  string
		pod   *corev1.Pod
		state observedState
		want  time.Duration // from now; 0 is never
	}{
		{"running pods sleep", planned(a), observe(ready, runs("a")), 0},
		{"until the deadline", planned(deadline(100), a), observe(ready, runs("a"), startedAgo(40*time.Second)), time.Minute},
		{"until the delay is over", planned(a), observe(ready, endedAgo("a", 1, 2*time.Second), restartedAt(c, 3*time.Second, 10*time.Second)), 8 * time.Second},
		{"until the first of both", planned(deadline(63), a), observe(ready, endedAgo("a", 1, 2*time.Second), restartedAt(c, 3*time.Second, 10*time.Second), startedAgo(time.Minute)), 3 * time.Second},
	} {
		t.Run(row.name, func(t *testing.T) {
			var want time.Time
			if row.want > 0 {
				want = testNow.Add(row.want)
			}
			if got := planPod(row.pod, row.state, testNow).Wake; !got.Equal(want) {
				t.Errorf("wakes at %v, want %v", got, want)
			}
		})
	}
}

func TestPlanMessages(t *testing.T) {
	for _, row := range []struct {
		pod   *corev1.Pod
		state observedState
		want  string
	}{
		{planned(regular("a", withProbes)), observe(ready, runs("a"), alive("a", failed)), "Container a failed liveness probe, will be restarted"},
		{planned(never, regular("a", withProbes), regular("b")), observe(ready, runs("a"), runs("b"), alive("a", failed)), "Container a failed liveness probe"},
		{planned(regular("a", withProbes)), observe(ready, runs("a"), startup("a", failed)), "Container a failed startup probe, will be restarted"},
		{planned(regular("a")), observe(ready, changed("a")), "Container a definition changed, will be restarted"},
		{planned(regular("a")), observe(ready, unknown("a")), `Container is in "unknown" state, try killing it before restart`},
		{planned(sidecar("s", withProbes), regular("a")), observe(ready, runs("s"), startup("s", failed)), "Init container s failed startup probe"},
		{planned(sidecar("s"), regular("a")), observe(ready, changed("s"), runs("a")), "Init container s definition changed"},
		{planned(regular("a", needs("1", "", "", ""), restartOn(cpu))), observe(ready, runs("a"), actuated("a", requirements("2", "", "", ""))), "Container a resize requires restart"},
	} {
		plan := planPod(row.pod, row.state, testNow)
		if len(plan.Kill) != 1 || plan.Kill[0].Message != row.want {
			t.Errorf("kills %+v, want %q", plan.Kill, row.want)
		}
	}
}

func TestRestartDelaysDouble(t *testing.T) {
	r := newRestarts(0)
	now := testNow
	var delays []time.Duration
	for range 8 {
		r.restarted("k", now, now)
		delays = append(delays, r.entries["k"].delay)
		now = now.Add(r.entries["k"].delay)
	}
	if got, want := fmt.Sprint(delays), "[10s 20s 40s 1m20s 2m40s 5m0s 5m0s 5m0s]"; got != want {
		t.Errorf("delays %s, want %s", got, want)
	}
	if r.restarted("k", now.Add(11*time.Minute), now.Add(11*time.Minute)); r.entries["k"].delay != 10*time.Second {
		t.Errorf("after a long run the delay is %s", r.entries["k"].delay)
	}
	short := newRestarts(3 * time.Second)
	short.restarted("k", now, now)
	if short.entries["k"].delay != 3*time.Second {
		t.Errorf("a configured maximum of 3s gives %s", short.entries["k"].delay)
	}
}

// TestRestartAfterClockWasSetBack: a container that terminated before the clock of the host was set back does not wait for the time it had then.
func TestRestartAfterClockWasSetBack(t *testing.T) {
	r := newRestarts(0)
	r.restarted("k", testNow, testNow)
	for _, row := range []struct {
		ahead, wait time.Duration
	}{{0, 10 * time.Second}, {-4 * time.Second, 6 * time.Second}, {time.Second, 11 * time.Second}, {11 * time.Second, 0}, {8 * time.Hour, 0}} {
		until, _ := r.until("k", testNow.Add(row.ahead), testNow)
		wait := time.Duration(0)
		if !until.IsZero() {
			wait = until.Sub(testNow)
		}
		if wait != row.wait {
			t.Errorf("a container that terminated %s ahead of the clock waits for %s, want %s", row.ahead, wait, row.wait)
		}
	}
}

// TestPlanReachesRest lets random pods run in a world where every action works, and checks that planning ends.
func TestPlanReachesRest(t *testing.T) {
	for _, pod := range []*corev1.Pod{
		planned(regular("a")), planned(never, initial("i"), initial("j"), regular("a"), regular("b")), planned(sidecar("s"), initial("i"), sidecar("u"), regular("a")),
	} {
		s := observe()
		for round := 0; ; round++ {
			plan := planPod(pod, s, testNow)
			if plan.Nothing() {
				break
			}
			if round > 20 {
				t.Fatalf("still planning %q", plan.text())
			}
			if plan.NewSandbox {
				sandboxes("r")(&s)
			}
			for _, start := range plan.Start {
				if start.Kind == container.Init && !container.IsSidecar(start.Container) {
					exited(start.Container.Name, 0)(&s)
				} else {
					runs(start.Container.Name)(&s)
				}
			}
		}
		for _, c := range pod.Spec.Containers {
			if found := s.Runtime.Container(c.Name); found == nil || found.State != cri.Running {
				t.Errorf("container %s does not run in the end", c.Name)
			}
		}
	}
}
