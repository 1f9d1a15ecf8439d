package scheduler

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// What is reported about a pod, by its state.
func TestWhy(t *testing.T) {
	gate := func(names ...string) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			for _, name := range names {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
			}
		}
	}
	withFakeServer(t, parsed(t, "profiles: [{schedulerName: default-scheduler}, {schedulerName: quiet, plugins: {postFilter: {disabled: [{name: '*'}]}}}]"), func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addNode(schedulertest.TestNode("b", schedulertest.Cordoned))
		f.addPod(schedulertest.TestPod("placed", schedulertest.RequestingCPU("3")))
		f.pass(time.Second)
		f.addPod(schedulertest.TestPod("static", schedulertest.OnNode("a")))
		f.addPod(schedulertest.TestPod("waiting", schedulertest.RequestingCPU("2")))
		f.addPod(schedulertest.TestPod("quiet", schedulertest.RequestingCPU("2"), schedulertest.Priority(5), func(p *corev1.Pod) { p.Spec.SchedulerName = "quiet" }))
		f.addPod(schedulertest.TestPod("gated", gate("example.com/g", "example.com/h")))
		f.addPod(schedulertest.TestPod("placed-gated", gate("example.com/g"), schedulertest.OnNode("a")))
		f.addPod(schedulertest.TestPod("giant", schedulertest.RequestingCPU("30")))
		f.addPod(schedulertest.TestPod("other", func(p *corev1.Pod) { p.Spec.SchedulerName = "another" }))
		f.pass(time.Second)
		for _, test := range []struct {
			pod, node, message string
			decided            bool
			feasible, verdicts int
			changes            []string
		}{
			{pod: "placed", node: "a", decided: true, feasible: 1, verdicts: 2},
			{pod: "static", node: "a", feasible: 1, verdicts: 2},
			{pod: "waiting", decided: true, verdicts: 2, message: "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable. preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling.",
				changes: []string{"b uncordon the node", "a request 1 less cpu, or free as much: 3 of 4 are requested already"}},
			{pod: "quiet", decided: true, verdicts: 2, message: "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable.",
				changes: []string{"b uncordon the node", "a request 1 less cpu, or free as much: 3 of 4 are requested already"}},
			{pod: "gated", message: "waiting for scheduling gates: [example.com/g example.com/h]", changes: []string{" remove the pod's scheduling gates"}},
			{pod: "placed-gated", node: "a", feasible: 1, verdicts: 2},
			{pod: "giant", decided: true, verdicts: 2, message: "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
				changes: []string{"a request 29 less cpu, for the node has 4 in all", "b uncordon the node; request 26 less cpu, for the node has 4 in all"}},
		} {
			e, err := f.scheduler.Why("default", test.pod)
			if err != nil {
				t.Errorf("%s: %v", test.pod, err)
				continue
			}
			var changes []string
			for _, c := range e.Changes {
				changes = append(changes, c.Node+" "+strings.Join(c.Steps, "; "))
			}
			if e.Namespace != "default" || e.Name != test.pod || e.Node != test.node || !strings.HasPrefix(e.Message, test.message) || (e.Message == "") != (test.message == "") || (e.Decided != nil) != test.decided ||
				e.Feasible != test.feasible || e.Nodes != 2 || len(e.Verdicts) != test.verdicts || fmt.Sprint(changes) != fmt.Sprint(test.changes) {
				t.Errorf("%s: node %q, decided %v, %d of %d, %d verdicts, %s\nchanges %q\nwant %+v", test.pod, e.Node, e.Decided, e.Feasible, e.Nodes, len(e.Verdicts), e.Message, changes, test)
			}
			if e.Preemption != nil {
				t.Errorf("%s: no preemption is expected, got %+v", test.pod, e.Preemption)
			}
		}
		for name, want := range map[string]error{"nobody": decision.ErrPodNotFound, "other": decision.ErrOtherScheduler} {
			if _, err := f.scheduler.Why("default", name); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		}
	})
}

