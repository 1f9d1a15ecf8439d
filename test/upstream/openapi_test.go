package upstream

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	builderutil "k8s.io/kube-openapi/pkg/builder3/util"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	generated "k8s.io/kubernetes/pkg/generated/openapi"
)

const root = "../.."

// kubernetes is the directory of upstream's sources.
func kubernetes(t *testing.T) string {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(dir))
}

// definitions reads skiff's definitions, which are blocks of a name and its schema.
func definitions(t *testing.T) map[string]any {
	t.Helper()
	names, err := filepath.Glob(root + "/internal/openapi/definitions/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(text), "\n\n")[1:] {
			name, body, _ := strings.Cut(block, "\n")
			out[name] = decode(t, []byte(body))
		}
	}
	return out
}

func decode(t *testing.T, text []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// Each of skiff's schemas must equal the one that upstream generates from the same types, including descriptions, defaults, enums
// and list types.
func TestDefinitionsAreUpstreams(t *testing.T) {
	all := generated.GetOpenAPIDefinitions(func(name string) spec.Ref { return spec.MustCreateRef("#/components/schemas/" + name) })
	ours := definitions(t)
	if len(ours) < 600 {
		t.Fatalf("only %d definitions", len(ours))
	}
	for name, got := range ours {
		def, ok := all[name]
		if !ok {
			t.Errorf("upstream has no %s", name)
			continue
		}
		delete(def.Schema.Extensions, common.ExtensionV2Schema)
		text, err := json.Marshal(builderutil.WrapRefs(&def.Schema))
		if err != nil {
			t.Fatal(err)
		}
		// Upstream adds kinds when it serves; TestDocumentsAreUpstreams compares those.
		delete(got.(map[string]any), "x-kubernetes-group-version-kind")
		report(t, name, got, decode(t, text))
	}
}

// The documents for upstream's resources must be those upstream publishes for its stable versions.
func TestDocumentsAreUpstreams(t *testing.T) {
	dir, source := t.TempDir(), kubernetes(t)
	cmd := exec.Command("go", "run", "./internal/openapi/dump", "-discovery", filepath.Join(source, "api/discovery"), "-out", dir)
	cmd.Dir = root
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("dump: %v\n%s", err, text)
	}
	read := func(name string) any {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return published(decode(t, text))
	}
	theirs, err := filepath.Glob(source + "/api/openapi-spec/v3/*.json")
	if err != nil {
		t.Fatal(err)
	}
	hidden, err := filepath.Glob(source + "/api/openapi-spec/v3/.*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(theirs, hidden...) {
		path := strings.TrimSuffix(filepath.Base(name), "_openapi.json")
		if unstable(path) {
			continue
		}
		report(t, path, read(filepath.Join(dir, "v3", path+".json")), read(name))
	}

	got := read(filepath.Join(dir, "v2.json")).(map[string]any)
	want := read(source + "/api/openapi-spec/swagger.json").(map[string]any)
	for _, section := range []string{"paths", "definitions", "parameters"} {
		for name := range want[section].(map[string]any) {
			if unstable(strings.ReplaceAll(strings.Trim(name, "/"), "/", "__")) {
				delete(want[section].(map[string]any), name)
				delete(got[section].(map[string]any), name)
			}
		}
	}
	// Upstream lists the options of versions it no longer serves; skiff only those it serves.
	for _, name := range []string{"DeleteOptions", "WatchEvent"} {
		for _, doc := range []map[string]any{got, want} {
			delete(doc["definitions"].(map[string]any)["io.k8s.apimachinery.pkg.apis.meta.v1."+name].(map[string]any), "x-kubernetes-group-version-kind")
		}
	}
	report(t, "v2", got, want)
}

// unstable reports paths that skiff does not serve: versions before the first stable one, groups without any, and the server's logs.
func unstable(path string) bool {
	return strings.Contains(path, "alpha") || strings.Contains(path, "beta") || strings.HasPrefix(path, "log") ||
		path == "apis__internal.apiserver.k8s.io" || path == "apis__lifecycle.k8s.io"
}

// published removes the differences between upstream's published documents and a server with default settings: the documents are
// generated with CBOR enabled and enums disabled.
func published(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if _, isList := value.([]any); key == "enum" && isList || strings.Contains(key, "cbor") {
				delete(v, key)
				continue
			}
			v[key] = published(value)
		}
		if text, ok := v["description"].(string); ok {
			before, _, found := strings.Cut(text, "Possible enum values:")
			if v["description"] = strings.TrimSpace(before); found && strings.TrimSpace(before) == "" {
				delete(v, "description")
			}
		}
		return v
	case []any:
		return slices.DeleteFunc(v, func(e any) bool {
			text, ok := e.(string)
			published(e)
			return ok && strings.HasPrefix(text, "application/") && strings.Contains(text, "cbor")
		})
	}
	return v
}

// report reports each path where the documents differ.
func report(t *testing.T, path string, got, want any) {
	t.Helper()
	a, ok := got.(map[string]any)
	b, ok2 := want.(map[string]any)
	if !ok || !ok2 {
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %.300v\nwant %.300v", path, got, want)
		}
		return
	}
	for key := range b {
		if _, ok := a[key]; !ok {
			t.Errorf("%s: %s is missing", path, key)
			continue
		}
		report(t, path+" > "+key, a[key], b[key])
	}
	for key := range a {
		if _, ok := b[key]; !ok {
			t.Errorf("%s: %s is unexpected", path, key)
		}
	}
}
