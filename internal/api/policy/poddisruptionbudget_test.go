package policy

import (
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"skiff/internal/kind/kindtest"
)

type budget = *policyv1.PodDisruptionBudget

func base() budget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b", CreationTimestamp: kindtest.MinutesAgo(2)},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromInt32(1)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
		},
	}
}

func TestValidateBudget(t *testing.T) {
	minimum := func(value intstr.IntOrString) func(budget) { return func(b budget) { b.Spec.MinAvailable = &value } }
	kindtest.Validations(t, PodDisruptionBudget, base(), []kindtest.Case[budget]{
		{Name: "ordinary"},
		{Name: "percent", Change: minimum(intstr.FromString("40%"))},
		{Name: "whole", Change: minimum(intstr.FromString("100%"))},
		{Name: "more than all", Change: minimum(intstr.FromString("101%")), Want: []string{"spec.minAvailable: must not be greater than 100%"}},
		{Name: "negative", Change: minimum(intstr.FromInt32(-1)), Want: []string{"spec.minAvailable: must be greater than or equal to 0"}},
		{Name: "not a percentage", Change: minimum(intstr.FromString("5")), Want: []string{"spec.minAvailable: a valid percent string must be a numeric string followed by an ending '%'"}},
		{Name: "both", Change: func(b budget) { b.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(1)) }, Want: []string{"spec: minAvailable and maxUnavailable cannot be both set"}},
		{Name: "selector", Change: func(b budget) { b.Spec.Selector.MatchLabels["app"] = "not valid" }, Want: []string{"spec.selector.matchLabels: a valid label must be"}},
		{Name: "policy", Change: func(b budget) {
			b.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.UnhealthyPodEvictionPolicyType("x"))
		}, Want: []string{`spec.unhealthyPodEvictionPolicy: Unsupported value: "x": supported values: "AlwaysAllow", "IfHealthyBudget"`}},
		{Name: "spec may change", Update: true, Change: func(b budget) { b.Spec.MinAvailable, b.Spec.MaxUnavailable = nil, ptr.To(intstr.FromString("5%")) }},
	})
	old := kindtest.With(base(), func(b budget) {
		b.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{"not valid"}}}
	})
	if _, errs := kindtest.Update(PodDisruptionBudget, nil, old, old); len(errs) > 0 {
		t.Errorf("a stored selector with an invalid value is refused: %v", errs)
	}
	kindtest.StatusUpdates(t, PodDisruptionBudget, base(), []kindtest.Case[budget]{
		{Name: "negative", Change: func(b budget) {
			b.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: -1, CurrentHealthy: -1, DesiredHealthy: -1, ExpectedPods: -1}
		}, Want: []string{
			"status.disruptionsAllowed: must be greater than or equal to 0", "status.currentHealthy: must be greater than or equal to 0",
			"status.desiredHealthy: must be greater than or equal to 0", "status.expectedPods: must be greater than or equal to 0",
		}},
		{Name: "conditions", Change: func(b budget) { b.Status.Conditions = []metav1.Condition{{Type: "A", Status: "maybe"}} }, Want: []string{
			"status.conditions[0].status: Unsupported value", "status.conditions[0].lastTransitionTime: Required value", "status.conditions[0].reason: Required value",
		}},
	})
}

func TestBudgetGeneration(t *testing.T) {
	changed := kindtest.With(base(), func(b budget) { b.Spec.Selector = nil })
	if !PodDisruptionBudget.SpecChanged(changed, base()) || PodDisruptionBudget.SpecChanged(base(), base()) {
		t.Error("generation does not follow the spec")
	}
}

func TestBudgetRow(t *testing.T) {
	kindtest.ColumnsDescribed(t, PodDisruptionBudget)
	kindtest.Row(t, PodDisruptionBudget, base(), "b", "1", "N/A", int64(0), "2m")
}
