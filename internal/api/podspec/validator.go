package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validator validates one specification and collects the errors. Its methods validate parts of the specification; many
// need the whole (a mount its volume, a probe the grace period).
type validator struct {
	errs field.ErrorList

	spec *corev1.PodSpec
	// meta is that of the pod; nil for a template, whose pods have no name yet.
	meta *metav1.ObjectMeta
	// allow says which newer validations are skipped, because the stored object already violates them.
	allow allowances
	// volumes are the valid volumes, by name.
	volumes map[string]*corev1.VolumeSource
	// claims are the names of the pod's resource claims.
	claims sets.Set[string]
}

func (val *validator) add(errs ...*field.Error) { val.errs = append(val.errs, errs...) }

func (val *validator) required(path *field.Path, detail string) {
	val.add(field.Required(path, detail))
}

func (val *validator) invalid(path *field.Path, value any, detail string) {
	val.add(field.Invalid(path, value, detail))
}

func (val *validator) forbidden(path *field.Path, detail string) {
	val.add(field.Forbidden(path, detail))
}

func (val *validator) duplicate(path *field.Path, value any) { val.add(field.Duplicate(path, value)) }

// messages adds an invalid value error for each text.
func (val *validator) invalidEach(path *field.Path, value any, texts []string) {
	for _, msg := range texts {
		val.invalid(path, value, msg)
	}
}

// nonEmpty requires a value.
func (val *validator) nonEmpty(path *field.Path, value string) {
	if value == "" {
		val.required(path, "")
	}
}

func (val *validator) nonNegative(path *field.Path, value int64) {
	val.add(validation.ValidateNonnegativeField(value, path)...)
}

// label requires a DNS label.
func (val *validator) label(path *field.Path, value string) {
	val.invalidEach(path, value, utilvalidation.IsDNS1123Label(value))
}

// subdomain requires a DNS subdomain, the form of most names.
func (val *validator) subdomain(path *field.Path, value string) {
	val.invalidEach(path, value, utilvalidation.IsDNS1123Subdomain(value))
}

// requiredLabel requires a value, and that it is a DNS label.
func (val *validator) requiredLabel(path *field.Path, value string) {
	if value == "" {
		val.required(path, "")
	} else {
		val.label(path, value)
	}
}

func (val *validator) qualifiedName(path *field.Path, value string) {
	val.invalidEach(path, value, utilvalidation.IsQualifiedName(value))
}

func (val *validator) labelName(path *field.Path, value string) {
	val.add(metavalidation.ValidateLabelName(value, path)...)
}

func (val *validator) selector(path *field.Path, selector *metav1.LabelSelector, allowInvalidValues bool) {
	options := metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: allowInvalidValues}
	val.add(metavalidation.ValidateLabelSelector(selector, options, path)...)
}

// oneOf allows the listed values only.
func oneOf[T ~string](val *validator, path *field.Path, value T, values ...T) {
	for _, v := range values {
		if v == value {
			return
		}
	}
	val.add(field.NotSupported(path, value, values))
}

// requiredOneOf is oneOf for a required value.
func requiredOneOf[T ~string](val *validator, path *field.Path, value T, values ...T) {
	if value == "" {
		val.required(path, "")
	} else {
		oneOf(val, path, value, values...)
	}
}

// optionalOneOf is oneOf for a value that may be nil.
func optionalOneOf[T ~string](val *validator, path *field.Path, value *T, values ...T) {
	if value != nil {
		oneOf(val, path, *value, values...)
	}
}
