package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"skiff/test/cluster"
)

// TestPoliciesLikeUpstream creates generated admission policies in skiff and in upstream, sends both the same writes, and compares every
// response: the object or the rejection, and the warnings. Each policy is about objects with a label of its own, so that one policy decides
// about each write.
func TestPoliciesLikeUpstream(t *testing.T) {
	t.Parallel()
	skiff, upstream := startBoth(t)

	const policies = 300
	setup, calls := policyFixtures(policies), policyCalls(policies)
	responses := map[*cluster.Cluster][]string{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, c := range []*cluster.Cluster{skiff, upstream} {
		wg.Go(func() {
			a := newAPIClient(t, c)
			var got []string
			for _, s := range setup {
				response := a.send(s)
				if strings.HasPrefix(s.name, "policy") && strings.HasPrefix(response, "422") {
					got = append(got, response) // does not compile: the errors are compared
					continue
				}
				if !strings.HasPrefix(response, "20") {
					t.Errorf("%s: %s: %s\n%s", c.Name, s.name, response, s.body)
				}
			}
			awaitPolicies(t, c, a)
			for _, s := range calls {
				got = append(got, a.send(s))
			}
			mu.Lock()
			responses[c] = got
			mu.Unlock()
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	comparePolicyResponses(t, responses[skiff], responses[upstream], calls)
}

// awaitPolicies waits until the server evaluates the policies that were created last.
func awaitPolicies(t *testing.T, c *cluster.Cluster, a *apiClient) {
	deadline := time.Now().Add(2 * time.Minute)
	for {
		denied := a.send(policyWrite("", "last", "configmaps", `"data":{"a":"x"}`))
		mutated := a.send(policyWrite("", "lastmutation", "configmaps", `"data":{"a":"x"}`))
		if strings.HasPrefix(denied, "422") && strings.Contains(mutated, `"mutated"`) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s does not evaluate policies: %s %s", c.Name, denied, mutated)
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func comparePolicyResponses(t *testing.T, ours, theirs []string, calls []call) {
	if len(ours) != len(theirs) {
		t.Fatalf("%d responses, upstream has %d", len(ours), len(theirs))
	}
	invalid := len(ours) - len(calls)
	denied, differ := 0, 0
	for i := range ours {
		if i >= invalid && !strings.HasPrefix(theirs[i], "20") {
			denied++
		}
		if ours[i] == theirs[i] {
			continue
		}
		if differ++; differ <= 20 {
			what := "invalid policy"
			if i >= invalid {
				what = calls[i-invalid].name
			}
			t.Errorf("%s\n%s", what, difference(ours[i], theirs[i]))
		}
	}
	t.Logf("%d policies do not compile, %d writes, %d of them rejected, %d responses differ", invalid, len(calls), denied, differ)
	if denied < len(calls)/10 || denied > len(calls)*9/10 {
		t.Errorf("%d of %d rejected: the calls do not cover both outcomes", denied, len(calls))
	}
}

// policyWrite is a write of an object that one policy is about. Nothing is stored.
func policyWrite(name, policy, resource, content string) call {
	path := "/api/v1/namespaces/policies/configmaps"
	if resource == "deployments" {
		path = "/apis/apps/v1/namespaces/policies/deployments"
	}
	return post(name, path+"?dryRun=All&fieldManager=test", fmt.Sprintf(`{"metadata":{"name":"object","labels":{"policy":%q}},%s}`, policy, content))
}

const policyDeployment = `"spec":{"replicas":%d,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"registry.example/c:1","env":[{"name":"A","value":"B"}]},{"name":"d","image":"d","resources":{"limits":{"memory":"1Gi"}}}]}}}`

// policyCalls are the writes: four for each policy.
func policyCalls(n int) []call {
	var calls []call
	for i := range n {
		policy := fmt.Sprintf("p%d", i)
		body := policySpec(i)
		calls = append(calls,
			policyWrite(policy+" config map with data "+body, policy, "configmaps", `"data":{"a":"b","count":"3"}`),
			policyWrite(policy+" config map without data "+body, policy, "configmaps", `"immutable":true`),
			policyWrite(policy+" small deployment "+body, policy, "deployments", fmt.Sprintf(policyDeployment, 1)),
			policyWrite(policy+" large deployment "+body, policy, "deployments", fmt.Sprintf(policyDeployment, 7)))
	}
	return calls
}

func policyFixtures(n int) []call {
	all := []call{
		post("namespace", "/api/v1/namespaces", `{"metadata":{"name":"policies","labels":{"env":"e2e"}}}`),
		post("param", "/api/v1/namespaces/policies/configmaps", `{"metadata":{"name":"limits","labels":{"kind":"limits"}},"data":{"limit":"3","name":"b"}}`),
		post("other param", "/api/v1/namespaces/policies/configmaps", `{"metadata":{"name":"more","labels":{"kind":"limits"}},"data":{"limit":"3","name":"b"}}`),
	}
	create := func(name, spec, binding string) {
		resource := "validatingadmissionpolic"
		if strings.Contains(spec, `"mutations"`) {
			resource = "mutatingadmissionpolic"
		}
		const group = "/apis/admissionregistration.k8s.io/v1/"
		constraints := fmt.Sprintf(`"matchConstraints":{"objectSelector":{"matchLabels":{"policy":%q}},"resourceRules":[{"apiGroups":["","apps"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps","deployments"]}]}`, name)
		all = append(all,
			post("policy "+name, group+resource+"ies", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{%s,%s}}`, name, constraints, spec)),
			post("binding "+name, group+resource+"ybindings", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"policyName":%q%s}}`, name+"-binding", name, binding)))
	}
	for i := range n {
		create(fmt.Sprintf("p%d", i), policySpec(i), policyBinding(i))
	}
	create("last", `"validations":[{"expression":"false"}]`, `,"validationActions":["Deny"]`)
	create("lastmutation", `"reinvocationPolicy":"Never","mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{data: {\"done\": \"mutated\"}}"}}]`, "")
	return all
}

// policyRandom is the source of the i-th policy.
func policyRandom(i int, purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(uint64(i), purpose)) }

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// hasParamKind and isMutating are properties that the policy and its binding share.
func hasParamKind(i int) bool { return i%4 == 1 }
func isMutating(i int) bool   { return i%3 == 2 }

func policyBinding(i int) string {
	r := policyRandom(i, 1)
	text := ""
	if hasParamKind(i) && r.IntN(5) > 0 {
		text += `,"paramRef":` + pick(r, []string{
			`{"name":"limits","parameterNotFoundAction":"Deny"}`, `{"name":"limits","namespace":"policies","parameterNotFoundAction":"Allow"}`,
			`{"name":"nosuch","parameterNotFoundAction":"Deny"}`, `{"name":"nosuch","parameterNotFoundAction":"Allow"}`,
			`{"selector":{"matchLabels":{"kind":"limits"}},"parameterNotFoundAction":"Deny"}`, `{"selector":{"matchLabels":{"kind":"nosuch"}},"parameterNotFoundAction":"Deny"}`,
		})
	}
	if r.IntN(6) == 0 {
		text += `,"matchResources":` + pick(r, []string{
			`{"namespaceSelector":{"matchLabels":{"env":"e2e"}}}`, `{"namespaceSelector":{"matchExpressions":[{"key":"env","operator":"NotIn","values":["e2e"]}]}}`,
			`{"resourceRules":[{"apiGroups":["apps"],"apiVersions":["*"],"operations":["*"],"resources":["*"]}]}`,
			`{"excludeResourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"],"resourceNames":["object"]}]}`,
		})
	}
	if !isMutating(i) {
		text += `,"validationActions":` + pick(r, []string{`["Deny"]`, `["Deny"]`, `["Deny"]`, `["Warn"]`, `["Audit"]`, `["Audit","Warn"]`})
	}
	return text
}

// policyConditions are expressions of type bool. Some fail for some of the objects, and some do not compile.
var policyConditions = []string{
	`object.metadata.name == 'object'`, `object.data.a == 'b'`, `has(object.data)`, `has(object.data) && object.data.exists(k, object.data[k] == '3')`,
	`object.spec.replicas > 2`, `has(object.spec) && object.spec.replicas < 5`, `object.kind == 'ConfigMap'`, `object.apiVersion == 'apps/v1'`,
	`object.?data[?'a'].orValue('none') == 'b'`, `object.?spec.?replicas.orValue(0) <= 3`, `!has(object.immutable) || !object.immutable`,
	`object.spec.template.spec.containers.all(c, c.image.contains('/'))`, `has(object.spec) && object.spec.template.spec.containers.exists_one(c, has(c.env))`,
	`object.spec.template.spec.containers.map(c, c.name) == ['c', 'd']`, `object.spec.template.spec.containers[1].resources.limits.memory == '1Gi'`,
	`quantity(object.spec.template.spec.containers[1].resources.limits.memory).isGreaterThan(quantity('512Mi'))`,
	`object.metadata.labels.policy.startsWith('p')`, `object.metadata.labels['policy'].matches('^p[0-9]+$')`, `'policy' in object.metadata.labels`,
	`oldObject == null`, `object == object`, `object.metadata == object.metadata`, `size(object.metadata.labels) == 1`, `object.metadata.creationTimestamp == null`,
	`namespaceObject.metadata.labels.env == 'e2e'`, `namespaceObject.metadata.name == request.namespace`,
	`request.operation == 'CREATE' && request.dryRun`, `request.resource.resource == 'configmaps'`, `request.kind.group == 'apps'`, `request.userInfo.groups.exists(g, g == 'system:masters')`,
	`request.options.fieldManager == 'test'`, `has(request.subResource)`, `request.name == ''`,
	`authorizer.requestResource.check('create').allowed()`, `authorizer.serviceAccount('policies', 'default').group('').resource('secrets').check('get').allowed()`,
	`authorizer.group('apps').resource('deployments').namespace('policies').check('delete').reason() == ''`,
	`[1, 2, 3].sum() == 6 && ['a', 'b'].isSorted()`, `isIP('10.0.0.1') && cidr('10.0.0.0/8').containsIP('10.1.1.1')`, `url('https://a.example/b').getHost() == 'a.example'`,
	`semver('1.2.3').isLessThan(semver('1.3.0'))`, `format.dns1123Label().validate(object.metadata.name) == optional.none()`, `'abc'.replace('b', 'x') == 'axc'`,
	`object.metadata.name.upperAscii() == 'OBJECT'`, `double(object.spec.replicas) / 2.0 > 1.0`, `string(object.spec.replicas) == '7'`, `int(object.data.count) == 3`,
	`object.data.count == 3`, `object.nosuch.field == 1`, `dyn(object.spec.replicas) == '7'`, `object.spec.strategy.rollingUpdate.maxSurge == '25%'`,
	`object.spec.revisionHistoryLimit == 10`, `timestamp('2024-01-01T00:00:00Z') < timestamp('2025-01-01T00:00:00Z')`, `duration('1h') > duration('1m')`,
	`nosuch == 1`, `object.metadata.name`, `1 == 'a'`, `object.spec.template.spec.containers.all(c, nosuch(c))`,
	`[0,1,2,3,4,5,6,7,8,9].all(a, [0,1,2,3,4,5,6,7,8,9].all(b, [0,1,2,3,4,5,6,7,8,9].all(c, [0,1,2,3,4,5,6,7,8,9].all(d, [0,1,2,3,4,5,6,7,8,9].all(e, [0,1,2,3,4,5,6,7,8,9].all(f, a + b + c + d + e + f >= 0))))))`,
}

// policyMutations are expressions of mutations, by patch type.
var policyMutations = map[string][]string{
	"ApplyConfiguration": {
		`Object{metadata: Object.metadata{labels: {"added": "yes"}}}`, `Object{metadata: Object.metadata{annotations: {"name": object.metadata.name}}}`,
		`Object{spec: Object.spec{replicas: 3}}`, `Object{spec: Object.spec{replicas: object.spec.replicas + 1}}`, `Object{data: {"a": "c"}}`, `Object{immutable: false}`,
		`has(object.data) ? Object{data: object.data} : Object{}`, `Object{nosuch: 1}`, `Object{spec: Object.wrong{replicas: 1}}`, `Object{metadata: Object.metadata{name: 1}}`,
		`Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: "c", env: [Object.spec.template.spec.containers.env{name: "A", value: "C"}, Object.spec.template.spec.containers.env{name: "X", value: "Y"}]}]}}}}`,
		`Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{initContainers: [Object.spec.template.spec.initContainers{name: "i", image: "i"}]}}}}`,
		`Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: "c", command: ["sh"]}]}}}}`,
		`Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {"x": "y"}}}}`, `object`, `Object{metadata: Object.metadata{labels: namespaceObject.metadata.labels}}`,
	},
	"JSONPatch": {
		`[JSONPatch{op: "add", path: "/metadata/labels/added", value: "yes"}]`, `[JSONPatch{op: "replace", path: "/spec/replicas", value: 4}]`, `[JSONPatch{op: "remove", path: "/data/a"}]`,
		`[JSONPatch{op: "test", path: "/data/a", value: "b"}, JSONPatch{op: "add", path: "/data/tested", value: "yes"}]`, `[JSONPatch{op: "copy", from: "/metadata/name", path: "/metadata/labels/name"}]`,
		`[JSONPatch{op: "move", from: "/data/a", path: "/data/moved"}]`, `[JSONPatch{op: "add", path: "/metadata/annotations", value: {"a/b": "c"}}]`, `[JSONPatch{op: "add", path: "/nosuch", value: 1}]`,
		`[JSONPatch{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey("example.com/x"), value: "y"}]`, `[JSONPatch{op: "nosuch", path: "/a"}]`, `[]`,
		`[JSONPatch{op: "add", path: "/spec/template/spec/initContainers", value: [Object.spec.template.spec.initContainers{name: "i", image: "i"}]}]`,
		`has(object.data) ? [JSONPatch{op: "add", path: "/data/copy", value: object.data.a}] : []`, `[JSONPatch{op: "add", path: "/spec/template/spec/containers/-", value: object.spec.template.spec.containers[0]}]`,
	},
}

// policySpec is the spec of the i-th policy, without its match constraints.
func policySpec(i int) string {
	r := policyRandom(i, 2)
	spec := map[string]any{}
	conditions := policyConditions
	if hasParamKind(i) {
		spec["paramKind"] = map[string]string{"apiVersion": "v1", "kind": "ConfigMap"}
		conditions = append([]string{`params == null`, `params.data.limit == '3'`, `params != null && params.metadata.name == 'limits'`, `object.data.a == params.data.name`, `params.kind == 'ConfigMap'`}, conditions...)
	}
	if r.IntN(3) == 0 {
		spec["failurePolicy"] = "Ignore"
	}
	if r.IntN(4) == 0 {
		spec["variables"] = []map[string]string{
			{"name": "name", "expression": "object.metadata.name"}, {"name": "replicas", "expression": "has(object.spec) ? object.spec.replicas : 0"},
			{"name": "value", "expression": "object.data.a"}, {"name": "both", "expression": "string(variables.name) + string(variables.value)"},
		}
		conditions = append([]string{`variables.name == 'object'`, `variables.replicas > 3`, `variables.value == 'b'`, `variables.both == 'objectb'`, `variables.nosuch == 1`}, conditions...)
	}
	if r.IntN(4) == 0 {
		spec["matchConditions"] = []map[string]string{{"name": "first", "expression": pick(r, policyConditions)}, {"name": "second", "expression": "object.kind != 'Nothing'"}}
	}
	if isMutating(i) {
		addMutations(r, spec)
		// With match conditions, upstream cannot put parts of a typed object into a JSON patch; skiff always can.
		if strings.Contains(fmt.Sprint(spec["mutations"]), "value: object.") {
			delete(spec, "matchConditions")
		}
	} else {
		addValidations(r, spec, conditions)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		panic(err)
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(data), "{"), "}")
}

func addMutations(r *rand.Rand, spec map[string]any) {
	spec["reinvocationPolicy"] = pick(r, []string{"Never", "IfNeeded"})
	var mutations []map[string]any
	for range 1 + r.IntN(2) {
		patchType := pick(r, []string{"ApplyConfiguration", "JSONPatch"})
		field := map[string]string{"ApplyConfiguration": "applyConfiguration", "JSONPatch": "jsonPatch"}[patchType]
		mutations = append(mutations, map[string]any{"patchType": patchType, field: map[string]string{"expression": pick(r, policyMutations[patchType])}})
	}
	spec["mutations"] = mutations
}

func addValidations(r *rand.Rand, spec map[string]any, conditions []string) {
	var validations []map[string]string
	for range 1 + r.IntN(3) {
		expression := pick(r, conditions)
		switch r.IntN(4) {
		case 0:
			expression += " && " + pick(r, conditions)
		case 1:
			expression = "!(" + expression + ") || " + pick(r, conditions)
		}
		v := map[string]string{"expression": expression}
		if r.IntN(2) == 0 {
			v["message"] = " refused "
		}
		if r.IntN(3) == 0 {
			v["messageExpression"] = pick(r, []string{`'object ' + object.metadata.name`, `object.data.a + '!'`, `''`, `'two\nlines'`, `string(object.spec.replicas) + ' replicas'`, `'a'.substring(0)`})
		}
		if r.IntN(3) == 0 {
			v["reason"] = pick(r, []string{"Invalid", "Forbidden", "RequestEntityTooLarge", "Unauthorized"})
		}
		validations = append(validations, v)
	}
	spec["validations"] = validations
	if r.IntN(5) == 0 {
		spec["auditAnnotations"] = []map[string]string{{"key": "name", "valueExpression": pick(r, []string{`'name ' + object.metadata.name`, `object.data.a + '!'`, `''`})}}
	}
}
