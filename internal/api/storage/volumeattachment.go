package storage

import (
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/api/core"
	"skiff/internal/kind"
)

const (
	maxAttachmentMetadataSize = 256 << 10
	maxVolumeErrorMessage     = 1024
)

var attachmentDoc = storagev1.VolumeAttachmentSpec{}.SwaggerDoc()

// VolumeAttachment requests that a volume be attached to a node, and reports whether it is.
var VolumeAttachment = kind.Of(kind.Definition[*storagev1.VolumeAttachment]{
	GVK: storagev1.SchemeGroupVersion.WithKind("VolumeAttachment"), Plural: "volumeattachments",
	List:                    &storagev1.VolumeAttachmentList{},
	Validate:                validateVolumeAttachment,
	CopyStatus:              func(to, from *storagev1.VolumeAttachment) { to.Status = from.Status },
	StatusOnly:              true,
	ValidateStatus:          validateVolumeAttachment,
	DenyUnconditionalUpdate: true,
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		{Name: "Attacher", Type: "string", Format: "name", Description: attachmentDoc["attacher"]},
		kind.Column("PV", "string", storagev1.VolumeAttachmentSource{}.SwaggerDoc()["persistentVolumeName"]),
		kind.Column("Node", "string", attachmentDoc["nodeName"]),
		kind.Column("Attached", "boolean", storagev1.VolumeAttachmentStatus{}.SwaggerDoc()["attached"]),
		kind.AgeColumn(),
	},
	Row: func(attachment *storagev1.VolumeAttachment, now time.Time) []any {
		spec := &attachment.Spec
		return []any{
			attachment.Name, spec.Attacher, ptr.Deref(spec.Source.PersistentVolumeName, ""), spec.NodeName,
			attachment.Status.Attached, kind.Age(attachment.CreationTimestamp, now),
		}
	},
})

func validateVolumeAttachment(_ *kind.Request, attachment, old *storagev1.VolumeAttachment) field.ErrorList {
	spec, path := &attachment.Spec, field.NewPath("spec")
	// A change is refused below; the error about the name has upstream's older text.
	validate := core.ValidateCSIDriverName
	if old == nil {
		validate = validateAttacher
	}
	errs := validate(spec.Attacher, path.Child("attacher"))
	errs = append(errs, validateAttachmentSource(&spec.Source, path.Child("source"))...)
	for _, message := range validation.NameIsDNSSubdomain(spec.NodeName, false) {
		errs = append(errs, field.Invalid(path.Child("nodeName"), spec.NodeName, message))
	}
	errs = append(errs, validateAttachmentStatus(&attachment.Status, field.NewPath("status"))...)
	if name := spec.Source.PersistentVolumeName; name != nil {
		for _, message := range validation.NameIsDNSSubdomain(*name, false) {
			errs = append(errs, field.Invalid(path.Child("source", "persistentVolumeName"), *name, message))
		}
	}
	if old != nil {
		errs = append(errs, immutable(!equality.Semantic.DeepEqual(attachment.Spec, old.Spec), path)...)
	}
	return errs
}

func validateAttacher(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	for _, message := range content.IsDNS1123SubdomainCaseless(name) {
		errs = append(errs, field.Invalid(path, name, message))
	}
	if len([]rune(name)) > maxDriverName {
		errs = append(errs, field.TooLongCharacters(path, name, maxDriverName))
	}
	return errs
}

func validateAttachmentSource(source *storagev1.VolumeAttachmentSource, path *field.Path) field.ErrorList {
	inline, name := source.InlineVolumeSpec, source.PersistentVolumeName
	switch {
	case inline == nil && name == nil:
		return field.ErrorList{field.Required(path, "must specify exactly one of inlineVolumeSpec and persistentVolumeName")}
	case inline != nil && name != nil:
		return field.ErrorList{field.Forbidden(path, "must specify exactly one of inlineVolumeSpec and persistentVolumeName")}
	case inline != nil:
		return validateInlineVolume(inline, path.Child("inlineVolumeSpec"))
	case *name == "":
		return field.ErrorList{field.Required(path.Child("persistentVolumeName"), "must specify non empty persistentVolumeName")}
	}
	return nil
}

