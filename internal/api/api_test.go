package api

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/yaml"

	"skiff/internal/kind"
)

// forEach runs a test on every kind in every served version.
func forEach(t *testing.T, f func(t *testing.T, k *kind.Kind, v *kind.Version, newObject func() kind.Object)) {
	kinds := Kinds(Settings{})
	if len(kinds) < 55 {
		t.Fatalf("only %d kinds", len(kinds))
	}
	for _, k := range kinds {
		for i := range k.Versions {
			v := &k.Versions[i]
			newObject := v.New
			if newObject == nil {
				newObject = k.New
			}
			t.Run(v.GVK.GroupVersion().String()+"."+v.GVK.Kind, func(t *testing.T) { f(t, k, v, newObject) })
		}
	}
}

// goldenDirs are where the modules of the API types have an example of every kind in every encoding.
func goldenDirs(t *testing.T) []string {
	t.Helper()
	var dirs []string
	for module, testdata := range map[string]string{"k8s.io/api": "testdata/HEAD", "k8s.io/apiextensions-apiserver": "pkg/apis/testdata/HEAD"} {
		out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, filepath.Join(strings.TrimSpace(string(out)), testdata))
	}
	return dirs
}

// goldenFile is the example of a kind, without its suffix. It need not exist.
func goldenFile(dirs []string, gvk schema.GroupVersionKind) string {
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, goldenName(gvk)+".json")); err == nil {
			return filepath.Join(dir, goldenName(gvk))
		}
	}
	return filepath.Join(dirs[0], goldenName(gvk))
}

// TestGoldenRoundTrip decodes every golden file of a served kind from JSON, YAML and protobuf and encodes it again: the
// three must be the same object, and nothing may be lost.
func TestGoldenRoundTrip(t *testing.T) {
	dirs := goldenDirs(t)
	encoder := protobuf.NewSerializer(Scheme(), Scheme())
	forEach(t, func(t *testing.T, k *kind.Kind, v *kind.Version, newObject func() kind.Object) {
		base := goldenFile(dirs, v.GVK)
		if _, err := os.Stat(base + ".json"); os.IsNotExist(err) && (len(k.Verbs) == 0 || v.GVK.Group == apiregistrationv1.GroupName) {
			return // stored, not served; or without examples: package apiregistration has its own
		}
		var forms []kind.Object
		for _, suffix := range []string{".json", ".yaml", ".pb"} {
			data, err := os.ReadFile(base + suffix)
			if err != nil {
				t.Fatal(err)
			}
			obj := newObject()
			switch suffix {
			case ".json":
				err = json.Unmarshal(data, obj)
			case ".yaml":
				err = yaml.UnmarshalStrict(data, obj)
			case ".pb":
				_, _, err = encoder.Decode(data, nil, obj)
			}
			if err != nil {
				t.Fatalf("%s: %v", suffix, err)
			}
			again := encodeAgain(t, suffix, encoder, obj)
			if !sameDocument(t, suffix, data, again) {
				t.Errorf("%s: written again it differs:\n%s\nwant:\n%s", suffix, again, data)
			}
			forms = append(forms, obj)
		}
		for i, obj := range forms[1:] {
			// Compared as documents: raw extensions keep their original white space.
			if !sameDocument(t, ".json", encodeAgain(t, ".json", encoder, forms[0]), encodeAgain(t, ".json", encoder, obj)) {
				t.Errorf("JSON and form %d are different objects", i+1)
			}
		}
	})
}

func goldenName(gvk schema.GroupVersionKind) string {
	group := gvk.Group
	if group == "" {
		group = "core"
	}
	return group + "." + gvk.Version + "." + gvk.Kind
}

