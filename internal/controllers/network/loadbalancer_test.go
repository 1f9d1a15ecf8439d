package network

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"skiff/internal/controller"
	"skiff/test/world"
)

func balancer(changes ...change[*corev1.Service]) *corev1.Service {
	return with(aService(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }), changes...)
}

func has(ips ...string) change[*corev1.Service] {
	return func(s *corev1.Service) {
		s.Finalizers = []string{balancerFinalizer}
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip, IPMode: new(corev1.LoadBalancerIPModeVIP)})
		}
	}
}

func TestLoadBalancer(t *testing.T) {
	n1, n2 := aNode("n1"), aNode("n2")
	down := aNode("n3", func(n *corev1.Node) { n.Status.Conditions = nil })
	excluded := aNode("n4", func(n *corev1.Node) { n.Labels[corev1.LabelNodeExcludeBalancers] = "" })
	public := aNode("n5", func(n *corev1.Node) {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "198.51.100.5"})
	})
	older := balancer(func(s *corev1.Service) { s.Name, s.UID, s.CreationTimestamp = "older", "uid-older", ago(2*time.Hour) })
	younger := balancer(func(s *corev1.Service) {
		s.Name, s.UID, s.CreationTimestamp = "younger", "uid-younger", ago(time.Minute)
	})
	for _, test := range []struct {
		what string
		view loadBalancerView
		want string
		ips  string
	}{
		{"new", loadBalancerView{service: balancer(), nodes: eligibleOf([]*corev1.Node{n2, n1, down, excluded, public})},
			"patch Service web, patch status of Service web, tell EnsuringLoadBalancer, tell EnsuredLoadBalancer", "192.0.2.1 192.0.2.2 198.51.100.5"},
		{"at rest", loadBalancerView{service: balancer(has("192.0.2.1")), nodes: []*corev1.Node{n1}}, "", ""},
		{"one node more", loadBalancerView{service: balancer(has("192.0.2.1")), nodes: []*corev1.Node{n1, n2}}, "patch status of Service web, tell UpdatedLoadBalancer", "192.0.2.1 192.0.2.2"},
		{"no node left", loadBalancerView{service: balancer(has("192.0.2.1"))}, "patch status of Service web, tell UnAvailableLoadBalancer", ""},
		{"only nodes that serve", loadBalancerView{service: balancer(has("192.0.2.1")), nodes: []*corev1.Node{n1, n2}, serving: map[string]bool{"n2": true}}, "patch status of Service web, tell UpdatedLoadBalancer", "192.0.2.2"},
		{"an older one has the port", loadBalancerView{service: balancer(has("192.0.2.1")), nodes: []*corev1.Node{n1}, others: []*corev1.Service{older}}, "patch status of Service web, tell SyncLoadBalancerFailed", ""},
		{"a younger one wants the port", loadBalancerView{service: balancer(has("192.0.2.1")), nodes: []*corev1.Node{n1}, others: []*corev1.Service{younger}}, "", ""},
		{"a node's own port", loadBalancerView{service: balancer(), nodes: []*corev1.Node{n1}, reserved: []int32{80}}, "patch Service web, tell SyncLoadBalancerFailed", ""},
		{"no longer a load balancer", loadBalancerView{service: aService(has("192.0.2.1")), nodes: []*corev1.Node{n1}},
			"patch status of Service web, patch Service web, tell DeletingLoadBalancer, tell DeletedLoadBalancer", ""},
		{"leaving", loadBalancerView{service: balancer(has("192.0.2.1"), func(s *corev1.Service) { s.DeletionTimestamp = new(ago(0)) })},
			"patch Service web, tell DeletingLoadBalancer, tell DeletedLoadBalancer", ""},
	} {
		plan := test.view.reconcile()
		if got := words(plan); got != test.want {
			t.Errorf("%s: %s\nwant %s", test.what, got, test.want)
		}
		for _, step := range plan.Steps {
			if w := step.Writes[0]; w.Verb == controller.PatchStatus {
				for ip := range strings.FieldsSeq(test.ips) {
					if !strings.Contains(string(w.Patch), `"`+ip+`"`) {
						t.Errorf("%s: %s is missing in %s", test.what, ip, w.Patch)
					}
				}
				if strings.Count(string(w.Patch), `"ip"`) != len(strings.Fields(test.ips)) {
					t.Errorf("%s: %s", test.what, w.Patch)
				}
			}
		}
	}
}

func TestLoadBalancerInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(LoadBalancer(nil))()
		world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		world.EditStatus(w, "", "n1", func(n *corev1.Node) { n.Status = aNode("n1").Status })
		make := func(name string, class *string) *corev1.Service {
			return world.Create(w, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
				Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: class, Ports: []corev1.ServicePort{{Port: 80}}}})
		}
		ip := func(name string) string {
			for _, i := range world.Get[*corev1.Service](w, "default", name).Status.LoadBalancer.Ingress {
				return i.IP
			}
			return ""
		}
		first := make("first", nil)
		w.Pass(time.Second)
		make("second", nil)
		make("other", new("example.com/balancer"))
		w.Pass(time.Second)
		if ip("first") != "192.0.2.1" || ip("second") != "" || ip("other") != "" {
			t.Fatalf("first %q, second %q, other %q", ip("first"), ip("second"), ip("other"))
		}
		w.Remove(first)
		w.Pass(time.Second)
		if !world.Gone[*corev1.Service](w, "default", "first") || ip("second") != "192.0.2.1" {
			t.Errorf("the first goes, the second has %q", ip("second"))
		}
	})
}

func dated(name string, before time.Duration) change[*corev1.Service] {
	return func(s *corev1.Service) {
		s.Name, s.UID, s.CreationTimestamp = name, types.UID("uid-"+name), ago(before)
	}
}

func onPort(port int32, protocol corev1.Protocol) change[*corev1.Service] {
	return func(s *corev1.Service) { s.Spec.Ports[0].Port, s.Spec.Ports[0].Protocol = port, protocol }
}

func ofBalancer(class string) change[*corev1.Service] {
	return func(s *corev1.Service) { s.Spec.LoadBalancerClass = &class }
}

// TestBalancersBusiness: which services, and which nodes.
func TestBalancersBusiness(t *testing.T) {
	for _, test := range []struct {
		what    string
		service *corev1.Service
		want    bool
	}{
		{"a load balancer", balancer(), true}, {"of our class", balancer(ofBalancer("skiff.io/node-address")), true}, {"of another's class", balancer(ofBalancer("example.com/x")), false},
		{"of an empty class", balancer(ofBalancer("")), false}, {"a cluster IP", aService(), false},
		{"a node port", aService(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }), false},
	} {
		if got := isBalanced(test.service); got != test.want {
			t.Errorf("%s: %v", test.what, got)
		}
	}
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus) change[*corev1.Node] {
		return func(n *corev1.Node) { n.Status.Conditions = []corev1.NodeCondition{{Type: kind, Status: status}} }
	}
	for _, test := range []struct {
		what string
		node *corev1.Node
		want bool
	}{
		{"ready", aNode("n1"), true}, {"not ready", aNode("n1", condition(corev1.NodeReady, "False")), false}, {"nobody knows", aNode("n1", condition(corev1.NodeReady, "Unknown")), false},
		{"no condition", aNode("n1", func(n *corev1.Node) { n.Status.Conditions = nil }), false}, {"another condition", aNode("n1", condition(corev1.NodeMemoryPressure, "True")), false},
		{"excluded", aNode("n1", func(n *corev1.Node) { n.Labels[corev1.LabelNodeExcludeBalancers] = "false" }), false},
		{"leaving", aNode("n1", func(n *corev1.Node) { n.DeletionTimestamp = new(ago(0)) }), false},
		{"cordoned: it still serves", aNode("n1", func(n *corev1.Node) { n.Spec.Unschedulable = true }), true},
	} {
		if got := isEligible(test.node); got != test.want {
			t.Errorf("%s: %v", test.what, got)
		}
	}
}

