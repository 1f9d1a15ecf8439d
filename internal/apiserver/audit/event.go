package audit

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"skiff/internal/apiserver/authn"
)

// Event is the audit event of one request. All methods do nothing on a nil Event, which is that of a request not recorded.
type Event struct {
	auditor     *Auditor
	auditConfig auditConfig

	id              string
	received        time.Time
	uri             string
	verb            string
	user            authn.User
	agent           string
	addresses       []byte // sourceIPs, encoded
	object          objectReference
	hasObject       bool // the request is for a resource
	stream          bool
	unauthenticated bool // only the response is recorded
	ended           bool // nothing more is recorded

	addressBuffer [48]byte

	mu               sync.Mutex // annotations may be added by several goroutines
	impersonated     *authn.User
	constraint       string
	status           *metav1.Status
	code             int32
	request          []byte
	response         []byte
	annotations      []annotation
	annotationBuffer [4]annotation
}

type annotation struct{ key, value string }

// objectReference is the object of a request.
type objectReference struct {
	resource, namespace, name, uid, group, version, resourceVersion, subresource string
}

// WantsRequest reports whether the request body is recorded.
func (e *Event) WantsRequest() bool { return e != nil && e.auditConfig.level >= levelRequest }

// WantsResponse reports whether the response body is recorded.
func (e *Event) WantsResponse() bool { return e != nil && e.auditConfig.level >= levelRequestResponse }

// Annotate adds an annotation. The first value of a key is kept.
func (e *Event) Annotate(key, value string) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.annotations == nil {
		e.annotations = e.annotationBuffer[:0]
	}
	at := len(e.annotations)
	for i := range e.annotations {
		if e.annotations[i].key == key {
			return
		}
		if e.annotations[i].key > key {
			at = i
			break
		}
	}
	e.annotations = append(e.annotations, annotation{})
	copy(e.annotations[at+1:], e.annotations[at:])
	e.annotations[at] = annotation{key, value}
}

// Impersonated sets the impersonated user. constraint is the verb that allowed it, empty for legacy impersonation.
func (e *Event) Impersonated(user authn.User, constraint string) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.impersonated, e.constraint = &user, constraint
}

// SetObjectRef completes objectRef from the object in the body: the fields that the request's path does not have.
func (e *Event) SetObjectRef(obj metav1.Object) {
	if e == nil || !e.hasObject || obj == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	fill := func(to *string, from string) {
		if *to == "" {
			*to = from
		}
	}
	fill(&e.object.namespace, obj.GetNamespace())
	fill(&e.object.name, obj.GetName())
	fill(&e.object.uid, string(obj.GetUID()))
	fill(&e.object.resourceVersion, obj.GetResourceVersion())
}

// SetRequestObject sets requestObject, which is JSON. The event keeps it.
func (e *Event) SetRequestObject(body []byte) {
	if !e.WantsRequest() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.request = e.body(body)
}

// SetResponseObject sets responseObject, which is JSON. The event keeps it.
func (e *Event) SetResponseObject(body []byte) {
	if !e.WantsResponse() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.response = e.body(body)
}

// body is the recorded form of a body.
func (e *Event) body(body []byte) []byte {
	if e.auditConfig.omitManagedFields {
		return withoutManagedFields(body)
	}
	return compact(body)
}

// SetStatus sets the Status of the response. It must not be changed afterwards.
func (e *Event) SetStatus(status *metav1.Status) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.status, e.code = status, status.Code
}

// RecordReceived records the stage RequestReceived. It returns false if the request must be rejected because it cannot be recorded.
func (e *Event) RecordReceived(stream bool) bool {
	if e == nil {
		return true
	}
	e.stream = stream
	if !e.stage(stageReceived, e.received) {
		e.auditor.rejected()
		return false
	}
	return true
}

// Unauthenticated marks a request whose authentication failed: only its response is recorded.
func (e *Event) Unauthenticated() {
	if e != nil {
		e.unauthenticated = true
	}
}

// Started is called when the response begins. For streams it records the stage ResponseStarted.
func (e *Event) Started(code int) {
	if e == nil {
		return
	}
	e.mu.Lock()
	e.code = int32(code)
	e.mu.Unlock()
	if e.stream || e.unauthenticated {
		e.stage(stageStarted, time.Now())
	}
}

// Complete records the stage ResponseComplete.
func (e *Event) Complete() {
	if e == nil || e.unauthenticated {
		return
	}
	if e.code == 0 && e.status == nil {
		e.SetStatus(&metav1.Status{Status: metav1.StatusSuccess, Message: "Connection closed early", Code: http.StatusOK})
		if e.stream {
			e.stage(stageStarted, time.Now())
		}
	}
	e.stage(stageComplete, time.Now())
}

// Panicked records the stage Panic.
func (e *Event) Panicked(cause any) {
	if e == nil || e.unauthenticated {
		return
	}
	e.SetStatus(&metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError,
		Message: fmt.Sprintf("APIServer panic'd: %v", cause),
	})
	e.stage(stagePanic, time.Now())
	e.ended = true
}

func (e *Event) stage(at stage, now time.Time) bool {
	if e.ended || e.auditConfig.omitted&at != 0 {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.auditor.record(e, at, now)
}

const maxUserAgentBytes = 1024

func userAgent(r *http.Request) string {
	agent := r.UserAgent()
	if len(agent) > maxUserAgentBytes {
		return agent[:maxUserAgentBytes] + "...TRUNCATED"
	}
	return agent
}

// tokenParameter is the query parameter in which browsers send their token, since they cannot set headers on a WebSocket.
const tokenParameter = "access_token"

// requestURI is the URI as the client sent it, without tokens.
func requestURI(r *http.Request) string {
	uri := r.RequestURI
	if !strings.HasPrefix(uri, "/") {
		uri = r.URL.RequestURI()
	}
	path, query, ok := strings.Cut(uri, "?")
	if !ok || !containsToken(query) {
		return uri
	}
	pairs := strings.FieldsFunc(query, func(c rune) bool { return c == '&' || c == ';' })
	for i, pair := range pairs {
		if key, _, _ := strings.Cut(pair, "="); isTokenParameter(key) {
			pairs[i] = key + "=REDACTED"
		}
	}
	return path + "?" + strings.Join(pairs, "&")
}

func containsToken(query string) bool {
	for query != "" {
		pair := query
		if end := strings.IndexAny(query, "&;"); end >= 0 {
			pair, query = query[:end], query[end+1:]
		} else {
			query = ""
		}
		if key, _, _ := strings.Cut(pair, "="); isTokenParameter(key) {
			return true
		}
	}
	return false
}

func isTokenParameter(key string) bool {
	if strings.IndexByte(key, '%') >= 0 {
		if plain, err := url.QueryUnescape(key); err == nil {
			key = plain
		}
	}
	return strings.EqualFold(key, tokenParameter)
}

// appendAddresses appends the source addresses of the request: those in the headers of proxies, then that of the connection.
func appendAddresses(to []byte, r *http.Request) []byte {
	if r.Header["X-Forwarded-For"] == nil && r.Header["X-Real-Ip"] == nil {
		if at, err := netip.ParseAddrPort(r.RemoteAddr); err == nil && at.Addr().Zone() == "" {
			to = append(to, '[', '"')
			to = at.Addr().Unmap().AppendTo(to)
			return append(to, '"', ']')
		}
	}
	for _, ip := range utilnet.SourceIPs(r) {
		to = appendString(append(to, ','), ip.String())
	}
	if len(to) > 0 {
		to[0] = '['
		to = append(to, ']')
	}
	return to
}
