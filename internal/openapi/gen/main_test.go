package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The files in the tree must be up to date with the pinned API modules, and the output must be deterministic.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	first, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	second, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range first {
		if !bytes.Equal(content, second[name]) {
			t.Errorf("%s differs between two runs", name)
		}
		if len(content) >= 1<<20 {
			t.Errorf("%s is too large: %d bytes", name, len(content))
		}
		checkedIn, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(content, checkedIn) {
			t.Errorf("%s is out of date: run go generate ./internal/openapi", name)
		}
	}
	left, err := filepath.Glob("../definitions/*")
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != len(first)-1 {
		t.Errorf("definitions/ holds %d files, %d were generated", len(left), len(first)-1)
	}
}

func TestDescription(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"joined", []string{"One line", "and another."}, "One line and another."},
		{"markers and notes", []string{"Text.", "+optional", "TODO: more", " +listType=atomic"}, "Text."},
		{"paragraphs", []string{"First.", "", "Second."}, "First.\n\nSecond."},
		{"example", []string{"Example:", "\tcode", "after"}, "Example:\n\tcode\nafter"},
		{"for developers", []string{"Public.", "---", "private"}, "Public."},
		{"nothing", nil, ""},
	} {
		if got := description(c.lines); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestMarkers(t *testing.T) {
	got := markers([]string{"text", "+listMapKey=port", "+listMapKey=protocol", "  +optional", "a+b=c"})
	if len(got) != 2 || len(got["listMapKey"]) != 2 || got["listMapKey"][1] != "protocol" || got["optional"][0] != "" {
		t.Errorf("got %v", got)
	}
	if err := addExtensions(map[string]any{}, []string{"+k8s:validation:maxLength=3"}); err == nil {
		t.Error("an unsupported marker must not be ignored")
	}
}

func TestNames(t *testing.T) {
	if got := definitionPackage("k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"); got != "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1" {
		t.Error(got)
	}
	if got := goName("io.k8s.apiextensions-apiserver.pkg.v1"); got != "apiextensionsApiserverPkgV1" {
		t.Error(got)
	}
}
