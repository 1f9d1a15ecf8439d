package apps

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

// validateSelector validates the selector of a workload: it is required and must not be empty. what is the workload in the
// error about an empty selector.
func validateSelector(selector *metav1.LabelSelector, what string, path *field.Path) field.ErrorList {
	if selector == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, path)
	return append(errs, validateSelectsSomething(selector, what, path)...)
}

func validateSelectsSomething(selector *metav1.LabelSelector, what string, path *field.Path) field.ErrorList {
	if selector == nil || len(selector.MatchLabels)+len(selector.MatchExpressions) > 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, selector, "empty selector is invalid for "+what)}
}

// validateMatch refuses a template whose pods the selector does not match.
func validateMatch(selector labels.Selector, template *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	if selector.Matches(labels.Set(template.Labels)) {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child("metadata", "labels"), template.Labels, "`selector` does not match template `labels`")}
}

// validateAlwaysRestarts refuses pods that would terminate by themselves.
func validateAlwaysRestarts(spec *corev1.PodSpec, what string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.RestartPolicy != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(path.Child("restartPolicy"), spec.RestartPolicy, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(path.Child("activeDeadlineSeconds"), "activeDeadlineSeconds in "+what+" is not Supported"))
	}
	return errs
}

// warnReplicated returns the warnings about a ReplicaSet or a Deployment. old is the stored template, nil on create.
func warnReplicated(name string, template, old *corev1.PodTemplateSpec, changed bool) []string {
	switch {
	case old == nil:
		return append(WarnName(name), podspec.WarnTemplate(templatePath(), template, nil)...)
	case changed:
		return podspec.WarnTemplate(templatePath(), template, old)
	}
	return nil
}

// validateReplicated validates selector and template of ReplicaSets and of the Deployments that create them.
func validateReplicated(selector *metav1.LabelSelector, template, old *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	errs := validateSelector(selector, "deployment", path.Child("selector"))
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return append(errs, field.Invalid(path.Child("selector"), selector, "invalid label selector"))
	}
	if !parsed.Empty() {
		errs = append(errs, validateMatch(parsed, template, path.Child("template"))...)
	}
	errs = append(errs, podspec.ValidateTemplate(template, old, path.Child("template"))...)
	return append(errs, validateAlwaysRestarts(&template.Spec, "ReplicaSet", path.Child("template", "spec"))...)
}

// templatePath is the path of the template in all workloads.
func templatePath() *field.Path { return field.NewPath("spec", "template") }

// count is a number in a spec or status that cannot be negative.
type count struct {
	field string
	value int64
}

func countOf[N int32 | int64](field string, value N) count { return count{field, int64(value)} }

// optionalCount is a count that may be absent.
func optionalCount[N int32 | int64](field string, value *N) count {
	return count{field, int64(ptr.Deref(value, 0))}
}

func validateCounts(path *field.Path, counts ...count) field.ErrorList {
	var errs field.ErrorList
	for _, c := range counts {
		errs = append(errs, validation.ValidateNonnegativeField(c.value, path.Child(c.field))...)
	}
	return errs
}

// validateWithin refuses partial counts of replicas that exceed the total.
func validateWithin(path *field.Path, all int32, counts ...count) field.ErrorList {
	var errs field.ErrorList
	for _, c := range counts {
		if c.value > int64(all) {
			errs = append(errs, field.Invalid(path.Child(c.field), c.value, "cannot be greater than status.replicas"))
		}
	}
	return errs
}

// validateCollisions: the collision count may only grow, because names would be reused otherwise.
func validateCollisions(now, before *int32, path *field.Path) field.ErrorList {
	if before == nil || now != nil && *now >= *before {
		return nil
	}
	return field.ErrorList{field.Invalid(path, ptr.Deref(now, 0), "cannot be decremented")}
}

// WarnName warns of names that are not valid as pod names or hostnames.
func WarnName(name string) []string {
	if messages := utilvalidation.IsDNS1123Label(name); len(messages) != 0 {
		return []string{fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", messages)}
	}
	return nil
}

// ContainerColumns are the columns, shown with -o wide, for the containers of a template.
func ContainerColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		kind.Wide("Containers", "string", "Names of each container in the template."),
		kind.Wide("Images", "string", "Images referenced by each container in the template."),
	}
}

// ContainerCells are the cells of ContainerColumns.
func ContainerCells(template *corev1.PodTemplateSpec) (names, images string) {
	var nameList, imageList []string
	for _, container := range template.Spec.Containers {
		nameList = append(nameList, container.Name)
		imageList = append(imageList, container.Image)
	}
	return strings.Join(nameList, ","), strings.Join(imageList, ",")
}

func columns(first []metav1.TableColumnDefinition, last ...metav1.TableColumnDefinition) []metav1.TableColumnDefinition {
	return append(append(first, ContainerColumns()...), last...)
}
