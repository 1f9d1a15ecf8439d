package authz

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skiff/internal/apiserver/authn"
)

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const abacFile = `# for tests
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"alice","namespace":"*","resource":"*","apiGroup":"*"}}

{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"group":"readers","namespace":"n","resource":"pods","readonly":true}}
  {"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"*","nonResourcePath":"/version*","readonly":true}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"both","group":"needed","nonResourcePath":"*"}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"nonResourcePath":"*"}}
{"user":"old","resource":"services"}
{"group":"*","namespace":"everyone"}
{"user":"oldest"}
`

func TestABAC(t *testing.T) {
	policy, err := LoadABAC(write(t, "policy", abacFile))
	if err != nil {
		t.Fatal(err)
	}
	alice, reader := user("alice"), user("r", "readers")
	someone, nobody := user("s", authn.GroupAuthenticated), user("system:anonymous", authn.GroupUnauthenticated)
	for _, test := range []struct {
		ask  *Attributes
		want Decision
	}{
		{on(alice, "delete", "apps:deployments d", "x"), Allow},
		{on(alice, "delete", "nodes n", ""), Allow},
		{at(alice, "get", "/metrics"), NoOpinion},
		{on(reader, "watch", "pods", "n"), Allow},
		{on(reader, "create", "pods", "n"), NoOpinion},
		{on(reader, "get", "pods", "m"), NoOpinion},
		{on(reader, "get", "apps:pods", "n"), NoOpinion},
		{at(someone, "get", "/version"), Allow},
		{at(someone, "get", "/version/x"), Allow},
		{at(someone, "post", "/version"), NoOpinion},
		{at(nobody, "get", "/version"), NoOpinion},
		{at(user("both"), "get", "/x"), NoOpinion},
		{at(user("both", "needed"), "post", "/x"), Allow},
		{at(user("x", "needed"), "get", "/x"), NoOpinion},
		{on(user("old"), "delete", "services s", "any"), Allow},
		{on(user("old"), "delete", "anygroup:services s", "any"), Allow},
		{at(user("old"), "get", "/x"), NoOpinion},
		{on(someone, "create", "pods", "everyone"), Allow},
		{on(nobody, "create", "pods", "everyone"), NoOpinion},
		{at(user("oldest"), "post", "/x"), Allow},
		{on(user("oldest"), "delete", "nodes n", ""), Allow},
	} {
		got, why, err := policy.Authorize(context.Background(), test.ask)
		if got != test.want || err != nil || (got == NoOpinion && why != "No policy matched.") {
			t.Errorf("%+v: %v %q %v, want %v", *test.ask, got, why, err, test.want)
		}
	}
	rules, err := policy.RulesFor(context.Background(), user("r", "readers", authn.GroupAuthenticated), "n")
	if err != nil || len(rules.Resources) != 1 || rules.Resources[0].Resources[0] != "pods" || len(rules.Resources[0].Verbs) != 3 || len(rules.Paths) != 0 {
		t.Errorf("rules %+v, error %v", rules, err)
	}
}

func TestABACErrors(t *testing.T) {
	for line, want := range map[string]string{
		`{"user":`: "line 2: {\"user\":: ",
		`{"apiVersion":"abac.authorization.kubernetes.io/v9","kind":"Policy"}`:     `no kind "Policy" is registered for version "abac.authorization.kubernetes.io/v9"`,
		`{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Thing"}`: `no kind "Thing" is registered`,
		`{"user":1}`: "cannot unmarshal number",
	} {
		if _, err := LoadABAC(write(t, "policy", "\n"+line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", line, err)
		}
	}
	if _, err := LoadABAC("/does/not/exist"); err == nil {
		t.Error("a file that does not exist is read")
	}
}
