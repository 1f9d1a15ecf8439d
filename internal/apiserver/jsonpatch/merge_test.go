package jsonpatch

import (
	"math/rand/v2"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// TestMergeLikeUpstream merges random patches into random objects with the library and with our own code.
func TestMergeLikeUpstream(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	merged := 0
	for range 20_000 {
		document := `{"a":` + randomValue(r, 3) + `,"b":` + randomValue(r, 3) + `}`
		patch := randomValue(r, 4)
		want, wantErr := jsonpatch.MergePatch([]byte(document), []byte(patch))
		got, badPatch, err := Merge([]byte(document), []byte(patch))
		if err != wantErr || badPatch != (wantErr == jsonpatch.ErrBadJSONPatch) {
			t.Fatalf("%s + %s: %v, want %v", document, patch, err, wantErr)
		}
		if err == nil {
			merged++
			if !sameJSON(t, got, want) {
				t.Fatalf("%s + %s\n%s, want\n%s", document, patch, got, want)
			}
		}
	}
	if merged < 1000 {
		t.Errorf("only %d patches were merged", merged)
	}
	for _, patch := range []string{"", "{", `{"a":}`, "null", "1", `"a"`} {
		_, wantErr := jsonpatch.MergePatch([]byte(`{}`), []byte(patch))
		if _, badPatch, err := Merge([]byte(`{}`), []byte(patch)); err != wantErr || !badPatch {
			t.Errorf("%q: %v, want %v", patch, err, wantErr)
		}
	}
}

// TestDeepMerge: every byte of a deep patch is read a few times, not once for every level.
func TestDeepMerge(t *testing.T) {
	const levels, leaf = 5000, 1 << 20
	patch := strings.Repeat(`{"a":`, levels) + `"` + strings.Repeat("x", leaf) + `"` + strings.Repeat("}", levels)
	target := strings.Repeat(`{"a":`, levels) + `1` + strings.Repeat("}", levels)
	for _, text := range []string{`{}`, target} {
		merged, _, err := Merge([]byte(text), []byte(patch))
		if err != nil || string(merged) != patch {
			t.Errorf("%d bytes: %v", len(merged), err)
		}
	}
	changes, err := parse([]byte(patch))
	if err != nil {
		t.Fatal(err)
	}
	(&document{}).pruneNulls(changes)
	if changes.source.read > 3*len(patch) {
		t.Errorf("%d bytes of %d were read", changes.source.read, len(patch))
	}
}
