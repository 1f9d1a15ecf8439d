package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/pki"
	"skiff/test/cluster"
)

// Classes of vulnerabilities that Kubernetes has had, each as an attack on a running server over real sockets. The attacks on
// authentication (tokens, proxy headers) are in cve_identity_test.go. Redirects by the target of a proxy request are tested in
// apiserver/connect: the proxy of a running server connects to no address of a test host.
var attacks = []struct {
	class string
	try   func(*testing.T, *target)
}{
	{"cluster objects through a namespace's path (CVE-2019-11247)", clusterObjectsInNamespaces},
	{"another namespace through an ambiguous path", ambiguousPaths},
	{"an object with another namespace than its path", mismatchedNamespace},
	{"names of groups, resources and namespaces with a common prefix", prefixes},
	{"bypassing update checks by create, and create checks by update (like CVE-2021-25735)", createLikeUpdate},
	{"container types that an admission plugin forgets (CVE-2023-2727, CVE-2023-2728)", initAndEphemeralContainers},
	{"YAML and JSON bombs (CVE-2019-11253)", resourceExhaustion},
	{"patches that grow (CVE-2019-1002100)", growingPatches},
	{"proxies to the server's own addresses (CVE-2020-8562)", proxyToHostAddresses},
	{"exec by a websocket with only the get permission", websocketExec},
	{"front-proxy headers from other clients", frontProxyHeaders},
	{"tokens with a wrong audience, expired, or with a forged signature", badTokens},
}

func TestKnownVulnerabilities(t *testing.T) {
	c, err := cluster.Skiff(t.TempDir(), "--enable-admission-plugins=AlwaysPullImages")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	a := newTarget(t, c)
	for _, attack := range attacks {
		t.Run(attack.class, func(t *testing.T) { attack.try(t, a) })
	}
	if c.Server[0].Exited() {
		t.Fatalf("the server did not survive:\n%s", c.Server[0].Log(20))
	}
}

// canary is the content of secrets that no attacker may read.
const canary = "Y2FuYXJ5LWNhbmFyeQ=="

// target is the server under attack, with the objects that the attacks need: namespace team, where its member has all permissions,
// and others where the member has none.
type target struct {
	cluster *cluster.Cluster
	pki     pki.Dir
	ca      *pki.CA
	admin   *caller
	member  *caller
}

