package networking

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"skiff/internal/kind"
)

// classAnnotation was the class of an ingress before there was a field for it.
const classAnnotation = "kubernetes.io/ingress.class"

var Ingress = kind.Of(kind.Definition[*networkingv1.Ingress]{
	GVK: networkingv1.SchemeGroupVersion.WithKind("Ingress"), Plural: "ingresses", Short: []string{"ing"}, Namespaced: true, Prefix: "ingress",
	List: &networkingv1.IngressList{},

	Validate: validateIngress,
	Warn: func(obj, old *networkingv1.Ingress) []string {
		if _, set := obj.Annotations[classAnnotation]; old == nil && set && obj.Spec.IngressClassName == nil {
			return []string{fmt.Sprintf("annotation %q is deprecated, please use 'spec.ingressClassName' instead", classAnnotation)}
		}
		return nil
	},
	SpecChanged: func(obj, old *networkingv1.Ingress) bool { return !equality.Semantic.DeepEqual(obj.Spec, old.Spec) },

	CopyStatus:     func(to, from *networkingv1.Ingress) { to.Status = from.Status },
	ValidateStatus: validateIngressStatus,
	WarnStatus: func(obj, _ *networkingv1.Ingress) (warnings []string) {
		for i, ingress := range obj.Status.LoadBalancer.Ingress {
			if ingress.IP != "" {
				warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("status", "loadBalancer", "ingress").Index(i), ingress.IP)...)
			}
		}
		return warnings
	},

	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Class", "string", "The name of the IngressClass resource that should be used for additional configuration"),
		kind.Column("Hosts", "string", "Hosts that incoming requests are matched against before the ingress rule"),
		kind.Column("Address", "string", "Address is a list containing ingress points for the load-balancer"),
		kind.Column("Ports", "string", "Ports of TLS configurations that open"),
		kind.AgeColumn(),
	},
	Row: ingressRow,
})

func ingressRow(obj *networkingv1.Ingress, now time.Time) []any {
	class := "<none>"
	if obj.Spec.IngressClassName != nil {
		class = *obj.Spec.IngressClassName
	}
	addresses := sets.New[string]()
	for _, ingress := range obj.Status.LoadBalancer.Ingress {
		if ingress.IP != "" {
			addresses.Insert(ingress.IP)
		} else if ingress.Hostname != "" {
			addresses.Insert(ingress.Hostname)
		}
	}
	ports := "80"
	if len(obj.Spec.TLS) > 0 {
		ports = "80, 443"
	}
	return []any{obj.Name, class, formatHosts(obj.Spec.Rules), strings.Join(sets.List(addresses), ","), ports, kind.Age(obj.CreationTimestamp, now)}
}

// formatHosts shows the first three hosts. The number of the others counts rules, with and without hosts.
func formatHosts(rules []networkingv1.IngressRule) string {
	const most = 3
	var hosts []string
	more := false
	for _, rule := range rules {
		if len(hosts) == most {
			more = true
		} else if rule.Host != "" {
			hosts = append(hosts, rule.Host)
		}
	}
	switch text := strings.Join(hosts, ","); {
	case text == "":
		return "*"
	case more:
		return fmt.Sprintf("%s + %d more...", text, len(rules)-most)
	default:
		return text
	}
}

// ingressRules are the checks that are skipped for stored objects that violate them.
type ingressRules struct {
	anySecretName      bool
	uncheckedWildcards bool
}

func validateIngress(_ *kind.Request, obj, old *networkingv1.Ingress) field.ErrorList {
	var excused ingressRules
	if old != nil {
		for _, tls := range old.Spec.TLS {
			excused.anySecretName = excused.anySecretName || len(validateSecretName(tls.SecretName)) > 0
		}
		for _, rule := range old.Spec.Rules {
			excused.uncheckedWildcards = excused.uncheckedWildcards || strings.Contains(rule.Host, "*") && len(validateHTTP(rule.HTTP, nil)) > 0
		}
	}
	errs := validateIngressSpec(&obj.Spec, excused, field.NewPath("spec"))
	annotation, set := obj.Annotations[classAnnotation]
	if class := obj.Spec.IngressClassName; old == nil && set && class != nil && annotation != *class {
		errs = append(errs, field.Invalid(field.NewPath("annotations").Child(classAnnotation), annotation, "must match `ingressClassName` when both are specified"))
	}
	return errs
}

func validateIngressSpec(spec *networkingv1.IngressSpec, excused ingressRules, path *field.Path) (errs field.ErrorList) {
	if len(spec.Rules) == 0 && spec.DefaultBackend == nil {
		errs = append(errs, field.Invalid(path, spec.Rules, "either `defaultBackend` or `rules` must be specified"))
	}
	if spec.DefaultBackend != nil {
		errs = append(errs, validateBackend(spec.DefaultBackend, path.Child("defaultBackend"))...)
	}
	for i, rule := range spec.Rules {
		idxPath := path.Child("rules").Index(i)
		wildcard := strings.Contains(rule.Host, "*")
		if rule.Host != "" {
			if netutils.ParseIPSloppy(rule.Host) != nil {
				errs = append(errs, field.Invalid(idxPath.Child("host"), rule.Host, "must be a DNS name, not an IP address"))
			}
			errs = append(errs, kind.Invalid(idxPath.Child("host"), rule.Host, validateHost(rule.Host))...)
		}
		if !wildcard || !excused.uncheckedWildcards {
			errs = append(errs, validateHTTP(rule.HTTP, idxPath.Child("http"))...)
		}
	}
	for i, tls := range spec.TLS {
		idxPath := path.Child("tls").Index(i)
		for j, host := range tls.Hosts {
			errs = append(errs, kind.Invalid(idxPath.Child("hosts").Index(j), host, validateHost(host))...)
		}
		if !excused.anySecretName {
			errs = append(errs, kind.Invalid(idxPath.Child("secretName"), tls.SecretName, validateSecretName(tls.SecretName))...)
		}
	}
	if class := spec.IngressClassName; class != nil {
		errs = append(errs, kind.Invalid(path.Child("ingressClassName"), *class, apivalidation.NameIsDNSSubdomain(*class, false))...)
	}
	return errs
}

