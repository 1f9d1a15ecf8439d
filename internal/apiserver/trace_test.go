package apiserver

import (
	"net/http/httptest"
	"testing"
)

// A client cannot make span names: they have only what the server serves.
func TestSpanName(t *testing.T) {
	s := newTestServer(t)
	for _, test := range []struct{ method, path, want string }{
		{"GET", "/api/v1/pods", "GET /api/v1/pods"},
		{"GET", "/api/v1/namespaces/ns/pods/a", "GET /api/v1/namespaces/{:namespace}/pods/{:name}"},
		{"GET", "/api/v1/namespaces/ns/pods/a/log", "GET /api/v1/namespaces/{:namespace}/pods/{:name}/log"},
		{"POST", "/apis/events.k8s.io/v1/namespaces/ns/events", "POST /apis/events.k8s.io/v1/namespaces/{:namespace}/events"},
		{"GET", "/version", "GET"},
		{"GET", "/api/v1/unicorns", "GET"},
		{"GET", "/api/v7/pods", "GET"},
		{"GET", "/apis/made.up/v1/pods", "GET"},
		{"PUT", "/api/v1/namespaces/ns/pods/a/horn", "PUT"},
	} {
		req := &request{Request: httptest.NewRequest(test.method, test.path, nil)}
		req.info = parseRequest(test.method, test.path, nil)
		if got := s.spanName(req); got != test.want {
			t.Errorf("%s %s: %s, want %s", test.method, test.path, got, test.want)
		}
	}
}
