package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
)

func cidr(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

func service(name string, changes ...func(*corev1.Service)) *corev1.Service {
	obj := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	for _, change := range changes {
		change(obj)
	}
	return obj
}

func serviceType(t corev1.ServiceType) func(*corev1.Service) {
	return func(obj *corev1.Service) { obj.Spec.Type = t }
}

func clusterIP(ips ...string) func(*corev1.Service) {
	return func(obj *corev1.Service) { obj.Spec.ClusterIP, obj.Spec.ClusterIPs = ips[0], ips }
}

func policy(p corev1.IPFamilyPolicy) func(*corev1.Service) {
	return func(obj *corev1.Service) { obj.Spec.IPFamilyPolicy = &p }
}

func ports(ports ...corev1.ServicePort) func(*corev1.Service) {
	return func(obj *corev1.Service) { obj.Spec.Ports = ports }
}

func localTraffic(obj *corev1.Service) {
	obj.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

// write stores the service as the server would: hooks, preparation, validation, then the store.
func write(client *memoryClient, req *kind.Request, obj *corev1.Service) (*corev1.Service, error) {
	ctx := context.Background()
	obj = obj.DeepCopy()
	defaultService(obj)
	stored, err := client.Get(ctx, services, obj.Namespace, obj.Name)
	var old kind.Object
	var undo func()
	if err == nil {
		old = stored
		undo, err = Service.Hooks.BeforeUpdate(ctx, client, req, obj, old)
	} else {
		undo, err = Service.Hooks.BeforeCreate(ctx, client, req, obj)
	}
	if err != nil {
		return nil, err
	}
	Service.Prepare(req, obj, old)
	if errs := Service.Validate(req, obj, old); len(errs) > 0 {
		undo()
		return nil, errs.ToAggregate()
	}
	if req.DryRun {
		return obj, nil
	}
	client.mu.Lock()
	client.put(key(services, obj.Namespace, obj.Name), obj)
	client.mu.Unlock()
	if old != nil {
		Service.Hooks.AfterUpdate(ctx, client, obj, old)
	}
	return obj, nil
}

func remove(t *testing.T, client *memoryClient, obj *corev1.Service) {
	t.Helper()
	if err := client.Delete(context.Background(), services, obj.Namespace, obj.Name, nil); err != nil {
		t.Fatal(err)
	}
	Service.Hooks.AfterDelete(context.Background(), client, obj)
}

func mustWrite(t *testing.T, client *memoryClient, obj *corev1.Service) *corev1.Service {
	t.Helper()
	stored, err := write(client, &kind.Request{}, obj)
	if err != nil {
		t.Fatalf("write %s: %v", obj.Name, err)
	}
	return stored
}

func takenPorts(t *testing.T, client *memoryClient) []int32 {
	t.Helper()
	m, err := readPortMap(context.Background(), client)
	if err != nil {
		t.Fatal(err)
	}
	taken := []int32{}
	for i := range m.ports.Size {
		if port := int32(m.ports.Base + i); m.has(port) {
			taken = append(taken, port)
		}
	}
	return taken
}

func TestServiceAddresses(t *testing.T) {
	single := cidr(DefaultServiceCIDR, "10.0.0.0/24")
	dual := cidr(DefaultServiceCIDR, "10.0.0.0/24", "fd00::/112")
	for _, test := range []struct {
		name     string
		network  *networkingv1.ServiceCIDR
		service  *corev1.Service
		families string // comma separated
		policy   corev1.IPFamilyPolicy
		err      string
	}{
		{name: "plain", network: single, service: service("a"), families: "IPv4", policy: "SingleStack"},
		{name: "plain in a dual cluster", network: dual, service: service("a"), families: "IPv4", policy: "SingleStack"},
		{name: "prefer dual, single cluster", network: single, service: service("a", policy("PreferDualStack")), families: "IPv4", policy: "PreferDualStack"},
		{name: "prefer dual, dual cluster", network: dual, service: service("a", policy("PreferDualStack")), families: "IPv4,IPv6", policy: "PreferDualStack"},
		{name: "require dual, single cluster", network: single, service: service("a", policy("RequireDualStack")), err: "this cluster is not configured for dual-stack services"},
		{
			name: "IPv6 first", network: dual, families: "IPv6,IPv4", policy: "RequireDualStack",
			service: service("a", policy("RequireDualStack"), func(obj *corev1.Service) { obj.Spec.IPFamilies = []corev1.IPFamily{"IPv6"} }),
		},
		{
			name: "IPv6 in a cluster without", network: single, err: "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
			service: service("a", func(obj *corev1.Service) { obj.Spec.IPFamilies = []corev1.IPFamily{"IPv6"} }),
		},
		{name: "wanted address", network: single, service: service("a", clusterIP("10.0.0.7")), families: "IPv4", policy: "SingleStack"},
		{name: "only clusterIP", network: single, service: service("a", func(obj *corev1.Service) { obj.Spec.ClusterIP = "10.0.0.7" }), families: "IPv4", policy: "SingleStack"},
		{name: "wanted addresses", network: dual, service: service("a", clusterIP("fd00::7", "10.0.0.7"), policy("PreferDualStack")), families: "IPv6,IPv4", policy: "PreferDualStack"},
		{name: "two addresses, one family", network: dual, service: service("a", clusterIP("10.0.0.7", "10.0.0.8")), err: "may specify no more than one IP for each IP family"},
		{name: "two addresses, single stack", network: dual, service: service("a", clusterIP("10.0.0.7", "fd00::7")), err: "must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"},
		{name: "foreign address", network: single, service: service("a", clusterIP("10.1.0.7")), err: "spec.clusterIPs: Invalid value: [\"10.1.0.7\"]: failed to allocate IP 10.1.0.7: the provided network does not match the current range"},
		{name: "network address", network: single, service: service("a", clusterIP("10.0.0.0")), err: "does not match the current range"},
		{name: "broadcast address", network: single, service: service("a", clusterIP("10.0.0.255")), err: "does not match the current range"},
		{name: "taken address", network: single, service: service("a", clusterIP("10.0.0.9")), err: "spec.clusterIPs: Invalid value: [\"10.0.0.9\"]: failed to allocate IP 10.0.0.9: provided IP is already allocated"},
		{name: "headless", network: single, service: service("a", clusterIP("None")), families: "IPv4", policy: "SingleStack"},
		{
			name: "headless without selector", network: single, families: "IPv4,IPv6", policy: "RequireDualStack",
			service: service("a", clusterIP("None"), func(obj *corev1.Service) { obj.Spec.Selector = nil }),
		},
		{name: "external name", network: single, service: service("a", serviceType("ExternalName"), func(obj *corev1.Service) { obj.Spec.ExternalName = "example.com" })},
		{name: "no network yet", network: cidr("other", "10.0.0.0/24"), service: service("a"), err: "does not exist yet"},
		{name: "invalid", network: single, service: service("a", ports()), err: "spec.ports: Required value"},
	} {
		t.Run(test.name, func(t *testing.T) {
			other := service("other", clusterIP("10.0.0.9"))
			client := newMemoryClient(test.network, newIPAddress(netip.MustParseAddr("10.0.0.9"), other))
			stored, err := write(client, &kind.Request{}, test.service)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v, want %q", err, test.err)
				}
				if left := client.names(t, ipAddresses); len(left) != 1 {
					t.Errorf("left behind: %v", left)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var families []string
			for _, family := range stored.Spec.IPFamilies {
				families = append(families, string(family))
			}
			if got := strings.Join(families, ","); got != test.families || ptr.Deref(stored.Spec.IPFamilyPolicy, "") != test.policy {
				t.Errorf("families %s policy %v, want %s %s", got, ptr.Deref(stored.Spec.IPFamilyPolicy, ""), test.families, test.policy)
			}
			for _, ip := range heldIPs(stored) {
				obj, err := client.Get(context.Background(), ipAddresses, "", ip)
				if err != nil {
					t.Errorf("no claim for %s: %v", ip, err)
					continue
				}
				claim := obj.(*networkingv1.IPAddress)
				if !belongsTo(claim, stored) || claim.Labels[networkingv1.LabelManagedBy] != ipAllocator {
					t.Errorf("claim %v", claim)
				}
			}
			if needsClusterIP(stored) && stored.Spec.ClusterIP != stored.Spec.ClusterIPs[0] {
				t.Errorf("clusterIP %s, clusterIPs %v", stored.Spec.ClusterIP, stored.Spec.ClusterIPs)
			}
			remove(t, client, stored)
			if left := client.names(t, ipAddresses); len(left) != 1 {
				t.Errorf("left after deletion: %v", left)
			}
		})
	}
}

func TestServiceAddressChange(t *testing.T) {
	dual := cidr(DefaultServiceCIDR, "10.0.0.0/24", "fd00::/112")
	t.Run("an update that names nothing keeps everything", func(t *testing.T) {
		client := newMemoryClient(dual)
		before := mustWrite(t, client, service("a", serviceType("LoadBalancer"), localTraffic))
		after := mustWrite(t, client, service("a", serviceType("LoadBalancer"), localTraffic))
		if before.Spec.ClusterIP != after.Spec.ClusterIP || before.Spec.Ports[0].NodePort != after.Spec.Ports[0].NodePort || before.Spec.HealthCheckNodePort != after.Spec.HealthCheckNodePort {
			t.Errorf("before %+v\nafter %+v", before.Spec, after.Spec)
		}
		if got := len(takenPorts(t, client)); got != 2 {
			t.Errorf("%d ports taken", got)
		}
	})
	t.Run("up to two families and down again", func(t *testing.T) {
		client := newMemoryClient(dual)
		obj := mustWrite(t, client, service("a"))
		obj.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
		up := mustWrite(t, client, obj)
		if len(up.Spec.ClusterIPs) != 2 || len(client.names(t, ipAddresses)) != 2 {
			t.Fatalf("clusterIPs %v", up.Spec.ClusterIPs)
		}
		up.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
		down := mustWrite(t, client, up)
		if !slices.Equal(down.Spec.ClusterIPs, obj.Spec.ClusterIPs) || !slices.Equal(client.names(t, ipAddresses), obj.Spec.ClusterIPs) {
			t.Errorf("clusterIPs %v, claims %v", down.Spec.ClusterIPs, client.names(t, ipAddresses))
		}
	})
	t.Run("the address does not change", func(t *testing.T) {
		client := newMemoryClient(dual)
		obj := mustWrite(t, client, service("a", clusterIP("10.0.0.7")))
		obj.Spec.ClusterIP, obj.Spec.ClusterIPs = "10.0.0.8", []string{"10.0.0.8"}
		if _, err := write(client, &kind.Request{}, obj); err == nil || !strings.Contains(err.Error(), "may not change once set") {
			t.Errorf("error %v", err)
		}
		if got := client.names(t, ipAddresses); !slices.Equal(got, []string{"10.0.0.7"}) {
			t.Errorf("claims %v", got)
		}
	})
	t.Run("to ExternalName and back", func(t *testing.T) {
		client := newMemoryClient(dual)
		obj := mustWrite(t, client, service("a", serviceType("NodePort")))
		obj.Spec.Type, obj.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
		external := mustWrite(t, client, obj)
		if external.Spec.ClusterIP != "" || external.Spec.ClusterIPs != nil || external.Spec.IPFamilies != nil || external.Spec.IPFamilyPolicy != nil || external.Spec.Ports[0].NodePort != 0 || external.Spec.ExternalTrafficPolicy != "" {
			t.Errorf("left: %+v", external.Spec)
		}
		if got := client.names(t, ipAddresses); len(got) != 0 || len(takenPorts(t, client)) != 0 {
			t.Errorf("claims %v, ports %v", got, takenPorts(t, client))
		}
		external.Spec.Type = corev1.ServiceTypeClusterIP
		if back := mustWrite(t, client, external); back.Spec.ClusterIP == "" {
			t.Errorf("no address: %+v", back.Spec)
		}
	})
}

func TestServiceNodePorts(t *testing.T) {
	network := cidr(DefaultServiceCIDR, "10.0.0.0/24")
	other := service("other", serviceType("NodePort"), ports(corev1.ServicePort{Port: 80, NodePort: 30100}))
	for _, test := range []struct {
		name    string
		service *corev1.Service
		taken   int // ports, including the other service's
		check   func(*corev1.Service) bool
		err     string
	}{
		{name: "any", service: service("a", serviceType("NodePort")), taken: 2, check: func(obj *corev1.Service) bool { return obj.Spec.Ports[0].NodePort >= 30086 }},
		{name: "wanted", service: service("a", serviceType("NodePort"), ports(corev1.ServicePort{Port: 80, NodePort: 30007})), taken: 2, check: func(obj *corev1.Service) bool { return obj.Spec.Ports[0].NodePort == 30007 }},
		{
			name: "shared by protocols", taken: 2, check: func(obj *corev1.Service) bool { return obj.Spec.Ports[0].NodePort == obj.Spec.Ports[1].NodePort },
			service: service("a", serviceType("NodePort"), ports(corev1.ServicePort{Name: "t", Port: 53}, corev1.ServicePort{Name: "u", Port: 53, Protocol: "UDP"})),
		},
		{
			name: "shared, wanted by the second", taken: 2, check: func(obj *corev1.Service) bool { return obj.Spec.Ports[0].NodePort == 30053 },
			service: service("a", serviceType("NodePort"), ports(corev1.ServicePort{Name: "t", Port: 53}, corev1.ServicePort{Name: "u", Port: 53, Protocol: "UDP", NodePort: 30053})),
		},
		{name: "taken", service: service("a", serviceType("NodePort"), ports(corev1.ServicePort{Port: 80, NodePort: 30100})), err: "spec.ports[0].nodePort: Invalid value: 30100: provided port is already allocated"},
		{name: "out of range", service: service("a", serviceType("NodePort"), ports(corev1.ServicePort{Port: 80, NodePort: 80})), err: "provided port is not in the valid range. The range of valid ports is 30000-32767"},
		{name: "load balancer with health check", service: service("a", serviceType("LoadBalancer"), localTraffic), taken: 3, check: func(obj *corev1.Service) bool { return obj.Spec.HealthCheckNodePort != 0 }},
		{
			name: "load balancer without node ports", taken: 1, check: func(obj *corev1.Service) bool { return obj.Spec.Ports[0].NodePort == 0 },
			service: service("a", serviceType("LoadBalancer"), func(obj *corev1.Service) { obj.Spec.AllocateLoadBalancerNodePorts = ptr.To(false) }),
		},
		{name: "ClusterIP with a node port", service: service("a", ports(corev1.ServicePort{Port: 80, NodePort: 30007})), err: "may not be used when `type` is 'ClusterIP'"},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := newMemoryClient(network)
			mustWrite(t, client, other)
			stored, err := write(client, &kind.Request{}, test.service)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v, want %q", err, test.err)
				}
				if got := takenPorts(t, client); len(got) != 1 || len(client.names(t, ipAddresses)) != 1 {
					t.Errorf("left behind: ports %v, addresses %v", got, client.names(t, ipAddresses))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := takenPorts(t, client); len(got) != test.taken {
				t.Errorf("taken %v, want %d", got, test.taken)
			}
			if test.check != nil && !test.check(stored) {
				t.Errorf("ports %+v", stored.Spec)
			}
			remove(t, client, stored)
			if got := takenPorts(t, client); !slices.Equal(got, []int32{30100}) {
				t.Errorf("left after deletion: %v", got)
			}
		})
	}
}

