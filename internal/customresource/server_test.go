package customresource_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"skiff/internal/apiserver"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/customresource"
	"skiff/internal/openapi"
	"skiff/internal/store/cache"
	"skiff/internal/store/memory"
)

// server is an API server in the test's process that serves one custom resource.
type server struct {
	t      testing.TB
	store  *memory.Store
	api    *apiserver.Server
	client *http.Client
}

func newServer(t testing.TB, definition string, converter customresource.Converter, change ...func(*apiserver.Config)) *server {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"}}
	if err := yaml.UnmarshalStrict([]byte(definition), &crd.Spec); err != nil {
		t.Fatal(err)
	}
	crd.Spec.Group, crd.Spec.Scope = "example.com", apiextensionsv1.NamespaceScoped
	crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"}
	crd.Status.AcceptedNames = crd.Spec.Names
	packed, err := customresource.Pack(crd)
	if err != nil {
		t.Fatal(err)
	}
	k, err := customresource.New(packed, converter)
	if err != nil {
		t.Fatal(err)
	}
	store := memory.New()
	objects := cache.New(store, nil)
	config := apiserver.Config{
		Scheme: scheme.Scheme, Cache: objects, Authenticator: authn.Chain{authn.InProcess{}}, Authorizer: authz.Chain{authz.Masters{}},
		TypeConverter: openapi.TypeConverter,
	}
	for _, change := range change {
		change(&config)
	}
	s, err := apiserver.New(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AddKind(k); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = objects.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	<-objects.Ready()
	served := &server{t: t, store: store, api: s}
	return served.as(authn.User{Username: "test", Groups: []string{authn.GroupMasters}})
}

// as returns the server for a user.
func (s *server) as(user authn.User) *server {
	other := *s
	other.client = &http.Client{Transport: s.api.Local(user).Transport()}
	return &other
}

// response is a response whose body is an object.
type response struct {
	t        testing.TB
	code     int
	text     string
	object   map[string]any
	warnings []string
}

// send sends a request below /apis/example.com. A header is "Name: value".
func (s *server) send(method, path, body string, headers ...string) *response {
	s.t.Helper()
	req, err := http.NewRequest(method, "http://server/apis/example.com/"+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "tester")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	r := &response{t: s.t, code: resp.StatusCode, text: string(data)}
	_ = json.Unmarshal(data, &r.object)
	for _, warning := range resp.Header.Values("Warning") {
		r.warnings = append(r.warnings, strings.TrimPrefix(warning, "299 - "))
	}
	return r
}

// expect checks the status code, and fields by their dotted paths.
func (r *response) expect(code int, fields ...any) *response {
	r.t.Helper()
	if r.code != code {
		r.t.Fatalf("%d %s, want %d", r.code, r.text, code)
	}
	for i := 0; i+1 < len(fields); i += 2 {
		if got := fmt.Sprint(r.at(fields[i].(string))); got != fmt.Sprint(fields[i+1]) {
			r.t.Errorf("%s is %s, want %v", fields[i], got, fields[i+1])
		}
	}
	return r
}

func (r *response) at(path string) any {
	var value any = r.object
	for _, name := range strings.Split(path, ".") {
		fields, _ := value.(map[string]any)
		value = fields[name]
	}
	return value
}

func (r *response) refused(code int, message string) {
	r.t.Helper()
	if got := fmt.Sprint(r.object["message"]); r.code != code || !strings.Contains(got, message) {
		r.t.Errorf("%d %s\nwant %d %s", r.code, got, code, message)
	}
}

const strictDefinition = `
versions:
- name: v1
  served: true
  storage: true
  subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size, labelSelectorPath: .status.selector}}
  selectableFields: [{jsonPath: .spec.color}]
  additionalPrinterColumns: [{name: Color, type: string, jsonPath: .spec.color}]
  schema:
    openAPIV3Schema:
      type: object
      properties:
        spec:
          type: object
          properties:
            size: {type: integer}
            color: {type: string, default: blue}
            parts: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, required: [name], properties: {name: {type: string}, count: {type: integer}}}}
          x-kubernetes-validations: [{rule: "!has(self.size) || self.size < 10", message: too large}]
        status: {type: object, properties: {size: {type: integer}, selector: {type: string}}}
`

const widgets = "v1/namespaces/ns/widgets"

func TestLifecycle(t *testing.T) {
	s := newServer(t, strictDefinition, nil)
	created := s.send("POST", widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":1},"status":{"size":7}}`)
	created.expect(201, "metadata.generation", 1, "spec.color", "blue", "status", nil, "kind", "Widget", "apiVersion", "example.com/v1")
	// Stored as upstream stores it: JSON with sorted keys, without resourceVersion, with a newline.
	kvs, _, _, err := s.store.List(context.Background(), "/registry/example.com/widgets/ns/a", "", 1, 0)
	if err != nil || len(kvs) != 1 || !bytes.HasPrefix(kvs[0].Value, []byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"creationTimestamp":"`)) ||
		!bytes.HasSuffix(kvs[0].Value, []byte("\"spec\":{\"color\":\"blue\",\"size\":1}}\n")) || bytes.Contains(kvs[0].Value, []byte("resourceVersion")) {
		t.Errorf("%v %v", kvs, err)
	}
	s.send("GET", widgets+"/a", "").expect(200, "spec.size", 1)
	s.send("PUT", widgets+"/a", `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":2}}`).
		refused(422, `widgets.example.com "a" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update`)
	version := created.at("metadata.resourceVersion")
	updated := s.send("PUT", widgets+"/a", fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","resourceVersion":%q},"spec":{"size":2},"status":{"size":7}}`, version))
	updated.expect(200, "metadata.generation", 2, "spec.size", 2, "status", nil)
	s.send("PATCH", widgets+"/a", `{"metadata":{"labels":{"x":"y"}}}`, "Content-Type: application/merge-patch+json").expect(200, "metadata.generation", 2)
	s.send("PATCH", widgets+"/a", `{"spec":{"size":12}}`, "Content-Type: application/merge-patch+json").
		refused(422, `Widget.example.com "a" is invalid: spec: Invalid value: too large`)
	s.send("PATCH", widgets+"/a", `{"spec":{"size":3}}`, "Content-Type: application/strategic-merge-patch+json").
		refused(415, "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml")
	s.send("PATCH", widgets+"/a/status", `{"status":{"size":5,"selector":"app=x"},"spec":{"size":9},"metadata":{"labels":{"x":"z"}}}`, "Content-Type: application/merge-patch+json").
		expect(200, "metadata.generation", 2, "spec.size", 2, "status.size", 5, "metadata.labels.x", "y")
	s.send("GET", widgets+"/a/scale", "").expect(200, "kind", "Scale", "apiVersion", "autoscaling/v1", "spec.replicas", 2, "status.replicas", 5, "status.selector", "app=x")
	s.send("PATCH", widgets+"/a/scale", `{"spec":{"replicas":4}}`, "Content-Type: application/merge-patch+json").expect(200, "spec.replicas", 4)
	s.send("GET", widgets+"/a", "").expect(200, "spec.size", 4, "metadata.generation", 3)
	s.send("DELETE", widgets+"/a", "").expect(200, "status", "Success")
	s.send("GET", widgets+"/a", "").expect(404)
}

func TestScaleWithoutReplicas(t *testing.T) {
	s := newServer(t, strictDefinition, nil)
	s.send("POST", widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"}}`).expect(201)
	s.send("GET", widgets+"/a/scale", "").refused(500, `the spec replicas field ".spec.size" does not exist`)
	s.send("PATCH", widgets+"/a/scale", `{"metadata":{"labels":{"x":"y"}}}`, "Content-Type: application/merge-patch+json").
		refused(400, `the spec replicas field ".spec.size" cannot be empty`)
	s.send("PATCH", widgets+"/a/scale", `{"spec":{"replicas":2}}`, "Content-Type: application/merge-patch+json").expect(200, "spec.replicas", 2)
	table := s.send("GET", widgets+"/a/scale", "", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io").expect(200, "kind", "Table")
	if !strings.Contains(table.text, `"cells":["a",2,0,"`) || !strings.Contains(table.text, `"name":"Desired","type":"integer"`) {
		t.Error(table.text)
	}
}

func TestDecodeErrors(t *testing.T) {
	s := newServer(t, strictDefinition, nil)
	for _, c := range []struct{ name, body, want string }{
		{"no kind", `{"apiVersion":"example.com/v1","metadata":{"name":"a"}}`,
			`the object provided is unrecognized (must be of type Widget): Object 'Kind' is missing in '{"apiVersion":"example.com/v1","metadata":{"name":"a"}}' ({"apiVersion":"example.com/v1" ...)`},
		{"no version", `{"kind":"Widget","metadata":{"name":"a"}}`, "the API version in the data () does not match the expected API version (example.com/v1)"},
		{"other version", `{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"name":"a"}}`, "the API version in the data (example.com/v2) does not match the expected API version (example.com/v1)"},
		{"metadata", `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","labels":{"x":1}}}`,
			`Widget in version "v1" cannot be handled as a Widget: json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string`},
	} {
		s.send("POST", widgets, c.body).refused(400, c.want)
	}
	s.send("POST", widgets, `{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"a"}}`).
		refused(422, `Widget.example.com "a" is invalid: kind: Invalid value: "Gadget": must be Widget`)
	s.send("POST", widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"Not_a_name"}}`).refused(422, `metadata.name: Invalid value: "Not_a_name"`)
	s.send("POST", widgets, "k8s\x00", "Content-Type: application/vnd.kubernetes.protobuf").expect(415)
}

func TestFieldValidation(t *testing.T) {
	s := newServer(t, strictDefinition, nil)
	const body = `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"NAME","unknownMeta":1},"spec":{"size":1,"size":2,"unknown":1,"parts":[{"name":"x","odd":1}]}}`
	const found = `duplicate field "spec.size", unknown field "metadata.unknownMeta", unknown field "spec.parts[0].odd", unknown field "spec.unknown"`
	create := func(name, validation string) *response {
		return s.send("POST", widgets+"?fieldValidation="+validation, strings.Replace(body, "NAME", name, 1))
	}
	create("a", "Strict").refused(400, `Widget in version "v1" cannot be handled as a Widget: strict decoding error: `+found)
	warned := create("a", "Warn").expect(201, "spec.size", 2, "spec.unknown", nil)
	if got := strings.ReplaceAll(strings.Join(warned.warnings, ", "), `\"`, `"`); got != `"`+strings.ReplaceAll(found, ", ", `", "`)+`"` {
		t.Errorf("%s", got)
	}
	if ignored := create("b", "Ignore").expect(201); len(ignored.warnings) > 0 {
		t.Error(ignored.warnings)
	}
	s.send("PATCH", widgets+"/a?fieldValidation=Strict", `{"spec":{"size":3,"other":1,"other":2}}`, "Content-Type: application/merge-patch+json").
		refused(422, `strict decoding error: duplicate field "spec.other", unknown field "spec.other"`)
	s.send("PATCH", widgets+"/a?fieldValidation=Strict", `[{"op":"add","path":"/spec/other","value":1}]`, "Content-Type: application/json-patch+json").
		refused(422, `strict decoding error: unknown field "spec.other"`)
	s.send("POST", widgets+"?fieldValidation=Strict", "apiVersion: example.com/v1\nkind: Widget\nmetadata:\n  name: c\nspec:\n  size: 1\n  size: 2\n  unknown: 1\n", "Content-Type: application/yaml").
		refused(400, `strict decoding error: yaml: unmarshal errors:
  line 7: key "size" already set in map, unknown field "spec.unknown"`)
}

func TestApply(t *testing.T) {
	s := newServer(t, strictDefinition, nil)
	apply := func(manager, spec string, options ...string) *response {
		return s.send("PATCH", widgets+"/a?fieldManager="+manager+strings.Join(options, ""), `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":`+spec+`}`, "Content-Type: application/apply-patch+yaml")
	}
	apply("one", `{"parts":[{"name":"x","count":1}]}`).expect(201, "spec.color", "blue")
	apply("two", `{"parts":[{"name":"y","count":2}]}`).expect(200, "spec.parts", "[map[count:1 name:x] map[count:2 name:y]]")
	apply("two", `{"parts":[{"name":"x","count":3}]}`).refused(409, `Apply failed with 1 conflict: conflict with "one": .spec.parts[name="x"].count`)
	apply("two", `{"parts":[]}`).expect(200, "spec.parts", "[map[count:1 name:x]]")
	apply("two", `{"color":"red"}`, "&force=true").expect(200, "spec.color", "red")
	apply("two", `{"undeclared":1}`).refused(500, `.spec.undeclared: field not declared in schema`)
	// A scale is a field of its own in the record of managers.
	s.send("PATCH", widgets+"/a/scale?fieldManager=scaler&force=true", `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"a"},"spec":{"replicas":3}}`, "Content-Type: application/apply-patch+yaml").expect(200)
	apply("one", `{"size":4}`).refused(409, `conflict with "scaler" with subresource "scale": .spec.size`)
	// The status endpoint owns only the status.
	s.send("PATCH", widgets+"/a/status?fieldManager=status", `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":9},"status":{"size":1}}`, "Content-Type: application/apply-patch+yaml").
		expect(200, "spec.size", 3, "status.size", 1)
}

// An object whose schema has no properties is applied as a whole; what the schema does not have is pruned nevertheless.
func TestApplyPrunes(t *testing.T) {
	s := newServer(t, `
versions:
- {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {empty: {type: object}, kept: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}}}
`, nil)
	apply := func(spec string) *response {
		return s.send("PATCH", widgets+"/a?fieldManager=one", `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":`+spec+`}`, "Content-Type: application/apply-patch+yaml")
	}
	apply(`{"empty":{"more":1},"kept":{"more":1}}`).expect(201, "spec", "map[empty:map[] kept:map[more:1]]")
	apply(`{"empty":{}}`).expect(200, "spec", "map[empty:map[]]")
}

func TestTablesAndSelectors(t *testing.T) {
	s := newServer(t, strictDefinition, nil)
	for name, color := range map[string]string{"a": "red", "b": "green"} {
		s.send("POST", widgets, fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q},"spec":{"color":%q}}`, name, color)).expect(201)
	}
	table := s.send("GET", widgets, "", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io").expect(200, "kind", "Table")
	if !strings.Contains(table.text, `"cells":["a","red"]`) || !strings.Contains(table.text, `"cells":["b","green"]`) {
		t.Error(table.text)
	}
	selected := s.send("GET", widgets+"?fieldSelector=spec.color%3Dred", "").expect(200, "kind", "WidgetList")
	if items := selected.at("items").([]any); len(items) != 1 {
		t.Errorf("%v", items)
	}
	s.send("GET", widgets+"?fieldSelector=spec.size%3D1", "").refused(400, "field label not supported: spec.size")
	s.send("GET", widgets+"?fieldSelector=v1/spec.color%3Dred", "").refused(400, "field label not supported: v1/spec.color")
}

// converter has v2, which calls spec.color spec.paint.
type converter struct {
	mu      sync.Mutex
	failure error
	calls   int
	// held receives a value when a call begins that lasts until its context is done, ended when it has ended. nil: no call does.
	held, ended chan struct{}
	// blocked: calls wait until it is closed; nil: they do not.
	blocked chan struct{}
}

func (c *converter) Convert(ctx context.Context, objects []*unstructured.Unstructured, to schema.GroupVersion) ([]*unstructured.Unstructured, error) {
	held, blocked, failure := c.begin()
	if blocked != nil {
		<-blocked
	}
	if held != nil {
		held <- struct{}{}
		<-ctx.Done()
		c.ended <- struct{}{}
		return nil, ctx.Err()
	}
	if failure != nil {
		return nil, failure
	}
	var out []*unstructured.Unstructured
	for _, obj := range objects {
		text, err := json.Marshal(obj.Object)
		if err != nil {
			return nil, err
		}
		if to.Version == "v2" {
			text = bytes.Replace(text, []byte(`"color"`), []byte(`"paint"`), 1)
		} else {
			text = bytes.Replace(text, []byte(`"paint"`), []byte(`"color"`), 1)
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(text); err != nil {
			return nil, err
		}
		u.SetAPIVersion(to.String())
		out = append(out, u)
	}
	return out, nil
}

// begin counts a call and returns what is to happen in it.
func (c *converter) begin() (held, blocked chan struct{}, failure error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	held, c.held = c.held, nil
	return held, c.blocked, c.failure
}

const convertedDefinition = `
conversion: {strategy: Webhook}
versions:
- name: v1
  served: true
  storage: true
  deprecated: true
  subresources: {status: {}}
  selectableFields: [{jsonPath: .spec.color}]
  schema: {openAPIV3Schema: {type: object, properties: {status: {type: object}, spec: {type: object, properties: {color: {type: string, default: blue}}}}}}
- name: v2
  served: true
  storage: false
  selectableFields: [{jsonPath: .spec.paint}]
  additionalPrinterColumns: [{name: Paint, type: string, jsonPath: .spec.paint}]
  schema: {openAPIV3Schema: {type: object, properties: {status: {type: object}, spec: {type: object, required: [paint], properties: {paint: {type: string, maxLength: 5}}}}}}
- name: v0
  served: false
  storage: false
  schema: {openAPIV3Schema: {type: object}}
`

func TestVersions(t *testing.T) {
	webhook := &converter{}
	s := newServer(t, convertedDefinition, webhook)
	const inV2 = "v2/namespaces/ns/widgets"
	created := s.send("POST", inV2, `{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"name":"a"},"spec":{"paint":"red"}}`).
		expect(201, "apiVersion", "example.com/v2", "spec.paint", "red")
	if len(created.warnings) > 0 {
		t.Error(created.warnings)
	}
	if got := s.send("GET", widgets+"/a", "").expect(200, "apiVersion", "example.com/v1", "spec.color", "red"); len(got.warnings) != 1 ||
		!strings.Contains(got.warnings[0], "example.com/v1 Widget is deprecated; use example.com/v2 Widget") {
		t.Error(got.warnings)
	}
	kvs, _, _, err := s.store.List(context.Background(), "/registry/example.com/widgets/ns/a", "", 1, 0)
	if err != nil || len(kvs) != 1 || !bytes.Contains(kvs[0].Value, []byte(`"spec":{"color":"red"}`)) {
		t.Errorf("%v %v", kvs, err)
	}
	// The version of the request decides about validation and subresources.
	s.send("POST", inV2, `{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"name":"b"},"spec":{"paint":"violet"}}`).refused(422, "spec.paint: Too long")
	s.send("POST", inV2, `{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"name":"b"},"spec":{}}`).refused(422, "spec.paint: Required value")
	s.send("POST", widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"b"},"spec":{"color":"violet"}}`).expect(201)
	s.send("GET", inV2+"/a/status", "").expect(404)
	s.send("GET", widgets+"/a/status", "").expect(200)
	s.send("GET", "v0/namespaces/ns/widgets", "").expect(404)

	list := s.send("GET", inV2, "").expect(200, "apiVersion", "example.com/v2")
	if items := fmt.Sprint(list.at("items")); !strings.Contains(items, "paint:red") || !strings.Contains(items, "paint:violet") || strings.Contains(items, "example.com/v1 kind") {
		t.Error(items)
	}
	table := s.send("GET", inV2, "", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io").expect(200)
	if !strings.Contains(table.text, `"cells":["a","red"]`) {
		t.Error(table.text)
	}
	selected := s.send("GET", inV2+"?fieldSelector=spec.paint%3Dred", "").expect(200)
	if items := selected.at("items").([]any); len(items) != 1 {
		t.Errorf("%v", items)
	}
	s.send("GET", inV2+"?fieldSelector=spec.color%3Dred", "").refused(400, "field label not supported: spec.color")

	s.send("PATCH", inV2+"/a", `{"spec":{"paint":"green"}}`, "Content-Type: application/merge-patch+json").expect(200, "spec.paint", "green", "metadata.generation", 2)
	s.send("GET", widgets+"/a", "").expect(200, "spec.color", "green")

	webhook.failure = fmt.Errorf("connection refused")
	s.send("PATCH", widgets+"/b", `{"spec":{"color":"white"}}`, "Content-Type: application/merge-patch+json").expect(200)
	s.send("GET", inV2+"/b", "").refused(500, "connection refused")
	s.send("GET", inV2+"?fieldSelector=spec.paint%3Dwhite", "").refused(500, "connection refused")
	// The failure is not remembered.
	webhook.failure = nil
	selected = s.send("GET", inV2+"?fieldSelector=spec.paint%3Dwhite", "").expect(200)
	if items := selected.at("items").([]any); len(items) != 1 {
		t.Errorf("%v", items)
	}
	s.send("GET", inV2+"/b", "").expect(200, "spec.paint", "white")
}

