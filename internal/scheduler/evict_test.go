package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"skiff/internal/scheduler/schedulertest"
)

// fillNodes adds nodes full of pods of one CPU each, of priorities 0, 1, 2 and 3, that have run the longer the higher their priority. The
// pods come first: the scheduler runs, and would use a node that is empty for a moment.
func (f *fakeServer) fillNodes(nodes ...string) {
	for _, node := range nodes {
		for i := range 4 {
			f.addPod(schedulertest.TestPod(fmt.Sprint(node, i), schedulertest.OnNode(node), schedulertest.RequestingCPU("1"), schedulertest.Priority(int32(i)), schedulertest.Started(i)))
		}
		f.addNode(schedulertest.TestNode(node))
	}
}

const (
	insufficientCPU = "0/1 nodes are available: 1 Insufficient cpu."
	marked          = "True PreemptionByScheduler default-scheduler: preempting to accommodate a higher priority pod"
	preemptedBy     = "Normal Preempted: Preempted by pod urgent on node a"
)

func found(victims int) string {
	return fmt.Sprintf("%s preemption: found a potential placement for pod on node a, preempting %d victims", insufficientCPU, victims)
}

func urgentPod(cpu string, options ...schedulertest.PodOption) *corev1.Pod {
	return schedulertest.TestPod("urgent", append([]schedulertest.PodOption{schedulertest.RequestingCPU(cpu), schedulertest.Priority(100)}, options...)...)
}

