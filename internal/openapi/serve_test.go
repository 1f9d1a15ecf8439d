package openapi

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	openapiproto "k8s.io/kube-openapi/pkg/util/proto"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"skiff/internal/kind"
)

func row(gvk schema.GroupVersionKind, plural string, namespaced bool, verbs []string, subs ...kind.Subresource) *kind.Kind {
	return &kind.Kind{GVK: gvk, Plural: plural, ListKind: gvk.Kind + "List", Namespaced: namespaced, Verbs: verbs, Subresources: subs,
		Versions: []kind.Version{{GVK: gvk}}}
}

func testKinds() []*kind.Kind {
	v1 := schema.GroupVersion{Version: "v1"}
	apps := schema.GroupVersion{Group: "apps", Version: "v1"}
	scale := kind.Subresource{Name: "scale", GVK: schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}}
	return []*kind.Kind{
		row(v1.WithKind("Pod"), "pods", true, kind.AllVerbs, kind.Subresource{Name: "status"}, kind.Subresource{Name: "log"},
			kind.Subresource{Name: "exec"}, kind.Subresource{Name: "proxy"},
			kind.Subresource{Name: "binding", GVK: v1.WithKind("Binding"), Verbs: []string{"create"}}),
		row(v1.WithKind("Node"), "nodes", false, kind.AllVerbs, kind.Subresource{Name: "status"}),
		row(v1.WithKind("ComponentStatus"), "componentstatuses", false, []string{"get", "list"}),
		row(apps.WithKind("Deployment"), "deployments", true, kind.AllVerbs, kind.Subresource{Name: "status"}, scale),
		row(schema.GroupVersionKind{Group: "authentication.k8s.io", Version: "v1", Kind: "TokenReview"}, "tokenreviews", false, []string{"create"}),
	}
}