// validateInlineVolume validates the inline volume of a pod: it must be a CSI volume, and most fields of a
// PersistentVolume are not allowed.
func validateInlineVolume(spec *corev1.PersistentVolumeSpec, path *field.Path) field.ErrorList {
	const forbidden = "may not be specified in the context of inline volumes"
	var errs field.ErrorList
	if spec.ClaimRef != nil {
		errs = append(errs, field.Forbidden(path.Child("claimRef"), forbidden))
	}
	if len(spec.Capacity) != 0 {
		errs = append(errs, field.Forbidden(path.Child("capacity"), forbidden))
	}
	if spec.CSI == nil {
		errs = append(errs, field.Required(path.Child("csi"), "has to be specified in the context of inline volumes"))
	}
	errs = append(errs, validateAccessModes(spec.AccessModes, path.Child("accessModes"))...)
	if policy := spec.PersistentVolumeReclaimPolicy; policy != "" && policy != corev1.PersistentVolumeReclaimRetain {
		errs = append(errs, field.Forbidden(path.Child("persistentVolumeReclaimPolicy"), "may only be Retain in the context of inline volumes"))
	}
	if spec.NodeAffinity != nil {
		errs = append(errs, field.Forbidden(path.Child("nodeAffinity"), forbidden))
	}
	others := *spec.PersistentVolumeSource.DeepCopy()
	others.CSI = nil
	switch hasOthers := !reflect.ValueOf(others).IsZero(); {
	case hasOthers && spec.CSI != nil:
		errs = append(errs, field.Forbidden(path.Child("csi"), "may not specify more than 1 volume type"))
	case spec.CSI != nil:
		errs = append(errs, core.ValidateCSISource(spec.CSI, path.Child("csi"))...)
	case !hasOthers:
		errs = append(errs, field.Required(path, "must specify a volume type"))
	}
	if spec.StorageClassName != "" {
		errs = append(errs, field.Forbidden(path.Child("storageClassName"), forbidden))
	}
	if spec.VolumeMode != nil && *spec.VolumeMode != corev1.PersistentVolumeFilesystem {
		errs = append(errs, field.Forbidden(path.Child("volumeMode"), "may not specify volumeMode other than Filesystem in the context of inline volumes"))
	}
	return errs
}

func validateAccessModes(modes []corev1.PersistentVolumeAccessMode, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(modes) == 0 {
		errs = append(errs, field.Required(path, ""))
	}
	supported := sets.New(corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOncePod)
	oncePod, other := false, false
	for _, mode := range modes {
		switch {
		case !supported.Has(mode):
			errs = append(errs, field.NotSupported(path, mode, sets.List(supported)))
		case mode == corev1.ReadWriteOncePod:
			oncePod = true
		default:
			other = true
		}
	}
	if oncePod && other {
		errs = append(errs, field.Forbidden(path, "may not use ReadWriteOncePod with other access modes"))
	}
	return errs
}

func validateAttachmentStatus(status *storagev1.VolumeAttachmentStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	size := 0
	for key, value := range status.AttachmentMetadata {
		size += len(key) + len(value)
	}
	if size > maxAttachmentMetadataSize {
		errs = append(errs, field.TooLong(path.Child("attachmentMetadata"), "", maxAttachmentMetadataSize))
	}
	for _, problem := range []struct {
		field string
		err   *storagev1.VolumeError
	}{{"attachError", status.AttachError}, {"detachError", status.DetachError}} {
		if problem.err == nil {
			continue
		}
		fldPath := path.Child(problem.field)
		if len(problem.err.Message) > maxVolumeErrorMessage {
			errs = append(errs, field.TooLong(fldPath.Child("message"), "", maxVolumeErrorMessage))
		}
		errs = append(errs, validateErrorCode(problem.err.ErrorCode, fldPath.Child("errorCode"))...)
	}
	return errs
}
