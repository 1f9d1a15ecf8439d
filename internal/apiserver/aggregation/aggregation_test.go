package aggregation

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/api"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/aggregation/aggregationtest"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
	"skiff/internal/openapi"
	"skiff/internal/store/cache"
	"skiff/internal/store/memory"
	"skiff/internal/version"
	"skiff/internal/webhook"
	"skiff/internal/webhook/webhooktest"
)

// services are the Services by name: each has an external name on loopback.
type services map[string]bool

func (s services) Get(_ context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error) {
	if !s[name] {
		return nil, apierrors.NewNotFound(resource, name)
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1"},
	}, nil
}

func (services) List(schema.GroupResource, string, labels.Selector) ([]kind.Object, error) {
	return nil, nil
}

// world is a server with the aggregation. The status of APIServices is what the test writes.
type world struct {
	*Aggregation
	t      *testing.T
	ca     *webhooktest.CA
	client kind.Client
	http   *httptest.Server
}

var users = map[string]authn.User{
	"admin": {Username: "admin", Groups: []string{authn.GroupMasters}},
	"jane":  {Username: "jane", UID: "7", Groups: []string{"devs", authn.GroupMasters}, Extra: map[string]authenticationv1.ExtraValue{"scope": {"a"}}},
}

// start runs a server with the aggregation. setUp is called before the aggregation runs.
func start(t *testing.T, setUp ...func(*world)) *world {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	log := slog.New(slog.DiscardHandler)
	objects := cache.New(memory.New(), log)
	kinds := api.Kinds(api.Settings{})
	documents := openapi.New(kinds, "v1")
	server, err := apiserver.New(apiserver.Config{
		Kinds: kinds, Scheme: api.Scheme(), Cache: objects, OpenAPI: documents,
		Authenticator: authn.Chain{authn.InProcess{}, authn.NewTokens(users)}, Authorizer: authz.Chain{authz.Masters{}},
		TypeConverter: sync.OnceValues(func() (managedfields.TypeConverter, error) { return openapi.TypeConverter() }),
		Version:       version.Info(), Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	ca := webhooktest.NewCA(t)
	certificate, key := ca.Issue("front-proxy-client")
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	synced := make(chan struct{})
	w := &world{t: t, ca: ca, client: server.KindClient(), http: httptest.NewServer(server.Handler()), Aggregation: New(Config{
		Server: server, Local: server.Local(users["admin"]), OpenAPI: documents,
		Clients:           webhook.New(webhook.Options{Services: &webhook.Services{Objects: services{"api": true}}, Metrics: webhook.NewMetrics()}),
		ClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
		Metrics:           webhook.NewCertificateMetrics("test"), OnRegistered: func() {}, OnDiscovered: func() { close(synced) }, Log: log,
	})}
	var running sync.WaitGroup
	running.Go(func() { _ = objects.Run(ctx) })
	<-objects.Ready()
	for _, f := range setUp {
		f(w)
	}
	running.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); w.http.Close(); running.Wait() })
	<-synced
	return w
}

// register creates the APIService of an aggregated server at a port, with the condition Available.
func (w *world) register(port int32) {
	w.t.Helper()
	w.create(aggregationtest.Group, port)
	w.setAvailable(true)
}

// create creates the APIService of a group whose server is at a port.
func (w *world) create(group string, port int32) {
	w.t.Helper()
	service := &apiService{
		ObjectMeta: metav1.ObjectMeta{Name: aggregationtest.Version + "." + group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: group, Version: aggregationtest.Version, GroupPriorityMinimum: 2000, VersionPriority: 15, CABundle: w.ca.Bundle,
			Service: &apiregistrationv1.ServiceReference{Namespace: "team", Name: "api", Port: &port},
		},
	}
	if _, err := w.client.Create(w.t.Context(), apiServices.GroupResource(), service); err != nil {
		w.t.Fatal(err)
	}
}

// update changes the APIService.
func (w *world) update(change func(*apiService)) {
	w.t.Helper()
	if _, err := w.client.Update(w.t.Context(), apiServices.GroupResource(), "", aggregationtest.Name, func(obj kind.Object) error {
		change(obj.(*apiService))
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) setAvailable(available bool) {
	w.t.Helper()
	status := apiregistrationv1.ConditionFalse
	if available {
		status = apiregistrationv1.ConditionTrue
	}
	w.update(func(s *apiService) {
		s.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available, Status: status}}
	})
}

