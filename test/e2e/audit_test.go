package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"skiff/test/cluster"
)

// auditPolicy uses every field of a policy. Neither server logs the content of secrets and tokens: upstream because the policy says
// so.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
  nonResourceURLs: ["/livez*", /version]
- level: None
  users: [nobody-cares]
  verbs: [get]
- level: Metadata
  resources:
  - {group: "", resources: [secrets, serviceaccounts/token]}
  - {group: authentication.k8s.io, resources: [tokenreviews]}
- level: RequestResponse
  omitManagedFields: true
  namespaces: [loud]
- level: Request
  namespaces: [quiet]
  omitStages: [RequestReceived]
- level: RequestResponse
  resources: [{group: "", resources: [namespaces], resourceNames: [quiet]}]
- level: RequestResponse
  nonResourceURLs: [/api, /apis]
- level: Metadata
  userGroups: ["system:authenticated", "system:unauthenticated"]
- level: Metadata
`

// audited is one request of the comparison.
type audited struct {
	method, path, body string
	headers            []string
}

const (
	asBob = "Impersonate-User: bob"
)

func auditedRequests() []audited {
	pod := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"%s"},"spec":{"containers":[{"name":"c","image":"i<1>"}]}}`
	yaml := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied}\ndata: {a: b}\n"
	return []audited{
		{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"loud","labels":{"pod-security.kubernetes.io/audit":"restricted"}}}`},
		{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"quiet"}}`},
		{method: "GET", path: "/api/v1/namespaces/quiet"},
		{method: "POST", path: "/api/v1/namespaces/loud/configmaps", body: `{"metadata":{"name":"a"},"data":{"k":"ü \"quoted\" & <tagged>"}}`},
		{method: "POST", path: "/api/v1/namespaces/loud/configmaps", body: `{"metadata":{"name":"a"}}`},
		{method: "POST", path: "/api/v1/namespaces/loud/configmaps?dryRun=All", body: `{"metadata":{"generateName":"b-"}}`},
		{method: "POST", path: "/api/v1/namespaces/loud/configmaps", body: `{"metadata":{"name":"NO"}}`},
		{method: "POST", path: "/api/v1/namespaces/loud/configmaps", body: `{"metadata"`},
		{method: "PUT", path: "/api/v1/namespaces/loud/configmaps/a", body: `{"metadata":{"name":"a","uid":"wrong"},"data":{"k":"2"}}`},
		{method: "PUT", path: "/api/v1/namespaces/loud/configmaps/a", body: `{"metadata":{"name":"a"},"data":{"k":"2"}}`},
		{method: "PATCH", path: "/api/v1/namespaces/loud/configmaps/a", body: `{"data": {"k":"3"}}`, headers: []string{"Content-Type: application/merge-patch+json"}},
		{method: "PATCH", path: "/api/v1/namespaces/loud/configmaps/a", body: `[{"op":"remove","path":"/data/none"}]`, headers: []string{"Content-Type: application/json-patch+json"}},
		{method: "PATCH", path: "/api/v1/namespaces/loud/configmaps/applied?fieldManager=m", body: yaml, headers: []string{"Content-Type: application/apply-patch+yaml"}},
		{method: "GET", path: "/api/v1/namespaces/loud/configmaps/a"},
		{method: "GET", path: "/api/v1/namespaces/loud/configmaps/a", headers: []string{"Accept: application/vnd.kubernetes.protobuf"}},
		{method: "GET", path: "/api/v1/namespaces/loud/configmaps/a", headers: []string{"Accept: application/yaml"}},
		{method: "GET", path: "/api/v1/namespaces/loud/configmaps?limit=500&fieldSelector=metadata.name%3Da", headers: []string{"Accept-Encoding: gzip"}},
		{method: "GET", path: "/api/v1/namespaces/loud/configmaps/a", headers: []string{"Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}},
		{method: "GET", path: "/api/v1/namespaces/loud/configmaps/none"},
		{method: "GET", path: "/api/v1/namespaces/loud/configmaps/a", headers: []string{"Accept: text/none"}},
		{method: "POST", path: "/api/v1/namespaces/quiet/configmaps", body: `{"metadata":{"name":"q"},"data":{"k":"v"}}`},
		{method: "GET", path: "/api/v1/namespaces/quiet/configmaps"},
		{method: "POST", path: "/api/v1/namespaces/loud/serviceaccounts", body: `{"metadata":{"name":"default"}}`},
		{method: "POST", path: "/api/v1/namespaces/loud/pods", body: fmt.Sprintf(pod, "p")},
		{method: "PUT", path: "/api/v1/namespaces/loud/pods/p/status", body: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"status":{"message":"m"}}`},
		{method: "POST", path: "/api/v1/namespaces/loud/pods/p/eviction", body: `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p"},"deleteOptions":{"dryRun":["All"]}}`},
		{method: "GET", path: "/api/v1/namespaces/loud/pods/none/log"},
		{method: "GET", path: "/api/v1/namespaces/loud/pods?watch=1&timeoutSeconds=1&resourceVersion=0"},
		{method: "DELETE", path: "/api/v1/namespaces/loud/pods/p", body: `{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}`},
		{method: "DELETE", path: "/api/v1/namespaces/loud/configmaps/a"},
		{method: "DELETE", path: "/api/v1/namespaces/quiet/configmaps?labelSelector=none%3Dnone"},
		{method: "POST", path: "/api/v1/namespaces/loud/secrets", body: `{"metadata":{"name":"s"},"stringData":{"k":"hidden"}}`},
		{method: "GET", path: "/api/v1/namespaces/loud/secrets/s"},
		{method: "POST", path: "/apis/authentication.k8s.io/v1/tokenreviews", body: `{"spec":{"token":"hidden"}}`},
		{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: `{"spec":{"nonResourceAttributes":{"verb":"get","path":"/x"}}}`},
		{method: "POST", path: "/apis/apps/v1/namespaces/loud/deployments", body: `{"metadata":{"name":"d"},"spec":{"replicas":0,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`},
		{method: "PUT", path: "/apis/apps/v1/namespaces/loud/deployments/d/scale", body: `{"metadata":{"name":"d"},"spec":{"replicas":2}}`},
		{method: "GET", path: "/apis/apps/v1/namespaces/loud/deployments/d/scale"},
		{method: "GET", path: "/api/v1/namespaces/loud/configmaps", headers: []string{asBob}},
		{method: "GET", path: "/api/v1/nodes", headers: []string{asBob, "Impersonate-Group: readers"}},
		{method: "GET", path: "/api/v1/nodes", headers: []string{"X-Forwarded-For: 198.51.100.1, 198.51.100.2", "X-Real-Ip: 198.51.100.3"}},
		{method: "GET", path: "/api/v1/none"},
		{method: "GET", path: "/apis/none.example.com/v1/things"},
		{method: "GET", path: "/version"},
		{method: "GET", path: "/livez/ping"},
		{method: "GET", path: "/nowhere?x=y"},
		{method: "GET", path: "/metrics", headers: []string{asBob}},
		{method: "GET", path: "/api/v1/namespaces/loud/endpoints"},
		{method: "GET", path: "/api/v1/pods", headers: []string{"Authorization: Bearer wrong"}},
		// Upstream caches which impersonation mode last succeeded, so this request, which only the legacy mode allows, comes last.
		{method: "POST", path: "/api/v1/namespaces/quiet/configmaps", body: `{"metadata":{"name":"bobs"}}`, headers: []string{asBob, "Impersonate-Group: system:masters", "Impersonate-Uid: 7", "Impersonate-Extra-Scope: s"}},
		{method: "POST", path: "/api/v1/namespaces/loud/serviceaccounts/default/token", body: `{"spec":{"expirationSeconds":600}}`},
	}
}

