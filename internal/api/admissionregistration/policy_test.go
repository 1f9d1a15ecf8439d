package admissionregistration

import (
	"reflect"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind/kindtest"
)

func constraints() *admissionregistrationv1.MatchResources {
	return &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: rule(nil)}}}
}

func policy(change func(*admissionregistrationv1.ValidatingAdmissionPolicySpec)) *validatingPolicy {
	policy := &validatingPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: constraints(), Validations: []admissionregistrationv1.Validation{{Expression: "object.spec.replicas < 5"}},
	}}
	if change != nil {
		change(&policy.Spec)
	}
	return policy
}

func TestValidatingPolicies(t *testing.T) {
	type spec = *admissionregistrationv1.ValidatingAdmissionPolicySpec
	validation := func(v admissionregistrationv1.Validation) func(spec) {
		return func(s spec) { s.Validations[0] = v }
	}
	for _, test := range []struct {
		name   string
		change func(spec)
		want   []string
	}{
		{name: "valid"},
		{name: "empty", change: func(s spec) { *s = admissionregistrationv1.ValidatingAdmissionPolicySpec{} }, want: []string{
			"spec.matchConstraints: Required value", "spec.validations: Required value: validations or auditAnnotations must contain at least one item", "spec.auditAnnotations: Required value"}},
		{name: "no rules", change: func(s spec) { s.MatchConstraints.ResourceRules = nil }, want: []string{"spec.matchConstraints.resourceRules: Required value"}},
		{name: "failure policy", change: func(s spec) { s.FailurePolicy = ptr.To(admissionregistrationv1.FailurePolicyType("x")) }, want: []string{"spec.failurePolicy: Unsupported value"}},
		{name: "names", change: func(s spec) { s.MatchConstraints.ResourceRules[0].ResourceNames = []string{"a", "a", "b/c"} }, want: []string{
			"spec.matchConstraints.resourceRules[0].resourceNames[1]: Duplicate value", "spec.matchConstraints.resourceRules[0].resourceNames[2]: Invalid value"}},
		{name: "param kind", change: func(s spec) { s.ParamKind = &admissionregistrationv1.ParamKind{APIVersion: "a/b/c", Kind: "A b"} }, want: []string{
			"spec.paramKind.apiVersion: Invalid value: unexpected GroupVersion string: a/b/c", "spec.paramKind.kind: Invalid value: may have mixed case"}},
		{name: "param group", change: func(s spec) { s.ParamKind = &admissionregistrationv1.ParamKind{APIVersion: "A/"} }, want: []string{
			"spec.paramKind.apiVersion: Invalid value", "spec.paramKind.apiVersion: Invalid value: version must be specified", "spec.paramKind.kind: Required value"}},
		{name: "no params", change: validation(admissionregistrationv1.Validation{Expression: "params.x == 1"}), want: []string{"spec.validations[0].expression: Invalid value: undeclared reference to 'params'"}},
		{name: "params", change: func(s spec) {
			s.ParamKind = &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
			s.Validations[0] = admissionregistrationv1.Validation{Expression: "params.x == 1", MessageExpression: "'x' + params.y"}
			s.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "c", Expression: "params.z == 2"}}
		}},
		{name: "nothing", change: validation(admissionregistrationv1.Validation{Expression: " "}), want: []string{"spec.validations[0].expression: Required value: expression is not specified"}},
		{name: "type", change: validation(admissionregistrationv1.Validation{Expression: "'a'"}), want: []string{"spec.validations[0].expression: Invalid value: must evaluate to bool but got string"}},
		{name: "message", change: validation(admissionregistrationv1.Validation{Expression: "true", Message: "a\nb", MessageExpression: "1", Reason: ptr.To(metav1.StatusReason("Because"))}), want: []string{
			"spec.validations[0].message: Invalid value: must not contain line breaks", "spec.validations[0].messageExpression: Invalid value: must evaluate to string but got int", "spec.validations[0].reason: Unsupported value"}},
		{name: "blank message", change: validation(admissionregistrationv1.Validation{Expression: "true", Message: " ", MessageExpression: " "}), want: []string{
			"spec.validations[0].message: Invalid value: must be non-empty if specified", "spec.validations[0].messageExpression: Invalid value: must be non-empty if specified"}},
		{name: "message without authorizer", change: validation(admissionregistrationv1.Validation{Expression: "true", MessageExpression: "string(authorizer.group('').resource('a').check('b').allowed())"}), want: []string{"spec.validations[0].messageExpression: Invalid value: compilation failed"}},
		{name: "variables", change: func(s spec) {
			s.Variables = []admissionregistrationv1.Variable{{Name: "a", Expression: "1"}, {Name: "b", Expression: "variables.a + 1"}}
			s.Validations[0].Expression = "variables.b == 2"
		}},
		{name: "bad variables", change: func(s spec) {
			s.Variables = []admissionregistrationv1.Variable{{Name: "if", Expression: "1"}, {Name: "b", Expression: "variables.c"}, {}}
			s.Validations[0].Expression = "variables.later"
		}, want: []string{
			"spec.variables[0].name: Invalid value: must be a valid CEL identifier", "spec.variables[1].expression: Invalid value: undefined field 'c'",
			"spec.variables[2].name: Required value: name is not specified", "spec.variables[2].expression: Required value: expression is not specified", "spec.validations[0].expression: Invalid value: undefined field 'later'"}},
		{name: "audit", change: func(s spec) {
			s.Validations, s.AuditAnnotations = nil, []admissionregistrationv1.AuditAnnotation{{Key: "k", ValueExpression: "'x'"}, {Key: "n", ValueExpression: "null"}}
		}},
		{name: "bad audit", change: func(s spec) {
			s.AuditAnnotations = []admissionregistrationv1.AuditAnnotation{{Key: "k", ValueExpression: "1"}, {Key: "k", ValueExpression: " "}, {Key: "-", ValueExpression: strings.Repeat(" ", maxValueExpression) + strings.Repeat("1", maxValueExpression+1)}}
		}, want: []string{
			"spec.auditAnnotations[0].valueExpression: Invalid value: must evaluate to one of", "spec.auditAnnotations[1].valueExpression: Required value: valueExpression is not specified",
			"spec.auditAnnotations[1].key: Duplicate value", "spec.auditAnnotations[2].key: Invalid value", "spec.auditAnnotations[2].valueExpression: Required value: must not exceed 5120 bytes"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(ValidatingAdmissionPolicy, nil, policy(test.change))
			kindtest.Errors(t, errs, test.want...)
		})
	}
}

