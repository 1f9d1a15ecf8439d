package apiserver

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	s := fairServer(t, &guard{})
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
	get := func() int { return s.get("/api/v1/namespaces/ns/configmaps/none", "Authorization: Bearer guest").code }
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

// Large writes are processed a few at a time, users take turns, and what is cancelled or too much leaves nothing behind.
func TestLargeWrites(t *testing.T) {
	var l largeWrites
	ctx := context.Background()
	for range l.limit() {
		if allowed, err := l.acquire(ctx, "a"); !allowed || err != nil {
			t.Fatal(allowed, err)
		}
	}
	order := make(chan string)
	begin := func(ctx context.Context, user string) {
		before := l.heldBy(user)
		go func() {
			if allowed, err := l.acquire(ctx, user); allowed && err == nil {
				order <- user
			}
		}()
		waitUntil(t, "the write waits", func() bool { return l.heldBy(user) == before+1 })
	}
	for range 3 {
		begin(ctx, "a")
	}
	cancelled, cancel := context.WithCancel(ctx)
	begin(cancelled, "b")
	begin(ctx, "c")
	cancel()
	waitUntil(t, "the cancelled write is removed", func() bool { return l.heldBy("b") == 0 })
	l.release("a")
	got := []string{<-order}
	for range 3 {
		l.release(got[len(got)-1])
		got = append(got, <-order)
	}
	if text := strings.Join(got, " "); text != "a c a a" {
		t.Errorf("the order is %s", text)
	}
	for range maxUserLargeWrites {
		begin(ctx, "d")
	}
	if allowed, err := l.acquire(ctx, "d"); allowed || err != nil {
		t.Errorf("one more than allowed: %v, %v", allowed, err)
	}
	l.release("a")
	for range maxUserLargeWrites {
		l.release(<-order)
	}
	for range l.limit() - 1 {
		l.release("a")
	}
	if l.running != 0 || len(l.held) != 0 || len(l.waiting) != 0 || len(l.users) != 0 {
		t.Errorf("left behind: %+v", &l)
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
