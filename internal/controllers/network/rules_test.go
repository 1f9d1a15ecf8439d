package network

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
)

// TestChangesThatShow: which changes of a pod may show in endpoints.
func TestChangesThatShow(t *testing.T) {
	for _, test := range []struct {
		what   string
		change change[*corev1.Pod]
		want   bool
	}{
		{"nothing", func(*corev1.Pod) {}, false},
		{"a label", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "x"} }, true},
		{"an annotation", func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, false},
		{"its name in DNS", called("h", ""), true},
		{"its domain", called("", "web"), true},
		{"it leaves", leaving, true},
		{"its readiness", notReadyFalse, true},
		{"its readiness is no longer told", unready, true},
		{"another condition", func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: "True"})
		}, false},
		{"it succeeds", succeeded, true},
		{"it fails", failedPhase, true},
		{"it is pending", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, false},
		{"its node", onNode("n2"), true},
		{"its address", func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.2" }, true},
		{"one address more", alsoAt("fd00::1"), true},
		{"its addresses", func(p *corev1.Pod) { p.Status.PodIPs[0].IP = "10.0.0.2" }, true},
		{"its message", func(p *corev1.Pod) { p.Status.Message = "x" }, false},
	} {
		before, after := aPod("a", "10.0.0.1"), with(aPod("a", "10.0.0.1"), test.change)
		if endpointsDiffer(before, after) != test.want || endpointsDiffer(after, before) != test.want {
			t.Errorf("%s: shows %v", test.what, !test.want)
		}
	}
	// A later moment of leaving shows nothing new.
	if endpointsDiffer(aPod("a", "10.0.0.1", leaving), aPod("a", "10.0.0.1", func(p *corev1.Pod) { p.DeletionTimestamp = new(ago(0)) })) {
		t.Error("it leaves at another moment: shows")
	}
}

// TestSelecting: which services are kept, and which pods can be an endpoint.
func TestSelecting(t *testing.T) {
	for _, test := range []struct {
		what    string
		service *corev1.Service
		want    bool
	}{
		{"a selector", aService(), true},
		{"none", aService(func(s *corev1.Service) { s.Spec.Selector = nil }), false},
		{"an empty one is one", aService(func(s *corev1.Service) { s.Spec.Selector = map[string]string{} }), true},
		{"a name elsewhere", aService(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }), false},
		{"a load balancer", balancer(), true},
	} {
		if got := selects(test.service); got != test.want {
			t.Errorf("%s: %v", test.what, got)
		}
	}
	for what, test := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"running": {aPod("a", "10.0.0.1"), true}, "pending": {aPod("a", "10.0.0.1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), true}, "succeeded": {aPod("a", "10.0.0.1", succeeded), false},
		"failed": {aPod("a", "10.0.0.1", failedPhase), false}, "no address": {aPod("a", "", withoutAddress), false}, "leaving": {aPod("a", "10.0.0.1", leaving), true},
		"an address of the list only": {aPod("a", "10.0.0.1", func(p *corev1.Pod) { p.Status.PodIP = "" }), true}, "an address but no list": {aPod("a", "10.0.0.1", func(p *corev1.Pod) { p.Status.PodIPs = nil }), true},
	} {
		if got := reachable(test.pod); got != test.want {
			t.Errorf("%s: %v", what, got)
		}
	}
	other := aPod("a", "10.0.0.1", called("h", "web"), func(p *corev1.Pod) { p.Namespace = "other" })
	if got := hostname(other, aService()); got != "" {
		t.Errorf("a pod of another namespace is called %s", got)
	}
}

// TestSmallThings: keys, times, maps and ages.
func TestSmallThings(t *testing.T) {
	slice := func(manager, service string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Labels: map[string]string{discoveryv1.LabelManagedBy: manager, discoveryv1.LabelServiceName: service}}}
	}
	for what, test := range map[string]struct {
		slice *discoveryv1.EndpointSlice
		want  string
	}{"ours": {slice(sliceManager, "web"), "[default/web]"}, "another's": {slice("me", "web"), "[]"}, "of nobody": {slice(sliceManager, ""), "[]"}, "without labels": {&discoveryv1.EndpointSlice{}, "[]"}} {
		if got := fmt.Sprint(keyOfManaged(test.slice, sliceManager)); got != test.want {
			t.Errorf("%s: %s", what, got)
		}
	}
	if got := triggered(time.Time{}); got != "" {
		t.Errorf("no time: %q", got)
	}
	if got := fmt.Sprint(setOrDelete(nil, "a", ""), setOrDelete(nil, "a", "1"), setOrDelete(map[string]string{"a": "1", "b": "2"}, "a", ""), without(nil, "a"), without(map[string]string{"a": "1", "b": "2"}, "a", "c")); got != "map[] map[a:1] map[b:2] map[] map[b:2]" {
		t.Errorf("maps %s", got)
	}
	all := []*corev1.Service{aService(dated("young", time.Minute)), aService(dated("b", time.Hour)), aService(dated("a", time.Hour)), aService(dated("old", 2*time.Hour))}
	elsewhere := aService(dated("z", time.Hour))
	elsewhere.Namespace = "aaa"
	all = append(all, elsewhere)
	byAge(all)
	var order []string
	for _, s := range all {
		order = append(order, controller.KeyOf(s).String())
	}
	if got := fmt.Sprint(order); got != "[default/old aaa/z default/a default/b default/young]" {
		t.Errorf("by age %s", got)
	}
	if got := fmt.Sprint(prefixes([]string{"10.0.0.0/24", "x", "fd00::/64", "10.0.0.1"})); got != "[10.0.0.0/24 fd00::/64]" {
		t.Errorf("prefixes %s", got)
	}
}
