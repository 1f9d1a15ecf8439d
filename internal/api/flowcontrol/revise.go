package flowcontrol

import (
	"strconv"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ReviseFlowSchema returns the update of one of the server's own flow schemas, or false when it is up to date.
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

// RevisePriorityLevel returns the update of one of the server's own priority levels, or false when it is up to date. The
// shares of the exempt level are not changed.
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

// wantsUpdates reports whether the server may update the spec of a suggested object: by its annotation, or, without a valid
// one, if it was never changed.
func wantsUpdates(obj metav1.Object) bool {
	if update, err := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey]); err == nil {
		return update
	}
	return obj.GetGeneration() == 1
}

// setUpdates sets the annotation, and reports whether that changed it.
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

// Outdated reports whether an object was once one of the server's own: only those have the annotation.
func Outdated(obj metav1.Object) bool {
	update, err := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey])
	return err == nil && update
}