// response is a response as text.
type response struct {
	code   int
	header http.Header
	body   string
}

func (w *world) request(token, method, path string, header ...string) response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.http.URL+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	got, err := w.http.Client().Transport.RoundTrip(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return response{got.StatusCode, got.Header, string(body)}
}

// expect waits until a GET has the status.
func (w *world) expect(path string, code int) (got response) {
	w.t.Helper()
	aggregationtest.Until(w.t, fmt.Sprint(path, " responds ", code), func() bool {
		got = w.request("admin", "GET", path)
		return got.code == code
	})
	return got
}

// entry is the group version in aggregated discovery, nil if it is not listed.
func (w *world) entry() *apidiscoveryv2.APIVersionDiscovery {
	w.t.Helper()
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal([]byte(w.request("admin", "GET", "/apis", "Accept", acceptDiscovery).body), &list); err != nil {
		w.t.Fatal(err)
	}
	for _, item := range list.Items {
		if item.Name == aggregationtest.Group {
			return &item.Versions[0]
		}
	}
	return nil
}

const flunders = aggregationtest.Root + "/namespaces/default/flunders"

func TestProxy(t *testing.T) {
	w := start(t)
	server := aggregationtest.Start(t, w.ca, w.ca.Bundle, "api.team.svc")
	w.register(server.Port())
	got := w.expect(flunders, http.StatusOK)
	if !strings.Contains(got.body, "FlunderList") || len(got.header.Values("Audit-Id")) != 1 {
		t.Errorf("%+v", got)
	}
	got = w.request("jane", "GET", flunders, "X-Remote-User", "eve", "X-Remote-Group", "system:masters", "X-Remote-Extra-Scope", "all")
	want := "GET " + flunders + ` user=jane uid=7 groups=devs,system:masters,system:authenticated extra=a proxy=front-proxy-client auth="" impersonate="" HTTP/2.0`
	if got.code != http.StatusOK || !server.Requested(want) {
		t.Errorf("%+v %q", got, server.Requests())
	}
	if got := w.request("admin", "GET", aggregationtest.Root+"/redirect"); got.code != http.StatusBadGateway || got.body != textRedirect || got.header.Get("Location") != "" {
		t.Errorf("redirect: %+v", got)
	}
	// The aggregated server reads the path and query that were authorized.
	w.request("jane", "GET", aggregationtest.Root+"/namespaces/a%2Fb/flunders?watch=0&x=1;watch=1&labelSelector=a%3Db")
	if want := "GET " + aggregationtest.Root + "/namespaces/a/b/flunders?labelSelector=a%3Db&watch=0 user=jane"; !server.Requested(want) {
		t.Errorf("%q", server.Requests())
	}
	// A header without its connection option does not upgrade.
	if got := w.request("jane", "GET", flunders, "Upgrade", "echo"); got.code != http.StatusOK {
		t.Errorf("%+v", got)
	}
	if got := w.request("nobody", "GET", flunders); got.code != http.StatusUnauthorized {
		t.Errorf("unauthenticated: %+v", got)
	}
}

func TestUpgrade(t *testing.T) {
	w := start(t)
	server := aggregationtest.Start(t, w.ca, w.ca.Bundle, "api.team.svc")
	w.register(server.Port())
	w.expect(flunders, http.StatusOK)
	conn, reader, got := w.upgrade()
	if got.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v", got)
	}
	fmt.Fprint(conn, "hello\n")
	if line, err := reader.ReadString('\n'); line != "echo hello\n" {
		t.Errorf("%q %v", line, err)
	}
	if want := "GET " + aggregationtest.Root + `/upgrade user=jane uid=7 groups=devs,system:masters,system:authenticated extra=a proxy=front-proxy-client auth="" impersonate="" HTTP/1.1`; !server.Requested(want) {
		t.Errorf("%q", server.Requests())
	}
	if got := w.request("admin", "GET", flunders, "Connection", "Upgrade", "Upgrade", "echo"); got.code != http.StatusServiceUnavailable || got.body != "invalid upgrade response: status code 200\n" {
		t.Errorf("%+v", got)
	}
}

