package apiserver

import (
	"io"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/fairness"
	"skiff/internal/store/cache"
)

// longestWait bounds how long a request may wait for its turn. Otherwise it is a quarter of the time it has in all.
const longestWait = time.Minute

// takeTurn waits until the request may go on, and reports whether it may; if not, it has been answered. Streams have no turns,
// but the beginning of a watch, which may send as much as a list, has one.
func (s *Server) takeTurn(req *request) (bool, error) {
	stream := isLongRunning(&req.info)
	if !stream {
		req.gate = &s.readOnly
		if isMutating(req.Method) {
			req.gate = &s.mutating
		}
		if entered := req.gate.enter(&req.user); !entered && s.config.Fairness == nil {
			return false, req.refuse(1)
		}
	}
	if s.config.Fairness == nil || stream && req.info.verb != "watch" {
		return true, nil
	}
	wait := s.limits.Timeout
	if deadline, ok := req.ctx.Deadline(); ok && !stream {
		wait = deadline.Sub(req.start)
	}
	until := req.start.Add(min(wait/4, longestWait))
	admitted := s.config.Fairness.Enter(req.ctx, &req.attributes, s.workOf(req), until, &req.turn)
	req.turn.Headers(req.w.Header())
	if !admitted {
		return false, req.refuse(req.turn.RetryAfter())
	}
	return true, nil
}

// leave ends what takeTurn began.
func (r *request) leave() {
	r.turn.Leave()
	if r.gate != nil {
		r.gate.leave()
	}
}

// refuse asks the client to come again in some seconds.
func (r *request) refuse(seconds int) error {
	header := r.w.Header()
	header.Set("Retry-After", strconv.Itoa(seconds))
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header["X-Content-Type-Options"] = nosniff
	r.w.WriteHeader(http.StatusTooManyRequests)
	_, err := io.WriteString(r.w, "Too many requests, please try again later.\n")
	return err
}

// workOf estimates what the request costs, from what is known before it is looked at closely.
func (s *Server) workOf(req *request) fairness.Work {
	info := &req.info
	if !info.isResource() {
		return fairness.Work{}
	}
	switch info.verb {
	case "create", "update", "patch", "delete":
		if res := s.requested(info); res != nil && res.subs[info.subresource] != nil && res.subs[info.subresource].StoresNothing {
			return fairness.Work{} // no watch is notified
		}
		return fairness.WriteWork(s.config.Fairness.Watches.Interested(&req.attributes))
	case "watch":
		if version := req.query.Get("resourceVersion"); version != "" && version != "0" && !isTrue(req.query, "sendInitialEvents") {
			return fairness.Work{} // it begins with nothing
		}
		return s.listWork(req)
	case "list":
		return s.listWork(req)
	}
	return fairness.Work{}
}

// sampled is how many objects stand for all when the size of a list is estimated.
const sampled = 8

// requested is the resource a path names, or nil when none of that name is served here.
func (s *Server) requested(info *requestInfo) *resource {
	return s.catalog.Load().byVersion[schema.GroupVersionResource{Group: info.group, Version: info.version, Resource: info.resource}]
}

func (s *Server) listWork(req *request) fairness.Work {
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
	seen, bytes := 0, 0
	snapshot.Ascend("", "", func(e *cache.Entry) bool {
		seen++
		bytes += len(e.Stored())
		return seen < sampled
	})
	return fairness.ListWork(objects, bytes/max(seen, 1))
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
	return s.config.Fairness.Watches.Begin(&req.attributes)
}
