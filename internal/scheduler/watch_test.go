package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"skiff/internal/api"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/client"
	"skiff/internal/openapi"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/queue"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
	"skiff/internal/store/cache"
	memorystore "skiff/internal/store/memory"
)

// realServer is skiff's own API server in this process, on a store in memory.
type realServer struct {
	t      testing.TB
	local  client.Local
	client *client.Client
	pods   client.Resource[*corev1.Pod]
}

var writeOptions = client.WriteOptions{}

func newRealServer(t testing.TB) *realServer {
	t.Helper()
	store := memorystore.New()
	objects := cache.New(store, nil)
	server, err := apiserver.New(apiserver.Config{
		Kinds: api.Kinds(api.Settings{}), Scheme: api.Scheme(), Cache: objects, Authenticator: authn.Chain{authn.InProcess{}}, Authorizer: authz.Masters{},
		TypeConverter: sync.OnceValues(func() (managedfields.TypeConverter, error) { return openapi.TypeConverter() }),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = objects.Run(ctx)
	}()
	<-objects.Ready()
	t.Cleanup(func() {
		cancel()
		<-done
		store.Close()
	})
	s := &realServer{t: t, local: server.Local(authn.User{Username: "admin", Groups: []string{authn.GroupMasters}})}
	if s.client, err = client.NewLocal(s.local, api.Scheme(), api.Kinds(api.Settings{})); err != nil {
		t.Fatal(err)
	}
	s.pods = client.For[*corev1.Pod](s.client)
	return s
}

func (s *realServer) create(pod *corev1.Pod) {
	s.t.Helper()
	pod = pod.DeepCopy()
	pod.UID = ""
	if _, err := s.pods.Create(context.Background(), pod, writeOptions); err != nil {
		s.t.Fatal(err)
	}
}

// pod is a pod as it is, or nil.
func (s *realServer) pod(name string) *corev1.Pod {
	s.t.Helper()
	p, err := s.pods.Get(context.Background(), "default", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

func (s *realServer) delete(name string) {
	s.t.Helper()
	if err := s.pods.Delete(context.Background(), "default", name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		s.t.Fatal(err)
	}
}

// watchTest is a scheduler that handles changes and does not run.
type watchTest struct {
	*Scheduler
	t *testing.T
}

func newWatchTest(t *testing.T) *watchTest {
	t.Helper()
	s, err := newScheduler(nil, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	w := &watchTest{s, t}
	// A pod that is being tried makes the queue remember what happens.
	s.queue.Add(snapshottest.PodInfo(t, schedulertest.TestPod("flying")), time.Now())
	if p, _ := s.queue.Pop(time.Now()); p == nil {
		t.Fatal("no pod is in flight")
	}
	return w
}

// assume puts a pod on a node as deciding does.
func (w *watchTest) assumes(pod *corev1.Pod, node string) {
	w.snapshot.Assume(snapshottest.PodInfo(w.t, pod), node)
	w.queue.Done(pod.UID)
}

// is compares the scheduler's pods (by name: on a node, assumed there, nominated to it, or in the queue) and the queue's events since.
func (w *watchTest) is(want ...string) {
	w.t.Helper()
	var got []string
	for uid, p := range w.snapshot.PodEntries {
		text := fmt.Sprint(uid, " on ", w.snapshot.NodeInfos[p.Node].Name)
		if p.Assumed {
			text += " assumed"
		}
		got = append(got, text)
	}
	for uid, p := range w.snapshot.Nominations {
		got = append(got, fmt.Sprint(uid, " to ", w.snapshot.NodeInfos[p.Node].Name))
	}
	for uid, p := range w.queue.All {
		if uid != "flying" {
			got = append(got, fmt.Sprint(uid, " ", map[queue.Location]string{queue.InActiveQ: "active", queue.InBackoffQ: "backoff", queue.InUnschedulablePods: "waits", queue.IsInFlight: "flies"}[p.Location]))
		}
	}
	slices.Sort(got)
	for _, e := range w.queue.InFlightEvents {
		got = append(got, e.Label())
	}
	w.queue.InFlightEvents = nil
	if !slices.Equal(got, want) {
		w.t.Fatalf("%q, want %q", got, want)
	}
}

func schedulerOf(name string) schedulertest.PodOption {
	return func(p *corev1.Pod) { p.Spec.SchedulerName = name }
}

// unreadable has an affinity nobody can make sense of.
func unreadable(p *corev1.Pod) {
	schedulertest.AffinityOf(p).PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		TopologyKey: "x", LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Likes"}}},
	}}}
}

func TestWatch(t *testing.T) {
	green, red := schedulertest.Labelled("color", "green"), schedulertest.Labelled("color", "red")
	later := func(o ...schedulertest.PodOption) *corev1.Pod {
		return schedulertest.TestPod("p", append(o, func(p *corev1.Pod) { p.ResourceVersion = "2" })...)
	}
	for name, run := range map[string]func(w *watchTest){
		// Pods that have a node.
		"a pod on a node": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.OnNode("a")))
			w.is("p on a", "AssignedPodAdd")
		},
		"of another scheduler": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.OnNode("a"), schedulerOf("another")))
			w.is("p on a", "AssignedPodAdd")
		},
		"that has ended": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.OnNode("a"), schedulertest.InPhase(corev1.PodSucceeded)))
			w.is()
			w.podChanged(schedulertest.TestPod("p", schedulertest.OnNode("a"), schedulertest.InPhase(corev1.PodSucceeded)), later(schedulertest.OnNode("a"), schedulertest.InPhase(corev1.PodSucceeded), green))
			w.is()
			w.podDeleted(schedulertest.TestPod("p", schedulertest.OnNode("a"), schedulertest.InPhase(corev1.PodSucceeded)))
			w.is()
		},
		"that ends": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.OnNode("a")))
			w.queue.InFlightEvents = nil
			w.podChanged(schedulertest.TestPod("p", schedulertest.OnNode("a")), later(schedulertest.OnNode("a"), schedulertest.InPhase(corev1.PodFailed)))
			w.is("AssignedPodDelete")
		},
		"that is deleted": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.OnNode("a")))
			w.podDeleted(schedulertest.TestPod("p", schedulertest.OnNode("a")))
			w.is("AssignedPodAdd", "AssignedPodDelete")
		},
		"with other labels": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.OnNode("a"), green))
			w.queue.InFlightEvents = nil
			w.podChanged(schedulertest.TestPod("p", schedulertest.OnNode("a"), green), later(schedulertest.OnNode("a"), red))
			w.is("p on a", "AssignedPodUpdatePodLabel")
		},
		"that asks less and has other labels": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.OnNode("a"), green, schedulertest.RequestingCPU("2")))
			w.queue.InFlightEvents = nil
			w.podChanged(schedulertest.TestPod("p", schedulertest.OnNode("a"), green, schedulertest.RequestingCPU("2")), later(schedulertest.OnNode("a"), red, schedulertest.RequestingCPU("1")))
			w.is("p on a", "AssignedPodUpdatePodLabel", "AssignedPodUpdatePodScaleDown")
		},
		"whose status changes": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.OnNode("a")))
			w.queue.InFlightEvents = nil
			w.podChanged(schedulertest.TestPod("p", schedulertest.OnNode("a")), later(schedulertest.OnNode("a"), schedulertest.InPhase(corev1.PodRunning)))
			w.is("p on a")
		},
		"that begins to go": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.OnNode("a")))
			w.queue.InFlightEvents = nil
			w.podChanged(schedulertest.TestPod("p", schedulertest.OnNode("a")), later(schedulertest.OnNode("a"), schedulertest.Terminating))
			w.is("p on a")
		},
		"that cannot be parsed uses its resources": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.OnNode("a"), unreadable, schedulertest.RequestingCPU("1")))
			w.is("p on a", "AssignedPodAdd")
			if w.snapshot.Requested[snapshot.ResourceCPU][0] != 1000 {
				w.t.Errorf("requested %d", w.snapshot.Requested[snapshot.ResourceCPU][0])
			}
			w.podDeleted(schedulertest.TestPod("p", schedulertest.OnNode("a"), unreadable))
			w.is("AssignedPodDelete")
		},

		// Pods that have none.
		"a pod that wants a node": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p"))
			w.is("p active")
		},
		"of another scheduler is not ours": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulerOf("another"), schedulertest.NominatedTo("a")))
			w.is()
			w.podChanged(schedulertest.TestPod("p", schedulerOf("another"), schedulertest.NominatedTo("a")), later(schedulerOf("another"), schedulertest.NominatedTo("b")))
			w.is()
			w.podDeleted(schedulertest.TestPod("p", schedulerOf("another"), schedulertest.NominatedTo("b")))
			w.is()
		},
		"that cannot be read is not tried": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", unreadable))
			w.is()
		},
		"that has ended without one": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.InPhase(corev1.PodFailed)))
			w.is()
		},
		"that ends without one": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p"))
			w.podChanged(schedulertest.TestPod("p"), later(schedulertest.InPhase(corev1.PodFailed)))
			w.is()
			w.podChanged(later(schedulertest.InPhase(corev1.PodFailed)), later(schedulertest.InPhase(corev1.PodFailed), green))
			w.is()
		},
		"that waited for free resources and ends": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.NominatedTo("a")))
			w.is("p active", "p to a")
			w.podChanged(schedulertest.TestPod("p", schedulertest.NominatedTo("a")), later(schedulertest.NominatedTo("a"), schedulertest.InPhase(corev1.PodFailed)))
			w.is("AssignedPodDelete")
		},
		"that is deleted without one": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p"))
			w.podDeleted(schedulertest.TestPod("p"))
			w.is()
		},
		"that changes": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p"))
			w.podChanged(schedulertest.TestPod("p"), later(green))
			w.is("p active")
			if w.queue.All["p"].PodInfo.Pod.Labels["color"] != "green" {
				w.t.Error("the old state is kept")
			}
		},
		"that was not known": func(w *watchTest) {
			w.podChanged(schedulertest.TestPod("p"), later(green))
			w.is("p active")
		},
		"that gets one": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.NominatedTo("b")))
			w.podChanged(schedulertest.TestPod("p", schedulertest.NominatedTo("b")), later(schedulertest.OnNode("a")))
			w.is("p on a", "AssignedPodAdd")
		},
		"that gets one and has ended at once": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p"))
			w.podChanged(schedulertest.TestPod("p"), later(schedulertest.OnNode("a"), schedulertest.InPhase(corev1.PodSucceeded)))
			w.is()
		},
		"that is another pod of the same name": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.OnNode("a")))
			w.queue.InFlightEvents = nil
			w.podChanged(schedulertest.TestPod("p", schedulertest.OnNode("a")), schedulertest.TestPod("p", func(p *corev1.Pod) { p.UID = "q" }))
			w.is("q active", "AssignedPodDelete")
		},
		"gated": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.WithSchedulingGates("x")))
			w.is("p waits")
			w.podChanged(schedulertest.TestPod("p", schedulertest.WithSchedulingGates("x")), later())
			w.is("p active")
		},

		// Room kept for pods.
		"a pod waits for a node": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.NominatedTo("a")))
			w.is("p active", "p to a")
		},
		"it gets a nomination": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p"))
			w.podChanged(schedulertest.TestPod("p"), later(schedulertest.NominatedTo("a")))
			w.is("p active", "p to a")
		},
		"it waits for another one": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.NominatedTo("a")))
			w.podChanged(schedulertest.TestPod("p", schedulertest.NominatedTo("a")), later(schedulertest.NominatedTo("b")))
			w.is("p active", "p to b", "AssignedPodDelete")
		},
		"it waits no more": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.NominatedTo("a")))
			w.podChanged(schedulertest.TestPod("p", schedulertest.NominatedTo("a")), later())
			w.is("p active", "AssignedPodDelete")
		},
		"it changes while it waits": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.NominatedTo("a")))
			w.podChanged(schedulertest.TestPod("p", schedulertest.NominatedTo("a")), later(schedulertest.NominatedTo("a"), green))
			w.is("p active", "p to a")
			if w.snapshot.Nominations["p"].Info.Pod.Labels["color"] != "green" {
				w.t.Error("the old state waits")
			}
		},
		"what is not written yet is not forgotten": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p"))
			w.snapshot.Nominate(snapshottest.PodInfo(w.t, schedulertest.TestPod("p")), "p", "a")
			w.podChanged(schedulertest.TestPod("p"), later(green))
			w.is("p active", "p to a")
		},
		"it is deleted": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.NominatedTo("a")))
			w.podDeleted(schedulertest.TestPod("p", schedulertest.NominatedTo("a")))
			w.is("AssignedPodDelete")
		},

		// Assumed pods.
		"an assumed pod is confirmed": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p"))
			w.assumes(schedulertest.TestPod("p"), "a")
			w.is("p on a assumed")
			w.podChanged(schedulertest.TestPod("p"), later(schedulertest.OnNode("a")))
			w.is("p on a", "AssignedPodAdd")
		},
		"an assumed pod changes": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p"))
			w.assumes(schedulertest.TestPod("p"), "a")
			w.podChanged(schedulertest.TestPod("p"), later(green))
			w.podAdded(later(green))
			w.is("p on a assumed")
		},
		"an assumed pod is on another node": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p"))
			w.assumes(schedulertest.TestPod("p"), "a")
			w.podChanged(schedulertest.TestPod("p"), later(schedulertest.OnNode("b")))
			w.is("p on b", "AssignedPodAdd")
		},
		"an assumed pod begins to go": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p"))
			w.assumes(schedulertest.TestPod("p"), "a")
			w.podChanged(schedulertest.TestPod("p"), later(schedulertest.Terminating))
			w.is("AssignedPodDelete")
		},
		"an assumed pod that was going goes on": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p", schedulertest.Terminating))
			w.assumes(schedulertest.TestPod("p", schedulertest.Terminating), "a")
			w.podChanged(schedulertest.TestPod("p", schedulertest.Terminating), later(schedulertest.Terminating, green))
			w.is("p on a assumed")
		},
		"an assumed pod is deleted": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p"))
			w.assumes(schedulertest.TestPod("p"), "a")
			w.podDeleted(schedulertest.TestPod("p"))
			w.is("AssignedPodDelete")
		},
		"an assumed pod has ended": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p"))
			w.assumes(schedulertest.TestPod("p"), "a")
			w.podChanged(schedulertest.TestPod("p"), later(schedulertest.InPhase(corev1.PodFailed)))
			w.is("AssignedPodDelete")
		},
		"an assumed pod has run and ended": func(w *watchTest) {
			w.podAdded(schedulertest.TestPod("p"))
			w.assumes(schedulertest.TestPod("p"), "a")
			w.podChanged(schedulertest.TestPod("p"), later(schedulertest.OnNode("a"), schedulertest.InPhase(corev1.PodSucceeded)))
			w.is()
		},

		// Nodes.
		"a node": func(w *watchTest) {
			w.nodeAdded(schedulertest.TestNode("a"))
			w.is("NodeAdd")
			w.nodeChanged(schedulertest.TestNode("a"), schedulertest.TestNode("a"))
			w.is()
			w.nodeChanged(schedulertest.TestNode("a"), schedulertest.TestNode("a", schedulertest.Zone("1")))
			w.is("NodeUpdateNodeLabel")
			w.nodeChanged(schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.Cordoned), schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourceCPU, "9")))
			w.is("NodeUpdateNodeAllocatable", "NodeUpdateNodeLabel", "NodeUpdateNodeTaint")
			if n := w.snapshot.NodeNumbers["a"]; w.snapshot.Allocatable[snapshot.ResourceCPU][n] != 9000 || w.snapshot.NumNodes() != 1 {
				w.t.Errorf("%d nodes with %d", w.snapshot.NumNodes(), w.snapshot.Allocatable[snapshot.ResourceCPU][n])
			}
			w.nodeDeleted(schedulertest.TestNode("a"))
			w.is("NodeDelete")
			if w.snapshot.NumNodes() != 0 {
				w.t.Error("the node is still there")
			}
		},
		"a node is closed": func(w *watchTest) {
			w.nodeAdded(schedulertest.TestNode("a"))
			w.queue.InFlightEvents = nil
			w.nodeChanged(schedulertest.TestNode("a"), schedulertest.TestNode("a", schedulertest.Cordoned))
			w.is()
			if !w.snapshot.Unschedulable[0] {
				w.t.Error("nobody has noticed")
			}
		},
	} {
		t.Run(name, func(t *testing.T) { run(newWatchTest(t)) })
	}
}

