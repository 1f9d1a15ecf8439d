package system

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"skiff/internal/config"
)

// A PUT of a verbosity or of a level's name changes the log level.
func TestVerbosity(t *testing.T) {
	var level slog.LevelVar
	for _, test := range []struct {
		method, body string
		code         int
		level        slog.Level
	}{
		{"PUT", "4", 200, slog.LevelDebug},
		{"GET", "", 406, slog.LevelDebug},
		{"PUT", "2", 200, slog.LevelInfo},
		{"PUT", "warn", 200, slog.LevelWarn},
		{"PUT", "-1", 400, slog.LevelWarn},
		{"PUT", strings.Repeat("9", 100), 400, slog.LevelWarn},
	} {
		w := httptest.NewRecorder()
		verbosityHandler{&level}.ServeHTTP(w, httptest.NewRequest(test.method, "/debug/flags/v", strings.NewReader(test.body)))
		if w.Code != test.code || level.Level() != test.level {
			t.Errorf("%+v: status %d, level %v, %s", test, w.Code, level.Level(), w.Body)
		}
	}
}

// The endpoints for debugging need authorization, as every other path does.
func TestDebugEndpoints(t *testing.T) {
	server, _ := startAPIServer(t, testConfig(t))
	handler := server.Handler()
	for path, authorized := range map[string]int{
		"/debug/pprof/cmdline": 200, "/statusz": 200, "/metrics/slis": 200,
		"/debug/api_priority_and_fairness/dump_priority_levels": 200, "/debug/api_priority_and_fairness/dump_queues": 200,
		"/flagz": 404, "/debug/flags/v": 404, "/configz": 404, // this server has no flags and no log level to change
	} {
		if w := do(handler, "admin", "GET", path, ""); w.Code != authorized {
			t.Errorf("%s: status %d, want %d", path, w.Code, authorized)
		}
		if w := do(handler, "", "GET", path, ""); w.Code != http.StatusForbidden {
			t.Errorf("%s as anonymous: status %d", path, w.Code)
		}
	}
	c := testConfig(t)
	c.Profiling, c.FeatureGates = false, config.FeatureGates{config.GateComponentStatusz: false}
	server, _ = startAPIServer(t, c)
	for _, path := range []string{"/debug/pprof/cmdline", "/statusz"} {
		if w := do(server.Handler(), "admin", "GET", path, ""); w.Code != http.StatusNotFound {
			t.Errorf("%s, which is disabled: status %d", path, w.Code)
		}
	}
}

func TestStatuszObject(t *testing.T) {
	server, _ := startAPIServer(t, testConfig(t))
	r := httptest.NewRequest(http.MethodGet, "/statusz", nil)
	r.Header.Set("Authorization", "Bearer admin")
	r.Header.Set("Accept", "application/json;as=Statusz;v=v1alpha1;g=config.k8s.io")
	w := httptest.NewRecorder()
	server.Handler().ServeHTTP(w, r)
	var object struct {
		Kind, APIVersion, EmulationVersion string
		Paths                              []string
	}
	if err := json.Unmarshal(w.Body.Bytes(), &object); err != nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	if object.Kind != "Statusz" || object.APIVersion != "config.k8s.io/v1alpha1" || object.EmulationVersion != "1.37" || !strings.Contains(w.Header().Get("Warning"), "deprecated") {
		t.Errorf("%s, warning %q", w.Body, w.Header().Get("Warning"))
	}
	if w := do(server.Handler(), "admin", "GET", "/statusz", ""); !strings.HasPrefix(w.Body.String(), "\napiserver statusz\nWarning: ") {
		t.Errorf("text %q", w.Body)
	}
}

// /flagz shows the flags of the command, without secrets.
func TestFlagValues(t *testing.T) {
	c := config.DefaultAPIServer()
	c.Token, c.SecurePort = "secret", 7443
	values := config.FlagValues(&c)
	if values["token"] != "CLASSIFIED" || values["secure-port"] != "7443" || values["service-cluster-ip-range"] != "10.96.0.0/12" {
		t.Errorf("token %q, port %q, service CIDR %q", values["token"], values["secure-port"], values["service-cluster-ip-range"])
	}
}