func encodeAgain(t *testing.T, suffix string, encoder runtime.Encoder, obj kind.Object) []byte {
	t.Helper()
	switch suffix {
	case ".pb":
		var out bytes.Buffer
		if err := encoder.Encode(obj, &out); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	case ".yaml":
		out, err := yaml.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	out, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// sameDocument compares bytes for protobuf and content for the text forms.
func sameDocument(t *testing.T, suffix string, a, b []byte) bool {
	t.Helper()
	if suffix == ".pb" {
		return bytes.Equal(a, b)
	}
	var x, y any
	if err := yaml.Unmarshal(a, &x); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(b, &y); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}

// TestDefaultsAreIdempotent: defaulting a second time changes nothing, neither an empty object nor a full one.
func TestDefaultsAreIdempotent(t *testing.T) {
	dirs := goldenDirs(t)
	forEach(t, func(t *testing.T, k *kind.Kind, v *kind.Version, newObject func() kind.Object) {
		full := newObject()
		if data, err := os.ReadFile(goldenFile(dirs, v.GVK) + ".json"); err == nil {
			if err := json.Unmarshal(data, full); err != nil {
				t.Fatal(err)
			}
		}
		for _, obj := range []kind.Object{newObject(), full} {
			if v.Default != nil {
				v.Default(obj)
				once := obj.DeepCopyObject()
				if v.Default(obj); !equality.Semantic.DeepEqual(once, obj) {
					t.Errorf("the version's defaults change the object a second time")
				}
			}
			stored := obj
			if v.ToStorageVersion != nil {
				var err error
				if stored, err = v.ToStorageVersion(obj); err != nil {
					t.Fatal(err)
				}
			}
			if k.Default == nil {
				continue
			}
			k.Default(stored)
			once := stored.DeepCopyObject()
			if k.Default(stored); !equality.Semantic.DeepEqual(once, stored) {
				t.Errorf("defaults change the object a second time")
			}
		}
	})
}

// TestRowsFitColumns: a table row has as many cells as columns, for empty and for full objects, without panic.
func TestRowsFitColumns(t *testing.T) {
	dirs := goldenDirs(t)
	forEach(t, func(t *testing.T, k *kind.Kind, v *kind.Version, newObject func() kind.Object) {
		columns, row := k.Columns, k.Row
		if v.Row != nil {
			columns, row = v.Columns, v.Row
		}
		if row == nil {
			return
		}
		full := newObject()
		if data, err := os.ReadFile(goldenFile(dirs, v.GVK) + ".json"); err == nil {
			if err := json.Unmarshal(data, full); err != nil {
				t.Fatal(err)
			}
		}
		for _, obj := range []kind.Object{newObject(), full} {
			if v.Row == nil && v.ToStorageVersion != nil {
				var err error
				if obj, err = v.ToStorageVersion(obj); err != nil {
					t.Fatal(err)
				}
			}
			// Upstream's table of IPAddresses has an age cell without a column; clients get the same here.
			want := len(columns)
			if k.GVK.Kind == "IPAddress" {
				want++
			}
			if cells := row(obj, obj.GetCreationTimestamp().Time); len(cells) != want {
				t.Errorf("%d cells for %d columns", len(cells), len(columns))
			}
		}
	})
}

// TestValidationDoesNotPanic: validation of the golden objects, which are full of arbitrary values, never panics, on
// create and on update.
func TestValidationDoesNotPanic(t *testing.T) {
	dirs := goldenDirs(t)
	forEach(t, func(t *testing.T, k *kind.Kind, v *kind.Version, newObject func() kind.Object) {
		full := newObject()
		if data, err := os.ReadFile(goldenFile(dirs, v.GVK) + ".json"); err == nil {
			if err := json.Unmarshal(data, full); err != nil {
				t.Fatal(err)
			}
		}
		for _, obj := range []kind.Object{newObject(), full} {
			if v.ToStorageVersion != nil {
				var err error
				if obj, err = v.ToStorageVersion(obj); err != nil {
					t.Fatal(err)
				}
			}
			if k.Validate == nil {
				continue
			}
			req := &kind.Request{}
			k.Validate(req, obj.DeepCopyObject().(kind.Object), nil)
			if errs := k.Validate(req, obj.DeepCopyObject().(kind.Object), obj); obj == full && errs == nil && k.GVK.Kind == "Pod" {
				t.Error("a pod of arbitrary values was found valid")
			}
		}
	})
}
