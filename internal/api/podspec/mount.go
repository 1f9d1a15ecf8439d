package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// mounts validates the volume mounts of a container.
func (val *validator) mounts(c *corev1.Container, path *field.Path) {
	devices, devicePaths := map[string]bool{}, map[string]bool{}
	for _, device := range c.VolumeDevices {
		devices[device.Name], devicePaths[device.DevicePath] = true, true
	}
	seen := sets.New[string]()
	for i := range c.VolumeMounts {
		mount, idxPath := &c.VolumeMounts[i], path.Index(i)
		source := val.volumes[mount.Name]
		val.nonEmpty(idxPath.Child("name"), mount.Name)
		if source == nil {
			val.add(field.NotFound(idxPath.Child("name"), mount.Name))
		}
		val.nonEmpty(idxPath.Child("mountPath"), mount.MountPath)
		if seen.Has(mount.MountPath) {
			val.invalid(idxPath.Child("mountPath"), mount.MountPath, "must be unique")
		}
		seen.Insert(mount.MountPath)
		if devices[mount.Name] {
			val.invalid(idxPath.Child("name"), mount.Name, "must not already exist in volumeDevices")
		}
		if devicePaths[mount.MountPath] {
			val.invalid(idxPath.Child("mountPath"), mount.MountPath, "must not already exist as a path in volumeDevices")
		}
		// Errors about the fields below have the path of the list.
		if mount.SubPath != "" {
			val.localPath(path.Child("subPath"), mount.SubPath)
		}
		if mount.SubPathExpr != "" {
			if mount.SubPath != "" {
				val.invalid(idxPath.Child("subPathExpr"), mount.SubPathExpr, "subPathExpr and subPath are mutually exclusive")
			}
			val.localPath(path.Child("subPathExpr"), mount.SubPathExpr)
		}
		val.mountPropagation(mount, c, path.Child("mountPropagation"))
		val.recursiveReadOnly(mount, path.Child("recursiveReadOnly"))
		val.bindOptions(mount, source, idxPath.Child("bindMountOptions"))
	}
}

func (val *validator) mountPropagation(mount *corev1.VolumeMount, c *corev1.Container, path *field.Path) {
	if mount.MountPropagation == nil {
		return
	}
	oneOf(val, path, *mount.MountPropagation,
		corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer, corev1.MountPropagationNone)
	privileged := c.SecurityContext != nil && ptr.Deref(c.SecurityContext.Privileged, false)
	if *mount.MountPropagation == corev1.MountPropagationBidirectional && !privileged {
		val.forbidden(path, "Bidirectional mount propagation is available only to privileged containers")
	}
}

func (val *validator) recursiveReadOnly(mount *corev1.VolumeMount, path *field.Path) {
	if mount.RecursiveReadOnly == nil || *mount.RecursiveReadOnly == corev1.RecursiveReadOnlyDisabled {
		return
	}
	switch *mount.RecursiveReadOnly {
	case corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible:
		if !mount.ReadOnly {
			val.forbidden(path, "may only be specified when readOnly is true")
		}
		if ptr.Deref(mount.MountPropagation, corev1.MountPropagationNone) != corev1.MountPropagationNone {
			val.forbidden(path, "may only be specified when mountPropagation is None or not specified")
		}
	default:
		oneOf(val, path, *mount.RecursiveReadOnly,
			corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible)
	}
}

func (val *validator) bindOptions(mount *corev1.VolumeMount, source *corev1.VolumeSource, path *field.Path) {
	seen := sets.New[string]()
	for i, option := range mount.BindMountOptions {
		oneOf(val, path.Index(i), option,
			string(corev1.BindMountOptionNoDev), string(corev1.BindMountOptionNoExec), string(corev1.BindMountOptionNoSUID))
		if seen.Has(option) {
			val.duplicate(path.Index(i), option)
		}
		seen.Insert(option)
	}
	if len(seen) > 0 && source != nil && source.Image != nil {
		val.invalid(path, mount.BindMountOptions, "bindMountOptions may not be used with image volumes")
	}
}

// devices validates the volume devices of a container.
func (val *validator) devices(c *corev1.Container, path *field.Path) {
	mounts, mountPaths := map[string]bool{}, map[string]bool{}
	for _, mount := range c.VolumeMounts {
		mounts[mount.Name], mountPaths[mount.MountPath] = true, true
	}
	names, paths := sets.New[string](), sets.New[string]()
	for i, device := range c.VolumeDevices {
		path := path.Index(i)
		source := val.volumes[device.Name]
		val.nonEmpty(path.Child("name"), device.Name)
		if names.Has(device.Name) {
			val.invalid(path.Child("name"), device.Name, "must be unique")
		}
		if source == nil {
			val.add(field.NotFound(path.Child("name"), device.Name))
		} else if source.PersistentVolumeClaim == nil && source.Ephemeral == nil {
			val.invalid(path.Child("name"), device.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode")
		}
		val.nonEmpty(path.Child("devicePath"), device.DevicePath)
		if paths.Has(device.DevicePath) {
			val.invalid(path.Child("devicePath"), device.DevicePath, "must be unique")
		}
		climbs := &validator{}
		if climbs.noBacksteps(path, device.DevicePath); len(climbs.errs) > 0 {
			val.invalid(path.Child("devicePath"), device.DevicePath, "can not contain backsteps ('..')")
		} else {
			paths.Insert(device.DevicePath)
		}
		if mounts[device.Name] {
			val.invalid(path.Child("name"), device.Name, "must not already exist in volumeMounts")
		}
		if mountPaths[device.DevicePath] {
			val.invalid(path.Child("devicePath"), device.DevicePath, "must not already exist as a path in volumeMounts")
		}
		if device.Name != "" {
			names.Insert(device.Name)
		}
	}
}
