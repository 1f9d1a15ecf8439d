package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/api"
	"skiff/internal/apiserver/admission"
	"skiff/internal/kind"
	"skiff/internal/openapi"
)

const (
	growthSmall  = 400
	growthFactor = 8
	// growthAllowed is the largest ratio of CPU time that linear work can have between the two sizes on a busy machine. Quadratic work has 64.
	growthAllowed = 20
	// growthCheap is the CPU time at the larger size below which the ratio is not measured: a quadratic part of it is too small to matter.
	growthCheap = 30 * time.Millisecond
)

// newGrowthServer is the server with all kinds and all admission plugins that are enabled by default.
func newGrowthServer(t testing.TB) *testServer {
	var s *testServer
	s = newTestServer(t, func(c *Config) {
		var err error
		c.Kinds, c.Scheme, c.TypeConverter = api.Kinds(api.Settings{}), api.Scheme(), openapi.TypeConverter
		c.Admission, err = admission.List(admission.Options{
			Client: func() kind.Client { return s.KindClient() }, Authorizer: c.Authorizer,
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	s.add("namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	s.add("servicecidrs.networking.k8s.io", &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.0.0.0/16"}},
	})
	s.add("serviceaccounts", &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "default"}})
	return s
}

// growth sends requests whose size depends on n.
type growth struct {
	*testServer
	requests, accepted int
	cpu                time.Duration
}

func newGrowth(t testing.TB) *growth {
	if testing.Short() {
		t.Skip("CPU time says nothing about growth under the race detector, which runs the short tests")
	}
	return &growth{testServer: newGrowthServer(t)}
}

// growingRequest is a request of a client with n items.
type growingRequest struct {
	method, path, contentType string
	body                      any
}

// serve returns the CPU time of the request.
func (g *growth) serve(r growingRequest) (cpu time.Duration, code int) {
	g.t.Helper()
	body, err := json.Marshal(r.body)
	if err != nil {
		g.t.Fatal(err)
	}
	req := httptest.NewRequest(r.method, r.path, strings.NewReader(string(body)))
	req.Header.Set("Authorization", "Bearer admin")
	req.Header.Set("Content-Type", r.contentType)
	recorder := httptest.NewRecorder()
	handler := g.Handler()
	took := cpuTime(g.t, func() { handler.ServeHTTP(recorder, req) })
	g.requests++
	if recorder.Code < 300 {
		g.accepted++
	}
	if recorder.Code >= 500 {
		g.t.Errorf("%s %s: code %d: %.300s", r.method, r.path, recorder.Code, recorder.Body)
	}
	g.cpu += took
	return took, recorder.Code
}

// cpuTime is the CPU time that f uses on its thread. Handlers of writes start no goroutines that do their work.
func cpuTime(t testing.TB, f func()) time.Duration {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	threadTime := func() int64 {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
			t.Fatal(err)
		}
		return now.Nano()
	}
	began := threadTime()
	f()
	return time.Duration(threadTime() - began)
}

// check fails when the request costs more than linear CPU time. newRequest is called with the number of items.
func (g *growth) check(what string, newRequest func(n int) growingRequest) {
	g.t.Helper()
	large := newRequest(growthSmall * growthFactor)
	slow, code := g.serve(large)
	if slow < growthCheap {
		return
	}
	small := newRequest(growthSmall)
	fast := time.Hour
	var ratio float64
	// A busy machine evicts the caches of a request that is interrupted: more rounds find one that is not.
	for range 20 {
		for range 3 {
			took, _ := g.serve(small)
			fast = min(fast, took)
		}
		if ratio = float64(slow) / float64(fast); ratio <= growthAllowed {
			return
		}
		took, _ := g.serve(large)
		slow = min(slow, took)
	}
	g.t.Errorf("%s: %v for %d items and %v for %d: a factor of %.0f for %d times the items (code %d)",
		what, fast.Round(time.Microsecond), growthSmall, slow.Round(time.Microsecond), growthSmall*growthFactor, ratio, growthFactor, code)
}

func (f growingField) collection() string {
	p := "/apis/" + f.version.GVK.GroupVersion().String()
	if f.version.GVK.Group == "" {
		p = "/api/" + f.version.GVK.Version
	}
	if f.kind.Namespaced {
		p = path.Join(p, "namespaces/default")
	}
	return path.Join(p, f.kind.Plural)
}

// target is the endpoint that writes the field: the object, or its status.
func (f growingField) target(query string) string {
	p := f.collection() + "/a"
	if f.path[0] == "status" && f.kind.CopyStatus != nil {
		p += "/status"
	}
	return p + "?dryRun=All" + query
}

