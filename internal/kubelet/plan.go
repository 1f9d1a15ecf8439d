package kubelet

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/container"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/probe"
	"skiff/internal/kubelet/status"
)

// observedState is the state of a pod on the node, which a plan is computed from.
type observedState struct {
	Runtime *cri.Pod
	// Liveness and Startup are the probe results by container ID. Containers without a result are missing.
	Liveness, Startup map[string]probe.Result
	// Actuated are the resources last applied, by container name; ActuatedPod those of the pod-level resources.
	Actuated    map[string]corev1.ResourceRequirements
	ActuatedPod *corev1.ResourceRequirements
	Restarts    *restarts
	// RestartAll is set while all containers of the pod are being restarted.
	RestartAll bool
	// StartedAt is the pod's start time; zero if it has not started.
	StartedAt time.Time
}

// Actions are the actions to take for a pod now, in the order of the fields.
type Actions struct {
	// Fail terminates the pod because its active deadline is exceeded.
	Fail *status.Reason
	// KillPod stops all containers and sandboxes.
	KillPod bool
	// Kill stops single containers.
	Kill []Kill
	// Reset removes containers, so that all of them are restarted. Running ones are stopped first, without a grace period.
	Reset []Reset
	// NewSandbox creates a sandbox with the attempt number Attempt. Otherwise containers start in Sandbox.
	NewSandbox bool
	Attempt    uint32
	Sandbox    string
	// Resize changes limits of running containers, decreases before increases; ResizePod changes the limits of the pod's cgroup.
	Resize    []Resize
	ResizePod bool
	// Start has the containers to start, in order.
	Start []Start
	// Wait has the containers in CrashLoopBackOff.
	Wait []Wait
	// Wake is when to plan again if nothing wakes the worker before.
	Wake time.Time
}

// Kill stops one container.
type Kill struct {
	ID, Name, Message string
	Reason            killReason
}

// killReason determines the grace period of a container.
type killReason int

const (
	killUnknown killReason = iota
	killLiveness
	killStartup
)

// Reset removes one container.
type Reset struct {
	ID, Name string
	Stop     bool
}

// Start starts one container of the pod's spec.
type Start struct {
	Kind      container.Kind
	Container *corev1.Container
	// Target is the container whose process namespace an ephemeral container shares.
	Target string
	// TerminatedAt is when the container last terminated; zero for its first start.
	TerminatedAt time.Time
}

// Wait is a container in back-off.
type Wait struct {
	Kind      container.Kind
	Container *corev1.Container
	Delay     time.Duration
	Until     time.Time
}

// Resize changes one resource of a running container.
type Resize struct {
	ID        string
	Container *corev1.Container
	Resource  corev1.ResourceName
}

// Nothing reports whether there are no actions.
func (a *Actions) Nothing() bool {
	return a.Fail == nil && !a.KillPod && len(a.Kill) == 0 && len(a.Reset) == 0 && !a.NewSandbox && len(a.Resize) == 0 && !a.ResizePod && len(a.Start) == 0
}

// The status of a pod that exceeded its active deadline.
const (
	deadlineReason  = "DeadlineExceeded"
	deadlineMessage = "Pod was active on the node longer than the specified deadline"
)

// planPod computes the actions for a pod that should run. The pod's spec has the allocated resources.
func planPod(pod *corev1.Pod, s observedState, now time.Time) Actions {
	p := &planner{pod: pod, observedState: s, now: now}
	if seconds := pod.Spec.ActiveDeadlineSeconds; seconds != nil && !s.StartedAt.IsZero() {
		deadline := s.StartedAt.Add(time.Duration(*seconds) * time.Second)
		if !now.Before(deadline) {
			return Actions{Fail: &status.Reason{Reason: deadlineReason, Message: deadlineMessage}}
		}
		p.wake(deadline)
	}
	reason, attempt, sandbox := s.Runtime.NeedsSandbox(pod.Spec.HostNetwork)
	p.Attempt, p.Sandbox = attempt, sandbox
	switch {
	case s.RestartAll:
		p.resetAll()
	case reason != "":
		p.KillPod, p.NewSandbox = true, true
		p.planNewSandbox()
	default:
		p.planRunning()
	}
	if p.KillPod && !p.NewSandbox {
		p.Start = nil // the pod terminates
	}
	return p.Actions
}