func TestServiceNodePortChange(t *testing.T) {
	client := newMemoryClient(cidr(DefaultServiceCIDR, "10.0.0.0/24"))
	obj := mustWrite(t, client, service("a", serviceType("NodePort"), ports(corev1.ServicePort{Name: "x", Port: 80, NodePort: 30001}, corev1.ServicePort{Name: "y", Port: 81, NodePort: 30002})))
	obj.Spec.Ports = []corev1.ServicePort{{Name: "y", Port: 81}, {Name: "z", Port: 82, NodePort: 30003}}
	changed := mustWrite(t, client, obj)
	if changed.Spec.Ports[0].NodePort != 30002 {
		t.Errorf("the kept port has %d", changed.Spec.Ports[0].NodePort)
	}
	if got := takenPorts(t, client); !slices.Equal(got, []int32{30002, 30003}) {
		t.Errorf("taken %v", got)
	}
	changed.Spec.Type = corev1.ServiceTypeLoadBalancer
	changed.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	balanced := mustWrite(t, client, changed)
	if got := takenPorts(t, client); len(got) != 3 || balanced.Spec.HealthCheckNodePort == 0 {
		t.Errorf("taken %v", got)
	}
	balanced.Spec.Type = corev1.ServiceTypeClusterIP
	plain := mustWrite(t, client, balanced)
	if got := takenPorts(t, client); len(got) != 0 || plain.Spec.HealthCheckNodePort != 0 || plain.Spec.AllocateLoadBalancerNodePorts != nil {
		t.Errorf("taken %v, left %+v", got, plain.Spec)
	}
}

