package controllers_test

import (
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/world"
)

type validatingPolicy = admissionregistrationv1.ValidatingAdmissionPolicy

// policyAbout is a policy about deployments.
func policyAbout(name, expression string) *validatingPolicy {
	return &validatingPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
			},
		}}},
		Validations: []admissionregistrationv1.Validation{{Expression: expression}},
	}}
}

// playPolicies creates and changes policies with and without errors of types.
func playPolicies(w *world.World) {
	world.Create(w, policyAbout("right", "object.spec.replicas < 5"))
	world.Create(w, policyAbout("wrong", "object.spec.nosuch < 5"))
	w.Pass(time.Minute)
	world.Edit(w, "", "right", func(p *validatingPolicy) { p.Spec.Validations[0].Expression = "object.spec.replicas < '5'" })
	world.Edit(w, "", "wrong", func(p *validatingPolicy) { p.Labels = map[string]string{"a": "b"} })
	w.Pass(time.Hour)
}

// actPolicies creates, changes or removes a policy.
func actPolicies(w *world.World) {
	name := world.Pick(w, "a", "b", "c")
	expression := world.Pick(w, "object.spec.replicas < 5", "object.spec.nosuch < 5")
	if w.Chance(0.2) && !world.Gone[*validatingPolicy](w, "", name) {
		w.Remove(world.Get[*validatingPolicy](w, "", name))
		return
	}
	ensure(w, policyAbout(name, expression), func(p *validatingPolicy) { p.Spec.Validations[0].Expression = expression })
}

// checkPolicies: the status is that of the current generation.
func checkPolicies(w *world.World) {
	for _, p := range world.List[*validatingPolicy](w) {
		warnings := 0
		if p.Status.TypeChecking != nil {
			warnings = len(p.Status.TypeChecking.ExpressionWarnings)
		}
		wrong := p.Spec.Validations[0].Expression == "object.spec.nosuch < 5"
		if p.Status.ObservedGeneration != p.Generation || wrong != (warnings == 1) {
			w.T.Errorf("%s: generation %d, %+v", p.Name, p.Generation, p.Status)
		}
	}
}