// TestAuditLikeUpstream sends the same requests to both servers under the same policy and compares the events.
func TestAuditLikeUpstream(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := func(name string) []string {
		return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + filepath.Join(dir, name), "--disable-admission-plugins=ServiceAccount"}
	}
	skiff, err := cluster.Skiff(filepath.Join(dir, "skiff"), flags("skiff.log")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(skiff.Stop)
	upstream, err := cluster.UpstreamAPI(filepath.Join(dir, "upstream"), "", flags("upstream.log")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Stop)
	requests := auditedRequests()
	got := auditEvents(t, skiff, filepath.Join(dir, "skiff.log"), requests)
	want := auditEvents(t, upstream, filepath.Join(dir, "upstream.log"), requests)
	events := 0
	for i, r := range requests {
		id := fmt.Sprintf("request-%d", i)
		events += len(want[id])
		if !reflect.DeepEqual(got[id], want[id]) {
			t.Errorf("%s %s %v\n%s", r.method, r.path, r.headers, difference(pretty(got[id]), pretty(want[id])))
		}
	}
	if events < 80 {
		t.Errorf("only %d events", events)
	}
	t.Logf("%d requests, %d events", len(requests), events)
}

func pretty(value any) string {
	text, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// auditEvents sends the requests in order and returns the log's events for each.
func auditEvents(t *testing.T, c *cluster.Cluster, log string, requests []audited) map[string][]any {
	t.Helper()
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	adminClient, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	anonymousClient, err := rest.HTTPClientFor(rest.AnonymousClientConfig(config))
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range requests {
		request, err := http.NewRequestWithContext(t.Context(), r.method, config.Host+r.path, strings.NewReader(r.body))
		if err != nil {
			t.Fatal(err)
		}
		client := adminClient
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("User-Agent", "audit-test/1")
		request.Header.Set("Audit-Id", fmt.Sprintf("request-%d", i))
		for _, h := range r.headers {
			name, value, _ := strings.Cut(h, ": ")
			request.Header.Set(name, value)
			if name == "Authorization" {
				client = anonymousClient
			}
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if response.Header.Get("Audit-Id") != fmt.Sprintf("request-%d", i) {
			t.Errorf("%s %s: Audit-Id %q", r.method, r.path, response.Header.Get("Audit-Id"))
		}
	}
	return readAudit(t, log, fmt.Sprintf(`"request-%d"`, len(requests)-1))
}

// readAudit reads a log once it contains its last request.
func readAudit(t *testing.T, log, last string) map[string][]any {
	t.Helper()
	var data []byte
	for deadline := time.Now().Add(time.Minute); bytes.Count(data, []byte(last)) < 2; time.Sleep(20 * time.Millisecond) {
		var err error
		if data, err = os.ReadFile(log); err != nil || time.Now().After(deadline) {
			t.Fatalf("the audit log has no event for %s: %v", last, err)
		}
	}
	if bytes.Contains(data, []byte("hidden")) || bytes.Contains(data, []byte("aGlkZGVu")) {
		t.Errorf("%s holds a secret", log)
	}
	events := map[string][]any{}
	for line := range strings.Lines(string(data)) {
		decoder := json.NewDecoder(strings.NewReader(line))
		decoder.UseNumber()
		var event map[string]any
		if err := decoder.Decode(&event); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		id := event["auditID"].(string)
		normalizeEvent(event)
		events[id] = append(events[id], event)
	}
	return events
}

// identity matches an object's UID.
var identity = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// normalizeEvent removes what differs from run to run: times, UIDs, revisions.
func normalizeEvent(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			switch key {
			case "requestReceivedTimestamp", "stageTimestamp", "creationTimestamp", "deletionTimestamp", "uid", "resourceVersion", "time",
				"authentication.kubernetes.io/credential-id", "authentication.kubernetes.io/issued-credential-id", "startTime", "lastTransitionTime":
				v[key] = "normal"
			case "name":
				if text, ok := inner.(string); ok && strings.HasPrefix(text, "b-") {
					v[key] = "b-normal"
				}
			default:
				v[key] = normalizeEvent(inner)
			}
		}
	case string:
		return identity.ReplaceAllString(v, "normal")
	case []any:
		for i := range v {
			v[i] = normalizeEvent(v[i])
		}
	}
	return value
}
