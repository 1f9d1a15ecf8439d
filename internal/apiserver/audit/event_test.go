package audit

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"skiff/internal/apiserver/authn"
)

// kept is a backend that keeps the events.
type kept struct {
	backend
	lines  [][]byte
	refuse bool
}

func (k *kept) send(line []byte) bool {
	k.lines = append(k.lines, bytes.Clone(line))
	return !k.refuse
}

func (k *kept) events(t testing.TB) (events []auditv1.Event) {
	t.Helper()
	for _, line := range k.lines {
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		// The encoding must be identical to that of the API type.
		again, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again, line) {
			t.Errorf("wrote %s\n want %s", line, again)
		}
		events = append(events, e)
	}
	return events
}

func newAuditor(t testing.TB, policy string) (*Auditor, *kept) {
	out := &kept{}
	return &Auditor{
		policy: parse(t, policy), outputs: []output{{backend: out, name: "log"}}, log: slog.New(slog.DiscardHandler), metrics: newMetrics(),
	}, out
}

func newRequest(method, target string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	r.RemoteAddr = "192.0.2.7:4711"
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	return r
}

func TestEventFields(t *testing.T) {
	a, out := newAuditor(t, "rules: [{level: RequestResponse}]")
	attributes := ask("tim update apps:deployments/scale prod web")
	attributes.Version = "v1"
	attributes.User.UID = "7"
	attributes.User.Extra = map[string]authenticationv1.ExtraValue{"b": {"1", "2"}, "a": {"ü\"<"}}
	received := time.Date(2026, 1, 2, 3, 4, 5, 6789000, time.UTC)
	e := a.Begin(newRequest("PUT", "/apis/apps/v1/namespaces/prod/deployments/web/scale?x=y&z", "User-Agent: test/1"), "id-1", received, attributes)
	e.Annotate("authorization.k8s.io/reason", "because")
	e.Annotate("authorization.k8s.io/decision", "allow")
	e.Annotate("authorization.k8s.io/decision", "forbid")
	e.Annotate("a", "1")
	e.Annotate("z", "2")
	e.Annotate("m", "3")
	if !e.RecordReceived(false) {
		t.Error("rejected")
	}
	e.Impersonated(authn.User{Username: "bob"}, "impersonate:user-info")
	e.SetObjectRef(&metav1.ObjectMeta{Name: "other", Namespace: "other", UID: "u", ResourceVersion: "9"})
	e.SetRequestObject([]byte(`{ "kind": "Scale" }`))
	e.SetStatus(&metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   "Failure", Message: "no <way>", Reason: "Conflict", Code: 409,
		Details: &metav1.StatusDetails{
			Name: "n", Group: "g", Kind: "k", UID: "u", RetryAfterSeconds: 3, Causes: []metav1.StatusCause{{Type: "t", Message: "m", Field: "f"}},
		},
	})
	e.Started(409)
	e.SetResponseObject([]byte("{\"kind\":\"Status\"}\n"))
	e.Complete()
	events := out.events(t)
	if len(events) != 2 || events[0].Stage != "RequestReceived" || events[0].RequestObject != nil || events[0].ResponseStatus != nil ||
		!events[0].StageTimestamp.Time.Equal(received) {
		t.Fatalf("%+v", events)
	}
	got := events[1]
	if got.StageTimestamp.Before(&got.RequestReceivedTimestamp) {
		t.Error("the end is before the beginning")
	}
	got.StageTimestamp = metav1.MicroTime{}
	want := auditv1.Event{
		TypeMeta: metav1.TypeMeta{Kind: "Event", APIVersion: "audit.k8s.io/v1"},
		Level:    "RequestResponse", AuditID: "id-1", Stage: "ResponseComplete", Verb: "update",
		RequestURI: "/apis/apps/v1/namespaces/prod/deployments/web/scale?x=y&z", User: attributes.User,
		ImpersonatedUser:       &authenticationv1.UserInfo{Username: "bob"},
		AuthenticationMetadata: &auditv1.AuthenticationMetadata{ImpersonationConstraint: "impersonate:user-info"},
		SourceIPs:              []string{"192.0.2.7"}, UserAgent: "test/1",
		ObjectRef: &auditv1.ObjectReference{
			Resource: "deployments", Subresource: "scale", Namespace: "prod", Name: "web", UID: types.UID("u"), APIGroup: "apps", APIVersion: "v1", ResourceVersion: "9",
		},
		ResponseStatus: &metav1.Status{Status: "Failure", Message: "no <way>", Reason: "Conflict", Code: 409, Details: &metav1.StatusDetails{
			Name: "n", Group: "g", Kind: "k", UID: "u", RetryAfterSeconds: 3, Causes: []metav1.StatusCause{{Type: "t", Message: "m", Field: "f"}},
		}},
		RequestObject:            &runtime.Unknown{Raw: []byte(`{"kind":"Scale"}`), ContentType: "application/json"},
		ResponseObject:           &runtime.Unknown{Raw: []byte(`{"kind":"Status"}`), ContentType: "application/json"},
		RequestReceivedTimestamp: metav1.NewMicroTime(received.Truncate(time.Microsecond).Local()),
		Annotations: map[string]string{
			"authorization.k8s.io/reason": "because", "authorization.k8s.io/decision": "allow", "a": "1", "m": "3", "z": "2",
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestStages(t *testing.T) {
	for _, tt := range []struct {
		name   string
		policy string
		do     func(e *Event)
		want   string // stage and code of each event
	}{
		{"an ordinary request", "", func(e *Event) { e.RecordReceived(false); e.Started(200); e.Complete() }, "RequestReceived 0, ResponseComplete 200"},
		{"a stream", "", func(e *Event) { e.RecordReceived(true); e.Started(101); e.Complete() }, "RequestReceived 0, ResponseStarted 101, ResponseComplete 101"},
		{"no answer", "", func(e *Event) { e.RecordReceived(false); e.Complete() }, "RequestReceived 0, ResponseComplete 200"},
		{"a stream without answer", "", func(e *Event) { e.RecordReceived(true); e.Complete() }, "RequestReceived 0, ResponseStarted 200, ResponseComplete 200"},
		{"a panic", "", func(e *Event) { e.RecordReceived(false); e.Panicked("!"); e.Started(500); e.Complete() }, "RequestReceived 0, Panic 500"},
		{"not authenticated", "", func(e *Event) { e.Unauthenticated(); e.Started(401); e.Complete() }, "ResponseStarted 401"},
		{"stages left out", ", omitStages: [RequestReceived, ResponseStarted]", func(e *Event) { e.RecordReceived(true); e.Started(200); e.Complete() }, "ResponseComplete 200"},
	} {
		a, out := newAuditor(t, "rules: [{level: Metadata"+tt.policy+"}]")
		tt.do(a.Begin(newRequest("GET", "/x"), "1", time.Now(), ask("tim get /x")))
		var got []string
		for _, e := range out.events(t) {
			code := int32(0)
			if e.ResponseStatus != nil {
				code = e.ResponseStatus.Code
			}
			got = append(got, string(e.Stage)+" "+strings.TrimSpace(json.Number(itoa(code)).String()))
		}
		if strings.Join(got, ", ") != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, strings.Join(got, ", "), tt.want)
		}
	}
}

