package extension

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/yaml"

	"skiff/internal/api"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
	"skiff/internal/openapi"
	"skiff/internal/store/cache"
	"skiff/internal/store/memory"
	"skiff/internal/version"
)

var admin = authn.User{Username: "test", Groups: []string{authn.GroupMasters}}

// world is a server with the extension. The status of definitions is what the test writes.
type world struct {
	*Extension
	t      *testing.T
	client kind.Client
	http   *http.Client
}

func start(t *testing.T, store *memory.Store, plugins ...admission.Plugin) *world {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	log := slog.New(slog.DiscardHandler)
	objects := cache.New(store, log)
	kinds := api.Kinds(api.Settings{})
	documents := openapi.New(kinds, "v1")
	server, err := apiserver.New(apiserver.Config{
		Kinds: kinds, Scheme: api.Scheme(), Cache: objects, OpenAPI: documents, Admission: plugins,
		Authenticator: authn.Chain{authn.InProcess{}}, Authorizer: authz.Chain{authz.Masters{}},
		TypeConverter: sync.OnceValues(func() (managedfields.TypeConverter, error) { return openapi.TypeConverter() }),
		Version:       version.Info(), Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	synced := make(chan struct{})
	w := &world{t: t, client: server.KindClient(), http: &http.Client{Transport: server.Local(admin).Transport()}, Extension: New(Config{
		Server: server, Local: server.Local(admin), OpenAPI: documents, OnChange: func(string) {}, OnSynced: func() { close(synced) }, Log: log,
	})}
	var running sync.WaitGroup
	running.Go(func() { _ = objects.Run(ctx) })
	<-objects.Ready()
	running.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	<-synced
	return w
}

// request sends a request and returns the status and the body.
func (w *world) request(method, path, body string) (int, string) {
	w.t.Helper()
	req, err := http.NewRequest(method, "http://skiff.local"+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := w.http.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// expect waits until a GET has the status.
func (w *world) expect(path string, status int) string {
	w.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		got, body := w.request("GET", path, "")
		if got == status {
			return body
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: %d %s, want %d", path, got, body, status)
		}
	}
}

// until waits for a condition.
func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: waited in vain", what)
		}
	}
}

const namesAccepted, isEstablished = apiextensionsv1.NamesAccepted, apiextensionsv1.Established

