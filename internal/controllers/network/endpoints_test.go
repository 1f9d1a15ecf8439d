package network

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"skiff/internal/controller"
	"skiff/test/world"
)

// mapWords writes a map down, sorted.
func mapWords(m map[string]string) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		words = append(words, key+"="+m[key])
	}
	return strings.Join(words, " ")
}

// addressWords writes an address of Endpoints down: "10.0.0.1 host@node <- default/pod UID".
func addressWords(a corev1.EndpointAddress) string {
	word := a.IP
	if a.Hostname != "" || a.NodeName != nil {
		word += " " + a.Hostname
		if a.NodeName != nil {
			word += "@" + *a.NodeName
		}
	}
	if ref := a.TargetRef; ref != nil {
		word += fmt.Sprintf(" <- %s %s/%s %s", ref.Kind, ref.Namespace, ref.Name, ref.UID)
	}
	return word
}

// subsetWords writes subsets down completely: ready addresses, then those that are not, then the ports.
func subsetWords(subsets []corev1.EndpointSubset) string {
	var all []string
	for _, s := range subsets {
		var words []string
		for _, a := range s.Addresses {
			words = append(words, addressWords(a))
		}
		for _, a := range s.NotReadyAddresses {
			words = append(words, "!"+addressWords(a))
		}
		for _, p := range s.Ports {
			word := fmt.Sprintf("%s:%d/%s", p.Name, p.Port, p.Protocol)
			if p.AppProtocol != nil {
				word += "(" + *p.AppProtocol + ")"
			}
			words = append(words, word)
		}
		all = append(all, strings.Join(words, ", "))
	}
	return strings.Join(all, " | ")
}

func headlessly(s *corev1.Service)  { s.Spec.ClusterIP = corev1.ClusterIPNone }
func publishing(s *corev1.Service)  { s.Spec.PublishNotReadyAddresses = true }
func portless(s *corev1.Service)    { s.Spec.Ports = nil }
func goingAway(s *corev1.Service)   { s.DeletionTimestamp = new(ago(time.Second)) }
func noFamilies(s *corev1.Service)  { s.Spec.IPFamilies = nil }
func failedPhase(p *corev1.Pod)     { p.Status.Phase = corev1.PodFailed }
func withoutAddress(p *corev1.Pod)  { p.Status.PodIP, p.Status.PodIPs = "", nil }
func named(s *corev1.Service)       { s.Spec.Ports[0].TargetPort = intstr.FromString("http") }
func notReadyFalse(p *corev1.Pod)   { p.Status.Conditions[0].Status = corev1.ConditionFalse }
func notReadyUnknown(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionUnknown }

func families(list ...corev1.IPFamily) change[*corev1.Service] {
	return func(s *corev1.Service) { s.Spec.IPFamilies = list }
}

func serviceLabels(pairs ...string) change[*corev1.Service] {
	return func(s *corev1.Service) {
		s.Labels = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			s.Labels[pairs[i]] = pairs[i+1]
		}
	}
}

func alsoPort(name string, port int32, target intstr.IntOrString, protocol corev1.Protocol, app *string) change[*corev1.Service] {
	return func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: name, Port: port, TargetPort: target, Protocol: protocol, AppProtocol: app})
	}
}

func called(hostname, subdomain string) change[*corev1.Pod] {
	return func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = hostname, subdomain }
}

