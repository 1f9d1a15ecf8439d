package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The proxies to pods and services of an API server without a route to pods go through the kubelets of the pods. A kubelet that does not connect to
// pods is not asked to forward their ports, which would be those of their loopback interfaces.
func TestProxyThroughKubelets(t *testing.T) {
	pod := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "pod ", r.URL.Path) }))
	defer pod.Close()
	var asked []string
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		connectPod(w, r, pod.Listener.Addr().String())
	}))
	defer kubelet.Close()
	roots := x509.NewCertPool()
	roots.AddCert(kubelet.Certificate())
	secure := &tls.Config{RootCAs: roots}
	_, objects := world(t, kubelet)
	yes, name, port := true, "", int32(8443)
	for _, pod := range []string{"p", "old", "refused", "host"} {
		objects["pods ns/"+pod] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: pod}, Spec: corev1.PodSpec{NodeName: "n", HostNetwork: pod == "host"},
			Status: corev1.PodStatus{PodIP: "10.255.255.1", PodIPs: []corev1.PodIP{{IP: "10.255.255.1"}}}}
	}
	objects["services ns/s"] = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	objects["endpointslices ns/s-1"] = &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.255.255.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p"}}},
	}
	for _, test := range []struct {
		name, what, target string
		// want is the body or in the error; through are the paths that the kubelet is asked for, direct the address that is dialed.
		want, through, direct string
	}{
		{"pod", "pods/proxy", "p:8443", "pod /x", "/connect/ns/p", ""},
		{"service", "services/proxy", "s:80", "pod /x", "/connect/ns/p", ""},
		{"default port", "pods/proxy", "p", "connection refused", "/connect/ns/p", ""},
		{"default port of https", "pods/proxy", "https:p:", "connection refused", "/connect/ns/p", ""},
		{"refused", "pods/proxy", "refused:8443", "the kubelet responded 403 Forbidden: go away", "/connect/ns/refused", ""},
		{"another kubelet", "pods/proxy", "old:8443", "the kubelet of node n does not connect to pods: no route to host", "/connect/ns/old", "10.255.255.1:8443"},
		{"host network", "pods/proxy", "host:8443", "no route to host", "", "10.255.255.1:8443"},
	} {
		asked = nil
		direct := ""
		b := newBackends(Config{Objects: objects, Kubelet: secure})
		b.workloads.DialContext = func(_ context.Context, _, address string) (net.Conn, error) {
			direct = address
			return nil, errors.New("no route to host")
		}
		b.dialWorkloadsThroughKubelets(secure)
		_, got, err := ask(t, b.connectors(), "GET", test.what, test.target, "/x", "")
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, test.want) || strings.Join(asked, " ") != test.through || direct != test.direct {
			t.Errorf("%s: %q through %q, dialed %q; want %q through %q, dialed %q", test.name, got, asked, direct, test.want, test.through, test.direct)
		}
	}
	asked = nil
	if _, got, err := ask(t, New(Config{Objects: objects, Kubelet: secure, ThroughKubelets: true}), "GET", "pods/proxy", "p:8443", "/x", ""); err != nil || got != "pod /x" || len(asked) != 1 {
		t.Errorf("as configured: %q %v through %q", got, err, asked)
	}
}

// A connection that a kubelet has allowed for one pod is not used for another one whose status has the same address.
func TestConnectionIsForOnePod(t *testing.T) {
	pod := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "pod ", r.URL.Path) }))
	defer pod.Close()
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { connectPod(w, r, pod.Listener.Addr().String()) }))
	defer kubelet.Close()
	roots := x509.NewCertPool()
	roots.AddCert(kubelet.Certificate())
	_, objects := world(t, kubelet)
	for _, pod := range []string{"p", "refused"} {
		objects["pods ns/"+pod] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: pod}, Spec: corev1.PodSpec{NodeName: "n"},
			Status: corev1.PodStatus{PodIP: "10.255.255.1", PodIPs: []corev1.PodIP{{IP: "10.255.255.1"}}}}
	}
	connectors := New(Config{Objects: objects, Kubelet: &tls.Config{RootCAs: roots}, ThroughKubelets: true})
	for range 3 {
		if _, got, err := ask(t, connectors, "GET", "pods/proxy", "p:8443", "/x", ""); err != nil || got != "pod /x" {
			t.Errorf("the pod: %q, %v", got, err)
		}
		if _, got, err := ask(t, connectors, "GET", "pods/proxy", "refused:8443", "/x", ""); err == nil || !strings.Contains(err.Error(), "403 Forbidden: go away") {
			t.Errorf("another pod with its address: %q, %v", got, err)
		}
	}
}

// A connection through a kubelet can be closed in one direction.
func TestPodConnectionHalfCloses(t *testing.T) {
	pod, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pod.Close()
	go func() {
		conn, err := pod.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		text, _ := io.ReadAll(conn)
		fmt.Fprintf(conn, "all of %q", text)
	}()
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { connectPod(w, r, pod.Addr().String()) }))
	defer kubelet.Close()
	_, objects := world(t, kubelet)
	roots := x509.NewCertPool()
	roots.AddCert(kubelet.Certificate())
	d := newPodDialer(Config{Objects: objects, Kubelet: &tls.Config{RootCAs: roots}}, dialTimeout)
	conn, err := d.connect(t.Context(), objects["pods ns/p"].(*corev1.Pod), "10.255.255.1:8443")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "hello")
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(conn); err != nil || string(text) != `all of "hello"` {
		t.Errorf("%q %v", text, err)
	}
}
