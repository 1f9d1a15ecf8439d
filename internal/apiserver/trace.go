package apiserver

import (
	"context"
	"net/http"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"skiff/internal/apiserver/authn"
	"skiff/internal/tracing"
)

// startTrace begins the span of a request, upstream's WithTracing. Members of system:masters and system:monitoring decide by the headers of
// their requests whether a span is recorded.
func (s *Server) startTrace(req *request) {
	if s.config.Tracing == nil {
		return
	}
	trusted := slices.Contains(req.user.Groups, authn.GroupMasters) || slices.Contains(req.user.Groups, authn.GroupMonitoring)
	req.ctx, req.span = s.config.Tracing.StartRequest(req.Request, s.spanName(req), req.start, trusted)
	if !req.span.IsRecording() {
		return
	}
	scheme := "https"
	if req.TLS == nil {
		scheme = "http"
	}
	req.span.SetAttributes(
		attribute.String("http.request.method", req.Method), attribute.String("url.scheme", scheme), attribute.String("url.path", req.URL.Path),
		attribute.String("http.target", req.URL.RequestURI()), attribute.String("network.protocol.version", req.Proto),
		attribute.String("server.address", req.Host), attribute.String("client.address", req.RemoteAddr), attribute.String("user_agent.original", req.UserAgent()),
		attribute.String("audit-id", req.id),
	)
}

// finishTrace ends the span of a request.
func (s *Server) finishTrace(req *request) {
	if req.span == nil {
		return
	}
	if code := req.w.code; req.span.IsRecording() {
		req.span.SetAttributes(attribute.Int("http.response.status_code", code), attribute.Int64("http.response.body.size", int64(req.w.bytes)))
		if code >= http.StatusInternalServerError {
			req.span.SetStatus(codes.Error, http.StatusText(code))
		}
	}
	req.span.End()
}

// spanName is upstream's name of the span of a request. It has no names of objects, and only the method for resources that are not served here, so
// that the number of names is bounded.
func (s *Server) spanName(req *request) string {
	info := &req.info
	if !info.isResource() {
		return req.Method
	}
	if res := s.requested(info); res == nil || info.subresource != "" && res.subs[info.subresource] == nil {
		return req.Method
	}
	name := "/api"
	if info.group != "" {
		name = "/apis/" + info.group
	}
	name += "/" + info.version
	if info.namespace != "" {
		name += "/namespaces/{:namespace}"
	}
	name += "/" + info.resource
	if info.name != "" {
		name += "/{:name}"
	}
	if info.subresource != "" {
		name += "/" + info.subresource
	}
	return req.Method + " " + name
}

// verbSpans are upstream's names of the spans of handlers, by verb.
var verbSpans = map[string]string{
	"get": "Get", "list": "List", "create": "Create", "update": "Update", "patch": "Patch", "delete": "Delete", "deletecollection": "Delete",
}

// traceVerb begins the span of the handler of a request, until the function it returns is called.
func (s *Server) traceVerb(req *request) (end func()) {
	if req.span == nil || !req.span.IsRecording() {
		return func() {}
	}
	info := &req.info
	name := verbSpans[info.verb]
	if info.verb == "watch" && isTrue(req.query, "sendInitialEvents") {
		name = "WatchList"
	}
	if name == "" {
		return func() {}
	}
	ctx, span := tracing.Start(req.ctx, name,
		attribute.String("accept", req.Header.Get("Accept")), attribute.String("audit-id", req.id), attribute.String("client", req.RemoteAddr),
		attribute.String("api-group", info.group), attribute.String("api-version", info.version), attribute.String("name", info.name),
		attribute.String("subresource", info.subresource), attribute.String("namespace", info.namespace), attribute.String("protocol", req.Proto),
		attribute.String("resource", info.resource), attribute.String("scope", scopeOf(info)), attribute.String("url", req.URL.Path),
		attribute.String("user-agent", req.UserAgent()), attribute.String("verb", reportedVerb(req)),
	)
	req.ctx = ctx
	return func() { span.End() }
}

// traceStore begins the span of a write to the store.
func (w *write) traceStore(name string) (context.Context, trace.Span) {
	if w.s.config.Tracing == nil {
		return w.ctx, noop.Span{}
	}
	gr := w.res.groupResource()
	return tracing.Start(w.ctx, name, attribute.String("key", w.key()), attribute.String("type", w.res.gvk.Kind),
		attribute.String("group", gr.Group), attribute.String("resource", gr.Resource))
}
