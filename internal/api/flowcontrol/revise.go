package flowcontrol

import (
	"strconv"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ReviseFlowSchema returns the update of a bootstrap flow schema, or false when it is up to date. A mandatory one always gets the
// bootstrap spec, a suggested one only if mayAutoUpdate allows it.
func ReviseFlowSchema(current, bootstrap *flowcontrolv1.FlowSchema, mandatory bool) (*flowcontrolv1.FlowSchema, bool) {
	bootstrap, revised := bootstrap.DeepCopy(), current.DeepCopy()
	FlowSchema.Default(bootstrap)
	autoUpdate := mandatory || mayAutoUpdate(current)
	changed := autoUpdate && !equality.Semantic.DeepEqual(bootstrap.Spec, current.Spec)
	if changed {
		revised.Spec = bootstrap.Spec
	}
	return revised, setAutoUpdate(revised, autoUpdate) || changed
}

// RevisePriorityLevel returns the update of a bootstrap priority level, or false when it is up to date. Differences in
// nominalConcurrencyShares and lendablePercent of the exempt level are ignored, because administrators may change them.
func RevisePriorityLevel(current, bootstrap *flowcontrolv1.PriorityLevelConfiguration, mandatory bool) (*flowcontrolv1.PriorityLevelConfiguration, bool) {
	bootstrap, revised := bootstrap.DeepCopy(), current.DeepCopy()
	PriorityLevelConfiguration.Default(bootstrap)
	expected := bootstrap.Spec.DeepCopy()
	if expected.Exempt != nil && current.Spec.Exempt != nil {
		expected.Exempt.NominalConcurrencyShares = current.Spec.Exempt.NominalConcurrencyShares
		expected.Exempt.LendablePercent = current.Spec.Exempt.LendablePercent
	}
	autoUpdate := mandatory || mayAutoUpdate(current)
	changed := autoUpdate && !equality.Semantic.DeepEqual(*expected, current.Spec)
	if changed {
		revised.Spec = bootstrap.Spec
	}
	return revised, setAutoUpdate(revised, autoUpdate) || changed
}

// mayAutoUpdate reports whether the server may update the spec of a suggested object: what the auto-update annotation says or,
// if that is missing or invalid, whether the spec was never changed (generation 1).
func mayAutoUpdate(obj metav1.Object) bool {
	if autoUpdate, err := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey]); err == nil {
		return autoUpdate
	}
	return obj.GetGeneration() == 1
}

// setAutoUpdate sets the auto-update annotation and reports whether its value changed.
func setAutoUpdate(obj metav1.Object, autoUpdate bool) bool {
	if current, err := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey]); err == nil && current == autoUpdate {
		return false
	}
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[flowcontrolv1.AutoUpdateAnnotationKey] = strconv.FormatBool(autoUpdate)
	obj.SetAnnotations(annotations)
	return true
}

// HasAutoUpdateAnnotation reports whether the auto-update annotation is "true". Only bootstrap objects have the annotation.
func HasAutoUpdateAnnotation(obj metav1.Object) bool {
	update, err := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey])
	return err == nil && update
}
