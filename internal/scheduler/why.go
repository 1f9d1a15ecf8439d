package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxRemembered bounds the decisions kept for questions.
	maxRemembered = 1024
	// maxDetailed bounds how many of them keep what was said of every node.
	maxDetailed = 64
	// maxChangesTold bounds the ways to help a pod that an explanation names.
	maxChangesTold = 5
)

// decisionLog remembers the last decision about each of the pods decided last.
type decisionLog struct {
	byPod map[types.UID]*remembered
	ring  [maxRemembered]types.UID
	next  int
}

type remembered struct {
	decision *Decision
	err      error
}

func (l *decisionLog) remember(d *Decision, err error) {
	if l.byPod == nil {
		l.byPod = map[types.UID]*remembered{}
	}
	if previous := l.byPod[d.Pod.Pod.UID]; previous != nil {
		previous.decision.fade()
	}
	if fading := l.byPod[l.ring[(l.next+maxRemembered-maxDetailed)%maxRemembered]]; fading != nil && !fading.decision.faded {
		fading.decision.fade()
	}
	delete(l.byPod, l.ring[l.next])
	uid := d.Pod.Pod.UID
	l.ring[l.next] = uid
	l.next = (l.next + 1) % maxRemembered
	l.byPod[uid] = &remembered{decision: d, err: err}
}

func (l *decisionLog) forget(uid types.UID) { delete(l.byPod, uid) }

// Explanation tells why a pod is where it is, or nowhere.
type Explanation struct {
	Namespace, Name string
	// Node is where the pod was put, empty when it has no place.
	Node string
	// Message is what the pod's condition says.
	Message string
	// AsDecided is true when Verdicts are those the decision was made by; otherwise they are what would be said now.
	AsDecided bool
	Verdicts  []Verdict
	// Changes are the smallest ones that would let a pending pod run, the smallest first.
	Changes []Change
}

// Change is what would have to be different for a pod to run on a node.
type Change struct {
	Node  string
	Steps []string
}

