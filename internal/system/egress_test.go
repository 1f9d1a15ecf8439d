package system

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/apiserver"
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

// refusingProxy notes what it is asked for and connects to nothing.
type refusingProxy struct {
	mu    sync.Mutex
	asked []string
}

func (p *refusingProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, r.Method+" "+r.Host)
	http.Error(w, "not connected", http.StatusBadGateway)
}

// check fails unless the proxy was asked for an address.
func (p *refusingProxy) check(t *testing.T, address string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.asked, "CONNECT "+address) {
		t.Errorf("the proxy was not asked for %s, only for %q", address, p.asked)
	}
}

// startBehind starts an API server with a proxy for one network.
func startBehind(t *testing.T, network string) (*apiserver.Server, *refusingProxy) {
	t.Helper()
	proxy := &refusingProxy{}
	listening := httptest.NewServer(proxy)
	t.Cleanup(listening.Close)
	selector, err := egress.Read(egressFile(t, network, listening.URL))
	if err != nil {
		t.Fatal(err)
	}
	server, _ := startAPIServerWith(t, testConfig(t), observed{egress: selector})
	return server, proxy
}

// Admission webhooks at a URL are reached through the proxy of the control plane.
func TestEgressToWebhooks(t *testing.T) {
	server, proxy := startBehind(t, egress.ControlPlane)
	hook := `{"metadata":{"name":"h"},"webhooks":[{"name":"h.example.com","clientConfig":{"url":"https://10.4.5.6:8443/hook"},"sideEffects":"None","admissionReviewVersions":["v1"],` +
		`"rules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"],"operations":["CREATE"]}]}]}`
	if w := do(server.Handler(), "admin", "POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", hook); w.Code != 201 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if w := do(server.Handler(), "admin", "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"a"}}`); w.Code != 500 || !strings.Contains(w.Body.String(), "egress proxy") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	proxy.check(t, "10.4.5.6:8443")
}

// Pods, kubelets and the Services of webhooks are reached through the proxy of the cluster.
func TestEgress(t *testing.T) {
	server, proxy := startBehind(t, egress.Cluster)
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
	proxy.check(t, "10.1.2.3:80")
	proxy.check(t, "10.9.8.7:10250")
	proxy.check(t, "10.1.2.3:9443")
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

// A server without a node reaches pods through kubelets, unless an egress selector says how they are reached.
func TestPodsThroughKubelets(t *testing.T) {
	direct := filepath.Join(t.TempDir(), "direct.yaml")
	text := "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections: [{name: cluster, connection: {proxyProtocol: Direct}}]\n"
	if err := os.WriteFile(direct, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		noNode bool
		file   string
		want   bool
	}{
		{"a node", false, "", false},
		{"no node", true, "", true},
		{"a proxy to the cluster", true, egressFile(t, egress.Cluster, "http://127.0.0.1:1"), false},
		{"a direct connection to the cluster", true, direct, false},
		{"a proxy to other networks", true, egressFile(t, egress.ControlPlane, "http://127.0.0.1:1"), true},
	} {
		selector, err := egress.Read(test.file)
		if err != nil {
			t.Fatal(err)
		}
		s := &server{access: &accessControl{egress: selector}, egress: selector, certs: &certificates{}}
		s.config.NoNode = test.noNode
		if got := s.proxyConfig().ThroughKubelets; got != test.want {
			t.Errorf("%s: through kubelets %v, want %v", test.name, got, test.want)
		}
	}
}
