package webhook

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
	"skiff/internal/webhook/webhooktest"
)

// objects are a Service and EndpointSlices by namespace/name.
type objects map[string]kind.Object

func (o objects) Get(_ context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error) {
	if obj, ok := o[namespace+"/"+name].(*corev1.Service); ok && resource.Resource == "services" {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

func (o objects) List(resource schema.GroupResource, namespace string, selector labels.Selector) (found []kind.Object, _ error) {
	for _, obj := range o {
		if _, ok := obj.(*discoveryv1.EndpointSlice); ok && selector.Matches(labels.Set(obj.GetLabels())) && resource.Resource == "endpointslices" && obj.GetNamespace() == namespace {
			found = append(found, obj)
		}
	}
	return found, nil
}

func service(change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "hook"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: []corev1.ServicePort{{Name: "web", Port: 443}, {Name: "other", Port: 8443}}},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

// slice has the endpoints of the Service's port "web".
func slice(name string, port int32, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	web := "web"
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "team", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "hook"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &web, Port: &port}}, Endpoints: endpoints,
	}
}

func endpoint(address string, ready bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
}

func TestResolve(t *testing.T) {
	for _, test := range []struct {
		name      string
		objects   objects
		port      int32
		want, err string
	}{
		{"ready endpoint", objects{"team/hook": service(), "a": slice("a", 9443, endpoint("10.0.0.1", false), endpoint("10.0.0.2", true))}, 443, "10.0.0.2:9443", ""},
		{"IPv6", objects{"team/hook": service(), "a": slice("a", 9443, endpoint("fd00::1", true))}, 443, "[fd00::1]:9443", ""},
		{"several slices", objects{"team/hook": service(), "a": slice("a", 1, endpoint("10.0.0.1", false)), "b": slice("b", 2, endpoint("10.0.0.2", true))}, 443, "10.0.0.2:2", ""},
		{"external name", objects{"team/hook": service(func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
		})}, 443, "example.com:443", ""},
		{"no service", objects{}, 443, "", `service "hook" not found`},
		{"no port", objects{"team/hook": service()}, 80, "", `no service port 80 found for service "hook"`},
		{"nothing ready", objects{"team/hook": service(), "a": slice("a", 9443, endpoint("10.0.0.1", false))}, 443, "", `no endpoints available for service "hook"`},
		{"other port", objects{"team/hook": service(), "a": slice("a", 9443, endpoint("10.0.0.1", true))}, 8443, "", `no endpoints available for service "hook"`},
	} {
		got, err := (&Services{Objects: test.objects}).Resolve(t.Context(), "team", "hook", test.port)
		if got.Address != test.want || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
			t.Errorf("%s: %v %v, want %s %s", test.name, got, err, test.want, test.err)
		}
	}
}

func newClients(o Options) *Clients {
	o.Metrics = NewMetrics()
	if o.Services == nil {
		o.Services = &Services{Objects: objects{}}
	}
	return New(o)
}