// store replaces the stored object by one with the items, past all validation.
func (g *growth) store(f growingField, items any) {
	g.t.Helper()
	object := f.object(items)
	meta := object["metadata"].(map[string]any)
	meta["uid"] = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"
	raw, err := json.Marshal(object)
	if err != nil {
		g.t.Fatal(err)
	}
	res := g.catalog.find(f.version.GVK.GroupVersion().WithResource(f.kind.Plural))
	obj := res.newObject()
	if err := json.Unmarshal(raw, obj); err != nil {
		g.t.Fatalf("%s: %v", f, err)
	}
	if obj, err = res.toStorageVersion(obj); err != nil {
		g.t.Fatal(err)
	}
	key := f.kind.Key(obj.GetNamespace(), obj.GetName())
	if old := res.table.Get(key); old != nil {
		if _, err := res.table.Delete(g.t.Context(), key, old.Revision()); err != nil {
			g.t.Fatal(err)
		}
	}
	if _, err := res.table.Create(g.t.Context(), key, obj, 0); err != nil {
		g.t.Fatal(err)
	}
}

// TestCreateIsLinear checks that the CPU time of a create is linear in the length of every list and map of every kind.
func TestCreateIsLinear(t *testing.T) {
	g := newGrowth(t)
	for _, f := range growingFields(t) {
		if f.path[0] == "status" && f.kind.CopyStatus != nil && !f.kind.StatusOnCreate {
			continue // cleared
		}
		variants := []variant{distinct}
		if f.first && !f.isMap() {
			variants = append(variants, equal)
		}
		for _, v := range variants {
			g.check(fmt.Sprintf("create %s, variant %d", f, v), func(n int) growingRequest {
				return growingRequest{http.MethodPost, f.collection() + "?dryRun=All", mediaJSON, f.object(f.items(n, v))}
			})
		}
	}
	t.Logf("%d requests, %d accepted, %v of CPU time", g.requests, g.accepted, g.cpu)
}

// TestUpdateIsLinear is the same for updates that reverse a list, so that its items cannot be compared by position.
func TestUpdateIsLinear(t *testing.T) {
	g := newGrowth(t)
	for _, f := range growingFields(t) {
		if !f.first {
			continue
		}
		g.check("update "+f.String(), func(n int) growingRequest {
			g.store(f, f.items(n, distinct))
			return growingRequest{http.MethodPut, f.target(""), mediaJSON, f.object(f.reversed(n))}
		})
	}
	t.Logf("%d requests, %d accepted, %v of CPU time", g.requests, g.accepted, g.cpu)
}

func (f growingField) reversed(n int) any {
	items := f.items(n, distinct)
	if list, ok := items.([]any); ok {
		slices.Reverse(list)
	}
	return items
}

// representatives are one field for each way in which patches treat lists and maps: they depend on the types of items and on the struct
// tags, not on the kind.
func representatives(t testing.TB) []growingField {
	var found []growingField
	seen := map[string]bool{}
	for _, f := range growingFields(t) {
		if f.version.GVK.Group != "" || f.path[0] == "status" {
			continue
		}
		item := f.typ.Elem()
		way := fmt.Sprint(f.typ.Kind(), item.Kind(), f.strategy, f.mergeKey)
		if f.path[0] == "metadata" {
			way = f.path[1]
		}
		if !seen[way] {
			seen[way] = true
			found = append(found, f)
		}
	}
	if len(found) < 12 {
		t.Fatalf("only %d fields", len(found))
	}
	return found
}

// patchOf is a patch with the value at the field's path. Items on the way are identified by their merge key.
func (f growingField) patchOf(value any) map[string]any {
	patch := f.object(value)
	delete(patch, "apiVersion")
	delete(patch, "kind")
	return patch
}

// TestMergePatchIsLinear patches a list or a map with as many items as it has.
func TestMergePatchIsLinear(t *testing.T) {
	g := newGrowth(t)
	for _, f := range representatives(t) {
		g.check("merge patch "+f.String(), func(n int) growingRequest {
			g.store(f, f.items(n, distinct))
			return growingRequest{http.MethodPatch, f.target(""), mergePatch, f.patchOf(f.reversed(n))}
		})
	}
	t.Logf("%d requests, %d accepted, %v of CPU time", g.requests, g.accepted, g.cpu)
}

