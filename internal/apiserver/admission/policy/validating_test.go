package policy_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// twoChecks costs 700,000: an expression may cost a million, all of a policy ten million.
const twoChecks = "authorizer.path('/x').check('get').allowed() && authorizer.path('/y').check('get').allowed()"

// manyKeys make an expression over all of them, nested three times, cost more than what fourteen times twoChecks leave.
var manyKeys = func() string {
	var data []string
	for i := range 40 {
		data = append(data, fmt.Sprintf("k%d: v", i))
	}
	return strings.Join(data, ", ")
}()

// TestValidations: decisions and texts of one policy with one binding.
func TestValidations(t *testing.T) {
	for _, test := range []struct {
		name, spec, binding string
		data                string
		code                int
		reason, message     string
	}{
		{name: "true", spec: "validations: [{expression: object.data.a == 'b'}]", data: "a: b", code: 201},
		{
			name: "false", spec: "validations: [{expression: object.data.a == 'b'}]", data: "a: c", code: 422, reason: "Invalid",
			message: `configmaps "x" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p-0' denied request: failed expression: object.data.a == 'b'`,
		},
		{
			name: "message", spec: "validations: [{expression: 'false', message: ' no way '}]", code: 422, reason: "Invalid", message: "denied request: no way",
		},
		{
			name: "reason", spec: "validations: [{expression: 'false', message: refused, reason: Forbidden}]", code: 403, reason: "Forbidden", message: "denied request: refused",
		},
		{name: "too large", spec: "validations: [{expression: 'false', reason: RequestEntityTooLarge}]", code: 413, reason: "RequestEntityTooLarge"},
		{
			name: "message expression", spec: `validations: [{expression: 'false', message: fixed, messageExpression: "'got ' + object.data.a"}]`, data: "a: c",
			code: 422, message: "denied request: got c",
		},
		{
			name: "failed message expression", spec: `validations: [{expression: 'false', message: fixed, messageExpression: "string(object.data.nosuch)"}]`,
			code: 422, message: "denied request: fixed",
		},
		{
			name: "message of two lines", spec: `validations: [{expression: 'false', message: fixed, messageExpression: "'a\\nb'"}]`, code: 422, message: "denied request: fixed",
		},
		{
			name: "message out of budget", spec: "validations:\n- {expression: 'false', message: fixed, messageExpression: \"object.data.all(k, object.data.all(l, object.data.all(m, object.data[k] != '' && object.data[l] != '' && object.data[m] != ''))) ? 'all' : 'some'\"}" + strings.Repeat("\n- {expression: \""+twoChecks+"\"}", 14),
			data: manyKeys, code: 422, message: "denied request: failed messageExpression: validation failed due to running out of cost budget, no further validation rules will be run",
		},
		{name: "error", spec: "validations: [{expression: object.data.nosuch == 'b'}]", data: "a: b", code: 422, message: "denied request: expression 'object.data.nosuch == 'b'' resulted in error: no such key: nosuch"},
		{name: "ignored error", spec: "failurePolicy: Ignore\nvalidations: [{expression: object.data.nosuch == 'b'}]", data: "a: b", code: 201},
		{name: "false in spite of Ignore", spec: "failurePolicy: Ignore\nvalidations: [{expression: 'false'}]", code: 422},
		{name: "variables", spec: "variables: [{name: a, expression: object.data.a}, {name: b, expression: variables.a + 'b'}]\nvalidations: [{expression: variables.b == 'cb', messageExpression: variables.b}]", data: "a: d", code: 422, message: "denied request: db"},
		{name: "variable that is not read", spec: "variables: [{name: a, expression: object.data.nosuch}]\nvalidations: [{expression: 'true'}]", code: 201},
		{name: "variable that fails", spec: "variables: [{name: a, expression: object.data.nosuch}]\nvalidations: [{expression: variables.a == ''}]", data: "a: b", code: 422, message: `composited variable "a" fails to evaluate: no such key: nosuch`},
		{name: "matching condition", spec: "matchConditions: [{name: c, expression: object.data.a == 'c'}]\nvalidations: [{expression: 'false'}]", data: "a: c", code: 422},
		{name: "other condition", spec: "matchConditions: [{name: c, expression: object.data.a == 'c'}]\nvalidations: [{expression: 'false'}]", data: "a: d", code: 201},
		{name: "failed condition", spec: "matchConditions: [{name: c, expression: object.data.b == 'c'}]\nvalidations: [{expression: 'false'}]", data: "a: d", code: 422, message: "denied request: expression 'object.data.b == 'c'' resulted in error: no such key: b"},
		{name: "failed condition and a false one", spec: "matchConditions: [{name: c, expression: object.data.b == 'c'}, {name: d, expression: 'false'}]\nvalidations: [{expression: 'false'}]", data: "a: d", code: 201},
		{name: "ignored failed condition", spec: "failurePolicy: Ignore\nmatchConditions: [{name: c, expression: object.data.b == 'c'}]\nvalidations: [{expression: 'false'}]", data: "a: d", code: 201},
		{
			name: "request", code: 201,
			spec: `validations: [{expression: "request.operation == 'CREATE' && request.kind.kind == 'ConfigMap' && request.resource.resource == 'configmaps' && request.name == 'x' && request.namespace == 'team' && request.userInfo.username == 'admin' && 'system:masters' in request.userInfo.groups && !request.dryRun && request.options.kind == 'CreateOptions' && request.requestKind == request.kind"}]`,
		},
		{
			name: "objects", code: 201,
			spec: `validations: [{expression: "oldObject == null && object.kind == 'ConfigMap' && object.apiVersion == 'v1' && object.metadata.name == 'x' && namespaceObject.metadata.labels.env == 'test' && !has(object.binaryData)"}]`,
		},
		{name: "authorizer", code: 201, spec: `validations: [{expression: "authorizer.requestResource.check('delete').allowed() && !authorizer.serviceAccount('team', 'default').group('apps').resource('deployments').check('get').allowed() "}, {expression: "authorizer.path('/x').check('get').allowed()"}]`},
		{name: "libraries", code: 201, spec: `validations: [{expression: "quantity('1Gi').isGreaterThan(quantity('1Mi')) && isIP('10.0.0.1') && url('https://a').getHost() == 'a' && [1, 2].sum() == 3 && 'abc'.find('b') == 'b' && semver('1.2.3').major() == 1"}]`},
		{
			name: "budget of an expression", code: 422, message: "resulted in error: operation cancelled: actual cost limit exceeded",
			spec: "validations: [{expression: \"" + twoChecks + " && authorizer.path('/x').check('get').allowed()\"}]",
		},
		{
			name: "budget of the policy", code: 422, message: "denied request: validation failed due to running out of cost budget, no further validation rules will be run",
			spec: "validations:" + strings.Repeat("\n- {expression: \""+twoChecks+"\"}", 15),
		},
		{
			name: "budget of the policy, ignored", code: 201, spec: "failurePolicy: Ignore\nvalidations:" + strings.Repeat("\n- {expression: \""+twoChecks+"\"}", 15),
		},
		{name: "warn", spec: "validations: [{expression: 'false', message: refused}]", binding: "validationActions: [Warn]", code: 201},
		{name: "audit", spec: "validations: [{expression: 'false', message: refused}]", binding: "validationActions: [Audit]", code: 201},
		{name: "audit and deny", spec: "validations: [{expression: 'false', message: refused}]", binding: "validationActions: [Audit, Deny]", code: 422},
		{name: "excluded by the binding", spec: "validations: [{expression: 'false'}]", binding: "matchResources: {namespaceSelector: {matchLabels: {env: production}}}", code: 201},
		{name: "included by the binding", spec: "validations: [{expression: 'false'}]", binding: "matchResources: {namespaceSelector: {matchLabels: {env: test}}, objectSelector: {matchLabels: {app: x}}}", code: 422},
		{name: "excluded by name", spec: "matchConstraints: {resourceRules: [{apiGroups: ['*'], apiVersions: ['*'], operations: ['*'], resources: ['*']}], excludeResourceRules: [{apiGroups: ['*'], apiVersions: ['*'], operations: ['*'], resources: ['*'], resourceNames: [x]}]}\nvalidations: [{expression: 'false'}]", code: 201},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.validate("p", test.spec, test.binding)
			r := s.configMap("x", test.data)
			if r.code != test.code || !strings.Contains(r.message(t), test.message) {
				t.Fatalf("%d %s", r.code, r.body)
			}
			if test.code >= 300 && test.reason != "" {
				if status := r.status(t); string(status.Reason) != test.reason || len(status.Details.Causes) != 1 ||
					!strings.HasPrefix(status.Details.Causes[0].Message, "ValidatingAdmissionPolicy 'p' with binding 'p-0' denied request: ") {
					t.Errorf("%s", r.body)
				}
			}
			warned := len(r.warnings) == 1 && strings.Contains(r.warnings[0], "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p-0': refused")
			if warned != strings.Contains(test.binding, "Warn") {
				t.Errorf("warnings %q", r.warnings)
			}
			audited := s.annotations.made["validation.policy.admission.k8s.io/validation_failure"]
			if (audited != "") != strings.Contains(test.binding, "Audit") {
				t.Errorf("audited %q", audited)
			}
			if audited != "" {
				var failures []map[string]any
				if err := json.Unmarshal([]byte(audited), &failures); err != nil || len(failures) != 1 || failures[0]["message"] != "refused" ||
					failures[0]["policy"] != "p" || failures[0]["binding"] != "p-0" || failures[0]["expressionIndex"] != 0.0 {
					t.Errorf("%v %s", err, audited)
				}
			}
		})
	}
}

