package networking

import (
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"skiff/internal/kind"
)

var ServiceCIDR = kind.Of(kind.Definition[*networkingv1.ServiceCIDR]{
	GVK: networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), Plural: "servicecidrs",
	List: &networkingv1.ServiceCIDRList{},

	Validate:   validateServiceCIDR,
	CopyStatus: func(to, from *networkingv1.ServiceCIDR) { to.Status = from.Status },
	StatusOnly: true,

	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("CIDRs", "string", networkingv1.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"]),
		kind.AgeColumn(),
	},
	Row: func(obj *networkingv1.ServiceCIDR, now time.Time) []any {
		return []any{obj.Name, strings.Join(obj.Spec.CIDRs, ","), kind.Age(obj.CreationTimestamp, now)}
	},
})

// validateServiceCIDR: services depend on a range, so it is immutable, except that a range of the other family may be added.
func validateServiceCIDR(_ *kind.Request, obj, old *networkingv1.ServiceCIDR) (errs field.ErrorList) {
	path, cidrs := field.NewPath("spec", "cidrs"), obj.Spec.CIDRs
	if old == nil {
		return validateCIDRs(&obj.Spec, path)
	}
	keep := func(i int) {
		if cidrs[i] != old.Spec.CIDRs[i] {
			errs = append(errs, field.Invalid(path.Index(i), cidrs[i], apivalidation.FieldImmutableErrorMsg))
		}
	}
	switch {
	case len(old.Spec.CIDRs) == len(cidrs):
		for i := range cidrs {
			keep(i)
		}
	case len(old.Spec.CIDRs) == 1 && len(cidrs) == 2:
		keep(0)
		errs = append(errs, validateCIDRs(&obj.Spec, path)...)
	default:
		errs = append(errs, field.Invalid(path, cidrs, apivalidation.FieldImmutableErrorMsg))
	}
	return errs
}

func validateCIDRs(spec *networkingv1.ServiceCIDRSpec, path *field.Path) (errs field.ErrorList) {
	switch {
	case len(spec.CIDRs) == 0:
		return field.ErrorList{field.Required(path, "at least one CIDR required")}
	case len(spec.CIDRs) > 2:
		return field.ErrorList{field.Invalid(path, spec, "may only hold up to 2 values")}
	}
	for i, cidr := range spec.CIDRs {
		errs = append(errs, validation.IsValidCIDR(path.Index(i), cidr)...)
	}
	if len(spec.CIDRs) == 2 {
		family := netutils.IPFamilyOfCIDRString(spec.CIDRs[0])
		if family != netutils.IPFamilyUnknown && family == netutils.IPFamilyOfCIDRString(spec.CIDRs[1]) {
			errs = append(errs, field.Invalid(path, spec.CIDRs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"))
		}
	}
	return errs
}
