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

var PersistentVolume = kind.Of(kind.Definition[*corev1.PersistentVolume]{
	GVK: corev1.SchemeGroupVersion.WithKind("PersistentVolume"), Plural: "persistentvolumes", Short: []string{"pv"},
	List: &corev1.PersistentVolumeList{},

	Default: defaultPersistentVolume,
	Prepare: func(req *kind.Request, obj, old *corev1.PersistentVolume) {
		if old == nil {
			obj.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending, LastPhaseTransitionTime: req.Now.DeepCopy()}
		}
	},
	Validate: validatePersistentVolume,
	Warn:     warnPersistentVolume,

	CopyStatus:    func(to, from *corev1.PersistentVolume) { to.Status = from.Status },
	PrepareStatus: preparePersistentVolumeStatus,
	ReturnDeleted: true,

	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Capacity", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["capacity"]),
		kind.Column("Access Modes", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["accessModes"]),
		kind.Column("Reclaim Policy", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["persistentVolumeReclaimPolicy"]),
		kind.Column("Status", "string", corev1.PersistentVolumeStatus{}.SwaggerDoc()["phase"]),
		kind.Column("Claim", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["claimRef"]),
		kind.Column("StorageClass", "string", "StorageClass of the pv"),
		kind.Column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pv"),
		kind.Column("Reason", "string", corev1.PersistentVolumeStatus{}.SwaggerDoc()["reason"]),
		kind.AgeColumn(),
		kind.Wide("VolumeMode", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["volumeMode"]),
	},
	Row: persistentVolumeRow,
})

func defaultPersistentVolume(obj *corev1.PersistentVolume) {
	if obj.Status.Phase == "" {
		obj.Status.Phase = corev1.VolumePending
	}
	spec := &obj.Spec
	if spec.PersistentVolumeReclaimPolicy == "" {
		spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	if spec.VolumeMode == nil {
		mode := corev1.PersistentVolumeFilesystem
		spec.VolumeMode = &mode
	}
	podspec.RoundUpToMilli(spec.Capacity)
	DefaultPersistentVolumeSource(&spec.PersistentVolumeSource)
}

// DefaultPersistentVolumeSource sets the defaults of a volume source, of a PersistentVolume or of the inlineVolumeSpec of a
// VolumeAttachment.
func DefaultPersistentVolumeSource(source *corev1.PersistentVolumeSource) {
	if hostPath := source.HostPath; hostPath != nil && hostPath.Type == nil {
		unset := corev1.HostPathUnset
		hostPath.Type = &unset
	}
	defaultString := func(value *string, defaultValue string) {
		if *value == "" {
			*value = defaultValue
		}
	}
	if rbd := source.RBD; rbd != nil {
		defaultString(&rbd.RBDPool, "rbd")
		defaultString(&rbd.RadosUser, "admin")
		defaultString(&rbd.Keyring, "/etc/ceph/keyring")
	}
	if iscsi := source.ISCSI; iscsi != nil {
		defaultString(&iscsi.ISCSIInterface, "default")
	}
	if disk := source.AzureDisk; disk != nil {
		if disk.CachingMode == nil {
			mode := corev1.AzureDataDiskCachingReadWrite
			disk.CachingMode = &mode
		}
		if disk.Kind == nil {
			shared := corev1.AzureSharedBlobDisk
			disk.Kind = &shared
		}
		if disk.FSType == nil {
			fs := "ext4"
			disk.FSType = &fs
		}
		if disk.ReadOnly == nil {
			readOnly := false
			disk.ReadOnly = &readOnly
		}
	}
	if scaleIO := source.ScaleIO; scaleIO != nil {
		defaultString(&scaleIO.StorageMode, "ThinProvisioned")
		defaultString(&scaleIO.FSType, "xfs")
	}
}

// preparePersistentVolumeStatus sets lastPhaseTransitionTime when the phase changes, unless the client has set it, and keeps it otherwise.
func preparePersistentVolumeStatus(req *kind.Request, obj, old *corev1.PersistentVolume) {
	status, oldStatus := &obj.Status, old.Status
	switch {
	case oldStatus.Phase == status.Phase && status.LastPhaseTransitionTime == nil:
		status.LastPhaseTransitionTime = oldStatus.LastPhaseTransitionTime
	case oldStatus.Phase != status.Phase && (status.LastPhaseTransitionTime == nil || status.LastPhaseTransitionTime.Equal(oldStatus.LastPhaseTransitionTime)):
		status.LastPhaseTransitionTime = req.Now.DeepCopy()
	}
}

// warnPersistentVolume warns of deprecated annotations, labels, policies and volume types.
func warnPersistentVolume(obj, _ *corev1.PersistentVolume) (warnings []string) {
	warn := func(path *field.Path, message string) {
		warnings = append(warnings, fmt.Sprintf("%s: %s", path, message))
	}
	annotations, spec := field.NewPath("metadata", "annotations"), field.NewPath("spec")
	if _, set := obj.Annotations[corev1.BetaStorageClassAnnotation]; set {
		warn(annotations.Key(corev1.BetaStorageClassAnnotation), `deprecated since v1.8; use "storageClassName" attribute instead`)
	}
	if _, set := obj.Annotations[corev1.MountOptionAnnotation]; set {
		warn(annotations.Key(corev1.MountOptionAnnotation), `deprecated since v1.31; use "mountOptions" attribute instead`)
	}
	if obj.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		warn(spec.Child("persistentVolumeReclaimPolicy"), "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.")
	}
	if affinity := obj.Spec.NodeAffinity; affinity != nil && affinity.Required != nil {
		for i, term := range affinity.Required.NodeSelectorTerms {
			idxPath := spec.Child("nodeAffinity", "required", "nodeSelectorTerms").Index(i)
			for j, expression := range term.MatchExpressions {
				if message, deprecated := podspec.DeprecatedNodeLabels[expression.Key]; deprecated {
					warn(idxPath.Child("matchExpressions").Index(j).Child("key"), expression.Key+" is "+message)
				}
			}
		}
	}
	for _, source := range []struct {
		set           bool
		name, message string
	}{
		{obj.Spec.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+"},
		{obj.Spec.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"},
		{obj.Spec.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+"},
		{obj.Spec.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+"},
		{obj.Spec.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+"},
		{obj.Spec.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+"},
	} {
		if source.set {
			warn(spec.Child(source.name), source.message)
		}
	}
	return warnings
}

func persistentVolumeRow(obj *corev1.PersistentVolume, now time.Time) []any {
	claim := ""
	if ref := obj.Spec.ClaimRef; ref != nil {
		claim = ref.Namespace + "/" + ref.Name
	}
	capacity := obj.Spec.Capacity[corev1.ResourceStorage]
	phase := string(obj.Status.Phase)
	if obj.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	class := obj.Spec.StorageClassName
	if annotated, set := obj.Annotations[corev1.BetaStorageClassAnnotation]; set {
		class = annotated
	}
	return []any{
		obj.Name, capacity.String(), accessModes(obj.Spec.AccessModes), string(obj.Spec.PersistentVolumeReclaimPolicy),
		phase, claim, class, valueOr(obj.Spec.VolumeAttributesClassName, "<unset>"), obj.Status.Reason,
		kind.Age(obj.CreationTimestamp, now), valueOr(obj.Spec.VolumeMode, "<unset>"),
	}
}

func valueOr[T ~string](value *T, otherwise string) string {
	if value == nil {
		return otherwise
	}
	return string(*value)
}
