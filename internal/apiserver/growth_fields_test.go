package apiserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"skiff/internal/api"
	"skiff/internal/kind"
)

// growingField is a list or a map somewhere in the objects of a kind, which a client can make as long as a request body allows.
type growingField struct {
	kind    *kind.Kind
	version *kind.Version
	// path is made of JSON names; "0" is the first item of a list, and mapKey the value of a map.
	path []string
	// steps are the types along the path.
	steps []reflect.Type
	typ   reflect.Type
	// strategy and mergeKey are those of a strategic merge patch.
	strategy, mergeKey string
	// first: no other field has been found with this struct and name.
	first bool
}

const mapKey = "key-0"

func (f growingField) String() string {
	return fmt.Sprintf("%s %s %s", f.version.GVK.GroupVersion(), f.kind.Plural, strings.Join(f.path, "."))
}

func (f growingField) isMap() bool { return f.typ.Kind() == reflect.Map }

// growingFields finds the lists and maps of all kinds in all versions. A field of a struct that several kinds share is returned once, except
// those of metadata and of pod specs, which some kinds treat differently.
func growingFields(t testing.TB) []growingField {
	t.Helper()
	w := fieldWalker{seen: map[string]bool{}}
	for _, k := range api.Kinds(api.Settings{}) {
		if k.Action != nil || k.Computed != nil || len(k.Verbs) == 0 {
			continue
		}
		for i := range k.Versions {
			v := &k.Versions[i]
			w.kind, w.version = k, v
			w.walk(reflect.TypeOf(k.NewObject(v)).Elem(), nil, nil)
		}
	}
	if len(w.found) < 500 {
		t.Fatalf("only %d lists and maps", len(w.found))
	}
	return w.found
}

type fieldWalker struct {
	kind    *kind.Kind
	version *kind.Version
	seen    map[string]bool
	found   []growingField
}

func (w *fieldWalker) walk(t reflect.Type, path []string, steps []reflect.Type) {
	if t.Kind() != reflect.Struct || isScalarType(t) || slices.Contains(steps, t) {
		return
	}
	steps = append(slices.Clone(steps), t)
	for f := range jsonFieldsOf(t) {
		at := append(slices.Clone(path), f.name)
		typ := dereferenced(f.typ)
		if isScalarType(typ) {
			continue
		}
		switch typ.Kind() {
		case reflect.Struct:
			w.walk(typ, at, steps)
		case reflect.Slice:
			w.add(f, at, steps)
			w.walk(dereferenced(typ.Elem()), append(at, "0"), append(steps, typ))
		case reflect.Map:
			w.add(f, at, steps)
			w.walk(dereferenced(typ.Elem()), append(at, mapKey), append(steps, typ))
		}
	}
}

func (w *fieldWalker) add(f jsonField, path []string, steps []reflect.Type) {
	owner := steps[len(steps)-1]
	name := owner.String() + "." + f.name
	first := !w.seen[name]
	if owner == reflect.TypeFor[corev1.PodSpec]() || len(path) == 2 && path[0] == "metadata" {
		name += " of " + w.kind.Plural
	}
	if w.seen[name] {
		return
	}
	w.seen[name], w.seen[owner.String()+"."+f.name] = true, true
	w.found = append(w.found, growingField{
		kind: w.kind, version: w.version, path: path, steps: slices.Clone(steps), typ: dereferenced(f.typ),
		strategy: f.tag.Get("patchStrategy"), mergeKey: f.tag.Get("patchMergeKey"), first: first,
	})
}

type jsonField struct {
	name      string
	typ       reflect.Type
	omitEmpty bool
	tag       reflect.StructTag
}

