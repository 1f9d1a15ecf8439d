package resource

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

var taintEffects = []resourcev1.DeviceTaintEffect{resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNone}

// stamp sets timeAdded of a taint unless the client has set it.
func stamp(req *kind.Request, taint *resourcev1.DeviceTaint) {
	if taint.TimeAdded == nil {
		taint.TimeAdded = wholeSecond(req)
	}
}

func wholeSecond(req *kind.Request) *metav1.Time {
	now := req.Now.Rfc3339Copy()
	return &now
}

func validateTaint(taint, old *resourcev1.DeviceTaint, path *field.Path) field.ErrorList {
	errs := metavalidation.ValidateLabelName(taint.Key, path.Child("key"))
	if taint.Value != "" {
		errs = append(errs, validateLabelValue(taint.Value, path.Child("value"))...)
	}
	switch {
	case old != nil && old.Effect == taint.Effect:
	case taint.Effect == "":
		errs = append(errs, field.Required(path.Child("effect"), ""))
	case !slices.Contains(taintEffects, taint.Effect):
		errs = append(errs, field.NotSupported(path.Child("effect"), taint.Effect, taintEffects))
	}
	return errs
}

func defaultTolerations(tolerations []resourcev1.DeviceToleration) {
	for i := range tolerations {
		if tolerations[i].Operator == "" {
			tolerations[i].Operator = resourcev1.DeviceTolerationOpEqual
		}
	}
}

func validateToleration(toleration *resourcev1.DeviceToleration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if toleration.Key != "" {
		errs = append(errs, metavalidation.ValidateLabelName(toleration.Key, path.Child("key"))...)
	}
	switch toleration.Operator {
	case resourcev1.DeviceTolerationOpExists:
		if toleration.Value != "" {
			errs = append(errs, field.Invalid(path.Child("value"), toleration.Value, "must be empty for operator `Exists`"))
		}
	case resourcev1.DeviceTolerationOpEqual:
		errs = append(errs, validateLabelValue(toleration.Value, path.Child("value"))...)
	case "":
		errs = append(errs, field.Required(path.Child("operator"), ""))
	default:
		errs = append(errs, field.NotSupported(path.Child("operator"), toleration.Operator,
			[]resourcev1.DeviceTolerationOperator{resourcev1.DeviceTolerationOpEqual, resourcev1.DeviceTolerationOpExists}))
	}
	if toleration.Effect != "" && !slices.Contains(taintEffects, toleration.Effect) {
		errs = append(errs, field.NotSupported(path.Child("effect"), toleration.Effect, taintEffects))
	}
	return errs
}

func validateConditionName(name *string, path *field.Path) field.ErrorList {
	return metavalidation.ValidateLabelName(*name, path)
}