func TestServiceDryRunKeepsNothing(t *testing.T) {
	client := newMemoryClient(cidr(DefaultServiceCIDR, "10.0.0.0/24"))
	mustWrite(t, client, service("other", serviceType("NodePort"), clusterIP("10.0.0.9"), ports(corev1.ServicePort{Port: 80, NodePort: 30100})))
	got, err := write(client, &kind.Request{DryRun: true}, service("a", serviceType("NodePort")))
	if err != nil || got.Spec.ClusterIP == "" || got.Spec.Ports[0].NodePort == 0 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, test := range []struct {
		service *corev1.Service
		err     string
	}{
		{service("a", clusterIP("10.0.0.9")), "provided IP is already allocated"},
		{service("a", serviceType("NodePort"), ports(corev1.ServicePort{Port: 80, NodePort: 30100})), "provided port is already allocated"},
	} {
		if _, err := write(client, &kind.Request{DryRun: true}, test.service); err == nil || !strings.Contains(err.Error(), test.err) {
			t.Errorf("error %v, want %q", err, test.err)
		}
	}
	if len(client.names(t, ipAddresses)) != 1 || len(takenPorts(t, client)) != 1 {
		t.Errorf("kept: %v %v", client.names(t, ipAddresses), takenPorts(t, client))
	}
}

