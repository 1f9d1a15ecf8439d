package snapshot

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/csi-translation-lib/plugins"
	"k8s.io/klog/v2"
)

// Volumes of kinds that were once built into Kubernetes are served by CSI drivers today. The objects still say what they always
// said; translation tells which driver and which volume of it they mean.
var translation = csitranslation.New()

// migratedPlugins are the kinds whose move counts here.
var migratedPlugins = []string{
	plugins.AWSEBSInTreePluginName, plugins.GCEPDInTreePluginName, plugins.AzureDiskInTreePluginName,
	plugins.CinderInTreePluginName, plugins.PortworxVolumePluginName,
}

// IsMigratedInline reports whether a pod names a volume of a kind that has moved to a driver, without a claim.
func IsMigratedInline(v *corev1.Volume) bool {
	return v.AWSElasticBlockStore != nil || v.GCEPersistentDisk != nil || v.AzureDisk != nil || v.Cinder != nil || v.PortworxVolume != nil
}

// MigratedVolume is the driver and the volume that a persistent volume of a built-in kind means.
func MigratedVolume(pv *corev1.PersistentVolume) (AttachedVolume, bool) {
	if !translation.IsPVMigratable(pv) {
		return AttachedVolume{}, false
	}
	plugin, err := translation.GetInTreePluginNameFromSpec(pv, nil)
	if err != nil || !slices.Contains(migratedPlugins, plugin) {
		return AttachedVolume{}, false
	}
	translated, err := translation.TranslateInTreePVToCSI(klog.Logger{}, pv)
	if err != nil || translated.Spec.CSI == nil {
		return AttachedVolume{}, false // a volume that cannot be read is not counted
	}
	return AttachedVolume{translated.Spec.CSI.Driver, translated.Spec.CSI.VolumeHandle}, true
}

// MigratedInlineVolume is the driver and the volume that a volume of a pod itself means. It is for those movedInline speaks of.
func MigratedInlineVolume(v *corev1.Volume, namespace string) (AttachedVolume, error) {
	translated, err := translation.TranslateInTreeInlineVolumeToCSI(klog.Logger{}, v, namespace)
	if err != nil {
		return AttachedVolume{}, fmt.Errorf("converting volume(%s) from inline to csi: %w", v.Name, err)
	}
	return AttachedVolume{translated.Spec.CSI.Driver, translated.Spec.CSI.VolumeHandle}, nil
}

// MigratedProvisioner is the driver that makes volumes in place of a built-in provisioner. A kind whose move does not count has none.
func MigratedProvisioner(provisioner string) (driver string, supported bool) {
	if !translation.IsMigratableIntreePluginByName(provisioner) {
		return provisioner, true
	}
	driver, err := translation.GetCSINameFromInTreeName(provisioner)
	return driver, err == nil && slices.Contains(migratedPlugins, provisioner)
}

// TranslateForNode is a volume as a node sees it: where a driver has taken over, in the driver's words, which name places differently.
func TranslateForNode(pv *corev1.PersistentVolume, csi *storagev1.CSINode) (*corev1.PersistentVolume, error) {
	if csi == nil || pv.Spec.CSI != nil || !translation.IsPVMigratable(pv) {
		return pv, nil
	}
	plugin, err := translation.GetInTreePluginNameFromSpec(pv, nil)
	if err != nil {
		return nil, fmt.Errorf("could not get plugin name from pv: %w", err)
	}
	if !slices.Contains(migratedPlugins, plugin) || !slices.Contains(strings.Split(MigratedPluginsOf(csi), ","), plugin) {
		return pv, nil
	}
	translated, err := translation.TranslateInTreePVToCSI(klog.Logger{}, pv)
	if err != nil {
		return nil, fmt.Errorf("could not translate pv: %w", err)
	}
	return translated, nil
}

// MigratedPluginsOf names the kinds that a node leaves to drivers.
func MigratedPluginsOf(csi *storagev1.CSINode) string {
	return csi.Annotations[corev1.MigratedPluginsAnnotationKey]
}

func NeedsDiskCheck(v *corev1.Volume) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
}
