package core

import (
	"net"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// validateVolumeSources requires exactly one source and validates the first.
func validateVolumeSources(spec *corev1.PersistentVolumeSpec, name string, affine bool, at *field.Path) (errs field.ErrorList) {
	sources := []struct {
		set      bool
		name     string
		validate func(at *field.Path) field.ErrorList
	}{
		{spec.HostPath != nil, "hostPath", func(at *field.Path) field.ErrorList { return validateHostPath(spec.HostPath, at) }},
		{spec.GCEPersistentDisk != nil, "gcePersistentDisk", func(*field.Path) field.ErrorList {
			// The path of these errors differs from the field's name, as upstream's does.
			return validateDisk(spec.GCEPersistentDisk.PDName, "pdName", spec.GCEPersistentDisk.Partition, at.Child("persistentDisk"))
		}},
		{spec.AWSElasticBlockStore != nil, "awsElasticBlockStore", func(at *field.Path) field.ErrorList {
			return validateDisk(spec.AWSElasticBlockStore.VolumeID, "volumeID", spec.AWSElasticBlockStore.Partition, at)
		}},
		{spec.Glusterfs != nil, "glusterfs", func(at *field.Path) field.ErrorList { return validateGlusterfs(spec.Glusterfs, at) }},
		{spec.Flocker != nil, "flocker", func(at *field.Path) field.ErrorList { return validateFlocker(spec.Flocker, at) }},
		{spec.NFS != nil, "nfs", func(at *field.Path) field.ErrorList { return validateNFS(spec.NFS, at) }},
		{spec.RBD != nil, "rbd", func(at *field.Path) field.ErrorList {
			return append(requiredList(at.Child("monitors"), spec.RBD.CephMonitors), required(at.Child("image"), spec.RBD.RBDImage)...)
		}},
		{spec.Quobyte != nil, "quobyte", func(at *field.Path) field.ErrorList { return validateQuobyte(spec.Quobyte, at) }},
		{spec.CephFS != nil, "cephfs", func(at *field.Path) field.ErrorList { return requiredList(at.Child("monitors"), spec.CephFS.Monitors) }},
		{spec.ISCSI != nil, "iscsi", func(at *field.Path) field.ErrorList { return validateISCSI(spec.ISCSI, name, at) }},
		{spec.Cinder != nil, "cinder", func(at *field.Path) field.ErrorList {
			errs := required(at.Child("volumeID"), spec.Cinder.VolumeID)
			if ref := spec.Cinder.SecretRef; ref != nil {
				errs = append(errs, requiredRef(ref.Name, ref.Namespace, at.Child("secretRef"))...)
			}
			return errs
		}},
		{spec.FC != nil, "fc", func(at *field.Path) field.ErrorList { return validateFC(spec.FC, at) }},
		{spec.FlexVolume != nil, "flexVolume", func(at *field.Path) field.ErrorList { return validateFlexVolume(spec.FlexVolume, at) }},
		{spec.AzureFile != nil, "azureFile", func(at *field.Path) field.ErrorList { return validateAzureFile(spec.AzureFile, at) }},
		{spec.VsphereVolume != nil, "vsphereVolume", func(at *field.Path) field.ErrorList {
			return required(at.Child("volumePath"), spec.VsphereVolume.VolumePath)
		}},
		{spec.PhotonPersistentDisk != nil, "photonPersistentDisk", func(at *field.Path) field.ErrorList {
			return required(at.Child("pdID"), spec.PhotonPersistentDisk.PdID)
		}},
		{spec.PortworxVolume != nil, "portworxVolume", func(at *field.Path) field.ErrorList {
			return required(at.Child("volumeID"), spec.PortworxVolume.VolumeID)
		}},
		{spec.AzureDisk != nil, "azureDisk", func(at *field.Path) field.ErrorList { return validateAzureDisk(spec.AzureDisk, at) }},
		{spec.ScaleIO != nil, "scaleIO", func(at *field.Path) field.ErrorList {
			errs := required(at.Child("gateway"), spec.ScaleIO.Gateway)
			errs = append(errs, required(at.Child("system"), spec.ScaleIO.System)...)
			return append(errs, required(at.Child("volumeName"), spec.ScaleIO.VolumeName)...)
		}},
		{spec.Local != nil, "local", func(at *field.Path) field.ErrorList { return validateLocal(spec.Local, at) }},
		{spec.StorageOS != nil, "storageos", func(at *field.Path) field.ErrorList { return validateStorageOS(spec.StorageOS, at) }},
		{spec.CSI != nil, "csi", func(at *field.Path) field.ErrorList { return ValidateCSISource(spec.CSI, at) }},
	}
	found := false
	for _, source := range sources {
		switch {
		case !source.set:
			continue
		case found && source.name != "flexVolume":
			name := source.name
			if name == "cephfs" {
				name = "cephFS"
			}
			errs = append(errs, field.Forbidden(at.Child(name), "may not specify more than 1 volume type"))
			continue
		}
		found = true
		errs = append(errs, source.validate(at.Child(source.name))...)
		if source.name == "local" && !affine {
			errs = append(errs, field.Required(at.Child("nodeAffinity"), "Local volume requires node affinity"))
		}
	}
	if !found {
		errs = append(errs, field.Required(at, "must specify a volume type"))
	}
	return errs
}

func requiredList(at *field.Path, list []string) field.ErrorList {
	if len(list) > 0 {
		return nil
	}
	return field.ErrorList{field.Required(at, "")}
}

func requiredRef(name, namespace string, at *field.Path) field.ErrorList {
	return append(required(at.Child("name"), name), required(at.Child("namespace"), namespace)...)
}

func noBacksteps(value string, at *field.Path) field.ErrorList {
	if slices.Contains(strings.Split(value, "/"), "..") {
		return field.ErrorList{field.Invalid(at, value, "must not contain '..'")}
	}
	return nil
}

var hostPathTypes = sets.New(
	corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory, corev1.HostPathFileOrCreate,
	corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev,
)

func validateHostPath(source *corev1.HostPathVolumeSource, at *field.Path) field.ErrorList {
	if source.Path == "" {
		return field.ErrorList{field.Required(at.Child("path"), "")}
	}
	errs := noBacksteps(source.Path, at.Child("path"))
	if source.Type != nil {
		errs = append(errs, supported(at.Child("type"), *source.Type, hostPathTypes)...)
	}
	return errs
}

func validateLocal(source *corev1.LocalVolumeSource, at *field.Path) field.ErrorList {
	if source.Path == "" {
		return field.ErrorList{field.Required(at.Child("path"), "")}
	}
	return noBacksteps(source.Path, at.Child("path"))
}

func validateDisk(id, idName string, partition int32, at *field.Path) field.ErrorList {
	errs := required(at.Child(idName), id)
	if partition < 0 || partition > 255 {
		errs = append(errs, field.Invalid(at.Child("partition"), partition, validation.InclusiveRangeError(1, 255)))
	}
	return errs
}

func validateGlusterfs(source *corev1.GlusterfsPersistentVolumeSource, fldPath *field.Path) field.ErrorList {
	errs := required(fldPath.Child("endpoints"), source.EndpointsName)
	errs = append(errs, required(fldPath.Child("path"), source.Path)...)
	if namespace := source.EndpointsNamespace; namespace != nil {
		fldPath := fldPath.Child("endpointsNamespace")
		if *namespace == "" {
			errs = append(errs, field.Invalid(fldPath, *namespace, "if the endpointnamespace is set, it must be a valid namespace name"))
		} else {
			errs = append(errs, kind.Invalid(fldPath, *namespace, apivalidation.ValidateNamespaceName(*namespace, false))...)
		}
	}
	return errs
}

func validateFlocker(source *corev1.FlockerVolumeSource, at *field.Path) (errs field.ErrorList) {
	if source.DatasetName == "" && source.DatasetUUID == "" {
		errs = append(errs, field.Required(at, "one of datasetName and datasetUUID is required"))
	}
	if source.DatasetName != "" && source.DatasetUUID != "" {
		errs = append(errs, field.Invalid(at, "resource", "datasetName and datasetUUID can not be specified simultaneously"))
	}
	if strings.Contains(source.DatasetName, "/") {
		errs = append(errs, field.Invalid(at.Child("datasetName"), source.DatasetName, "must not contain '/'"))
	}
	return errs
}

func validateNFS(source *corev1.NFSVolumeSource, at *field.Path) field.ErrorList {
	errs := required(at.Child("server"), source.Server)
	errs = append(errs, required(at.Child("path"), source.Path)...)
	if !path.IsAbs(source.Path) {
		errs = append(errs, field.Invalid(at.Child("path"), source.Path, "must be an absolute path"))
	}
	return errs
}

func validateQuobyte(source *corev1.QuobyteVolumeSource, at *field.Path) (errs field.ErrorList) {
	const pairs = "must be a host:port pair or multiple pairs separated by commas"
	switch {
	case source.Registry == "":
		errs = append(errs, field.Required(at.Child("registry"), pairs))
	case len(source.Tenant) >= 65:
		errs = append(errs, field.Required(at.Child("tenant"), "must be a UUID and may not exceed a length of 64 characters"))
	default:
		for _, pair := range strings.Split(source.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				errs = append(errs, field.Invalid(at.Child("registry"), source.Registry, pairs))
			}
		}
	}
	return append(errs, required(at.Child("volume"), source.Volume)...)
}

