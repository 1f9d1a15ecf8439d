package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"skiff/internal/client"
	"skiff/internal/scheduler/binding"
	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/queue"
	"skiff/internal/scheduler/snapshot"
)

// maxInFlight bounds the concurrent writes to the API server: bindings, conditions, evictions. When it is reached, scheduling waits.
const maxInFlight = 512

// Config is what a Scheduler needs.
type Config struct {
	Client *client.Client
	// Informers are shared with the other components of the process. They must not run yet when New is called.
	Informers *client.Informers
	// Events may be nil: then no events are recorded.
	Events *client.EventBroadcaster
	// Configuration may be nil: then there is one profile with the default plugins.
	Configuration *configv1.KubeSchedulerConfiguration
	// Metrics may be nil: then nothing is counted.
	Metrics *Metrics
	Log     *slog.Logger
}

// Scheduler assigns pods to nodes. New registers its informer handlers; Run schedules.
type Scheduler struct {
	log       *slog.Logger
	profiles  map[string]*plugins.Profile
	extenders []*extender
	// record records an event about a pod. It may be nil.
	record   func(component string, pod *corev1.Pod, eventType, reason, message string)
	metrics  *Metrics
	binder   *binding.Binder
	lists    lists
	wake     chan struct{}
	inFlight chan struct{}
	queries  queryLimit
	writing  sync.WaitGroup

	mu sync.Mutex
	// unlocked are run, in order, by locked when the current locked section has ended.
	unlocked  []func()
	snapshot  *snapshot.Snapshot
	queue     *queue.Queue
	decisions decision.Log
}

// New makes a scheduler and registers its informer handlers.
func New(config Config) (*Scheduler, error) {
	s, err := newScheduler(config.Configuration, config.Log)
	if err != nil {
		return nil, err
	}
	s.metrics = config.Metrics
	s.record = func(component string, pod *corev1.Pod, eventType, reason, message string) {
		config.Events.NewRecorder(component).Event(pod, eventType, reason, message)
	}
	if err := s.metrics.observe(s); err != nil {
		return nil, err
	}
	decision.SetOptions(s.snapshot, decision.Options{Timed: s.metrics.pluginTimer(), Log: &s.decisions})
	s.binder.Writer = binding.NewWriter(config.Client)
	if err := s.watch(config.Informers); err != nil {
		return nil, err
	}
	return s, nil
}

// Run makes a scheduler and runs it until ctx ends. The informers must be run by the caller afterwards.
func Run(ctx context.Context, config Config) error {
	s, err := New(config)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// newScheduler makes a scheduler with an empty snapshot.
func newScheduler(configuration *configv1.KubeSchedulerConfiguration, log *slog.Logger) (*Scheduler, error) {
	if configuration == nil {
		configuration = &configv1.KubeSchedulerConfiguration{}
	}
	if err := validateConfiguration(configuration); err != nil {
		return nil, err
	}
	profiles, err := profilesOf(configuration)
	if err != nil {
		return nil, err
	}
	extenders, err := extendersOf(configuration)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.Default()
	}
	initial, most := backoffOf(configuration)
	s := &Scheduler{
		log: log, profiles: profiles, extenders: extenders,
		wake: make(chan struct{}, 1), inFlight: make(chan struct{}, maxInFlight), queries: newQueryLimit(),
		snapshot: snapshot.NewSnapshot(), queue: queue.New(profiles, initial, most),
	}
	s.binder = s.newBinder()
	decision.SetOptions(s.snapshot, decision.Options{Log: &s.decisions})
	s.queue.KeepAllEvents = s.queue.KeepAllEvents || len(extenders) > 0
	s.queue.ClaimsMissing = s.lacksClaims
	return s, nil
}

// Run schedules one pod after another until ctx ends, and returns when all writes it has begun are finished or reverted. It may be called
// again, when the process is elected leader again.
func (s *Scheduler) Run(ctx context.Context) error {
	if err := s.lists.waitForSync(ctx); err != nil {
		return err
	}
	defer s.writing.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		var wait time.Duration
		found := false
		s.locked(func() {
			var p *queue.QueuedPod
			if p, wait = s.queue.Pop(time.Now()); p != nil {
				found = true
				s.scheduleOne(ctx, p)
			}
		})
		if found {
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer.C:
		}
	}
	return nil
}