// TestUpdatesAndDeletions: policies see both objects of an update, and the old one of a deletion.
func TestUpdatesAndDeletions(t *testing.T) {
	s := newServer(t)
	s.validate("p", `
matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE, DELETE], resources: [configmaps]}]}
validations:
- {expression: "request.operation != 'UPDATE' || object.data.a == oldObject.data.a", message: a is immutable}
- {expression: "request.operation != 'DELETE' || object == null && oldObject.data.a != 'keep'", message: keep it}
`)
	s.must("POST", "/api/v1/namespaces/team/configmaps", "metadata: {name: x}\ndata: {a: keep}")
	const path = "/api/v1/namespaces/team/configmaps/x"
	if r := s.as("admin", "PATCH", path, "data: {a: b}"); r.code != 422 || !strings.Contains(r.message(t), "denied request: a is immutable") {
		t.Errorf("%d %s", r.code, r.body)
	}
	s.must("PATCH", path, "data: {b: c}")
	if r := s.as("admin", "DELETE", path, "{}"); r.code != 422 || !strings.Contains(r.message(t), "denied request: keep it") {
		t.Errorf("%d %s", r.code, r.body)
	}
	// Dry runs are validated too.
	if r := s.as("admin", "PATCH", path+"?dryRun=All", "data: {a: b}"); r.code != 422 {
		t.Errorf("%d %s", r.code, r.body)
	}
}