// TestBalancerAddresses: the addresses of nodes, in the families of the service.
func TestBalancerAddresses(t *testing.T) {
	node := func(name string, addresses ...string) *corev1.Node {
		return aNode(name, func(n *corev1.Node) {
			n.Status.Addresses = nil
			for _, a := range addresses {
				kind, ip, _ := strings.Cut(a, "=")
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeAddressType(kind), Address: ip})
			}
		})
	}
	v4, v6 := corev1.IPv4Protocol, corev1.IPv6Protocol
	for _, test := range []struct {
		what    string
		service *corev1.Service
		nodes   []*corev1.Node
		serving map[string]bool
		want    string
	}{
		{"no nodes", balancer(), nil, nil, ""},
		{"an inner address", balancer(), []*corev1.Node{node("a", "InternalIP=192.0.2.1")}, nil, "192.0.2.1"},
		{"an outer one goes first", balancer(), []*corev1.Node{node("a", "InternalIP=192.0.2.1", "ExternalIP=198.51.100.1")}, nil, "198.51.100.1"},
		{"an outer one of another family does not", balancer(), []*corev1.Node{node("a", "InternalIP=192.0.2.1", "ExternalIP=2001:db8::1")}, nil, "192.0.2.1"},
		{"the first of two", balancer(), []*corev1.Node{node("a", "InternalIP=192.0.2.1", "InternalIP=192.0.2.2")}, nil, "192.0.2.1"},
		{"names are no addresses", balancer(), []*corev1.Node{node("a", "Hostname=a", "InternalDNS=a.example.com")}, nil, ""},
		{"by the nodes' names", balancer(), []*corev1.Node{node("b", "InternalIP=192.0.2.1"), node("a", "InternalIP=192.0.2.2")}, nil, "192.0.2.2 192.0.2.1"},
		{"of the other family", balancer(families(v6)), []*corev1.Node{node("a", "InternalIP=192.0.2.1", "InternalIP=2001:db8::1")}, nil, "2001:db8::1"},
		{"of both, in the service's order", balancer(families(v6, v4)), []*corev1.Node{node("a", "InternalIP=192.0.2.1", "InternalIP=2001:db8::1")}, nil, "2001:db8::1 192.0.2.1"},
		{"odd spelling is mended", balancer(), []*corev1.Node{node("a", "InternalIP=192.000.002.001")}, nil, "192.0.2.1"},
		{"only those that serve", balancer(), []*corev1.Node{node("a", "InternalIP=192.0.2.1"), node("b", "InternalIP=192.0.2.2")}, map[string]bool{"b": true}, "192.0.2.2"},
		{"none serves", balancer(), []*corev1.Node{node("a", "InternalIP=192.0.2.1")}, map[string]bool{}, ""},
	} {
		var got []string
		for _, i := range (loadBalancerView{service: test.service, nodes: eligibleOf(test.nodes), serving: test.serving}).ingress() {
			got = append(got, i.IP)
			if *i.IPMode != corev1.LoadBalancerIPModeVIP || i.Hostname != "" || i.Ports != nil {
				t.Errorf("%s: %+v", test.what, i)
			}
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %v, want %s", test.what, got, test.want)
		}
	}
}

