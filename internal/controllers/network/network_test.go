package network

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/endpointslice/topologycache"

	"skiff/internal/controller"
	"skiff/internal/podstate"
	"skiff/test/world"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

type change[T any] func(T)

func with[T any](obj T, changes ...change[T]) T {
	for _, c := range changes {
		c(obj)
	}
	return obj
}

// aService selects app=web and leads to port 8080.
func aService(changes ...change[*corev1.Service]) *corev1.Service {
	return with(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-web", Labels: map[string]string{"team": "a"}, CreationTimestamp: ago(time.Hour)},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.9", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}, changes...)
}

// aPod is ready on node n1.
func aPod(name, ip string, changes ...change[*corev1.Pod]) *corev1.Pod {
	return with(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i",
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}, changes...)
}

func unready(p *corev1.Pod)   { p.Status.Conditions = nil }
func leaving(p *corev1.Pod)   { p.DeletionTimestamp = new(ago(time.Second)) }
func succeeded(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
func onNode(name string) change[*corev1.Pod] {
	return func(p *corev1.Pod) { p.Spec.NodeName = name }
}
func alsoAt(ip string) change[*corev1.Pod] {
	return func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip}) }
}

func aNode(name string, changes ...change[*corev1.Node]) *corev1.Node {
	return with(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: "z-" + name}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2." + strings.TrimPrefix(name, "n")}}}}, changes...)
}

// words writes a plan down: one word per write, steps separated by commas.
func words(plan controller.Plan) string {
	var steps []string
	for _, step := range plan.Steps {
		var writes []string
		for _, w := range step.Writes {
			kind := fmt.Sprintf("%T", w.Object)
			word := fmt.Sprintf("%s %s %s%s", w.Verb, kind[strings.LastIndexByte(kind, '.')+1:], w.Object.GetName(), w.Object.GetGenerateName())
			if slice, ok := w.Object.(*discoveryv1.EndpointSlice); ok && w.Verb != controller.Delete {
				word += " " + endpointWords(slice)
			}
			writes = append(writes, word)
		}
		steps = append(steps, strings.Join(writes, " + "))
	}
	for _, e := range plan.Events {
		steps = append(steps, "tell "+e.Reason)
	}
	if plan.RequeueAfter > 0 {
		steps = append(steps, "again "+plan.RequeueAfter.String())
	}
	return strings.Join(steps, ", ")
}

// endpointWords writes down a slice: "8080[10.0.0.1 !10.0.0.2]"; ! is not ready.
func endpointWords(slice *discoveryv1.EndpointSlice) string {
	var ports, addresses []string
	for _, p := range slice.Ports {
		ports = append(ports, fmt.Sprint(*p.Port))
	}
	for _, e := range slice.Endpoints {
		word := strings.Join(e.Addresses, "|")
		if !*e.Conditions.Ready {
			word = "!" + word
		}
		addresses = append(addresses, word)
	}
	slices.Sort(addresses)
	return fmt.Sprintf("%s[%s]", strings.Join(ports, "|"), strings.Join(addresses, " "))
}

func sliceViewOf(service *corev1.Service, pods []*corev1.Pod, existing ...*discoveryv1.EndpointSlice) slicesView {
	return slicesView{service: service, pods: pods, slices: existing, maxEndpoints: 3, topology: topologycache.NewTopologyCache(),
		nodes: map[string]*corev1.Node{"n1": aNode("n1"), "n2": aNode("n2")}}
}

