package apiserver

import (
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"

	"skiff/internal/apiserver/managedfields"
	"skiff/internal/kind"
)

// applied merges the applied configuration into the live object, or into an empty one when there is none, and runs mutating
// admission on the result.
func (p *patcher) applied(c *change, live kind.Object) (kind.Object, error) {
	w := p.w
	m, err := w.res.managers.Manager(w.sub)
	if err != nil {
		return nil, err
	}
	base := live
	if base == nil {
		base = w.res.emptyForWrite()
	}
	obj, err := p.merge(m.With(w.ctx), base)
	if err != nil {
		return nil, err
	}
	if w.res.kind.PruneApplied != nil {
		// An object for which the schema has no properties is applied as a whole.
		if err := w.res.kind.PruneApplied(obj, w.res.version); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
	}
	if w.res.kind.Custom != nil {
		w.res.kind.SetDefaults(w.res.version, obj)
	} else if w.res.kind.Default != nil {
		w.res.kind.Default(obj)
	}
	if live == nil && obj.GetUID() != "" {
		return nil, apierrors.NewConflict(w.res.groupResource(), w.name,
			fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", obj.GetUID()))
	}
	if err := p.check(obj); err != nil {
		return nil, err
	}
	return w.mutated(c, live, obj)
}

// merge decodes the configuration and applies it. Strict decoding errors are reported after errors of the merge.
func (p *patcher) merge(m *managedfields.Manager, base kind.Object) (kind.Object, error) {
	configuration := &unstructured.Unstructured{Object: map[string]any{}}
	if err := apiyaml.Unmarshal(p.body, &configuration.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	if n := longestList(configuration.Object); n > maxAppliedItems {
		return nil, apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("The allowed maximum items in a list or map of an applied configuration is %d, got %d", maxAppliedItems, n))
	}
	if err := checkConfiguration(configuration.Object, p.w.res.newObject()); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	obj, err := m.Apply(base, configuration, p.options.FieldManager, ptr.Deref(p.options.Force, false))
	if err != nil {
		return nil, err
	}
	if !p.directive.enabled() {
		return obj, nil
	}
	if err := apiyaml.UnmarshalStrict(p.body, &map[string]any{}); err != nil {
		if p.directive == metav1.FieldValidationStrict {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error strict decoding patch: %v", err))
		}
		warnOfStrictErrors([]error{err}, p.w.warn)
	}
	return obj, nil
}

// checkConfiguration checks that an applied configuration can be converted to obj at a small cost.
func checkConfiguration(configuration map[string]any, obj kind.Object) error {
	if err := kind.CheckPaths(configuration); err != nil {
		return err
	}
	if err := checkNesting(configuration, obj); err != nil {
		return err
	}
	return checkQuantities(reflect.TypeOf(obj), configuration)
}

// maxAppliedItems is the length of the longest list or map in an applied configuration. The library inserts each item into a sorted list, which is
// quadratic: 40,000 items took eight seconds. The owners of so many fields hardly fit into the store.
const maxAppliedItems = 10000

// longestList is the length of the longest list or map in a JSON value.
func longestList(value any) int {
	longest := 0
	switch value := value.(type) {
	case map[string]any:
		longest = len(value)
		for _, below := range value {
			longest = max(longest, longestList(below))
		}
	case []any:
		longest = len(value)
		for _, item := range value {
			longest = max(longest, longestList(item))
		}
	}
	return longest
}