// TestBalancerPorts: who has a port.
func TestBalancerPorts(t *testing.T) {
	list := func(s ...*corev1.Service) []*corev1.Service { return s }
	older, younger, twin := balancer(dated("older", 2*time.Hour)), balancer(dated("younger", time.Minute)), balancer(dated("aaa", time.Hour))
	for _, test := range []struct {
		what     string
		service  *corev1.Service
		others   []*corev1.Service
		reserved []int32
		want     string
	}{
		{"alone", balancer(), nil, nil, ""},
		{"an older one has it", balancer(), list(older), nil, "port 80/TCP is in use by service default/older"},
		{"a younger one wants it", balancer(), list(younger), nil, ""},
		{"of the same age, the first by name has it", balancer(), list(twin), nil, "port 80/TCP is in use by service default/aaa"},
		{"of the same age, the last by name has not", balancer(), list(balancer(dated("zzz", time.Hour))), nil, ""},
		{"an older one has another", balancer(), list(balancer(dated("older", 2*time.Hour), onPort(81, corev1.ProtocolTCP))), nil, ""},
		{"an older one has it by another protocol", balancer(), list(balancer(dated("older", 2*time.Hour), onPort(80, corev1.ProtocolUDP))), nil, ""},
		{"a node's own", balancer(), nil, []int32{443, 80}, "port 80/TCP is reserved on nodes"},
		{"a node's own by another protocol", balancer(onPort(80, corev1.ProtocolUDP)), nil, []int32{80}, ""},
		{"the second of two ports", balancer(alsoPort("x", 443, intstr.FromInt32(1), corev1.ProtocolTCP, nil)), nil, []int32{443}, "port 443/TCP is reserved on nodes"},
		{"no ports", balancer(portless), list(older), []int32{80}, ""},
	} {
		if got := (loadBalancerView{service: test.service, others: test.others, reserved: test.reserved}).portConflict(); got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
	if fmt.Sprint(DefaultReservedPorts) != "[2379 2380 6443 10250 10256]" {
		t.Errorf("reserved %v", DefaultReservedPorts)
	}
}

// TestBalancerWrites: patches and what is reported, completely.
func TestBalancerWrites(t *testing.T) {
	n1, n2 := aNode("n1"), aNode("n2")
	const hold, release = `{"metadata":{"finalizers":["service.kubernetes.io/load-balancer-cleanup"]}}`, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["service.kubernetes.io/load-balancer-cleanup"]}}`
	at := func(ips ...string) string {
		var list []string
		for _, ip := range ips {
			list = append(list, `{"ip":"`+ip+`","ipMode":"VIP"}`)
		}
		return `{"status":{"loadBalancer":{"ingress":[` + strings.Join(list, ",") + `]}}}`
	}
	const none = `{"status":{"loadBalancer":{"ingress":null}}}`
	for _, test := range []struct {
		what string
		view loadBalancerView
		want []string
	}{
		{"new", loadBalancerView{service: balancer(), nodes: []*corev1.Node{n1}}, []string{hold, at("192.0.2.1"), "Normal EnsuringLoadBalancer: Ensuring load balancer", "Normal EnsuredLoadBalancer: Ensured load balancer"}},
		{"new, without nodes", loadBalancerView{service: balancer()}, []string{hold}},
		{"held, its first node comes", loadBalancerView{service: balancer(has()), nodes: []*corev1.Node{n1}}, []string{at("192.0.2.1"), "Normal EnsuringLoadBalancer: Ensuring load balancer", "Normal EnsuredLoadBalancer: Ensured load balancer"}},
		{"a node more", loadBalancerView{service: balancer(has("192.0.2.1")), nodes: []*corev1.Node{n1, n2}}, []string{at("192.0.2.1", "192.0.2.2"), "Normal UpdatedLoadBalancer: Updated load balancer with new hosts"}},
		{"a node less", loadBalancerView{service: balancer(has("192.0.2.1", "192.0.2.2")), nodes: []*corev1.Node{n2}}, []string{at("192.0.2.2"), "Normal UpdatedLoadBalancer: Updated load balancer with new hosts"}},
		{"the last node goes", loadBalancerView{service: balancer(has("192.0.2.1"))}, []string{none, "Warning UnAvailableLoadBalancer: There are no available nodes for LoadBalancer"}},
		{"at rest", loadBalancerView{service: balancer(has("192.0.2.1")), nodes: []*corev1.Node{n1}}, nil},
		{"the finalizer went", loadBalancerView{service: balancer(has("192.0.2.1"), func(s *corev1.Service) { s.Finalizers = nil }), nodes: []*corev1.Node{n1}}, []string{hold}},
		{"a port it cannot have, from the start", loadBalancerView{service: balancer(), nodes: []*corev1.Node{n1}, reserved: []int32{80}}, []string{hold, "Warning SyncLoadBalancerFailed: Error syncing load balancer: port 80/TCP is reserved on nodes"}},
		{"a port it cannot have, known", loadBalancerView{service: balancer(has()), nodes: []*corev1.Node{n1}, reserved: []int32{80}}, nil},
		{"a port it can no longer have", loadBalancerView{service: balancer(has("192.0.2.1")), nodes: []*corev1.Node{n1}, reserved: []int32{80}}, []string{none, "Warning SyncLoadBalancerFailed: Error syncing load balancer: port 80/TCP is reserved on nodes"}},
		{"leaving", loadBalancerView{service: balancer(has("192.0.2.1"), goingAway), nodes: []*corev1.Node{n1}}, []string{release, "Normal DeletingLoadBalancer: Deleting load balancer", "Normal DeletedLoadBalancer: Deleted load balancer"}},
		{"leaving, let go already", loadBalancerView{service: balancer(goingAway), nodes: []*corev1.Node{n1}}, nil},
		{"another type now", loadBalancerView{service: aService(has("192.0.2.1")), nodes: []*corev1.Node{n1}}, []string{none, release, "Normal DeletingLoadBalancer: Deleting load balancer", "Normal DeletedLoadBalancer: Deleted load balancer"}},
		{"another type now, without addresses", loadBalancerView{service: aService(has()), nodes: []*corev1.Node{n1}}, []string{release, "Normal DeletingLoadBalancer: Deleting load balancer", "Normal DeletedLoadBalancer: Deleted load balancer"}},
	} {
		plan := test.view.reconcile()
		var got []string
		for _, step := range plan.Steps {
			for _, w := range step.Writes {
				got = append(got, string(w.Patch))
			}
		}
		for _, e := range plan.Events {
			got = append(got, fmt.Sprintf("%s %s: %s", e.Type, e.Reason, e.Message))
		}
		if strings.Join(got, "\n") != strings.Join(test.want, "\n") {
			t.Errorf("%s:\n got %s\nwant %s", test.what, strings.Join(got, "\n"), strings.Join(test.want, "\n"))
		}
	}
}

// TestBalancerFollowsPodsAndPorts: with local traffic the addresses follow the pods; a port that becomes free goes to the next.
func TestBalancerFollowsPodsAndPorts(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(LoadBalancer(DefaultReservedPorts))()
		for _, name := range []string{"n1", "n2"} {
			world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
			world.EditStatus(w, "", name, func(n *corev1.Node) { n.Status = aNode(name).Status })
		}
		create := func(name string, port int32, policy corev1.ServiceExternalTrafficPolicy) {
			world.Create(w, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
				Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: policy, Ports: []corev1.ServicePort{{Port: port}}}})
			w.Pass(time.Second)
		}
		addresses := func(name string) string {
			w.Pass(time.Second)
			var list []string
			for _, i := range world.Get[*corev1.Service](w, "default", name).Status.LoadBalancer.Ingress {
				list = append(list, strings.TrimPrefix(i.IP, "192.0.2."))
			}
			return strings.Join(list, " ")
		}
		create("local", 80, corev1.ServiceExternalTrafficPolicyLocal)
		if got := addresses("local"); got != "" {
			t.Errorf("nobody serves: %s", got)
		}
		slice := func(name, node string, ready *bool) {
			world.Create(w, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "local"}}, AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: ready}}}})
		}
		slice("a", "n2", nil)
		if got := addresses("local"); got != "2" {
			t.Errorf("one serves, and does not say whether it is ready: %s", got)
		}
		slice("b", "n1", new(false))
		if got := addresses("local"); got != "2" {
			t.Errorf("one is not ready: %s", got)
		}
		world.Edit(w, "default", "b", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = new(true) })
		if got := addresses("local"); got != "1 2" {
			t.Errorf("both serve: %s", got)
		}
		setConditions := func(ready, serving, terminating bool) {
			world.Edit(w, "default", "b", func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
			})
		}
		setConditions(false, true, true)
		if got := addresses("local"); got != "1 2" {
			t.Errorf("one serves while it terminates: %s", got)
		}
		setConditions(false, false, true)
		if got := addresses("local"); got != "2" {
			t.Errorf("one terminates and does not serve: %s", got)
		}
		setConditions(true, true, false)
		if got := addresses("local"); got != "1 2" {
			t.Errorf("both serve again: %s", got)
		}
		create("next", 80, corev1.ServiceExternalTrafficPolicyCluster)
		create("own", 6443, corev1.ServiceExternalTrafficPolicyCluster)
		if got := addresses("next") + addresses("own"); got != "" {
			t.Errorf("ports of others: %s", got)
		}
		world.Edit(w, "default", "local", func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })
		if got := addresses("next"); got != "1 2" {
			t.Errorf("the port is free: %s", got)
		}
		world.EditStatus(w, "", "n1", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })
		if got := addresses("next"); got != "2" {
			t.Errorf("a node is out: %s", got)
		}
		world.Edit(w, "", "n2", func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""} })
		if got := addresses("next"); got != "" {
			t.Errorf("the other is excluded: %s", got)
		}
		w.AssertSettled(LoadBalancer(DefaultReservedPorts))
	})
}
