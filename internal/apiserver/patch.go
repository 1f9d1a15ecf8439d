package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"

	"skiff/internal/apiserver/jsonpatch"
	"skiff/internal/apiserver/managedfields"
	"skiff/internal/kind"
)

// patcher is the state of a PATCH request.
type patcher struct {
	s         *Server
	req       *request
	w         *write
	patchType types.PatchType
	body      []byte
	options   *metav1.PatchOptions
	directive fieldValidation
}

// patchTypes are the supported patch types. Strategic merge needs the struct tags of Go types.
func patchTypes(isUnstructured bool) []string {
	if isUnstructured {
		return []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType)}
	}
	return []string{
		string(types.JSONPatchType), string(types.MergePatchType), string(types.StrategicMergePatchType), string(types.ApplyYAMLPatchType),
	}
}

// beginPatch parses and checks a PATCH.
func (s *Server) beginPatch(req *request, isUnstructured bool) (*patcher, error) {
	contentType, _, _ := strings.Cut(req.Header.Get("Content-Type"), ";")
	known := false
	for _, accepted := range patchTypes(isUnstructured) {
		known = known || accepted == contentType
	}
	if !known {
		return nil, errUnsupportedMediaType(patchTypes(isUnstructured)...)
	}
	if _, err := req.negotiate(); err != nil {
		return nil, err
	}
	body, err := s.readBody(req)
	if err != nil {
		return nil, err
	}
	p := &patcher{s: s, req: req, patchType: types.PatchType(contentType), body: body}
	if p.options, err = parsePatchOptions(req.query, p.patchType); err != nil {
		return nil, err
	}
	p.directive = parseFieldValidation(p.options.FieldValidation)
	p.w = s.newWrite(req, isDryRun(p.options.DryRun))
	p.w.manager = managedfields.ManagerName(p.options.FieldManager, req.UserAgent())
	if err := p.checkSyntax(); err != nil {
		return nil, err
	}
	p.auditPatch()
	return p, nil
}

func (p *patcher) checkSyntax() error {
	if p.patchType == types.ApplyYAMLPatchType {
		if _, err := apiyaml.ToJSON(p.body); err != nil {
			return apierrors.NewBadRequest(fmt.Sprintf("error encoding patch: %v", err))
		}
		return nil
	}
	if !json.Valid(p.body) {
		return apierrors.NewBadRequest("invalid JSON patch")
	}
	return nil
}

// change is the change that the patch makes.
func (p *patcher) change() *change {
	c := p.w.clientChange(p.req, p.options.DryRun, p.options.FieldManager, p.options.FieldValidation)
	c.updateOptions = &metav1.UpdateOptions{
		TypeMeta: optionsType("UpdateOptions"), DryRun: p.options.DryRun,
		FieldManager: p.options.FieldManager, FieldValidation: p.options.FieldValidation,
	}
	return c
}

// patch serves a PATCH of an object or of a subresource such as status.
func (s *Server) patch(req *request) error {
	_, dynamic := req.res.newObject().(runtime.Unstructured)
	p, err := s.beginPatch(req, dynamic)
	if err != nil {
		return err
	}
	w := p.w
	c := p.change()
	if p.patchType == types.ApplyYAMLPatchType {
		c.allowCreate = w.sub == nil
		c.next = func(live kind.Object) (kind.Object, error) { return p.applied(c, live) }
	} else {
		c.next = func(live kind.Object) (kind.Object, error) {
			obj, err := p.patchedResource(live)
			if err != nil {
				return nil, err
			}
			if err := p.check(obj); err != nil {
				return nil, err
			}
			return w.setManagedFieldsAndMutate(c, live, obj)
		}
	}
	done, err := w.change(c)
	if err != nil {
		return err
	}
	return s.respondOutcome(req, done)
}

// check checks that the patch did not change namespace or name.
func (p *patcher) check(obj kind.Object) error {
	if err := ensureNamespace(p.w.namespace, obj); err != nil {
		return err
	}
	return checkName(obj, p.w.name, p.w.namespace)
}

// patchedResource applies the patch to the live object in the version of the request and returns the result in the storage version.
func (p *patcher) patchedResource(live kind.Object) (kind.Object, error) {
	res := p.w.res
	versioned, err := res.fromStorageVersion(p.w.ctx, live)
	if err != nil {
		return nil, err
	}
	patched, err := p.patched(versioned, res.newObject, res, res.gvk)
	if err != nil {
		return nil, err
	}
	return res.toStorageVersion(patched)
}

