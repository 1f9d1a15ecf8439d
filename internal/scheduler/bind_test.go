package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"skiff/internal/podstate"
	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
)

// eventsOf are the events about a pod, in order.
func (f *fakeServer) eventsOf(pod string) (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		if component, rest, _ := strings.Cut(e, " "+pod+" "); rest != "" && !strings.Contains(component, " ") {
			all = append(all, rest)
		}
	}
	return all
}

func (f *fakeServer) expectEvents(pod string, want ...string) {
	f.t.Helper()
	if got := f.eventsOf(pod); !slices.Equal(got, want) {
		f.t.Errorf("events of %s:\n%s\nwant\n%s", pod, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// conditionOf is a condition of a pod as the server has it: status, reason and message.
func (f *fakeServer) conditionOf(pod string, kind corev1.PodConditionType) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.pods[pod]; p != nil {
		for _, c := range p.Status.Conditions {
			if c.Type == kind {
				return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
			}
		}
	}
	return ""
}

// nominationOf is the node a pod waits for as the server knows it, and as the scheduler does.
func (f *fakeServer) nominationOf(pod string) (written, known string) {
	f.mu.Lock()
	if p := f.pods[pod]; p != nil {
		written = p.Status.NominatedNodeName
	}
	f.mu.Unlock()
	f.scheduler.mu.Lock()
	defer f.scheduler.mu.Unlock()
	if p := f.scheduler.snapshot.Nominations[types.UID(pod)]; p != nil {
		known = f.scheduler.snapshot.NodeInfos[p.Node].Name
	}
	return written, known
}

func (f *fakeServer) expectNominated(pod, want string) {
	f.t.Helper()
	if written, known := f.nominationOf(pod); written != want || known != want {
		f.t.Errorf("%s is nominated to %q, and known to be to %q; want %q", pod, written, known, want)
	}
}

func (f *fakeServer) expectVictims(want ...string) {
	f.t.Helper()
	got := f.victims()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		f.t.Errorf("deleted: %v, want %v", got, want)
	}
}

// expectOn compares where pods are; "" is nowhere.
func (f *fakeServer) expectOn(node string, pods ...string) {
	f.t.Helper()
	for _, p := range pods {
		if got := f.nodeOf(p); got != node {
			f.t.Errorf("%s is on %q, want %q", p, got, node)
		}
	}
}

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

func TestPreemptionStories(t *testing.T) {
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
		"but not from more important ones": func(f *fakeServer) {
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
		"where nobody's going helps nobody goes": func(f *fakeServer) {
			f.fillNodes("a")
			f.addPod(urgentPod("5"))
			f.pass(time.Minute)
			f.expectVictims()
			f.expectEvents("urgent", "Warning FailedScheduling: "+insufficientCPU+" preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")
		},
		"budgets decide who goes": func(f *fakeServer) {
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
		"victims that all go already are waited for": func(f *fakeServer) {
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
		"equals that wait for the node keep their claim": func(f *fakeServer) {
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
		"two pods preempts for two": func(f *fakeServer) {
			f.fillNodes("a", "b")
			f.addPod(schedulertest.TestPod("one", schedulertest.RequestingCPU("4"), schedulertest.Priority(100)))
			f.addPod(schedulertest.TestPod("two", schedulertest.RequestingCPU("4"), schedulertest.Priority(100)))
			f.pass(20 * time.Second)
			f.expectVictims("a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3")
			if f.nodeOf("one")+f.nodeOf("two") != "ab" && f.nodeOf("one")+f.nodeOf("two") != "ba" {
				f.t.Errorf("on %q and %q", f.nodeOf("one"), f.nodeOf("two"))
			}
		},
		"the nominated node goes": func(f *fakeServer) {
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
func TestPreemptionCallsBindingsOff(t *testing.T) {
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

func (f *fakeServer) expectNominatedOnServer(pod, want string) {
	f.t.Helper()
	if written, _ := f.nominationOf(pod); written != want {
		f.t.Errorf("%s is nominated to %q, want %q", pod, written, want)
	}
}

func TestBindingStories(t *testing.T) {
	for name, run := range map[string]func(f *fakeServer){
		"a pod is bound and an event recorded": func(f *fakeServer) {
			f.addNode(schedulertest.TestNode("a"))
			f.addPod(schedulertest.TestPod("p", schedulertest.RequestingCPU("1")))
			f.pass(time.Second)
			f.expectOn("a", "p")
			f.expectEvents("p", "Normal Scheduled: Successfully assigned default/p to a")
			if patches := f.patchesOf("p"); len(patches) != 0 {
				f.t.Errorf("patches %v", patches)
			}
			if node, assumed := f.assumed("p"); assumed {
				f.t.Errorf("still assumed on %s", node)
			}
		},
		"a binding that fails is reported, forgotten and tried again": func(f *fakeServer) {
			f.addNode(schedulertest.TestNode("a"))
			f.refuse = func(*corev1.Pod, string) error { return errors.New("no luck") }
			f.addPod(schedulertest.TestPod("p", schedulertest.RequestingCPU("4")))
			f.pass(100 * time.Millisecond)
			const text = `running Bind plugin "DefaultBinder": no luck`
			f.expectEvents("p", "Warning FailedScheduling: "+text)
			if got := f.conditionOf("p", corev1.PodScheduled); got != "False SchedulerError "+text {
				f.t.Errorf("the status of the pod is %q", got)
			}
			if f.podCount() != 0 {
				f.t.Error("its resources are still in use")
			}
			f.pass(1400 * time.Millisecond)
			f.mu.Lock()
			f.refuse = nil
			f.mu.Unlock()
			f.pass(10 * time.Second)
			f.expectOn("a", "p")
			if f.boundTimes("p") != 1 {
				f.t.Errorf("bound %d times", f.boundTimes("p"))
			}
		},
		"a failed binding frees its resources for others": func(f *fakeServer) {
			f.addNode(schedulertest.TestNode("a"))
			f.refuse = func(p *corev1.Pod, _ string) error {
				if p.Name == "p" {
					return errors.New("no luck")
				}
				return nil
			}
			f.delay = 200 * time.Millisecond
			f.addPod(schedulertest.TestPod("p", schedulertest.RequestingCPU("4")))
			f.addPod(schedulertest.TestPod("q", schedulertest.RequestingCPU("4")))
			f.pass(100 * time.Millisecond)
			f.expectEvents("q", "Warning FailedScheduling: "+insufficientCPU+" preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.")
			f.pass(5 * time.Second)
			f.expectOn("a", "q")
			f.expectOn("", "p")
		},
		"a pod bound by somebody else is left where it is": func(f *fakeServer) {
			f.addNode(schedulertest.TestNode("a"))
			f.addNode(schedulertest.TestNode("b"))
			f.refuse = func(p *corev1.Pod, node string) error {
				if p.Name != "p" {
					return nil
				}
				go f.change(p.Name, schedulertest.OnNode(map[string]string{"a": "b", "b": "a"}[node]))
				return apierrors.NewConflict(corev1.Resource("pods"), p.Name, errors.New("already assigned"))
			}
			f.addPod(schedulertest.TestPod("p", schedulertest.RequestingCPU("4")))
			f.pass(10 * time.Second)
			if f.boundTimes("p") != 0 || f.nodeOf("p") == "" {
				f.t.Errorf("bound %d times, on %q", f.boundTimes("p"), f.nodeOf("p"))
			}
			f.addPod(schedulertest.TestPod("q", schedulertest.RequestingCPU("4")))
			f.pass(10 * time.Second)
			if f.nodeOf("q") == f.nodeOf("p") || f.nodeOf("q") == "" {
				f.t.Errorf("q is on %q", f.nodeOf("q"))
			}
		},
		"a pod deleted while it is bound is forgotten, and its resources used at once": func(f *fakeServer) {
			f.addNode(schedulertest.TestNode("a"))
			f.delay = time.Second
			f.addPod(schedulertest.TestPod("p", schedulertest.RequestingCPU("4")))
			f.addPod(schedulertest.TestPod("q", schedulertest.RequestingCPU("4")))
			f.pass(100 * time.Millisecond)
			if node, _ := f.assumed("p"); node != "a" {
				f.t.Fatalf("assumed on %q", node)
			}
			f.removePod("p")
			f.pass(10 * time.Second)
			f.expectOn("a", "q")
			f.expectEvents("p")
		},
		"so is one that is deleted while it is bound": func(f *fakeServer) {
			f.addNode(schedulertest.TestNode("a"))
			f.delay = time.Second
			f.addPod(schedulertest.TestPod("p", schedulertest.RequestingCPU("4")))
			f.addPod(schedulertest.TestPod("q", schedulertest.RequestingCPU("4")))
			f.pass(100 * time.Millisecond)
			f.change("p", schedulertest.Terminating)
			f.pass(10 * time.Second)
			f.expectOn("a", "q")
			f.expectOn("", "p")
			f.expectEvents("p")
		},
		"and one that has failed while it is bound": func(f *fakeServer) {
			f.addNode(schedulertest.TestNode("a"))
			f.delay = time.Second
			f.refuse = func(p *corev1.Pod, _ string) error {
				if p.Name == "p" {
					return errors.New("it has ended")
				}
				return nil
			}
			f.addPod(schedulertest.TestPod("p", schedulertest.RequestingCPU("4")))
			f.addPod(schedulertest.TestPod("q", schedulertest.RequestingCPU("4")))
			f.pass(100 * time.Millisecond)
			f.change("p", schedulertest.InPhase(corev1.PodFailed))
			f.pass(10 * time.Second)
			f.expectOn("a", "q")
			f.expectEvents("p")
		},
		"a pod made anew under its name is another pod": func(f *fakeServer) {
			f.addNode(schedulertest.TestNode("a"))
			f.delay = time.Second
			f.addPod(schedulertest.TestPod("p", schedulertest.RequestingCPU("4")))
			f.pass(100 * time.Millisecond)
			f.removePod("p")
			f.addPod(schedulertest.TestPod("p", schedulertest.RequestingCPU("3"), func(p *corev1.Pod) { p.UID = "second" }))
			f.pass(10 * time.Second)
			f.expectOn("a", "p")
			f.scheduler.mu.Lock()
			defer f.scheduler.mu.Unlock()
			if f.scheduler.snapshot.PodEntries["p"] != nil || f.scheduler.snapshot.PodEntries["second"] == nil {
				f.t.Errorf("known: %v", slices.Collect(maps.Keys(f.scheduler.snapshot.PodEntries)))
			}
		},
		"a changed pod is tried as it is now": func(f *fakeServer) {
			f.addNode(schedulertest.TestNode("a"))
			f.delay = 500 * time.Millisecond
			fails := 1
			f.refuse = func(*corev1.Pod, string) error {
				if fails--; fails >= 0 {
					return errors.New("no luck")
				}
				return nil
			}
			f.addPod(schedulertest.TestPod("p", schedulertest.RequestingCPU("1")))
			f.pass(100 * time.Millisecond)
			f.change("p", schedulertest.Labelled("color", "green"))
			f.pass(10 * time.Second)
			f.expectOn("a", "p")
			f.scheduler.mu.Lock()
			defer f.scheduler.mu.Unlock()
			if f.scheduler.snapshot.PodEntries["p"].Info.Pod.Labels["color"] != "green" {
				f.t.Error("the old state is known")
			}
		},
		"a node that goes while a pod is bound to it": func(f *fakeServer) {
			f.addNode(schedulertest.TestNode("a"))
			f.delay = time.Second
			f.refuse = func(_ *corev1.Pod, node string) error {
				if node == "a" {
					return apierrors.NewNotFound(corev1.Resource("nodes"), node)
				}
				return nil
			}
			f.addPod(schedulertest.TestPod("p", schedulertest.RequestingCPU("4")))
			f.pass(100 * time.Millisecond)
			f.notify(func() { f.scheduler.nodeDeleted(schedulertest.TestNode("a")) })
			f.addNode(schedulertest.TestNode("b"))
			f.pass(20 * time.Second)
			f.expectOn("b", "p")
		},
		"many are bound at a time, but not more than may be": func(f *fakeServer) {
			for i := range 10 {
				f.addNode(schedulertest.TestNode(fmt.Sprint("n", i)))
			}
			f.delay = 10 * time.Second
			for i := range maxInFlight + 100 {
				f.addPod(schedulertest.TestPod(fmt.Sprint("p", i)))
			}
			f.pass(5 * time.Second)
			if n := f.podCount(); n != maxInFlight+1 || len(f.scheduler.inFlight) != maxInFlight {
				f.t.Errorf("%d are decided, %d in flight", n, len(f.scheduler.inFlight))
			}
			f.pass(time.Minute)
			for i := range maxInFlight + 100 {
				if f.boundTimes(fmt.Sprint("p", i)) != 1 {
					f.t.Fatalf("p%d was bound %d times", i, f.boundTimes(fmt.Sprint("p", i)))
				}
			}
		},
		"a pod that is on its way out is not tried": func(f *fakeServer) {
			f.addNode(schedulertest.TestNode("a"))
			f.addPod(schedulertest.TestPod("p", schedulertest.Terminating))
			f.pass(time.Second)
			f.expectOn("", "p")
			f.expectEvents("p", "Warning FailedScheduling: skip schedule deleting pod: default/p")
		},
		"what is not written is said once only": func(f *fakeServer) {
			f.addNode(schedulertest.TestNode("a"))
			f.addPod(schedulertest.TestPod("p", schedulertest.RequestingCPU("9")))
			for range 5 {
				f.pass(20 * time.Second)
				f.notify(func() {
					f.scheduler.nodeChanged(schedulertest.TestNode("a"), schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourceCPU, "10")))
				})
				f.notify(func() {
					f.scheduler.nodeChanged(schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourceCPU, "10")), schedulertest.TestNode("a"))
				})
			}
			if patches := f.patchesOf("p"); len(patches) != 1 {
				f.t.Errorf("written %d times: %v", len(patches), patches)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { withFakeServer(t, nil, run) })
	}
}

func (f *fakeServer) assumed(pod string) (string, bool) {
	f.scheduler.mu.Lock()
	defer f.scheduler.mu.Unlock()
	return f.scheduler.snapshot.Assumed(types.UID(pod))
}

// stormyServer fails at random, and checks every binding against the cluster as it really is.
type unreliableServer struct {
	*fakeServer
	random *rand.Rand
	nodes  map[string]*corev1.Node
	calm   atomic.Bool
	chosen map[types.UID]string
}

// bind fails now and then, before anything is done; a pod is never bound to a node it does not fit on, nor twice.
func (s *unreliableServer) bind(ctx context.Context, pod *corev1.Pod, node string) error {
	s.mu.Lock()
	pause := time.Duration(s.random.IntN(300)) * time.Millisecond
	fails := !s.calm.Load() && s.random.IntN(4) == 0
	s.mu.Unlock()
	time.Sleep(pause)
	if fails {
		return []error{apierrors.NewInternalError(errors.New("storm")), errors.New("connection lost"), apierrors.NewConflict(corev1.Resource("pods"), pod.Name, errors.New("storm"))}[pause%3]
	}
	return s.fakeServer.bind(ctx, pod, node)
}

// check looks at a binding at the moment it is done.
func (s *unreliableServer) check(pod *corev1.Pod, node string) error {
	free := s.nodes[node].Status.Allocatable.DeepCopy()
	count := int64(0)
	for _, p := range s.pods {
		if s.chosen[p.UID] == node && !podstate.IsTerminal(p) || p.UID == pod.UID {
			count++
			for name, asked := range p.Spec.Containers[0].Resources.Requests {
				left := free[name]
				left.Sub(asked)
				free[name] = left
			}
		}
	}
	for name, left := range free {
		if left.Sign() < 0 {
			s.t.Errorf("pod %s is bound to %s, which lacks %s of %s", pod.Name, node, left.String(), name)
		}
	}
	if most := s.nodes[node].Status.Allocatable.Pods().Value(); count > most {
		s.t.Errorf("pod %s is bound to %s, which has %d pods of %d", pod.Name, node, count, most)
	}
	if before := s.chosen[pod.UID]; before != "" {
		s.t.Errorf("pod %s is bound to %s after %s", pod.Name, node, before)
	}
	s.chosen[pod.UID] = node
	return nil
}

// TestBindingInAStorm has pods come and go while writes fail and the watch is late. No node is ever over its allocatable, no pod is
// bound twice; when the storm is over whoever can be placed is, and the scheduler knows exactly what the server does.
func TestBindingWithRandomFailures(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			withFakeServer(t, nil, func(f *fakeServer) {
				random := rand.New(rand.NewPCG(seed, 21))
				storm := &unreliableServer{fakeServer: f, random: random, nodes: map[string]*corev1.Node{}, chosen: map[types.UID]string{}}
				f.fail = func(string, *corev1.Pod) error {
					if !storm.calm.Load() && random.IntN(5) == 0 {
						return apierrors.NewServiceUnavailable("storm")
					}
					return nil
				}
				f.refuse = storm.check
				f.notify(func() { f.scheduler.writer = storm })
				for i := range 4 {
					n := schedulertest.TestNode(fmt.Sprint("n", i), schedulertest.NodeHas(corev1.ResourceCPU, "4"), schedulertest.NodeHas(corev1.ResourcePods, []string{"5", "20"}[i%2]))
					f.mu.Lock()
					storm.nodes[n.Name] = n
					f.mu.Unlock()
					f.addNode(n)
				}
				pick := func(from []string) string {
					f.mu.Lock()
					defer f.mu.Unlock()
					return from[random.IntN(len(from))]
				}
				var names []string
				for i := range 150 {
					name := fmt.Sprint("p", i)
					names = append(names, name)
					f.addPod(schedulertest.TestPod(name, schedulertest.RequestingCPU(pick([]string{"100m", "500m", "1", "2"})), schedulertest.Priority(int32(i%4)), schedulertest.Labelled("color", pick([]string{"green", "red"}))))
					f.pass(time.Duration(i%7) * 20 * time.Millisecond)
					if i%3 == 0 {
						f.removePod(pick(names))
					}
					if i%10 == 0 {
						f.change(pick(names), schedulertest.Labelled("color", "blue"))
					}
				}
				storm.calm.Store(true)
				f.pass(10 * time.Minute)
				// Preempted pods have gone, and nobody is on the way.
				f.mu.Lock()
				var there []*corev1.Pod
				waiting := map[types.UID]*corev1.Pod{}
				for _, p := range f.pods {
					if p.Spec.NodeName == "" {
						waiting[p.UID] = p
					} else {
						there = append(there, p)
						if storm.chosen[p.UID] != p.Spec.NodeName {
							t.Errorf("pod %s is on %s, bound to %s", p.Name, p.Spec.NodeName, storm.chosen[p.UID])
						}
					}
				}
				f.mu.Unlock()
				fresh := snapshot.NewSnapshot()
				for _, n := range storm.nodes {
					fresh.SetNode(n)
				}
				for _, p := range there {
					fresh.SetPod(infoOf(t, p))
				}
				f.scheduler.mu.Lock()
				defer f.scheduler.mu.Unlock()
				known := f.scheduler.snapshot
				for uid := range maps.Clone(known.Nominations) {
					if waiting[uid] == nil {
						t.Errorf("resources are reserved for %s, which is not pending", uid)
					}
					known.Nominate(nil, uid, "")
				}
				for _, key := range slices.Collect(maps.Keys(known.LabelColumns)) {
					fresh.LabelColumn(key)
				}
				onlyNodes := func(dump string) string {
					return strings.Join(slices.DeleteFunc(strings.Split(dump, "\n"), func(line string) bool { return strings.HasPrefix(line, "counter") }), "\n")
				}
				if got, want := onlyNodes(known.Dump()), onlyNodes(fresh.Dump()); got != want {
					t.Errorf("the scheduler knows\n%s\nthe server\n%s", got, want)
				}
				for _, p := range waiting {
					if _, err := decision.Schedule(fresh, infoOf(t, p), plugins.DefaultProfile()); err == nil {
						t.Errorf("pod %s waits, though a node fits it", p.Name)
					}
				}
				if active, backoff, unschedulable, inFlight := f.scheduler.queue.Len(); active+backoff+inFlight != 0 || unschedulable != len(waiting) {
					t.Errorf("%d active, %d in backoff, %d waiting of %d, %d in flight", active, backoff, unschedulable, len(waiting), inFlight)
				}
				if len(there) < 10 {
					t.Errorf("only %d pods were bound", len(there))
				}
			})
		})
	}
}

func TestConditionPatch(t *testing.T) {
	long := metav1.NewTime(time.Unix(1000, 0).UTC())
	is := func(status corev1.ConditionStatus, reason, message string, generation int64) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: status, Reason: reason, Message: message, ObservedGeneration: generation, LastTransitionTime: long})
		}
	}
	generation := func(n int64) schedulertest.PodOption { return func(p *corev1.Pod) { p.Generation = n } }
	to := func(node string) *string { return &node }
	const now = "2000-01-01T00:00:00Z"
	written := func(reason, message, at string, generation int) string {
		observed := ""
		if generation > 0 {
			observed = fmt.Sprintf(`"observedGeneration":%d,`, generation)
		}
		return fmt.Sprintf(`"conditions":[{"type":"PodScheduled",%s"status":"False","lastProbeTime":null,"lastTransitionTime":%q,"reason":%q,"message":%q}]`, observed, at, reason, message)
	}
	const then = "1970-01-01T00:16:40Z"
	for name, test := range map[string]struct {
		pod       []schedulertest.PodOption
		nominated *string
		want      string // of status; "" is no patch at all
	}{
		"a first condition":                     {nil, nil, written("R", "m", now, 0)},
		"with the pod's generation":             {[]schedulertest.PodOption{generation(7)}, nil, written("R", "m", now, 7)},
		"the same again":                        {[]schedulertest.PodOption{is("False", "R", "m", 0)}, nil, ""},
		"the same of another generation":        {[]schedulertest.PodOption{is("False", "R", "m", 3), generation(7)}, nil, ""},
		"another message":                       {[]schedulertest.PodOption{is("False", "R", "n", 0)}, nil, written("R", "m", then, 0)},
		"another reason":                        {[]schedulertest.PodOption{is("False", "S", "m", 3), generation(7)}, nil, written("R", "m", then, 7)},
		"another status":                        {[]schedulertest.PodOption{is("True", "R", "m", 0)}, nil, written("R", "m", now, 0)},
		"a condition of another type":           {[]schedulertest.PodOption{schedulertest.DisruptionTarget("False", "R")}, nil, written("R", "m", now, 0)},
		"no nomination, as before":              {[]schedulertest.PodOption{is("False", "R", "m", 0)}, to(""), ""},
		"a nomination":                          {[]schedulertest.PodOption{is("False", "R", "m", 0)}, to("a"), `"nominatedNodeName":"a"`},
		"the same nomination":                   {[]schedulertest.PodOption{is("False", "R", "m", 0), schedulertest.NominatedTo("a")}, to("a"), ""},
		"another nomination":                    {[]schedulertest.PodOption{is("False", "R", "m", 0), schedulertest.NominatedTo("a")}, to("b"), `"nominatedNodeName":"b"`},
		"its end":                               {[]schedulertest.PodOption{is("False", "R", "m", 0), schedulertest.NominatedTo("a")}, to(""), `"nominatedNodeName":null`},
		"nothing said of it":                    {[]schedulertest.PodOption{is("False", "R", "m", 0), schedulertest.NominatedTo("a")}, nil, ""},
		"a condition and a nomination":          {nil, to("a"), written("R", "m", now, 0) + `,"nominatedNodeName":"a"`},
		"quotes and lines are kept as they are": {[]schedulertest.PodOption{is("False", "R", "\"x\"\n<y>", 0)}, nil, written("R", "m", then, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := string(conditionPatch(schedulertest.TestPod("p", test.pod...), corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "R", Message: "m"}, test.nominated))
				want := ""
				if test.want != "" {
					want = `{"metadata":{"uid":"p"},"status":{` + test.want + `}}`
				}
				if !sameJSON(got, want) {
					t.Errorf("patch %s\nwant %s", got, want)
				}
			})
		})
	}
}

