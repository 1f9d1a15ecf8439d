package connect

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver"
	"skiff/internal/kind"
	"skiff/internal/webhook"
)

// things are objects by resource, namespace and name.
type things map[string]kind.Object

func (t things) Get(_ context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error) {
	if obj := t[resource.Resource+" "+namespace+"/"+name]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

func (t things) List(resource schema.GroupResource, namespace string, selector labels.Selector) (found []kind.Object, _ error) {
	for key, obj := range t {
		if strings.HasPrefix(key, resource.Resource+" "+namespace+"/") && selector.Matches(labels.Set(obj.GetLabels())) {
			found = append(found, obj)
		}
	}
	return found, nil
}

// kubelet is a TLS server that responds with the request line; it upgrades connections on request and echoes what it receives.
func kubelet(t *testing.T) *httptest.Server {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"Authorization", "X-Remote-User", "Impersonate-User"} {
			if r.Header.Get(name) != "" {
				t.Errorf("%s came through", name)
			}
		}
		switch {
		case r.Header.Get("Upgrade") != "":
			conn, buffered, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
			fmt.Fprintf(conn, "%s?%s\n", r.URL.Path, r.URL.RawQuery)
			_, _ = io.Copy(conn, buffered)
		case strings.Contains(r.URL.Path, "refused"):
			http.Error(w, "container \"refused\" in pod \"p\" is waiting to start: ContainerCreating", http.StatusBadRequest)
		case strings.Contains(r.URL.Path, "elsewhere"):
			http.Redirect(w, r, "https://elsewhere.example/secret", http.StatusFound)
		case strings.HasSuffix(r.URL.Path, "/moved"):
			http.Redirect(w, r, "/stayed", http.StatusFound)
		default:
			w.Header().Set("Access-Control-Allow-Origin", "*")
			fmt.Fprintf(w, "%s %s?%s", r.Method, r.URL.Path, r.URL.RawQuery)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// world has a node whose kubelet is the given server, and a pod with the containers on it.
func world(t *testing.T, s *httptest.Server, containers ...string) (map[string]apiserver.Connector, things) {
	t.Helper()
	at, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{NodeName: "n"}}
	for _, name := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name})
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "no.such.host.invalid"}, {Type: corev1.NodeInternalIP, Address: at.Hostname()},
		},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
	}}
	there := things{"pods ns/p": pod, "nodes /n": node}
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	r := newBackends(Config{Objects: there, Kubelet: &tls.Config{RootCAs: roots}})
	r.nodes = r.kubelet // which here is at a loopback address
	return r.connectors(), there
}

// ask sends a request to a connector as the API server would.
func ask(t *testing.T, connectors map[string]apiserver.Connector, method, what, name, rest, query string) (*http.Response, string, error) {
	t.Helper()
	resource, sub, _ := strings.Cut(what, "/")
	path := "/api/v1/namespaces/ns/" + resource + "/" + name + "/" + sub + rest
	r := httptest.NewRequest(method, path+"?"+query, nil)
	r.Header.Set("Authorization", "Bearer secret")
	r.Header.Set("X-Remote-User", "somebody")
	r.Header.Set("Impersonate-User", "somebody")
	w := httptest.NewRecorder()
	err := connectors[what].Connect(w, r, &apiserver.Connection{
		Resource: schema.GroupResource{Resource: resource}, Subresource: sub, Namespace: "ns", Name: name, Path: strings.TrimSuffix(rest, "/"),
	})
	return w.Result(), w.Body.String(), err
}