// TestPolicyChanges: a change of a policy or a binding has its effect on the next request.
func TestPolicyChanges(t *testing.T) {
	s := newServer(t)
	denied := func(name string) bool {
		t.Helper()
		r := s.configMap(name, "")
		if r.code != 201 && r.code != 422 {
			t.Fatalf("%d %s", r.code, r.body)
		}
		return r.code == 422
	}
	s.must("POST", group+"validatingadmissionpolicies", "metadata: {name: p}\nspec:\n  matchConstraints: "+configMaps+"\n  validations: [{expression: 'false'}]")
	if denied("a") {
		t.Error("denied without a binding")
	}
	s.must("POST", group+"validatingadmissionpolicybindings", "metadata: {name: b}\nspec: {policyName: p, validationActions: [Deny]}")
	if !denied("b") {
		t.Error("not denied with a binding")
	}
	s.must("PATCH", group+"validatingadmissionpolicies/p", "spec: {validations: [{expression: 'true'}]}")
	if denied("c") {
		t.Error("denied by the policy as it was")
	}
	s.must("PATCH", group+"validatingadmissionpolicies/p", "spec: {validations: [{expression: 'false'}]}")
	s.must("PATCH", group+"validatingadmissionpolicybindings/b", "spec: {validationActions: [Audit]}")
	if denied("d") {
		t.Error("denied by the binding as it was")
	}
	s.must("PATCH", group+"validatingadmissionpolicybindings/b", "spec: {validationActions: [Deny]}")
	if !denied("e") {
		t.Error("not denied by the binding as it is")
	}
	s.must("DELETE", group+"validatingadmissionpolicybindings/b", "{}")
	if denied("f") {
		t.Error("denied without its binding")
	}
}

