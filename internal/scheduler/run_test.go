package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"skiff/internal/scheduler/binding"
	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/queue"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

func TestSchedulerBindsEachPodOnce(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		for i := range 10 {
			f.addNode(schedulertest.TestNode(fmt.Sprint("n", i)))
		}
		for i := range 400 {
			f.addPod(schedulertest.TestPod(fmt.Sprint("p", i), schedulertest.RequestingCPU("100m")))
		}
		f.pass(time.Minute)
		byNode := map[string]int{}
		for i := range 400 {
			name := fmt.Sprint("p", i)
			if f.boundTimes(name) != 1 {
				t.Errorf("pod %s was bound %d times", name, f.boundTimes(name))
			}
			byNode[f.nodeOf(name)]++
		}
		for node, n := range byNode {
			if n != 40 {
				t.Errorf("node %s has %d pods", node, n)
			}
		}
	})
}

func TestSchedulerForgetsAndRetriesWhatWasNotBound(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("n"))
		fails := 3
		f.refuse = func(*corev1.Pod, string) error {
			if fails--; fails >= 0 {
				return errors.New("no luck")
			}
			return nil
		}
		f.addPod(schedulertest.TestPod("p", schedulertest.RequestingCPU("4")))
		f.pass(500 * time.Millisecond)
		if f.podCount() != 0 {
			t.Error("the resources of a pod that was not bound are still in use")
		}
		f.pass(30 * time.Second)
		if f.nodeOf("p") != "n" || f.boundTimes("p") != 1 {
			t.Errorf("the pod is on %q, bound %d times", f.nodeOf("p"), f.boundTimes("p"))
		}
		if patches := f.patchesOf("p"); len(patches) == 0 || !strings.Contains(patches[0], corev1.PodReasonSchedulerError) || !strings.Contains(patches[0], "no luck") {
			t.Errorf("patches %v", patches)
		}
	})
}

func TestSchedulerRetriesPodsWhenResourcesAreFreed(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addPod(schedulertest.TestPod("first", schedulertest.RequestingCPU("3")))
		f.pass(time.Second)
		if p := f.patchesOf("first"); len(p) != 1 || !strings.Contains(p[0], "no nodes available to schedule pods") {
			t.Errorf("patches %v", p)
		}
		f.addNode(schedulertest.TestNode("n"))
		f.pass(10 * time.Second)
		if f.nodeOf("first") != "n" {
			t.Error("the pod is not scheduled when a node comes")
		}
		f.addPod(schedulertest.TestPod("second", schedulertest.RequestingCPU("3")))
		f.pass(time.Minute)
		if f.nodeOf("second") != "" {
			t.Fatal("the node is over its allocatable")
		}
		if p := f.patchesOf("second"); len(p) != 1 {
			t.Errorf("the same condition is written %d times: %v", len(p), p)
		}
		f.removePod("first")
		f.pass(12 * time.Second)
		if f.nodeOf("second") != "n" {
			t.Error("the pod is not scheduled when a node fits it")
		}
	})
}

