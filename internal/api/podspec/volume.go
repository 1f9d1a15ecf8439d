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

// volumeList judges the volumes and remembers the good ones, for mounts to refer to.
func (j *judge) volumeList(path *field.Path) {
	created := sets.New[string]() // claims that come into being with this pod
	if j.meta != nil && j.meta.Name != "" {
		for _, v := range j.spec.Volumes {
			if v.Ephemeral != nil {
				created.Insert(j.meta.Name + "-" + v.Name)
			}
		}
	}
	j.volumes = make(map[string]*corev1.VolumeSource, len(j.spec.Volumes))
	for i := range j.spec.Volumes {
		v, path := &j.spec.Volumes[i], path.Index(i)
		before := len(j.errs)
		j.volumeSource(v, path)
		j.requiredLabel(path.Child("name"), v.Name)
		if j.volumes[v.Name] != nil {
			j.duplicate(path.Child("name"), v.Name)
		}
		if len(j.errs) == before {
			j.volumes[v.Name] = &v.VolumeSource
		}
		if claim := v.PersistentVolumeClaim; claim != nil && created.Has(claim.ClaimName) {
			j.invalid(path.Child("persistentVolumeClaim", "claimName"), claim.ClaimName,
				"must not reference a PVC that gets created for an ephemeral volume")
		}
	}
}

// volumeRule judges one kind of source. name is the field; at, where it is not the field too, is where its errors
// are reported.
type volumeRule struct {
	name, at string
	set      bool
	judge    func(path *field.Path)
}

// volumeSource requires exactly one source and judges the first.
func (j *judge) volumeSource(v *corev1.Volume, path *field.Path) {
	found := false
	for _, rule := range append(j.localVolumes(v, path), j.remoteVolumes(v, path)...) {
		switch {
		case !rule.set:
		case found:
			j.forbidden(path.Child(rule.name), "may not specify more than 1 volume type")
		default:
			found = true
			if rule.at == "" {
				rule.at = rule.name
			}
			rule.judge(path.Child(rule.at))
		}
	}
	if !found {
		j.required(path, "must specify a volume type")
	}
}

// localVolumes are the sources the kubelet and the API make themselves.
func (j *judge) localVolumes(v *corev1.Volume, at *field.Path) []volumeRule {
	return []volumeRule{
		{name: "emptyDir", set: v.EmptyDir != nil, judge: func(path *field.Path) { j.emptyDir(v.EmptyDir, path) }},
		{name: "hostPath", set: v.HostPath != nil, judge: func(path *field.Path) { j.hostPath(v.HostPath, path) }},
		{name: "gitRepo", set: v.GitRepo != nil, judge: func(path *field.Path) {
			j.nonEmpty(path.Child("repository"), v.GitRepo.Repository)
			j.localPath(path.Child("directory"), v.GitRepo.Directory)
		}},
		{name: "secret", set: v.Secret != nil, judge: func(path *field.Path) {
			j.nonEmpty(path.Child("secretName"), v.Secret.SecretName)
			j.fileDefaults(v.Secret.DefaultMode, v.Secret.DefaultUser, path)
			j.keysToPaths(v.Secret.Items, path.Child("items"))
		}},
		{name: "persistentVolumeClaim", set: v.PersistentVolumeClaim != nil, judge: func(path *field.Path) {
			j.nonEmpty(path.Child("claimName"), v.PersistentVolumeClaim.ClaimName)
		}},
		{name: "downwardAPI", set: v.DownwardAPI != nil, judge: func(path *field.Path) {
			j.fileDefaults(v.DownwardAPI.DefaultMode, v.DownwardAPI.DefaultUser, path)
			for i := range v.DownwardAPI.Items {
				j.downwardFile(&v.DownwardAPI.Items[i], path)
			}
		}},
		{name: "configMap", set: v.ConfigMap != nil, judge: func(path *field.Path) {
			j.nonEmpty(path.Child("name"), v.ConfigMap.Name)
			j.fileDefaults(v.ConfigMap.DefaultMode, v.ConfigMap.DefaultUser, path)
			j.keysToPaths(v.ConfigMap.Items, path.Child("items"))
		}},
		{name: "projected", set: v.Projected != nil, judge: func(path *field.Path) { j.projected(v.Projected, path) }},
		{name: "csi", set: v.CSI != nil, judge: func(path *field.Path) { j.inlineCSI(v.CSI, path) }},
		{name: "ephemeral", set: v.Ephemeral != nil, judge: func(path *field.Path) { j.ephemeralVolume(v, at, path) }},
		{name: "image", set: v.Image != nil, judge: func(path *field.Path) {
			if v.Image.Reference == "" && !j.allow.emptyImageReference {
				j.required(path.Child("reference"), "")
			}
			j.pullPolicy(v.Image.PullPolicy, path.Child("pullPolicy"))
		}},
	}
}

func (j *judge) emptyDir(v *corev1.EmptyDirVolumeSource, path *field.Path) {
	if v.SizeLimit != nil && v.SizeLimit.Sign() < 0 {
		j.forbidden(path.Child("sizeLimit"), "SizeLimit field must be a valid resource quantity")
	}
	if v.Mode != nil && (*v.Mode < 0 || *v.Mode > 0o1777) {
		j.invalid(path.Child("mode"), *v.Mode, "must be a number between 0 and 01777 (octal), both inclusive")
	}
}

