//go:build root

package policy

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"skiff/internal/client"
	"skiff/internal/kind"
	"skiff/internal/network/nft"
	"skiff/internal/network/proxy"
	"skiff/test/inprocess"
	"skiff/test/netns"
)

// serviceTable is the table of the Service proxy.
const serviceTable = "test-services"

// testService is a Service of the model: its address, and the pods and the port behind it.
type testService struct {
	address netip.AddrPort
	pods    []string
	port    uint16
}

// randomTraffic changes Services, endpoints, policies and labels by the API, and says where packets go.
type randomTraffic struct {
	*world
	objects  *randomCluster
	client   *client.Client
	services map[string]testService
}

// startServices runs the Service proxy of this node.
func startServices(t *testing.T, c *client.Client) {
	t.Helper()
	inprocess.Create(t, c, &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.43.0.0/16"}}})
	node := inprocess.Create(t, c, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: thisNode}}).DeepCopy()
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeIP4}}
	if _, err := client.For[*corev1.Node](c).UpdateStatus(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	metrics, err := proxy.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	informers := client.NewInformers(c)
	p, err := proxy.New(proxy.Config{
		Client: c, Informers: informers, NodeName: thisNode, NodePortAddresses: proxy.NodePortAddresses{Primary: true}, SyncPeriod: time.Second,
		Settings: proxy.Settings{
			Table: serviceTable, MasqueradeMark: proxy.DefaultMasqueradeMark, Local: proxy.LocalTraffic{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}},
		},
		Metrics: metrics, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nft.Remove(serviceTable); err != nil {
			t.Error(err)
		}
	})
	inprocess.Run(t, informers.Run, p.Run)
}

// put creates an object, or replaces the one with its name.
func put[T kind.Object](t *testing.T, c *client.Client, object T, change func(old T)) {
	t.Helper()
	resource := client.For[T](c)
	old, err := resource.Get(t.Context(), object.GetNamespace(), object.GetName())
	if apierrors.IsNotFound(err) {
		inprocess.Create(t, c, object)
		return
	}
	if err == nil {
		updated := old.DeepCopyObject().(T)
		change(updated)
		_, err = resource.Update(t.Context(), updated, client.WriteOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// change changes one object, or a Service with its endpoints.
func (r *randomTraffic) change(t *testing.T) {
	t.Helper()
	c, random := r.objects, r.objects.random
	switch random.IntN(4) {
	case 0:
		p := c.randomPolicy(fmt.Sprint("p", random.IntN(4)))
		c.policies[keyOf(p).String()] = p
		put(t, r.client, p, func(old *networkingv1.NetworkPolicy) { old.Spec = p.Spec })
	case 1:
		if len(c.policies) > 0 {
			key := pick(random, slices.Sorted(maps.Keys(c.policies))...)
			p := c.policies[key]
			delete(c.policies, key)
			if err := client.For[*networkingv1.NetworkPolicy](r.client).Delete(t.Context(), p.Namespace, p.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	case 2:
		p := c.pods[pick(random, slices.Sorted(maps.Keys(c.pods))...)].DeepCopy()
		p.Labels = labelMap(pick(random, "app=web", "app=db,tier=back", "app=client", "app=client,tier=front"))
		c.pods[p.Name] = p
		put(t, r.client, p, func(old *corev1.Pod) { old.Labels = p.Labels })
	default:
		r.changeService(t)
	}
}

// changeService gives a Service random endpoints.
func (r *randomTraffic) changeService(t *testing.T) {
	t.Helper()
	random := r.objects.random
	number := 1 + random.IntN(3)
	name := fmt.Sprint("s", number)
	s := testService{address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 43, 0, byte(number)}), 80), port: pick(random, serverPorts...)}
	for _, pod := range slices.Sorted(maps.Keys(r.objects.pods)) {
		if random.IntN(3) == 0 {
			s.pods = append(s.pods, pod)
		}
	}
	r.services[name] = s
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{
		ClusterIP: s.address.Addr().String(), Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(int32(s.port))}},
	}}
	put(t, r.client, service, func(old *corev1.Service) { old.Spec.Ports[0].TargetPort = service.Spec.Ports[0].TargetPort })
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To(""), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(s.port))}},
	}
	for _, pod := range s.pods {
		p := r.objects.pods[pod]
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{p.Status.PodIPs[0].IP}, NodeName: &p.Spec.NodeName, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	put(t, r.client, slice, func(old *discoveryv1.EndpointSlice) { old.Endpoints, old.Ports = slice.Endpoints, slice.Ports })
}

// split says which pods of a Service a client reaches, and which not.
func (r *randomTraffic) split(from string, s testService) (allowed, denied []string) {
	for _, name := range s.pods {
		f := Flow{r.objects.addressesOf(from)[0], r.objects.addressesOf(name)[0], nft.TCP, s.port}
		if from == onHost || r.objects.allows(f) {
			allowed = append(allowed, name)
		} else {
			denied = append(denied, name)
		}
	}
	return allowed, denied
}

// matches sends packets until all outcomes that the model says have been seen, and returns the first one that it does not say.
func (r *randomTraffic) matches(from string, s testService) error {
	allowed, denied := r.split(from, s)
	r.forget()
	answered, dropped := map[string]bool{}, false
	for range 60 {
		server, _, err := r.spaces[from].Ask("tcp", s.address.String(), dropWait)
		switch {
		case len(s.pods) == 0 && errors.Is(err, netns.ErrRefused):
			return nil
		case err == nil && slices.Contains(allowed, server):
			answered[server] = true
		case errors.Is(err, netns.ErrDropped) && len(denied) > 0:
			dropped = true
		default:
			return fmt.Errorf("%s to %s: %q answers, %v, want one of %v, dropped for %v", from, s.address, server, err, allowed, denied)
		}
		if len(answered) == len(allowed) && dropped == (len(denied) > 0) {
			return nil
		}
	}
	return fmt.Errorf("%s to %s: only %v answer, dropped %v, want %v, dropped for %v", from, s.address, answered, dropped, allowed, denied)
}

// Of random Services, endpoints and policies the kernel sends each packet to a pod of the Service, and drops it if a policy denies that.
func TestRandomServicesAndPolicies(t *testing.T) {
	w := newWorld(t)
	c := newAPI(t)
	start(t, c, nil)
	startServices(t, c)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := &randomTraffic{
		world: w, client: c, services: map[string]testService{},
		objects: &randomCluster{cluster: newCluster(), random: rand.New(rand.NewPCG(seed, 0))},
	}
	r.changeService(t)
	for step := range 40 {
		r.change(t)
		for range 2 {
			s := r.services[pick(r.objects.random, slices.Sorted(maps.Keys(r.services))...)]
			// Packets of pods of the other node are translated there.
			from := pick(r.objects.random, "a", "b", "e", onHost, outside)
			var last error
			for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
				if last = r.matches(from, s); last == nil || time.Now().After(deadline) {
					break
				}
			}
			if last != nil {
				t.Fatalf("step %d: %v\npolicies %+v", step, last, r.objects.policies)
			}
		}
	}
}
