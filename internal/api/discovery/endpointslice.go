package discovery

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"skiff/internal/api/core"
	"skiff/internal/kind"
)

const (
	maxTopologyLabels = 16
	maxAddresses      = 100
	maxPorts          = 20000
	maxEndpoints      = 1000
	maxHints          = 8
)

var EndpointSlice = kind.Of(kind.Definition[*discoveryv1.EndpointSlice]{
	GVK: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), Plural: "endpointslices", Namespaced: true,
	List: &discoveryv1.EndpointSliceList{},

	Default: func(obj *discoveryv1.EndpointSlice) {
		for i := range obj.Ports {
			port := &obj.Ports[i]
			if port.Name == nil {
				port.Name = new(string)
			}
			if port.Protocol == nil {
				protocol := corev1.ProtocolTCP
				port.Protocol = &protocol
			}
		}
	},
	Prepare:  prepareEndpointSlice,
	Validate: validateEndpointSlice,
	Warn:     warnEndpointSlice,
	SpecChanged: func(obj, old *discoveryv1.EndpointSlice) bool {
		return obj.AddressType != old.AddressType || !equality.Semantic.DeepEqual(obj.Endpoints, old.Endpoints) ||
			!equality.Semantic.DeepEqual(obj.Ports, old.Ports) || !equality.Semantic.DeepEqual(obj.Labels, old.Labels)
	},

	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("AddressType", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["addressType"]),
		kind.Column("Ports", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["ports"]),
		kind.Column("Endpoints", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["endpoints"]),
		kind.AgeColumn(),
	},
	Row: endpointSliceRow,
})

// prepareEndpointSlice drops the deprecated topology. The node in it moves into its own field if the stored slice had it
// too.
func prepareEndpointSlice(_ *kind.Request, obj, old *discoveryv1.EndpointSlice) {
	if old != nil && equality.Semantic.DeepEqual(obj.Endpoints, old.Endpoints) {
		return
	}
	known := sets.New[string]()
	if old != nil {
		for _, endpoint := range old.Endpoints {
			known.Insert(endpoint.DeprecatedTopology[corev1.LabelHostname])
		}
		known.Delete("")
	}
	for i := range obj.Endpoints {
		endpoint := &obj.Endpoints[i]
		name := endpoint.DeprecatedTopology[corev1.LabelHostname]
		if endpoint.NodeName == nil && known.Has(name) && len(apivalidation.NameIsDNSSubdomain(name, false)) == 0 {
			endpoint.NodeName = &name
		}
		endpoint.DeprecatedTopology = nil
	}
}

func warnEndpointSlice(obj, old *discoveryv1.EndpointSlice) (warnings []string) {
	if old == nil && obj.AddressType == discoveryv1.AddressTypeFQDN {
		warnings = append(warnings, fmt.Sprintf("%s: FQDN endpoints are deprecated", field.NewPath("spec", "addressType")))
	}
	// The controllers write canonical addresses.
	switch obj.Labels[discoveryv1.LabelManagedBy] {
	case "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io":
		return warnings
	}
	for i, endpoint := range obj.Endpoints {
		for j, address := range endpoint.Addresses {
			warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("endpoints").Index(i).Child("addresses").Index(j), address)...)
		}
	}
	return warnings
}

func endpointSliceRow(obj *discoveryv1.EndpointSlice, now time.Time) []any {
	var ports, addresses []string
	for _, port := range obj.Ports {
		switch {
		case port.Port != nil:
			ports = append(ports, strconv.Itoa(int(*port.Port)))
		case port.Name != nil:
			ports = append(ports, *port.Name)
		default:
			ports = append(ports, "*")
		}
	}
	for _, endpoint := range obj.Endpoints {
		addresses = append(addresses, endpoint.Addresses...)
	}
	return []any{obj.Name, string(obj.AddressType), firstThree(ports), firstThree(addresses), kind.Age(obj.CreationTimestamp, now)}
}

func firstThree(list []string) string {
	const most = 3
	if len(list) > most {
		return fmt.Sprintf("%s + %d more...", strings.Join(list[:most], ","), len(list)-most)
	}
	if text := strings.Join(list, ","); text != "" {
		return text
	}
	return "<unset>"
}

