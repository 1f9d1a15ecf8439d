package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Parts of a pod specification that other kinds have too.

// ValidateContainerResourceName judges the name of something a container can ask for.
func ValidateContainerResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	var j judge
	j.containerResourceName(name, path)
	return j.errs
}

// ValidateContainerResources judges requests against limits as those of a container of a pod without claims.
func ValidateContainerResources(resources *corev1.ResourceRequirements, path *field.Path) field.ErrorList {
	var j judge
	j.resources(resources, j.containerResourceName, path)
	return j.errs
}
