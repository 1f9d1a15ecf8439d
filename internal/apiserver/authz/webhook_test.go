package authz

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"skiff/internal/apiserver/authn"
)

// webhookServer is an authorization webhook.
type webhookServer struct {
	*httptest.Server
	calls   atomic.Int32
	last    atomic.Pointer[string]
	respond func(call int, review map[string]any, w http.ResponseWriter)
}

func newWebhookServer(t *testing.T, respond func(call int, review map[string]any, w http.ResponseWriter)) *webhookServer {
	t.Helper()
	j := &webhookServer{respond: respond}
	j.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		text := r.Method + " " + r.URL.Path + " " + string(data)
		j.last.Store(&text)
		var review map[string]any
		_ = json.Unmarshal(data, &review)
		j.respond(int(j.calls.Add(1)), review, w)
	}))
	t.Cleanup(j.Close)
	return j
}

// status responds to a review in its version.
func status(review map[string]any, w http.ResponseWriter, fields string) {
	fmt.Fprintf(w, `{"apiVersion":%q,"kind":"SubjectAccessReview","status":{%s}}`, review["apiVersion"], fields)
}

func (j *webhookServer) kubeconfig(t *testing.T) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: j.Certificate().Raw})
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: j.URL + "/judge", CertificateAuthorityData: ca}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "x"
	data, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return write(t, "kubeconfig", string(data))
}

func (j *webhookServer) webhook(t *testing.T, change func(c *apiserver.WebhookConfiguration)) *Webhook {
	t.Helper()
	path := j.kubeconfig(t)
	c := &apiserver.WebhookConfiguration{
		AuthorizedTTL: metav1.Duration{Duration: time.Hour}, CacheAuthorizedRequests: true,
		UnauthorizedTTL: metav1.Duration{Duration: time.Hour}, CacheUnauthorizedRequests: true,
		Timeout: metav1.Duration{Duration: 5 * time.Second}, FailurePolicy: apiserver.FailurePolicyNoOpinion, SubjectAccessReviewVersion: "v1",
		ConnectionInfo: apiserver.WebhookConnectionInfo{Type: apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile, KubeConfigFile: &path},
	}
	if change != nil {
		change(c)
	}
	w, err := NewWebhook(c, compiler, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.retry.Duration = time.Millisecond
	return w
}

func TestWebhookDecisions(t *testing.T) {
	for _, test := range []struct {
		fields string
		want   Decision
		why    string
		err    string
	}{
		{`"allowed":true,"reason":"because"`, Allow, "because", ""},
		{`"allowed":false,"denied":true,"reason":"never"`, Deny, "never", ""},
		{`"allowed":false,"reason":"perhaps"`, NoOpinion, "perhaps", ""},
		{`"allowed":true,"denied":true,"reason":"both"`, Deny, "both", "webhook subject access review returned both allow and deny response"},
	} {
		for _, version := range []string{"v1", "v1beta1"} {
			j := newWebhookServer(t, func(_ int, review map[string]any, w http.ResponseWriter) { status(review, w, test.fields) })
			hook := j.webhook(t, func(c *apiserver.WebhookConfiguration) { c.SubjectAccessReviewVersion = version })
			for range 2 {
				got, why, err := hook.Authorize(context.Background(), on(user("u"), "get", "pods", "n"))
				if got != test.want || why != test.why || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
					t.Errorf("%s %s: %v %q %v", version, test.fields, got, why, err)
				}
			}
			if j.calls.Load() != 1 {
				t.Errorf("%s %s: called %d times", version, test.fields, j.calls.Load())
			}
		}
	}
}

func TestWebhookRequest(t *testing.T) {
	j := newWebhookServer(t, func(_ int, review map[string]any, w http.ResponseWriter) { status(review, w, `"allowed":true`) })
	a := on(authn.User{Username: "u", UID: "1", Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}, "list", "apps:deployments", "n")
	a.FieldSelector, a.LabelSelector = "metadata.name=x,spec.a!=b", "l in (v),!m"
	for version, want := range map[string]string{
		"v1":      `POST /judge {"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","metadata":{},"spec":{"resourceAttributes":{"namespace":"n","verb":"list","group":"apps","version":"v1","resource":"deployments","fieldSelector":{"requirements":[{"key":"metadata.name","operator":"In","values":["x"]},{"key":"spec.a","operator":"NotIn","values":["b"]}]},"labelSelector":{"requirements":[{"key":"l","operator":"In","values":["v"]},{"key":"m","operator":"DoesNotExist"}]}},"user":"u","groups":["g"],"extra":{"k":["v"]},"uid":"1"},"status":{"allowed":false}}`,
		"v1beta1": `POST /judge {"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1beta1","metadata":{},"spec":{"resourceAttributes":{"namespace":"n","verb":"list","group":"apps","version":"v1","resource":"deployments","fieldSelector":{"requirements":[{"key":"metadata.name","operator":"In","values":["x"]},{"key":"spec.a","operator":"NotIn","values":["b"]}]},"labelSelector":{"requirements":[{"key":"l","operator":"In","values":["v"]},{"key":"m","operator":"DoesNotExist"}]}},"user":"u","group":["g"],"extra":{"k":["v"]},"uid":"1"},"status":{"allowed":false}}`,
	} {
		hook := j.webhook(t, func(c *apiserver.WebhookConfiguration) { c.SubjectAccessReviewVersion = version })
		if _, _, err := hook.Authorize(context.Background(), a); err != nil {
			t.Fatal(err)
		}
		if got := *j.last.Load(); got != want {
			t.Errorf("%s:\n got %s\nwant %s", version, got, want)
		}
	}
	hook := j.webhook(t, nil)
	if _, _, err := hook.Authorize(context.Background(), at(user("u"), "get", "/healthz")); err != nil {
		t.Fatal(err)
	}
	if got := *j.last.Load(); !strings.Contains(got, `"spec":{"nonResourceAttributes":{"path":"/healthz","verb":"get"},"user":"u"}`) {
		t.Error(got)
	}
}

