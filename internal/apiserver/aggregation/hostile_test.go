package aggregation

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/apiserver/aggregation/aggregationtest"
)

// TestHostileServers: whatever an aggregated server responds, its group version is stale, and discovery and OpenAPI of all others are served.
func TestHostileServers(t *testing.T) {
	respond := func(code int, contentType, body string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		})
	}
	for name, handler := range map[string]http.Handler{
		"garbage":        respond(http.StatusOK, acceptDiscovery, "garbage"),
		"not discovery":  respond(http.StatusOK, "text/html", "<html>"),
		"unavailable":    respond(http.StatusServiceUnavailable, "text/plain", "later"),
		"not modified":   respond(http.StatusNotModified, acceptDiscovery, ""),
		"redirect":       http.RedirectHandler("https://elsewhere.example.com/", http.StatusFound),
		"too large":      respond(http.StatusOK, acceptDiscovery, `{"items":["`+strings.Repeat("x", maxDiscoveryBytes)+`"]}`),
		"without a name": respond(http.StatusOK, "application/json", `{"resources":[{"name":""},{"name":"/status"}]}`),
		"closes":         http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
		"endless parameters": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/openapi/v2" {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, `{"swagger":"2.0","paths":{"/x":{"parameters":[{"$ref":"#/parameters/a"}]}},"parameters":{"a":{"$ref":"#/parameters/a"}}}`)
		}),
		"hangs":           http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }),
		"another version": respond(http.StatusInternalServerError, acceptDiscovery, `{"items":[{"metadata":{"name":"apps"},"versions":[{"version":"v1"}]}]}`),
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			server := aggregationtest.Start(t, w.ca, w.ca.Bundle, "api.team.svc")
			server.SetHandler(handler)
			w.register(server.Port())
			server.UntilRequested(t, "GET /apis user=")
			server.UntilRequested(t, "GET /openapi/v2 user=")
			aggregationtest.Until(t, "the group version is listed", func() bool { return w.entry() != nil })
			if e := w.entry(); e.Freshness != apidiscoveryv2.DiscoveryFreshnessStale || len(e.Resources) != 0 {
				t.Errorf("%+v", e)
			}
			if got := w.request("admin", "GET", "/apis/apps/v1"); got.code != http.StatusOK || !strings.Contains(got.body, "deployments") {
				t.Errorf("%+v", got)
			}
			if got := w.request("admin", "GET", "/openapi/v2"); got.code != http.StatusOK || !strings.Contains(got.body, "/apis/apps/v1/namespaces/{namespace}/deployments") {
				t.Errorf("%d", got.code)
			}
			if got := w.request("admin", "GET", "/openapi/v3"+aggregationtest.Root); got.code != http.StatusNotFound {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestStartWithHangingServers: the API server is ready before all of many servers that do not respond have been requested.
func TestStartWithHangingServers(t *testing.T) {
	const servers = 40
	var server *aggregationtest.Server
	start(t, func(w *world) {
		server = aggregationtest.Start(t, w.ca, w.ca.Bundle, "api.team.svc")
		server.SetHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		for i := range servers {
			w.create(fmt.Sprintf("g%d.example.com", i), server.Port())
		}
	})
	requested := 0
	for _, r := range server.Requests() {
		if strings.HasPrefix(r, "GET /apis ") {
			requested++
		}
	}
	if requested == 0 || requested >= servers {
		t.Errorf("%d of %d servers were requested", requested, servers)
	}
}

func TestConvertResources(t *testing.T) {
	verbs := []string{"get"}
	for _, test := range []struct {
		name string
		list []metav1.APIResource
		want string
	}{
		{"nothing", nil, ""},
		{"sorted, with subresources", []metav1.APIResource{
			{Name: "foos/status", Kind: "Foo", Namespaced: true, Verbs: verbs}, {Name: "foos", Kind: "Foo", Namespaced: true, Verbs: verbs}, {Name: "bars", Kind: "Bar"},
		}, "bars Cluster Bar [] foos Namespaced Foo [status]"},
		{"subresource without its resource", []metav1.APIResource{{Name: "foos/scale", Kind: "Scale", Namespaced: true}}, "foos Namespaced  [scale]"},
		{"a name that sorts between", []metav1.APIResource{{Name: "foos/status", Kind: "Foo"}, {Name: "foos-x", Kind: "X"}, {Name: "foos", Kind: "Foo"}}, "foos Cluster Foo [status] foos-x Cluster X []"},
		{"no name", []metav1.APIResource{{Kind: "Foo"}}, "error"},
		{"no name of the resource", []metav1.APIResource{{Name: "/status"}}, "error"},
		{"no name of the subresource", []metav1.APIResource{{Name: "foos/"}}, "error"},
	} {
		converted, err := convertResources(test.list)
		var parts []string
		for _, r := range converted {
			subresources := []string{}
			for _, s := range r.Subresources {
				subresources = append(subresources, s.Subresource)
			}
			parts = append(parts, fmt.Sprint(r.Resource, " ", r.Scope, " ", r.ResponseKind.Kind, " ", subresources))
		}
		got := strings.Join(parts, " ")
		if err != nil {
			got = "error"
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
