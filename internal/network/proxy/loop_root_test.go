//go:build root

package proxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/network/nft"
	"skiff/test/inprocess"
	"skiff/test/netns"
)

// running is a proxy against an API server, in a world.
type running struct {
	*world
	client  *client.Client
	proxy   *Proxy
	metrics *Metrics
}

// startProxy starts a proxy. It is stopped at the end of the test or by the returned function.
func startProxy(t *testing.T, w *world, c *client.Client, change func(*Config)) (*running, func()) {
	t.Helper()
	registry := prometheus.NewRegistry()
	metrics, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	informers := client.NewInformers(c)
	config := Config{
		Client: c, Informers: informers, NodeName: thisNode, Settings: testSettings(), NodePortAddresses: NodePortAddresses{Primary: true},
		SyncPeriod: 100 * time.Millisecond, Metrics: metrics, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&config)
	}
	p, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	stop := inprocess.Run(t, informers.Run, p.Run)
	return &running{world: w, client: c, proxy: p, metrics: metrics}, stop
}

func newAPI(t *testing.T) *client.Client {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c := inprocess.Start(t, ctx)
	inprocess.Create(t, c, serviceCIDR("kubernetes", "10.43.0.0/16"))
	node := inprocess.Create(t, c, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: thisNode, Labels: map[string]string{corev1.LabelTopologyZone: "zone-1"}}, Spec: corev1.NodeSpec{PodCIDR: "10.42.1.0/24", PodCIDRs: []string{"10.42.1.0/24"}}}).DeepCopy()
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeIP4}, {Type: corev1.NodeInternalIP, Address: nodeIP6}}
	if _, err := client.For[*corev1.Node](c).UpdateStatus(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	return c
}

func serviceCIDR(name, cidr string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}}}
}

// answers waits until one of the pods, and no other, answers; without pods until the packet is refused.
func (r *running) answers(from, network, address string, pods ...string) {
	r.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		server, _, err := r.spaces[from].Ask(network, address, time.Second)
		if slices.Contains(pods, server) || len(pods) == 0 && errors.Is(err, netns.ErrRefused) {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s from %s: %q answers, %v, want %v", address, from, server, err, pods)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// slicesOf are the EndpointSlices of a Service as its controller makes them.
func slicesOf(name string, backends ...backend) *discoveryv1.EndpointSlice {
	o := service(named(name), endpoints(backends...))
	slice := o.slices[0]
	slice.Name = name + "-1"
	return slice
}

func TestProxyFollowsTheAPI(t *testing.T) {
	w := newWorld(t)
	c := newAPI(t)
	r, _ := startProxy(t, w, c, nil)
	web := service(nodePort(30080)).service
	made := inprocess.Create(t, c, web)
	address := made.Spec.ClusterIP + ":80"
	r.answers(clientPod, "tcp", address)
	slice := inprocess.Create(t, c, slicesOf("web", "a"))
	r.answers(clientPod, "tcp", address, "a")
	r.answers(outside, "tcp", nodeIP4+":30080", "a")
	changed := slice.DeepCopy()
	changed.Endpoints = slicesOf("web", "c").Endpoints
	if _, err := client.For[*discoveryv1.EndpointSlice](c).Update(t.Context(), changed, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.answers(clientPod, "tcp", address, "c")
	// Somebody else removes the rules.
	if err := nft.Remove(testSettings().Table); err != nil {
		t.Fatal(err)
	}
	r.answers(clientPod, "tcp", address, "c")
	if err := client.For[*discoveryv1.EndpointSlice](c).Delete(t.Context(), "default", "web-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.answers(clientPod, "tcp", address)
	if err := client.For[*corev1.Service](c).Delete(t.Context(), "default", "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// Packets to addresses of a range that no Service has are dropped.
	inprocess.Create(t, c, serviceCIDR("more", "10.99.0.0/16"))
	const rule = "rule cluster-ips-check4 3"
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		lines, err := nft.Read(testSettings().Table)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("no rule about the ServiceCIDR: %v", err)
		}
		if slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, rule) }) {
			break
		}
	}
	if testutil.ToFloat64(r.metrics.servicesTotal) < 2 || testutil.ToFloat64(r.metrics.endpointsTotal) < 3 {
		t.Error("changes are not counted")
	}
}