func TestWebhookCache(t *testing.T) {
	j := newWebhookServer(t, func(_ int, review map[string]any, w http.ResponseWriter) { status(review, w, `"allowed":true`) })
	ask := func(hook *Webhook, a *Attributes) int32 {
		t.Helper()
		before := j.calls.Load()
		if d, _, err := hook.Authorize(context.Background(), a); d != Allow || err != nil {
			t.Fatal(d, err)
		}
		return j.calls.Load() - before
	}
	hook := j.webhook(t, nil)
	if ask(hook, on(user("u"), "get", "pods", "n")) != 1 || ask(hook, on(user("u"), "get", "pods", "n")) != 0 || ask(hook, on(user("v"), "get", "pods", "n")) != 1 {
		t.Error("the same request is sent twice, or another is not sent")
	}
	long := on(user("u"), "get", "pods "+strings.Repeat("x", maxCachedKeyBytes), "n")
	for range 2 {
		if ask(hook, long) != 1 {
			t.Error("a response to a too large request is cached")
		}
	}
	forgetful := j.webhook(t, func(c *apiserver.WebhookConfiguration) { c.CacheAuthorizedRequests = false })
	for range 2 {
		if ask(forgetful, on(user("u"), "get", "pods", "n")) != 1 {
			t.Error("responses are cached with caching disabled")
		}
	}
}

func TestWebhookFailures(t *testing.T) {
	fail := func(code int) func(int, map[string]any, http.ResponseWriter) {
		return func(_ int, _ map[string]any, w http.ResponseWriter) { w.WriteHeader(code) }
	}
	for _, test := range []struct {
		name    string
		respond func(int, map[string]any, http.ResponseWriter)
		calls   int32
		want    Decision
	}{
		{"500 is tried again", fail(500), 5, Deny},
		{"429 is tried again", fail(429), 5, Deny},
		{"403 is not", fail(403), 1, Deny},
		{"nonsense", func(_ int, _ map[string]any, w http.ResponseWriter) { _, _ = w.Write([]byte("hello")) }, 1, Deny},
		{"something else", func(_ int, _ map[string]any, w http.ResponseWriter) {
			_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"Pod","status":{"allowed":true}}`))
		}, 1, Deny},
		{"an allow in another version", func(_ int, _ map[string]any, w http.ResponseWriter) {
			_, _ = w.Write([]byte(`{"apiVersion":"authorization.k8s.io/v1beta1","kind":"SubjectAccessReview","status":{"allowed":true}}`))
		}, 1, Deny},
		{"a redirect is not followed", func(_ int, _ map[string]any, w http.ResponseWriter) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, 1, Deny},
		{"it passes", func(call int, review map[string]any, w http.ResponseWriter) {
			if call < 3 {
				w.WriteHeader(500)
				return
			}
			status(review, w, `"allowed":true`)
		}, 3, Allow},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := newWebhookServer(t, test.respond)
			hook := j.webhook(t, func(c *apiserver.WebhookConfiguration) { c.FailurePolicy = apiserver.FailurePolicyDeny })
			got, _, err := hook.Authorize(context.Background(), on(user("u"), "get", "pods", "n"))
			if got != test.want || (err == nil) != (test.want == Allow) || j.calls.Load() != test.calls {
				t.Errorf("%v %v after %d calls", got, err, j.calls.Load())
			}
		})
	}
	// The error is part of logs and responses.
	for _, test := range []struct{ contentType, body string }{
		{"text/plain", strings.Repeat("x", maxWebhookResponse)},
		{"application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"message":"` + strings.Repeat("x", maxWebhookResponse-100) + `"}`},
	} {
		j := newWebhookServer(t, func(_ int, _ map[string]any, w http.ResponseWriter) {
			w.Header().Set("Content-Type", test.contentType)
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(test.body))
		})
		_, _, err := j.webhook(t, nil).Authorize(context.Background(), on(user("u"), "get", "pods", "n"))
		if err == nil || !strings.Contains(err.Error(), "xxx") || len(err.Error()) > 4096 {
			t.Errorf("%s: an error of %d bytes: %.100v", test.contentType, len(fmt.Sprint(err)), err)
		}
	}
	j := newWebhookServer(t, fail(403))
	if got, _, err := j.webhook(t, nil).Authorize(context.Background(), on(user("u"), "get", "pods", "n")); got != NoOpinion || err == nil {
		t.Errorf("%v %v", got, err)
	}
}