// TestStrategicPatchIsLinear patches a list or a map with as many items as it has, and with each directive for each item.
func TestStrategicPatchIsLinear(t *testing.T) {
	g := newGrowth(t)
	for _, f := range representatives(t) {
		for name, patch := range strategicPatches(f) {
			g.check("strategic merge patch "+f.String()+" "+name, func(n int) growingRequest {
				g.store(f, f.items(n, distinct))
				return growingRequest{http.MethodPatch, f.target(""), strategicPatch, patch(n)}
			})
		}
	}
	t.Logf("%d requests, %d accepted, %v of CPU time", g.requests, g.accepted, g.cpu)
}

func strategicPatches(f growingField) map[string]func(n int) map[string]any {
	name := f.path[len(f.path)-1]
	withDirectives := func(n int, change func(parent map[string]any, list []any)) map[string]any {
		patch := f.patchOf(nil)
		list, _ := f.reversed(n).([]any)
		f.place(patch, list)
		change(f.parent(patch), list)
		return patch
	}
	patches := map[string]func(n int) map[string]any{
		"items": func(n int) map[string]any { return f.patchOf(f.reversed(n)) },
	}
	if f.isMap() || !strings.Contains(f.strategy, "merge") {
		return patches
	}
	patches["in the order of $setElementOrder"] = func(n int) map[string]any {
		return withDirectives(n, func(parent map[string]any, list []any) { parent["$setElementOrder/"+name] = list })
	}
	if f.mergeKey == "" {
		patches["deleted"] = func(n int) map[string]any {
			return withDirectives(n, func(parent map[string]any, list []any) {
				delete(parent, name)
				parent["$deleteFromPrimitiveList/"+name] = list
			})
		}
		return patches
	}
	patches["deleted"] = func(n int) map[string]any {
		return withDirectives(n, func(_ map[string]any, list []any) {
			for _, item := range list {
				item.(map[string]any)["$patch"] = "delete"
			}
		})
	}
	patches["with $retainKeys"] = func(n int) map[string]any {
		return withDirectives(n, func(_ map[string]any, list []any) {
			for _, item := range list {
				item := item.(map[string]any)
				var keys []any
				for key := range item {
					keys = append(keys, key)
				}
				item["$retainKeys"] = keys
			}
		})
	}
	return patches
}

// parent is the object that has the field.
func (f growingField) parent(object map[string]any) map[string]any {
	for _, name := range f.path[:len(f.path)-1] {
		switch name {
		case "0", mapKey:
			continue
		}
		switch below := object[name].(type) {
		case []any:
			object = below[0].(map[string]any)
		case map[string]any:
			object = below
			if item, ok := below[mapKey].(map[string]any); ok {
				object = item
			}
		}
	}
	return object
}

// TestJSONPatchIsLinear adds an item with each operation.
func TestJSONPatchIsLinear(t *testing.T) {
	g := newGrowth(t)
	for _, f := range representatives(t) {
		at := "/" + strings.Join(f.path, "/")
		for name, operation := range map[string]func(i int) map[string]any{
			"add": func(i int) map[string]any {
				if f.isMap() {
					return map[string]any{"op": "add", "path": fmt.Sprintf("%s/new-%d", at, i), "value": sample(f.typ.Elem(), i, "")}
				}
				return map[string]any{"op": "add", "path": at + "/-", "value": f.item(i)}
			},
			"remove": func(i int) map[string]any {
				if f.isMap() {
					return map[string]any{"op": "remove", "path": fmt.Sprintf("%s/key-%d", at, i)}
				}
				return map[string]any{"op": "remove", "path": at + "/0"}
			},
		} {
			g.check("JSON patch "+f.String()+" "+name, func(n int) growingRequest {
				g.store(f, f.items(n, distinct))
				operations := make([]any, n)
				for i := range operations {
					operations[i] = operation(i)
				}
				return growingRequest{http.MethodPatch, f.target(""), jsonPatch, operations}
			})
		}
	}
	t.Logf("%d requests, %d accepted, %v of CPU time", g.requests, g.accepted, g.cpu)
}

// TestApplyIsLinear applies a configuration with as many items as the object has, as the first manager and over another one.
func TestApplyIsLinear(t *testing.T) {
	g := newGrowth(t)
	for _, f := range representatives(t) {
		if f.path[len(f.path)-1] == "managedFields" {
			continue // cannot be applied
		}
		g.check("apply "+f.String(), func(n int) growingRequest {
			g.store(f, f.items(n, distinct))
			return growingRequest{http.MethodPatch, f.target("&fieldManager=applier&force=true"), applyPatch, f.object(f.reversed(n))}
		})
	}
	t.Logf("%d requests, %d accepted, %v of CPU time", g.requests, g.accepted, g.cpu)
}
