package scheduler

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
)

// request asks a scheduler over HTTP.
func (f *fakeServer) request(method, path, body string) (int, string) {
	w := httptest.NewRecorder()
	f.scheduler.Handler().ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	data, err := io.ReadAll(w.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return w.Code, string(data)
}

func supposing(t testing.TB, all ...HypotheticalPod) string {
	t.Helper()
	data, err := json.Marshal(WhatIf{Pods: all})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestHandler(t *testing.T) {
	const pods = "/apis/scheduling.skiff.io/v1/namespaces/default/pods/"
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addNode(schedulertest.TestNode("b", schedulertest.Cordoned))
		f.addPod(schedulertest.TestPod("runs", schedulertest.RequestingCPU("1")))
		f.addPod(schedulertest.TestPod("waits", schedulertest.RequestingCPU("9")))
		f.addPod(schedulertest.TestPod("theirs", func(p *corev1.Pod) { p.Spec.SchedulerName = "another" }))
		f.addPod(schedulertest.TestPod("gated", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }))
		f.pass(time.Second)
		for _, test := range []struct {
			what, method, path, body string
			code                     int
			contains                 string
		}{
			{"a pod with a node", "GET", pods + "runs/why", "", 200, `"kind":"Explanation","apiVersion":"scheduling.skiff.io/v1","namespace":"default","name":"runs","node":"a","decided":`},
			{"a slash too many", "GET", pods + "runs/why/", "", 200, `"node":"a"`},
			{"a pod without", "GET", pods + "waits/why", "", 200, `"message":"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable.`},
			{"the refusals of all nodes", "GET", pods + "waits/why", "", 200, `{"node":"b","refusal":{"plugin":"NodeUnschedulable","reasons":["node(s) were unschedulable"],"unresolvable":true},"total":0}`},
			{"a gated pod", "GET", pods + "gated/why", "", 200, `"changes":[{"steps":["remove the pod's scheduling gates"]}]`},
			{"another scheduler's pod", "GET", pods + "theirs/why", "", 400, `another scheduler looks after the pod: its schedulerName is \"another\"`},
			{"no such pod", "GET", pods + "nobody/why", "", 404, `pods \"nobody\" not found`},
			{"not a question", "GET", pods + "runs", "", 404, "could not find the requested resource"},
			{"more than a question", "GET", pods + "runs/why/not", "", 404, "could not find the requested resource"},
			{"nothing between slashes", "GET", "/apis/scheduling.skiff.io/v1/namespaces//pods/runs/why", "", 404, "could not find"},
			{"another version", "GET", "/apis/scheduling.skiff.io/v2/namespaces/default/pods/runs/why", "", 404, "could not find"},
			{"no writing", "POST", pods + "runs/why", "", 405, `"reason":"MethodNotAllowed"`},
			{"discovery", "GET", "/apis/scheduling.skiff.io/v1", "", 200, `"name":"pods/why"`},
			{"what if", "POST", "/apis/scheduling.skiff.io/v1/namespaces/default/whatifs", supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x", schedulertest.RequestingCPU("2")), Copies: 2}), 200, `"name":"x-0","node":"a"`},
			{"what if in all namespaces", "POST", "/apis/scheduling.skiff.io/v1/whatifs", supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x", schedulertest.Namespace("other"))}), 200, `"namespace":"other","name":"x","node":"a"`},
			{"a pod of another namespace", "POST", "/apis/scheduling.skiff.io/v1/namespaces/default/whatifs", supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x", schedulertest.Namespace("other"))}), 400, `namespace \"other\" is not that of the request`},
			{"a pod of no namespace", "POST", "/apis/scheduling.skiff.io/v1/whatifs", supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x", schedulertest.Namespace(""))}), 400, "is not that of the request"},
			{"a pod of nobody's profile", "POST", "/apis/scheduling.skiff.io/v1/whatifs", supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x", func(p *corev1.Pod) { p.Spec.SchedulerName = "another" })}), 400, "another scheduler"},
			{"too many pods", "POST", "/apis/scheduling.skiff.io/v1/whatifs", supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x"), Copies: maxQueryPods + 1}), 413, "at most 20000 pods"},
			{"more pods than can be counted", "POST", "/apis/scheduling.skiff.io/v1/whatifs", supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x")}, HypotheticalPod{Pod: *schedulertest.TestPod("y"), Copies: math.MaxInt}), 413, "at most 20000 pods"},
			{"fewer than no pods are one", "POST", "/apis/scheduling.skiff.io/v1/whatifs", supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x"), Copies: -7}), 200, `"name":"x","node":"a"`},
			{"one copy has no number", "POST", "/apis/scheduling.skiff.io/v1/whatifs", supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x"), Copies: 1}), 200, `"name":"x","node":"a"`},
			{"the second pod's namespace", "POST", "/apis/scheduling.skiff.io/v1/namespaces/default/whatifs", supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x")}, HypotheticalPod{Pod: *schedulertest.TestPod("y", schedulertest.Namespace("other"))}), 400, `pods[1]: namespace \"other\"`},
			{"a bad selector", "POST", "/apis/scheduling.skiff.io/v1/whatifs", supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x"), Owner: &HypotheticalOwner{Selector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "?"}}}}}), 400, "pods[0].owner.selector"},
			{"not JSON", "POST", "/apis/scheduling.skiff.io/v1/whatifs", "{", 400, "decode request"},
			{"too long", "POST", "/apis/scheduling.skiff.io/v1/whatifs", `{"x":"` + strings.Repeat("x", maxQueryBytes), 400, "decode request"},
			{"reading what is only written", "GET", "/apis/scheduling.skiff.io/v1/whatifs", "", 405, "MethodNotAllowed"},
		} {
			if code, body := f.request(test.method, test.path, test.body); code != test.code || !strings.Contains(body, test.contains) {
				t.Errorf("%s: %d %s\nwant %d with %s", test.what, code, body, test.code, test.contains)
			}
		}
	})
}

func TestHandlerBeforeTheFirstLists(t *testing.T) {
	f := newFakeServer(t, nil)
	f.scheduler.lists.informers = []syncedInformer{{name: "pods", synced: func() bool { return false }}}
	for _, test := range [][2]string{{http.MethodGet, "namespaces/x/pods/y/why"}, {http.MethodPost, "whatifs"}} {
		if code, body := f.request(test[0], Root+"v1/"+test[1], ""); code != http.StatusServiceUnavailable {
			t.Errorf("%v: %d %s", test, code, body)
		}
	}
	if f.scheduler.Synced(t.Context()) == nil {
		t.Error("it says that it has seen everything")
	}
	f.scheduler.lists.informers = nil
	if err := f.scheduler.Synced(t.Context()); err != nil {
		t.Error(err)
	}
}

// What is only supposed leaves no trace: the next decision is the same as if nobody had asked.
func TestWhatIfLeavesNoTrace(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		for i := range 6 {
			f.addNode(schedulertest.TestNode(fmt.Sprint("n", i), schedulertest.Zone(fmt.Sprint("z", i%2))))
		}
		for i := range 9 {
			f.addPod(schedulertest.TestPod(fmt.Sprint("p", i), schedulertest.RequestingCPU("300m"), schedulertest.Labelled("app", "web")))
		}
		f.pass(time.Second)
		pods := []*corev1.Pod{
			schedulertest.TestPod("a", schedulertest.RequestingCPU("1"), schedulertest.Labelled("app", "web"), schedulertest.WithAntiAffinity(corev1.LabelHostname, "app", "web")),
			schedulertest.TestPod("b", schedulertest.RequestingCPU("2"), schedulertest.Spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "app=web")), schedulertest.TestPod("c", schedulertest.RequestingCPU("50")),
		}
		state := func() string {
			f.scheduler.mu.Lock()
			defer f.scheduler.mu.Unlock()
			s := f.scheduler.snapshot
			return fmt.Sprint(s.Requested, s.NonZeroRequested, s.LastPlacement, s.Placements, len(s.PodEntries), s.ClaimUsers)
		}
		before := state()
		first, err := f.scheduler.WhatIf(t.Context(), pods, true)
		if err != nil {
			t.Fatal(err)
		}
		if state() != before {
			t.Errorf("asking changed the columns:\n%s\n%s", before, state())
		}
		second, err := f.scheduler.WhatIf(t.Context(), pods, true)
		one, _ := json.Marshal(first)
		two, _ := json.Marshal(second)
		if err != nil || string(one) != string(two) {
			t.Errorf("two queries, responses\n%+v\nand\n%+v, %v", first, second, err)
		}
		if len(first[0].Verdicts) != 6 || first[2].Node != "" || len(first[2].Changes) == 0 {
			t.Errorf("%+v", first)
		}
	})
}

// Pods of one controller are spread by default, also when the controller is only supposed.
func TestWhatIfOwned(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourceCPU, "64")))
		f.addNode(schedulertest.TestNode("b", schedulertest.NodeHas(corev1.ResourceCPU, "8")))
		f.pass(time.Second)
		question := HypotheticalPod{Pod: *schedulertest.TestPod("x", schedulertest.Labelled("app", "web"), schedulertest.RequestingCPU("100m")), Copies: 4}
		on := func(owner *HypotheticalOwner) map[string]int {
			question.Owner = owner
			code, body := f.request(http.MethodPost, Root+"v1/whatifs", supposing(t, question))
			var answer WhatIf
			if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusOK {
				t.Fatal(code, body, err)
			}
			nodes := map[string]int{}
			for _, r := range answer.Results {
				nodes[r.Node]++
			}
			return nodes
		}
		if withoutOwner := on(nil); withoutOwner["a"] != 4 {
			t.Errorf("without an owner they go to %v, want all on the large node", withoutOwner)
		}
		owner := &HypotheticalOwner{APIVersion: "apps/v1", Kind: "ReplicaSet", Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}
		if spread := on(owner); spread["a"] != 2 || spread["b"] != 2 {
			t.Errorf("with an owner they go to %v, want two on each", spread)
		}
		if len(f.scheduler.snapshot.Owners.Controllers) != 0 {
			t.Error("the supposed owner is still there")
		}
	})
}

func TestWhatIfOnEveryNode(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addNode(schedulertest.TestNode("b", schedulertest.NodeLabel("disk", "ssd")))
		f.addNode(schedulertest.TestNode("c", schedulertest.NodeLabel("disk", "ssd"), schedulertest.NodeHas(corev1.ResourceCPU, "100m")))
		f.pass(time.Second)
		pod := schedulertest.TestPod("d", schedulertest.RequestingCPU("1"), schedulertest.RequiresNodes(schedulertest.Expression("disk", corev1.NodeSelectorOpIn, "ssd")))
		code, body := f.request(http.MethodPost, Root+"v1/whatifs", supposing(t, HypotheticalPod{Pod: *pod, EveryNode: true}))
		var answer WhatIf
		if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusOK {
			t.Fatal(code, body, err)
		}
		got := map[string]string{}
		for _, r := range answer.Results {
			got[r.Name] = r.Node
		}
		if want := (map[string]string{"d-a": "", "d-b": "b", "d-c": ""}); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// Every answer is JSON with its kind, and every refusal a Status that says so.
func TestResponsesAreAPIObjects(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addPod(schedulertest.TestPod("p"))
		f.pass(time.Second)
		question := supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x")})
		for _, test := range []struct {
			name, method, path, body string
			code                     int
			kind, version, reason    string
		}{
			{"discovery", "GET", "/apis/scheduling.skiff.io/v1", "", 200, "APIResourceList", "v1", ""},
			{"discovery with a slash", "GET", "/apis/scheduling.skiff.io/v1/", "", 200, "APIResourceList", "v1", ""},
			{"why", "GET", Root + "v1/namespaces/default/pods/p/why", "", 200, "Explanation", "scheduling.skiff.io/v1", ""},
			{"what if", "POST", Root + "v1/whatifs", question, 200, "WhatIf", "scheduling.skiff.io/v1", ""},
			{"nothing supposed", "POST", Root + "v1/whatifs", `{"pods":[]}`, 200, "WhatIf", "scheduling.skiff.io/v1", ""},
			{"discovery is only read", "POST", "/apis/scheduling.skiff.io/v1", "", 404, "Status", "v1", "NotFound"},
			{"the group alone", "GET", "/apis/scheduling.skiff.io", "", 404, "Status", "v1", "NotFound"},
			{"another group", "GET", "/apis/other.skiff.io/v1/whatifs", "", 404, "Status", "v1", "NotFound"},
			{"no pod of that name", "GET", Root + "v1/namespaces/default/pods/q/why", "", 404, "Status", "v1", "NotFound"},
			{"pods without a namespace", "GET", Root + "v1/pods/p/why", "", 404, "Status", "v1", "NotFound"},
			{"a pod's other half", "GET", Root + "v1/namespaces/default/pods/p/whynot", "", 404, "Status", "v1", "NotFound"},
			{"other things than pods", "GET", Root + "v1/namespaces/default/nodes/p/why", "", 404, "Status", "v1", "NotFound"},
			{"why is not deleted", "DELETE", Root + "v1/namespaces/default/pods/p/why", "", 405, "Status", "v1", "MethodNotAllowed"},
			{"what if is not put", "PUT", Root + "v1/namespaces/default/whatifs", question, 405, "Status", "v1", "MethodNotAllowed"},
			{"no question", "POST", Root + "v1/whatifs", "", 400, "Status", "v1", "BadRequest"},
			{"a question that is a list", "POST", Root + "v1/whatifs", "[]", 400, "Status", "v1", "BadRequest"},
			{"a pod that cannot be read", "POST", Root + "v1/whatifs", `{"pods":[{"pod":{"metadata":{"namespace":7}}}]}`, 400, "Status", "v1", "BadRequest"},
			{"too many at once, together", "POST", Root + "v1/whatifs", supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x"), Copies: maxQueryPods}, HypotheticalPod{Pod: *schedulertest.TestPod("y")}), 413, "Status", "v1", "RequestEntityTooLarge"},
		} {
			code, body := f.request(test.method, test.path, test.body)
			var is struct {
				metav1.TypeMeta
				Reason string
				Code   int
			}
			if err := json.Unmarshal([]byte(body), &is); err != nil || code != test.code || is.Kind != test.kind || is.APIVersion != test.version || is.Reason != test.reason || test.reason != "" && is.Code != test.code {
				t.Errorf("%s: %d %s, %v; want %d %s %s %s", test.name, code, body, err, test.code, test.version, test.kind, test.reason)
			}
		}
	})
}

// As many as may be asked about at once are.
func TestWhatIfOfMaxQueryPods(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourcePods, "100")))
		f.pass(time.Second)
		code, body := f.request(http.MethodPost, Root+"v1/namespaces/default/whatifs", supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x", schedulertest.Namespace("")), Copies: 101}))
		var answer WhatIf
		if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusOK || len(answer.Results) != 101 {
			t.Fatal(code, len(answer.Results), err)
		}
		for i, e := range answer.Results {
			if want := i < 100; (e.Node == "a") != want || e.Namespace != "default" || e.Name != fmt.Sprint("x-", i) || len(e.Verdicts) != 0 {
				t.Fatalf("%d: %s/%s on %q", i, e.Namespace, e.Name, e.Node)
			}
		}
		if last := answer.Results[100]; !strings.HasPrefix(last.Message, "0/1 nodes are available: 1 Too many pods.") || len(last.Changes) != 1 {
			t.Errorf("%s, %v", last.Message, last.Changes)
		}
	})
}

