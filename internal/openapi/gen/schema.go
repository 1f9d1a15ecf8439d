package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/token"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// simple are the Go types that correspond to an OpenAPI type and format, and their zero values.
var simple = map[string]struct {
	typ, format string
	zero        any
}{
	"uint": {"integer", "int32", 0}, "uint8": {"integer", "byte", 0}, "uint16": {"integer", "int32", 0},
	"uint32": {"integer", "int64", 0}, "uint64": {"integer", "int64", 0}, "int": {"integer", "int32", 0},
	"int8": {"integer", "byte", 0}, "int16": {"integer", "int32", 0}, "int32": {"integer", "int32", 0},
	"int64": {"integer", "int64", 0}, "byte": {"integer", "byte", 0}, "float64": {"number", "double", 0},
	"float32": {"number", "float", 0}, "bool": {"boolean", "", false}, "time.Time": {"string", "date-time", ""},
	"string": {"string", "", ""}, "[]byte": {"string", "byte", ""}, "interface{}": {"object", "", nil},
}

type groupVersion struct{ group, version string }

// generator makes the definitions of types and of the types they refer to.
type generator struct {
	*sources
	definitions map[string]map[string]any
	queue       []*typeDecl
}

// all makes all definitions and returns the group versions by package of definitions.
func (g *generator) all() (map[string]groupVersion, error) {
	groups := map[string]groupVersion{}
	kinds := map[string][]map[string]any{}
	for _, path := range versions {
		p, err := g.load(path)
		if err != nil {
			return nil, err
		}
		gv := groupVersion{p.group, path[strings.LastIndex(path, "/")+1:]}
		if p.group == "" && path != "k8s.io/api/core/v1" {
			// The constant is in the package of the internal version.
			parent, err := g.load(path[:strings.LastIndex(path, "/")])
			if err != nil {
				return nil, err
			}
			gv.group = parent.group
		}
		groups[definitionPackage(path)] = gv
		for _, k := range p.kinds {
			if t := p.types[k]; t != nil && !unpublished[k] {
				g.want(t)
				kinds[definitionName(t)] = append(kinds[definitionName(t)], kindOf(gv, k))
			}
		}
	}
	meta, err := g.load(metaPackage)
	if err != nil {
		return nil, err
	}
	for _, name := range metaRoots {
		g.want(meta.types[name])
		if name != "Patch" {
			kinds[definitionName(meta.types[name])] = []map[string]any{kindOf(groupVersion{"", "v1"}, name)}
		}
	}
	version, err := g.load("k8s.io/apimachinery/pkg/version")
	if err != nil {
		return nil, err
	}
	g.want(version.types["Info"])
	for len(g.queue) > 0 {
		t := g.queue[0]
		g.queue = g.queue[1:]
		if err := g.define(t); err != nil {
			return nil, fmt.Errorf("%s.%s: %w", t.pkg.path, t.name, err)
		}
	}
	for name, list := range kinds {
		g.definitions[name]["x-kubernetes-group-version-kind"] = list
	}
	return groups, nil
}

func kindOf(gv groupVersion, kind string) map[string]any {
	return map[string]any{"group": gv.group, "version": gv.version, "kind": kind}
}

// want enqueues a type once.
func (g *generator) want(t *typeDecl) {
	name := definitionName(t)
	if _, ok := g.definitions[name]; !ok {
		g.definitions[name] = map[string]any{}
		g.queue = append(g.queue, t)
	}
}

// definitionPackage converts an import path to the package part of a definition's name: the host's labels reversed.
func definitionPackage(path string) string {
	parts := strings.Split(path, "/")
	host := strings.Split(parts[0], ".")
	slices.Reverse(host)
	return strings.Join(append(host, parts[1:]...), ".")
}

func definitionName(t *typeDecl) string { return definitionPackage(t.pkg.path) + "." + t.name }

