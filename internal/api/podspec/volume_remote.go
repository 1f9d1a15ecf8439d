package podspec

import (
	"net"
	"path"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// remoteVolumes are the network volume sources. Most have CSI drivers today and some have no driver any more; the API
// still has them all.
func (val *validator) remoteVolumes(v *corev1.Volume, at *field.Path) []volumeValidation {
	return []volumeValidation{
		{name: "gcePersistentDisk", at: "persistentDisk", set: v.GCEPersistentDisk != nil, validate: func(path *field.Path) {
			val.nonEmpty(path.Child("pdName"), v.GCEPersistentDisk.PDName)
			val.partition(path.Child("partition"), v.GCEPersistentDisk.Partition)
		}},
		{name: "awsElasticBlockStore", set: v.AWSElasticBlockStore != nil, validate: func(path *field.Path) {
			val.nonEmpty(path.Child("volumeID"), v.AWSElasticBlockStore.VolumeID)
			val.partition(path.Child("partition"), v.AWSElasticBlockStore.Partition)
		}},
		{name: "nfs", set: v.NFS != nil, validate: func(p *field.Path) {
			val.nonEmpty(p.Child("server"), v.NFS.Server)
			val.nonEmpty(p.Child("path"), v.NFS.Path)
			if !path.IsAbs(v.NFS.Path) {
				val.invalid(p.Child("path"), v.NFS.Path, "must be an absolute path")
			}
		}},
		{name: "iscsi", set: v.ISCSI != nil, validate: func(path *field.Path) { val.iscsi(v, at, path) }},
		{name: "glusterfs", set: v.Glusterfs != nil, validate: func(path *field.Path) {
			val.nonEmpty(path.Child("endpoints"), v.Glusterfs.EndpointsName)
			val.nonEmpty(path.Child("path"), v.Glusterfs.Path)
		}},
		{name: "flocker", set: v.Flocker != nil, validate: func(path *field.Path) { val.flocker(v.Flocker, path) }},
		{name: "rbd", set: v.RBD != nil, validate: func(path *field.Path) {
			val.monitors(path, v.RBD.CephMonitors)
			val.nonEmpty(path.Child("image"), v.RBD.RBDImage)
		}},
		{name: "cinder", set: v.Cinder != nil, validate: func(path *field.Path) {
			val.nonEmpty(path.Child("volumeID"), v.Cinder.VolumeID)
			val.secretRef(path.Child("secretRef", "name"), v.Cinder.SecretRef)
		}},
		{name: "cephFS", at: "cephfs", set: v.CephFS != nil, validate: func(path *field.Path) { val.monitors(path, v.CephFS.Monitors) }},
		{name: "quobyte", set: v.Quobyte != nil, validate: func(path *field.Path) { val.quobyte(v.Quobyte, path) }},
		{name: "fc", set: v.FC != nil, validate: func(path *field.Path) { val.fibreChannel(v.FC, path) }},
		{name: "flexVolume", set: v.FlexVolume != nil, validate: func(path *field.Path) { val.flexVolume(v.FlexVolume, path) }},
		{name: "azureFile", set: v.AzureFile != nil, validate: func(path *field.Path) {
			val.nonEmpty(path.Child("secretName"), v.AzureFile.SecretName)
			val.nonEmpty(path.Child("shareName"), v.AzureFile.ShareName)
		}},
		{name: "vsphereVolume", set: v.VsphereVolume != nil, validate: func(path *field.Path) {
			val.nonEmpty(path.Child("volumePath"), v.VsphereVolume.VolumePath)
		}},
		{name: "photonPersistentDisk", set: v.PhotonPersistentDisk != nil, validate: func(path *field.Path) {
			val.nonEmpty(path.Child("pdID"), v.PhotonPersistentDisk.PdID)
		}},
		{name: "portworxVolume", set: v.PortworxVolume != nil, validate: func(path *field.Path) {
			val.nonEmpty(path.Child("volumeID"), v.PortworxVolume.VolumeID)
		}},
		{name: "azureDisk", set: v.AzureDisk != nil, validate: func(path *field.Path) { val.azureDisk(v.AzureDisk, path) }},
		{name: "storageos", set: v.StorageOS != nil, validate: func(path *field.Path) {
			val.requiredLabel(path.Child("volumeName"), v.StorageOS.VolumeName)
			if v.StorageOS.VolumeNamespace != "" {
				val.label(path.Child("volumeNamespace"), v.StorageOS.VolumeNamespace)
			}
			val.secretRef(path.Child("secretRef", "name"), v.StorageOS.SecretRef)
		}},
		{name: "scaleIO", set: v.ScaleIO != nil, validate: func(path *field.Path) {
			val.nonEmpty(path.Child("gateway"), v.ScaleIO.Gateway)
			val.nonEmpty(path.Child("system"), v.ScaleIO.System)
			val.nonEmpty(path.Child("volumeName"), v.ScaleIO.VolumeName)
		}},
	}
}

func (val *validator) partition(path *field.Path, partition int32) {
	if partition < 0 || partition > 255 {
		val.invalid(path, partition, utilvalidation.InclusiveRangeError(1, 255))
	}
}

func (val *validator) monitors(path *field.Path, monitors []string) {
	if len(monitors) == 0 {
		val.required(path.Child("monitors"), "")
	}
}

func (val *validator) secretRef(path *field.Path, ref *corev1.LocalObjectReference) {
	if ref != nil {
		val.nonEmpty(path, ref.Name)
	}
}

// The three formats of an iSCSI name.
var initiatorForms = map[string]*regexp.Regexp{
	"iqn": regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`),
	"eui": regexp.MustCompile(`^eui.[[:alnum:]]{16}$`),
	"naa": regexp.MustCompile(`^naa.[[:alnum:]]{32}$`),
}

func (val *validator) iscsiName(path *field.Path, name string) {
	form := initiatorForms[name[:min(3, len(name))]]
	if form == nil {
		val.invalid(path, name, "must be valid format starting with iqn, eui, or naa")
	} else if !form.MatchString(name) {
		val.invalid(path, name, "must be valid format")
	}
}

func (val *validator) iscsi(v *corev1.Volume, at, path *field.Path) {
	val.nonEmpty(path.Child("targetPortal"), v.ISCSI.TargetPortal)
	if v.ISCSI.IQN == "" {
		val.required(path.Child("iqn"), "")
	} else {
		val.iscsiName(path.Child("iqn"), v.ISCSI.IQN)
	}
	if v.ISCSI.Lun < 0 || v.ISCSI.Lun > 255 {
		val.invalid(path.Child("lun"), v.ISCSI.Lun, utilvalidation.InclusiveRangeError(0, 255))
	}
	if (v.ISCSI.DiscoveryCHAPAuth || v.ISCSI.SessionCHAPAuth) && v.ISCSI.SecretRef == nil {
		val.required(path.Child("secretRef"), "")
	}
	if v.ISCSI.InitiatorName == nil {
		return
	}
	val.iscsiName(path.Child("initiatorname"), *v.ISCSI.InitiatorName)
	if len(v.Name+":"+v.ISCSI.TargetPortal) > 64 {
		val.invalid(at.Child("name"), v.Name,
			"Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.")
	}
}

func (val *validator) flocker(v *corev1.FlockerVolumeSource, path *field.Path) {
	if v.DatasetName == "" && v.DatasetUUID == "" {
		val.required(path, "one of datasetName and datasetUUID is required")
	}
	if v.DatasetName != "" && v.DatasetUUID != "" {
		val.invalid(path, "resource", "datasetName and datasetUUID can not be specified simultaneously")
	}
	if strings.Contains(v.DatasetName, "/") {
		val.invalid(path.Child("datasetName"), v.DatasetName, "must not contain '/'")
	}
}

func (val *validator) quobyte(v *corev1.QuobyteVolumeSource, path *field.Path) {
	const pairs = "must be a host:port pair or multiple pairs separated by commas"
	switch {
	case v.Registry == "":
		val.required(path.Child("registry"), pairs)
	case len(v.Tenant) >= 65:
		val.required(path.Child("tenant"), "must be a UUID and may not exceed a length of 64 characters")
	default:
		for _, pair := range strings.Split(v.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				val.invalid(path.Child("registry"), v.Registry, pairs)
			}
		}
	}
	val.nonEmpty(path.Child("volume"), v.Volume)
}

func (val *validator) fibreChannel(v *corev1.FCVolumeSource, path *field.Path) {
	names, ids := len(v.TargetWWNs) > 0, len(v.WWIDs) > 0
	if !names && !ids {
		val.required(path.Child("targetWWNs"), "must specify either targetWWNs or wwids, but not both")
	}
	if names && ids {
		val.invalid(path.Child("targetWWNs"), v.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously")
	}
	switch {
	case !names:
	case v.Lun == nil:
		val.required(path.Child("lun"), "lun is required if targetWWNs is specified")
	case *v.Lun < 0 || *v.Lun > 255:
		val.invalid(path.Child("lun"), *v.Lun, utilvalidation.InclusiveRangeError(0, 255))
	}
}

func (val *validator) flexVolume(v *corev1.FlexVolumeSource, path *field.Path) {
	val.nonEmpty(path.Child("driver"), v.Driver)
	for _, key := range sortedKeys(v.Options) {
		domain, _, _ := strings.Cut(key, "/")
		domain = "." + strings.ToLower(domain)
		if strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			val.invalid(path.Child("options").Key(key), key, "kubernetes.io and k8s.io namespaces are reserved")
		}
	}
}

func (val *validator) azureDisk(v *corev1.AzureDiskVolumeSource, path *field.Path) {
	val.nonEmpty(path.Child("diskName"), v.DiskName)
	val.nonEmpty(path.Child("diskURI"), v.DataDiskURI)
	optionalOneOf(val, path.Child("cachingMode"), v.CachingMode,
		corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly, corev1.AzureDataDiskCachingReadWrite)
	optionalOneOf(val, path.Child("kind"), v.Kind,
		corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk, corev1.AzureSharedBlobDisk)
	switch {
	case v.Kind == nil:
	case *v.Kind == corev1.AzureManagedDisk:
		if !strings.HasPrefix(v.DataDiskURI, "/subscriptions/") {
			oneOf(val, path.Child("diskURI"), v.DataDiskURI,
				"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}")
		}
	case !strings.HasPrefix(v.DataDiskURI, "https://"):
		oneOf(val, path.Child("diskURI"), v.DataDiskURI,
			"https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd")
	}
}