func sameJSON(a, b string) bool {
	if a == "" || b == "" {
		return a == b
	}
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	one, _ := json.Marshal(x)
	other, _ := json.Marshal(y)
	return string(one) == string(other)
}

// A write is tried again while the server is out of order, a few times, with pauses that grow; a refusal is one.
func TestWritesAreRetried(t *testing.T) {
	pods := corev1.Resource("pods")
	for name, test := range map[string]struct {
		errs  []error // of the tries; the last goes on
		tries int
		fails bool
	}{
		"at once":                        {[]error{nil}, 1, false},
		"after an internal error":        {[]error{apierrors.NewInternalError(errors.New("x")), nil}, 2, false},
		"after the server was away":      {[]error{apierrors.NewServiceUnavailable("x"), syscall.ECONNREFUSED, nil}, 3, false},
		"after too many requests":        {[]error{apierrors.NewTooManyRequests("x", 1), nil}, 2, false},
		"the fifth time":                 {[]error{syscall.ECONNREFUSED, syscall.ECONNREFUSED, syscall.ECONNREFUSED, syscall.ECONNREFUSED, nil}, 5, false},
		"never":                          {[]error{apierrors.NewInternalError(errors.New("x"))}, 5, true},
		"a conflict is an answer":        {[]error{apierrors.NewConflict(pods, "p", errors.New("x")), nil}, 1, true},
		"so is that there is no pod":     {[]error{apierrors.NewNotFound(pods, "p"), nil}, 1, true},
		"so is that one may not":         {[]error{apierrors.NewForbidden(pods, "p", errors.New("x")), nil}, 1, true},
		"so is something else":           {[]error{errors.New("x"), nil}, 1, true},
		"an answer after a retry":        {[]error{apierrors.NewServiceUnavailable("x"), apierrors.NewNotFound(pods, "p"), nil}, 2, true},
		"a wrapped error is looked into": {[]error{fmt.Errorf("write: %w", apierrors.NewServiceUnavailable("x")), nil}, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				began := time.Now()
				err := retried(t.Context(), func() error {
					err := test.errs[min(tries, len(test.errs)-1)]
					tries++
					return err
				})
				if tries != test.tries || (err != nil) != test.fails {
					t.Errorf("%d tries, %v", tries, err)
				}
				least, most := time.Duration(0), time.Duration(0)
				for i, pause := range []time.Duration{10e6, 50e6, 250e6, 1250e6} {
					if i < test.tries-1 {
						least, most = least+pause, most+pause+pause/2
					}
				}
				if waited := time.Since(began); waited < least || waited > most+time.Millisecond {
					t.Errorf("waited %v, want %v to %v", waited, least, most)
				}
			})
		})
	}
	t.Run("until it is over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			tries := 0
			if err := retried(ctx, func() error { tries++; return syscall.ECONNREFUSED }); err == nil || tries > 3 {
				t.Errorf("%d tries, %v", tries, err)
			}
		})
	})
}