// The range is used up to the last address, dynamic part first, and then it is full.
func TestServiceRangeFills(t *testing.T) {
	client := newMemoryClient(cidr(DefaultServiceCIDR, "10.0.0.0/27"))
	lower := 0
	for i := range 30 {
		obj := mustWrite(t, client, service(fmt.Sprint("s", i)))
		inLower := newAddressRange(netip.MustParsePrefix("10.0.0.0/27")).at(16).Compare(netip.MustParseAddr(obj.Spec.ClusterIP)) > 0
		if inLower {
			lower++
		} else if lower > 0 {
			t.Errorf("%s after the static band was used", obj.Spec.ClusterIP)
		}
	}
	if lower != 16 {
		t.Errorf("%d addresses in the static band", lower)
	}
	if _, err := write(client, &kind.Request{}, service("more")); err == nil || !strings.Contains(err.Error(), `failed to allocate a serviceIP for Service "more": range is full`) {
		t.Errorf("error %v", err)
	}
	client.put(key(serviceCIDRs, "", "second"), cidr("second", "10.9.0.0/28"))
	if obj := mustWrite(t, client, service("more")); !strings.HasPrefix(obj.Spec.ClusterIP, "10.9.0.") {
		t.Errorf("address %s", obj.Spec.ClusterIP)
	}
	notReady := cidr("third", "10.8.0.0/28")
	notReady.Status.Conditions = []metav1.Condition{{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionFalse}}
	client.put(key(serviceCIDRs, "", "third"), notReady)
	if _, err := write(client, &kind.Request{}, service("b", clusterIP("10.8.0.3"))); err == nil {
		t.Error("an address of a range that is not ready")
	}
}

