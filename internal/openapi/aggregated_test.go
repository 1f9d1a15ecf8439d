package openapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

var sample = schema.GroupVersion{Group: "sample.example.com", Version: "v1"}

// sampleV2 is a v2 document with a definition of its own and one of a common name.
func sampleV2(group, description string) []byte {
	return fmt.Appendf(nil, `{"swagger":"2.0","info":{"title":"x","version":"1"},"paths":{"/apis/%s/v1/foos":{"get":{"produces":["application/json"],"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/Foo"}}}}}},
"definitions":{"Foo":{"description":%q,"type":"object"}}}`, group, description)
}

func v2Of(t *testing.T, d *Documents) (paths, definitions map[string]json.RawMessage) {
	t.Helper()
	var document struct{ Paths, Definitions map[string]json.RawMessage }
	if err := json.Unmarshal(ask(t, d.ServeV2, "/openapi/v2").Body.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	return document.Paths, document.Definitions
}

func TestAggregatedDocuments(t *testing.T) {
	d := New(testKinds(), "v1")
	before := index(t, d)
	served := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "remote ", r.URL.RequestURI()) })
	d.SetAggregated(sample, &Aggregated{})
	if _, ok := index(t, d)["apis/sample.example.com/v1"]; ok {
		t.Error("a group version without documents is listed")
	}
	d.SetAggregated(sample, &Aggregated{Hash: "AB", V3: served, V2: sampleV2(sample.Group, "one"), V2Hash: "1"})
	url := index(t, d)["apis/sample.example.com/v1"]
	if got := ask(t, d.ServeV3, url).Body.String(); got != "remote /openapi/v3/apis/sample.example.com/v1?hash=AB" {
		t.Errorf("%s: %s", url, got)
	}
	etag := ask(t, d.ServeV2, "/openapi/v2").Header().Get("Etag")
	paths, definitions := v2Of(t, d)
	if paths["/apis/sample.example.com/v1/foos"] == nil || definitions["Foo"] == nil || paths["/api/v1/nodes"] == nil {
		t.Errorf("%d paths, %d definitions", len(paths), len(definitions))
	}
	d.SetAggregated(sample, &Aggregated{Hash: "AB", V3: served, V2: sampleV2(sample.Group, "two"), V2Hash: "2"})
	if changed := ask(t, d.ServeV2, "/openapi/v2").Header().Get("Etag"); changed == etag {
		t.Error("another v2 document has the same ETag")
	}
	d.SetAggregated(sample, nil)
	if after := index(t, d); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("%v, want %v", after, before)
	}
}

// TestAggregatedConflicts: of two definitions with one name the second is renamed, also when the first is an aggregated server's.
func TestAggregatedConflicts(t *testing.T) {
	d := New(testKinds(), "v1")
	for i, group := range []string{"a.example.com", "b.example.com", "c.example.com", "d.example.com"} {
		d.SetAggregated(schema.GroupVersion{Group: group, Version: "v1"}, &Aggregated{V2: sampleV2(group, []string{"one", "two", "three", "one"}[i]), V2Hash: group})
	}
	d.SetAggregated(schema.GroupVersion{Group: "e.example.com", Version: "v1"}, &Aggregated{V2: []byte("invalid"), V2Hash: "e"})
	paths, definitions := v2Of(t, d)
	for group, definition := range map[string]string{"a": "Foo", "b": "Foo_v2", "c": "Foo_v3", "d": "Foo"} {
		if path := string(paths["/apis/"+group+".example.com/v1/foos"]); !strings.Contains(path, `"#/definitions/`+definition+`"`) {
			t.Errorf("%s: %s", group, path)
		}
	}
	for name, description := range map[string]string{"Foo": "one", "Foo_v2": "two", "Foo_v3": "three"} {
		if !strings.Contains(string(definitions[name]), `"`+description+`"`) {
			t.Errorf("%s: %s", name, definitions[name])
		}
	}
}

// TestAggregatedOverKinds: an aggregated server replaces the documents of kinds; without a v3 document it is made from v2.
func TestAggregatedOverKinds(t *testing.T) {
	d := New(testKinds(), "v1")
	apps := schema.GroupVersion{Group: "apps", Version: "v1"}
	d.SetAggregated(apps, &Aggregated{Hash: "1", V2: sampleV2("apps", "one"), V2Hash: "1"})
	paths, _ := v2Of(t, d)
	if paths["/apis/apps/v1/foos"] == nil || paths["/apis/apps/v1/deployments"] != nil {
		t.Error("the v2 document has the paths of the kinds")
	}
	got := ask(t, d.ServeV3, index(t, d)["apis/apps/v1"])
	if text := got.Body.String(); got.Code != http.StatusOK || !strings.Contains(text, "#/components/schemas/Foo") || strings.Contains(text, "deployments") {
		t.Errorf("%d %s", got.Code, text)
	}
	d.SetAggregated(apps, nil)
	if paths, _ := v2Of(t, d); paths["/apis/apps/v1/deployments"] == nil {
		t.Error("the kinds are not described again")
	}
}