func TestSchedulerPreempts(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addNode(schedulertest.TestNode("b"))
		for _, node := range []string{"a", "b"} {
			for i := range 3 {
				f.addPod(schedulertest.TestPod(fmt.Sprint(node, i), schedulertest.OnNode(node), schedulertest.RequestingCPU("1"), schedulertest.Priority(int32(i))))
			}
		}
		f.addPod(schedulertest.TestPod("urgent", schedulertest.RequestingCPU("2"), schedulertest.Priority(100)))
		f.pass(time.Second)
		// The least important pod of one node had to go, and no other.
		if len(f.victims()) != 1 || f.victims()[0] != "a0" && f.victims()[0] != "b0" {
			t.Errorf("deleted: %v", f.victims())
		}
		node := f.victims()[0][:1]
		if p := f.patchesOf(f.victims()[0]); len(p) != 1 || !strings.Contains(p[0], corev1.PodReasonPreemptionByScheduler) ||
			!strings.Contains(p[0], "default-scheduler: preempting to accommodate a higher priority pod") {
			t.Errorf("the status of the victim is %v", p)
		}
		if urgent, _ := f.scheduler.lists.pods("default", "urgent"); urgent.Status.NominatedNodeName != node {
			t.Errorf("nominated to %q, not %q", urgent.Status.NominatedNodeName, node)
		}
		if p := f.patchesOf("urgent"); !strings.Contains(p[0], "found a potential placement for pod on node "+node+", preempting 1 victims") {
			t.Errorf("the status of the pod is %v", p)
		}
		// A pod of lower priority does not get the freed resources meanwhile.
		f.addPod(schedulertest.TestPod("greedy", schedulertest.RequestingCPU("2")))
		f.pass(30 * time.Second)
		if f.nodeOf("urgent") != node || f.nodeOf("greedy") != "" {
			t.Errorf("urgent is on %q, greedy on %q", f.nodeOf("urgent"), f.nodeOf("greedy"))
		}
		if len(f.victims()) != 1 {
			t.Errorf("deleted: %v", f.victims())
		}
	})
}

func TestSchedulerIgnoresPodsOfOtherSchedulers(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("n"))
		f.addPod(schedulertest.TestPod("theirs", func(p *corev1.Pod) { p.Spec.SchedulerName = "another" }))
		f.addPod(schedulertest.TestPod("gone", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }))
		f.pass(time.Minute)
		if f.boundTimes("theirs")+f.boundTimes("gone") != 0 {
			t.Error("a pod was bound that is not ours to bind")
		}
	})
}

func TestWhyAndWhatIf(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a", schedulertest.Taint("k", "v", corev1.TaintEffectNoSchedule)))
		f.addNode(schedulertest.TestNode("b"))
		f.addPod(schedulertest.TestPod("there", schedulertest.OnNode("b"), schedulertest.RequestingCPU("3")))
		f.addPod(schedulertest.TestPod("waits", schedulertest.RequestingCPU("2")))
		f.addPod(schedulertest.TestPod("runs", schedulertest.RequestingCPU("500m")))
		f.pass(time.Second)
		e, err := f.scheduler.Why("default", "waits")
		if err != nil {
			t.Fatal(err)
		}
		want := []decision.Suggestion{
			{Node: "a", Steps: []string{"tolerate the taint k=v:NoSchedule, or remove it"}},
			{Node: "b", Steps: []string{"request 1500m less cpu, or free as much: 3500m of 4 are requested already"}},
		}
		if fmt.Sprint(e.Changes) != fmt.Sprint(want) {
			t.Errorf("changes %v, want %v", e.Changes, want)
		}
		e, err = f.scheduler.Why("default", "runs")
		if err != nil || e.Node != "b" || e.Decided == nil || len(e.Verdicts) != 2 || e.Verdicts[0].Scores[plugins.NodeResourcesFitName] == 0 {
			t.Errorf("%+v, %v", e, err)
		}
		before := f.podCount()
		answers, err := f.scheduler.WhatIf(t.Context(), []*corev1.Pod{schedulertest.TestPod("x", schedulertest.RequestingCPU("400m")), schedulertest.TestPod("y", schedulertest.RequestingCPU("400m"))}, false)
		if err != nil || answers[0].Node != "b" || answers[1].Node != "" || len(answers[1].Changes) == 0 {
			t.Errorf("%+v, %v", answers, err)
		}
		if f.podCount() != before {
			t.Error("asking has changed something")
		}
	})
}

