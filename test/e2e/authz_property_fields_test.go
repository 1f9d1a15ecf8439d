package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"skiff/test/cluster"
)

// asUser is an impersonated request.
type asUser struct{ user, method, path, body string }

// protectedFields are writes of fields that need a separate permission: most by a user who has all others.
func protectedFields() []asUser {
	const admission, resource = "/apis/admissionregistration.k8s.io/v1", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
	var calls []asUser
	for _, user := range []string{"plain", "config-reader", "binder", "driver", "everything"} {
		for _, kind := range []struct{ path, rules string }{
			{"validatingadmissionpolicies", `"validations":[{"expression":"true"}]`},
			{"mutatingadmissionpolicies", `"reinvocationPolicy":"Never","mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{}"}}]`},
		} {
			for i, param := range []string{`{"apiVersion":"v1","kind":"ConfigMap"}`, `{"apiVersion":"v1","kind":"Thing"}`, `{"apiVersion":"none.io/v1","kind":"Thing"}`} {
				name := fmt.Sprintf("%s-%d", user, i)
				calls = append(calls, asUser{user, "POST", admission + "/" + kind.path + "?dryRun=All",
					fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"paramKind":%s,"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}]},%s}}`, name, param, kind.rules)})
			}
		}
		for i, ref := range []string{`{"name":"one","namespace":"default","parameterNotFoundAction":"Deny"}`, `{"name":"one","parameterNotFoundAction":"Deny"}`, `{"selector":{"matchLabels":{"a":"b"}},"parameterNotFoundAction":"Deny"}`} {
			calls = append(calls, asUser{user, "POST", admission + "/validatingadmissionpolicybindings?dryRun=All",
				fmt.Sprintf(`{"metadata":{"name":"%s-%d"},"spec":{"policyName":"absent","paramRef":%s,"validationActions":["Deny"]}}`, user, i, ref)},
				asUser{user, "POST", admission + "/mutatingadmissionpolicybindings?dryRun=All", fmt.Sprintf(`{"metadata":{"name":"%s-%d"},"spec":{"policyName":"absent","paramRef":%s}}`, user, i, ref)})
		}
		allocation := `"allocation":{"devices":{"results":[{"request":"r","driver":"d1","pool":"p","device":"one"}]}}`
		calls = append(calls,
			asUser{user, "PATCH", resource + "/free/status?dryRun=All", `{"status":{` + allocation + `}}`},
			asUser{user, "PATCH", resource + "/taken/status?dryRun=All", `{"status":{"reservedFor":[{"resource":"pods","name":"p","uid":"u"}]}}`},
			asUser{user, "PATCH", resource + "/taken/status?dryRun=All", `{"status":{"devices":[{"driver":"d1","pool":"p","device":"one","conditions":[]}]}}`},
			asUser{user, "PATCH", resource + "/taken/status?dryRun=All", `{"metadata":{"labels":{"a":"b"}}}`})
	}
	return calls
}

// protectedFieldFixtures create the objects of the requests.
func protectedFieldFixtures() []asUser {
	role := func(name, rules string) []asUser {
		return []asUser{
			{"", "POST", rbacPath + "/clusterroles", fmt.Sprintf(`{"metadata":{"name":%q},"rules":[{"verbs":["*"],"apiGroups":["admissionregistration.k8s.io"],"resources":["*"]},{"verbs":["get","update","patch"],"apiGroups":["resource.k8s.io"],"resources":["resourceclaims","resourceclaims/status"]}%s]}`, name, rules)},
			{"", "POST", rbacPath + "/clusterrolebindings", fmt.Sprintf(`{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%q},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":%q}]}`, name, name, name)},
		}
	}
	const claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
	spec := `"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"c"}}]}}`
	var calls []asUser
	for name, rules := range map[string]string{
		"plain": "", "config-reader": `,{"verbs":["get"],"apiGroups":[""],"resources":["configmaps"]}`, "binder": `,{"verbs":["patch"],"apiGroups":["resource.k8s.io"],"resources":["resourceclaims/binding"]}`,
		"driver": `,{"verbs":["arbitrary-node:patch"],"apiGroups":["resource.k8s.io"],"resources":["resourceclaims/driver"],"resourceNames":["d1"]}`, "everything": `,{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}`,
	} {
		calls = append(calls, role(name, rules)...)
	}
	return append(calls,
		asUser{"", "POST", claims, `{"metadata":{"name":"free"},` + spec + `}`}, asUser{"", "POST", claims, `{"metadata":{"name":"taken"},` + spec + `}`},
		asUser{"", "PATCH", claims + "/taken/status", `{"status":{"allocation":{"devices":{"results":[{"request":"r","driver":"d1","pool":"p","device":"one"}]}}}}`})
}

var changing = regexp.MustCompile(`"(uid|resourceVersion|creationTimestamp|time)":"[^"]*"|X509SHA256=[0-9a-f]*`)

// TestProtectedFieldsLikeUpstream lets users write fields that need a separate permission, on both servers.
func TestProtectedFieldsLikeUpstream(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ours, err := cluster.Skiff(filepath.Join(dir, "skiff"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ours.Stop)
	theirs, err := cluster.UpstreamAPI(filepath.Join(dir, "upstream"), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(theirs.Stop)
	var responses [2][]string
	for i, c := range []*cluster.Cluster{ours, theirs} {
		config, err := c.Config()
		if err != nil {
			t.Fatal(err)
		}
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range protectedFieldFixtures() {
			if response := call.send(t, client, c.URL); response[0] != '2' {
				t.Fatalf("%s: %s %s: %s", c.Name, call.method, call.path, response)
			}
		}
		waitForRoles(t, c, client)
		for _, call := range protectedFields() {
			responses[i] = append(responses[i], call.send(t, client, c.URL))
		}
	}
	compared, allowed := 0, 0
	for i, call := range protectedFields() {
		got, want := responses[0][i], responses[1][i]
		compared++
		if want[0] == '2' {
			allowed++
			got, want = got[:3], want[:3]
		}
		if got != want {
			t.Errorf("%s: %s %s %s:\n ours   %s\n theirs %s", call.user, call.method, call.path, call.body, got, want)
		}
	}
	t.Logf("%d writes compared, %d allowed", compared, allowed)
	if allowed < 5 || allowed > compared-5 {
		t.Error("too few writes are allowed or too few denied")
	}
}

// waitForRoles waits until the users have their roles, which upstream's authorizer reads from informers. Every user may send the last of the
// user's calls.
func waitForRoles(t *testing.T, c *cluster.Cluster, client *http.Client) {
	t.Helper()
	last := map[string]asUser{}
	for _, call := range protectedFields() {
		last[call.user] = call
	}
	for user, call := range last {
		eventually(t.Context(), t, c.Name+": "+user+" has a role", func(context.Context) (bool, error) {
			return call.send(t, client, c.URL)[0] == '2', nil
		})
	}
}

func (c asUser) send(t *testing.T, client *http.Client, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), c.method, url+c.path, strings.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if c.method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	if c.user != "" {
		req.Header.Set("Impersonate-User", c.user)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return changing.ReplaceAllString(fmt.Sprintf("%d %s", res.StatusCode, data), "")
}
