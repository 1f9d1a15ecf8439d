package network

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/world"
)

// someEndpoints are Endpoints a user wrote.
func someEndpoints(changes ...change[*corev1.Endpoints]) *corev1.Endpoints {
	return with(&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "own", UID: "uid-own"}}, changes...)
}

func subsetOf(ready, waiting string, ports ...corev1.EndpointPort) change[*corev1.Endpoints] {
	return func(e *corev1.Endpoints) {
		e.Subsets = append(e.Subsets, corev1.EndpointSubset{Addresses: at(strings.Fields(ready)...), NotReadyAddresses: at(strings.Fields(waiting)...), Ports: ports})
	}
}

func tcp(name string, port int32) corev1.EndpointPort {
	return corev1.EndpointPort{Name: name, Port: port, Protocol: corev1.ProtocolTCP}
}

// mirrorOf is the mirror of Endpoints at rest, its slices named s0, s1, ….
func mirrorOf(e *corev1.Endpoints) (mirror []*discoveryv1.EndpointSlice) {
	for i, w := range (mirrorView{endpoints: e, maxPerSubset: 1000}).reconcile().Steps[0].Writes {
		s := w.Object.(*discoveryv1.EndpointSlice).DeepCopy()
		s.Name, s.GenerateName = fmt.Sprint("s", i), ""
		mirror = append(mirror, s)
	}
	return mirror
}