// define writes the definition of a struct type.
func (g *generator) define(t *typeDecl) error {
	def := g.definitions[definitionName(t)]
	if text := description(t.doc); text != "" {
		def["description"] = text
	}
	if err := addExtensions(def, t.doc); err != nil {
		return err
	}
	if t.methods["OpenAPISchemaType"] != nil && t.methods["OpenAPISchemaFormat"] != nil {
		return ownSchema(def, t)
	}
	def["type"] = "object"
	properties := map[string]any{}
	required, err := g.members(t, properties, nil)
	if err != nil {
		return err
	}
	if len(properties) > 0 {
		def["properties"] = properties
	}
	if len(required) > 0 {
		def["required"] = required
	}
	unions, err := g.unions(t)
	if err != nil {
		return err
	}
	if len(unions) > 0 {
		def["x-kubernetes-unions"] = unions
	}
	return nil
}

// ownSchema evaluates the methods with which a type defines its own schema: they return literals.
func ownSchema(def map[string]any, t *typeDecl) error {
	types, err := returned(t, "OpenAPISchemaType")
	if err != nil {
		return err
	}
	format, err := returned(t, "OpenAPISchemaFormat")
	if err != nil {
		return err
	}
	if len(format) > 0 && format[0] != "" {
		def["format"] = format[0]
	}
	if t.methods["OpenAPIV3OneOfTypes"] != nil {
		oneOf, err := returned(t, "OpenAPIV3OneOfTypes")
		if err != nil {
			return err
		}
		var list []any
		for _, o := range oneOf {
			list = append(list, map[string]any{"type": o})
		}
		def["oneOf"] = list
	} else if len(types) == 1 {
		def["type"] = types[0]
	} else if len(types) > 1 {
		return fmt.Errorf("several types: %v", types)
	}
	return nil
}

// returned evaluates a method that consists of one return statement with string literals.
func returned(t *typeDecl, method string) ([]string, error) {
	body := t.methods[method].Body.List
	ret, ok := body[len(body)-1].(*ast.ReturnStmt)
	if !ok || len(body) != 1 || len(ret.Results) != 1 {
		return nil, fmt.Errorf("method %s is more than one return statement", method)
	}
	values := []ast.Expr{ret.Results[0]}
	if lit, ok := values[0].(*ast.CompositeLit); ok {
		values = lit.Elts
	}
	var out []string
	for _, v := range values {
		switch v := v.(type) {
		case *ast.BasicLit:
			text, err := strconv.Unquote(v.Value)
			if err != nil {
				return nil, err
			}
			out = append(out, text)
		case *ast.Ident: // nil
		default:
			return nil, fmt.Errorf("method %s returns %T", method, v)
		}
	}
	return out, nil
}

// member is a struct field in JSON.
type member struct {
	name      string // in JSON
	goName    string
	doc       []string
	tags      []string
	typ       *goType
	inline    bool
	omitEmpty bool
}

func (g *generator) membersOf(t *typeDecl) ([]member, error) {
	fields, owner, err := g.fields(t)
	if err != nil {
		return nil, err
	}
	var out []member
	for _, f := range fields {
		typ, err := g.resolve(owner, f.Type)
		if err != nil {
			return nil, err
		}
		m := member{doc: commentLines(f.Doc), typ: typ}
		tag, tagged := "", false
		if f.Tag != nil {
			text, err := strconv.Unquote(f.Tag.Value)
			if err != nil {
				return nil, err
			}
			tag, tagged = reflect.StructTag(text).Lookup("json")
		}
		if tag != "" {
			m.tags = strings.Split(tag, ",")
		}
		m.omitEmpty = len(m.tags) > 1 && slices.Contains(m.tags[1:], "omitempty")
		embedded := len(f.Names) == 0
		m.inline = embedded && tagged && (tag == "" || strings.HasPrefix(tag, ","))
		names := f.Names
		if embedded {
			names = []*ast.Ident{{Name: embeddedName(f.Type)}}
		}
		for _, n := range names {
			m.goName, m.name = n.Name, n.Name
			if len(m.tags) > 0 {
				m.name = m.tags[0]
			}
			if m.name == "-" {
				m.name = ""
			}
			out = append(out, m)
		}
	}
	return out, nil
}

