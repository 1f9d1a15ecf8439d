// Package aggregationtest has an aggregated API server for tests: a real TLS server on loopback that serves the group version
// sample.example.com/v1, with discovery, OpenAPI and upgrades.
package aggregationtest

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/webhook/webhooktest"
)

// The group version, its resource and the name of its APIService.
const (
	Group   = "sample.example.com"
	Version = "v1"
	Plural  = "flunders"
	Name    = Version + "." + Group
	Root    = "/apis/" + Group + "/" + Version
)

// Server is an aggregated API server.
type Server struct {
	*httptest.Server

	mu sync.Mutex
	// plain: it has no aggregated discovery. failing: every response is 500.
	plain, failing bool
	// override serves all requests if it is set.
	override http.Handler
	requests []string
	objects  map[string]json.RawMessage
}

// Start starts a server with a certificate of the CA for a name. It requires client certificates of the clientCAs, which are in PEM. It is
// closed at the end of the test.
func Start(t testing.TB, ca *webhooktest.CA, clientCAs []byte, name string) *Server {
	t.Helper()
	certificate, key := ca.Issue(name)
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(clientCAs) {
		t.Fatalf("no client CAs in %q", clientCAs)
	}
	s := &Server{objects: map[string]json.RawMessage{}}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// Port is the port the server listens on, at 127.0.0.1.
func (s *Server) Port() int32 { return int32(s.Listener.Addr().(*net.TCPAddr).Port) }

// SetPlain makes the server one without aggregated discovery and OpenAPI v3, SetFailing one that fails.
func (s *Server) SetPlain(plain bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plain = plain
}

// SetFailing makes all responses errors.
func (s *Server) SetFailing(failing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = failing
}

// SetHandler makes a handler serve all requests; nil: the server does.
func (s *Server) SetHandler(override http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.override = override
}

// Requests are the requests so far: method, path with query, user, UID, groups, extra values, the name in the client certificate,
// credentials, and the protocol.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Requested reports whether a request was sent whose description begins so.
func (s *Server) Requested(prefix string) bool {
	return slices.ContainsFunc(s.Requests(), func(r string) bool { return strings.HasPrefix(r, prefix) })
}

// record records a request, and returns how it is served.
func (s *Server) record(r *http.Request) (plain, failing bool, override http.Handler) {
	proxy := r.TLS.PeerCertificates[0].Subject.CommonName
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, fmt.Sprintf("%s %s user=%s uid=%s groups=%s extra=%s proxy=%s auth=%q impersonate=%q %s", r.Method, r.RequestURI,
		r.Header.Get("X-Remote-User"), r.Header.Get("X-Remote-Uid"), strings.Join(r.Header.Values("X-Remote-Group"), ","),
		r.Header.Get("X-Remote-Extra-Scope"), proxy, r.Header.Get("Authorization"), r.Header.Get("Impersonate-User"), r.Proto))
	return s.plain, s.failing, s.override
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	plain, failing, override := s.record(r)
	w.Header().Set("Audit-Id", r.Header.Get("Audit-Id"))
	switch {
	case override != nil:
		override.ServeHTTP(w, r)
	case failing:
		http.Error(w, "failing", http.StatusInternalServerError)
	case r.URL.Path == "/apis" && !plain:
		s.serveDiscovery(w, r)
	case r.URL.Path == Root:
		writeJSON(w, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: Group + "/" + Version, APIResources: []metav1.APIResource{
			{Name: Plural + "/status", Kind: "Flunder", Namespaced: true, Verbs: []string{"get"}},
			{Name: Plural, SingularName: "flunder", Kind: "Flunder", Namespaced: true, Verbs: []string{"create", "delete", "get", "list", "watch"}},
		}})
	case r.URL.Path == "/openapi/v2":
		writeJSON(w, json.RawMessage(openAPIv2))
	case r.URL.Path == "/openapi/v3" && !plain:
		writeJSON(w, json.RawMessage(`{"paths":{"apis/`+Group+`/`+Version+`":{"serverRelativeURL":"/openapi/v3/apis/`+Group+`/`+Version+`?hash=OF-THE-SAMPLE"},"version":{"serverRelativeURL":"/openapi/v3/version?hash=OF-ITS-VERSION"}}}`))
	case r.URL.Path == "/openapi/v3"+Root && !plain:
		writeJSON(w, json.RawMessage(`{"openapi":"3.0.0","info":{"title":"sample","version":"v1"},"paths":{}}`))
	case r.URL.Path == Root+"/redirect":
		http.Redirect(w, r, "https://elsewhere.example.com/", http.StatusFound)
	case r.URL.Path == Root+"/upgrade":
		upgrade(w)
	case strings.HasPrefix(r.URL.Path, Root+"/"):
		s.serveObjects(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (s *Server) serveDiscovery(w http.ResponseWriter, r *http.Request) {
	const etag = `"sample"`
	w.Header().Set("Etag", etag)
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", r.Header.Get("Accept"))
	_ = json.NewEncoder(w).Encode(apidiscoveryv2.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"},
		Items: []apidiscoveryv2.APIGroupDiscovery{{ObjectMeta: metav1.ObjectMeta{Name: Group}, Versions: []apidiscoveryv2.APIVersionDiscovery{{
			Version: Version, Resources: []apidiscoveryv2.APIResourceDiscovery{{
				Resource: Plural, SingularResource: "flunder", Scope: apidiscoveryv2.ScopeNamespace, ResponseKind: &metav1.GroupVersionKind{Kind: "Flunder"},
				Verbs: []string{"create", "delete", "get", "list", "watch"},
			}},
		}}}},
	})
}

// serveObjects stores and returns objects by their path.
func (s *Server) serveObjects(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Method {
	case http.MethodPost:
		body, err := io.ReadAll(r.Body)
		var obj metav1.PartialObjectMetadata
		if err != nil || json.Unmarshal(body, &obj) != nil {
			http.Error(w, "invalid", http.StatusBadRequest)
			return
		}
		s.objects[r.URL.Path+"/"+obj.Name] = body
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	case http.MethodDelete:
		delete(s.objects, r.URL.Path)
		writeJSON(w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
	default:
		if obj, ok := s.objects[r.URL.Path]; ok {
			writeJSON(w, obj)
			return
		}
		items := []json.RawMessage{}
		for path, obj := range s.objects {
			if strings.HasPrefix(path, r.URL.Path+"/") {
				items = append(items, obj)
			}
		}
		writeJSON(w, map[string]any{"kind": "FlunderList", "apiVersion": Group + "/" + Version, "metadata": map[string]string{"resourceVersion": "1"}, "items": items})
	}
}

// upgrade echoes one line over an upgraded connection.
func upgrade(w http.ResponseWriter) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(buffered, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	_ = buffered.Flush()
	line, err := bufio.NewReader(buffered).ReadString('\n')
	if err == nil {
		_, _ = io.WriteString(conn, "echo "+line)
	}
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

// openAPIv2 has a definition of its own, one with the name of a built-in definition that differs from it, and a path of another group.
const openAPIv2 = `{"swagger":"2.0","info":{"title":"sample","version":"v1"},"paths":{
"/apis/` + Group + `/` + Version + `/flunders":{"get":{"operationId":"listFlunders","produces":["application/json"],"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/com.example.sample.v1.Flunder"}}}}},
"/apis/apps/v1/deployments":{"get":{"operationId":"stolen","responses":{"200":{"description":"OK"}}}}},
"definitions":{
"com.example.sample.v1.Flunder":{"type":"object","properties":{"metadata":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}}},
"io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta":{"description":"another one","type":"object"}}}`

// UntilRequested waits until a request was sent whose description begins so.
func (s *Server) UntilRequested(t testing.TB, prefix string) {
	t.Helper()
	Until(t, "request "+prefix, func() bool { return s.Requested(prefix) })
}

// Until waits for a condition.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: waited in vain", what)
		}
	}
}