// iscsiNames are the three forms of a name, by their prefix.
var iscsiNames = map[string]*regexp.Regexp{
	"iqn": regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`),
	"eui": regexp.MustCompile(`^eui.[[:alnum:]]{16}$`),
	"naa": regexp.MustCompile(`^naa.[[:alnum:]]{32}$`),
}

func isISCSIName(name string) bool {
	for prefix, form := range iscsiNames {
		if strings.HasPrefix(name, prefix) {
			return form.MatchString(name)
		}
	}
	return false
}

func validateISCSI(source *corev1.ISCSIPersistentVolumeSource, name string, at *field.Path) field.ErrorList {
	errs := required(at.Child("targetPortal"), source.TargetPortal)
	if source.InitiatorName != nil && len(name+":"+source.TargetPortal) > 64 {
		errs = append(errs, field.Invalid(at.Child("targetportal"), source.TargetPortal,
			"Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified."))
	}
	if source.IQN == "" {
		errs = append(errs, field.Required(at.Child("iqn"), ""))
	} else if !isISCSIName(source.IQN) {
		errs = append(errs, field.Invalid(at.Child("iqn"), source.IQN, "must be valid format"))
	}
	if source.Lun < 0 || source.Lun > 255 {
		errs = append(errs, field.Invalid(at.Child("lun"), source.Lun, validation.InclusiveRangeError(0, 255)))
	}
	if (source.DiscoveryCHAPAuth || source.SessionCHAPAuth) && source.SecretRef == nil {
		errs = append(errs, field.Required(at.Child("secretRef"), ""))
	}
	if source.SecretRef != nil {
		errs = append(errs, required(at.Child("secretRef", "name"), source.SecretRef.Name)...)
	}
	if source.InitiatorName != nil && !isISCSIName(*source.InitiatorName) {
		errs = append(errs, field.Invalid(at.Child("initiatorname"), *source.InitiatorName, "must be valid format"))
	}
	return errs
}

func validateFC(source *corev1.FCVolumeSource, at *field.Path) (errs field.ErrorList) {
	names, ids := len(source.TargetWWNs) > 0, len(source.WWIDs) > 0
	if !names && !ids {
		errs = append(errs, field.Required(at.Child("targetWWNs"), "must specify either targetWWNs or wwids, but not both"))
	}
	if names && ids {
		errs = append(errs, field.Invalid(at.Child("targetWWNs"), source.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously"))
	}
	if names && source.Lun == nil {
		errs = append(errs, field.Required(at.Child("lun"), "lun is required if targetWWNs is specified"))
	} else if names && (*source.Lun < 0 || *source.Lun > 255) {
		errs = append(errs, field.Invalid(at.Child("lun"), source.Lun, validation.InclusiveRangeError(0, 255)))
	}
	return errs
}

func validateFlexVolume(source *corev1.FlexPersistentVolumeSource, at *field.Path) field.ErrorList {
	errs := required(at.Child("driver"), source.Driver)
	for key := range source.Options {
		domain, _, _ := strings.Cut(key, "/")
		domain = "." + strings.ToLower(domain)
		if strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			errs = append(errs, field.Invalid(at.Child("options").Key(key), key, "kubernetes.io and k8s.io namespaces are reserved"))
		}
	}
	return errs
}

func validateAzureFile(source *corev1.AzureFilePersistentVolumeSource, at *field.Path) field.ErrorList {
	errs := required(at.Child("secretName"), source.SecretName)
	errs = append(errs, required(at.Child("shareName"), source.ShareName)...)
	if source.SecretNamespace != nil {
		errs = append(errs, required(at.Child("secretNamespace"), *source.SecretNamespace)...)
	}
	return errs
}

var (
	azureCachingModes = sets.New(corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly, corev1.AzureDataDiskCachingReadWrite)
	azureDiskKinds    = sets.New(corev1.AzureSharedBlobDisk, corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk)
)

func validateAzureDisk(source *corev1.AzureDiskVolumeSource, at *field.Path) field.ErrorList {
	errs := required(at.Child("diskName"), source.DiskName)
	errs = append(errs, required(at.Child("diskURI"), source.DataDiskURI)...)
	if source.CachingMode != nil {
		errs = append(errs, supported(at.Child("cachingMode"), *source.CachingMode, azureCachingModes)...)
	}
	if source.Kind == nil {
		return errs
	}
	errs = append(errs, supported(at.Child("kind"), *source.Kind, azureDiskKinds)...)
	if *source.Kind == corev1.AzureManagedDisk {
		if !strings.HasPrefix(source.DataDiskURI, "/subscriptions/") {
			errs = append(errs, field.NotSupported(at.Child("diskURI"), source.DataDiskURI,
				[]string{"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"}))
		}
	} else if !strings.HasPrefix(source.DataDiskURI, "https://") {
		errs = append(errs, field.NotSupported(at.Child("diskURI"), source.DataDiskURI,
			[]string{"https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"}))
	}
	return errs
}

func validateStorageOS(source *corev1.StorageOSPersistentVolumeSource, at *field.Path) (errs field.ErrorList) {
	if source.VolumeName == "" {
		errs = append(errs, field.Required(at.Child("volumeName"), ""))
	} else {
		errs = append(errs, kind.Invalid(at.Child("volumeName"), source.VolumeName, validation.IsDNS1123Label(source.VolumeName))...)
	}
	if source.VolumeNamespace != "" {
		errs = append(errs, kind.Invalid(at.Child("volumeNamespace"), source.VolumeNamespace, validation.IsDNS1123Label(source.VolumeNamespace))...)
	}
	if ref := source.SecretRef; ref != nil {
		errs = append(errs, requiredRef(ref.Name, ref.Namespace, at.Child("secretRef"))...)
	}
	return errs
}

// ValidateCSISource validates a CSI volume of a PersistentVolume or of a VolumeAttachment.
func ValidateCSISource(source *corev1.CSIPersistentVolumeSource, fldPath *field.Path) field.ErrorList {
	errs := ValidateCSIDriverName(source.Driver, fldPath.Child("driver"))
	errs = append(errs, required(fldPath.Child("volumeHandle"), source.VolumeHandle)...)
	for _, secret := range []struct {
		name string
		ref  *corev1.SecretReference
	}{
		{"controllerPublishSecretRef", source.ControllerPublishSecretRef},
		{"controllerExpandSecretRef", source.ControllerExpandSecretRef},
		{"nodePublishSecretRef", source.NodePublishSecretRef},
		{"nodeExpandSecretRef", source.NodeExpandSecretRef},
	} {
		if secret.ref != nil {
			errs = append(errs, validateSecretReference(secret.ref, fldPath.Child(secret.name))...)
		}
	}
	return errs
}

func validateSecretReference(ref *corev1.SecretReference, fldPath *field.Path) field.ErrorList {
	var errs field.ErrorList
	validate := func(value string, fldPath *field.Path, check func(string) []string) {
		if value == "" {
			errs = append(errs, field.Required(fldPath, ""))
			return
		}
		errs = append(errs, kind.Invalid(fldPath, value, check(value))...)
	}
	validate(ref.Name, fldPath.Child("name"), validation.IsDNS1123Subdomain)
	validate(ref.Namespace, fldPath.Child("namespace"), validation.IsDNS1123Label)
	return errs
}

// ValidateCSIDriverName validates the name of a CSI driver.
func ValidateCSIDriverName(name string, fldPath *field.Path) (errs field.ErrorList) {
	if name == "" {
		return field.ErrorList{field.Required(fldPath, "")}
	}
	if len(name) > 63 {
		errs = append(errs, field.TooLong(fldPath, "", 63))
	}
	return append(errs, kind.Invalid(fldPath, name, validation.IsDNS1123Subdomain(strings.ToLower(name)))...)
}