func ask(t *testing.T, h http.HandlerFunc, url string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest("GET", url, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h(w, r)
	return w
}

func index(t *testing.T, d *Documents) map[string]string {
	t.Helper()
	var list handler3.OpenAPIV3Discovery
	if err := json.Unmarshal(ask(t, d.ServeV3, "/openapi/v3").Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for path, at := range list.Paths {
		out[path] = at.ServerRelativeURL
	}
	return out
}

func TestIndex(t *testing.T) {
	got := index(t, New(testKinds(), "v1"))
	want := []string{".well-known/openid-configuration", "api", "api/v1", "apis", "apis/apps", "apis/apps/v1", "apis/authentication.k8s.io",
		"apis/authentication.k8s.io/v1", "openid/v1/jwks", "version"}
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, want) {
		t.Errorf("got %v", names)
	}
	again := index(t, New(testKinds(), "v1"))
	if !maps.Equal(got, again) {
		t.Error("equal servers must give equal hashes")
	}
	other := testKinds()
	other[3].Verbs = []string{"get"}
	changed := index(t, New(other, "v1"))
	if changed["apis/apps/v1"] == got["apis/apps/v1"] || changed["api/v1"] != got["api/v1"] {
		t.Error("the hash must follow the document, and only its own")
	}
}

func TestDocumentV3(t *testing.T) {
	d := New(testKinds(), "v1.37.1")
	var doc spec3.OpenAPI
	if err := json.Unmarshal(ask(t, d.ServeV3, "/openapi/v3/api/v1").Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Info.Version != "v1.37.1" || doc.Version != "3.0.0" {
		t.Errorf("head: %+v %s", doc.Info, doc.Version)
	}
	pod := doc.Paths.Paths["/api/v1/namespaces/{namespace}/pods/{name}"]
	for _, c := range []struct {
		op         *spec3.Operation
		id, action string
	}{
		{pod.Get, "readCoreV1NamespacedPod", "get"}, {pod.Put, "replaceCoreV1NamespacedPod", "put"},
		{pod.Patch, "patchCoreV1NamespacedPod", "patch"}, {pod.Delete, "deleteCoreV1NamespacedPod", "delete"},
		{doc.Paths.Paths["/api/v1/pods"].Get, "listCoreV1PodForAllNamespaces", "list"},
		{doc.Paths.Paths["/api/v1/watch/pods"].Get, "watchCoreV1PodListForAllNamespaces", "watchlist"},
		{doc.Paths.Paths["/api/v1/watch/namespaces/{namespace}/pods"].Get, "watchCoreV1NamespacedPodList", "watchlist"},
		{doc.Paths.Paths["/api/v1/watch/namespaces/{namespace}/pods/{name}"].Get, "watchCoreV1NamespacedPod", "watch"},
		{doc.Paths.Paths["/api/v1/namespaces/{namespace}/pods"].Delete, "deleteCoreV1CollectionNamespacedPod", "deletecollection"},
		{doc.Paths.Paths["/api/v1/namespaces/{namespace}/pods/{name}/exec"].Post, "connectCoreV1PostNamespacedPodExec", "connect"},
		{doc.Paths.Paths["/api/v1/namespaces/{namespace}/pods/{name}/proxy/{path}"].Options, "connectCoreV1OptionsNamespacedPodProxyWithPath", "connect"},
		{doc.Paths.Paths["/api/v1/namespaces/{namespace}/pods/{name}/log"].Get, "readCoreV1NamespacedPodLog", "get"},
		{doc.Paths.Paths["/api/v1/namespaces/{namespace}/pods/{name}/binding"].Post, "createCoreV1NamespacedPodBinding", "post"},
		{doc.Paths.Paths["/api/v1/nodes"].Post, "createCoreV1Node", "post"},
	} {
		if c.op == nil {
			t.Errorf("no operation %s", c.id)
		} else if action, _ := c.op.Extensions.GetString("x-kubernetes-action"); c.op.OperationId != c.id || action != c.action {
			t.Errorf("got %s %s, want %s %s", c.op.OperationId, action, c.id, c.action)
		}
	}
	if pod.Patch.RequestBody.Content["application/apply-patch+yaml"] == nil {
		t.Error("apply is not offered")
	}
	// kubectl checks this parameter to find out whether the server validates fields.
	if !slices.ContainsFunc(pod.Patch.Parameters, func(p *spec3.Parameter) bool { return p.Name == "fieldValidation" }) {
		t.Error("no fieldValidation parameter")
	}
	if statuses := doc.Paths.Paths["/api/v1/componentstatuses"]; statuses.Post != nil || statuses.Get == nil {
		t.Error("componentstatuses can only be read")
	}
	for name := range doc.Components.Schemas {
		if strings.HasPrefix(name, "io.k8s.api.apps.") {
			t.Errorf("%s is not of this group version", name)
		}
	}
}

func TestVersionsAgree(t *testing.T) {
	d := New(testKinds(), "v1")
	var v2 spec.Swagger
	if err := json.Unmarshal(ask(t, d.ServeV2, "/openapi/v2").Body.Bytes(), &v2); err != nil {
		t.Fatal(err)
	}
	paths, schemas := 0, map[string]bool{}
	for _, url := range index(t, d) {
		var v3 spec3.OpenAPI
		if err := json.Unmarshal(ask(t, d.ServeV3, url).Body.Bytes(), &v3); err != nil {
			t.Fatal(err)
		}
		for path, item := range v3.Paths.Paths {
			paths++
			older, ok := v2.Paths.Paths[path]
			if !ok {
				t.Errorf("v2 lacks %s", path)
				continue
			}
			if (item.Get == nil) != (older.Get == nil) || item.Get != nil && item.Get.OperationId != older.Get.ID {
				t.Errorf("%s: different reads", path)
			}
		}
		for name, s := range v3.Components.Schemas {
			schemas[name] = true
			older, ok := v2.Definitions[name]
			if !ok {
				t.Errorf("v2 lacks %s", name)
			} else if len(older.Properties) != len(s.Properties) || older.Description != s.Description {
				t.Errorf("%s differs", name)
			}
		}
	}
	if paths != len(v2.Paths.Paths) || len(schemas) != len(v2.Definitions) {
		t.Errorf("v2 has %d paths and %d definitions, v3 %d and %d", len(v2.Paths.Paths), len(v2.Definitions), paths, len(schemas))
	}
	port := v2.Definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"]
	if !port.Type.Contains("string") || port.Format != "int-or-string" || len(port.OneOf) != 0 {
		t.Errorf("IntOrString in v2: %+v", port.SchemaProps)
	}
	if protocol := v2.Definitions[core+"ContainerPort"].Properties["protocol"]; protocol.Default != nil {
		t.Error("v2 has no defaults")
	}
}

func TestProtobuf(t *testing.T) {
	d := New(testKinds(), "v1")
	w := ask(t, d.ServeV2, "/openapi/v2", "Accept", older[protoV2])
	if got := w.Header().Get("Content-Type"); got != protoV2 {
		t.Errorf("content type %s", got)
	}
	got := &openapi_v2.Document{}
	if err := proto.Unmarshal(w.Body.Bytes(), got); err != nil {
		t.Fatal(err)
	}
	want, err := openapi_v2.ParseDocument(ask(t, d.ServeV2, "/openapi/v2").Body.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, want) {
		t.Error("v2: the pieces are not the whole")
	}
	// kubectl explain and strategic merge of older clients use this.
	models, err := openapiproto.NewOpenAPIData(got)
	if err != nil {
		t.Fatal(err)
	}
	if models.LookupModel(core+"Pod") == nil {
		t.Error("no model of Pod")
	}

	w = ask(t, d.ServeV3, "/openapi/v3/apis/apps/v1", "Accept", protoV3)
	got3 := &openapi_v3.Document{}
	if err := proto.Unmarshal(w.Body.Bytes(), got3); err != nil {
		t.Fatal(err)
	}
	want3, err := openapi_v3.ParseDocument(ask(t, d.ServeV3, "/openapi/v3/apis/apps/v1").Body.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got3, want3) {
		t.Error("v3: the pieces are not the whole")
	}
}

func TestServing(t *testing.T) {
	d := New(testKinds(), "v1")
	url := index(t, d)["apis/apps/v1"]
	first := ask(t, d.ServeV3, url)
	etag := first.Header().Get("Etag")
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		url     string
		headers []string
		code    int
		check   func(http.Header) bool
	}{
		{"hash: for good", d.ServeV3, url, nil, 200, func(h http.Header) bool { return strings.Contains(h.Get("Cache-Control"), "immutable") }},
		{"no hash: not kept", d.ServeV3, "/openapi/v3/apis/apps/v1", nil, 200, func(h http.Header) bool { return h.Get("Cache-Control") == "" }},
		{"old hash", d.ServeV3, "/openapi/v3/apis/apps/v1?hash=OLD", nil, 301, func(h http.Header) bool { return h.Get("Location") == url }},
		{"unknown", d.ServeV3, "/openapi/v3/apis/nothing/v1", nil, 404, nil},
		{"known already", d.ServeV3, url, []string{"If-None-Match", etag}, 304, nil},
		{"compressed", d.ServeV3, url, []string{"Accept-Encoding", "gzip"}, 200, func(h http.Header) bool { return h.Get("Content-Encoding") == "gzip" }},
		{"not compressed", d.ServeV3, url, []string{"Accept-Encoding", "gzip;q=0"}, 200, func(h http.Header) bool { return h.Get("Content-Encoding") == "" }},
		{"no such form", d.ServeV3, url, []string{"Accept", "text/html"}, 406, nil},
		{"any form", d.ServeV3, url, []string{"Accept", "text/html, */*"}, 200, func(h http.Header) bool { return h.Get("Content-Type") == jsonType }},
		{"v2 known", d.ServeV2, "/openapi/v2", []string{"If-None-Match", ask(t, d.ServeV2, "/openapi/v2").Header().Get("Etag")}, 304, nil},
		{"v2 no such form", d.ServeV2, "/openapi/v2", []string{"Accept", "text/html"}, 406, nil},
		{"all: v2", d.ServeHTTP, "/openapi/v2", nil, 200, nil},
		{"all: index", d.ServeHTTP, "/openapi/v3/", nil, 200, nil},
		{"all: v3", d.ServeHTTP, url, nil, 200, nil},
		{"all: nothing", d.ServeHTTP, "/openapi/v4", nil, 404, nil},
		{"index known", d.ServeV3, "/openapi/v3", []string{"If-None-Match", ask(t, d.ServeV3, "/openapi/v3").Header().Get("Etag")}, 304, nil},
	} {
		w := ask(t, c.handler, c.url, c.headers...)
		if w.Code != c.code || c.check != nil && !c.check(w.Header()) {
			t.Errorf("%s: %d %v", c.name, w.Code, w.Header())
		}
	}
}

func TestUpdate(t *testing.T) {
	d := New(testKinds(), "v1")
	before := d.current()
	gv := schema.GroupVersion{Group: "stable.example.com", Version: "v1"}
	ref := func(name string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Ref: spec.MustCreateRef(name)}}
	}
	custom := func(prefix string) map[string]*spec.Schema {
		item := ref(prefix + "com.example.stable.v1.CronTab")
		return map[string]*spec.Schema{
			"com.example.stable.v1.CronTab": {SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{
				"metadata": ref(prefix + metaPackage + "ObjectMeta")}}},
			"com.example.stable.v1.CronTabList": {SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{
				"items": {SchemaProps: spec.SchemaProps{Type: []string{"array"}, Items: &spec.SchemaOrArray{Schema: &item}}}}}},
		}
	}
	d.SetCustom(gv, "crontabs.stable.example.com", row(gv.WithKind("CronTab"), "crontabs", true, kind.AllVerbs), Custom{
		Hash: "1", Schemas: func() (Schemas, error) { return Schemas{V2: custom("#/definitions/"), V3: custom(refPrefix)}, nil },
	})
	after := d.current()
	if after.documents["api/v1"] != before.documents["api/v1"] || after.v2 == before.v2 {
		t.Error("only what changed may be made anew")
	}
	var v3 spec3.OpenAPI
	if err := json.Unmarshal(ask(t, d.ServeV3, "/openapi/v3/apis/stable.example.com/v1").Body.Bytes(), &v3); err != nil {
		t.Fatal(err)
	}
	patch := v3.Paths.Paths["/apis/stable.example.com/v1/namespaces/{namespace}/crontabs/{name}"].Patch
	if patch.OperationId != "patchStableExampleComV1NamespacedCronTab" || patch.RequestBody.Content["application/strategic-merge-patch+json"] != nil {
		t.Errorf("patch of a custom resource: %s %v", patch.OperationId, patch.RequestBody.Content)
	}
	if v3.Components.Schemas[metaPackage+"ObjectMeta"] == nil {
		t.Error("built-in schemas it refers to are missing")
	}
	var v2 spec.Swagger
	if err := json.Unmarshal(ask(t, d.ServeV2, "/openapi/v2").Body.Bytes(), &v2); err != nil {
		t.Fatal(err)
	}
	metadata := v2.Definitions["com.example.stable.v1.CronTab"].Properties["metadata"]
	if got := metadata.Ref.String(); got != "#/definitions/"+metaPackage+"ObjectMeta" {
		t.Errorf("v2: metadata is %q", got)
	}
	if w := ask(t, d.ServeV2, "/openapi/v2", "Accept", protoV2); w.Code != 200 {
		t.Errorf("protobuf: %d %s", w.Code, w.Body)
	}
	d.RemoveCustom(gv, "crontabs.stable.example.com")
	if w := ask(t, d.ServeV3, "/openapi/v3/apis/stable.example.com/v1"); w.Code != 404 {
		t.Errorf("removed, but %d", w.Code)
	}
	if d.current().indexHash != before.indexHash {
		t.Error("removing what was added must lead back")
	}
}

