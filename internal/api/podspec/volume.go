package podspec

import (
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const fileModeText = "must be a number between 0 and 0777 (octal), both inclusive"

// volumeList validates the volumes and records the valid ones, for mounts to refer to.
func (val *validator) volumeList(path *field.Path) {
	created := sets.New[string]() // claims that are created with this pod
	if val.meta != nil && val.meta.Name != "" {
		for _, v := range val.spec.Volumes {
			if v.Ephemeral != nil {
				created.Insert(val.meta.Name + "-" + v.Name)
			}
		}
	}
	val.volumes = make(map[string]*corev1.VolumeSource, len(val.spec.Volumes))
	for i := range val.spec.Volumes {
		v, path := &val.spec.Volumes[i], path.Index(i)
		before := len(val.errs)
		val.volumeSource(v, path)
		val.requiredLabel(path.Child("name"), v.Name)
		if val.volumes[v.Name] != nil {
			val.duplicate(path.Child("name"), v.Name)
		}
		if len(val.errs) == before {
			val.volumes[v.Name] = &v.VolumeSource
		}
		if claim := v.PersistentVolumeClaim; claim != nil && created.Has(claim.ClaimName) {
			val.invalid(path.Child("persistentVolumeClaim", "claimName"), claim.ClaimName,
				"must not reference a PVC that gets created for an ephemeral volume")
		}
	}
}

// volumeValidation validates one type of volume source. name is the field; at, if set, is the field that errors report
// instead.
type volumeValidation struct {
	name, at string
	set      bool
	validate func(path *field.Path)
}

// volumeSource requires exactly one source and validates the first.
func (val *validator) volumeSource(v *corev1.Volume, path *field.Path) {
	found := false
	for _, source := range append(val.localVolumes(v, path), val.remoteVolumes(v, path)...) {
		switch {
		case !source.set:
		case found:
			val.forbidden(path.Child(source.name), "may not specify more than 1 volume type")
		default:
			found = true
			if source.at == "" {
				source.at = source.name
			}
			source.validate(path.Child(source.at))
		}
	}
	if !found {
		val.required(path, "must specify a volume type")
	}
}

// localVolumes are the sources that the kubelet provides itself.
func (val *validator) localVolumes(v *corev1.Volume, at *field.Path) []volumeValidation {
	return []volumeValidation{
		{name: "emptyDir", set: v.EmptyDir != nil, validate: func(path *field.Path) { val.emptyDir(v.EmptyDir, path) }},
		{name: "hostPath", set: v.HostPath != nil, validate: func(path *field.Path) { val.hostPath(v.HostPath, path) }},
		{name: "gitRepo", set: v.GitRepo != nil, validate: func(path *field.Path) {
			val.nonEmpty(path.Child("repository"), v.GitRepo.Repository)
			val.localPath(path.Child("directory"), v.GitRepo.Directory)
		}},
		{name: "secret", set: v.Secret != nil, validate: func(path *field.Path) {
			val.nonEmpty(path.Child("secretName"), v.Secret.SecretName)
			val.fileDefaults(v.Secret.DefaultMode, v.Secret.DefaultUser, path)
			val.keysToPaths(v.Secret.Items, path.Child("items"))
		}},
		{name: "persistentVolumeClaim", set: v.PersistentVolumeClaim != nil, validate: func(path *field.Path) {
			val.nonEmpty(path.Child("claimName"), v.PersistentVolumeClaim.ClaimName)
		}},
		{name: "downwardAPI", set: v.DownwardAPI != nil, validate: func(path *field.Path) {
			val.fileDefaults(v.DownwardAPI.DefaultMode, v.DownwardAPI.DefaultUser, path)
			for i := range v.DownwardAPI.Items {
				val.downwardFile(&v.DownwardAPI.Items[i], path)
			}
		}},
		{name: "configMap", set: v.ConfigMap != nil, validate: func(path *field.Path) {
			val.nonEmpty(path.Child("name"), v.ConfigMap.Name)
			val.fileDefaults(v.ConfigMap.DefaultMode, v.ConfigMap.DefaultUser, path)
			val.keysToPaths(v.ConfigMap.Items, path.Child("items"))
		}},
		{name: "projected", set: v.Projected != nil, validate: func(path *field.Path) { val.projected(v.Projected, path) }},
		{name: "csi", set: v.CSI != nil, validate: func(path *field.Path) { val.inlineCSI(v.CSI, path) }},
		{name: "ephemeral", set: v.Ephemeral != nil, validate: func(path *field.Path) { val.ephemeralVolume(v, at, path) }},
		{name: "image", set: v.Image != nil, validate: func(path *field.Path) {
			if v.Image.Reference == "" && !val.allow.emptyImageReference {
				val.required(path.Child("reference"), "")
			}
			val.pullPolicy(v.Image.PullPolicy, path.Child("pullPolicy"))
		}},
	}
}

func (val *validator) emptyDir(v *corev1.EmptyDirVolumeSource, path *field.Path) {
	if v.SizeLimit != nil && v.SizeLimit.Sign() < 0 {
		val.forbidden(path.Child("sizeLimit"), "SizeLimit field must be a valid resource quantity")
	}
	if v.Mode != nil && (*v.Mode < 0 || *v.Mode > 0o1777) {
		val.invalid(path.Child("mode"), *v.Mode, "must be a number between 0 and 01777 (octal), both inclusive")
	}
}

func (val *validator) hostPath(v *corev1.HostPathVolumeSource, path *field.Path) {
	if v.Path == "" {
		val.required(path.Child("path"), "")
		return
	}
	val.noBacksteps(path.Child("path"), v.Path)
	optionalOneOf(val, path.Child("type"), v.Type,
		corev1.HostPathUnset, corev1.HostPathBlockDev, corev1.HostPathCharDev, corev1.HostPathDirectory,
		corev1.HostPathDirectoryOrCreate, corev1.HostPathFile, corev1.HostPathFileOrCreate, corev1.HostPathSocket)
}

func (val *validator) inlineCSI(v *corev1.CSIVolumeSource, path *field.Path) {
	val.csiDriver(path.Child("driver"), v.Driver)
	if ref := v.NodePublishSecretRef; ref != nil {
		if ref.Name == "" {
			val.required(path.Child("nodePublishSecretRef", "name"), "")
		} else {
			val.subdomain(path.Child("name"), ref.Name)
		}
	}
}

func (val *validator) csiDriver(path *field.Path, driver string) {
	if driver == "" {
		val.required(path, "")
		return
	}
	if len(driver) > 63 {
		val.add(field.TooLong(path, "", 63))
	}
	val.invalidEach(path, driver, utilvalidation.IsDNS1123Subdomain(strings.ToLower(driver)))
}

// ephemeralVolume validates a generic ephemeral volume. at is the volume's own path.
func (val *validator) ephemeralVolume(v *corev1.Volume, at, path *field.Path) {
	if template := v.Ephemeral.VolumeClaimTemplate; template == nil {
		val.required(path.Child("volumeClaimTemplate"), "")
	} else {
		val.claimTemplate(template, path.Child("volumeClaimTemplate"))
	}
	if val.meta != nil && val.meta.Name != "" && v.Name != "" {
		name := val.meta.Name + "-" + v.Name
		for _, msg := range validation.NameIsDNSSubdomain(name, false) {
			val.invalid(at.Child("name"), v.Name, fmt.Sprintf("PVC name %q: %v", name, msg))
		}
	}
}

// claimTemplate validates a claim template: it may have labels and annotations, and no other metadata.
func (val *validator) claimTemplate(template *corev1.PersistentVolumeClaimTemplate, path *field.Path) {
	meta, metaPath := &template.ObjectMeta, path.Child("metadata")
	val.add(validation.ValidateAnnotations(meta.Annotations, metaPath.Child("annotations"))...)
	val.add(metavalidation.ValidateLabels(meta.Labels, metaPath.Child("labels"))...)
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"name", meta.Name != ""}, {"generateName", meta.GenerateName != ""}, {"namespace", meta.Namespace != ""},
		{"selfLink", meta.SelfLink != ""}, {"uID", meta.UID != ""}, {"resourceVersion", meta.ResourceVersion != ""},
		{"generation", meta.Generation != 0}, {"creationTimestamp", !meta.CreationTimestamp.IsZero()},
		{"deletionTimestamp", meta.DeletionTimestamp != nil}, {"deletionGracePeriodSeconds", meta.DeletionGracePeriodSeconds != nil},
		{"ownerReferences", meta.OwnerReferences != nil}, {"finalizers", meta.Finalizers != nil}, {"managedFields", meta.ManagedFields != nil},
	} {
		if f.set {
			val.forbidden(metaPath.Child(f.name), "cannot be set")
		}
	}
	val.claimSpec(&template.Spec, path.Child("spec"))
}

