package query

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// read is what a manifest would have: origin, copies, whether on every node, owner.
func read(t testing.TB, text string) (lines []string, workloads []Workload) {
	t.Helper()
	workloads, err := ReadManifest(strings.NewReader(text), "default")
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	for _, w := range workloads {
		owner := ""
		if w.Owner != nil {
			owner = w.Owner.APIVersion + " " + w.Owner.Kind + " " + metav1.FormatLabelSelector(&w.Owner.Selector)
		}
		lines = append(lines, fmt.Sprintf("%s %d %t %s", w.Origin, w.Copies, w.EveryNode, owner))
	}
	return lines, workloads
}

// How many pods a controller would have at once, as its controller reckons.
func TestHowManyPods(t *testing.T) {
	const template = "template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c}]}}"
	object := func(version, kind, spec string) string {
		return "{apiVersion: " + version + ", kind: " + kind + ", metadata: {name: d, namespace: ns}, spec: {" + spec + template + "}}"
	}
	cron := func(spec, job string) string {
		return "{apiVersion: batch/v1, kind: CronJob, metadata: {name: d, namespace: ns}, spec: {" + spec + "jobTemplate: {spec: {" + job + template + "}}}}"
	}
	for _, test := range []struct{ rule, text, want string }{
		{"no replicas are one", object("apps/v1", "ReplicaSet", ""), "ReplicaSet ns/d 1 false "},
		{"one", object("apps/v1", "ReplicaSet", "replicas: 1, "), "ReplicaSet ns/d 1 false "},
		{"many", object("apps/v1", "ReplicaSet", "replicas: 100, "), "ReplicaSet ns/d 100 false "},
		{"none", object("apps/v1", "ReplicaSet", "replicas: 0, "), ""},
		{"less than none", object("apps/v1", "Deployment", "replicas: -1, "), ""},
		{"a selector makes the pods somebody's", object("apps/v1", "Deployment", "selector: {matchLabels: {app: x}}, "), "Deployment ns/d 1 false apps/v1 ReplicaSet app=x"},
		{"a selector with expressions", object("apps/v1", "StatefulSet", "selector: {matchExpressions: [{key: app, operator: In, values: [x, z]}]}, "), "StatefulSet ns/d 1 false apps/v1 StatefulSet app in (x,z)"},
		{"a replication controller's selector", object("v1", "ReplicationController", "replicas: 2, selector: {app: x}, "), "ReplicationController ns/d 2 false v1 ReplicationController app=x"},
		{"without one it is its template's labels", object("v1", "ReplicationController", "replicas: 2, "), "ReplicationController ns/d 2 false v1 ReplicationController app=x"},
		{"a daemon set has no replicas", object("apps/v1", "DaemonSet", "selector: {matchLabels: {app: x}}, "), "DaemonSet ns/d 1 true "},
		{"a job has one", object("batch/v1", "Job", ""), "Job ns/d 1 false "},
		{"a job has as many as work at once", object("batch/v1", "Job", "parallelism: 5, "), "Job ns/d 5 false "},
		{"but no more than are to complete", object("batch/v1", "Job", "parallelism: 5, completions: 3, "), "Job ns/d 3 false "},
		{"completions alone come one after another", object("batch/v1", "Job", "completions: 3, "), "Job ns/d 1 false "},
		{"a job that works on nothing", object("batch/v1", "Job", "parallelism: 0, completions: 3, "), ""},
		{"a job that is done", object("batch/v1", "Job", "completions: 0, "), ""},
		{"a job that is suspended", object("batch/v1", "Job", "suspend: true, "), ""},
		{"a job that is not", object("batch/v1", "Job", "suspend: false, "), "Job ns/d 1 false "},
		{"a cron job's next job", cron("", "parallelism: 2, "), "CronJob ns/d 2 false "},
		{"a cron job that is suspended", cron("suspend: true, ", ""), ""},
		{"a cron job whose jobs are suspended", cron("", "suspend: true, "), ""},
		{"another version is another kind", object("apps/v1beta1", "Deployment", ""), ""},
		{"a replication controller without a template", "{apiVersion: v1, kind: ReplicationController, metadata: {name: d}, spec: {replicas: 2}}", ""},
		{"a template is no pod", "{apiVersion: v1, kind: PodTemplate, metadata: {name: d}, template: {spec: {}}}", ""},
		{"nothing", "", ""}, {"only a comment", "# nothing", ""}, {"null", "null", ""},
	} {
		t.Run(test.rule, func(t *testing.T) {
			lines, _ := read(t, test.text)
			if got := strings.Join(lines, "\n"); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

// The pods of a controller have the template's labels, annotations and spec, under the controller's name and namespace.
func TestPodsOfATemplate(t *testing.T) {
	_, workloads := read(t, `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {of: deployment}, annotations: {of: deployment}}
spec:
  template:
    metadata: {name: ignored, namespace: ignored, labels: {app: x}, annotations: {note: why}}
    spec: {nodeSelector: {disk: ssd}, priorityClassName: high, containers: [{name: c, resources: {requests: {cpu: 100m}}}]}
`)
	pod := workloads[0].Pod
	cpu := pod.Spec.Containers[0].Resources.Requests.Cpu()
	if pod.Name != "web" || pod.Namespace != "default" || !reflect.DeepEqual(pod.Labels, map[string]string{"app": "x"}) || !reflect.DeepEqual(pod.Annotations, map[string]string{"note": "why"}) ||
		pod.Spec.NodeSelector["disk"] != "ssd" || pod.Spec.PriorityClassName != "high" || cpu.MilliValue() != 100 {
		t.Errorf("%+v", pod)
	}
}

// Lists are read to their ends, within one another too, and in whatever form they come.
func TestManifestsOfManyObjects(t *testing.T) {
	pod := func(name string) string { return "{apiVersion: v1, kind: Pod, metadata: {name: " + name + "}}" }
	for _, test := range []struct {
		rule, text string
		want       []string
	}{
		{"documents", pod("a") + "\n---\n" + pod("b") + "\n---\n" + pod("c"), []string{"a", "b", "c"}},
		{"documents that are empty", "---\n---\n" + pod("a") + "\n---\n\n---\n", []string{"a"}},
		{"a list", "{apiVersion: v1, kind: List, items: [" + pod("a") + ", " + pod("b") + "]}", []string{"a", "b"}},
		{"a list of lists", "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: List, items: [" + pod("a") + "]}, " + pod("b") + "]}", []string{"a", "b"}},
		{"an empty list", "{apiVersion: v1, kind: List, items: []}", nil},
		{"a list and a document", "{apiVersion: v1, kind: List, items: [" + pod("a") + "]}\n---\n" + pod("b"), []string{"a", "b"}},
		{"JSON after JSON", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}` + "\n" + `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"}}`, []string{"a", "b"}},
		{"objects without pods between", pod("a") + "\n---\n{apiVersion: v1, kind: Service, metadata: {name: s}}\n---\n" + pod("b"), []string{"a", "b"}},
	} {
		_, workloads := read(t, test.text)
		var names []string
		for _, w := range workloads {
			names = append(names, w.Pod.Name)
		}
		if !slices.Equal(names, test.want) {
			t.Errorf("%s: %v, want %v", test.rule, names, test.want)
		}
	}
	for rule, text := range map[string]string{
		"no YAML": "a: b: c", "a list that is none": "{apiVersion: v1, kind: List, items: 7}", "one wrong object of a list": "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pod, spec: 7}]}",
		"no object": "[1, 2]", "a wrong second document": pod("a") + "\n---\n{apiVersion: batch/v1, kind: Job, spec: {parallelism: many}}",
	} {
		if _, err := ReadManifest(strings.NewReader(text), "default"); err == nil || !strings.HasPrefix(err.Error(), "read ") {
			t.Errorf("%s: %v", rule, err)
		}
	}
}

// Daemons tolerate what their controller lets them tolerate, beside what they say themselves.
func TestDaemonTolerations(t *testing.T) {
	_, workloads := read(t, "{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: d}, spec: {template: {spec: {hostNetwork: true, tolerations: [{key: own, operator: Exists}], containers: [{name: c}]}}}}")
	var got []string
	for _, x := range workloads[0].Pod.Spec.Tolerations {
		if x.Operator != corev1.TolerationOpExists || x.TolerationSeconds != nil {
			t.Errorf("%+v", x)
		}
		got = append(got, x.Key+":"+string(x.Effect))
	}
	want := []string{
		"own:", "node.kubernetes.io/not-ready:NoExecute", "node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/disk-pressure:NoSchedule", "node.kubernetes.io/memory-pressure:NoSchedule",
		"node.kubernetes.io/pid-pressure:NoSchedule", "node.kubernetes.io/unschedulable:NoSchedule", "node.kubernetes.io/network-unavailable:NoSchedule",
	}
	if !slices.Equal(got, want) {
		t.Errorf("tolerates %v\nwant %v", got, want)
	}
}
