package scheduling

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kind/kindtest"
	"skiff/internal/podstate"
)

type class = *schedulingv1.PriorityClass

func base() class {
	return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high", CreationTimestamp: kindtest.MinutesAgo(5)}, Value: 100}
}

func TestValidatePriorityClass(t *testing.T) {
	policy := func(p corev1.PreemptionPolicy) func(class) { return func(c class) { c.PreemptionPolicy = &p } }
	kindtest.Validations(t, PriorityClass, base(), []kindtest.Case[class]{
		{Name: "ordinary"},
		{Name: "negative", Change: func(c class) { c.Value = -5 }},
		{Name: "too high", Change: func(c class) { c.Value = HighestUserPriority + 1 }, Want: []string{"value: Forbidden: maximum allowed value of a user defined priority is 1000000000"}},
		{Name: "wrong value", Change: func(c class) { c.Name = SystemNodeCritical }, Want: []string{"metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: value of system-node-critical PriorityClass must be 2000001000"}},
		{Name: "unknown system", Change: func(c class) { c.Name = "system-mine" }, Want: []string{"metadata.name: system-mine is not a known system priority class"}},
		{Name: "global system", Change: func(c class) {
			c.Name, c.Value, c.GlobalDefault = SystemClusterCritical, podstate.SystemCriticalPriority, true
		}, Want: []string{"metadata.name: globalDefault of system-cluster-critical PriorityClass must be false"}},
		{Name: "policy", Change: policy("Maybe"), Want: []string{`preemptionPolicy: Unsupported value: "Maybe": supported values: "PreemptLowerPriority", "Never"`}},
		{Name: "empty policy", Change: policy(""), Want: []string{"preemptionPolicy: Required value"}},
		{Name: "description changed", Update: true, Change: func(c class) { c.Description = "new" }},
		{Name: "value changed", Update: true, Change: func(c class) { c.Value = 1 }, Want: []string{"value: Forbidden: may not be changed in an update."}},
		{Name: "policy changed", Update: true, Change: policy(corev1.PreemptNever), Want: []string{"preemptionPolicy: field is immutable"}},
	})
	for _, c := range SystemPriorityClasses() {
		kindtest.Validations(t, PriorityClass, c, []kindtest.Case[class]{{Name: c.Name}})
	}
}

func TestSystemClassesStay(t *testing.T) {
	for _, c := range SystemPriorityClasses() {
		if err := PriorityClass.Delete.Check(t.Context(), nil, c); !apierrors.IsForbidden(err) {
			t.Errorf("delete %s: %v", c.Name, err)
		}
	}
	if err := PriorityClass.Delete.Check(t.Context(), nil, base()); err != nil {
		t.Errorf("delete of a user's class: %v", err)
	}
}

func TestPriorityClassRow(t *testing.T) {
	c := base()
	PriorityClass.Default(c)
	kindtest.ColumnsDescribed(t, PriorityClass)
	kindtest.Row(t, PriorityClass, c, "high", int64(100), false, "5m", "PreemptLowerPriority")
}