func TestExtenders(t *testing.T) {
	var bound []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any
		switch r.URL.Path {
		case "/x/filter":
			var a extenderv1.ExtenderArgs
			_ = json.NewDecoder(r.Body).Decode(&a)
			names := slices.DeleteFunc(*a.NodeNames, func(n string) bool { return n == "a" })
			answer = extenderv1.ExtenderFilterResult{NodeNames: &names, FailedNodes: extenderv1.FailedNodesMap{"a": "not this one"}}
		case "/x/prioritize":
			answer = extenderv1.HostPriorityList{{Host: "c", Score: 10}}
		case "/x/bind":
			var a extenderv1.ExtenderBindingArgs
			_ = json.NewDecoder(r.Body).Decode(&a)
			bound = append(bound, a.PodName+" on "+a.Node)
			answer = extenderv1.ExtenderBindingResult{}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	config, err := ParseConfiguration(fmt.Appendf(nil, `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 50
extenders:
- {urlPrefix: %q, filterVerb: filter, prioritizeVerb: prioritize, bindVerb: bind, weight: 5, nodeCacheCapable: true}
`, server.URL+"/x"))
	if err != nil {
		t.Fatal(err)
	}
	f := newFakeServer(t, config)
	for _, name := range []string{"a", "b", "c"} {
		f.scheduler.snapshot.SetNode(schedulertest.TestNode(name))
	}
	info := snapshottest.PodInfo(t, schedulertest.TestPod("p"))
	d, err := scheduleWithExtenders(t, f.scheduler, info)
	if err != nil || d.Node != "c" {
		t.Fatalf("decided for %q, %v", d.Node, err)
	}
	if err := f.scheduler.binder.Bind(t.Context(), d, &binding.Reservation{}); err != nil || fmt.Sprint(bound) != "[p on c]" {
		t.Errorf("bound %v, %v", bound, err)
	}
	for _, name := range []string{"b", "c"} {
		f.scheduler.snapshot.DeleteNode(name)
	}
	if _, err := scheduleWithExtenders(t, f.scheduler, info); err == nil || err.Error() != "0/1 nodes are available: 1 not this one." {
		t.Errorf("error %v", err)
	}
}

func TestDevices(t *testing.T) {
	slice := func(node string, devices ...string) *resourcev1.ResourceSlice {
		x := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice-" + node}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
		}}
		for _, d := range devices {
			x.Spec.Devices = append(x.Spec.Devices, resourcev1.Device{Name: d})
		}
		return x
	}
	claim := func(name string, count int64) *resourcev1.ResourceClaim {
		return &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: "1"},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
				Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count},
			}}}},
		}
	}
	claiming := func(names ...string) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			for _, name := range names {
				p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
			}
		}
	}
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addNode(schedulertest.TestNode("b"))
		f.addPod(schedulertest.TestPod("early", claiming("one")))
		f.pass(time.Second)
		if patches := f.patchesOf("early"); len(patches) != 0 {
			t.Errorf("the pod whose claim is missing was tried, and its status is %v", patches)
		}
		for _, o := range []metav1.Object{slice("a", "x"), slice("b", "y", "z"), claim("two", 2), claim("many", 3), &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}} {
			f.notify(func() { f.scheduler.snapshot.SetObject(o) })
		}
		f.addPod(schedulertest.TestPod("pair", claiming("two")))
		f.addPod(schedulertest.TestPod("greedy", claiming("many")))
		f.pass(time.Second)
		if f.nodeOf("pair") != "b" || f.nodeOf("greedy") != "" {
			t.Errorf("pair is on %q, greedy on %q", f.nodeOf("pair"), f.nodeOf("greedy"))
		}
		if patches := f.patchesOf("greedy"); len(patches) == 0 || !strings.Contains(patches[0], "2 cannot allocate all claims") {
			t.Errorf("the status of the pod that claims too much is %v", patches)
		}
		f.storeClaim(claim("one", 1))
		f.pass(15 * time.Second)
		if f.nodeOf("early") != "a" {
			t.Errorf("the pod whose claim came late is on %q", f.nodeOf("early"))
		}
		f.notify(func() {
			given := f.scheduler.snapshot.Devices.Claims["default/two"]
			if given.Status.Allocation == nil || len(given.Status.Allocation.Devices.Results) != 2 || len(given.Status.ReservedFor) != 1 || len(given.Finalizers) != 1 {
				t.Errorf("claim %+v", given)
			}
		})
	})
}

