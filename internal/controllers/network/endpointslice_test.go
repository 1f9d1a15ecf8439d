package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/endpointslice"
	"k8s.io/endpointslice/topologycache"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"

	"skiff/internal/controller"
	"skiff/test/world"
)

// endpointText writes an endpoint down completely.
func endpointText(e *discoveryv1.Endpoint) string {
	condition := func(name string, is *bool) string {
		if is == nil {
			return ""
		}
		if !*is {
			name = "!" + name
		}
		return " " + name
	}
	text := strings.Join(e.Addresses, "|") + condition("ready", e.Conditions.Ready) + condition("serving", e.Conditions.Serving) + condition("terminating", e.Conditions.Terminating)
	for _, part := range []struct {
		sign  string
		value *string
	}{{" host=", e.Hostname}, {" node=", e.NodeName}, {" zone=", e.Zone}} {
		if part.value != nil {
			text += part.sign + *part.value
		}
	}
	if ref := e.TargetRef; ref != nil {
		text += fmt.Sprintf(" <- %s %s/%s %s", ref.Kind, ref.Namespace, ref.Name, ref.UID)
	}
	if e.Hints != nil {
		for _, z := range e.Hints.ForZones {
			text += " for=" + z.Name
		}
		for _, n := range e.Hints.ForNodes {
			text += " for-node=" + n.Name
		}
	}
	return text
}

// sliceText writes a slice down completely but for its name and times.
func sliceText(s *discoveryv1.EndpointSlice) string {
	var ports, endpoints, owners []string
	for _, p := range s.Ports {
		ports = append(ports, fmt.Sprintf("%s %s %s %s", formatPointer(p.Name), formatPointer(p.Port), formatPointer(p.Protocol), formatPointer(p.AppProtocol)))
	}
	for i := range s.Endpoints {
		endpoints = append(endpoints, endpointText(&s.Endpoints[i]))
	}
	for _, o := range s.OwnerReferences {
		owners = append(owners, fmt.Sprintf("%s %s %s %s %v %v", o.APIVersion, o.Kind, o.Name, o.UID, *o.Controller, *o.BlockOwnerDeletion))
	}
	slices.Sort(ports)
	slices.Sort(endpoints)
	notes := withoutKeys(s.Annotations, corev1.EndpointsLastChangeTriggerTime)
	return fmt.Sprintf("%s [%s] labels[%s] notes[%s] owners[%s]\n\t%s", s.AddressType, strings.Join(ports, "; "), mapWords(s.Labels), mapWords(notes), strings.Join(owners, "; "), strings.Join(endpoints, "\n\t"))
}

// TestEndpointConditions: all that readiness, leaving and publishing can be together.
func TestEndpointConditions(t *testing.T) {
	for _, test := range []struct {
		ready, leaving, published bool
		want                      string
	}{
		{true, false, false, "ready serving !terminating"},
		{false, false, false, "!ready !serving !terminating"},
		{true, true, false, "!ready serving terminating"},
		{false, true, false, "!ready !serving terminating"},
		{true, false, true, "ready serving !terminating"},
		{false, false, true, "ready !serving !terminating"},
		{true, true, true, "ready serving terminating"},
		{false, true, true, "ready !serving terminating"},
	} {
		pod, service := aPod("a", "10.0.0.1"), aService()
		if !test.ready {
			unready(pod)
		}
		if test.leaving {
			leaving(pod)
		}
		service.Spec.PublishNotReadyAddresses = test.published
		want := "10.0.0.1 " + test.want + " node=n1 zone=z-n1 <- Pod default/a uid-a"
		if got := endpointText(slicesView{service: service}.endpoint(pod, aNode("n1"), discoveryv1.AddressTypeIPv4)); got != want {
			t.Errorf("%+v:\n got %s\nwant %s", test, got, want)
		}
	}
}

