package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validations of parts of a pod specification, for other kinds that have them too.

// ValidateContainerResourceName validates the name of a resource that a container can request.
func ValidateContainerResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	var val validator
	val.containerResourceName(name, path)
	return val.errs
}

// ValidateContainerResources validates requests and limits like those of a container of a pod without claims.
func ValidateContainerResources(resources *corev1.ResourceRequirements, path *field.Path) field.ErrorList {
	var val validator
	val.resources(resources, val.containerResourceName, path)
	return val.errs
}
