package core

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"skiff/internal/kind"
)

var Endpoints = kind.Of(kind.Definition[*corev1.Endpoints]{
	GVK: corev1.SchemeGroupVersion.WithKind("Endpoints"), Plural: "endpoints", Short: []string{"ep"}, Namespaced: true, Prefix: "services/endpoints",
	List: &corev1.EndpointsList{},

	Default: func(obj *corev1.Endpoints) {
		for i := range obj.Subsets {
			for j := range obj.Subsets[i].Ports {
				if port := &obj.Subsets[i].Ports[j]; port.Protocol == "" {
					port.Protocol = corev1.ProtocolTCP
				}
			}
		}
	},
	Validate:            validateEndpoints,
	Warn:                warnEndpoints,
	AllowCreateOnUpdate: true,

	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Endpoints", "string", corev1.Endpoints{}.SwaggerDoc()["subsets"]),
		kind.AgeColumn(),
	},
	Row: func(obj *corev1.Endpoints, now time.Time) []any {
		return []any{obj.Name, formatEndpoints(obj), kind.Age(obj.CreationTimestamp, now)}
	},
})

var portProtocols = sets.New(corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)

// validateEndpoints allows stored subsets that violate newer validations as long as they do not change.
func validateEndpoints(_ *kind.Request, obj, old *corev1.Endpoints) (errs field.ErrorList) {
	if old != nil && equality.Semantic.DeepEqual(obj.Subsets, old.Subsets) {
		return nil
	}
	for i := range obj.Subsets {
		subset, idxPath := &obj.Subsets[i], field.NewPath("subsets").Index(i)
		if len(subset.Addresses) == 0 && len(subset.NotReadyAddresses) == 0 {
			errs = append(errs, field.Required(idxPath, "must specify `addresses` or `notReadyAddresses`"))
		}
		for j := range subset.Addresses {
			errs = append(errs, validateEndpointAddress(&subset.Addresses[j], idxPath.Child("addresses").Index(j))...)
		}
		for j := range subset.NotReadyAddresses {
			errs = append(errs, validateEndpointAddress(&subset.NotReadyAddresses[j], idxPath.Child("notReadyAddresses").Index(j))...)
		}
		for j := range subset.Ports {
			errs = append(errs, validateEndpointPort(&subset.Ports[j], len(subset.Ports) > 1, idxPath.Child("ports").Index(j))...)
		}
	}
	return errs
}

func validateEndpointAddress(address *corev1.EndpointAddress, path *field.Path) field.ErrorList {
	errs := validation.IsValidIPForLegacyField(path.Child("ip"), address.IP, true, nil)
	if address.Hostname != "" {
		errs = append(errs, kind.Invalid(path.Child("hostname"), address.Hostname, validation.IsDNS1123Label(address.Hostname))...)
	}
	if address.NodeName != nil {
		errs = append(errs, kind.Invalid(path.Child("nodeName"), *address.NodeName, apivalidation.NameIsDNSSubdomain(*address.NodeName, false))...)
	}
	return append(errs, ValidateEndpointIP(address.IP, path.Child("ip"))...)
}

func validateEndpointPort(port *corev1.EndpointPort, requireName bool, path *field.Path) (errs field.ErrorList) {
	if port.Name != "" {
		errs = append(errs, kind.Invalid(path.Child("name"), port.Name, validation.IsDNS1123Label(port.Name))...)
	} else if requireName {
		errs = append(errs, field.Required(path.Child("name"), ""))
	}
	errs = append(errs, kind.Invalid(path.Child("port"), port.Port, validation.IsValidPortNum(int(port.Port)))...)
	errs = append(errs, validateProtocol(port.Protocol, path.Child("protocol"))...)
	if port.AppProtocol != nil {
		errs = append(errs, kind.Invalid(path.Child("appProtocol"), *port.AppProtocol, validation.IsQualifiedName(*port.AppProtocol))...)
	}
	return errs
}

func validateProtocol(protocol corev1.Protocol, path *field.Path) field.ErrorList {
	if protocol == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return supported(path, protocol, portProtocols)
}

// ValidateEndpointIP refuses loopback, link-local and similar addresses: endpoints are written by users, and a proxy that
// follows them may reach what the user may not.
func ValidateEndpointIP(address string, path *field.Path) (errs field.ErrorList) {
	ip := netutils.ParseIPSloppy(address)
	if ip == nil {
		return field.ErrorList{field.Invalid(path, address, "must be a valid IP address")}
	}
	refuse := func(refused bool, message string) {
		if refused {
			errs = append(errs, field.Invalid(path, address, message))
		}
	}
	refuse(ip.IsUnspecified(), fmt.Sprintf("may not be unspecified (%v)", address))
	refuse(ip.IsLoopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)")
	refuse(ip.IsLinkLocalUnicast(), "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
	refuse(ip.IsLinkLocalMulticast(), "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
	return errs
}

// warnEndpoints ignores objects of the endpoints controller, which writes canonical addresses.
func warnEndpoints(obj, _ *corev1.Endpoints) (warnings []string) {
	if obj.Labels["endpoints.kubernetes.io/managed-by"] == "endpoint-controller" {
		return nil
	}
	for i, subset := range obj.Subsets {
		idxPath := field.NewPath("subsets").Index(i)
		for j, address := range subset.Addresses {
			warnings = append(warnings, validation.GetWarningsForIP(idxPath.Child("addresses").Index(j).Child("ip"), address.IP)...)
		}
		for j, address := range subset.NotReadyAddresses {
			warnings = append(warnings, validation.GetWarningsForIP(idxPath.Child("notReadyAddresses").Index(j).Child("ip"), address.IP)...)
		}
	}
	return warnings
}

// formatEndpoints shows the first three ready addresses with their ports, and the number of the others.
func formatEndpoints(obj *corev1.Endpoints) string {
	if len(obj.Subsets) == 0 {
		return "<none>"
	}
	const most = 3
	var all []string
	for _, subset := range obj.Subsets {
		if len(subset.Ports) == 0 {
			for _, address := range subset.Addresses {
				all = append(all, address.IP)
			}
		}
		for _, port := range subset.Ports {
			for _, address := range subset.Addresses {
				all = append(all, net.JoinHostPort(address.IP, strconv.Itoa(int(port.Port))))
			}
		}
	}
	if len(all) > most {
		return fmt.Sprintf("%s + %d more...", strings.Join(all[:most], ","), len(all)-most)
	}
	return strings.Join(all, ",")
}
