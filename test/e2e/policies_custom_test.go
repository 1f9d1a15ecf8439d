package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"skiff/test/cluster"
)

const widgetDefinition = `{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"},"versions":[
	{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{
		"size":{"type":"integer","default":1},"limit":{"type":"integer"},"color":{"type":"string"},
		"parts":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],"items":{"type":"object","required":["name"],"properties":{"name":{"type":"string"},"count":{"type":"integer","default":2}}}},
		"tags":{"type":"array","items":{"type":"string"}}}}}}}},
	{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}]}}`

// widgetPolicies are policies about custom resources, each by the label of the objects it is about, with what follows policyName in its
// binding.
var widgetPolicies = []struct{ name, spec, binding string }{
	{"size", `"validations":[{"expression":"object.spec.size < 5","messageExpression":"object.kind + ' of size ' + string(object.spec.size)"}]`, `,"validationActions":["Deny"]`},
	{"field", `"validations":[{"expression":"has(object.spec.color) && object.spec.color in ['red', 'green']"}]`, `,"validationActions":["Deny"]`},
	{"params", `"paramKind":{"apiVersion":"example.com/v1","kind":"Widget"},"validations":[{"expression":"object.spec.size <= params.spec.limit","messageExpression":"'limit is ' + string(params.spec.limit) + ' of ' + params.kind"}]`, `,"paramRef":{"name":"limits","parameterNotFoundAction":"Deny"},"validationActions":["Deny"]`},
	{"noparams", `"paramKind":{"apiVersion":"example.com/v1","kind":"Widget"},"validations":[{"expression":"true"}]`, `,"paramRef":{"name":"nosuch","parameterNotFoundAction":"Deny"},"validationActions":["Deny"]`},
	{"nokind", `"paramKind":{"apiVersion":"example.com/v1","kind":"Gadget"},"validations":[{"expression":"true"}]`, `,"paramRef":{"name":"nosuch","parameterNotFoundAction":"Deny"},"validationActions":["Deny"]`},
	{"version", `"validations":[{"expression":"object.apiVersion == 'example.com/v1' && request.kind.version == 'v1' && request.requestKind.version == 'v1'"}]`, `,"validationActions":["Deny"]`},
	{"merge", `"reinvocationPolicy":"Never","mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{spec: Object.spec{color: \"blue\", parts: [Object.spec.parts{name: \"a\", count: 9}, Object.spec.parts{name: \"new\"}]}}"}}]`, ``},
	{"unknown", `"reinvocationPolicy":"Never","mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{spec: Object.spec{nosuch: 1}}"}}]`, ``},
	{"atomic", `"reinvocationPolicy":"Never","mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{spec: Object.spec{tags: [\"a\"]}}"}}]`, ``},
	{"patch", `"reinvocationPolicy":"Never","mutations":[{"patchType":"JSONPatch","jsonPatch":{"expression":"[JSONPatch{op: \"add\", path: \"/spec/color\", value: \"blue\"}, JSONPatch{op: \"add\", path: \"/spec/parts/-\", value: {\"name\": \"z\"}}]"}}]`, ``},
	{"pruned", `"reinvocationPolicy":"Never","mutations":[{"patchType":"JSONPatch","jsonPatch":{"expression":"[JSONPatch{op: \"add\", path: \"/spec/nosuch\", value: \"x\"}]"}}]`, ``},
}

// TestPoliciesOfCustomResources compares policies about custom resources, and with custom resources as params, with upstream.
func TestPoliciesOfCustomResources(t *testing.T) {
	t.Parallel()
	skiff, upstream := startBoth(t)
	calls := widgetCalls()
	responses := map[*cluster.Cluster][]string{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, c := range []*cluster.Cluster{skiff, upstream} {
		wg.Go(func() {
			got := sendWidgets(t, c, calls)
			mu.Lock()
			responses[c] = got
			mu.Unlock()
		})
	}
	wg.Wait()
	if !t.Failed() {
		comparePolicyResponses(t, responses[skiff], responses[upstream], calls)
	}
}

func widgetCalls() []call {
	var calls []call
	for _, p := range widgetPolicies {
		for _, spec := range []string{`{"size":3,"color":"red","parts":[{"name":"a","count":1},{"name":"b","count":5}]}`, `{"size":7,"parts":[]}`, `{}`} {
			for _, version := range []string{"v1", "v2"} {
				calls = append(calls, widgetWrite(p.name+" "+version+" "+spec, p.name, version, spec))
			}
		}
	}
	return calls
}

// widgetWrite is a write of a widget that one policy is about. Nothing is stored.
func widgetWrite(name, policy, version, spec string) call {
	return post(name, "/apis/example.com/"+version+"/namespaces/policies/widgets?dryRun=All&fieldManager=test",
		fmt.Sprintf(`{"apiVersion":"example.com/%s","kind":"Widget","metadata":{"name":"object","labels":{"policy":%q}},"spec":%s}`, version, policy, spec))
}

// sendWidgets creates the definition and the policies, and returns the responses to the calls.
func sendWidgets(t *testing.T, c *cluster.Cluster, calls []call) (got []string) {
	a := newAPIClient(t, c)
	must := func(s call) {
		if response := a.send(s); !strings.HasPrefix(response, "20") {
			t.Errorf("%s: %s: %s\n%s", c.Name, s.name, response, s.body)
		}
	}
	await := func(s call, done func(response string) bool) {
		deadline := time.Now().Add(time.Minute)
		for {
			response := a.send(s)
			if done(response) {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("%s: %s: %s", c.Name, s.name, response)
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	must(post("namespace", "/api/v1/namespaces", `{"metadata":{"name":"policies"}}`))
	must(post("definition", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widgetDefinition))
	await(widgetWrite("widget", "none", "v1", "{}"), func(response string) bool { return strings.HasPrefix(response, "201") })
	must(post("limits", "/apis/example.com/v1/namespaces/policies/widgets", `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"limits"},"spec":{"limit":4}}`))
	for _, p := range append(widgetPolicies, struct{ name, spec, binding string }{"last", `"validations":[{"expression":"false"}]`, `,"validationActions":["Deny"]`}) {
		resource := "validatingadmissionpolic"
		if strings.Contains(p.spec, `"mutations"`) {
			resource = "mutatingadmissionpolic"
		}
		const group = "/apis/admissionregistration.k8s.io/v1/"
		must(post("policy "+p.name, group+resource+"ies", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"matchConstraints":{"objectSelector":{"matchLabels":{"policy":%q}},"resourceRules":[{"apiGroups":["example.com"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["widgets"]}]},%s}}`, p.name, p.name, p.spec)))
		must(post("binding "+p.name, group+resource+"ybindings", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"policyName":%q%s}}`, p.name, p.name, p.binding)))
	}
	await(widgetWrite("policies", "last", "v1", "{}"), func(response string) bool { return strings.HasPrefix(response, "422") })
	// Upstream reads the schemas of custom resources every five seconds.
	await(widgetWrite("schemas", "merge", "v1", "{}"), func(response string) bool { return strings.Contains(response, "blue") })
	await(widgetWrite("params", "params", "v1", `{"size":9}`), func(response string) bool { return strings.Contains(response, "limit is") })
	for _, s := range calls {
		got = append(got, a.send(s))
	}
	return got
}
