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

// remoteVolumes are the sources on other machines. Most have drivers outside the tree today, some have none any
// more; the API still knows them all.
func (j *judge) remoteVolumes(v *corev1.Volume, at *field.Path) []volumeRule {
	return []volumeRule{
		{name: "gcePersistentDisk", at: "persistentDisk", set: v.GCEPersistentDisk != nil, judge: func(path *field.Path) {
			j.nonEmpty(path.Child("pdName"), v.GCEPersistentDisk.PDName)
			j.partition(path.Child("partition"), v.GCEPersistentDisk.Partition)
		}},
		{name: "awsElasticBlockStore", set: v.AWSElasticBlockStore != nil, judge: func(path *field.Path) {
			j.nonEmpty(path.Child("volumeID"), v.AWSElasticBlockStore.VolumeID)
			j.partition(path.Child("partition"), v.AWSElasticBlockStore.Partition)
		}},
		{name: "nfs", set: v.NFS != nil, judge: func(p *field.Path) {
			j.nonEmpty(p.Child("server"), v.NFS.Server)
			j.nonEmpty(p.Child("path"), v.NFS.Path)
			if !path.IsAbs(v.NFS.Path) {
				j.invalid(p.Child("path"), v.NFS.Path, "must be an absolute path")
			}
		}},
		{name: "iscsi", set: v.ISCSI != nil, judge: func(path *field.Path) { j.iscsi(v, at, path) }},
		{name: "glusterfs", set: v.Glusterfs != nil, judge: func(path *field.Path) {
			j.nonEmpty(path.Child("endpoints"), v.Glusterfs.EndpointsName)
			j.nonEmpty(path.Child("path"), v.Glusterfs.Path)
		}},
		{name: "flocker", set: v.Flocker != nil, judge: func(path *field.Path) { j.flocker(v.Flocker, path) }},
		{name: "rbd", set: v.RBD != nil, judge: func(path *field.Path) {
			j.monitors(path, v.RBD.CephMonitors)
			j.nonEmpty(path.Child("image"), v.RBD.RBDImage)
		}},
		{name: "cinder", set: v.Cinder != nil, judge: func(path *field.Path) {
			j.nonEmpty(path.Child("volumeID"), v.Cinder.VolumeID)
			j.secretRef(path.Child("secretRef", "name"), v.Cinder.SecretRef)
		}},
		{name: "cephFS", at: "cephfs", set: v.CephFS != nil, judge: func(path *field.Path) { j.monitors(path, v.CephFS.Monitors) }},
		{name: "quobyte", set: v.Quobyte != nil, judge: func(path *field.Path) { j.quobyte(v.Quobyte, path) }},
		{name: "fc", set: v.FC != nil, judge: func(path *field.Path) { j.fibreChannel(v.FC, path) }},
		{name: "flexVolume", set: v.FlexVolume != nil, judge: func(path *field.Path) { j.flexVolume(v.FlexVolume, path) }},
		{name: "azureFile", set: v.AzureFile != nil, judge: func(path *field.Path) {
			j.nonEmpty(path.Child("secretName"), v.AzureFile.SecretName)
			j.nonEmpty(path.Child("shareName"), v.AzureFile.ShareName)
		}},
		{name: "vsphereVolume", set: v.VsphereVolume != nil, judge: func(path *field.Path) {
			j.nonEmpty(path.Child("volumePath"), v.VsphereVolume.VolumePath)
		}},
		{name: "photonPersistentDisk", set: v.PhotonPersistentDisk != nil, judge: func(path *field.Path) {
			j.nonEmpty(path.Child("pdID"), v.PhotonPersistentDisk.PdID)
		}},
		{name: "portworxVolume", set: v.PortworxVolume != nil, judge: func(path *field.Path) {
			j.nonEmpty(path.Child("volumeID"), v.PortworxVolume.VolumeID)
		}},
		{name: "azureDisk", set: v.AzureDisk != nil, judge: func(path *field.Path) { j.azureDisk(v.AzureDisk, path) }},
		{name: "storageos", set: v.StorageOS != nil, judge: func(path *field.Path) {
			j.requiredLabel(path.Child("volumeName"), v.StorageOS.VolumeName)
			if v.StorageOS.VolumeNamespace != "" {
				j.label(path.Child("volumeNamespace"), v.StorageOS.VolumeNamespace)
			}
			j.secretRef(path.Child("secretRef", "name"), v.StorageOS.SecretRef)
		}},
		{name: "scaleIO", set: v.ScaleIO != nil, judge: func(path *field.Path) {
			j.nonEmpty(path.Child("gateway"), v.ScaleIO.Gateway)
			j.nonEmpty(path.Child("system"), v.ScaleIO.System)
			j.nonEmpty(path.Child("volumeName"), v.ScaleIO.VolumeName)
		}},
	}
}

func (j *judge) partition(path *field.Path, partition int32) {
	if partition < 0 || partition > 255 {
		j.invalid(path, partition, utilvalidation.InclusiveRangeError(1, 255))
	}
}

func (j *judge) monitors(path *field.Path, monitors []string) {
	if len(monitors) == 0 {
		j.required(path.Child("monitors"), "")
	}
}