func embeddedName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.StarExpr:
		return embeddedName(e.X)
	}
	return ""
}

// optional follows +optional and +required, and omitempty if there is neither.
func (m *member) optional() bool {
	found := markers(m.doc)
	if found["required"] != nil {
		return false
	}
	return found["optional"] != nil || m.omitEmpty
}

// members adds the properties of t, including those of inlined structs, and returns the required ones.
func (g *generator) members(t *typeDecl, properties map[string]any, required []string) ([]string, error) {
	members, err := g.membersOf(t)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		if slices.Contains(markers(m.doc)["k8s:openapi-gen"], "false") {
			continue
		}
		if m.inline {
			typ := m.typ
			for typ.kind == pointer {
				typ = typ.elem
			}
			if required, err = g.members(typ.decl, properties, required); err != nil {
				return nil, err
			}
			continue
		}
		if m.name == "" || !token.IsExported(m.goName) {
			continue
		}
		if !m.optional() {
			required = append(required, m.name)
		}
		if properties[m.name], err = g.property(t, &m); err != nil {
			return nil, fmt.Errorf("field %s: %w", m.name, err)
		}
	}
	return required, nil
}

func (g *generator) property(parent *typeDecl, m *member) (map[string]any, error) {
	schema := map[string]any{}
	if err := addExtensions(schema, m.doc); err != nil {
		return nil, err
	}
	_, lines, err := g.enum(m.typ)
	if err != nil {
		return nil, err
	}
	if text := description(append(slices.Clone(m.doc), lines...)); text != "" {
		schema["description"] = text
	}
	if len(m.tags) > 1 && m.tags[1] == "string" {
		schema["type"] = "string"
		return schema, nil
	}
	value, err := g.defaultOf(parent, m)
	if err != nil {
		return nil, err
	}
	if value != nil {
		schema["default"] = value
	}
	if err := g.addType(schema, m.typ); err != nil {
		return nil, err
	}
	// A reference has no siblings in OpenAPI v3.
	if ref, ok := schema["$ref"]; ok && len(schema) > 1 {
		delete(schema, "$ref")
		schema["allOf"] = []any{map[string]any{"$ref": ref}}
	}
	return schema, nil
}

// addType adds what the type itself determines: type and format, enum, items, or a reference.
func (g *generator) addType(schema map[string]any, t *goType) error {
	end := t
	for {
		next, err := g.underlying(end)
		if err != nil {
			return err
		}
		if next.kind != pointer {
			end = next
			break
		}
		end = next.elem
	}
	if s, ok := simple[end.simpleName()]; ok {
		schema["type"] = s.typ
		if s.format != "" {
			schema["format"] = s.format
		}
		values, _, err := g.enum(t)
		if values != nil {
			schema["enum"] = values
		}
		return err
	}
	switch end.kind {
	case named:
		g.want(end.decl)
		schema["$ref"] = "#/components/schemas/" + definitionName(end.decl)
	case slice:
		items := map[string]any{}
		schema["type"], schema["items"] = "array", items
		return g.addType(items, end.elem)
	case mapping:
		values := map[string]any{}
		schema["type"], schema["additionalProperties"] = "object", values
		return g.addType(values, end.elem)
	case anything:
	default:
		return fmt.Errorf("no schema for type %+v", end)
	}
	return nil
}

func (t *goType) simpleName() string {
	switch {
	case t.kind == slice && t.elem.kind == builtin && t.elem.name == "byte":
		return "[]byte"
	case t.kind == builtin || t.kind == foreign:
		return t.name
	}
	return ""
}