// TestPoliciesAreExempt: a policy that matches everything does not prevent its own removal, or reviews.
func TestPoliciesAreExempt(t *testing.T) {
	s := newServer(t)
	s.validate("p", "matchConstraints: {resourceRules: [{apiGroups: ['*'], apiVersions: ['*'], operations: ['*'], resources: ['*/*']}]}\nvalidations: [{expression: 'false'}]")
	s.must("PATCH", group+"validatingadmissionpolicies/p", "metadata: {labels: {a: b}}")
	s.must("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "spec: {namespace: team}")
	if r := s.configMap("x", ""); r.code != 422 {
		t.Errorf("%d %s", r.code, r.body)
	}
	s.must("DELETE", group+"validatingadmissionpolicybindings/p-0", "{}")
	s.must("DELETE", group+"validatingadmissionpolicies/p", "{}")
}

// TestEquivalentVersions: a policy for one version sees objects that are written in another, in its own version, unless it is Exact.
func TestEquivalentVersions(t *testing.T) {
	s := newServer(t)
	const spec = "matchConstraints: {matchPolicy: %s, resourceRules: [{apiGroups: [autoscaling], apiVersions: [v1], operations: [CREATE], resources: [horizontalpodautoscalers]}]}\nvalidations: [{expression: \"object.apiVersion == 'autoscaling/v1' && object.spec.targetCPUUtilizationPercentage < 50 || request.kind.version == request.requestKind.version\", message: %s}]"
	s.validate("equivalent", fmt.Sprintf(spec, "Equivalent", "equivalent"))
	s.validate("exact", fmt.Sprintf(strings.ReplaceAll(spec, "object.apiVersion ==", "'' =="), "Exact", "exact"))
	scaler := func(name string, percent int) *response {
		return s.as("admin", "POST", "/apis/autoscaling/v2/namespaces/team/horizontalpodautoscalers", fmt.Sprintf(
			"metadata: {name: %s}\nspec: {maxReplicas: 2, scaleTargetRef: {kind: Deployment, name: d, apiVersion: apps/v1}, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: %d}}}]}", name, percent))
	}
	if r := scaler("high", 80); r.code != 422 || !strings.Contains(r.message(t), "'equivalent' with binding 'equivalent-0' denied request: equivalent") {
		t.Errorf("%d %s", r.code, r.body)
	}
	if r := scaler("low", 10); r.code != 201 {
		t.Errorf("%d %s", r.code, r.body)
	}
}

// TestSubresources: a policy for a subresource sees its body.
func TestSubresources(t *testing.T) {
	s := newServer(t)
	s.validate("p", "matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [UPDATE], resources: [deployments/scale]}]}\nvalidations: [{expression: \"object.kind == 'Scale' && object.apiVersion == 'autoscaling/v1' && object.spec.replicas < 5\", message: too many}]")
	s.must("POST", "/apis/apps/v1/namespaces/team/deployments", "metadata: {name: d}\nspec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}")
	if r := s.as("admin", "PATCH", "/apis/apps/v1/namespaces/team/deployments/d/scale", "spec: {replicas: 7}"); r.code != 422 || !strings.Contains(r.message(t), "too many") {
		t.Errorf("%d %s", r.code, r.body)
	}
	s.must("PATCH", "/apis/apps/v1/namespaces/team/deployments/d/scale", "spec: {replicas: 3}")
	s.must("PATCH", "/apis/apps/v1/namespaces/team/deployments/d", "spec: {replicas: 7}")
}

// TestParams: a policy is evaluated once for each param of a binding.
func TestParams(t *testing.T) {
	const policy = "paramKind: {apiVersion: v1, kind: ConfigMap}\nvalidations: [{expression: \"params == null ? object.data.a == 'bm9uZQ==' : object.data.a != params.data.refuse\", messageExpression: \"params == null ? 'null' : params.kind + ' ' + params.metadata.name\"}]\nmatchConstraints: {resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [secrets]}]}"
	for _, test := range []struct{ name, binding, value, message string }{
		{"name", "paramRef: {name: one, namespace: team, parameterNotFoundAction: Deny}", "x", "denied request: ConfigMap one"},
		{"name, own namespace", "paramRef: {name: one, parameterNotFoundAction: Deny}", "x", "denied request: ConfigMap one"},
		{"name, other value", "paramRef: {name: one, parameterNotFoundAction: Deny}", "z", ""},
		{"selector", "paramRef: {selector: {matchLabels: {kind: refusal}}, parameterNotFoundAction: Deny}", "y", "denied request: ConfigMap two"},
		{"selector of all", "paramRef: {selector: {}, parameterNotFoundAction: Deny}", "x", "denied request: ConfigMap one"},
		{"selector of none, allow", "paramRef: {selector: {matchLabels: {kind: nosuch}}, parameterNotFoundAction: Allow}", "x", ""},
		{"selector of none, deny", "paramRef: {selector: {matchLabels: {kind: nosuch}}, parameterNotFoundAction: Deny}", "x", "denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"},
		{"absent, allow", "paramRef: {name: nosuch, parameterNotFoundAction: Allow}", "x", ""},
		{"absent, deny", "paramRef: {name: nosuch, parameterNotFoundAction: Deny}", "x", "denied request: failed to configure binding: no params found"},
		{"no reference", "", "x", "denied request: null"},
		{"no reference, allowed", "", "none", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.must("POST", "/api/v1/namespaces/team/configmaps", "metadata: {name: one, labels: {kind: refusal}}\ndata: {refuse: eA==}")
			s.must("POST", "/api/v1/namespaces/team/configmaps", "metadata: {name: two, labels: {kind: refusal}}\ndata: {refuse: eQ==}")
			s.validate("p", policy, test.binding)
			r := s.as("admin", "POST", "/api/v1/namespaces/team/secrets", "metadata: {name: s}\nstringData: {a: '"+test.value+"'}")
			if (r.code == 201) != (test.message == "") || !strings.Contains(r.message(t), test.message) {
				t.Errorf("%d %s", r.code, r.body)
			}
		})
	}
}

