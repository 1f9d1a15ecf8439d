package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxRemembered bounds the decisions kept for questions.
	maxRemembered = 1024
	// maxDetailed bounds how many of them keep a record of their own. Decisions that only point into a table shared by pods of their
	// make keep that for as long as the table is there and its history reaches.
	maxDetailed = 16
)

// DecisionLog remembers the last decisions. It is written for every pod and read for few, so writing costs next to nothing and
// reading looks at all of them.
type DecisionLog struct {
	ring [maxRemembered]remembered
	next int
}

type remembered struct {
	decision *Decision
	err      error
	at       time.Time
}

// Remember keeps a decision, and what came of it, in place of the oldest.
func (l *DecisionLog) Remember(d *Decision, err error, now time.Time) {
	if fading := l.ring[(l.next+maxRemembered-maxDetailed)%maxRemembered].decision; fading != nil && fading.ownRecord() {
		fading.fade()
	}
	l.ring[l.next] = remembered{decision: d, err: err, at: now}
	l.next = (l.next + 1) % maxRemembered
}

// dropped lets go of a table that the snapshot has forgotten.
func (l *DecisionLog) dropped(t *table) {
	for i := range l.ring {
		if d := l.ring[i].decision; d != nil && d.table == t {
			d.fade()
		}
	}
}

// ownRecord reports whether a decision keeps more than a place in a shared table.
func (d *Decision) ownRecord() bool { return d.beside != nil || d.table == nil || !d.table.shared }

// last is the last decision about a pod, or nil.
func (l *DecisionLog) last(uid types.UID) *remembered {
	for i := range l.ring {
		r := &l.ring[(l.next+maxRemembered-1-i)%maxRemembered]
		if r.decision == nil {
			return nil
		}
		if r.decision.Pod.Pod.UID == uid {
			return r
		}
	}
	return nil
}

// Explanation tells why a pod is where it is, or nowhere.
type Explanation struct {
	metav1.TypeMeta `json:",inline"`
	Namespace       string `json:"namespace"`
	Name            string `json:"name"`
	// Node is where the pod was put, empty when it has no place.
	Node string `json:"node,omitempty"`
	// Message is what the pod's condition says.
	Message string `json:"message,omitempty"`
	// Decided is when the decision was made that Verdicts are of. Without it they are what would be said now.
	Decided *metav1.Time `json:"decided,omitempty"`
	// Feasible nodes could take the pod, out of Nodes.
	Feasible int `json:"feasible"`
	Nodes    int `json:"nodes"`
	// Verdicts are about every node, the best first.
	Verdicts []Verdict `json:"verdicts,omitempty"`
	// Changes are the smallest ones that would let a pending pod run, the smallest first.
	Changes []Change `json:"changes,omitempty"`
	// Preemption is how the pod would get room for itself.
	Preemption *Room `json:"preemption,omitempty"`
}

// Room is what a pod would get by moving pods of lower priority away. Their names are not told: they may be anybody's.
type Room struct {
	Node    string `json:"node"`
	Victims int    `json:"victims"`
}

// ErrNotOurs says that another scheduler looks after a pod.
var ErrNotOurs = errors.New("another scheduler looks after the pod")

// ErrUnknownPod says that there is no such pod.
var ErrUnknownPod = errors.New("pod not found")

