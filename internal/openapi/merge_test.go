package openapi

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// goldenObjects are the golden files of k8s.io/api: objects with all fields set.
func goldenObjects(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/api").Output()
	if err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "testdata", "HEAD", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{}
		if strings.HasSuffix(name, ".WatchEvent.json") {
			continue // has no kind of its own
		}
		if err := u.UnmarshalJSON(text); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, ok := definition(Name(u.GroupVersionKind())); ok {
			objects = append(objects, u)
		}
	}
	for _, text := range []string{customResourceDefinition, apiService} {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON([]byte(text)); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, u)
	}
	return objects
}

// There are no golden files of kinds outside k8s.io/api.
const (
	customResourceDefinition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.example.com"},
		"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"things","kind":"Thing","shortNames":["th"]},
		"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object",
			"x-kubernetes-preserve-unknown-fields":true,"properties":{"spec":{"type":"object","required":["size"],
				"properties":{"size":{"type":"integer","format":"int32","minimum":1,"default":3,"enum":[1,2,3]}},
				"x-kubernetes-validations":[{"rule":"self.size > 0"}]},"list":{"type":"array","items":{"type":"string"}}}}}}]},
		"status":{"conditions":[{"type":"Established","status":"True","lastTransitionTime":null}],"acceptedNames":{"plural":"things","kind":"Thing"},"storedVersions":["v1"]}}`
	apiService = `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.example.com"},
		"spec":{"group":"example.com","version":"v1","groupPriorityMinimum":1000,"versionPriority":15,"caBundle":"Y2E=",
		"service":{"namespace":"default","name":"api","port":443}},
		"status":{"conditions":[{"type":"Available","status":"True","lastTransitionTime":null}]}}`
)

// kindsWithMetadata are all kinds that can be stored or sent.
func kindsWithMetadata() []schema.GroupVersionKind {
	var out []schema.GroupVersionKind
	for pkg, f := range files {
		f.block("")
		for name, text := range f.blocks {
			if strings.Contains(text, `"x-kubernetes-group-version-kind"`) && strings.Contains(text, `"`+refPrefix+metaPackage+`ObjectMeta"`) {
				out = append(out, schema.GroupVersionKind{Group: f.group, Version: f.version, Kind: name[len(pkg)+1:]})
			}
		}
	}
	return out
}

func without(kinds []schema.GroupVersionKind, objects []*unstructured.Unstructured) []schema.GroupVersionKind {
	return slices.DeleteFunc(kinds, func(gvk schema.GroupVersionKind) bool {
		return slices.ContainsFunc(objects, func(u *unstructured.Unstructured) bool { return u.GroupVersionKind() == gvk })
	})
}

func newConverter(t *testing.T) managedfields.TypeConverter {
	t.Helper()
	c, err := TypeConverter()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTypeConverterKnowsEveryKind(t *testing.T) {
	objects := goldenObjects(t)
	merged := slices.DeleteFunc(kindsWithMetadata(), func(gvk schema.GroupVersionKind) bool {
		return gvk.Group == "metrics.k8s.io" // metrics are read-only
	})
	if missing := without(merged, objects); len(missing) > 0 {
		t.Errorf("no object to try of %v", missing)
	}
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensionsv1.AddToScheme, apiregistrationv1.AddToScheme} {
		if err := add(all); err != nil {
			t.Fatal(err)
		}
	}
	converter := newConverter(t)
	for _, u := range objects {
		gvk := u.GroupVersionKind()
		untyped, err := converter.ObjectToTyped(u)
		if err != nil {
			t.Errorf("%s: %v", gvk, err)
			continue
		}
		back, err := converter.TypedToObject(untyped)
		if err != nil {
			t.Errorf("%s: %v", gvk, err)
			continue
		}
		if !reflect.DeepEqual(back, u) {
			t.Errorf("%s: changed on its way through", gvk)
		}
		// The Go type has the same fields as the JSON.
		obj, err := all.New(gvk)
		if err != nil {
			t.Errorf("%s: %v", gvk, err)
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, obj); err != nil {
			t.Errorf("%s: %v", gvk, err)
			continue
		}
		typed, err := converter.ObjectToTyped(obj)
		if err != nil {
			t.Errorf("%s: %v", gvk, err)
			continue
		}
		fromJSON, err1 := untyped.ToFieldSet()
		fromGo, err2 := typed.ToFieldSet()
		if err1 != nil || err2 != nil {
			t.Errorf("%s: %v %v", gvk, err1, err2)
		} else if !fromJSON.Equals(fromGo) {
			t.Errorf("%s: fields differ: %s", gvk, fromJSON.Difference(fromGo).Union(fromGo.Difference(fromJSON)))
		}
	}
}

// Schemas made one by one must merge like one schema of all kinds.
func TestTypeConverterAgreesWithWholeSchema(t *testing.T) {
	for _, kind := range []string{"Pod", "Service", "Node", "ConfigMap"} {
		gvk := schema.GroupVersionKind{Version: "v1", Kind: kind}
		definitions, err := Definitions(Name(gvk))
		if err != nil {
			t.Fatal(err)
		}
		whole, err := managedfields.NewTypeConverter(definitions, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range goldenObjects(t) {
			if u.GroupVersionKind() != gvk {
				continue
			}
			want, err := whole.ObjectToTyped(u)
			if err != nil {
				t.Fatal(err)
			}
			got, err := newConverter(t).ObjectToTyped(u)
			if err != nil {
				t.Fatal(err)
			}
			wantSet, _ := want.ToFieldSet()
			gotSet, _ := got.ToFieldSet()
			if !wantSet.Equals(gotSet) {
				t.Errorf("%s: %s", kind, wantSet.Difference(gotSet))
			}
		}
	}
}

func TestMergeByKeys(t *testing.T) {
	pod := func(name, image string, port int32) *corev1.Pod {
		return &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: name, Image: image, Command: []string{image}, Ports: []corev1.ContainerPort{{ContainerPort: port, Protocol: "TCP"}}}}}}
	}
	a, err := newConverter(t).ObjectToTyped(pod("a", "one", 80))
	if err != nil {
		t.Fatal(err)
	}
	b, err := newConverter(t).ObjectToTyped(pod("a", "two", 81))
	if err != nil {
		t.Fatal(err)
	}
	merged, err := a.Merge(b)
	if err != nil {
		t.Fatal(err)
	}
	obj, err := newConverter(t).TypedToObject(merged)
	if err != nil {
		t.Fatal(err)
	}
	var got corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.(*unstructured.Unstructured).Object, &got); err != nil {
		t.Fatal(err)
	}
	c := got.Spec.Containers
	if len(c) != 1 || c[0].Image != "two" || len(c[0].Ports) != 2 || len(c[0].Command) != 1 {
		text, _ := json.Marshal(c)
		t.Errorf("containers merge by name, ports by number and protocol, the command is one value: %s", text)
	}
	set, err := merged.ToFieldSet()
	if err != nil {
		t.Fatal(err)
	}
	key := fieldpath.KeyByFields("containerPort", 81, "protocol", "TCP")
	if !set.Has(fieldpath.MakePathOrDie("spec", "containers", fieldpath.KeyByFields("name", "a"), "ports", key, "containerPort")) {
		t.Errorf("no field of the port: %s", set)
	}
}

func TestSchemaIsSharedBetweenKinds(t *testing.T) {
	find := func(kind string) any {
		pt, ok, err := Schema(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: kind})
		if err != nil || !ok {
			t.Fatal(kind, ok, err)
		}
		def, ok := pt.Schema.FindNamedType(core + "PodSpec")
		if !ok {
			t.Fatalf("%s without PodSpec", kind)
		}
		return def.Map
	}
	if find("Deployment") != find("DaemonSet") {
		t.Error("the pod's schema is kept twice")
	}
}

func TestUnknownKind(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Thing"}}
	if _, err := newConverter(t).ObjectToTyped(u); err == nil || !strings.Contains(err.Error(), "no corresponding type") {
		t.Errorf("got %v", err)
	}
	if _, ok, err := Schema(u.GroupVersionKind()); ok || err != nil {
		t.Errorf("got %v %v", ok, err)
	}
}

func BenchmarkSchemaOfPod(b *testing.B) {
	for range b.N {
		merging.kinds, merging.atoms = nil, nil
		if _, _, err := Schema(schema.GroupVersionKind{Version: "v1", Kind: "Pod"}); err != nil {
			b.Fatal(err)
		}
	}
}
