package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
)

// unreadResponse is a response that its client does not read until released is closed. The first bytes are buffered.
type unreadResponse struct {
	*httptest.ResponseRecorder
	released chan struct{}
}

func (r *unreadResponse) Write(p []byte) (int, error) {
	if r.Body.Len()+len(p) >= minWaitBytes {
		<-r.released
	}
	return r.ResponseRecorder.Write(p)
}

// A request whose client does not send its body, or does not read its response, returns its seat: the only one of this server. It gets a seat
// again when the client goes on.
func TestWaitingForClientNeedsNoSeat(t *testing.T) {
	guestRequest := func(method, path string, body io.Reader) *http.Request {
		req := httptest.NewRequestWithContext(t.Context(), method, path, body)
		req.Header.Set("Authorization", "Bearer guest")
		return req
	}
	input, stalled := io.Pipe()
	unread := &unreadResponse{httptest.NewRecorder(), make(chan struct{})}
	for name, test := range map[string]struct {
		w      *httptest.ResponseRecorder
		serve  func(s *testServer)
		resume func()
	}{
		"body": {nil, func(s *testServer) {
			s.Handler().ServeHTTP(httptest.NewRecorder(), guestRequest("POST", "/api/v1/namespaces/ns/pods", input))
		}, func() { stalled.Close() }},
		"response": {unread.ResponseRecorder, func(s *testServer) {
			s.Handler().ServeHTTP(unread, guestRequest("GET", "/api/v1/pods", nil))
		}, func() { close(unread.released) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := fairServer(t, &guard{})
			s.add("pods", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "large", Annotations: map[string]string{"a": strings.Repeat("x", 100_000)},
			}})
			done := make(chan struct{})
			go func() {
				defer close(done)
				test.serve(s)
			}()
			waitUntil(t, "the request returns its seat", func() bool { return s.waits.total.Load() == 1 })
			if got := s.get("/api/v1/namespaces/ns/pods/none", "Authorization: Bearer guest"); got.code != http.StatusNotFound {
				t.Errorf("another request got %d", got.code)
			}
			test.resume()
			<-done
			if n := s.waits.total.Load(); n != 0 || len(s.waits.byUser) != 0 {
				t.Errorf("%d requests are counted as waiting: %v", n, s.waits.byUser)
			}
			if test.w != nil && (test.w.Code != 200 || test.w.Body.Len() < 100_000) {
				t.Errorf("the response has code %d and %d bytes", test.w.Code, test.w.Body.Len())
			}
			// The seat is free.
			if got := s.get("/api/v1/namespaces/ns/pods/none", "Authorization: Bearer guest"); got.code != http.StatusNotFound {
				t.Errorf("afterwards a request got %d", got.code)
			}
		})
	}
}

