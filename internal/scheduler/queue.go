package scheduler

import (
	"container/heap"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxWaiting is how long a pod that was refused waits at most: then it is tried again even if nothing seems to have helped.
const maxWaiting = 5 * time.Minute

// Queue holds the pods that want a node. A pod is in one of four places:
//
//   - active: to be tried next, the highest priority first, then the one that came first;
//   - backoff: tried in vain a moment ago, and something has changed that may help, or the try itself failed;
//   - waiting: refused, until a change that may help; gated pods wait too, for their gates to be removed;
//   - flying: taken out to be tried. Changes are remembered meanwhile, for they may help if the try fails.
//
// A Queue is not safe for use by several goroutines at once, and has no clock.
type Queue struct {
	profiles       map[string]*Profile
	initialBackoff time.Duration
	maxBackoff     time.Duration
	active         podHeap
	// backoff holds pods that were refused, which need not wait when nobody else wants to be tried; erred those whose try failed.
	backoff, erred podHeap
	waiting        map[types.UID]*queued
	all            map[types.UID]*queued
	flying         int
	happened       []Event // since the oldest flying pod was taken out
	interest       map[Resource]Action
	// curious queues remember every change: there is somebody, a rule without hints or an extender, whom any may make think again.
	curious   bool
	nextFlush time.Time
	// incomplete reports that something a pod names is not there yet: then it is not tried at all. It may be nil.
	incomplete func(pod *corev1.Pod) bool
	// came is told of every pod that comes to a place, and which event brought it; it may be nil.
	came func(to place, gated bool, event string)
}

// place is where a pod is.
type place uint8

const (
	nowhere place = iota
	isActive
	isBackoff
	isWaiting
	isFlying
)

// queued is a pod in the queue.
type queued struct {
	info *PodInfo
	// since orders pods of equal priority: when the pod came, or last came back.
	since    time.Time
	arrived  time.Time
	firstTry time.Time
	attempts int
	// refusals and errors count failed tries; they make the backoff longer.
	refusals, errors int
	until            time.Time // end of backoff
	rules            []string  // that refused the pod when it was last tried
	gated            bool
	// held pods wait whatever happens; helped is the event that would have woken one meanwhile.
	held       bool
	helped     string
	place      place
	heap       *podHeap // active or in backoff
	index      int      // in its heap
	heard      int      // flying: place in Queue.happened when taken out
	incomplete bool     // it waits, without a try, for what it names
}

// NewQueue makes an empty queue for the profiles. Backoff doubles from initial to most.
func NewQueue(profiles map[string]*Profile, initial, most time.Duration) *Queue {
	q := &Queue{
		profiles: profiles, initialBackoff: initial, maxBackoff: most,
		waiting: map[types.UID]*queued{}, all: map[types.UID]*queued{}, interest: map[Resource]Action{},
	}
	q.active.before = func(a, b *queued) bool {
		if x, y := priorityOf(a.info.Pod), priorityOf(b.info.Pod); x != y {
			return x > y
		}
		return a.since.Before(b.since)
	}
	q.backoff.before = func(a, b *queued) bool {
		if !a.until.Equal(b.until) {
			return a.until.Before(b.until)
		}
		return q.active.before(a, b)
	}
	q.erred.before = q.backoff.before
	for _, p := range profiles {
		q.curious = q.curious || slices.ContainsFunc(p.filters, func(r FilterRule) bool {
			_, hints := r.(HintRule)
			return r != nil && !hints
		})
		for _, hints := range p.hints {
			for _, h := range hints {
				q.interest[h.Resource] |= h.Action
			}
		}
	}
	return q
}

// Len counts the pods by place.
func (q *Queue) Len() (active, backoff, waiting, flying int) {
	return len(q.active.pods), len(q.backoff.pods) + len(q.erred.pods), len(q.waiting), q.flying
}

// Add takes in a pod that has no node yet.
func (q *Queue) Add(info *PodInfo, now time.Time) {
	if old := q.all[info.Pod.UID]; old != nil {
		old.info = info
		return
	}
	p := &queued{info: info, since: now, arrived: now}
	q.all[info.Pod.UID] = p
	q.put(p, isActive, eventPodAdded)
}

// What brings a pod to a place besides changes in the cluster, by upstream's names.
const (
	eventPodAdded    = "UnscheduledPodAdd"
	eventFailed      = "ScheduleAttemptFailure"
	eventBackoffOver = "BackoffComplete"
	eventNotWaited   = "PopFromBackoffQ"
	eventTimeout     = "UnschedulableTimeout"
	eventActivated   = "ForceActivate"
)

// put moves a pod to a place. A pod with gates always waits, as does one that is incomplete.
func (q *Queue) put(p *queued, to place, event string) {
	q.take(p)
	p.gated = q.isGated(p.info.Pod)
	if p.gated && to != isFlying {
		to = isWaiting
		if !slices.Contains(p.rules, schedulingGatesName) {
			p.rules = append(p.rules, schedulingGatesName)
		}
	}
	p.incomplete = (to == isActive || to == isBackoff) && q.incomplete != nil && q.incomplete(p.info.Pod)
	if p.incomplete {
		to = isWaiting
		if !slices.Contains(p.rules, dynamicResourcesName) {
			p.rules = append(p.rules, dynamicResourcesName)
		}
	}
	p.place = to
	if q.came != nil && to != isFlying {
		q.came(to, p.gated || p.incomplete, event)
	}
	switch to {
	case isActive:
		q.push(&q.active, p)
	case isBackoff:
		if len(p.rules) > 0 {
			q.push(&q.backoff, p)
		} else {
			q.push(&q.erred, p)
		}
	case isWaiting:
		q.waiting[p.info.Pod.UID] = p
	case isFlying:
		q.flying++
	}
}

func (q *Queue) push(to *podHeap, p *queued) {
	p.heap = to
	heap.Push(to, p)
}

// take removes a pod from where it is.
func (q *Queue) take(p *queued) {
	switch p.place {
	case isActive, isBackoff:
		heap.Remove(p.heap, p.index)
	case isWaiting:
		delete(q.waiting, p.info.Pod.UID)
	case isFlying:
		if q.flying--; q.flying == 0 {
			q.happened = nil
		}
	}
	p.place = nowhere
}

func (q *Queue) isGated(pod *corev1.Pod) bool {
	profile := q.profiles[pod.Spec.SchedulerName]
	return profile != nil && profile.gates && len(pod.Spec.SchedulingGates) > 0
}

// Update takes over a pod's new state. A pod that waits is tried again if the change may help it.
func (q *Queue) Update(s *Snapshot, old *corev1.Pod, info *PodInfo, now time.Time) {
	p := q.all[info.Pod.UID]
	if p == nil {
		q.Add(info, now)
		return
	}
	p.info = info
	event := Event{Resource: TargetPod, Action: podChanges(old, info.Pod), Old: old, New: info.Pod}
	switch p.place {
	case isActive, isBackoff:
		heap.Fix(p.heap, p.index)
	case isFlying:
		q.happened = append(q.happened, event)
	case isWaiting:
		if p.gated && !q.isGated(info.Pod) {
			event.Action = UpdatePodGates
			q.put(p, isActive, event.label())
			return
		}
		for _, part := range event.parts() {
			if q.helps(s, p, &part) {
				q.wake(p, now, part.label())
				return
			}
		}
	}
}

// Delete forgets a pod.
func (q *Queue) Delete(uid types.UID) {
	if p := q.all[uid]; p != nil {
		q.take(p)
		delete(q.all, uid)
	}
}

// Pop takes out the next pod to try. When there is none, it tells when to look again at the latest.
func (q *Queue) Pop(now time.Time) (*queued, time.Duration) {
	q.flush(now)
	for _, h := range []*podHeap{&q.backoff, &q.erred} {
		for len(h.pods) > 0 && !h.pods[0].until.After(now) {
			q.put(h.pods[0], isActive, eventBackoffOver)
		}
	}
	var p *queued
	switch {
	case len(q.active.pods) > 0:
		p = q.active.pods[0]
	case len(q.backoff.pods) > 0:
		// Nobody else wants to be tried, and something has changed that may help: there is no reason to wait.
		p = q.backoff.pods[0]
		if q.came != nil {
			q.came(isActive, false, eventNotWaited)
		}
	default:
		wait := q.nextFlush.Sub(now)
		if len(q.erred.pods) > 0 {
			wait = min(wait, q.erred.pods[0].until.Sub(now))
		}
		return nil, max(wait, time.Millisecond)
	}
	q.put(p, isFlying, "")
	p.heard = len(q.happened)
	if p.attempts++; p.attempts == 1 {
		p.firstTry = now
	}
	return p, 0
}

// flush wakes pods that have waited too long.
func (q *Queue) flush(now time.Time) {
	if now.Before(q.nextFlush) {
		return
	}
	q.nextFlush = now.Add(30 * time.Second)
	for _, p := range q.waiting {
		if !p.gated && now.Sub(p.since) > maxWaiting {
			q.wake(p, now, eventTimeout)
		}
	}
}

// Done forgets a pod that was taken out: it has a node now, or is gone.
func (q *Queue) Done(uid types.UID) { q.Delete(uid) }

// Return takes back a pod that was tried in vain. rules are those that refused it; without any the try itself failed.
func (q *Queue) Return(s *Snapshot, p *queued, rules []string, now time.Time) {
	if q.all[p.info.Pod.UID] != p {
		return // deleted meanwhile
	}
	p.rules = rules
	if len(rules) == 0 {
		p.errors++
	} else {
		p.refusals++
		p.errors = 0
	}
	p.since = now
	p.until = endOf(now, q.backoffOf(p))
	var missed []Event
	if p.place == isFlying {
		missed = slices.Clone(q.happened[min(p.heard, len(q.happened)):])
	}
	switch {
	case len(rules) == 0:
		q.put(p, isBackoff, eventFailed)
	case slices.ContainsFunc(missed, func(e Event) bool { return q.helps(s, p, &e) }):
		q.wake(p, now, eventFailed)
	default:
		q.put(p, isWaiting, eventFailed)
	}
}

// endOf is when a backoff that begins now is over: at a full second, so that pods whose time comes within the same one are tried by
// their priority.
func endOf(now time.Time, backoff time.Duration) time.Time {
	if backoff == 0 {
		return now
	}
	end := now.Add(backoff)
	if whole := end.Truncate(time.Second); whole.Before(end) {
		return whole.Add(time.Second)
	}
	return end
}

// backoffOf is how long a pod waits after a failed try.
func (q *Queue) backoffOf(p *queued) time.Duration {
	tries := p.refusals
	if p.errors > 0 {
		tries = p.errors
	}
	if tries == 0 {
		return 0
	}
	if shift := tries - 1; q.initialBackoff <= q.maxBackoff>>shift {
		return q.initialBackoff << shift
	}
	return q.maxBackoff
}

// wake moves a pod that something may have helped to where it is tried again.
func (q *Queue) wake(p *queued, now time.Time, event string) {
	switch {
	case p.held:
		p.helped = event
		if p.place != isWaiting {
			q.put(p, isWaiting, event)
		}
	case p.until.After(now):
		q.put(p, isBackoff, event)
	default:
		q.put(p, isActive, event)
	}
}

// Hold lets a pod that is being tried wait until Release, once it is back: what its try has set going is not finished.
func (q *Queue) Hold(p *queued) { p.held, p.helped = true, "" }

// Release lets a held pod be tried again: at once if retry is set, or else when a change may help it, or has done so meanwhile.
func (q *Queue) Release(uid types.UID, now time.Time, retry bool) {
	p := q.all[uid]
	if p == nil || !p.held {
		return
	}
	p.held = false
	switch {
	case p.place != isWaiting:
	case retry:
		q.put(p, isActive, eventActivated)
	case p.helped != "":
		q.wake(p, now, p.helped)
	}
}

// Move wakes the waiting pods a change may help. only, if set, limits which. It reports whether it woke any.
func (q *Queue) Move(s *Snapshot, e Event, now time.Time, only func(*corev1.Pod) bool) bool {
	if e.Resource == "" || !q.curious && q.interest[e.Resource]&e.Action == 0 {
		return false
	}
	if q.flying > 0 {
		q.happened = append(q.happened, e)
	}
	var woken []*queued
	for _, p := range q.waiting {
		if !p.gated && (only == nil || only(p.info.Pod)) && q.helps(s, p, &e) {
			woken = append(woken, p)
		}
	}
	for _, p := range woken {
		q.wake(p, now, e.label())
	}
	return len(woken) > 0
}

// helps asks the rules that refused a pod whether a change may help it.
func (q *Queue) helps(s *Snapshot, p *queued, e *Event) bool {
	if len(p.rules) == 0 {
		return true
	}
	profile := q.profiles[p.info.Pod.Spec.SchedulerName]
	if profile == nil {
		return true
	}
	// A change of another pod is no business of this one's own hints.
	if e.Resource == TargetPod && asPod(e.New).UID != p.info.Pod.UID {
		return false
	}
	for _, rule := range p.rules {
		hints, known := profile.hints[rule]
		if !known {
			return true // an extender, or a rule that gives no hints
		}
		for i := range hints {
			h := &hints[i]
			if h.Resource == e.Resource && h.Action&e.Action != 0 && (h.Helps == nil || h.Helps(s, p.info.Pod, e.Old, e.New)) {
				return true
			}
		}
	}
	return false
}

// podHeap is a heap of pods for container/heap.
type podHeap struct {
	pods   []*queued
	before func(a, b *queued) bool
}

func (h *podHeap) Len() int           { return len(h.pods) }
func (h *podHeap) Less(i, j int) bool { return h.before(h.pods[i], h.pods[j]) }
func (h *podHeap) Swap(i, j int) {
	h.pods[i], h.pods[j] = h.pods[j], h.pods[i]
	h.pods[i].index, h.pods[j].index = i, j
}
func (h *podHeap) Push(x any) {
	p := x.(*queued)
	p.index = len(h.pods)
	h.pods = append(h.pods, p)
}
func (h *podHeap) Pop() any {
	last := h.pods[len(h.pods)-1]
	h.pods[len(h.pods)-1] = nil
	h.pods = h.pods[:len(h.pods)-1]
	return last
}
