package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"skiff/internal/config"
	"skiff/internal/configfile"
	"skiff/internal/network/proxy"
	"skiff/internal/scheduler"
)

// configurations are the types of all configuration files. Every field is read by the product or is in the list of the fields that have no
// effect, with which the loader checks the file.
var configurations = []struct {
	pkg, name string
	unused    []configfile.Unused
	// also are packages of nested types whose fields count.
	also []string
	// elsewhere are the fields that something else than skiff's own code reads, and the fields for which validation accepts only one value.
	elsewhere map[string]string
}{
	{pkg: "k8s.io/kubelet/config/v1beta1", name: "KubeletConfiguration", unused: config.KubeletUnused},
	{pkg: "k8s.io/kubelet/config/v1", name: "CredentialProviderConfig"},
	{
		pkg: schedulerConfig, name: "KubeSchedulerConfiguration", also: []string{"k8s.io/component-base/config/v1alpha1"}, unused: scheduler.Unused,
		elsewhere: map[string]string{"leaderElection.resourceLock": "validateLeaderElection accepts leases only"},
	},
	{pkg: "k8s.io/kube-proxy/config/v1alpha1", name: "KubeProxyConfiguration", also: []string{"k8s.io/component-base/config/v1alpha1"}, unused: proxy.Unused},
	{pkg: schedulerConfig, name: "DefaultPreemptionArgs"},
	{pkg: schedulerConfig, name: "DynamicResourcesArgs"},
	{pkg: schedulerConfig, name: "InterPodAffinityArgs"},
	{pkg: schedulerConfig, name: "NodeAffinityArgs"},
	{pkg: schedulerConfig, name: "NodeResourcesBalancedAllocationArgs"},
	{pkg: schedulerConfig, name: "NodeResourcesFitArgs"},
	{pkg: schedulerConfig, name: "PodTopologySpreadArgs"},
	{pkg: schedulerConfig, name: "VolumeBindingArgs"},
	{pkg: "k8s.io/apiserver/pkg/apis/apiserver", name: "AuthenticationConfiguration", elsewhere: map[string]string{
		"jwt.issuer.audienceMatchPolicy":          "upstream's validation accepts MatchAny only",
		"jwt.claimValidationRules.expression":     celCompiler,
		"jwt.claimValidationRules.message":        celCompiler,
		"jwt.claimMappings.username.expression":   celCompiler,
		"jwt.claimMappings.groups.expression":     celCompiler,
		"jwt.claimMappings.uid.expression":        celCompiler,
		"jwt.claimMappings.extra.key":             celCompiler,
		"jwt.claimMappings.extra.valueExpression": celCompiler,
		"jwt.userValidationRules.expression":      celCompiler,
		"jwt.userValidationRules.message":         celCompiler,
	}},
	{pkg: "k8s.io/apiserver/pkg/apis/apiserver", name: "AuthorizationConfiguration", elsewhere: map[string]string{
		"authorizers.webhook.matchConditions.expression":               celCompiler,
		"authorizers.webhook.matchConditionSubjectAccessReviewVersion": "upstream's validation accepts v1 only",
	}},
	{pkg: "k8s.io/apiserver/pkg/apis/apiserver/v1", name: "EncryptionConfiguration", elsewhere: map[string]string{
		"resources.providers.kms.apiVersion": "validateKMS accepts v2 only",
		"resources.providers.kms.cachesize":  "validateKMS accepts no value",
	}},
	{pkg: "k8s.io/apiserver/pkg/apis/audit/v1", name: "Policy"},
	{pkg: admissionPlugins, name: "configFile"},
	{pkg: admissionPlugins, name: "quotaConfig", also: []string{"skiff/internal/quota"}},
	{pkg: admissionPlugins, name: "podSecurityConfig"},
	{pkg: admissionPlugins, name: "eventLimitConfig"},
	{pkg: admissionPlugins, name: "nodeSelectorConfig"},
}

const (
	schedulerConfig  = "k8s.io/kube-scheduler/config/v1"
	admissionPlugins = "skiff/internal/apiserver/admission"
	celCompiler      = "compiled and evaluated by upstream's package cel"
)

