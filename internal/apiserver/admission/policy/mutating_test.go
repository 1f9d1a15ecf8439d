package policy_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// at returns the value at a path of an object.
func at(obj map[string]any, path ...string) any {
	var v any = obj
	for _, name := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[name]
	}
	return v
}

// apply and jsonPatch are the specs of policies with one mutation.
func apply(expression string) string {
	return "reinvocationPolicy: Never\nmutations:\n- patchType: ApplyConfiguration\n  applyConfiguration: {expression: " + quote(expression) + "}"
}

func jsonPatch(expression string) string {
	return "reinvocationPolicy: Never\nmutations:\n- patchType: JSONPatch\n  jsonPatch: {expression: " + quote(expression) + "}"
}

func quote(text string) string {
	data, _ := json.Marshal(text)
	return string(data)
}

// TestMutations: the results and errors of one policy.
func TestMutations(t *testing.T) {
	for _, test := range []struct {
		name, spec, binding string
		data                string
		want                string // data and labels of the result, or part of the message
		code                int
	}{
		{name: "apply", spec: apply(`Object{data: {"b": object.data.a + "!"}}`), data: "a: x", code: 201, want: `{"a":"x","b":"x!"} {"app":"x"}`},
		{name: "apply labels", spec: apply(`Object{metadata: Object.metadata{labels: {"added": "yes"}}}`), code: 201, want: `null {"added":"yes","app":"x"}`},
		{name: "apply what is there", spec: apply(`Object{metadata: Object.metadata{labels: object.metadata.labels}}`), code: 201, want: `null {"app":"x"}`},
		{name: "nothing", spec: apply(`Object{}`), code: 201, want: `null {"app":"x"}`},
		{name: "wrong type name", spec: apply(`Object{metadata: Object.spec{labels: {"a": "b"}}}`), code: 403, want: `policy 'p' with binding 'p-0' denied request: type mismatch: unexpected type name "Object.spec", expected "Object.metadata"`},
		{name: "unknown field", spec: apply(`Object{nosuch: "x"}`), code: 403, want: `denied request: error applying patch: failed to convert patch object to typed object: .nosuch: field not declared in schema`},
		{name: "error", spec: apply(`Object{data: {"b": string(object.data.nosuch)}}`), data: "a: x", code: 403, want: "resulted in error: no such key: nosuch"},
		{name: "ignored error", spec: "failurePolicy: Ignore\n" + apply(`Object{data: {"b": string(object.data.nosuch)}}`), data: "a: x", code: 201, want: `{"a":"x"} {"app":"x"}`},
		{name: "patch", spec: jsonPatch(`[JSONPatch{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey("a/b"), value: "c"}, JSONPatch{op: "remove", path: "/metadata/labels/app"}]`), data: "a: x", code: 201, want: `{"a":"x"} {"a/b":"c"}`},
		{name: "patch with an object", spec: jsonPatch(`[JSONPatch{op: "add", path: "/metadata/labels", value: Object.metadata.labels{x: "y"}}]`), code: 201, want: `null {"x":"y"}`},
		{name: "patch with what is there", spec: jsonPatch(`[JSONPatch{op: "add", path: "/data", value: object.metadata.labels}]`), code: 201, want: `{"app":"x"} {"app":"x"}`},
		{name: "copy and move", spec: jsonPatch(`[JSONPatch{op: "copy", from: "/data/a", path: "/data/b"}, JSONPatch{op: "move", from: "/data/a", path: "/data/c"}]`), data: "a: x", code: 201, want: `{"b":"x","c":"x"} {"app":"x"}`},
		{name: "failed test", spec: jsonPatch(`[JSONPatch{op: "test", path: "/data/a", value: "other"}, JSONPatch{op: "remove", path: "/data"}]`), data: "a: x", code: 201, want: `{"a":"x"} {"app":"x"}`},
		{name: "characters that Go escapes and JSON does not", spec: jsonPatch(`[JSONPatch{op: "add", path: "/data/\x7f\U000E0001", value: "y"}, JSONPatch{op: "move", from: "/data/\x7f\U000E0001", path: "/data/b"}]`), code: 201, data: "a: x", want: `{"a":"x","b":"y"} {"app":"x"}`},
		{name: "wrong path", spec: jsonPatch(`[JSONPatch{op: "remove", path: "/nosuch/path"}]`), code: 403, want: "denied request: JSON Patch: "},
		{name: "unknown field of a patch", spec: jsonPatch(`[JSONPatch{op: "add", path: "/nosuch", value: "x"}]`), code: 500, want: `unknown field "nosuch"`},
		{name: "condition", spec: "matchConditions: [{name: c, expression: object.metadata.name == 'y'}]\n" + apply(`Object{data: {"b": "c"}}`), code: 201, want: `null {"app":"x"}`},
		{name: "failed condition", spec: "matchConditions: [{name: c, expression: object.nosuch == 'y'}]\n" + apply(`Object{data: {"b": "c"}}`), code: 403, want: "denied request: expression 'object.nosuch == 'y'' resulted in error: no such key: nosuch"},
		{name: "variables", spec: "variables: [{name: v, expression: object.metadata.name + '-v'}]\n" + apply(`Object{data: {"v": variables.v}}`), code: 201, want: `{"v":"x-v"} {"app":"x"}`},
		{name: "params", spec: "paramKind: {apiVersion: v1, kind: Namespace}\n" + apply(`Object{metadata: Object.metadata{labels: params.metadata.labels}}`), binding: "paramRef: {name: team, parameterNotFoundAction: Deny}", code: 201, want: `null {"app":"x","env":"test","kubernetes.io/metadata.name":"team"}`},
		{name: "no params", spec: "paramKind: {apiVersion: v1, kind: Namespace}\n" + apply(`Object{}`), binding: "paramRef: {name: nosuch, parameterNotFoundAction: Deny}", code: 403, want: "policy 'p' with binding 'p-0' denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"},
		{name: "unknown params", spec: "paramKind: {apiVersion: example.com/v1, kind: Nosuch}\n" + apply(`Object{}`), binding: "paramRef: {name: some, parameterNotFoundAction: Allow}", code: 403, want: `policy "p" denied request: failed to configure policy: failed to find resource referenced by paramKind`},
		{name: "not bound here", spec: apply(`Object{data: {"b": "c"}}`), binding: "matchResources: {objectSelector: {matchLabels: {app: other}}}", code: 201, want: `null {"app":"x"}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.mutate("p", test.spec, test.binding)
			r := s.configMap("x", test.data)
			if r.code != test.code {
				t.Fatalf("%d %s", r.code, r.body)
			}
			if test.code >= 300 {
				if !strings.Contains(r.message(t), test.want) {
					t.Errorf("%s", r.body)
				}
				return
			}
			var obj map[string]any
			if err := json.Unmarshal(r.body, &obj); err != nil {
				t.Fatal(err)
			}
			data, _ := json.Marshal(obj["data"])
			labels, _ := json.Marshal(at(obj, "metadata", "labels"))
			if got := fmt.Sprintf("%s %s", data, labels); got != test.want {
				t.Errorf("got %s", got)
			}
		})
	}
}

const deployments = "matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}]}\n"

const deployment = "metadata: {name: d}\nspec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}"

// TestMutationsMergeByKey: an apply configuration merges lists by their keys, must not set atomic fields, and what it adds gets defaults.
func TestMutationsMergeByKey(t *testing.T) {
	s := newServer(t)
	s.mutate("p", deployments+apply(`Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
		initContainers: [Object.spec.template.spec.initContainers{name: "prepare", image: "prepare"}],
		containers: [Object.spec.template.spec.containers{name: "c", env: [Object.spec.template.spec.containers.env{name: "A", value: "B"}]}]}}}}`))
	obj := s.must("POST", "/apis/apps/v1/namespaces/team/deployments", deployment)
	spec, _ := json.Marshal(at(obj, "spec", "template", "spec"))
	for _, want := range []string{
		`"containers":[{"env":[{"name":"A","value":"B"}],"image":"i"`,
		`"initContainers":[{"image":"prepare","imagePullPolicy":"Always","name":"prepare"`,
	} {
		if !strings.Contains(string(spec), want) {
			t.Errorf("no %s in %s", want, spec)
		}
	}
	s.mutate("q", deployments+apply(`Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: "c", command: ["a"]}]}}}}`))
	r := s.as("admin", "POST", "/apis/apps/v1/namespaces/team/deployments", strings.Replace(deployment, "name: d", "name: e", 1))
	if r.code != 403 || !strings.Contains(r.message(t), "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.template.spec.containers[0].command") {
		t.Errorf("%d %s", r.code, r.body)
	}
}

// TestMutationOrder: policies run in the order of their names, each sees what those before it have changed, and validating policies see the
// result of all.
func TestMutationOrder(t *testing.T) {
	s := newServer(t)
	s.mutate("b", apply(`Object{data: {"order": object.data.order + "b"}}`))
	s.mutate("a", apply(`Object{data: {"order": object.data.order + "a"}}`))
	s.validate("v", "validations: [{expression: object.data.order == 'xab', messageExpression: string(object.data.order)}]")
	if r := s.configMap("x", "order: x"); r.code != 201 {
		t.Errorf("%d %s", r.code, r.body)
	}
}

// TestReinvocation: a policy with reinvocationPolicy IfNeeded sees the changes of those after it.
func TestReinvocation(t *testing.T) {
	for _, reinvocation := range []string{"Never", "IfNeeded"} {
		s := newServer(t)
		s.mutate("a", strings.Replace(apply(`Object{data: {"seen": has(object.data.late) ? "late" : "early"}}`), "Never", reinvocation, 1))
		s.mutate("b", apply(`Object{data: {"late": "yes"}}`))
		obj := s.must("POST", "/api/v1/namespaces/team/configmaps", "metadata: {name: x}\ndata: {a: b}")
		want := map[string]string{"Never": "early", "IfNeeded": "late"}[reinvocation]
		if got := at(obj, "data", "seen"); got != want {
			t.Errorf("%s: %v", reinvocation, got)
		}
	}
}

// TestMutationsOfUpdates: updates, patches and scales are mutated; deletions are not.
func TestMutationsOfUpdates(t *testing.T) {
	s := newServer(t)
	s.mutate("p", "matchConstraints: {resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: [UPDATE], resources: [configmaps]}]}\n"+apply(`Object{data: {"before": string(oldObject.data.a)}}`))
	s.mutate("q", "matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [UPDATE], resources: [deployments/scale]}]}\n"+apply(`Object{spec: Object.spec{replicas: object.spec.replicas > 5 ? 5 : object.spec.replicas}}`))
	s.must("POST", "/api/v1/namespaces/team/configmaps", "metadata: {name: x}\ndata: {a: one}")
	obj := s.must("PATCH", "/api/v1/namespaces/team/configmaps/x", "data: {a: two}")
	if got := at(obj, "data", "before"); got != "one" {
		t.Errorf("%v", obj)
	}
	s.must("POST", "/apis/apps/v1/namespaces/team/deployments", deployment)
	obj = s.must("PATCH", "/apis/apps/v1/namespaces/team/deployments/d/scale", "spec: {replicas: 9}")
	if got := at(obj, "spec", "replicas"); got != 5.0 {
		t.Errorf("%v", obj)
	}
	s.must("DELETE", "/api/v1/namespaces/team/configmaps/x", "{}")
	body := string(s.as("admin", "GET", "/metrics", "").body)
	if want := `apiserver_mutating_admission_policy_check_total{error_type="no_error",policy="p",policy_binding="p-0"}`; !strings.Contains(body, want) {
		t.Errorf("no %s", want)
	}
}

// TestMutationsOfOtherVersions: a policy for one version changes an object that is written in another.
func TestMutationsOfOtherVersions(t *testing.T) {
	s := newServer(t)
	s.mutate("p", "matchConstraints: {resourceRules: [{apiGroups: [autoscaling], apiVersions: [v1], operations: [CREATE], resources: [horizontalpodautoscalers]}]}\n"+
		apply(`Object{spec: Object.spec{targetCPUUtilizationPercentage: object.spec.targetCPUUtilizationPercentage + 1}}`))
	obj := s.must("POST", "/apis/autoscaling/v2/namespaces/team/horizontalpodautoscalers", "metadata: {name: h}\nspec: {maxReplicas: 2, scaleTargetRef: {kind: Deployment, name: d, apiVersion: apps/v1}, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 9}}}]}")
	metrics, _ := json.Marshal(at(obj, "spec", "metrics"))
	if !strings.Contains(string(metrics), `"averageUtilization":10`) {
		t.Errorf("%s", metrics)
	}
}
