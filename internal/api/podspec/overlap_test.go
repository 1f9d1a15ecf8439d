package podspec

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
)

// TestOverlaps compares the tree of paths with a comparison of every pair.
func TestOverlaps(t *testing.T) {
	for seed := range 2000 {
		r := rand.New(rand.NewSource(int64(seed)))
		var files []volumeFile
		for range r.Intn(8) {
			var segments []string
			for range r.Intn(4) {
				segments = append(segments, []string{"a", "b", "ab", ""}[r.Intn(4)])
			}
			files = append(files, volumeFile{path: strings.Join(segments, "/")})
		}
		var want []string
		trimmed := slices.Clone(files)
		for i := range trimmed {
			file := &trimmed[i]
			file.path = strings.TrimRight(file.path, "/")
			for _, other := range trimmed[:i] {
				if file.path != "" && other.path != "" && (strings.HasPrefix(other.path+"/", file.path+"/") || strings.HasPrefix(file.path+"/", other.path+"/")) {
					want = append(want, fmt.Sprintf("volume %q (%s): overlapping paths: %s with %s", "v", "Secret", *file, other))
				}
			}
		}
		var w warner
		if w.overlaps("v", "Secret", slices.Clone(files)); !slices.Equal(w.texts, want) {
			t.Fatalf("%v: %q\nwant %q", files, w.texts, want)
		}
	}
}

func TestOverlapsAreBounded(t *testing.T) {
	var w warner
	w.overlaps("v", "Secret", slices.Repeat([]volumeFile{{path: "a/b"}}, 10000))
	if len(w.texts) != maxOverlaps {
		t.Errorf("%d warnings", len(w.texts))
	}
}