// The number of victims of a preemption is reported, but not their names.
func TestWhyReportsPreemption(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addPod(schedulertest.TestPod("low-1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2")))
		f.addPod(schedulertest.TestPod("low-2", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2")))
		f.pass(time.Second)
		code, body := f.request(http.MethodPost, Root+"v1/whatifs", supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x", schedulertest.RequestingCPU("4"), schedulertest.Priority(1))}, HypotheticalPod{Pod: *schedulertest.TestPod("y", schedulertest.RequestingCPU("4"))},
			HypotheticalPod{Pod: *schedulertest.TestPod("z", schedulertest.RequestingCPU("4"), schedulertest.Priority(1), func(p *corev1.Pod) { never := corev1.PreemptNever; p.Spec.PreemptionPolicy = &never })}))
		var answer WhatIf
		if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusOK || len(answer.Results) != 3 {
			t.Fatal(code, body, err)
		}
		if preview := answer.Results[0].Preemption; preview == nil || *preview != (decision.PreemptionPreview{Node: "a", Victims: 2}) {
			t.Errorf("x: %+v", preview)
		}
		for _, e := range answer.Results[1:] {
			if e.Preemption != nil {
				t.Errorf("%s: %+v", e.Name, e.Preemption)
			}
		}
		if strings.Contains(body, "low-") {
			t.Errorf("the victims' names are reported: %s", body)
		}
	})
}

// A question about a pod on a node is answered as if the pod were not there, and leaves everything as it was.
func TestWhyLeavesNoTrace(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addNode(schedulertest.TestNode("b"))
		f.addPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), schedulertest.RequestingCPU("3")))
		f.addPod(schedulertest.TestPod("q", schedulertest.OnNode("b"), schedulertest.RequestingCPU("1")))
		f.pass(time.Second)
		state := func() string {
			s := f.scheduler.snapshot
			return fmt.Sprint(s.Requested, s.NonZeroRequested, s.LastPlacement, s.Placements, len(s.PodEntries), f.scheduler.queue.All)
		}
		before := state()
		for _, name := range []string{"p", "q", "p"} {
			e, err := f.scheduler.Why("default", name)
			if err != nil || e.Decided != nil || e.Feasible != 2 || len(e.Verdicts) != 2 || e.Verdicts[0].Refusal != nil {
				t.Errorf("%s: %+v, %v", name, e, err)
			}
		}
		if after := state(); after != before {
			t.Errorf("before\n%s\nafter\n%s", before, after)
		}
	})
}

// A record about a pod that went elsewhere, by another scheduler, is not reported as the reason.
func TestWhyOfAPodBoundByOthers(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourceCPU, "1")))
		f.addNode(schedulertest.TestNode("b"))
		f.refuse = func(*corev1.Pod, string) error { return errors.New("somebody was faster") }
		f.addPod(schedulertest.TestPod("p", schedulertest.RequestingCPU("2")))
		f.pass(time.Second)
		f.change("p", func(p *corev1.Pod) { p.Spec.NodeName = "a" })
		f.pass(time.Second)
		e, err := f.scheduler.Why("default", "p")
		if err != nil || e.Node != "a" || e.Decided != nil || e.Message != "" || len(e.Changes) != 0 {
			t.Errorf("%+v, %v", e, err)
		}
	})
}

