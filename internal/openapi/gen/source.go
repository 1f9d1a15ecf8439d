package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// sources parses packages of the API modules on first use.
type sources struct {
	dirs     map[string]string
	versions map[string]string
	packages map[string]*sourcePackage
}

type sourcePackage struct {
	path   string
	types  map[string]*typeDecl
	consts []constant
	kinds  []string // registered with a scheme
	group  string   // GroupName, where the package has one
}

// typeDecl is a type declaration with what is needed to resolve the names in it.
type typeDecl struct {
	pkg     *sourcePackage
	imports map[string]string
	name    string
	doc     []string
	expr    ast.Expr
	methods map[string]*ast.FuncDecl
}

// constant is a string constant with an explicit type. Its value may be another constant.
type constant struct {
	name, value           string
	typeName              string
	doc                   []string
	fromPackage, fromName string
}

func newSources() (*sources, error) {
	dirs, versions, err := moduleDirs()
	if err != nil {
		return nil, err
	}
	return &sources{dirs: dirs, versions: versions, packages: map[string]*sourcePackage{}}, nil
}

// versionOf returns the module and version of a package of definitions.
func (s *sources) versionOf(definitions string) string {
	for path := range s.packages {
		if definitionPackage(path) == definitions {
			for _, module := range modules {
				if strings.HasPrefix(path, module+"/") {
					return path + " " + s.versions[module]
				}
			}
		}
	}
	return definitions
}

// load parses the hand-written files of a package.
func (s *sources) load(path string) (*sourcePackage, error) {
	if p := s.packages[path]; p != nil {
		return p, nil
	}
	var dir string
	for module, root := range s.dirs {
		if rest, ok := strings.CutPrefix(path, module+"/"); ok {
			dir = filepath.Join(root, filepath.FromSlash(rest))
		}
	}
	if dir == "" {
		return nil, fmt.Errorf("package %s is in none of the API modules", path)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	p := &sourcePackage{path: path, types: map[string]*typeDecl{}}
	s.packages[path] = p
	var methods []*ast.FuncDecl
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.Contains(name, "generated") {
			continue
		}
		if ok, err := build.Default.MatchFile(dir, name); err != nil || !ok {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", path, err)
		}
		methods = append(methods, p.addFile(f)...)
	}
	for _, m := range methods {
		if t := p.types[receiver(m)]; t != nil {
			t.methods[m.Name.Name] = m
		}
	}
	return p, nil
}

// addFile adds the declarations of a file and returns its methods.
func (p *sourcePackage) addFile(f *ast.File) (methods []*ast.FuncDecl) {
	imports := map[string]string{}
	for _, i := range f.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		name := path[strings.LastIndex(path, "/")+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		imports[name] = path
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				methods = append(methods, d)
			}
			p.addRegistered(d)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					doc := s.Doc
					if doc == nil && !d.Lparen.IsValid() {
						doc = d.Doc
					}
					p.types[s.Name.Name] = &typeDecl{pkg: p, imports: imports, name: s.Name.Name, doc: commentLines(doc),
						expr: s.Type, methods: map[string]*ast.FuncDecl{}}
				case *ast.ValueSpec:
					p.addConstants(imports, d, s)
				}
			}
		}
	}
	return methods
}

func (p *sourcePackage) addConstants(imports map[string]string, d *ast.GenDecl, s *ast.ValueSpec) {
	if d.Tok != token.CONST {
		return
	}
	doc := s.Doc
	if doc == nil && !d.Lparen.IsValid() {
		doc = d.Doc
	}
	for i, name := range s.Names {
		if i >= len(s.Values) {
			break
		}
		// The type is before the value, or around it as a conversion.
		expr, typ := s.Values[i], s.Type
		if call, ok := expr.(*ast.CallExpr); ok && typ == nil && len(call.Args) == 1 {
			expr, typ = call.Args[0], call.Fun
		}
		c := constant{name: name.Name, doc: commentLines(doc)}
		switch e := expr.(type) {
		case *ast.BasicLit:
			if e.Kind != token.STRING {
				continue
			}
			c.value, _ = strconv.Unquote(e.Value)
		case *ast.SelectorExpr:
			if x, ok := e.X.(*ast.Ident); ok {
				c.fromPackage, c.fromName = imports[x.Name], e.Sel.Name
			}
		default:
			continue
		}
		if name.Name == "GroupName" {
			p.group = c.value
		}
		if ident, ok := typ.(*ast.Ident); ok {
			c.typeName = ident.Name
		}
		p.consts = append(p.consts, c)
	}
}

