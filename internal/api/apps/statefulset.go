package apps

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

// StatefulSet runs pods with stable names, an order and their own storage.
var StatefulSet = kind.Of(kind.Definition[*appsv1.StatefulSet]{
	GVK: appsv1.SchemeGroupVersion.WithKind("StatefulSet"), Plural: "statefulsets", Short: []string{"sts"}, Categories: []string{"all"}, Namespaced: true,
	List:         &appsv1.StatefulSetList{},
	ValidateName: validation.NameIsDNSLabel, // the hostnames of pods begin with it
	Default:      defaultStatefulSet,
	Prepare: func(_ *kind.Request, set, old *appsv1.StatefulSet) {
		podspec.DropDisabledTemplate(&set.Spec.Template, statefulSetTemplate(old))
	},
	Validate:       validateStatefulSet,
	Warn:           warnStatefulSet,
	CopyStatus:     func(to, from *appsv1.StatefulSet) { to.Status = from.Status },
	ValidateStatus: validateStatefulSetStatus,
	SpecChanged:    statefulSetChanged,
	Columns: columns([]metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Ready", "string", "Number of the pod with ready state"),
		kind.AgeColumn(),
	}),
	Row: func(set *appsv1.StatefulSet, now time.Time) []any {
		names, images := ContainerCells(&set.Spec.Template)
		return []any{
			set.Name, fmt.Sprintf("%d/%d", set.Status.ReadyReplicas, ptr.Deref(set.Spec.Replicas, 0)),
			kind.Age(set.CreationTimestamp, now), names, images,
		}
	},
	Subresources: []kind.Subresource{scaleOf(appsv1.Resource("statefulsets"), func(set *appsv1.StatefulSet) scalable {
		return scalable{&set.Spec.Replicas, set.Spec.Selector, set.Status.Replicas}
	})},
})

// statefulSetTemplate is the template of the stored object, nil if there is none.
func statefulSetTemplate(old *appsv1.StatefulSet) *corev1.PodTemplateSpec {
	if old == nil {
		return nil
	}
	return &old.Spec.Template
}

func statefulSetChanged(set, old *appsv1.StatefulSet) bool {
	return !equality.Semantic.DeepEqual(set.Spec, old.Spec)
}

