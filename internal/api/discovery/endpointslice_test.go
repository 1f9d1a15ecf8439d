package discovery

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/api/core"
	"skiff/internal/kind/kindtest"
)

func slice(addressType discoveryv1.AddressType, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns"}, AddressType: addressType, Endpoints: endpoints}
}

func at(addresses ...string) discoveryv1.Endpoint { return discoveryv1.Endpoint{Addresses: addresses} }

func TestEndpointSlice(t *testing.T) {
	hints := at("10.0.0.1")
	hints.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}, {Name: "a"}}, ForNodes: []discoveryv1.ForNode{{Name: "A"}}}
	ports := slice("IPv4")
	ports.Ports = []discoveryv1.EndpointPort{{}, {Protocol: ptr.To(corev1.Protocol("X"))}, {Name: ptr.To("A")}}
	for _, test := range []struct {
		name string
		obj  *discoveryv1.EndpointSlice
		want []string
	}{
		{"fine", slice("IPv4", at("10.0.0.1"), at("10.0.0.2", "10.0.0.3")), nil},
		{"no type", slice(""), []string{"addressType: Required value"}},
		{"type", slice("IPv5"), []string{"addressType: Unsupported value"}},
		{"addresses", slice("IPv4", at(), at("x"), at("fd00::1"), at("127.0.0.1")), []string{
			"endpoints[0].addresses: Required value", "endpoints[1].addresses[0]: Invalid value", "endpoints[2].addresses: Invalid value: must be an IPv4 address", "endpoints[3].addresses[0]: Invalid value: may not be in the loopback range",
		}},
		{"names", slice("FQDN", at("example.com"), at("nodots")), []string{"endpoints[1].addresses[0]: Invalid value: should be a domain with at least two segments separated by dots"}},
		{"hints", slice("IPv4", hints), []string{"endpoints[0].hints.forZones[1].name: Duplicate value", "endpoints[0].hints.forNodes[0].name: Invalid value"}},
		{"ports", ports, []string{"ports[1].name: Duplicate value", "ports[1].protocol: Unsupported value", "ports[2].name: Invalid value"}},
		{"many", slice("IPv4", make([]discoveryv1.Endpoint, 1001)...), []string{"endpoints: Too many"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(EndpointSlice, nil, test.obj)
			if test.name == "many" {
				if len(errs) != 1 || !strings.Contains(errs[0].Error(), "must have at most 1000 items") {
					t.Errorf("%v", errs)
				}
				return
			}
			kindtest.Errors(t, errs, test.want...)
		})
	}
	_, errs := kindtest.Create(EndpointSlice, nil, core.NewKubernetesEndpointSlice([]netip.Addr{netip.MustParseAddr("192.0.2.1")}, 6443))
	kindtest.Errors(t, errs)
}

func TestEndpointSliceUpdate(t *testing.T) {
	old := slice("IPv4", at("127.0.0.1"))
	_, errs := kindtest.Update(EndpointSlice, nil, old, old)
	kindtest.Errors(t, errs)
	_, errs = kindtest.Update(EndpointSlice, nil, slice("IPv6", at("127.0.0.1")), old)
	kindtest.Errors(t, errs, "addressType: Invalid value: field is immutable")

	topology := slice("IPv4", discoveryv1.Endpoint{Addresses: []string{"10.0.0.1"}, DeprecatedTopology: map[string]string{corev1.LabelHostname: "n"}})
	changed := topology.DeepCopy()
	changed.Endpoints[0].Addresses = []string{"10.0.0.2"}
	changed, _ = kindtest.Update(EndpointSlice, nil, changed, topology)
	if endpoint := changed.Endpoints[0]; endpoint.DeprecatedTopology != nil || ptr.Deref(endpoint.NodeName, "") != "n" {
		t.Errorf("%+v", endpoint)
	}
	if !EndpointSlice.SpecChanged(changed, topology) || EndpointSlice.SpecChanged(old, old.DeepCopy()) {
		t.Error("generation")
	}
}

func TestEndpointSliceRow(t *testing.T) {
	now := time.Now()
	obj := slice("IPv4", at("10.0.0.1", "10.0.0.2"), at("10.0.0.3"), at("10.0.0.4"))
	obj.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
	obj.Ports = []discoveryv1.EndpointPort{{Port: ptr.To[int32](80)}, {Name: ptr.To("a")}, {}}
	want := []any{"s", "IPv4", "80,a,*", "10.0.0.1,10.0.0.2,10.0.0.3 + 1 more...", "60m"}
	if got := EndpointSlice.Row(obj, now); !reflect.DeepEqual(got, want) {
		t.Errorf("%#v", got)
	}
	obj.Ports, obj.Endpoints = nil, nil
	if got := EndpointSlice.Row(obj, now); got[2] != "<unset>" || got[3] != "<unset>" {
		t.Errorf("%#v", got)
	}
	if got := EndpointSlice.Warn(slice("FQDN"), nil); len(got) != 1 || len(EndpointSlice.Warn(slice("FQDN"), slice("FQDN"))) != 0 {
		t.Errorf("warnings %q", got)
	}
}