// fieldReads are the struct fields that product code reads.
type fieldReads struct {
	// exported imports packages from their export data.
	exported types.Importer
	// sources are skiff's packages, by import path.
	sources map[string]*types.Package
	read    map[*types.Var]bool
	// bound are the fields of internal/config that flags are bound to.
	bound map[*types.Var]token.Position
	// flagsElsewhere are the calls that define flags outside of the functions of internal/config that bind them.
	flagsElsewhere []string
}

// Import implements types.Importer. Skiff's packages are those that were type-checked, so that each field is one variable.
func (r *fieldReads) Import(path string) (*types.Package, error) {
	if p := r.sources[path]; p != nil {
		return p, nil
	}
	return r.exported.Import(path)
}

// bindsFlags are the functions of internal/config that bind flags.
var bindsFlags = regexp.MustCompile(`(F|f)lags?$`)

// settingUp are the functions in which reading a field has no effect on what skiff does.
var settingUp = regexp.MustCompile(`^(validate|Validate|default|Default)|(F|f)lags?$`)

// readFields type-checks skiff's product packages and collects the fields they read, once for all tests.
var readFields = sync.OnceValues(func() (*fieldReads, error) {
	out, err := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles,Imports", "skiff/cmd/...").Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	type listed struct {
		ImportPath, Export, Dir string
		GoFiles, Imports        []string
	}
	exports, all := map[string]string{}, []listed{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		exports[p.ImportPath] = p.Export
		all = append(all, p)
	}
	files := token.NewFileSet()
	r := &fieldReads{sources: map[string]*types.Package{}, read: map[*types.Var]bool{}, bound: map[*types.Var]token.Position{}}
	r.exported = importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, p := range all {
		if !strings.HasPrefix(p.ImportPath, "skiff/") {
			continue
		}
		var parsed []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			parsed = append(parsed, file)
		}
		info := &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}, Types: map[ast.Expr]types.TypeAndValue{}}
		checker := types.Config{Importer: r}
		if r.sources[p.ImportPath], err = checker.Check(p.ImportPath, files, parsed, info); err != nil {
			return nil, fmt.Errorf("type-check %s: %w", p.ImportPath, err)
		}
		for _, file := range parsed {
			r.add(file, info)
			r.addFlagCalls(files, file, info)
			if p.ImportPath == "skiff/internal/config" {
				r.addBound(files, file, info)
			}
		}
	}
	return r, nil
})

// add collects the fields that a file reads.
func (r *fieldReads) add(file *ast.File, info *types.Info) {
	for _, declaration := range file.Decls {
		if f, ok := declaration.(*ast.FuncDecl); ok && settingUp.MatchString(f.Name.Name) {
			continue
		}
		written := map[ast.Expr]bool{}
		ast.Inspect(declaration, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok == token.ASSIGN {
					for _, to := range n.Lhs {
						written[to] = true
					}
				}
			case *ast.CallExpr:
				// A conversion reads all fields of a struct.
				if info.Types[n.Fun].IsType() && len(n.Args) == 1 {
					if s, ok := info.Types[n.Args[0]].Type.Underlying().(*types.Struct); ok {
						for i := range s.NumFields() {
							r.read[s.Field(i)] = true
						}
					}
				}
			case *ast.SelectorExpr:
				selection := info.Selections[n]
				if selection == nil {
					break
				}
				if v, ok := selection.Obj().(*types.Var); ok && !written[n] {
					r.read[v] = true
				}
			}
			return true
		})
	}
}

// definesFlag are the methods of a FlagSet that define a flag.
var definesFlag = regexp.MustCompile(`^(Bool|Int|Uint|Float|String|Duration|Count|Text|Time|IP|Bytes|Func|Var)`)

