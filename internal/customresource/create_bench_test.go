package customresource_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// BenchmarkCreate is a create of a custom resource of usual size, from the request to the store.
func BenchmarkCreate(b *testing.B) {
	var properties strings.Builder
	for i := range 300 {
		fmt.Fprintf(&properties, "                  part%d: {type: array, items: {type: object, required: [name], properties: {name: {type: string}, image: {type: string}, mode: {type: string}, region: {type: string}}}}\n", i)
	}
	s := newServer(b, `
versions:
- name: v1
  served: true
  storage: true
  schema:
    openAPIV3Schema:
      type: object
      properties:
        spec:
          type: object
          properties:
`+strings.ReplaceAll(properties.String(), "                  part", "            part"), nil)
	items := make([]string, 5)
	for i := range items {
		items[i] = fmt.Sprintf(`{"name":"value-%d","image":"registry.example/web:1.2.3","mode":"production","region":"north"}`, i)
	}
	body := `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w%d","labels":{"app":"bench"}},"spec":{"part0":[` + strings.Join(items, ",") + `]}}`
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if got := s.send(http.MethodPost, "v1/namespaces/default/widgets", fmt.Sprintf(body, i)); got.code != http.StatusCreated {
			b.Fatal(got.text)
		}
	}
}