// Owners that are supposed are apart from each other and from those that exist.
func TestHypotheticalOwners(t *testing.T) {
	x := HypotheticalPod{Pod: *schedulertest.TestPod("p", schedulertest.Namespace("n")), Owner: &HypotheticalOwner{APIVersion: "apps/v1", Kind: "ReplicaSet", Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}}}
	first, err := x.owner(0)
	if err != nil {
		t.Fatal(err)
	}
	second, err := x.owner(1)
	if err != nil || first.key == second.key || first.key != (snapshot.OwnerKey{APIVersion: "apps/v1", Kind: "ReplicaSet", Namespace: "n", Name: "what-if/0"}) || first.selector.String() != "app=x" {
		t.Errorf("%+v, %+v, %v", first, second, err)
	}
	if r := x.Pod.OwnerReferences; len(r) != 1 || r[0].Name != "what-if/1" || r[0].Kind != "ReplicaSet" || r[0].Controller == nil || !*r[0].Controller {
		t.Errorf("%+v", r)
	}
}

// What a DaemonSet's pod asks of its node holds beside being kept to one.
func TestRequireNode(t *testing.T) {
	ssd, hdd := schedulertest.Expression("disk", corev1.NodeSelectorOpIn, "ssd"), schedulertest.Expression("disk", corev1.NodeSelectorOpIn, "hdd")
	both := func(a, b corev1.NodeSelectorTerm) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: append(a.MatchExpressions, b.MatchExpressions...), MatchFields: append(a.MatchFields, b.MatchFields...)}
	}
	other := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"b"}}}}
	for _, test := range []struct {
		name  string
		terms []corev1.NodeSelectorTerm
		want  string // the nodes, of a without a disk, b with a fast one and c with a slow one
	}{
		{"nothing is requested", nil, "a b c"},
		{"a disk", []corev1.NodeSelectorTerm{ssd}, "b"},
		{"one of two disks", []corev1.NodeSelectorTerm{ssd, hdd}, "b c"},
		{"two disks at once", []corev1.NodeSelectorTerm{both(ssd, hdd)}, ""},
		{"a node by its name", []corev1.NodeSelectorTerm{schedulertest.Named("b")}, "b"},
		{"two nodes by their names", []corev1.NodeSelectorTerm{schedulertest.Named("b"), schedulertest.Named("a")}, "a b"},
		{"a node that has no such disk", []corev1.NodeSelectorTerm{both(hdd, schedulertest.Named("b"))}, ""},
		{"any node but one", []corev1.NodeSelectorTerm{other}, "a c"},
		{"a term that matches nothing", []corev1.NodeSelectorTerm{{}}, ""},
		{"a term that matches nothing, and one that does", []corev1.NodeSelectorTerm{{}, hdd}, "c"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFakeServer(t, nil)
			for _, n := range []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b", schedulertest.NodeLabel("disk", "ssd")), schedulertest.TestNode("c", schedulertest.NodeLabel("disk", "hdd"))} {
				f.scheduler.nodeAdded(n)
			}
			f.scheduler.podAdded(schedulertest.TestPod("lost", schedulertest.OnNode("ghost"))) // a node that only a pod speaks of gets none
			pod := schedulertest.TestPod("d", schedulertest.WithPreferredAffinity(1, "zone", "x", "y"))
			if test.terms != nil {
				schedulertest.RequiresNodes(test.terms...)(pod)
			}
			before := pod.DeepCopy()
			pods := f.scheduler.expand(&HypotheticalPod{Pod: *pod, EveryNode: true, Copies: 5})
			results, err := f.scheduler.WhatIf(t.Context(), pods, false)
			if err != nil || len(results) != 3 {
				t.Fatal(len(results), err)
			}
			var nodes []string
			for i, r := range results {
				if r.Name != "d-"+string("abc"[i]) || r.Node != "" && r.Node != string("abc"[i]) {
					t.Errorf("%s on %q", r.Name, r.Node)
				}
				if r.Node != "" {
					nodes = append(nodes, r.Node)
				}
				if !equality.Semantic.DeepEqual(pods[i].Spec.Affinity.PodAffinity, before.Spec.Affinity.PodAffinity) {
					t.Errorf("%s has lost its other affinity", r.Name)
				}
			}
			if got := strings.Join(nodes, " "); got != test.want {
				t.Errorf("on %q, want %q", got, test.want)
			}
			if !equality.Semantic.DeepEqual(pod, before) {
				t.Error("the pod of the query is changed")
			}
		})
	}
}

