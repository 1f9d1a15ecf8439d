package openapi

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Aggregated are the documents of a group version that an aggregated API server serves. The zero value is one without documents.
type Aggregated struct {
	// Hash identifies the v3 document. Empty: there is none.
	Hash string
	// V3 serves the v3 document. nil: it is made from V2.
	V3 http.Handler
	// V2 is the v2 document of the group version in JSON. Empty: there is none.
	V2     []byte
	V2Hash string
}

// SetAggregated makes the documents of an aggregated server those of a group version, in place of those of its kinds. nil: the kinds are
// described again.
func (d *Documents) SetAggregated(gv schema.GroupVersion, documents *Aggregated) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.membersOf(gv)
	m.aggregated = documents
	d.removeEmpty(gv, m)
}

// newAggregated describes the group version of an aggregated server.
func (d *Documents) newAggregated(gv schema.GroupVersion, a *Aggregated) *groupVersion {
	p := &groupVersion{gv: gv, aggregated: a, hash: a.Hash}
	switch {
	case a.Hash == "":
	case a.V3 != nil:
		p.v3 = &document{hash: a.Hash, handler: a.V3}
	default:
		p.v3 = newDocument(a.Hash, func() (*content, error) { return d.convertedContent(a.V2) })
	}
	return p
}

// convertedContent is the v3 document made from a v2 document.
func (d *Documents) convertedContent(v2 []byte) (*content, error) {
	document, err := parseV2(v2)
	if err != nil {
		return nil, err
	}
	converted := openapiconv.ConvertV2ToV3(document)
	c := &content{paths: map[string]string{}}
	if c.info, err = json.Marshal(d.info()); err != nil {
		return nil, err
	}
	if converted.Paths != nil {
		for path, item := range converted.Paths.Paths {
			if c.paths[path], err = encode(item); err != nil {
				return nil, fmt.Errorf("encode path %s: %w", path, err)
			}
		}
	}
	if converted.Components != nil {
		c.schemas, err = encodeAll(converted.Components.Schemas)
	}
	return c, err
}

func parseV2(text []byte) (*spec.Swagger, error) {
	document := &spec.Swagger{}
	if err := document.UnmarshalJSON(text); err != nil {
		return nil, fmt.Errorf("parse v2 document: %w", err)
	}
	return document, nil
}

// addAggregated adds the documents of aggregated servers to the v2 document, which is otherwise complete. An invalid one is left out: its
// server must not be able to make the others disappear.
func (c *content) addAggregated(s *state) {
	var gvs []schema.GroupVersion
	for gv, p := range s.groupVersions {
		if p.aggregated != nil && len(p.aggregated.V2) > 0 {
			gvs = append(gvs, gv)
		}
	}
	// The order decides which of two definitions with one name is renamed.
	slices.SortFunc(gvs, compareGroupVersions)
	for _, gv := range gvs {
		_ = c.mergeV2(s.groupVersions[gv].aggregated.V2)
	}
}

// mergeV2 adds a v2 document. Its definitions and parameters that have the name of others and differ from them are renamed.
func (c *content) mergeV2(text []byte) error {
	source, err := parseV2(text)
	if err != nil {
		return err
	}
	merged := &spec.Swagger{SwaggerProps: spec.SwaggerProps{Definitions: spec.Definitions{}, Parameters: map[string]spec.Parameter{}}}
	// Only members with the same names can be in conflict. The others need not be parsed.
	if err := parseNamed(c.schemas, merged.Definitions, maps.Keys(source.Definitions)); err != nil {
		return err
	}
	if err := parseNamed(c.parameters, merged.Parameters, maps.Keys(source.Parameters)); err != nil {
		return err
	}
	if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(merged, source); err != nil {
		return fmt.Errorf("merge v2 document: %w", err)
	}
	schemas, err := encodeMembers(merged.Definitions)
	if err != nil {
		return err
	}
	parameters, err := encodeMembers(merged.Parameters)
	if err != nil {
		return err
	}
	paths := map[string]string{}
	if merged.Paths != nil {
		if paths, err = encodeMembers(merged.Paths.Paths); err != nil {
			return err
		}
	}
	maps.Copy(c.schemas, schemas)
	maps.Copy(c.parameters, parameters)
	maps.Copy(c.paths, paths)
	return nil
}

// parseNamed parses the members that have one of the names, or the name that a conflict with one of them would result in.
func parseNamed[T any](members map[string]string, into map[string]T, names iter.Seq[string]) error {
	for name := range names {
		for i, candidate := 1, name; ; candidate = fmt.Sprintf("%s_v%d", name, i) {
			text, ok := members[candidate]
			if !ok {
				break
			}
			var member T
			if err := json.Unmarshal([]byte(text), &member); err != nil {
				return fmt.Errorf("parse %s: %w", candidate, err)
			}
			into[candidate] = member
			i++
		}
	}
	return nil
}

// encodeMembers encodes the members of a section.
func encodeMembers[T any](members map[string]T) (map[string]string, error) {
	out := make(map[string]string, len(members))
	for name, member := range members {
		text, err := encode(member)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", name, err)
		}
		out[name] = text
	}
	return out, nil
}
