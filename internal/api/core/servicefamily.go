package core

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// settleFamilies decides the IP families of a service and their order: from the client's families, then from its
// addresses, then from its policy and the cluster's ranges.
func (n *serviceNetwork) settleFamilies(obj, old *corev1.Service) error {
	spec := &obj.Spec
	withoutSelector := spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0
	if spec.IPFamilyPolicy == nil {
		policy := corev1.IPFamilyPolicySingleStack
		if old != nil && old.Spec.IPFamilyPolicy != nil {
			policy = *old.Spec.IPFamilyPolicy
		} else if withoutSelector {
			// Its endpoints are written manually and may be of both families.
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
		spec.IPFamilyPolicy = &policy
	}
	if errs := validateClusterIPs(obj, old); len(errs) > 0 {
		return invalidService(obj, errs...)
	}
	errs := shrinkToPolicy(obj, old)
	errs = append(errs, n.familiesOfAddresses(obj)...)
	if len(errs) > 0 {
		return invalidService(obj, errs...)
	}
	if withoutSelector {
		if len(spec.IPFamilies) == 0 {
			spec.IPFamilies = []corev1.IPFamily{n.families[0]}
		}
		if len(spec.IPFamilies) == 1 && !isSingleStack(obj) {
			spec.IPFamilies = append(spec.IPFamilies, otherFamily(spec.IPFamilies[0]))
		}
		return nil
	}
	if *spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack && len(n.families) < 2 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
	}
	for i, family := range spec.IPFamilies {
		if !slices.Contains(n.families, family) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilies").Index(i), family, "not configured on this cluster"))
		}
	}
	if len(errs) > 0 {
		return invalidService(obj, errs...)
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{n.families[0]}
	}
	if len(spec.IPFamilies) == 1 && len(n.families) == 2 && !isSingleStack(obj) {
		spec.IPFamilies = append(spec.IPFamilies, otherFamily(spec.IPFamilies[0]))
	}
	return nil
}

// shrinkToPolicy drops the second family when the policy has become SingleStack and the client did not change the lists,
// and refuses lists that do not fit the policy.
func shrinkToPolicy(obj, old *corev1.Service) (errs field.ErrorList) {
	spec, path := &obj.Spec, field.NewPath("spec", "ipFamilyPolicy")
	refuse := func(message string) { errs = append(errs, field.Invalid(path, spec.IPFamilyPolicy, message)) }
	if !isSingleStack(obj) {
		if old != nil && len(spec.ClusterIPs) > 0 && len(spec.ClusterIPs) < len(old.Spec.ClusterIPs) {
			refuse("must be 'SingleStack' to release the secondary cluster IP")
		}
		if old != nil && len(spec.IPFamilies) > 0 && len(spec.IPFamilies) < len(old.Spec.IPFamilies) {
			refuse("must be 'SingleStack' to release the secondary IP family")
		}
		return errs
	}
	if old != nil && len(spec.ClusterIPs) > 1 && slices.Equal(spec.ClusterIPs, old.Spec.ClusterIPs) {
		spec.ClusterIPs = slices.Clone(spec.ClusterIPs[:1])
	}
	if old != nil && len(spec.IPFamilies) > 1 && slices.Equal(spec.IPFamilies, old.Spec.IPFamilies) {
		spec.IPFamilies = slices.Clone(spec.IPFamilies[:1])
	}
	if len(spec.ClusterIPs) == 2 {
		refuse("must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified")
	}
	if len(spec.IPFamilies) == 2 {
		refuse("must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified")
	}
	return errs
}

// familiesOfAddresses adds the families of the addresses beyond the given families.
func (n *serviceNetwork) familiesOfAddresses(obj *corev1.Service) (errs field.ErrorList) {
	spec := &obj.Spec
	if isHeadless(obj) {
		return nil
	}
	for i, text := range spec.ClusterIPs {
		if i < len(spec.IPFamilies) {
			continue
		}
		if family := familyOf(parseIP(text)); slices.Contains(n.families, family) {
			spec.IPFamilies = append(spec.IPFamilies, family)
		} else {
			errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), spec.ClusterIPs, fmt.Sprintf("%s is not configured on this cluster", family)))
		}
	}
	return errs
}

func otherFamily(family corev1.IPFamily) corev1.IPFamily {
	if family == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}