// create stores a definition whose names are accepted.
func (w *world) create(plural string, change ...func(*definition)) {
	w.t.Helper()
	crd := &definition{}
	kindName := strings.ToUpper(plural[:1]) + plural[1:]
	if err := yaml.UnmarshalStrict(fmt.Appendf(nil, `
metadata: {name: %[1]s.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: %[1]s, singular: %[1]sone, kind: %[2]s, listKind: %[2]sList}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {a: {type: string}}}}}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, plural, kindName), crd); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.client.Create(context.Background(), definitions.GroupResource(), crd); err != nil {
		w.t.Fatal(err)
	}
	w.change(plural, append([]func(*definition){func(crd *definition) {
		crd.Status.AcceptedNames = crd.Spec.Names
		set(crd, namesAccepted, apiextensionsv1.ConditionTrue, "NoConflicts")
		set(crd, isEstablished, apiextensionsv1.ConditionTrue, "InitialNamesAccepted")
	}}, change...)...)
}

func set(crd *definition, t apiextensionsv1.CustomResourceDefinitionConditionType, status apiextensionsv1.ConditionStatus, reason string) {
	for i := range crd.Status.Conditions {
		if crd.Status.Conditions[i].Type == t {
			crd.Status.Conditions[i].Status, crd.Status.Conditions[i].Reason = status, reason
			return
		}
	}
	crd.Status.Conditions = append(crd.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{Type: t, Status: status, Reason: reason})
}

// change changes a definition as the controllers and clients do, past validation.
func (w *world) change(plural string, changes ...func(*definition)) *definition {
	w.t.Helper()
	obj, err := w.client.Update(context.Background(), definitions.GroupResource(), "", plural+".example.com", func(obj kind.Object) error {
		for _, change := range changes {
			change(obj.(*definition))
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return obj.(*definition)
}

func (w *world) current(plural string) *definition {
	w.t.Helper()
	obj, err := w.client.Get(context.Background(), definitions.GroupResource(), "", plural+".example.com")
	if err != nil {
		w.t.Fatal(err)
	}
	return obj.(*definition)
}

const foos = "/apis/example.com/v1/namespaces/default/foos"

func TestDefinitionIsServed(t *testing.T) {
	w := start(t, memory.New())
	w.expect(foos, http.StatusNotFound)
	w.create("foos", func(crd *definition) {
		crd.Status.AcceptedNames = apiextensionsv1.CustomResourceDefinitionNames{}
		set(crd, namesAccepted, apiextensionsv1.ConditionFalse, "PluralConflict")
		set(crd, isEstablished, apiextensionsv1.ConditionFalse, "NotAccepted")
	})
	if served, err := w.Served(w.current("foos")); served || err != nil {
		t.Errorf("a definition without names is served: %v", err)
	}
	// Its names are accepted: it is served before it is established.
	w.change("foos", func(crd *definition) {
		crd.Status.AcceptedNames = crd.Spec.Names
		set(crd, namesAccepted, apiextensionsv1.ConditionTrue, "NoConflicts")
		set(crd, isEstablished, apiextensionsv1.ConditionFalse, "InvalidCABundle")
	})
	w.expect(foos, http.StatusOK)
	w.until("served", func() bool { served, err := w.Served(w.current("foos")); return served && err == nil })
	w.expect("/apis/example.com", http.StatusNotFound)
	w.expect("/openapi/v3/apis/example.com/v1", http.StatusNotFound)
	w.change("foos", func(crd *definition) { set(crd, isEstablished, apiextensionsv1.ConditionTrue, "InitialNamesAccepted") })
	if body := w.expect("/apis/example.com", http.StatusOK); !strings.Contains(body, `"version":"v2"`) {
		t.Errorf("discovery: %s", body)
	}
	if body := w.expect("/openapi/v3/apis/example.com/v1", http.StatusOK); !strings.Contains(body, `"com.example.v1.Foos"`) || strings.Contains(body, "v2") {
		t.Errorf("OpenAPI: %s", body)
	}
	if body := w.expect("/openapi/v2", http.StatusOK); !strings.Contains(body, `"com.example.v2.Foos"`) {
		t.Error("OpenAPI v2 does not have the schema")
	}
	if code, body := w.request("POST", foos, `{"apiVersion":"example.com/v1","kind":"Foos","metadata":{"name":"a"},"spec":{"a":"x"}}`); code != http.StatusCreated {
		t.Fatalf("create: %d %s", code, body)
	}
}

// A definition can be served before it is written: neither the state before nor the one that was expected changes that. Another state does.
func TestServedBeforeWritten(t *testing.T) {
	w := start(t, memory.New())
	refused := func(crd *definition) {
		crd.Status.AcceptedNames = apiextensionsv1.CustomResourceDefinitionNames{}
		set(crd, namesAccepted, apiextensionsv1.ConditionFalse, "PluralConflict")
		set(crd, isEstablished, apiextensionsv1.ConditionFalse, "NotAccepted")
	}
	accept := func(crd *definition) {
		crd.Status.AcceptedNames = crd.Spec.Names
		set(crd, namesAccepted, apiextensionsv1.ConditionTrue, "NoConflicts")
		set(crd, isEstablished, apiextensionsv1.ConditionFalse, "Installing")
	}
	for _, plural := range []string{"foos", "bars"} {
		w.create(plural, refused)
		path := strings.Replace(foos, "foos", plural, 1)
		stored := w.current(plural)
		if err := w.Serve(stored); err == nil {
			t.Error("a definition without names is served")
		}
		expected := stored.DeepCopy()
		accept(expected)
		if err := w.Serve(expected); err != nil {
			t.Fatal(err)
		}
		w.apply(stored)
		if code, body := w.request("GET", path, ""); code != http.StatusOK {
			t.Fatalf("before the write: %d %s", code, body)
		}
		if plural == "bars" {
			w.change(plural, func(crd *definition) { crd.Labels = map[string]string{"a": "b"} })
			w.expect(path, http.StatusNotFound)
			continue
		}
		served := w.find(expected.Name).kind
		w.change(plural, accept, func(crd *definition) { set(crd, isEstablished, apiextensionsv1.ConditionTrue, "InitialNamesAccepted") })
		w.until("the write is observed", func() bool {
			w.changing.Lock()
			defer w.changing.Unlock()
			return w.find(expected.Name).expectedAfter == ""
		})
		if w.find(expected.Name).kind != served {
			t.Error("the kind was made twice")
		}
		w.expect("/apis/example.com/v1", http.StatusOK)
		w.change(plural, refused)
		w.expect(path, http.StatusNotFound)
	}
}

// The deletion of a definition may be observed after one of the same name is served, and the creation of one that is gone may never be.
func TestServedAfterDeletion(t *testing.T) {
	w := start(t, memory.New())
	w.create("foos")
	w.expect(foos, http.StatusOK)
	again := w.current("foos").DeepCopy()
	again.UID = "created again"
	if err := w.Serve(again); err != nil {
		t.Fatal(err)
	}
	w.removeDeleted(again.Name, w.current("foos").UID)
	if code, body := w.request("GET", foos, ""); code != http.StatusOK {
		t.Errorf("after the deletion of the former: %d %s", code, body)
	}
	former := w.current("foos").DeepCopy()
	former.Labels = map[string]string{"the last": "change"}
	w.apply(former)
	if found := w.find(again.Name); found == nil || found.uid != again.UID {
		t.Errorf("after a state of the former: %+v", found)
	}
	w.removeDeleted(again.Name, "")
	if code, body := w.request("GET", foos, ""); code != http.StatusOK {
		t.Errorf("after a list from before the creation: %d %s", code, body)
	}
	w.Unserve(again.Name)
	w.Unserve(again.Name)
	w.expect(foos, http.StatusNotFound)
}

func TestDefinitionChanges(t *testing.T) {
	w := start(t, memory.New())
	w.create("foos")
	w.expect(foos, http.StatusOK)
	if code, body := w.request("POST", foos, `{"apiVersion":"example.com/v1","kind":"Foos","metadata":{"name":"a"},"spec":{"a":"x"}}`); code != http.StatusCreated {
		t.Fatalf("create: %d %s", code, body)
	}
	watching := w.watch(foos)
	if line := <-watching; !strings.Contains(line, `"type":"ADDED"`) {
		t.Errorf("the watch has %s", line)
	}
	// The rest of the status does not matter: when it has been applied, before another definition, the watch goes on.
	w.change("foos", func(crd *definition) { crd.Status.StoredVersions = []string{"v1", "v2"} })
	w.create("bars", func(crd *definition) { crd.Spec.Versions[1].Served = false })
	w.expect("/apis/example.com/v1/bars", http.StatusOK)
	if code, body := w.request("POST", foos, `{"apiVersion":"example.com/v1","kind":"Foos","metadata":{"name":"b"}}`); code != http.StatusCreated {
		t.Fatalf("create: %d %s", code, body)
	}
	if line := <-watching; !strings.Contains(line, `"name":"b"`) {
		t.Errorf("the watch has %q", line)
	}
	// A version is no longer served, and the schema has another default. Watches end.
	w.change("foos", func(crd *definition) {
		crd.Generation++
		crd.Spec.Versions[1].Served = false
		spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		spec.Properties["b"] = apiextensionsv1.JSONSchemaProps{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"new"`)}}
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
	})
	if line, open := <-watching; open {
		t.Errorf("the watch had %s", line)
	}
	w.expect("/apis/example.com/v2/foos", http.StatusNotFound)
	w.expect("/openapi/v3/apis/example.com/v2", http.StatusNotFound)
	if body := w.expect(foos+"/a", http.StatusOK); !strings.Contains(body, `"b":"new"`) {
		t.Errorf("the object has the old default: %s", body)
	}
	if body := w.expect("/apis/example.com", http.StatusOK); strings.Contains(body, `"v2"`) {
		t.Errorf("discovery: %s", body)
	}
}

