package main

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
)

// commentLines are the lines of a doc comment, without the slashes.
func commentLines(doc *ast.CommentGroup) []string {
	if doc == nil {
		return nil
	}
	return strings.Split(strings.TrimRight(doc.Text(), "\n"), "\n")
}

// markers are the +name=value lines of a comment.
func markers(lines []string) map[string][]string {
	found := map[string][]string{}
	for _, line := range lines {
		if rest, ok := strings.CutPrefix(strings.Trim(line, " "), "+"); ok {
			name, value, _ := strings.Cut(rest, "=")
			found[name] = append(found[name], value)
		}
	}
	return found
}

// description turns comment lines into text: lines of a paragraph are joined, indented lines and paragraphs kept, markers
// and TODO lines dropped, and everything after --- is dropped too.
func description(lines []string) string {
	out := ""
	dropSeparator := func() { out = out[:max(0, len(out)-1)] }
	for _, line := range lines {
		if line == "---" {
			break
		}
		line = strings.TrimRight(line, " ")
		first := strings.TrimLeft(line, " ")
		switch {
		case line == "":
			dropSeparator()
			out += "\n\n"
		case strings.HasPrefix(first, "TODO"), strings.HasPrefix(first, "+"):
		case line[0] == ' ' || line[0] == '\t':
			dropSeparator()
			out += "\n" + line + "\n"
		default:
			out += line + " "
		}
	}
	return strings.TrimSpace(out)
}

// extension is a marker that becomes an extension of the schema.
type extension struct {
	name string
	list bool
}

var extensions = map[string]extension{
	"patchMergeKey": {name: "x-kubernetes-patch-merge-key"},
	"patchStrategy": {name: "x-kubernetes-patch-strategy"},
	"listMapKey":    {name: "x-kubernetes-list-map-keys", list: true},
	"listType":      {name: "x-kubernetes-list-type"},
	"mapType":       {name: "x-kubernetes-map-type"},
	"structType":    {name: "x-kubernetes-map-type"},
}

// addExtensions adds the extensions of a comment's markers to a schema.
func addExtensions(schema map[string]any, lines []string) error {
	for marker, values := range markers(lines) {
		if strings.HasPrefix(marker, "k8s:validation:") || marker == "validations" {
			return fmt.Errorf("marker +%s is not supported", marker)
		}
		e, ok := extensions[marker]
		if !ok {
			continue
		}
		if e.list || len(values) > 1 {
			schema[e.name] = values
		} else {
			schema[e.name] = values[0]
		}
	}
	return nil
}

type enumValue struct{ value, line, comment string }

var spaces = regexp.MustCompile(`\s+`)

// enum returns the values of a +enum string type and the lines that describe them; nil for other types.
func (s *sources) enum(t *goType) (values, lines []string, err error) {
	if t.kind == pointer {
		t = t.elem
	}
	if t.kind != named || markers(t.decl.doc)["enum"] == nil {
		return nil, nil, nil
	}
	if ident, ok := t.decl.expr.(*ast.Ident); !ok || ident.Name != "string" {
		return nil, nil, nil
	}
	var all []enumValue
	for _, c := range t.decl.pkg.consts {
		if c.typeName != t.decl.name {
			continue
		}
		value, err := s.valueOf(c)
		if err != nil {
			return nil, nil, fmt.Errorf("constant %s: %w", c.name, err)
		}
		comment := strings.Join(c.doc, " ")
		text := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(comment), c.name))
		v := enumValue{value: value, comment: comment,
			line: fmt.Sprintf(" - `%q` %s", value, spaces.ReplaceAllString(text, " "))}
		i := slices.IndexFunc(all, func(e enumValue) bool { return e.value == value })
		switch {
		case i < 0:
			all = append(all, v)
		case len(all[i].comment) < len(v.comment) || len(all[i].comment) == len(v.comment) && all[i].comment > v.comment:
			all[i] = v
		}
	}
	for _, v := range all {
		values = append(values, v.value)
		lines = append(lines, v.line)
	}
	slices.Sort(values)
	slices.Sort(lines)
	if lines != nil {
		lines = append([]string{"", "Possible enum values:"}, lines...)
	}
	return values, lines, nil
}