func jsonFieldsOf(t reflect.Type) func(yield func(jsonField) bool) {
	return func(yield func(jsonField) bool) {
		for i := range t.NumField() {
			f := t.Field(i)
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case f.Anonymous && name == "":
				for inner := range jsonFieldsOf(f.Type) {
					if !yield(inner) {
						return
					}
				}
			case name == "" || name == "-":
			case !yield(jsonField{name: name, typ: f.Type, omitEmpty: strings.Contains(options, "omitempty"), tag: f.Tag}):
				return
			}
		}
	}
}

func dereferenced(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

var scalarSamples = map[reflect.Type]any{
	reflect.TypeFor[metav1.Time]():            "2024-01-01T00:00:00Z",
	reflect.TypeFor[metav1.MicroTime]():       "2024-01-01T00:00:00.000000Z",
	reflect.TypeFor[metav1.Duration]():        "1s",
	reflect.TypeFor[apiresource.Quantity]():   "1",
	reflect.TypeFor[intstr.IntOrString]():     80,
	reflect.TypeFor[runtime.RawExtension]():   map[string]any{"kind": "K", "apiVersion": "v1"},
	reflect.TypeFor[metav1.FieldsV1]():        map[string]any{"f:data": map[string]any{}},
	reflect.TypeFor[corev1.Protocol]():        "TCP",
	reflect.TypeFor[corev1.ConditionStatus](): "True",
	reflect.TypeFor[corev1.TaintEffect]():     "NoSchedule",
}

// isScalarType reports whether a type is encoded as a whole.
func isScalarType(t reflect.Type) bool {
	_, ok := scalarSamples[t]
	return ok || t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8
}

// sample is the i-th value of a type as JSON: of a struct only what is required, and what identifies an item of a list.
func sample(t reflect.Type, i int, mergeKey string) any {
	t = dereferenced(t)
	if scalar, ok := scalarSamples[t]; ok {
		return scalar
	}
	switch t.Kind() {
	case reflect.String:
		return fmt.Sprintf("n-%05d", i)
	case reflect.Bool:
		return true
	case reflect.Struct:
		object := map[string]any{}
		for f := range jsonFieldsOf(t) {
			if !f.omitEmpty || f.name == mergeKey {
				object[f.name] = sample(f.typ, i, "")
			}
		}
		return object
	case reflect.Slice:
		if isScalarType(t) {
			return "YQ=="
		}
		return []any{sample(t.Elem(), i, "")}
	case reflect.Map:
		return map[string]any{fmt.Sprintf("key-%d", i): sample(t.Elem(), i, "")}
	}
	return i + 1
}

// variants of the items of a grown field.
type variant int

const (
	distinct variant = iota
	equal            // all items of a list are equal; not for maps
)

// items are n items of the field, in the given order; a map is returned as such.
func (f growingField) items(n int, v variant) any {
	if f.isMap() {
		m := make(map[string]any, n)
		for i := range n {
			m[fmt.Sprintf("key-%d", i)] = sample(f.typ.Elem(), i, "")
		}
		return m
	}
	list := make([]any, n)
	for i := range list {
		if v == equal && i > 0 {
			list[i] = list[0]
		} else {
			list[i] = f.item(i)
		}
	}
	return list
}

func (f growingField) item(i int) any {
	item := sample(f.typ.Elem(), i, f.mergeKey)
	switch f.path[len(f.path)-1] {
	case "finalizers":
		return "example.com/" + item.(string)
	case "ownerReferences":
		return map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": fmt.Sprintf("uid-%d", i)}
	case "managedFields":
		return map[string]any{"manager": fmt.Sprintf("m-%d", i), "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": map[string]any{"f:data": map[string]any{fmt.Sprintf("f:%d", i): map[string]any{}}}}
	case "containers", "initContainers", "ephemeralContainers":
		if object, ok := item.(map[string]any); ok && object["name"] != nil {
			maps.Copy(object, map[string]any{"image": "i", "terminationMessagePolicy": "File"})
		}
	}
	return item
}

// object is an object of the kind with the value at the field's path.
func (f growingField) object(value any) map[string]any {
	base := map[string]any{}
	if text := validObjects[f.kind.Plural]; text != "" {
		if err := json.Unmarshal([]byte(text), &base); err != nil {
			panic(err)
		}
	}
	base["apiVersion"], base["kind"] = f.version.GVK.GroupVersion().String(), f.version.GVK.Kind
	f.place(base, value)
	meta, _ := base["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
		base["metadata"] = meta
	}
	meta["name"] = "a"
	if f.kind.Namespaced {
		meta["namespace"] = "default"
	}
	return base
}

// place sets the value at the field's path and makes what is missing on the way.
func (f growingField) place(object map[string]any, value any) {
	t := f.steps[0]
	at := object
	for i, name := range f.path[:len(f.path)-1] {
		if name == "0" || name == mapKey {
			continue
		}
		for field := range jsonFieldsOf(t) {
			if field.name == name {
				t = dereferenced(field.typ)
				break
			}
		}
		next := f.path[i+1]
		switch t.Kind() {
		case reflect.Slice:
			t = dereferenced(t.Elem())
			list, _ := at[name].([]any)
			if len(list) == 0 {
				list = []any{sample(t, 0, "name")}
			}
			at[name], at = list, list[0].(map[string]any)
		case reflect.Map:
			t = dereferenced(t.Elem())
			item := map[string]any{}
			at[name], at = map[string]any{next: item}, item
		default:
			inner, _ := at[name].(map[string]any)
			if inner == nil {
				inner, _ = sample(t, 0, "").(map[string]any)
			}
			at[name], at = inner, inner
		}
	}
	at[f.path[len(f.path)-1]] = value
}

const validPodSpec = `{"containers":[{"name":"c","image":"i"}]}`

const validTemplate = `{"metadata":{"labels":{"app":"a"}},"spec":` + validPodSpec + `}`

const validWorkload = `{"spec":{"selector":{"matchLabels":{"app":"a"}},"template":` + validTemplate + `}}`

// validObjects are smallest valid objects of kinds that have required fields, so that grown ones pass as many checks as possible.
var validObjects = map[string]string{
	"pods": `{"spec":` + validPodSpec + `}`, "podtemplates": `{"template":` + validTemplate + `}`,
	"replicationcontrollers": `{"spec":{"selector":{"app":"a"},"template":` + validTemplate + `}}`,
	"deployments":            validWorkload, "replicasets": validWorkload, "daemonsets": validWorkload, "statefulsets": validWorkload,
	"jobs":                     `{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`,
	"cronjobs":                 `{"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}`,
	"services":                 `{"spec":{"clusterIP":"None","ports":[{"port":80}]}}`,
	"persistentvolumeclaims":   `{"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1"}}}}`,
	"persistentvolumes":        `{"spec":{"accessModes":["ReadWriteOnce"],"capacity":{"storage":"1"},"hostPath":{"path":"/a"}}}`,
	"endpointslices":           `{"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"]}]}`,
	"horizontalpodautoscalers": `{"spec":{"maxReplicas":2,"scaleTargetRef":{"kind":"Deployment","name":"a","apiVersion":"apps/v1"}}}`,
	"poddisruptionbudgets":     `{"spec":{"selector":{"matchLabels":{"app":"a"}}}}`,
	"rolebindings":             `{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"a"}}`,
	"clusterrolebindings":      `{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"a"}}`,
	"storageclasses":           `{"provisioner":"a"}`, "runtimeclasses": `{"handler":"a"}`, "priorityclasses": `{"value":1}`,
	"volumeattributesclasses": `{"driverName":"a"}`, "csidrivers": `{"spec":{}}`, "csinodes": `{"spec":{"drivers":[]}}`,
	"volumeattachments": `{"spec":{"attacher":"a","nodeName":"a","source":{"persistentVolumeName":"a"}}}`,
	"ingresses":         `{"spec":{"defaultBackend":{"service":{"name":"a","port":{"number":80}}}}}`,
}
