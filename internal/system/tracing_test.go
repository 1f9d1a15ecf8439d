package system

import (
	"context"
	"encoding/hex"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"skiff/internal/tracing/tracingtest"
)

// attributesOf are the string attributes of a span.
func attributesOf(span *tracepb.Span) map[string]string {
	all := map[string]string{}
	for _, a := range span.Attributes {
		all[a.Key] = a.Value.GetStringValue()
	}
	return all
}

// Requests have spans with upstream's names, below them those of the handler and of the write to the store.
func TestTracing(t *testing.T) {
	collector := tracingtest.Start(t)
	file := filepath.Join(t.TempDir(), "tracing.yaml")
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: " + collector.Endpoint + "\nsamplingRatePerMillion: 1000000\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	traces, err := newTracing(t.Context(), file, nil)
	if err != nil {
		t.Fatal(err)
	}
	server, _ := startAPIServerWith(t, testConfig(t), observed{tracing: traces})
	const parent = "4bf92f3577b34da6a3ce929d0e0e4736"
	create := httptest.NewRequest("POST", "/api/v1/namespaces/default/configmaps", strings.NewReader(`{"metadata":{"name":"a"}}`))
	create.Header.Set("Authorization", "Bearer admin")
	create.Header.Set("Content-Type", "application/json")
	create.Header.Set("Traceparent", "00-"+parent+"-00f067aa0ba902b7-01")
	created := httptest.NewRecorder()
	if server.Handler().ServeHTTP(created, create); created.Code != 201 {
		t.Fatalf("create: %d %s", created.Code, created.Body)
	}
	for method, path := range map[string]string{
		"GET": "/api/v1/namespaces/default/configmaps/a", "PUT": "/api/v1/namespaces/default/configmaps/a", "DELETE": "/apis/apps/v1/namespaces/default/deployments/none",
	} {
		body := ""
		if method == "PUT" {
			body = `{"metadata":{"name":"a"},"data":{"b":"c"}}`
		}
		do(server.Handler(), "admin", method, path, body)
	}
	do(server.Handler(), "admin", "GET", "/api/v1/pods", "")
	do(server.Handler(), "admin", "GET", "/version", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := traces.Run(ctx); err != nil { // exports the spans
		t.Fatal(err)
	}
	spans := collector.Spans()
	for child, parent := range map[string]string{
		"Create": "POST /api/v1/namespaces/{:namespace}/configmaps", "Create etcd3": "Create",
		"Get":    "GET /api/v1/namespaces/{:namespace}/configmaps/{:name}",
		"Update": "PUT /api/v1/namespaces/{:namespace}/configmaps/{:name}", "GuaranteedUpdate etcd3": "Update",
		"Delete": "DELETE /apis/apps/v1/namespaces/{:namespace}/deployments/{:name}",
		"List":   "GET /api/v1/pods",
	} {
		if spans[child] == nil || spans[parent] == nil {
			t.Errorf("span %q below %q does not exist", child, parent)
		} else if string(spans[child].ParentSpanId) != string(spans[parent].SpanId) {
			t.Errorf("span %q is not below %q", child, parent)
		}
	}
	if spans["GET"] == nil {
		t.Error("a request for a path has no span")
	}
	request := spans["POST /api/v1/namespaces/{:namespace}/configmaps"]
	if request == nil {
		t.Fatal("no span of the creation")
	}
	// The administrator is trusted.
	if got := hex.EncodeToString(request.TraceId); got != parent {
		t.Errorf("trace %s, want the client's %s", got, parent)
	}
	if a := attributesOf(request); a["audit-id"] != created.Header().Get("Audit-Id") || a["http.target"] != "/api/v1/namespaces/default/configmaps" || a["http.request.method"] != "POST" {
		t.Errorf("attributes %v", a)
	}
	if a := attributesOf(spans["Create etcd3"]); a["key"] != "/registry/configmaps/default/a" || a["resource"] != "configmaps" {
		t.Errorf("attributes of the write %v", a)
	}
	if service := collector.Service("Create"); service != "apiserver" {
		t.Errorf("service %q", service)
	}
}
