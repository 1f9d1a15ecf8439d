package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"skiff/internal/webhook/webhooktest"
	"skiff/test/cluster"
)

// reviewRecorder is the server of all webhooks. The path of a webhook is /cluster/behaviour. It records the reviews it gets.
type reviewRecorder struct {
	*webhooktest.Server
	mu      sync.Mutex
	reviews map[string][]string // by cluster
}

// behaviours are responses to a review with the uid %s.
var behaviours = map[string]string{
	"allow":      `{"apiVersion":"%[2]s","kind":"AdmissionReview","response":{"uid":"%[1]s","allowed":true,"warnings":["careful"]}}`,
	"deny":       `{"apiVersion":"%[2]s","kind":"AdmissionReview","response":{"uid":"%[1]s","allowed":false}}`,
	"denymore":   `{"apiVersion":"%[2]s","kind":"AdmissionReview","response":{"uid":"%[1]s","allowed":false,"status":{"code":418,"message":"no","reason":"Teapot","details":{"name":"x","causes":[{"message":"m"}]}}}}`,
	"denyok":     `{"apiVersion":"%[2]s","kind":"AdmissionReview","response":{"uid":"%[1]s","allowed":false,"status":{"code":200,"status":"Success","reason":"why"}}}`,
	"patch":      `{"apiVersion":"%[2]s","kind":"AdmissionReview","response":{"uid":"%[1]s","allowed":true,"patchType":"JSONPatch","patch":"` + encoded(`[{"op":"add","path":"/metadata/labels/patched","value":"yes"}]`) + `"}}`,
	"badpatch":   `{"apiVersion":"%[2]s","kind":"AdmissionReview","response":{"uid":"%[1]s","allowed":true,"patchType":"JSONPatch","patch":"` + encoded(`[{"op":"remove","path":"/nothing"}]`) + `"}}`,
	"nopatch":    `{"apiVersion":"%[2]s","kind":"AdmissionReview","response":{"uid":"%[1]s","allowed":true,"patchType":"JSONPatch","patch":"` + encoded(`{`) + `"}}`,
	"typeless":   `{"apiVersion":"%[2]s","kind":"AdmissionReview","response":{"uid":"%[1]s","allowed":true,"patch":"` + encoded(`[]`) + `"}}`,
	"othertype":  `{"apiVersion":"%[2]s","kind":"AdmissionReview","response":{"uid":"%[1]s","allowed":true,"patchType":"Merge","patch":"` + encoded(`[{"op":"add","path":"/metadata/labels/p","value":"y"}]`) + `"}}`,
	"otheruid":   `{"apiVersion":"%[2]s","kind":"AdmissionReview","response":{"uid":"x","allowed":true}}`,
	"nothing":    `{"apiVersion":"%[2]s","kind":"AdmissionReview"}`,
	"notype":     `{"response":{"uid":"%[1]s","allowed":true}}`,
	"badgateway": "",
	"notfound":   "",
	"status":     "",
}

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func (r *reviewRecorder) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	parts := strings.Split(request.URL.Path, "/") // "", cluster, behaviour
	body, _ := io.ReadAll(request.Body)
	var review map[string]any
	if err := json.Unmarshal(body, &review); err != nil || len(parts) != 3 {
		http.Error(w, "no review", http.StatusBadRequest)
		return
	}
	content := review["request"].(map[string]any)
	uid := content["uid"]
	r.record(parts[1], review, content)
	switch behaviour := parts[2]; behaviour {
	case "badgateway":
		http.Error(w, "upstream is down", http.StatusBadGateway)
	case "notfound":
		http.NotFound(w, request)
	case "status":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","code":409,"reason":"Conflict","message":"busy"}`)
	default:
		w.Header().Set("Content-Type", "application/json")
		text := behaviours[behaviour]
		text = strings.ReplaceAll(strings.ReplaceAll(text, "%[1]s", fmt.Sprint(uid)), "%[2]s", fmt.Sprint(review["apiVersion"]))
		_, _ = io.WriteString(w, text)
	}
}

// record keeps a review without what differs from server to server.
func (r *reviewRecorder) record(name string, review, content map[string]any) {
	delete(content, "uid")
	delete(content, "userInfo")
	for _, key := range []string{"object", "oldObject"} {
		if object, ok := content[key].(map[string]any); ok {
			removeVolatileFields(object)
			if metadata, ok := object["metadata"].(map[string]any); ok {
				for _, volatile := range []string{"uid", "creationTimestamp", "resourceVersion", "managedFields"} {
					delete(metadata, volatile)
				}
			}
		}
	}
	text, _ := json.MarshalIndent(review, "", " ")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reviews[name] = append(r.reviews[name], string(text))
}

