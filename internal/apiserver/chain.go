package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
)

var (
	cacheControl = []string{"no-cache, private"}
	nosniff      = []string{"nosniff"}

	closeConnection = []string{"close"}
)

// serve handles a request. Whatever happens, the client gets a response, and the response is counted and audited. The filters run in
// the order of handle; the names of upstream's filters are given there.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	req := &request{Request: r, w: &responseWriter{ResponseWriter: w}, ctx: r.Context(), start: time.Now()}
	defer s.finish(req)
	header := w.Header()
	header["Cache-Control"] = cacheControl
	req.id = auditID(r)
	header["Audit-Id"] = []string{req.id}
	if r.ProtoMajor == 1 && s.shutdown.begun.Load() {
		header["Connection"] = closeConnection
	}
	s.setResponseHeaders(req) // WithHSTS, WithProbabilisticGoaway
	if r.URL.RawQuery != "" {
		req.query = r.URL.Query()
	}
	req.info = parseRequest(r.Method, r.URL.Path, req.query)
	req.longRunning = isLongRunning(&req.info) || s.upgradesAggregated(req)
	s.setWriteDeadline(req)
	if err := s.handle(req); err != nil {
		s.respondError(req, err)
	}
}

// handle is the filter chain: every step may end the request. It ends in dispatch.
func (s *Server) handle(req *request) error {
	// WithCORS.
	if s.servePreflight(req) {
		return nil
	}
	if err := s.waitForCache(req); err != nil {
		return err
	}
	// WithAuthentication and WithAudit.
	if err := s.authenticate(req); err != nil {
		return err
	}
	// WithTracing.
	s.startTrace(req)
	// WithImpersonation.
	if s.config.Impersonate != nil && wantsImpersonation(req.Header) {
		user, mode, err := s.config.Impersonate(req.Request, req.user)
		if err != nil {
			return err
		}
		// Impersonating oneself may still change the groups.
		req.user = user
		req.event.Impersonated(user, mode)
	}
	req.attributes = req.info.attributes(req.query)
	req.attributes.User = req.user
	// WithRequestDeadline and WithWatchTerminationDuringShutdown.
	if req.longRunning {
		defer s.shutdown.endAtShutdown(req)()
	} else {
		cancel, err := s.setDeadline(req)
		if err != nil {
			return err
		}
		defer cancel()
	}
	// WithPriorityAndFairness.
	defer s.release(req)
	if admitted, err := s.limitInFlight(req); err != nil || !admitted {
		return err
	}
	// WithAuthorization.
	if err := s.authorize(req); err != nil {
		return err
	}
	return s.dispatch(req)
}

func auditID(r *http.Request) string {
	if sent := r.Header.Get("Audit-Id"); sent != "" {
		return sent
	}
	return uuid.NewString()
}

func (s *Server) authenticate(req *request) error {
	id, ok, err := s.identify(req.Request)
	if err != nil || !ok {
		if err != nil {
			s.log.Debug("request not authenticated", "path", req.URL.Path, "error", err)
		}
		s.auditUnauthenticated(req)
		req.closeUnauthenticated()
		req.writeBy(time.Now().Add(min(unauthenticatedWriteTimeout, s.limits.Timeout)))
		return apierrors.NewUnauthorized("Unauthorized")
	}
	// No later handler needs the credential, least of all a server we proxy to.
	req.Header.Del("Authorization")
	req.user = id.User
	if isAnonymous(&req.user) {
		req.closeUnauthenticated()
	}
	for _, text := range id.Warnings {
		req.warn(text)
	}
	return s.beginAudit(req, &id)
}

func isMutating(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	}
	return true
}

// isLongRunning reports whether a request lasts as long as its client wants, with the verbs, subresources and paths of upstream's
// LongRunningFunc. Such requests have no deadline.
func isLongRunning(info *requestInfo) bool {
	if info.verb == "watch" || !info.isResource() && strings.HasPrefix(info.path, "/debug/pprof/") {
		return true
	}
	switch info.subresource {
	case "attach", "exec", "proxy", "log", "portforward":
		return true
	}
	return false
}

// setDeadline sets the deadline of the request: the server's timeout, or the client's if it is shorter.
func (s *Server) setDeadline(req *request) (context.CancelFunc, error) {
	timeout := s.limits.Timeout
	if requested := req.query.Get("timeout"); requested != "" {
		d, err := time.ParseDuration(requested)
		if err != nil {
			return nil, apierrors.NewBadRequest("invalid timeout specified in the request URL - " + err.Error())
		}
		if d > 0 && d < timeout {
			timeout = d
		}
	}
	ctx, cancel := context.WithTimeout(req.ctx, timeout)
	req.ctx = ctx
	return cancel, nil
}

