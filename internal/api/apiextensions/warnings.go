package apiextensions

import (
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/sets"
)

// warnings are the texts about formats that are not validated and about sets that cannot be merged. An update causes only those that are new.
func warnings(crd, old *definition) []string {
	if HasSimpleSchemas(crd) {
		return nil
	}
	formats, lists := warningsOf(crd)
	if old != nil {
		oldFormats, oldLists := warningsOf(old)
		known := sets.New(oldFormats...) // there can be as many as a definition has fields
		formats = slices.DeleteFunc(formats, known.Has)
		lists = lists.Difference(oldLists)
	}
	return append(formats, sets.List(lists)...)
}

func warningsOf(crd *definition) (formats []string, lists sets.Set[string]) {
	lists = sets.New[string]()
	converted, err := hoisted(crd)
	if err != nil {
		return nil, lists // validation has failed with the same error
	}
	specContains(&converted.Spec, func(s *apiextensions.JSONSchemaProps) bool {
		if s.Format != "" {
			for _, format := range unrecognizedFormats(s.Type, s.Format) {
				formats = append(formats, fmt.Sprintf("unrecognized format %q", format))
			}
		}
		if s.XListType != nil && *s.XListType == "set" && s.Items != nil && s.Items.Schema != nil && (s.Items.Schema.Type == "object" || s.Items.Schema.Type == "array") {
			lists.Insert(fmt.Sprintf("x-kubernetes-list-type: set for items of type %q is not supported by server-side apply or CEL validation rules", s.Items.Schema.Type))
		}
		return false
	})
	return formats, lists
}