// TestParamKinds: params of cluster-scoped kinds, of kinds that are not served, and for objects without namespace.
func TestParamKinds(t *testing.T) {
	for _, test := range []struct{ name, spec, binding, message string }{
		{"cluster-scoped", "paramKind: {apiVersion: v1, kind: Namespace}\nvalidations: [{expression: params.metadata.labels.env == 'x', message: labels}]", "paramRef: {name: team, parameterNotFoundAction: Deny}", "denied request: labels"},
		{"namespace of cluster-scoped", "paramKind: {apiVersion: v1, kind: Namespace}\nvalidations: [{expression: 'true'}]", "paramRef: {name: team, namespace: team, parameterNotFoundAction: Deny}", "denied request: failed to configure binding: paramRef.namespace must not be provided for a cluster-scoped `paramKind`"},
		{"unknown", "paramKind: {apiVersion: example.com/v1, kind: Nosuch}\nvalidations: [{expression: 'true'}]", "paramRef: {name: some, parameterNotFoundAction: Allow}", "ValidatingAdmissionPolicy 'p' denied request: failed to configure policy: failed to find resource referenced by paramKind: 'example.com/v1, Kind=Nosuch'"},
		{"unknown, ignored", "failurePolicy: Ignore\nparamKind: {apiVersion: example.com/v1, kind: Nosuch}\nvalidations: [{expression: 'true'}]", "paramRef: {name: some, parameterNotFoundAction: Allow}", ""},
		{"no namespace", "matchConstraints: {resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [nodes]}]}\nparamKind: {apiVersion: v1, kind: ConfigMap}\nvalidations: [{expression: 'true'}]", "paramRef: {name: some, parameterNotFoundAction: Allow}", "denied request: failed to configure binding: cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"},
		{"other version", "paramKind: {apiVersion: autoscaling/v1, kind: HorizontalPodAutoscaler}\nvalidations: [{expression: params.apiVersion == 'autoscaling/v1' && params.spec.targetCPUUtilizationPercentage == 1, message: cpu}]", "paramRef: {name: h, parameterNotFoundAction: Deny}", "denied request: cpu"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.must("POST", "/apis/autoscaling/v2/namespaces/team/horizontalpodautoscalers", "metadata: {name: h}\nspec: {maxReplicas: 2, scaleTargetRef: {kind: Deployment, name: d, apiVersion: apps/v1}, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 9}}}]}")
			s.validate("p", test.spec, test.binding)
			r := s.configMap("x", "")
			if strings.Contains(test.spec, "nodes") {
				r = s.as("admin", "POST", "/api/v1/nodes", "metadata: {name: node}")
			}
			if (r.code == 201) != (test.message == "") || !strings.Contains(r.message(t), test.message) {
				t.Errorf("%d %s", r.code, r.body)
			}
		})
	}
}