func (s *Server) authorize(req *request) error {
	a := &req.attributes
	decision, reason, err := s.config.Authorizer.Authorize(req.ctx, a)
	if decision == authz.Allow {
		req.auditDecision("allow", reason)
		return nil
	}
	if err != nil {
		req.event.Annotate("authorization.k8s.io/reason", "internal error")
		return apierrors.NewInternalError(err)
	}
	req.auditDecision("forbid", reason)
	req.w.Header()["X-Content-Type-Options"] = nosniff
	return errForbidden(a, reason)
}

// waitForCache delays requests for resources until the cache is loaded: authorization reads from it. Health checks and discovery are
// not delayed.
func (s *Server) waitForCache(req *request) error {
	if !req.info.isResource() {
		return nil
	}
	select {
	case <-s.config.Cache.Ready():
		return nil
	case <-req.ctx.Done():
		return req.ctx.Err()
	}
}

// wantsImpersonation reports whether the request has impersonation headers.
func wantsImpersonation(header http.Header) bool {
	for name := range header {
		if strings.HasPrefix(name, "Impersonate-") {
			return true
		}
	}
	return false
}

// attributes returns the authorization attributes, without the user.
func (i *requestInfo) attributes(query url.Values) authz.Attributes {
	if !i.isResource() {
		return authz.Attributes{Verb: i.verb, Path: i.path}
	}
	a := authz.Attributes{
		ResourceRequest: true, Verb: i.verb, Group: i.group, Version: i.version, Resource: i.resource, Subresource: i.subresource,
		Namespace: i.namespace, Name: i.name,
	}
	switch i.verb {
	case "list", "watch", "deletecollection":
		a.FieldSelector, a.LabelSelector = query.Get("fieldSelector"), query.Get("labelSelector")
	}
	return a
}

// RequestAttributes returns the authorization attributes of a request, without the user.
func RequestAttributes(r *http.Request) authz.Attributes {
	query := r.URL.Query()
	info := parseRequest(r.Method, r.URL.Path, query)
	return info.attributes(query)
}

// dispatch calls the handler of the resource, subresource or path.
func (s *Server) dispatch(req *request) error {
	if service := s.catalog.findAggregated(req.info.group, req.info.version); service != nil {
		return s.proxyAggregated(req, service)
	}
	if !req.info.isResource() {
		return s.dispatchPath(req)
	}
	info := &req.info
	gv := schema.GroupVersion{Group: info.group, Version: info.version}
	req.res, _ = acquire(func() (*resource, error) { return s.catalog.find(gv.WithResource(info.resource)), nil })
	if req.res == nil {
		if !s.catalog.servesVersion(gv) {
			return s.notFound(req)
		}
		return errNoRoute()
	}
	defer req.res.release()
	if req.res.callsWebhook() {
		req.ctx = kind.WithWait(req.ctx, req.waitForConversion)
	}
	if err := checkScope(req); err != nil {
		return err
	}
	if req.res.deprecation != "" {
		req.warn(req.res.deprecation)
		req.res.metrics.deprecated(info.subresource, req.res.removedRelease)
	}
	if info.subresource == "" {
		defer s.traceVerb(req)()
		return s.dispatchResource(req)
	}
	if req.sub = req.res.subs[info.subresource]; req.sub == nil || info.verb == "watch" {
		return errNoRoute()
	}
	defer s.traceVerb(req)()
	return s.dispatchSubresource(req)
}

// checkScope checks that a path has a namespace where the kind needs one. Only list and watch of a namespaced kind go without.
func checkScope(req *request) error {
	info := &req.info
	if req.res.kind.IsNamespace {
		return nil
	}
	if !req.res.kind.Namespaced {
		if info.namespace != "" {
			return errNoRoute()
		}
		return nil
	}
	if info.namespace == "" && info.verb != "list" && info.verb != "watch" {
		if info.name != "" && info.verb != "deletecollection" {
			return errNoRoute()
		}
		return errNoMethod()
	}
	return nil
}

func (s *Server) dispatchResource(req *request) error {
	verb := req.info.verb
	if req.Method == http.MethodHead || !req.res.kind.Serves(verb) {
		return errNoMethod()
	}
	// A path of one object and a path of a collection allow different methods.
	named := req.info.name != "" && verb != "list" && verb != "watch" && verb != "deletecollection"
	switch {
	case verb == "get" && named:
		return s.get(req)
	case verb == "list":
		return s.list(req)
	case verb == "watch" && req.Method == http.MethodGet:
		return s.watch(req)
	case verb == "create" && !named:
		return s.create(req)
	case verb == "update" && named:
		return s.update(req)
	case verb == "patch" && named:
		return s.patch(req)
	case verb == "delete" && named:
		return s.delete(req)
	case verb == "deletecollection":
		return s.deleteCollection(req)
	}
	return errNoMethod()
}

