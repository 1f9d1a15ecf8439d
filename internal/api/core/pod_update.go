package core

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

// changeable lists the mutable fields of a pod for the error message.
const changeable = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`," +
	"`spec.tolerations` (only additions to existing tolerations)," +
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"

func validatePod(_ *kind.Request, obj, old *corev1.Pod) field.ErrorList {
	if old == nil {
		return podspec.ValidateNewPod(obj)
	}
	return validatePodUpdate(obj, old)
}

func validatePodUpdate(obj, old *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec")
	errs := podspec.ValidatePod(obj, old)
	errs = append(errs, validatePodAnnotationChange(obj, old)...)
	for _, list := range []struct {
		name            string
		count, oldCount int
	}{
		{"containers", len(obj.Spec.Containers), len(old.Spec.Containers)},
		{"initContainers", len(obj.Spec.InitContainers), len(old.Spec.InitContainers)},
	} {
		if list.count != list.oldCount {
			return append(errs, field.Forbidden(path.Child(list.name), "pod updates may not add or remove containers"))
		}
	}
	if err := validateDeadlineChange(obj, old, path.Child("activeDeadlineSeconds")); err != nil {
		return append(errs, err)
	}
	errs = append(errs, validateTolerationsChange(obj, old, path.Child("tolerations"))...)
	errs = append(errs, validateGatesChange(obj, old, path.Child("schedulingGates"))...)

	// Reset all mutable fields; then nothing may differ.
	spec := obj.Spec.DeepCopy()
	for i := range spec.Containers {
		spec.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range spec.InitContainers {
		spec.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	spec.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	spec.SchedulingGates = old.Spec.SchedulingGates
	spec.Tolerations = old.Spec.Tolerations
	if ptr.Deref(old.Spec.TerminationGracePeriodSeconds, 0) < 0 && ptr.Deref(spec.TerminationGracePeriodSeconds, 0) == 1 {
		spec.TerminationGracePeriodSeconds = old.Spec.TerminationGracePeriodSeconds
	}
	if len(old.Spec.SchedulingGates) > 0 {
		errs = append(errs, validateGatedChange(spec, &old.Spec, path)...)
	}
	if !equality.Semantic.DeepEqual(spec, &old.Spec) {
		errs = append(errs, field.Forbidden(path,
			fmt.Sprintf("pod updates may not change fields other than %s\n%v", changeable, diff.Diff(old.Spec, *spec))))
	}
	return errs
}

// validatePodAnnotationChange refuses changes of annotations that are part of a pod's identity.
func validatePodAnnotationChange(obj, old *corev1.Pod) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("metadata", "annotations")
	forbid := func(key, verb string) {
		if strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) {
			errs = append(errs, field.Forbidden(path.Key(key), "may not "+verb+" AppArmor annotations"))
		}
		if key == corev1.MirrorPodAnnotationKey {
			errs = append(errs, field.Forbidden(path.Key(key), "may not "+verb+" mirror pod annotation"))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(old.Annotations)) {
		if value, kept := obj.Annotations[key]; !kept || value != old.Annotations[key] {
			forbid(key, "remove or update")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(obj.Annotations)) {
		if _, known := old.Annotations[key]; !known {
			forbid(key, "add")
		}
	}
	return errs
}

// validateDeadlineChange: a deadline may be set or decreased.
func validateDeadlineChange(obj, old *corev1.Pod, path *field.Path) *field.Error {
	deadline, oldDeadline := obj.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds
	switch {
	case deadline != nil && (*deadline < 0 || *deadline > math.MaxInt32):
		return field.Invalid(path, *deadline, validation.InclusiveRangeError(0, math.MaxInt32))
	case deadline != nil && oldDeadline != nil && *oldDeadline < *deadline:
		return field.Invalid(path, *deadline, "must be less than or equal to previous value")
	case deadline == nil && oldDeadline != nil:
		return field.Invalid(path, deadline, "must not update from a positive integer to nil value")
	}
	return nil
}

// validateTolerationsChange: tolerations may be added, and tolerationSeconds may be changed.
func validateTolerationsChange(obj, old *corev1.Pod, path *field.Path) field.ErrorList {
	tolerations := sets.New[corev1.Toleration]()
	for _, toleration := range obj.Spec.Tolerations {
		toleration.TolerationSeconds = nil
		tolerations.Insert(toleration)
	}
	for _, oldToleration := range old.Spec.Tolerations {
		oldToleration.TolerationSeconds = nil
		if !tolerations.Has(oldToleration) {
			return field.ErrorList{field.Forbidden(path, "existing toleration can not be modified except its tolerationSeconds")}
		}
	}
	return nil
}

// validateGatesChange: scheduling gates may only be removed.
func validateGatesChange(obj, old *corev1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	known := sets.New(old.Spec.SchedulingGates...)
	for i, gate := range obj.Spec.SchedulingGates {
		if !known.Has(gate) {
			errs = append(errs, field.Forbidden(path.Index(i).Child("name"),
				fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", gate.Name)))
		}
	}
	return errs
}

// validateGatedChange validates what may change while a pod has scheduling gates: its node selection may become narrower.
// It resets the narrowed fields of spec.
func validateGatedChange(spec, old *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for key, value := range old.NodeSelector {
		if newValue, kept := spec.NodeSelector[key]; !kept || newValue != value {
			errs = append(errs, field.Invalid(path.Child("nodeSelector"), spec.NodeSelector,
				"only additions to spec.nodeSelector are allowed (no mutations or deletions)"))
			break
		}
	}
	spec.NodeSelector = old.NodeSelector

	affinity, oldAffinity := nodeAffinity(spec), nodeAffinity(old)
	if equality.Semantic.DeepEqual(affinity, oldAffinity) {
		return errs
	}
	errs = append(errs, validateNodeAffinityChange(affinity, oldAffinity, path.Child("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"))...)
	switch {
	case spec.Affinity == nil:
		spec.Affinity = &corev1.Affinity{NodeAffinity: oldAffinity}
	case old.Affinity == nil && spec.Affinity.PodAffinity == nil && spec.Affinity.PodAntiAffinity == nil:
		spec.Affinity = nil
	default:
		spec.Affinity.NodeAffinity = oldAffinity
	}
	return errs
}

func nodeAffinity(spec *corev1.PodSpec) *corev1.NodeAffinity {
	if spec.Affinity == nil {
		return nil
	}
	return spec.Affinity.NodeAffinity
}

func requiredTerms(affinity *corev1.NodeAffinity) []corev1.NodeSelectorTerm {
	if affinity == nil || affinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// validateNodeAffinityChange allows each term to become narrower. Terms are alternatives, so their number must not change.
func validateNodeAffinityChange(affinity, oldAffinity *corev1.NodeAffinity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	terms, oldTerms := requiredTerms(affinity), requiredTerms(oldAffinity)
	if len(oldTerms) > 0 && len(terms) != len(oldTerms) {
		return field.ErrorList{field.Invalid(path, terms, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")}
	}
	for i := range oldTerms {
		if !narrows(&terms[i], &oldTerms[i]) {
			errs = append(errs, field.Invalid(path.Index(i), terms[i], "only additions are allowed (no mutations or deletions)"))
		}
	}
	return errs
}

// narrows reports whether term begins with all of old. An empty old term selects nothing, so any other term is wider.
func narrows(term, old *corev1.NodeSelectorTerm) bool {
	if len(old.MatchExpressions) == 0 && len(old.MatchFields) == 0 {
		return len(term.MatchExpressions) == 0 && len(term.MatchFields) == 0
	}
	hasPrefix := func(requirements, oldRequirements []corev1.NodeSelectorRequirement) bool {
		return len(requirements) >= len(oldRequirements) && equality.Semantic.DeepEqual(requirements[:len(oldRequirements)], oldRequirements)
	}
	return hasPrefix(term.MatchExpressions, old.MatchExpressions) && hasPrefix(term.MatchFields, old.MatchFields)
}