// webhookConfigurations are one validating and one mutating webhook for each behaviour and failure policy, for objects with a label of their
// own, and one that gets another version.
func (r *reviewRecorder) webhookConfigurations(clusterName string) (calls []call) {
	add := func(kind, name, behaviour, more string) {
		calls = append(calls, call{name, "POST", "/apis/admissionregistration.k8s.io/v1/" + strings.ToLower(kind) + "webhookconfigurations", fmt.Sprintf(
			`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"%sWebhookConfiguration","metadata":{"name":"%s"},"webhooks":[{"name":"%s.example.com","sideEffects":"None",
			"clientConfig":{"url":"%s/%s/%s","caBundle":"%s"},"objectSelector":{"matchLabels":{"hook":"%s"}},
			"namespaceSelector":{"matchExpressions":[{"key":"kubernetes.io/metadata.name","operator":"In","values":["default"]}]},%s}]}`,
			kind, name, name, r.URL, clusterName, behaviour, base64.StdEncoding.EncodeToString(r.CABundle), name, more)})
	}
	const rules = `"rules":[{"operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*/*"]}]`
	for _, behaviour := range slices.Sorted(maps.Keys(behaviours)) {
		add("Validating", "v-"+behaviour, behaviour, `"admissionReviewVersions":["v1"],`+rules)
		add("Validating", "vi-"+behaviour, behaviour, `"failurePolicy":"Ignore","admissionReviewVersions":["v1beta1"],`+rules)
		add("Mutating", "m-"+behaviour, behaviour, `"admissionReviewVersions":["v1","v1beta1"],`+rules)
		add("Mutating", "mi-"+behaviour, behaviour, `"failurePolicy":"Ignore","reinvocationPolicy":"IfNeeded","admissionReviewVersions":["v1beta1","v1"],`+rules)
	}
	add("Validating", "v-other-version", "allow", `"admissionReviewVersions":["v1"],"rules":[{"operations":["*"],"apiGroups":["autoscaling","events.k8s.io"],"apiVersions":["v1"],"resources":["*"]}]`)
	return calls
}