// valueOf is the value of a constant, which may be declared in another package.
func (s *sources) valueOf(c constant) (string, error) {
	if c.fromPackage == "" {
		return c.value, nil
	}
	p, err := s.load(c.fromPackage)
	if err != nil {
		return "", err
	}
	for _, other := range p.consts {
		if other.name == c.fromName {
			return s.valueOf(other)
		}
	}
	return "", fmt.Errorf("no constant %s in %s", c.fromName, c.fromPackage)
}

// addRegistered records the kinds that a function passes to Scheme.AddKnownTypes.
func (p *sourcePackage) addRegistered(f *ast.FuncDecl) {
	if f.Body == nil {
		return
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); !ok || sel.Sel.Name != "AddKnownTypes" {
			return true
		}
		for _, arg := range call.Args {
			if u, ok := arg.(*ast.UnaryExpr); ok {
				if lit, ok := u.X.(*ast.CompositeLit); ok {
					if ident, ok := lit.Type.(*ast.Ident); ok {
						p.kinds = append(p.kinds, ident.Name)
					}
				}
			}
		}
		return true
	})
}

func receiver(f *ast.FuncDecl) string {
	t := f.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if ident, ok := t.(*ast.Ident); ok {
		return ident.Name
	}
	return ""
}

// goType is a resolved type expression.
type goType struct {
	kind typeKind
	name string // of a builtin; of a foreign type with its package: time.Time
	decl *typeDecl
	elem *goType
}

type typeKind int

const (
	builtin typeKind = iota
	foreign          // of a package outside the API modules
	named            // decl
	pointer
	slice
	mapping
	anything // an interface
	structure
)

// resolve resolves a type expression in the file of decl.
func (s *sources) resolve(decl *typeDecl, expr ast.Expr) (*goType, error) {
	switch e := expr.(type) {
	case *ast.Ident:
		if t := decl.pkg.types[e.Name]; t != nil {
			return &goType{kind: named, decl: t}, nil
		}
		return &goType{kind: builtin, name: e.Name}, nil
	case *ast.SelectorExpr:
		path := decl.imports[e.X.(*ast.Ident).Name]
		for _, module := range modules {
			if strings.HasPrefix(path, module+"/") {
				p, err := s.load(path)
				if err != nil {
					return nil, err
				}
				if t := p.types[e.Sel.Name]; t != nil {
					return &goType{kind: named, decl: t}, nil
				}
				return nil, fmt.Errorf("type %s.%s not found", path, e.Sel.Name)
			}
		}
		return &goType{kind: foreign, name: path + "." + e.Sel.Name}, nil
	case *ast.StarExpr:
		return s.resolveElem(decl, pointer, e.X)
	case *ast.ArrayType:
		return s.resolveElem(decl, slice, e.Elt)
	case *ast.MapType:
		return s.resolveElem(decl, mapping, e.Value)
	case *ast.InterfaceType:
		return &goType{kind: anything}, nil
	case *ast.StructType:
		return &goType{kind: structure, decl: decl}, nil
	}
	return nil, fmt.Errorf("%s.%s: unexpected type expression %T", decl.pkg.path, decl.name, expr)
}

func (s *sources) resolveElem(decl *typeDecl, kind typeKind, expr ast.Expr) (*goType, error) {
	elem, err := s.resolve(decl, expr)
	if err != nil {
		return nil, err
	}
	return &goType{kind: kind, elem: elem}, nil
}

// underlying resolves named types that are not structs; a struct type remains its declaration.
func (s *sources) underlying(t *goType) (*goType, error) {
	for t.kind == named {
		if _, ok := t.decl.expr.(*ast.StructType); ok {
			return t, nil
		}
		next, err := s.resolve(t.decl, t.decl.expr)
		if err != nil {
			return nil, err
		}
		if next.kind == named {
			if end, err := s.underlying(next); err != nil || end.kind == named {
				// A type declared as another struct type: the same fields, but its own name.
				return t, err
			}
		}
		t = next
	}
	return t, nil
}

// fields are the struct fields of a declaration, and the declaration that contains them.
func (s *sources) fields(decl *typeDecl) ([]*ast.Field, *typeDecl, error) {
	for {
		if st, ok := decl.expr.(*ast.StructType); ok {
			return st.Fields.List, decl, nil
		}
		t, err := s.resolve(decl, decl.expr)
		if err != nil || t.kind != named {
			return nil, nil, fmt.Errorf("%s.%s is not a struct: %v", decl.pkg.path, decl.name, err)
		}
		decl = t.decl
	}
}

func mapKeys[K comparable, V any](m map[K]V) iter.Seq[K] { return maps.Keys(m) }
