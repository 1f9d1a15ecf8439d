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

// retries is how often a probe that could not be run is retried at once.
const retries = 3

// Result is the result of a probe after its thresholds.
type Result int

// The results.
const (
	Undecided Result = iota
	Passed
	Failed
)

// Options configure Probes.
type Options struct {
	Exec Exec
	// Event records an event about a failed probe.
	Event func(pod *corev1.Pod, c *corev1.Container, reason, message string)
	// Changed is called when a result has changed. It must not block.
	Changed func(uid types.UID)
	// Answered, if set, is called after every probe with its duration, Forgotten when a pod is no longer probed.
	Answered  func(pod *corev1.Pod, c *corev1.Container, kind string, success bool, took time.Duration)
	Forgotten func(uid types.UID)
	Log       *slog.Logger
}

// Probes runs the probes of a node's pods. There is one goroutine for each probe of a running container.
type Probes struct {
	Options
	start time.Time

	mu   sync.Mutex
	pods map[types.UID]map[string]*probedContainer // by container ID
	wait sync.WaitGroup
}

// probedContainer is a running container with probes.
type probedContainer struct {
	cancel [kinds]context.CancelFunc
	// results are guarded by Probes.mu.
	results [kinds]Result
	has     [kinds]bool
}

// New makes the probes of a node.
func New(o Options) *Probes {
	return &Probes{Options: o, start: time.Now(), pods: map[types.UID]map[string]*probedContainer{}}
}

// Wait returns when all probes have ended, which they do with the contexts they were started with.
func (p *Probes) Wait() { p.wait.Wait() }

// Running is a running container.
type Running struct {
	Container *corev1.Container
	ID        string
	StartedAt time.Time
	// WasStarted and WasReady are the container's state in the pod's status before this kubelet started.
	WasStarted, WasReady bool
}

// Follow starts the probes of new containers of a pod and stops those of containers that are not in the list. It is cheap to call with the
// same containers again. The probes end with ctx.
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
				watches = map[string]*probedContainer{}
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

// StopLivenessAndStartup stops the liveness and startup probes of a terminating pod.
func (p *Probes) StopLivenessAndStartup(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.pods[uid] {
		w.stop(Liveness, Startup)
	}
}

// Forget stops all probes of a pod.
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

// Result returns the current result for a container. found is false if the container has no such probe, or is not probed.
func (p *Probes) Result(uid types.UID, id string, k Kind) (result Result, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.pods[uid][id]
	if w == nil || !w.has[k] {
		return Undecided, false
	}
	return w.results[k], true
}

func (w *probedContainer) stop(which ...Kind) {
	for _, k := range which {
		if w.cancel[k] != nil {
			w.cancel[k]()
		}
	}
}

// begin starts the probes of a container. Containers that were running before the kubelet started keep their state until the first result.
func (p *Probes) begin(ctx context.Context, pod *corev1.Pod, podIP string, r Running) *probedContainer {
	w := &probedContainer{}
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
		a := &worker{p: p, w: w, kind: k, spec: spec, pod: pod, target: Target{Container: r.Container, ID: r.ID, PodIP: podIP}, running: r, found: found}
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

// worker runs one probe of one container.
type worker struct {
	p       *Probes
	w       *probedContainer
	kind    Kind
	spec    *corev1.Probe
	pod     *corev1.Pod
	target  Target
	running Running
	found   bool
}

// run probes until ctx is done or the result is final: a startup probe ends with its first result, a liveness probe when it has failed, because
// the container will be restarted. It returns the last result.
func (w *worker) run(ctx context.Context) Result {
	period := time.Duration(max(w.spec.PeriodSeconds, 1)) * time.Second
	initial := time.Duration(w.spec.InitialDelaySeconds) * time.Second
	// The container started in the future if the clock of the host has been set back since.
	delay := min(time.Until(w.running.StartedAt.Add(initial)), initial)
	if w.found {
		// After a restart of the kubelet, containers are not all probed at the same time.
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
		outcome, ok := w.probe(ctx)
		if !ok {
			continue
		}
		if count == 0 || outcome != last {
			last, count = outcome, 0
		}
		count++
		if outcome == Failure && count < w.spec.FailureThreshold || outcome == Success && count < w.spec.SuccessThreshold {
			continue
		}
		result := Passed
		if outcome == Failure {
			result = Failed
		}
		w.set(result)
		if w.kind == Startup || w.kind == Liveness && result == Failed {
			return result
		}
	}
}

// probe probes once, with retries if the probe could not be run, and records events about failures.
func (w *worker) probe(ctx context.Context) (Outcome, bool) {
	var outcome Outcome
	var output string
	var err error
	began := time.Now()
	for range retries {
		if outcome, output, err = Once(ctx, w.spec, w.target, w.p.Exec); err == nil || ctx.Err() != nil {
			break
		}
	}
	if ctx.Err() != nil {
		return Failure, false
	}
	if err == nil && w.p.Answered != nil {
		w.p.Answered(w.pod, w.target.Container, w.kind.String(), outcome != Failure, time.Since(began))
	}
	recordEvent := func(reason, format string, args ...any) {
		w.p.Event(w.pod, w.target.Container, reason, fmt.Sprintf(format, args...))
	}
	switch {
	case err != nil:
		recordEvent("Unhealthy", "%s probe errored and resulted in %s state: %s", w.kind, "unknown", err)
		return Failure, false
	case outcome == Warning:
		recordEvent("ProbeWarning", "%s probe warning: %s", w.kind, output)
		return Success, true
	case outcome == Failure:
		recordEvent("Unhealthy", "%s probe failed: %s", w.kind, output)
	}
	return outcome, true
}

func (w *worker) set(result Result) {
	w.p.mu.Lock()
	changed := w.w.results[w.kind] != result
	w.w.results[w.kind] = result
	w.p.mu.Unlock()
	if changed {
		w.p.Changed(w.pod.UID)
	}
}

// Probed returns the containers of a pod that can have probes: regular containers and sidecars.
func Probed(spec *corev1.PodSpec) map[string]*corev1.Container {
	probed := map[string]*corev1.Container{}
	for kind, c := range container.All(spec) {
		if kind == container.Regular || kind == container.Init && container.IsSidecar(c) {
			probed[c.Name] = c
		}
	}
	return probed
}