// With server-side apply, the owner of a field is known in all versions.
func TestApplyInSeveralVersions(t *testing.T) {
	s := newServer(t, convertedDefinition, &converter{})
	apply := func(version, manager, spec string) *response {
		return s.send("PATCH", version+"/namespaces/ns/widgets/a?fieldManager="+manager, `{"apiVersion":"example.com/`+version+`","kind":"Widget","metadata":{"name":"a"},"spec":`+spec+`}`, "Content-Type: application/apply-patch+yaml")
	}
	apply("v1", "one", `{"color":"red"}`).expect(201)
	apply("v2", "two", `{"paint":"green"}`).refused(409, `conflict with "one": .spec.color`)
	apply("v2", "one", `{"paint":"green"}`).expect(200, "spec.paint", "green")
	s.send("GET", widgets+"/a", "").expect(200, "spec.color", "green")
}

// A list is converted with few requests, and only once, whether its encodings are kept or not: those of the past are not.
func TestListIsConvertedInBatches(t *testing.T) {
	const count = 200
	webhook := &converter{}
	s := newServer(t, convertedDefinition, webhook)
	for i := range count {
		s.send("POST", widgets, fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w%d","annotations":{"a":"%s"}},"spec":{"color":"red"}}`,
			i, strings.Repeat("x", 2000))).expect(201)
	}
	past := s.send("GET", widgets, "").expect(200).at("metadata.resourceVersion")
	for i := range count {
		s.send("PATCH", fmt.Sprintf("%s/w%d", widgets, i), `{"spec":{"color":"green"}}`, "Content-Type: application/merge-patch+json").expect(200)
	}
	for _, query := range []string{"?resourceVersionMatch=Exact&resourceVersion=" + past.(string), ""} {
		for accept, field := range map[string]string{
			"application/json": `"creationTimestamp"`, "application/json;as=Table;v=v1;g=meta.k8s.io": `"creationTimestamp"`,
			"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io":                    `"creationTimestamp"`,
			"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io": "tester",
		} {
			webhook.calls = 0
			list := s.send("GET", "v2/namespaces/ns/widgets"+query, "", "Accept: "+accept).expect(200)
			if n := strings.Count(list.text, field); n != count || webhook.calls > count/10 {
				t.Errorf("%s %s: %d objects with %d calls", query, accept, n, webhook.calls)
			}
		}
	}
	webhook.calls = 0
	if s.send("GET", "v2/namespaces/ns/widgets", "").expect(200); webhook.calls > 0 {
		t.Errorf("%d calls for a list that was converted before", webhook.calls)
	}
}

