package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/podstate"
	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

func TestBinding(t *testing.T) {
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
			f.refuse = func(*corev1.Pod, string) error { return errors.New("bind failed") }
			f.addPod(schedulertest.TestPod("p", schedulertest.RequestingCPU("4")))
			f.pass(100 * time.Millisecond)
			const text = `running Bind plugin "DefaultBinder": bind failed`
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
					return errors.New("bind failed")
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
		"a pod bound by another scheduler stays where it is": func(f *fakeServer) {
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
		"a pod that begins to terminate while it is bound is forgotten": func(f *fakeServer) {
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
		"a pod that fails while it is bound is forgotten": func(f *fakeServer) {
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
		"a new pod of the same name is another pod": func(f *fakeServer) {
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
		"a changed pod is retried in its current state": func(f *fakeServer) {
			f.addNode(schedulertest.TestNode("a"))
			f.delay = 500 * time.Millisecond
			fails := 1
			f.refuse = func(*corev1.Pod, string) error {
				if fails--; fails >= 0 {
					return errors.New("bind failed")
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
		"a node is deleted while a pod is bound to it": func(f *fakeServer) {
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
		"at most maxInFlight pods are bound at a time": func(f *fakeServer) {
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
		"a terminating pod is not scheduled": func(f *fakeServer) {
			f.addNode(schedulertest.TestNode("a"))
			f.addPod(schedulertest.TestPod("p", schedulertest.Terminating))
			f.pass(time.Second)
			f.expectOn("", "p")
			f.expectEvents("p", "Warning FailedScheduling: skip schedule deleting pod: default/p")
		},
		"the same condition is written once": func(f *fakeServer) {
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

// A pod that is in the queue though it has been given a node is not given another.
func TestPodWithANodeIsNotTried(t *testing.T) {
	for what, give := range map[string]func(s *snapshot.Snapshot){
		"assumed": func(s *snapshot.Snapshot) { s.Assume(snapshottest.PodInfo(t, schedulertest.TestPod("p")), "a") },
		"confirmed": func(s *snapshot.Snapshot) {
			s.SetPod(snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.OnNode("a"))))
		},
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

var errCancelled = errors.New("cancelled by the test")

// lateCaller cancels a pod's binding when all it needs is ready, but the Binder has not observed it yet.
type lateCaller struct{ *volumeServer }

func (l lateCaller) UpdatePersistentVolumeClaim(_ context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	claim = claim.DeepCopy()
	claim.ResourceVersion = l.next()
	l.notify(func() {
		l.scheduler.snapshot.SetObject(schedulertest.VolumeFor("made", claim.Namespace, claim.Name))
		l.bindClaim(claim.DeepCopy(), "made")
	})
	if !l.scheduler.binder.Cancel("slow", errCancelled) {
		l.t.Error("it is too late to call it off")
	}
	return claim, nil
}

func TestBindingCancelledWhenAllIsReady(t *testing.T) {
	withVolumeServer(t, volumeServer{}, "example.com/disks", func(v *volumeServer) {
		v.notify(func() { v.scheduler.binder.Writer = lateCaller{v} })
		v.addPod(schedulertest.TestPod("slow", schedulertest.UsingClaim("claim")))
		v.pass(500 * time.Millisecond)
		if v.boundTimes("slow") != 0 {
			t.Error("a pod is bound whose binding was called off")
		}
		if events := v.eventsOf("slow"); !slices.Contains(events, "Warning FailedScheduling: cancelled by the test") {
			t.Errorf("events %v", events)
		}
		if v.scheduler.binder.Cancel("slow", errCancelled) || v.podCount() != 0 {
			t.Error("it is still on its way")
		}
		v.pass(10 * time.Second)
		if v.boundTimes("slow") != 1 {
			t.Errorf("bound %d times", v.boundTimes("slow"))
		}
	})
}

// unreliableServer fails at random, and checks every binding against the cluster as it really is.
type unreliableServer struct {
	*fakeServer
	random   *rand.Rand
	nodes    map[string]*corev1.Node
	reliable atomic.Bool
	chosen   map[types.UID]string
}

// Bind sometimes fails before anything is written; a pod is never bound to a node it does not fit on, nor twice.
func (s *unreliableServer) Bind(ctx context.Context, pod *corev1.Pod, node string) error {
	s.mu.Lock()
	pause := time.Duration(s.random.IntN(300)) * time.Millisecond
	fails := !s.reliable.Load() && s.random.IntN(4) == 0
	s.mu.Unlock()
	time.Sleep(pause)
	if fails {
		return []error{apierrors.NewInternalError(errors.New("injected failure")), errors.New("connection lost"), apierrors.NewConflict(corev1.Resource("pods"), pod.Name, errors.New("injected failure"))}[pause%3]
	}
	return s.fakeServer.Bind(ctx, pod, node)
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

// TestBindingWithRandomFailures adds and deletes pods while writes fail and the watch is late. No node is ever over its allocatable, no pod is
// bound twice; when writes succeed again, all pods that fit are bound, and the snapshot equals the state of the server.
func TestBindingWithRandomFailures(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			withFakeServer(t, nil, func(f *fakeServer) {
				random := rand.New(rand.NewPCG(seed, 21))
				server := &unreliableServer{fakeServer: f, random: random, nodes: map[string]*corev1.Node{}, chosen: map[types.UID]string{}}
				f.fail = func(string, *corev1.Pod) error {
					if !server.reliable.Load() && random.IntN(5) == 0 {
						return apierrors.NewServiceUnavailable("injected failure")
					}
					return nil
				}
				f.refuse = server.check
				f.notify(func() { f.scheduler.binder.Writer = server })
				for i := range 4 {
					n := schedulertest.TestNode(fmt.Sprint("n", i), schedulertest.NodeHas(corev1.ResourceCPU, "4"), schedulertest.NodeHas(corev1.ResourcePods, []string{"5", "20"}[i%2]))
					f.mu.Lock()
					server.nodes[n.Name] = n
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
				server.reliable.Store(true)
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
						if server.chosen[p.UID] != p.Spec.NodeName {
							t.Errorf("pod %s is on %s, bound to %s", p.Name, p.Spec.NodeName, server.chosen[p.UID])
						}
					}
				}
				f.mu.Unlock()
				fresh := snapshot.NewSnapshot()
				for _, n := range server.nodes {
					fresh.SetNode(n)
				}
				for _, p := range there {
					fresh.SetPod(snapshottest.PodInfo(t, p))
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
					if _, err := decision.Schedule(fresh, snapshottest.PodInfo(t, p), plugins.DefaultProfile()); err == nil {
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