// A write whose client does not read the response has the final seats of its events all the same, once.
func TestUnreadWriteHasFinalSeats(t *testing.T) {
	s := fairServer(t, &guard{}, patient)
	for range 200_000 { // the events occupy the only seat for a minute and more
		defer s.config.Fairness.Watches.Register(&authz.Attributes{Resource: "pods"})()
	}
	body := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","annotations":{"a":"` + strings.Repeat("x", 2*minWaitBytes) + `"}}}`
	unread := &unreadResponse{httptest.NewRecorder(), make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	req := httptest.NewRequestWithContext(ctx, "POST", "/api/v1/namespaces/ns/pods", strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer guest")
	req.Header.Set("Content-Type", "application/json")
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Handler().ServeHTTP(unread, req)
	}()
	waitUntil(t, "the response waits", func() bool { return s.waits.total.Load() == 1 })
	get := func() int {
		return s.get("/api/v1/namespaces/ns/configmaps/none?timeout=1s", "Authorization: Bearer guest").code
	}
	if code := get(); code != http.StatusTooManyRequests {
		t.Errorf("while the events are sent, another request got %d", code)
	}
	cancel()
	close(unread.released)
	<-done
	if code := get(); code != http.StatusTooManyRequests {
		t.Errorf("after the client has disconnected, another request got %d", code)
	}
}

// A user with too many waiting requests is rejected, and others are not.
func TestWaitingRequestsAreLimited(t *testing.T) {
	s := fairServer(t, &guard{})
	for range maxUserWaits {
		if !s.waits.add("guest") {
			t.Fatal("not counted")
		}
	}
	if got := s.get("/api/v1/pods", "Authorization: Bearer guest"); got.code != http.StatusTooManyRequests || got.header.Get("Retry-After") != "1" {
		t.Errorf("got %d, %v", got.code, got.header)
	}
	if got := s.get("/api/v1/pods"); got.code != 200 {
		t.Errorf("an administrator got %d", got.code)
	}
	s.waits.remove("guest")
	if got := s.get("/api/v1/pods", "Authorization: Bearer guest"); got.code != 200 {
		t.Errorf("with one waiting request less: %d", got.code)
	}
	for s.waits.add("other") {
	}
	if n := s.waits.total.Load(); n != maxWaits {
		t.Errorf("%d requests wait", n)
	}
}

// Large writes are processed a few at a time, users alternate, and what is cancelled or too much leaves nothing behind.
func TestLargeWrites(t *testing.T) {
	var l largeWrites
	var running []*largeWrite
	for range l.limit() {
		w := l.add("a", 1)
		if w == nil || w.granted != nil {
			t.Fatalf("not granted: %+v", w)
		}
		running = append(running, w)
	}
	var waiting []*largeWrite
	for _, user := range []string{"a", "a", "a", "b", "c"} {
		w := l.add(user, 1)
		if w == nil || w.granted == nil {
			t.Fatalf("granted: %+v", w)
		}
		waiting = append(waiting, w)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := waiting[3].wait(canceled); err == nil {
		t.Error("a canceled write may be processed")
	}
	l.release(waiting[3])
	next := running[0]
	order := []int{0, 4, 1, 2}
	for served, at := range order {
		l.release(next)
		next = waiting[at]
		for i, w := range waiting {
			if want := slices.Contains(order[:served+1], i); isClosed(w.granted) != want {
				t.Errorf("after %d writes, write %d may be processed: %v", served+1, i, !want)
			}
		}
	}
	var many []*largeWrite
	for range maxUserLargeWrites {
		many = append(many, l.add("d", 1))
	}
	if l.add("d", 1) != nil {
		t.Error("a user has one write more than allowed")
	}
	// The bodies are bounded; a user may have one write nevertheless.
	huge := l.add("e", maxLargeBytes)
	if l.add("e", 1) != nil || huge == nil {
		t.Error("the size of the bodies is not bounded")
	}
	first := l.add("f", 1)
	if first == nil || l.add("f", 1) != nil {
		t.Error("a user has none or more than one write")
	}
	for _, w := range slices.Concat(many, running[1:], []*largeWrite{first, huge, next}) {
		l.release(w)
	}
	if l.running != 0 || l.bytes != 0 || len(l.held) != 0 || len(l.waiting) != 0 || len(l.users) != 0 {
		t.Errorf("left behind: %+v", &l)
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Large writes that wait for others, of several users, have no seats: small requests of the same priority level are served. When a large write
// may be processed, it does not wait for a seat behind them.
func TestWaitingLargeWritesNeedNoSeats(t *testing.T) {
	g := &guard{blocked: make(chan struct{})}
	s := fairServer(t, g, inProcess, patient)
	var running []*largeWrite
	for range s.large.limit() {
		running = append(running, s.large.add("another", largeBody))
	}
	const writes = 3
	done := make(chan *httptest.ResponseRecorder, writes)
	for i := range writes {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"large-%d","annotations":{"a":"%s"}}}`, i, strings.Repeat("x", largeBody))
		req := httptest.NewRequestWithContext(authn.WithUser(t.Context(), authn.User{Username: fmt.Sprint("user-", i)}), "POST", "/api/v1/namespaces/ns/pods", strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		go func() {
			recorder := httptest.NewRecorder()
			s.Handler().ServeHTTP(recorder, req)
			done <- recorder
		}()
		waitUntil(t, "the write waits without seats", func() bool { return s.waits.total.Load() == int64(i+1) })
	}
	if got := s.get("/api/v1/namespaces/ns/pods/none", "Authorization: Bearer guest"); got.code != http.StatusNotFound {
		t.Errorf("a small request got %d", got.code)
	}
	// A request holds the only seat while the large writes are processed.
	slow := make(chan *answer, 1)
	go func() { slow <- s.get("/api/v1/namespaces/ns/pods/slow", "Authorization: Bearer guest") }()
	waitUntil(t, "the slow request has the seat", func() bool { return g.asks("slow") })
	for _, w := range running {
		s.large.release(w)
	}
	for range writes {
		if recorder := <-done; recorder.Code != http.StatusCreated {
			t.Errorf("a large write got %d: %.200s", recorder.Code, recorder.Body)
		}
	}
	close(g.blocked)
	if got := <-slow; got.code != http.StatusNotFound {
		t.Errorf("the slow request got %d", got.code)
	}
	if n := s.waits.total.Load(); n != 0 || s.large.bytes != 0 {
		t.Errorf("%d requests and %d bytes are left", n, s.large.bytes)
	}
	if got := s.get("/api/v1/namespaces/ns/pods/none", "Authorization: Bearer guest"); got.code != http.StatusNotFound {
		t.Errorf("afterwards a small request got %d", got.code)
	}
}

// slowWebhook is an admission plugin that waits for a server until released is closed.
type slowWebhook struct{ released chan struct{} }

func (*slowWebhook) Name() string { return "SlowWebhook" }

func (*slowWebhook) Handles(a *admission.Attributes) bool { return a.Operation == admission.Create }

func (p *slowWebhook) Mutate(_ context.Context, a *admission.Attributes) error {
	a.Wait(func() { <-p.released })
	return nil
}

// Writes that wait for a webhook have no seats: other requests of the same priority level are served.
func TestWaitingForWebhookNeedsNoSeats(t *testing.T) {
	hook := &slowWebhook{make(chan struct{})}
	s := fairServer(t, &guard{}, patient, func(c *Config) { c.Admission = admission.Chain{hook} })
	const writes = 3
	done := make(chan *httptest.ResponseRecorder, writes)
	for i := range writes {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"slow-%d"}}`, i)
		req := httptest.NewRequestWithContext(t.Context(), "POST", "/api/v1/namespaces/ns/pods", strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer guest")
		req.Header.Set("Content-Type", "application/json")
		go func() {
			recorder := httptest.NewRecorder()
			s.Handler().ServeHTTP(recorder, req)
			done <- recorder
		}()
		waitUntil(t, "the write waits without seats", func() bool { return s.waits.total.Load() == int64(i+1) })
	}
	if got := s.get("/api/v1/namespaces/ns/pods/none", "Authorization: Bearer guest"); got.code != http.StatusNotFound {
		t.Errorf("another request got %d", got.code)
	}
	close(hook.released)
	for range writes {
		if recorder := <-done; recorder.Code != http.StatusCreated {
			t.Errorf("a write got %d: %.200s", recorder.Code, recorder.Body)
		}
	}
	if n := s.waits.total.Load(); n != 0 {
		t.Errorf("%d requests are counted as waiting", n)
	}
}

// A write with a large body that waits for a webhook leaves its place to others: the webhook may send large writes itself.
func TestLargeWriteDuringWebhookCall(t *testing.T) {
	hook := &slowWebhook{make(chan struct{})}
	s := fairServer(t, &guard{}, patient, func(c *Config) { c.Admission = admission.Chain{hook} })
	body := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"large","annotations":{"a":"` + strings.Repeat("x", largeBody) + `"}}}`
	req := httptest.NewRequestWithContext(t.Context(), "POST", "/api/v1/namespaces/ns/pods", strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer guest")
	req.Header.Set("Content-Type", "application/json")
	recorder, done := httptest.NewRecorder(), make(chan struct{})
	go func() {
		defer close(done)
		s.Handler().ServeHTTP(recorder, req)
	}()
	waitUntil(t, "the write waits without seats", func() bool { return s.waits.total.Load() == 1 })
	var others []*largeWrite
	for range s.large.limit() {
		w := s.large.add("another", largeBody)
		if w.granted != nil {
			t.Error("another large write has to wait for a webhook that the first one calls")
		}
		others = append(others, w)
	}
	if n := s.large.heldBy("guest"); n != 1 {
		t.Errorf("the user has %d large writes", n)
	}
	close(hook.released)
	<-done
	if recorder.Code != http.StatusCreated {
		t.Errorf("code %d: %.200s", recorder.Code, recorder.Body)
	}
	for _, w := range others {
		s.large.release(w)
	}
	if s.large.running != 0 || s.large.bytes != 0 || len(s.large.held) != 0 {
		t.Errorf("%d writes and %d bytes of %v are left", s.large.running, s.large.bytes, s.large.held)
	}
}

func (l *largeWrites) heldBy(user string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[user]
}

// A write with a large body occupies its place until its response begins, not while the client does not read it.
func TestLargeWriteEndsWithResponse(t *testing.T) {
	s := fairServer(t, &guard{})
	body := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"large","annotations":{"a":"` + strings.Repeat("x", largeBody) + `"}}}`
	unread := &unreadResponse{httptest.NewRecorder(), make(chan struct{})}
	req := httptest.NewRequestWithContext(t.Context(), "POST", "/api/v1/namespaces/ns/pods", strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer guest")
	req.Header.Set("Content-Type", "application/json")
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Handler().ServeHTTP(unread, req)
	}()
	waitUntil(t, "the response waits", func() bool { return s.waits.total.Load() == 1 })
	if n := s.large.heldBy("guest"); n != 0 {
		t.Errorf("%d large writes are being processed", n)
	}
	close(unread.released)
	<-done
	if unread.Code != http.StatusCreated {
		t.Errorf("code %d: %.200s", unread.Code, unread.Body)
	}
}