func TestStoredConditionsAreNotCompiledAgain(t *testing.T) {
	broken := policy(func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
		s.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "c", Expression: "nosuch"}}
	})
	_, errs := kindtest.Update(ValidatingAdmissionPolicy, nil, broken, broken)
	kindtest.Errors(t, errs)
	changed := broken.DeepCopy()
	changed.Spec.ParamKind = &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	_, errs = kindtest.Update(ValidatingAdmissionPolicy, nil, changed, broken)
	kindtest.Errors(t, errs, "spec.matchConditions[0].expression: Invalid value: compilation failed")
}

func TestPolicyStatus(t *testing.T) {
	bad := policy(nil)
	bad.Status.TypeChecking = &admissionregistrationv1.TypeChecking{ExpressionWarnings: []admissionregistrationv1.ExpressionWarning{{}, {FieldRef: "spec[", Warning: "w"}, {FieldRef: "spec.validations[0].expression", Warning: "w"}}}
	bad.Status.Conditions = []metav1.Condition{{Type: "T"}}
	_, errs := kindtest.UpdateSubresource(ValidatingAdmissionPolicy, "status", nil, bad, policy(nil))
	kindtest.Errors(t, errs,
		"status.typeChecking.expressionWarnings[0].warning: Required value", "status.typeChecking.expressionWarnings[0].fieldRef: Required value",
		"status.typeChecking.expressionWarnings[1].fieldRef: Invalid value: invalid JSONPath",
		"status.conditions[0].status: Required value", "status.conditions[0].lastTransitionTime: Required value", "status.conditions[0].reason: Required value")
}