// An answer is JSON whatever it says, and tells of every node only those who ask.
func TestWhatIfVerdicts(t *testing.T) {
	f := newFakeServer(t, nil)
	f.scheduler.nodeAdded(schedulertest.TestNode("a"))
	f.scheduler.nodeAdded(schedulertest.TestNode("b", schedulertest.Cordoned))
	for _, test := range []struct {
		question string
		verdicts [][]string // by pod, the nodes with verdicts
	}{
		{`{"pods":[]}`, nil},
		{`{"pods":[{"pod":%[1]s}]}`, [][]string{nil}},
		{`{"pods":[{"pod":%[1]s}],"verdicts":false}`, [][]string{nil}},
		{`{"pods":[{"pod":%[1]s}],"verdicts":true}`, [][]string{{"a", "b"}}},
		{`{"pods":[{"pod":%[1]s,"copies":2},{"pod":%[1]s,"everyNode":true}],"verdicts":true}`, [][]string{{"a", "b"}, {"a", "b"}, {"a", "b"}, {"a", "b"}}},
		{`{"pods":[{"pod":%[1]s}],"verdicts":true,"results":[{"name":"mine"}]}`, [][]string{{"a", "b"}}},
	} {
		question := strings.ReplaceAll(test.question, "%[1]s", `{"metadata":{"name":"x","namespace":"default"},"spec":{"schedulerName":"default-scheduler","containers":[{"name":"c"}]}}`)
		w := httptest.NewRecorder()
		f.scheduler.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, Root+"v1/whatifs", strings.NewReader(question)))
		var answer WhatIf
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" || len(answer.Results) != len(test.verdicts) || len(answer.Pods) != 0 {
			t.Fatalf("%s: %d %v %s, %v", test.question, w.Code, w.Header(), w.Body, err)
		}
		for i, r := range answer.Results {
			var nodes []string
			for _, v := range r.Verdicts {
				nodes = append(nodes, v.Node)
			}
			if slices.Sort(nodes); !slices.Equal(nodes, test.verdicts[i]) {
				t.Errorf("%s: pod %d has verdicts of %v", test.question, i, nodes)
			}
		}
	}
}