// written returns the slices that a plan leaves behind.
func written(v slicesView, plan controller.Plan) []*discoveryv1.EndpointSlice {
	after := map[string]*discoveryv1.EndpointSlice{}
	for _, s := range v.slices {
		after[s.Name] = s
	}
	for _, step := range plan.Steps {
		for _, w := range step.Writes {
			slice := w.Object.(*discoveryv1.EndpointSlice)
			switch w.Verb {
			case controller.Create:
				slice = slice.DeepCopy()
				slice.Name, slice.GenerateName = fmt.Sprintf("%s%d", slice.GenerateName, len(after)+rand.IntN(1e9)), ""
				after[slice.Name] = slice
			case controller.Update:
				after[slice.Name] = slice
			case controller.Delete:
				delete(after, slice.Name)
			}
		}
	}
	var all []*discoveryv1.EndpointSlice
	for _, s := range after {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// packed returns the slices a service has at rest.
func packed(service *corev1.Service, pods ...*corev1.Pod) []*discoveryv1.EndpointSlice {
	v := sliceViewOf(service, pods)
	return written(v, v.reconcile())
}

func TestEndpointSlices(t *testing.T) {
	one, two := aPod("a", "10.0.0.1"), aPod("b", "10.0.0.2")
	three, four := aPod("c", "10.0.0.3"), aPod("d", "10.0.0.4")
	named := func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("http") }
	published := func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true }
	dual := func(s *corev1.Service) {
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}
	otherPort := func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].ContainerPort = 9090 }
	sidecar := func(p *corev1.Pod) {
		always := corev1.ContainerRestartPolicyAlways
		p.Spec.InitContainers = []corev1.Container{{Name: "s", RestartPolicy: &always, Ports: p.Spec.Containers[0].Ports}}
		p.Spec.Containers[0].Ports = nil
	}
	rename := func(s []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
		for i := range s {
			s[i].Name = fmt.Sprint("s", i)
		}
		return s
	}
	foreign := rename(packed(aService(func(s *corev1.Service) { s.UID = "another" }), one))
	for _, test := range []struct {
		what     string
		service  *corev1.Service
		pods     []*corev1.Pod
		existing []*discoveryv1.EndpointSlice
		want     string
	}{
		{"no pods: an empty slice", aService(), nil, nil, "create EndpointSlice web- []"},
		{"and it stays", aService(), nil, rename(packed(aService())), ""},
		{"pods", aService(), []*corev1.Pod{one, two}, nil, "create EndpointSlice web- 8080[10.0.0.1 10.0.0.2]"},
		{"more than fit in one slice", aService(), []*corev1.Pod{one, two, three, four}, nil, "create EndpointSlice web- 8080[10.0.0.1 10.0.0.2 10.0.0.3] + create EndpointSlice web- 8080[10.0.0.4]"},
		{"the empty slice is used again", aService(), []*corev1.Pod{one}, rename(packed(aService())), "update EndpointSlice s0 8080[10.0.0.1]"},
		{"one more pod goes into the slice there is", aService(), []*corev1.Pod{one, two}, rename(packed(aService(), one)), "update EndpointSlice s0 8080[10.0.0.1 10.0.0.2]"},
		{"a pod less", aService(), []*corev1.Pod{two}, rename(packed(aService(), one, two)), "update EndpointSlice s0 8080[10.0.0.2]"},
		{"the last pod: the slice becomes the empty one", aService(), nil, rename(packed(aService(), one)), "update EndpointSlice s0 []"},
		{"an unready pod", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", unready)}, rename(packed(aService(), one)), "update EndpointSlice s0 8080[!10.0.0.1]"},
		{"an unready pod that is published", aService(published), []*corev1.Pod{aPod("a", "10.0.0.1", unready)}, nil, "create EndpointSlice web- 8080[10.0.0.1]"},
		{"a leaving pod stays, not ready", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", leaving)}, nil, "create EndpointSlice web- 8080[!10.0.0.1]"},
		{"a finished pod does not", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", succeeded)}, nil, "create EndpointSlice web- []"},
		{"a pod on an unknown node waits", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", onNode("n9"))}, nil, "create EndpointSlice web- [], tell FailedToUpdateEndpointSlices"},
		{"unless published", aService(published), []*corev1.Pod{aPod("a", "10.0.0.1", onNode("n9"))}, nil, "create EndpointSlice web- 8080[10.0.0.1]"},
		{"named ports that differ", aService(named), []*corev1.Pod{one, aPod("b", "10.0.0.2", otherPort)}, nil, "create EndpointSlice web- 8080[10.0.0.1] + create EndpointSlice web- 9090[10.0.0.2]"},
		{"a sidecar's port", aService(named), []*corev1.Pod{aPod("a", "10.0.0.1", sidecar)}, nil, "create EndpointSlice web- 8080[10.0.0.1]"},
		{"two families", aService(dual), []*corev1.Pod{aPod("a", "10.0.0.1", alsoAt("fd00::1"))}, nil, "create EndpointSlice web- 8080[10.0.0.1] + create EndpointSlice web- 8080[fd00::1]"},
		{"a family given up", aService(), []*corev1.Pod{aPod("a", "10.0.0.1", alsoAt("fd00::1"))}, rename(packed(aService(dual), aPod("a", "10.0.0.1", alsoAt("fd00::1")))), "delete EndpointSlice s"},
		{"labels follow the service", aService(func(s *corev1.Service) { s.Labels = nil }), []*corev1.Pod{one}, rename(packed(aService(), one)), "update EndpointSlice s0 8080[10.0.0.1]"},
		{"slices of an earlier service", aService(), []*corev1.Pod{one}, foreign, "create EndpointSlice web- 8080[10.0.0.1], delete EndpointSlice s0"},
		{"a service that is leaving gets no new ones", aService(func(s *corev1.Service) { s.DeletionTimestamp = new(ago(0)) }), []*corev1.Pod{one}, nil, ""},
	} {
		v := sliceViewOf(test.service, test.pods, test.existing...)
		plan := v.reconcile()
		if got := words(plan); got != test.want && !(strings.HasSuffix(test.want, " s") && strings.HasPrefix(got, test.want) && !strings.Contains(got, ",")) {
			t.Errorf("%s:\n got %s\nwant %s", test.what, got, test.want)
		}
		if test.service.DeletionTimestamp == nil {
			v.slices = written(v, plan)
			if again := v.reconcile(); len(again.Steps) > 0 {
				t.Errorf("%s: a second sync changes something: %s", test.what, words(again))
			}
		}
	}
}

func TestEndpointHasNodeZoneAndHostname(t *testing.T) {
	service := aService()
	pod := aPod("a", "10.0.0.1", func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "db", "web" })
	e := packed(service, pod)[0].Endpoints[0]
	if *e.NodeName != "n1" || *e.Zone != "z-n1" || *e.Hostname != "db" || e.TargetRef.UID != pod.UID || !*e.Conditions.Serving || *e.Conditions.Terminating {
		t.Errorf("endpoint %+v", e)
	}
	slice := packed(service, pod)[0]
	wantLabels := map[string]string{"team": "a", discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: sliceManager}
	if fmt.Sprint(slice.Labels) != fmt.Sprint(wantLabels) || !metav1.IsControlledBy(slice, service) {
		t.Errorf("labels %v, owners %v", slice.Labels, slice.OwnerReferences)
	}
}

func TestHintsFollowTheTrafficDistribution(t *testing.T) {
	pods := []*corev1.Pod{aPod("a", "10.0.0.1"), aPod("b", "10.0.0.2", onNode("n2"))}
	service := aService()
	v := sliceViewOf(service, pods)
	v.slices = written(v, v.reconcile())
	hints := func() (all []string) {
		for _, e := range v.slices[0].Endpoints {
			text := e.Addresses[0]
			if e.Hints != nil {
				for _, z := range e.Hints.ForZones {
					text += " " + z.Name
				}
				for _, n := range e.Hints.ForNodes {
					text += " " + n.Name
				}
			}
			all = append(all, text)
		}
		return all
	}
	for _, test := range []struct{ distribution, want string }{
		{"PreferSameZone", "[10.0.0.1 z-n1 10.0.0.2 z-n2]"},
		{"PreferSameNode", "[10.0.0.1 z-n1 n1 10.0.0.2 z-n2 n2]"},
		{"Something", "[10.0.0.1 10.0.0.2]"},
	} {
		v.service = aService(func(s *corev1.Service) { s.Spec.TrafficDistribution = &test.distribution })
		v.slices = written(v, v.reconcile())
		if got := fmt.Sprint(hints()); got != test.want {
			t.Errorf("%s: %s, want %s", test.distribution, got, test.want)
		}
		if plan := v.reconcile(); !plan.IsEmpty() {
			t.Errorf("%s: a second sync changes something", test.distribution)
		}
	}
}

// TestPackingKeepsItsPromises: whatever pods come and go, the slices hold exactly the wanted endpoints, none is too full, a
// second sync changes nothing, and a small change touches few slices.
func TestPackingKeepsItsPromises(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	v := sliceViewOf(aService(), nil)
	v.maxEndpoints = 10
	pods := map[int]*corev1.Pod{}
	for round := range 300 {
		for range random.IntN(12) {
			n := random.IntN(120)
			if pods[n] != nil && random.IntN(3) == 0 {
				delete(pods, n)
			} else {
				changes := []change[*corev1.Pod]{}
				if random.IntN(4) == 0 {
					changes = append(changes, unready)
				}
				pods[n] = aPod(fmt.Sprintf("p%03d", n), fmt.Sprintf("10.0.%d.%d", n/100, n%100), changes...)
			}
		}
		v.pods = nil
		want := map[string]bool{}
		for _, p := range pods {
			v.pods = append(v.pods, p)
			want[p.Status.PodIP] = podstate.IsReady(p)
		}
		slices.SortFunc(v.pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
		v.slices = written(v, v.reconcile())
		for _, s := range v.slices {
			if len(s.Endpoints) > v.maxEndpoints {
				t.Fatalf("round %d: %d endpoints in a slice", round, len(s.Endpoints))
			}
			for _, e := range s.Endpoints {
				if ready, ok := want[e.Addresses[0]]; !ok || ready != *e.Conditions.Ready {
					t.Fatalf("round %d: %s is not wanted, or twice, or not as it should be", round, e.Addresses[0])
				}
				delete(want, e.Addresses[0])
			}
		}
		if len(want) > 0 {
			t.Fatalf("round %d: missing %v", round, want)
		}
		if plan := v.reconcile(); !plan.IsEmpty() {
			t.Fatalf("round %d: a second sync changes something: %s", round, words(plan))
		}
	}
}

// TestServicesInAWorld lets the real controllers work on a real server.
func TestServicesInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		stop := w.Run(EndpointSlice(DefaultEndpointsPerSlice), Endpoints, EndpointSliceMirroring(DefaultMirroredPerSubset), ServiceCIDR, LoadBalancer(DefaultReservedPorts))
		world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		world.EditStatus(w, "", "n1", func(n *corev1.Node) { n.Status = aNode("n1").Status })
		service := world.Create(w, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}})
		w.Pass(time.Second)
		all := world.List[*discoveryv1.EndpointSlice](w)
		if len(all) != 1 || len(all[0].Endpoints) != 0 || !metav1.IsControlledBy(all[0], service) {
			t.Fatalf("a service without pods has slices %+v", all)
		}
		world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", Labels: map[string]string{"app": "web"}},
			Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}}})
		world.EditStatus(w, "default", "a", func(p *corev1.Pod) { p.Status = aPod("a", "10.0.0.1").Status })
		w.Pass(time.Second)
		all = world.List[*discoveryv1.EndpointSlice](w)
		if len(all) != 1 || endpointWords(all[0]) != "80[10.0.0.1]" {
			t.Fatalf("with a pod, slices %+v", all)
		}
		if e := world.Get[*corev1.Endpoints](w, "default", "web"); len(e.Subsets) != 1 || e.Subsets[0].Addresses[0].IP != "10.0.0.1" {
			t.Fatalf("endpoints %+v", e)
		}
		// A service without a selector, and Endpoints of its own.
		world.Create(w, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "own"},
			Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 80}}}})
		world.Create(w, &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "own"},
			Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "10.1.2.3"}}, Ports: []corev1.EndpointPort{{Port: 80}}}}})
		mirror := func() (found []string) {
			for _, s := range world.List[*discoveryv1.EndpointSlice](w) {
				if s.Labels[discoveryv1.LabelServiceName] == "own" {
					found = append(found, endpointWords(s))
				}
			}
			return found
		}
		w.Pass(time.Second)
		if got := fmt.Sprint(mirror()); got != "[80[10.1.2.3]]" {
			t.Fatalf("mirror %s", got)
		}
		world.Edit(w, "default", "own", func(e *corev1.Endpoints) { e.Subsets[0].Addresses[0].IP = "10.2.3.4" })
		w.Pass(time.Second)
		if got := fmt.Sprint(mirror()); got != "[80[10.2.3.4]]" {
			t.Fatalf("mirror %s", got)
		}
		w.Remove(world.Get[*corev1.Endpoints](w, "default", "own"))
		w.Pass(time.Second)
		if got := mirror(); len(got) != 0 {
			t.Fatalf("mirror of nothing: %s", got)
		}
		w.Remove(service)
		w.Pass(time.Second)
		if !world.Gone[*corev1.Endpoints](w, "default", "web") {
			t.Error("Endpoints outlive their service")
		}
		// All is at rest: another start writes nothing.
		stop()
		before := world.Newest(world.List[*discoveryv1.EndpointSlice](w))
		defer w.Run(EndpointSlice(DefaultEndpointsPerSlice), Endpoints, EndpointSliceMirroring(DefaultMirroredPerSubset))()
		w.Pass(time.Minute)
		if after := world.Newest(world.List[*discoveryv1.EndpointSlice](w)); after != before {
			t.Errorf("a start at rest wrote: revision %s, was %s", after, before)
		}
	})
}

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
		if got := hasManagedEndpoints(test.service); got != test.want {
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
		if got := isReachable(test.pod); got != test.want {
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
		if got := fmt.Sprint(serviceKeyOf(test.slice, sliceManager)); got != test.want {
			t.Errorf("%s: %s", what, got)
		}
	}
	if got := triggerTimeAnnotation(time.Time{}); got != "" {
		t.Errorf("no time: %q", got)
	}
	if got := fmt.Sprint(setOrDelete(nil, "a", ""), setOrDelete(nil, "a", "1"), setOrDelete(map[string]string{"a": "1", "b": "2"}, "a", ""), withoutKeys(nil, "a"), withoutKeys(map[string]string{"a": "1", "b": "2"}, "a", "c")); got != "map[] map[a:1] map[b:2] map[] map[b:2]" {
		t.Errorf("maps %s", got)
	}
	all := []*corev1.Service{aService(dated("young", time.Minute)), aService(dated("b", time.Hour)), aService(dated("a", time.Hour)), aService(dated("old", 2*time.Hour))}
	elsewhere := aService(dated("z", time.Hour))
	elsewhere.Namespace = "aaa"
	all = append(all, elsewhere)
	sortByAge(all)
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

func TestAddressTypes(t *testing.T) {
	for _, test := range []struct {
		what     string
		families []corev1.IPFamily
		ip       string
		want     string
	}{
		{"one family", []corev1.IPFamily{corev1.IPv4Protocol}, "10.0.0.1", "[IPv4]"},
		{"two, in the order of the service", []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}, "fd00::1", "[IPv6 IPv4]"},
		{"told by the address", nil, "10.0.0.1", "[IPv4]"},
		{"told by the address, six", nil, "fd00::1", "[IPv6]"},
		{"nobody knows: both", nil, corev1.ClusterIPNone, "[IPv4 IPv6]"},
		{"no address yet: both", nil, "", "[IPv4 IPv6]"},
		{"the families go before the address", []corev1.IPFamily{corev1.IPv6Protocol}, "10.0.0.1", "[IPv6]"},
		{"headless, and it says which", []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, corev1.ClusterIPNone, "[IPv4 IPv6]"},
		{"an address of four in the form of six is of four", nil, "::ffff:10.0.0.1", "[IPv4]"},
	} {
		s := &corev1.Service{Spec: corev1.ServiceSpec{IPFamilies: test.families, ClusterIP: test.ip}}
		if got := fmt.Sprint(addressTypes(s)); got != test.want {
			t.Errorf("%s: %s, want %s", test.what, got, test.want)
		}
	}
}