// TestEndpointsOfPods: which pods are in the Endpoints of a service, where, and with what.
func TestEndpointsOfPods(t *testing.T) {
	const a, b = "10.0.0.1 @n1 <- Pod default/a uid-a", "10.0.0.2 @n1 <- Pod default/b uid-b"
	v4, v6 := corev1.IPv4Protocol, corev1.IPv6Protocol
	udp := corev1.ProtocolUDP
	for _, test := range []struct {
		what    string
		service *corev1.Service
		pods    []*corev1.Pod
		want    string
	}{
		{"no pods: no subsets", aService(), nil, ""},
		{"a ready pod", aService(), []*corev1.Pod{aPod("a", "10.0.0.1")}, a + ", http:8080/TCP"},
		{"a pod without a Ready condition is not ready", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", unready)}, "!" + a + ", http:8080/TCP"},
		{"Ready=False is not ready", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", notReadyFalse)}, "!" + a + ", http:8080/TCP"},
		{"Ready=Unknown is not ready", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", notReadyUnknown)}, "!" + a + ", http:8080/TCP"},
		{"ready and unready share a subset", aService(), []*corev1.Pod{aPod("a", "10.0.0.1"), aPod("b", "10.0.0.2", unready)}, a + ", !" + b + ", http:8080/TCP"},
		{"addresses are sorted", aService(), []*corev1.Pod{aPod("b", "10.0.0.2"), aPod("a", "10.0.0.1")}, a + ", " + b + ", http:8080/TCP"},
		{"a succeeded pod is out", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", succeeded)}, ""},
		{"a failed pod is out", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", failedPhase)}, ""},
		{"a pod without addresses is out", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", withoutAddress)}, ""},
		{"a pod that leaves is out", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", leaving)}, ""},
		{"a pod that leaves is published on request", aService(publishing), []*corev1.Pod{aPod("a", "10.0.0.1", leaving)}, a + ", http:8080/TCP"},
		{"an unready pod is published as ready on request", aService(publishing), []*corev1.Pod{aPod("a", "10.0.0.1", unready)}, a + ", http:8080/TCP"},
		{"a finished pod is never published", aService(publishing), []*corev1.Pod{aPod("a", "10.0.0.1", succeeded)}, ""},
		{"the name of a pod in the service's domain", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", called("db", "web"))}, "10.0.0.1 db@n1 <- Pod default/a uid-a, http:8080/TCP"},
		{"another domain: no name", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", called("db", "other"))}, a + ", http:8080/TCP"},
		{"no ports and no cluster IP: addresses alone", aService(headlessly, portless), []*corev1.Pod{aPod("a", "10.0.0.1"), aPod("b", "10.0.0.2", unready)}, a + ", !" + b},
		{"no ports but a cluster IP: nothing", aService(portless), []*corev1.Pod{aPod("a", "10.0.0.1")}, ""},
		{"headless with ports", aService(headlessly), []*corev1.Pod{aPod("a", "10.0.0.1")}, a + ", http:8080/TCP"},
		{"several ports stand together", aService(alsoPort("dns", 53, intstr.FromInt32(5353), udp, nil)), []*corev1.Pod{aPod("a", "10.0.0.1")}, a + ", dns:5353/UDP, http:8080/TCP"},
		{"an application protocol is told", aService(alsoPort("rpc", 81, intstr.FromInt32(81), corev1.ProtocolTCP, new("kubernetes.io/h2c"))), []*corev1.Pod{aPod("a", "10.0.0.1")},
			a + ", http:8080/TCP, rpc:81/TCP(kubernetes.io/h2c)"},
		{"a named port the pod lacks is left out", aService(alsoPort("x", 1, intstr.FromString("absent"), corev1.ProtocolTCP, nil)), []*corev1.Pod{aPod("a", "10.0.0.1")}, a + ", http:8080/TCP"},
		{"a pod that has none of the ports is out", aService(func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("absent") }), []*corev1.Pod{aPod("a", "10.0.0.1")}, ""},
		{"named ports may differ: two subsets", aService(named), []*corev1.Pod{aPod("a", "10.0.0.1"), aPod("b", "10.0.0.2", func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].ContainerPort = 9090 })},
			a + ", http:8080/TCP | " + b + ", http:9090/TCP"},
		{"pods on their node's network share its address", aService(), []*corev1.Pod{aPod("a", "10.0.0.1"), aPod("b", "10.0.0.1")},
			a + ", 10.0.0.1 @n1 <- Pod default/b uid-b, http:8080/TCP"},
		{"the first family of the service", aService(families(v6, v4)), []*corev1.Pod{aPod("a", "10.0.0.1", alsoAt("fd00::1"))}, "fd00::1 @n1 <- Pod default/a uid-a, http:8080/TCP"},
		{"only the first family", aService(families(v4, v6)), []*corev1.Pod{aPod("a", "10.0.0.1", alsoAt("fd00::1"))}, a + ", http:8080/TCP"},
		{"a pod that lacks the family is out", aService(families(v6)), []*corev1.Pod{aPod("a", "10.0.0.1")}, ""},
		{"no families: that of the cluster IP", aService(noFamilies), []*corev1.Pod{aPod("a", "fd00::1", alsoAt("10.0.0.1"))}, a + ", http:8080/TCP"},
		{"no families, no cluster IP: that of the pod", aService(noFamilies, headlessly), []*corev1.Pod{aPod("a", "fd00::1", alsoAt("10.0.0.1"))}, "fd00::1 @n1 <- Pod default/a uid-a, http:8080/TCP"},
		{"odd spelling is mended", aService(), []*corev1.Pod{aPod("a", "010.0.0.001")}, a + ", http:8080/TCP"},
		{"of two addresses of a family the first counts", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", alsoAt("10.0.0.9"))}, a + ", http:8080/TCP"},
	} {
		v := endpointsView{service: test.service, pods: test.pods}
		if got := subsetWords(v.subsets()); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.what, got, test.want)
		}
	}
}

// TestEndpointsWrites: what is written for a service, with labels and annotations, and what is good enough as it is.
func TestEndpointsWrites(t *testing.T) {
	const manager = "endpoints.kubernetes.io/managed-by=endpoint-controller"
	const headlessLabel = "service.kubernetes.io/headless"
	const trigger = "endpoints.kubernetes.io/last-change-trigger-time=2026-03-01T12:00:00Z"
	pods := []*corev1.Pod{aPod("a", "10.0.0.1")}
	at := func(service *corev1.Service, pods []*corev1.Pod, changes ...change[*corev1.Endpoints]) *corev1.Endpoints {
		v := endpointsView{service: service, pods: pods}
		e := v.reconcile().Steps[0].Writes[0].Object.(*corev1.Endpoints)
		e.ResourceVersion, e.UID = "5", "uid-e"
		return with(e, changes...)
	}
	label := func(pairs ...string) change[*corev1.Endpoints] {
		return func(e *corev1.Endpoints) {
			for i := 0; i < len(pairs); i += 2 {
				e.Labels[pairs[i]] = pairs[i+1]
			}
		}
	}
	note := func(key, value string) change[*corev1.Endpoints] {
		return func(e *corev1.Endpoints) { metav1.SetMetaDataAnnotation(&e.ObjectMeta, key, value) }
	}
	for _, test := range []struct {
		what    string
		service *corev1.Service
		pods    []*corev1.Pod
		current *corev1.Endpoints
		trigger time.Time
		verb    controller.Verb // "": nothing is written
		labels  string
		notes   string
	}{
		{"new", aService(), pods, nil, now, controller.Create, manager + " team=a", trigger},
		{"new, nobody knows since when", aService(), pods, nil, time.Time{}, controller.Create, manager + " team=a", ""},
		{"new, without pods", aService(), nil, nil, now, controller.Create, manager + " team=a", trigger},
		{"new, without labels", aService(serviceLabels()), pods, nil, time.Time{}, controller.Create, manager, ""},
		{"new, headless", aService(headlessly), pods, nil, time.Time{}, controller.Create, manager + " " + headlessLabel + "= team=a", ""},
		{"new, without a cluster IP", aService(func(s *corev1.Service) { s.Spec.ClusterIP = "" }), pods, nil, time.Time{}, controller.Create, manager + " " + headlessLabel + "= team=a", ""},
		{"a service that says it is headless and is not", aService(serviceLabels(headlessLabel, "")), pods, nil, time.Time{}, controller.Create, manager, ""},
		{"a service that is headless and says so its own way", aService(headlessly, serviceLabels(headlessLabel, "yes")), pods, nil, time.Time{}, controller.Create, manager + " " + headlessLabel + "=", ""},
		{"a service that names another manager", aService(serviceLabels(endpointsManagedBy, "me")), pods, nil, time.Time{}, controller.Create, manager, ""},
		{"at rest", aService(), pods, at(aService(), pods), now, "", "", ""},
		{"at rest, without pods", aService(), nil, at(aService(), nil), now, "", "", ""},
		{"at rest with notes of others", aService(), pods, at(aService(), pods, note("mine", "1")), now, "", "", ""},
		{"the headless label alone is no reason", aService(), pods, at(aService(), pods, label(headlessLabel, "")), now, "", "", ""},
		{"headless since: no reason either", aService(headlessly), pods, at(aService(), pods), now, "", "", ""},
		{"a label of the service that changed", aService(serviceLabels("team", "b")), pods, at(aService(), pods), now, controller.Update, manager + " team=b", trigger},
		{"a label of the service that went", aService(serviceLabels()), pods, at(aService(), pods), now, controller.Update, manager, trigger},
		{"a label of the service that came", aService(serviceLabels("team", "a", "more", "1")), pods, at(aService(), pods), now, controller.Update, manager + " more=1 team=a", trigger},
		{"a label somebody put on the Endpoints", aService(), pods, at(aService(), pods, label("theirs", "1")), now, controller.Update, manager + " team=a", trigger},
		{"the manager is missing", aService(), pods, at(aService(), pods, func(e *corev1.Endpoints) { delete(e.Labels, endpointsManagedBy) }), now, controller.Update, manager + " team=a", trigger},
		{"another manager", aService(), pods, at(aService(), pods, label(endpointsManagedBy, "x")), now, controller.Update, manager + " team=a", trigger},
		{"a pod more", aService(), pods, at(aService(), nil), now, controller.Update, manager + " team=a", trigger},
		{"a pod less", aService(), nil, at(aService(), pods), now, controller.Update, manager + " team=a", trigger},
		{"notes of others stay", aService(), nil, at(aService(), pods, note("mine", "1")), now, controller.Update, manager + " team=a", trigger + " mine=1"},
		{"an old trigger goes when none is known", aService(), nil, at(aService(), pods, note(corev1.EndpointsLastChangeTriggerTime, "x")), time.Time{}, controller.Update, manager + " team=a", ""},
		{"reported to be over capacity, and is not", aService(), pods, at(aService(), pods, note(corev1.EndpointsOverCapacity, "truncated")), now, controller.Update, manager + " team=a", trigger},
		{"a node that changed", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", onNode("n2"))}, at(aService(), pods), now, controller.Update, manager + " team=a", trigger},
		{"a pod that became unready", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", unready)}, at(aService(), pods), now, controller.Update, manager + " team=a", trigger},
		{"another pod with the same name and address", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", func(p *corev1.Pod) { p.UID = "uid-new" })}, at(aService(), pods), now, controller.Update, manager + " team=a", trigger},
		{"a port that changed its name", aService(func(s *corev1.Service) { s.Spec.Ports[0].Name = "www" }), pods, at(aService(), pods), now, controller.Update, manager + " team=a", trigger},
		{"subsets that another order would pack alike", aService(), pods, at(aService(), pods, func(e *corev1.Endpoints) {
			e.Subsets = append(e.Subsets, *e.Subsets[0].DeepCopy()) // the same once more
		}), now, "", "", ""},
	} {
		v := endpointsView{service: test.service, pods: test.pods, current: test.current, triggerTime: test.trigger}
		plan := v.reconcile()
		if test.verb == "" {
			if !plan.IsEmpty() {
				t.Errorf("%s: %s", test.what, words(plan))
			}
			continue
		}
		if len(plan.Steps) != 1 || len(plan.Steps[0].Writes) != 1 {
			t.Errorf("%s: %s", test.what, words(plan))
			continue
		}
		w := plan.Steps[0].Writes[0]
		e := w.Object.(*corev1.Endpoints)
		if w.Verb != test.verb || e.Namespace != "default" || e.Name != "web" || mapWords(e.Labels) != test.labels || mapWords(e.Annotations) != test.notes {
			t.Errorf("%s: %s %s/%s\nlabels %s\n  want %s\nnotes %s\n want %s", test.what, w.Verb, e.Namespace, e.Name, mapWords(e.Labels), test.labels, mapWords(e.Annotations), test.notes)
		}
		if want := subsetWords(v.subsets()); subsetWords(e.Subsets) != want {
			t.Errorf("%s: subsets %s, want %s", test.what, subsetWords(e.Subsets), want)
		}
		reason, message := "FailedToCreateEndpoint", "Failed to create endpoint for service default/web: %s"
		if test.current != nil {
			reason, message = "FailedToUpdateEndpoint", "Failed to update endpoint default/web: %s"
			if e.UID != test.current.UID || e.ResourceVersion != test.current.ResourceVersion {
				t.Errorf("%s: it is another object that is updated: %+v", test.what, e.ObjectMeta)
			}
		}
		if f := w.FailureEvent; f == nil || f.Type != corev1.EventTypeWarning || f.Reason != reason || f.Message != message {
			t.Errorf("%s: a failure is told as %+v", test.what, f)
		}
		if !slices.Equal(test.service.Spec.Ports, v.service.Spec.Ports) || test.current != nil && test.current == e {
			t.Errorf("%s: what came from the cache was changed", test.what)
		}
		v.current = e
		if again := v.reconcile(); !again.IsEmpty() {
			t.Errorf("%s: a second sync changes something: %s", test.what, words(again))
		}
	}
}

// TestEndpointsOverCapacity: at most a thousand addresses, and the object says that it is not all.
func TestEndpointsOverCapacity(t *testing.T) {
	many := func(n int) (pods []*corev1.Pod) {
		for i := range n {
			pods = append(pods, aPod(fmt.Sprintf("p%04d", i), fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)))
		}
		return pods
	}
	for _, test := range []struct {
		pods, want int
		note       string
	}{{999, 999, ""}, {1000, 1000, ""}, {1001, 1000, "truncated"}, {2500, 1000, "truncated"}} {
		v := endpointsView{service: aService(), pods: many(test.pods)}
		e := v.reconcile().Steps[0].Writes[0].Object.(*corev1.Endpoints)
		if got := len(e.Subsets[0].Addresses); got != test.want || e.Annotations[corev1.EndpointsOverCapacity] != test.note {
			t.Errorf("%d pods: %d addresses, note %q", test.pods, got, e.Annotations[corev1.EndpointsOverCapacity])
		}
		v.current = e
		if plan := v.reconcile(); plan.IsEmpty() != (test.note == "") {
			t.Errorf("%d pods: a second sync: %s", test.pods, words(plan)) // what was cut is compared as it should be, and written again
		}
		v.pods = many(10)
		e = v.reconcile().Steps[0].Writes[0].Object.(*corev1.Endpoints)
		if _, still := e.Annotations[corev1.EndpointsOverCapacity]; still || len(e.Subsets[0].Addresses) != 10 {
			t.Errorf("%d pods became 10: %v", test.pods, e.Annotations)
		}
	}
}

// TestEndpointsFollowTheirServices: what is looked at, and what is left alone.
func TestEndpointsFollowTheirServices(t *testing.T) {
	world.In(t, func(w *world.World) {
		create := func(name string, changes ...change[*corev1.Service]) *corev1.Service {
			return world.Create(w, with(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
				Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}}, changes...))
		}
		bare := func(name string, notes map[string]string) {
			world.Create(w, &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: notes}})
		}
		// Before anybody looks: a lock, what a service left behind, and what a user writes for a service of his own.
		bare("lock", map[string]string{leaderElectionAnnotation: "{}"})
		bare("left", nil)
		bare("own", nil)
		create("own", func(s *corev1.Service) { s.Spec.Selector = nil })
		defer w.Run(Endpoints)()
		w.Pass(time.Second)
		for name, gone := range map[string]bool{"lock": false, "left": true, "own": false} {
			if world.Gone[*corev1.Endpoints](w, "default", name) != gone {
				t.Errorf("Endpoints %s: gone is %v", name, !gone)
			}
		}
		create("web")
		create("elsewhere", func(s *corev1.Service) {
			s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com", Selector: map[string]string{"app": "web"}}
		})
		w.Pass(time.Second)
		if world.Gone[*corev1.Endpoints](w, "default", "web") || !world.Gone[*corev1.Endpoints](w, "default", "elsewhere") {
			t.Error("a service with a selector has Endpoints, one that is a name elsewhere has none")
		}
		addresses := func() string { return subsetWords(world.Get[*corev1.Endpoints](w, "default", "web").Subsets) }
		world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", Labels: map[string]string{"app": "web"}},
			Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}}})
		w.Pass(time.Second)
		if got := addresses(); got != "" {
			t.Errorf("a pod without an address: %s", got)
		}
		world.EditStatus(w, "default", "a", func(p *corev1.Pod) { p.Status = aPod("a", "10.0.0.1").Status })
		w.Pass(time.Second)
		if got := addresses(); !strings.HasPrefix(got, "10.0.0.1 @n1") {
			t.Errorf("a pod that became ready: %s", got)
		}
		// A label less, and the pod is out; the label again, and it is in.
		world.Edit(w, "default", "a", func(p *corev1.Pod) { p.Labels = nil })
		w.Pass(time.Second)
		if got := addresses(); got != "" {
			t.Errorf("a pod that is no longer selected: %s", got)
		}
		world.Edit(w, "default", "a", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} })
		w.Pass(time.Second)
		if got := addresses(); got == "" {
			t.Error("a pod that is selected again is missing")
		}
		// Deleted by a user, they come again.
		w.Remove(world.Get[*corev1.Endpoints](w, "default", "web"))
		w.Pass(time.Second)
		if world.Gone[*corev1.Endpoints](w, "default", "web") {
			t.Error("Endpoints that were deleted stay away")
		}
		// A service that gives up its selector keeps them, as its owner's.
		world.Edit(w, "default", "web", func(s *corev1.Service) { s.Spec.Selector = nil })
		w.Pass(time.Second) // services and pods have informers of their own
		w.Remove(world.Get[*corev1.Pod](w, "default", "a"))
		w.Pass(time.Minute)
		if got := addresses(); got == "" {
			t.Error("a service without a selector lost its addresses")
		}
	})
}
