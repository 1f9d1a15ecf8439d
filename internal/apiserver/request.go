package apiserver

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"

	"skiff/internal/apiserver/audit"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/apiserver/fairness"
	"skiff/internal/kind"
)

// request is an API request with the state that the filters add.
type request struct {
	*http.Request
	w     *responseWriter
	ctx   context.Context
	query url.Values
	info  requestInfo
	// longRunning: the request lasts as long as its client wants.
	longRunning bool
	res         *resource
	sub         *kind.Subresource // nil for the resource itself
	user        authn.User
	start       time.Time
	// span is the span of the request; nil without tracing.
	span trace.Span
	// inFlight counts the request; nil for long-running ones.
	inFlight *inFlightLimiter
	seats    fairness.Seats
	// large is the request as one of the server's large writes; nil if it is none.
	large *largeWrite

	id         string       // audit ID
	event      *audit.Event // nil when the request is not recorded
	attributes authz.Attributes
	warnings   []string
	warned     sets.Set[string] // all texts of warnings, written ones included
}

// Context is done when the client disconnects or the request's deadline passes.
func (r *request) Context() context.Context { return r.ctx }

// warn adds a Warning header. It must be called before the response is written.
func (r *request) warn(text string) {
	if r.warned.Has(text) {
		return
	}
	if r.warned == nil {
		r.warned = sets.New[string]()
	}
	r.warned.Insert(text)
	r.warnings = append(r.warnings, text)
}

// annotate adds an annotation to the request's audit event.
func (r *request) annotate(key, value string) { r.event.Annotate(key, value) }

// annotateRequest adds an annotation that repeats part of the request object: only events with the request object get it.
func (r *request) annotateRequest(key, value string) {
	if r.event.WantsRequest() {
		r.event.Annotate(key, value)
	}
}

// requestInfo is a parsed method and path; upstream's RequestInfo.
type requestInfo struct {
	verb string
	path string
	// resource is empty for requests that are not for a resource (discovery, health).
	group, version, resource, subresource, namespace, name string
	// rest is the path below the subresource, with its leading slash, or empty.
	rest string
}

func (i *requestInfo) isResource() bool { return i.resource != "" }

// cutSegment splits the first segment off a path without its leading slash.
func cutSegment(p string) (segment, rest string) {
	segment, rest, _ = strings.Cut(p, "/")
	return segment, rest
}

// parseRequest parses a method and a path. Requests for resources have the form
//
//	/api/{version}/{resource}[/{name}[/{subresource}]]
//	/api/{version}/namespaces/{namespace}/{resource}[/{name}[/{subresource}]]
//
// with /apis/{group} instead of /api for all groups but the core one, and a deprecated form of watch with "watch" after the version.
func parseRequest(method, urlPath string, query url.Values) requestInfo {
	info := requestInfo{verb: strings.ToLower(method), path: urlPath}
	root, rest := cutSegment(strings.Trim(urlPath, "/"))
	switch root {
	case "apis":
		info.group, rest = cutSegment(rest)
		if info.group == "" {
			return info
		}
	case "api":
	default:
		return info
	}
	info.version, rest = cutSegment(rest)
	if info.version == "" || rest == "" {
		return info
	}
	verb := verbOf(method)
	if first, after := cutSegment(rest); first == "watch" && after != "" {
		verb, rest = "watch", after
	}
	named := info
	named.verb = verb
	named.parseResource(rest)
	if named.resource == "" {
		return info
	}
	named.refineVerb(query)
	return named
}

func verbOf(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return ""
}

// parseResource parses what follows the version. A namespace is a resource and a scope: what follows its name is a resource in it,
// unless it is one of the two subresources of namespaces.
func (i *requestInfo) parseResource(rest string) {
	i.resource, rest = cutSegment(rest)
	if i.resource == "namespaces" && rest != "" {
		var after string
		i.namespace, after = cutSegment(rest)
		if next, below := cutSegment(after); next != "" && next != "status" && next != "finalize" {
			i.resource, rest = next, below
		}
	}
	if rest == "" {
		return
	}
	i.name, rest = cutSegment(rest)
	if rest == "" {
		return
	}
	if i.name == "" {
		// An empty name. It must not be taken for a list, which is authorized differently.
		i.resource = ""
		return
	}
	var below bool
	i.subresource, i.rest, below = strings.Cut(rest, "/")
	if below {
		i.rest = "/" + i.rest
	}
}

// refineVerb sets list, watch and deletecollection where the path names no object.
func (i *requestInfo) refineVerb(query url.Values) {
	if i.name != "" {
		return
	}
	switch i.verb {
	case "get":
		i.verb = "list"
		if isTrue(query, "watch") {
			i.verb = "watch"
		}
	case "delete":
		i.verb = "deletecollection"
	}
	if i.verb == "list" || i.verb == "watch" || i.verb == "deletecollection" {
		i.name = selectedName(query.Get("fieldSelector"))
	}
}

// selectedName is the only name that a field selector allows. Authorization sees it as the request's name.
func selectedName(selector string) string {
	if selector == "" || !strings.Contains(selector, "metadata.name") {
		return ""
	}
	parsed, err := fields.ParseSelector(selector)
	if err != nil {
		return ""
	}
	name, ok := parsed.RequiresExactMatch("metadata.name")
	if !ok || len(path.IsValidPathSegmentName(name)) > 0 {
		return ""
	}
	return name
}

// isTrue parses a boolean parameter; present without a value means true.
func isTrue(query url.Values, key string) bool {
	values, ok := query[key]
	if !ok || len(values) == 0 {
		return false
	}
	switch strings.ToLower(values[0]) {
	case "false", "0":
		return false
	}
	return true
}