// Of all paths made of the API's own words only those of the API are served, depending on the method.
func TestPathsOfTheAPI(t *testing.T) {
	f := newFakeServer(t, nil)
	f.scheduler.nodeAdded(schedulertest.TestNode("a"))
	want := map[string]string{ // the method that is answered, by path
		"": http.MethodGet, "whatifs": http.MethodPost, "namespaces/pods/whatifs": http.MethodPost, "namespaces/why/whatifs": http.MethodPost,
		"namespaces/whatifs/whatifs": http.MethodPost, "namespaces/namespaces/whatifs": http.MethodPost,
	}
	absent := map[string]string{} // what is said of a pod that is not there
	words := []string{"namespaces", "pods", "why", "whatifs"}
	for _, space := range words {
		for _, name := range words {
			path := "namespaces/" + space + "/pods/" + name + "/why"
			want[path], absent[path] = http.MethodGet, fmt.Sprintf(`pods \"%s\" not found`, name)
		}
	}
	paths, last := []string{""}, []string{""}
	for range 5 {
		var longer []string
		for _, path := range last {
			for _, word := range words {
				longer = append(longer, strings.TrimPrefix(path+"/"+word, "/"))
			}
		}
		paths, last = append(paths, longer...), longer
	}
	for _, path := range paths {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
			code, body := f.request(method, strings.TrimSuffix(Root+"v1/"+path, "/"), `{"pods":[]}`)
			expect, text := http.StatusNotFound, "the server could not find the requested resource"
			switch {
			case want[path] == method && absent[path] != "":
				text = absent[path]
			case want[path] == method:
				expect, text = http.StatusOK, ""
			case want[path] != "" && path != "":
				expect, text = http.StatusMethodNotAllowed, method
			}
			if code != expect || !strings.Contains(body, text) {
				t.Errorf("%s %q: %d %s, want %d", method, path, code, body, expect)
			}
		}
	}
}
