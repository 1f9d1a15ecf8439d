package core

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"skiff/internal/kind"
)

// Old annotations that are still validated.
const (
	taintsAnnotation          = "scheduler.alpha.kubernetes.io/taints"
	preferAvoidPodsAnnotation = corev1.PreferAvoidPodsAnnotationKey
)

// declaredFeature is the name of a feature: UpperCamelCase, with optional segments after slashes.
var declaredFeature = regexp.MustCompile(`^[A-Z][a-zA-Z0-9]*(/[a-zA-Z][a-zA-Z0-9]*)*$`)

func validateNode(req *kind.Request, obj, old *corev1.Node) field.ErrorList {
	metadata := field.NewPath("metadata")
	errs := validateNodeAnnotations(obj.Annotations, metadata.Child("annotations"))
	errs = append(errs, validateTaints(obj.Spec.Taints, metadata.Child("taints"))...)
	errs = append(errs, validateNodeResources(obj)...)
	if swap := obj.Status.NodeInfo.Swap; swap != nil && swap.Capacity != nil && *swap.Capacity <= 0 {
		errs = append(errs, field.Invalid(metadata.Child("nodeSwapStatus", "capacity"), *swap.Capacity, notPositive))
	}
	errs = append(errs, validateDeclaredFeatures(obj.Status.DeclaredFeatures, field.NewPath("status", "declaredFeatures"))...)
	errs = append(errs, validatePodCIDRs(obj.Spec.PodCIDRs, field.NewPath("spec", "podCIDRs"))...)
	if old != nil {
		errs = append(errs, validateNodeUpdate(req, obj, old)...)
	}
	return errs
}

// validateNodeUpdate validates changes of the node and of its status.
func validateNodeUpdate(_ *kind.Request, obj, old *corev1.Node) field.ErrorList {
	metadata, spec, status := field.NewPath("metadata"), field.NewPath("spec"), field.NewPath("status")
	errs := validateNodeAnnotations(obj.Annotations, metadata.Child("annotations"))
	errs = append(errs, validateNodeResources(obj)...)
	errs = append(errs, validateDeclaredFeatures(obj.Status.DeclaredFeatures, status.Child("declaredFeatures"))...)

	seen := map[corev1.NodeAddress]bool{}
	for i, address := range obj.Status.Addresses {
		if seen[address] {
			errs = append(errs, field.Duplicate(status.Child("addresses").Index(i), address))
		}
		seen[address] = true
	}
	errs = append(errs, validatePodCIDRsKept(obj.Spec.PodCIDRs, old.Spec.PodCIDRs, spec.Child("podCIDRs"))...)
	if old.Spec.ProviderID != "" && obj.Spec.ProviderID != old.Spec.ProviderID {
		message := "field cannot be modified once set"
		if obj.Spec.ProviderID == "" {
			message = "field cannot be cleared once set"
		}
		errs = append(errs, field.Invalid(spec.Child("providerID"), nil, message))
	}
	if obj.Spec.ConfigSource != nil {
		errs = append(errs, validateConfigSource(obj.Spec.ConfigSource, spec.Child("configSource"), false)...)
	}
	if config := obj.Status.Config; config != nil {
		for name, source := range map[string]*corev1.NodeConfigSource{"assigned": config.Assigned, "active": config.Active, "lastKnownGood": config.LastKnownGood} {
			if source != nil {
				errs = append(errs, validateConfigSource(source, status.Child("config", name), true)...)
			}
		}
	}
	errs = append(errs, validateTaints(obj.Spec.Taints, metadata.Child("taints"))...)
	if obj.Spec.DoNotUseExternalID != old.Spec.DoNotUseExternalID {
		errs = append(errs, field.Forbidden(spec.Child("externalID"), "may not be updated"))
	}
	return errs
}

func validatePodCIDRs(cidrs []string, path *field.Path) (errs field.ErrorList) {
	for i, cidr := range cidrs {
		errs = append(errs, validation.IsValidCIDRForLegacyField(path.Index(i), cidr, true, nil)...)
	}
	if len(cidrs) > 1 {
		dual, err := netutils.IsDualStackCIDRStrings(cidrs)
		if err != nil {
			errs = append(errs, field.InternalError(path, fmt.Errorf("invalid PodCIDRs. failed to check with dual stack with error:%v", err)))
		}
		if !dual || len(cidrs) > 2 {
			errs = append(errs, field.Invalid(path, cidrs, "may specify no more than one CIDR for each IP family"))
		}
	}
	return errs
}

// validatePodCIDRsKept: routes and addresses depend on the ranges of a node, so they are set once.
func validatePodCIDRsKept(cidrs, old []string, path *field.Path) (errs field.ErrorList) {
	const message = "node updates may not change podCIDR except from \"\" to valid"
	if len(old) == 0 {
		return nil
	}
	if len(old) != len(cidrs) {
		return field.ErrorList{field.Forbidden(path, message)}
	}
	for i := range old {
		if old[i] != cidrs[i] {
			errs = append(errs, field.Forbidden(path, message))
		}
	}
	return errs
}

