package query

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"skiff/internal/scheduler"
	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
)

func TestReadManifest(t *testing.T) {
	const template = `template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: i}]}}`
	for _, test := range []struct {
		what, text string
		want       []string // origin, copies, every node, owner
		fails      string
	}{
		{what: "a pod", text: `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c}]}}`, want: []string{"Pod default/p 0 false "}},
		{what: "a pod of a namespace", text: `{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: other}}`, want: []string{"Pod other/p 0 false "}},
		{what: "a pod without a name", text: `{apiVersion: v1, kind: Pod, metadata: {generateName: p-}}`, want: []string{"Pod default/p- 0 false "}},
		{what: "JSON", text: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"}}`, want: []string{"Pod default/p 0 false "}},
		{what: "a deployment", text: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {replicas: 3, selector: {matchLabels: {app: x}}, ` + template + `}}`, want: []string{"Deployment default/d 3 false ReplicaSet"}},
		{what: "one by default", text: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {selector: {matchLabels: {app: x}}, ` + template + `}}`, want: []string{"Deployment default/d 1 false ReplicaSet"}},
		{what: "none at all", text: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {replicas: 0, ` + template + `}}`},
		{what: "a replica set", text: `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: d}, spec: {replicas: 2, selector: {matchLabels: {app: x}}, ` + template + `}}`, want: []string{"ReplicaSet default/d 2 false ReplicaSet"}},
		{what: "a stateful set", text: `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: d}, spec: {replicas: 2, selector: {matchLabels: {app: x}}, ` + template + `}}`, want: []string{"StatefulSet default/d 2 false StatefulSet"}},
		{what: "a replication controller", text: `{apiVersion: v1, kind: ReplicationController, metadata: {name: d}, spec: {replicas: 2, selector: {app: x}, ` + template + `}}`, want: []string{"ReplicationController default/d 2 false ReplicationController"}},
		{what: "a daemon set", text: `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: d}, spec: {selector: {matchLabels: {app: x}}, ` + template + `}}`, want: []string{"DaemonSet default/d 1 true "}},
		{what: "a job", text: `{apiVersion: batch/v1, kind: Job, metadata: {name: d}, spec: {parallelism: 4, completions: 3, ` + template + `}}`, want: []string{"Job default/d 3 false "}},
		{what: "a cron job", text: `{apiVersion: batch/v1, kind: CronJob, metadata: {name: d}, spec: {schedule: "* * * * *", jobTemplate: {spec: {` + template + `}}}}`, want: []string{"CronJob default/d 1 false "}},
		{what: "a list", text: "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n- {apiVersion: v1, kind: Service, metadata: {name: s}}\n- {apiVersion: v1, kind: Pod, metadata: {name: b}}\n", want: []string{"Pod default/a 0 false ", "Pod default/b 0 false "}},
		{what: "several documents, one of them empty", text: "---\n# nothing\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n", want: []string{"Pod default/a 0 false "}},
		{what: "another group's pod", text: `{apiVersion: example.com/v1, kind: Pod, metadata: {name: p}}`},
		{what: "not YAML", text: "{", fails: "read manifest"},
		{what: "a broken deployment", text: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {replicas: many}}`, fails: "read apps/v1 Deployment"},
	} {
		t.Run(test.what, func(t *testing.T) {
			workloads, err := ReadManifest(strings.NewReader(test.text), "default")
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("error %v, want %s", err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, w := range workloads {
				owner := ""
				if w.Owner != nil {
					owner = w.Owner.Kind
				}
				got = append(got, fmt.Sprintf("%s %d %t %s", w.Origin, w.Copies, w.EveryNode, owner))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestDaemonsTolerate(t *testing.T) {
	read := func(spec string) []string {
		workloads, err := ReadManifest(strings.NewReader(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: d}, spec: {template: {spec: {`+spec+`containers: [{name: c}]}}}}`), "default")
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, toleration := range workloads[0].Pod.Spec.Tolerations {
			keys = append(keys, toleration.Key)
		}
		return keys
	}
	if keys := read(""); len(keys) != 6 || slices.Contains(keys, corev1.TaintNodeNetworkUnavailable) || !slices.Contains(keys, corev1.TaintNodeUnschedulable) {
		t.Errorf("tolerates %v", keys)
	}
	if keys := read("hostNetwork: true, "); !slices.Contains(keys, corev1.TaintNodeNetworkUnavailable) {
		t.Errorf("tolerates %v", keys)
	}
}

// server answers as an API server with a scheduler would, and writes down what it was asked.
type server struct {
	*httptest.Server
	asked  []string
	bodies []string
	refuse func(path string) error
}

func newServer(t *testing.T) *server {
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		s.asked, s.bodies = append(s.asked, r.Method+" "+r.URL.RequestURI()), append(s.bodies, string(body))
		var answer any = decision.Explanation{Name: "p", Node: "n"}
		switch {
		case s.refuse != nil && s.refuse(r.URL.Path) != nil:
			status := s.refuse(r.URL.Path).(apierrors.APIStatus).Status()
			status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(int(status.Code))
			answer = status
		case strings.HasPrefix(r.URL.Path, "/api/v1/"):
			var pod corev1.Pod
			if err := json.Unmarshal(body, &pod); err != nil || pod.Name != "" || pod.GenerateName == "" {
				t.Errorf("pod %s: %v", body, err)
			}
			pod.Name, pod.Spec.SchedulerName = pod.GenerateName+"12345", "default-scheduler"
			answer = pod
		case strings.HasSuffix(r.URL.Path, "/whatifs"):
			answer = scheduler.WhatIf{Results: []decision.Explanation{{Name: "p", Node: "n"}}}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestClient(t *testing.T) {
	s := newServer(t)
	c, err := New(&rest.Config{Host: s.URL}, SchedulerAddress{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if e, err := c.Why(ctx, "default", "p"); err != nil || e.Node != "n" {
		t.Errorf("%+v, %v", e, err)
	}
	workload := func(namespace string) Workload {
		w := Workload{Origin: "Pod " + namespace + "/p", HypotheticalPod: scheduler.HypotheticalPod{Copies: 2}}
		w.Pod.Namespace, w.Pod.Name = namespace, "p"
		return w
	}
	if results, err := c.WhatIf(ctx, []Workload{workload("default")}, true); err != nil || len(results) != 1 {
		t.Errorf("%+v, %v", results, err)
	}
	if _, err := c.WhatIf(ctx, []Workload{workload("default"), workload("other")}, false); err != nil {
		t.Error(err)
	}
	want := []string{
		"GET /apis/scheduling.skiff.io/v1/namespaces/default/pods/p/why",
		"POST /api/v1/namespaces/default/pods?dryRun=All", "POST /apis/scheduling.skiff.io/v1/namespaces/default/whatifs",
		"POST /api/v1/namespaces/default/pods?dryRun=All", "POST /api/v1/namespaces/other/pods?dryRun=All", "POST /apis/scheduling.skiff.io/v1/whatifs",
	}
	if !slices.Equal(s.asked, want) {
		t.Errorf("asked\n%s\nwant\n%s", strings.Join(s.asked, "\n"), strings.Join(want, "\n"))
	}
	// The question has the pods as the API server would make them, under their own names.
	var question scheduler.WhatIf
	if err := json.Unmarshal([]byte(s.bodies[2]), &question); err != nil || !question.Verdicts || question.Pods[0].Copies != 2 ||
		question.Pods[0].Pod.Name != "p" || question.Pods[0].Pod.Spec.SchedulerName != "default-scheduler" {
		t.Errorf("asked %s, %v", s.bodies[2], err)
	}
}

func TestClientIsRefused(t *testing.T) {
	s := newServer(t)
	c, err := New(&rest.Config{Host: s.URL}, SchedulerAddress{})
	if err != nil {
		t.Fatal(err)
	}
	workload := Workload{Origin: "Deployment default/d"}
	workload.Pod.Namespace, workload.Pod.Name = "default", "d"
	s.refuse = func(path string) error {
		if strings.HasPrefix(path, "/api/v1/") {
			return apierrors.NewForbidden(corev1.Resource("pods"), "", fmt.Errorf("exceeded quota"))
		}
		return apierrors.NewNotFound(corev1.Resource("pods"), "p")
	}
	if _, err := c.Why(t.Context(), "default", "p"); err == nil || !strings.Contains(err.Error(), `pods "p" not found`) {
		t.Errorf("told %v", err)
	}
	if _, err := c.WhatIf(t.Context(), []Workload{workload}, false); err == nil || !strings.Contains(err.Error(), "Deployment default/d: the API server would not take the pod") || !strings.Contains(err.Error(), "exceeded quota") {
		t.Errorf("told %v", err)
	}
}

func TestClientOfSeparateScheduler(t *testing.T) {
	api, separate := newServer(t), newServer(t)
	c, err := New(&rest.Config{Host: api.URL, BearerToken: "secret"}, SchedulerAddress{URL: separate.URL})
	if err != nil {
		t.Fatal(err)
	}
	workload := Workload{}
	workload.Pod.Namespace, workload.Pod.Name = "default", "d"
	if _, err := c.WhatIf(t.Context(), []Workload{workload}, false); err != nil {
		t.Fatal(err)
	}
	if len(api.asked) != 1 || len(separate.asked) != 1 || !strings.Contains(api.asked[0], "dryRun=All") || !strings.HasSuffix(separate.asked[0], "/whatifs") {
		t.Errorf("the API server was asked %v, the scheduler %v", api.asked, separate.asked)
	}
	if _, err := New(&rest.Config{Host: api.URL}, SchedulerAddress{URL: separate.URL, CAFile: "/does/not/exist"}); err == nil {
		t.Error("an unreadable CA file was accepted")
	}
}

func TestPrint(t *testing.T) {
	decided := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	refused := &plugins.Refusal{Plugin: "TaintToleration", Reasons: []string{"node(s) had untolerated taint(s)"}}
	for _, test := range []struct {
		what string
		e    decision.Explanation
		want string
	}{
		{"placed", decision.Explanation{Namespace: "default", Name: "p", Node: "b", Decided: &decided, Feasible: 2, Nodes: 3, Verdicts: []decision.Verdict{
			{Node: "b", Total: 12, Scores: map[string]int64{"X": 10, "Y": 2}}, {Node: "a", Total: 5, Scores: map[string]int64{"X": 5}}, {Node: "c", Refusal: refused},
		}}, `Pod default/p goes to node b
Decided 2026-01-02T03:04:05Z; of 3 nodes 2 could take it.

NODE  VERDICT  TOTAL  X   Y
b     chosen   12     10  2
a     fits     5      5   0
c     refused by TaintToleration: node(s) had untolerated taint(s)
`},
		{"waiting", decision.Explanation{Namespace: "default", Name: "p", Message: "0/1 nodes are available.", Nodes: 1, Verdicts: []decision.Verdict{{Node: "c", Refusal: refused}},
			Changes:    []decision.Suggestion{{Node: "c", Steps: []string{"do this", "do that"}}, {Node: "d", Others: 1, Steps: []string{"x"}}, {Node: "e", Others: 7, Steps: []string{"y"}}, {Steps: []string{"z"}}},
			Preemption: &decision.PreemptionPreview{Node: "c", Victims: 1}}, `Pod default/p has no node: 0/1 nodes are available.
The decision's record is gone; this is how it would be decided now: of 1 nodes 0 could take it.

NODE  VERDICT  TOTAL
c     refused by TaintToleration: node(s) had untolerated taint(s)

It would fit on node c if 1 pod of lower priority were preempted.

The smallest changes that would let it run:
  on node c: do this; and do that
  on node d (likewise on 1 other node): x
  on node e (likewise on 7 other nodes): y
  z
`},
	} {
		var text strings.Builder
		if err := PrintWhy(&text, &test.e); err != nil || text.String() != test.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", test.what, err, text.String(), test.want)
		}
	}
	var text strings.Builder
	err := PrintWhatIf(&text, []decision.Explanation{{Namespace: "default", Name: "p-0", Node: "n", Feasible: 1, Nodes: 2}, {Namespace: "default", Name: "p-1", Message: "none", Nodes: 2}})
	const want = `NAMESPACE  POD  NODE    COULD TAKE IT
default    p-0  n       1 of 2
default    p-1  <none>  0 of 2

1 of 2 pods would have a node.

Pod default/p-1 has no node: none
`
	if err != nil || text.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, text.String(), want)
	}
}
