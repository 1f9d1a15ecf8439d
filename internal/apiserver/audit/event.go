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

// Event is one request. All methods do nothing on a nil Event, which stands for a request that is not recorded.
type Event struct {
	auditor *Auditor
	verdict verdict

	id        string
	received  time.Time
	uri       string
	verb      string
	user      authn.User
	agent     string
	addresses []byte // sourceIPs as they are written
	object    objectReference
	hasObject bool // the request is for a resource
	stream    bool
	refused   bool // before it was received: only the answer is recorded
	ended     bool // nothing more is recorded

	addressSpace [48]byte

	mu           sync.Mutex // annotations may come from several goroutines
	impersonated *authn.User
	constraint   string
	status       *metav1.Status
	code         int32
	request      []byte
	response     []byte
	annotations  []annotation
	annotated    [4]annotation
}

type annotation struct{ key, value string }

// objectReference is what a request is about.
type objectReference struct {
	resource, namespace, name, uid, group, version, resourceVersion, subresource string
}

// WantsRequest and WantsResponse say whether the bodies are recorded.
func (e *Event) WantsRequest() bool { return e != nil && e.verdict.level >= levelRequest }

// WantsResponse: see WantsRequest.
func (e *Event) WantsResponse() bool { return e != nil && e.verdict.level >= levelRequestResponse }

// Annotate notes something more. What was noted first under a key stays.
func (e *Event) Annotate(key, value string) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.annotations == nil {
		e.annotations = e.annotated[:0]
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

// Impersonated notes on whose behalf the request goes on. constraint is the verb by which that was allowed, empty for
// the old way.
func (e *Event) Impersonated(user authn.User, constraint string) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.impersonated, e.constraint = &user, constraint
}

// SetObject fills in what the path does not say of the object, but the body does.
func (e *Event) SetObject(obj metav1.Object) {
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

// SetRequest notes the body of the request: JSON, which is kept.
func (e *Event) SetRequest(body []byte) {
	if !e.WantsRequest() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.request = e.body(body)
}

// SetResponse notes the body of the answer: JSON, which is kept.
func (e *Event) SetResponse(body []byte) {
	if !e.WantsResponse() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.response = e.body(body)
}

// body is what is recorded of a body.
func (e *Event) body(body []byte) []byte {
	if e.verdict.omitManagedFields {
		return withoutManagedFields(body)
	}
	return compact(body)
}

// SetStatus notes a Status that the request is answered with. It is not changed afterwards.
func (e *Event) SetStatus(status *metav1.Status) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.status, e.code = status, status.Code
}

// Received records that the request arrived. It reports false when the request must not go on because it cannot be recorded.
func (e *Event) Received(stream bool) bool {
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

// Unauthenticated says that the request does not even arrive, because nobody knows who sent it: there is only an answer to record.
func (e *Event) Unauthenticated() {
	if e != nil {
		e.refused = true
	}
}

// Started is called when the answer begins. The beginning of a stream is recorded.
func (e *Event) Started(code int) {
	if e == nil {
		return
	}
	e.mu.Lock()
	e.code = int32(code)
	e.mu.Unlock()
	if e.stream || e.refused {
		e.stage(stageStarted, time.Now())
	}
}

// Complete records that the answer was given.
func (e *Event) Complete() {
	if e == nil || e.refused {
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

// Panicked records that the server failed.
func (e *Event) Panicked(cause any) {
	if e == nil || e.refused {
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
	if e.ended || e.verdict.omitted&at != 0 {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.auditor.record(e, at, now)
}

const longestUserAgent = 1024

func userAgent(r *http.Request) string {
	agent := r.UserAgent()
	if len(agent) > longestUserAgent {
		return agent[:longestUserAgent] + "...TRUNCATED"
	}
	return agent
}

// tokenParameter is the parameter in which browsers, who cannot set headers on a WebSocket, carry their token.
const tokenParameter = "access_token"

// requestURI is the URI as the client sent it, without tokens.
func requestURI(r *http.Request) string {
	uri := r.RequestURI
	if !strings.HasPrefix(uri, "/") {
		uri = r.URL.RequestURI()
	}
	path, query, ok := strings.Cut(uri, "?")
	if !ok || !hidesToken(query) {
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

func hidesToken(query string) bool {
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

// appendAddresses writes where the request comes from: the addresses proxies tell, and last the one that cannot be forged.
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
