package system

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/webhook/webhooktest"
)

// webhookServer responds with a patch, or denies, by the name of the written object.
type webhookServer struct {
	*webhooktest.Server
	mu       sync.Mutex
	patches  map[string]string // by name
	denied   map[string]bool
	requests []*admissionv1.AdmissionRequest
}

func newWebhookServer(t *testing.T) *webhookServer {
	s := &webhookServer{patches: map[string]string{}, denied: map[string]bool{}}
	s.Server = webhooktest.NewServer(webhooktest.NewCA(t), s)
	return s
}

func (s *webhookServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	request := review.Request
	s.requests = append(s.requests, request)
	review.Response = &admissionv1.AdmissionResponse{UID: request.UID, Allowed: !s.denied[request.Name], Warnings: []string{"seen"}}
	if patch := s.patches[request.Name]; patch != "" && r.URL.Path == "/mutating" {
		patchType := admissionv1.PatchTypeJSONPatch
		review.Response.Patch, review.Response.PatchType = []byte(patch), &patchType
	}
	review.Request = nil
	_ = json.NewEncoder(w).Encode(review)
}

// configuration is a webhook configuration of the kind ("Mutating" or "Validating") for the resources.
func (s *webhookServer) configuration(kind, resources, more string) string {
	return fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"%sWebhookConfiguration","metadata":{"name":"test"},"webhooks":[{"name":"hook.example.com",
		"sideEffects":"None","admissionReviewVersions":["v1"],"clientConfig":{"url":"%s/%s","caBundle":"%s"},
		"rules":[{"operations":["*"],"apiGroups":["*"],"apiVersions":["v1"],"resources":[%s]}]%s}]}`,
		kind, s.URL, strings.ToLower(kind), base64.StdEncoding.EncodeToString(s.CABundle), resources, more)
}

// TestWebhooks: webhooks are in force from the moment their configuration is stored until it is deleted, for all kinds of writes.
func TestWebhooks(t *testing.T) {
	server, _ := startAPIServer(t, testConfig(t))
	handler, hooks := server.Handler(), newWebhookServer(t)
	send := func(want int, method, path, body string) string {
		t.Helper()
		got := do(handler, "admin", method, path, body)
		if got.Code != want {
			t.Errorf("%s %s: %d %s", method, path, got.Code, got.Body)
		}
		return got.Body.String()
	}
	const group, configMaps, pods = "/apis/admissionregistration.k8s.io/v1/", "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/pods"
	configMap := func(name string) string {
		return `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"` + name + `"},"data":{"a":"1"}}`
	}
	send(201, "POST", "/api/v1/namespaces/default/serviceaccounts", `{"kind":"ServiceAccount","apiVersion":"v1","metadata":{"name":"default"}}`)
	send(201, "POST", group+"mutatingwebhookconfigurations", hooks.configuration("Mutating", `"configmaps","pods","pods/exec","nodes"`, ""))

	hooks.patches["changed"] = `[{"op":"add","path":"/data/b","value":"2"}]`
	if got := send(201, "POST", configMaps, configMap("changed")); !strings.Contains(got, `"data":{"a":"1","b":"2"}`) {
		t.Errorf("created %s", got)
	}
	hooks.patches["moved"] = `[{"op":"replace","path":"/metadata/namespace","value":"kube-system"}]`
	if got := send(400, "POST", configMaps, configMap("moved")); !strings.Contains(got, "the namespace of the provided object does not match the namespace sent on the request") {
		t.Errorf("moved to another namespace: %s", got)
	}
	hooks.patches["deleted"] = `[{"op":"add","path":"/metadata/deletionTimestamp","value":"2026-01-01T00:00:00Z"},{"op":"add","path":"/metadata/uid","value":"mine"}]`
	if got := send(201, "POST", configMaps, configMap("deleted")); strings.Contains(got, "deletionTimestamp") || strings.Contains(got, `"uid":"mine"`) {
		t.Errorf("a webhook has set fields of the server: %s", got)
	}
	hooks.patches["pod"] = `[{"op":"add","path":"/spec/initContainers","value":[{"name":"added","image":"added:1","resources":{}}]}]`
	var pod corev1.Pod
	if err := json.Unmarshal([]byte(send(201, "POST", pods, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"pod"},"spec":{"containers":[{"name":"a","image":"a:1"}]}}`)), &pod); err != nil {
		t.Fatal(err)
	}
	if c := pod.Spec.InitContainers; len(c) != 1 || c[0].TerminationMessagePolicy == "" || c[0].ImagePullPolicy == "" {
		t.Errorf("the added container has no defaults: %+v", c)
	}
	if got := do(handler, "admin", "PUT", configMaps+"/changed?dryRun=All", configMap("changed")); !strings.Contains(got.Body.String(), `"b":"2"`) || got.Header().Get("Warning") != `299 - "seen"` {
		t.Errorf("dry run: %s %v", got.Body, got.Header())
	}

	send(201, "POST", group+"validatingwebhookconfigurations", hooks.configuration("Validating", `"configmaps","pods/exec","nodes"`, ""))
	hooks.denied["changed"], hooks.denied["pod"] = true, true
	for _, test := range []struct{ method, path, body string }{
		{"DELETE", configMaps + "/changed", ""}, {"PUT", configMaps + "/changed", configMap("changed")}, {"DELETE", configMaps, ""},
		{"POST", pods + "/pod/exec?command=ls", ""},
	} {
		if got := send(400, test.method, test.path, test.body); !strings.Contains(got, `admission webhook \"hook.example.com\" denied the request without explanation`) {
			t.Errorf("%s %s: %s", test.method, test.path, got)
		}
	}
	last := hooks.requests[len(hooks.requests)-1]
	if last.Operation != admissionv1.Connect || last.SubResource != "exec" || last.Kind != (metav1.GroupVersionKind{Version: "v1", Kind: "PodExecOptions"}) ||
		string(last.Object.Raw) != `{"kind":"PodExecOptions","apiVersion":"v1","command":["ls"]}` {
		t.Errorf("exec: %+v %s", last, last.Object.Raw)
	}

	// Without the webhook server, the failure policy decides. The configurations themselves can always be deleted.
	hooks.Close()
	if got := send(500, "POST", configMaps, configMap("refused")); !strings.Contains(got, `Internal error occurred: failed calling webhook \"hook.example.com\": failed to call webhook: Post \"`+hooks.URL+`/mutating?timeout=10s\"`) {
		t.Errorf("no server: %s", got)
	}
	if got := send(200, "GET", "/metrics", ""); !strings.Contains(got, `apiserver_admission_webhook_rejection_count{error_type="calling_webhook_error",name="hook.example.com",operation="CREATE",rejection_code="503",type="admit"} 1`) {
		t.Error("the failed call is not counted")
	}
	send(200, "DELETE", group+"mutatingwebhookconfigurations/test", "")
	send(200, "DELETE", group+"validatingwebhookconfigurations/test", "")
	send(201, "POST", configMaps, configMap("free"))
}

// TestWebhookConversion: a webhook with matchPolicy Equivalent gets the version it asks for, whatever the client writes.
func TestWebhookConversion(t *testing.T) {
	server, _ := startAPIServer(t, testConfig(t))
	handler, hooks := server.Handler(), newWebhookServer(t)
	if got := do(handler, "admin", "POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", hooks.configuration("Validating", `"horizontalpodautoscalers"`, "")); got.Code != 201 {
		t.Fatal(got.Body)
	}
	body := `{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v2","metadata":{"name":"it"},"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"},
		"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":50}}}]}}`
	if got := do(handler, "admin", "POST", "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", body); got.Code != 201 {
		t.Fatal(got.Body)
	}
	if len(hooks.requests) != 1 {
		t.Fatalf("%d requests", len(hooks.requests))
	}
	request := hooks.requests[0]
	if request.Kind.Version != "v1" || request.RequestKind.Version != "v2" || !strings.Contains(string(request.Object.Raw), `"targetCPUUtilizationPercentage":50`) {
		t.Errorf("%v %v %s", request.Kind, request.RequestKind, request.Object.Raw)
	}
}