func mustClient(t testing.TB, c *Clients, config ClientConfig) *Client {
	t.Helper()
	client, err := c.NewClient(config, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// endless writes to the response until the client goes away.
func endless(w http.ResponseWriter, _ *http.Request) {
	chunk := make([]byte, 64<<10)
	for {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

// TestHostileWebhooks: whatever a webhook responds, the call ends with an error within its time and memory.
func TestHostileWebhooks(t *testing.T) {
	ca := webhooktest.NewCA(t)
	var followed atomic.Bool
	elsewhere := webhooktest.NewServer(ca, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Store(true) }))
	status := func(code int, kind, body string, headers ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}
	}
	overload := 0
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		timeout time.Duration
		want    string
		err     string
	}{
		"answer":    {handler: status(200, "application/json", "{}"), want: "{}"},
		"hang":      {handler: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, timeout: 100 * time.Millisecond, err: "context deadline exceeded"},
		"endless":   {handler: endless, err: "the webhook's response is too large: it has more than 1048576 bytes"},
		"redirect":  {handler: status(307, "text/plain", "", "Location", elsewhere.URL), err: "the webhook responded with status 307 Temporary Redirect, and redirects are not followed"},
		"not found": {handler: status(404, "text/plain", "404 page not found"), err: "the server could not find the requested resource"},
		"broken":    {handler: status(500, "text/plain", strings.Repeat("x", 10000)), err: strings.Repeat("x", 2048) + `") has prevented the request from succeeding`},
		"Status":    {handler: status(403, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"go away","code":403,"reason":"Forbidden"}`), err: "go away"},
		"cut off": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = w.Write([]byte("{"))
		}, err: "unexpected error when reading response body"},
		"always busy": {handler: status(429, "text/plain", "busy", "Retry-After", "0"), err: "has asked us to try again later"},
		"busy": {handler: func(w http.ResponseWriter, r *http.Request) {
			if overload++; overload < 3 {
				status(503, "text/plain", "busy", "Retry-After", "0")(w, r)
				return
			}
			status(200, "application/json", "[]")(w, r)
		}, want: "[]"},
		"long headers": {handler: status(200, "application/json", "{}", "X", strings.Repeat("x", 100<<10)), err: "Post "},
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int64
			server := webhooktest.NewServer(ca, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { calls.Add(1); test.handler(w, r) }))
			client := mustClient(t, newClients(Options{}), ClientConfig{URL: server.URL + "/path", CABundle: ca.Bundle})
			ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(test.timeout, 30*time.Second))
			defer cancel()
			got, err := client.Review(ctx, []byte("{}"))
			if string(got) != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("%.200s %v, want %s %s", got, err, test.want, test.err)
			}
			if n := calls.Load(); n > maxRetries+1 {
				t.Errorf("%d calls", n)
			}
		})
	}
	if followed.Load() {
		t.Error("a redirect was followed")
	}
	if _, err := mustClient(t, newClients(Options{}), ClientConfig{URL: "https://127.0.0.1:1"}).Review(t.Context(), make([]byte, maxRequest+1)); err == nil || !strings.Contains(err.Error(), "the limit is") {
		t.Errorf("a huge request: %v", err)
	}
}

// TestRequest: what a webhook receives.
func TestRequest(t *testing.T) {
	ca := webhooktest.NewCA(t)
	var got *http.Request
	server := webhooktest.NewServer(ca, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r }), "127.0.0.1", "hook.team.svc")
	_, port, _ := net.SplitHostPort(server.Address())
	var number int32
	_, _ = fmt.Sscan(port, &number)
	clients := newClients(Options{Services: &Services{Objects: objects{"team/hook": service(), "a": slice("a", number, endpoint("127.0.0.1", true))}}})
	for name, test := range map[string]struct {
		config         ClientConfig
		host, protocol string
	}{
		"url":     {ClientConfig{URL: server.URL + "/path", CABundle: ca.Bundle}, server.Address(), "HTTP/2.0"},
		"service": {ClientConfig{Service: &ServiceReference{Namespace: "team", Name: "hook", Path: "/path", Port: 443}, CABundle: ca.Bundle}, "hook.team.svc:443", "HTTP/1.1"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 9500*time.Millisecond)
		_, err := mustClient(t, clients, test.config).Review(ctx, []byte("{}"))
		cancel()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.Host != test.host || got.Proto != test.protocol || got.URL.Path != "/path" || got.URL.RawQuery != "timeout=10s" || got.Method != "POST" ||
			got.Header.Get("Content-Type") != "application/json" || got.UserAgent() != "kube-apiserver-admission" || got.Header.Get("Authorization") != "" {
			t.Errorf("%s: %s %s %s %s %v", name, got.Method, got.Host, got.URL, got.Proto, got.Header)
		}
		if got.TLS.ServerName != "" && got.TLS.ServerName != "hook.team.svc" {
			t.Errorf("%s: server name %s", name, got.TLS.ServerName)
		}
	}
}

// TestCertificates: the certificate must be of the bundle's CA and for the name of the webhook.
func TestCertificates(t *testing.T) {
	ca, other := webhooktest.NewCA(t), webhooktest.NewCA(t)
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	byAddress := webhooktest.NewServer(ca, nothing)
	byName := webhooktest.NewServer(ca, nothing, "hook.team.svc")
	for name, test := range map[string]struct {
		url    string
		bundle []byte
		err    string
	}{
		"right":          {byAddress.URL, ca.Bundle, ""},
		"other CA":       {byAddress.URL, other.Bundle, "certificate signed by unknown authority"},
		"no bundle":      {byAddress.URL, nil, "certificate signed by unknown authority"},
		"other name":     {byName.URL, ca.Bundle, "doesn't contain any IP SANs"},
		"broken bundle":  {byAddress.URL, []byte("no certificate"), "unable to load root certificates"},
		"not TLS at all": {strings.Replace(byAddress.URL, "https", "http", 1), ca.Bundle, "the server rejected our request for an unknown reason"},
	} {
		_, err := mustClient(t, newClients(Options{}), ClientConfig{URL: test.url, CABundle: test.bundle}).Review(t.Context(), []byte("{}"))
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %v, want %s", name, err, test.err)
		}
	}
}

// TestCredentials: the API server authenticates with the credentials of the webhook's name, and sends them to no other.
func TestCredentials(t *testing.T) {
	ca := webhooktest.NewCA(t)
	certificate, key := ca.Issue("apiserver")
	var user string
	server := webhooktest.NewServer(ca, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		user = r.Header.Get("Authorization")
		for _, c := range r.TLS.PeerCertificates {
			user += c.Subject.CommonName
		}
	}))
	file := filepath.Join(t.TempDir(), "kubeconfig")
	encode := func(data []byte) string { return base64.StdEncoding.EncodeToString(data) }
	content := func(users string) string { return "apiVersion: v1\nkind: Config\nusers:\n" + users }
	with := func(name, user string) string { return "- name: '" + name + "'\n  user: " + user + "\n" }
	pair := fmt.Sprintf("{client-certificate-data: %s, client-key-data: %s}", encode(certificate), encode(key))
	for name, test := range map[string]struct{ content, want string }{
		"address":        {content(with(server.Address(), "{token: secret}")), "Bearer secret"},
		"certificate":    {content(with(server.Address(), pair)), "apiserver"},
		"domain":         {content(with("*.0.0.1:"+server.Address()[len("127.0.0.1:"):], "{token: wide}")), "Bearer wide"},
		"everyone":       {content(with("*", "{token: all}")), "Bearer all"},
		"most specific":  {content(with("*", "{token: all}") + with(server.Address(), "{username: a, password: b}")), "Basic YTpi"},
		"another server": {content(with("hooks.example.com:443", "{token: secret}")), ""},
		"current context": {content(with("me", "{token: current}")) + "contexts:\n- name: c\n  context: {user: me, cluster: x}\ncurrent-context: c\n",
			"Bearer current"},
	} {
		if err := os.WriteFile(file, []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		credentials, err := ReadCredentials(file)
		if err != nil {
			t.Fatal(err)
		}
		user = "none"
		client := mustClient(t, newClients(Options{Credentials: credentials}), ClientConfig{URL: server.URL, CABundle: ca.Bundle})
		if _, err := client.Review(t.Context(), []byte("{}")); err != nil || user != test.want {
			t.Errorf("%s: %q %v, want %q", name, user, err, test.want)
		}
	}
	if _, err := ReadCredentials(filepath.Join(t.TempDir(), "absent")); err == nil {
		t.Error("no file")
	}
}

// TestConnections: connections are shared by webhooks at one address, closed with their configuration, and bounded in number.
func TestConnections(t *testing.T) {
	ca := webhooktest.NewCA(t)
	server := webhooktest.NewServer(ca, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	clients := newClients(Options{})
	call := func(path string, bundle []byte) *Client {
		t.Helper()
		client := mustClient(t, clients, ClientConfig{URL: server.URL + path, CABundle: bundle})
		if _, err := client.Review(t.Context(), []byte("{}")); err != nil {
			t.Fatal(err)
		}
		return client
	}
	// Calls that begin at the same time share one transport, so that Close closes all connections.
	first := mustClient(t, clients, ClientConfig{URL: server.URL, CABundle: ca.Bundle})
	made := make(chan *pooled, 10)
	for range cap(made) {
		go func() {
			shared, _ := first.transport()
			made <- shared
		}()
	}
	for shared, i := <-made, 1; i < cap(made); i++ {
		if other := <-made; other != shared {
			t.Error("two transports for one address")
		}
	}
	var client *Client
	for range 20 {
		client = call("/a", ca.Bundle)
		call("/b", ca.Bundle)
	}
	if n := server.Connections.Load(); n != 1 {
		t.Errorf("%d connections for 40 calls", n)
	}
	client.Close()
	if n := clients.transports.Len(); n != 0 {
		t.Errorf("%d transports are kept", n)
	}
	waitFor(t, "the connection to close", func() bool { return server.Open() == 0 })
	for i := range maxTransports + 10 {
		call("/", append([]byte(strings.Repeat("\n", i)), ca.Bundle...))
	}
	waitFor(t, "old connections to close", func() bool { return server.Open() <= maxTransports })
	if n := clients.transports.Len(); n != maxTransports {
		t.Errorf("%d transports are kept", n)
	}
}

func waitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

// TestDial: an API server without a route to pods connects to endpoints in its own way.
func TestDial(t *testing.T) {
	ca := webhooktest.NewCA(t)
	server := webhooktest.NewServer(ca, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), "hook.team.svc")
	var dialed []string
	services := &Services{Objects: objects{"team/hook": service(), "a": slice("a", 9443, endpoint("10.255.255.1", true))}}
	services.Dial = func(ctx context.Context, e Endpoint) (net.Conn, error) {
		dialed = append(dialed, e.Address)
		if len(dialed) == 1 {
			return nil, errors.New("no node")
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Address())
	}
	client := mustClient(t, newClients(Options{Services: services}), ClientConfig{Service: &ServiceReference{Namespace: "team", Name: "hook", Port: 443}, CABundle: ca.Bundle})
	if _, err := client.Review(t.Context(), []byte("{}")); err == nil || !strings.Contains(err.Error(), "no node") {
		t.Errorf("%v", err)
	}
	if _, err := client.Review(t.Context(), []byte("{}")); err != nil || len(dialed) != 2 || dialed[1] != "10.255.255.1:9443" {
		t.Errorf("dialed %v, %v", dialed, err)
	}
}

func TestKubeconfigClient(t *testing.T) {
	var got *http.Request
	server := webhooktest.NewServer(webhooktest.NewCA(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusTemporaryRedirect)
		_, _ = w.Write([]byte("12345"))
	}))
	file := filepath.Join(t.TempDir(), "kubeconfig")
	write := func(server string) string {
		content := "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {server: '" + server + "', insecure-skip-tls-verify: true}\n" +
			"users:\n- name: u\n  user: {token: secret}\ncontexts:\n- name: x\n  context: {cluster: c, user: u}\ncurrent-context: x\n"
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	client, err := NewKubeconfigClient(write(server.URL+"/hook"), time.Minute, 5, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Post(t.Context(), []byte("{}"))
	if err != nil || response.StatusCode != 307 || string(response.Body) != "12345" || got.Header.Get("Authorization") != "Bearer secret" || got.URL.Path != "/hook" {
		t.Errorf("%v %v", response, err)
	}
	client.maxResponse = 4
	if response, err := client.Post(t.Context(), []byte("{}")); !errors.Is(err, ErrResponseTooLarge) || response.StatusCode != 307 {
		t.Errorf("%v %v", response, err)
	}
	dialed := ""
	proxied, err := NewKubeconfigClient(write("https://hook.example/hook"), time.Minute, 5, func(ctx context.Context, network, address string) (net.Conn, error) {
		dialed = address
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	})
	if err != nil {
		t.Fatal(err)
	}
	if response, err := proxied.Post(t.Context(), []byte("{}")); err != nil || response.StatusCode != 307 || dialed != "hook.example:443" {
		t.Errorf("%v %v, dialed %q", response, err, dialed)
	}
	if _, err := NewKubeconfigClient(write("ftp://x"), time.Minute, 1, nil); err == nil || !strings.Contains(err.Error(), "has no http or https server URL") {
		t.Errorf("%v", err)
	}
}
