package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents returns the documents of the tree by their path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md"} {
		files, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			texts[strings.TrimPrefix(file, "../../")] = string(data)
		}
	}
	if len(texts) < 20 {
		t.Fatalf("only %d documents found", len(texts))
	}
	return texts
}

// codePath finds what the documents quote as files and directories of the tree.
var codePath = regexp.MustCompile("`((?:cmd|internal|test|tools|docs|scripts|demo)/[A-Za-z0-9_./-]*)`")

func TestDocumentsNameRealCode(t *testing.T) {
	found := 0
	for file, text := range documents(t) {
		for _, m := range codePath.FindAllStringSubmatch(text, -1) {
			found++
			if _, err := os.Stat(filepath.Join("../..", m[1])); err != nil {
				t.Errorf("%s names %s, which does not exist", file, m[1])
			}
		}
	}
	if found < 10 {
		t.Fatalf("only %d paths found in the documents", found)
	}
}

var (
	code       = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	link       = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	notInSlugs = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestLinksResolve checks the links of documents to other files of the tree and to headings in them.
func TestLinksResolve(t *testing.T) {
	texts := documents(t)
	found := 0
	for file, text := range texts {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				continue // an address of another host
			}
			found++
			path := file
			if target != "" {
				path = filepath.Join(filepath.Dir(file), target)
			}
			if _, err := os.Stat(filepath.Join("../..", path)); err != nil {
				t.Errorf("%s links to %s, which does not exist", file, m[1])
			} else if anchor != "" && !slices.Contains(anchors(texts[path]), anchor) {
				t.Errorf("%s links to %s, but %s has no such heading", file, m[1], path)
			}
		}
	}
	if found < 50 {
		t.Fatalf("only %d links found", found)
	}
}

// anchors are the names by which the headings of a document are linked to.
func anchors(text string) []string {
	var names []string
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		names = append(names, strings.ReplaceAll(notInSlugs.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return names
}

// TestIndexListsDocuments checks that every document is in the index.
func TestIndexListsDocuments(t *testing.T) {
	texts := documents(t)
	index := texts["docs/README.md"]
	for file := range texts {
		if name, ok := strings.CutPrefix(file, "docs/"); ok && !strings.Contains(name, "/") && name != "README.md" && !strings.Contains(index, "]("+name+")") {
			t.Errorf("docs/README.md does not list %s", name)
		}
	}
}