func TestTruncated(t *testing.T) {
	for _, n := range []int{0, 1, 1023, 1024, 1025, 5000} {
		message := strings.Repeat("x", n)
		want := message
		if n > 1024 {
			want = strings.Repeat("x", 1020) + " ..."
		}
		if got := truncated(message); got != want {
			t.Errorf("%d letters become %d: %q", n, len(got), got[max(0, len(got)-8):])
		}
	}
}

// A long message is cut in the event, not in the condition.
func TestLongMessages(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		for i := range 40 {
			f.addNode(schedulertest.TestNode(fmt.Sprint("n", i), schedulertest.Taint(fmt.Sprint("taint-", i, strings.Repeat("x", 20)), "", corev1.TaintEffectNoSchedule)))
		}
		profile := f.scheduler.profiles[corev1.DefaultSchedulerName]
		f.notify(func() {
			// Every node refuses for a reason of its own.
			profile.Filters = append([]plugins.FilterPlugin{oddPlugin{func(node int32) *plugins.Refusal {
				return plugins.Refuse("Odd", true, "node(s) had a long reason of their own, "+f.scheduler.snapshot.NodeInfos[node].Name)
			}}}, profile.Filters...)
			profile.SpreadOrder++
			profile.AffinityOrder++
		})
		f.addPod(schedulertest.TestPod("p"))
		f.pass(time.Second)
		events := f.eventsOf("p")
		condition := f.conditionOf("p", corev1.PodScheduled)
		if len(events) == 0 || len(condition) < 1500 {
			t.Errorf("%d events, a condition of %d letters", len(events), len(condition))
			return
		}
		text := strings.TrimPrefix(events[0], "Warning FailedScheduling: ")
		if len(text) != 1024 || !strings.HasSuffix(text, " ...") || !strings.HasPrefix(strings.TrimPrefix(condition, "False Unschedulable "), strings.TrimSuffix(text, " ...")) {
			t.Errorf("event of %d letters: %s", len(text), text)
		}
	})
}

// Run returns only after what it has begun is written.
func TestRunFinishesItsWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, nil)
		f.delay = time.Minute
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.scheduler.Run(ctx) }()
		f.addNode(schedulertest.TestNode("a"))
		f.addPod(schedulertest.TestPod("p"))
		f.pass(time.Second)
		cancel()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("it ended while a pod was being bound: %v", err)
		default:
		}
		f.pass(time.Minute)
		if err := <-done; err != nil || f.boundTimes("p") != 1 {
			t.Errorf("%v; bound %d times", err, f.boundTimes("p"))
		}
		time.Sleep(2 * time.Minute)
	})
}

// A write beyond maxInFlight waits without the lock. It is begun in any case, because it reverts what it stands for when it fails.
func TestBackgroundWaitsForInFlightWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, nil)
		s := f.scheduler
		for range maxInFlight {
			s.inFlight <- struct{}{}
		}
		go func() {
			time.Sleep(time.Second)
			s.mu.Lock() // is not held meanwhile
			defer s.mu.Unlock()
			<-s.inFlight
		}()
		began, written := time.Now(), false
		s.locked(func() { s.background(func() { written = true }) })
		s.writing.Wait()
		if !written || time.Since(began) != time.Second || len(s.inFlight) != maxInFlight-1 {
			t.Errorf("written: %v after %v, %d in flight", written, time.Since(began), len(s.inFlight))
		}
	})
}

