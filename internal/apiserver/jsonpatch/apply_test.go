package jsonpatch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// randomValue is a value whose objects and arrays nest at most depth deep.
func randomValue(r *rand.Rand, depth int) string {
	scalars := []string{"0", "-1.5e3", "true", "false", "null", `""`, `"a"`, `"a\/b~\u00e9\""`, `"é\\"`}
	kind := r.IntN(3)
	if depth == 0 || kind == 0 {
		return scalars[r.IntN(len(scalars))]
	}
	space := []string{"", " ", "\n\t"}[r.IntN(3)]
	var parts []string
	for range r.IntN(4) {
		value := space + randomValue(r, depth-1) + space
		if kind == 1 {
			value = space + randomKey(r) + space + ":" + value
		}
		parts = append(parts, value)
	}
	if kind == 1 {
		return "{" + strings.Join(parts, ",") + space + "}"
	}
	return "[" + strings.Join(parts, ",") + space + "]"
}

func randomKey(r *rand.Rand) string {
	return []string{`"a"`, `"b"`, `"a/b"`, `"m~n"`, `"é"`, `"\u0061"`, `""`}[r.IntN(7)]
}

// pathsIn are the paths of all values in a document.
func pathsIn(value any, path string) []string {
	paths := []string{path}
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			escaped := strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
			paths = append(paths, pathsIn(inner, path+"/"+escaped)...)
		}
	case []any:
		for i, inner := range value {
			paths = append(paths, pathsIn(inner, path+"/"+strconv.Itoa(i))...)
		}
	}
	return paths
}

// randomPath is a path that exists in a document, or one beside it.
func randomPath(r *rand.Rand, paths []string) string {
	path := paths[r.IntN(len(paths))]
	if r.IntN(3) == 0 {
		path += "/" + []string{"a", "b", "a~1b", "m~0n", "é", "", "0", "1", "-1", "-", "9", "x", "-9"}[r.IntN(13)]
	}
	return path
}

func randomPatch(r *rand.Rand, paths []string) string {
	var operations []string
	for range 1 + r.IntN(4) {
		op := []string{"add", "add", "remove", "replace", "move", "copy", "test", "other"}[r.IntN(7+r.IntN(20)/19)]
		fields := []string{fmt.Sprintf(`"op":%q`, op)}
		for name, value := range map[string]string{"path": quote(randomPath(r, paths)), "from": quote(randomPath(r, paths)), "value": randomValue(r, 2)} {
			switch {
			case r.IntN(50) == 0:
			case r.IntN(50) == 0 && name != "value":
				fields = append(fields, fmt.Sprintf(`%q:1`, name))
			default:
				fields = append(fields, fmt.Sprintf(`%q:%s`, name, value))
			}
		}
		operations = append(operations, "{"+strings.Join(fields, ",")+"}")
	}
	return "[" + strings.Join(operations, ",") + "]"
}

func quote(text string) string {
	quoted, _ := json.Marshal(text)
	return string(quoted)
}

// applyByLibrary applies a patch as upstream does. ok is false where the library fails in a way of its own: it panics, or takes a null that was
// added for something else than one that was there.
func applyByLibrary(patch Patch, text []byte) (patched []byte, err error, ok bool) {
	defer func() { ok = recover() == nil }()
	patched, err = patch.Apply(text)
	return patched, err, true
}

// Random patches have the same results and errors as with upstream's library.
func TestApplyLikeUpstream(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	applied, failed := 0, 0
	for range 20_000 {
		text := randomValue(r, 4)
		if text[0] != '{' && text[0] != '[' {
			continue
		}
		var decoded any
		if err := json.Unmarshal([]byte(text), &decoded); err != nil {
			t.Fatal(err)
		}
		patch, err := Decode([]byte(randomPatch(r, pathsIn(decoded, ""))))
		if err != nil {
			t.Fatal(err)
		}
		want, wantErr, ok := applyByLibrary(patch, []byte(text))
		got, err := Apply(patch, []byte(text))
		if !ok || addsNull(patch) {
			continue
		}
		same := err == nil && wantErr == nil && sameJSON(t, got, want) ||
			err != nil && wantErr != nil && strings.TrimSuffix(wantErr.Error(), ": %!w(<nil>)") == err.Error()
		if !same {
			printed, _ := json.Marshal(patch)
			t.Fatalf("seed %d: %s\npatched with %s\nis %s, %v\nwant %s, %v", seed, text, printed, got, err, want, wantErr)
		}
		if err == nil {
			applied++
		} else {
			failed++
		}
	}
	if applied < 1000 || failed < 1000 {
		t.Errorf("%d patches were applied and %d failed: too few to tell anything", applied, failed)
	}
}