func TestServiceAllocationIsConcurrent(t *testing.T) {
	client := newMemoryClient(cidr(DefaultServiceCIDR, "10.0.0.0/24"))
	var group sync.WaitGroup
	for i := range 100 {
		group.Go(func() {
			if _, err := write(client, &kind.Request{}, service(fmt.Sprint("s", i), serviceType("NodePort"))); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if got := len(takenPorts(t, client)); got != 100 || len(client.names(t, ipAddresses)) != 100 {
		t.Errorf("%d ports, %d addresses", got, len(client.names(t, ipAddresses)))
	}
}

// Another server allocates the port between our read and our write.
func TestNodePortTakenMeanwhile(t *testing.T) {
	client := newMemoryClient(cidr(DefaultServiceCIDR, "10.0.0.0/24"))
	mustWrite(t, client, service("first", serviceType("NodePort")))
	client.interfere = func() {
		_, err := client.Update(context.Background(), RangeAllocation.GroupResource(), "", nodePortAllocation, func(obj kind.Object) error {
			stored := obj.(*corev1.RangeAllocation)
			m, err := parsePortMap(stored)
			if err != nil {
				return err
			}
			m.set(30007, true)
			m.store(stored)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	_, err := write(client, &kind.Request{}, service("a", serviceType("NodePort"), ports(corev1.ServicePort{Port: 80, NodePort: 30007})))
	if err == nil || !strings.Contains(err.Error(), "provided port is already allocated") {
		t.Errorf("error %v", err)
	}
}

func TestRepair(t *testing.T) {
	ctx, now := context.Background(), time.Now()
	client := newMemoryClient(cidr(DefaultServiceCIDR, "10.0.0.0/24"))
	kept := mustWrite(t, client, service("kept", serviceType("NodePort"), clusterIP("10.0.0.7"), ports(corev1.ServicePort{Port: 80, NodePort: 30001})))
	// A service lost its addresses, and a crash left addresses without a service.
	if err := client.Delete(ctx, ipAddresses, "", "10.0.0.7", nil); err != nil {
		t.Fatal(err)
	}
	for _, leak := range []struct {
		ip  string
		age time.Duration
	}{{"10.0.0.8", time.Hour}, {"10.0.0.9", time.Second}} {
		claim := newIPAddress(netip.MustParseAddr(leak.ip), service("gone"))
		claim.CreationTimestamp = metav1.NewTime(now.Add(-leak.age))
		if _, err := client.Create(ctx, ipAddresses, claim); err != nil {
			t.Fatal(err)
		}
	}
	if err := changePorts(ctx, client, func(m *portMap) error { m.set(30001, false); m.set(30002, true); return nil }); err != nil {
		t.Fatal(err)
	}
	var repair Repair
	for pass := range 3 {
		if err := repair.Run(ctx, client, "", now); err != nil {
			t.Fatal(err)
		}
		want := []int32{30001, 30002}
		if pass == 2 {
			want = []int32{30001}
		}
		if got := takenPorts(t, client); !slices.Equal(got, want) {
			t.Errorf("pass %d: taken %v, want %v", pass, got, want)
		}
	}
	if got := client.names(t, ipAddresses); !slices.Equal(got, []string{"10.0.0.7", "10.0.0.9"}) {
		t.Errorf("claims %v", got)
	}
	if err := repair.Run(ctx, client, "30000-30099", now); err != nil {
		t.Fatal(err)
	}
	if m, err := readPortMap(ctx, client); err != nil || m.ports.Size != 100 || !m.has(kept.Spec.Ports[0].NodePort) {
		t.Errorf("after a change of the range: %+v %v", m, err)
	}
}

// unavailableClient fails to list until the number of failures is reached.
type unavailableClient struct {
	kind.Client
	failures int
}

func (c *unavailableClient) List(ctx context.Context, resource schema.GroupResource, namespace string) ([]kind.Object, error) {
	if c.failures > 0 {
		c.failures--
		return nil, errors.New("unavailable")
	}
	return c.Client.List(ctx, resource, namespace)
}

// The end of the first pass is reported once, also if it has failed.
func TestRunRepair(t *testing.T) {
	for _, failures := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			client := &unavailableClient{newMemoryClient(cidr(DefaultServiceCIDR, "10.0.0.0/24")), failures}
			reported := 0
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				RunRepair(ctx, client, "", func() { reported++ }, slog.New(slog.DiscardHandler))
			}()
			synctest.Wait()
			first := reported
			time.Sleep(2 * repairInterval)
			stop()
			<-ended
			if first != 1 || reported != 1 {
				t.Errorf("%d failures: reported %d times after the first pass, %d times in the end, want 1", failures, first, reported)
			}
		})
	}
}

func TestAddressRange(t *testing.T) {
	for _, test := range []struct {
		prefix       string
		first, last  string
		size, static uint64
		usable       bool
	}{
		{"10.0.0.0/16", "10.0.0.1", "10.0.255.254", 65534, 256, true},
		{"10.0.0.0/24", "10.0.0.1", "10.0.0.254", 254, 16, true},
		{"10.0.0.0/28", "10.0.0.1", "10.0.0.14", 14, 0, true},
		{"10.0.0.0/27", "10.0.0.1", "10.0.0.30", 30, 16, true},
		{"10.0.0.0/32", "", "", 0, 0, false},
		{"fd00::/112", "fd00::1", "fd00::ffff", 65535, 256, true},
		{"fd00::/64", "fd00::1", "fd00::ffff:ffff:ffff:ffff", 1<<64 - 1, 256, true},
		{"fd00::/48", "", "", 1<<64 - 1, 256, false},
	} {
		r := newAddressRange(netip.MustParsePrefix(test.prefix))
		if r.size != test.size || r.static != test.static || r.usable() != test.usable {
			t.Errorf("%s: size %d static %d usable %v", test.prefix, r.size, r.static, r.usable())
		}
		if test.usable && (r.at(0).String() != test.first || r.at(r.size-1).String() != test.last) {
			t.Errorf("%s: from %s to %s", test.prefix, r.at(0), r.at(r.size-1))
		}
		if test.usable && test.size < 1000 {
			seen := map[netip.Addr]bool{}
			for ip := range r.candidates {
				seen[ip] = r.contains(ip)
			}
			if uint64(len(seen)) != test.size {
				t.Errorf("%s: %d candidates", test.prefix, len(seen))
			}
		}
	}
}