// The fields for a selector, and the events of a watch, are converted with few requests, too.
func TestSelectedIsConvertedInBatches(t *testing.T) {
	const count = 200
	for what, path := range map[string]string{
		"a list with a selector":       "?fieldSelector=spec.paint%3Dred",
		"a page with a selector":       "?fieldSelector=spec.paint%3Dred&limit=150",
		"a list of the past":           "?fieldSelector=spec.paint%3Dred&resourceVersionMatch=Exact&resourceVersion=",
		"initial events":               "?watch=true",
		"selected initial events":      "?watch=true&fieldSelector=spec.paint%3Dred",
		"initial events with metadata": "?watch=true&as=PartialObjectMetadata",
		"initial events with rows":     "?watch=true&as=Table",
		"events":                       "?watch=true&resourceVersion=before",
		"selected events":              "?watch=true&fieldSelector=spec.paint%3Dred&resourceVersion=before",
		"events with rows":             "?watch=true&resourceVersion=before&as=Table",
	} {
		webhook := &converter{}
		s := newServer(t, convertedDefinition, webhook)
		before := s.send("POST", widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w0"},"spec":{"color":"red"}}`).expect(201).at("metadata.resourceVersion").(string)
		for i := range count {
			if strings.Contains(path, "before") || i > 0 {
				s.send("POST", widgets, fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w%d"},"spec":{"color":"red"}}`, i+1)).expect(201)
			}
		}
		accept := "Accept: application/json"
		path = strings.Replace(path, "before", before, 1)
		if query, as, ok := strings.Cut(path, "&as="); ok {
			path, accept = query, accept+";as="+as+";v=v1;g=meta.k8s.io"
		}
		if strings.HasSuffix(path, "=") {
			path += s.send("GET", widgets+"?limit=1", "").expect(200).at("metadata.resourceVersion").(string)
			s.send("PATCH", widgets+"/w0", `{"metadata":{"labels":{"x":"y"}}}`, "Content-Type: application/merge-patch+json").expect(200)
		}
		want := count
		if strings.Contains(path, "limit=150") {
			want = 150
		}
		webhook.calls = 0
		n := 0
		if strings.Contains(path, "watch=true") {
			n = s.watched("v2/namespaces/ns/widgets"+path, accept, count)
		} else {
			n = strings.Count(s.send("GET", "v2/namespaces/ns/widgets"+path, "", accept).expect(200).text, `"creationTimestamp"`)
		}
		if n != want || webhook.calls > count/10 {
			t.Errorf("%s: %d objects with %d calls", what, n, webhook.calls)
		}
	}
}

// The events of a watch in the server's process are converted with few requests, too.
func TestLocalWatchIsConvertedInBatches(t *testing.T) {
	const count = 200
	webhook := &converter{}
	s := newServer(t, convertedDefinition, webhook)
	before := s.send("POST", widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"first"},"spec":{"color":"red"}}`).expect(201).at("metadata.resourceVersion").(string)
	// Objects that were stored when v2 was the storage version.
	for i := range count {
		stored := fmt.Sprintf(`{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"name":"w%d","namespace":"ns","uid":"u%d"},"spec":{"paint":"red"}}`, i, i)
		if _, err := s.store.Create(t.Context(), fmt.Sprintf("/registry/example.com/widgets/ns/w%d", i), []byte(stored), 0); err != nil {
			t.Fatal(err)
		}
	}
	last := fmt.Sprintf("%s/w%d", widgets, count-1)
	for until := time.Now().Add(30 * time.Second); s.send("GET", last, "").code != 200 && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	s.send("GET", last, "").expect(200)
	webhook.calls = 0
	w, err := s.api.Local(authn.User{Username: "test", Groups: []string{authn.GroupMasters}}).
		Watch(t.Context(), schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}, "", &internalversion.ListOptions{ResourceVersion: before})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for i := range count {
		event := <-w.ResultChan()
		obj, ok := event.Object.(*unstructured.Unstructured)
		if !ok || event.Type != watch.Added || obj.GetName() != fmt.Sprintf("w%d", i) || obj.GetAPIVersion() != "example.com/v1" {
			t.Fatalf("event %d: %v", i, event)
		}
		if color, _, _ := unstructured.NestedString(obj.Object, "spec", "color"); color != "red" {
			t.Fatalf("event %d: %v", i, obj.Object)
		}
	}
	webhook.mu.Lock()
	defer webhook.mu.Unlock()
	if webhook.calls > count/10 {
		t.Errorf("%d events with %d calls", count, webhook.calls)
	}
}

// watched reads a number of events, and returns how many of them add an object.
func (s *server) watched(path, accept string, count int) (found int) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://server/apis/example.com/"+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Accept", strings.TrimPrefix(accept, "Accept: "))
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	events := json.NewDecoder(resp.Body)
	for range count {
		var event struct {
			Type   string
			Object struct {
				Metadata metav1.ObjectMeta
				Rows     []struct{ Object metav1.PartialObjectMetadata }
			}
		}
		if err := events.Decode(&event); err != nil {
			s.t.Fatal(err)
		}
		if event.Type == "ADDED" && (event.Object.Metadata.Name != "" || len(event.Object.Rows) == 1 && event.Object.Rows[0].Object.Name != "") {
			found++
		}
	}
	return found
}

// The call of a webhook ends with the request that needs it. A second request for the same object gets its response all the same.
func TestConversionEndsWithRequest(t *testing.T) {
	for what, test := range map[string]struct{ method, path, body, header string }{
		"get":      {"GET", "/a", "", ""},
		"list":     {"GET", "", "", ""},
		"table":    {"GET", "", "", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io"},
		"metadata": {"GET", "", "", "Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"},
		"selector": {"GET", "?fieldSelector=spec.paint%3Dred", "", ""},
		"watch":    {"GET", "?watch=true", "", ""},
		"patch":    {"PATCH", "/a", `{"spec":{"paint":"green"}}`, "Content-Type: application/merge-patch+json"},
		"apply":    {"PATCH", "/a?fieldManager=m&force=true", `{"apiVersion":"example.com/v2","kind":"Widget","spec":{"paint":"green"}}`, "Content-Type: application/apply-patch+yaml"},
		"create":   {"POST", "", `{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"name":"b"},"spec":{"paint":"green"}}`, "Content-Type: application/json"},
		"delete":   {"DELETE", "/a", "", ""},
	} {
		t.Run(what, func(t *testing.T) {
			webhook := &converter{}
			s := newServer(t, convertedDefinition, webhook)
			s.send("POST", widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"color":"red"}}`).expect(201)
			held, ended := make(chan struct{}, 1), make(chan struct{}, 1)
			webhook.held, webhook.ended = held, ended
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			request, err := http.NewRequestWithContext(ctx, test.method, "http://server/apis/example.com/v2/namespaces/ns/widgets"+test.path, strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			if name, value, ok := strings.Cut(test.header, ": "); ok {
				request.Header.Set(name, value)
			}
			go func() {
				if response, err := s.client.Do(request); err == nil {
					_, _ = io.Copy(io.Discard, response.Body)
					response.Body.Close()
				}
			}()
			<-held
			second := make(chan *response, 1)
			go func() { second <- s.send("GET", "v2/namespaces/ns/widgets/a", "") }()
			cancel()
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Fatal("the call of the webhook does not end with its request")
			}
			(<-second).expect(200, "spec.paint", "red")
		})
	}
}

