package apiserver

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"skiff/internal/apiserver/authz"
	"skiff/internal/apiserver/fairness"
	"skiff/internal/kind"
)

// fairServer is a server on which all users but system:masters share one seat, and one request may be queued.
func fairServer(t *testing.T, g *guard, change ...func(*Config)) *testServer {
	f := fairness.New(6)
	level := bootstrap.SuggestedPriorityLevelConfigurationGlobalDefault.DeepCopy()
	level.UID, level.Spec.Limited.LimitResponse.Queuing = "level-uid", &flowcontrolv1.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 1}
	one, none := int32(1), int32(0)
	limited := level.Spec.Limited
	limited.NominalConcurrencyShares, limited.LendablePercent, limited.BorrowingLimitPercent = &one, &none, &none
	schema := bootstrap.SuggestedFlowSchemaGlobalDefault.DeepCopy()
	schema.UID = "schema-uid"
	f.Configure([]*flowcontrolv1.PriorityLevelConfiguration{level}, []*flowcontrolv1.FlowSchema{schema})
	return newTestServer(t, append([]func(*Config){func(c *Config) {
		for _, k := range c.Kinds {
			if k.Plural == "pods" {
				k.Subresources = append(k.Subresources, kind.Subresource{Name: "token", StoresNothing: true})
			}
		}
		c.Fairness, c.Authorizer = f, g
		c.Limits = Limits{Timeout: 2 * time.Second, ReadOnly: 1}
	}}, change...)...)
}

// patient gives requests enough time on a busy host.
func patient(c *Config) { c.Limits.Timeout = time.Minute }

func TestSeats(t *testing.T) {
	g := &guard{blocked: make(chan struct{})}
	s := fairServer(t, g)
	first := make(chan *answer, 1)
	go func() { first <- s.get("/api/v1/namespaces/ns/pods/slow", "Authorization: Bearer guest") }()
	for s.readOnly.inFlight.Load() == 0 || g.count() == 0 {
		time.Sleep(time.Millisecond)
	}
	// The second waits, for a quarter of its time, and is refused; the third finds the queue full.
	second := make(chan *answer, 1)
	began := time.Now()
	go func() { second <- s.get("/api/v1/pods?timeout=1s", "Authorization: Bearer guest") }()
	for s.readOnly.inFlight.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
	third := s.get("/api/v1/pods", "Authorization: Bearer guest")
	for _, got := range []*answer{third, <-second} {
		if got.code != http.StatusTooManyRequests || string(got.body) != "Too many requests, please try again later.\n" ||
			got.header.Get("Retry-After") != "1" || !strings.HasPrefix(got.header.Get("Content-Type"), "text/plain") {
			t.Errorf("%d %q %v", got.code, got.body, got.header)
		}
		if got.header.Get("X-Kubernetes-PF-FlowSchema-UID") != "schema-uid" || got.header.Get("X-Kubernetes-PF-PriorityLevel-UID") != "level-uid" {
			t.Errorf("headers %v", got.header)
		}
	}
	if waited := time.Since(began); waited < 250*time.Millisecond || waited > 900*time.Millisecond {
		t.Errorf("refused after %v", waited)
	}
	if got := s.get("/api/v1/pods"); got.code != 200 {
		t.Errorf("system:masters got %d", got.code)
	}
	// Streams other than watches need no seat.
	s.get("/api/v1/namespaces/ns/pods/a/log", "Authorization: Bearer guest").status(404, "NotFound", "the server could not find the requested resource")
	// One that waits gets the seat when it becomes free.
	go func() { second <- s.get("/api/v1/pods", "Authorization: Bearer guest") }()
	for s.readOnly.inFlight.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	close(g.blocked)
	if got := <-second; got.code != 200 || got.header.Get("X-Kubernetes-PF-FlowSchema-UID") != "schema-uid" {
		t.Errorf("%d %v", got.code, got.header)
	}
	<-first
	if n := s.readOnly.inFlight.Load(); n != 0 {
		t.Errorf("%d requests still counted", n)
	}
}

func TestWatchReleasesItsSeatAfterInitialEvents(t *testing.T) {
	s := fairServer(t, &guard{})
	s.add("pods", pod("ns", "a", ""))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, query := range []string{"", "", "", "&fieldSelector=spec.nodeName%3Dn1"} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.http.URL+"/api/v1/pods?watch=true&allowWatchBookmarks=true"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer guest")
		resp, err := s.http.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if query != "" {
			continue // nothing is on that node
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil || resp.StatusCode != 200 {
			t.Fatal(resp.Status, err)
		}
	}
	writer := &authz.Attributes{ResourceRequest: true, Verb: "create", Resource: "pods", Namespace: "ns"}
	if got := s.config.Fairness.Watches.InterestedCount(writer); got != 3 {
		t.Errorf("%d watches counted", got)
	}
	if got := s.get("/api/v1/pods", "Authorization: Bearer guest"); got.code != 200 {
		t.Errorf("during three watches: %d %s", got.code, got.body)
	}
	cancel()
	for s.config.Fairness.Watches.InterestedCount(writer) > 0 {
		time.Sleep(time.Millisecond)
	}
}

func TestEstimateWork(t *testing.T) {
	s := fairServer(t, &guard{})
	for _, name := range []string{"a", "b", "c"} {
		p := pod("ns", name, "")
		p.Annotations = map[string]string{"filler": strings.Repeat("x", 90_000)}
		s.add("pods", p)
	}
	for range 25 {
		defer s.config.Fairness.Watches.Register(&authz.Attributes{Resource: "pods"})()
	}
	for _, test := range []struct {
		method, url string
		want        fairness.Work
	}{
		{"GET", "/api/v1/pods", fairness.Work{InitialSeats: 3}},
		{"GET", "/api/v1/namespaces/other/pods", fairness.Work{InitialSeats: 3}},
		{"GET", "/api/v1/pods?limit=2", fairness.Work{InitialSeats: 2}},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name%3Da", fairness.Work{InitialSeats: 1}},
		{"GET", "/api/v1/pods?watch=true", fairness.Work{InitialSeats: 3}},
		{"GET", "/api/v1/pods?watch=true&resourceVersion=5", fairness.Work{}},
		{"GET", "/api/v1/pods?watch=true&resourceVersion=5&sendInitialEvents=true", fairness.Work{InitialSeats: 3}},
		{"GET", "/api/v1/nodes", fairness.Work{}},
		{"GET", "/api/v1/unicorns", fairness.Work{}},
		{"GET", "/api/v1/namespaces/ns/pods/a", fairness.Work{}},
		{"GET", "/version", fairness.Work{}},
		{"POST", "/api/v1/namespaces/ns/pods", fairness.Work{FinalSeats: 3}},
		{"DELETE", "/api/v1/namespaces/ns/pods/a", fairness.Work{FinalSeats: 3}},
		{"DELETE", "/api/v1/namespaces/ns/pods", fairness.Work{}},
		{"POST", "/api/v1/namespaces/ns/pods/a/exec", fairness.Work{FinalSeats: 3}},
		{"POST", "/api/v1/namespaces/ns/pods/a/token", fairness.Work{}},
		{"POST", "/api/v1/namespaces/ns/configmaps", fairness.Work{}},
	} {
		r, err := http.NewRequest(test.method, test.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req := &request{Request: r, query: r.URL.Query()}
		req.info = parseRequest(r.Method, r.URL.Path, req.query)
		req.attributes = req.info.attributes(req.query)
		if got := s.estimateWork(req); got != test.want {
			t.Errorf("%s %s: %+v, want %+v", test.method, test.url, got, test.want)
		}
	}
}
