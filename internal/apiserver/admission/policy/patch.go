package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"google.golang.org/protobuf/types/known/structpb"
	evanphx "gopkg.in/evanphx/json-patch.v4"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	celmutation "k8s.io/apiserver/pkg/cel/mutation"
	"k8s.io/apiserver/pkg/cel/mutation/dynamic"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"skiff/internal/apiserver/admission/cel"
	"skiff/internal/apiserver/jsonpatch"
	"skiff/internal/kind"
)

// mutator is a compiled MutatingAdmissionPolicy.
type mutator struct {
	conditions *cel.Conditions
	variables  *cel.Variables
	patches    []compiledPatch
}

// compiledPatch is a compiled mutation.
type compiledPatch struct {
	expression *cel.Expression
	// merge: the expression evaluates to an apply configuration, otherwise to a JSON patch.
	merge bool
}

var (
	applyConfigurationType = celgo.ObjectType("Object")
	jsonPatchType          = celgo.ListType(celgo.ObjectType("JSONPatch"))
)

func compileMutator(p *mutatingPolicy, metrics *cel.Metrics) *mutator {
	hasParams := p.Spec.ParamKind != nil
	compiler := cel.NewCompiler(p.Spec.Variables, cel.Scope{Params: hasParams, Authorizer: true})
	m := &mutator{
		conditions: cel.CompileConditions(p.Spec.MatchConditions, hasParams, cel.Owner{Name: p.Name, Kind: "policy", Type: "validate"}, metrics),
		variables:  compiler.Variables(),
	}
	scope := cel.Scope{Params: hasParams, Authorizer: true, Patches: true}
	for i := range p.Spec.Mutations {
		switch spec := &p.Spec.Mutations[i]; {
		case spec.PatchType == admissionregistrationv1.PatchTypeApplyConfiguration && spec.ApplyConfiguration != nil:
			m.patches = append(m.patches, compiledPatch{compiler.Compile(spec.ApplyConfiguration.Expression, scope, applyConfigurationType), true})
		case spec.PatchType == admissionregistrationv1.PatchTypeJSONPatch && spec.JSONPatch != nil:
			m.patches = append(m.patches, compiledPatch{compiler.Compile(spec.JSONPatch.Expression, scope, jsonPatchType), false})
		}
	}
	return m
}

// apply applies one mutation to the written object and sets its defaults again. A StatusError rejects the write whatever the failure policy.
func (w *mutation) apply(ctx context.Context, i *invocation, compiled *mutator, patch compiledPatch) error {
	if err := patch.expression.Err(); err != nil {
		return err
	}
	version, err := w.request.Version(i.as.Kind)
	if err != nil {
		return err
	}
	evaluation := &cel.Evaluation{
		Version: version, Resource: i.as.Resource, Params: i.param, Budget: celconfig.RuntimeCELCostBudget, Variables: compiled.variables, Copied: true,
	}
	result, err := evaluation.Evaluate(ctx, patch.expression)
	if err == nil {
		err = result.Err
	}
	if err != nil {
		return err
	}
	var data []byte
	if patch.merge {
		data, err = w.plugin.schemas.merge(version.Object, i.as.Kind, result.Value)
	} else {
		data, err = w.patchJSON(i.as.Kind, result.Value)
	}
	if err != nil || data == nil {
		return err
	}
	changed, err := w.attributes.Versions.Decode(data, i.as.Kind)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	w.attributes.Object = changed
	w.request.Changed()
	return nil
}

// patchJSON applies a JSON patch and returns the object, or nil if a test of the patch fails.
func (w *mutation) patchJSON(gvk schema.GroupVersionKind, result ref.Val) ([]byte, error) {
	patch, err := jsonPatchOf(result)
	if err != nil {
		return nil, err
	}
	if len(patch) > jsonpatch.MaxOperations {
		return nil, &jsonpatch.TooManyError{Operations: len(patch)}
	}
	before, err := w.attributes.Versions.Encode(w.attributes.Object, gvk)
	if err != nil {
		return nil, fmt.Errorf("failed to create JSON patch: %w", err)
	}
	after, err := jsonpatch.Apply(patch, before)
	if errors.Is(err, evanphx.ErrTestFailed) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("JSON Patch: %w", err)
	}
	return after, w.plugin.schemas.checkFields(after, gvk)
}

// jsonPatchOf converts the result of an expression, a list of JSONPatch.
func jsonPatchOf(result ref.Val) (jsonpatch.Patch, error) {
	list, ok := result.(traits.Lister)
	if !ok {
		return nil, errors.New("type mismatch: JSONPatchType.expression should evaluate to array")
	}
	patch := jsonpatch.Patch{}
	for iterator := list.Iterator(); iterator.HasNext() == types.True; {
		element := iterator.Next()
		operation, ok := element.(*celmutation.JSONPatchVal)
		if !ok {
			return nil, fmt.Errorf("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of %T", element)
		}
		made := evanphx.Operation{"op": quoted(operation.Op), "path": quoted(operation.Path)}
		if operation.From != "" {
			made["from"] = quoted(operation.From)
		}
		if operation.Val != nil {
			content, err := jsonOf(operation.Val)
			if err != nil {
				return nil, err
			}
			made["value"] = &content
		}
		patch = append(patch, made)
	}
	return patch, nil
}