func TestWatchInAnotherVersion(t *testing.T) {
	s := newServer(t, convertedDefinition, &converter{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://server/apis/example.com/v2/namespaces/ns/widgets?watch=true&fieldSelector=spec.paint%3Dred", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	events := json.NewDecoder(resp.Body)
	expect := func(eventType, paint string) {
		t.Helper()
		var event struct {
			Type   string
			Object struct {
				APIVersion string
				Spec       struct{ Paint string }
			}
		}
		if err := events.Decode(&event); err != nil {
			t.Fatal(err)
		}
		if event.Type != eventType || event.Object.APIVersion != "example.com/v2" || event.Object.Spec.Paint != paint {
			t.Errorf("%+v, want %s %s", event, eventType, paint)
		}
	}
	patch := func(color string) {
		s.send("PATCH", widgets+"/a", `{"spec":{"color":"`+color+`"}}`, "Content-Type: application/merge-patch+json").expect(200)
	}
	s.send("POST", widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"b"},"spec":{"color":"blue"}}`).expect(201)
	s.send("POST", widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"color":"red"}}`).expect(201)
	expect("ADDED", "red")
	s.send("PATCH", widgets+"/a", `{"metadata":{"labels":{"x":"y"}}}`, "Content-Type: application/merge-patch+json").expect(200)
	expect("MODIFIED", "red")
	patch("green")
	expect("DELETED", "red")
	patch("red")
	expect("ADDED", "red")
	s.send("DELETE", widgets+"/a", "").expect(200)
	expect("DELETED", "red")
}
