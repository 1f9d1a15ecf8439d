package scheduler

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func testQueue() *Queue {
	p := DefaultProfile()
	return NewQueue(map[string]*Profile{p.Name: p}, time.Second, 10*time.Second)
}

// popped is the name of the next pod, or nothing.
func popped(q *Queue, now time.Time) string {
	p, _ := q.Pop(now)
	if p == nil {
		return ""
	}
	return p.info.Pod.Name
}

func TestQueueOrder(t *testing.T) {
	q, now := testQueue(), time.Unix(1000, 0)
	for i, pod := range []*corev1.Pod{testPod("low-1", priority(1)), testPod("high", priority(5)), testPod("low-2", priority(1)), testPod("none")} {
		q.Add(infoOf(t, pod), now.Add(time.Duration(i)*time.Second))
	}
	now = now.Add(time.Minute)
	var order []string
	for name := popped(q, now); name != ""; name = popped(q, now) {
		order = append(order, name)
	}
	if got := fmt.Sprint(order); got != "[high low-1 low-2 none]" {
		t.Errorf("order %s", got)
	}
}

func TestQueueBackoff(t *testing.T) {
	q, s, now := testQueue(), NewSnapshot(), time.Unix(1000, 0)
	q.Add(infoOf(t, testPod("p")), now)
	// A try that failed by itself is repeated after 1, 2, 4, 8, 10, 10 … seconds.
	for _, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		p, _ := q.Pop(now)
		if p == nil {
			t.Fatalf("the pod is not there after %v", want)
		}
		q.Return(s, p, nil, now)
		if early := popped(q, now.Add(want*time.Second-time.Millisecond)); early != "" {
			t.Errorf("the pod is tried again before %v seconds", want)
		}
		if _, wait := q.Pop(now); wait > want*time.Second {
			t.Errorf("the queue wants to be asked again after %v, the backoff ends after %v seconds", wait, want)
		}
		now = now.Add(want * time.Second)
	}
}

func TestQueueWakesOnlyPodsAChangeMayHelp(t *testing.T) {
	green := labelled("color", "green")
	small, big := testNode("n", nodeHas(corev1.ResourceCPU, "1")), testNode("n", nodeHas(corev1.ResourceCPU, "8"))
	tainted := testNode("n", taint("k", "", corev1.TaintEffectNoSchedule))
	tests := map[string]struct {
		pod   *corev1.Pod
		rule  string
		event Event
		wakes bool
	}{
		"room: a pod goes":                    {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{AssignedPod, Delete, testPod("o", on("n")), nil}, true},
		"room: a pod comes":                   {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{AssignedPod, Add, nil, testPod("o", on("n"))}, false},
		"room: a large node comes":            {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{NodeResource, Add, nil, big}, true},
		"room: a small node comes":            {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{NodeResource, Add, nil, small}, false},
		"room: a node grows":                  {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{NodeResource, UpdateNodeAllocatable, small, big}, true},
		"room: a node is relabelled":          {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{NodeResource, UpdateNodeLabel, small, big}, false},
		"room: a pod shrinks":                 {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{AssignedPod, UpdatePodScaleDown, testPod("o", on("n"), asksCPU("2")), testPod("o", on("n"), asksCPU("1"))}, true},
		"room: a pod shrinks in memory":       {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{AssignedPod, UpdatePodScaleDown, testPod("o", on("n"), asksMemory("2Gi")), testPod("o", on("n"), asksMemory("1Gi"))}, false},
		"taint: removed":                      {testPod("p"), taintTolerationName, Event{NodeResource, UpdateNodeTaint, tainted, small}, true},
		"taint: a tainted node comes":         {testPod("p"), taintTolerationName, Event{NodeResource, Add, nil, tainted}, false},
		"cordon: lifted":                      {testPod("p"), nodeUnschedulableName, Event{NodeResource, UpdateNodeTaint, testNode("n", cordoned), small}, true},
		"node affinity: the label comes":      {testPod("p", selecting("a", "b")), nodeAffinityName, Event{NodeResource, UpdateNodeLabel, small, testNode("n", nodeLabel("a", "b"))}, true},
		"node affinity: another label comes":  {testPod("p", selecting("a", "b")), nodeAffinityName, Event{NodeResource, UpdateNodeLabel, small, testNode("n", nodeLabel("a", "c"))}, false},
		"ports: freed":                        {testPod("p", port(80, "", "TCP")), nodePortsName, Event{AssignedPod, Delete, testPod("o", on("n"), port(80, "", "TCP")), nil}, true},
		"ports: another freed":                {testPod("p", port(80, "", "TCP")), nodePortsName, Event{AssignedPod, Delete, testPod("o", on("n"), port(81, "", "TCP")), nil}, false},
		"affinity: the friend comes":          {testPod("p", near(corev1.LabelHostname, "color", "green")), interPodAffinityName, Event{AssignedPod, Add, nil, testPod("o", on("n"), green)}, true},
		"affinity: a stranger comes":          {testPod("p", near(corev1.LabelHostname, "color", "green")), interPodAffinityName, Event{AssignedPod, Add, nil, testPod("o", on("n"))}, false},
		"affinity: the enemy goes":            {testPod("p", away(corev1.LabelHostname, "color", "green")), interPodAffinityName, Event{AssignedPod, Delete, testPod("o", on("n"), green), nil}, true},
		"affinity: one who hated us goes":     {testPod("p", green), interPodAffinityName, Event{AssignedPod, Delete, testPod("o", on("n"), away(corev1.LabelHostname, "color", "green")), nil}, true},
		"affinity: the enemy changes color":   {testPod("p", away(corev1.LabelHostname, "color", "green")), interPodAffinityName, Event{AssignedPod, UpdatePodLabel, testPod("o", on("n"), green), testPod("o", on("n"), labelled("color", "red"))}, true},
		"spread: one of ours goes":            {testPod("p", green, spread(corev1.LabelHostname, 1, corev1.DoNotSchedule, "color", "green")), podTopologySpreadName, Event{AssignedPod, Delete, testPod("o", on("n"), green), nil}, true},
		"spread: a stranger goes":             {testPod("p", green, spread(corev1.LabelHostname, 1, corev1.DoNotSchedule, "color", "green")), podTopologySpreadName, Event{AssignedPod, Delete, testPod("o", on("n")), nil}, false},
		"spread: a node without the key":      {testPod("p", green, spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "color", "green")), podTopologySpreadName, Event{NodeResource, Add, nil, small}, false},
		"spread: a node with the key":         {testPod("p", green, spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "color", "green")), podTopologySpreadName, Event{NodeResource, Add, nil, testNode("n", zone("1"))}, true},
		"an extender's refusal: any change":   {testPod("p"), extenderName, Event{NodeResource, Add, nil, small}, true},
		"no interest in what nobody asks for": {testPod("p"), extenderName, Event{Resource("Secret"), Add, nil, small}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			q, s, now := testQueue(), NewSnapshot(), time.Unix(1000, 0)
			info := infoOf(t, test.pod)
			q.Add(info, now)
			p, _ := q.Pop(now)
			q.Return(s, p, []string{test.rule}, now)
			if woke := q.Move(s, test.event, now, nil); woke != test.wakes {
				t.Errorf("woken: %v, want %v", woke, test.wakes)
			}
			// The same change while the pod is being tried counts just as well.
			q = testQueue()
			q.Add(info, now)
			p, _ = q.Pop(now)
			q.Move(s, test.event, now, nil)
			q.Return(s, p, []string{test.rule}, now)
			if waits := p.place == isWaiting; waits == test.wakes {
				t.Errorf("the change during the try is lost, or counts in vain: place %d", p.place)
			}
		})
	}
}