// The cluster may change while an extender reviews candidates for preemption. A pod that was deleted meanwhile gets no nomination and preempts no pods.
func TestPodChangesWhileExtendersAreCalled(t *testing.T) {
	for what, change := range map[string]func(f *fakeServer){
		"it is deleted":     func(f *fakeServer) { f.removePod("urgent") },
		"it is bound":       func(f *fakeServer) { f.change("urgent", schedulertest.OnNode("b")) },
		"nothing":           func(*fakeServer) {},
		"its victim leaves": func(f *fakeServer) { f.removePod("x") },
	} {
		t.Run(what, func(t *testing.T) {
			var f *fakeServer
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var a extenderv1.ExtenderPreemptionArgs
				_ = json.NewDecoder(r.Body).Decode(&a)
				change(f)
				_ = json.NewEncoder(w).Encode(extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: a.NodeNameToMetaVictims})
			}))
			defer server.Close()
			f = newFakeServer(t, &configv1.KubeSchedulerConfiguration{Extenders: []configv1.Extender{{URLPrefix: server.URL, PreemptVerb: "preempt", NodeCacheCapable: true}}})
			f.addNode(schedulertest.TestNode("a"))
			f.addPod(schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4")))
			f.addPod(schedulertest.TestPod("urgent", schedulertest.RequestingCPU("4"), schedulertest.Priority(5)))
			f.scheduler.locked(func() {
				p, _ := f.scheduler.queue.Pop(time.Now())
				f.scheduler.scheduleOne(t.Context(), p)
			})
			f.scheduler.writing.Wait()
			_, known := f.nominationOf("urgent")
			victims := fmt.Sprint(f.victims())
			switch what {
			case "nothing":
				if known != "a" || victims != "[x]" {
					t.Errorf("nominated to %q, deleted: %s", known, victims)
				}
			case "its victim leaves":
				if known != "a" || victims != "[]" {
					t.Errorf("nominated to %q, deleted: %s", known, victims)
				}
			default:
				if known != "" || victims != "[]" || len(f.eventsOf("urgent")) != 0 {
					t.Errorf("nominated to %q, deleted: %s, events %v", known, victims, f.eventsOf("urgent"))
				}
			}
		})
	}
}

