package network

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
	"skiff/internal/kind"
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
	foreign := anAddress("10.0.0.5")
	foreign.Labels = nil
	for _, test := range []struct {
		what      string
		others    []*networkingv1.ServiceCIDR
		addresses []*networkingv1.IPAddress
		want      bool
	}{
		{"nothing hangs on it", nil, nil, true},
		{"an address does", nil, []*networkingv1.IPAddress{anAddress("10.0.0.5")}, false},
		{"an address of somebody else", nil, []*networkingv1.IPAddress{foreign}, true},
		{"an address elsewhere", nil, []*networkingv1.IPAddress{anAddress("10.0.1.5")}, true},
		{"a larger range has it too", []*networkingv1.ServiceCIDR{aCIDR("large", "10.0.0.0/16")}, []*networkingv1.IPAddress{anAddress("10.0.0.5")}, true},
		{"the same range has it too", []*networkingv1.ServiceCIDR{aCIDR("same", "10.0.0.0/24")}, []*networkingv1.IPAddress{anAddress("10.0.0.5")}, true},
		{"a part of it has the address", []*networkingv1.ServiceCIDR{aCIDR("part", "10.0.0.0/28")}, []*networkingv1.IPAddress{anAddress("10.0.0.5")}, true},
		{"a part of it, but not the address", []*networkingv1.ServiceCIDR{aCIDR("part", "10.0.0.16/28")}, []*networkingv1.IPAddress{anAddress("10.0.0.5")}, false},
	} {
		v := cidrView{cidr: small, all: append(test.others, small), addresses: test.addresses}
		if got := v.canDelete(); got != test.want {
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
			if obj := plan.Status(controller.ApplyResult{}); obj != nil {
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

// TestRangesOfAddresses: which ranges an address of a service can come from.
func TestRangesOfAddresses(t *testing.T) {
	for _, test := range []struct {
		cidr, ip string
		want     bool
	}{
		{"10.0.0.0/24", "10.0.0.1", true}, {"10.0.0.0/24", "10.0.0.254", true}, {"10.0.0.0/24", "10.0.1.1", false},
		{"10.0.0.0/24", "10.0.0.0", false},   // the network's own
		{"10.0.0.0/24", "10.0.0.255", false}, // everybody's
		{"10.0.0.0/16", "10.0.0.255", true},  // nothing special in a larger one
		{"10.0.0.0/16", "10.0.1.0", true},    // nor this
		{"10.0.0.0/28", "10.0.0.15", false},  // everybody's in a smaller one
		{"10.0.0.0/30", "10.0.0.2", true},    // the last of two
		{"10.0.0.7/24", "10.0.0.0", false},   // written with more than its prefix
		{"255.255.255.0/24", "255.255.255.255", false},
		{"fd00::/64", "fd00::1", true}, {"fd00::/64", "fd00::", false},
		{"fd00::/64", "fd00::ffff:ffff:ffff:ffff", true}, // IPv6 has no address for everybody
		{"fd00::/64", "fd01::1", false}, {"10.0.0.0/8", "fd00::1", false}, {"fd00::/8", "10.0.0.1", false},
	} {
		all := []*networkingv1.ServiceCIDR{aCIDR("r", test.cidr)}
		if got := len(containing(all, anAddress(test.ip))) == 1; got != test.want {
			t.Errorf("%s in %s: %v", test.ip, test.cidr, got)
		}
	}
	others := anAddress("10.0.0.1")
	others.Labels[networkingv1.LabelManagedBy] = "me"
	for what, address := range map[string]*networkingv1.IPAddress{"another's": others, "no address": anAddress("x")} {
		if got := containing([]*networkingv1.ServiceCIDR{aCIDR("r", "10.0.0.0/24")}, address); got != nil {
			t.Errorf("%s: %v", what, got)
		}
	}
	two := []*networkingv1.ServiceCIDR{aCIDR("dual", "10.0.0.0/24", "fd00::/64"), aCIDR("large", "10.0.0.0/8"), aCIDR("none", "nonsense")}
	for ip, want := range map[string]int{"10.0.0.5": 2, "10.1.0.5": 1, "fd00::5": 1, "11.0.0.1": 0} {
		if got := len(containing(two, anAddress(ip))); got != want {
			t.Errorf("%s: %d ranges, want %d", ip, got, want)
		}
	}
}

// TestRangesThatMayGo: a range of one or two families may go when every address has another, or when it is in a larger range altogether.
func TestRangesThatMayGo(t *testing.T) {
	unlabelled := anAddress("10.0.0.5")
	delete(unlabelled.Labels, networkingv1.LabelIPAddressFamily)
	list := func(ips ...string) (all []*networkingv1.IPAddress) {
		for _, ip := range ips {
			all = append(all, anAddress(ip))
		}
		return all
	}
	others := func(c ...*networkingv1.ServiceCIDR) []*networkingv1.ServiceCIDR { return c }
	for _, test := range []struct {
		what      string
		cidr      *networkingv1.ServiceCIDR
		others    []*networkingv1.ServiceCIDR
		addresses []*networkingv1.IPAddress
		want      bool
	}{
		{"two families, nothing in either", aCIDR("d", "10.0.0.0/24", "fd00::/112"), nil, nil, true},
		{"two families, an address in the second", aCIDR("d", "10.0.0.0/24", "fd00::/112"), nil, list("fd00::5"), false},
		{"two families, one of them within another range", aCIDR("d", "10.0.0.0/24", "fd00::/112"), others(aCIDR("x", "10.0.0.0/16")), list("10.0.0.5"), true},
		{"two families, the other one is not", aCIDR("d", "10.0.0.0/24", "fd00::/112"), others(aCIDR("x", "10.0.0.0/16")), list("10.0.0.5", "fd00::5"), false},
		{"two families, within two ranges", aCIDR("d", "10.0.0.0/24", "fd00::/112"), others(aCIDR("x", "10.0.0.0/16"), aCIDR("y", "fd00::/64")), list("10.0.0.5", "fd00::5"), true},
		{"an address without its family's label is not looked at", aCIDR("d", "10.0.0.0/24"), nil, []*networkingv1.IPAddress{unlabelled}, true},
		{"the network's own address", aCIDR("d", "10.0.0.0/24"), nil, list("10.0.0.0"), true},
		{"one address of many", aCIDR("d", "10.0.0.0/24"), others(aCIDR("x", "10.0.0.0/25")), list("10.0.0.5", "10.0.0.6", "10.0.0.200"), false},
		{"the address is the last of the other range: it is not in it", aCIDR("d", "10.0.0.0/24"), others(aCIDR("x", "10.0.0.0/28")), list("10.0.0.15"), false},
		{"the address is the first of the other range: it is not in it", aCIDR("d", "10.0.0.0/24"), others(aCIDR("x", "10.0.0.16/28")), list("10.0.0.16"), false},
		{"a range of another family with as many bits", aCIDR("d", "10.0.0.0/24"), others(aCIDR("x", "fd00::/24")), list("10.0.0.5"), false},
		{"a larger range elsewhere", aCIDR("d", "10.0.0.0/24"), others(aCIDR("x", "11.0.0.0/8")), list("10.0.0.5"), false},
		{"a range nobody can read is no range", aCIDR("d", "nonsense"), nil, list("10.0.0.5"), true},
	} {
		v := cidrView{cidr: test.cidr, all: append(test.others, test.cidr), addresses: test.addresses}
		if got := v.canDelete(); got != test.want {
			t.Errorf("%s: may go %v", test.what, got)
		}
	}
}

// TestServiceCIDRWrites: finalizers and conditions, completely.
func TestServiceCIDRWrites(t *testing.T) {
	const readyText = "Kubernetes Service CIDR is ready"
	const heldText = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"
	says := func(status metav1.ConditionStatus, reason, message string) change[*networkingv1.ServiceCIDR] {
		return func(c *networkingv1.ServiceCIDR) {
			c.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: status, Reason: reason, Message: message, LastTransitionTime: ago(time.Hour)}, {Type: "Mine", Status: "True"}}
		}
	}
	leaving := func(d time.Duration) change[*networkingv1.ServiceCIDR] {
		return func(c *networkingv1.ServiceCIDR) { c.DeletionTimestamp = new(ago(d)) }
	}
	free := func(c *networkingv1.ServiceCIDR) { c.Finalizers = []string{"mine"} }
	used := []*networkingv1.IPAddress{anAddress("10.0.0.5")}
	for _, test := range []struct {
		what      string
		cidr      *networkingv1.ServiceCIDR
		addresses []*networkingv1.IPAddress
		patch     string
		status    string
		again     time.Duration
	}{
		{"new", with(aCIDR("r", "10.0.0.0/24"), free), nil, `{"metadata":{"finalizers":["networking.k8s.io/service-cidr-finalizer"]}}`, "True  " + readyText + " now", 0},
		{"held", aCIDR("r", "10.0.0.0/24"), nil, "", "True  " + readyText + " now", 0},
		{"at rest", with(aCIDR("r", "10.0.0.0/24"), says("True", "", readyText)), nil, "", "", 0},
		{"another text", with(aCIDR("r", "10.0.0.0/24"), says("True", "", "x")), nil, "", "True  " + readyText + " before", 0},
		{"another reason", with(aCIDR("r", "10.0.0.0/24"), says("True", "X", readyText)), nil, "", "True  " + readyText + " before", 0},
		{"was to go, once", with(aCIDR("r", "10.0.0.0/24"), says("False", "Terminating", heldText)), nil, "", "True  " + readyText + " now", 0},
		{"leaving, in use", with(aCIDR("r", "10.0.0.0/24"), leaving(time.Hour), says("True", "", readyText)), used, "", "False Terminating " + heldText + " now", 0},
		{"leaving, in use, known", with(aCIDR("r", "10.0.0.0/24"), leaving(time.Hour), says("False", "Terminating", heldText)), used, "", "", 0},
		{"leaving, just now", with(aCIDR("r", "10.0.0.0/24"), leaving(0)), nil, "", "", 10 * time.Second},
		{"leaving, a moment before its time", with(aCIDR("r", "10.0.0.0/24"), leaving(10*time.Second-time.Nanosecond)), nil, "", "", time.Nanosecond},
		{"leaving, at its time", with(aCIDR("r", "10.0.0.0/24"), leaving(10*time.Second)), nil, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["networking.k8s.io/service-cidr-finalizer"]}}`, "", 0},
		{"leaving, let go already", with(aCIDR("r", "10.0.0.0/24"), leaving(time.Hour), free), nil, "", "", 0},
	} {
		plan := cidrView{cidr: test.cidr, all: []*networkingv1.ServiceCIDR{test.cidr}, addresses: test.addresses, now: now}.reconcile()
		patch, status := "", ""
		for _, step := range plan.Steps {
			patch = string(step.Writes[0].Patch)
		}
		if plan.Status != nil {
			if obj := plan.Status(controller.ApplyResult{}); obj != nil {
				c := obj.(*networkingv1.ServiceCIDR).Status.Conditions[0]
				when := "before"
				if c.LastTransitionTime.Time.Equal(now) {
					when = "now"
				}
				status = fmt.Sprintf("%s %s %s %s", c.Status, c.Reason, c.Message, when)
			}
			if plan.Status(controller.ApplyResult{Err: errors.New("failed")}) != nil || plan.Status(controller.ApplyResult{Written: []kind.Object{test.cidr}}) != nil {
				t.Errorf("%s: after other writes the status waits for the next sync", test.what)
			}
		}
		if patch != test.patch || status != test.status || plan.RequeueAfter != test.again {
			t.Errorf("%s: %s, %q, again %v", test.what, patch, status, plan.RequeueAfter)
		}
	}
}

// TestOverlap: ranges that touch each other's addresses.
func TestOverlap(t *testing.T) {
	for _, test := range []struct {
		a, b *networkingv1.ServiceCIDR
		want bool
	}{
		{aCIDR("a", "10.0.0.0/24"), aCIDR("b", "10.0.0.0/24"), true}, {aCIDR("a", "10.0.0.0/24"), aCIDR("b", "10.0.0.128/25"), true},
		{aCIDR("a", "10.0.0.0/24"), aCIDR("b", "10.0.1.0/24"), false}, {aCIDR("a", "10.0.0.0/24", "fd00::/64"), aCIDR("b", "fd00::/112"), true},
		{aCIDR("a", "10.0.0.0/24"), aCIDR("b", "fd00::/64"), false}, {aCIDR("a", "nonsense"), aCIDR("b", "10.0.0.0/8"), false}, {aCIDR("a"), aCIDR("b"), false},
	} {
		if overlap(test.a, test.b) != test.want || overlap(test.b, test.a) != test.want {
			t.Errorf("%v and %v: not %v", test.a.Spec.CIDRs, test.b.Spec.CIDRs, test.want)
		}
	}
}