// webhookWrites are writes of all operations with the labels of the webhooks.
func webhookWrites() (calls []call) {
	const configMaps = "/api/v1/namespaces/default/configmaps"
	for _, behaviour := range slices.Sorted(maps.Keys(behaviours)) {
		for _, prefix := range []string{"v-", "vi-", "m-", "mi-"} {
			hook := prefix + behaviour
			object := `{"metadata":{"name":"` + hook + `","labels":{"hook":"` + hook + `"}},"data":{"a":"1"}}`
			calls = append(calls, call{"create " + hook, "POST", configMaps, object}, call{"dry run " + hook, "POST", configMaps + "?dryRun=All&fieldManager=m", object},
				call{"update " + hook, "PUT", configMaps + "/" + hook, object}, call{"patch " + hook, "PATCH", configMaps + "/" + hook, `{"data":{"b":"2"}}`},
				call{"delete " + hook, "DELETE", configMaps + "/" + hook, `{"propagationPolicy":"Background"}`})
		}
	}
	labelled := func(hook string) string {
		return `"metadata":{"name":"x-` + hook + `","labels":{"hook":"` + hook + `"}}`
	}
	const scaled = `"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}`
	return append(calls,
		call{"another version", "POST", "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", `{` + labelled("v-other-version") + `,"spec":{` + scaled + `,
			"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":50}}}]}}`},
		call{"the same version", "POST", "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers", `{"metadata":{"name":"y","labels":{"hook":"v-other-version"}},"spec":{` + scaled + `}}`},
		call{"another group", "POST", "/api/v1/namespaces/default/events", `{` + labelled("v-other-version") + `,"involvedObject":{"kind":"Pod","name":"p","namespace":"default"},"reason":"R","type":"Normal"}`},
		call{"patched deployment", "POST", "/apis/apps/v1/namespaces/default/deployments", `{` + labelled("m-patch") + `,"spec":{"selector":{"matchLabels":{"a":"b"}},
			"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`},
		call{"scale", "PATCH", "/apis/apps/v1/namespaces/default/deployments/x-m-patch/scale", `{"spec":{"replicas":3}}`},
		call{"status", "PATCH", "/apis/apps/v1/namespaces/default/deployments/x-m-patch/status", `{"status":{"replicas":1}}`},
		call{"denied deployment", "POST", "/apis/apps/v1/namespaces/default/deployments", `{` + labelled("v-denymore") + `,"spec":{"selector":{"matchLabels":{"a":"b"}},
			"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`},
		call{"another namespace", "POST", "/api/v1/namespaces/kube-system/configmaps", `{` + labelled("v-deny") + `}`},
		call{"no namespace", "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", `{` + labelled("v-deny") + `,"value":1}`},
		call{"a configuration", "PATCH", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/v-deny", `{"metadata":{"labels":{"hook":"v-deny"}}}`},
		call{"delete a configuration", "DELETE", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/v-deny", ""},
	)
}

// TestWebhooksLikeUpstream creates the same webhooks in skiff and in upstream, sends both the same writes, and compares every response and
// every review that the webhooks got.
func TestWebhooksLikeUpstream(t *testing.T) {
	t.Parallel()
	skiff, upstream := startBoth(t)
	recorder := &reviewRecorder{reviews: map[string][]string{}}
	recorder.Server = webhooktest.NewServer(webhooktest.NewCA(t), recorder)
	responses := map[string][]string{}
	for name, c := range map[string]*cluster.Cluster{"ours": skiff, "them": upstream} {
		a := newAPIClient(t, c)
		for _, s := range recorder.webhookConfigurations(name) {
			if response := a.send(s); !strings.HasPrefix(response, "201") {
				t.Fatalf("%s: %s: %s", name, s.name, response)
			}
		}
		// Upstream's webhooks are in force with a delay.
		for deadline := time.Now().Add(time.Minute); !strings.HasPrefix(a.send(call{"", "POST", "/api/v1/namespaces/default/configmaps?dryRun=All", `{"metadata":{"name":"x","labels":{"hook":"v-other-version"}}}`}), "201") ||
			!strings.Contains(a.send(call{"", "POST", "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers?dryRun=All", `{"metadata":{"name":"x","labels":{"hook":"v-other-version"}},"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}}`}), "careful"); {
			if time.Now().After(deadline) {
				t.Fatal("webhooks are not called")
			}
			time.Sleep(100 * time.Millisecond)
		}
		recorder.mu.Lock()
		recorder.reviews[name] = nil
		recorder.mu.Unlock()
		for _, s := range webhookWrites() {
			responses[name] = append(responses[name], strings.ReplaceAll(a.send(s), "/"+name+"/", "/cluster/"))
		}
	}
	different := 0
	for i, s := range webhookWrites() {
		if ours, theirs := responses["ours"][i], responses["them"][i]; ours != theirs {
			different++
			t.Errorf("%s:\n ours   %s\n theirs %s", s.name, ours, theirs)
		}
	}
	ours, theirs := withoutRetries(t, recorder.reviews["ours"]), withoutRetries(t, recorder.reviews["them"])
	for i := range min(len(ours), len(theirs)) {
		if ours[i] != theirs[i] {
			t.Errorf("review %d:\n ours   %s\n theirs %s", i, ours[i], theirs[i])
			break
		}
	}
	if len(ours) != len(theirs) || len(ours) < 100 {
		t.Errorf("%d reviews, upstream sent %d", len(ours), len(theirs))
	}
	t.Logf("%d responses compared, %d reviews", len(responses["ours"]), len(ours))
}

// withoutRetries leaves out the reviews of deletions that were repeated with a newer object: upstream first reads it from a cache that may be
// behind.
func withoutRetries(t *testing.T, reviews []string) (kept []string) {
	t.Helper()
	deletion := func(text string) any {
		var review struct{ Request map[string]any }
		if err := json.Unmarshal([]byte(text), &review); err != nil {
			t.Fatal(err)
		}
		if review.Request["operation"] != "DELETE" {
			return nil
		}
		delete(review.Request, "oldObject")
		return review.Request
	}
	for i, text := range reviews {
		if this := deletion(text); this == nil || i+1 == len(reviews) || reviews[i+1] == text || !reflect.DeepEqual(this, deletion(reviews[i+1])) {
			kept = append(kept, text)
		}
	}
	return kept
}