// TestEndpointOfAPod: addresses, node, zone and name of an endpoint.
func TestEndpointOfAPod(t *testing.T) {
	zoneless := aNode("n1", func(n *corev1.Node) { n.Labels = nil })
	const tail = " ready serving !terminating"
	v4, v6 := discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6
	for _, test := range []struct {
		what   string
		pod    *corev1.Pod
		node   *corev1.Node
		family discoveryv1.AddressType
		want   string
	}{
		{"on a node with a zone", aPod("a", "10.0.0.1"), aNode("n1"), v4, "10.0.0.1" + tail + " node=n1 zone=z-n1 <- Pod default/a uid-a"},
		{"on a node without a zone", aPod("a", "10.0.0.1"), zoneless, v4, "10.0.0.1" + tail + " node=n1 <- Pod default/a uid-a"},
		{"on a node nobody knows", aPod("a", "10.0.0.1"), nil, v4, "10.0.0.1" + tail + " node=n1 <- Pod default/a uid-a"},
		{"on no node", aPod("a", "10.0.0.1", onNode("")), nil, v4, "10.0.0.1" + tail + " <- Pod default/a uid-a"},
		{"with a name in the service's domain", aPod("a", "10.0.0.1", called("db", "web")), nil, v4, "10.0.0.1" + tail + " host=db node=n1 <- Pod default/a uid-a"},
		{"in the domain without a name", aPod("a", "10.0.0.1", called("", "web")), nil, v4, "10.0.0.1" + tail + " node=n1 <- Pod default/a uid-a"},
		{"with a name in another domain", aPod("a", "10.0.0.1", called("db", "x")), nil, v4, "10.0.0.1" + tail + " node=n1 <- Pod default/a uid-a"},
		{"the other family of both", aPod("a", "10.0.0.1", alsoAt("fd00::1")), nil, v6, "fd00::1" + tail + " node=n1 <- Pod default/a uid-a"},
		{"all addresses of a family", aPod("a", "10.0.0.2", alsoAt("10.0.0.1")), nil, v4, "10.0.0.2|10.0.0.1" + tail + " node=n1 <- Pod default/a uid-a"},
		{"no address of the family", aPod("a", "10.0.0.1"), nil, v6, tail + " node=n1 <- Pod default/a uid-a"},
		{"odd spelling is mended", aPod("a", "FD00:0:0::01"), nil, v6, "fd00::1" + tail + " node=n1 <- Pod default/a uid-a"},
		{"an address that is none", aPod("a", "x"), nil, v4, tail + " node=n1 <- Pod default/a uid-a"},
	} {
		if got := endpointText(slicesView{service: aService()}.endpoint(test.pod, test.node, test.family)); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.what, got, test.want)
		}
	}
}