// TestMirrorRules: what Endpoints become, and what is reported.
func TestMirrorRules(t *testing.T) {
	both := someEndpoints(subsetOf("10.0.0.1 fd00::1", "", tcp("http", 80)))
	four := someEndpoints(subsetOf("10.0.0.1", "", tcp("http", 80)))
	changed := func(e *corev1.Endpoints, change func(*discoveryv1.EndpointSlice)) []*discoveryv1.EndpointSlice {
		m := mirrorOf(e)
		change(m[0])
		return m
	}
	extra := func(e *corev1.Endpoints) []*discoveryv1.EndpointSlice {
		m := mirrorOf(e)
		more := m[0].DeepCopy()
		more.Name = "s9"
		return append(m, more)
	}
	for _, test := range []struct {
		what      string
		endpoints *corev1.Endpoints
		slices    []*discoveryv1.EndpointSlice
		most      int
		want      string
	}{
		{"nothing", someEndpoints(), nil, 9, ""},
		{"a subset without addresses", someEndpoints(subsetOf("", "", tcp("http", 80))), nil, 9, ""},
		{"ready and not", someEndpoints(subsetOf("10.0.0.1", "10.0.0.2", tcp("http", 80))), nil, 9, "create EndpointSlice own- 80[!10.0.0.2 10.0.0.1]"},
		{"both families", both, nil, 9, "create EndpointSlice own- 80[10.0.0.1] + create EndpointSlice own- 80[fd00::1]"},
		{"two sets of ports", someEndpoints(subsetOf("10.0.0.1", "", tcp("a", 80)), subsetOf("10.0.0.2", "", tcp("b", 81))), nil, 9, "create EndpointSlice own- 80[10.0.0.1] + create EndpointSlice own- 81[10.0.0.2]"},
		{"the same ports twice are one", someEndpoints(subsetOf("10.0.0.1", "", tcp("a", 80)), subsetOf("10.0.0.2", "", tcp("a", 80))), nil, 9, "create EndpointSlice own- 80[10.0.0.1 10.0.0.2]"},
		{"no ports", someEndpoints(subsetOf("10.0.0.1", "")), nil, 9, "create EndpointSlice own- [10.0.0.1]"},
		{"odd spelling is mended", someEndpoints(subsetOf("010.0.0.1 FD00::01", "", tcp("a", 80))), nil, 9, "create EndpointSlice own- 80[10.0.0.1] + create EndpointSlice own- 80[fd00::1]"},
		{"addresses that are none", someEndpoints(subsetOf("x 10.0.0.1", "y", tcp("a", 80))), nil, 9, "create EndpointSlice own- 80[10.0.0.1], tell Skipped 2 invalid IP addresses when mirroring to EndpointSlices"},
		{"only addresses that are none", someEndpoints(subsetOf("x", "", tcp("a", 80))), nil, 9, "tell Skipped 1 invalid IP addresses when mirroring to EndpointSlices"},
		{"as many as may be", someEndpoints(subsetOf("10.0.0.1 10.0.0.2", "", tcp("a", 80))), nil, 2, "create EndpointSlice own- 80[10.0.0.1 10.0.0.2]"},
		{"too many: the first by address, ready ones first", someEndpoints(subsetOf("10.0.0.3 10.0.0.2", "10.0.0.1", tcp("a", 80))), nil, 2,
			"create EndpointSlice own- 80[10.0.0.2 10.0.0.3], tell A max of 2 addresses can be mirrored to EndpointSlices per Endpoints subset. 1 addresses were skipped"},
		{"too many of both families together", someEndpoints(subsetOf("10.0.0.1 10.0.0.2 fd00::1", "", tcp("a", 80))), nil, 2,
			"create EndpointSlice own- 80[10.0.0.1 10.0.0.2], tell A max of 2 addresses can be mirrored to EndpointSlices per Endpoints subset. 1 addresses were skipped"},
		{"each subset has its own count", someEndpoints(subsetOf("10.0.0.1 10.0.0.2", "", tcp("a", 80)), subsetOf("10.0.0.3 10.0.0.4", "", tcp("b", 81))), nil, 2,
			"create EndpointSlice own- 80[10.0.0.1 10.0.0.2] + create EndpointSlice own- 81[10.0.0.3 10.0.0.4]"},
		{"some are none and some too many", someEndpoints(subsetOf("10.0.0.1 10.0.0.2", "", tcp("a", 80)), subsetOf("x", "", tcp("b", 81))), nil, 1,
			"create EndpointSlice own- 80[10.0.0.1], tell Skipped 1 invalid IP addresses when mirroring to EndpointSlices, tell A max of 1 addresses can be mirrored to EndpointSlices per Endpoints subset. 2 addresses were skipped"},
		{"at rest", both, mirrorOf(both), 9, ""},
		{"an address more", someEndpoints(subsetOf("10.0.0.1 10.0.0.2", "", tcp("http", 80))), mirrorOf(four), 9, "update EndpointSlice s0 80[10.0.0.1 10.0.0.2]"},
		{"an address less", four, mirrorOf(someEndpoints(subsetOf("10.0.0.1 10.0.0.2", "", tcp("http", 80)))), 9, "update EndpointSlice s0 80[10.0.0.1]"},
		{"ready no more", someEndpoints(subsetOf("", "10.0.0.1", tcp("http", 80))), mirrorOf(four), 9, "update EndpointSlice s0 80[!10.0.0.1]"},
		{"a family less", four, mirrorOf(both), 9, "delete EndpointSlice s1"},
		{"another port: the slice is used again", someEndpoints(subsetOf("10.0.0.1", "", tcp("http", 81))), mirrorOf(four), 9, "update EndpointSlice s0 81[10.0.0.1]"},
		{"no longer anything", someEndpoints(), mirrorOf(both), 9, "delete EndpointSlice s0 + delete EndpointSlice s1"},
		{"one slice too many", four, extra(four), 9, "delete EndpointSlice s9"},
		{"a label somebody changed", four, changed(four, func(s *discoveryv1.EndpointSlice) { s.Labels["x"] = "y" }), 9, "update EndpointSlice s0 80[10.0.0.1]"},
		{"a note somebody made", four, changed(four, func(s *discoveryv1.EndpointSlice) { s.Annotations = map[string]string{"x": "y"} }), 9, "update EndpointSlice s0 80[10.0.0.1]"},
		{"the mirror of earlier Endpoints of the name", four, changed(four, func(s *discoveryv1.EndpointSlice) { s.OwnerReferences[0].UID = "uid-before" }), 9, "update EndpointSlice s0 80[10.0.0.1]"},
		{"Endpoints that leave get no new slice", someEndpoints(subsetOf("10.0.0.1", "", tcp("http", 80)), func(e *corev1.Endpoints) { e.DeletionTimestamp = new(ago(0)) }), nil, 9, ""},
		{"Endpoints that leave are followed all the same", someEndpoints(subsetOf("10.0.0.2", "", tcp("http", 80)), func(e *corev1.Endpoints) { e.DeletionTimestamp = new(ago(0)) }), mirrorOf(four), 9, "update EndpointSlice s0 80[10.0.0.2]"},
	} {
		v := mirrorView{endpoints: test.endpoints, slices: test.slices, maxPerSubset: test.most}
		plan := v.reconcile()
		var told []string
		for _, e := range plan.Events {
			told = append(told, "tell "+e.Message)
			if e.Object != test.endpoints || e.Type != corev1.EventTypeWarning {
				t.Errorf("%s: %+v", test.what, e)
			}
		}
		plan.Events = nil
		got := strings.Join(append(strings.FieldsFunc(words(plan), func(r rune) bool { return r == ',' }), told...), ", ")
		if got = strings.ReplaceAll(got, ",  ", ", "); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.what, got, test.want)
		}
		for _, step := range plan.Steps {
			for _, w := range step.Writes {
				if w.FailureEvent != nil {
					t.Errorf("%s: a failure is told: %+v", test.what, w.FailureEvent)
				}
			}
		}
	}
}