func itoa(n int32) string { b, _ := json.Marshal(n); return string(b) }

func TestLevelNone(t *testing.T) {
	a, out := newAuditor(t, "rules: [{level: None}]")
	e := a.Begin(newRequest("GET", "/x"), "1", time.Now(), ask("tim get /x"))
	if e != nil {
		t.Fatal("an event")
	}
	e.Annotate("a", "b")
	e.SetObjectRef(nil)
	e.SetRequestObject(nil)
	e.SetStatus(&metav1.Status{})
	e.Impersonated(authn.User{}, "")
	e.Unauthenticated()
	if !e.RecordReceived(false) || e.WantsRequest() || e.WantsResponse() {
		t.Error("it wants something")
	}
	e.Started(200)
	e.Panicked("!")
	e.Complete()
	if len(out.lines) > 0 {
		t.Errorf("%s", out.lines)
	}
	var none *Auditor
	if none.Begin(nil, "", time.Now(), nil) != nil || none.Run(t.Context()) != nil {
		t.Error("a nil auditor records something")
	}
}

func TestStrictRejection(t *testing.T) {
	a, out := newAuditor(t, "rules: [{level: Metadata}]")
	out.refuse = true
	if a.Begin(newRequest("GET", "/x"), "1", time.Now(), ask("tim get /x")).RecordReceived(false) {
		t.Error("the request was not rejected")
	}
}

func TestBodiesByLevel(t *testing.T) {
	const body = `{"kind":"Pod","metadata":{"name":"a","managedFields":[{"manager":"m"}]},"spec":{"n":12345678901234567890}}`
	const list = `{"items":[` + body + `],"rows":[{"object":` + body + `}],"metadata":{}}`
	for _, tt := range []struct{ rule, request, response string }{
		{"level: Metadata", "", ""},
		{"level: Request", body, ""},
		{"level: RequestResponse", body, list},
		{"level: RequestResponse, omitManagedFields: true",
			`{"kind":"Pod","metadata":{"name":"a"},"spec":{"n":12345678901234567890}}`,
			`{"items":[{"kind":"Pod","metadata":{"name":"a"},"spec":{"n":12345678901234567890}}],"metadata":{},"rows":[{"object":{"kind":"Pod","metadata":{"name":"a"},"spec":{"n":12345678901234567890}}}]}`},
	} {
		a, out := newAuditor(t, "rules: [{"+tt.rule+"}]")
		e := a.Begin(newRequest("GET", "/x"), "1", time.Now(), ask("tim create pods ns"))
		e.SetRequestObject([]byte(body))
		e.SetResponseObject([]byte(list))
		e.Complete()
		got := out.events(t)[0]
		raw := func(u *runtime.Unknown) string {
			if u == nil {
				return ""
			}
			return string(u.Raw)
		}
		if raw(got.RequestObject) != tt.request || raw(got.ResponseObject) != tt.response {
			t.Errorf("%s: %s\n%s", tt.rule, raw(got.RequestObject), raw(got.ResponseObject))
		}
	}
}

