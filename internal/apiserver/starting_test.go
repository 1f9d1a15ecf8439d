package apiserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A server that is starting is live but not ready, says why, and lets clients try again.
func TestStartingHandler(t *testing.T) {
	handler := StartingHandler(func(r *http.Request) string { return "waiting for " + r.Header.Get("User-Agent") })
	serve := func(method, path string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, nil)
		r.Header.Set("User-Agent", "others")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Header().Get("Connection") != "close" || w.Header().Get("Cache-Control") != "no-cache, private" {
			t.Errorf("%s %s: headers %v", method, path, w.Header())
		}
		return w
	}
	for path, want := range map[string]struct {
		code int
		body string
	}{
		"/livez":            {200, "ok"},
		"/livez/ping":       {200, "ok"},
		"/healthz":          {200, "ok"},
		"/healthz?verbose":  {200, "[+]ping ok\nhealthz check passed\n"},
		"/readyz":           {500, "[+]ping ok\n[-]etcd failed: waiting for others\nreadyz check failed\n"},
		"/readyz/etcd":      {500, "internal server error: waiting for others\n"},
		"/readyz/ping":      {200, "ok"},
		"/readyz/shutdown":  {404, "404 page not found\n"},
		"/livez/etcd":       {404, "404 page not found\n"},
		"/readyz?exclude=a": {500, "[+]ping ok\n[-]etcd failed: waiting for others\nwarn: some health checks cannot be excluded: no matches for \"a\"\nreadyz check failed\n"},
	} {
		if w := serve(http.MethodGet, path); w.Code != want.code || w.Body.String() != want.body {
			t.Errorf("%s: %d %q, want %d %q", path, w.Code, w.Body.String(), want.code, want.body)
		}
	}
	for _, request := range []string{"GET /api/v1/pods", "POST /api/v1/namespaces/default/pods", "GET /", "GET /readyzz", "PUT /apis/a//b"} {
		method, path, _ := strings.Cut(request, " ")
		w := serve(method, path)
		var status metav1.Status
		err := json.Unmarshal(w.Body.Bytes(), &status)
		if err != nil || w.Code != http.StatusServiceUnavailable || status.Code != http.StatusServiceUnavailable || status.Kind != "Status" || status.APIVersion != "v1" ||
			status.Status != metav1.StatusFailure || status.Reason != metav1.StatusReasonServiceUnavailable ||
			status.Message != "the server is starting: waiting for others" || status.Details.RetryAfterSeconds != 1 ||
			w.Header().Get("Retry-After") != "1" || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %v %s, %v", request, w.Code, w.Header(), w.Body.String(), err)
		}
	}
}