// A proxy that is started again takes the rules over: no connection is refused meanwhile.
func TestProxyRestart(t *testing.T) {
	w := newWorld(t)
	c := newAPI(t)
	r, stop := startProxy(t, w, c, nil)
	made := inprocess.Create(t, c, service(affinity(600)).service)
	inprocess.Create(t, c, slicesOf("web", "a", "b", "c"))
	address := made.Spec.ClusterIP + ":80"
	r.answers(clientPod, "tcp", address, "a", "b", "c")
	first, _, err := w.spaces[clientPod].Ask("tcp", address, answerWait)
	if err != nil {
		t.Fatal(err)
	}
	stop()
	ask := func(when string) {
		t.Helper()
		if server, _, err := w.spaces[clientPod].Ask("tcp", address, answerWait); err != nil || server != first {
			t.Errorf("%s: %q answers, %v, want %s", when, server, err, first)
		}
	}
	ask("without a proxy")
	again, _ := startProxy(t, w, c, nil)
	for deadline := time.Now().Add(20 * time.Second); testutil.ToFloat64(again.metrics.last.WithLabelValues("IPv4")) == 0; {
		ask("while the proxy starts")
		if time.Now().After(deadline) {
			t.Fatal("the proxy does not sync")
		}
	}
	ask("with the new proxy")
}

// The health check node port follows the endpoints on this node.
func TestHealthCheckNodePort(t *testing.T) {
	w := newWorld(t)
	c := newAPI(t)
	r, stop := startProxy(t, w, c, nil)
	lb := service(nodePort(30080), loadBalancer(), externalLocal()).service
	lb.Spec.HealthCheckNodePort = 30999
	inprocess.Create(t, c, lb)
	slice := inprocess.Create(t, c, slicesOf("web", "c"))
	status := func(want int, body string) {
		t.Helper()
		var last string
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			response, err := http.Get("http://" + nodeIP4 + ":30999/healthz")
			if err != nil {
				last = err.Error()
				continue
			}
			text, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if last = string(text); response.StatusCode == want && strings.Contains(last, body) {
				return
			}
		}
		t.Fatalf("no status %d with %s, but %s", want, body, last)
	}
	status(http.StatusServiceUnavailable, `"localEndpoints": 0`)
	changed := slice.DeepCopy()
	changed.Endpoints = slicesOf("web", "a", "b", "c").Endpoints
	if _, err := client.For[*discoveryv1.EndpointSlice](c).Update(t.Context(), changed, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	status(http.StatusOK, `"localEndpoints": 2`)
	recorder := httptest.NewRecorder()
	r.proxy.HealthzHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	if recorder.Code != http.StatusOK || !strings.Contains(recorder.Body.String(), `"nodeEligible":true`) {
		t.Errorf("%d %s", recorder.Code, recorder.Body)
	}
	stop()
	if _, err := http.Get("http://" + nodeIP4 + ":30999/healthz"); err == nil {
		t.Error("the port answers without a proxy")
	}
}

// Packets of pods are recognized by the node's pod CIDRs.
func TestLocalByPodCIDRs(t *testing.T) {
	w := newWorld(t)
	c := newAPI(t)
	r, _ := startProxy(t, w, c, func(c *Config) { c.LocalByPodCIDRs, c.Settings.Local = true, LocalTraffic{} })
	made := inprocess.Create(t, c, service().service)
	inprocess.Create(t, c, slicesOf("web", "a"))
	address := made.Spec.ClusterIP + ":80"
	r.answers(clientPod, "tcp", address, "a")
	for client, want := range map[string]string{clientPod: podIPs[clientPod][0], outside: gateway4} {
		if _, seen, err := w.spaces[client].Ask("tcp", address, answerWait); err != nil || seen != want {
			t.Errorf("%s is seen as %s, want %s, %v", client, seen, want, err)
		}
	}
}