type planner struct {
	Actions
	observedState
	pod *corev1.Pod
	now time.Time
	// init and regular are the containers to start, before back-off.
	init, regular []int
}

func (p *planner) wake(at time.Time) {
	if p.Wake.IsZero() || at.Before(p.Wake) {
		p.Wake = at
	}
}

// resetAll removes all containers, and last those whose exit code triggered the restart.
func (p *planner) resetAll() {
	var triggers []Reset
	for _, kind := range []container.Kind{container.Regular, container.Init} {
		var ofKind []Reset
		for k, c := range container.All(&p.pod.Spec) {
			if k != kind {
				continue
			}
			for _, found := range p.Runtime.Containers {
				if found.Name != c.Name {
					continue
				}
				reset := Reset{ID: found.ID, Name: c.Name, Stop: found.State != cri.Exited}
				if !reset.Stop && container.RestartsAllContainers(c, found.ExitCode) {
					ofKind = append(ofKind, reset)
				} else {
					p.Reset = append(p.Reset, reset)
				}
			}
		}
		triggers = append(triggers, ofKind...)
	}
	p.Reset = append(p.Reset, triggers...)
}

// planNewSandbox plans a pod that needs a new sandbox.
func (p *planner) planNewSandbox() {
	restartable := p.pod.Spec.RestartPolicy != corev1.RestartPolicyNever
	if !restartable && p.Attempt != 0 && len(p.Runtime.Containers) != 0 {
		p.NewSandbox = false // it must not run again
		return
	}
	for i := range p.pod.Spec.Containers {
		c := &p.pod.Spec.Containers[i]
		once := p.pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure
		if c.RestartPolicy != nil {
			once = *c.RestartPolicy == corev1.ContainerRestartPolicyOnFailure
		}
		if found := p.Runtime.Container(c.Name); once && found != nil && found.State == cri.Exited && found.ExitCode == 0 {
			continue
		}
		p.regular = append(p.regular, i)
	}
	if len(p.regular) == 0 && slices.ContainsFunc(p.pod.Spec.Containers, func(c corev1.Container) bool {
		found := p.Runtime.Container(c.Name)
		return found != nil && found.State != cri.Unknown
	}) {
		p.NewSandbox = false // all containers are completed
		return
	}
	if len(p.pod.Spec.InitContainers) > 0 {
		p.init, p.regular = []int{0}, nil
	}
	p.starts()
}

// planRunning plans a pod whose sandbox is ready.
func (p *planner) planRunning() {
	for i := range p.pod.Spec.EphemeralContainers {
		e := &p.pod.Spec.EphemeralContainers[i]
		if p.Runtime.Container(e.Name) == nil {
			c := (*corev1.Container)(&e.EphemeralContainerCommon)
			p.Start = append(p.Start, Start{Kind: container.Ephemeral, Container: c, Target: e.TargetContainerName})
		}
	}
	initialized := p.planInit()
	if p.KillPod || !initialized {
		p.starts()
		return
	}
	running := 0
	for i := range p.pod.Spec.Containers {
		if p.planRegular(i) {
			running++
		}
	}
	if running == 0 && len(p.regular) == 0 {
		// A pod with only sidecars left terminates.
		p.KillPod, p.init = true, nil
	}
	if !equalAmounts(amountsOf(p.pod.Spec.Resources), amountsOf(p.ActuatedPod)) && p.ActuatedPod != nil {
		p.ResizePod = true
	}
	p.starts()
}

