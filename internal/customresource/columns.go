package customresource

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/jsonpath"

	"skiff/internal/kind"
)

// columns are the cells of a table besides the name.
type columns struct {
	types []string
	paths []*jsonpath.JSONPath
}

// defaultColumns are those of a version that defines none.
var defaultColumns = []apiextensionsv1.CustomResourceColumnDefinition{{
	Name: "Age", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"], JSONPath: ".metadata.creationTimestamp",
}}

// parsePath parses the JSON path of a column or of a selectable field. Requests share the result: a path with a range, which changes while it
// is evaluated, is an error.
func parsePath(name, path string) (*jsonpath.JSONPath, error) {
	text := "{" + path + "}"
	parser, err := jsonpath.Parse(name, text)
	if err != nil {
		return nil, err
	}
	if hasRange(parser.Root) {
		return nil, fmt.Errorf("%s: a range is not supported", path)
	}
	parsed := jsonpath.New(name)
	parsed.AllowMissingKeys(true)
	return parsed, parsed.Parse(text)
}

// hasRange reports whether a path has a range or the end of one.
func hasRange(node jsonpath.Node) bool {
	switch node := node.(type) {
	case *jsonpath.ListNode:
		return slices.ContainsFunc(node.Nodes, hasRange)
	case *jsonpath.UnionNode:
		return slices.ContainsFunc(node.Nodes, func(list *jsonpath.ListNode) bool { return hasRange(list) })
	case *jsonpath.FilterNode:
		return hasRange(node.Left) || hasRange(node.Right)
	case *jsonpath.IdentifierNode:
		return node.Name == "range" || node.Name == "end"
	}
	return false
}

// columnHeaders are the headers of a version's table.
func columnHeaders(defined []apiextensionsv1.CustomResourceColumnDefinition) []metav1.TableColumnDefinition {
	if len(defined) == 0 {
		defined = defaultColumns
	}
	headers := []metav1.TableColumnDefinition{kind.NameColumn()}
	for _, c := range defined {
		description := c.Description
		if description == "" {
			description = "Custom resource definition column (in JSONPath format): " + c.JSONPath
		}
		headers = append(headers, metav1.TableColumnDefinition{Name: c.Name, Type: c.Type, Format: c.Format, Description: description, Priority: c.Priority})
	}
	return headers
}

func compileColumns(defined []apiextensionsv1.CustomResourceColumnDefinition) *columns {
	if len(defined) == 0 {
		defined = defaultColumns
	}
	compiled := &columns{}
	for _, c := range defined {
		path, err := parsePath(c.Name, c.JSONPath)
		if err != nil {
			path = nil // validation of definitions refuses nearly all of these; the cells are empty
		}
		compiled.types, compiled.paths = append(compiled.types, c.Type), append(compiled.paths, path)
	}
	return compiled
}

// row returns the cells of an object of this version.
func (v *version) row(obj kind.Object, now time.Time) []any {
	c := v.columns()
	cells := make([]any, 1, 1+len(c.paths))
	cells[0] = obj.GetName()
	for i, path := range c.paths {
		cells = append(cells, cell(path, c.types[i], content(obj), now))
	}
	return cells
}

func cell(path *jsonpath.JSONPath, columnType string, root map[string]any, now time.Time) any {
	if path == nil {
		return nil
	}
	results, err := path.FindResults(root)
	if err != nil || len(results) == 0 || len(results[0]) == 0 {
		return nil
	}
	value := results[0][0].Interface()
	if columnType == "string" {
		var text bytes.Buffer
		if err := path.PrintResults(&text, []reflect.Value{reflect.ValueOf(value)}); err != nil {
			return nil
		}
		return text.String()
	}
	return convertCell(columnType, value, now)
}

// convertCell converts a value to the type of its column. A value of another type is not shown.
func convertCell(columnType string, value any, now time.Time) any {
	switch columnType {
	case "integer":
		switch number := value.(type) {
		case int64:
			return number
		case float64:
			return int64(number)
		}
	case "number":
		switch number := value.(type) {
		case int64:
			return float64(number)
		case float64:
			return number
		}
	case "boolean":
		if b, ok := value.(bool); ok {
			return b
		}
	case "date":
		if text, ok := value.(string); ok {
			var at metav1.Time
			if err := at.UnmarshalQueryParameter(text); err != nil {
				return "<invalid>"
			}
			return kind.Age(at, now)
		}
	}
	return nil
}

// fieldLabels maps the field selectors of the version to those of the Kind. The versions have different selectors, and a value may differ
// between them.
func (v *version) fieldLabels() map[string]string {
	labels := make(map[string]string, len(v.spec.SelectableFields))
	for _, f := range v.spec.SelectableFields {
		label := strings.TrimPrefix(f.JSONPath, ".")
		labels[label] = v.spec.Name + "/" + label
	}
	return labels
}

// selectableFields returns a function that computes the values of the field selectors of all served versions; nil when there are none.
func (d *definition) selectableFields() func(ctx context.Context, objs []kind.Object) ([]map[string]string, error) {
	var selectable []*version
	for _, v := range d.versions {
		if v.spec.Served && len(v.spec.SelectableFields) > 0 {
			selectable = append(selectable, v)
		}
	}
	if len(selectable) == 0 {
		return nil
	}
	return func(ctx context.Context, objs []kind.Object) ([]map[string]string, error) {
		values := make([]map[string]string, len(objs))
		for i := range values {
			values[i] = map[string]string{}
		}
		for _, v := range selectable {
			// A value is that of the version: a conversion may change it.
			converted, err := v.convert(ctx, objs)
			if err != nil {
				return nil, err
			}
			for label, path := range v.selectors() {
				for i, obj := range converted {
					values[i][label] = selectedValue(path, content(obj))
				}
			}
		}
		return values, nil
	}
}

// compileSelectors returns the paths of the selectable fields by the labels of the Kind.
func (v *version) compileSelectors() map[string]*jsonpath.JSONPath {
	labels := v.fieldLabels()
	paths := make(map[string]*jsonpath.JSONPath, len(labels))
	for _, f := range v.spec.SelectableFields {
		if path, err := parsePath("selectableField", f.JSONPath); err == nil { // validation of definitions refuses other paths
			paths[labels[strings.TrimPrefix(f.JSONPath, ".")]] = path
		}
	}
	return paths
}

// selectedValue is the value of a selectable field as text, empty if it is not set.
func selectedValue(path *jsonpath.JSONPath, root map[string]any) string {
	results, err := path.FindResults(root)
	if err != nil || len(results) == 0 || len(results[0]) == 0 {
		return ""
	}
	if value := results[0][0].Interface(); value != nil {
		return fmt.Sprint(value)
	}
	return ""
}
