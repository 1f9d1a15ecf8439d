package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// codePath finds what the documents quote as files and directories of the tree.
var codePath = regexp.MustCompile("`((?:cmd|internal|test|tools|docs|scripts|demo)/[A-Za-z0-9_./-]*)`")

func TestDocumentsNameRealCode(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	decisions, err := filepath.Glob("../../docs/decisions/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range append(append(files, decisions...), "../../README.md") {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range codePath.FindAllStringSubmatch(string(data), -1) {
			found++
			if _, err := os.Stat(filepath.Join("../..", m[1])); err != nil {
				t.Errorf("%s names %s, which does not exist", filepath.Base(file), m[1])
			}
		}
	}
	if found < 10 {
		t.Fatalf("only %d paths found in the documents", found)
	}
}
