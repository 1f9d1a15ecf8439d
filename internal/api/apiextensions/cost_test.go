package apiextensions

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"skiff/internal/kind"
)

// withSchema is a definition with one version.
func withSchema(t *testing.T, schema string) *definition {
	t.Helper()
	crd := &definition{}
	if err := yaml.Unmarshal([]byte(`{metadata: {name: foos.example.com}, status: {storedVersions: [v1]}, spec: {group: example.com, scope: Namespaced,
names: {plural: foos, singular: foo, kind: Foo, listKind: FooList}, versions: [{name: v1, served: true, storage: true}]}}`), crd); err != nil {
		t.Fatal(err)
	}
	parsed := &apiextensionsv1.JSONSchemaProps{}
	unmarshal := func(data []byte, into any) error { return yaml.Unmarshal(data, into) }
	if strings.HasPrefix(schema, `{"`) {
		unmarshal = json.Unmarshal // YAML has no long keys
	}
	if err := unmarshal([]byte(schema), parsed); err != nil {
		t.Fatal(err)
	}
	crd.Spec.Versions[0].Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: parsed}
	return crd
}

// rulesOf are n different rules.
func rulesOf(n int, more string) string {
	rules := make([]string, n)
	for i := range rules {
		rules[i] = fmt.Sprintf(`{"rule":"self.a != 'x%d'"%s}`, i, more)
	}
	return `"x-kubernetes-validations":[` + strings.Join(rules, ",") + `]`
}

const stringA = `"a":{"type":"string","maxLength":10}`

// TestHostileSchemas: schemas whose compilation would take minutes or gigabytes are refused before anything is compiled.
func TestHostileSchemas(t *testing.T) {
	chain := func(n int, more string) string {
		schema := `{"type":"object","properties":{` + stringA + `}}`
		return `{"type":"object","properties":{"spec":` + strings.Repeat(`{"type":"object",`+more+`"properties":{`+stringA+`,"n":`, n) + schema + strings.Repeat(`}}`, n) + `}}`
	}
	properties := func(n int, schema string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(`"p%d":%s`, i, schema)
		}
		return strings.Join(all, ",")
	}
	object := func(more, properties string) string {
		return `{"type":"object","properties":{"spec":{"type":"object",` + more + `"properties":{` + properties + `}}}}`
	}
	const cost, paths = "estimated cost of compiling the schemas", "the paths of all fields"
	for name, test := range map[string]struct{ schema, want string }{
		"rules":                    {object(rulesOf(40_000, "")+",", stringA), cost},
		"rules with field paths":   {object(rulesOf(40_000, `,"fieldPath":".a"`)+",", stringA), cost},
		"schemas with rules":       {object("", properties(10_000, `{"type":"object",`+rulesOf(1, "")+`,"properties":{`+stringA+`}}`)), cost},
		"nested schemas and rules": {chain(1000, rulesOf(1, "")+","), cost},
		"rules below defaults":     {chain(200, `"default":{"a":"u"},`+rulesOf(1, "")+","), cost},
		"defaults inside defaults": {chain(1000, `"default":{},`), cost},
		"message expressions":      {object(rulesOf(20_000, `,"messageExpression":"'a' + self.a"`)+",", stringA), cost},
		"large patterns":           {object("", properties(100, `{"type":"string","pattern":"(abcdefghijklmnopqrstuvwxyz0123456789){1000}"}`)), cost},
		"long paths":               {object("", `"`+strings.Repeat("x", 1<<20)+`":{"type":"object","properties":{`+properties(10_000, `{"type":"wrong"}`)+`}}`), paths},
		"large, but allowed":       {object(rulesOf(20, "")+",", stringA+","+properties(5_000, `{"type":"string","pattern":"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}`)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			crd := withSchema(t, test.schema)
			errs := validateDefinition(&kind.Request{}, crd, nil)
			switch {
			case test.want == "" && len(errs) > 0:
				t.Errorf("refused: %v", errs)
			case test.want != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), test.want)):
				t.Errorf("%d errors, want one with %q: %.500s", len(errs), test.want, errs.ToAggregate())
			}
			// What is stored can still be updated: it is not compiled for the first time.
			if test.want != "" {
				next, err := hoisted(crd)
				if err != nil {
					t.Fatal(err)
				}
				v := &validator{allow: allowances{unchangedSchemas: unchangedSchemas(next, next)}}
				if errs := v.compileCost(&next.Spec, nil); len(errs) > 0 {
					t.Errorf("unchanged: %v", errs)
				}
			}
		})
	}
}

// TestFieldPathsConvertOnce: a schema is not converted for each of its rules, nor for each schema around it.
func TestFieldPathsConvertOnce(t *testing.T) {
	for name, test := range map[string]struct {
		schema      string
		conversions int
	}{
		"structural": {`{type: object, properties: {spec: {type: object, properties: {b: {type: object, properties: {` + stringA + `}, ` + rulesOf(3, `,"fieldPath":".a"`) + `}}, ` + rulesOf(3, `,"fieldPath":".b"`) + `}}}`, 0},
		"not structural": {`{type: object, properties: {r: {$ref: x}, spec: {type: object, properties: {b: {type: object, properties: {` + stringA + `}, ` +
			rulesOf(3, `,"fieldPath":".a"`) + `}}, ` + rulesOf(3, `,"fieldPath":".b"`) + `}}}`, 2},
		"many that are not structural": {`{type: object, properties: {r: {$ref: x}` + strings.Repeat(`, s: {type: object, properties: {`+stringA, maxConversions*2) +
			strings.Repeat(`}, `+rulesOf(1, `,"fieldPath":".a"`)+`}`, maxConversions*2) + `}}`, maxConversions},
	} {
		crd := withSchema(t, test.schema)
		next, err := hoisted(crd)
		if err != nil {
			t.Fatal(err)
		}
		v := &validator{}
		v.spec(&next.Spec, nil)
		if min(v.conversions, maxConversions) != test.conversions {
			t.Errorf("%s: %d conversions, want %d", name, v.conversions, test.conversions)
		}
	}
}