// patched applies the patch to an object and returns a new one. res is nil for views (scale).
func (p *patcher) patched(obj kind.Object, empty func() kind.Object, res *resource, gvk schema.GroupVersionKind) (kind.Object, error) {
	if p.patchType == types.StrategicMergePatchType {
		return p.strategic(obj, empty)
	}
	before, err := appendObject(nil, obj, gvk, formatJSON)
	if err != nil {
		return nil, err
	}
	after, found, err := p.patchedJSON(before)
	if err != nil {
		return nil, err
	}
	invalid := func(err error) error {
		return kind.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
			field.Invalid(field.NewPath("patch"), string(after), err.Error()),
		})
	}
	out := empty()
	more, err := res.unmarshalStrict(after, out, p.directive)
	if err != nil {
		return nil, invalid(err)
	}
	found = append(found, more...)
	if _, dynamic := out.(runtime.Unstructured); dynamic {
		// Another type is left to validation.
		if out.GetObjectKind().GroupVersionKind().Kind == "" {
			return nil, invalid(runtime.NewMissingKindErr(string(after)))
		}
	} else if err := p.s.checkKind(out.GetObjectKind().GroupVersionKind(), gvk); err != nil {
		return nil, invalid(err)
	}
	if res != nil && res.kind.Prune != nil {
		unknown, err := res.kind.Prune(out, res.version)
		if err != nil {
			return nil, invalid(err)
		}
		for _, path := range unknown {
			found = append(found, fmt.Errorf("unknown field %q", path))
		}
	}
	if err := p.directive.report(found, p.w.warn); err != nil {
		return nil, invalid(err)
	}
	return out, nil
}

// jsonPatchOperation is an operation of a JSON patch, for strict decoding.
type jsonPatchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

// patchedJSON applies a JSON patch or a JSON merge patch.
func (p *patcher) patchedJSON(before []byte) (after []byte, found []error, err error) {
	if p.patchType == types.MergePatchType {
		if p.directive.enabled() {
			if found, err = kjson.UnmarshalStrict(p.body, &map[string]any{}); err != nil {
				return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
			}
		}
		after, badPatch, err := jsonpatch.Merge(before, p.body)
		if badPatch {
			err = apierrors.NewBadRequest(err.Error())
		}
		return after, found, err
	}
	if p.directive.enabled() {
		var operations []jsonPatchOperation
		if found, err = kjson.UnmarshalStrict(p.body, &operations); err != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
		for i := range found {
			found[i] = fmt.Errorf("json patch %v", found[i])
		}
	}
	operations, err := jsonpatch.Decode(p.body)
	var tooMany *jsonpatch.TooManyError
	switch {
	case errors.As(err, &tooMany):
		return nil, nil, apierrors.NewRequestEntityTooLargeError(err.Error())
	case err != nil:
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if after, err = jsonpatch.Apply(operations, before); err != nil {
		return nil, nil, errUnprocessable(err)
	}
	return after, found, nil
}

func errUnprocessable(err error) error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
}

// strategic applies a strategic merge patch.
func (p *patcher) strategic(obj kind.Object, empty func() kind.Object) (kind.Object, error) {
	original, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, err
	}
	patch := map[string]any{}
	var found []error
	if p.directive.enabled() {
		found, err = kjson.UnmarshalStrict(p.body, &patch)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(p.body, &patch)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	merged, err := strategicMerge(original, patch, empty())
	if err != nil {
		return nil, strategicError(err)
	}
	invalid := func(err error) error {
		return kind.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
			field.Invalid(field.NewPath("patch"), fmt.Sprintf("%+v", patch), err.Error()),
		})
	}
	out := empty()
	if err := checkNesting(merged, out); err != nil {
		return nil, invalid(err)
	}
	if err := checkQuantities(reflect.TypeOf(out), merged); err != nil {
		return nil, invalid(err)
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(merged, out, p.directive.enabled())
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		found = append(found, strict.Errors()...)
	} else if err != nil {
		return nil, invalid(err)
	}
	if err := p.directive.report(found, p.w.warn); err != nil {
		return nil, invalid(err)
	}
	return out, nil
}

func strategicError(err error) error {
	switch err {
	case mergepatch.ErrBadJSONDoc, mergepatch.ErrBadPatchFormatForPrimitiveList, mergepatch.ErrBadPatchFormatForRetainKeys,
		mergepatch.ErrBadPatchFormatForSetElementOrderList, mergepatch.ErrUnsupportedStrategicMergePatchFormat:
		return apierrors.NewBadRequest(err.Error())
	case mergepatch.ErrNoListOfLists, mergepatch.ErrPatchContentNotMatchRetainKeys:
		return errUnprocessable(err)
	}
	return err
}