func mutation(change func(*admissionregistrationv1.MutatingAdmissionPolicySpec)) *mutatingPolicy {
	policy := &mutatingPolicy{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
		MatchConstraints: constraints(), ReinvocationPolicy: "Never",
		Mutations: []admissionregistrationv1.Mutation{{PatchType: "ApplyConfiguration", ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{
			Expression: `Object{metadata: Object.metadata{labels: {"a": "b"}}}`}}},
	}}
	if change != nil {
		change(&policy.Spec)
	}
	return policy
}

func TestMutatingPolicies(t *testing.T) {
	type spec = *admissionregistrationv1.MutatingAdmissionPolicySpec
	patch := func(text string) *admissionregistrationv1.JSONPatch {
		return &admissionregistrationv1.JSONPatch{Expression: text}
	}
	for _, test := range []struct {
		name   string
		change func(spec)
		want   []string
	}{
		{name: "apply"},
		{name: "patch", change: func(s spec) {
			s.Variables = []admissionregistrationv1.Variable{{Name: "v", Expression: "'x'"}}
			s.Mutations[0] = admissionregistrationv1.Mutation{PatchType: "JSONPatch", JSONPatch: patch(`[JSONPatch{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey("a/b"), value: variables.v}]`)}
		}},
		{name: "empty", change: func(s spec) { *s = admissionregistrationv1.MutatingAdmissionPolicySpec{} }, want: []string{
			"spec.matchConstraints: Required value", "spec.mutations: Required value: mutations must contain at least one item", "spec.reinvocationPolicy: Required value"}},
		{name: "deletion", change: func(s spec) {
			s.MatchConstraints.ResourceRules[0].Operations = []admissionregistrationv1.OperationType{"DELETE"}
			s.ReinvocationPolicy = "x"
		}, want: []string{"spec.matchConstraints.resourceRules.operations: Unsupported value", "spec.reinvocationPolicy: Unsupported value"}},
		{name: "no type", change: func(s spec) { s.Mutations[0].PatchType = "" }, want: []string{"spec.mutations[0].patchType: Required value"}},
		{name: "unknown type", change: func(s spec) { s.Mutations[0].PatchType = "x" }, want: []string{"spec.mutations[0].patchType: Unsupported value"}},
		{name: "wrong member", change: func(s spec) { s.Mutations[0].PatchType = "JSONPatch" }, want: []string{
			"spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch", "spec.mutations[0].applyConfiguration: Invalid value: must not be specified when patchType is JSONPatch"}},
		{name: "other member", change: func(s spec) {
			s.Mutations[0] = admissionregistrationv1.Mutation{PatchType: "ApplyConfiguration", JSONPatch: patch("[]")}
		}, want: []string{"spec.mutations[0].applyConfiguration: Required value", "spec.mutations[0].jsonPatch: Invalid value"}},
		{name: "types", change: func(s spec) {
			s.Mutations = append(s.Mutations, admissionregistrationv1.Mutation{PatchType: "JSONPatch", JSONPatch: patch("[1]")}, admissionregistrationv1.Mutation{PatchType: "JSONPatch", JSONPatch: patch(" ")})
			s.Mutations[0].ApplyConfiguration.Expression = "1"
		}, want: []string{"spec.mutations[0].applyConfiguration.expression: Invalid value: must evaluate to Object but got int", "spec.mutations[1].jsonPatch.expression: Invalid value: must evaluate to list(JSONPatch) but got list(int)", "spec.mutations[2].jsonPatch.expression: Required value"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(MutatingAdmissionPolicy, nil, mutation(test.change))
			kindtest.Errors(t, errs, test.want...)
		})
	}
}

