package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"skiff/test/cluster"
)

const (
	// randomSchemas is the number of random schemas, schemasPerDefinition how many of those that are valid one definition has as properties.
	randomSchemas        = 1000
	schemasPerDefinition = 50
)

// TestCustomResourcesLikeUpstream sends random schemas to skiff and to upstream, and the same writes of random objects that have them, and compares every
// response: errors, defaults, pruned fields, CEL rules, and the fields that appliers own. Objects are written in one version and read in another.
func TestCustomResourcesLikeUpstream(t *testing.T) {
	t.Parallel()
	skiff, upstream := startBoth(t)
	ours, theirs := newAPIClient(t, skiff), newAPIClient(t, upstream)

	var schemas []map[string]any
	var calls []call
	for i := range randomSchemas {
		schema := randomSchema(rand.New(rand.NewPCG(uint64(i), 7)), 2)
		schemas = append(schemas, schema)
		calls = append(calls, post("definition", definitionsPath+"?dryRun=All", definitionOf("things", map[string]any{"s": schema})))
	}
	responses := sendToBoth(ours, theirs, calls)
	refused := compareResponses(t, calls, responses)
	var valid []map[string]any
	for i, schema := range schemas {
		if strings.HasPrefix(responses[1][i], "201") {
			valid = append(valid, schema)
		}
	}
	t.Logf("%d schemas, %d of them invalid", len(schemas), refused)
	if len(valid) < randomSchemas/2 || refused < randomSchemas/20 {
		t.Errorf("%d of %d schemas are invalid: they do not cover both outcomes", refused, randomSchemas)
	}

	calls = nil
	for definition := range slices.Chunk(valid, schemasPerDefinition) {
		plural := fmt.Sprintf("things%d", len(calls))
		properties := map[string]any{}
		for i, schema := range definition {
			properties[fmt.Sprintf("s%d", i)] = schema
		}
		create := post("definition", definitionsPath, definitionOf(plural, properties))
		for _, a := range []*apiClient{ours, theirs} {
			awaitDefinition(t, a, create, plural)
		}
		for i, schema := range definition {
			calls = append(calls, writesOf(rand.New(rand.NewPCG(uint64(len(calls)), 8)), plural, fmt.Sprintf("s%d", i), schema)...)
		}
	}
	if t.Failed() {
		return
	}
	refused = compareResponses(t, calls, sendToBoth(ours, theirs, calls))
	t.Logf("%d writes and reads, %d of them refused", len(calls), refused)
	if refused < len(calls)/10 || refused > len(calls)*9/10 {
		t.Errorf("%d of %d refused: the calls do not cover both outcomes", refused, len(calls))
	}
}

// TestNamesOfDefinitionsLikeUpstream creates definitions whose names conflict, and compares the names and conditions that they get.
func TestNamesOfDefinitionsLikeUpstream(t *testing.T) {
	t.Parallel()
	skiff, upstream := startBoth(t)
	for _, names := range []string{
		`"plural":"firsts","kind":"First","shortNames":["fi","f"],"categories":["all"]`,
		`"plural":"seconds","kind":"First"`, `"plural":"thirds","kind":"Third","listKind":"FirstList"`, `"plural":"fourths","singular":"first","kind":"Fourth"`,
		`"plural":"fifths","kind":"Fifth","shortNames":["x","f"]`, `"plural":"sixths","kind":"Sixth","shortNames":["firsts"]`, `"plural":"sevenths","kind":"FirstList","listKind":"SeventhList"`,
		`"plural":"eighths","kind":"Eighth","shortNames":["e","e"]`, `"plural":"fi","kind":"Ninth"`, `"plural":"tenths","kind":"Tenth","categories":["all","fi"]`,
	} {
		var definition struct{ Plural string }
		if err := json.Unmarshal([]byte("{"+names+"}"), &definition); err != nil {
			t.Fatal(err)
		}
		body := fmt.Sprintf(`{"metadata":{"name":"%s.example.com"},"spec":{"group":"example.com","scope":"Cluster","names":{%s},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`,
			definition.Plural, names)
		var states []string
		for _, c := range []*cluster.Cluster{skiff, upstream} {
			a := newAPIClient(t, c)
			if response := a.send(post("definition", definitionsPath, body)); !strings.HasPrefix(response, "201") {
				states = append(states, response)
				continue
			}
			states = append(states, awaitState(t, a, definition.Plural))
		}
		if states[0] != states[1] {
			t.Errorf("%s\n%s", names, difference(states[0], states[1]))
		}
	}
}

const definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// definitionOf is a definition with two versions, whose spec has some properties.
func definitionOf(plural string, properties map[string]any) string {
	version := func(name string, isStored bool) map[string]any {
		return map[string]any{"name": name, "served": true, "storage": isStored, "schema": map[string]any{"openAPIV3Schema": map[string]any{
			"type": "object", "properties": map[string]any{"spec": map[string]any{"type": "object", "properties": properties}},
		}}}
	}
	return textOf(map[string]any{"metadata": map[string]any{"name": plural + ".example.com"}, "spec": map[string]any{
		"group": "example.com", "scope": "Cluster", "names": map[string]any{"plural": plural, "kind": kindOf(plural)},
		"versions": []any{version("v1", true), version("v2", false)},
	}})
}

func kindOf(plural string) string { return strings.ToUpper(plural[:1]) + plural[1:] }

func textOf(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// awaitDefinition creates a definition and waits until both of its versions are served.
func awaitDefinition(t *testing.T, a *apiClient, create call, plural string) {
	t.Helper()
	if response := a.send(create); !strings.HasPrefix(response, "201") {
		t.Fatalf("a definition of valid schemas: %s", response)
	}
	deadline := time.Now().Add(2 * time.Minute)
	for _, version := range []string{"v1", "v2"} {
		for {
			response := a.send(call{method: http.MethodGet, path: "/apis/example.com/" + version + "/" + plural})
			if strings.HasPrefix(response, "200") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s is not served: %s", plural, response)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// awaitState waits for the conditions of a definition and returns its status.
func awaitState(t *testing.T, a *apiClient, plural string) string {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		response := a.send(call{method: http.MethodGet, path: definitionsPath + "/" + plural + ".example.com"})
		// The reasons of Established, which follows NamesAccepted.
		if strings.Contains(response, `"NotAccepted"`) || strings.Contains(response, `"InitialNamesAccepted"`) {
			_, status, _ := strings.Cut(response, "\n \"status\"")
			return status
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s gets no conditions: %s", plural, response)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// writesOf are writes of an object with one property, and reads of what they leave.
func writesOf(r *rand.Rand, plural, property string, schema map[string]any) []call {
	name := "object-" + property
	path := "/apis/example.com/v1/" + plural
	body := func(spec map[string]any) string {
		spec[property] = randomValue(r, schema)
		return textOf(map[string]any{"apiVersion": "example.com/v1", "kind": kindOf(plural), "metadata": map[string]any{"name": name}, "spec": spec})
	}
	written, fields := func() string { return body(map[string]any{"unknown": 1}) }, func() string { return body(map[string]any{}) }
	what := plural + " " + property + " " + textOf(schema) + " "
	one := func(action, method, path, body string) call {
		return call{what + action + " " + body, method, path, body}
	}
	applied := path + "/" + name + "?fieldValidation=Warn&fieldManager="
	return []call{
		one("create strictly", http.MethodPost, path+"?fieldValidation=Strict&dryRun=All&fieldManager=a", fields()),
		one("create", http.MethodPost, path+"?fieldManager=a", written()),
		one("merge", mergePatch, path+"/"+name+"?fieldManager=a", written()),
		one("merge again", mergePatch, path+"/"+name+"?fieldManager=c", written()),
		one("apply", applyPatch, applied+"b", fields()),
		one("apply by force", applyPatch, applied+"b&force=true", fields()),
		one("apply as another", applyPatch, applied+"d", fields()),
		one("read", http.MethodGet, "/apis/example.com/v2/"+plural+"/"+name, ""),
		one("delete", http.MethodDelete, path+"/"+name, ""),
	}
}

// sendToBoth sends calls to both servers, in their order, and returns the responses of each.
func sendToBoth(ours, theirs *apiClient, calls []call) (responses [2][]string) {
	var wg sync.WaitGroup
	for i, a := range []*apiClient{ours, theirs} {
		wg.Go(func() {
			for _, c := range calls {
				responses[i] = append(responses[i], a.send(c))
			}
		})
	}
	wg.Wait()
	return responses
}

// compareResponses compares the responses to calls, and returns how many upstream has refused.
func compareResponses(t *testing.T, calls []call, responses [2][]string) (refused int) {
	t.Helper()
	differ := 0
	for i, c := range calls {
		got, want := randomType.ReplaceAllString(responses[0][i], ""), randomType.ReplaceAllString(responses[1][i], "")
		if !strings.HasPrefix(want, "20") {
			refused++
		}
		if c.method == applyPatch || c.method == http.MethodGet {
			// If an applied field is pruned, upstream raises the generation although nothing has changed.
			got, want = generation.ReplaceAllString(got, ""), generation.ReplaceAllString(want, "")
		}
		if got == want || !strings.HasPrefix(want, "20") && errorParts(got) == errorParts(want) {
			continue
		}
		if differ++; differ <= 10 {
			t.Errorf("%s %s\n%s\n%s", c.method, c.path, c.name, difference(got, want))
		}
	}
	if differ > 0 {
		t.Errorf("%d of %d responses differ", differ, len(calls))
	}
	return refused
}

var (
	// randomType is the name of the type that the rules of an object are about.
	randomType = regexp.MustCompile(`selfType[0-9]+`)
	generation = regexp.MustCompile(`"generation": [0-9]+`)
)

// errorParts are the parts of an error in order: several are reported in the order of Go's maps. The library of server-side apply stops at a field that the
// schema does not have, so which errors it has found before is random in both servers.
func errorParts(text string) string {
	if code, _, _ := strings.Cut(text, " "); strings.Contains(text, "field not declared in schema") {
		return code + " field not declared in schema"
	}
	text = strings.NewReplacer(`errors:\n`, "\n", `\n`, "\n").Replace(text)
	parts := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(",[]\n{}", r) })
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}

// randomSchema is a schema, most often a valid one.
func randomSchema(r *rand.Rand, depth int) map[string]any {
	s := map[string]any{}
	maybe := func(odds int, key string, values ...any) {
		if r.IntN(odds) == 0 {
			s[key] = pick(r, values)
		}
	}
	options := 5
	if depth > 0 {
		options = 9
	}
	switch r.IntN(options) {
	case 0, 1:
		s["type"] = "string"
		maybe(2, "maxLength", 3, 5, 20)
		maybe(5, "minLength", 0, 2)
		maybe(5, "pattern", "^a", "[0-9]+$", "é|b")
		maybe(6, "format", "date-time", "email", "byte", "ipv4", "uuid", "duration", "quantity")
		maybe(8, "enum", []any{"a", "abc"}, []any{"b"})
		maybe(5, "default", "a", "abc", "abcdefgh")
		rules(r, s, "self.size() < 4", "self.startsWith('a')", "self == oldSelf", "self != 'b'", "self.matches('^[a-z]*$')", "self < 3")
	case 2:
		s["type"] = pick(r, []any{"integer", "integer", "number"})
		maybe(4, "minimum", 0, 2)
		maybe(4, "maximum", 3, 100)
		maybe(8, "multipleOf", 2, 3)
		maybe(6, "format", "int32", "int64", "double")
		maybe(5, "default", 1, 2, 7)
		rules(r, s, "self < 5", "self >= oldSelf", "self % 2 == 0", "self.x == 1")
	case 3:
		s["type"] = "boolean"
		maybe(3, "default", true, false, "true")
		rules(r, s, "self", "self || !oldSelf")
	case 4:
		switch r.IntN(4) {
		case 0:
			s["x-kubernetes-int-or-string"] = true
			maybe(3, "default", 1, "10%")
		case 1:
			s["x-kubernetes-preserve-unknown-fields"] = true
		case 2:
			s["type"], s["x-kubernetes-embedded-resource"] = "object", true
			maybe(2, "x-kubernetes-preserve-unknown-fields", true)
		default:
			s["type"] = pick(r, []any{"object", "null", "text", "array"})
		}
	case 5, 6:
		s["type"] = "array"
		s["items"] = randomSchema(r, depth-1)
		maybe(2, "maxItems", 2, 5)
		maybe(6, "minItems", 1)
		maybe(3, "x-kubernetes-list-type", "atomic", "set", "map")
		if s["x-kubernetes-list-type"] == "map" {
			s["x-kubernetes-list-map-keys"] = []any{"k"}
			s["items"] = map[string]any{"type": "object", "required": []any{"k"}, "properties": map[string]any{"k": map[string]any{"type": "string", "maxLength": 5}, "v": randomSchema(r, depth-1)}}
		}
		maybe(6, "default", []any{}, []any{"a"})
		rules(r, s, "self.size() < 3", "self.all(x, x == x)", "oldSelf.size() <= self.size()")
	default:
		s["type"] = "object"
		if r.IntN(3) == 0 {
			s["additionalProperties"] = randomSchema(r, depth-1)
			maybe(2, "maxProperties", 1, 3)
		} else {
			s["properties"] = map[string]any{"a": randomSchema(r, depth-1), "b": randomSchema(r, depth-1)}
			maybe(3, "required", []any{"a"}, []any{"a", "b"}, []any{"c"})
			rules(r, s, "has(self.a)", "!has(self.b) || has(self.a)", "has(oldSelf.a) == has(self.a)")
		}
		maybe(4, "default", map[string]any{}, map[string]any{"a": "a"}, map[string]any{"a": 1})
		maybe(6, "x-kubernetes-map-type", "atomic", "granular")
		maybe(8, "x-kubernetes-preserve-unknown-fields", true)
	}
	maybe(5, "nullable", true)
	return s
}

// rules adds CEL rules to a third of the schemas.
func rules(r *rand.Rand, s map[string]any, from ...string) {
	if r.IntN(3) > 0 {
		return
	}
	rule := map[string]any{"rule": pick(r, from)}
	if r.IntN(3) == 0 {
		rule["message"] = "refused"
	}
	if r.IntN(5) == 0 {
		rule["messageExpression"] = pick(r, []string{"'not ' + string(self)", "'one\ntwo'", "1"})
	}
	if r.IntN(5) == 0 {
		rule["reason"] = pick(r, []string{"FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate", "Nothing"})
	}
	if strings.Contains(rule["rule"].(string), "oldSelf") && r.IntN(6) == 0 {
		rule["optionalOldSelf"] = true
	}
	s["x-kubernetes-validations"] = []any{rule}
}

// randomValue is a value for a schema, often a valid one.
func randomValue(r *rand.Rand, s map[string]any) any {
	if r.IntN(12) == 0 {
		return pick(r, []any{nil, "a", 1, 1.5, true, []any{}, map[string]any{}, map[string]any{"x": "y"}, []any{"a", "a"}, "2024-01-01T00:00:00Z"})
	}
	switch s["type"] {
	case "string":
		return pick(r, []any{"a", "abc", "b", "ab1", "", "éé", "abcdefgh", "a@example.com", "2024-01-01T00:00:00Z", "10.0.0.1", "1h"})
	case "integer":
		return pick(r, []any{0, 1, 2, 3, 4, 6, 7, 101, -1})
	case "number":
		return pick(r, []any{0, 1, 2.5, 3, 100, 1e3})
	case "boolean":
		return r.IntN(2) == 0
	case "array":
		items, _ := s["items"].(map[string]any)
		list := []any{}
		for range r.IntN(4) {
			list = append(list, randomValue(r, items))
		}
		return list
	case "object":
		object := map[string]any{}
		if s["x-kubernetes-embedded-resource"] == true {
			object = map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "a", "unknown": 1}, "spec": map[string]any{}}
		}
		properties, _ := s["properties"].(map[string]any)
		for _, name := range []string{"a", "b", "k", "v"} {
			if property, ok := properties[name].(map[string]any); ok && r.IntN(5) > 0 {
				object[name] = randomValue(r, property)
			}
		}
		if inner, ok := s["additionalProperties"].(map[string]any); ok {
			for _, name := range []string{"x", "y"}[:r.IntN(3)] {
				object[name] = randomValue(r, inner)
			}
		}
		if r.IntN(6) == 0 {
			object["more"] = "unknown"
		}
		return object
	}
	return pick(r, []any{1, "10%", "a", map[string]any{"a": map[string]any{"b": 1}}, []any{1, "a"}})
}
