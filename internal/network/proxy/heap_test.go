package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/network/nft"
)

// manager is who has written an object, as the API server records it.
func manager(fields string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{
		Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: ptr.To(metav1.Unix(1e9, 0)), FieldsType: "FieldsV1",
		FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)},
	}}
}

// encoded is the encoding of an object in a watch event.
func encoded(t *testing.T, object interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	data, err := object.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

const typicalUID = "00000000-0000-0000-0000-000000000000"

// typicalService is a Service as users make them.
func typicalService(i int) *corev1.Service {
	name, ip := fmt.Sprint("service-", i), netip.AddrFrom4([4]byte{10, 43, byte(i >> 8), byte(i)}).String()
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: typicalUID, ResourceVersion: "123456", CreationTimestamp: metav1.Unix(1e9, 0), Labels: map[string]string{"app": name},
			ManagedFields: manager(`{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:internalTrafficPolicy":{},"f:ports":{".":{},` +
				`"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}},"f:selector":{},"f:sessionAffinity":{},"f:type":{}}}`),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, Selector: map[string]string{"app": name}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack), InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyCluster),
			SessionAffinity: corev1.ServiceAffinityNone, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

// typicalSlice is the EndpointSlice that the controller makes for a Service.
func typicalSlice(service *corev1.Service, i, endpointCount int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: service.Name + "-x7k2p", GenerateName: service.Name + "-", UID: typicalUID, ResourceVersion: "123456", CreationTimestamp: metav1.Unix(1e9, 0),
			Labels:          map[string]string{discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io", "app": service.Name},
			Annotations:     map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Unix(1e9, 0).UTC().Format(time.RFC3339)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: service.Name, UID: typicalUID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}},
			ManagedFields: manager(`{"f:addressType":{},"f:endpoints":{},"f:metadata":{"f:annotations":{".":{},"f:endpoints.kubernetes.io/last-change-trigger-time":{}},` +
				`"f:generateName":{},"f:labels":{".":{},"f:app":{},"f:endpointslice.kubernetes.io/managed-by":{},"f:kubernetes.io/service-name":{}},` +
				`"f:ownerReferences":{".":{},"k:{\"uid\":\"` + typicalUID + `\"}":{}}},"f:ports":{}}`),
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	for n := range endpointCount {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{netip.AddrFrom4([4]byte{10, 44 + byte(n), byte(i >> 8), byte(i)}).String()}, NodeName: ptr.To(fmt.Sprint("node-", n)), Zone: ptr.To("zone-1"),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("%s-5d4b8c7f9-%05d", service.Name, n), UID: typicalUID},
		})
	}
	return s
}

func liveHeap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// maxServiceMemory bounds the live heap in bytes for a Service with ten endpoints: the encoded objects, without the maps of the informers, and the rules.
const maxServiceMemory = 2200

func TestMemoryPerService(t *testing.T) {
	const count, endpointCount = 2000, 10
	settings, node := testSettings(), testNode()
	m := nft.NewModel(settings.Table)
	m.Replace(baseOwner, base(settings, node))
	before := liveHeap()
	services, slicesOf := make([][]byte, count), make([][]byte, count)
	for i := range count {
		service := typicalService(i)
		services[i], slicesOf[i] = encoded(t, trimService(service)), encoded(t, trimSlice(typicalSlice(service, i, endpointCount)))
	}
	objects := liveHeap()
	for i := range count {
		service, slice := &corev1.Service{}, &discoveryv1.EndpointSlice{}
		if err := errors.Join(service.Unmarshal(services[i]), slice.Unmarshal(slicesOf[i])); err != nil {
			t.Fatal(err)
		}
		m.Replace(keyOf(service).String(), Compile(settings, node, service, []*discoveryv1.EndpointSlice{slice}).Part)
	}
	m.Commit()
	rules := liveHeap()
	t.Logf("for a Service: objects %d bytes, rules %d", (objects-before)/count, (rules-objects)/count)
	if each := (rules - before) / count; each > maxServiceMemory {
		t.Errorf("a Service takes %d bytes, more than %d", each, maxServiceMemory)
	}
	runtime.KeepAlive(services)
	runtime.KeepAlive(slicesOf)
	runtime.KeepAlive(m)
}

// What is kept of objects has the same rules.
func TestTrimmedObjectsHaveTheSameRules(t *testing.T) {
	for _, s := range shapes() {
		settings, node := testSettings(), testNode()
		if s.settings != nil {
			s.settings(&settings)
		}
		if s.node != nil {
			s.node(&node)
		}
		for _, o := range s.objects {
			var trimmed []*discoveryv1.EndpointSlice
			for _, slice := range o.slices {
				trimmed = append(trimmed, trimSlice(slice))
			}
			want, got := Compile(settings, node, o.service, o.slices), Compile(settings, node, trimService(o.service), trimmed)
			wantModel, gotModel := nft.NewModel("test"), nft.NewModel("test")
			wantModel.Replace(baseOwner, base(settings, node))
			gotModel.Replace(baseOwner, base(settings, node))
			wantModel.Replace("service", want.Part)
			gotModel.Replace("service", got.Part)
			if gotModel.String() != wantModel.String() {
				t.Errorf("%s: got\n%s\nwant\n%s", s.name, gotModel, wantModel)
			}
			if got.LocalEndpoints != want.LocalEndpoints || got.HealthCheckPort != want.HealthCheckPort || !slices.EqualFunc(got.Datagrams, want.Datagrams, DatagramPort.equal) {
				t.Errorf("%s: got %+v, want %+v", s.name, got, want)
			}
		}
	}
}