// wakeUp makes Run pop from the queue again.
func (s *Scheduler) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// locked runs do with s.mu held, then the functions that do passed to afterUnlock.
func (s *Scheduler) locked(do func()) {
	section := func() (after []func()) {
		s.mu.Lock()
		defer s.mu.Unlock()
		do()
		after, s.unlocked = s.unlocked, nil
		return after
	}
	for _, f := range section() {
		f()
	}
}

// afterUnlock runs f without s.mu when the current locked section has ended. The caller holds s.mu.
func (s *Scheduler) afterUnlock(f func()) { s.unlocked = append(s.unlocked, f) }

// background writes to the API server while scheduling goes on. The caller holds s.mu; it waits after its locked section while too many
// writes are in flight. write is called in any case, even when its context has ended, so that it can revert what was assumed.
func (s *Scheduler) background(write func()) {
	s.backgroundThen(func() func() { write(); return nil })
}

// backgroundThen is background with a continuation: the function that write returns, unless nil, is called with s.mu held once the write
// is no longer in flight, because it may begin further writes.
func (s *Scheduler) backgroundThen(write func() (then func())) {
	s.afterUnlock(func() {
		s.inFlight <- struct{}{}
		s.writing.Go(func() {
			then := write()
			<-s.inFlight
			if then != nil {
				s.locked(then)
			}
		})
	})
}

// scheduleOne decides about one pod and carries out the decision. The caller holds s.mu.
func (s *Scheduler) scheduleOne(ctx context.Context, p *queue.QueuedPod) {
	pod := p.PodInfo.Pod
	profile := s.profiles[pod.Spec.SchedulerName]
	if profile == nil || pod.DeletionTimestamp != nil {
		if profile != nil {
			s.recordEvent(profile, pod, corev1.EventTypeWarning, "FailedScheduling", fmt.Sprintf("skip schedule deleting pod: %v/%v", pod.Namespace, pod.Name))
		}
		s.queue.Done(pod.UID)
		return
	}
	if s.snapshot.PodEntries[pod.UID] != nil {
		s.queue.Done(pod.UID) // it is bound or assumed
		return
	}
	began := time.Now()
	d, err := decision.Schedule(s.snapshot, p.PodInfo, profile)
	s.metrics.decided(profile, err, time.Since(began))
	if err != nil {
		s.conclude(ctx, p, d, began, err)
		return
	}
	s.extend(ctx, s.extendersFor(pod), d, func(err error) { s.conclude(ctx, p, d, began, err) })
}

// conclude carries out a decision. The caller holds s.mu.
func (s *Scheduler) conclude(ctx context.Context, p *queue.QueuedPod, d *decision.Decision, began time.Time, err error) {
	pod := p.PodInfo.Pod
	if s.queue.All[pod.UID] != p {
		return // deleted while an extender was called
	}
	s.decisions.Remember(d, err, began)
	if err != nil {
		s.metrics.attempted(pod, err, began)
		s.failed(ctx, p, d, err)
		return
	}
	s.assume(ctx, p, d, began)
}

// failure is an attempt to schedule a pod that did not lead to a binding.
type failure struct {
	pod      *queue.QueuedPod
	decision *decision.Decision
	err      error
	reason   string // of the pod's condition
	// rejectedBy are the plugins that found no node; none when the attempt itself failed.
	rejectedBy []string
	nominated  string
	preemption *plugins.Preemption
}

