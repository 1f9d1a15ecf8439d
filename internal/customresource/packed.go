package customresource

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Packed is a CustomResourceDefinition with compressed schemas. Decoded they take ten times the memory of the stored definition, compressed a
// tenth, and most definitions of a cluster are hardly used.
type Packed struct {
	crd     *apiextensionsv1.CustomResourceDefinition // without schemas and most of the metadata
	schemas map[string][]byte                         // by version: the protobuf encoding, compressed
}

// Pack compresses the schemas of a definition. The definition must not change afterwards.
func Pack(crd *apiextensionsv1.CustomResourceDefinition) (*Packed, error) {
	d := &Packed{crd: WithoutSchemas(crd), schemas: make(map[string][]byte, len(crd.Spec.Versions))}
	for i := range crd.Spec.Versions {
		version := &crd.Spec.Versions[i]
		if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
			continue
		}
		encoded, err := version.Schema.OpenAPIV3Schema.Marshal()
		if err != nil {
			return nil, fmt.Errorf("encode schema of version %s: %w", version.Name, err)
		}
		d.schemas[version.Name] = compress(encoded)
	}
	return d, nil
}

// WithoutSchemas returns a definition without what makes it large: the schemas, and metadata besides its identity. It shares the rest.
func WithoutSchemas(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	small := *crd
	small.ObjectMeta = metav1.ObjectMeta{Name: crd.Name, UID: crd.UID, Generation: crd.Generation, ResourceVersion: crd.ResourceVersion, DeletionTimestamp: crd.DeletionTimestamp}
	small.Spec.Versions = make([]apiextensionsv1.CustomResourceDefinitionVersion, len(crd.Spec.Versions))
	for i := range crd.Spec.Versions {
		small.Spec.Versions[i] = crd.Spec.Versions[i]
		small.Spec.Versions[i].Schema = nil
	}
	return &small
}

// schema returns the schema of a version in the library's internal type; nil when there is none.
func (d *Packed) schema(version string) (*apiextensions.JSONSchemaProps, error) {
	packed := d.schemas[version]
	if packed == nil {
		return nil, nil
	}
	encoded, err := io.ReadAll(flate.NewReader(bytes.NewReader(packed)))
	if err != nil {
		return nil, fmt.Errorf("expand schema: %w", err)
	}
	in := apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{}}
	if err := in.OpenAPIV3Schema.Unmarshal(encoded); err != nil {
		return nil, fmt.Errorf("decode schema: %w", err)
	}
	var out apiextensions.CustomResourceValidation
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(&in, &out, nil); err != nil {
		return nil, fmt.Errorf("convert schema: %w", err)
	}
	return out.OpenAPIV3Schema, nil
}

// compressors are reused: each needs more memory than the schemas it compresses.
var compressors = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.BestSpeed) // only an invalid level is an error
	return w
}}

func compress(data []byte) []byte {
	var out bytes.Buffer
	w := compressors.Get().(*flate.Writer)
	defer compressors.Put(w)
	w.Reset(&out)
	_, _ = w.Write(data) // a buffer has no errors
	_ = w.Close()
	return bytes.Clone(out.Bytes())
}
