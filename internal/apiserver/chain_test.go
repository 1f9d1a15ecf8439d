package apiserver

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
)

func TestRefusals(t *testing.T) {
	s := newTestServer(t)
	s.add("pods", pod("ns", "a", ""))
	tests := []struct {
		name, method, path string
		headers            []string
		code               int
		reason             metav1.StatusReason
		message            string
	}{
		{"no credential", "GET", "/api/v1/pods", []string{"Authorization: "}, 401, "Unauthorized", "Unauthorized"},
		{"bad credential", "GET", "/api/v1/pods", []string{"Authorization: Bearer x"}, 401, "Unauthorized", "Unauthorized"},
		{"list", "GET", "/api/v1/namespaces/y/pods", []string{"Authorization: Bearer guest"}, 403, "Forbidden",
			`pods is forbidden: User "guest" cannot list resource "pods" in API group "" in the namespace "y"`},
		{"get of a subresource", "GET", "/api/v1/namespaces/y/pods/p/status", []string{"Authorization: Bearer guest"}, 403, "Forbidden",
			`pods "p" is forbidden: User "guest" cannot get resource "pods/status" in API group "" in the namespace "y"`},
		{"cluster scope", "GET", "/apis/events.k8s.io/v1/events", []string{"Authorization: Bearer guest"}, 403, "Forbidden",
			`events.events.k8s.io is forbidden: User "guest" cannot list resource "events" in API group "events.k8s.io" at the cluster scope`},
		{"a path", "GET", "/metrics", []string{"Authorization: Bearer guest"}, 403, "Forbidden",
			`forbidden: User "guest" cannot get path "/metrics"`},
		{"unknown resource", "GET", "/api/v1/unicorns", nil, 404, "NotFound", "the server could not find the requested resource"},
		{"unknown subresource", "GET", "/api/v1/namespaces/ns/pods/a/hat", nil, 404, "NotFound", "the server could not find the requested resource"},
		{"namespaced object without namespace", "GET", "/api/v1/pods/a", nil, 404, "NotFound", "the server could not find the requested resource"},
		{"cluster object in a namespace", "GET", "/api/v1/namespaces/ns/nodes/a", nil, 404, "NotFound", "the server could not find the requested resource"},
		{"create across namespaces", "POST", "/api/v1/pods", nil, 405, "MethodNotAllowed", "the server does not allow this method on the requested resource"},
		{"verb the kind lacks", "DELETE", "/api/v1/namespaces", nil, 405, "MethodNotAllowed", "the server does not allow this method on the requested resource"},
		{"method nobody has", "OPTIONS", "/api/v1/namespaces/ns/pods", nil, 405, "MethodNotAllowed", "the server does not allow this method on the requested resource"},
		{"absent object", "GET", "/api/v1/namespaces/ns/pods/nobody", nil, 404, "NotFound", `pods "nobody" not found`},
		{"absent object of a group", "GET", "/apis/events.k8s.io/v1/namespaces/ns/events/e", nil, 404, "NotFound", `events.events.k8s.io "e" not found`},
		{"bad timeout", "GET", "/api/v1/pods?timeout=soon", nil, 400, "BadRequest",
			`invalid timeout specified in the request URL - time: invalid duration "soon"`},
		{"unknown media type", "GET", "/api/v1/pods", []string{"Accept: text/html"}, 406, "NotAcceptable",
			"only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := s.do(test.method, test.path, test.headers...)
			got.t = t
			got.status(test.code, test.reason, test.message)
			if got.header.Get("Cache-Control") != "no-cache, private" || got.header.Get("Audit-Id") == "" {
				t.Errorf("headers: %v", got.header)
			}
		})
	}
	if got := s.get("/apis/nobody.example/v1/things"); got.code != 404 || string(got.body) != "404 page not found\n" {
		t.Errorf("unknown group: %d %q", got.code, got.body)
	}
}

func TestPanicInPath(t *testing.T) {
	s := newTestServer(t, func(c *Config) {
		c.Paths = map[string]http.Handler{"/boom": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") })}
	})
	got := s.get("/boom")
	if got.code != 500 || string(got.body) != textPanicked+"\n" {
		t.Errorf("%d %s", got.code, got.body)
	}
}

// guard is an authorizer that tests can look through and stop at.
type guard struct {
	mu      sync.Mutex
	asked   []authz.Attributes
	blocked chan struct{}
}

func (g *guard) Authorize(ctx context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	g.mu.Lock()
	g.asked = append(g.asked, *a)
	g.mu.Unlock()
	if g.blocked != nil && a.Name == "slow" {
		<-g.blocked
	}
	return authz.Allow, "", nil
}

// asks reports whether a request for the name was authorized.
func (g *guard) asks(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.asked, func(a authz.Attributes) bool { return a.Name == name })
}

func (g *guard) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.asked)
}

func TestTooManyRequests(t *testing.T) {
	g := &guard{blocked: make(chan struct{})}
	s := newTestServer(t, func(c *Config) {
		c.Limits.ReadOnly = 1
		c.Authorizer = g
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.get("/api/v1/namespaces/ns/pods/slow", "Authorization: Bearer guest")
	}()
	for s.readOnly.inFlight.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	got := s.get("/api/v1/pods", "Authorization: Bearer guest")
	if got.code != 429 || string(got.body) != "Too many requests, please try again later.\n" {
		t.Errorf("%d %q", got.code, got.body)
	}
	if got.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", got.header.Get("Retry-After"))
	}
	if got := s.get("/api/v1/pods"); got.code != 200 {
		t.Errorf("system:masters got %d", got.code)
	}
	close(g.blocked)
	<-done
	if got := s.get("/api/v1/pods", "Authorization: Bearer guest"); got.code != 200 {
		t.Errorf("afterwards: %d", got.code)
	}
	if n := s.readOnly.inFlight.Load(); n != 0 {
		t.Errorf("%d requests still counted", n)
	}
}

