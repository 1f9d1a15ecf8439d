package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"skiff/internal/api"
)

// resourceNamesAllowed are the names of resources that product files of internal/apiserver may contain, with the reason. Everything
// else about a resource belongs to its Kind.
var resourceNamesAllowed = map[string]string{
	"request.go namespaces": "a namespace is part of the path of every namespaced resource",
}

// TestAPIServerNamesNoResource checks that files directly in internal/apiserver contain no plural and no kind name of a resource
// as a string literal: the server treats all kinds alike and reads what is particular to one from its Kind.
func TestAPIServerNamesNoResource(t *testing.T) {
	names := map[string]bool{}
	for _, k := range api.Named() {
		names[k.Plural] = true
		names[k.GVK.Kind] = true
	}
	if !names["pods"] || !names["Pod"] || !names["serviceaccounts"] {
		t.Fatalf("the Kind table has only %d names", len(names))
	}
	files, err := filepath.Glob("../apiserver/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files of the API server: %v", err)
	}
	used := map[string]bool{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, found := range literals(t, path) {
			// "pods/log" names a resource too.
			name, _, _ := strings.Cut(found.text, "/")
			if !names[name] {
				continue
			}
			exception := filepath.Base(path) + " " + name
			if resourceNamesAllowed[exception] == "" {
				t.Errorf("%s names the resource %q: put what is particular to it into its Kind", found.position, name)
			}
			used[exception] = true
		}
	}
	for exception := range resourceNamesAllowed {
		if !used[exception] {
			t.Errorf("the exception %q is not needed any more", exception)
		}
	}
}

type literal struct {
	text     string
	position token.Position
}

// literals returns the string literals of a file.
func literals(t *testing.T, path string) (all []literal) {
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				all = append(all, literal{text, files.Position(lit.Pos())})
			}
		}
		return true
	})
	return all
}
