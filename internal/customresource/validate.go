package customresource

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"

	"skiff/internal/kind"
)

// validators validate the writes of one version.
type validators struct {
	*structuralSchema
	schema schemavalidation.SchemaValidator
	status schemavalidation.SchemaValidator // nil when the schema has no status
	rules  *cel.Validator                   // nil when there are no rules
}

func (v *version) compileValidators() (*validators, error) {
	s, err := v.structural()
	if err != nil {
		return nil, err
	}
	props, err := v.schema(v.spec.Name)
	if err != nil {
		return nil, fmt.Errorf("schema of %s: %w", v.gvk, err)
	}
	c := &validators{structuralSchema: s}
	if c.schema, _, err = schemavalidation.NewSchemaValidator(props); err != nil {
		return nil, fmt.Errorf("validator of %s: %w", v.gvk, err)
	}
	if props != nil && v.hasStatus() {
		if status, ok := props.Properties["status"]; ok {
			if c.status, _, err = schemavalidation.NewSchemaValidator(&status); err != nil {
				return nil, fmt.Errorf("validator of the status of %s: %w", v.gvk, err)
			}
		}
	}
	c.rules = cel.NewValidator(s.Structural, true, celconfig.PerCallLimit)
	return c, nil
}

// versionOfRequest is the version in which a write handles its objects.
func (d *definition) versionOfRequest(req *kind.Request, obj kind.Object) *version {
	if v := d.versions[req.APIVersion.Version]; v != nil && req.APIVersion.Group == d.crd.Spec.Group {
		return v
	}
	return d.versionOf(obj) // the server's own writes
}

// validate validates a new object, or a changed one if old is not nil.
func (d *definition) validate(req *kind.Request, obj, old kind.Object) field.ErrorList {
	v := d.versionOfRequest(req, obj)
	if v == nil {
		return d.storage.validateType(obj)
	}
	if errs := v.validateType(obj); len(errs) > 0 {
		return errs
	}
	c, err := v.validators()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	root := content(obj)
	if errs := c.shape.checkGrowth(root); len(errs) > 0 {
		return errs
	}
	if old == nil {
		var errs field.ErrorList
		if !c.shape.isValid(root) {
			errs = schemavalidation.ValidateCustomResource(nil, root, c.schema)
		}
		errs = append(errs, v.validateScaleSpec(root)...)
		errs = append(errs, v.validateScaleStatus(root)...)
		errs = append(errs, c.validateEmbedded(root)...)
		errs = append(errs, c.validateLists(root)...)
		return append(errs, c.validateRules(req.Ctx(), errs, root, nil)...)
	}
	before := content(old)
	ratcheting := c.correlate(root, before)
	var errs field.ErrorList
	if !c.shape.isValid(root) {
		errs = schemavalidation.ValidateCustomResourceUpdate(nil, root, before, c.schema, c.ratchet(ratcheting)...)
	}
	errs = append(errs, v.validateScaleSpec(root)...)
	errs = append(errs, v.validateScaleStatus(root)...)
	errs = append(errs, c.validateEmbedded(root)...)
	errs = append(errs, c.validateChangedLists(root, before)...)
	return append(errs, c.validateRules(req.Ctx(), errs, root, before, cel.WithRatcheting(ratcheting))...)
}

// validateStatus validates a changed status.
func (v *version) validateStatus(req *kind.Request, obj, old kind.Object) field.ErrorList {
	if errs := v.validateType(obj); len(errs) > 0 {
		return errs
	}
	c, err := v.validators()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	root, before := content(obj), content(old)
	if errs := c.shape.checkGrowth(root); len(errs) > 0 {
		return errs
	}
	ratcheting := c.correlate(root, before)
	var errs field.ErrorList
	if status, ok := root["status"]; ok && c.status != nil && !c.shape.properties["status"].isValid(status) {
		errs = schemavalidation.ValidateCustomResourceUpdate(field.NewPath("status"), status, before["status"], c.status, c.ratchet(ratcheting.Key("status"))...)
	}
	errs = append(errs, v.validateScaleStatus(root)...)
	errs = append(errs, c.validateChangedLists(root, before)...)
	return append(errs, c.validateRules(req.Ctx(), errs, root, before, cel.WithRatcheting(ratcheting))...)
}

