package apiserver

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"skiff/internal/kind"
)

func TestHealth(t *testing.T) {
	started := NewPostStartHook("a")
	s := newTestServer(t, func(c *Config) {
		c.Checks = []HealthCheck{
			{Name: "etcd", Check: func(context.Context) error { return nil }},
			{Name: "hooks", ReadinessOnly: true, Check: func(context.Context) error { return errors.New("not yet") }},
			{Name: "poststarthook/a", Startup: true, Check: started.Check},
		}
	})
	tests := []struct {
		path string
		code int
		body string
	}{
		{"/healthz", 500, "[+]ping ok\n[+]etcd ok\n[-]poststarthook/a failed: reason withheld\nhealthz check failed\n"},
		{"/livez/poststarthook/a", 200, "ok"},
		{"/livez", 200, "ok"},
		{"/livez/ping", 200, "ok"},
		{"/livez?verbose", 200, "[+]ping ok\n[+]etcd ok\n[+]poststarthook/a ok\nlivez check passed\n"},
		{"/livez?verbose=true&exclude=etcd", 200, "[+]ping ok\n[+]etcd excluded: ok\n[+]poststarthook/a ok\nlivez check passed\n"},
		{"/livez?verbose&exclude=x&exclude=a", 200, "[+]ping ok\n[+]etcd ok\n[+]poststarthook/a ok\nwarn: some health checks cannot be excluded: no matches for \"a\",\"x\"\nlivez check passed\n"},
		{"/readyz", 500, "[+]ping ok\n[+]informer-sync ok\n[+]etcd ok\n[-]hooks failed: reason withheld\n[-]poststarthook/a failed: reason withheld\n[+]shutdown ok\nreadyz check failed\n"},
		{"/readyz/hooks", 500, "internal server error: not yet\n"},
		{"/readyz?exclude=hooks&exclude=poststarthook/a", 200, "ok"},
		{"/livez/hooks", 404, "404 page not found\n"},
	}
	for _, test := range tests {
		got := s.get(test.path)
		if got.code != test.code || string(got.body) != test.body {
			t.Errorf("%s: %d %q, want %d %q", test.path, got.code, got.body, test.code, test.body)
		}
	}
	started.Done()
	if got := s.get("/healthz", "Authorization: Bearer guest"); got.code != 200 || got.header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("%d %v", got.code, got.header)
	}
	if got := s.get("/version"); !strings.Contains(string(got.body), `"gitVersion": "v1.37.1"`) {
		t.Errorf("version: %s", got.body)
	}
	if got := s.get("/"); !strings.Contains(string(got.body), `"/apis/events.k8s.io/v1"`) || got.code != 200 {
		t.Errorf("paths: %s", got.body)
	}
}

func TestMetrics(t *testing.T) {
	s := newTestServer(t)
	s.add("pods", pod("ns", "a", ""))
	s.get("/api/v1/namespaces/ns/pods")
	s.get("/api/v1/namespaces/ns/pods/a")
	s.get("/api/v1/namespaces/ns/pods/b")
	w := s.watch("/api/v1/pods?watch=true")
	w.expect("ADDED a@2")
	list := s.watch("/api/v1/pods?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
	list.expect("ADDED a@2")
	text := ""
	for end := time.Now().Add(time.Minute); !strings.Contains(text, "apiserver_watch_list_duration_seconds_count") && time.Now().Before(end); {
		text = string(s.get("/metrics").body)
	}
	for _, want := range []string{
		`apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 1`,
		`apiserver_request_total{code="404",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 1`,
		`apiserver_request_duration_seconds_count{component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 2`,
		`apiserver_longrunning_requests{component="apiserver",group="",resource="pods",scope="cluster",subresource="",verb="WATCH",version="v1"} 2`,
		`apiserver_watch_list_duration_seconds_count{group="",resource="pods",scope="cluster",version="v1"} 1`,
		`apiserver_storage_events_received_total{group="",resource="pods"} 1`,
		`apiserver_resource_objects{group="",resource="pods"} 1`,
		`apiserver_watch_events_total{group="",resource="pods",version="v1"} `,
		`apiserver_current_inflight_requests{request_kind="readOnly"} 1`,
		`apiserver_storage_objects{resource="pods"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %s", want)
		}
	}
}

// A custom resource has series of watches when the first event is sent: there may be thousands that nobody watches.
func TestMetricsOfCustomResources(t *testing.T) {
	s := newTestServer(t)
	k := widgetKind()
	k.Custom = &kind.Custom{FromStore: func(kind.Object) error { return nil }}
	if err := s.AddKind(k); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"apiserver_watch_events_total", "apiserver_watch_events_sizes"} {
		if text := string(s.get("/metrics").body); strings.Contains(text, name+`_count{group="example.com"`) || strings.Contains(text, name+`{group="example.com"`) {
			t.Errorf("%s has a resource without watchers", name)
		}
	}
	s.add("widgets.example.com", widget("a"))
	w := s.watch("/apis/example.com/v1/widgets?watch=true")
	w.expect("ADDED a@2")
	const events, sizes = `apiserver_watch_events_total{group="example.com",resource="widgets",version="v1"} 1`,
		`apiserver_watch_events_sizes_count{group="example.com",resource="widgets",version="v1"} 1`
	text := ""
	for end := time.Now().Add(time.Minute); !strings.Contains(text, sizes) && time.Now().Before(end); {
		text = string(s.get("/metrics").body)
	}
	for _, want := range []string{events, sizes} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %s", want)
		}
	}
}

// A shutdown fails readiness at once and ends long-running requests later; other requests are served as before.
func TestShutdown(t *testing.T) {
	s := newTestServer(t)
	s.add("pods", pod("ns", "a", ""))
	w := s.watch("/api/v1/pods?watch=true")
	w.expect("ADDED a@2")
	s.BeginShutdown()
	if got := s.get("/readyz"); got.code != 500 || !strings.Contains(string(got.body), "[-]shutdown failed: reason withheld") {
		t.Errorf("/readyz: %d %s", got.code, got.body)
	}
	if got := s.get("/readyz/shutdown"); got.code != 500 || string(got.body) != "internal server error: process is shutting down\n" {
		t.Errorf("/readyz/shutdown: %d %s", got.code, got.body)
	}
	if got := s.get("/livez"); got.code != 200 {
		t.Errorf("/livez: %d %s", got.code, got.body)
	}
	// The harness uses HTTP/1.
	if resp, err := http.Get(s.http.URL + "/livez"); err != nil || !resp.Close {
		t.Errorf("the client does not close its HTTP/1 connection: %v", err)
	}
	s.add("pods", pod("ns", "b", ""))
	w.expect("ADDED b@3")
	s.EndLongRunning(0)
	w.expectEnd()
	if got := s.get("/api/v1/namespaces/ns/pods/a"); got.code != 200 {
		t.Errorf("get during the shutdown: %d", got.code)
	}
	s.watch("/api/v1/pods?watch=true&resourceVersion=3").expectEnd()
}