// TestRefusedUpgrade: a connection whose upgrade the aggregated server refused remains one to the API server, which authenticates each
// request on it (CVE-2018-1002105).
func TestRefusedUpgrade(t *testing.T) {
	w := start(t)
	server := aggregationtest.Start(t, w.ca, w.ca.Bundle, "api.team.svc")
	w.register(server.Port())
	w.expect(flunders, http.StatusOK)
	server.SetFailing(true)
	conn, reader, got := w.upgrade()
	if _, err := io.Copy(io.Discard, got.Body); err != nil || got.StatusCode != http.StatusInternalServerError {
		t.Fatalf("%+v %v", got, err)
	}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nX-Remote-User: eve\r\nX-Remote-Group: system:masters\r\n\r\n", flunders)
	got, err := http.ReadResponse(reader, nil)
	if err != nil || got.StatusCode != http.StatusUnauthorized || strings.Contains(strings.Join(server.Requests(), " "), "user=eve") {
		t.Errorf("%+v %v %q", got, err, server.Requests())
	}
}

// upgrade requests an upgrade as jane, and returns the connection with the response.
func (w *world) upgrade() (net.Conn, *bufio.Reader, *http.Response) {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.http.Listener.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "GET %s/upgrade HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer jane\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", aggregationtest.Root)
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return conn, reader, response
}

func TestUnavailable(t *testing.T) {
	w := start(t)
	server := aggregationtest.Start(t, w.ca, w.ca.Bundle, "api.team.svc")
	w.register(server.Port())
	w.expect(flunders, http.StatusOK)
	for _, test := range []struct {
		name   string
		change func(*apiService)
		code   int
		body   string
	}{
		{"not available", func(s *apiService) { s.Status.Conditions = nil }, http.StatusServiceUnavailable, "service unavailable\n"},
		{"no service", func(s *apiService) { s.Spec.Service.Name = "other" }, http.StatusServiceUnavailable, "service unavailable\n"},
		{"CA bundle without certificates", func(s *apiService) { s.Spec.CABundle = []byte("ca") }, http.StatusInternalServerError, "unable to load root certificates: unable to parse bytes as PEM block\n"},
		{"other CA", func(s *apiService) { s.Spec.CABundle = webhooktest.NewCA(t).Bundle }, http.StatusServiceUnavailable, "error trying to reach service: tls: failed to verify certificate"},
		{"nothing listens", func(s *apiService) { s.Spec.Service.Port = ptr.To[int32](1) }, http.StatusServiceUnavailable, "error trying to reach service: dial tcp 127.0.0.1:1"},
	} {
		var before apiService
		w.update(func(s *apiService) {
			before = *s.DeepCopy()
			test.change(s)
		})
		if got := w.expect(flunders, test.code); !strings.HasPrefix(got.body, test.body) {
			t.Errorf("%s: %+v", test.name, got)
		}
		w.update(func(s *apiService) { s.Spec, s.Status = before.Spec, before.Status })
		w.expect(flunders, http.StatusOK)
	}
	w.update(func(s *apiService) { s.Spec.CABundle, s.Spec.InsecureSkipTLSVerify = nil, true })
	w.expect(flunders, http.StatusOK)
	if err := w.client.Delete(t.Context(), apiServices.GroupResource(), "", aggregationtest.Name, nil); err != nil {
		t.Fatal(err)
	}
	w.expect(flunders, http.StatusNotFound)
	if w.entry() != nil {
		t.Error("discovery lists a deleted APIService")
	}
}

