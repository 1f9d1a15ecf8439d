package network

import (
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
	"skiff/test/world"
)

func aCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{cidrFinalizer}}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

func anAddress(ip string) *networkingv1.IPAddress {
	family := "IPv4"
	if strings.Contains(ip, ":") {
		family = "IPv6"
	}
	return &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: ip, Labels: map[string]string{
		networkingv1.LabelManagedBy: addressManager, networkingv1.LabelIPAddressFamily: family}}}
}

func TestServiceCIDRMayGo(t *testing.T) {
	small := aCIDR("small", "10.0.0.0/24")
	strangers := anAddress("10.0.0.5")
	strangers.Labels = nil
	for _, test := range []struct {
		what      string
		others    []*networkingv1.ServiceCIDR
		addresses []*networkingv1.IPAddress
		want      bool
	}{
		{"nothing hangs on it", nil, nil, true},
		{"an address does", nil, []*networkingv1.IPAddress{anAddress("10.0.0.5")}, false},
		{"an address of somebody else", nil, []*networkingv1.IPAddress{strangers}, true},
		{"an address elsewhere", nil, []*networkingv1.IPAddress{anAddress("10.0.1.5")}, true},
		{"a larger range has it too", []*networkingv1.ServiceCIDR{aCIDR("large", "10.0.0.0/16")}, []*networkingv1.IPAddress{anAddress("10.0.0.5")}, true},
		{"the same range has it too", []*networkingv1.ServiceCIDR{aCIDR("same", "10.0.0.0/24")}, []*networkingv1.IPAddress{anAddress("10.0.0.5")}, true},
		{"a part of it has the address", []*networkingv1.ServiceCIDR{aCIDR("part", "10.0.0.0/28")}, []*networkingv1.IPAddress{anAddress("10.0.0.5")}, true},
		{"a part of it, but not the address", []*networkingv1.ServiceCIDR{aCIDR("part", "10.0.0.16/28")}, []*networkingv1.IPAddress{anAddress("10.0.0.5")}, false},
	} {
		v := cidrView{cidr: small, all: append(test.others, small), addresses: test.addresses}
		if got := v.mayGo(); got != test.want {
			t.Errorf("%s: may go %v", test.what, got)
		}
	}
}

func TestServiceCIDR(t *testing.T) {
	fresh := aCIDR("fresh", "10.0.0.0/24")
	fresh.Finalizers = nil
	leavingFor := func(d time.Duration) *networkingv1.ServiceCIDR {
		c := aCIDR("leaving", "10.0.0.0/24")
		c.DeletionTimestamp = new(ago(d))
		return c
	}
	for _, test := range []struct {
		what   string
		view   cidrView
		words  string
		status string
	}{
		{"new", cidrView{cidr: fresh}, "patch ServiceCIDR fresh", "True "},
		{"held", cidrView{cidr: aCIDR("held", "10.0.0.0/24")}, "", "True "},
		{"leaving, just now", cidrView{cidr: leavingFor(4 * time.Second)}, "again 6s", ""},
		{"leaving, for long", cidrView{cidr: leavingFor(time.Minute)}, "patch ServiceCIDR leaving", ""},
		{"leaving, in use", cidrView{cidr: leavingFor(time.Minute), all: []*networkingv1.ServiceCIDR{leavingFor(0)}, addresses: []*networkingv1.IPAddress{anAddress("10.0.0.5")}}, "", "False Terminating"},
	} {
		test.view.now = now
		plan := test.view.reconcile()
		status := ""
		if plan.Status != nil {
			if obj := plan.Status(controller.Outcome{}); obj != nil {
				c := obj.(*networkingv1.ServiceCIDR).Status.Conditions[0]
				status = string(c.Status) + " " + c.Reason
			}
		}
		if words(plan) != test.words || status != test.status {
			t.Errorf("%s: %q, status %q", test.what, words(plan), status)
		}
	}
}

func TestServiceCIDRInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(ServiceCIDR)()
		cidr := world.Create(w, &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.5.0.0/24"}}})
		w.Pass(time.Second)
		got := world.Get[*networkingv1.ServiceCIDR](w, "", "more")
		if !meta.IsStatusConditionTrue(got.Status.Conditions, "Ready") || len(got.Finalizers) != 1 {
			t.Fatalf("a new range: %+v", got)
		}
		address := anAddress("10.5.0.7")
		address.Spec.ParentRef = &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: "x"}
		address = world.Create(w, address)
		w.Remove(cidr)
		w.Pass(time.Minute)
		got = world.Get[*networkingv1.ServiceCIDR](w, "", "more")
		if meta.FindStatusCondition(got.Status.Conditions, "Ready").Reason != "Terminating" {
			t.Fatalf("a range in use: %+v", got.Status)
		}
		w.Remove(address)
		w.Pass(time.Minute)
		if !world.Gone[*networkingv1.ServiceCIDR](w, "", "more") {
			t.Error("a range nobody uses stays")
		}
	})
}