// defaultOf is the +default of the field or of its type; otherwise the zero value for fields that JSON always contains.
func (g *generator) defaultOf(parent *typeDecl, m *member) (any, error) {
	doc, pkg, t := m.doc, parent.pkg, m.typ
	for {
		if tag := markers(doc)["default"]; len(tag) > 0 {
			return defaultValue(pkg, tag[0])
		}
		if t == nil {
			break
		}
		doc = nil
		switch t.kind {
		case pointer:
			t = t.elem
		case named:
			doc, pkg = t.decl.doc, t.decl.pkg
			end, err := g.underlying(t)
			if err != nil {
				return nil, err
			}
			if end == t {
				t = nil
			} else {
				t = end
			}
		default:
			t = nil
		}
	}
	return g.zero(m.typ, m.omitEmpty)
}

// defaultValue parses a default: JSON, or ref(Name) for a constant.
func defaultValue(pkg *sourcePackage, tag string) (any, error) {
	if name, ok := strings.CutPrefix(tag, "ref("); ok {
		name = strings.TrimSuffix(name, ")")
		name = name[strings.LastIndex(name, ".")+1:]
		for _, c := range pkg.consts {
			if c.name == name {
				return c.value, nil
			}
		}
		return nil, fmt.Errorf("default refers to unknown constant %s", name)
	}
	var value any
	if err := json.Unmarshal([]byte(tag), &value); err != nil {
		return nil, fmt.Errorf("default %s: %w", tag, err)
	}
	return value, nil
}

func (g *generator) zero(t *goType, omitEmpty bool) (any, error) {
	for t.kind == named {
		if t.decl.methods["UnmarshalJSON"] != nil {
			return nil, nil
		}
		next, err := g.underlying(t)
		if err != nil {
			return nil, err
		}
		if next == t || next.kind == named {
			members, err := g.membersOf(next.decl)
			if err != nil {
				return nil, err
			}
			if fields, _, _ := g.fields(next.decl); len(members) == 1 && len(fields[0].Names) == 0 {
				t = members[0].typ
				continue
			}
			return map[string]any{}, nil
		}
		t = next
	}
	if t.kind == builtin && !omitEmpty {
		return simple[t.name].zero, nil
	}
	return nil, nil
}

// unions describes structs of which one field may be set, as marked by +union.
func (g *generator) unions(t *typeDecl) ([]any, error) {
	members, err := g.membersOf(t)
	if err != nil {
		return nil, err
	}
	var out []any
	if markers(t.doc)["union"] != nil {
		union, fields := map[string]any{}, map[string]any{}
		for _, m := range members {
			switch {
			case m.name == "" || m.inline:
			case markers(m.doc)["unionDiscriminator"] != nil:
				union["discriminator"] = m.name
			default:
				fields[m.name] = m.goName
			}
		}
		union["fields-to-discriminateBy"] = fields
		out = append(out, union)
	}
	for _, m := range members {
		if m.inline && m.typ.kind == named {
			inner, err := g.unions(m.typ.decl)
			if err != nil {
				return nil, err
			}
			out = append(out, inner...)
		}
	}
	return out, nil
}

// writeDefinition writes JSON with one property per line, so that a change of the API is a small diff.
func writeDefinition(w *bytes.Buffer, def map[string]any) error {
	w.WriteByte('{')
	for i, key := range slices.Sorted(mapKeys(def)) {
		if i > 0 {
			w.WriteString(",\n")
		}
		properties, ok := def[key].(map[string]any)
		if key != "properties" || !ok {
			if err := writePair(w, key, def[key]); err != nil {
				return err
			}
			continue
		}
		w.WriteString("\"properties\":{")
		for j, name := range slices.Sorted(mapKeys(properties)) {
			if j > 0 {
				w.WriteByte(',')
			}
			w.WriteByte('\n')
			if err := writePair(w, name, properties[name]); err != nil {
				return err
			}
		}
		w.WriteByte('}')
	}
	w.WriteString("}\n")
	return nil
}

func writePair(w *bytes.Buffer, key string, value any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return err
	}
	fmt.Fprintf(w, "%q:%s", key, bytes.TrimRight(text.Bytes(), "\n"))
	return nil
}
