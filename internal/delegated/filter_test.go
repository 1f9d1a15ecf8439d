package delegated

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"skiff/internal/health"
	"skiff/internal/pki"
)

// fakeReviewer accepts the tokens "alice" and "bob" and allows what is in its list: "alice get /metrics".
type fakeReviewer struct {
	allowed        []string
	tokens, access int
	down           bool
}

func (c *fakeReviewer) Token(_ context.Context, spec authenticationv1.TokenReviewSpec) (authenticationv1.TokenReviewStatus, error) {
	c.tokens++
	if c.down {
		return authenticationv1.TokenReviewStatus{}, errors.New("no connection")
	}
	if spec.Token != "alice" && spec.Token != "bob" {
		return authenticationv1.TokenReviewStatus{Error: "invalid bearer token"}, nil
	}
	return authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
		Username: spec.Token, UID: "1", Groups: []string{groupAuthenticated}, Extra: map[string]authenticationv1.ExtraValue{"scope": {"all"}}}}, nil
}

func (c *fakeReviewer) Access(_ context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
	c.access++
	if c.down {
		return authorizationv1.SubjectAccessReviewStatus{}, errors.New("no connection")
	}
	key := spec.User + " "
	switch {
	case spec.NonResourceAttributes != nil:
		key += spec.NonResourceAttributes.Verb + " " + spec.NonResourceAttributes.Path
	case spec.ResourceAttributes != nil:
		key += spec.ResourceAttributes.Verb + " " + spec.ResourceAttributes.Resource + "/" + spec.ResourceAttributes.Subresource
	}
	return authorizationv1.SubjectAccessReviewStatus{Allowed: slices.Contains(c.allowed, key)}, nil
}

func request(h http.Handler, method, target, authorization string, certificates ...*x509.Certificate) (int, string) {
	r := httptest.NewRequest(method, target, nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	if certificates != nil {
		r.TLS = &tls.ConnectionState{PeerCertificates: certificates}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, strings.TrimSpace(w.Body.String())
}

func TestFilter(t *testing.T) {
	ca, certificate := issued(t, "carol", "auditors")
	_, untrusted := issued(t, "mallory")
	greet := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, _ := User(r.Context())
		_, _ = w.Write([]byte("hello " + user.Username + r.Header.Get("Authorization")))
	})
	newFilter := func(anonymous bool) http.Handler {
		f := &Filter{
			Reviewer:  &fakeReviewer{allowed: []string{"alice get /metrics", "alice create /metrics", "carol get /metrics", anonymousUser + " get /public"}},
			Anonymous: anonymous, AlwaysAllowPaths: []string{"/healthz", "/livez/*"}, ClientCAs: ca.Pool,
		}
		return f.Wrap(greet)
	}
	for _, test := range []struct {
		what, method, path, authorization string
		certificate                       *x509.Certificate
		strict                            bool
		code                              int
		body                              string
	}{
		{what: "an always-allowed path needs no user", path: "/healthz", code: 200, body: "hello"},
		{what: "a path below an always-allowed prefix needs none", path: "/livez/ping", code: 200, body: "hello"},
		{what: "an always-allowed path is not a prefix", path: "/healthz/ping", code: 403, body: "Forbidden (user=system:anonymous, verb=get, path=/healthz/ping)"},
		{what: "a path that leaves an always-allowed prefix is not allowed", path: "/livez/../metrics", code: 403, body: "Forbidden (user=system:anonymous, verb=get, path=/livez/../metrics)"},
		{what: "an allowed token; it is not passed on", path: "/metrics", authorization: "Bearer alice", code: 200, body: "hello alice"},
		{what: "the scheme's case does not matter", path: "/metrics", authorization: "bearer  alice", code: 200, body: "hello alice"},
		{what: "the method decides the verb", method: http.MethodPost, path: "/metrics", authorization: "Bearer alice", code: 200, body: "hello alice"},
		{what: "another verb", method: http.MethodDelete, path: "/metrics", authorization: "Bearer alice", code: 403, body: "Forbidden (user=alice, verb=delete, path=/metrics)"},
		{what: "a token without access", path: "/metrics", authorization: "Bearer bob", code: 403, body: "Forbidden (user=bob, verb=get, path=/metrics)"},
		{what: "a bad token is not anonymous", path: "/public", authorization: "Bearer eve", code: 401, body: "Unauthorized"},
		{what: "a password is not anonymous", path: "/public", authorization: "Basic YTpi", code: 401, body: "Unauthorized"},
		{what: "anonymous with access", path: "/public", code: 200, body: "hello system:anonymous"},
		{what: "anonymous without access", path: "/metrics", code: 403, body: "Forbidden (user=system:anonymous, verb=get, path=/metrics)"},
		{what: "anonymous is disabled", path: "/public", strict: true, code: 401, body: "Unauthorized"},
		{what: "a certificate", path: "/metrics", certificate: certificate, code: 200, body: "hello carol"},
		{what: "a certificate of another CA is not anonymous", path: "/public", certificate: untrusted, code: 401, body: "Unauthorized"},
		{what: "a token is used if the certificate is invalid", path: "/metrics", certificate: untrusted, authorization: "Bearer alice", code: 200, body: "hello alice"},
	} {
		t.Run(test.what, func(t *testing.T) {
			var certificates []*x509.Certificate
			if test.certificate != nil {
				certificates = append(certificates, test.certificate)
			}
			if test.method == "" {
				test.method = http.MethodGet
			}
			code, body := request(newFilter(!test.strict), test.method, test.path, test.authorization, certificates...)
			if code != test.code || body != test.body {
				t.Errorf("%d %q, want %d %q", code, body, test.code, test.body)
			}
		})
	}
}