// quoted is text in JSON.
func quoted(text string) *json.RawMessage {
	content, _ := json.Marshal(text) // a string has no errors
	return (*json.RawMessage)(&content)
}

// jsonOf is the JSON of a value of an operation.
func jsonOf(v ref.Val) (json.RawMessage, error) {
	if object, ok := v.(*dynamic.ObjectVal); ok {
		if err := object.CheckTypeNamesMatchFieldPathNames(); err != nil {
			return nil, fmt.Errorf("type mismatch: %w", err)
		}
	}
	const text = "JSONPath valueExpression evaluated to a type that could not marshal to JSON: %w"
	native, err := v.ConvertToNative(reflect.TypeFor[*structpb.Value]())
	if err != nil {
		return nil, fmt.Errorf(text, err)
	}
	data, err := json.Marshal(native)
	if err != nil {
		return nil, fmt.Errorf(text, err)
	}
	return data, nil
}

// schemas are the schemas of all kinds, for apply configurations.
type schemas struct {
	kinds   func(schema.GroupVersionKind) (*kind.Kind, *kind.Version)
	builtIn func() (managedfields.TypeConverter, error)
}

// checkFields reports fields of a patched object that its type does not have. The fields of custom resources are not checked: unknown ones
// are removed.
func (s *schemas) checkFields(data []byte, gvk schema.GroupVersionKind) error {
	k, version := s.kinds(gvk)
	if k == nil {
		return nil
	}
	obj := k.NewObject(version)
	if _, custom := obj.(runtime.Unstructured); custom {
		return nil
	}
	found, err := kjson.UnmarshalStrict(data, obj)
	if err == nil && len(found) > 0 {
		err = runtime.NewStrictDecodingError(found)
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return nil
}

func (s *schemas) converterOf(gvk schema.GroupVersionKind) (managedfields.TypeConverter, error) {
	if k, _ := s.kinds(gvk); k != nil && k.TypeConverter != nil {
		return k.TypeConverter()
	}
	return s.builtIn()
}

// merge merges an apply configuration into the object and returns the JSON of the result. The policy does not become the manager of the
// fields it sets.
func (s *schemas) merge(obj runtime.Object, gvk schema.GroupVersionKind, result ref.Val) ([]byte, error) {
	configuration, ok := result.(*dynamic.ObjectVal)
	if !ok {
		return nil, fmt.Errorf("unsupported return type from ApplyConfiguration expression: %v", result.Type())
	}
	if err := configuration.CheckTypeNamesMatchFieldPathNames(); err != nil {
		return nil, fmt.Errorf("type mismatch: %w", err)
	}
	content, ok := configuration.Value().(map[string]any)
	if !ok {
		return nil, fmt.Errorf("invalid return type: %T", result)
	}
	patch := &unstructured.Unstructured{Object: content}
	patch.SetGroupVersionKind(gvk)
	converter, err := s.converterOf(gvk)
	if err != nil {
		return nil, err
	}
	merged, err := mergeTyped(converter, obj, patch)
	if err != nil {
		return nil, fmt.Errorf("error applying patch: %w", err)
	}
	return json.Marshal(merged)
}

func mergeTyped(converter managedfields.TypeConverter, obj runtime.Object, patch *unstructured.Unstructured) (runtime.Object, error) {
	patchTyped, err := converter.ObjectToTyped(patch)
	if err != nil {
		return nil, fmt.Errorf("failed to convert patch object to typed object: %w", err)
	}
	if atomics := findAtomics("", patchTyped.Schema(), patchTyped.TypeRef(), patchTyped.AsValue()); len(atomics) > 0 {
		return nil, fmt.Errorf("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: %v", strings.Join(atomics, ", "))
	}
	live, err := converter.ObjectToTyped(obj, typed.AllowDuplicates)
	if err != nil {
		return nil, fmt.Errorf("failed to convert original object to typed object: %w", err)
	}
	merged, err := live.Merge(patchTyped)
	if err != nil {
		return nil, fmt.Errorf("failed to merge patch: %w", err)
	}
	made, err := converter.TypedToObject(merged)
	if err != nil {
		return nil, fmt.Errorf("failed to convert typed object to object: %w", err)
	}
	return made, nil
}

// findAtomics returns the paths of the atomic lists, maps and structs in a value. An apply configuration must not have any: whoever sets
// some of their fields would remove the others.
func findAtomics(path string, s *smdschema.Schema, reference smdschema.TypeRef, v value.Value) []string {
	resolved, ok := s.Resolve(reference)
	if !ok {
		return nil
	}
	var found []string
	switch {
	case v.IsMap() && resolved.Map != nil:
		if resolved.Map.ElementRelationship == smdschema.Atomic {
			found = append(found, path)
		}
		v.AsMap().Iterate(func(name string, content value.Value) bool {
			if field, ok := resolved.Map.FindField(name); ok {
				element := fieldpath.PathElement{FieldName: &name}
				found = append(found, findAtomics(path+element.String(), s, field.Type, content)...)
			}
			return true
		})
	case v.IsList() && resolved.List != nil:
		if resolved.List.ElementRelationship == smdschema.Atomic {
			found = append(found, path)
		}
		list := v.AsList()
		for i := range list.Length() {
			element := fieldpath.PathElement{Index: &i}
			found = append(found, findAtomics(path+element.String(), s, resolved.List.ElementType, list.At(i))...)
		}
	}
	return found
}
