package openapi

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

//go:generate go run ./gen

// file is one embedded file of definitions: those of a Go package, in most cases a group version. A file consists of
// blocks separated by empty lines: a comment, then for each definition a line with its name and its schema in JSON.
type file struct {
	group, version string
	hash           string
	text           *string

	split  sync.Once
	blocks map[string]string // name to JSON, pointing into text
}

const refPrefix = "#/components/schemas/"

// block returns the JSON of a definition as in the file, one property per line.
func (f *file) block(name string) (string, bool) {
	f.split.Do(func() {
		f.blocks = make(map[string]string)
		_, rest, _ := strings.Cut(*f.text, "\n\n")
		for block := range strings.SplitSeq(rest, "\n\n") {
			name, body, _ := strings.Cut(block, "\n")
			f.blocks[name] = body
		}
	})
	block, ok := f.blocks[name]
	return block, ok
}

// definition returns the OpenAPI v3 schema of a built-in definition as JSON.
func definition(name string) (string, bool) {
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 {
		return "", false
	}
	f := files[name[:dot]]
	if f == nil {
		return "", false
	}
	return f.block(name)
}

// packages maps a built-in group version to the package of its definitions.
var packages = sync.OnceValue(func() map[schema.GroupVersion]string {
	m := make(map[schema.GroupVersion]string, len(files))
	for pkg, f := range files {
		if f.version != "" {
			m[schema.GroupVersion{Group: f.group, Version: f.version}] = pkg
		}
	}
	return m
})

// Name is the name of a kind's definition. For kinds that are not built in it begins with the reversed labels of their group.
func Name(gvk schema.GroupVersionKind) string {
	if pkg, ok := packages()[gvk.GroupVersion()]; ok {
		return pkg + "." + gvk.Kind
	}
	labels := strings.Split(gvk.Group, ".")
	slices.Reverse(labels)
	return strings.Join(labels, ".") + "." + gvk.Version + "." + gvk.Kind
}

// Definitions parses a built-in definition and all that it refers to, by name. The caller may modify the result.
func Definitions(name string) (map[string]*spec.Schema, error) {
	texts := map[string]string{}
	if err := collect(texts, nil, name); err != nil {
		return nil, err
	}
	return parse(texts)
}

func parse(texts map[string]string) (map[string]*spec.Schema, error) {
	schemas := make(map[string]*spec.Schema, len(texts))
	for name, text := range texts {
		s := &spec.Schema{}
		if err := s.UnmarshalJSON([]byte(text)); err != nil {
			return nil, fmt.Errorf("parse definition %s: %w", name, err)
		}
		schemas[name] = s
	}
	return schemas, nil
}

// collect adds a definition and all that it refers to. Those of own take precedence over the built-in ones.
func collect(into, own map[string]string, name string) error {
	if _, ok := into[name]; ok {
		return nil
	}
	text, ok := own[name]
	if !ok {
		text, ok = definition(name)
	}
	if !ok {
		return fmt.Errorf("no definition of %s", name)
	}
	into[name] = text
	for rest := text; ; {
		// A description cannot contain this text: its quotes would be escaped.
		_, after, ok := strings.Cut(rest, `"$ref":"`+refPrefix)
		if !ok {
			return nil
		}
		ref, tail, _ := strings.Cut(after, `"`)
		if err := collect(into, own, ref); err != nil {
			return err
		}
		rest = tail
	}
}