func defaultStatefulSet(set *appsv1.StatefulSet) {
	spec := &set.Spec
	if spec.PodManagementPolicy == "" {
		spec.PodManagementPolicy = appsv1.OrderedReadyPodManagement
	}
	if spec.UpdateStrategy.Type == "" {
		spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		kind.SetDefault(&spec.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
	}
	if rolling := spec.UpdateStrategy.RollingUpdate; spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType && rolling != nil {
		kind.SetDefault(&rolling.Partition, 0)
		kind.SetDefault(&rolling.MaxUnavailable, intstr.FromInt32(1))
	}
	kind.SetDefault(&spec.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	for _, policy := range []*appsv1.PersistentVolumeClaimRetentionPolicyType{
		&spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted, &spec.PersistentVolumeClaimRetentionPolicy.WhenScaled,
	} {
		if *policy == "" {
			*policy = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
		}
	}
	kind.SetDefault(&spec.Replicas, 1)
	kind.SetDefault(&spec.RevisionHistoryLimit, 10)
	podspec.DefaultTemplate(&spec.Template)
	for i := range spec.VolumeClaimTemplates {
		defaultClaim(&spec.VolumeClaimTemplates[i])
	}
}

func defaultClaim(claim *corev1.PersistentVolumeClaim) {
	// A claim template has apiVersion and kind.
	claim.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
	if claim.Status.Phase == "" {
		claim.Status.Phase = corev1.ClaimPending
	}
	kind.SetDefault(&claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	for _, list := range []corev1.ResourceList{claim.Spec.Resources.Limits, claim.Spec.Resources.Requests, claim.Status.Capacity, claim.Status.AllocatedResources} {
		podspec.RoundUpToMilli(list)
	}
}

func warnStatefulSet(set, old *appsv1.StatefulSet) []string {
	path := templatePath()
	claims := field.NewPath("spec", "volumeClaimTemplates")
	var warnings []string
	if old == nil {
		warnings = podspec.WarnTemplate(path, &set.Spec.Template, nil)
	} else if statefulSetChanged(set, old) {
		warnings = podspec.WarnTemplate(path, &set.Spec.Template, &old.Spec.Template)
	}
	for i := range set.Spec.VolumeClaimTemplates {
		idxPath := claims.Index(i)
		if old != nil {
			idxPath = idxPath.Child("Spec")
		}
		warnings = append(warnings, warnClaim(&set.Spec.VolumeClaimTemplates[i].Spec, idxPath)...)
	}
	if limit := set.Spec.RevisionHistoryLimit; limit != nil && *limit < 0 {
		warnings = append(warnings, "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
	}
	return warnings
}

// warnClaim warns of sizes that are not whole bytes.
func warnClaim(spec *corev1.PersistentVolumeClaimSpec, path *field.Path) []string {
	var warnings []string
	for _, list := range []struct {
		field     string
		resources corev1.ResourceList
	}{{"requests", spec.Resources.Requests}, {"limits", spec.Resources.Limits}} {
		size := list.resources[corev1.ResourceStorage]
		if size.MilliValue()%1000 != 0 {
			idxPath := path.Child("resources", list.field).Key(string(corev1.ResourceStorage))
			warnings = append(warnings, fmt.Sprintf("%s: fractional byte value %q is invalid, must be an integer", idxPath, size.String()))
		}
	}
	return warnings
}

func validateStatefulSet(_ *kind.Request, set, old *appsv1.StatefulSet) field.ErrorList {
	path := field.NewPath("spec")
	if old == nil {
		errs := validateStatefulSetSpec(&set.Spec, nil, false, path)
		for i := range set.Spec.VolumeClaimTemplates {
			errs = append(errs, podspec.ValidateClaimSpec(&set.Spec.VolumeClaimTemplates[i].Spec, path.Child("volumeClaimTemplates").Index(i).Child("spec"))...)
		}
		if name := set.Spec.ServiceName; name != "" {
			for _, message := range validation.NameIsDNSLabel(name, false) {
				errs = append(errs, field.Invalid(path.Child("serviceName"), name, message))
			}
		}
		return errs
	}
	// A stored set that would be refused today must stay scalable, so its template is not validated again.
	storedIsInvalid := len(validateStatefulSetSpec(&old.Spec, &old.Spec, false, nil)) > 0
	errs := validateStatefulSetSpec(&set.Spec, &old.Spec, storedIsInvalid, path)
	errs = append(errs, validation.ValidateImmutableField(set.Spec.Selector, old.Spec.Selector, path.Child("selector"))...)
	errs = append(errs, validation.ValidateImmutableField(set.Spec.VolumeClaimTemplates, old.Spec.VolumeClaimTemplates, path.Child("volumeClaimTemplates"))...)
	errs = append(errs, validation.ValidateImmutableField(set.Spec.ServiceName, old.Spec.ServiceName, path.Child("serviceName"))...)
	return append(errs, validation.ValidateImmutableField(set.Spec.PodManagementPolicy, old.Spec.PodManagementPolicy, path.Child("podManagementPolicy"))...)
}

func validateStatefulSetSpec(spec, old *appsv1.StatefulSetSpec, skipTemplate bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch spec.PodManagementPolicy {
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	case "":
		errs = append(errs, field.Required(path.Child("podManagementPolicy"), ""))
	default:
		errs = append(errs, field.Invalid(path.Child("podManagementPolicy"), spec.PodManagementPolicy, "must be 'OrderedReady' or 'Parallel'"))
	}
	errs = append(errs, validateStatefulSetStrategy(&spec.UpdateStrategy, path.Child("updateStrategy"))...)
	if policy := spec.PersistentVolumeClaimRetentionPolicy; policy != nil {
		fldPath := path.Child("persistentVolumeClaimRetentionPolicy")
		errs = append(errs, validateRetention(policy.WhenDeleted, fldPath.Child("whenDeleted"))...)
		errs = append(errs, validateRetention(policy.WhenScaled, fldPath.Child("whenScaled"))...)
	}
	errs = append(errs, validateCounts(path, optionalCount("replicas", spec.Replicas), countOf("minReadySeconds", spec.MinReadySeconds))...)
	if spec.Ordinals != nil {
		errs = append(errs, validateCounts(path.Child("ordinals"), countOf("start", spec.Ordinals.Start))...)
	}
	errs = append(errs, validateSelector(spec.Selector, "statefulset", path.Child("selector"))...)
	if selector, err := metav1.LabelSelectorAsSelector(spec.Selector); err != nil {
		errs = append(errs, field.Invalid(path.Child("selector"), spec.Selector, ""))
	} else {
		if !selector.Empty() {
			errs = append(errs, validateMatch(selector, &spec.Template, path.Child("template"))...)
		}
		errs = append(errs, validateStatefulTemplate(spec, old, skipTemplate, path.Child("template"))...)
	}
	return append(errs, validateAlwaysRestarts(&spec.Template.Spec, "StatefulSet", path.Child("template", "spec"))...)
}

// validateStatefulTemplate validates the template as its pods will be: with a hostname and the claims of the set.
func validateStatefulTemplate(spec, old *appsv1.StatefulSetSpec, skip bool, path *field.Path) field.ErrorList {
	if skip {
		errs := metav1validation.ValidateLabels(spec.Template.Labels, path.Child("labels"))
		return append(errs, validation.ValidateAnnotations(spec.Template.Annotations, path.Child("annotations"))...)
	}
	template := spec.Template.DeepCopy()
	template.Spec.Hostname, template.Spec.Subdomain = "", ""
	var volumes []corev1.Volume
	claimed := sets.New[string]()
	for _, claim := range spec.VolumeClaimTemplates {
		if !claimed.Has(claim.Name) {
			claimed.Insert(claim.Name)
			volumes = append(volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
			}})
		}
	}
	for _, volume := range template.Spec.Volumes {
		if !claimed.Has(volume.Name) {
			volumes = append(volumes, volume)
		}
	}
	template.Spec.Volumes = volumes
	if old == nil {
		return podspec.ValidateTemplate(template, nil, path)
	}
	return podspec.ValidateTemplate(template, &old.Template, path)
}

func validateStatefulSetStrategy(strategy *appsv1.StatefulSetUpdateStrategy, path *field.Path) field.ErrorList {
	rolling := strategy.RollingUpdate
	switch strategy.Type {
	case "":
		return field.ErrorList{field.Required(path, "")}
	case appsv1.OnDeleteStatefulSetStrategyType:
		if rolling != nil {
			return field.ErrorList{field.Invalid(path.Child("rollingUpdate"), rolling, "only allowed for updateStrategy 'RollingUpdate'")}
		}
		return nil
	case appsv1.RollingUpdateStatefulSetStrategyType:
	default:
		return field.ErrorList{field.Invalid(path, *strategy, "must be 'RollingUpdate' or 'OnDelete'")}
	}
	if rolling == nil {
		return nil
	}
	path = path.Child("rollingUpdate")
	errs := validateCounts(path, optionalCount("partition", rolling.Partition))
	if unavailable := rolling.MaxUnavailable; unavailable != nil {
		fldPath := path.Child("maxUnavailable")
		errs = append(errs, ValidateIntOrPercent(*unavailable, fldPath)...)
		if isZero(unavailable) {
			errs = append(errs, field.Invalid(fldPath, *unavailable, "cannot be 0"))
		}
		errs = append(errs, ValidateAtMost100Percent(*unavailable, fldPath)...)
	}
	return errs
}

func validateRetention(policy appsv1.PersistentVolumeClaimRetentionPolicyType, path *field.Path) field.ErrorList {
	switch policy {
	case appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType:
		return nil
	}
	return field.ErrorList{field.NotSupported(path, policy, []appsv1.PersistentVolumeClaimRetentionPolicyType{
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
	})}
}

func validateStatefulSetStatus(_ *kind.Request, set, old *appsv1.StatefulSet) field.ErrorList {
	status, path := &set.Status, field.NewPath("status")
	ready, current := countOf("readyReplicas", status.ReadyReplicas), countOf("currentReplicas", status.CurrentReplicas)
	updated, available := countOf("updatedReplicas", status.UpdatedReplicas), countOf("availableReplicas", status.AvailableReplicas)
	errs := validateCounts(path, countOf("replicas", status.Replicas), ready, current, updated, available,
		countOf("observedGeneration", status.ObservedGeneration), optionalCount("collisionCount", status.CollisionCount))
	errs = append(errs, validateWithin(path, status.Replicas, ready, current, updated, available)...)
	if status.AvailableReplicas > status.ReadyReplicas {
		errs = append(errs, field.Invalid(path.Child("availableReplicas"), status.AvailableReplicas, "cannot be greater than status.readyReplicas"))
	}
	return append(errs, validateCollisions(status.CollisionCount, old.Status.CollisionCount, path.Child("collisionCount"))...)
}