// validateType validates apiVersion and kind, which a patch or a webhook may have changed.
func (v *version) validateType(obj kind.Object) (errs field.ErrorList) {
	gvk := obj.GetObjectKind().GroupVersionKind()
	if gvk.Kind != v.gvk.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), gvk.Kind, "must be "+v.gvk.Kind))
	}
	if apiVersion := apiVersionOf(obj); apiVersion != v.gvk.GroupVersion().String() {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), apiVersion, "must be "+v.gvk.GroupVersion().String()))
	}
	return errs
}

// correlate compares a changed object with the old one: what has not changed need not satisfy rules that are newer than it. It returns nil without a
// structural schema, which tells what corresponds to what: all of the object is validated then.
func (c *validators) correlate(obj, old map[string]any) *common.CorrelatedObject {
	if c.Structural == nil {
		return nil
	}
	return common.NewCorrelatedObject(obj, old, &model.Structural{Structural: c.Structural})
}

// ratchet makes the library ignore what is wrong with the unchanged parts of a value.
func (c *validators) ratchet(value *common.CorrelatedObject) []schemavalidation.ValidationOption {
	if c.Structural == nil {
		return nil
	}
	return []schemavalidation.ValidationOption{schemavalidation.WithRatcheting(value)}
}

// validateEmbedded validates the metadata of objects inside the object.
func (c *validators) validateEmbedded(obj map[string]any) field.ErrorList {
	if !c.embeds {
		return nil
	}
	return objectmeta.Validate(context.Background(), nil, obj, c.Structural, false)
}

// validateLists checks that sets and maps have no duplicates.
func (c *validators) validateLists(obj map[string]any) field.ErrorList {
	if !c.uniqueLists {
		return nil
	}
	return listtype.ValidateListSetsAndMaps(nil, c.Structural, obj)
}

// validateChangedLists checks that sets and maps have no duplicates, unless the old object had some.
func (c *validators) validateChangedLists(obj, old map[string]any) field.ErrorList {
	errs := c.validateLists(obj)
	if len(errs) > 0 && len(c.validateLists(old)) > 0 {
		return nil
	}
	return errs
}

// blocking are the types of errors after which rules are not evaluated: they may make assumptions that do not hold.
var blocking = []field.ErrorType{
	field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid,
}

// validateRules evaluates the CEL rules until ctx is done, which is an error. found are the errors so far.
func (c *validators) validateRules(ctx context.Context, found field.ErrorList, obj, old map[string]any, options ...cel.Option) field.ErrorList {
	if c.rules == nil {
		return nil
	}
	if slices.ContainsFunc(found, func(err *field.Error) bool { return slices.Contains(blocking, err.Type) }) {
		return field.ErrorList{field.Invalid(nil, nil,
			"some validation rules were not checked because the object was invalid; correct the existing errors to complete validation")}
	}
	// An interface that holds a nil map would not be nil.
	var before any
	if old != nil {
		before = old
	}
	errs, _ := c.rules.Validate(ctx, nil, c.Structural, obj, before, celconfig.RuntimeCELCostBudget, options...)
	return errs
}

// specChanged reports whether anything but metadata has changed; the server has restored the status.
func specChanged(obj, old kind.Object) bool {
	withoutMetadata := func(o kind.Object) map[string]any {
		fields := maps.Clone(content(o))
		delete(fields, "metadata")
		return fields
	}
	return !apiequality.Semantic.DeepEqual(withoutMetadata(obj), withoutMetadata(old))
}

var standardFinalizers = []string{metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents, string(corev1.FinalizerKubernetes)}

// warnOfFinalizers warns of new finalizers whose names are not qualified.
func warnOfFinalizers(obj, old kind.Object) []string {
	var known, warnings []string
	if old != nil {
		known = old.GetFinalizers()
	}
	added := slices.Clone(obj.GetFinalizers())
	slices.Sort(added)
	for _, name := range slices.Compact(added) {
		if slices.Contains(known, name) {
			continue
		}
		warn := func(text string) { warnings = append(warnings, fmt.Sprintf("metadata.finalizers: %q: %s", name, text)) }
		for _, msg := range validation.IsQualifiedName(name) {
			warn(msg)
		}
		switch {
		case strings.Contains(name, "/") || slices.Contains(standardFinalizers, name):
		case strings.Contains(name, "."):
			warn("prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers")
		default:
			warn("prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers")
		}
	}
	return warnings
}