// addsNull reports whether a patch has a null, or no value, and compares values. The library takes added nulls and others for different ones.
func addsNull(patch Patch) bool {
	hasNull, tests := false, false
	for _, op := range patch {
		value, ok := op["value"]
		hasNull = hasNull || !ok || value == nil || bytes.Contains(*value, []byte("null"))
		tests = tests || op.Kind() == "test"
	}
	return hasNull && tests
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var decoded [2]any
	for i, text := range [][]byte{a, b} {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		if err := decoder.Decode(&decoded[i]); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return reflect.DeepEqual(decoded[0], decoded[1])
}

// A null that was added is equal to one.
func TestNulls(t *testing.T) {
	for _, patch := range []string{
		`[{"op":"add","path":"/a/b","value":null},{"op":"test","path":"/a","value":{"b":null,"c":[null]}}]`,
		`[{"op":"add","path":"/a/b"},{"op":"test","path":"/a/b","value":null},{"op":"test","path":"/a/c","value":[null]}]`,
		`[{"op":"test","path":"/missing","value":null},{"op":"test","path":"","value":{"a":{"c":[null]}}}]`,
	} {
		operations, err := Decode([]byte(patch))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Apply(operations, []byte(`{"a":{"c":[null]}}`)); err != nil {
			t.Errorf("%s: %s, %v", patch, got, err)
		}
	}
}

// operations repeats an operation; %d in it becomes a random number below n.
func operations(t *testing.T, count, n int, format string) Patch {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	all := make([]string, count)
	for i := range all {
		all[i] = strings.ReplaceAll(format, "%d", fmt.Sprint(r.IntN(n)))
	}
	patch, err := Decode([]byte("[" + strings.Join(all, ",") + "]"))
	if err != nil {
		t.Fatal(err)
	}
	return patch
}

// steps applies a patch and counts what its operations on arrays go through.
func steps(t *testing.T, patch Patch, text string) int {
	t.Helper()
	d, err := newDocument([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range patch {
		if err := d.apply(op); err != nil {
			t.Fatal(err)
		}
	}
	return d.steps
}

// As many operations as a patch may have, on an array, go through a part of it each, which hardly grows with the array.
func TestOperationsOnLongArrays(t *testing.T) {
	const small, factor, most = 50_000, 4, 3000
	for name, format := range map[string]string{
		"add at the beginning": `{"op":"add","path":"/a/0","value":1}`, "add at the end": `{"op":"add","path":"/a/-","value":1}`, "add": `{"op":"add","path":"/a/%d","value":1}`,
		"remove from the beginning": `{"op":"remove","path":"/a/0"}`, "remove": `{"op":"remove","path":"/a/%d"}`, "move": `{"op":"move","from":"/a/%d","path":"/a/0"}`,
		"copy": `{"op":"copy","from":"/a/%d","path":"/a/0"}`, "replace": `{"op":"replace","path":"/a/%d","value":2}`, "test": `{"op":"test","path":"/a/%d","value":0}`,
	} {
		patch := operations(t, MaxOperations, small-MaxOperations, format)
		var work [2]int
		for i, n := range []int{small, small * factor} {
			work[i] = steps(t, patch, `{"a":[0`+strings.Repeat(",0", n-1)+`]}`)
		}
		if work[1] > most*MaxOperations || work[1] > factor*work[0] {
			t.Errorf("%s: %d steps for each operation with %d elements, and %d with %d", name, work[0]/MaxOperations, small, work[1]/MaxOperations, small*factor)
		}
	}
}

// A path through a deep document does not parse what is below again at every level.
func TestDeepDocument(t *testing.T) {
	const depth = 9_000
	text := strings.Repeat(`{"a":`, depth) + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat("}", depth)
	path := quote(strings.Repeat("/a", depth))
	s, err := newSource([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	n, _ := s.value(0)
	d := &document{}
	d.root = n.expand(d)
	if err := d.apply(jsonpatch.Operation{"op": raw(`"replace"`), "path": raw(path), "value": raw("1")}); err != nil {
		t.Fatal(err)
	}
	if got, want := string(d.root.appendTo(nil)), strings.Repeat(`{"a":`, depth)+"1"+strings.Repeat("}", depth); got != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
	if s.read > 3*len(text) {
		t.Errorf("%d characters were read of a document of %d", s.read, len(text))
	}
}

func raw(text string) *json.RawMessage { return (*json.RawMessage)(new([]byte(text))) }

// Copies of a document into itself cannot make it deeper than what can be decoded.
func TestDepthIsBounded(t *testing.T) {
	path := quote(strings.Repeat("/a", maxDepth+1))
	patch := Patch{{"op": raw(`"add"`), "path": raw(path), "value": raw("1")}}
	text := strings.Repeat(`{"a":`, 9000) + "{}" + strings.Repeat("}", 9000)
	if _, err := Apply(patch, []byte(text)); err == nil || !strings.Contains(err.Error(), "doc is missing path") {
		t.Errorf("error %.100v", err)
	}
}
