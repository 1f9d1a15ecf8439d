package apiserver

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/fairness"
	"skiff/internal/store/cache"
)

// maxQueueWait bounds how long a request waits in a queue. Otherwise it is a quarter of the request's timeout.
const maxQueueWait = time.Minute

// limitInFlight is upstream's WithPriorityAndFairness or, without fairness, WithMaxInFlightLimit. It waits until the request may
// execute and reports whether it may; if not, the response has been written. Long-running requests are not limited, except for
// the start of a watch, which may send as much as a list.
func (s *Server) limitInFlight(req *request) (bool, error) {
	if !req.longRunning {
		req.inFlight = &s.readOnly
		if isMutating(req.Method) {
			req.inFlight = &s.mutating
		}
		if below := req.inFlight.acquire(&req.user); !below && s.config.Fairness == nil {
			return false, req.tooManyRequests(1)
		}
	}
	if s.config.Fairness == nil || req.longRunning && req.info.verb != "watch" {
		return true, nil
	}
	wait := s.limits.Timeout
	if deadline, ok := req.ctx.Deadline(); ok && !req.longRunning {
		wait = deadline.Sub(req.start)
	}
	until := req.start.Add(min(wait/4, maxQueueWait))
	work := s.estimateWork(req)
	admitted := s.config.Fairness.Acquire(req.ctx, &req.attributes, work, until, &req.seats)
	req.seats.SetHeaders(req.w.Header())
	if !admitted {
		return false, req.tooManyRequests(req.seats.RetryAfter())
	}
	if req.seats.Limited() {
		if s.waits.tooMany(req.user.Username) {
			req.seats.Suspend()
			return false, req.tooManyRequests(1)
		}
		req.w.wait = &clientWait{s: s, req: req, work: work}
	}
	return true, nil
}

// acquireLarge waits until a write with a large body may be processed. That ends when the response begins, or when an admission webhook is
// called: what limits these writes is CPU time, and the webhook may send large writes itself. While it waits it has no seats.
func (s *Server) acquireLarge(req *request, size int) error {
	wait := req.w.wait
	if size < largeBody || req.large != nil || wait == nil {
		return nil
	}
	if req.large = s.large.add(req.user.Username, size); req.large == nil {
		return apierrors.NewTooManyRequests("too many large requests of the user are in progress, please try again later", 1)
	}
	req.w.onBegin = func() { s.releaseLarge(req) }
	if req.large.granted == nil {
		return nil
	}
	wait.begin()
	if err := req.large.wait(req.ctx); err != nil {
		return wait.end(err)
	}
	wait.resume()
	return nil
}

// leaveLarge lets another large write be processed while this one waits for a webhook.
func (s *Server) leaveLarge(req *request) {
	if req.large != nil {
		s.large.leave(req.large)
	}
}

func (s *Server) releaseLarge(req *request) {
	if w := req.large; w != nil {
		req.large = nil
		s.large.release(w)
	}
}

// release undoes limitInFlight and acquireLarge.
func (s *Server) release(r *request) {
	s.releaseLarge(r)
	if r.w.wait != nil {
		_ = r.w.wait.end(context.Canceled) // after a panic while it waited
	}
	r.seats.Release()
	if r.inFlight != nil {
		r.inFlight.release()
	}
}

// tooManyRequests responds with 429 and Retry-After.
func (r *request) tooManyRequests(seconds int) error {
	header := r.w.Header()
	header.Set("Retry-After", strconv.Itoa(seconds))
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header["X-Content-Type-Options"] = nosniff
	r.w.WriteHeader(http.StatusTooManyRequests)
	_, err := io.WriteString(r.w, "Too many requests, please try again later.\n")
	return err
}

// estimateWork estimates the cost of a request before it is dispatched.
func (s *Server) estimateWork(req *request) fairness.Work {
	info := &req.info
	if !info.isResource() {
		return fairness.Work{}
	}
	switch info.verb {
	case "create", "update", "patch", "delete":
		if res := s.requested(info); res != nil && res.subs[info.subresource] != nil && res.subs[info.subresource].StoresNothing {
			return fairness.Work{} // no watch is notified
		}
		return fairness.WriteWork(s.config.Fairness.Watches.InterestedCount(&req.attributes))
	case "watch":
		if version := req.query.Get("resourceVersion"); version != "" && version != "0" && !isTrue(req.query, "sendInitialEvents") {
			return fairness.Work{} // no initial events
		}
		return s.estimateList(req)
	case "list":
		return s.estimateList(req)
	}
	return fairness.Work{}
}

// listSample is how many objects are measured to estimate the size of a list.
const listSample = 8

// requested is the resource that a path names, or nil when it is not served here.
func (s *Server) requested(info *requestInfo) *resource {
	return s.catalog.find(schema.GroupVersionResource{Group: info.group, Version: info.version, Resource: info.resource})
}

func (s *Server) estimateList(req *request) fairness.Work {
	info := &req.info
	res := s.requested(info)
	if res == nil || res.table == nil {
		return fairness.Work{}
	}
	snapshot := res.table.Snapshot()
	objects := snapshot.Len("")
	if limit, err := strconv.Atoi(req.query.Get("limit")); err == nil && limit > 0 {
		objects = min(objects, limit)
	}
	if info.name != "" {
		objects = min(objects, 1)
	}
	measured, bytes := 0, 0
	snapshot.Ascend("", "", func(e *cache.Entry) bool {
		measured++
		bytes += e.StoredSize()
		return measured < listSample
	})
	return fairness.ListWork(objects, bytes/max(measured, 1))
}

// countWatch counts a watch for the estimated work of writes, until the function it returns is called. A watch of one value of
// the kind's indexed field does not count: most writes do not reach it.
func (s *Server) countWatch(req *request, opts *listOptions) func() {
	if s.config.Fairness == nil {
		return func() {}
	}
	if indexed := req.res.kind.IndexedField; opts.fields != nil && indexed != "" {
		if value, ok := opts.fields.RequiresExactMatch(indexed); ok && value != "" {
			return func() {}
		}
	}
	return s.config.Fairness.Watches.Register(&req.attributes)
}