// Which failures keep a nomination, and which end it; and what the status of the pod is.
func TestFailures(t *testing.T) {
	odd := errors.New("no idea")
	noPreemption := &configv1.KubeSchedulerConfiguration{Profiles: []configv1.KubeSchedulerProfile{{
		Plugins: &configv1.Plugins{PostFilter: configv1.PluginSet{Disabled: []configv1.Plugin{{Name: plugins.DefaultPreemptionName}}}},
	}}}
	for name, test := range map[string]struct {
		configuration *configv1.KubeSchedulerConfiguration
		nodes         []*corev1.Node
		running       []*corev1.Pod
		plugin        plugins.FilterPlugin // besides the usual ones
		pod           *corev1.Pod
		nominated     string // afterwards
		place         queue.Location
		condition     string
	}{
		"no nodes end it": {
			pod: schedulertest.TestPod("p", schedulertest.NominatedTo("a")), place: queue.InUnschedulablePods, condition: "False Unschedulable no nodes available to schedule pods",
		},
		"a fault ends it": {
			nodes: []*corev1.Node{schedulertest.TestNode("a")}, plugin: preFilterPlugin{&plugins.Refusal{Plugin: "Pre", Err: odd}}, pod: schedulertest.TestPod("p", schedulertest.NominatedTo("a")), place: queue.InBackoffQ,
			condition: `False SchedulerError running PreFilter plugin "Pre": no idea`,
		},
		"a fault about a node ends it": {
			nodes: []*corev1.Node{schedulertest.TestNode("a")}, plugin: oddPlugin{func(int32) *plugins.Refusal { return &plugins.Refusal{Plugin: "Odd", Err: odd} }}, pod: schedulertest.TestPod("p", schedulertest.NominatedTo("b")), place: queue.InBackoffQ,
			condition: `False SchedulerError running "Odd" filter plugin: no idea`,
		},
		"that nothing helps ends it": {
			nodes: []*corev1.Node{schedulertest.TestNode("a")}, pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("9"), schedulertest.NominatedTo("a")), place: queue.InUnschedulablePods,
			condition: "False Unschedulable 0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
		},
		"that the pod may not preempt keeps it": {
			nodes: []*corev1.Node{schedulertest.TestNode("a")}, running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"))}, pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.NeverPreempting, schedulertest.NominatedTo("a")), nominated: "a", place: queue.InUnschedulablePods,
			condition: "False Unschedulable " + insufficientCPU + " preemption: not eligible due to preemptionPolicy=Never.",
		},
		"that its victims are leaving keeps it": {
			nodes: []*corev1.Node{schedulertest.TestNode("a")}, running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.TerminatingByPreemption)}, pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.Priority(1), schedulertest.NominatedTo("a")), nominated: "a", place: queue.InUnschedulablePods,
			condition: "False Unschedulable " + insufficientCPU + " preemption: not eligible due to a terminating pod on the nominated node.",
		},
		"a profile that does not preempt ends it": {
			configuration: noPreemption, nodes: []*corev1.Node{schedulertest.TestNode("a")}, running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"))}, pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.Priority(1), schedulertest.NominatedTo("a")), place: queue.InUnschedulablePods,
			condition: "False Unschedulable " + insufficientCPU,
		},
		"a fault while preempting keeps it": {
			nodes: []*corev1.Node{schedulertest.TestNode("a")}, running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"))}, pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.Priority(1), schedulertest.NominatedTo("b")), nominated: "b", place: queue.InUnschedulablePods,
			plugin: oddPlugin{func() func(int32) *plugins.Refusal {
				asked := 0
				return func(int32) *plugins.Refusal {
					if asked++; asked > 1 {
						return &plugins.Refusal{Plugin: "Odd", Err: odd}
					}
					return nil
				}
			}()},
			condition: "False Unschedulable " + insufficientCPU + ` preemption: running "Odd" filter plugin: no idea`,
		},
		"all nodes refused at once": {
			nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, plugin: preFilterPlugin{plugins.Refuse("Pre", true, "not today")}, pod: schedulertest.TestPod("p"), place: queue.InUnschedulablePods,
			condition: "False Unschedulable 0/2 nodes are available: not today. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeServer(t, test.configuration)
			profile := f.scheduler.profiles[corev1.DefaultSchedulerName]
			if test.plugin != nil {
				profile.Filters = append([]plugins.FilterPlugin{test.plugin}, profile.Filters...)
				profile.SpreadOrder++
				profile.AffinityOrder++
			}
			for _, n := range test.nodes {
				f.addNode(n)
			}
			for _, p := range append(test.running, test.pod) {
				f.addPod(p)
			}
			var where queue.Location
			f.scheduler.locked(func() {
				p, _ := f.scheduler.queue.Pop(time.Now())
				f.scheduler.scheduleOne(t.Context(), p)
				where = p.Location
			})
			f.scheduler.writing.Wait()
			f.expectNominated("p", test.nominated)
			if got := f.conditionOf("p", corev1.PodScheduled); got != test.condition || where != test.place {
				t.Errorf("place %d, %s\nwant %d, %s", where, got, test.place, test.condition)
			}
			_, text, _ := strings.Cut(strings.SplitN(test.condition, " ", 2)[1], " ")
			f.expectEvents("p", "Warning FailedScheduling: "+text)
			if len(f.victims()) != 0 {
				t.Errorf("deleted: %v", f.victims())
			}
		})
	}
}

