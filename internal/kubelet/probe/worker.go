package probe

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/container"
)

// Kind is what a probe is for.
type Kind int

// The kinds of probes.
const (
	Liveness Kind = iota
	Readiness
	Startup
	kinds
)

// String is the kind in events.
func (k Kind) String() string { return [...]string{"Liveness", "Readiness", "Startup"}[k] }

// of is the probe of a kind, or nil.
func (k Kind) of(c *corev1.Container) *corev1.Probe {
	return [...]*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe}[k]
}

// retries is how often a container that could not be asked is asked again at once.
const retries = 3

// Result is what counts of a probe: after enough equal answers.
type Result int

// The results.
const (
	Undecided Result = iota
	Passed
	Failed
)

// Options are what probes need.
type Options struct {
	Exec Exec
	// Event tells of an answer that matters.
	Event func(pod *corev1.Pod, c *corev1.Container, reason, message string)
	// Changed is called when a result has changed. It must not block.
	Changed func(uid types.UID)
	// Answered, if set, is told of every answer and how long it took, Forgotten of every pod that is asked no more.
	Answered  func(pod *corev1.Pod, c *corev1.Container, kind string, success bool, took time.Duration)
	Forgotten func(uid types.UID)
	Log       *slog.Logger
}

// Probes asks the containers of a node's pods. There is one goroutine for each probe of a container that runs, and none otherwise.
type Probes struct {
	Options
	start time.Time

	mu   sync.Mutex
	pods map[types.UID]map[string]*watch // by id of the container
	wait sync.WaitGroup
}

// watch is one running container that is being asked.
type watch struct {
	cancel [kinds]context.CancelFunc
	// results are guarded by Probes.mu.
	results [kinds]Result
	has     [kinds]bool
}

// New makes the probes of a node.
func New(o Options) *Probes {
	return &Probes{Options: o, start: time.Now(), pods: map[types.UID]map[string]*watch{}}
}

// Wait returns when all probes have ended, which they do with the contexts they were started with.
func (p *Probes) Wait() { p.wait.Wait() }

// Running is a container that runs now.
type Running struct {
	Container *corev1.Container
	ID        string
	StartedAt time.Time
	// WasStarted and WasReady are what the pod's status said of this container before this kubelet began to ask.
	WasStarted, WasReady bool
}

// Follow asks exactly these containers of a pod from now on: new ones are asked, those that are gone no longer. It is cheap to
// call again with the same ones. The probes end with ctx.
func (p *Probes) Follow(ctx context.Context, pod *corev1.Pod, podIP string, running []Running) {
	p.mu.Lock()
	defer p.mu.Unlock()
	watches := p.pods[pod.UID]
	now := map[string]bool{}
	for _, r := range running {
		if r.Container.LivenessProbe == nil && r.Container.ReadinessProbe == nil && r.Container.StartupProbe == nil {
			continue
		}
		now[r.ID] = true
		if watches[r.ID] == nil {
			if watches == nil {
				watches = map[string]*watch{}
				p.pods[pod.UID] = watches
			}
			watches[r.ID] = p.begin(ctx, pod, podIP, r)
		}
	}
	for id, w := range watches {
		if !now[id] {
			w.stop(Liveness, Readiness, Startup)
			delete(watches, id)
		}
	}
	if len(watches) == 0 {
		delete(p.pods, pod.UID)
	}
}

// StopLivenessAndStartup is called when a pod is to end: only its readiness still matters.
func (p *Probes) StopLivenessAndStartup(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.pods[uid] {
		w.stop(Liveness, Startup)
	}
}

// Forget asks no container of a pod any more.
func (p *Probes) Forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.pods[uid] {
		w.stop(Liveness, Readiness, Startup)
	}
	delete(p.pods, uid)
	if p.Forgotten != nil {
		p.Forgotten(uid)
	}
}

// Result is what counts now for a container. found is false when the container has no such probe, or is not asked.
func (p *Probes) Result(uid types.UID, id string, k Kind) (result Result, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.pods[uid][id]
	if w == nil || !w.has[k] {
		return Undecided, false
	}
	return w.results[k], true
}

func (w *watch) stop(which ...Kind) {
	for _, k := range which {
		if w.cancel[k] != nil {
			w.cancel[k]()
		}
	}
}