func TestWebhookMatchConditions(t *testing.T) {
	j := newWebhookServer(t, func(_ int, review map[string]any, w http.ResponseWriter) { status(review, w, `"allowed":true`) })
	hook := j.webhook(t, func(c *apiserver.WebhookConfiguration) {
		c.FailurePolicy = apiserver.FailurePolicyDeny
		c.MatchConditions = []apiserver.WebhookMatchCondition{
			{Expression: "has(request.resourceAttributes)"}, {Expression: "request.resourceAttributes.namespace == 'n'"}, {Expression: "request.user != 'crash' || request.extra['k'][7] == 'x'"},
		}
	})
	for _, test := range []struct {
		ask  *Attributes
		want Decision
		err  bool
	}{
		{on(user("u"), "get", "pods", "n"), Allow, false},
		{on(user("u"), "get", "pods", "m"), NoOpinion, false},
		{at(user("u"), "get", "/x"), NoOpinion, false},
		{on(user("crash"), "get", "pods", "n"), Deny, true},
		{on(user("crash"), "get", "pods", "m"), NoOpinion, false},
	} {
		if got, _, err := hook.Authorize(context.Background(), test.ask); got != test.want || (err != nil) != test.err {
			t.Errorf("%+v: %v %v", *test.ask, got, err)
		}
	}
	if j.calls.Load() != 1 {
		t.Errorf("called %d times", j.calls.Load())
	}
	path := j.kubeconfig(t)
	if _, err := NewWebhook(&apiserver.WebhookConfiguration{
		SubjectAccessReviewVersion: "v1", MatchConditions: []apiserver.WebhookMatchCondition{{Expression: "1 +"}},
		ConnectionInfo: apiserver.WebhookConnectionInfo{KubeConfigFile: &path},
	}, compiler, nil); err == nil {
		t.Error("an invalid expression is compiled")
	}
	if _, err := NewWebhook(&apiserver.WebhookConfiguration{SubjectAccessReviewVersion: "v7"}, compiler, nil); err == nil {
		t.Error("an unknown version is accepted")
	}
}

func TestReviewAttributesRoundTrip(t *testing.T) {
	spec := authorizationv1.ResourceAttributes{
		Verb: "list", Group: "apps", Version: "v1", Resource: "deployments", Subresource: "scale", Namespace: "n", Name: "x",
		FieldSelector: &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{
			{Key: "a", Operator: metav1.FieldSelectorOpIn, Values: []string{"1"}}, {Key: "b", Operator: metav1.FieldSelectorOpNotIn, Values: []string{"2"}},
		}},
		LabelSelector: &authorizationv1.LabelSelectorAttributes{Requirements: []metav1.LabelSelectorRequirement{
			{Key: "c", Operator: metav1.LabelSelectorOpIn, Values: []string{"3"}}, {Key: "d", Operator: metav1.LabelSelectorOpExists},
		}},
	}
	a, err := ReviewAttributes(user("u"), &spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(a.Review().ResourceAttributes)
	want, _ := json.Marshal(spec)
	if string(got) != string(want) {
		t.Errorf("got %s, want %s", got, want)
	}
	// Requirements that cannot be parsed are dropped and reported.
	spec.FieldSelector.Requirements[0].Operator, spec.LabelSelector.Requirements[0].Values = metav1.FieldSelectorOpExists, nil
	a, err = ReviewAttributes(user("u"), &spec, nil)
	if err == nil || len(a.Fields) != 1 || len(a.Labels) != 1 {
		t.Errorf("%v %v %v", a.Fields, a.Labels, err)
	}
	// Selectors as strings.
	a, err = ReviewAttributes(user("u"), &authorizationv1.ResourceAttributes{
		FieldSelector: &authorizationv1.FieldSelectorAttributes{RawSelector: "a=b"}, LabelSelector: &authorizationv1.LabelSelectorAttributes{RawSelector: "c!=d"},
	}, nil)
	if err != nil || a.Version != "*" || !a.selects("a", "b") || a.selects("a", "c") || len(a.Labels) != 1 {
		t.Errorf("%+v %v", a, err)
	}
	if a, err = ReviewAttributes(user("u"), nil, &authorizationv1.NonResourceAttributes{Path: "/x", Verb: "get"}); err != nil || a.ResourceRequest || a.Path != "/x" || a.Verb != "get" {
		t.Errorf("%+v %v", a, err)
	}
}
