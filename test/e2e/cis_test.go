package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	authenticationv1 "k8s.io/api/authentication/v1"

	"skiff/internal/pki"
	"skiff/test/cluster"
)

// control is one check of the CIS Kubernetes Benchmark: how skiff meets it, and a check of running servers. The benchmark asks for
// flags; where skiff has no such flag because it only has the safe behaviour, the behaviour is checked instead.
type control struct {
	id, title, how string
	check          func(*testing.T, *benchmark)
}

// controls are the automated checks for the control plane's files, the API server and etcd, and those of the manual ones that can be
// tested; the kubelet's are in cis_kubelet_test.go.
var controls = []control{
	{"1.1.1-1.1.8", "pod specification files of the control plane are the administrator's alone", "there are none: the components are one program, configured by flags", noManifests},
	{"1.1.11", "the etcd data directory is 700 or stricter", "default", func(t *testing.T, b *benchmark) { checkModes(t, b.data("etcd"), 0o700, 0o600) }},
	{"1.1.12", "the etcd data directory belongs to who runs etcd", "default: etcd is skiff", func(t *testing.T, b *benchmark) { ownedByRoot(t, b.data("etcd")) }},
	{"1.1.13", "the administrator's kubeconfig is 600 or stricter", "default", func(t *testing.T, b *benchmark) { checkModes(t, b.data("admin.kubeconfig"), 0o700, 0o600) }},
	{"1.1.14", "the administrator's kubeconfig belongs to root", "default: to who runs skiff", func(t *testing.T, b *benchmark) { ownedByRoot(t, b.data("admin.kubeconfig")) }},
	{"1.1.15-1.1.18", "kubeconfigs of scheduler and controller manager are the administrator's alone", "inside the server they have none", noKubeconfigs},
	{"1.1.19", "the PKI directory and its files belong to root", "default: to who runs skiff", func(t *testing.T, b *benchmark) { ownedByRoot(t, b.data("pki")) }},
	{"1.1.20", "PKI certificate files are 644 or stricter", "default", func(t *testing.T, b *benchmark) { checkModes(t, b.data("pki"), 0o700, 0o644) }},
	{"1.1.21", "PKI key files are 600", "default", keyModes},

	{"1.2.1", "anonymous requests are refused", "--anonymous-auth=false; by default they reach health and version only", anonymous},
	{"1.2.2", "there is no static token file", "default: no --token-auth-file", noStaticTokens},
	{"1.2.3", "DenyServiceExternalIPs is on", "default", externalIPs},
	{"1.2.4", "the server shows kubelets a client certificate", "default: apiserver-kubelet-client, renewed by itself", kubeletClientCertificate},
	{"1.2.5", "the server verifies kubelets' certificates", "default: by the cluster's CA", kubeletIsVerified},
	{"1.2.6", "the authorization mode is not AlwaysAllow", "default", func(t *testing.T, b *benchmark) {
		b.plain.user(t, "nobody").refused(t, 403, "GET", "/api/v1/secrets", "")
	}},
	{"1.2.7", "the authorization modes include Node", "default: Node,RBAC", nodeAuthorizer},
	{"1.2.8", "the authorization modes include RBAC", "default: Node,RBAC", rbacAuthorizer},
	{"1.2.9", "EventRateLimit is on", "--enable-admission-plugins=EventRateLimit", eventRates},
	{"1.2.10", "AlwaysAdmit is not on", "there is no such plugin", func(t *testing.T, b *benchmark) {
		b.plain.admin.refused(t, 403, "POST", "/api/v1/namespaces/team/pods", `{"metadata":{"name":"x"},"spec":{"serviceAccountName":"none","containers":[{"name":"c","image":"i"}]}}`)
	}},
	{"1.2.11", "AlwaysPullImages is on", "--enable-admission-plugins=AlwaysPullImages", alwaysPull},
	{"1.2.12", "ServiceAccount is on", "default", serviceAccounts},
	{"1.2.13", "NamespaceLifecycle is on", "default", func(t *testing.T, b *benchmark) {
		b.plain.admin.refused(t, 403, "DELETE", "/api/v1/namespaces/kube-system", "")
		b.plain.admin.refused(t, 404, "POST", "/api/v1/namespaces/none/configmaps", `{"metadata":{"name":"x"}}`)
	}},
	{"1.2.14", "NodeRestriction is on", "default", nodeRestriction},
	{"1.2.15", "profiling is off", "--profiling=false", func(t *testing.T, b *benchmark) {
		b.strict.admin.refused(t, 404, "GET", "/debug/pprof/", "")
		b.strict.admin.refused(t, 404, "GET", "/debug/pprof/heap", "")
	}},
	{"1.2.16", "there is an audit log", "--audit-log-path with --audit-policy-file", auditLog},
	{"1.2.17", "audit logs are kept 30 days or more", "default 366, here --audit-log-maxage=30", flagSet("--audit-log-maxage=30")},
	{"1.2.18", "10 old audit logs or more are kept", "default 100, here --audit-log-maxbackup=10", flagSet("--audit-log-maxbackup=10")},
	{"1.2.19", "audit logs are rotated at 100 MB", "default 100, here --audit-log-maxsize=100", flagSet("--audit-log-maxsize=100")},
	{"1.2.20", "requests end in time", "default: after a minute, sooner if the client says so", requestTimeout},
	{"1.2.21", "service accounts are looked up", "always: a token ends with its account", accountLookup},
	{"1.2.22", "service-account tokens are verified by a key of their own", "default: pki/service-account.key", accountKey},
	{"1.2.23", "the server has a client certificate for etcd", "etcd is inside the process; outside: --etcd-certfile", func(t *testing.T, b *benchmark) {
		checkListeners(t, b.plain.cluster, b.plain.port(t))
	}},
	{"1.2.24", "the server has a certificate", "default: pki/apiserver.crt, renewed by itself", servingCertificate},
	{"1.2.25", "client certificates are verified", "default: by pki/ca.crt", untrustedClientCertificate},
	{"1.2.26", "etcd is verified", "etcd is inside the process; outside: --etcd-cafile", func(t *testing.T, b *benchmark) {
		checkListeners(t, b.plain.cluster, b.plain.port(t))
	}},
	{"1.2.27", "there is an encryption configuration", "--encryption-provider-config", secretsAreEncrypted},
	{"1.2.28", "its provider is aescbc, kms or secretbox", "as configured", secretsAreEncrypted},
	{"1.2.29", "only strong ciphers are used", "always: Go's, from TLS 1.2 on", func(t *testing.T, b *benchmark) { strongTLS(t, b.plain.cluster.URL, &tls.Config{}) }},
	{"1.2.30", "tokens of pods are not extended", "--service-account-extend-token-expiration=false", tokensExpire},

	{"1.3.2", "the controllers' profiling is off", "--profiling=false", func(t *testing.T, b *benchmark) { b.components.admin.refused(t, 404, "GET", "/debug/pprof/", "") }},
	{"1.3.7", "the controllers listen on loopback only", "inside the server they listen nowhere", func(t *testing.T, b *benchmark) {
		checkListeners(t, b.components.cluster, b.components.port(t))
	}},
	{"1.4.1", "the scheduler's profiling is off", "--profiling=false", func(t *testing.T, b *benchmark) { b.components.admin.refused(t, 404, "GET", "/debug/pprof/", "") }},
	{"1.4.2", "the scheduler listens on loopback only", "inside the server it listens nowhere", func(t *testing.T, b *benchmark) {
		checkListeners(t, b.components.cluster, b.components.port(t))
	}},

	{"2.1", "etcd has a certificate", "pki/etcd-server.crt at --etcd-listen-client-url; by default nothing listens", func(t *testing.T, b *benchmark) {
		if err := b.readFromEtcd(t, time.Minute, "etcd-client", "/registry/namespaces/default"); err != nil {
			t.Error(err)
		}
		strongTLS(t, "https://"+b.etcd, b.etcdTLS(t, "etcd-client"))
	}},
	{"2.2", "etcd wants client certificates", "always", func(t *testing.T, b *benchmark) {
		if b.readFromEtcd(t, time.Second, "", "/registry/namespaces/default") == nil {
			t.Error("etcd responds without a client certificate")
		}
	}},
	{"2.3", "etcd's certificate is not signed by itself", "always: by etcd-ca", etcdCertificate},
	{"2.4", "etcd has certificates for its peers", "it has no peers and listens for none", noPeers},
	{"2.5", "etcd wants its peers' certificates", "it has no peers and listens for none", noPeers},
	{"2.6", "etcd's peer certificates are not signed by themselves", "it has no peers and listens for none", noPeers},
	{"2.7", "etcd has its own CA", "default: pki/etcd-ca.crt", func(t *testing.T, b *benchmark) {
		if b.readFromEtcd(t, time.Second, "admin", "/registry/namespaces/default") == nil {
			t.Error("etcd accepts a certificate of the cluster's CA")
		}
	}},
	{"3.2.1", "there is an audit policy", "--audit-policy-file", flagSet("--audit-policy-file=")},
	{"3.2.2", "the audit policy covers secrets, without their content", "always cut down to metadata", auditLog},
}