// keysToPaths validates the mapping of an object's keys to files.
func (val *validator) keysToPaths(items []corev1.KeyToPath, path *field.Path) {
	for i, item := range items {
		path := path.Index(i)
		val.nonEmpty(path.Child("key"), item.Key)
		val.nonEmpty(path.Child("path"), item.Path)
		val.localFile(path.Child("path"), item.Path)
		val.fileMode(path.Child("mode"), item.Mode)
		val.userID(path.Child("user"), item.User)
	}
}

// downwardFile validates a downward API file. Its errors have the path of the volume.
func (val *validator) downwardFile(file *corev1.DownwardAPIVolumeFile, path *field.Path) {
	val.nonEmpty(path.Child("path"), file.Path)
	val.localFile(path.Child("path"), file.Path)
	switch {
	case file.FieldRef != nil:
		val.fieldRef(file.FieldRef, volumeFields, path.Child("fieldRef"))
		if file.ResourceFieldRef != nil {
			val.invalid(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
		}
	case file.ResourceFieldRef != nil:
		val.resourceFieldRef(file.ResourceFieldRef, true, path.Child("resourceFieldRef"))
	default:
		val.required(path, "one of fieldRef and resourceFieldRef is required")
	}
	val.fileMode(path.Child("mode"), file.Mode)
	val.userID(path.Child("user"), file.User)
}

func (val *validator) fileDefaults(mode *int32, user *int64, path *field.Path) {
	val.fileMode(path.Child("defaultMode"), mode)
	val.userID(path.Child("defaultUser"), user)
}

func (val *validator) fileMode(path *field.Path, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		val.invalid(path, *mode, fileModeText)
	}
}

func (val *validator) userID(path *field.Path, id *int64) {
	if id != nil {
		val.invalidEach(path, *id, utilvalidation.IsValidUserID(*id))
	}
}

func (val *validator) groupID(path *field.Path, id *int64) {
	if id != nil {
		val.invalidEach(path, *id, utilvalidation.IsValidGroupID(*id))
	}
}

// noBacksteps refuses a path that contains "..".
func (val *validator) noBacksteps(at *field.Path, target string) {
	for _, part := range strings.Split(target, "/") {
		if part == ".." {
			val.invalid(at, target, "must not contain '..'")
			return
		}
	}
}

// localPath requires a relative path without "..".
func (val *validator) localPath(at *field.Path, target string) {
	if path.IsAbs(target) {
		val.invalid(at, target, "must be a relative path")
	}
	val.noBacksteps(at, target)
}

// localFile is localPath for a file that the kubelet writes, whose own files begin with two dots.
func (val *validator) localFile(at *field.Path, target string) {
	val.localPath(at, target)
	if strings.HasPrefix(target, "..") && !strings.HasPrefix(target, "../") {
		val.invalid(at, target, "must not start with '..'")
	}
}