// Several profiles look after their own pods, each under its name.
func TestEventsNameTheProfile(t *testing.T) {
	first, other := corev1.DefaultSchedulerName, "other"
	withFakeServer(t, &configv1.KubeSchedulerConfiguration{Profiles: []configv1.KubeSchedulerProfile{{SchedulerName: &first}, {SchedulerName: &other}}}, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addPod(schedulertest.TestPod("p"))
		f.addPod(schedulertest.TestPod("q", schedulerOf("other"), schedulertest.RequestingCPU("9"), schedulertest.Priority(3)))
		f.addPod(schedulertest.TestPod("r", schedulerOf("other"), schedulertest.RequestingCPU("4"), schedulertest.Priority(2)))
		f.pass(time.Second)
		f.addPod(schedulertest.TestPod("s", schedulerOf("other"), schedulertest.RequestingCPU("4"), schedulertest.Priority(9)))
		f.pass(20 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, want := range []string{
			"default-scheduler p Normal Scheduled: Successfully assigned default/p to a",
			"other r Normal Scheduled: Successfully assigned default/r to a",
			"other r Normal Preempted: Preempted by pod s on node a",
			"other s Normal Scheduled: Successfully assigned default/s to a",
		} {
			if !slices.Contains(f.events, want) {
				t.Errorf("no event %q: %q", want, f.events)
			}
		}
		if c := f.patches["r"]; len(c) == 0 || !strings.Contains(c[len(c)-1], "other: preempting to accommodate a higher priority pod") {
			t.Errorf("the status of the victim is %v", c)
		}
	})
}

// With extenders too, the node that was kept for a pod is taken if it will do, and otherwise the best of all.
func TestNominatedNodeAndExtenders(t *testing.T) {
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		refuses []string // nodes, by the extender
		node    string
		asked   string // about which nodes, one question after another
		err     string
	}{
		"the nominated node will do":           {schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a")), nil, "a", "[a]", ""},
		"the extender refuses it":              {schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a")), []string{"a"}, "b", "[a][a b]", ""},
		"the extender refuses all":             {schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a")), []string{"a", "b"}, "", "[a][a b]", "0/2 nodes are available: 2 not this one."},
		"it is full":                           {schedulertest.TestPod("p", schedulertest.RequestingCPU("2"), schedulertest.NominatedTo("a")), nil, "b", "[b]", ""},
		"without a nomination the best is":     {schedulertest.TestPod("p", schedulertest.RequestingCPU("1")), nil, "b", "[a b]", ""},
		"one of the pod's own that is refused": {schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a"), schedulertest.RequiresNodes(schedulertest.Named("a"), schedulertest.Named("b"))), []string{"a"}, "b", "[a][a b]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			asked := ""
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var a extenderv1.ExtenderArgs
				_ = json.NewDecoder(r.Body).Decode(&a)
				slices.Sort(*a.NodeNames)
				asked += fmt.Sprint(*a.NodeNames)
				failed := extenderv1.FailedNodesMap{}
				kept := slices.DeleteFunc(slices.Clone(*a.NodeNames), func(n string) bool {
					if slices.Contains(test.refuses, n) {
						failed[n] = "not this one"
					}
					return failed[n] != ""
				})
				_ = json.NewEncoder(w).Encode(extenderv1.ExtenderFilterResult{NodeNames: &kept, FailedNodes: failed})
			}))
			defer server.Close()
			f := newFakeServer(t, &configv1.KubeSchedulerConfiguration{Extenders: []configv1.Extender{{URLPrefix: server.URL, FilterVerb: "filter", NodeCacheCapable: true}}})
			f.addNode(schedulertest.TestNode("a"))
			f.addNode(schedulertest.TestNode("b"))
			f.addPod(schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("3"), schedulertest.RequestingMemory("16Gi")))
			d, err := scheduleWithExtenders(t, f.scheduler, snapshottest.PodInfo(t, test.pod))
			text := ""
			if err != nil {
				text = err.Error()
			}
			if d.Node != test.node || asked != test.asked || text != test.err {
				t.Errorf("on %q, asked %s, %s; want %q, %s, %s", d.Node, asked, text, test.node, test.asked, test.err)
			}
		})
	}
}

// scheduleWithExtenders decides about a pod and lets extenders filter and score nodes.
func scheduleWithExtenders(t *testing.T, s *Scheduler, info *snapshot.PodInfo) (d *decision.Decision, err error) {
	s.locked(func() {
		if d, err = decision.Schedule(s.snapshot, info, s.profiles[corev1.DefaultSchedulerName]); err == nil {
			s.extend(t.Context(), s.extendersFor(info.Pod), d, func(result error) { err = result })
		}
	})
	return d, err
}
