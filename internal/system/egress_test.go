package system

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/egress"
)

// egressFile is an EgressSelectorConfiguration with one proxy.
func egressFile(t *testing.T, network, proxy string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "egress.yaml")
	text := "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n" +
		"- {name: " + network + ", connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: \"" + proxy + "\"}}}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Pods, kubelets and the Services of webhooks are reached through the proxy of the cluster.
func TestEgress(t *testing.T) {
	var mu sync.Mutex
	asked := map[string]bool{}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked[r.Method+" "+r.Host] = true
		http.Error(w, "not connected", http.StatusBadGateway)
	}))
	defer proxy.Close()
	selector, err := egress.Read(egressFile(t, egress.Cluster, proxy.URL))
	if err != nil {
		t.Fatal(err)
	}
	server, _ := startAPIServerWith(t, testConfig(t), observed{egress: selector})
	for _, object := range []struct{ path, body string }{
		{"/api/v1/nodes", `{"metadata":{"name":"n"}}`},
		{"/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"default"}}`},
		{"/api/v1/namespaces/default/pods", `{"metadata":{"name":"p"},"spec":{"nodeName":"n","serviceAccountName":"default","containers":[{"name":"c","image":"i"}]}}`},
	} {
		if w := do(server.Handler(), "admin", "POST", object.path, object.body); w.Code != 201 {
			t.Fatalf("%s: %d %s", object.path, w.Code, w.Body)
		}
	}
	for path, body := range map[string]string{
		"/api/v1/nodes/n/status":                   `{"status":{"addresses":[{"type":"InternalIP","address":"10.9.8.7"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}}}}`,
		"/api/v1/namespaces/default/pods/p/status": `{"status":{"podIP":"10.1.2.3","podIPs":[{"ip":"10.1.2.3"}],"phase":"` + string(corev1.PodRunning) + `"}}`,
	} {
		r := httptest.NewRequest(http.MethodPatch, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer admin")
		r.Header.Set("Content-Type", "application/merge-patch+json")
		w := httptest.NewRecorder()
		if server.Handler().ServeHTTP(w, r); w.Code != 200 {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	do(server.Handler(), "admin", "GET", "/api/v1/namespaces/default/pods/p:80/proxy/", "")
	do(server.Handler(), "admin", "GET", "/api/v1/nodes/n/proxy/healthz", "")
	for path, body := range map[string]string{
		"/api/v1/namespaces/default/services": `{"metadata":{"name":"hook"},"spec":{"ports":[{"port":443,"targetPort":9443}]}}`,
		"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices": `{"metadata":{"name":"hook","labels":{"kubernetes.io/service-name":"hook"}},"addressType":"IPv4",
			"ports":[{"name":"","port":9443}],"endpoints":[{"addresses":["10.1.2.3"],"conditions":{"ready":true}}]}`,
		"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": `{"metadata":{"name":"hook"},"webhooks":[{"name":"hook.example.com","sideEffects":"None","admissionReviewVersions":["v1"],
			"failurePolicy":"Ignore","timeoutSeconds":1,"clientConfig":{"service":{"namespace":"default","name":"hook"}},"rules":[{"operations":["*"],"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}]}]}`,
	} {
		if w := do(server.Handler(), "admin", "POST", path, body); w.Code != 201 {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := do(server.Handler(), "admin", "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"c"}}`); w.Code != 201 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"CONNECT 10.1.2.3:80", "CONNECT 10.9.8.7:10250", "CONNECT 10.1.2.3:9443"} {
		if !asked[want] {
			t.Errorf("the proxy was not asked for %q, only for %v", want, asked)
		}
	}
}

// The embedded etcd cannot be behind a proxy.
func TestEgressToEmbeddedEtcd(t *testing.T) {
	selector, err := egress.Read(egressFile(t, egress.Etcd, "http://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	s := &server{config: testConfig(t), egress: selector, registry: newRegistry(nil), log: slog.New(slog.DiscardHandler)}
	if _, err := s.openStore(t.Context()); err == nil || !strings.Contains(err.Error(), "--egress-selector-config-file: a proxy to etcd needs --etcd-servers") {
		t.Errorf("error %v", err)
	}
}