func TestAddressOfAPod(t *testing.T) {
	both := []corev1.PodIP{{IP: "10.1.0.1"}, {IP: "fd00::1"}}
	for _, test := range []struct {
		what     string
		families []corev1.IPFamily
		ip       string
		pod      []corev1.PodIP
		want     string
	}{
		{"the service's first family", []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}, "", both, "fd00::1"},
		{"the family of its address", nil, "10.0.0.1", both, "10.1.0.1"},
		{"the pod's own", nil, corev1.ClusterIPNone, []corev1.PodIP{{IP: "fd00::1"}}, "fd00::1"},
		{"a pod without the family", []corev1.IPFamily{corev1.IPv6Protocol}, "", []corev1.PodIP{{IP: "10.1.0.1"}}, ""},
		{"a pod without addresses", nil, "10.0.0.1", nil, ""},
		{"an address that is none", nil, "10.0.0.1", []corev1.PodIP{{IP: "x"}}, ""},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "1"}, Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{PodIPs: test.pod}}
		if len(test.pod) > 0 {
			pod.Status.PodIP = test.pod[0].IP
		}
		v := endpointsView{service: &corev1.Service{Spec: corev1.ServiceSpec{IPFamilies: test.families, ClusterIP: test.ip}}}
		got, ok := v.address(pod)
		if ok != (test.want != "") || got.IP != test.want {
			t.Errorf("%s: %q, %v", test.what, got.IP, ok)
		}
		if ok && (*got.NodeName != "n" || got.TargetRef.UID != "1") {
			t.Errorf("%s: %+v", test.what, got)
		}
	}
}