// planRegular plans one regular container, and reports whether it keeps running unchanged.
func (p *planner) planRegular(i int) bool {
	c := &p.pod.Spec.Containers[i]
	found := p.Runtime.Container(c.Name)
	if found == nil || found.State != cri.Running {
		if status.Restarts(container.Regular, c, p.pod, p.Runtime) {
			p.regular = append(p.regular, i)
			if found != nil && found.State == cri.Unknown {
				p.kill(found, fmt.Sprintf("Container is in %q state, try killing it before restart", found.State), killUnknown)
			}
		}
		return false
	}
	// A failed probe has no exit code that restart rules could match, so only the restart policy applies.
	restart := p.pod.Spec.RestartPolicy != corev1.RestartPolicyNever
	if c.RestartPolicy != nil {
		restart = *c.RestartPolicy != corev1.ContainerRestartPolicyNever
	}
	var message string
	reason := killUnknown
	switch {
	case found.Hash != cri.Hash(c):
		message, restart = fmt.Sprintf("Container %s definition changed", c.Name), true
	case p.Liveness[found.ID] == probe.Failed:
		message, reason = fmt.Sprintf("Container %s failed liveness probe", c.Name), killLiveness
	case p.Startup[found.ID] == probe.Failed:
		message, reason = fmt.Sprintf("Container %s failed startup probe", c.Name), killStartup
	case p.needsRestartToResize(found, c):
		p.kill(found, fmt.Sprintf("Container %s resize requires restart", c.Name), killUnknown)
		p.regular = append(p.regular, i)
		return false
	default:
		return true
	}
	if restart {
		message += ", will be restarted"
		p.regular = append(p.regular, i)
	}
	p.kill(found, message, reason)
	return false
}

func (p *planner) kill(c *cri.Container, message string, reason killReason) {
	p.Kill = append(p.Kill, Kill{ID: c.ID, Name: c.Name, Message: message, Reason: reason})
}

// planInit plans the init containers and reports whether the pod is initialized. It goes from the last to the first: completed init
// containers may have been removed, so the last one that exists determines the progress.
func (p *planner) planInit() bool {
	containers := p.pod.Spec.InitContainers
	if len(containers) == 0 {
		return true
	}
	initialized := slices.ContainsFunc(p.pod.Spec.Containers, func(c corev1.Container) bool {
		found := p.Runtime.Active(c.Name)
		return found != nil && (found.State == cri.Running || found.State == cri.Exited)
	})
	// passed is set when a later init container exists or the pod is initialized.
	passed := initialized
	for i := len(containers) - 1; i >= 0; i-- {
		c := &containers[i]
		sidecar := container.IsSidecar(c)
		found := p.Runtime.Active(c.Name)
		if found == nil {
			if passed && sidecar {
				p.init = append(p.init, i)
			}
			continue
		}
		if passed && !sidecar {
			continue
		}
		done, failed := p.planOneInit(i, c, found, sidecar)
		if failed {
			p.KillPod, p.init, p.Kill = true, nil, nil
			return false
		}
		if done && i == len(containers)-1 {
			initialized = true
		} else if done && !passed {
			p.init = append(p.init, i+1)
		}
		passed = true
	}
	if !passed {
		p.init = append(p.init, 0)
	}
	slices.Sort(p.init)
	p.init = slices.Compact(p.init)
	return initialized
}

// planOneInit plans one init container that exists. done reports that the next one may start, failed that the pod has failed.
func (p *planner) planOneInit(i int, c *corev1.Container, found *cri.Container, sidecar bool) (done, failed bool) {
	start := func() { p.init = append(p.init, i) }
	unknown := fmt.Sprintf("Init container is in %q state, try killing it before restart", found.State)
	switch found.State {
	case cri.Created:
		start() // an earlier start failed
	case cri.Running:
		if !sidecar {
			if p.needsRestartToResize(found, c) {
				p.kill(found, fmt.Sprintf("Container %s resize requires restart", c.Name), killUnknown)
				start()
			}
			return false, false
		}
		return p.planSidecar(i, c, found), false
	case cri.Exited:
		switch {
		case sidecar:
			start()
		case found.ExitCode == 0:
			return true, false
		case !status.Restarts(container.Init, c, p.pod, p.Runtime):
			return false, true
		default:
			start()
		}
	default:
		restart := p.pod.Spec.RestartPolicy != corev1.RestartPolicyNever
		if c.RestartPolicy != nil {
			restart = *c.RestartPolicy != corev1.ContainerRestartPolicyNever
		}
		if !restart {
			return false, true
		}
		p.kill(found, unknown, killUnknown)
		start()
	}
	return false, false
}

