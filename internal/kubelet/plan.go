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

// seen is what a plan is made from besides the pod: how things are on the node.
type seen struct {
	Runtime *cri.Pod
	// Liveness and Startup have the probe results by container id. What has no such probe, or has not been asked, is missing.
	Liveness, Startup map[string]probe.Result
	// Actuated has the resources that were last applied, by container, and those of the pod as a whole.
	Actuated    map[string]corev1.ResourceRequirements
	ActuatedPod *corev1.ResourceRequirements
	Restarts    *restarts
	// RestartAll says that the whole pod begins anew.
	RestartAll bool
	// StartedAt is when the pod began to be active on the node; zero if it has not.
	StartedAt time.Time
}

// Actions are what is to be done about a pod now, in the order of the fields.
type Actions struct {
	// Fail ends the pod: it has run for too long.
	Fail *status.Reason
	// KillPod stops all containers and sandboxes.
	KillPod bool
	// Kill stops single containers.
	Kill []Kill
	// Reset removes containers, so that all of them begin anew. Those that run are stopped first, without grace.
	Reset []Reset
	// NewSandbox makes a sandbox, the Attempt'th. Otherwise containers start in Sandbox.
	NewSandbox bool
	Attempt    uint32
	Sandbox    string
	// Resize changes limits of running containers, decreases before increases; ResizePod changes those of the pod around them.
	Resize    []Resize
	ResizePod bool
	// Start has the containers to start, in order.
	Start []Start
	// Wait has the containers that would be started if they had not ended so often.
	Wait []Wait
	// Wake is when to plan again even if nothing happens.
	Wake time.Time
}

// Kill stops one container.
type Kill struct {
	ID, Name, Message string
	Why               killReason
}

// killReason decides which grace period a container gets.
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
	// Target is the container whose processes an ephemeral container sees.
	Target string
	// Ended is when the container's last run ended; zero for a first run.
	Ended time.Time
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

// Nothing reports whether there is nothing to do now.
func (a *Actions) Nothing() bool {
	return a.Fail == nil && !a.KillPod && len(a.Kill) == 0 && len(a.Reset) == 0 && !a.NewSandbox && len(a.Resize) == 0 && !a.ResizePod && len(a.Start) == 0
}

// The messages of a pod that has used up its time.
const (
	deadlineReason  = "DeadlineExceeded"
	deadlineMessage = "Pod was active on the node longer than the specified deadline"
)

// planPod decides what is to be done about a pod that should run. The pod's spec has the resources as they are allocated.
func planPod(pod *corev1.Pod, s seen, now time.Time) Actions {
	p := &planner{pod: pod, seen: s, now: now}
	if seconds := pod.Spec.ActiveDeadlineSeconds; seconds != nil && !s.StartedAt.IsZero() {
		deadline := s.StartedAt.Add(time.Duration(*seconds) * time.Second)
		if !now.Before(deadline) {
			return Actions{Fail: &status.Reason{Reason: deadlineReason, Message: deadlineMessage}}
		}
		p.wake(deadline)
	}
	why, attempt, sandbox := s.Runtime.NeedsSandbox(pod.Spec.HostNetwork)
	p.Attempt, p.Sandbox = attempt, sandbox
	switch {
	case s.RestartAll:
		p.resetAll()
	case why != "":
		p.KillPod, p.NewSandbox = true, true
		p.begin()
	default:
		p.carryOn()
	}
	if p.KillPod && !p.NewSandbox {
		p.Start = nil // the pod is over
	}
	return p.Actions
}

type planner struct {
	Actions
	seen
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

// resetAll removes all containers, those last that asked for it.
func (p *planner) resetAll() {
	var askers []Reset
	for _, kind := range []container.Kind{container.Regular, container.Init} {
		var own []Reset
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
					own = append(own, reset)
				} else {
					p.Reset = append(p.Reset, reset)
				}
			}
		}
		askers = append(askers, own...)
	}
	p.Reset = append(p.Reset, askers...)
}

// begin plans a pod in a new sandbox.
func (p *planner) begin() {
	restartable := p.pod.Spec.RestartPolicy != corev1.RestartPolicyNever
	if !restartable && p.Attempt != 0 && len(p.Runtime.Containers) != 0 {
		p.NewSandbox = false // it has had its only run
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
		p.NewSandbox = false // all is done; there is nothing to make a sandbox for
		return
	}
	if len(p.pod.Spec.InitContainers) > 0 {
		p.init, p.regular = []int{0}, nil
	}
	p.starts()
}

// carryOn plans a pod whose sandbox is ready.
func (p *planner) carryOn() {
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
	keep := 0
	for i := range p.pod.Spec.Containers {
		if p.planRegular(i) {
			keep++
		}
	}
	if keep == 0 && len(p.regular) == 0 {
		// Sidecars alone do not keep a pod alive.
		p.KillPod, p.init = true, nil
	}
	if !equalAmounts(amountsOf(p.pod.Spec.Resources), amountsOf(p.ActuatedPod)) && p.ActuatedPod != nil {
		p.ResizePod = true
	}
	p.starts()
}