func TestLog(t *testing.T) {
	connectors, there := world(t, kubelet(t), "main")
	for _, test := range []struct{ query, body, err string }{
		{query: "", body: "GET /containerLogs/ns/p/main?"},
		{query: "container=main&follow=true&tailLines=3&timestamps=true", body: "GET /containerLogs/ns/p/main?follow=true&tailLines=3&timestamps=true"},
		{query: "sinceSeconds=5&previous=1&limitBytes=9", body: "GET /containerLogs/ns/p/main?limitBytes=9&previous=true&sinceSeconds=5"},
		{query: "container=other", err: "container other is not valid for pod p"},
		{query: "tailLines=-1", err: `PodLogOptions "p" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0`},
		{query: "limitBytes=0", err: `PodLogOptions "p" is invalid: limitBytes: Invalid value: 0: must be greater than 0`},
		{query: "sinceSeconds=0", err: `PodLogOptions "p" is invalid: sinceSeconds: Invalid value: 0: must be greater than 0`},
		{query: "stream=Stdout&tailLines=2", err: "PodLogOptions \"p\" is invalid: []: Forbidden: `tailLines` and specific `stream` are mutually exclusive for now"},
	} {
		answer, body, err := ask(t, connectors, "GET", "pods/log", "p", "", test.query)
		if test.err != "" {
			if err == nil || err.Error() != test.err {
				t.Errorf("%s: %v, want %s", test.query, err, test.err)
			}
			continue
		}
		if err != nil || body != test.body || answer.Header.Get("Content-Type") != "text/plain" {
			t.Errorf("%s: %q %v %v, want %q", test.query, body, answer.Header, err, test.body)
		}
	}
	there["pods ns/p"].(*corev1.Pod).Spec.NodeName = ""
	if answer, body, err := ask(t, connectors, "GET", "pods/log", "p", "", ""); err != nil || answer.StatusCode != http.StatusNoContent || body != "" {
		t.Errorf("a pod without a node: %d %q %v", answer.StatusCode, body, err)
	}
}

func TestLogIsRefused(t *testing.T) {
	connectors, _ := world(t, kubelet(t), "main", "refused", "elsewhere")
	for name, want := range map[string]string{
		"refused":   `container "refused" in pod "p" is waiting to start: ContainerCreating`,
		"elsewhere": "Internal error occurred: the kubelet responded with a redirect, which is not followed",
		"":          "a container name must be specified for pod p, choose one of: [main refused elsewhere]",
	} {
		_, body, err := ask(t, connectors, "GET", "pods/log", "p", "", "container="+name)
		if err == nil || err.Error() != want || body != "" {
			t.Errorf("%s: %q %v, want %s", name, body, err, want)
		}
	}
}

func TestLogOverWebSocket(t *testing.T) {
	connectors, _ := world(t, kubelet(t), "main", "refused")
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := connectors["pods/log"].Connect(w, r, &apiserver.Connection{Resource: pods, Namespace: "ns", Name: "p"}); err != nil {
			http.Error(w, err.Error(), http.StatusTeapot)
		}
	}))
	defer front.Close()
	for protocol, want := range map[string]string{"binary.k8s.io": "GET /containerLogs/ns/p/main?", "base64.binary.k8s.io": "R0VUIC9jb250YWluZXJMb2dzL25zL3AvbWFpbj8="} {
		dialer := websocket.Dialer{Subprotocols: []string{protocol}}
		conn, _, err := dialer.Dial("ws"+strings.TrimPrefix(front.URL, "http")+"?container=main", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, got, err := conn.ReadMessage(); err != nil || string(got) != want || conn.Subprotocol() != protocol {
			t.Errorf("%s: %q %v", protocol, got, err)
		}
		if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
			t.Errorf("%s ends with %v", protocol, err)
		}
		conn.Close()
	}
	if _, answer, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(front.URL, "http")+"?container=refused", nil); err == nil || answer.StatusCode != http.StatusTeapot {
		t.Errorf("a refusal: %v", err)
	}
}

// A client of logs that sends a message larger than the limit is disconnected, before the message has arrived.
func TestLogOverWebSocketLimitsMessages(t *testing.T) {
	following := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer following.Close()
	connectors, _ := world(t, following, "main")
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := connectors["pods/log"].Connect(w, r, &apiserver.Connection{Resource: pods, Namespace: "ns", Name: "p"}); err != nil {
			t.Error(err)
		}
	}))
	defer front.Close()
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(front.URL, "http")+"?container=main&follow=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The header of a masked binary message.
	header := binary.BigEndian.AppendUint64([]byte{0x82, 0xff}, apiserver.MaxSocketMessage+1)
	if _, err := conn.NetConn().Write(append(header, 0, 0, 0, 0)); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseMessageTooBig) {
		t.Errorf("the connection ends with %v", err)
	}
}

// TestKubeletIsVerified: nobody but a server that the cluster's authority knows gets to see what is sent to a kubelet.
func TestKubeletIsVerified(t *testing.T) {
	s := kubelet(t)
	_, there := world(t, s, "main")
	connectors := New(Config{Objects: there, Kubelet: &tls.Config{RootCAs: x509.NewCertPool()}})
	if _, _, err := ask(t, connectors, "GET", "pods/log", "p", "", ""); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown kubelet: %v", err)
	}
	if _, body, err := ask(t, connectors, "GET", "pods/log", "p", "", "insecureSkipTLSVerifyBackend=true"); err != nil || body == "" {
		t.Errorf("a client that does not insist: %q %v", body, err)
	}
}

