package apiserver

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/authn"
)

// echoUser responds with the user and the path, in place of an aggregated server.
func echoUser(w http.ResponseWriter, r *http.Request, user *authn.User) {
	fmt.Fprint(w, user.Username, " ", r.Method, " ", r.URL.Path, " ", r.Header.Get("Authorization"))
}

func aggregatedService(group, version int32, freshness apidiscoveryv2.DiscoveryFreshness) *APIService {
	return &APIService{
		Priority: Priority{Group: group, Version: version}, Proxy: echoUser,
		Discovery: &apidiscoveryv2.APIVersionDiscovery{Version: "v1", Freshness: freshness},
	}
}

func (s *testServer) groupNames() string {
	s.t.Helper()
	var groups metav1.APIGroupList
	s.get("/apis").into(&groups)
	var names []string
	for _, g := range groups.Groups {
		names = append(names, g.PreferredVersion.GroupVersion)
	}
	return strings.Join(names, " ")
}

func (s *testServer) aggregatedDiscovery() (list apidiscoveryv2.APIGroupDiscoveryList, etag string) {
	s.t.Helper()
	response := s.get("/apis", "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	response.into(&list)
	return list, response.header.Get("ETag")
}

func TestAggregatedRequests(t *testing.T) {
	s := newTestServer(t)
	gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
	for _, path := range []string{"/apis/example.com/v1", "/apis/example.com/v1/foos", "/apis/example.com"} {
		if got := s.get(path); got.code != 404 {
			t.Errorf("%s before: %d", path, got.code)
		}
	}
	s.SetAPIService(gv, aggregatedService(100, 10, apidiscoveryv2.DiscoveryFreshnessCurrent))
	for _, path := range []string{"/apis/example.com/v1", "/apis/example.com/v1/foos", "/apis/example.com/v1/namespaces/a/foos/b/exec"} {
		if got := s.get(path); string(got.body) != "admin GET "+path+" " {
			t.Errorf("%s: %d %s", path, got.code, got.body)
		}
	}
	var group metav1.APIGroup
	s.get("/apis/example.com").into(&group)
	if group.PreferredVersion.GroupVersion != "example.com/v1" {
		t.Errorf("%+v", group)
	}
	if got := s.get("/apis/example.com/v2/foos"); got.code != 404 {
		t.Errorf("another version: %d %s", got.code, got.body)
	}
	s.SetAPIService(gv, nil)
	if got := s.get("/apis/example.com/v1/foos"); got.code != 404 {
		t.Errorf("after: %d %s", got.code, got.body)
	}
	if len(s.catalog.groups["example.com"].orNothing()) > 0 || s.catalog.aggregatedCount.Load() != 0 {
		t.Error("a removed APIService is kept")
	}
}

// TestAggregatedDeadlines: sessions of an aggregated server last as long as their client wants, its discovery must be quick, and other
// requests have the deadline of all requests.
func TestAggregatedDeadlines(t *testing.T) {
	s := newTestServer(t)
	service := aggregatedService(100, 10, apidiscoveryv2.DiscoveryFreshnessCurrent)
	service.Proxy = func(w http.ResponseWriter, r *http.Request, _ *authn.User) {
		deadline, ok := r.Context().Deadline()
		fmt.Fprint(w, ok, " ", ok && time.Until(deadline) <= aggregatedDiscoveryTimeout)
	}
	s.SetAPIService(schema.GroupVersion{Group: "example.com", Version: "v1"}, service)
	for _, test := range []struct{ path, upgrade, want string }{
		{"/apis/example.com/v1", "", "true true"},
		{"/apis/example.com/v1/namespaces/a/foos/b", "", "true false"},
		{"/apis/example.com/v1/namespaces/a/foos/b/console", "", "true false"},
		{"/apis/example.com/v1/namespaces/a/foos/b/console", "websocket", "false false"},
		{"/apis/example.com/v1/namespaces/a/foos?watch=1", "", "false false"},
	} {
		var headers []string
		if test.upgrade != "" {
			headers = []string{"Upgrade: " + test.upgrade, "Connection: Upgrade"}
		}
		if got := s.get(test.path, headers...); string(got.body) != test.want {
			t.Errorf("%s %s: %d %s, want %s", test.path, test.upgrade, got.code, got.body, test.want)
		}
	}
}

// TestAggregatedSeats: a request has no seat while the aggregated server does not respond.
func TestAggregatedSeats(t *testing.T) {
	s := fairServer(t, &guard{}, patient)
	service := aggregatedService(100, 10, apidiscoveryv2.DiscoveryFreshnessCurrent)
	released := make(chan struct{})
	service.Proxy = func(w http.ResponseWriter, _ *http.Request, _ *authn.User) {
		<-released
		fmt.Fprint(w, strings.Repeat("x", 2*minWaitBytes))
	}
	s.SetAPIService(schema.GroupVersion{Group: "example.com", Version: "v1"}, service)
	response := make(chan *answer, 1)
	go func() { response <- s.get("/apis/example.com/v1/namespaces/a/foos", "Authorization: Bearer guest") }()
	waitUntil(t, "the request returns its seat", func() bool { return s.waits.total.Load() == 1 })
	if got := s.get("/api/v1/namespaces/ns/pods/none", "Authorization: Bearer guest"); got.code != http.StatusNotFound {
		t.Errorf("another request got %d", got.code)
	}
	close(released)
	if got := <-response; got.code != http.StatusOK || len(got.body) != 2*minWaitBytes {
		t.Errorf("%d with %d bytes", got.code, len(got.body))
	}
	if n := s.waits.total.Load(); n != 0 || len(s.waits.byUser) != 0 {
		t.Errorf("%d requests are counted as waiting: %v", n, s.waits.byUser)
	}
	if got := s.get("/api/v1/namespaces/ns/pods/none", "Authorization: Bearer guest"); got.code != http.StatusNotFound {
		t.Errorf("afterwards a request got %d", got.code)
	}
}

func (g *servedGroup) orNothing() map[string]*APIService {
	if g == nil {
		return nil
	}
	return g.services
}

// TestAggregatedOverBuiltIn: an aggregated server takes over a group version, and gives it back.
func TestAggregatedOverBuiltIn(t *testing.T) {
	s := newTestServer(t)
	gv := schema.GroupVersion{Group: "events.k8s.io", Version: "v1"}
	s.SetAPIService(gv, aggregatedService(17750, 15, apidiscoveryv2.DiscoveryFreshnessStale))
	if got := s.get("/apis/events.k8s.io/v1/events"); !strings.HasPrefix(string(got.body), "admin GET") {
		t.Errorf("%d %s", got.code, got.body)
	}
	list, stale := s.aggregatedDiscovery()
	if v := list.Items[0].Versions[0]; list.Items[0].Name != "events.k8s.io" || v.Freshness != "Stale" || len(v.Resources) != 0 {
		t.Errorf("%+v", list.Items[0])
	}
	s.SetAPIService(gv, nil)
	list, current := s.aggregatedDiscovery()
	if v := list.Items[0].Versions[0]; v.Freshness != "Current" || len(v.Resources) != 1 || stale == current {
		t.Errorf("%+v", list.Items[0])
	}
	if got := s.get("/apis/events.k8s.io/v1/events"); got.code != 200 || strings.HasPrefix(string(got.body), "admin GET") {
		t.Errorf("%d %s", got.code, got.body)
	}
}

func TestDiscoveryOrder(t *testing.T) {
	s := newTestServer(t)
	if got := s.groupNames(); got != "events.k8s.io/v1 authorization.k8s.io/v1" {
		t.Errorf("built-in: %s", got)
	}
	set := func(group, version string, groupPriority, versionPriority int32) {
		s.SetAPIService(schema.GroupVersion{Group: group, Version: version}, aggregatedService(groupPriority, versionPriority, "Current"))
	}
	// Groups of one priority are in the order of the names of their APIServices; in the aggregated document, of their own names.
	set("b.example.com", "v1", 1000, 100)
	set("a.example.com", "v1beta1", 1000, 100)
	set("first.example.com", "v1", 19000, 1)
	if got := s.groupNames(); got != "first.example.com/v1 events.k8s.io/v1 authorization.k8s.io/v1 b.example.com/v1 a.example.com/v1beta1" {
		t.Errorf("groups: %s", got)
	}
	list, _ := s.aggregatedDiscovery()
	var names []string
	for _, item := range list.Items {
		names = append(names, item.Name)
	}
	if got := strings.Join(names, " "); got != "first.example.com events.k8s.io authorization.k8s.io a.example.com b.example.com" {
		t.Errorf("aggregated: %s", got)
	}
	// Versions: by priority, then newer ones first. The highest group priority counts.
	set("c.example.com", "v1", 10, 5)
	set("c.example.com", "v2", 2000, 5)
	set("c.example.com", "v1alpha1", 10, 50)
	var group metav1.APIGroup
	s.get("/apis/c.example.com").into(&group)
	if got := fmt.Sprint(group.Versions[0].Version, group.Versions[1].Version, group.Versions[2].Version, group.PreferredVersion.Version); got != "v1alpha1v2v1v1alpha1" {
		t.Errorf("versions: %s", got)
	}
	if got := s.groupNames(); !strings.Contains(got, "authorization.k8s.io/v1 c.example.com/v1alpha1 b.example.com") {
		t.Errorf("groups: %s", got)
	}
	// A local APIService moves what is served, and lists nothing else.
	s.SetAPIService(schema.GroupVersion{Group: "authorization.k8s.io", Version: "v1"}, &APIService{Priority: Priority{Group: 18500, Version: 1}})
	s.SetAPIService(schema.GroupVersion{Group: "absent.example.com", Version: "v1"}, &APIService{Priority: Priority{Group: 18500, Version: 1}})
	if got := s.groupNames(); !strings.HasPrefix(got, "first.example.com/v1 authorization.k8s.io/v1 events.k8s.io/v1") || strings.Contains(got, "absent") {
		t.Errorf("groups: %s", got)
	}
}

// TestUnchangedDiscovery: an APIService that changes nothing leaves the documents as they are.
func TestUnchangedDiscovery(t *testing.T) {
	s := newTestServer(t)
	before := s.catalog.discovery()
	s.SetAPIService(schema.GroupVersion{Group: "events.k8s.io", Version: "v1"}, &APIService{Priority: Priority{Group: 17750, Version: 15}})
	s.SetAPIService(schema.GroupVersion{Group: "absent.example.com", Version: "v1"}, nil)
	if s.catalog.discovery() != before {
		t.Error("the documents were made again")
	}
	s.SetAPIService(schema.GroupVersion{Group: "example.com", Version: "v1"}, aggregatedService(1, 1, "Current"))
	after := s.catalog.discovery()
	if after == before || after.byGroup["events.k8s.io"] != before.byGroup["events.k8s.io"] {
		t.Error("only the documents of the changed group are made again")
	}
}