// Why explains the last decision about a pod, or what would be decided now.
func (s *Scheduler) Why(namespace, name string) (*Explanation, error) {
	pod, ok := s.lists.pods(namespace, name)
	if !ok {
		return nil, ErrUnknownPod
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	profile := s.profiles[pod.Spec.SchedulerName]
	if profile == nil {
		return nil, fmt.Errorf("%w: its schedulerName is %q", ErrNotOurs, pod.Spec.SchedulerName)
	}
	e := &Explanation{Namespace: namespace, Name: name, Node: pod.Spec.NodeName}
	if message := gateMessage(pod); message != "" && profile.gates && pod.Spec.NodeName == "" {
		e.Message, e.Nodes = message, s.snapshot.count
		e.Changes = []Change{{Steps: []string{"remove the pod's scheduling gates"}}}
		return e, nil
	}
	last := s.decisions.last(pod.UID)
	if last != nil && !last.decision.faded && (pod.Spec.NodeName == "" || last.decision.Node == pod.Spec.NodeName) {
		if verdicts, current := last.decision.Explain(); current {
			e.describe(last.decision, last.err)
			e.Verdicts, e.Decided = verdicts, &metav1.Time{Time: last.at}
		}
	}
	if e.Decided != nil && e.Node != "" {
		return e, nil
	}
	return e, s.explainNow(e, pod, profile)
}

// explainNow adds what would be decided now, and for a pod that has no place what would have to change.
func (s *Scheduler) explainNow(e *Explanation, pod *corev1.Pod, profile *Profile) error {
	asked := *pod
	asked.Spec.NodeName = ""
	info, err := NewPodInfo(&asked)
	if err != nil {
		return err
	}
	s.without(pod.UID, func() {
		d, failure := Schedule(s.snapshot, info, profile)
		if e.Decided == nil {
			e.describe(d, failure)
			e.Verdicts, _ = d.Explain()
		}
		if pod.Spec.NodeName != "" {
			// What would be decided now is not where the pod is.
			e.Node, e.Message = pod.Spec.NodeName, ""
		} else if failure != nil {
			s.helpOut(e, d)
		}
	})
	return nil
}

// without looks at the cluster as if a pod were not there.
func (s *Scheduler) without(uid types.UID, do func()) {
	p := s.snapshot.pods[uid]
	if p == nil {
		do()
		return
	}
	services, served := s.snapshot.services, s.snapshot.served[p.node]
	s.snapshot.removePod(p)
	do()
	s.snapshot.addPod(p)
	s.snapshot.services, s.snapshot.served[p.node] = services, served
}

func (e *Explanation) describe(d *Decision, err error) {
	e.Node, e.Message, e.Feasible, e.Nodes = d.Node, "", d.Feasible, d.Nodes
	if err != nil {
		e.Message = err.Error()
	}
}

// helpOut tells how a pod that fits nowhere could run.
func (s *Scheduler) helpOut(e *Explanation, d *Decision) {
	e.Changes = d.smallestChanges()
	if d.profile.preemption == nil || d.table == nil {
		return
	}
	if way, _, err := Preempt(d, s.lists.budgets(), nil); err == nil {
		e.Preemption = &Room{Node: way.Node, Victims: len(way.Victims)}
	}
}

// WhatIf decides about pods as if they were created now, one after another, and changes nothing. Verdicts about every node are
// added if wanted.
func (s *Scheduler) WhatIf(pods []*corev1.Pod, verdicts bool) ([]Explanation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whatIfAll(pods, verdicts)
}

// whatIfAll is WhatIf for callers that hold s.mu.
func (s *Scheduler) whatIfAll(pods []*corev1.Pod, verdicts bool) ([]Explanation, error) {
	all := make([]Explanation, 0, len(pods))
	var undo []func()
	defer func() {
		for _, back := range slices.Backward(undo) {
			back()
		}
	}()
	services, served := s.snapshot.services, slices.Clone(s.snapshot.served)
	undo = append(undo, func() { s.snapshot.services = services; copy(s.snapshot.served, served) })
	for i, pod := range pods {
		e, back, err := s.whatIf(i, pod, verdicts)
		if err != nil {
			return nil, err
		}
		if back != nil {
			undo = append(undo, back)
		}
		all = append(all, *e)
	}
	return all, nil
}

// whatIf decides about one pod and assumes that it is there from now on, until back is called.
func (s *Scheduler) whatIf(i int, pod *corev1.Pod, verdicts bool) (e *Explanation, back func(), err error) {
	pod = pod.DeepCopy()
	if pod.Spec.SchedulerName == "" {
		pod.Spec.SchedulerName = corev1.DefaultSchedulerName
	}
	// A name of its own, so that it is not taken for a pod that exists.
	pod.UID = types.UID(fmt.Sprintf("what-if/%d/%s", i, keyOf(pod)))
	pod.Spec.NodeName, pod.Status = "", corev1.PodStatus{}
	profile := s.profiles[pod.Spec.SchedulerName]
	if profile == nil {
		return nil, nil, fmt.Errorf("pod %s: %w: its schedulerName is %q", keyOf(pod), ErrNotOurs, pod.Spec.SchedulerName)
	}
	e = &Explanation{Namespace: pod.Namespace, Name: pod.Name}
	if message := gateMessage(pod); message != "" && profile.gates {
		e.Message, e.Nodes = message, s.snapshot.count
		return e, nil, nil
	}
	info, err := NewPodInfo(pod)
	if err != nil {
		return nil, nil, fmt.Errorf("pod %s: %w", keyOf(pod), err)
	}
	d, failure := Schedule(s.snapshot, info, profile)
	e.describe(d, failure)
	if verdicts {
		e.Verdicts, _ = d.Explain()
	}
	if failure != nil {
		s.helpOut(e, d)
		return e, nil, nil
	}
	plan, err := s.reserve(d)
	if err != nil {
		e.Node, e.Message = "", err.Error()
		return e, nil, nil
	}
	s.snapshot.Assume(info, d.Node)
	return e, func() { s.snapshot.Forget(pod.UID); s.release(plan) }, nil
}

// Pending counts the pods that want a node, by place in the queue.
func (s *Scheduler) Pending() (active, backoff, waiting, flying int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue.Len()
}

// IsUnschedulable reports whether an error of Schedule means that no node can take the pod.
func IsUnschedulable(err error) bool {
	var fit *FitError
	return errors.Is(err, ErrNoNodes) || errors.As(err, &fit)
}