// Room that was kept for a pod wakes those who could not have it: pods of the same or lower priority.
func TestFreedNominationMovesPodsOfLowerPriority(t *testing.T) {
	w := newWatchTest(t)
	for i, n := range []int32{4, 5, 6} {
		info := snapshottest.PodInfo(t, schedulertest.TestPod(fmt.Sprint("p", n), schedulertest.Priority(n), schedulertest.RequestingCPU("1")))
		w.queue.Add(info, time.Unix(int64(i), 0))
		p, _ := w.queue.Pop(time.Now())
		w.queue.AddUnschedulable(w.snapshot, p, []string{plugins.NodeResourcesFitName}, time.Now())
	}
	w.podAdded(schedulertest.TestPod("kept", schedulertest.Priority(5), schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a")))
	w.is("kept active", "kept to a", "p4 waits", "p5 waits", "p6 waits")
	w.podDeleted(schedulertest.TestPod("kept", schedulertest.Priority(5), schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a")))
	w.is("p4 backoff", "p5 backoff", "p6 waits", "AssignedPodDelete")
}

// Deciding begins when everything that was there at first has been seen.
func TestSyncComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := newScheduler(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		seen := map[string]bool{}
		for _, name := range []string{"Node", "Pod"} {
			s.lists.informers = append(s.lists.informers, syncedInformer{name: name, synced: func() bool {
				mu.Lock()
				defer mu.Unlock()
				return seen[name]
			}})
		}
		see := func(name string) { mu.Lock(); seen[name] = true; mu.Unlock() }
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.lists.waitForSync(ctx) }()
		see("Pod")
		time.Sleep(time.Minute)
		if err := s.Synced(ctx); err == nil || err.Error() != "the first lists have not been handled" {
			t.Errorf("synced: %v", err)
		}
		select {
		case err := <-done:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		see("Node")
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := s.Synced(ctx); err != nil {
			t.Error(err)
		}
		mu.Lock()
		delete(seen, "Node")
		mu.Unlock()
		go func() { done <- s.Run(ctx) }()
		time.Sleep(time.Second)
		cancel(errors.New("enough"))
		if err := <-done; err == nil || err.Error() != "wait for the first list of Node: enough" {
			t.Errorf("ended with %v", err)
		}
	})
}

// flakyLocal is a server in this process whose writes get lost now and then, before they are done or after.
type flakyLocal struct {
	client.Local
	transport http.RoundTripper
}

func (f flakyLocal) Transport() http.RoundTripper { return f.transport }

// runReal runs a scheduler beside a real server until the test ends.
func (s *realServer) runReal(c *client.Client) *Scheduler {
	s.t.Helper()
	scheduler, _ := s.runWithInformers(c)
	return scheduler
}

// runWithInformers is runReal; the informers are the scheduler's alone.
func (s *realServer) runWithInformers(c *client.Client) (*Scheduler, *client.Informers) {
	s.t.Helper()
	informers, events := client.NewInformers(c), client.NewEventBroadcaster(s.client)
	scheduler, err := New(Config{Client: c, Informers: informers, Events: events, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{informers.Run, events.Run, scheduler.Run} {
		running.Go(func() { _ = run(ctx) })
	}
	s.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return scheduler, informers
}

func (s *realServer) node(n *corev1.Node) {
	s.t.Helper()
	if _, err := client.For[*corev1.Node](s.client).Create(context.Background(), n, writeOptions); err != nil {
		s.t.Fatal(err)
	}
	if _, err := client.For[*corev1.Node](s.client).UpdateStatus(context.Background(), func() *corev1.Node {
		made, err := client.For[*corev1.Node](s.client).Get(context.Background(), "", n.Name)
		if err != nil {
			s.t.Fatal(err)
		}
		made = made.DeepCopy()
		made.Status.Allocatable, made.Status.Capacity = n.Status.Allocatable, n.Status.Allocatable
		return made
	}()); err != nil {
		s.t.Fatal(err)
	}
}

// eventually waits for what happens in real time.
func eventually(t testing.TB, what string, happened func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !happened(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it does not happen: %s", what)
		}
	}
}

// TestSchedulerOnRealServer follows a few pods through a real API server: informers, bindings, conditions, events, preemption.
func TestSchedulerOnRealServer(t *testing.T) {
	server := newRealServer(t)
	ctx := context.Background()
	server.create(schedulertest.TestPod("before", schedulertest.RequestingCPU("1")))
	server.runReal(server.client)
	eventually(t, "a pod that was there before gets a condition that there are no nodes", func() bool {
		p := server.pod("before")
		return len(p.Status.Conditions) == 1 && p.Status.Conditions[0].Message == "no nodes available to schedule pods"
	})
	server.node(schedulertest.TestNode("a"))
	eventually(t, "it is bound when a node comes", func() bool { return server.pod("before").Spec.NodeName == "a" })
	server.create(schedulertest.TestPod("big", schedulertest.RequestingCPU("4"), schedulertest.Priority(0)))
	eventually(t, "a pod that does not fit gets a condition", func() bool {
		p := server.pod("big")
		return len(p.Status.Conditions) == 1 && p.Status.Conditions[0].Message == insufficientCPU+" preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
	})
	events := func(name string) (all []string) {
		list, _, err := client.For[*corev1.Event](server.client).List(ctx, "default", client.Selector{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.InvolvedObject.Name == name {
				all = append(all, fmt.Sprintf("%s %s %s: %s", e.Source.Component, e.Type, e.Reason, e.Message))
			}
		}
		return all
	}
	eventually(t, "events are written", func() bool {
		return slices.Contains(events("before"), "default-scheduler Normal Scheduled: Successfully assigned default/before to a") &&
			slices.Contains(events("big"), "default-scheduler Warning FailedScheduling: "+insufficientCPU+" preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.")
	})
	// A claim, a class and their likes are followed too.
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: new(storagev1.VolumeBindingMode)}
	*class.VolumeBindingMode = storagev1.VolumeBindingWaitForFirstConsumer
	server.create(schedulertest.TestPod("claims", schedulertest.UsingClaim("missing")))
	eventually(t, "a pod whose claim is missing gets a condition", func() bool {
		p := server.pod("claims")
		return len(p.Status.Conditions) == 1 && strings.Contains(p.Status.Conditions[0].Message, `persistentvolumeclaim "missing" not found`)
	})
	if _, err := client.For[*storagev1.StorageClass](server.client).Create(ctx, class, writeOptions); err != nil {
		t.Fatal(err)
	}
	server.delete("before")
	eventually(t, "free resources that is given back is used", func() bool { return server.pod("big").Spec.NodeName == "a" })
	urgent := schedulertest.TestPod("urgent", schedulertest.RequestingCPU("4"))
	server.createWithPriority(urgent, 1000)
	eventually(t, "the victim is marked and deleted", func() bool {
		p := server.pod("big")
		return p != nil && p.DeletionTimestamp != nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
		})
	})
	eventually(t, "the pod waits for the node", func() bool { return server.pod("urgent").Status.NominatedNodeName == "a" })
	server.delete("big")
	eventually(t, "the pod is bound, and waits no more", func() bool {
		p := server.pod("urgent")
		return p.Spec.NodeName == "a" && p.Status.NominatedNodeName == ""
	})
	eventually(t, "the victim has an event that names the preemptor", func() bool {
		return slices.ContainsFunc(events("big"), func(e string) bool {
			return strings.HasSuffix(e, " on node a") && strings.Contains(e, "Preempted: Preempted by pod ")
		})
	})
}

func (s *realServer) createWithPriority(pod *corev1.Pod, n int32) {
	s.t.Helper()
	schedulertest.Priority(n)(pod)
	s.create(pod)
}

// TestSchedulerWithLostWrites runs on a real server whose answers get lost. Every pod is bound, once, and no node is over its allocatable.
func TestSchedulerWithLostWrites(t *testing.T) {
	server := newRealServer(t)
	random := rand.New(rand.NewPCG(1, 1))
	lossy := &schedulertest.LossyTransport{RoundTripper: server.local.Transport(), Lose: func(method, _ string) (bool, bool) {
		if method == http.MethodGet {
			return random.IntN(6) == 0, false
		}
		return random.IntN(5) == 0, random.IntN(4) == 0
	}}
	c, err := client.NewLocal(flakyLocal{server.local, lossy}, api.Scheme(), api.Kinds(api.Settings{}))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		server.node(schedulertest.TestNode(fmt.Sprint("n", i), schedulertest.NodeHas(corev1.ResourceCPU, "2"), schedulertest.NodeHas(corev1.ResourcePods, "8")))
	}
	s := server.runReal(c)
	const pods = 40 // as many as just fit: whoever takes free resources twice keeps another out
	var bound sync.Map
	for i := range pods {
		server.create(schedulertest.TestPod(fmt.Sprint("p", i), schedulertest.RequestingCPU("200m")))
	}
	watched := client.For[*corev1.Pod](server.client)
	boundPods := func() (on map[string][]string) {
		on = map[string][]string{}
		list, _, err := watched.List(context.Background(), "default", client.Selector{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			if p.Spec.NodeName == "" {
				continue
			}
			if before, twice := bound.LoadOrStore(p.UID, p.Spec.NodeName); twice && before != p.Spec.NodeName {
				t.Fatalf("pod %s was on %v, is on %s", p.Name, before, p.Spec.NodeName)
			}
			on[p.Spec.NodeName] = append(on[p.Spec.NodeName], p.Name)
		}
		for node, names := range on {
			if len(names) > 8 {
				t.Fatalf("node %s holds %d pods", node, len(names))
			}
		}
		return on
	}
	eventually(t, "all that fit are bound", func() bool {
		n := 0
		for _, names := range boundPods() {
			n += len(names)
		}
		return n == 32
	})
	eventually(t, "the snapshot has all bound pods", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, p := range s.snapshot.PodEntries {
			if on, _ := bound.Load(p.Info.Pod.UID); p.Assumed || on != s.snapshot.NodeInfos[p.Node].Name {
				return false
			}
		}
		return len(s.snapshot.PodEntries) == 32
	})
}