func TestCISBenchmark(t *testing.T) {
	t.Parallel()
	b := newBenchmark(t)
	for _, c := range controls {
		t.Run(c.id+" "+c.title, func(t *testing.T) {
			if c.how == "" || c.check == nil {
				t.Fatal("the control does not say how it is met")
			}
			c.check(t, b)
		})
	}
}

// benchmark has three servers: one with default flags, one configured as the benchmark recommends, and one with all components.
type benchmark struct {
	plain, strict, components *target
	etcd                      string // address of the strict server's etcd
	log                       string
}

func newBenchmark(t *testing.T) *benchmark {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	start := func(name string, flags ...string) *cluster.Cluster {
		c, err := cluster.Skiff(filepath.Join(dir, name), flags...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Stop)
		return c
	}
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	b := &benchmark{etcd: "127.0.0.1:" + strconv.Itoa(port), log: filepath.Join(dir, "audit.log")}
	strict := start("strict", "--anonymous-auth=false", "--profiling=false", "--service-account-extend-token-expiration=false", "--etcd-listen-client-url=https://"+b.etcd,
		"--audit-policy-file="+write("audit.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: RequestResponse}]\n"), "--audit-log-path="+b.log,
		"--audit-log-maxage=30", "--audit-log-maxbackup=10", "--audit-log-maxsize=100",
		"--encryption-provider-config="+write("encryption.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources: [{resources: [secrets], providers: [{secretbox: {keys: [{name: key1, secret: MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1ub3BxcnN0dXY=}]}}]}]\n"),
		"--enable-admission-plugins=AlwaysPullImages,EventRateLimit",
		"--admission-control-config-file="+write("admission.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: [{name: EventRateLimit, configuration: {apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration, limits: [{type: User, qps: 1, burst: 2}]}}]\n"))
	b.plain, b.strict = newTarget(t, start("plain")), newTarget(t, strict)
	// The controllers create the service accounts that newTarget would: only its clients are needed here.
	components := start("components", "--without=", "--profiling=false")
	ca, err := pki.ReadCA(filepath.Join(components.Dir, "data/pki/ca.crt"), filepath.Join(components.Dir, "data/pki/ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	b.components = &target{cluster: components, pki: pki.Dir(filepath.Join(components.Dir, "data/pki")), ca: ca}
	b.components.admin = b.components.user(t, "root", "system:masters")
	return b
}

func (b *benchmark) data(path string) string {
	return filepath.Join(b.plain.cluster.Dir, "data", path)
}

func (a *target) port(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(a.cluster.URL, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// walk visits a file, or a directory and all that is below it.
func walk(t *testing.T, path string, visit func(path string, info fs.FileInfo)) {
	t.Helper()
	seen := 0
	if err := filepath.Walk(path, func(path string, info fs.FileInfo, err error) error {
		if err == nil {
			seen++
			visit(path, info)
		}
		return err
	}); err != nil || seen == 0 {
		t.Fatalf("%s: %d files, %v", path, seen, err)
	}
}

// checkModes checks that directories and files have no more permission bits than given.
func checkModes(t *testing.T, path string, directory, file fs.FileMode) {
	t.Helper()
	walk(t, path, func(path string, info fs.FileInfo) {
		most := file
		if info.IsDir() {
			most = directory
		}
		if info.Mode().Perm()&^most != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
	})
}

func ownedByRoot(t *testing.T, path string) {
	t.Helper()
	walk(t, path, func(path string, info fs.FileInfo) {
		if stat := info.Sys().(*syscall.Stat_t); int(stat.Uid) != os.Getuid() || int(stat.Gid) != os.Getgid() {
			t.Errorf("%s belongs to %d:%d", path, stat.Uid, stat.Gid)
		}
	})
}

func keyModes(t *testing.T, b *benchmark) {
	keys := 0
	walk(t, b.data("pki"), func(path string, info fs.FileInfo) {
		if strings.HasSuffix(path, ".key") {
			if keys++; info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v", path, info.Mode())
			}
		}
	})
	if keys < 8 {
		t.Errorf("only %d keys were checked", keys)
	}
}

func noManifests(t *testing.T, b *benchmark) {
	walk(t, filepath.Join(b.components.cluster.Dir, "data"), func(path string, _ fs.FileInfo) {
		if filepath.Base(path) != "version.json" && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
			t.Errorf("%s is there", path)
		}
	})
	checkModes(t, b.data(""), 0o700, 0o644)
}

func noKubeconfigs(t *testing.T, b *benchmark) {
	walk(t, filepath.Join(b.components.cluster.Dir, "data"), func(path string, _ fs.FileInfo) {
		if filepath.Ext(path) == ".kubeconfig" && filepath.Base(path) != "admin.kubeconfig" {
			t.Errorf("%s is there", path)
		}
	})
}

func anonymous(t *testing.T, b *benchmark) {
	for _, path := range []string{"/healthz", "/version", "/api", "/api/v1/secrets"} {
		b.strict.anonymous().refused(t, 401, "GET", path, "")
	}
	b.plain.anonymous().must(t, "GET", "/healthz", "")
	b.plain.anonymous().must(t, "GET", "/version", "")
	for _, path := range []string{"/api", "/apis", "/api/v1/namespaces", "/metrics", "/openapi/v3", "/logs", "/debug/pprof/"} {
		b.plain.anonymous().refused(t, 403, "GET", path, "")
	}
}

func noStaticTokens(t *testing.T, b *benchmark) {
	b.plain.anonymous().with("Authorization", "Bearer token").refused(t, 401, "GET", "/version", "")
	if hasFlag(t, b.plain.cluster, "--token-auth-file") || hasFlag(t, b.strict.cluster, "--token-auth-file") {
		t.Error("there is a token file")
	}
}

// hasFlag reports whether the running process has a flag on its command line.
func hasFlag(t *testing.T, c *cluster.Cluster, flag string) bool {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.Server[0].PID()))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(strings.Split(string(data), "\x00"), func(arg string) bool { return strings.HasPrefix(arg, flag) })
}

