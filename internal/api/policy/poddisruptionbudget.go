package policy

import (
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/apps"
	"skiff/internal/kind"
)

// PodDisruptionBudget limits how many pods of a set may be evicted at once.
var PodDisruptionBudget = kind.Of(kind.Definition[*policyv1.PodDisruptionBudget]{
	GVK: policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"), Plural: "poddisruptionbudgets", Short: []string{"pdb"}, Namespaced: true,
	List:           &policyv1.PodDisruptionBudgetList{},
	Validate:       validateBudget,
	CopyStatus:     func(to, from *policyv1.PodDisruptionBudget) { to.Status = from.Status },
	ValidateStatus: validateBudgetStatus,
	SpecChanged: func(budget, old *policyv1.PodDisruptionBudget) bool {
		return !equality.Semantic.DeepEqual(budget.Spec, old.Spec)
	},
	DenyUnconditionalUpdate: true,
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Min Available", "string", "The minimum number of pods that must be available."),
		kind.Column("Max Unavailable", "string", "The maximum number of pods that may be unavailable."),
		kind.Column("Allowed Disruptions", "integer", "Calculated number of pods that may be disrupted at this time."),
		kind.AgeColumn(),
	},
	Row: func(budget *policyv1.PodDisruptionBudget, now time.Time) []any {
		return []any{
			budget.Name, orNotApplicable(budget.Spec.MinAvailable), orNotApplicable(budget.Spec.MaxUnavailable),
			int64(budget.Status.DisruptionsAllowed), kind.Age(budget.CreationTimestamp, now),
		}
	},
})

func orNotApplicable(value *intstr.IntOrString) string {
	if value == nil {
		return "N/A"
	}
	return value.String()
}

func validateBudget(_ *kind.Request, budget, old *policyv1.PodDisruptionBudget) field.ErrorList {
	spec, path := &budget.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if spec.MinAvailable != nil && spec.MaxUnavailable != nil {
		errs = append(errs, field.Invalid(path, *spec, "minAvailable and maxUnavailable cannot be both set"))
	}
	limit := func(value *intstr.IntOrString, path *field.Path) {
		if value != nil {
			errs = append(errs, apps.ValidateIntOrPercent(*value, path)...)
			errs = append(errs, apps.ValidateAtMost100Percent(*value, path)...)
		}
	}
	limit(spec.MinAvailable, path.Child("minAvailable"))
	limit(spec.MaxUnavailable, path.Child("maxUnavailable"))
	var options metav1validation.LabelSelectorValidationOptions
	if old != nil {
		options.AllowInvalidLabelValueInSelector = len(metav1validation.ValidateLabelSelector(old.Spec.Selector, options, nil)) > 0
	}
	errs = append(errs, metav1validation.ValidateLabelSelector(spec.Selector, options, path.Child("selector"))...)
	policies := sets.New(policyv1.IfHealthyBudget, policyv1.AlwaysAllow)
	if policy := spec.UnhealthyPodEvictionPolicy; policy != nil && !policies.Has(*policy) {
		errs = append(errs, field.NotSupported(path.Child("unhealthyPodEvictionPolicy"), *policy, sets.List(policies)))
	}
	return errs
}

func validateBudgetStatus(_ *kind.Request, budget, _ *policyv1.PodDisruptionBudget) field.ErrorList {
	status, path := &budget.Status, field.NewPath("status")
	errs := metav1validation.ValidateConditions(status.Conditions, path.Child("conditions"))
	errs = append(errs, validation.ValidateNonnegativeField(int64(status.DisruptionsAllowed), path.Child("disruptionsAllowed"))...)
	errs = append(errs, validation.ValidateNonnegativeField(int64(status.CurrentHealthy), path.Child("currentHealthy"))...)
	errs = append(errs, validation.ValidateNonnegativeField(int64(status.DesiredHealthy), path.Child("desiredHealthy"))...)
	return append(errs, validation.ValidateNonnegativeField(int64(status.ExpectedPods), path.Child("expectedPods"))...)
}