// layoutPin goes with layout: clients cache documents by a hash of their input, so code that makes other documents of the
// same kinds must change the hash.
const layoutPin = "1 575663153662aa7a"

func TestLayoutIsRaisedWithDocuments(t *testing.T) {
	d := New(testKinds(), "v1")
	h := sha256.New()
	v2, err := d.v2Content(d.current())
	if err != nil {
		t.Fatal(err)
	}
	for _, gv := range []schema.GroupVersion{{Version: "v1"}, {Group: "apps", Version: "v1"}} {
		v3, err := d.groupVersionContent(d.current().groupVersions[gv])
		if err != nil {
			t.Fatal(err)
		}
		writeMembers(h, v3.paths)
	}
	writeMembers(h, v2.paths)
	writeMembers(h, v2.parameters)
	if got := fmt.Sprintf("%s %x", layout, h.Sum(nil)[:8]); got != layoutPin {
		t.Errorf("documents changed: raise layout and set layoutPin to %q", got)
	}
}

// The start must not make documents that are not requested.
func TestNewIsCheap(t *testing.T) {
	kinds := testKinds()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	d := New(kinds, "v1")
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 256<<10 {
		t.Errorf("New allocates %d KiB", used>>10)
	}
	runtime.KeepAlive(d)
}

func BenchmarkNew(b *testing.B) {
	kinds := testKinds()
	for range b.N {
		New(kinds, "v1")
	}
}

func BenchmarkDocuments(b *testing.B) {
	for _, c := range []struct {
		name string
		of   func(*state) func() ([]byte, error)
	}{
		{"core v3 JSON", func(s *state) func() ([]byte, error) { return s.documents["api/v1"].json }},
		{"v2 JSON", func(s *state) func() ([]byte, error) { return s.v2.json }},
		{"v2 protobuf", func(s *state) func() ([]byte, error) { return s.v2.proto }},
	} {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				if _, err := c.of(New(testKinds(), "v1").current())(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