func flagSet(flag string) func(*testing.T, *benchmark) {
	return func(t *testing.T, b *benchmark) {
		if !hasFlag(t, b.strict.cluster, flag) {
			t.Errorf("%s is not among the flags", flag)
		}
	}
}

func externalIPs(t *testing.T, b *benchmark) {
	b.plain.admin.refused(t, 403, "POST", "/api/v1/namespaces/team/services", `{"metadata":{"name":"s"},"spec":{"ports":[{"port":80}],"externalIPs":["192.0.2.9"]}}`)
}

// fakeKubelet serves with a certificate of the CA; clientNames returns the common names of its clients. Its node has a pod.
func fakeKubelet(t *testing.T, b *benchmark, node string, ca *pki.CA) (clientNames func() []string) {
	t.Helper()
	pair, err := ca.Issue(pki.NodeServing(node, nil, []net.IP{net.IPv4(127, 0, 0, 1)}), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for _, peer := range r.TLS.PeerCertificates {
			names = append(names, peer.Subject.CommonName)
		}
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: b.plain.ca.Pool()}
	s.StartTLS()
	t.Cleanup(s.Close)
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	b.plain.admin.must(t, "POST", "/api/v1/nodes", fmt.Sprintf(`{"metadata":{"name":%q},"status":{"addresses":[{"type":"InternalIP","address":"127.0.0.1"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%s}}}}`, node, port))
	b.plain.admin.must(t, "POST", "/api/v1/namespaces/team/pods", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"nodeName":%q,"containers":[{"name":"c","image":"i"}]}}`, node, node))
	return func() []string { return names }
}

func kubeletClientCertificate(t *testing.T, b *benchmark) {
	clientNames := fakeKubelet(t, b, "known", b.plain.ca)
	b.plain.admin.must(t, "GET", "/api/v1/namespaces/team/pods/known/log", "")
	if names := clientNames(); len(names) == 0 || names[0] != "kube-apiserver-kubelet-client" {
		t.Errorf("the kubelet received the client certificates %q", names)
	}
}

func kubeletIsVerified(t *testing.T, b *benchmark) {
	untrustedCA, err := pki.NewCA("skiff-ca", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	clientNames := fakeKubelet(t, b, "unknown", untrustedCA)
	if code, text := b.plain.admin.do(t, "GET", "/api/v1/namespaces/team/pods/unknown/log", ""); code < 500 || len(clientNames()) > 0 {
		t.Errorf("a kubelet with an untrusted certificate received a request: %d %s", code, text)
	}
}

func nodeAuthorizer(t *testing.T, b *benchmark) {
	b.plain.admin.must(t, "POST", "/api/v1/namespaces/team/secrets", `{"metadata":{"name":"mounted"}}`)
	b.plain.admin.must(t, "POST", "/api/v1/namespaces/team/pods", `{"metadata":{"name":"mounts"},"spec":{"nodeName":"m1","containers":[{"name":"c","image":"i"}],"volumes":[{"name":"v","secret":{"secretName":"mounted"}}]}}`)
	node := b.plain.user(t, "system:node:m1", "system:nodes")
	// The authorizer receives the pod from a watch, soon after it was created.
	eventually(t.Context(), t, "a node may read the secret of its pod", func(context.Context) (bool, error) {
		code, _ := node.do(t, "GET", "/api/v1/namespaces/team/secrets/mounted", "")
		return code == 200, nil
	})
	b.plain.user(t, "system:node:m2", "system:nodes").refused(t, 403, "GET", "/api/v1/namespaces/team/secrets/mounted", "")
}

func rbacAuthorizer(t *testing.T, b *benchmark) {
	reader := b.plain.allow(t, "team", "secret-reader", "list", "", "secrets")
	reader.must(t, "GET", "/api/v1/namespaces/team/secrets", "")
	reader.refused(t, 403, "GET", "/api/v1/namespaces/private/secrets", "")
}

func eventRates(t *testing.T, b *benchmark) {
	var codes []int
	for i := range 5 {
		code, _ := b.strict.admin.do(t, "POST", "/api/v1/namespaces/team/events", fmt.Sprintf(`{"metadata":{"name":"e%d"},"involvedObject":{"namespace":"team"}}`, i))
		codes = append(codes, code)
	}
	if codes[0] != 201 || !slices.Contains(codes, 429) {
		t.Errorf("status codes of event requests: %v", codes)
	}
}

func alwaysPull(t *testing.T, b *benchmark) {
	pod := b.strict.admin.must(t, "POST", "/api/v1/namespaces/team/pods", `{"metadata":{"name":"pulls"},"spec":{"containers":[{"name":"c","image":"i","imagePullPolicy":"Never"}]}}`)
	if !strings.Contains(pod, `"imagePullPolicy":"Always"`) {
		t.Error(pod)
	}
}

func serviceAccounts(t *testing.T, b *benchmark) {
	pod := b.plain.admin.must(t, "POST", "/api/v1/namespaces/team/pods", `{"metadata":{"name":"account"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	if !strings.Contains(pod, `"serviceAccountName":"default"`) || !strings.Contains(pod, `"serviceAccountToken":{"expirationSeconds":3607`) {
		t.Error(pod)
	}
}

func nodeRestriction(t *testing.T, b *benchmark) {
	b.plain.admin.must(t, "POST", "/api/v1/nodes", `{"metadata":{"name":"m1"}}`)
	node := b.plain.user(t, "system:node:m1", "system:nodes")
	node.must(t, "PATCH", "/api/v1/nodes/m1", `{"metadata":{"labels":{"kubernetes.io/arch":"amd64"}}}`)
	node.refused(t, 403, "PATCH", "/api/v1/nodes/m1", `{"metadata":{"labels":{"node-restriction.kubernetes.io/team":"a"}}}`)
	node.refused(t, 403, "PATCH", "/api/v1/nodes/known", `{"metadata":{"labels":{"a":"b"}}}`)
}

func auditLog(t *testing.T, b *benchmark) {
	b.strict.admin.must(t, "POST", "/api/v1/namespaces/team/secrets", fmt.Sprintf(`{"metadata":{"name":"audited-%d"},"data":{"k":%q}}`, time.Now().UnixNano(), canary))
	eventually(t.Context(), t, "the audit log has the request", func(context.Context) (bool, error) {
		data, err := os.ReadFile(b.log)
		if strings.Contains(string(data), canary) {
			t.Error("the audit log has the secret")
		}
		return strings.Contains(string(data), `"resource":"secrets"`) && strings.Contains(string(data), `"verb":"create"`), err
	})
	checkModes(t, b.log, 0, 0o600)
}

// requestTimeout sends a request whose body never arrives.
func requestTimeout(t *testing.T, b *benchmark) {
	conn, err := tls.Dial("tcp", strings.TrimPrefix(b.plain.cluster.URL, "https://"), &tls.Config{RootCAs: b.plain.ca.Pool(), GetClientCertificate: b.plain.member.tls.GetClientCertificate})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /api/v1/namespaces/team/configmaps?timeout=1s HTTP/1.1\r\nHost: kubernetes\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	response := make([]byte, 4096)
	n, err := conn.Read(response)
	if err != nil || !strings.HasPrefix(string(response[:n]), "HTTP/1.1 504") {
		t.Errorf("%q, %v", response[:n], err)
	}
	b.plain.admin.refused(t, 400, "GET", "/api/v1/namespaces?timeout=ever", "")
}

// token requests a token of a service account in namespace team.
func (a *target) token(t *testing.T, account, spec string) string {
	t.Helper()
	var response authenticationv1.TokenRequest
	decode(t, []byte(a.admin.must(t, "POST", "/api/v1/namespaces/team/serviceaccounts/"+account+"/token", `{"spec":{`+spec+`}}`)), &response)
	return response.Status.Token
}

func accountLookup(t *testing.T, b *benchmark) {
	b.plain.admin.must(t, "POST", "/api/v1/namespaces/team/serviceaccounts", `{"metadata":{"name":"gone"}}`)
	c := b.plain.anonymous().with("Authorization", "Bearer "+b.plain.token(t, "gone", ""))
	if who := whoami(t, c); who != "system:serviceaccount:team:gone" {
		t.Errorf("authenticated as %q", who)
	}
	b.plain.admin.must(t, "DELETE", "/api/v1/namespaces/team/serviceaccounts/gone", "")
	if who := whoami(t, c); who != "" {
		t.Errorf("after its deletion authenticated as %q", who)
	}
}

func accountKey(t *testing.T, b *benchmark) {
	var set struct{ Keys []map[string]any }
	decode(t, []byte(b.plain.admin.must(t, "GET", "/openid/v1/jwks", "")), &set)
	if len(set.Keys) != 1 || set.Keys[0]["alg"] != "ES256" || set.Keys[0]["d"] != nil {
		t.Errorf("keys %v", set.Keys)
	}
	public, err := pki.ReadPublicKeys(b.data("pki/service-account.pub"))
	if err != nil || len(public) != 1 {
		t.Fatal(err)
	}
	for _, name := range []string{"ca.key", "apiserver.key", "etcd-ca.key", "front-proxy-ca.key"} {
		signer, err := pki.ReadSigner(b.data("pki/" + name))
		if err != nil {
			t.Fatal(err)
		}
		if same, ok := signer.Public().(interface{ Equal(any) bool }); ok && same.Equal(public[0]) {
			t.Errorf("%s signs tokens too", name)
		}
	}
}

func servingCertificate(t *testing.T, b *benchmark) {
	b.plain.anonymous().must(t, "GET", "/livez", "")
	withoutCA := b.plain.client(&tls.Config{RootCAs: x509.NewCertPool()})
	withoutCA.refused(t, 0, "GET", "/livez", "")
	plain := b.plain.client(nil)
	plain.url = strings.Replace(plain.url, "https", "http", 1)
	plain.refused(t, 0, "GET", "/livez", "")
}

func untrustedClientCertificate(t *testing.T, b *benchmark) {
	untrustedCA, err := pki.NewCA("skiff-ca", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	b.plain.caller(t, untrustedCA, pki.User("root", "system:masters")).refused(t, 401, "GET", "/version", "")
}

// secretsAreEncrypted reads the stored value of a secret.
func secretsAreEncrypted(t *testing.T, b *benchmark) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + b.etcd}, TLS: b.etcdTLS(t, "etcd-client")})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	value := storedValue(t, client, "/registry/secrets/private/hidden")
	if !strings.HasPrefix(string(value), "k8s:enc:secretbox:v1:key1:") || strings.Contains(string(value), "canary") {
		t.Errorf("a secret is stored as %.60q", value)
	}
}