// lossyTransport loses requests, or their answers.
type lossyTransport struct {
	http.RoundTripper
	mu sync.Mutex
	// lose decides by method and path: before the request is done, after it, or not at all.
	lose  func(method, path string) (before, after bool)
	asked map[string]int
}

func (l *lossyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	key := r.Method + " " + r.URL.Path
	l.asked[key]++
	before, after := l.lose(r.Method, r.URL.Path)
	l.mu.Unlock()
	if before {
		return nil, syscall.ECONNREFUSED
	}
	answer, err := l.RoundTripper.RoundTrip(r)
	if err == nil && after {
		_ = answer.Body.Close()
		return nil, errors.New("connection reset by peer")
	}
	return answer, err
}

func (l *lossyTransport) count(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked[key]
}

func TestBindIsKnown(t *testing.T) {
	const binding, pod = "POST /api/v1/namespaces/default/pods/p/binding", "GET /api/v1/namespaces/default/pods/p"
	for name, test := range map[string]struct {
		before  func(server *realServer) // done to the cluster first
		lose    func(n map[string]int) func(method, path string) (before, after bool)
		fails   bool
		node    string
		binds   int
		lookups int
	}{
		"nothing is lost": {nil, nil, false, "a", 1, 0},
		"the answer is lost": {nil, func(n map[string]int) func(string, string) (bool, bool) {
			return func(method, _ string) (bool, bool) { return false, method == "POST" }
		}, false, "a", 1, 1},
		"the answer is lost, and then others": {nil, func(n map[string]int) func(string, string) (bool, bool) {
			return func(method, _ string) (bool, bool) { n[method]++; return false, n[method] <= 2 }
		}, false, "a", 1, 3},
		"the first request is lost": {nil, func(n map[string]int) func(string, string) (bool, bool) {
			return func(method, _ string) (bool, bool) { n[method]++; return method == "POST" && n[method] == 1, false }
		}, false, "a", 2, 0},
		"all requests are lost": {nil, func(n map[string]int) func(string, string) (bool, bool) {
			return func(method, _ string) (bool, bool) { return method == "POST", false }
		}, true, "", 5, 1},
		"another was faster":                     {func(s *realServer) { s.bind("p", "b") }, nil, true, "b", 1, 1},
		"another was faster, with the same node": {func(s *realServer) { s.bind("p", "a") }, nil, false, "a", 1, 1},
		"there is no such pod":                   {func(s *realServer) { s.delete("p") }, nil, true, "", 1, 1},
		"there is another pod of its name":       {func(s *realServer) { s.delete("p"); s.create(schedulertest.TestPod("p")) }, nil, true, "", 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newRealServer(t)
			server.create(schedulertest.TestPod("p"))
			p := server.pod("p")
			if test.before != nil {
				test.before(server)
			}
			lossy := &lossyTransport{RoundTripper: server.local.Transport(), asked: map[string]int{}, lose: func(string, string) (bool, bool) { return false, false }}
			if test.lose != nil {
				lossy.lose = test.lose(map[string]int{})
			}
			err := newAPIWriter(server.clientThrough(lossy)).bind(t.Context(), p, "a")
			if (err != nil) != test.fails {
				t.Errorf("error %v", err)
			}
			node := ""
			if now := server.pod("p"); now != nil {
				node = now.Spec.NodeName
			}
			if node != test.node || lossy.count(binding) != test.binds || lossy.count(pod) != test.lookups {
				t.Errorf("on %q, %d bindings, %d lookups; want %q, %d, %d", node, lossy.count(binding), lossy.count(pod), test.node, test.binds, test.lookups)
			}
		})
	}
}

