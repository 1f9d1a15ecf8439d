package coordination

import (
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// Lease requires a resourceVersion on update: its holder changes only by compare and swap.
var Lease = kind.Of(kind.Definition[*coordinationv1.Lease]{
	GVK: coordinationv1.SchemeGroupVersion.WithKind("Lease"), Plural: "leases", Namespaced: true,
	List: &coordinationv1.LeaseList{},

	// The feature gate of coordinated leader election is off; a lease keeps the fields that are stored.
	Prepare: func(_ *kind.Request, obj, old *coordinationv1.Lease) {
		if old == nil || old.Spec.Strategy == nil {
			obj.Spec.Strategy = nil
		}
		if old == nil || old.Spec.PreferredHolder == nil {
			obj.Spec.PreferredHolder = nil
		}
	},
	Validate:                validateLease,
	AllowCreateOnUpdate:     true,
	DenyUnconditionalUpdate: true,

	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Holder", "string", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"]),
		kind.AgeColumn(),
	},
	Row: func(obj *coordinationv1.Lease, now time.Time) []any {
		holder := ""
		if obj.Spec.HolderIdentity != nil {
			holder = *obj.Spec.HolderIdentity
		}
		return []any{obj.Name, holder, kind.Age(obj.CreationTimestamp, now)}
	},
})

func validateLease(_ *kind.Request, obj, _ *coordinationv1.Lease) (errs field.ErrorList) {
	spec, path := &obj.Spec, field.NewPath("spec")
	if seconds := spec.LeaseDurationSeconds; seconds != nil && *seconds <= 0 {
		errs = append(errs, field.Invalid(path.Child("leaseDurationSeconds"), seconds, "must be greater than 0"))
	}
	if transitions := spec.LeaseTransitions; transitions != nil && *transitions < 0 {
		errs = append(errs, field.Invalid(path.Child("leaseTransitions"), transitions, "must be greater than or equal to 0"))
	}
	if spec.Strategy != nil {
		errs = append(errs, validateStrategy(*spec.Strategy, path.Child("strategy"))...)
	}
	if holder := spec.PreferredHolder; holder != nil && *holder != "" && (spec.Strategy == nil || *spec.Strategy == "") {
		errs = append(errs, field.Forbidden(path.Child("preferredHolder"), "may only be specified if `strategy` is defined"))
	}
	return errs
}

func validateStrategy(strategy coordinationv1.CoordinatedLeaseStrategy, path *field.Path) (errs field.ErrorList) {
	path = path.Child("strategy")
	if !strings.Contains(string(strategy), "/") {
		if strategy != coordinationv1.OldestEmulationVersion {
			errs = append(errs, field.NotSupported(path, strategy, []coordinationv1.CoordinatedLeaseStrategy{coordinationv1.OldestEmulationVersion}))
		}
		return errs
	}
	for _, message := range validation.IsQualifiedName(string(strategy)) {
		errs = append(errs, field.Invalid(path, strategy, message))
	}
	return errs
}
