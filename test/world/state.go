package world

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"skiff/internal/api"
)

// passing are the kinds that record history or are derived from other objects.
var passing = []string{"Event", "IPAddress"}

// random matches what differs between runs: times, allocated addresses, and random keys.
var random = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`\b10\.1\.\d+\.\d+\b`), "POD-IP"},
	{regexp.MustCompile(`\b10\.(9[6-9]|10\d|11[01])\.\d+\.\d+\b`), "CLUSTER-IP"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "GONE"}, // the UID of a deleted object
	{regexp.MustCompile(`"resourceVersion":"\d+"`), `"resourceVersion":""`},
	{regexp.MustCompile(`"(nodePort|healthCheckNodePort)":\d+`), `"$1":0`},
}

// Item is a decoded object.
type Item struct {
	Kind   string
	Object map[string]any
}

// State returns all objects, one line each, sorted: runs with the same result have equal states.
func (w *World) State() []string {
	w.T.Helper()
	var items []Item
	for _, k := range api.Kinds(api.Settings{}) {
		for _, v := range k.Versions {
			objs, _, err := w.local.List(w.Ctx, v.GVK.GroupVersion().WithResource(k.Plural), "", nil, nil)
			if apierrors.IsNotFound(err) || slices.Contains(passing, v.GVK.Kind) {
				continue // not stored in this version
			}
			if err != nil {
				w.T.Fatal(err)
			}
			for _, obj := range objs {
				object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
				if err != nil {
					w.T.Fatal(err)
				}
				w.settled(v.GVK.Kind, object)
				items = append(items, Item{v.GVK.Kind, object})
			}
		}
	}
	state, err := Normalize(items)
	if err != nil {
		w.T.Fatal(err)
	}
	return state
}

// Normalize formats objects, one line each, sorted, without what differs between runs: generated names, UIDs, revisions
// and times. It modifies the objects.
func Normalize(items []Item) ([]string, error) {
	var replace []string
	for _, item := range items {
		obj := unstructured.Unstructured{Object: item.Object}
		name := obj.GetName()
		if obj.GetGenerateName() != "" {
			name = obj.GetGenerateName() + "*"
			replace = append(replace, `"`+obj.GetName()+`"`, `"`+name+`"`)
		}
		if obj.GetUID() != "" {
			replace = append(replace, string(obj.GetUID()), fmt.Sprintf("<%s %s/%s>", item.Kind, obj.GetNamespace(), name))
		}
	}
	rename := strings.NewReplacer(replace...)
	state := make([]string, len(items))
	for i, item := range items {
		clean(item.Kind, item.Object)
		line := rename.Replace(encoded(item.Object))
		for _, r := range random {
			line = r.pattern.ReplaceAllString(line, r.instead)
		}
		// Lists are sorted after random values are removed.
		var object any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			return nil, fmt.Errorf("decode normalized %s: %w", item.Kind, err)
		}
		state[i] = item.Kind + " " + encoded(sorted(object))
	}
	slices.Sort(state)
	return state, nil
}

// settled fails if a controller has not observed the last generation of an object.
func (w *World) settled(kind string, object map[string]any) {
	meta, _ := object["metadata"].(map[string]any)
	status, _ := object["status"].(map[string]any)
	if observed, ok := status["observedGeneration"]; ok && observed != meta["generation"] {
		w.T.Errorf("%s %v: generation %v was observed of %v", kind, meta["name"], observed, meta["generation"])
	}
}

// clean removes what differs between runs.
func clean(kind string, object map[string]any) {
	meta, _ := object["metadata"].(map[string]any)
	for _, field := range []string{"resourceVersion", "managedFields", "generation", "creationTimestamp", "uid"} {
		delete(meta, field)
	}
	status, _ := object["status"].(map[string]any)
	delete(status, "observedGeneration")
	switch kind {
	case "Secret":
		for key := range asMap(object["data"]) {
			object["data"].(map[string]any)[key] = "SECRET"
		}
	case "CertificateSigningRequest":
		asMap(object["spec"])["request"] = "REQUEST"
		if status["certificate"] != nil {
			status["certificate"] = "CERTIFICATE"
		}
	case "Endpoints", "EndpointSlice":
		delete(asMap(meta["annotations"]), corev1.EndpointsLastChangeTriggerTime) // of the last change only
		if len(asMap(meta["annotations"])) == 0 {
			delete(meta, "annotations")
		}
	case "StorageVersionMigration":
		delete(status, "resourceVersion")
	case "HorizontalPodAutoscaler":
		delete(status, "desiredReplicas") // depends on metrics
	case "Pod":
		delete(asMap(object["spec"]), "nodeName") // the scheduler's choice
	case "Node":
		if spec := asMap(object["spec"]); spec["podCIDR"] != nil {
			spec["podCIDR"], spec["podCIDRs"] = "CIDR", "CIDR" // nodes get them in any order
		}
	}
}

func asMap(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// sorted sorts lists of objects, whose order has no meaning.
func sorted(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			v[key] = sorted(value)
		}
	case []any:
		for i := range v {
			v[i] = sorted(v[i])
		}
		slices.SortStableFunc(v, func(a, b any) int {
			if _, ok := a.(map[string]any); !ok {
				return 0 // lists of scalars keep their order
			}
			return cmp.Compare(encoded(a), encoded(b))
		})
	}
	return v
}

// encoded encodes a value that was decoded from JSON, which cannot fail.
func encoded(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}
