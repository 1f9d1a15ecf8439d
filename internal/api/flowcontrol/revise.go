package flowcontrol

import (
	"strconv"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ReviseFlowSchema returns what the server should make of a flow schema of its own, or false when it is right as it is.
func ReviseFlowSchema(current, wanted *flowcontrolv1.FlowSchema, mandatory bool) (*flowcontrolv1.FlowSchema, bool) {
	wanted, revised := wanted.DeepCopy(), current.DeepCopy()
	FlowSchema.Default(wanted)
	update := mandatory || wantsUpdates(current)
	changed := update && !equality.Semantic.DeepEqual(wanted.Spec, current.Spec)
	if changed {
		revised.Spec = wanted.Spec
	}
	return revised, setUpdates(revised, update) || changed
}

// RevisePriorityLevel returns what the server should make of a priority level of its own, or false when it is right as it is. The
// shares of the exempt level are the administrator's.
func RevisePriorityLevel(current, wanted *flowcontrolv1.PriorityLevelConfiguration, mandatory bool) (*flowcontrolv1.PriorityLevelConfiguration, bool) {
	wanted, revised := wanted.DeepCopy(), current.DeepCopy()
	PriorityLevelConfiguration.Default(wanted)
	compared := wanted.Spec.DeepCopy()
	if compared.Exempt != nil && current.Spec.Exempt != nil {
		compared.Exempt.NominalConcurrencyShares = current.Spec.Exempt.NominalConcurrencyShares
		compared.Exempt.LendablePercent = current.Spec.Exempt.LendablePercent
	}
	update := mandatory || wantsUpdates(current)
	changed := update && !equality.Semantic.DeepEqual(*compared, current.Spec)
	if changed {
		revised.Spec = wanted.Spec
	}
	return revised, setUpdates(revised, update) || changed
}

// wantsUpdates reports whether the server may change the spec of an object that it suggested: by its annotation, or, without a
// readable one, if nobody has changed it.
func wantsUpdates(obj metav1.Object) bool {
	if update, err := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey]); err == nil {
		return update
	}
	return obj.GetGeneration() == 1
}

// setUpdates makes the annotation say what holds, and reports whether it did not.
func setUpdates(obj metav1.Object, update bool) bool {
	if said, err := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey]); err == nil && said == update {
		return false
	}
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[flowcontrolv1.AutoUpdateAnnotationKey] = strconv.FormatBool(update)
	obj.SetAnnotations(annotations)
	return true
}

// Outdated reports whether an object that is not among the server's own was once: only those are annotated for updates.
func Outdated(obj metav1.Object) bool {
	update, err := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey])
	return err == nil && update
}
