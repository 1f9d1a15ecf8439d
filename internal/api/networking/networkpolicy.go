package networking

import (
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"skiff/internal/kind"
)

var NetworkPolicy = kind.Of(kind.Definition[*networkingv1.NetworkPolicy]{
	GVK: networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"), Plural: "networkpolicies", Short: []string{"netpol"}, Namespaced: true,
	List: &networkingv1.NetworkPolicyList{},

	Default:     defaultNetworkPolicy,
	Validate:    validateNetworkPolicy,
	Warn:        warnNetworkPolicy,
	SpecChanged: func(obj, old *networkingv1.NetworkPolicy) bool { return !reflect.DeepEqual(obj.Spec, old.Spec) },

	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Pod-Selector", "string", networkingv1.NetworkPolicySpec{}.SwaggerDoc()["podSelector"]),
		kind.AgeColumn(),
	},
	Row: func(obj *networkingv1.NetworkPolicy, now time.Time) []any {
		return []any{obj.Name, metav1.FormatLabelSelector(&obj.Spec.PodSelector), kind.Age(obj.CreationTimestamp, now)}
	},
})

func defaultNetworkPolicy(obj *networkingv1.NetworkPolicy) {
	eachRule(&obj.Spec, func(ports []networkingv1.NetworkPolicyPort, _ []networkingv1.NetworkPolicyPeer, _, _ *field.Path) {
		for i := range ports {
			if ports[i].Protocol == nil {
				protocol := corev1.ProtocolTCP
				ports[i].Protocol = &protocol
			}
		}
	})
	if len(obj.Spec.PolicyTypes) == 0 {
		obj.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(obj.Spec.Egress) > 0 {
			obj.Spec.PolicyTypes = append(obj.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
}

// eachRule visits the rules of both directions with the paths of their ports and peers.
func eachRule(spec *networkingv1.NetworkPolicySpec, visit func(ports []networkingv1.NetworkPolicyPort, peers []networkingv1.NetworkPolicyPeer, portsPath, peersPath *field.Path)) {
	for i, rule := range spec.Ingress {
		path := field.NewPath("spec", "ingress").Index(i)
		visit(rule.Ports, rule.From, path.Child("ports"), path.Child("from"))
	}
	for i, rule := range spec.Egress {
		path := field.NewPath("spec", "egress").Index(i)
		visit(rule.Ports, rule.To, path.Child("ports"), path.Child("to"))
	}
}

func warnNetworkPolicy(obj, _ *networkingv1.NetworkPolicy) (warnings []string) {
	eachRule(&obj.Spec, func(_ []networkingv1.NetworkPolicyPort, peers []networkingv1.NetworkPolicyPeer, _, path *field.Path) {
		for i, peer := range peers {
			if peer.IPBlock == nil {
				continue
			}
			fldPath := path.Index(i).Child("ipBlock")
			warnings = append(warnings, validation.GetWarningsForCIDR(fldPath.Child("cidr"), peer.IPBlock.CIDR)...)
			for j, except := range peer.IPBlock.Except {
				warnings = append(warnings, validation.GetWarningsForCIDR(fldPath.Child("except").Index(j), except)...)
			}
		}
	})
	return warnings
}

// allowances is what a stored policy may keep although a new one may not have it.
type allowances struct {
	selector metavalidation.LabelSelectorValidationOptions
	cidrs    []string
}

func allowancesFor(old *networkingv1.NetworkPolicy) (allow allowances) {
	if old == nil {
		return allow
	}
	allow.selector.AllowInvalidLabelValueInSelector = len(metavalidation.ValidateLabelSelector(&old.Spec.PodSelector, metavalidation.LabelSelectorValidationOptions{}, nil)) > 0
	eachRule(&old.Spec, func(_ []networkingv1.NetworkPolicyPort, peers []networkingv1.NetworkPolicyPeer, _, _ *field.Path) {
		for _, peer := range peers {
			if peer.IPBlock != nil {
				allow.cidrs = append(append(allow.cidrs, peer.IPBlock.CIDR), peer.IPBlock.Except...)
			}
		}
	})
	return allow
}

func validateNetworkPolicy(_ *kind.Request, obj, old *networkingv1.NetworkPolicy) field.ErrorList {
	allow := allowancesFor(old)
	errs := metavalidation.ValidateLabelSelector(&obj.Spec.PodSelector, allow.selector, field.NewPath("spec", "podSelector"))
	eachRule(&obj.Spec, func(ports []networkingv1.NetworkPolicyPort, peers []networkingv1.NetworkPolicyPeer, portsPath, peersPath *field.Path) {
		for i := range ports {
			errs = append(errs, validatePolicyPort(&ports[i], portsPath.Index(i))...)
		}
		for i := range peers {
			errs = append(errs, validatePeer(&peers[i], allow, peersPath.Index(i))...)
		}
	})
	types := field.NewPath("spec", "policyTypes")
	if len(obj.Spec.PolicyTypes) > 2 {
		return append(errs, field.Invalid(types, &obj.Spec.PolicyTypes, "may not specify more than two policyTypes"))
	}
	for i, policyType := range obj.Spec.PolicyTypes {
		if policyType != networkingv1.PolicyTypeIngress && policyType != networkingv1.PolicyTypeEgress {
			errs = append(errs, field.NotSupported(types.Index(i), policyType, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}))
		}
	}
	return errs
}

func validatePolicyPort(port *networkingv1.NetworkPolicyPort, path *field.Path) (errs field.ErrorList) {
	if protocol := port.Protocol; protocol != nil && *protocol != corev1.ProtocolTCP && *protocol != corev1.ProtocolUDP && *protocol != corev1.ProtocolSCTP {
		errs = append(errs, field.NotSupported(path.Child("protocol"), *protocol, []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}))
	}
	end := path.Child("endPort")
	switch {
	case port.Port == nil:
		if port.EndPort != nil {
			errs = append(errs, field.Invalid(end, *port.EndPort, "may not be specified when `port` is not specified"))
		}
	case port.Port.Type == intstr.Int:
		errs = append(errs, kind.Invalid(path.Child("port"), port.Port.IntVal, validation.IsValidPortNum(int(port.Port.IntVal)))...)
		if port.EndPort == nil {
			break
		}
		if *port.EndPort < port.Port.IntVal {
			errs = append(errs, field.Invalid(end, *port.EndPort, "must be greater than or equal to `port`"))
		}
		errs = append(errs, kind.Invalid(end, *port.EndPort, validation.IsValidPortNum(int(*port.EndPort)))...)
	default:
		if port.EndPort != nil {
			errs = append(errs, field.Invalid(end, *port.EndPort, "may not be specified when `port` is non-numeric"))
		}
		errs = append(errs, kind.Invalid(path.Child("port"), port.Port.StrVal, validation.IsValidPortName(port.Port.StrVal))...)
	}
	return errs
}

func validatePeer(peer *networkingv1.NetworkPolicyPeer, allow allowances, path *field.Path) (errs field.ErrorList) {
	selects := false
	if peer.PodSelector != nil {
		selects = true
		errs = append(errs, metavalidation.ValidateLabelSelector(peer.PodSelector, allow.selector, path.Child("podSelector"))...)
	}
	if peer.NamespaceSelector != nil {
		selects = true
		errs = append(errs, metavalidation.ValidateLabelSelector(peer.NamespaceSelector, allow.selector, path.Child("namespaceSelector"))...)
	}
	switch {
	case peer.IPBlock == nil && !selects:
		errs = append(errs, field.Required(path, "must specify a peer"))
	case peer.IPBlock != nil:
		errs = append(errs, validateIPBlock(peer.IPBlock, allow, path.Child("ipBlock"))...)
		if selects {
			errs = append(errs, field.Forbidden(path, "may not specify both ipBlock and another peer"))
		}
	}
	return errs
}

func validateIPBlock(block *networkingv1.IPBlock, allow allowances, path *field.Path) field.ErrorList {
	if block.CIDR == "" {
		return field.ErrorList{field.Required(path.Child("cidr"), "")}
	}
	errs := validation.IsValidCIDRForLegacyField(path.Child("cidr"), block.CIDR, true, allow.cidrs)
	_, whole, err := netutils.ParseCIDRSloppy(block.CIDR)
	if err != nil {
		return errs
	}
	wholeBits, _ := whole.Mask.Size()
	for i, text := range block.Except {
		idxPath := path.Child("except").Index(i)
		errs = append(errs, validation.IsValidCIDRForLegacyField(idxPath, text, true, allow.cidrs)...)
		_, except, err := netutils.ParseCIDRSloppy(text)
		if err != nil {
			continue
		}
		if bits, _ := except.Mask.Size(); !whole.Contains(except.IP) || wholeBits >= bits {
			errs = append(errs, field.Invalid(idxPath, text, "must be a strict subset of `cidr`"))
		}
	}
	return errs
}