// Why explains the last decision about a pod, or what would be decided now.
func (s *Scheduler) Why(namespace, name string) (*Explanation, error) {
	pod, ok := s.lists.pods(namespace, name)
	if !ok {
		return nil, fmt.Errorf("pod %s/%s is not known", namespace, name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &Explanation{Namespace: namespace, Name: name, Node: pod.Spec.NodeName}
	last := s.decisions.byPod[pod.UID]
	if last != nil && !last.decision.faded && (pod.Spec.NodeName == "" || last.decision.Node == pod.Spec.NodeName) {
		e.describe(last.decision, last.err)
		if e.AsDecided && pod.Spec.NodeName != "" {
			return e, nil
		}
	}
	profile := s.profiles[pod.Spec.SchedulerName]
	if profile == nil {
		return nil, fmt.Errorf("no profile is named %q", pod.Spec.SchedulerName)
	}
	if message := gateMessage(pod); message != "" && profile.gates && pod.Spec.NodeName == "" {
		e.Message = message
		e.Changes = []Change{{Steps: []string{"remove the scheduling gates"}}}
		return e, nil
	}
	asked := *pod
	asked.Spec.NodeName = ""
	info, err := NewPodInfo(&asked)
	if err != nil {
		return nil, err
	}
	var d *Decision
	s.without(pod.UID, func() { d, err = Schedule(s.snapshot, info, profile) })
	if !e.AsDecided {
		e.describe(d, err)
		e.AsDecided = false
	}
	if pod.Spec.NodeName != "" {
		e.Node = pod.Spec.NodeName
	} else if d.Node == "" {
		e.Changes = d.smallestChanges()
	}
	return e, nil
}

// without looks at the cluster as if a pod were not there.
func (s *Scheduler) without(uid types.UID, do func()) {
	p := s.snapshot.pods[uid]
	if p == nil {
		do()
		return
	}
	served := s.snapshot.served[p.node]
	s.snapshot.removePod(p)
	do()
	s.snapshot.addPod(p)
	s.snapshot.served[p.node] = served
}

func (e *Explanation) describe(d *Decision, err error) {
	e.Verdicts, e.AsDecided = d.Explain()
	e.Node, e.Message = d.Node, ""
	if err != nil {
		e.Message = err.Error()
	}
}

// WhatIf decides about pods as if they were created now, one after another, and changes nothing.
func (s *Scheduler) WhatIf(pods []*corev1.Pod) ([]Explanation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Explanation
	var assumed []types.UID
	defer func() {
		for _, uid := range slices.Backward(assumed) {
			s.snapshot.Forget(uid)
		}
	}()
	for i, pod := range pods {
		pod = pod.DeepCopy()
		if pod.Spec.SchedulerName == "" {
			pod.Spec.SchedulerName = corev1.DefaultSchedulerName
		}
		// A name of its own, so that it is not taken for a pod that exists.
		pod.UID = types.UID(fmt.Sprintf("what-if/%d/%s", i, keyOf(pod)))
		profile := s.profiles[pod.Spec.SchedulerName]
		if profile == nil {
			return nil, fmt.Errorf("no profile is named %q", pod.Spec.SchedulerName)
		}
		info, err := NewPodInfo(pod)
		if err != nil {
			return nil, err
		}
		d, err := Schedule(s.snapshot, info, profile)
		e := Explanation{Namespace: pod.Namespace, Name: pod.Name}
		e.describe(d, err)
		if err == nil {
			s.snapshot.Assume(info, d.Node)
			assumed = append(assumed, pod.UID)
		} else {
			e.Changes = d.smallestChanges()
		}
		all = append(all, e)
	}
	return all, nil
}

// smallestChanges asks all rules about all nodes, not only the first that refuses, and tells what is in the way on the nodes where
// least is.
func (d *Decision) smallestChanges() []Change {
	s := d.snapshot
	if d.table == nil {
		if d.refusal == nil {
			return []Change{{Steps: []string{"add a node"}}}
		}
		return []Change{{Steps: d.refusal.Reasons}}
	}
	near, err := s.neighbourhoodFor(d.Pod, d.profile)
	if err != nil {
		return nil
	}
	var all []Change
	for i := range s.nodes {
		node := int32(i)
		if s.nodes[i].object == nil {
			continue
		}
		var refusals []*Refusal
		for f := range d.table.filters {
			if r := d.table.filters[f].check(node); r != nil {
				refusals = append(refusals, r)
			}
		}
		for _, point := range [][2]bool{{true, false}, {false, true}} {
			if code := near.check(node, point[0] && d.profile.spreadOrder >= 0, point[1] && d.profile.affinityOrder >= 0); code != 0 {
				refusals = append(refusals, besideRefusals[code])
			}
		}
		c := Change{Node: s.nodes[i].name}
		for _, r := range refusals {
			c.Steps = append(c.Steps, d.remedies(node, r)...)
		}
		if len(c.Steps) == 0 && d.overrides[node] != nil {
			c.Steps = []string{"wait: room is kept for a nominated pod of the same or higher priority"}
		}
		if len(c.Steps) > 0 {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b Change) int {
		if len(a.Steps) != len(b.Steps) {
			return len(a.Steps) - len(b.Steps)
		}
		return strings.Compare(a.Node, b.Node)
	})
	return all[:min(len(all), maxChangesTold)]
}

// remedies are the steps that would take one refusal away.
func (d *Decision) remedies(node int32, r *Refusal) []string {
	s, pod := d.snapshot, d.Pod.Pod
	name := s.nodes[node].name
	switch r.Rule {
	case nodeUnschedulableName:
		return []string{"uncordon node " + name}
	case taintTolerationName:
		t := (&tolerance{snapshot: s, tolerations: pod.Spec.Tolerations}).of(node).refused
		return []string{fmt.Sprintf("tolerate the taint %s or remove it from node %s", t.ToString(), name)}
	case nodeAffinityName:
		return []string{fmt.Sprintf("label node %s so that the pod's node selector and affinity match, or relax them", name)}
	case nodePortsName:
		return []string{fmt.Sprintf("free the pod's host ports on node %s", name)}
	case nodeResourcesFitName:
		return d.missingResources(node)
	case podTopologySpreadName:
		return []string{fmt.Sprintf("relax the topology spread constraints, or balance the pods they count so that the domain of node %s has fewer", name)}
	case interPodAffinityName:
		return []string{fmt.Sprintf("%s: relax the affinity terms, or move pods to or from the domain of node %s", strings.TrimPrefix(r.Reasons[0], "node(s) "), name)}
	}
	if r.Err != nil {
		return []string{r.Err.Error()}
	}
	return r.Reasons
}

func (d *Decision) missingResources(node int32) (steps []string) {
	s, name := d.snapshot, d.snapshot.nodes[node].name
	if s.requested[pods][node]+1 > s.allocatable[pods][node] {
		steps = append(steps, fmt.Sprintf("remove a pod from node %s, which can hold %d", name, s.allocatable[pods][node]))
	}
	fit := &nodeResourcesFit{}
	for _, w := range fit.wants(s, d.Pod) {
		has, used := s.allocatable[w.resource][node], s.requested[w.resource][node]
		if w.amount <= has-used {
			continue
		}
		if w.amount > has {
			steps = append(steps, fmt.Sprintf("ask for at most %s %s, which is all node %s has", quantity(w, has), w.name, name))
		} else {
			steps = append(steps, fmt.Sprintf("free %s %s on node %s (%s of %s are requested)", quantity(w, w.amount-(has-used)), w.name, name, quantity(w, used), quantity(w, has)))
		}
	}
	return steps
}

// quantity writes an amount as users do.
func quantity(w want, amount int64) string {
	switch w.resource {
	case cpu:
		return resource.NewMilliQuantity(amount, resource.DecimalSI).String()
	case memory, storage:
		return resource.NewQuantity(amount, resource.BinarySI).String()
	}
	return resource.NewQuantity(amount, resource.DecimalSI).String()
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