func (j *judge) hostPath(v *corev1.HostPathVolumeSource, path *field.Path) {
	if v.Path == "" {
		j.required(path.Child("path"), "")
		return
	}
	j.noBacksteps(path.Child("path"), v.Path)
	optionalOneOf(j, path.Child("type"), v.Type,
		corev1.HostPathUnset, corev1.HostPathBlockDev, corev1.HostPathCharDev, corev1.HostPathDirectory,
		corev1.HostPathDirectoryOrCreate, corev1.HostPathFile, corev1.HostPathFileOrCreate, corev1.HostPathSocket)
}

func (j *judge) inlineCSI(v *corev1.CSIVolumeSource, path *field.Path) {
	j.csiDriver(path.Child("driver"), v.Driver)
	if ref := v.NodePublishSecretRef; ref != nil {
		if ref.Name == "" {
			j.required(path.Child("nodePublishSecretRef", "name"), "")
		} else {
			j.subdomain(path.Child("name"), ref.Name)
		}
	}
}

func (j *judge) csiDriver(path *field.Path, driver string) {
	if driver == "" {
		j.required(path, "")
		return
	}
	if len(driver) > 63 {
		j.add(field.TooLong(path, "", 63))
	}
	j.messages(path, driver, utilvalidation.IsDNS1123Subdomain(strings.ToLower(driver)))
}

// ephemeralVolume judges a claim that lives and dies with the pod. at is the volume's own path.
func (j *judge) ephemeralVolume(v *corev1.Volume, at, path *field.Path) {
	if template := v.Ephemeral.VolumeClaimTemplate; template == nil {
		j.required(path.Child("volumeClaimTemplate"), "")
	} else {
		j.claimTemplate(template, path.Child("volumeClaimTemplate"))
	}
	if j.meta != nil && j.meta.Name != "" && v.Name != "" {
		name := j.meta.Name + "-" + v.Name
		for _, text := range validation.NameIsDNSSubdomain(name, false) {
			j.invalid(at.Child("name"), v.Name, fmt.Sprintf("PVC name %q: %v", name, text))
		}
	}
}

// claimTemplate judges a template of a claim: it has labels and annotations, and no other metadata.
func (j *judge) claimTemplate(template *corev1.PersistentVolumeClaimTemplate, path *field.Path) {
	meta, metaPath := &template.ObjectMeta, path.Child("metadata")
	j.add(validation.ValidateAnnotations(meta.Annotations, metaPath.Child("annotations"))...)
	j.add(metavalidation.ValidateLabels(meta.Labels, metaPath.Child("labels"))...)
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
			j.forbidden(metaPath.Child(f.name), "cannot be set")
		}
	}
	j.claimSpec(&template.Spec, path.Child("spec"))
}

// keysToPaths judges which keys of an object become which files.
func (j *judge) keysToPaths(items []corev1.KeyToPath, path *field.Path) {
	for i, item := range items {
		path := path.Index(i)
		j.nonEmpty(path.Child("key"), item.Key)
		j.nonEmpty(path.Child("path"), item.Path)
		j.localFile(path.Child("path"), item.Path)
		j.fileMode(path.Child("mode"), item.Mode)
		j.userID(path.Child("user"), item.User)
	}
}

// downwardFile judges a file that shows a field of the pod. Its errors carry the path of the volume.
func (j *judge) downwardFile(file *corev1.DownwardAPIVolumeFile, path *field.Path) {
	j.nonEmpty(path.Child("path"), file.Path)
	j.localFile(path.Child("path"), file.Path)
	switch {
	case file.FieldRef != nil:
		j.fieldRef(file.FieldRef, volumeFields, path.Child("fieldRef"))
		if file.ResourceFieldRef != nil {
			j.invalid(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
		}
	case file.ResourceFieldRef != nil:
		j.resourceFieldRef(file.ResourceFieldRef, true, path.Child("resourceFieldRef"))
	default:
		j.required(path, "one of fieldRef and resourceFieldRef is required")
	}
	j.fileMode(path.Child("mode"), file.Mode)
	j.userID(path.Child("user"), file.User)
}

func (j *judge) fileDefaults(mode *int32, user *int64, path *field.Path) {
	j.fileMode(path.Child("defaultMode"), mode)
	j.userID(path.Child("defaultUser"), user)
}

func (j *judge) fileMode(path *field.Path, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		j.invalid(path, *mode, fileModeText)
	}
}

func (j *judge) userID(path *field.Path, id *int64) {
	if id != nil {
		j.messages(path, *id, utilvalidation.IsValidUserID(*id))
	}
}

func (j *judge) groupID(path *field.Path, id *int64) {
	if id != nil {
		j.messages(path, *id, utilvalidation.IsValidGroupID(*id))
	}
}

// noBacksteps refuses a path that climbs.
func (j *judge) noBacksteps(at *field.Path, target string) {
	for _, part := range strings.Split(target, "/") {
		if part == ".." {
			j.invalid(at, target, "must not contain '..'")
			return
		}
	}
}

// localPath requires a path that stays below where it starts.
func (j *judge) localPath(at *field.Path, target string) {
	if path.IsAbs(target) {
		j.invalid(at, target, "must be a relative path")
	}
	j.noBacksteps(at, target)
}

// localFile is localPath for a file the kubelet writes, beside whose files of its own, which begin with two dots, it stands.
func (j *judge) localFile(at *field.Path, target string) {
	j.localPath(at, target)
	if strings.HasPrefix(target, "..") && !strings.HasPrefix(target, "../") {
		j.invalid(at, target, "must not start with '..'")
	}
}