func newTarget(t *testing.T, c *cluster.Cluster) *target {
	t.Helper()
	dir := filepath.Join(c.Dir, "data/pki")
	ca, err := pki.ReadCA(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	a := &target{cluster: c, pki: pki.Dir(dir), ca: ca}
	a.admin, a.member = a.user(t, "root", "system:masters"), a.user(t, "member")
	for _, namespace := range []string{"team", "team-2", "teams", "private"} {
		a.admin.must(t, "POST", "/api/v1/namespaces", `{"metadata":{"name":"`+namespace+`"}}`)
		a.admin.must(t, "POST", "/api/v1/namespaces/"+namespace+"/serviceaccounts", `{"metadata":{"name":"default"}}`)
		a.admin.must(t, "POST", "/api/v1/namespaces/"+namespace+"/configmaps", `{"metadata":{"name":"settings"}}`)
	}
	a.admin.must(t, "POST", "/api/v1/namespaces/private/secrets", `{"metadata":{"name":"hidden"},"data":{"k":"`+canary+`"}}`)
	a.admin.must(t, "POST", rbacPath+"/clusterroles", `{"metadata":{"name":"everything"},"rules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}]}`)
	a.grant(t, "team", "everything", "member")
	return a
}

const rbacPath = "/apis/rbac.authorization.k8s.io/v1"

// grant binds a cluster role to a user, in one namespace or, without, everywhere.
func (a *target) grant(t *testing.T, namespace, role, user string) {
	t.Helper()
	body := fmt.Sprintf(`{"metadata":{"name":"%s-%s"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"%s"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"%s"}]}`, role, user, role, user)
	if namespace == "" {
		a.admin.must(t, "POST", rbacPath+"/clusterrolebindings", body)
		return
	}
	a.admin.must(t, "POST", rbacPath+"/namespaces/"+namespace+"/rolebindings", body)
}

// allow creates a role with one rule and binds it.
func (a *target) allow(t *testing.T, namespace, user, verbs, group, resources string) *caller {
	t.Helper()
	list := func(words string) string { return `["` + strings.ReplaceAll(words, ",", `","`) + `"]` }
	a.admin.must(t, "POST", rbacPath+"/clusterroles", fmt.Sprintf(`{"metadata":{"name":"for-%s"},"rules":[{"verbs":%s,"apiGroups":[%q],"resources":%s}]}`, user, list(verbs), group, list(resources)))
	a.grant(t, namespace, "for-"+user, user)
	return a.user(t, user)
}

// user is a client with a certificate of the cluster's CA.
func (a *target) user(t *testing.T, name string, groups ...string) *caller {
	t.Helper()
	return a.caller(t, a.ca, pki.User(name, groups...))
}

func (a *target) caller(t *testing.T, ca *pki.CA, leaf pki.Leaf) *caller {
	t.Helper()
	pair, err := ca.Issue(leaf, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	return a.client(&tls.Config{RootCAs: a.ca.Pool(), GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }})
}

// anonymous is a client without a certificate.
func (a *target) anonymous() *caller { return a.client(&tls.Config{RootCAs: a.ca.Pool()}) }

func (a *target) client(config *tls.Config) *caller {
	return &caller{url: a.cluster.URL, tls: config, client: &http.Client{
		Transport: &http.Transport{TLSClientConfig: config, DisableCompression: true}, Timeout: time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// caller sends requests as they are: paths are not cleaned.
type caller struct {
	url    string
	tls    *tls.Config
	client *http.Client
	header http.Header
}

// with returns the same client with one more header.
func (c *caller) with(name, value string) *caller {
	more := *c
	if more.header = c.header.Clone(); more.header == nil {
		more.header = http.Header{}
	}
	more.header.Add(name, value)
	return &more
}

// do returns the status and the body of the response, or status 0 if there is no response.
func (c *caller) do(t *testing.T, method, path string, body string) (int, string) {
	t.Helper()
	address, err := url.Parse(c.url)
	if err != nil {
		t.Fatal(err)
	}
	address.Opaque = "//" + address.Host + path
	req, err := http.NewRequestWithContext(t.Context(), method, c.url, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.URL = address
	req.Header.Set("Content-Type", map[string]string{http.MethodPatch: "application/merge-patch+json"}[method])
	if method != http.MethodPatch {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, values := range c.header {
		req.Header[name] = values
	}
	res, err := c.client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(data)
}

// must sends a request that must succeed.
func (c *caller) must(t *testing.T, method, path, body string) string {
	t.Helper()
	code, text := c.do(t, method, path, body)
	if code < 200 || code > 299 {
		t.Fatalf("%s %s: %d %s", method, path, code, text)
	}
	return text
}

// refused sends a request that must fail with the given status.
func (c *caller) refused(t *testing.T, want int, method, path, body string) {
	t.Helper()
	if code, text := c.do(t, method, path, body); code != want || strings.Contains(text, canary) {
		t.Errorf("%s %s: %d, want %d: %.300s", method, path, code, want, text)
	}
}

// A role in a namespace allows everything there. It allows nothing on cluster-scoped objects, whatever the path.
func clusterObjectsInNamespaces(t *testing.T, a *target) {
	tried := 0
	for _, gv := range []string{"/api/v1", "/apis/apps/v1", "/apis/storage.k8s.io/v1", "/apis/certificates.k8s.io/v1", "/apis/scheduling.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1",
		"/apis/flowcontrol.apiserver.k8s.io/v1", "/apis/networking.k8s.io/v1", "/apis/node.k8s.io/v1", rbacPath} {
		var list metav1.APIResourceList
		if err := json.Unmarshal([]byte(a.admin.must(t, "GET", gv, "")), &list); err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if r.Namespaced || strings.Contains(r.Name, "/") || r.Name == "namespaces" {
				continue
			}
			tried++
			path := gv + "/namespaces/team/" + r.Name
			a.member.refused(t, 403, "GET", gv+"/"+r.Name, "")
			a.member.refused(t, 404, "GET", path, "")
			a.member.refused(t, 404, "GET", path+"/some", "")
			a.member.refused(t, 404, "POST", path, `{"metadata":{"name":"some"}}`)
			a.member.refused(t, 404, "PATCH", path+"/some", `{"metadata":{"labels":{"a":"b"}}}`)
			a.member.refused(t, 404, "DELETE", path+"/some", "")
			a.member.refused(t, 404, "DELETE", path, "")
		}
	}
	if tried < 15 {
		t.Errorf("only %d cluster-scoped resources were tried", tried)
	}
	a.member.refused(t, 404, "DELETE", rbacPath+"/namespaces/team/clusterroles/everything", "")
	a.admin.must(t, "GET", rbacPath+"/clusterroles/everything", "")
	// Namespaced objects cannot be written as cluster-scoped ones.
	for _, method := range []string{"POST", "PUT"} {
		a.admin.refused(t, 405, method, "/api/v1/secrets", `{"metadata":{"name":"x","namespace":"private"}}`)
	}
	a.admin.refused(t, 404, "GET", "/api/v1/secrets/hidden", "")
	a.admin.refused(t, 405, "DELETE", "/api/v1/secrets", "")
}

// No spelling of a path makes the authorizer and the storage use different namespaces.
func ambiguousPaths(t *testing.T, a *target) {
	for _, path := range []string{
		"/api/v1/namespaces/private/secrets", "/api/v1/secrets", "/api/v1/namespaces/team/../private/secrets", "/api/v1/namespaces/team/%2e%2e/private/secrets",
		"/api/v1/namespaces/team%2f..%2fprivate/secrets", "/api/v1/namespaces/team/secrets/../../private/secrets/hidden", "/api/v1/namespaces/team/secrets/..%2f..%2fprivate%2fsecrets%2fhidden",
		"//api/v1/namespaces/private/secrets", "/api//v1/namespaces/private/secrets", "/api/v1//namespaces/private/secrets", "/api/v1/namespaces//secrets",
		"/api/v1/namespaces/%2e/private/secrets", "/api/v1/namespaces/private//secrets", "/api/v1/namespaces/private/secrets/", "/api/v1/./namespaces/private/secrets", "/./api/v1/secrets",
		"/api/v1/watch/namespaces/private/secrets?timeoutSeconds=1", "/api/v1/watch/secrets?timeoutSeconds=1", "/api/v1/watch/namespaces/team/../private/secrets?timeoutSeconds=1",
		"/api/v1/proxy/namespaces/private/secrets", "/api/v1/namespaces/private%00/secrets", "/api/v1/namespaces/private/secrets%3fx=1", "/API/v1/namespaces/private/secrets",
		"/api/v1/namespaces/team/secrets?namespace=private", "/api/v1/namespaces/team/secrets?fieldSelector=metadata.namespace%3Dprivate", "/api/v1/namespaces/%70rivate/secrets",
		"/apis//v1/namespaces/private/secrets", "/api/v1/namespaces/team/secrets/%2e%2e", "/healthz/../api/v1/secrets", "/version/../api/v1/namespaces/private/secrets/hidden",
	} {
		code, text := a.member.do(t, "GET", path, "")
		if strings.Contains(text, canary) || code == http.StatusOK && !strings.Contains(path, "/team/secrets?") {
			t.Errorf("GET %s: %d %.200s", path, code, text)
		}
	}
	// Permission to list one name allows lists of that name only.
	named := a.user(t, "named")
	a.admin.must(t, "POST", rbacPath+"/clusterroles", `{"metadata":{"name":"for-named"},"rules":[{"verbs":["list","watch"],"apiGroups":[""],"resources":["configmaps"],"resourceNames":["settings"]}]}`)
	a.grant(t, "private", "for-named", "named")
	named.must(t, "GET", "/api/v1/namespaces/private/configmaps?fieldSelector=metadata.name%3Dsettings", "")
	for _, selector := range []string{"", "?fieldSelector=metadata.name%21%3Dsettings", "?fieldSelector=metadata.name%3Dother", "?labelSelector=metadata.name%3Dsettings"} {
		named.refused(t, 403, "GET", "/api/v1/namespaces/private/configmaps"+selector, "")
	}
}

// The path decides where an object is written; an object with another namespace is rejected.
func mismatchedNamespace(t *testing.T, a *target) {
	foreign := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"strayed","namespace":"private"}}`
	a.member.refused(t, 400, "POST", "/api/v1/namespaces/team/configmaps", foreign)
	a.member.refused(t, 400, "PUT", "/api/v1/namespaces/team/configmaps/strayed", foreign)
	a.member.refused(t, 400, "PUT", "/api/v1/namespaces/team/configmaps/settings", `{"metadata":{"name":"settings","namespace":"private"}}`)
	a.member.refused(t, 400, "PUT", "/api/v1/namespaces/team/configmaps/settings", `{"metadata":{"name":"other"}}`)
	a.member.with("Content-Type", "application/apply-patch+yaml").refused(t, 400, "PATCH", "/api/v1/namespaces/team/configmaps/strayed?fieldManager=m", foreign)
	if code, text := a.member.do(t, "PATCH", "/api/v1/namespaces/team/configmaps/settings", `{"metadata":{"namespace":"private","labels":{"a":"b"}}}`); code < 400 {
		t.Errorf("a patch moved an object: %d %s", code, text)
	}
	a.admin.refused(t, 404, "GET", "/api/v1/namespaces/private/configmaps/strayed", "")
	a.member.refused(t, 400, "POST", "/api/v1/namespaces/team/pods", `{"metadata":{"name":"strayed","namespace":"private"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
}

// Keys in etcd and names in RBAC rules are compared whole, not by prefix.
func prefixes(t *testing.T, a *target) {
	list := a.member.must(t, "GET", "/api/v1/namespaces/team/configmaps", "")
	if strings.Contains(list, `"team-2"`) || strings.Contains(list, `"teams"`) {
		t.Errorf("a namespace's list contains another's objects: %s", list)
	}
	a.member.must(t, "DELETE", "/api/v1/namespaces/team/configmaps", "")
	for _, other := range []string{"team-2", "teams"} {
		a.member.refused(t, 403, "GET", "/api/v1/namespaces/"+other+"/configmaps", "")
		a.admin.must(t, "GET", "/api/v1/namespaces/"+other+"/configmaps/settings", "")
	}
	for _, who := range []struct{ user, verbs, group, resources, may, not string }{
		{"roles-reader", "list", "rbac.authorization.k8s.io", "roles", rbacPath + "/roles", rbacPath + "/rolebindings"},
		{"core-events", "list", "", "events", "/api/v1/events", "/apis/events.k8s.io/v1/events"},
		{"apps-reader", "list", "apps", "*", "/apis/apps/v1/deployments", "/apis/autoscaling/v1/horizontalpodautoscalers"},
		{"k8s-io", "list", "k8s.io", "*", "", "/apis/networking.k8s.io/v1/ingresses"},
		{"pods-part", "get", "", "pods/log", "", "/api/v1/namespaces/team/pods/p"},
		{"pod", "list", "", "pod,podss,POD", "", "/api/v1/pods"},
		{"csi", "list", "storage.k8s.io", "csi", "", "/apis/storage.k8s.io/v1/csinodes"},
		{"leases", "list", "coordination.k8s.io", "lease", "", "/apis/coordination.k8s.io/v1/leases"},
	} {
		c := a.allow(t, "", who.user, who.verbs, who.group, who.resources)
		if who.may != "" {
			c.must(t, "GET", who.may, "")
		}
		c.refused(t, 403, "GET", who.not, "")
	}
	// Service accounts of namespace team are not those of team-2, and user team is not group team.
	a.admin.must(t, "POST", rbacPath+"/clusterrolebindings", `{"metadata":{"name":"accounts"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"everything"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"system:serviceaccounts:team"}]}`)
	as := func(account string) *caller {
		return a.admin.with("Impersonate-User", "system:serviceaccount:"+account)
	}
	as("team:default").must(t, "GET", "/api/v1/nodes", "")
	as("team-2:default").refused(t, 403, "GET", "/api/v1/nodes", "")
	a.user(t, "system:serviceaccounts:team").refused(t, 403, "GET", "/api/v1/nodes", "")
	// A node has no access to a node whose name begins with its own.
	a.admin.must(t, "POST", "/api/v1/nodes", `{"metadata":{"name":"n10"}}`)
	a.user(t, "system:node:n1", "system:nodes").refused(t, 403, "PATCH", "/api/v1/nodes/n10/status", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)
	a.user(t, "system:node:n10", "system:nodes").must(t, "PATCH", "/api/v1/nodes/n10/status", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)
}

// Every way to write an object passes the same validation and admission.
func createLikeUpdate(t *testing.T, a *target) {
	writer := a.allow(t, "", "writer", "create,update,patch,get", "rbac.authorization.k8s.io", "clusterroles,clusterrolebindings")
	strong := `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"strong"},"rules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}]}`
	apply := writer.with("Content-Type", "application/apply-patch+yaml")
	path := rbacPath + "/clusterroles"
	writer.refused(t, 403, "POST", path, strong)
	writer.refused(t, 403, "PUT", path+"/strong", strong)
	apply.refused(t, 403, "PATCH", path+"/strong?fieldManager=m", strong)
	writer.must(t, "POST", path, `{"metadata":{"name":"strong"}}`)
	writer.refused(t, 403, "PUT", path+"/strong", strong)
	writer.refused(t, 403, "PATCH", path+"/strong", strong)
	apply.refused(t, 403, "PATCH", path+"/strong?fieldManager=m", strong)
	writer.refused(t, 403, "POST", rbacPath+"/clusterrolebindings", `{"metadata":{"name":"mine"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"everything"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"writer"}]}`)

	// A user who may only patch or update cannot create that way.
	changer := a.allow(t, "team", "changer", "update,patch,get", "coordination.k8s.io", "leases")
	lease := `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"l"}}`
	leases := "/apis/coordination.k8s.io/v1/namespaces/team/leases/l"
	changer.refused(t, 403, "PUT", leases, lease)
	changer.with("Content-Type", "application/apply-patch+yaml").refused(t, 403, "PATCH", leases+"?fieldManager=m", lease)
	a.admin.refused(t, 404, "GET", leases, "")

	// Pod Security applies to pods however they are created.
	a.admin.must(t, "POST", "/api/v1/namespaces", `{"metadata":{"name":"strict","labels":{"pod-security.kubernetes.io/enforce":"baseline"}}}`)
	a.admin.must(t, "POST", "/api/v1/namespaces/strict/serviceaccounts", `{"metadata":{"name":"default"}}`)
	privileged := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i","securityContext":{"privileged":true}}]}}`
	a.admin.refused(t, 403, "POST", "/api/v1/namespaces/strict/pods", privileged)
	a.admin.with("Content-Type", "application/apply-patch+yaml").refused(t, 403, "PATCH", "/api/v1/namespaces/strict/pods/p?fieldManager=m", privileged)
	a.admin.refused(t, 403, "POST", "/api/v1/namespaces/strict/services", `{"metadata":{"name":"s"},"spec":{"ports":[{"port":80}],"externalIPs":["192.0.2.9"]}}`)
	a.admin.must(t, "POST", "/api/v1/namespaces/strict/services", `{"metadata":{"name":"s"},"spec":{"ports":[{"port":80}]}}`)
	a.admin.refused(t, 403, "PATCH", "/api/v1/namespaces/strict/services/s", `{"spec":{"externalIPs":["192.0.2.9"]}}`)
}

// Admission also checks init and ephemeral containers.
func initAndEphemeralContainers(t *testing.T, a *target) {
	pods := "/api/v1/namespaces/strict/pods"
	plain := `"containers":[{"name":"c","image":"i"}]`
	for _, spec := range []string{
		plain + `,"initContainers":[{"name":"i","image":"i","securityContext":{"privileged":true}}]`,
		plain + `,"initContainers":[{"name":"i","image":"i","restartPolicy":"Always","securityContext":{"capabilities":{"add":["SYS_ADMIN"]}}}]`,
		plain + `,"initContainers":[{"name":"i","image":"i","ports":[{"containerPort":80,"hostPort":80}]}]`,
		plain + `,"hostNetwork":true`, plain + `,"volumes":[{"name":"v","hostPath":{"path":"/"}}]`,
	} {
		a.admin.refused(t, 403, "POST", pods, `{"metadata":{"name":"bad"},"spec":{`+spec+`}}`)
	}
	a.admin.must(t, "POST", pods, `{"metadata":{"name":"good"},"spec":{`+plain+`,"initContainers":[{"name":"i","image":"i","imagePullPolicy":"Never"}]}}`)
	ephemeral := a.admin.with("Content-Type", "application/strategic-merge-patch+json")
	ephemeral.refused(t, 403, "PATCH", pods+"/good/ephemeralcontainers", `{"spec":{"ephemeralContainers":[{"name":"e","image":"i","securityContext":{"privileged":true}}]}}`)
	pod := ephemeral.must(t, "PATCH", pods+"/good/ephemeralcontainers", `{"spec":{"ephemeralContainers":[{"name":"e","image":"new","imagePullPolicy":"IfNotPresent"}]}}`)
	if n := strings.Count(pod, `"imagePullPolicy":"Always"`); n != 3 {
		t.Errorf("AlwaysPullImages saw %d of 3 containers: %s", n, pod)
	}

	// A service account that may mount only its own secrets cannot read others through the environment of any container.
	a.admin.must(t, "POST", "/api/v1/namespaces/strict/serviceaccounts", `{"metadata":{"name":"bound","annotations":{"kubernetes.io/enforce-mountable-secrets":"true"}},"secrets":[{"name":"own"}]}`)
	from := `"envFrom":[{"secretRef":{"name":"other"}}]`
	for _, spec := range []string{
		`"containers":[{"name":"c","image":"i",` + from + `}]`, plain + `,"initContainers":[{"name":"i","image":"i",` + from + `}]`,
		`"containers":[{"name":"c","image":"i","env":[{"name":"E","valueFrom":{"secretKeyRef":{"name":"other","key":"k"}}}]}]`,
		plain + `,"volumes":[{"name":"v","secret":{"secretName":"other"}}]`, plain + `,"imagePullSecrets":[{"name":"other"}]`,
	} {
		a.admin.refused(t, 403, "POST", pods, `{"metadata":{"name":"bad"},"spec":{"serviceAccountName":"bound",`+spec+`}}`)
	}
	a.admin.must(t, "POST", pods, `{"metadata":{"name":"bound"},"spec":{"serviceAccountName":"bound",`+plain+`}}`)
	ephemeral.refused(t, 403, "PATCH", pods+"/bound/ephemeralcontainers", `{"spec":{"ephemeralContainers":[{"name":"e","image":"i",`+from+`}]}}`)

	// Limits apply to all containers.
	a.admin.must(t, "POST", "/api/v1/namespaces/team-2/limitranges", `{"metadata":{"name":"l"},"spec":{"limits":[{"type":"Container","max":{"cpu":"1"}}]}}`)
	eventually(t.Context(), t, "the limit holds for init containers", func(context.Context) (bool, error) {
		code, _ := a.admin.do(t, "POST", "/api/v1/namespaces/team-2/pods?dryRun=All", `{"metadata":{"name":"big"},"spec":{`+plain+`,"initContainers":[{"name":"i","image":"i","resources":{"limits":{"cpu":"2"}}}]}}`)
		return code == 403, nil
	})
}

// A small request must not use many resources, whoever sends it.
func resourceExhaustion(t *testing.T, a *target) {
	laughs := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bomb}\ndata:\n  a: &a [" + strings.Repeat("lol,", 9) + "lol]\n"
	for c := 'b'; c <= 'k'; c++ {
		laughs += fmt.Sprintf("  %c: &%c [%s*%c]\n", c, c, strings.Repeat(fmt.Sprintf("*%c,", c-1), 9), c-1)
	}
	deep := `{"metadata":{"name":"bomb"},"data":` + strings.Repeat(`{"a":`, 500_000) + "1" + strings.Repeat("}", 500_000) + "}"
	brackets := `{"metadata":{"name":"bomb"},"x":` + strings.Repeat("[", 1_000_000) + strings.Repeat("]", 1_000_000) + "}"
	large := `{"metadata":{"name":"bomb"},"data":{"k":"` + strings.Repeat("x", 4<<20) + `"}}`
	wide := `{"metadata":{"name":"bomb"},"x":{` + strings.Repeat(`"a":{},`, 300_000) + `"b":{}}}`
	path := "/api/v1/namespaces/team/configmaps"
	for _, bomb := range []struct {
		name, contentType, method, path, body string
		most                                  int // the largest status code of a client error that is expected
	}{
		{"aliases", "application/yaml", "POST", path, laughs, 422},
		{"aliases applied", "application/apply-patch+yaml", "PATCH", path + "/bomb?fieldManager=m", laughs, 422},
		{"deep objects", "application/json", "POST", path, deep, 413},
		{"deep lists", "application/json", "POST", path, brackets, 413},
		{"deep YAML", "application/yaml", "POST", path, strings.ReplaceAll(brackets, "\"x\":", "\"x\": "), 413},
		{"deep merge patch", "application/merge-patch+json", "PATCH", path + "/settings", deep, 422},
		{"deep strategic patch", "application/strategic-merge-patch+json", "PATCH", path + "/settings", deep, 422},
		{"deep JSON patch", "application/json-patch+json", "PATCH", path + "/settings", `[{"op":"add","path":"/data","value":` + deep + "}]", 422},
		{"large", "application/json", "POST", path, large, 413},
		{"large YAML", "application/yaml", "POST", path, strings.Repeat("#\n", 2<<20) + "a: b", 413},
		{"long protobuf", "application/vnd.kubernetes.protobuf", "POST", path, "k8s\x00\x0a\xff\xff\xff\xff\x7f", 422},
		{"many fields", "application/json", "POST", path + "?fieldValidation=Strict", wide, 422},
	} {
		a.admin.do(t, "POST", path, `{"metadata":{"name":"settings"}}`)
		before, err := a.cluster.CPU()
		if err != nil {
			t.Fatal(err)
		}
		code, text := a.member.with("Content-Type", bomb.contentType).do(t, bomb.method, bomb.path, bomb.body)
		after, err := a.cluster.CPU()
		if err != nil {
			t.Fatal(err)
		}
		if code < 400 || code > bomb.most {
			t.Errorf("%s: %d %.200s", bomb.name, code, text)
		}
		if len(text) > 200_000 {
			t.Errorf("%s: the response has %d bytes", bomb.name, len(text))
		}
		if used := after - before; used > 8*time.Second {
			t.Errorf("%s took %v of CPU", bomb.name, used)
		}
	}
	if resident, err := a.cluster.Resident(); err != nil || resident > 1<<30 {
		t.Errorf("the server holds %d MiB (%v)", resident>>20, err)
	}
	// Unauthenticated and unauthorized requests are rejected before the body is read.
	a.anonymous().with("Content-Type", "application/yaml").refused(t, 403, "POST", path, laughs)
	a.user(t, "nobody").with("Content-Type", "application/yaml").refused(t, 403, "POST", path, laughs)
}

// The result of a patch has the same size limit as a request.
func growingPatches(t *testing.T, a *target) {
	path := "/api/v1/namespaces/team/configmaps/seed"
	a.admin.must(t, "POST", "/api/v1/namespaces/team/configmaps", `{"metadata":{"name":"seed"},"data":{"a":"`+strings.Repeat("x", 100_000)+`"}}`)
	patch := a.member.with("Content-Type", "application/json-patch+json")
	var copies, doubling []string
	for i := range 9_000 {
		copies = append(copies, fmt.Sprintf(`{"op":"copy","from":"/data/a","path":"/data/b%d"}`, i))
	}
	for i := range 40 {
		doubling = append(doubling, fmt.Sprintf(`{"op":"copy","from":"/data","path":"/data/d%d"}`, i))
	}
	before, err := a.cluster.Resident()
	if err != nil {
		t.Fatal(err)
	}
	for name, operations := range map[string][]string{"copies": copies, "doubling": doubling} {
		if code, text := patch.do(t, "PATCH", path, "["+strings.Join(operations, ",")+"]"); code < 400 || code > 422 {
			t.Errorf("%s: %d %.200s", name, code, text)
		}
	}
	for len(copies) <= 10_000 {
		copies = append(copies, `{"op":"test","path":"/metadata/name","value":"seed"}`)
	}
	patch.refused(t, 413, "PATCH", path, "["+strings.Join(copies, ",")+"]")
	if after, err := a.cluster.Resident(); err != nil || after-before > 300<<20 {
		t.Errorf("patches cost %d MiB (%v)", (after-before)>>20, err)
	}
	// Many owners, finalizers or field managers cannot exceed the size limit of an object.
	big := `{"metadata":{"annotations":{"a":"` + strings.Repeat("x", 300<<10) + `"}}}`
	a.member.refused(t, 422, "PATCH", path, big)
}

// The server's own host and the cloud's metadata service are not reachable by users, whatever addresses they write into objects.
func proxyToHostAddresses(t *testing.T, a *target) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	reached := make(chan string, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			reached <- conn.RemoteAddr().String()
			conn.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	for i, address := range []string{"127.0.0.1", "::1", "127.9.9.9", "::ffff:127.0.0.1", "0.0.0.0"} {
		node, pod := fmt.Sprint("near-", i), fmt.Sprint("near-", i)
		a.admin.must(t, "POST", "/api/v1/nodes", fmt.Sprintf(`{"metadata":{"name":%q},"status":{"addresses":[{"type":"InternalIP","address":%q}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%s}}}}`, node, address, port))
		a.admin.refused(t, 400, "GET", "/api/v1/nodes/"+node+"/proxy/", "")
		a.admin.refused(t, 400, "GET", "/api/v1/nodes/http:"+node+":"+port+"/proxy/", "")
		a.admin.must(t, "POST", "/api/v1/namespaces/team/pods", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"nodeName":"n10","containers":[{"name":"c","image":"i"}]}}`, pod))
		if code, text := a.admin.do(t, "PATCH", "/api/v1/namespaces/team/pods/"+pod+"/status", fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}]}}`, address, address)); code == 200 {
			a.admin.refused(t, 400, "GET", "/api/v1/namespaces/team/pods/"+pod+":"+port+"/proxy/", "")
			a.admin.refused(t, 400, "GET", "/api/v1/namespaces/team/pods/http:"+pod+":"+port+"/proxy/", "")
		} else if code != 422 {
			t.Errorf("pod with address %s: %d %s", address, code, text)
		}
		a.admin.refused(t, 422, "POST", "/api/v1/namespaces/team/endpoints", fmt.Sprintf(`{"metadata":{"name":%q},"subsets":[{"addresses":[{"ip":%q}],"ports":[{"port":%s}]}]}`, pod, address, port))
	}
	// A Service whose name is an IP address is not proxied to that address.
	a.admin.must(t, "POST", "/api/v1/namespaces/team/services", `{"metadata":{"name":"away"},"spec":{"type":"ExternalName","externalName":"localhost","ports":[{"port":`+port+`}]}}`)
	a.admin.refused(t, 503, "GET", "/api/v1/namespaces/team/services/away:"+port+"/proxy/", "")
	select {
	case from := <-reached:
		t.Errorf("the server connected to its own host (%s)", from)
	default:
	}
}

// Exec needs permission to create pods/exec, although a websocket handshake is a GET request.
func websocketExec(t *testing.T, a *target) {
	reader := a.allow(t, "team", "execs-by-get", "get", "", "pods,pods/exec,pods/attach,pods/portforward")
	runner := a.allow(t, "team", "execs-by-create", "create,get", "", "pods,pods/exec,pods/attach,pods/portforward")
	a.admin.must(t, "POST", "/api/v1/namespaces/team/pods", `{"metadata":{"name":"shell"},"spec":{"nodeName":"n10","containers":[{"name":"c","image":"i"}]}}`)
	for _, path := range []string{"/exec?command=id&container=c&stdout=true", "/attach?container=c&stdout=true", "/portforward?ports=80"} {
		shake := func(c *caller) int {
			http1 := c.tls.Clone()
			http1.NextProtos = []string{"http/1.1"}
			for name, value := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-Websocket-Version": "13", "Sec-Websocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-Websocket-Protocol": "v5.channel.k8s.io"} {
				c = c.with(name, value)
			}
			c.client = &http.Client{Transport: &http.Transport{TLSClientConfig: http1}, Timeout: time.Minute}
			code, _ := c.do(t, "GET", "/api/v1/namespaces/team/pods/shell"+path, "")
			return code
		}
		if code := shake(reader); code != 403 {
			t.Errorf("GET %s with only get: %d", path, code)
		}
		if code := shake(runner); code == 403 {
			t.Errorf("GET %s with create: %d", path, code)
		}
	}
}