// TestPortsOnAPod: the ports of a service as a pod has them.
func TestPortsOnAPod(t *testing.T) {
	tcp, udp := corev1.ProtocolTCP, corev1.ProtocolUDP
	container := func(name string, ports ...corev1.ContainerPort) corev1.Container {
		return corev1.Container{Name: name, Ports: ports}
	}
	open := func(name string, number int32, protocol corev1.Protocol) corev1.ContainerPort {
		return corev1.ContainerPort{Name: name, ContainerPort: number, Protocol: protocol}
	}
	always, never := corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever
	initially := func(policy *corev1.ContainerRestartPolicy, c corev1.Container) corev1.Container {
		c.RestartPolicy = policy
		return c
	}
	port := func(name string, number int32, target intstr.IntOrString, protocol corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: number, TargetPort: target, Protocol: protocol}
	}
	byName := intstr.FromString
	for _, test := range []struct {
		what       string
		ports      []corev1.ServicePort
		containers []corev1.Container
		initial    []corev1.Container
		want       string
	}{
		{"no ports", nil, nil, nil, ""},
		{"a number needs no container", []corev1.ServicePort{port("", 80, intstr.FromInt32(8080), tcp)}, nil, nil, "=8080/TCP"},
		{"a number of zero is one", []corev1.ServicePort{port("", 80, intstr.FromInt32(0), tcp)}, nil, nil, "=0/TCP"},
		{"a name", []corev1.ServicePort{port("web", 80, byName("http"), tcp)}, []corev1.Container{container("c", open("http", 8080, tcp))}, nil, "web=8080/TCP"},
		{"the name is the container's, not the service's", []corev1.ServicePort{port("web", 80, byName("web"), tcp)}, []corev1.Container{container("c", open("http", 8080, tcp))}, nil, ""},
		{"a name with another protocol is another port", []corev1.ServicePort{port("dns", 53, byName("dns"), udp)}, []corev1.Container{container("c", open("dns", 53, tcp), open("dns", 5353, udp))}, nil, "dns=5353/UDP"},
		{"the first container that has it", []corev1.ServicePort{port("", 80, byName("http"), tcp)}, []corev1.Container{container("a"), container("b", open("http", 1, tcp)), container("c", open("http", 2, tcp))}, nil, "=1/TCP"},
		{"a sidecar's port", []corev1.ServicePort{port("", 80, byName("http"), tcp)}, []corev1.Container{container("c")}, []corev1.Container{initially(&always, container("s", open("http", 7, tcp)))}, "=7/TCP"},
		{"containers come before sidecars", []corev1.ServicePort{port("", 80, byName("http"), tcp)}, []corev1.Container{container("c", open("http", 8, tcp))}, []corev1.Container{initially(&always, container("s", open("http", 7, tcp)))}, "=8/TCP"},
		{"an init container's port does not count", []corev1.ServicePort{port("", 80, byName("http"), tcp)}, nil, []corev1.Container{initially(nil, container("s", open("http", 7, tcp)))}, ""},
		{"nor one that is never started again", []corev1.ServicePort{port("", 80, byName("http"), tcp)}, nil, []corev1.Container{initially(&never, container("s", open("http", 7, tcp)))}, ""},
		{"what is not there is left out, the rest stays", []corev1.ServicePort{port("a", 1, byName("a"), tcp), port("b", 2, byName("b"), tcp)}, []corev1.Container{container("c", open("b", 22, tcp))}, nil, "b=22/TCP"},
	} {
		service := aService(func(s *corev1.Service) { s.Spec.Ports = test.ports })
		pod := aPod("a", "10.0.0.1", func(p *corev1.Pod) { p.Spec.Containers, p.Spec.InitContainers = test.containers, test.initial })
		var got []string
		for _, p := range (slicesView{service: service}).ports(pod) {
			got = append(got, fmt.Sprintf("%s=%d/%s", *p.Name, *p.Port, *p.Protocol))
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %v, want %s", test.what, got, test.want)
		}
	}
	service := aService(alsoPort("rpc", 1, intstr.FromInt32(1), tcp, new("kubernetes.io/ws")))
	if ports := (slicesView{service: service}).ports(aPod("a", "10.0.0.1")); ports[0].AppProtocol != nil || *ports[1].AppProtocol != "kubernetes.io/ws" {
		t.Errorf("application protocols %+v", ports)
	}
}

// TestLabelsOfSlices: labels mirror the service's, but for the controller's own.
func TestLabelsOfSlices(t *testing.T) {
	const ours = "endpointslice.kubernetes.io/managed-by=endpointslice-controller.k8s.io kubernetes.io/service-name=web"
	const headlessLabel = "service.kubernetes.io/headless"
	for _, test := range []struct {
		what    string
		service *corev1.Service
		has     map[string]string
		want    string
		changed bool
	}{
		{"none", aService(serviceLabels()), nil, ours, false},
		{"one", aService(), nil, ours + " team=a", true},
		{"as it is", aService(), map[string]string{"team": "a"}, ours + " team=a", false},
		{"another value", aService(), map[string]string{"team": "b"}, ours + " team=a", true},
		{"one too many", aService(), map[string]string{"team": "a", "more": ""}, ours + " team=a", true},
		{"headless", aService(headlessly, serviceLabels()), nil, ours + " " + headlessLabel + "=", false},
		{"the controller's own labels on the service do not count", aService(serviceLabels(headlessLabel, "x", discoveryv1.LabelManagedBy, "x", discoveryv1.LabelServiceName, "x")), nil, ours, false},
		{"nor those on the slice", aService(serviceLabels()), map[string]string{headlessLabel: "", discoveryv1.LabelManagedBy: "x", discoveryv1.LabelServiceName: "x"}, ours, false},
	} {
		got, changed := slicesView{service: test.service}.labels(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Labels: test.has}})
		if mapWords(got) != test.want || changed != test.changed {
			t.Errorf("%s: %s, changed %v; want %s", test.what, mapWords(got), changed, test.want)
		}
	}
}