func TestPreemption(t *testing.T) {
	for name, run := range map[string]func(f *fakeServer){
		"victims are marked and deleted, and the pod waits until they are gone": func(f *fakeServer) {
			f.fillNodes("a")
			f.addPod(urgentPod("2"))
			f.pass(2 * time.Second)
			f.expectVictims("a0", "a1")
			f.expectNominated("urgent", "a")
			for _, v := range []string{"a0", "a1"} {
				if got := f.conditionOf(v, corev1.DisruptionTarget); got != marked {
					f.t.Errorf("%s is marked %q", v, got)
				}
				f.expectEvents(v, preemptedBy)
			}
			if got := f.conditionOf("urgent", corev1.PodScheduled); got != "False Unschedulable "+found(2) {
				f.t.Errorf("the status of the pod is %q", got)
			}
			f.expectEvents("urgent", "Warning FailedScheduling: "+found(2))
			f.expectOn("", "urgent")
			f.pass(10 * time.Second)
			f.expectOn("a", "urgent", "a2", "a3")
			f.expectVictims("a0", "a1")
			events := f.eventsOf("urgent")
			if last := events[len(events)-1]; last != "Normal Scheduled: Successfully assigned default/urgent to a" {
				f.t.Errorf("the last event is %q", last)
			}
		},
		"while they terminate no others are deleted, whatever event retries the pod": func(f *fakeServer) {
			f.fillNodes("a")
			f.grace = time.Minute
			f.addPod(urgentPod("2"))
			f.pass(2 * time.Second)
			f.addNode(schedulertest.TestNode("b", schedulertest.Cordoned))
			f.addPod(schedulertest.TestPod("x", schedulertest.OnNode("b")))
			f.pass(time.Second)
			f.removePod("x")
			f.notify(func() {
				f.scheduler.nodeChanged(schedulertest.TestNode("b", schedulertest.Cordoned), schedulertest.TestNode("b", schedulertest.NodeHas(corev1.ResourceCPU, "1")))
			})
			f.pass(10 * time.Second)
			f.expectVictims("a0", "a1")
			f.expectNominated("urgent", "a")
			if got := f.conditionOf("urgent", corev1.PodScheduled); !strings.HasSuffix(got, "preemption: not eligible due to a terminating pod on the nominated node.") {
				f.t.Errorf("the status of the pod is %q", got)
			}
			f.pass(2 * time.Minute)
			f.expectOn("a", "urgent")
		},
		"another node with free resources is taken meanwhile": func(f *fakeServer) {
			f.fillNodes("a")
			f.grace = time.Hour
			f.addPod(urgentPod("2"))
			f.pass(2 * time.Second)
			f.addNode(schedulertest.TestNode("b"))
			f.pass(5 * time.Second)
			f.expectOn("b", "urgent")
			if _, known := f.nominationOf("urgent"); known != "" {
				f.t.Errorf("resources are still reserved on %s", known)
			}
		},
		"the freed resources are not given to pods of lower priority": func(f *fakeServer) {
			f.fillNodes("a")
			f.addPod(urgentPod("2"))
			f.addPod(schedulertest.TestPod("greedy", schedulertest.RequestingCPU("2"), schedulertest.Priority(5), schedulertest.NeverPreempting))
			f.pass(20 * time.Second)
			f.expectOn("a", "urgent")
			f.expectOn("", "greedy")
		},
		"the freed resources may be given to pods of higher priority": func(f *fakeServer) {
			f.fillNodes("a")
			f.addPod(urgentPod("2"))
			f.pass(time.Second)
			f.addPod(schedulertest.TestPod("boss", schedulertest.RequestingCPU("2"), schedulertest.Priority(1000)))
			f.pass(20 * time.Second)
			f.expectOn("a", "boss")
		},
		"the resources of a nominated pod that is deleted are free again": func(f *fakeServer) {
			f.fillNodes("a")
			f.addPod(urgentPod("2"))
			f.addPod(schedulertest.TestPod("other", schedulertest.RequestingCPU("2"), schedulertest.Priority(5), schedulertest.NeverPreempting))
			f.pass(time.Second)
			f.expectNominated("urgent", "a")
			f.removePod("urgent")
			f.pass(20 * time.Second)
			f.expectOn("a", "other")
			f.expectNominated("urgent", "")
		},
		"a pod that never preempts waits": func(f *fakeServer) {
			f.fillNodes("a")
			f.addPod(urgentPod("2", schedulertest.NeverPreempting))
			f.pass(time.Minute)
			f.expectVictims()
			f.expectEvents("urgent", "Warning FailedScheduling: "+insufficientCPU+" preemption: not eligible due to preemptionPolicy=Never.")
			f.removePod("a3")
			f.removePod("a2")
			f.pass(time.Minute)
			f.expectOn("a", "urgent")
		},
		"no victims are deleted when preemption does not help": func(f *fakeServer) {
			f.fillNodes("a")
			f.addPod(urgentPod("5"))
			f.pass(time.Minute)
			f.expectVictims()
			f.expectEvents("urgent", "Warning FailedScheduling: "+insufficientCPU+" preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")
		},
		"disruption budgets decide which pods are victims": func(f *fakeServer) {
			f.fillNodes("a")
			f.budgets = []*policyv1.PodDisruptionBudget{schedulertest.BudgetFor(0, "color", "green")}
			f.addPod(schedulertest.TestPod("b0", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"), schedulertest.Priority(50)))
			f.addNode(schedulertest.TestNode("b"))
			for i := range 4 {
				f.change(fmt.Sprint("a", i), schedulertest.Labelled("color", "green"))
			}
			f.addPod(urgentPod("2"))
			f.pass(time.Minute)
			f.expectVictims("b0")
			f.expectOn("b", "urgent")
		},
		"victims that all terminate already are waited for": func(f *fakeServer) {
			f.fillNodes("a")
			for _, v := range []string{"a0", "a1"} {
				f.change(v, schedulertest.Terminating)
			}
			f.addPod(urgentPod("2"))
			f.pass(2 * time.Second)
			f.expectVictims()
			f.expectNominated("urgent", "a")
			f.expectEvents("a0")
			f.removePod("a0")
			f.removePod("a1")
			f.pass(5 * time.Second)
			f.expectOn("a", "urgent")
		},
		"only victims that are not terminating yet are deleted": func(f *fakeServer) {
			f.fillNodes("a")
			f.change("a0", schedulertest.Terminating)
			f.addPod(urgentPod("2"))
			f.pass(2 * time.Second)
			f.expectVictims("a1")
			f.expectEvents("a0")
			if got := f.conditionOf("a0", corev1.DisruptionTarget); got != "" {
				f.t.Errorf("a0 is marked %q", got)
			}
		},
		"a victim that does not exist any more is no failure": func(f *fakeServer) {
			f.fillNodes("a")
			f.fail = func(verb string, pod *corev1.Pod) error {
				if verb == "patch" && pod.Name == "a1" {
					return apierrors.NewNotFound(corev1.Resource("pods"), "a1")
				}
				return nil
			}
			f.addPod(urgentPod("2"))
			f.pass(2 * time.Second)
			f.expectVictims("a0")
			f.expectEvents("a1")
			f.expectEvents("a0", preemptedBy)
			f.removePod("a1")
			f.pass(10 * time.Second)
			f.expectOn("a", "urgent")
		},
		"after one victim cannot be deleted the others are not, and the pod is retried at once": func(f *fakeServer) {
			f.fillNodes("a")
			failed := 0
			f.fail = func(verb string, pod *corev1.Pod) error {
				if verb == "delete" && pod.Name == "a1" && failed < 2 {
					failed++
					return errors.New("not now")
				}
				return nil
			}
			began := time.Now()
			f.addPod(urgentPod("2"))
			synctest.Wait()
			for len(f.victims()) < 2 && time.Since(began) < time.Minute {
				f.pass(time.Millisecond)
			}
			// Three times in a row, without waiting for a backoff.
			if waited := time.Since(began); failed != 2 || waited > 500*time.Millisecond {
				f.t.Errorf("failed %d times; the victims were deleted after %v", failed, waited)
			}
			f.expectVictims("a0", "a1")
			f.pass(10 * time.Second)
			f.expectOn("a", "urgent")
		},
		"a victim that cannot be marked is not deleted": func(f *fakeServer) {
			f.fillNodes("a")
			f.fail = func(verb string, pod *corev1.Pod) error {
				if verb == "patch" && strings.HasPrefix(pod.Name, "a") {
					return errors.New("not now")
				}
				return nil
			}
			f.addPod(urgentPod("1"))
			f.pass(3 * time.Second)
			f.expectVictims()
			f.expectEvents("a0")
		},
		"pods of lower priority lose their nomination to the node": func(f *fakeServer) {
			f.fillNodes("a")
			f.grace = time.Hour
			f.addPod(schedulertest.TestPod("first", schedulertest.RequestingCPU("2"), schedulertest.Priority(50)))
			f.pass(2 * time.Second)
			f.expectNominated("first", "a")
			f.addPod(urgentPod("4"))
			f.pass(2 * time.Second)
			f.expectNominated("urgent", "a")
			f.expectNominated("first", "")
			f.expectVictims("a0", "a1", "a2", "a3")
		},
		"pods of the same priority keep their nomination to the node": func(f *fakeServer) {
			f.fillNodes("a")
			f.grace = time.Hour
			f.addPod(schedulertest.TestPod("first", schedulertest.RequestingCPU("2"), schedulertest.Priority(100)))
			f.pass(2 * time.Second)
			f.addPod(urgentPod("2"))
			f.pass(2 * time.Second)
			f.expectNominated("first", "a")
			f.expectNominated("urgent", "a")
			f.expectVictims("a0", "a1", "a2", "a3")
		},
		"two pods preempt on two nodes": func(f *fakeServer) {
			f.fillNodes("a", "b")
			f.addPod(schedulertest.TestPod("one", schedulertest.RequestingCPU("4"), schedulertest.Priority(100)))
			f.addPod(schedulertest.TestPod("two", schedulertest.RequestingCPU("4"), schedulertest.Priority(100)))
			f.pass(20 * time.Second)
			f.expectVictims("a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3")
			if f.nodeOf("one")+f.nodeOf("two") != "ab" && f.nodeOf("one")+f.nodeOf("two") != "ba" {
				f.t.Errorf("on %q and %q", f.nodeOf("one"), f.nodeOf("two"))
			}
		},
		"another node is nominated when the nominated one is deleted": func(f *fakeServer) {
			f.fillNodes("a")
			f.grace = time.Hour
			f.addPod(urgentPod("2"))
			f.pass(2 * time.Second)
			f.fillNodes("b")
			f.notify(func() { f.scheduler.nodeDeleted(schedulertest.TestNode("a")) })
			f.pass(10 * time.Minute)
			f.expectNominated("urgent", "b")
			f.expectVictims("a0", "a1", "b0", "b1")
		},
	} {
		t.Run(name, func(t *testing.T) { withFakeServer(t, nil, run) })
	}
}

// A pod that waits for its volume is not on its node yet: who preempts it calls its binding off instead of deleting it.
func TestPreemptionCancelsBindings(t *testing.T) {
	withVolumeServer(t, volumeServer{lazy: true}, "example.com/disks", func(v *volumeServer) {
		v.notify(func() { v.scheduler.nodeDeleted(schedulertest.TestNode("b")) })
		v.addPod(schedulertest.TestPod("slow", schedulertest.RequestingCPU("3"), schedulertest.UsingClaim("claim")))
		v.pass(time.Second)
		if v.podCount() != 1 || v.boundTimes("slow") != 0 {
			t.Fatalf("the pod is not on its way: %d known", v.podCount())
		}
		v.expectNominatedOnServer("slow", "a")
		v.addPod(urgentPod("2"))
		v.pass(5 * time.Second)
		v.expectVictims()
		v.expectOn("a", "urgent")
		events := v.eventsOf("slow")
		if !slices.Contains(events, "Normal Preempted: Preempted by pod urgent on node a (in kube-scheduler memory).") {
			t.Errorf("events %v", events)
		}
		if got := v.conditionOf("slow", corev1.DisruptionTarget); got != "" {
			t.Errorf("the victim is marked %q", got)
		}
		if !slices.Contains(events, `Warning FailedScheduling: running PreBind plugin "VolumeBinding": preempted by DefaultPreemption`) {
			t.Errorf("events %v", events)
		}
		v.expectNominatedOnServer("slow", "")
		v.removePod("urgent")
		v.mu.Lock()
		v.lazy = false
		v.mu.Unlock()
		v.pass(30 * time.Second)
		v.expectOn("a", "slow")
	})
}