// issued returns a new CA and a client certificate it signed.
func issued(t *testing.T, name string, groups ...string) (*pki.CA, *x509.Certificate) {
	t.Helper()
	ca, err := pki.NewCA(name+"-ca", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(pki.User(name, groups...), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificates, err := pki.ParseCertificates(pair.Cert)
	if err != nil {
		t.Fatal(err)
	}
	return ca, certificates[0]
}

func TestResources(t *testing.T) {
	f := &Filter{Reviewer: &fakeReviewer{allowed: []string{"alice get nodes/stats"}}, Access: func(r *http.Request) (asked []authorizationv1.SubjectAccessReviewSpec) {
		for subresource := range strings.SplitSeq(strings.TrimPrefix(r.URL.Path, "/"), "/") {
			asked = append(asked, authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: Verb(r), Resource: "nodes", Subresource: subresource}})
		}
		return asked
	}}
	h := f.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if code, body := request(h, http.MethodGet, "/stats", "Bearer alice"); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	if code, body := request(h, http.MethodGet, "/log/stats", "Bearer alice"); code != 200 {
		t.Errorf("one of two: %d %s", code, body)
	}
	if code, body := request(h, http.MethodGet, "/proxy", "Bearer alice"); code != 403 || body != "Forbidden (user=alice, verb=get, resource=nodes, subresource=proxy)" {
		t.Errorf("%d %s", code, body)
	}
}

// Results are cached, errors are not.
func TestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reviewer := &fakeReviewer{allowed: []string{"alice get /metrics"}}
		h := (&Filter{Reviewer: reviewer, TokenTTL: time.Minute}).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		times := func(tokens, access int) {
			t.Helper()
			if reviewer.tokens != tokens || reviewer.access != access {
				t.Errorf("%d token reviews, %d access reviews; want %d and %d", reviewer.tokens, reviewer.access, tokens, access)
			}
		}
		reviewer.down = true
		if code, _ := request(h, http.MethodGet, "/metrics", "Bearer alice"); code != 401 {
			t.Errorf("%d while the reviewer is unavailable", code)
		}
		reviewer.down = false
		for range 3 {
			if code, body := request(h, http.MethodGet, "/metrics", "Bearer alice"); code != 200 {
				t.Fatalf("%d %s", code, body)
			}
		}
		times(2, 1)
		time.Sleep(11 * time.Second)
		reviewer.down = true
		if code, _ := request(h, http.MethodGet, "/metrics", "Bearer alice"); code != 500 {
			t.Errorf("%d while the reviewer is unavailable", code)
		}
		times(2, 2)
		reviewer.down = false
		time.Sleep(50 * time.Second)
		if code, _ := request(h, http.MethodGet, "/metrics", "Bearer alice"); code != 200 {
			t.Errorf("%d", code)
		}
		times(3, 3)
	})
}

func TestServer(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "answer"}, func() float64 { return 42 }))
	unready := health.Check{Name: "informer-sync", ReadinessOnly: true, Check: func(context.Context) error { return errors.New("not yet") }}
	h := (&Server{
		Filter:  &Filter{Reviewer: &fakeReviewer{allowed: []string{"alice get /metrics", "alice get /debug/x"}}, Anonymous: true, AlwaysAllowPaths: HealthPaths},
		Metrics: registry, Checks: []health.Check{unready},
		Paths: map[string]http.Handler{"/debug/": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("deep")) })},
	}).Handler()
	for _, test := range []struct {
		path, authorization string
		code                int
		contains            string
	}{
		{"/healthz", "", 200, "ok"},
		{"/livez?verbose", "", 200, "[+]ping ok"},
		{"/readyz", "", 500, "[-]informer-sync failed"},
		{"/readyz/ping", "", 200, "ok"},
		{"/healthz/nobody", "", 404, "404 page not found"},
		{"/metrics", "", 403, "Forbidden"},
		{"/metrics", "Bearer alice", 200, "answer 42"},
		{"/debug/x", "Bearer alice", 200, "deep"},
		{"/debug/x", "Bearer bob", 403, "Forbidden"},
	} {
		if code, body := request(h, http.MethodGet, test.path, test.authorization); code != test.code || !strings.Contains(body, test.contains) {
			t.Errorf("%s: %d %q, want %d %q", test.path, code, body, test.code, test.contains)
		}
	}
}

// TestServerTLS checks that the server serves only the TLS versions it is configured with.
func TestServerTLS(t *testing.T) {
	credentials := httptest.NewTLSServer(nil)
	defer credentials.Close()
	for _, test := range []struct {
		server  *tls.Config
		client  uint16
		refused bool
	}{
		{nil, tls.VersionTLS12, false},
		{nil, tls.VersionTLS11, true},
		{&tls.Config{MinVersion: tls.VersionTLS13}, tls.VersionTLS13, false},
		{&tls.Config{MinVersion: tls.VersionTLS13}, tls.VersionTLS12, true},
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := &Server{
			Listener: listener, TLS: test.server, Filter: &Filter{Reviewer: &fakeReviewer{}, AlwaysAllowPaths: HealthPaths}, Metrics: prometheus.NewRegistry(),
			Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &credentials.TLS.Certificates[0], nil },
		}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Run(ctx) }()
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: credentials.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, MinVersion: tls.VersionTLS10, MaxVersion: test.client},
			DisableKeepAlives: true,
		}}
		response, err := client.Get("https://" + listener.Addr().String() + "/healthz")
		if (err != nil) != test.refused {
			t.Errorf("client with %s: %v", tls.VersionName(test.client), err)
		}
		if err == nil {
			_ = response.Body.Close()
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}