// TestNewSlice: a slice as it is created.
func TestNewSlice(t *testing.T) {
	service := aService(families(corev1.IPv6Protocol))
	v := sliceViewOf(service, []*corev1.Pod{aPod("a", "fd00::1")})
	v.triggerTime = now.In(time.FixedZone("", 3600)).Add(1500 * time.Microsecond)
	plan := v.reconcile()
	slice := plan.Steps[0].Writes[0].Object.(*discoveryv1.EndpointSlice)
	want := `IPv6 ["http" "8080" "TCP" -] labels[endpointslice.kubernetes.io/managed-by=endpointslice-controller.k8s.io kubernetes.io/service-name=web team=a] notes[] owners[v1 Service web uid-web true true]
	fd00::1 ready serving !terminating node=n1 zone=z-n1 <- Pod default/a uid-a`
	if got := sliceText(slice); got != want || slice.Namespace != "default" || slice.GenerateName != "web-" || slice.Name != "" {
		t.Errorf("got %s\nwant %s\n%+v", got, want, slice.ObjectMeta)
	}
	if got := slice.Annotations[corev1.EndpointsLastChangeTriggerTime]; got != "2026-03-01T12:00:00.0015Z" {
		t.Errorf("triggered %s", got)
	}
	if f := plan.Steps[0].Writes[0].FailureEvent; f.Reason != "FailedToUpdateEndpointSlices" || f.Type != corev1.EventTypeWarning ||
		f.Message != "Error updating Endpoint Slices for Service default/web: failed to create EndpointSlice for Service default/web: %s" {
		t.Errorf("a failure is told as %+v", f)
	}
	// What it says when it updates and deletes.
	v.slices = written(v, plan)
	v.slices[0].Name = "s0"
	v.service = aService(families(corev1.IPv4Protocol))
	v.pods = []*corev1.Pod{aPod("a", "10.0.0.1")}
	plan = v.reconcile()
	if f := plan.Steps[1].Writes[0].FailureEvent; f.Message != "Error updating Endpoint Slices for Service default/web: failed to delete s0 EndpointSlice for Service default/web: %s" {
		t.Errorf("a failed deletion is told as %+v", f)
	}
	v.service, v.pods, v.triggerTime = service, nil, time.Time{}
	plan = v.reconcile()
	w := plan.Steps[0].Writes[0]
	if _, dated := w.Object.GetAnnotations()[corev1.EndpointsLastChangeTriggerTime]; dated || w.Verb != controller.Update ||
		w.FailureEvent.Message != "Error updating Endpoint Slices for Service default/web: failed to update s0 EndpointSlice for Service default/web: %s" {
		t.Errorf("%s, dated %v: %+v", words(plan), dated, w.FailureEvent)
	}
}

// TestPodsWithoutANode: they are left out, and it is reported.
func TestPodsWithoutANode(t *testing.T) {
	lost := func(name string) *corev1.Pod { return aPod(name, "10.0.0.9", onNode("n9")) }
	const prefix = "Error updating Endpoint Slices for Service default/web: "
	for _, test := range []struct {
		what    string
		service *corev1.Service
		pods    []*corev1.Pod
		want    string
	}{
		{"none", aService(), []*corev1.Pod{aPod("a", "10.0.0.1")}, ""},
		{"one", aService(), []*corev1.Pod{aPod("a", "10.0.0.1"), lost("b")}, prefix + "skipping Pod b for Service default/web: Node n9 Not Found"},
		{"two", aService(), []*corev1.Pod{lost("b"), lost("c")}, prefix + "[skipping Pod b for Service default/web: Node n9 Not Found, skipping Pod c for Service default/web: Node n9 Not Found]"},
		{"told once for both families", aService(families(corev1.IPv4Protocol, corev1.IPv6Protocol)), []*corev1.Pod{lost("b")}, prefix + "skipping Pod b for Service default/web: Node n9 Not Found"},
		{"what is published is not left out", aService(publishing), []*corev1.Pod{lost("b")}, ""},
		{"what is over is out anyway", aService(), []*corev1.Pod{with(lost("b"), succeeded)}, ""},
		{"what has no address is not there yet", aService(), []*corev1.Pod{with(lost("b"), withoutAddress)}, ""},
	} {
		var told string
		for _, e := range sliceViewOf(test.service, test.pods).reconcile().Events {
			told = e.Message
			if e.Reason != "FailedToUpdateEndpointSlices" || e.Type != corev1.EventTypeWarning || e.Object != test.service {
				t.Errorf("%s: %+v", test.what, e)
			}
		}
		if told != test.want {
			t.Errorf("%s: told %q, want %q", test.what, told, test.want)
		}
	}
}