func TestQueueGates(t *testing.T) {
	q, s, now := testQueue(), NewSnapshot(), time.Unix(1000, 0)
	gated := testPod("p", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "wait"}} })
	q.Add(infoOf(t, gated), now)
	if name := popped(q, now); name != "" {
		t.Fatal("a gated pod is tried")
	}
	q.Move(s, Event{NodeResource, Add, nil, testNode("n")}, now, nil)
	if name := popped(q, now.Add(maxWaiting*2)); name != "" {
		t.Fatal("a gated pod is tried after a while")
	}
	q.Update(s, gated, infoOf(t, testPod("p")), now)
	if name := popped(q, now); name != "p" {
		t.Errorf("after its gates are gone the pod is not tried, but %q", name)
	}
}

func TestQueueLetsNobodyWaitForever(t *testing.T) {
	q, s, now := testQueue(), NewSnapshot(), time.Unix(1000, 0)
	q.Add(infoOf(t, testPod("p")), now)
	p, _ := q.Pop(now)
	q.Return(s, p, []string{nodeNameName}, now)
	if name := popped(q, now.Add(4*time.Minute)); name != "" {
		t.Error("the pod is tried though nothing helped it")
	}
	if name := popped(q, now.Add(6*time.Minute)); name != "p" {
		t.Errorf("after six minutes the pod is not tried, but %q", name)
	}
}

func TestQueueForgetsDeletedPods(t *testing.T) {
	q, s, now := testQueue(), NewSnapshot(), time.Unix(1000, 0)
	for i := range 4 {
		q.Add(infoOf(t, testPod(fmt.Sprint("p", i))), now)
	}
	flying, _ := q.Pop(now)
	q.Delete("p2")
	q.Delete(flying.info.Pod.UID)
	q.Return(s, flying, []string{nodeNameName}, now)
	left := map[types.UID]bool{}
	for p, _ := q.Pop(now); p != nil; p, _ = q.Pop(now) {
		left[p.info.Pod.UID] = true
	}
	if len(left) != 2 || left["p2"] || left[flying.info.Pod.UID] {
		t.Errorf("left: %v", left)
	}
}
