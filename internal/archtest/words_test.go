package archtest

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// banned lists words that Kubernetes, Go or Linux has another word for, and the word to use instead. docs/glossary.md has the terms that are
// skiff's own.
var banned = []struct {
	words   string // a regular expression for whole words, in lower case
	use     string
	comment bool // banned in comments too; otherwise the word has an ordinary meaning there
	part    bool // banned as a part of an identifier too: tooFewColumns is a good name, few is not
}{
	{words: `folders?`, use: "directory", comment: true, part: true},
	{words: `judge[sd]?|judging|judgement`, use: "validate", comment: true, part: true},
	{words: `neighbourhoods?`, use: "affinity or topology spread", comment: true, part: true},
	{words: `watchposts?|forsaken|crowds?|strangers?`, use: "the Kubernetes word", comment: true, part: true},
	{words: `flying`, use: "in-flight", comment: true, part: true},
	{words: `roads?|doors?`, use: "filter chain, handler or client", comment: true, part: true},
	{words: `mend(s|ed|ing)?`, use: "fix", comment: true, part: true},
	{words: `turns?`, use: "seat, queue or semaphore", part: true},
	{words: `looks?`, use: "sync, reconcile or get", part: true},
	{words: `near|beside|alone|among|quiet|even|few|fade`, use: "a name that says what it is"},
}

// goFiles calls f with every Go file of the tree and its content.
func goFiles(t *testing.T, f func(path string, source []byte)) {
	t.Helper()
	found := 0
	for _, dir := range []string{"cmd", "internal", "test", "tools", "runtime", "demo"} {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found++
			f(strings.TrimPrefix(path, "../../"), source)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 100 {
		t.Fatalf("only %d Go files found", found)
	}
}

// inIdentifier finds the words an identifier is made of.
var inIdentifier = regexp.MustCompile(`[A-Z]+[a-z0-9]*|[a-z0-9]+`)

var inText = regexp.MustCompile(`[A-Za-z]+`)

func TestVocabulary(t *testing.T) {
	patterns := make([]*regexp.Regexp, len(banned))
	for i, b := range banned {
		patterns[i] = regexp.MustCompile(`^(?:` + b.words + `)$`)
	}
	goFiles(t, func(path string, source []byte) {
		if strings.HasPrefix(path, "internal/archtest/") {
			return // it names them
		}
		files := token.NewFileSet()
		file := files.AddFile(path, -1, len(source))
		var s scanner.Scanner
		s.Init(file, source, nil, scanner.ScanComments)
		for {
			pos, tok, text := s.Scan()
			if tok == token.EOF {
				return
			}
			var words []string
			switch tok {
			case token.IDENT:
				if text != "LookPath" { // of os/exec
					words = inIdentifier.FindAllString(text, -1)
				}
			case token.COMMENT:
				words = inText.FindAllString(text, -1)
			}
			for i, b := range banned {
				for _, word := range words {
					matches := patterns[i].MatchString(strings.ToLower(word))
					if matches && (tok == token.IDENT && (b.part || len(words) == 1) || tok == token.COMMENT && b.comment) {
						t.Errorf("%s: %q in %s: use %s", files.Position(pos), word, strings.ToLower(tok.String()), b.use)
					}
				}
			}
		}
	})
}

// maxParameters bounds a function's parameters: what needs more takes a struct whose fields have names.
const maxParameters = 5

func TestParameterCount(t *testing.T) {
	goFiles(t, func(path string, source []byte) {
		if strings.HasSuffix(path, "_test.go") || !strings.HasPrefix(path, "internal/") && !strings.HasPrefix(path, "cmd/") {
			return
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, path, source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if f, ok := n.(*ast.FuncDecl); ok {
				if count := f.Type.Params.NumFields(); count > maxParameters {
					t.Errorf("%s: %s takes %d parameters", files.Position(f.Pos()), f.Name.Name, count)
				}
			}
			return true
		})
	})
}
