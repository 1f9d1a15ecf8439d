package customresource

import (
	"encoding/json"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"
)

// stored is the stored text of an object of usual size.
func stored(t testing.TB) []byte {
	obj := cronTab(t, `{metadata: {name: a, namespace: ns, uid: 0a1b2c3d-0000-4000-8000-000000000000, generation: 3, creationTimestamp: "2026-01-01T00:00:00Z", labels: {app: x, tier: back}, annotations: {note: text},
		managedFields: [{manager: kubectl, operation: Apply, apiVersion: stable.example.com/v1, time: "2026-01-01T00:00:00Z", fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:schedule": {}, "f:parts": {}}}}]}}`)
	parts := make([]any, 20)
	for i := range parts {
		parts[i] = map[string]any{"name": fmt.Sprintf("part-%d", i), "count": int64(i), "image": "registry.example.com/library/image:v1"}
	}
	obj.Object["spec"] = map[string]any{"schedule": "* * * * *", "parts": parts}
	text, err := json.Marshal(obj.Object)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

const benchmarkSchema = `{type: object, properties: {schedule: {type: string}, suspend: {type: boolean, default: false},
	parts: {type: array, items: {type: object, properties: {name: {type: string}, image: {type: string}, count: {type: integer}, policy: {type: string, default: Always}}}}}}`

// BenchmarkRead is what the first reader of an object pays: decoding, pruning, defaults, encoding.
func BenchmarkRead(b *testing.B) {
	k := newKind(b, oneVersion(b, benchmarkSchema), nil)
	written := &unstructured.Unstructured{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(stored(b), &written.Object); err != nil {
		b.Fatal(err)
	}
	k.SetDefaults(&k.Versions[0], written)
	text, err := json.Marshal(written.Object)
	if err != nil {
		b.Fatal(err)
	}
	for _, step := range []struct {
		name  string
		steps int
	}{{"decode", 1}, {"and prune", 2}, {"and encode", 3}} {
		b.Run(step.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				u := &unstructured.Unstructured{}
				if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &u.Object); err != nil {
					b.Fatal(err)
				}
				if step.steps > 1 {
					if err := k.Custom.FromStore(u); err != nil {
						b.Fatal(err)
					}
				}
				if step.steps > 2 {
					if _, err := json.Marshal(u.Object); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// BenchmarkValidate is the validation of a write.
func BenchmarkValidate(b *testing.B) {
	k := newKind(b, oneVersion(b, benchmarkSchema), nil)
	u := &unstructured.Unstructured{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(stored(b), &u.Object); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if errs := k.Validate(request, u, nil); len(errs) > 0 {
			b.Fatal(errs)
		}
	}
}
