package attack

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"skiff/internal/webhook/webhooktest"
)

// hostileWebhook is the server of all webhooks: the path names its behaviour. It counts the reviews of each.
type hostileWebhook struct {
	*webhooktest.Server
	calls    sync.Map // path → *atomic.Int64
	inFlight atomic.Int64
	released chan struct{} // closed when calls shall hang no longer
}

func (h *hostileWebhook) count(path string) *atomic.Int64 {
	n, _ := h.calls.LoadOrStore(path, new(atomic.Int64))
	return n.(*atomic.Int64)
}

// admissionResponse is a response to a review with more fields.
func admissionResponse(uid, more string) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":true%s}}`, uid, more)
}

func jsonPatch(text string) string {
	return `,"patchType":"JSONPatch","patch":"` + base64.StdEncoding.EncodeToString([]byte(text)) + `"`
}

func (h *hostileWebhook) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	n := h.count(req.URL.Path).Add(1)
	h.inFlight.Add(1)
	defer h.inFlight.Add(-1)
	var review struct {
		Request struct {
			UID string `json:"uid"`
		} `json:"request"`
	}
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	uid := review.Request.UID
	wait := func() {
		select {
		case <-h.released:
		case <-req.Context().Done():
		}
	}
	switch req.URL.Path {
	case "/hang":
		wait()
	case "/drip": // headers and a little of the body, and then nothing
		_, _ = io.WriteString(w, `{"apiVersion":`)
		_ = http.NewResponseController(w).Flush()
		wait()
	case "/garbage":
		_, _ = w.Write(bytes.Repeat([]byte{0xff, '{', 0}, 1000))
	case "/redirect":
		http.Redirect(w, req, h.URL+"/target", http.StatusTemporaryRedirect)
	case "/large":
		before, after, _ := strings.Cut(admissionResponse(uid, `,"warnings":["%"]`), "%")
		_, _ = io.WriteString(w, before)
		chunk := strings.Repeat("x", 1<<20)
		for range 100 {
			if _, err := io.WriteString(w, chunk); err != nil {
				return
			}
		}
		_, _ = io.WriteString(w, after)
	case "/endless":
		for chunk := bytes.Repeat([]byte(" "), 1<<20); req.Context().Err() == nil; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	case "/operations":
		_, _ = io.WriteString(w, admissionResponse(uid, jsonPatch("["+strings.Repeat(`{"op":"add","path":"/data/a","value":"b"},`, 10_001)+`{"op":"test","path":"/kind","value":"ConfigMap"}]`)))
	case "/multiply": // each operation doubles the object
		operation := `{"op":"copy","from":"/data","path":"/data/x"},`
		_, _ = io.WriteString(w, admissionResponse(uid, jsonPatch("["+strings.Repeat(operation, 60)+`{"op":"test","path":"/kind","value":"ConfigMap"}]`)))
	case "/forever/a", "/forever/b": // another value each time: the object never settles
		_, _ = io.WriteString(w, admissionResponse(uid, jsonPatch(fmt.Sprintf(`[{"op":"add","path":"/metadata/labels/%s","value":"%d"}]`, req.URL.Path[len("/forever/"):], n))))
	default:
		_, _ = io.WriteString(w, admissionResponse(uid, ""))
	}
}

// A webhook hangs, answers what is not a review, redirects, sends without end, patches without end, or has the wrong certificate. Each write that
// it is for fails with a Status that says why, within bounds of memory and calls, and other requests are served meanwhile.
func TestHostileWebhooks(t *testing.T) {
	a := start(t, patient)
	h := &hostileWebhook{released: make(chan struct{})}
	h.Server = webhooktest.NewServer(webhooktest.NewCA(t), h)
	writer := a.user("writer")
	untrusted := webhooktest.NewCA(t).Bundle
	const short, long = 1, 30 // time-outs in seconds
	for _, test := range []struct {
		path, want string
		timeout    int
		bundle     []byte
	}{
		{"/hang", "context deadline exceeded", short, h.CABundle},
		{"/drip", "context deadline exceeded", short, h.CABundle},
		{"/garbage", "failed calling webhook", long, h.CABundle},
		{"/redirect", "redirects are not followed", long, h.CABundle},
		{"/large", "too large", long, h.CABundle},
		{"/endless", "too large", long, h.CABundle},
		{"/operations", "operations", long, h.CABundle},
		{"/multiply", "", long, h.CABundle},
		{"/untrusted", "certificate", long, untrusted},
	} {
		name := strings.ReplaceAll(strings.Trim(test.path, "/"), "/", "-")
		hook := webhook{name, h.URL + test.path, test.bundle, test.timeout}
		a.addWebhook("Mutating", hook)
		a.addWebhook("Validating", hook)
		code, body := a.write(writer, "hostile-"+name, name)
		if code < 400 || !strings.Contains(body, test.want) || !strings.Contains(body, `"kind":"Status"`) {
			t.Errorf("%s: code %d, want an error with %q: %.500s", name, code, test.want, body)
		}
		a.removeWebhooks(name)
	}
	if n := h.count("/target").Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
	a.addWebhook("Mutating", webhook{"forever-a", h.URL + "/forever/a", h.CABundle, long})
	a.addWebhook("Mutating", webhook{"forever-b", h.URL + "/forever/b", h.CABundle, long})
	if code, body := a.write(writer, "forever", "forever-a", "forever-b"); code != http.StatusCreated {
		t.Errorf("endless patches: code %d %s", code, body)
	}
	if first, second := h.count("/forever/a").Load(), h.count("/forever/b").Load(); first > 2 || second > 2 {
		t.Errorf("the webhooks were called %d and %d times for one write", first, second)
	}
	a.expectBoundedMemory()
	a.hangingWebhook(h, writer)
}