// failed requeues a pod and reports why, after looking for pods to preempt. The caller holds s.mu.
func (s *Scheduler) failed(ctx context.Context, p *queue.QueuedPod, d *decision.Decision, err error) {
	pod := p.PodInfo.Pod
	f := &failure{pod: p, decision: d, err: err, reason: corev1.PodReasonSchedulerError}
	var fit *decision.FitError
	switch {
	case errors.Is(err, decision.ErrNoNodes):
		// Any node helps.
		f.reason, f.rejectedBy = corev1.PodReasonUnschedulable, []string{plugins.NodeNameName}
	case errors.As(err, &fit):
		f.reason, f.rejectedBy = corev1.PodReasonUnschedulable, fit.Plugins
		if d.Profile.DeallocatesClaims {
			if fit.Preemption = s.binder.DeallocateUnusedClaims(ctx, s.snapshot, d); fit.Preemption != "" {
				f.nominated = pod.Status.NominatedNodeName
				break
			}
		}
		if d.Profile.Preemption != nil {
			s.preempt(ctx, d, func(best *plugins.Preemption, message string, helpful bool) {
				fit.Preemption = message
				if best != nil {
					f.preemption, f.nominated = best, best.Node
				} else if helpful {
					f.nominated = pod.Status.NominatedNodeName
				}
				s.report(ctx, f)
			})
			return
		}
	default:
		s.log.Error("failed to schedule pod", "pod", snapshot.ObjectKey(pod), "error", err)
	}
	s.report(ctx, f)
}

// preempt looks for pods to preempt, and calls then with the best candidate, if there is one, the message for the pod's condition, and
// whether preemption could help at all. The caller holds s.mu, and so does the caller of then. Extenders are called in between, after
// the locked section.
func (s *Scheduler) preempt(ctx context.Context, d *decision.Decision, then func(best *plugins.Preemption, message string, helpful bool)) {
	done := s.metrics.timed("PostFilter", d.Profile)
	finish := func(best *plugins.Preemption, message string, err error) {
		done(err)
		s.metrics.preempted(best)
		if message != "" {
			message = "preemption: " + message
		}
		then(best, message, !errors.Is(err, decision.ErrPreemptionNotHelpful))
	}
	candidates, message, err := decision.PreemptionCandidates(d, s.lists.budgets)
	if err != nil {
		finish(nil, message, err)
		return
	}
	var reviewers []*extender
	for _, e := range s.extendersFor(d.Pod.Pod) {
		if e.config.PreemptVerb != "" {
			reviewers = append(reviewers, e)
		}
	}
	if len(reviewers) == 0 {
		finish(decision.ChoosePreemption(candidates))
		return
	}
	s.afterUnlock(func() {
		kept, err := s.review(ctx, reviewers, d.Pod.Pod, candidates)
		s.locked(func() {
			if err != nil {
				finish(nil, err.Error(), err)
			} else {
				finish(decision.ChoosePreemption(kept))
			}
		})
	})
}

// report requeues a pod, evicts its victims, and writes why it was not scheduled. The caller holds s.mu.
func (s *Scheduler) report(ctx context.Context, f *failure) {
	p, pod := f.pod, f.pod.PodInfo.Pod
	if s.queue.All[pod.UID] != p {
		return // deleted, or bound by another scheduler, while an extender was called
	}
	s.snapshot.Nominate(p.PodInfo, pod.UID, f.nominated)
	if f.preemption != nil {
		s.queue.Block(p)
	}
	s.queue.AddUnschedulable(s.snapshot, p, f.rejectedBy, time.Now())
	if f.preemption != nil {
		s.evict(ctx, p.PodInfo, f.preemption)
	}
	message := f.err.Error()
	s.recordEvent(f.decision.Profile, pod, corev1.EventTypeWarning, "FailedScheduling", truncated(message))
	s.setCondition(ctx, pod, f.reason, message, f.nominated)
}

// recordEvent records an event about a pod, with its profile's name as reporting component.
func (s *Scheduler) recordEvent(profile *plugins.Profile, pod *corev1.Pod, eventType, reason, message string) {
	if s.record != nil {
		s.record(profile.Name, pod, eventType, reason, message)
	}
}

// truncated shortens a message to the maximal length of an event's note.
func truncated(message string) string {
	const most = 1024
	if len(message) <= most {
		return message
	}
	return message[:most-4] + " ..."
}

// lacksClaims reports whether resource claims of a pod do not exist yet or are being deleted.
func (s *Scheduler) lacksClaims(pod *corev1.Pod) bool {
	profile := s.profiles[pod.Spec.SchedulerName]
	if len(pod.Spec.ResourceClaims) == 0 || profile == nil || profile.DynamicResources == nil {
		return false
	}
	_, err := s.snapshot.Devices.PodResourceClaims(pod)
	return err != nil
}
