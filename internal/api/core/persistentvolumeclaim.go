package core

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

var PersistentVolumeClaim = kind.Of(kind.Definition[*corev1.PersistentVolumeClaim]{
	GVK: corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), Plural: "persistentvolumeclaims", Short: []string{"pvc"}, Namespaced: true,
	List: &corev1.PersistentVolumeClaimList{},

	Default:  defaultClaim,
	Prepare:  prepareClaim,
	Validate: validateClaim,
	Warn:     warnClaim,

	CopyStatus: func(to, from *corev1.PersistentVolumeClaim) { to.Status = from.Status },
	PrepareStatus: func(_ *kind.Request, obj, old *corev1.PersistentVolumeClaim) {
		// The feature gate of volume health is off.
		if old.Status.HealthStatus == nil {
			obj.Status.HealthStatus = nil
		}
	},
	ValidateStatus: validateClaimStatus,
	ReturnDeleted:  true,

	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Status", "string", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["phase"]),
		kind.Column("Volume", "string", corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeName"]),
		kind.Column("Capacity", "string", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["capacity"]),
		kind.Column("Access Modes", "string", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["accessModes"]),
		kind.Column("StorageClass", "string", "StorageClass of the pvc"),
		kind.Column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pvc"),
		kind.AgeColumn(),
		kind.Wide("VolumeMode", "string", corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeMode"]),
	},
	Row: claimRow,
})

func defaultClaim(obj *corev1.PersistentVolumeClaim) {
	if obj.Status.Phase == "" {
		obj.Status.Phase = corev1.ClaimPending
	}
	if obj.Spec.VolumeMode == nil {
		mode := corev1.PersistentVolumeFilesystem
		obj.Spec.VolumeMode = &mode
	}
	podspec.RoundUpToMilli(obj.Spec.Resources.Limits)
	podspec.RoundUpToMilli(obj.Spec.Resources.Requests)
	podspec.RoundUpToMilli(obj.Status.Capacity)
	podspec.RoundUpToMilli(obj.Status.AllocatedResources)
}

func prepareClaim(_ *kind.Request, obj, old *corev1.PersistentVolumeClaim) {
	spec := &obj.Spec
	var before *corev1.PersistentVolumeClaimSpec
	if old == nil {
		obj.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
	} else {
		before = &old.Spec
	}
	// The feature gate of cross-namespace data sources is off.
	if ref := spec.DataSourceRef; ref != nil && ref.Namespace != nil && *ref.Namespace != "" && (before == nil || before.DataSourceRef == nil) {
		spec.DataSourceRef = nil
	}
	// dataSource alone may refer only to the kinds it was introduced for; anything else is dropped silently.
	inUse := before != nil && (before.DataSource != nil || before.DataSourceRef != nil)
	if !inUse && spec.DataSourceRef == nil && !isClaimOrSnapshot(spec.DataSource) {
		spec.DataSource = nil
	}
	normalizeDataSources(spec)
}

func isClaimOrSnapshot(source *corev1.TypedLocalObjectReference) bool {
	if source == nil {
		return false
	}
	group := ""
	if source.APIGroup != nil {
		group = *source.APIGroup
	}
	return source.Kind == "PersistentVolumeClaim" && group == "" || source.Kind == "VolumeSnapshot" && group == "snapshot.storage.k8s.io"
}

// normalizeDataSources copies dataSource and dataSourceRef to each other when only one of them is set.
func normalizeDataSources(spec *corev1.PersistentVolumeClaimSpec) {
	source, ref := spec.DataSource, spec.DataSourceRef
	switch {
	case source != nil && ref == nil:
		copied := source.DeepCopy()
		spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: copied.APIGroup, Kind: copied.Kind, Name: copied.Name}
	case source == nil && ref != nil && (ref.Namespace == nil || *ref.Namespace == ""):
		copied := ref.DeepCopy()
		spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: copied.APIGroup, Kind: copied.Kind, Name: copied.Name}
	}
}

func warnClaim(obj, _ *corev1.PersistentVolumeClaim) (warnings []string) {
	if _, set := obj.Annotations[corev1.BetaStorageClassAnnotation]; set {
		warnings = append(warnings, fmt.Sprintf("%s: deprecated since v1.8; use \"storageClassName\" attribute instead",
			field.NewPath("metadata", "annotations").Key(corev1.BetaStorageClassAnnotation)))
	}
	for _, list := range []struct {
		name string
		list corev1.ResourceList
	}{{"requests", obj.Spec.Resources.Requests}, {"limits", obj.Spec.Resources.Limits}} {
		if storage := list.list[corev1.ResourceStorage]; storage.MilliValue()%1000 != 0 {
			warnings = append(warnings, fmt.Sprintf("%s: fractional byte value %q is invalid, must be an integer",
				field.NewPath("spec", "resources", list.name).Key("storage"), storage.String()))
		}
	}
	return warnings
}

func claimRow(obj *corev1.PersistentVolumeClaim, now time.Time) []any {
	phase := string(obj.Status.Phase)
	if obj.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	capacity, modes := "", ""
	if obj.Spec.VolumeName != "" {
		storage := obj.Status.Capacity[corev1.ResourceStorage]
		capacity, modes = storage.String(), accessModes(obj.Status.AccessModes)
	}
	class, set := obj.Annotations[corev1.BetaStorageClassAnnotation]
	if !set {
		class = valueOr(obj.Spec.StorageClassName, "")
	}
	return []any{
		obj.Name, phase, obj.Spec.VolumeName, capacity, modes, class,
		valueOr(obj.Spec.VolumeAttributesClassName, "<unset>"), kind.Age(obj.CreationTimestamp, now), valueOr(obj.Spec.VolumeMode, "<unset>"),
	}
}
