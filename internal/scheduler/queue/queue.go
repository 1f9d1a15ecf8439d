// Package queue is the scheduling queue: the pods without a node, in activeQ, in backoffQ, or unschedulable until an event may make them
// schedulable.
package queue

import (
	"container/heap"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

// maxUnschedulableDuration is how long a pod stays in unschedulablePods at most; then it is retried without an event.
const maxUnschedulableDuration = 5 * time.Minute

// Queue holds the pods that have no node. A pod is in one of four places:
//
//   - activeQ: ready to be scheduled, by priority, then by the time they were added;
//   - backoffQ: to be retried when their backoff ends;
//   - unschedulablePods: until an event that may make them schedulable; gated pods are here too, until their gates are removed;
//   - in flight: popped, being scheduled. Events are kept meanwhile: they may make the pod schedulable if the attempt fails.
//
// A Queue is not safe for concurrent use, and has no clock.
type Queue struct {
	profiles       map[string]*plugins.Profile
	initialBackoff time.Duration
	maxBackoff     time.Duration
	activeQ        podHeap
	// backoffQ holds unschedulable pods, which are popped early if activeQ is empty; errorBackoffQ holds pods whose attempt failed with an
	// error.
	backoffQ, errorBackoffQ podHeap
	UnschedulablePods       map[types.UID]*QueuedPod
	// byPlugin has the unschedulable pods by the plugins that rejected them, and under noHints those that any event may help: an event costs
	// nothing for pods whose plugins have no hint for it.
	byPlugin map[string]map[types.UID]*QueuedPod
	All      map[types.UID]*QueuedPod
	inFlight inFlightPods
	// InFlightEvents are the events since the oldest in-flight pod was popped. The first one has the number firstEvent.
	InFlightEvents []plugins.Event
	firstEvent     uint64
	// events counts the events that may help unschedulable pods.
	events uint64
	// registeredHints are the plugins of any profile that have hints for a resource.
	registeredHints map[plugins.Resource][]registeredHint
	// KeepAllEvents is set when a plugin without queueing hints, or an extender, may reject pods: then every event may help.
	KeepAllEvents bool
	nextFlush     time.Time
	// ClaimsMissing reports that a resource claim of the pod does not exist yet: then the pod is not scheduled. It may be nil.
	ClaimsMissing func(pod *corev1.Pod) bool
	// OnAdd is called when a pod is added to a queue, with the event that caused it. It may be nil.
	OnAdd func(to Location, gated bool, event string)
}

// Location is the queue a pod is in.
type Location uint8

const (
	NotQueued Location = iota
	InActiveQ
	InBackoffQ
	InUnschedulablePods
	IsInFlight
)

// QueuedPod is a pod in the queue.
type QueuedPod struct {
	PodInfo *snapshot.PodInfo
	// timestamp orders pods of equal priority: when the pod was added, or last added back.
	timestamp    time.Time
	addedAt      time.Time
	FirstAttempt time.Time
	Attempts     int
	// unschedulableCount and consecutiveErrors count failed attempts; they determine the backoff.
	unschedulableCount, consecutiveErrors int
	backoffEnd                            time.Time // end of backoff
	RejectedBy                            []string  // plugins that rejected the pod in the last attempt
	Gated                                 bool
	// blocked pods stay in unschedulablePods; pendingEvent is the event that would have moved one meanwhile.
	blocked        bool
	pendingEvent   string
	Location       Location
	heap           *podHeap // in activeQ or a backoff queue
	index          int      // in its heap
	popped         uint64   // in flight: number of the first event since the pod was popped
	indexed        []string // unschedulable: the keys of byPlugin
	lastEvent      uint64   // unschedulable: the last event whose hints were called
	WaitsForClaims bool     // see ClaimsMissing
}

// registeredHint is a plugin that has hints, and the actions they are for.
type registeredHint struct {
	plugin string
	action plugins.Action
}

// noHints is the key of byPlugin for pods that any event may help. It is not the name of a plugin.
const noHints = ""

// New returns an empty queue for the profiles. Backoff doubles from initialBackoff to maxBackoff.
func New(profiles map[string]*plugins.Profile, initialBackoff, maxBackoff time.Duration) *Queue {
	q := &Queue{
		profiles: profiles, initialBackoff: initialBackoff, maxBackoff: maxBackoff,
		UnschedulablePods: map[types.UID]*QueuedPod{}, All: map[types.UID]*QueuedPod{},
		byPlugin: map[string]map[types.UID]*QueuedPod{}, registeredHints: map[plugins.Resource][]registeredHint{},
	}
	q.activeQ.before = func(a, b *QueuedPod) bool {
		if x, y := snapshot.PriorityOf(a.PodInfo.Pod), snapshot.PriorityOf(b.PodInfo.Pod); x != y {
			return x > y
		}
		return a.timestamp.Before(b.timestamp)
	}
	q.backoffQ.before = func(a, b *QueuedPod) bool {
		if !a.backoffEnd.Equal(b.backoffEnd) {
			return a.backoffEnd.Before(b.backoffEnd)
		}
		return q.activeQ.before(a, b)
	}
	q.errorBackoffQ.before = q.backoffQ.before
	for _, p := range profiles {
		q.KeepAllEvents = q.KeepAllEvents || slices.ContainsFunc(p.Filters, func(r plugins.FilterPlugin) bool {
			_, hints := r.(plugins.HintPlugin)
			return r != nil && !hints
		})
		for plugin, hints := range p.Hints {
			for _, h := range hints {
				q.registerHint(h.Resource, registeredHint{plugin, h.Action})
			}
		}
	}
	return q
}

func (q *Queue) registerHint(resource plugins.Resource, hint registeredHint) {
	registered := q.registeredHints[resource]
	for i := range registered {
		if registered[i].plugin == hint.plugin {
			registered[i].action |= hint.action
			return
		}
	}
	q.registeredHints[resource] = append(registered, hint)
}

// interested reports whether a hint of any profile is for an event.
func (q *Queue) interested(e *plugins.Event) bool {
	return slices.ContainsFunc(q.registeredHints[e.Resource], func(h registeredHint) bool { return h.action&e.Action != 0 })
}

// Len returns the number of pods by location.
func (q *Queue) Len() (active, backoff, unschedulable, inFlight int) {
	return len(q.activeQ.pods), len(q.backoffQ.pods) + len(q.errorBackoffQ.pods), len(q.UnschedulablePods), q.inFlight.count
}

// Add adds a pod that has no node.
func (q *Queue) Add(info *snapshot.PodInfo, now time.Time) {
	if old := q.All[info.Pod.UID]; old != nil {
		old.PodInfo = info
		return
	}
	p := &QueuedPod{PodInfo: info, timestamp: now, addedAt: now}
	q.All[info.Pod.UID] = p
	q.moveTo(p, InActiveQ, eventPodAdded)
}

// Events that move pods besides changes in the cluster, by upstream's names.
const (
	eventPodAdded        = "UnscheduledPodAdd"
	eventFailed          = "ScheduleAttemptFailure"
	eventBackoffComplete = "BackoffComplete"
	eventPopFromBackoff  = "PopFromBackoffQ"
	eventTimeout         = "UnschedulableTimeout"
	eventActivated       = "ForceActivate"
)

// moveTo moves a pod to a queue. Gated pods and pods with missing claims go to unschedulablePods.
func (q *Queue) moveTo(p *QueuedPod, to Location, event string) {
	q.remove(p)
	p.Gated = q.isGated(p.PodInfo.Pod)
	if p.Gated && to != IsInFlight {
		to = InUnschedulablePods
		if !slices.Contains(p.RejectedBy, plugins.SchedulingGatesName) {
			p.RejectedBy = append(p.RejectedBy, plugins.SchedulingGatesName)
		}
	}
	p.WaitsForClaims = (to == InActiveQ || to == InBackoffQ) && q.ClaimsMissing != nil && q.ClaimsMissing(p.PodInfo.Pod)
	if p.WaitsForClaims {
		to = InUnschedulablePods
		if !slices.Contains(p.RejectedBy, plugins.DynamicResourcesName) {
			p.RejectedBy = append(p.RejectedBy, plugins.DynamicResourcesName)
		}
	}
	p.Location = to
	if q.OnAdd != nil && to != IsInFlight {
		q.OnAdd(to, p.Gated || p.WaitsForClaims, event)
	}
	switch to {
	case InActiveQ:
		q.push(&q.activeQ, p)
	case InBackoffQ:
		if len(p.RejectedBy) > 0 {
			q.push(&q.backoffQ, p)
		} else {
			q.push(&q.errorBackoffQ, p)
		}
	case InUnschedulablePods:
		q.UnschedulablePods[p.PodInfo.Pod.UID] = p
		q.index(p)
	case IsInFlight:
		p.popped = q.firstEvent + uint64(len(q.InFlightEvents))
		q.inFlight.add(p)
	}
}

// index adds an unschedulable pod to byPlugin.
func (q *Queue) index(p *QueuedPod) {
	p.indexed = slices.Clone(p.RejectedBy)
	profile := q.profiles[p.PodInfo.Pod.Spec.SchedulerName]
	if profile == nil || len(p.RejectedBy) == 0 || slices.ContainsFunc(p.RejectedBy, func(plugin string) bool { return profile.Hints[plugin] == nil }) {
		p.indexed = []string{noHints}
	}
	for _, plugin := range p.indexed {
		if q.byPlugin[plugin] == nil {
			q.byPlugin[plugin] = map[types.UID]*QueuedPod{}
		}
		q.byPlugin[plugin][p.PodInfo.Pod.UID] = p
	}
}

func (q *Queue) push(to *podHeap, p *QueuedPod) {
	p.heap = to
	heap.Push(to, p)
}

// remove removes a pod from its queue.
func (q *Queue) remove(p *QueuedPod) {
	switch p.Location {
	case InActiveQ, InBackoffQ:
		heap.Remove(p.heap, p.index)
	case InUnschedulablePods:
		delete(q.UnschedulablePods, p.PodInfo.Pod.UID)
		for _, plugin := range p.indexed {
			delete(q.byPlugin[plugin], p.PodInfo.Pod.UID)
		}
	case IsInFlight:
		p.Location = NotQueued
		q.dropEvents(q.inFlight.remove())
	}
	p.Location = NotQueued
}

// dropEvents drops the events before one, which no in-flight pod can have missed, or all if no pod is in flight.
func (q *Queue) dropEvents(before uint64, inFlight bool) {
	if !inFlight {
		q.firstEvent += uint64(len(q.InFlightEvents))
		q.InFlightEvents = nil
		return
	}
	// Half of the events are dropped at a time at least, so that the cost of moving the others is amortized.
	if n := int(before - q.firstEvent); n > len(q.InFlightEvents)/2 {
		n = min(n, len(q.InFlightEvents))
		q.InFlightEvents = slices.Delete(q.InFlightEvents, 0, n)
		q.firstEvent += uint64(n)
	}
}

// missedEvents are the events since an in-flight pod was popped.
func (q *Queue) missedEvents(p *QueuedPod) []plugins.Event {
	if p.popped <= q.firstEvent {
		return q.InFlightEvents
	}
	return q.InFlightEvents[min(int(p.popped-q.firstEvent), len(q.InFlightEvents)):]
}

// inFlightPods are the pods in flight, in the order in which they were popped.
type inFlightPods struct {
	// popped may have entries of pods that are no longer in flight, but not at its beginning.
	popped []inFlightPod
	count  int
}

// inFlightPod is a pod at the time it was popped: a pod may be popped again.
type inFlightPod struct {
	pod    *QueuedPod
	popped uint64
}

func (f *inFlightPods) add(p *QueuedPod) {
	f.popped = append(f.popped, inFlightPod{p, p.popped})
	f.count++
}

// remove removes a pod that has left, and returns the number of the first event that a pod in flight may have missed, if there is one.
func (f *inFlightPods) remove() (firstEvent uint64, inFlight bool) {
	f.count--
	left := func(p inFlightPod) bool { return p.pod.Location == IsInFlight && p.pod.popped == p.popped }
	if i := slices.IndexFunc(f.popped, left); i >= 0 {
		f.popped = f.popped[i:]
		return f.popped[0].popped, true
	}
	f.popped = nil
	return 0, false
}

func (q *Queue) isGated(pod *corev1.Pod) bool {
	profile := q.profiles[pod.Spec.SchedulerName]
	return profile != nil && profile.SchedulingGates && len(pod.Spec.SchedulingGates) > 0
}

// Update updates a pod. An unschedulable pod is requeued if the update may make it schedulable.
func (q *Queue) Update(s *snapshot.Snapshot, old *corev1.Pod, info *snapshot.PodInfo, now time.Time) {
	p := q.All[info.Pod.UID]
	if p == nil {
		q.Add(info, now)
		return
	}
	p.PodInfo = info
	event := plugins.Event{Resource: plugins.TargetPod, Action: plugins.PodUpdateActions(old, info.Pod), Old: old, New: info.Pod}
	switch p.Location {
	case InActiveQ, InBackoffQ:
		heap.Fix(p.heap, p.index)
	case IsInFlight:
		q.InFlightEvents = append(q.InFlightEvents, event)
	case InUnschedulablePods:
		if p.Gated && !q.isGated(info.Pod) {
			event.Action = plugins.UpdatePodGates
			q.moveTo(p, InActiveQ, event.Label())
			return
		}
		for _, part := range event.Split() {
			if q.mayHelp(s, p, &part) {
				q.requeue(p, now, part.Label())
				return
			}
		}
	}
}

// Delete removes a pod.
func (q *Queue) Delete(uid types.UID) {
	if p := q.All[uid]; p != nil {
		q.remove(p)
		delete(q.All, uid)
	}
}

// Pop returns the next pod to schedule. If there is none, it returns how long to wait at most before the next call.
func (q *Queue) Pop(now time.Time) (*QueuedPod, time.Duration) {
	q.flush(now)
	for _, h := range []*podHeap{&q.backoffQ, &q.errorBackoffQ} {
		for len(h.pods) > 0 && !h.pods[0].backoffEnd.After(now) {
			q.moveTo(h.pods[0], InActiveQ, eventBackoffComplete)
		}
	}
	var p *QueuedPod
	switch {
	case len(q.activeQ.pods) > 0:
		p = q.activeQ.pods[0]
	case len(q.backoffQ.pods) > 0:
		// activeQ is empty: pop from backoffQ before the backoff ends, as upstream does.
		p = q.backoffQ.pods[0]
		if q.OnAdd != nil {
			q.OnAdd(InActiveQ, false, eventPopFromBackoff)
		}
	default:
		wait := q.nextFlush.Sub(now)
		if len(q.errorBackoffQ.pods) > 0 {
			wait = min(wait, q.errorBackoffQ.pods[0].backoffEnd.Sub(now))
		}
		return nil, max(wait, time.Millisecond)
	}
	q.moveTo(p, IsInFlight, "")
	if p.Attempts++; p.Attempts == 1 {
		p.FirstAttempt = now
	}
	return p, 0
}

// flush requeues pods that have been unschedulable for too long.
func (q *Queue) flush(now time.Time) {
	if now.Before(q.nextFlush) {
		return
	}
	q.nextFlush = now.Add(30 * time.Second)
	for _, p := range q.UnschedulablePods {
		if !p.Gated && now.Sub(p.timestamp) > maxUnschedulableDuration {
			q.requeue(p, now, eventTimeout)
		}
	}
}

// Done removes an in-flight pod: it is bound, or deleted.
func (q *Queue) Done(uid types.UID) { q.Delete(uid) }

// AddUnschedulable adds back a pod whose attempt failed. rejectedBy are the plugins that rejected it; it is empty if the attempt failed
// with an error.
func (q *Queue) AddUnschedulable(s *snapshot.Snapshot, p *QueuedPod, rejectedBy []string, now time.Time) {
	if q.All[p.PodInfo.Pod.UID] != p {
		return // deleted meanwhile
	}
	p.RejectedBy = rejectedBy
	if len(rejectedBy) == 0 {
		p.consecutiveErrors++
	} else {
		p.unschedulableCount++
		p.consecutiveErrors = 0
	}
	p.timestamp = now
	p.backoffEnd = backoffEndOf(now, q.backoffOf(p))
	var missed []plugins.Event
	if p.Location == IsInFlight {
		missed = slices.Clone(q.missedEvents(p))
	}
	switch {
	case len(rejectedBy) == 0:
		q.moveTo(p, InBackoffQ, eventFailed)
	case slices.ContainsFunc(missed, func(e plugins.Event) bool { return q.mayHelp(s, p, &e) }):
		q.requeue(p, now, eventFailed)
	default:
		q.moveTo(p, InUnschedulablePods, eventFailed)
	}
}

// backoffEndOf returns when a backoff that begins now ends, rounded up to a full second: pods whose backoff ends within the same second are
// ordered by priority.
func backoffEndOf(now time.Time, backoff time.Duration) time.Time {
	if backoff == 0 {
		return now
	}
	end := now.Add(backoff)
	if whole := end.Truncate(time.Second); whole.Before(end) {
		return whole.Add(time.Second)
	}
	return end
}

// backoffOf returns a pod's backoff after a failed attempt.
func (q *Queue) backoffOf(p *QueuedPod) time.Duration {
	attempts := p.unschedulableCount
	if p.consecutiveErrors > 0 {
		attempts = p.consecutiveErrors
	}
	if attempts == 0 {
		return 0
	}
	if shift := attempts - 1; q.initialBackoff <= q.maxBackoff>>shift {
		return q.initialBackoff << shift
	}
	return q.maxBackoff
}

// requeue moves a pod that may be schedulable now to activeQ or backoffQ.
func (q *Queue) requeue(p *QueuedPod, now time.Time, event string) {
	switch {
	case p.blocked:
		p.pendingEvent = event
		if p.Location != InUnschedulablePods {
			q.moveTo(p, InUnschedulablePods, event)
		}
	case p.backoffEnd.After(now):
		q.moveTo(p, InBackoffQ, event)
	default:
		q.moveTo(p, InActiveQ, event)
	}
}

// Block keeps an in-flight pod from being retried until Unblock: work that its attempt has started, such as preemption, is not finished.
func (q *Queue) Block(p *QueuedPod) { p.blocked, p.pendingEvent = true, "" }

// Unblock lets a blocked pod be retried: at once if retry is set, otherwise on the next event that may help, or for an event since Block.
func (q *Queue) Unblock(uid types.UID, now time.Time, retry bool) {
	p := q.All[uid]
	if p == nil || !p.blocked {
		return
	}
	p.blocked = false
	switch {
	case p.Location != InUnschedulablePods:
	case retry:
		q.moveTo(p, InActiveQ, eventActivated)
	case p.pendingEvent != "":
		q.requeue(p, now, p.pendingEvent)
	}
}

// MoveToActiveOrBackoff requeues the unschedulable pods that an event may make schedulable. only, if set, limits which. It reports whether
// any pod was moved.
func (q *Queue) MoveToActiveOrBackoff(s *snapshot.Snapshot, e plugins.Event, now time.Time, only func(*corev1.Pod) bool) bool {
	if e.Resource == "" || !q.KeepAllEvents && !q.interested(&e) {
		return false
	}
	if q.inFlight.count > 0 {
		q.InFlightEvents = append(q.InFlightEvents, e)
	}
	q.events++
	var moved []*QueuedPod
	collect := func(rejected map[types.UID]*QueuedPod) {
		for _, p := range rejected {
			if p.lastEvent == q.events {
				continue // rejected by another plugin too
			}
			p.lastEvent = q.events
			if !p.Gated && (only == nil || only(p.PodInfo.Pod)) && q.mayHelp(s, p, &e) {
				moved = append(moved, p)
			}
		}
	}
	collect(q.byPlugin[noHints])
	for _, h := range q.registeredHints[e.Resource] {
		if h.action&e.Action != 0 {
			collect(q.byPlugin[h.plugin])
		}
	}
	for _, p := range moved {
		q.requeue(p, now, e.Label())
	}
	return len(moved) > 0
}

// mayHelp calls the queueing hints of the plugins that rejected a pod.
func (q *Queue) mayHelp(s *snapshot.Snapshot, p *QueuedPod, e *plugins.Event) bool {
	if len(p.RejectedBy) == 0 {
		return true
	}
	profile := q.profiles[p.PodInfo.Pod.Spec.SchedulerName]
	return profile == nil || profile.MayHelp(s, p.PodInfo.Pod, p.RejectedBy, e)
}

// podHeap is a heap of pods for container/heap.
type podHeap struct {
	pods   []*QueuedPod
	before func(a, b *QueuedPod) bool
}

func (h *podHeap) Len() int           { return len(h.pods) }
func (h *podHeap) Less(i, j int) bool { return h.before(h.pods[i], h.pods[j]) }
func (h *podHeap) Swap(i, j int) {
	h.pods[i], h.pods[j] = h.pods[j], h.pods[i]
	h.pods[i].index, h.pods[j].index = i, j
}
func (h *podHeap) Push(x any) {
	p := x.(*QueuedPod)
	p.index = len(h.pods)
	h.pods = append(h.pods, p)
}
func (h *podHeap) Pop() any {
	last := h.pods[len(h.pods)-1]
	h.pods[len(h.pods)-1] = nil
	h.pods = h.pods[:len(h.pods)-1]
	return last
}