func TestCanonical(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1": "10.0.0.1 IPv4", "010.0.0.1": "10.0.0.1 IPv4", "FD00:0::1": "fd00::1 IPv6", "::ffff:10.0.0.1": "10.0.0.1 IPv4", "": " ", "None": " ",
	} {
		text, family, ok := canonicalIP(address)
		if got := text + " " + string(family); got != want || ok != (want != " ") {
			t.Errorf("%q: %q, %v", address, got, ok)
		}
	}
}

func TestHintsAreWanted(t *testing.T) {
	for _, test := range []struct {
		annotations map[string]string
		want        bool
	}{
		{nil, false},
		{map[string]string{corev1.AnnotationTopologyMode: "Auto"}, true},
		{map[string]string{corev1.AnnotationTopologyMode: "auto"}, true},
		{map[string]string{corev1.AnnotationTopologyMode: "Disabled"}, false},
		{map[string]string{corev1.DeprecatedAnnotationTopologyAwareHints: "Auto"}, true},
		{map[string]string{corev1.DeprecatedAnnotationTopologyAwareHints: "Disabled", corev1.AnnotationTopologyMode: "Auto"}, false},
	} {
		if got := topologyAnnotation(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: test.annotations}}); got != test.want {
			t.Errorf("%v: %v", test.annotations, got)
		}
	}
	for distribution, want := range map[string]bool{"PreferClose": true, "PreferSameZone": true, "PreferSameNode": true, "Random": false} {
		if got := isKnownTrafficDistribution(&distribution); got != want {
			t.Errorf("%s: %v", distribution, got)
		}
	}
	if isKnownTrafficDistribution(nil) {
		t.Error("nothing is preferred by who says nothing")
	}
}