func tokensExpire(t *testing.T, b *benchmark) {
	var pod struct{ Metadata struct{ UID string } }
	decode(t, []byte(b.strict.admin.must(t, "POST", "/api/v1/namespaces/team/pods", `{"metadata":{"name":"token"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)), &pod)
	token := b.strict.token(t, "default", `"expirationSeconds":3607,"boundObjectRef":{"apiVersion":"v1","kind":"Pod","name":"token","uid":"`+pod.Metadata.UID+`"}`)
	data := must[[]byte](t)(base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1]))
	var claims struct{ Exp, Iat int64 }
	if err := json.Unmarshal(data, &claims); err != nil || claims.Exp-claims.Iat != 3607 {
		t.Errorf("the token is valid for %d seconds, %v", claims.Exp-claims.Iat, err)
	}
}

// checkListeners checks on which ports the server's process listens.
func checkListeners(t *testing.T, c *cluster.Cluster, want ...string) {
	t.Helper()
	pid := c.Server[0].PID()
	inodes := map[string]bool{}
	descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range descriptors {
		if to, err := os.Readlink(path); err == nil && strings.HasPrefix(to, "socket:[") {
			inodes[strings.Trim(strings.TrimPrefix(to, "socket:"), "[]")] = true
		}
	}
	var got []string
	for _, file := range []string{"tcp", "tcp6"} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, file))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(string(data), "\n") {
			fields := strings.Fields(line)
			if len(fields) < 10 || fields[3] != "0A" || !inodes[fields[9]] {
				continue
			}
			address, port, _ := strings.Cut(fields[1], ":")
			number, err := strconv.ParseUint(port, 16, 16)
			if err != nil || address != "0100007F" {
				t.Errorf("listens at %s (%v)", fields[1], err)
			}
			got = append(got, strconv.FormatUint(number, 10))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("listens on ports %v, want %v", got, want)
	}
}

// readFromEtcd reads a key with a certificate of the PKI directory, or without. A client that etcd rejects tries again until the timeout.
func (b *benchmark) readFromEtcd(t *testing.T, timeout time.Duration, cert, key string) error {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + b.etcd}, TLS: b.etcdTLS(t, cert)})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	_, err = client.Get(ctx, key)
	return err
}

func noPeers(t *testing.T, b *benchmark) {
	_, etcd, _ := net.SplitHostPort(b.etcd)
	checkListeners(t, b.strict.cluster, b.strict.port(t), etcd)
}

func etcdCertificate(t *testing.T, b *benchmark) {
	conn, err := tls.Dial("tcp", b.etcd, b.etcdTLS(t, "etcd-client"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if cert := conn.ConnectionState().PeerCertificates[0]; cert.Issuer.CommonName != "skiff-etcd-ca" {
		t.Errorf("etcd's certificate is from %s", cert.Issuer)
	}
}

// etcdTLS trusts etcd's CA and has a client certificate of the PKI directory, or none.
func (b *benchmark) etcdTLS(t *testing.T, cert string) *tls.Config {
	t.Helper()
	directory := string(b.strict.pki)
	data, err := os.ReadFile(filepath.Join(directory, "etcd-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(data)
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(filepath.Join(directory, cert+".crt"), filepath.Join(directory, cert+".key"))
		if err != nil {
			t.Fatal(err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return config
}

// strongSuites are the cipher suites the benchmark allows.
var strongSuites = []uint16{
	tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384, tls.TLS_CHACHA20_POLY1305_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// strongTLS does a handshake with every TLS version and every cipher suite, otherwise with the client's configuration.
func strongTLS(t *testing.T, address string, client *tls.Config) {
	t.Helper()
	shake := func(least, most uint16, suites ...uint16) error {
		config := client.Clone()
		config.MinVersion, config.MaxVersion, config.CipherSuites = least, most, suites
		config.InsecureSkipVerify = true // only the negotiated version and suite matter
		conn, err := tls.Dial("tcp", strings.TrimPrefix(address, "https://"), config)
		if err == nil {
			conn.Close()
		}
		return err
	}
	for version, good := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		if err := shake(version, version); (err == nil) != good {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
	}
	tried := 0
	for _, suite := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		if slices.Contains(suite.SupportedVersions, tls.VersionTLS12) && !slices.Contains(strongSuites, suite.ID) {
			if tried++; shake(tls.VersionTLS12, tls.VersionTLS12, suite.ID) == nil {
				t.Errorf("%s is spoken", suite.Name)
			}
		}
	}
	if tried < 8 || shake(tls.VersionTLS12, tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256) != nil {
		t.Errorf("%d weak suites were tried, and a strong one fails", tried)
	}
}