// planRegular plans one regular container, and reports whether it goes on running as it is.
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
	// A probe's failure is no exit, so there is no code that rules could match: policies alone count.
	restart := p.pod.Spec.RestartPolicy != corev1.RestartPolicyNever
	if c.RestartPolicy != nil {
		restart = *c.RestartPolicy != corev1.ContainerRestartPolicyNever
	}
	var message string
	why := killUnknown
	switch {
	case found.Hash != cri.Hash(c):
		message, restart = fmt.Sprintf("Container %s definition changed", c.Name), true
	case p.Liveness[found.ID] == probe.Failed:
		message, why = fmt.Sprintf("Container %s failed liveness probe", c.Name), killLiveness
	case p.Startup[found.ID] == probe.Failed:
		message, why = fmt.Sprintf("Container %s failed startup probe", c.Name), killStartup
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
	p.kill(found, message, why)
	return false
}

func (p *planner) kill(c *cri.Container, message string, why killReason) {
	p.Kill = append(p.Kill, Kill{ID: c.ID, Name: c.Name, Message: message, Why: why})
}

// planInit plans the init containers and reports whether the pod is initialized. It looks at them from the last to the first: those
// that have done their work may have been removed, so the latest that is known tells how far the pod has come.
func (p *planner) planInit() bool {
	containers := p.pod.Spec.InitContainers
	if len(containers) == 0 {
		return true
	}
	initialized := slices.ContainsFunc(p.pod.Spec.Containers, func(c corev1.Container) bool {
		found := p.Runtime.Active(c.Name)
		return found != nil && (found.State == cri.Running || found.State == cri.Exited)
	})
	// passed says that an init container behind this one has been reached already, or is done.
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

// planOneInit plans one init container that exists. done says that the next may start, failed that the pod has failed.
func (p *planner) planOneInit(i int, c *corev1.Container, found *cri.Container, sidecar bool) (done, failed bool) {
	again := func() { p.init = append(p.init, i) }
	unknown := fmt.Sprintf("Init container is in %q state, try killing it before restart", found.State)
	switch found.State {
	case cri.Created:
		again() // the runtime failed to start it
	case cri.Running:
		if !sidecar {
			if p.needsRestartToResize(found, c) {
				p.kill(found, fmt.Sprintf("Container %s resize requires restart", c.Name), killUnknown)
				again()
			}
			return false, false
		}
		return p.planSidecar(i, c, found), false
	case cri.Exited:
		switch {
		case sidecar:
			again()
		case found.ExitCode == 0:
			return true, false
		case !status.Restarts(container.Init, c, p.pod, p.Runtime):
			return false, true
		default:
			again()
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
		again()
	}
	return false, false
}

// planSidecar plans a sidecar that runs, and reports whether it has started, so that the next container may.
func (p *planner) planSidecar(i int, c *corev1.Container, found *cri.Container) bool {
	again := func(message string, why killReason) {
		p.kill(found, message, why)
		p.init = append(p.init, i)
	}
	if c.StartupProbe != nil && p.Startup[found.ID] != probe.Passed {
		if p.Startup[found.ID] == probe.Failed {
			again(fmt.Sprintf("Init container %s failed startup probe", c.Name), killStartup)
		}
		return false
	}
	switch {
	case found.Hash != cri.Hash(c):
		again(fmt.Sprintf("Init container %s definition changed", c.Name), killUnknown)
	case c.LivenessProbe != nil && p.Liveness[found.ID] == probe.Failed:
		again(fmt.Sprintf("Init container %s failed liveness probe", c.Name), killLiveness)
	case p.needsRestartToResize(found, c):
		again(fmt.Sprintf("Container %s resize requires restart", c.Name), killUnknown)
	}
	return true
}

// starts turns the containers to start into actions, holding back those that ended too often. An init container that is held back
// holds back all behind it.
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
	var ended time.Time
	for _, found := range p.Runtime.Containers {
		if found.Name == c.Name && found.State == cri.Exited {
			ended = found.FinishedAt
			break
		}
	}
	if !ended.IsZero() {
		if until, delay := p.Restarts.until(restartKey(c), ended, p.now); !until.IsZero() {
			p.Wait = append(p.Wait, Wait{Kind: kind, Container: c, Delay: delay, Until: until})
			p.wake(until)
			return false
		}
	}
	if actuated, ok := p.Actuated[c.Name]; ok && !equalAmounts(amountsOf(&actuated), amountsOf(&c.Resources)) {
		p.ResizePod = true
	}
	p.Start = append(p.Start, Start{Kind: kind, Container: c, Ended: ended})
	return true
}

// amounts are the resources that can be changed while a container runs.
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

// needsRestartToResize plans the resize of a running container if its allocated resources are not those it has. It reports true
// if the container has to be restarted for it.
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
			p.Resize = slices.Insert(p.Resize, 0, resize) // what shrinks makes room for what grows
		} else {
			p.Resize = append(p.Resize, resize)
		}
	}
	return false
}