// addFlagCalls collects the flags that are defined where addBound does not see them.
func (r *fieldReads) addFlagCalls(files *token.FileSet, file *ast.File, info *types.Info) {
	for _, declaration := range file.Decls {
		if f, ok := declaration.(*ast.FuncDecl); ok && file.Name.Name == "config" && (bindsFlags.MatchString(f.Name.Name) || f.Name.Name == "listVar") {
			continue
		}
		ast.Inspect(declaration, func(n ast.Node) bool {
			selector, ok := n.(*ast.SelectorExpr)
			if !ok || info.Selections[selector] == nil || !definesFlag.MatchString(selector.Sel.Name) {
				return true
			}
			if method := info.Selections[selector].Obj(); method.Pkg() != nil && method.Pkg().Path() == "github.com/spf13/pflag" && strings.HasSuffix(types.TypeString(info.Selections[selector].Recv(), nil), "pflag.FlagSet") {
				position := files.Position(n.Pos())
				r.flagsElsewhere = append(r.flagsElsewhere, filepath.Base(position.Filename)+" "+selector.Sel.Name)
			}
			return true
		})
	}
}

// addBound collects the fields whose addresses the functions that bind flags take.
func (r *fieldReads) addBound(files *token.FileSet, file *ast.File, info *types.Info) {
	for _, declaration := range file.Decls {
		f, ok := declaration.(*ast.FuncDecl)
		if !ok || !bindsFlags.MatchString(f.Name.Name) {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if called, ok := call.Fun.(*ast.Ident); ok && called.Name == "trackGiven" {
					return false // not the value of a flag, but whether it was given
				}
			}
			if address, ok := n.(*ast.UnaryExpr); ok && address.Op == token.AND {
				if selector, ok := address.X.(*ast.SelectorExpr); ok && info.Selections[selector] != nil {
					r.bound[info.Selections[selector].Obj().(*types.Var)] = files.Position(n.Pos())
				}
			}
			return true
		})
	}
}

// leaf is a field of a configuration that is not a struct of the same configuration.
type leaf struct {
	path     string
	variable *types.Var
}

// leaves returns all fields of a type, those of nested types in the same packages included.
func (r *fieldReads) leaves(t *testing.T, pkg, name string, also []string) []leaf {
	t.Helper()
	p, err := r.Import(pkg)
	if err != nil {
		t.Fatal(err)
	}
	object := p.Scope().Lookup(name)
	if object == nil {
		t.Fatalf("%s has no type %s", pkg, name)
	}
	var all []leaf
	walkFields(object.Type(), "", append(also, pkg), func(path string, v *types.Var) { all = append(all, leaf{path, v}) })
	if len(all) == 0 {
		t.Fatalf("%s.%s has no fields", pkg, name)
	}
	return all
}

// walkFields calls visit with the leaves of a struct type, of a pointer to it, or of a list or a map of it.
func walkFields(typ types.Type, path string, packages []string, visit func(path string, v *types.Var)) bool {
	switch u := typ.(type) {
	case *types.Pointer:
		return walkFields(u.Elem(), path, packages, visit)
	case *types.Slice:
		return walkFields(u.Elem(), path, packages, visit)
	case *types.Map:
		return walkFields(u.Elem(), path, packages, visit)
	case *types.Alias:
		return walkFields(types.Unalias(u), path, packages, visit)
	case *types.Named:
		if u.Obj().Pkg() == nil || !slices.Contains(packages, u.Obj().Pkg().Path()) {
			return false
		}
		return walkFields(u.Underlying(), path, packages, visit)
	case *types.Struct:
		for i := range u.NumFields() {
			f := u.Field(i)
			if f.Name() == "TypeMeta" || f.Name() == "ObjectMeta" || !f.Exported() {
				continue
			}
			name := configfile.FieldName(f.Name(), reflect.StructTag(u.Tag(i)))
			if path != "" && !f.Embedded() {
				name = path + "." + name
			} else if f.Embedded() {
				name = path
			}
			if !walkFields(f.Type(), name, packages, visit) {
				visit(name, f)
			}
		}
		return true
	}
	return false
}

func covers(unused, path string) bool { return path == unused || strings.HasPrefix(path, unused+".") }

