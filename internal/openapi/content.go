package openapi

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	builderv2 "k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// content is a document before it is encoded: the members of each section as JSON, by name.
type content struct {
	info       []byte
	paths      map[string]string
	schemas    map[string]string
	parameters map[string]string // v2 only
	v2         bool
}

const (
	securityV3 = `"securitySchemes":{"BearerToken":{"type":"apiKey","description":"Bearer Token authentication","name":"authorization","in":"header"}}`
	securityV2 = `"securityDefinitions":{"BearerToken":{"description":"Bearer Token authentication","type":"apiKey","name":"authorization","in":"header"}},"security":[{"BearerToken":[]}]`
)

func (d *Documents) info() *spec.Info {
	return &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes", Version: d.version}}
}

// operation uses the route itself as the name of the operation.
func operation(r common.Route) (string, []string, error) {
	own := r.(*route)
	return own.id, []string{own.tag}, nil
}

// stubs are empty definitions of the bodies of routes: kube-openapi requires all of them, and the real ones are added as
// text afterwards.
func (rs routes) stubs(common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	stubs := map[string]common.OpenAPIDefinition{}
	for name := range rs.bodies() {
		stubs[name] = common.OpenAPIDefinition{}
	}
	return stubs
}

// bodies are the definitions of requests and responses.
func (rs routes) bodies() map[string]bool {
	names := map[string]bool{}
	for _, r := range rs {
		for _, body := range []model{r.reads, r.writes} {
			if strings.Contains(string(body), ".") {
				names[string(body)] = true
			}
		}
	}
	return names
}

// v3Content is the OpenAPI v3 document of routes, with the schemas of p. p may be nil.
func (d *Documents) v3Content(rs routes, p *groupVersion) (*content, error) {
	document, err := builder3.BuildOpenAPISpecFromRoutes([]common.RouteContainer{rs}, &common.OpenAPIV3Config{
		Info:                           d.info(),
		CommonResponses:                map[int]*spec3.Response{401: {ResponseProps: spec3.ResponseProps{Description: "Unauthorized"}}},
		GetDefinitions:                 rs.stubs,
		GetOperationIDAndTagsFromRoute: operation,
	})
	if err != nil {
		return nil, fmt.Errorf("describe routes: %w", err)
	}
	c := &content{paths: map[string]string{}, schemas: map[string]string{}}
	if c.info, err = json.Marshal(d.info()); err != nil {
		return nil, err
	}
	for path, item := range document.Paths.Paths {
		if c.paths[path], err = encode(item); err != nil {
			return nil, fmt.Errorf("encode path %s: %w", path, err)
		}
	}
	var own map[string]string
	if p != nil {
		custom, err := p.schemas()
		if err != nil {
			return nil, err
		}
		if own, err = encodeAll(custom.V3); err != nil {
			return nil, err
		}
	}
	for name := range rs.bodies() {
		if err := collect(c.schemas, own, name); err != nil {
			return nil, err
		}
	}
	maps.Copy(c.schemas, own)
	return c, nil
}

func encode(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}

func encodeAll(schemas map[string]*spec.Schema) (map[string]string, error) {
	out := make(map[string]string, len(schemas))
	for name, s := range schemas {
		text, err := encode(s)
		if err != nil {
			return nil, fmt.Errorf("encode schema %s: %w", name, err)
		}
		out[name] = text
	}
	return out, nil
}

// groupVersionContent is the document of one group version.
func (d *Documents) groupVersionContent(p *groupVersion) (*content, error) {
	c, err := d.v3Content(groupVersionRoutes(p.gv, p.kinds), p)
	if err != nil {
		return nil, fmt.Errorf("document of %s: %w", p.gv, err)
	}
	if ownOptions(p.gv) {
		c.addKinds([]schema.GroupVersion{p.gv})
	}
	return c, nil
}

// ownOptions reports whether a group version has its own kinds for the common options: the built-in ones do. Those of the
// core group are in the definitions.
func ownOptions(gv schema.GroupVersion) bool {
	_, builtIn := packages()[gv]
	return builtIn && gv.Group != ""
}

