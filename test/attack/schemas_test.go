package attack

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// patient is for requests that are refused because of what they contain, not because of a busy host.
const patient = "--request-timeout=1m"

const (
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	foosPath        = "/apis/example.com/v1/namespaces/default/foos"
)

// definitionOf is the definition of Foos with a schema.
func definitionOf(schema string) string {
	return `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"foos.example.com"},"spec":{"group":"example.com","scope":"Namespaced",` +
		`"names":{"plural":"foos","singular":"foo","kind":"Foo","listKind":"FooList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":` + schema + `}}]}}`
}

func specOf(schema string) string {
	return definitionOf(`{"type":"object","properties":{"spec":` + schema + `}}`)
}

func foo(name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Foo","metadata":{"name":%q},"spec":%s}`, name, spec)
}

// repeated joins n texts.
func repeated(n int, text func(i int) string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = text(i)
	}
	return strings.Join(parts, ",")
}

// Definitions whose schemas would take minutes or gigabytes to decode, to compile or to report the errors of are refused at once. Several are sent
// at the same time.
func TestHostileSchemas(t *testing.T) {
	a := start(t, patient)
	writer := a.user("writer")
	rule := func(i int) string { return fmt.Sprintf(`{"rule":"self.a != 'x%d'","fieldPath":".a"}`, i) }
	before := a.usage()
	var sent sync.WaitGroup
	for name, body := range map[string]string{
		"nested": definitionOf(`{"type":"object","properties":{"a":` + strings.Repeat(`{"type":"array","items":`, 4000) +
			`{"type":"string","description":"` + strings.Repeat("x", 2<<20) + `"}` + strings.Repeat("}", 4002)),
		"rules":                    specOf(`{"type":"object","properties":{"a":{"type":"string"}},"x-kubernetes-validations":[` + repeated(60_000, rule) + `]}`),
		"defaults inside defaults": specOf(strings.Repeat(`{"type":"object","default":{},"properties":{"n":`, 1500) + `{"type":"string"}` + strings.Repeat("}}", 1500)),
		"errors with long paths": specOf(`{"type":"object","properties":{"` + strings.Repeat("x", 1<<20) + `":{"type":"object","properties":{` +
			repeated(20_000, func(i int) string { return fmt.Sprintf(`"p%d":{"type":"wrong"}`, i) }) + `}}}}`),
		"patterns": specOf(`{"type":"object","properties":{` + repeated(1000, func(i int) string {
			return fmt.Sprintf(`"p%d":{"type":"string","pattern":"(abcdefghijklmnopqrstuvwxyz%d){1000}"}`, i, i)
		}) + `}}`),
	} {
		for range 3 {
			sent.Go(func() {
				if code, text := a.as(writer, http.MethodPost, definitionsPath, body); code < 400 || code >= 500 || !strings.Contains(text, `"kind":"Status"`) {
					t.Errorf("%s: code %d %.300s", name, code, text)
				}
			})
		}
	}
	sent.Wait()
	a.expectBoundedMemory()
	a.expectReleased(before)
}

// Objects that defaults would multiply, that have more paths than memory, or whose rules cost more than their budget are refused.
func TestHostileCustomResources(t *testing.T) {
	a := start(t, patient)
	writer := a.user("writer")
	nested := `{"type":"object","properties":{"a":{"type":"string","default":"x"}}}`
	for range 12 {
		nested = `{"type":"object","properties":{"a":{"type":"array","default":[{},{},{},{},{},{},{},{},{},{}],"items":` + nested + `}}}`
	}
	quadratic := `{"rule":"self.l.all(x, self.l.all(y, x != 'a' + y))"}`
	a.define(`{"type":"object","properties":{
		"nested":` + nested + `,
		"items":{"type":"array","items":{"type":"object","properties":{"a":{"type":"string","default":"` + strings.Repeat("x", 100_000) + `"}}}},
		"map":{"type":"object","additionalProperties":{"type":"array","items":{"type":"string","maxLength":1}}},
		"expensive":{"type":"object","properties":{"l":{"type":"array","maxItems":300,"items":{"type":"string","maxLength":20}}},"x-kubernetes-validations":[` +
		repeated(40, func(int) string { return quadratic }) + `]}}}`)
	before := a.usage()
	var sent sync.WaitGroup
	for _, test := range []struct{ name, spec, want string }{
		{"defaults inside defaults", `{"nested":{}}`, "the defaults of the schema would make the object larger"},
		{"default in each item", `{"items":[` + repeated(100_000, func(int) string { return "{}" }) + `]}`, "the defaults of the schema would make the object larger"},
		{"long paths", `{"map":{"` + strings.Repeat("x", 1<<20) + `":[` + repeated(100_000, func(int) string { return `"ab"` }) + `]}}`, "the paths of all fields"},
		{"unknown fields", `{"map":{},"` + strings.Repeat("x", 1<<20) + `":{` + repeated(50_000, func(i int) string { return fmt.Sprintf(`"f%d":1`, i) }) + `}}`, "the paths of all fields"},
		{"expensive rules", `{"expensive":{"l":[` + repeated(300, func(i int) string { return fmt.Sprintf(`"value-%d"`, i) }) + `]}}`, "cost"},
	} {
		for i := range 3 {
			sent.Go(func() {
				code, text := a.as(writer, http.MethodPost, foosPath, foo(fmt.Sprint(strings.ReplaceAll(test.name, " ", "-"), i), test.spec))
				// Large writes of one user are limited as well.
				if code == http.StatusTooManyRequests {
					return
				}
				if code < 400 || code >= 500 || !strings.Contains(text, test.want) {
					t.Errorf("%s: code %d, want an error with %q: %.300s", test.name, code, test.want, text)
				}
			})
		}
	}
	sent.Wait()
	a.expectBoundedMemory()
	a.expectReleased(before)
	if code, text := a.as(writer, http.MethodPost, foosPath, foo("ordinary", `{"items":[{}]}`)); code != http.StatusCreated {
		t.Errorf("an ordinary object: %d %.300s", code, text)
	}
}

// define creates the definition of Foos and waits until it is served.
func (a *target) define(spec string) {
	a.t.Helper()
	if code, text := a.as("", http.MethodPost, definitionsPath, specOf(spec)); code != http.StatusCreated {
		a.t.Fatalf("definition: %d %.1000s", code, text)
	}
	a.eventually(func() bool {
		code, _ := a.as("", http.MethodGet, foosPath, "")
		return code == http.StatusOK
	}, func() string { return "the definition is not served" })
}