// TestTopologyHints: hints by annotation, for zones that have CPUs; the cache tells when it cannot.
func TestTopologyHints(t *testing.T) {
	annotated := func(s *corev1.Service) { s.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"} }
	close := func(s *corev1.Service) {
		s.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferClose)
	}
	sized := func(name, cpu string) *corev1.Node {
		return aNode(name, func(n *corev1.Node) {
			n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		})
	}
	var pods []*corev1.Pod
	for i := range 6 {
		pods = append(pods, aPod(fmt.Sprint("p", i), fmt.Sprint("10.0.0.", i+1), onNode([]string{"n1", "n2"}[i%2])))
	}
	hinted := func(all []*discoveryv1.EndpointSlice) (n int) {
		for _, s := range all {
			for _, e := range s.Endpoints {
				if e.Hints != nil {
					n++
				}
			}
		}
		return n
	}
	for _, test := range []struct {
		what    string
		service *corev1.Service
		nodes   []*corev1.Node
		pods    []*corev1.Pod
		hints   int
		told    string
	}{
		{"nobody asks", aService(), []*corev1.Node{sized("n1", "4"), sized("n2", "4")}, pods, 0, ""},
		{"asked by annotation", aService(annotated), []*corev1.Node{sized("n1", "4"), sized("n2", "4")}, pods, 6, "TopologyAwareHintsEnabled"},
		{"the annotation goes before the field", aService(annotated, close), []*corev1.Node{sized("n1", "4"), sized("n2", "4")}, pods, 6, "TopologyAwareHintsEnabled"},
		{"one zone is not enough", aService(annotated), []*corev1.Node{sized("n1", "4")}, pods, 0, "TopologyAwareHintsDisabled"},
		{"too few endpoints", aService(annotated), []*corev1.Node{sized("n1", "4"), sized("n2", "4")}, pods[:1], 0, "TopologyAwareHintsDisabled"},
		{"asked by the field, nothing is told", aService(close), nil, pods, 6, ""},
		{"a field nobody knows", aService(func(s *corev1.Service) { s.Spec.TrafficDistribution = new("Other") }), nil, pods, 0, ""},
	} {
		v := sliceViewOf(test.service, test.pods)
		v.maxEndpoints = 10
		v.topology.SetNodes(klog.Background(), test.nodes)
		plan := v.reconcile()
		v.slices = written(v, plan)
		var told []string
		for _, e := range plan.Events {
			told = append(told, e.Reason)
		}
		if hinted(v.slices) != test.hints || strings.Join(told, " ") != test.told {
			t.Errorf("%s: %d hints, told %v", test.what, hinted(v.slices), told)
		}
		// Nobody asks any more: the hints go, and a service that had them is reported.
		v.service = aService()
		plan = v.reconcile()
		v.slices = written(v, plan)
		if hinted(v.slices) != 0 || (len(plan.Events) == 1 && plan.Events[0].Reason == "TopologyAwareHintsDisabled") != (test.told == "TopologyAwareHintsEnabled") {
			t.Errorf("%s: given up, %d hints, %s", test.what, hinted(v.slices), words(plan))
		}
		if again := v.reconcile(); !again.IsEmpty() {
			t.Errorf("%s: a second sync changes something: %s", test.what, words(again))
		}
	}
}