// planSidecar plans a running sidecar, and reports whether it has started, so that the next container may start.
func (p *planner) planSidecar(i int, c *corev1.Container, found *cri.Container) bool {
	restart := func(message string, reason killReason) {
		p.kill(found, message, reason)
		p.init = append(p.init, i)
	}
	if c.StartupProbe != nil && p.Startup[found.ID] != probe.Passed {
		if p.Startup[found.ID] == probe.Failed {
			restart(fmt.Sprintf("Init container %s failed startup probe", c.Name), killStartup)
		}
		return false
	}
	switch {
	case found.Hash != cri.Hash(c):
		restart(fmt.Sprintf("Init container %s definition changed", c.Name), killUnknown)
	case c.LivenessProbe != nil && p.Liveness[found.ID] == probe.Failed:
		restart(fmt.Sprintf("Init container %s failed liveness probe", c.Name), killLiveness)
	case p.needsRestartToResize(found, c):
		restart(fmt.Sprintf("Container %s resize requires restart", c.Name), killUnknown)
	}
	return true
}

// starts adds the actions for the containers to start, except those in CrashLoopBackOff. An init container in CrashLoopBackOff delays all
// later containers.
func (p *planner) starts() {
	for _, i := range p.init {
		c := &p.pod.Spec.InitContainers[i]
		if !p.start(container.Init, c) && !container.IsSidecar(c) {
			return
		}
	}
	for _, i := range p.regular {
		p.start(container.Regular, &p.pod.Spec.Containers[i])
	}
	slices.SortStableFunc(p.Resize, func(a, b Resize) int { return -cmp.Compare(a.Resource, b.Resource) }) // memory before cpu
}

func (p *planner) start(kind container.Kind, c *corev1.Container) bool {
	var terminatedAt time.Time
	for _, found := range p.Runtime.Containers {
		if found.Name == c.Name && found.State == cri.Exited {
			terminatedAt = found.FinishedAt
			break
		}
	}
	if !terminatedAt.IsZero() {
		if until, delay := p.Restarts.until(restartKey(c), terminatedAt, p.now); !until.IsZero() {
			p.Wait = append(p.Wait, Wait{Kind: kind, Container: c, Delay: delay, Until: until})
			p.wake(until)
			return false
		}
	}
	if actuated, ok := p.Actuated[c.Name]; ok && !equalAmounts(amountsOf(&actuated), amountsOf(&c.Resources)) {
		p.ResizePod = true
	}
	p.Start = append(p.Start, Start{Kind: kind, Container: c, TerminatedAt: terminatedAt})
	return true
}

// amounts are the resources that can be resized in place.
type amounts struct{ cpuRequest, cpuLimit, memoryRequest, memoryLimit int64 }

func amountsOf(r *corev1.ResourceRequirements) amounts {
	if r == nil {
		return amounts{}
	}
	return amounts{
		cpuRequest: r.Requests.Cpu().MilliValue(), cpuLimit: r.Limits.Cpu().MilliValue(),
		memoryRequest: r.Requests.Memory().Value(), memoryLimit: r.Limits.Memory().Value(),
	}
}

func equalAmounts(a, b amounts) bool { return a == b }

// needsRestartToResize plans the resize of a running container if its allocated resources differ from the actuated ones. It reports
// whether the container must be restarted to resize it.
func (p *planner) needsRestartToResize(found *cri.Container, c *corev1.Container) bool {
	actuated, ok := p.Actuated[c.Name]
	if !ok {
		return false
	}
	have, want := amountsOf(&actuated), amountsOf(&c.Resources)
	if have == want {
		return false
	}
	changes := map[corev1.ResourceName][2]int64{}
	if have.memoryLimit != want.memoryLimit || have.memoryRequest != want.memoryRequest {
		changes[corev1.ResourceMemory] = [2]int64{have.memoryLimit, want.memoryLimit}
	}
	if have.cpuLimit != want.cpuLimit {
		changes[corev1.ResourceCPU] = [2]int64{have.cpuLimit, want.cpuLimit}
	} else if have.cpuRequest != want.cpuRequest {
		changes[corev1.ResourceCPU] = [2]int64{have.cpuRequest, want.cpuRequest}
	}
	for _, policy := range c.ResizePolicy {
		if _, changed := changes[policy.ResourceName]; changed && policy.RestartPolicy == corev1.RestartContainer {
			p.ResizePod = true
			return true
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceCPU} {
		change, changed := changes[name]
		if !changed {
			continue
		}
		resize := Resize{ID: found.ID, Container: c, Resource: name}
		if change[1] < change[0] {
			p.Resize = slices.Insert(p.Resize, 0, resize) // decreases first
		} else {
			p.Resize = append(p.Resize, resize)
		}
	}
	return false
}