func TestDiscovery(t *testing.T) {
	for _, plain := range []bool{false, true} {
		w := start(t)
		server := aggregationtest.Start(t, w.ca, w.ca.Bundle, "api.team.svc")
		server.SetPlain(plain)
		w.register(server.Port())
		aggregationtest.Until(t, "resources are discovered", func() bool {
			e := w.entry()
			return e != nil && e.Freshness == apidiscoveryv2.DiscoveryFreshnessCurrent && len(e.Resources) == 1 && e.Resources[0].Resource == "flunders"
		})
		if e := w.entry(); e.Resources[0].Scope != apidiscoveryv2.ScopeNamespace || e.Resources[0].ResponseKind.Kind != "Flunder" || plain != (len(e.Resources[0].Subresources) == 1) {
			t.Errorf("%+v", e)
		}
		server.UntilRequested(t, "GET /apis user=system:kube-aggregator uid= groups=system:masters")
		// After a failure the resources that are known are stale.
		server.SetFailing(true)
		w.setAvailable(false)
		aggregationtest.Until(t, "discovery is stale", func() bool {
			e := w.entry()
			return e.Freshness == apidiscoveryv2.DiscoveryFreshnessStale && len(e.Resources) == 1
		})
		server.SetFailing(false)
		aggregationtest.Until(t, "discovery is current again", func() bool { return w.entry().Freshness == apidiscoveryv2.DiscoveryFreshnessCurrent })
	}
}

func TestOpenAPI(t *testing.T) {
	for _, plain := range []bool{false, true} {
		w := start(t)
		server := aggregationtest.Start(t, w.ca, w.ca.Bundle, "api.team.svc")
		server.SetPlain(plain)
		w.register(server.Port())
		path := "/openapi/v3" + aggregationtest.Root
		got := w.expect(path, http.StatusOK)
		if title := `"title":"sample"`; !plain && !strings.Contains(got.body, title) || plain && (strings.Contains(got.body, title) || !strings.Contains(got.body, "#/components/schemas/com.example.sample.v1.Flunder")) {
			t.Errorf("plain %v: %s", plain, got.body)
		}
		if index := w.request("admin", "GET", "/openapi/v3").body; plain == strings.Contains(index, "hash=OF-THE-SAMPLE") || strings.Contains(index, "hash=OF-ITS-VERSION") {
			t.Errorf("plain %v: %s", plain, index)
		}
		var v2 struct {
			Paths       map[string]json.RawMessage
			Definitions map[string]json.RawMessage
		}
		if err := json.Unmarshal([]byte(w.request("admin", "GET", "/openapi/v2").body), &v2); err != nil {
			t.Fatal(err)
		}
		const meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
		if v2.Paths[aggregationtest.Root+"/flunders"] == nil || strings.Contains(string(v2.Paths["/apis/apps/v1/deployments"]), "stolen") {
			t.Error("the v2 document has not the paths of the group version, or others")
		}
		if !strings.Contains(string(v2.Definitions[meta+"_v2"]), "another one") || strings.Contains(string(v2.Definitions[meta]), "another one") ||
			!strings.Contains(string(v2.Definitions["com.example.sample.v1.Flunder"]), "#/definitions/"+meta+"_v2") {
			t.Errorf("a definition in conflict is not renamed: %s", v2.Definitions["com.example.sample.v1.Flunder"])
		}
	}
}

func TestCheck(t *testing.T) {
	w := start(t)
	server := aggregationtest.Start(t, w.ca, w.ca.Bundle, "api.team.svc")
	w.register(server.Port())
	w.expect(flunders, http.StatusOK)
	get := func() *apiService {
		obj, err := w.client.Get(t.Context(), apiServices.GroupResource(), "", aggregationtest.Name)
		if err != nil {
			t.Fatal(err)
		}
		return obj.(*apiService).DeepCopy()
	}
	if err := w.Check(t.Context(), get()); err != nil {
		t.Error(err)
	}
	server.UntilRequested(t, "GET "+aggregationtest.Root+" user=system:kube-aggregator uid= groups=system:masters")
	server.SetFailing(true)
	url := server.URL + aggregationtest.Root
	if err := w.Check(t.Context(), get()); err == nil || err.Error() != "failing or missing response from "+url+": bad status from "+url+": 500" {
		t.Errorf("%v", err)
	}
	// An APIService that is not followed yet is checked as it is.
	other := get()
	other.Spec.Service.Port = ptr.To[int32](1)
	if err := w.Check(t.Context(), other); err == nil || !strings.Contains(err.Error(), "dial tcp 127.0.0.1:1") {
		t.Errorf("%v", err)
	}
}