// upstreamReconcile lets upstream's own reconciler work on the same state and returns the slices it leaves, how many writes it made
// and what it complained of.
func upstreamReconcile(v slicesView) (after []*discoveryv1.EndpointSlice, writes string, complaint error) {
	objects := []runtime.Object{}
	for _, s := range v.slices {
		objects = append(objects, s.DeepCopy())
	}
	client := fake.NewClientset(objects...)
	created := 0
	client.PrependReactor("create", "endpointslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*discoveryv1.EndpointSlice)
		created++
		slice.Name = fmt.Sprint(slice.GenerateName, "new-", created)
		return false, nil, nil
	})
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	for _, node := range v.nodes {
		_ = indexer.Add(node)
	}
	reconciler := endpointslice.NewReconciler(client, corelisters.NewNodeLister(indexer), int32(v.maxEndpoints), endpointsliceutil.NewEndpointSliceTracker(), topologycache.NewTopologyCache(),
		record.NewFakeRecorder(100), sliceManager, endpointslice.WithPreferSameTrafficDistributionEnabled(true))
	var existing []*discoveryv1.EndpointSlice
	for _, s := range v.slices {
		existing = append(existing, s.DeepCopy())
	}
	complaint = reconciler.Reconcile(klog.Background(), v.service.DeepCopy(), v.pods, existing, v.triggerTime)
	counts := map[string]int{}
	for _, a := range client.Actions() {
		counts[a.GetVerb()]++
	}
	list, err := client.DiscoveryV1().EndpointSlices("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		panic(err)
	}
	for i := range list.Items {
		after = append(after, &list.Items[i])
	}
	return after, fmt.Sprintf("create %d update %d delete %d", counts["create"], counts["update"], counts["delete"]), complaint
}

// content is what slices say, whoever packed them: every group of ports with its endpoints, and the slices' heads.
func content(all []*discoveryv1.EndpointSlice) string {
	byHead := map[string][]string{}
	for _, s := range all {
		head, _, _ := strings.Cut(sliceText(s), "\n")
		byHead[head] = append(byHead[head], "")
		for i := range s.Endpoints {
			byHead[head] = append(byHead[head], endpointText(&s.Endpoints[i]))
		}
	}
	var lines []string
	for _, head := range slices.Sorted(maps.Keys(byHead)) {
		slices.Sort(byHead[head])
		lines = append(lines, head+strings.Join(byHead[head], "\n\t"))
	}
	return strings.Join(lines, "\n")
}

// TestSlicesBesideUpstream: from random states, what upstream's reconciler leaves and how many writes it takes, ours leaves and takes.
func TestSlicesBesideUpstream(t *testing.T) {
	klog.SetLogger(klog.Logger{})
	defer klog.ClearLogger()
	const seed = 42
	random := rand.New(rand.NewPCG(seed, seed))
	chance := func(n int) bool { return random.IntN(n) == 0 }
	service := func() *corev1.Service {
		s := aService()
		if chance(4) {
			named(s)
		}
		for chance(3) {
			alsoPort(fmt.Sprint("x", len(s.Spec.Ports)), 90, intstr.FromInt32(int32(9000+len(s.Spec.Ports))), corev1.ProtocolUDP, nil)(s)
		}
		if chance(3) {
			s.Spec.IPFamilies = [][]corev1.IPFamily{{"IPv6"}, {"IPv4", "IPv6"}, {"IPv6", "IPv4"}, nil}[random.IntN(4)]
		}
		if chance(4) {
			headlessly(s)
		}
		if chance(5) {
			portless(s)
		}
		if chance(4) {
			publishing(s)
		}
		if chance(4) {
			s.Labels = map[string]string{"team": "b"}
		}
		if chance(5) {
			s.Spec.TrafficDistribution = new([]string{"PreferClose", "PreferSameZone", "PreferSameNode", "Other"}[random.IntN(4)])
		}
		if chance(15) {
			goingAway(s)
		}
		if chance(15) {
			s.UID = "uid-again"
		}
		return s
	}
	pod := func(n int) *corev1.Pod {
		p := aPod(fmt.Sprintf("p%02d", n), fmt.Sprintf("10.0.0.%d", n+1), onNode([]string{"n1", "n2", "n2", "n9"}[random.IntN(4)]))
		if chance(2) {
			alsoAt(fmt.Sprintf("fd00::%d", n+1))(p)
		}
		for _, c := range []change[*corev1.Pod]{unready, leaving, succeeded, withoutAddress, called("h", "web"), func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].ContainerPort = 9090 }} {
			if chance(7) {
				c(p)
			}
		}
		return p
	}
	v := sliceViewOf(aService(), nil)
	pods := map[int]*corev1.Pod{}
	for round := range 150 {
		for range random.IntN(6) {
			if n := random.IntN(14); pods[n] != nil && chance(2) {
				delete(pods, n)
			} else {
				pods[n] = pod(n)
			}
		}
		v.pods = nil
		for _, n := range slices.Sorted(maps.Keys(pods)) {
			v.pods = append(v.pods, pods[n])
		}
		if chance(3) {
			v.service = service()
		}
		v.maxEndpoints = 3 + random.IntN(3)
		plan := v.reconcile()
		counts := map[controller.Verb]int{}
		for _, step := range plan.Steps {
			for _, w := range step.Writes {
				counts[w.Verb]++
			}
		}
		writes := fmt.Sprintf("create %d update %d delete %d", counts[controller.Create], counts[controller.Update], counts[controller.Delete])
		theirs, theirWrites, complaint := upstreamReconcile(v)
		before := content(v.slices)
		v.slices = written(v, plan)
		for i, s := range v.slices {
			v.slices[i] = s.DeepCopy()
			v.slices[i].GenerateName = ""
		}
		// For a service that goes no slice is created; which endpoints have no place then is anybody's choice.
		if ours := content(v.slices); ours != content(theirs) && v.service.DeletionTimestamp == nil || writes != theirWrites {
			t.Fatalf("seed %d, round %d, from\n%s\nours, by %s\n%s\nupstream's, by %s\n%s", seed, round, before, writes, ours, theirWrites, content(theirs))
		}
		told := ""
		for _, e := range plan.Events {
			if e.Reason == "FailedToUpdateEndpointSlices" {
				told = e.Message
			}
		}
		if complaint == nil {
			complaint = errors.New("")
		}
		if want := complaint.Error(); told != "" && told != "Error updating Endpoint Slices for Service default/web: "+want || (told == "") != (want == "") {
			t.Fatalf("seed %d, round %d: told %q, upstream %q", seed, round, told, want)
		}
	}
}