// hangingWebhook sends many writes to a webhook that does not respond. They hold no seats: another user is served.
func (a *target) hangingWebhook(h *hostileWebhook, writer string) {
	a.t.Helper()
	const writes, waiting = 300, 30
	release := sync.OnceFunc(func() { close(h.released) })
	a.t.Cleanup(release)
	other := a.user("other")
	a.addWebhook("Validating", webhook{"hang", h.URL + "/hang", h.CABundle, 30})
	before := a.usage()
	var sent sync.WaitGroup
	codes := make(chan int, writes)
	for i := range writes {
		sent.Go(func() {
			code, _ := a.write(writer, fmt.Sprint("hang-", i), "hang")
			codes <- code
		})
	}
	a.eventually(func() bool { return h.inFlight.Load() >= waiting }, func() string { return fmt.Sprintf("%d calls are in flight", h.inFlight.Load()) })
	for range 50 {
		if code, body := a.as(other, http.MethodGet, "/api/v1/namespaces/default/configmaps/none", ""); code != http.StatusNotFound {
			a.t.Errorf("another user got %d %s", code, body)
		}
	}
	if n := h.inFlight.Load(); n < waiting {
		a.t.Errorf("the writes did not wait: %d calls are in flight", n)
	}
	release() // the responses are no reviews
	sent.Wait()
	close(codes)
	counts := map[int]int{}
	for code := range codes {
		counts[code]++
	}
	a.t.Logf("writes by code: %v", counts)
	if counts[http.StatusInternalServerError]+counts[http.StatusTooManyRequests]+counts[http.StatusGatewayTimeout] != writes {
		a.t.Errorf("writes succeeded without their webhook: %v", counts)
	}
	a.expectReleased(before)
}

// user is the token of a new service account that may write config maps.
func (a *target) user(name string) (token string) {
	a.t.Helper()
	k, err := kubernetes.NewForConfig(a.config)
	a.must(err)
	ctx := a.t.Context()
	_, err = k.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	a.must(err)
	_, err = k.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: name}},
	}, metav1.CreateOptions{})
	a.must(err)
	created, err := k.CoreV1().ServiceAccounts("default").CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	a.must(err)
	return created.Status.Token
}

// as sends a request with a token and returns the code and the body of the response.
func (a *target) as(token, method, path, body string) (int, string) {
	a.t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(a.t.Context()), method, a.config.Host+path, strings.NewReader(body))
	a.must(err)
	req.Header.Set("Content-Type", "application/json")
	client := a.admin
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
		client = a.anonymous
	}
	resp, err := client.Do(req)
	if err != nil {
		a.t.Errorf("%s %s: %v", method, path, err)
		return 0, ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Errorf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, string(text)
}

// write creates a config map for which there are webhooks of these names.
func (a *target) write(token, name string, hooks ...string) (int, string) {
	a.t.Helper()
	labels := map[string]string{}
	for _, hook := range hooks {
		labels["hook-"+hook] = "yes"
	}
	object, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "labels": labels}, "data": map[string]string{"data": strings.Repeat("x", 1000)},
	})
	a.must(err)
	return a.as(token, http.MethodPost, "/api/v1/namespaces/default/configmaps", string(object))
}

const webhookConfigurations = "/apis/admissionregistration.k8s.io/v1/%swebhookconfigurations"

// webhook is a webhook for objects with the label hook-name.
type webhook struct {
	name, url string
	bundle    []byte
	timeout   int // in seconds
}

// addWebhook adds a webhook to a step of admission: Mutating or Validating.
func (a *target) addWebhook(step string, hook webhook) {
	a.t.Helper()
	reinvocation := ""
	if step == "Mutating" {
		reinvocation = `"reinvocationPolicy":"IfNeeded",`
	}
	code, body := a.as("", http.MethodPost, fmt.Sprintf(webhookConfigurations, strings.ToLower(step)), fmt.Sprintf(
		`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"%[1]sWebhookConfiguration","metadata":{"name":"%[2]s"},"webhooks":[{"name":"%[2]s.example.com","sideEffects":"None",
		"admissionReviewVersions":["v1"],"timeoutSeconds":%[3]d,%[4]s"clientConfig":{"url":"%[5]s","caBundle":"%[6]s"},"objectSelector":{"matchLabels":{"hook-%[2]s":"yes"}},
		"rules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}]}]}`,
		step, hook.name, hook.timeout, reinvocation, hook.url, base64.StdEncoding.EncodeToString(hook.bundle)))
	if code != http.StatusCreated {
		a.t.Fatalf("webhook %s: %d %s", hook.name, code, body)
	}
}

func (a *target) removeWebhooks(name string) {
	a.t.Helper()
	for _, step := range []string{"mutating", "validating"} {
		if code, body := a.as("", http.MethodDelete, fmt.Sprintf(webhookConfigurations, step)+"/"+name, ""); code != http.StatusOK {
			a.t.Errorf("remove webhook %s: %d %s", name, code, body)
		}
	}
}
