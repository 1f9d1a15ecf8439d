package policy

import (
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/world"
)

type validatingPolicy = admissionregistrationv1.ValidatingAdmissionPolicy

// policyFor is a policy about resources of one group and version.
func policyFor(group, version, resources string, expressions ...string) *validatingPolicy {
	p := &validatingPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	p.Spec.MatchConstraints = &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{version}, Resources: strings.Fields(resources)},
		},
	}}}
	for _, e := range expressions {
		p.Spec.Validations = append(p.Spec.Validations, admissionregistrationv1.Validation{Expression: e})
	}
	return p
}

func with(p *validatingPolicy, change func(*admissionregistrationv1.ValidatingAdmissionPolicySpec)) *validatingPolicy {
	change(&p.Spec)
	return p
}

// TestTypeChecking: which warnings a policy gets.
func TestTypeChecking(t *testing.T) {
	for _, test := range []struct {
		name   string
		policy *validatingPolicy
		want   []string // field and part of the warning
	}{
		{"right", policyFor("apps", "v1", "deployments", "object.spec.replicas > 1 && oldObject.metadata.name != '' && namespaceObject.metadata.name != '' && request.dryRun && authorizer.requestResource.check('get').allowed()"), nil},
		{"wrong field", policyFor("apps", "v1", "deployments", "true", "object.spec.replicas2 > 1"), []string{"spec.validations[1].expression: apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'replicas2'"}},
		{"wrong type", policyFor("apps", "v1", "deployments", "object.spec.replicas > '1'"), []string{"spec.validations[0].expression: apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'"}},
		{"several types", policyFor("apps", "v1", "statefulsets deployments replicasets", "object.spec.serviceName != ''"), []string{
			"spec.validations[0].expression: apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'serviceName'",
			"apps/v1, Kind=ReplicaSet: ERROR: <input>:1:12: undefined field 'serviceName'"}},
		{"message", with(policyFor("apps", "v1", "deployments", "true"), func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
			s.Validations[0].MessageExpression = "string(object.spec.nosuch)"
		}), []string{"spec.validations[0].messageExpression: apps/v1, Kind=Deployment: ERROR: <input>:1:19: undefined field 'nosuch'"}},
		{"variables", with(policyFor("apps", "v1", "deployments", "variables.replicas > 'a'", "variables.wrong == 1"), func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
			s.Variables = []admissionregistrationv1.Variable{{Name: "replicas", Expression: "object.spec.replicas"}, {Name: "wrong", Expression: "object.spec.wrong"}}
		}), []string{"spec.validations[0].expression: apps/v1, Kind=Deployment: ERROR: <input>:1:20: found no matching overload for '_>_' applied to '(int, string)'"}},
		{"params", with(policyFor("apps", "v1", "deployments", "params.data.a == 'b'", "params.nosuch == 'b'"), func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
			s.ParamKind = &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
		}), []string{"spec.validations[1].expression: apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'nosuch'"}},
		{"wildcards and subresources", policyFor("*", "*", "* deployments/scale", "object.nosuch == 1"), nil},
		{"unknown resource", policyFor("example.com", "v1", "widgets", "object.nosuch == 1"), nil},
		{"another group", policyFor("resource.k8s.io", "v1", "resourceslices", "object.spec.pool.name != ''", "object.spec.nosuch == 1"), []string{"spec.validations[1].expression: resource.k8s.io/v1, Kind=ResourceSlice: ERROR: <input>:1:12: undefined field 'nosuch'"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			world.In(t, func(w *world.World) {
				w.Run(ValidatingStatus)
				world.Create(w, test.policy)
				w.Pass(time.Minute)
				status := world.Get[*validatingPolicy](w, "", "p").Status
				if status.ObservedGeneration != 1 || status.TypeChecking == nil {
					t.Fatalf("%+v", status)
				}
				var got []string
				for _, warning := range status.TypeChecking.ExpressionWarnings {
					for i, text := range strings.Split(strings.TrimSpace(warning.Warning), "\n\n") {
						if i == 0 {
							text = warning.FieldRef + ": " + text
						}
						got = append(got, text)
					}
				}
				if len(got) != len(test.want) {
					t.Fatalf("warnings %q", got)
				}
				for i := range got {
					if !strings.HasPrefix(got[i], test.want[i]) {
						t.Errorf("got %s\nwant %s", got[i], test.want[i])
					}
				}
			})
		})
	}
}

// TestTypeCheckingOfChanges: each generation is checked once.
func TestTypeCheckingOfChanges(t *testing.T) {
	world.In(t, func(w *world.World) {
		w.Run(ValidatingStatus)
		world.Create(w, policyFor("apps", "v1", "deployments", "object.nosuch == 1"))
		w.Pass(time.Minute)
		first := world.Get[*validatingPolicy](w, "", "p")
		if len(first.Status.TypeChecking.ExpressionWarnings) != 1 {
			t.Fatalf("%+v", first.Status)
		}
		world.Edit(w, "", "p", func(p *validatingPolicy) { p.Labels = map[string]string{"a": "b"} })
		w.Pass(time.Minute)
		if again := world.Get[*validatingPolicy](w, "", "p"); again.Status.ObservedGeneration != 1 {
			t.Errorf("%+v", again.Status)
		}
		world.Edit(w, "", "p", func(p *validatingPolicy) { p.Spec.Validations[0].Expression = "object.spec.replicas == 1" })
		w.Pass(time.Minute)
		// The apply that removes the last warning removes what contained it.
		if second := world.Get[*validatingPolicy](w, "", "p"); second.Status.ObservedGeneration != 2 || second.Status.TypeChecking != nil {
			t.Errorf("%+v", second.Status)
		}
		w.AssertSettled(ValidatingStatus)
	})
}