func (j *judge) secretRef(path *field.Path, ref *corev1.LocalObjectReference) {
	if ref != nil {
		j.nonEmpty(path, ref.Name)
	}
}

// The three ways to name an initiator or target.
var initiatorForms = map[string]*regexp.Regexp{
	"iqn": regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`),
	"eui": regexp.MustCompile(`^eui.[[:alnum:]]{16}$`),
	"naa": regexp.MustCompile(`^naa.[[:alnum:]]{32}$`),
}

func (j *judge) iscsiName(path *field.Path, name string) {
	form := initiatorForms[name[:min(3, len(name))]]
	if form == nil {
		j.invalid(path, name, "must be valid format starting with iqn, eui, or naa")
	} else if !form.MatchString(name) {
		j.invalid(path, name, "must be valid format")
	}
}

func (j *judge) iscsi(v *corev1.Volume, at, path *field.Path) {
	j.nonEmpty(path.Child("targetPortal"), v.ISCSI.TargetPortal)
	if v.ISCSI.IQN == "" {
		j.required(path.Child("iqn"), "")
	} else {
		j.iscsiName(path.Child("iqn"), v.ISCSI.IQN)
	}
	if v.ISCSI.Lun < 0 || v.ISCSI.Lun > 255 {
		j.invalid(path.Child("lun"), v.ISCSI.Lun, utilvalidation.InclusiveRangeError(0, 255))
	}
	if (v.ISCSI.DiscoveryCHAPAuth || v.ISCSI.SessionCHAPAuth) && v.ISCSI.SecretRef == nil {
		j.required(path.Child("secretRef"), "")
	}
	if v.ISCSI.InitiatorName == nil {
		return
	}
	j.iscsiName(path.Child("initiatorname"), *v.ISCSI.InitiatorName)
	if len(v.Name+":"+v.ISCSI.TargetPortal) > 64 {
		j.invalid(at.Child("name"), v.Name,
			"Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.")
	}
}

func (j *judge) flocker(v *corev1.FlockerVolumeSource, path *field.Path) {
	if v.DatasetName == "" && v.DatasetUUID == "" {
		j.required(path, "one of datasetName and datasetUUID is required")
	}
	if v.DatasetName != "" && v.DatasetUUID != "" {
		j.invalid(path, "resource", "datasetName and datasetUUID can not be specified simultaneously")
	}
	if strings.Contains(v.DatasetName, "/") {
		j.invalid(path.Child("datasetName"), v.DatasetName, "must not contain '/'")
	}
}

func (j *judge) quobyte(v *corev1.QuobyteVolumeSource, path *field.Path) {
	const pairs = "must be a host:port pair or multiple pairs separated by commas"
	switch {
	case v.Registry == "":
		j.required(path.Child("registry"), pairs)
	case len(v.Tenant) >= 65:
		j.required(path.Child("tenant"), "must be a UUID and may not exceed a length of 64 characters")
	default:
		for _, pair := range strings.Split(v.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				j.invalid(path.Child("registry"), v.Registry, pairs)
			}
		}
	}
	j.nonEmpty(path.Child("volume"), v.Volume)
}

func (j *judge) fibreChannel(v *corev1.FCVolumeSource, path *field.Path) {
	names, ids := len(v.TargetWWNs) > 0, len(v.WWIDs) > 0
	if !names && !ids {
		j.required(path.Child("targetWWNs"), "must specify either targetWWNs or wwids, but not both")
	}
	if names && ids {
		j.invalid(path.Child("targetWWNs"), v.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously")
	}
	switch {
	case !names:
	case v.Lun == nil:
		j.required(path.Child("lun"), "lun is required if targetWWNs is specified")
	case *v.Lun < 0 || *v.Lun > 255:
		j.invalid(path.Child("lun"), *v.Lun, utilvalidation.InclusiveRangeError(0, 255))
	}
}

func (j *judge) flexVolume(v *corev1.FlexVolumeSource, path *field.Path) {
	j.nonEmpty(path.Child("driver"), v.Driver)
	for _, key := range sortedKeys(v.Options) {
		domain, _, _ := strings.Cut(key, "/")
		domain = "." + strings.ToLower(domain)
		if strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			j.invalid(path.Child("options").Key(key), key, "kubernetes.io and k8s.io namespaces are reserved")
		}
	}
}

func (j *judge) azureDisk(v *corev1.AzureDiskVolumeSource, path *field.Path) {
	j.nonEmpty(path.Child("diskName"), v.DiskName)
	j.nonEmpty(path.Child("diskURI"), v.DataDiskURI)
	optionalOneOf(j, path.Child("cachingMode"), v.CachingMode,
		corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly, corev1.AzureDataDiskCachingReadWrite)
	optionalOneOf(j, path.Child("kind"), v.Kind,
		corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk, corev1.AzureSharedBlobDisk)
	switch {
	case v.Kind == nil:
	case *v.Kind == corev1.AzureManagedDisk:
		if !strings.HasPrefix(v.DataDiskURI, "/subscriptions/") {
			oneOf(j, path.Child("diskURI"), v.DataDiskURI,
				"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}")
		}
	case !strings.HasPrefix(v.DataDiskURI, "https://"):
		oneOf(j, path.Child("diskURI"), v.DataDiskURI,
			"https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd")
	}
}