// addKinds adds the kinds of the group versions to the definitions of the common option types.
func (c *content) addKinds(gvs []schema.GroupVersion) {
	for _, name := range []string{"DeleteOptions", "WatchEvent"} {
		text, ok := c.schemas[metaPackage+name]
		if !ok {
			continue
		}
		var more strings.Builder
		for _, gv := range gvs {
			gvk, _ := json.Marshal(metav1.GroupVersionKind{Group: gv.Group, Version: gv.Version, Kind: name}) // strings only
			more.Write(append([]byte{','}, gvk...))
		}
		core := `"version":"v1"}`
		c.schemas[metaPackage+name] = strings.Replace(text, core, core+more.String(), 1)
	}
}

// v2Content is the OpenAPI v2 document of everything served.
func (d *Documents) v2Content(s *state) (*content, error) {
	c := &content{v2: true, paths: map[string]string{}, schemas: map[string]string{}, parameters: map[string]string{}}
	var err error
	if c.info, err = json.Marshal(d.info()); err != nil {
		return nil, err
	}
	add := func(rs routes, own map[string]string) error {
		if err := c.addV2(rs); err != nil {
			return err
		}
		for name := range rs.bodies() {
			if err := collect(c.schemas, own, name); err != nil {
				return err
			}
		}
		return nil
	}
	ownV2 := map[string]*spec.Schema{}
	var gvs []schema.GroupVersion
	for gv, p := range s.groupVersions {
		if p.aggregated != nil {
			continue
		}
		custom, err := p.schemas()
		if err != nil {
			return nil, fmt.Errorf("schemas of %s: %w", gv, err)
		}
		own, err := encodeAll(custom.V3)
		if err == nil {
			err = add(groupVersionRoutes(gv, p.kinds), own)
		}
		if err != nil {
			return nil, fmt.Errorf("document of %s: %w", gv, err)
		}
		maps.Copy(ownV2, custom.V2)
		if ownOptions(gv) {
			gvs = append(gvs, gv)
		}
	}
	for _, rs := range rootRoutes(s.groups()) {
		if err := add(rs, nil); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(gvs, compareGroupVersions)
	c.addKinds(gvs)
	for name, text := range c.schemas {
		if ownV2[name] != nil {
			continue
		}
		if c.schemas[name], err = schemaV2(text); err != nil {
			return nil, fmt.Errorf("schema %s: %w", name, err)
		}
	}
	own, err := encodeAll(ownV2)
	if err != nil {
		return nil, err
	}
	maps.Copy(c.schemas, own)
	c.addAggregated(s)
	return c, nil
}

// addV2 adds the paths of routes, and the parameters they share.
func (c *content) addV2(rs routes) error {
	document, err := builderv2.BuildOpenAPISpecFromRoutes([]common.RouteContainer{rs}, &common.Config{
		ProtocolList:                   []string{"https"},
		CommonResponses:                map[int]spec.Response{401: {ResponseProps: spec.ResponseProps{Description: "Unauthorized"}}},
		GetDefinitions:                 rs.stubs,
		GetOperationIDAndTagsFromRoute: operation,
	})
	if err != nil {
		return fmt.Errorf("describe routes: %w", err)
	}
	for path, item := range document.Paths.Paths {
		if c.paths[path], err = encode(item); err != nil {
			return fmt.Errorf("encode path %s: %w", path, err)
		}
	}
	// Shared parameters are named by their content, so those of different group versions are merged.
	for name, p := range document.Parameters {
		if c.parameters[name], err = encode(p); err != nil {
			return fmt.Errorf("encode parameter %s: %w", name, err)
		}
	}
	return nil
}

// schemaV2 converts a v3 schema to v2.
func schemaV2(text string) (string, error) {
	var s any
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return "", err
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(olderSchema(s.(map[string]any))); err != nil {
		return "", err
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

// olderSchema drops defaults, replaces allOf by $ref with a description, and declares types with alternatives as strings.
func olderSchema(s map[string]any) map[string]any {
	delete(s, "default")
	if all, ok := s["allOf"].([]any); ok && len(all) == 1 {
		delete(s, "allOf")
		maps.Copy(s, all[0].(map[string]any))
	}
	if one, ok := s["oneOf"].([]any); ok && bareTypes(one) {
		delete(s, "oneOf")
		s["type"] = "string"
	}
	if ref, ok := s["$ref"].(string); ok {
		s["$ref"] = "#/definitions/" + strings.TrimPrefix(ref, refPrefix)
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if inner, ok := s[key].(map[string]any); ok {
			s[key] = olderSchema(inner)
		}
	}
	if properties, ok := s["properties"].(map[string]any); ok {
		for name, p := range properties {
			properties[name] = olderSchema(p.(map[string]any))
		}
	}
	return s
}

// bareTypes reports whether the alternatives consist only of types: a number or a string.
func bareTypes(alternatives []any) bool {
	return !slices.ContainsFunc(alternatives, func(a any) bool {
		s, ok := a.(map[string]any)
		return !ok || len(s) != 1 || s["type"] == nil
	})
}

// writeJSON writes the whole document.
func (c *content) writeJSON(w io.Writer) error {
	if c.v2 {
		fmt.Fprintf(w, `{"swagger":"2.0","info":%s,"paths":{`, c.info)
	} else {
		fmt.Fprintf(w, `{"openapi":"3.0.0","info":%s,"paths":{`, c.info)
	}
	writeMembers(w, c.paths)
	if c.v2 {
		io.WriteString(w, `},"definitions":{`)
		writeMembers(w, c.schemas)
		io.WriteString(w, `},"parameters":{`)
		writeMembers(w, c.parameters)
		_, err := io.WriteString(w, `},`+securityV2+`}`)
		return err
	}
	io.WriteString(w, `},"components":{`)
	if len(c.schemas) > 0 {
		io.WriteString(w, `"schemas":{`)
		writeMembers(w, c.schemas)
		io.WriteString(w, `},`)
	}
	_, err := io.WriteString(w, securityV3+`}}`)
	return err
}

// writeMembers writes the members of an object in the order of their names. A write error is returned by a later write.
func writeMembers(w io.Writer, members map[string]string) {
	for i, name := range slices.Sorted(maps.Keys(members)) {
		if i > 0 {
			io.WriteString(w, ",")
		}
		fmt.Fprintf(w, "%q:%s", name, strings.ReplaceAll(members[name], "\n", ""))
	}
}

// batchSize is how much JSON is converted to protobuf at a time. The conversion needs about fifty times its input in
// memory, and protobuf messages may be written in several parts, which readers merge.
const batchSize = 32 << 10

// writeProto writes the document in the protobuf encoding of its version.
func (c *content) writeProto(w io.Writer) error {
	// The first part has only the header; the others omit it.
	if err := (&content{v2: c.v2, info: c.info}).writePiece(w, true); err != nil {
		return err
	}
	for batch := range batches(c.paths) {
		if err := (&content{v2: c.v2, info: c.info, paths: batch}).writePiece(w, false); err != nil {
			return fmt.Errorf("paths: %w", err)
		}
	}
	for batch := range batches(c.schemas) {
		if err := (&content{v2: c.v2, info: c.info, schemas: batch}).writePiece(w, false); err != nil {
			return fmt.Errorf("schemas: %w", err)
		}
	}
	for batch := range batches(c.parameters) {
		if err := (&content{v2: c.v2, info: c.info, parameters: batch}).writePiece(w, false); err != nil {
			return fmt.Errorf("parameters: %w", err)
		}
	}
	return nil
}

// batches splits members into maps of about batchSize, in the order of their names.
func batches(members map[string]string) iter.Seq[map[string]string] {
	return func(yield func(map[string]string) bool) {
		batch, size := map[string]string{}, 0
		for _, name := range slices.Sorted(maps.Keys(members)) {
			batch[name] = members[name]
			if size += len(members[name]); size >= batchSize {
				if !yield(batch) {
					return
				}
				batch, size = map[string]string{}, 0
			}
		}
		if len(batch) > 0 {
			yield(batch)
		}
	}
}

func (c *content) writePiece(w io.Writer, head bool) error {
	var text bytes.Buffer
	if err := c.writeJSON(&text); err != nil {
		return err
	}
	message, err := c.message(text.Bytes(), head)
	if err != nil {
		return fmt.Errorf("convert to protobuf: %w", err)
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	_, err = w.Write(encoded)
	return err
}

func (c *content) message(text []byte, head bool) (proto.Message, error) {
	if c.v2 {
		m, err := openapi_v2.ParseDocument(text)
		if err == nil && !head {
			m.Swagger, m.Info, m.SecurityDefinitions, m.Security = "", nil, nil, nil
		}
		return m, err
	}
	m, err := openapi_v3.ParseDocument(text)
	if err == nil && !head {
		m.Openapi, m.Info = "", nil
		m.Components.SecuritySchemes = nil
	}
	return m, err
}

func compress(write func(io.Writer) error) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	if err := write(zip); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	return bytes.Clone(out.Bytes()), nil
}
