package connect

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"

	"skiff/internal/webhook"
)

// forwarder connects ports of pods to a local server, as a kubelet does.
type forwarder struct{ to string }

func (f forwarder) PortForward(_ context.Context, _ string, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	if port != 8443 {
		return errors.New("connection refused")
	}
	conn, err := net.Dial("tcp", f.to)
	if err != nil {
		return err
	}
	defer conn.Close()
	go func() {
		_, _ = io.Copy(conn, stream)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, conn)
	return err
}

// connectPod serves /connect/ as skiff's kubelet does. Port 8443 of a pod is a local server; a pod named refused may not be reached, and one named
// old is on a node whose kubelet does not connect to pods.
func connectPod(w http.ResponseWriter, r *http.Request, to string) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/refused"):
		http.Error(w, "go away", http.StatusForbidden)
		return
	case strings.HasSuffix(r.URL.Path, "/old"):
		http.NotFound(w, r)
		return
	case r.Method != http.MethodPost || r.Header.Get("Upgrade") != "tcp" || r.URL.Query().Get("address") != "10.255.255.1:8443":
		http.Error(w, "connection refused", http.StatusBadGateway)
		return
	}
	conn, err := net.Dial("tcp", to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer conn.Close()
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	_, _ = io.WriteString(client, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
	go func() {
		_, _ = io.Copy(conn, buffered.Reader)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(client, conn)
}

// TestPodDialer: an API server without a route to pods reaches a webhook through the kubelet of its pod.
func TestPodDialer(t *testing.T) {
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	}))
	defer hook.Close()
	var paths []string
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		if strings.HasPrefix(r.URL.Path, "/connect/") {
			connectPod(w, r, hook.Listener.Addr().String())
			return
		}
		portforward.ServePortForward(w, r, forwarder{hook.Listener.Addr().String()}, "p", "", nil, time.Minute, time.Minute, portforward.SupportedProtocols)
	}))
	defer kubelet.Close()
	host, portText, _ := net.SplitHostPort(kubelet.Listener.Addr().String())
	port, _ := strconv.Atoi(portText)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}}, DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
	}}
	pod := func(name string, change ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PodSpec{NodeName: "n"},
			Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.255.255.1"}}}}
		for _, c := range change {
			c(p)
		}
		return p
	}
	roots := x509.NewCertPool()
	roots.AddCert(kubelet.Certificate())
	dial := PodDialer(Config{Kubelet: &tls.Config{RootCAs: roots}, Objects: things{"nodes /n": node, "pods ns/p": pod("p"), "pods ns/refused": pod("refused"), "pods ns/old": pod("old"),
		"pods ns/host": pod("host", func(p *corev1.Pod) { p.Spec.HostNetwork, p.Status.PodIPs[0].IP = true, "127.0.0.1" })}})
	at := func(name, address string) webhook.Endpoint {
		return webhook.Endpoint{Address: address, Target: &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: name}}
	}
	_, hookPort, _ := net.SplitHostPort(hook.Listener.Addr().String())
	for name, test := range map[string]struct {
		endpoint webhook.Endpoint
		path     string
		err      string
	}{
		"through the kubelet":               {at("p", "10.255.255.1:8443"), "/connect/ns/p", ""},
		"forwarded by another kubelet":      {at("old", "10.255.255.1:8443"), "/connect/ns/old /portForward/ns/old", ""},
		"host network":                      {at("host", "127.0.0.1:"+hookPort), "", ""},
		"no pod":                            {webhook.Endpoint{Address: hook.Listener.Addr().String()}, "", ""},
		"refused by the pod":                {at("p", "10.255.255.1:1"), "/connect/ns/p", "connection refused"},
		"refused by the pod when forwarded": {at("old", "10.255.255.1:1"), "/connect/ns/old /portForward/ns/old", "connection refused"},
		"refused by kubelet":                {at("refused", "10.255.255.1:8443"), "/connect/ns/refused", "go away"},
		"deleted pod":                       {at("gone", "10.255.255.1:8443"), "", "not found"},
	} {
		paths = nil
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, test.endpoint) }}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		request, _ := http.NewRequestWithContext(ctx, "POST", "https://hook/", strings.NewReader("hello"))
		response, err := (&http.Client{Transport: transport}).Do(request)
		body := ""
		if err == nil {
			data, _ := io.ReadAll(response.Body)
			response.Body.Close()
			body = string(data)
		}
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) || err == nil && body != "hello" || strings.Join(paths, " ") != test.path {
			t.Errorf("%s: %q %v through %v", name, body, err, paths)
		}
		transport.CloseIdleConnections()
		cancel()
	}
}