var (
	addressTypes = sets.New(discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)
	protocols    = sets.New(corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
)

func validateEndpointSlice(_ *kind.Request, obj, old *discoveryv1.EndpointSlice) (errs field.ErrorList) {
	addressType := field.NewPath("addressType")
	if obj.AddressType == "" {
		errs = append(errs, field.Required(addressType, ""))
	} else if !addressTypes.Has(obj.AddressType) {
		errs = append(errs, field.NotSupported(addressType, obj.AddressType, sets.List(addressTypes)))
	}
	errs = append(errs, validatePorts(obj.Ports, field.NewPath("ports"))...)
	// Stored endpoints that violate newer validations are allowed as long as they do not change.
	if old == nil || !equality.Semantic.DeepEqual(obj.Endpoints, old.Endpoints) {
		errs = append(errs, validateEndpoints(obj, field.NewPath("endpoints"))...)
	}
	if old != nil && obj.AddressType != old.AddressType {
		errs = append(errs, field.Invalid(addressType, nil, apivalidation.FieldImmutableErrorMsg))
	}
	return errs
}

func validateEndpoints(obj *discoveryv1.EndpointSlice, path *field.Path) (errs field.ErrorList) {
	if len(obj.Endpoints) > maxEndpoints {
		return field.ErrorList{field.TooMany(path, len(obj.Endpoints), maxEndpoints)}
	}
	for i := range obj.Endpoints {
		errs = append(errs, validateEndpoint(&obj.Endpoints[i], obj.AddressType, path.Index(i))...)
	}
	return errs
}

func validateEndpoint(endpoint *discoveryv1.Endpoint, addressType discoveryv1.AddressType, path *field.Path) (errs field.ErrorList) {
	addresses := path.Child("addresses")
	if len(endpoint.Addresses) == 0 {
		errs = append(errs, field.Required(addresses, ""))
	} else if len(endpoint.Addresses) > maxAddresses {
		errs = append(errs, field.TooMany(addresses, len(endpoint.Addresses), maxAddresses))
	}
	for i, address := range endpoint.Addresses {
		errs = append(errs, validateAddress(address, addressType, addresses, i)...)
	}
	if endpoint.NodeName != nil {
		errs = append(errs, kind.Invalid(path.Child("nodeName"), *endpoint.NodeName, apivalidation.NameIsDNSSubdomain(*endpoint.NodeName, false))...)
	}
	topology := path.Child("deprecatedTopology")
	if len(endpoint.DeprecatedTopology) > maxTopologyLabels {
		errs = append(errs, field.TooMany(topology, len(endpoint.DeprecatedTopology), maxTopologyLabels))
	}
	errs = append(errs, metavalidation.ValidateLabels(endpoint.DeprecatedTopology, topology)...)
	if _, found := endpoint.DeprecatedTopology[corev1.LabelTopologyZone]; found {
		errs = append(errs, field.InternalError(topology.Key(corev1.LabelTopologyZone), fmt.Errorf("reserved key was not removed in conversion")))
	}
	if endpoint.Hostname != nil {
		errs = append(errs, kind.Invalid(path.Child("hostname"), *endpoint.Hostname, validation.IsDNS1123Label(*endpoint.Hostname))...)
	}
	if endpoint.Hints != nil {
		errs = append(errs, validateHints(endpoint.Hints, path.Child("hints"))...)
	}
	return errs
}

func validateAddress(address string, addressType discoveryv1.AddressType, addresses *field.Path, i int) (errs field.ErrorList) {
	path := addresses.Index(i)
	switch addressType {
	case discoveryv1.AddressTypeIPv4:
		if errs = validation.IsValidIPForLegacyField(path, address, true, nil); len(errs) > 0 {
			return errs
		}
		if !netutils.IsIPv4String(address) {
			errs = append(errs, field.Invalid(addresses, address, "must be an IPv4 address"))
		}
	case discoveryv1.AddressTypeIPv6:
		if errs = validation.IsValidIP(path, address); len(errs) > 0 {
			return errs
		}
		if !netutils.IsIPv6String(address) {
			errs = append(errs, field.Invalid(addresses, address, "must be an IPv6 address"))
		}
	case discoveryv1.AddressTypeFQDN:
		return validation.IsFullyQualifiedDomainName(path, address)
	default:
		return nil
	}
	return append(errs, core.ValidateEndpointIP(address, path)...)
}

func validatePorts(ports []discoveryv1.EndpointPort, path *field.Path) (errs field.ErrorList) {
	if len(ports) > maxPorts {
		return field.ErrorList{field.TooMany(path, len(ports), maxPorts)}
	}
	names := sets.New[string]()
	for i, port := range ports {
		at, name := path.Index(i), ""
		if port.Name != nil {
			name = *port.Name
		}
		if name != "" {
			errs = append(errs, kind.Invalid(at.Child("name"), name, validation.IsDNS1123Label(name))...)
		}
		if names.Has(name) {
			errs = append(errs, field.Duplicate(at.Child("name"), port.Name))
		}
		names.Insert(name)
		if port.Protocol == nil {
			errs = append(errs, field.Required(at.Child("protocol"), ""))
		} else if !protocols.Has(*port.Protocol) {
			errs = append(errs, field.NotSupported(at.Child("protocol"), *port.Protocol, sets.List(protocols)))
		}
		if port.AppProtocol != nil {
			errs = append(errs, kind.Invalid(at.Child("appProtocol"), *port.AppProtocol, validation.IsQualifiedName(*port.AppProtocol))...)
		}
	}
	return errs
}

func validateHints(hints *discoveryv1.EndpointHints, path *field.Path) (errs field.ErrorList) {
	var zones, nodes []string
	for _, zone := range hints.ForZones {
		zones = append(zones, zone.Name)
	}
	for _, node := range hints.ForNodes {
		nodes = append(nodes, node.Name)
	}
	for _, list := range []struct {
		path     *field.Path
		names    []string
		validate func(string) []string
	}{
		{path.Child("forZones"), zones, validation.IsValidLabelValue},
		{path.Child("forNodes"), nodes, func(name string) []string { return apivalidation.NameIsDNSSubdomain(name, false) }},
	} {
		if len(list.names) > maxHints {
			return append(errs, field.TooMany(list.path, len(list.names), maxHints))
		}
		for i, name := range list.names {
			fldPath := list.path.Index(i).Child("name")
			if slices.Contains(list.names[:i], name) {
				errs = append(errs, field.Duplicate(fldPath, name))
			}
			errs = append(errs, kind.Invalid(fldPath, name, list.validate(name))...)
		}
	}
	return errs
}