func TestBindings(t *testing.T) {
	type spec = *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec
	for _, test := range []struct {
		name                 string
		change               func(spec)
		want, wantOfMutating []string
	}{
		{name: "valid"},
		{name: "empty", change: func(s spec) { *s = admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{} },
			want: []string{"spec.policyName: Required value", "spec.validationActions: Required value"}, wantOfMutating: []string{"spec.policyName: Required value"}},
		{name: "name", change: func(s spec) { s.PolicyName = "A" }, want: []string{"spec.policyName: Invalid value"}, wantOfMutating: []string{"spec.policyName: Invalid value"}},
		{name: "actions", change: func(s spec) {
			s.ValidationActions = []admissionregistrationv1.ValidationAction{"Deny", "Warn", "Deny", "Eat"}
		}, want: []string{"spec.validationActions: Invalid value: must not contain both Deny and Warn", "spec.validationActions[2]: Duplicate value", "spec.validationActions[3]: Unsupported value"}},
		{name: "params", change: func(s spec) {
			s.ParamRef = &admissionregistrationv1.ParamRef{Name: "a/b", Selector: &metav1.LabelSelector{}, ParameterNotFoundAction: ptr.To(admissionregistrationv1.ParameterNotFoundActionType("x"))}
		}, want: []string{"spec.paramRef.name: Invalid value", "spec.paramRef.name: Forbidden: name and selector are mutually exclusive", "spec.paramRef.selector: Forbidden", "spec.paramRef.parameterNotFoundAction: Unsupported value"},
			wantOfMutating: []string{"spec.paramRef.name: Invalid value", "spec.paramRef.name: Forbidden", "spec.paramRef.selector: Forbidden", "spec.paramRef.parameterNotFoundAction: Unsupported value"}},
		{name: "no params", change: func(s spec) { s.ParamRef = &admissionregistrationv1.ParamRef{} },
			want:           []string{"spec.paramRef: Required value: one of name or selector must be specified", "spec.paramRef.parameterNotFoundAction: Required value"},
			wantOfMutating: []string{"spec.paramRef: Required value", "spec.paramRef.parameterNotFoundAction: Required value"}},
		{name: "match", change: func(s spec) {
			s.MatchResources = constraints()
			s.MatchResources.ResourceRules[0].Operations = []admissionregistrationv1.OperationType{"DELETE"}
		}, wantOfMutating: []string{"spec.matchResources.resourceRules.operations: Unsupported value"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			binding := &validatingBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "p", ValidationActions: []admissionregistrationv1.ValidationAction{"Deny"}}}
			if test.change != nil {
				test.change(&binding.Spec)
			}
			_, errs := kindtest.Create(ValidatingAdmissionPolicyBinding, nil, binding)
			kindtest.Errors(t, errs, test.want...)
			_, errs = kindtest.Create(MutatingAdmissionPolicyBinding, nil, &mutatingBinding{ObjectMeta: binding.ObjectMeta, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{
				PolicyName: binding.Spec.PolicyName, ParamRef: binding.Spec.ParamRef, MatchResources: binding.Spec.MatchResources}})
			kindtest.Errors(t, errs, test.wantOfMutating...)
		})
	}
}

func TestPolicyDefaultsAndRows(t *testing.T) {
	p := policy(func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
		s.ParamKind = &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	})
	ValidatingAdmissionPolicy.Default(p)
	match := p.Spec.MatchConstraints
	if *p.Spec.FailurePolicy != "Fail" || *match.MatchPolicy != "Equivalent" || match.NamespaceSelector == nil || match.ObjectSelector == nil || *match.ResourceRules[0].Scope != "*" {
		t.Errorf("defaults = %+v", p.Spec)
	}
	if got, want := ValidatingAdmissionPolicy.Row(p, time.Now()), []any{"p", int64(1), "v1/ConfigMap", "<unknown>"}; !reflect.DeepEqual(got, want) {
		t.Errorf("row = %v, want %v", got, want)
	}
	if got, want := MutatingAdmissionPolicy.Row(mutation(nil), time.Now()), []any{"m", int64(1), "<unset>", "<unknown>"}; !reflect.DeepEqual(got, want) {
		t.Errorf("row = %v, want %v", got, want)
	}
	for cell, ref := range map[string]*admissionregistrationv1.ParamRef{
		"<unset>": nil, "*/n": {Name: "n"}, "ns/n": {Name: "n", Namespace: "ns"}, (&metav1.LabelSelector{}).String(): {Selector: &metav1.LabelSelector{}},
	} {
		binding := &validatingBinding{Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "p", ParamRef: ref}}
		if got, want := ValidatingAdmissionPolicyBinding.Row(binding, time.Now()), []any{"", "p", cell, "<unknown>"}; !reflect.DeepEqual(got, want) {
			t.Errorf("row = %v, want %v", got, want)
		}
	}
}