func TestSourceIPs(t *testing.T) {
	for _, tt := range []struct {
		remote  string
		headers []string
		want    string
	}{
		{"192.0.2.7:1", nil, `["192.0.2.7"]`},
		{"[2001:db8::1]:1", nil, `["2001:db8::1"]`},
		{"[::ffff:192.0.2.7]:1", nil, `["192.0.2.7"]`},
		{"", nil, ``},
		{"192.0.2.7:1", []string{"X-Forwarded-For: 198.51.100.1, bad, 198.51.100.2", "X-Real-Ip: 198.51.100.3"}, `["198.51.100.1","198.51.100.2","198.51.100.3","192.0.2.7"]`},
		{"192.0.2.7:1", []string{"X-Forwarded-For: 192.0.2.7"}, `["192.0.2.7"]`},
	} {
		r := newRequest("GET", "/", tt.headers...)
		r.RemoteAddr = tt.remote
		if got := string(appendAddresses(nil, r)); got != tt.want {
			t.Errorf("%s %v: %s, want %s", tt.remote, tt.headers, got, tt.want)
		}
	}
}

func TestTokensInURLs(t *testing.T) {
	for target, want := range map[string]string{
		"/api/v1/pods?watch=1":                               "/api/v1/pods?watch=1",
		"/api/v1/pods?watch=1&access_token=s3cret":           "/api/v1/pods?watch=1&access_token=REDACTED",
		"/api/v1/pods?access_token=s3cret&watch=1":           "/api/v1/pods?access_token=REDACTED&watch=1",
		"/api/v1/pods?access%5Ftoken=s3cret":                 "/api/v1/pods?access%5Ftoken=REDACTED",
		"/api/v1/pods?x=1;ACCESS_TOKEN=s3cret":               "/api/v1/pods?x=1&ACCESS_TOKEN=REDACTED",
		"/api/v1/pods?a=access_token&labelSelector=token%3D": "/api/v1/pods?a=access_token&labelSelector=token%3D",
	} {
		if got := requestURI(newRequest("GET", target)); got != want {
			t.Errorf("%s is recorded as %s, want %s", target, got, want)
		}
	}
}

func TestLongUserAgent(t *testing.T) {
	got := userAgent(newRequest("GET", "/", "User-Agent: "+strings.Repeat("x", 2000)))
	if got != strings.Repeat("x", 1024)+"...TRUNCATED" {
		t.Errorf("%d characters", len(got))
	}
}

func TestTruncate(t *testing.T) {
	a, out := newAuditor(t, "rules: [{level: Request}]")
	a.outputs[0].options = BackendOptions{Truncate: true, MaxEventBytes: 600, MaxBatchBytes: 1000}
	e := a.Begin(newRequest("GET", "/x"), "1", time.Now(), ask("tim create pods ns"))
	e.SetRequestObject([]byte(`{"text":"` + strings.Repeat("x", 1000) + `"}`))
	e.Complete()
	got := out.events(t)
	if len(got) != 1 || got[0].RequestObject != nil || got[0].Annotations["audit.k8s.io/truncated"] != "true" {
		t.Errorf("%+v", got)
	}
	e.Annotate("long", strings.Repeat("x", 1000))
	e.Complete()
	if len(out.lines) != 1 {
		t.Error("an event that is too large was sent")
	}
}

func TestLegacyLine(t *testing.T) {
	a, out := newAuditor(t, "rules: [{level: Metadata}]")
	a.outputs[0].legacy = true
	e := a.Begin(newRequest("GET", "/x?y", "User-Agent: test"), "1", time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), ask("tim list pods ns"))
	e.Started(200)
	e.Complete()
	const want = `2026-01-02T03:04:05.000006Z AUDIT: id="1" stage="ResponseComplete" ip="192.0.2.7" method="list" user="tim" groups="\"of-tim\"" as="<self>" asgroups="<lookup>" user-agent="test" namespace="ns" uri="/x?y" response="200"`
	if got := string(out.lines[0]); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestAppendString(t *testing.T) {
	var all []byte
	for c := range 256 {
		all = append(all, byte(c))
	}
	texts := []string{"", "plain", string(all), "a&b<c>d\"e\\f", "ü&", "\u2028", "\x7f", "tab\t&", "\xff\"", "\"", "&&", strings.Repeat("x\"", 100)}
	for c := range 256 {
		texts = append(texts, "a"+string(rune(c))+"b&", string([]byte{'"', byte(c), '&'}))
	}
	for _, text := range texts {
		want, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := appendString([]byte("before"), text); string(got) != "before"+string(want) {
			t.Errorf("%q is written %s, want %s", text, got, want)
		}
	}
}
