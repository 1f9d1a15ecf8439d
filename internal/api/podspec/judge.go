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

// judge goes through one specification and writes down what is wrong with it. Rules about a part need to know the
// whole (a mount its volume, a probe the grace period), so they are methods of the judge, who knows it.
type judge struct {
	errs field.ErrorList

	spec *corev1.PodSpec
	// meta is that of the pod; nil for a template, whose pods have no name yet.
	meta *metav1.ObjectMeta
	// allow says which later rules do not hold, because the stored object breaks them already.
	allow allowances
	// volumes are the valid ones, by name.
	volumes map[string]*corev1.VolumeSource
	// claims are the names of the pod's resource claims.
	claims sets.Set[string]
}

func (j *judge) add(errs ...*field.Error) { j.errs = append(j.errs, errs...) }

func (j *judge) required(path *field.Path, detail string) { j.add(field.Required(path, detail)) }

func (j *judge) invalid(path *field.Path, value any, detail string) {
	j.add(field.Invalid(path, value, detail))
}

func (j *judge) forbidden(path *field.Path, detail string) { j.add(field.Forbidden(path, detail)) }

func (j *judge) duplicate(path *field.Path, value any) { j.add(field.Duplicate(path, value)) }

// messages makes an invalid value of each text a checker returned.
func (j *judge) messages(path *field.Path, value any, texts []string) {
	for _, text := range texts {
		j.invalid(path, value, text)
	}
}

// nonEmpty requires a value.
func (j *judge) nonEmpty(path *field.Path, value string) {
	if value == "" {
		j.required(path, "")
	}
}

func (j *judge) nonNegative(path *field.Path, value int64) {
	j.add(validation.ValidateNonnegativeField(value, path)...)
}

// label requires a DNS label.
func (j *judge) label(path *field.Path, value string) {
	j.messages(path, value, utilvalidation.IsDNS1123Label(value))
}

// subdomain requires a DNS subdomain, the form of most names.
func (j *judge) subdomain(path *field.Path, value string) {
	j.messages(path, value, utilvalidation.IsDNS1123Subdomain(value))
}

// requiredLabel requires a value, and that it is a DNS label.
func (j *judge) requiredLabel(path *field.Path, value string) {
	if value == "" {
		j.required(path, "")
	} else {
		j.label(path, value)
	}
}

func (j *judge) qualifiedName(path *field.Path, value string) {
	j.messages(path, value, utilvalidation.IsQualifiedName(value))
}

func (j *judge) labelName(path *field.Path, value string) {
	j.add(metavalidation.ValidateLabelName(value, path)...)
}

func (j *judge) selector(path *field.Path, selector *metav1.LabelSelector, allowInvalidValues bool) {
	options := metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: allowInvalidValues}
	j.add(metavalidation.ValidateLabelSelector(selector, options, path)...)
}

// oneOf allows the listed values only.
func oneOf[T ~string](j *judge, path *field.Path, value T, values ...T) {
	for _, v := range values {
		if v == value {
			return
		}
	}
	j.add(field.NotSupported(path, value, values))
}

// requiredOneOf is oneOf for a value that must be there.
func requiredOneOf[T ~string](j *judge, path *field.Path, value T, values ...T) {
	if value == "" {
		j.required(path, "")
	} else {
		oneOf(j, path, value, values...)
	}
}

// optionalOneOf is oneOf for a value that may be nil.
func optionalOneOf[T ~string](j *judge, path *field.Path, value *T, values ...T) {
	if value != nil {
		oneOf(j, path, *value, values...)
	}
}