// begin starts to ask a container. Containers that were running before the kubelet started keep what was said of them until they
// have been asked.
func (p *Probes) begin(ctx context.Context, pod *corev1.Pod, podIP string, r Running) *watch {
	w := &watch{}
	found := r.StartedAt.Before(p.start)
	w.results[Liveness] = Passed
	started := make(chan struct{})
	if r.Container.StartupProbe == nil || found && r.WasStarted {
		w.results[Startup] = Passed
		close(started)
	}
	w.results[Readiness] = Failed
	if found && r.WasReady {
		w.results[Readiness] = Passed
	}
	for k := range kinds {
		spec := k.of(r.Container)
		if spec == nil {
			continue
		}
		w.has[k] = true
		if k == Startup && w.results[Startup] == Passed {
			continue
		}
		var asking context.Context
		asking, w.cancel[k] = context.WithCancel(ctx)
		a := &asker{p: p, w: w, kind: k, spec: spec, pod: pod, target: Target{Container: r.Container, ID: r.ID, PodIP: podIP}, running: r, found: found}
		p.wait.Go(func() {
			if k == Startup {
				if a.run(asking) == Passed {
					close(started)
				}
				return
			}
			select {
			case <-started:
				a.run(asking)
			case <-asking.Done():
			}
		})
	}
	return w
}

// asker asks one container by one probe.
type asker struct {
	p       *Probes
	w       *watch
	kind    Kind
	spec    *corev1.Probe
	pod     *corev1.Pod
	target  Target
	running Running
	found   bool
}

// run asks until ctx ends, or until the answer is final: a startup probe is over with its first result, a liveness probe
// when it has failed, because the container will be replaced. It returns the last result.
func (a *asker) run(ctx context.Context) Result {
	period := time.Duration(max(a.spec.PeriodSeconds, 1)) * time.Second
	delay := time.Until(a.running.StartedAt.Add(time.Duration(a.spec.InitialDelaySeconds) * time.Second))
	if a.found {
		// After a restart of the kubelet not all containers are to be asked in the same moment.
		delay = max(delay, 0) + rand.N(period)
	}
	timer := time.NewTimer(max(delay, 0))
	defer timer.Stop()
	var last Outcome
	count := int32(0)
	for {
		select {
		case <-ctx.Done():
			return Undecided
		case <-timer.C:
		}
		timer.Reset(period)
		outcome, ok := a.ask(ctx)
		if !ok {
			continue
		}
		if count == 0 || outcome != last {
			last, count = outcome, 0
		}
		count++
		if outcome == Failure && count < a.spec.FailureThreshold || outcome == Success && count < a.spec.SuccessThreshold {
			continue
		}
		result := Passed
		if outcome == Failure {
			result = Failed
		}
		a.set(result)
		if a.kind == Startup || a.kind == Liveness && result == Failed {
			return result
		}
	}
}

// ask asks once, with retries while there is no answer, and tells of answers that matter.
func (a *asker) ask(ctx context.Context) (Outcome, bool) {
	var outcome Outcome
	var output string
	var err error
	began := time.Now()
	for range retries {
		if outcome, output, err = Once(ctx, a.spec, a.target, a.p.Exec); err == nil || ctx.Err() != nil {
			break
		}
	}
	if ctx.Err() != nil {
		return Failure, false
	}
	if err == nil && a.p.Answered != nil {
		a.p.Answered(a.pod, a.target.Container, a.kind.String(), outcome != Failure, time.Since(began))
	}
	tell := func(reason, format string, args ...any) {
		a.p.Event(a.pod, a.target.Container, reason, fmt.Sprintf(format, args...))
	}
	switch {
	case err != nil:
		tell("Unhealthy", "%s probe errored and resulted in %s state: %s", a.kind, "unknown", err)
		return Failure, false
	case outcome == Warning:
		tell("ProbeWarning", "%s probe warning: %s", a.kind, output)
		return Success, true
	case outcome == Failure:
		tell("Unhealthy", "%s probe failed: %s", a.kind, output)
	}
	return outcome, true
}

func (a *asker) set(result Result) {
	a.p.mu.Lock()
	changed := a.w.results[a.kind] != result
	a.w.results[a.kind] = result
	a.p.mu.Unlock()
	if changed {
		a.p.Changed(a.pod.UID)
	}
}

// Probed are the containers of a pod that probes are for: regular ones and sidecars.
func Probed(spec *corev1.PodSpec) map[string]*corev1.Container {
	probed := map[string]*corev1.Container{}
	for kind, c := range container.All(spec) {
		if kind == container.Regular || kind == container.Init && container.IsSidecar(c) {
			probed[c.Name] = c
		}
	}
	return probed
}
