package scheduler

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
)

const (
	whyPath    = "/apis/scheduling.skiff.io/v1/namespaces/default/pods/large/why"
	whatIfPath = "/apis/scheduling.skiff.io/v1/namespaces/default/whatifs"
)

// blockedQueries is a scheduler with a pending pod, large, and a plugin that blocks queries until unblock is closed.
type blockedQueries struct {
	*fakeServer
	blocks        atomic.Bool
	unblock       chan struct{}
	running, most atomic.Int64
}

func withBlockedQueries(t *testing.T, run func(*blockedQueries)) {
	t.Helper()
	withFakeServer(t, nil, func(f *fakeServer) {
		q := &blockedQueries{fakeServer: f, unblock: make(chan struct{})}
		profile := f.scheduler.profiles[corev1.DefaultSchedulerName]
		profile.Filters = append([]plugins.FilterPlugin{oddPlugin{func(int32) *plugins.Refusal {
			if q.blocks.Load() {
				now := q.running.Add(1)
				for most := q.most.Load(); now > most && !q.most.CompareAndSwap(most, now); most = q.most.Load() {
				}
				<-q.unblock
				time.Sleep(time.Millisecond)
				q.running.Add(-1)
			}
			return nil
		}}}, profile.Filters...)
		f.addNode(schedulertest.TestNode("a"))
		f.addPod(schedulertest.TestPod("large", schedulertest.RequestingCPU("100")))
		f.pass(time.Second)
		q.blocks.Store(true)
		run(q)
		q.blocks.Store(false)
	})
}

// query sends one query, which is a what-if if i is odd, and returns its response.
func (q *blockedQueries) query(ctx context.Context, i int) *httptest.ResponseRecorder {
	method, path, body := http.MethodGet, whyPath, ""
	if i%2 == 1 {
		method, path, body = http.MethodPost, whatIfPath, supposing(q.t, HypotheticalPod{Pod: *schedulertest.TestPod("x")})
	}
	w := httptest.NewRecorder()
	q.scheduler.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body)))
	return w
}

// Of 100 concurrent queries no more than the bound run at once, a bounded number waits, and the rest are rejected at once with 429.
func TestConcurrentQueriesAreBounded(t *testing.T) {
	withBlockedQueries(t, func(q *blockedQueries) {
		const queries = 100
		responses := make(chan *httptest.ResponseRecorder, queries)
		for i := range queries {
			go func() { responses <- q.query(q.t.Context(), i) }()
		}
		synctest.Wait()
		if n := q.running.Load(); n != maxRunningQueries {
			t.Errorf("%d queries run, want %d", n, maxRunningQueries)
		}
		if n := len(q.scheduler.queries.waiting); n != maxWaitingQueries {
			t.Errorf("%d queries wait, want %d", n, maxWaitingQueries)
		}
		rejected := queries - maxRunningQueries - maxWaitingQueries
		responded := len(responses)
		if responded != rejected {
			t.Errorf("%d queries have a response while the others are blocked, want %d", responded, rejected)
		}
		for range responded {
			w := <-responses
			if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), `"reason":"TooManyRequests"`) {
				t.Errorf("response %d, Retry-After %q: %s", w.Code, w.Header().Get("Retry-After"), w.Body)
			}
		}
		close(q.unblock)
		for range queries - responded {
			if w := <-responses; w.Code != http.StatusOK {
				t.Errorf("response %d: %s", w.Code, w.Body)
			}
		}
		if most := q.most.Load(); most != maxRunningQueries {
			t.Errorf("%d queries ran at once, want %d", most, maxRunningQueries)
		}
		if n := len(q.scheduler.queries.running) + len(q.scheduler.queries.waiting); n != 0 {
			t.Errorf("%d queries are counted after all have ended", n)
		}
	})
}

// A waiting query whose client has gone ends at once, and its place is free for another.
func TestWaitingQueryEndsWithItsRequest(t *testing.T) {
	withBlockedQueries(t, func(q *blockedQueries) {
		var running sync.WaitGroup
		for i := range maxRunningQueries {
			running.Go(func() { q.query(q.t.Context(), i) })
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(q.t.Context())
		waiting := make(chan *httptest.ResponseRecorder, maxWaitingQueries)
		for i := range maxWaitingQueries {
			go func() { waiting <- q.query(ctx, i) }()
		}
		synctest.Wait()
		if w := q.query(q.t.Context(), 0); w.Code != http.StatusTooManyRequests {
			t.Errorf("response %d while all places are taken", w.Code)
		}
		cancel()
		synctest.Wait()
		if len(waiting) != maxWaitingQueries || len(q.scheduler.queries.waiting) != 0 || q.running.Load() != maxRunningQueries {
			t.Errorf("%d of %d queries ended, %d still wait, %d run", len(waiting), maxWaitingQueries, len(q.scheduler.queries.waiting), q.running.Load())
		}
		next := make(chan *httptest.ResponseRecorder, 1)
		go func() { next <- q.query(q.t.Context(), 1) }()
		synctest.Wait()
		if len(q.scheduler.queries.waiting) != 1 {
			t.Error("another query does not wait in the place that is free")
		}
		close(q.unblock)
		if w := <-next; w.Code != http.StatusOK {
			t.Errorf("response %d: %s", w.Code, w.Body)
		}
		running.Wait()
	})
}

// A what-if of many pods whose client has gone does not go on to the last pod.
func TestRunningWhatIfEndsWithItsRequest(t *testing.T) {
	withBlockedQueries(t, func(q *blockedQueries) {
		ctx, cancel := context.WithCancel(q.t.Context())
		w := httptest.NewRecorder()
		var running sync.WaitGroup
		running.Go(func() {
			body := supposing(t, HypotheticalPod{Pod: *schedulertest.TestPod("x"), Copies: 100})
			q.scheduler.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, whatIfPath, strings.NewReader(body)))
		})
		synctest.Wait()
		cancel()
		close(q.unblock)
		running.Wait()
		if w.Code != http.StatusGatewayTimeout || len(q.scheduler.queries.running) != 0 {
			t.Errorf("response %d: %s; %d queries run", w.Code, w.Body, len(q.scheduler.queries.running))
		}
	})
}