func validateNodeResources(obj *corev1.Node) (errs field.ErrorList) {
	for name, quantity := range obj.Status.Capacity {
		errs = append(errs, validateQuantity(name, quantity, field.NewPath("status", "capacity", string(name)))...)
	}
	for name, quantity := range obj.Status.Allocatable {
		errs = append(errs, validateQuantity(name, quantity, field.NewPath("status", "allocatable", string(name)))...)
	}
	return errs
}

func validateDeclaredFeatures(features []string, path *field.Path) (errs field.ErrorList) {
	for i, feature := range features {
		if len(feature) > validation.DNS1123SubdomainMaxLength {
			errs = append(errs, field.Invalid(path.Index(i), feature, fmt.Sprintf("invalid feature name %q: must be no more than %d characters", feature, validation.DNS1123SubdomainMaxLength)))
		} else if !declaredFeature.MatchString(feature) {
			errs = append(errs, field.Invalid(path.Index(i), feature, fmt.Sprintf("invalid feature name %q: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes", feature)))
		}
		if i == 0 {
			continue
		}
		if previous := features[i-1]; previous == feature {
			errs = append(errs, field.Duplicate(path.Index(i), feature))
		} else if previous > feature {
			errs = append(errs, field.Invalid(path.Index(i), feature, "list must be sorted alphabetically"))
		}
	}
	return errs
}

func validateTaints(taints []corev1.Taint, path *field.Path) (errs field.ErrorList) {
	type identity struct {
		effect corev1.TaintEffect
		key    string
	}
	seen := map[identity]bool{}
	for i, taint := range taints {
		idxPath := path.Index(i)
		errs = append(errs, metavalidation.ValidateLabelName(taint.Key, idxPath.Child("key"))...)
		if messages := validation.IsValidLabelValue(taint.Value); len(messages) > 0 {
			errs = append(errs, field.Invalid(idxPath.Child("value"), taint.Value, strings.Join(messages, ";")))
		}
		switch taint.Effect {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		case "":
			errs = append(errs, field.Required(idxPath.Child("effect"), ""))
		default:
			errs = append(errs, field.NotSupported(idxPath.Child("effect"), taint.Effect, []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}))
		}
		if id := (identity{taint.Effect, taint.Key}); seen[id] {
			duplicate := field.Duplicate(idxPath, taint)
			duplicate.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, duplicate)
		} else {
			seen[id] = true
		}
	}
	return errs
}

func validateNodeAnnotations(annotations map[string]string, path *field.Path) (errs field.ErrorList) {
	if text := annotations[taintsAnnotation]; text != "" {
		var taints []corev1.Taint
		if err := json.Unmarshal([]byte(text), &taints); err != nil {
			errs = append(errs, field.Invalid(path, taintsAnnotation, err.Error()))
		} else {
			errs = append(errs, validateTaints(taints, path.Child(taintsAnnotation))...)
		}
	}
	if text := annotations[preferAvoidPodsAnnotation]; text != "" {
		var avoid corev1.AvoidPods
		if err := json.Unmarshal([]byte(text), &avoid); err != nil {
			return append(errs, field.Invalid(path.Child("AvoidPods"), preferAvoidPodsAnnotation, err.Error()))
		}
		for i, entry := range avoid.PreferAvoidPods {
			fldPath := path.Child(preferAvoidPodsAnnotation).Index(i).Child("PodSignature")
			if owner := entry.PodSignature.PodController; owner == nil {
				errs = append(errs, field.Required(fldPath, ""))
			} else if owner.Controller == nil || !*owner.Controller {
				errs = append(errs, field.Invalid(fldPath.Child("PodController", "Controller"), false, "must point to a controller"))
			}
		}
	}
	return errs
}

// validateConfigSource validates a reference to a kubelet configuration: resolved in the status, not yet in the spec.
func validateConfigSource(source *corev1.NodeConfigSource, path *field.Path, resolved bool) (errs field.ErrorList) {
	ref := source.ConfigMap
	if ref == nil {
		return field.ErrorList{field.Invalid(path, source, "exactly one reference subfield must be non-nil")}
	}
	path = path.Child("configMap")
	if resolved {
		errs = append(errs, required(path.Child("uid"), string(ref.UID))...)
		errs = append(errs, required(path.Child("resourceVersion"), ref.ResourceVersion)...)
	} else {
		if ref.UID != "" {
			errs = append(errs, field.Forbidden(path.Child("uid"), "uid must not be set in spec"))
		}
		if ref.ResourceVersion != "" {
			errs = append(errs, field.Forbidden(path.Child("resourceVersion"), "resourceVersion must not be set in spec"))
		}
	}
	checked := func(name, value string, messages func() []string) {
		if value == "" {
			errs = append(errs, field.Required(path.Child(name), ""))
		} else {
			errs = append(errs, kind.Invalid(path.Child(name), value, messages())...)
		}
	}
	checked("namespace", ref.Namespace, func() []string { return apivalidation.ValidateNamespaceName(ref.Namespace, false) })
	checked("name", ref.Name, func() []string { return apivalidation.NameIsDNSSubdomain(ref.Name, false) })
	checked("kubeletConfigKey", ref.KubeletConfigKey, func() []string { return validation.IsConfigMapKey(ref.KubeletConfigKey) })
	return errs
}