// upgrade opens a stream through a connector behind a real server.
func upgrade(t *testing.T, c apiserver.Connector, what, path string) (status, first, echoed string) {
	t.Helper()
	resource, sub, _ := strings.Cut(what, "/")
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := c.Connect(w, r, &apiserver.Connection{Resource: schema.GroupResource{Resource: resource}, Subresource: sub, Namespace: "ns", Name: "p"})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}))
	defer front.Close()
	conn, err := net.Dial("tcp", front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nAuthorization: Bearer secret\r\nContent-Length: 0\r\n\r\n", path)
	reader := bufio.NewReader(conn)
	if status, err = reader.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	for line := ""; line != "\r\n"; {
		if line, err = reader.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	first, _ = reader.ReadString('\n')
	fmt.Fprintln(conn, "hello")
	echoed, _ = reader.ReadString('\n')
	return strings.TrimSpace(status), strings.TrimSpace(first), strings.TrimSpace(echoed)
}

func TestStreams(t *testing.T) {
	connectors, there := world(t, kubelet(t), "main")
	for _, test := range []struct{ what, query, want string }{
		{"pods/exec", "command=ls&command=-l&stdout=true&stderr=true", "/exec/ns/p/main?command=ls&command=-l&error=1&output=1"},
		{"pods/attach", "container=main&stdin=true&stdout=1&tty=true", "/attach/ns/p/main?input=1&output=1&tty=1"},
		{"pods/portforward", "ports=80&ports=81", "/portForward/ns/p?port=80%2C81"},
	} {
		status, first, echoed := upgrade(t, connectors[test.what], test.what, "/x?"+test.query)
		if status != "HTTP/1.1 101 Switching Protocols" || first != test.want || echoed != "hello" {
			t.Errorf("%s: %s, %s, %s; want %s", test.what, status, first, echoed, test.want)
		}
	}
	if _, _, err := ask(t, connectors, "GET", "pods/exec", "p", "", "command=ls"); err == nil || err.Error() != "Upgrade request required" {
		t.Errorf("without an upgrade: %v", err)
	}
	there["pods ns/p"].(*corev1.Pod).Spec.NodeName = ""
	if _, _, err := ask(t, connectors, "GET", "pods/exec", "p", "", "command=ls"); err == nil || err.Error() != "pod p does not have a host assigned" {
		t.Errorf("without a node: %v", err)
	}
}

func TestNodeProxy(t *testing.T) {
	connectors, _ := world(t, kubelet(t), "main")
	answer, _, err := ask(t, connectors, "GET", "nodes/proxy", "n", "", "a=b")
	if err != nil || answer.StatusCode != http.StatusMovedPermanently || !strings.HasSuffix(answer.Header.Get("Location"), "/nodes/n/proxy/?a=b") {
		t.Errorf("the root: %d %s %v", answer.StatusCode, answer.Header.Get("Location"), err)
	}
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		answer, body, err := ask(t, connectors, method, "nodes/proxy", "n", "/stats/summary", "only=cpu")
		if want := method + " /stats/summary?only=cpu"; err != nil || method != "HEAD" && body != want || answer.StatusCode != 200 {
			t.Errorf("%s: %d %q %v", method, answer.StatusCode, body, err)
		}
		if answer.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Error("the kubelet speaks for the API server")
		}
	}
	if _, body, err := ask(t, connectors, "GET", "nodes/proxy", "n", "/logs/", ""); err != nil || body != "GET /logs/?" {
		t.Errorf("a directory: %q %v", body, err)
	}
	answer, _, err = ask(t, connectors, "GET", "nodes/proxy", "n", "/moved", "")
	if want := "/api/v1/namespaces/ns/nodes/n/proxy/stayed"; err != nil || answer.StatusCode != 302 || answer.Header.Get("Location") != want {
		t.Errorf("a redirect: %d %s %v, want %s", answer.StatusCode, answer.Header.Get("Location"), err, want)
	}
	if _, _, err := ask(t, connectors, "GET", "nodes/proxy", "a:b:c:d", "/x", ""); err == nil || err.Error() != `invalid node request "a:b:c:d"` {
		t.Errorf("a bad name: %v", err)
	}
}