func TestAuthorizationSeesTheRequest(t *testing.T) {
	g := &guard{}
	s := newTestServer(t, func(c *Config) { c.Authorizer = g })
	s.get("/apis/events.k8s.io/v1/namespaces/ns/events?fieldSelector=metadata.name%3De&labelSelector=a")
	want := authz.Attributes{
		User: authn.User{Username: "admin", Groups: []string{authn.GroupMasters, authn.GroupAuthenticated}}, Verb: "list", ResourceRequest: true,
		Group: "events.k8s.io", Version: "v1", Resource: "events", Namespace: "ns", Name: "e",
		FieldSelector: "metadata.name=e", LabelSelector: "a",
	}
	got := g.asked[0]
	if got.User.Username != want.User.Username || strings.Join(got.User.Groups, " ") != strings.Join(want.User.Groups, " ") {
		t.Errorf("user %+v", got.User)
	}
	got.User, want.User = authn.User{}, authn.User{}
	if got.Verb != want.Verb || got.Name != want.Name || got.FieldSelector != want.FieldSelector || got.LabelSelector != want.LabelSelector ||
		got.Group != want.Group || got.Namespace != want.Namespace {
		t.Errorf("asked %+v\nwant %+v", got, want)
	}
}

func TestTimeout(t *testing.T) {
	s := newTestServer(t)
	// A revision that does not come is waited for, but not beyond the client's patience.
	start := time.Now()
	got := s.get("/api/v1/pods?resourceVersion=1000&timeout=50ms")
	if got.code != http.StatusGatewayTimeout || time.Since(start) > time.Second {
		t.Errorf("%d after %v: %s", got.code, time.Since(start), got.body)
	}
}

// echo is a stream.
type echo struct{}

func (echo) Connect(w http.ResponseWriter, r *http.Request, c *Connection) error {
	_, err := w.Write([]byte(c.User.Username + " " + c.Namespace + "/" + c.Name + " " + c.Subresource + " " + c.Path))
	return err
}

func TestConnectors(t *testing.T) {
	s := newTestServer(t, func(c *Config) { c.Connectors = map[string]Connector{"pods/log": echo{}} })
	if got := s.get("/api/v1/namespaces/ns/pods/a/log/x/y"); string(got.body) != "admin ns/a log /x/y" {
		t.Errorf("%d %s", got.code, got.body)
	}
	const notAllowed = "the server does not allow this method on the requested resource"
	s.do("POST", "/api/v1/namespaces/ns/pods/a/log").status(405, "MethodNotAllowed", notAllowed)
	s.do("OPTIONS", "/api/v1/namespaces/ns/pods/a/log").status(405, "MethodNotAllowed", notAllowed)
	s.get("/api/v1/watch/namespaces/ns/pods/a/log").status(404, "NotFound", "the server could not find the requested resource")
	if got := s.get("/api/v1/namespaces/ns/pods//log?fieldSelector=metadata.name%3Da"); got.code != 404 {
		t.Errorf("%d %s", got.code, got.body)
	}
	s.get("/api/v1/namespaces/ns/pods/a/exec").status(404, "NotFound", "the server could not find the requested resource")
}

func TestConnectNeedsCreate(t *testing.T) {
	g := &guard{}
	s := newTestServer(t, func(c *Config) {
		c.Connectors, c.Authorizer = map[string]Connector{"pods/log": echo{}, "pods/exec": echo{}}, g
	})
	for _, subresource := range []string{"log", "exec"} {
		if got := s.get("/api/v1/namespaces/ns/pods/a/" + subresource); got.code != 200 {
			t.Errorf("%s: %d %s", subresource, got.code, got.body)
		}
	}
	var verbs []string
	for _, a := range g.asked {
		verbs = append(verbs, a.Verb+" "+a.Subresource)
	}
	if got := strings.Join(verbs, ", "); got != "get log, get exec, create exec" {
		t.Errorf("authorized: %s", got)
	}
}

func TestKindsComeAndGo(t *testing.T) {
	s := newTestServer(t, func(c *Config) { c.Kinds = readKinds()[:1] })
	pods := readKinds()[1]
	path := "/api/v1/pods"
	s.get(path).status(404, "NotFound", "the server could not find the requested resource")
	if err := s.AddKind(pods); err != nil {
		t.Fatal(err)
	}
	s.add("pods", pod("ns", "a", ""))
	if got := s.get(path); got.code != 200 || !strings.Contains(string(got.body), `"name":"a"`) {
		t.Errorf("%d %s", got.code, got.body)
	}
	if err := s.AddKind(pods); err == nil {
		t.Error("one kind was served twice")
	}
	if err := s.RemoveKind(pods); err != nil {
		t.Fatal(err)
	}
	s.get(path).status(404, "NotFound", "the server could not find the requested resource")
	if err := s.AddKind(pods); err != nil {
		t.Fatal(err)
	}
	if got := s.get(path); got.code != 200 || !strings.Contains(string(got.body), `"name":"a"`) {
		t.Errorf("what was stored is gone: %d %s", got.code, got.body)
	}
}