func TestPlaceholder(t *testing.T) {
	v := slicesView{service: aService()}
	placeholder := v.newSlice(nil, discoveryv1.AddressTypeIPv4)
	if !isPlaceholder(placeholder.DeepCopy(), placeholder) {
		t.Error("a placeholder is none")
	}
	for what, change := range map[string]func(*discoveryv1.EndpointSlice){
		"an endpoint":    func(s *discoveryv1.EndpointSlice) { s.Endpoints = []discoveryv1.Endpoint{{}} },
		"a port":         func(s *discoveryv1.EndpointSlice) { s.Ports = []discoveryv1.EndpointPort{{}} },
		"another label":  func(s *discoveryv1.EndpointSlice) { s.Labels["more"] = "x" },
		"another owner":  func(s *discoveryv1.EndpointSlice) { s.OwnerReferences[0].UID = "other" },
		"no owner":       func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil },
		"a label it had": func(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelManagedBy) },
	} {
		slice := placeholder.DeepCopy()
		change(slice)
		if isPlaceholder(slice, placeholder) {
			t.Errorf("with %s it is still a placeholder", what)
		}
	}
}

func TestNamePrefix(t *testing.T) {
	for name, want := range map[string]string{"web": "web-", "web.example": "web.example-", "Web": "Web", "w_b": "w_b"} {
		if got := namePrefix(name); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