// TestMirroredSlice: a slice of the mirror, completely.
func TestMirroredSlice(t *testing.T) {
	e := someEndpoints(func(e *corev1.Endpoints) {
		e.Labels = map[string]string{"a": "1", discoveryv1.LabelServiceName: "x", discoveryv1.LabelManagedBy: "x"}
		e.Annotations = map[string]string{"n": "1", corev1.LastAppliedConfigAnnotation: "{}", corev1.EndpointsLastChangeTriggerTime: "x"}
		e.Subsets = []corev1.EndpointSubset{{Ports: []corev1.EndpointPort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, AppProtocol: new("h2c")}}, Addresses: []corev1.EndpointAddress{
			{IP: "10.0.0.1", Hostname: "h", NodeName: new("n1"), TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p", UID: "u"}}, {IP: "10.0.0.2"}}}}
	})
	want := `IPv4 ["http" "80" "TCP" "h2c"] labels[a=1 endpointslice.kubernetes.io/managed-by=endpointslicemirroring-controller.k8s.io kubernetes.io/service-name=own] notes[n=1] owners[v1 Endpoints own uid-own true true]
	10.0.0.1 ready host=h node=n1 <- Pod default/p u
	10.0.0.2 ready`
	plan := mirrorView{endpoints: e, maxPerSubset: 9}.reconcile()
	slice := plan.Steps[0].Writes[0].Object.(*discoveryv1.EndpointSlice)
	if got := sliceText(slice); got != want || slice.Namespace != "default" || slice.GenerateName != "own-" {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if _, dated := slice.Annotations[corev1.EndpointsLastChangeTriggerTime]; dated {
		t.Error("the trigger is mirrored")
	}
}

// TestWhoIsMirrored: services without a selector, unless their Endpoints are a lock or say no.
func TestWhoIsMirrored(t *testing.T) {
	for _, test := range []struct {
		what          string
		labels, notes map[string]string
		want          bool
	}{
		{"plain", nil, nil, true},
		{"says no", map[string]string{discoveryv1.LabelSkipMirror: "true"}, nil, false},
		{"says yes", map[string]string{discoveryv1.LabelSkipMirror: "false"}, nil, true},
		{"says something", map[string]string{discoveryv1.LabelSkipMirror: "True"}, nil, true},
		{"a lock", nil, map[string]string{leaderElectionAnnotation: ""}, false},
	} {
		e := someEndpoints(func(e *corev1.Endpoints) { e.Labels, e.Annotations = test.labels, test.notes })
		if got := shouldMirror(e); got != test.want {
			t.Errorf("%s: %v", test.what, got)
		}
	}
}

// TestMirrorInAWorld: the mirror follows Endpoints, their labels, and what becomes of the service.
func TestMirrorInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(EndpointSliceMirroring(DefaultMirroredPerSubset))()
		seen := func() (list []string) {
			w.Pass(time.Second)
			for _, s := range world.List[*discoveryv1.EndpointSlice](w) {
				list = append(list, endpointWords(s)+s.Labels["v"])
			}
			slices.Sort(list)
			return list
		}
		expect := func(what, want string) {
			t.Helper()
			if got := fmt.Sprint(seen()); got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		e := someEndpoints(subsetOf("10.1.0.1", "", tcp("http", 80)))
		e.UID = ""
		world.Create(w, e)
		expect("Endpoints without a service", "[]")
		service := world.Create(w, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "own"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
		expect("the service came", "[80[10.1.0.1]]")
		world.Edit(w, "default", "own", func(e *corev1.Endpoints) { e.Labels = map[string]string{"v": "2"} })
		expect("another label", "[80[10.1.0.1]2]")
		world.Edit(w, "default", "own", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "web"} })
		expect("the service has a selector now", "[]")
		world.Edit(w, "default", "own", func(s *corev1.Service) { s.Spec.Selector = nil })
		expect("and no longer", "[80[10.1.0.1]2]")
		world.Edit(w, "default", "own", func(e *corev1.Endpoints) { e.Labels[discoveryv1.LabelSkipMirror] = "true" })
		expect("they say no", "[]")
		world.Edit(w, "default", "own", func(e *corev1.Endpoints) { delete(e.Labels, discoveryv1.LabelSkipMirror) })
		for _, s := range world.List[*discoveryv1.EndpointSlice](w) {
			w.Remove(s)
		}
		expect("a user deleted the slice", "[80[10.1.0.1]2]")
		w.AssertSettled(EndpointSliceMirroring(DefaultMirroredPerSubset))
		w.Remove(service)
		expect("the service went", "[]")
	})
}