// What the scheduler writes arrives at a real server as it was meant.
func TestAPIWriter(t *testing.T) {
	server := newRealServer(t)
	w := newAPIWriter(server.clientThrough(server.local.Transport()))
	ctx := t.Context()
	server.create(schedulertest.TestPod("p", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64) }))
	p := server.pod("p")
	condition := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no \"free resources\""}
	node := "a"
	if err := w.patchStatus(ctx, p, conditionPatch(p, condition, &node)); err != nil {
		t.Fatal(err)
	}
	now := server.pod("p")
	if len(now.Status.Conditions) != 1 || now.Status.Conditions[0].Message != condition.Message || now.Status.NominatedNodeName != "a" || now.Status.Conditions[0].ObservedGeneration != now.Generation {
		t.Errorf("status %+v", now.Status)
	}
	// A condition is added beside others, a nomination ends.
	none := ""
	if err := w.patchStatus(ctx, now, conditionPatch(now, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler, Message: "m"}, &none)); err != nil {
		t.Fatal(err)
	}
	if now = server.pod("p"); len(now.Status.Conditions) != 2 || now.Status.NominatedNodeName != "" {
		t.Errorf("status %+v", now.Status)
	}
	// Another pod of the same name is left alone.
	other := p.DeepCopy()
	other.UID = "another"
	if err := w.patchStatus(ctx, other, conditionPatch(other, condition, &node)); err == nil {
		t.Error("another pod's status is written")
	}
	if err := w.deletePod(ctx, other); !apierrors.IsConflict(err) {
		t.Errorf("another pod is deleted: %v", err)
	}
	if err := w.bind(ctx, other, "a"); err == nil {
		t.Error("another pod is bound")
	}
	if err := w.bind(ctx, p, "a"); err != nil {
		t.Error(err)
	}
	if now = server.pod("p"); now.Spec.NodeName != "a" {
		t.Errorf("on %q", now.Spec.NodeName)
	}
	if err := w.deletePod(ctx, p); err != nil {
		t.Error(err)
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", Annotations: map[string]string{volume.AnnBoundByController: "yes"}}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}},
	}}
	made, err := w.volumes.Create(ctx, pv, writeOptions)
	if err != nil {
		t.Fatal(err)
	}
	made = made.DeepCopy()
	made.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "claim", UID: "c"}
	written, err := w.updateVolume(ctx, made)
	if err != nil || written.Spec.ClaimRef.Name != "claim" || written.ResourceVersion == made.ResourceVersion {
		t.Errorf("%+v, %v", written, err)
	}
	if _, err := w.updateVolume(ctx, made); !apierrors.IsConflict(err) {
		t.Errorf("an old version is written: %v", err)
	}
}