// TestAuditAnnotations: the values of a policy's bindings are joined, an empty value adds none, and an error denies.
func TestAuditAnnotations(t *testing.T) {
	s := newServer(t)
	for _, name := range []string{"one", "two"} {
		s.must("POST", "/api/v1/namespaces/team/secrets", "metadata: {name: "+name+"}")
	}
	s.validate("p", `
paramKind: {apiVersion: v1, kind: Secret}
auditAnnotations:
- {key: joined, valueExpression: "string(params.metadata.name)"}
- {key: same, valueExpression: "' ' + object.metadata.name + ' '"}
- {key: none, valueExpression: "has(object.data) && 'fail' in object.data ? string(object.data.nosuch) : ''"}
`, "paramRef: {name: one, parameterNotFoundAction: Deny}", "paramRef: {name: two, parameterNotFoundAction: Deny}")
	if r := s.configMap("x", ""); r.code != 201 {
		t.Fatalf("%d %s", r.code, r.body)
	}
	if got := fmt.Sprint(s.annotations.made); got != "map[p/joined:one, two p/same:x]" {
		t.Error(got)
	}
	if r := s.configMap("y", "fail: please"); r.code != 422 || !strings.Contains(r.message(t), "no such key: nosuch") {
		t.Errorf("%d %s", r.code, r.body)
	}
}

// TestAuthorizer: an expression asks what the requesting user may do.
func TestAuthorizer(t *testing.T) {
	s := newServer(t)
	s.validate("p", "matchConstraints: {resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}\nvalidations: [{expression: \"authorizer.group('').resource('secrets').namespace('team').check('get').allowed()\", message: reads no secrets, reason: Forbidden}]")
	const pod = "metadata: {name: x}\nspec: {containers: [{name: c, image: i}]}"
	if r := s.as("jane", "POST", "/api/v1/namespaces/team/pods", pod); r.code != 403 || !strings.Contains(r.message(t), "reads no secrets") {
		t.Errorf("%d %s", r.code, r.body)
	}
	s.must("POST", "/api/v1/namespaces/team/pods", pod)
}

// TestMetrics: denials and ignored errors are counted.
func TestMetrics(t *testing.T) {
	s := newServer(t)
	s.validate("p", "matchConditions: [{name: c, expression: object.metadata.name != 'skip'}]\nvalidations: [{expression: object.metadata.name != 'x'}]", "", "validationActions: [Warn, Audit]")
	s.validate("q", "failurePolicy: Ignore\nvalidations: [{expression: object.data.nosuch == ''}]")
	for _, name := range []string{"x", "y", "skip"} {
		s.configMap(name, "")
	}
	body := string(s.as("admin", "GET", "/metrics", "").body)
	for _, want := range []string{
		`apiserver_validating_admission_policy_check_total{enforcement_action="deny",error_type="invalid_error",policy="p",policy_binding="p-0"} 1`,
		`apiserver_validating_admission_policy_check_total{enforcement_action="warn",error_type="invalid_error",policy="p",policy_binding="p-1"} 1`,
		`apiserver_validating_admission_policy_check_total{enforcement_action="audit",error_type="invalid_error",policy="p",policy_binding="p-1"} 1`,
		`apiserver_validating_admission_policy_check_total{enforcement_action="allow",error_type="invalid_error",policy="q",policy_binding="q-0"} 3`,
		`apiserver_validating_admission_policy_check_duration_seconds_count{enforcement_action="deny",error_type="invalid_error",policy="p",policy_binding="p-0"} 1`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s", want)
		}
	}
}