// TestSlicesFollowNodesAndPods: what changes around a service shows in its slices.
func TestSlicesFollowNodesAndPods(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(EndpointSlice(DefaultEndpointsPerSlice))()
		world.Create(w, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{"v": "1"}},
			Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}})
		world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", Labels: map[string]string{"app": "web"}},
			Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}}})
		world.EditStatus(w, "default", "a", func(p *corev1.Pod) { p.Status = aPod("a", "10.0.0.1").Status })
		seen := func() string {
			w.Pass(time.Second)
			var all []string
			for _, s := range world.List[*discoveryv1.EndpointSlice](w) {
				for _, e := range s.Endpoints {
					zone := "-"
					if e.Zone != nil {
						zone = *e.Zone
					}
					all = append(all, fmt.Sprint(e.Addresses[0], " ", zone, " ", *e.Conditions.Ready))
				}
				all = append(all, "v"+s.Labels["v"])
			}
			return strings.Join(all, ", ")
		}
		if got := seen(); got != "v1" {
			t.Errorf("a pod on a node nobody knows: %s", got)
		}
		if told := w.Events("web"); len(told) != 1 || !strings.HasSuffix(told[0], "skipping Pod a for Service default/web: Node n1 Not Found") {
			t.Errorf("told %q", told)
		}
		world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		if got := seen(); got != "10.0.0.1 - true, v1" {
			t.Errorf("the node came: %s", got)
		}
		world.Edit(w, "", "n1", func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelTopologyZone: "east"} })
		if got := seen(); got != "10.0.0.1 east true, v1" {
			t.Errorf("the node got a zone: %s", got)
		}
		world.EditStatus(w, "default", "a", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
		if got := seen(); got != "10.0.0.1 east false, v1" {
			t.Errorf("the pod became unready: %s", got)
		}
		world.Edit(w, "default", "web", func(s *corev1.Service) { s.Labels["v"] = "2" })
		if got := seen(); got != "10.0.0.1 east false, v2" {
			t.Errorf("the service got another label: %s", got)
		}
		for _, s := range world.List[*discoveryv1.EndpointSlice](w) {
			world.Edit(w, "default", s.Name, func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil })
		}
		if got := seen(); got != "10.0.0.1 east false, v2" {
			t.Errorf("a user emptied the slice: %s", got)
		}
		for _, s := range world.List[*discoveryv1.EndpointSlice](w) {
			w.Remove(s)
		}
		if got := seen(); got != "10.0.0.1 east false, v2" {
			t.Errorf("a user deleted the slice: %s", got)
		}
		w.AssertSettled(EndpointSlice(DefaultEndpointsPerSlice))
	})
}