// lateCaller calls a pod's binding off at the last moment: when everything it needs is ready, but not yet known to be.
type lateCaller struct{ *volumeServer }

func (l lateCaller) updateClaim(_ context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	claim = claim.DeepCopy()
	claim.ResourceVersion = l.next()
	l.notify(func() {
		l.scheduler.snapshot.SetObject(schedulertest.VolumeFor("made", claim.Namespace, claim.Name))
		l.bindClaim(claim.DeepCopy(), "made")
	})
	if !l.scheduler.cancelBinding("slow") {
		l.t.Error("it is too late to call it off")
	}
	return claim, nil
}

func TestBindingCalledOffAtTheLastMoment(t *testing.T) {
	withVolumeServer(t, volumeServer{}, "example.com/disks", func(v *volumeServer) {
		v.notify(func() { v.scheduler.writer = lateCaller{v} })
		v.addPod(schedulertest.TestPod("slow", schedulertest.UsingClaim("claim")))
		v.pass(500 * time.Millisecond)
		if v.boundTimes("slow") != 0 {
			t.Error("a pod is bound whose binding was called off")
		}
		if events := v.eventsOf("slow"); !slices.Contains(events, "Warning FailedScheduling: preempted by DefaultPreemption") {
			t.Errorf("events %v", events)
		}
		if v.scheduler.cancelBinding("slow") || v.podCount() != 0 {
			t.Error("it is still on its way")
		}
		v.pass(10 * time.Second)
		if v.boundTimes("slow") != 1 {
			t.Errorf("bound %d times", v.boundTimes("slow"))
		}
	})
}