// A kubelet that accepts connections and does not go on, at whatever point, keeps nothing of the calls: neither connections nor goroutines. The
// contexts of an HTTP client's dials have no deadline.
func TestPodDialerTimeout(t *testing.T) {
	certificate := httptest.NewTLSServer(nil)
	defer certificate.Close()
	roots := x509.NewCertPool()
	roots.AddCert(certificate.Certificate())
	for _, test := range []struct {
		name    string
		respond func(net.Conn)
	}{
		{"nothing", func(net.Conn) {}},
		{"no response", func(c net.Conn) {
			_ = tls.Server(c, certificate.TLS).Handshake()
		}},
		{"an endless header", func(c net.Conn) {
			secure := tls.Server(c, certificate.TLS)
			_, err := http.ReadRequest(bufio.NewReader(secure))
			for text := "HTTP/1.1 101 Switching Protocols\r\nA: "; err == nil; text = strings.Repeat("a", 4096) {
				_, err = io.WriteString(secure, text)
			}
		}},
		{"no streams", func(c net.Conn) {
			secure := tls.Server(c, certificate.TLS)
			switch r, err := http.ReadRequest(bufio.NewReader(secure)); {
			case err == nil && strings.HasPrefix(r.URL.Path, "/connect/"):
				_, _ = io.WriteString(secure, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
			case err == nil:
				_, _ = io.WriteString(secure, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			kubelet, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer kubelet.Close()
			var accepted, closed atomic.Int32
			go func() {
				for {
					conn, err := kubelet.Accept()
					if err != nil {
						return
					}
					accepted.Add(1)
					go func() {
						defer conn.Close()
						test.respond(conn)
						_, _ = io.Copy(io.Discard, conn) // until the client closes the connection
						closed.Add(1)
					}()
				}
			}()
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{
				Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
				DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(kubelet.Addr().(*net.TCPAddr).Port)}},
			}}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.255.255.1"}}}}
			dial := newPodDialer(Config{Kubelet: &tls.Config{RootCAs: roots}, Objects: things{"nodes /n": node, "pods ns/p": pod}}, 500*time.Millisecond).dial
			endpoint := webhook.Endpoint{Address: "10.255.255.1:8443", Target: &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p"}}
			client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, endpoint) }}}
			before := runtime.NumGoroutine()
			const calls = 5
			for range calls {
				ctx, cancel := context.WithCancel(t.Context())
				request, _ := http.NewRequestWithContext(ctx, "POST", "https://hook/", http.NoBody)
				already := accepted.Load()
				go func() {
					for accepted.Load() == already {
						time.Sleep(time.Millisecond)
					}
					cancel() // the call has its own deadline
				}()
				if response, err := client.Do(request); err == nil {
					response.Body.Close()
					t.Error("the call succeeded")
				}
				cancel()
			}
			waitUntil(t, "the connections are closed", func() bool { return closed.Load() >= calls && closed.Load() == accepted.Load() })
			if test.name != "no streams" { // the library waits half a minute for the reply to a stream, whatever happens to the connection
				waitUntil(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
			}
		})
	}
}

// waitUntil waits for a condition.
func waitUntil(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout: %s", what)
		}
	}
}