// A preflight request of an allowed origin needs no credentials.
func TestCORS(t *testing.T) {
	c := testConfig(t)
	c.HTTP.CORSAllowedOrigins, c.Authentication.Anonymous = []string{`^https://example\.org$`}, false
	server, _ := startAPIServer(t, c)
	for _, test := range []struct {
		method, origin string
		code           int
		allowed        string
	}{
		{"OPTIONS", "https://example.org", 204, "https://example.org"},
		{"OPTIONS", "https://evil.org", 401, ""},
		{"GET", "https://example.org", 401, "https://example.org"},
	} {
		r := httptest.NewRequest(test.method, "/api", nil)
		r.Header.Set("Origin", test.origin)
		w := httptest.NewRecorder()
		server.Handler().ServeHTTP(w, r)
		if w.Code != test.code || w.Header().Get("Access-Control-Allow-Origin") != test.allowed {
			t.Errorf("%+v: status %d, headers %v", test, w.Code, w.Header())
		}
	}
}

// With --permit-port-sharing two servers listen on the same port.
func TestPortSharing(t *testing.T) {
	c := config.DefaultAPIServer()
	c.BindAddress, c.SecurePort, c.HTTP.PermitPortSharing, c.HTTP.PermitAddressSharing = "127.0.0.1", 0, true, true
	first, err := listenAPI(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	c.SecurePort = first.Addr().(*net.TCPAddr).Port
	second, err := listenAPI(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	c.HTTP.PermitPortSharing = false
	if third, err := listenAPI(t.Context(), c); err == nil {
		third.Close()
		t.Error("a server without port sharing listens on the same port")
	}
}

// What only alpha features of upstream serve is not served, and says so as upstream does.
func TestAlphaFeaturesAreOff(t *testing.T) {
	server, _ := startAPIServer(t, testConfig(t))
	if w := do(server.Handler(), "admin", "GET", "/apis/internal.apiserver.k8s.io", ""); w.Code != 404 {
		t.Errorf("storage versions: status %d", w.Code)
	}
	r := httptest.NewRequest("GET", "/api/v1/pods", nil)
	r.Header.Set("Authorization", "Bearer admin")
	r.Header.Set("Accept", "application/cbor")
	w := httptest.NewRecorder()
	if server.Handler().ServeHTTP(w, r); w.Code != 406 {
		t.Errorf("CBOR is accepted in responses: status %d", w.Code)
	}
	r = httptest.NewRequest("POST", "/api/v1/namespaces", strings.NewReader("\xd9\xd9\xf7\xa0"))
	r.Header.Set("Authorization", "Bearer admin")
	r.Header.Set("Content-Type", "application/cbor")
	w = httptest.NewRecorder()
	if server.Handler().ServeHTTP(w, r); w.Code != 415 {
		t.Errorf("CBOR is accepted in requests: status %d", w.Code)
	}
	for _, gate := range []string{"CBORServingAndStorage=true", "StorageVersionAPI=true"} {
		if err := new(config.FeatureGates).Set(gate); err == nil || !strings.Contains(err.Error(), "skiff supports only its default") {
			t.Errorf("--feature-gates=%s: error %v", gate, err)
		}
	}
	if w := do(server.Handler(), "admin", "GET", "/api/v1", ""); !strings.Contains(w.Body.String(), "storageVersionHash") {
		t.Error("no storage version hashes in discovery")
	}
}

// A version or a resource that --runtime-config disables is not served, and is in no document.
func TestRuntimeConfig(t *testing.T) {
	c := testConfig(t)
	c.RuntimeConfig = config.RuntimeConfig{"autoscaling/v1": "false", "apps/v1/daemonsets": "false"}
	server, _ := startAPIServer(t, c)
	for path, want := range map[string]int{
		"/apis/autoscaling/v1/horizontalpodautoscalers": 404, "/apis/autoscaling/v2/horizontalpodautoscalers": 200, "/apis/autoscaling/v1": 404,
		"/openapi/v3/apis/autoscaling/v1": 404, "/openapi/v3/apis/autoscaling/v2": 200,
		"/apis/apps/v1/daemonsets": 404, "/apis/apps/v1/deployments": 200,
	} {
		if w := do(server.Handler(), "admin", "GET", path, ""); w.Code != want {
			t.Errorf("%s: status %d, want %d", path, w.Code, want)
		}
	}
	if w := do(server.Handler(), "admin", "GET", "/apis/autoscaling", ""); strings.Contains(w.Body.String(), `"autoscaling/v1"`) {
		t.Errorf("discovery: %s", w.Body)
	}
	for _, path := range []string{"/apis/apps/v1", "/openapi/v3/apis/apps/v1"} {
		if w := do(server.Handler(), "admin", "GET", path, ""); strings.Contains(w.Body.String(), "daemonsets") || !strings.Contains(w.Body.String(), "deployments") {
			t.Errorf("%s: %s", path, w.Body)
		}
	}
	if _, err := disabledResources(config.RuntimeConfig{"none/v1": "true"}, nil); err == nil || err.Error() != "unknown api groups none/v1" {
		t.Errorf("error %v", err)
	}
}