func (s *Server) dispatchSubresource(req *request) error {
	sub := req.sub
	if sub.Update == nil && sub.View == nil && sub.Create == nil {
		return s.connect(req)
	}
	if req.info.rest != "" {
		return errNoRoute()
	}
	if req.Method == http.MethodHead || !servesSub(req) {
		return errNoMethod()
	}
	switch req.info.verb {
	case "get":
		return s.getSub(req)
	case "update":
		return s.updateSub(req)
	case "patch":
		return s.patchSub(req)
	case "create":
		return s.createSub(req)
	}
	return errNoMethod()
}

// servesSub reports whether the subresource supports the verb; see kind.Subresource for the defaults.
func servesSub(req *request) bool {
	for _, verb := range subVerbs(req.sub) {
		if verb == req.info.verb {
			return true
		}
	}
	return false
}

// connect passes the request to the Connector of the subresource.
func (s *Server) connect(req *request) error {
	info := &req.info
	// Proxies pass all methods on; HEAD and OPTIONS have no verbs of their own.
	bare := req.Method == http.MethodHead || req.Method == http.MethodOptions
	if (bare && info.subresource != "proxy") || (!bare && !servesSub(req)) {
		return errNoMethod()
	}
	connector := s.config.Connectors[info.resource+"/"+info.subresource]
	if connector == nil {
		return errNoRoute()
	}
	if info.verb == "get" && req.sub.ConnectNeedsCreate {
		req.attributes.Verb = "create"
		if err := s.authorize(req); err != nil {
			return err
		}
	}
	if err := s.admitConnection(req); err != nil {
		return err
	}
	req.writeWarnings()
	return connector.Connect(req.w, req.Request.WithContext(req.ctx), &Connection{
		User: req.user, Resource: req.res.groupResource(), Subresource: info.subresource,
		Namespace: info.namespace, Name: info.name, Path: info.rest,
	})
}

// admitConnection runs admission for a connection.
func (s *Server) admitConnection(req *request) error {
	if req.sub.ConnectOptions == nil {
		return nil
	}
	options, err := req.sub.ConnectOptions(req.query, req.info.rest)
	if err != nil {
		return err
	}
	attributes := &admission.Attributes{
		Operation: admission.Connect, Kind: req.sub.BodyGVK(req.res.gvk), Resource: req.res.gvr, Subresource: req.info.subresource,
		Namespace: req.info.namespace, Name: req.info.name, Object: options, User: req.user,
		Versions: &writtenVersions{req.ctx, s, req.res, req.sub}, Warn: req.warn, Annotate: req.annotate, AnnotateRequest: req.annotateRequest, OnWait: req.waitForServer,
	}
	if err := s.config.Admission.Mutate(req.ctx, attributes); err != nil {
		return err
	}
	return s.config.Admission.Validate(req.ctx, attributes)
}

// respondError responds with the Status of an error, unless the response has already begun.
func (s *Server) respondError(req *request, err error) {
	if req.w.code != 0 {
		s.log.Warn("request failed after its response had begun", "path", req.URL.Path, "error", err)
		return
	}
	var gr schema.GroupResource
	if req.res != nil {
		gr = req.res.groupResource()
	}
	status := statusOf(err, gr, req.info.name)
	if status.Code == http.StatusInternalServerError {
		s.log.Error("request failed", "verb", req.info.verb, "path", req.URL.Path, "error", err)
	}
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		req.w.Header().Set("Retry-After", fmt.Sprint(status.Details.RetryAfterSeconds))
	}
	if err := s.respondStatus(req, int(status.Code), status); err != nil {
		s.log.Error("failed to write Status", "path", req.URL.Path, "error", err)
	}
}

// finish ends every request, also after a panic: it counts and audits the response.
func (s *Server) finish(req *request) {
	if cause := recover(); cause != nil {
		req.event.Panicked(cause)
		if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			panic(cause)
		}
		s.metrics.panics.Inc()
		s.log.Error("request panicked", "verb", req.info.verb, "path", req.URL.Path, "cause", cause, "stack", string(debug.Stack()))
		if req.w.code != 0 {
			panic(http.ErrAbortHandler) // the client must not take a partial response for a complete one
		}
		http.Error(req.w, textPanicked, http.StatusInternalServerError)
	}
	s.metrics.record(req)
	s.finishTrace(req)
	s.finishAudit(req)
}