// Pods that are supposed see each other, in their order.
func TestWhatIfOneAfterAnother(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addNode(schedulertest.TestNode("b"))
		f.pass(time.Second)
		pods := []*corev1.Pod{
			schedulertest.TestPod("1", schedulertest.RequestingCPU("3"), schedulertest.Labelled("app", "x")), schedulertest.TestPod("2", schedulertest.RequestingCPU("3"), schedulertest.Labelled("app", "y")), schedulertest.TestPod("3", schedulertest.RequestingCPU("3")), schedulertest.TestPod("4", schedulertest.RequestingCPU("1"), schedulertest.WithAffinity(corev1.LabelHostname, "app", "y")),
			schedulertest.TestPod("5", schedulertest.WithAntiAffinity(corev1.LabelHostname, "app", "x"), schedulertest.WithAntiAffinity(corev1.LabelHostname, "app", "y")), schedulertest.TestPod("6", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }),
			schedulertest.TestPod("7", schedulertest.OnNode("b"), schedulertest.NominatedTo("b"), func(p *corev1.Pod) { p.Spec.SchedulerName = "" }),
		}
		results, err := f.scheduler.WhatIf(t.Context(), pods, true)
		if err != nil || len(results) != len(pods) {
			t.Fatal(results, err)
		}
		if results[0].Node == results[1].Node || results[0].Node == "" || results[2].Node != "" || results[3].Node != results[1].Node || results[4].Node != "" || results[5].Node != "" || results[6].Node == "" {
			t.Errorf("%+v", results)
		}
		if len(results[2].Changes) == 0 || len(results[4].Changes) == 0 || results[5].Message == "" || results[5].Nodes != 2 || len(results[0].Verdicts) != 2 {
			t.Errorf("%+v", results)
		}
		// Copies of what exists do not disturb it, and the same question has the same answer.
		again, err := f.scheduler.WhatIf(t.Context(), pods, true)
		if err != nil || fmt.Sprint(again) == "" || len(again) != len(results) || again[0].Node != results[0].Node || again[3].Node != results[3].Node {
			t.Errorf("%+v, %v", again, err)
		}
		if _, err := f.scheduler.WhatIf(t.Context(), []*corev1.Pod{schedulertest.TestPod("bad", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "?"}}}}}}}
		})}, false); err == nil || !strings.HasPrefix(err.Error(), "pod default/bad: ") {
			t.Errorf("a pod that cannot be read: %v", err)
		}
	})
}

func TestIsUnschedulable(t *testing.T) {
	for err, want := range map[error]bool{
		nil: false, errors.New("x"): false, decision.ErrNoNodes: true, fmt.Errorf("x: %w", decision.ErrNoNodes): true, error(&decision.FitError{}): true, fmt.Errorf("x: %w", &decision.FitError{}): true,
	} {
		if got := decision.IsUnschedulable(err); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}

func TestHypotheticalPods(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addNode(schedulertest.TestNode("b"))
		f.pass(time.Second)
		for _, test := range []struct {
			name     string
			supposed HypotheticalPod
			want     string
		}{
			{"one", HypotheticalPod{Pod: *schedulertest.TestPod("p")}, "p"},
			{"one that is reported", HypotheticalPod{Pod: *schedulertest.TestPod("p"), Copies: 1}, "p"},
			{"less than one", HypotheticalPod{Pod: *schedulertest.TestPod("p"), Copies: -3}, "p"},
			{"several", HypotheticalPod{Pod: *schedulertest.TestPod("p"), Copies: 3}, "p-0 p-1 p-2"},
			{"on every node, whatever the copies", HypotheticalPod{Pod: *schedulertest.TestPod("p"), EveryNode: true, Copies: 7}, "p-a p-b"},
		} {
			var names []string
			for _, p := range f.scheduler.expand(&test.supposed) {
				names = append(names, p.Name)
			}
			if got := strings.Join(names, " "); got != test.want {
				t.Errorf("%s: %s, want %s", test.name, got, test.want)
			}
		}
	})
}