// watch returns the events of a watch, until it ends.
func (w *world) watch(path string) <-chan string {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), "GET", "http://skiff.local"+path+"?watch=true", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := w.http.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		defer resp.Body.Close()
		for scanner := bufio.NewScanner(resp.Body); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	return lines
}

// holder is an admission webhook that takes its time: until released is closed.
type holder struct {
	held, released chan struct{}
	mu             sync.Mutex
	equivalents    []int
}

func (*holder) Name() string { return "Holder" }

func (h *holder) Handles(a *admission.Attributes) bool { return a.Resource.Group == "example.com" }

func (h *holder) Mutate(_ context.Context, a *admission.Attributes) error {
	h.held <- struct{}{}
	<-h.released
	h.mu.Lock()
	defer h.mu.Unlock()
	h.equivalents = append(h.equivalents, len(a.Versions.Equivalents()))
	return nil
}

// Writes that are waiting for a webhook while their definition changes succeed. They are admitted in all versions that the resource had.
func TestWritesDuringChange(t *testing.T) {
	h := &holder{held: make(chan struct{}, 100), released: make(chan struct{})}
	close(h.released)
	w := start(t, memory.New(), h)
	w.create("foos")
	w.expect(foos, http.StatusOK)
	object := func(name, value string) string {
		return `{"apiVersion":"example.com/v1","kind":"Foos","metadata":{"name":"` + name + `"},"spec":{"a":"` + value + `"}}`
	}
	for _, name := range []string{"a", "b", "c"} {
		if code, body := w.request("POST", foos, object(name, "old")); code != http.StatusCreated {
			t.Fatalf("create: %d %s", code, body)
		}
		<-h.held
	}
	watching := w.watch(foos)
	h.released = make(chan struct{})
	var sent sync.WaitGroup
	for _, write := range []struct {
		method, path, body string
		want               int
	}{
		{"POST", foos, object("new", "x"), http.StatusCreated},
		{"PUT", foos + "/a", object("a", "x"), http.StatusOK},
		{"PATCH", foos + "/b", `{"spec":{"a":"x"}}`, http.StatusOK},
		{"DELETE", foos + "/c", "", http.StatusOK},
	} {
		sent.Go(func() {
			body := write.body
			if write.method == "PUT" {
				_, current := w.request("GET", write.path, "")
				body = strings.Replace(current, `"old"`, `"x"`, 1)
			}
			if code, text := w.request(write.method, write.path, body); code != write.want {
				t.Errorf("%s %s: %d %s", write.method, write.path, code, text)
			}
		})
		<-h.held
	}
	w.change("foos", func(crd *definition) {
		crd.Generation++
		crd.Spec.Versions[1].Served = false
		spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		spec.Properties["b"] = apiextensionsv1.JSONSchemaProps{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"new"`)}}
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
	})
	for line := range watching { // until the watch ends with the old schema
		if !strings.Contains(line, `"old"`) {
			t.Errorf("the watch has %s", line)
		}
	}
	w.until("the new schema", func() bool { _, body := w.request("GET", foos+"/a", ""); return strings.Contains(body, `"b":"new"`) })
	close(h.released)
	sent.Wait()
	for _, n := range h.equivalents[3:] {
		if n != 2 {
			t.Errorf("a write was admitted in %d versions", n)
		}
	}
	if body := w.expect(foos, http.StatusOK); strings.Count(body, `"a":"x"`) != 3 || strings.Count(body, `"b":"new"`) != 3 || strings.Contains(body, `"name":"c"`) {
		t.Errorf("the list has %s", body)
	}
}

func TestDefinitionIsDeleted(t *testing.T) {
	w := start(t, memory.New())
	w.create("foos")
	w.expect(foos, http.StatusOK)
	if err := w.client.Delete(context.Background(), definitions.GroupResource(), "", "foos.example.com", nil); err != nil {
		t.Fatal(err)
	}
	w.until("terminating", func() bool { served, _ := w.Served(w.current("foos")); return served })
	if body := w.expect("/apis/example.com/v1", http.StatusOK); !strings.Contains(body, `"verbs":["delete","deletecollection","get","list","watch"]`) {
		t.Errorf("discovery: %s", body)
	}
	code, body := w.request("POST", foos, `{"apiVersion":"example.com/v1","kind":"Foos","metadata":{"name":"a"}}`)
	if code != http.StatusForbidden || !strings.Contains(body, "create not allowed while custom resource definition is terminating") {
		t.Errorf("create: %d %s", code, body)
	}
	w.change("foos", func(crd *definition) { crd.Finalizers = nil })
	w.expect(foos, http.StatusNotFound)
	w.expect("/apis/example.com", http.StatusNotFound)
	w.expect("/openapi/v3/apis/example.com/v1", http.StatusNotFound)
	// Created again, it has none of the old state.
	w.create("foos")
	w.expect(foos, http.StatusOK)
}

func TestDefinitionThatCannotBeServed(t *testing.T) {
	w := start(t, memory.New())
	w.create("foos", func(crd *definition) {
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter}
	})
	w.until("failure", func() bool { _, err := w.Served(w.current("foos")); return err != nil })
	w.expect(foos, http.StatusNotFound)
	w.change("foos", func(crd *definition) {
		crd.Generation++
		crd.Spec.Conversion.Strategy = apiextensionsv1.NoneConverter
	})
	w.expect(foos, http.StatusOK)
}

// After a restart, what was established is served when the server is ready, with the history of its objects.
func TestRestart(t *testing.T) {
	store := memory.New()
	w := start(t, store)
	const count = 20
	for i := range count {
		w.create(fmt.Sprintf("foos%d", i))
	}
	w.expect(fmt.Sprintf("/apis/example.com/v1/foos%d", count-1), http.StatusOK)
	again := start(t, store)
	for i := range count {
		if code, body := again.request("GET", fmt.Sprintf("/apis/example.com/v1/foos%d", i), ""); code != http.StatusOK {
			t.Errorf("foos%d: %d %s", i, code, body)
		}
	}
}

// A definition that nobody uses costs its stored bytes, of which the store of this test and the cache have one copy each, and little more.
func TestMemoryOfDefinitions(t *testing.T) {
	w := start(t, memory.New())
	const count = 50
	large := func(crd *definition) {
		properties := map[string]apiextensionsv1.JSONSchemaProps{}
		for i := range 300 {
			properties[fmt.Sprint("property", i)] = apiextensionsv1.JSONSchemaProps{
				Type: "string", Description: fmt.Sprintf("Property %d of %s has a description as long as those that are generated from comments: what it is for and when it is set.", i, crd.Name),
			}
		}
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties}
	}
	w.create("first", large)
	w.expect("/apis/example.com/v1/first", http.StatusOK)
	before := liveHeap()
	for i := range count {
		w.create(fmt.Sprintf("foos%d", i), large)
	}
	for i := range count {
		w.expect(fmt.Sprintf("/apis/example.com/v1/foos%d", i), http.StatusOK)
	}
	w.until("all are served", func() bool {
		served, err := w.Served(w.current(fmt.Sprintf("foos%d", count-1)))
		return served && err == nil
	})
	crd := w.current("first")
	each, stored := (liveHeap()-before)/count, crd.Size()
	t.Logf("%d bytes for each definition of %d bytes", each, stored)
	if each > 3*stored {
		t.Errorf("a definition of %d bytes takes %d", stored, each)
	}
	// Nor does a component that watches them, at the start, hold all of them decoded.
	before = liveHeap()
	initial := true
	pending, err := w.Local.Watch(t.Context(), definitions, "", &internalversion.ListOptions{SendInitialEvents: &initial})
	if err != nil {
		t.Fatal(err)
	}
	defer pending.Stop()
	<-pending.ResultChan()
	if each := (liveHeap() - before) / count; each > stored {
		t.Errorf("a definition of %d bytes takes %d while it is watched", stored, each)
	}
}

// A definition costs the same to serve, to change and to remove, however many others there are, if nobody reads discovery meanwhile. Reading discovery
// and OpenAPI costs no more than they contain.
func TestManyDefinitions(t *testing.T) {
	w := start(t, memory.New())
	const batch, many = 100, 1600
	count := 0
	measure := func(do func()) float64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		return float64(after.TotalAlloc - before.TotalAlloc)
	}
	serve := func(n int) {
		for range n {
			w.create(fmt.Sprintf("foos%d", count))
			count++
		}
		w.until("all are served", func() bool {
			served, err := w.Served(w.current(fmt.Sprintf("foos%d", count-1)))
			return served && err == nil
		})
	}
	change := func() {
		for i := range 20 {
			generation := w.change(fmt.Sprintf("foos%d", i), func(crd *definition) { crd.Spec.Versions[1].Deprecated = !crd.Spec.Versions[1].Deprecated }).Generation
			w.until("the change is served", func() bool {
				found := w.find(fmt.Sprintf("foos%d.example.com", i))
				return found != nil && found.generation == generation
			})
		}
	}
	remove := func() {
		for i := range 20 {
			plural := fmt.Sprintf("foos%d", count-1-i)
			if err := w.client.Delete(context.Background(), definitions.GroupResource(), "", plural+".example.com", nil); err != nil {
				t.Fatal(err)
			}
			w.change(plural, func(crd *definition) { crd.Finalizers = nil })
			w.until("it is not served", func() bool { return w.find(plural+".example.com") == nil })
		}
		count -= 20
	}
	read := func() {
		for _, path := range []string{"/apis", "/apis/example.com/v1", "/openapi/v3", "/openapi/v3/apis/apps/v1"} {
			w.expect(path, http.StatusOK)
		}
	}
	serve(batch) // also what is made only once
	read()
	costs := func() (all [4]float64) {
		all[0] = measure(func() { serve(batch) })
		all[1] = measure(change)
		all[2] = measure(remove)
		w.change("foos0", func(crd *definition) { crd.Spec.Versions[1].Deprecated = !crd.Spec.Versions[1].Deprecated })
		all[3] = measure(read)
		return all
	}
	before := costs()
	serve(many - count)
	after := costs()
	t.Logf("with %d definitions %.0f bytes, with %d %.0f", batch, before, many, after)
	// There are 16 times as many definitions. A factor of four leaves room for the race detector, under which pools drop compressors at random.
	for i, what := range []string{"serving", "changing", "removing"} {
		if after[i] > 4*before[i] {
			t.Errorf("%s definitions takes %.0f bytes with few and %.0f with many others", what, before[i], after[i])
		}
	}
	if after[3] > 2*before[3]*many/batch {
		t.Errorf("reading discovery takes %.0f bytes with %d definitions and %.0f with %d", before[3], batch, after[3], many)
	}
}

// liveHeap is the heap after a garbage collection.
func liveHeap() int {
	var stats runtime.MemStats
	for range 3 {
		runtime.GC() // weak pointers and finalizers need more than one
	}
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}