// A pod that is in the queue though it has been given a node is not given another.
func TestPodWithANodeIsNotTried(t *testing.T) {
	for what, give := range map[string]func(s *snapshot.Snapshot){
		"assumed":   func(s *snapshot.Snapshot) { s.Assume(infoOf(t, schedulertest.TestPod("p")), "a") },
		"confirmed": func(s *snapshot.Snapshot) { s.SetPod(infoOf(t, schedulertest.TestPod("p", schedulertest.OnNode("a")))) },
	} {
		t.Run(what, func(t *testing.T) {
			f := newFakeServer(t, nil)
			f.addNode(schedulertest.TestNode("a"))
			f.addNode(schedulertest.TestNode("b"))
			f.addPod(schedulertest.TestPod("p"))
			left := 0
			f.scheduler.locked(func() {
				give(f.scheduler.snapshot)
				p, _ := f.scheduler.queue.Pop(time.Now())
				f.scheduler.scheduleOne(t.Context(), p)
				left = len(f.scheduler.queue.All)
			})
			f.scheduler.writing.Wait()
			if f.boundTimes("p") != 0 || left != 0 || f.podCount() != 1 || len(f.eventsOf("p")) != 0 {
				t.Errorf("bound %d times, %d in the queue, events %v", f.boundTimes("p"), left, f.eventsOf("p"))
			}
		})
	}
}