// Pods of every node are tied to theirs as DaemonSets tie them: by the field of the name, in every alternative.
func TestHypotheticalPodOfADaemonSet(t *testing.T) {
	byName := []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n"}}}
	for _, test := range []struct {
		name string
		pod  *corev1.Pod
		want []corev1.NodeSelectorTerm
	}{
		{"a pod without affinity", schedulertest.TestPod("p"), []corev1.NodeSelectorTerm{{MatchFields: byName}}},
		{"a pod with affinity to pods", schedulertest.TestPod("p", schedulertest.WithAffinity("z", "a", "b")), []corev1.NodeSelectorTerm{{MatchFields: byName}}},
		{"a pod that prefers nodes", schedulertest.TestPod("p", func(p *corev1.Pod) { schedulertest.AffinityOf(p).NodeAffinity = &corev1.NodeAffinity{} }), []corev1.NodeSelectorTerm{{MatchFields: byName}}},
		{"no alternative", schedulertest.TestPod("p", schedulertest.RequiresNodes()), []corev1.NodeSelectorTerm{{MatchFields: byName}}},
		{"alternatives", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("a", corev1.NodeSelectorOpExists), schedulertest.Expression("b", corev1.NodeSelectorOpExists))), []corev1.NodeSelectorTerm{
			{MatchExpressions: schedulertest.Expression("a", corev1.NodeSelectorOpExists).MatchExpressions, MatchFields: byName}, {MatchExpressions: schedulertest.Expression("b", corev1.NodeSelectorOpExists).MatchExpressions, MatchFields: byName}}},
		{"fields of its own hold too", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("other"))), []corev1.NodeSelectorTerm{{MatchFields: append(schedulertest.Named("other").MatchFields, byName...)}}},
		{"an alternative that matches nothing", schedulertest.TestPod("p", schedulertest.RequiresNodes(corev1.NodeSelectorTerm{})), []corev1.NodeSelectorTerm{{}}},
	} {
		requireNode(test.pod, "n")
		if got := test.pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms; fmt.Sprint(got) != fmt.Sprint(test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// The log tells the last decision about a pod, until as many as it holds have come after it.
func TestLastDecision(t *testing.T) {
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")})
	var log decision.Log
	remember := func(name string, at int64) *decision.Decision {
		d, err := decision.Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod(name)), plugins.DefaultProfile())
		if err != nil {
			t.Fatal(err)
		}
		log.Remember(d, nil, time.Unix(at, 0))
		return d
	}
	if log.Last("p") != nil {
		t.Error("an empty log knows a pod")
	}
	remember("p", 1)
	remember("q", 2)
	second := remember("p", 3)
	if last := log.Last("p"); last == nil || last.Decision != second || last.At.Unix() != 3 {
		t.Errorf("%+v is not the last decision", last)
	}
	if last := log.Last("q"); last == nil || last.At.Unix() != 2 {
		t.Errorf("%+v is not the last decision", last)
	}
	// The last decision about p leaves when as many as the log holds have come after it, and not before.
	for i := range int64(decision.MaxRemembered - 1) {
		remember("other", 4+i)
	}
	if log.Last("p") == nil || log.Last("q") != nil {
		t.Errorf("p is %+v, q is %+v", log.Last("p"), log.Last("q"))
	}
	remember("other", 0)
	if log.Last("p") != nil || log.Last("other") == nil || log.Last("other").At.Unix() != 0 {
		t.Errorf("p is %+v, other is %+v", log.Last("p"), log.Last("other"))
	}
}

// What would happen to pods is what happens: asked about in one go, they go where they go one after another.
func TestWhatIfComesTrue(t *testing.T) {
	const seed = 97
	w := schedulertest.NewRandomObjects(seed)
	withFakeServer(t, nil, func(f *fakeServer) {
		for i := range 6 {
			f.addNode(w.RandomNode(fmt.Sprint("n", i)))
		}
		f.pass(time.Second)
		var pods []*corev1.Pod
		for range 40 {
			pods = append(pods, w.RandomPod())
		}
		state := func() string {
			s := f.scheduler.snapshot
			return fmt.Sprint(s.Requested, s.NonZeroRequested, s.LastPlacement, s.Placements, len(s.PodEntries))
		}
		before := state()
		supposed, err := f.scheduler.WhatIf(t.Context(), pods, false)
		if err != nil || len(supposed) != len(pods) {
			t.Fatalf("seed %d: %d answers, %v", seed, len(supposed), err)
		}
		if after := state(); after != before {
			t.Errorf("seed %d: the question changed\n%s\nto\n%s", seed, before, after)
		}
		s, placed := f.scheduler.snapshot, 0
		for i, pod := range pods {
			info := snapshottest.PodInfo(t, pod)
			d, err := decision.Schedule(s, info, f.scheduler.profiles[pod.Spec.SchedulerName])
			e := supposed[i]
			if e.Namespace != pod.Namespace || e.Name != pod.Name || e.Node != d.Node || e.Feasible != d.Feasible || e.Nodes != d.Nodes || (e.Message == "") != (err == nil) || len(e.Verdicts) != 0 {
				t.Fatalf("seed %d: pod %d went to %q of %d, %v; supposed was %+v", seed, i, d.Node, d.Feasible, err, e)
			}
			if err == nil {
				placed++
				s.Assume(info, d.Node)
			}
		}
		if placed < 5 || placed == len(pods) {
			t.Errorf("seed %d: %d of %d found a place: too few of the other kind to compare", seed, placed, len(pods))
		}
	})
}