func TestConfigurationFieldsHaveAnEffect(t *testing.T) {
	reads, err := readFields()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			all := reads.leaves(t, c.pkg, c.name, c.also)
			for _, l := range all {
				listed := slices.ContainsFunc(c.unused, func(u configfile.Unused) bool { return covers(u.Path, l.path) })
				listed = listed || c.elsewhere[l.path] != ""
				if read := reads.read[l.variable]; read && listed {
					t.Errorf("%s is read; remove it from the fields without effect", l.path)
				} else if !read && !listed {
					t.Errorf("%s is read by nobody and not in the fields without effect", l.path)
				}
			}
			for path := range c.elsewhere {
				if !slices.ContainsFunc(all, func(l leaf) bool { return l.path == path }) {
					t.Errorf("%s has no field %s", c.name, path)
				}
			}
			for _, u := range c.unused {
				if !slices.ContainsFunc(all, func(l leaf) bool { return covers(u.Path, l.path) }) {
					t.Errorf("%s has no field %s", c.name, u.Path)
				}
				if len(u.Reason) < 10 {
					t.Errorf("%s: no reason", u.Path)
				}
			}
		})
	}
}

// oneValueFlags are the fields of flags for which validation accepts only one value.
var oneValueFlags = map[string]string{
	"AuditLog.Version":     "audit.k8s.io/v1",
	"AuditWebhook.Version": "audit.k8s.io/v1",
}

// TestFlagsHaveAnEffect checks that product code reads the field of every flag, outside of the functions that bind and validate flags.
func TestFlagsHaveAnEffect(t *testing.T) {
	reads, err := readFields()
	if err != nil {
		t.Fatal(err)
	}
	if len(reads.bound) < 100 {
		t.Fatalf("only %d fields are bound to flags", len(reads.bound))
	}
	// --help-all is read from the flag set itself.
	if want := []string{"command.go BoolVar"}; !slices.Equal(reads.flagsElsewhere, want) {
		t.Errorf("flags are defined in %q, want %q and the functions of internal/config", reads.flagsElsewhere, want)
	}
	owners, scope := map[*types.Var]string{}, reads.sources["skiff/internal/config"].Scope()
	for _, name := range scope.Names() {
		if s, ok := scope.Lookup(name).Type().Underlying().(*types.Struct); ok {
			for i := range s.NumFields() {
				owners[s.Field(i)] = name
			}
		}
	}
	for v, position := range reads.bound {
		name := owners[v] + "." + v.Name()
		if read := reads.read[v]; read && oneValueFlags[name] != "" {
			t.Errorf("%s is read; it needs no exception", name)
		} else if !read && oneValueFlags[name] == "" {
			t.Errorf("%s: the flag of %s has no effect: nobody reads the field", position, name)
		}
	}
}

// TestConfigurationDocument compares docs/configuration.md with the fields that have no effect.
func TestConfigurationDocument(t *testing.T) {
	const golden = "../../docs/configuration.md"
	content, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	const marker = "<!-- Generated by go test ./internal/archtest -update. -->\n"
	written, _, found := strings.Cut(string(content), marker)
	if !found {
		t.Fatalf("%s has no line %s", golden, marker)
	}
	var generated strings.Builder
	type section struct {
		name   string
		unused []configfile.Unused
	}
	var sections []section
	for _, c := range configurations {
		sections = append(sections, section{c.name, c.unused})
	}
	sections = append(sections, section{"KubeletConfiguration of the node inside skiff server, in addition", config.ServerNodeUnused})
	for _, s := range sections {
		if len(s.unused) == 0 {
			continue
		}
		fmt.Fprintf(&generated, "\n## %s\n\n| field | values without effect | result | reason |\n|---|---|---|---|\n", s.name)
		for _, u := range s.unused {
			values, result := "all", "error"
			if len(u.Accepted) > 0 {
				values = "all but `" + strings.Join(u.Accepted, "`, `") + "`"
			}
			if u.Harmless {
				result = "warning"
			}
			fmt.Fprintf(&generated, "| `%s` | %s | %s | %s |\n", u.Path, values, result, u.Reason)
		}
	}
	want := written + marker + generated.String()
	if *update {
		if err := os.WriteFile(golden, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(content) {
		t.Errorf("%s does not have the fields of the code: run go test ./internal/archtest -run TestConfigurationDocument -update", golden)
	}
}
