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

// translation maps in-tree volume plugins to the CSI drivers that replace them, and in-tree volumes to the drivers' volume handles.
var translation = csitranslation.New()

// migratedPlugins are the in-tree plugins whose CSI migration the scheduler takes into account.
var migratedPlugins = []string{
	plugins.AWSEBSInTreePluginName, plugins.GCEPDInTreePluginName, plugins.AzureDiskInTreePluginName,
	plugins.CinderInTreePluginName, plugins.PortworxVolumePluginName,
}

// IsMigratedInline reports whether a pod's volume is an inline volume of a migrated in-tree plugin.
func IsMigratedInline(v *corev1.Volume) bool {
	return v.AWSElasticBlockStore != nil || v.GCEPersistentDisk != nil || v.AzureDisk != nil || v.Cinder != nil || v.PortworxVolume != nil
}

// MigratedVolume translates an in-tree persistent volume to the CSI driver and handle.
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
		return AttachedVolume{}, false // a volume that cannot be translated is not counted
	}
	return AttachedVolume{translated.Spec.CSI.Driver, translated.Spec.CSI.VolumeHandle}, true
}

// MigratedInlineVolume translates an inline volume, one that IsMigratedInline accepts, to the CSI driver and handle.
func MigratedInlineVolume(v *corev1.Volume, namespace string) (AttachedVolume, error) {
	translated, err := translation.TranslateInTreeInlineVolumeToCSI(klog.Logger{}, v, namespace)
	if err != nil {
		return AttachedVolume{}, fmt.Errorf("converting volume(%s) from inline to csi: %w", v.Name, err)
	}
	return AttachedVolume{translated.Spec.CSI.Driver, translated.Spec.CSI.VolumeHandle}, nil
}

// MigratedProvisioner returns the CSI driver that provisions volumes in place of an in-tree provisioner. It reports false for in-tree
// plugins that are not in migratedPlugins.
func MigratedProvisioner(provisioner string) (driver string, supported bool) {
	if !translation.IsMigratableIntreePluginByName(provisioner) {
		return provisioner, true
	}
	driver, err := translation.GetCSINameFromInTreeName(provisioner)
	return driver, err == nil && slices.Contains(migratedPlugins, provisioner)
}

// TranslateForNode returns a volume as a node sees it: translated to CSI if the node uses the migrated plugin, because drivers use other
// topology labels in node affinity.
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

// MigratedPluginsOf returns the node's annotation that lists its migrated in-tree plugins.
func MigratedPluginsOf(csi *storagev1.CSINode) string {
	return csi.Annotations[corev1.MigratedPluginsAnnotationKey]
}

// NeedsDiskCheck reports whether VolumeRestrictions checks the volume for conflicts.
func NeedsDiskCheck(v *corev1.Volume) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
}
