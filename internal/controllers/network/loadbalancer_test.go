package network

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
		view balancerView
		want string
		ips  string
	}{
		{"new", balancerView{service: balancer(), nodes: []*corev1.Node{n2, n1, down, excluded, public}},
			"patch Service web, patch status of Service web, tell EnsuringLoadBalancer, tell EnsuredLoadBalancer", "192.0.2.1 192.0.2.2 198.51.100.5"},
		{"at rest", balancerView{service: balancer(has("192.0.2.1")), nodes: []*corev1.Node{n1}}, "", ""},
		{"one node more", balancerView{service: balancer(has("192.0.2.1")), nodes: []*corev1.Node{n1, n2}}, "patch status of Service web, tell UpdatedLoadBalancer", "192.0.2.1 192.0.2.2"},
		{"no node left", balancerView{service: balancer(has("192.0.2.1"))}, "patch status of Service web, tell UnAvailableLoadBalancer", ""},
		{"only nodes that serve", balancerView{service: balancer(has("192.0.2.1")), nodes: []*corev1.Node{n1, n2}, serving: map[string]bool{"n2": true}}, "patch status of Service web, tell UpdatedLoadBalancer", "192.0.2.2"},
		{"an older one has the port", balancerView{service: balancer(has("192.0.2.1")), nodes: []*corev1.Node{n1}, others: []*corev1.Service{older}}, "patch status of Service web, tell SyncLoadBalancerFailed", ""},
		{"a younger one wants the port", balancerView{service: balancer(has("192.0.2.1")), nodes: []*corev1.Node{n1}, others: []*corev1.Service{younger}}, "", ""},
		{"a node's own port", balancerView{service: balancer(), nodes: []*corev1.Node{n1}, reserved: []int32{80}}, "patch Service web, tell SyncLoadBalancerFailed", ""},
		{"no longer a load balancer", balancerView{service: aService(has("192.0.2.1")), nodes: []*corev1.Node{n1}},
			"patch status of Service web, patch Service web, tell DeletingLoadBalancer, tell DeletedLoadBalancer", ""},
		{"leaving", balancerView{service: balancer(has("192.0.2.1"), func(s *corev1.Service) { s.DeletionTimestamp = new(ago(0)) })},
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