// TestNearbyAddressesAreRefused: pods and endpoints may claim any address; those of the server's own machine are not reached.
func TestNearbyAddressesAreRefused(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("reached") }))
	defer s.Close()
	at, _ := url.Parse(s.URL)
	connectors, there := world(t, kubelet(t), "main")
	pod := there["pods ns/p"].(*corev1.Pod)
	for _, ip := range []string{"127.0.0.1", "169.254.169.254", "::1", "fe80::1", "224.0.0.1", "0.0.0.0", "::ffff:127.0.0.1", ""} {
		pod.Status.PodIP, pod.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
		if _, _, err := ask(t, connectors, "GET", "pods/proxy", "p:"+at.Port(), "/", ""); !apierrors.IsBadRequest(err) || err.Error() != "address not allowed" {
			t.Errorf("a pod at %q: %v", ip, err)
		}
	}
	statusChecker := New(Config{Objects: there, Kubelet: &tls.Config{}})
	for _, name := range []string{"n", "n:" + at.Port()} {
		if _, _, err := ask(t, statusChecker, "GET", "nodes/proxy", name, "/", ""); !apierrors.IsBadRequest(err) || err.Error() != "address not allowed" {
			t.Errorf("%s, a node at a loopback address: %v", name, err)
		}
	}
}

func TestServiceEndpoints(t *testing.T) {
	yes, no, port, name := true, false, int32(8080), "web"
	ready := func(ip string, ready *bool, pod string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: ready},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: pod}}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.1.0.5"}}}}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: name, Port: 80}}}}
	for _, test := range []struct {
		what      string
		port      string
		endpoints []discoveryv1.Endpoint
		want, err string
	}{
		{what: "the ready one", port: name, endpoints: []discoveryv1.Endpoint{ready("10.1.0.5", &yes, "p"), ready("10.1.0.6", &no, "p")}, want: "10.1.0.5:8080"},
		{what: "unknown is ready", port: name, endpoints: []discoveryv1.Endpoint{ready("10.1.0.5", nil, "p")}, want: "10.1.0.5:8080"},
		{what: "an address the pod does not have", port: name, endpoints: []discoveryv1.Endpoint{ready("10.9.9.9", &yes, "p")}, err: `no endpoints available for service "s"`},
		{what: "no pod at all", port: name, endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.5"}}}, err: `no endpoints available for service "s"`},
		{what: "another port", port: "other", endpoints: []discoveryv1.Endpoint{ready("10.1.0.5", &yes, "p")}, err: `no endpoints available for service "s"`},
		{what: "nothing", port: name, err: `no endpoints available for service "s"`},
	} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}}, Endpoints: test.endpoints,
		}
		objects := things{"pods ns/p": pod, "services ns/s": service, "endpointslices ns/s-1": slice}
		d := &backends{objects: objects, services: &webhook.Services{Objects: objects}}
		got, err := d.endpointOf(httptest.NewRequest("GET", "/", nil), service, test.port)
		if got.Address != test.want || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
			t.Errorf("%s: %s %v, want %s %s", test.what, got.Address, err, test.want, test.err)
		}
	}
}

// A node is reached at its address of the preferred type.
func TestAddressTypes(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "n"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
	}}}
	for _, test := range []struct {
		types []corev1.NodeAddressType
		want  string
	}{
		{nil, "10.0.0.1:10250"},
		{[]corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeHostName, corev1.NodeInternalIP}, "n:10250"},
	} {
		b := newBackends(Config{Objects: things{"nodes /n": node}, Kubelet: &tls.Config{}, AddressTypes: test.types})
		location, err := b.kubeletOf(t.Context(), "n")
		if err != nil || location.Host != test.want {
			t.Errorf("%v: %v, %v", test.types, location, err)
		}
	}
	// A name in the place of an IP address is not an address of the node.
	names := node.DeepCopy()
	names.Status.Addresses[1].Address = "metadata.example"
	location, err := newBackends(Config{Objects: things{"nodes /n": names}, Kubelet: &tls.Config{}}).kubeletOf(t.Context(), "n")
	if err != nil || location.Host != "n:10250" {
		t.Errorf("InternalIP is a name: %v, %v", location, err)
	}
	b := newBackends(Config{Objects: things{"nodes /n": node}, Kubelet: &tls.Config{}, AddressTypes: []corev1.NodeAddressType{corev1.NodeExternalDNS}})
	if _, err := b.kubeletOf(t.Context(), "n"); err == nil || !strings.Contains(err.Error(), "no preferred addresses found") {
		t.Errorf("error %v", err)
	}
}