func validateHost(host string) []string {
	if strings.Contains(host, "*") {
		return validation.IsWildcardDNS1123Subdomain(host)
	}
	return validation.IsDNS1123Subdomain(host)
}

func validateSecretName(name string) []string {
	if name == "" {
		return nil
	}
	return apivalidation.NameIsDNSSubdomain(name, false)
}

func validateHTTP(http *networkingv1.HTTPIngressRuleValue, path *field.Path) (errs field.ErrorList) {
	if http == nil {
		return nil
	}
	if len(http.Paths) == 0 {
		errs = append(errs, field.Required(path.Child("paths"), ""))
	}
	for i := range http.Paths {
		errs = append(errs, validateHTTPPath(&http.Paths[i], path.Child("paths").Index(i))...)
	}
	return errs
}

var pathTypes = sets.New(networkingv1.PathTypeExact, networkingv1.PathTypePrefix, networkingv1.PathTypeImplementationSpecific)

func validateHTTPPath(route *networkingv1.HTTPIngressPath, path *field.Path) (errs field.ErrorList) {
	if route.PathType == nil {
		return field.ErrorList{field.Required(path.Child("pathType"), "pathType must be specified")}
	}
	wrong := func(message string) { errs = append(errs, field.Invalid(path.Child("path"), route.Path, message)) }
	absolute := strings.HasPrefix(route.Path, "/")
	switch *route.PathType {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
		if !absolute {
			wrong("must be an absolute path")
		}
		for _, sequence := range []string{"//", "/./", "/../", "%2f", "%2F"} {
			if strings.Contains(route.Path, sequence) {
				wrong(fmt.Sprintf("must not contain '%s'", sequence))
			}
		}
		for _, suffix := range []string{"/..", "/."} {
			if strings.HasSuffix(route.Path, suffix) {
				wrong(fmt.Sprintf("cannot end with '%s'", suffix))
			}
		}
	case networkingv1.PathTypeImplementationSpecific:
		if route.Path != "" && !absolute {
			wrong("must be an absolute path")
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("pathType"), *route.PathType, sets.List(pathTypes)))
	}
	return append(errs, validateBackend(&route.Backend, path.Child("backend"))...)
}

func validateBackend(backend *networkingv1.IngressBackend, path *field.Path) field.ErrorList {
	switch {
	case backend.Resource != nil && backend.Service != nil:
		return field.ErrorList{field.Invalid(path, "", "cannot set both resource and service backends")}
	case backend.Resource != nil:
		return validateResourceBackend(backend.Resource, path.Child("resource"))
	case backend.Service != nil:
		return validateServiceBackend(backend.Service, path)
	}
	return field.ErrorList{field.Invalid(path, "", "resource or service backend is required")}
}

func validateResourceBackend(ref *corev1.TypedLocalObjectReference, path *field.Path) (errs field.ErrorList) {
	if ref.APIGroup != nil {
		errs = append(errs, kind.Invalid(path.Child("apiGroup"), *ref.APIGroup, validation.IsDNS1123Subdomain(*ref.APIGroup))...)
	}
	errs = append(errs, required(path.Child("kind"), ref.Kind, content.IsPathSegmentName)...)
	return append(errs, required(path.Child("name"), ref.Name, content.IsPathSegmentName)...)
}

func validateServiceBackend(service *networkingv1.IngressServiceBackend, path *field.Path) field.ErrorList {
	errs := required(path.Child("service", "name"), service.Name, validation.IsDNS1123Label)
	name, number := service.Port.Name, service.Port.Number
	switch {
	case name != "" && number != 0:
		errs = append(errs, field.Invalid(path, "", "cannot set both port name & port number"))
	case name != "":
		errs = append(errs, kind.Invalid(path.Child("service", "port", "name"), name, validation.IsValidPortName(name))...)
	case number != 0:
		errs = append(errs, kind.Invalid(path.Child("service", "port", "number"), number, validation.IsValidPortNum(int(number)))...)
	default:
		errs = append(errs, field.Required(path, "port name or number is required"))
	}
	return errs
}

func validateIngressStatus(_ *kind.Request, obj, old *networkingv1.Ingress) (errs field.ErrorList) {
	var stored []string
	for _, ingress := range old.Status.LoadBalancer.Ingress {
		if ingress.IP != "" {
			stored = append(stored, ingress.IP)
		}
	}
	for i, ingress := range obj.Status.LoadBalancer.Ingress {
		idxPath := field.NewPath("status", "loadBalancer", "ingress").Index(i)
		if ingress.IP != "" {
			errs = append(errs, validation.IsValidIPForLegacyField(idxPath.Child("ip"), ingress.IP, true, stored)...)
		}
		if ingress.Hostname != "" {
			errs = append(errs, kind.Invalid(idxPath.Child("hostname"), ingress.Hostname, validation.IsDNS1123Subdomain(ingress.Hostname))...)
			if netutils.ParseIPSloppy(ingress.Hostname) != nil {
				errs = append(errs, field.Invalid(idxPath.Child("hostname"), ingress.Hostname, "must be a DNS name, not an IP address"))
			}
		}
	}
	return errs
}
