// Package metrics lists the metrics that upstream's programs declare, from their sources.
package metrics

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the list")

const list = "../../../internal/system/testdata/upstream-metrics.txt"

// sources are the directories of upstream's modules that declare metrics, and the program that serves them.
var sources = []struct{ module, directory, program string }{
	{"k8s.io/apiserver", "pkg", "apiserver"},
	{"k8s.io/apiextensions-apiserver", "pkg", "apiserver"},
	{"k8s.io/kube-aggregator", "pkg", "apiserver"},
	{"k8s.io/kubernetes", "pkg/serviceaccount", "apiserver"},
	{"k8s.io/kubernetes", "pkg/registry", "apiserver"},
	{"k8s.io/kubernetes", "pkg/controlplane", "apiserver"},
	{"k8s.io/kubernetes", "plugin", "apiserver"},
	{"k8s.io/endpointslice", ".", "controllers"},
	{"k8s.io/controller-manager", ".", "controllers"},
	{"k8s.io/kubernetes", "pkg/controller", "controllers"},
	{"k8s.io/kubernetes", "pkg/scheduler", "scheduler"},
	{"k8s.io/kubernetes", "pkg/kubelet", "kubelet"},
	{"k8s.io/kubernetes", "pkg/volume", "kubelet"},
	{"k8s.io/component-base", ".", "all"},
	{"k8s.io/client-go", ".", "all"},
}

// The list is what the sources of this release declare as stable or beta.
func TestList(t *testing.T) {
	var lines []string
	for _, source := range sources {
		dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", source.module).Output()
		if err != nil {
			t.Fatalf("find module %s: %v", source.module, err)
		}
		root := filepath.Join(strings.TrimSpace(string(dir)), source.directory)
		err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() || entry.Name() == "testing" || entry.Name() == "testdata" {
				return err
			}
			found, err := declared(path)
			for _, m := range found {
				lines = append(lines, source.program+" "+m.String())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(lines)
	text := "# The stable and beta metrics of Kubernetes 1.37.1: program, stability, type, name, labels. Written by\n" +
		"# `go test ./metrics -update` in test/upstream.\n" + strings.Join(slices.Compact(lines), "\n") + "\n"
	if *update {
		if err := os.WriteFile(list, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	listed, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	if string(listed) != text {
		t.Errorf("%s is not the list of this release; write it with -update", list)
	}
	if len(lines) < 90 {
		t.Errorf("only %d metrics were found", len(lines))
	}
}

// metric is the declaration of a metric.
type metric struct {
	stability, kind, name string
	labels                []string
}

func (m metric) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", m.stability, m.kind, m.name, strings.Join(slices.Sorted(slices.Values(m.labels)), ",")))
}

// declared finds the declarations of stable and beta metrics in the package of a directory.
func declared(dir string) ([]metric, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	var found []metric
	constants := constantsOf(files)
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if m, ok := constants.metricOf(call); ok {
					found = append(found, m)
				}
			}
			return true
		})
	}
	return found, nil
}

// constants are the values of string constants and variables by name.
type constants map[string]ast.Expr

func constantsOf(files []*ast.File) constants {
	all := constants{}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok {
				for i, name := range spec.Names {
					if i < len(spec.Values) {
						all[name.Name] = spec.Values[i]
					}
				}
			}
			return true
		})
	}
	return all
}

// text evaluates an expression of strings.
func (c constants) text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if value, err := strconv.Unquote(e.Value); err == nil {
			return value
		}
	case *ast.Ident:
		if value := c[e.Name]; value != nil {
			return c.text(value)
		}
	case *ast.BinaryExpr:
		return c.text(e.X) + c.text(e.Y)
	}
	return ""
}

// labels evaluates a list of strings.
func (c constants) labels(e ast.Expr) (labels []string) {
	if name, ok := e.(*ast.Ident); ok && c[name.Name] != nil {
		e = c[name.Name]
	}
	if literal, ok := e.(*ast.CompositeLit); ok {
		for _, element := range literal.Elts {
			labels = append(labels, c.text(element))
		}
	}
	return labels
}

// nameOf is the last part of a name, such as STABLE of metrics.STABLE.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func isListed(stability string) bool { return stability == "STABLE" || stability == "BETA" }

// metricOf returns the metric that a call makes, if it is stable or beta.
func (c constants) metricOf(call *ast.CallExpr) (metric, bool) {
	function := nameOf(call.Fun)
	if function == "NewDesc" && len(call.Args) == 6 {
		// The type of a metric is only known where it is collected.
		m := metric{stability: nameOf(call.Args[4]), kind: "any", name: c.text(call.Args[0]), labels: c.labels(call.Args[2])}
		return m, isListed(m.stability)
	}
	kind, ok := strings.CutPrefix(function, "New")
	if kind = strings.TrimSuffix(strings.TrimPrefix(kind, "Timing"), "Vec"); !ok || len(call.Args) == 0 {
		return metric{}, false
	}
	pointer, ok := call.Args[0].(*ast.UnaryExpr)
	if !ok {
		return metric{}, false
	}
	options, ok := pointer.X.(*ast.CompositeLit)
	if !ok || !strings.HasSuffix(nameOf(options.Type), "Opts") {
		return metric{}, false
	}
	m := metric{kind: strings.ToLower(cmp.Or(strings.TrimSuffix(kind, "Func"), kind))}
	parts := map[string]string{}
	for _, element := range options.Elts {
		field, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		if key := nameOf(field.Key); key == "StabilityLevel" {
			m.stability = nameOf(field.Value)
		} else {
			parts[key] = c.text(field.Value)
		}
	}
	for _, part := range []string{parts["Namespace"], parts["Subsystem"], parts["Name"]} {
		if part != "" {
			m.name += "_" + part
		}
	}
	m.name = strings.TrimPrefix(m.name, "_")
	if len(call.Args) > 1 {
		m.labels = c.labels(call.Args[1])
	}
	return m, isListed(m.stability)
}
