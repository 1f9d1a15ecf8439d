package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// mounts judges where a container sees volumes as files.
func (j *judge) mounts(c *corev1.Container, path *field.Path) {
	devices, devicePaths := map[string]bool{}, map[string]bool{}
	for _, device := range c.VolumeDevices {
		devices[device.Name], devicePaths[device.DevicePath] = true, true
	}
	seen := sets.New[string]()
	for i := range c.VolumeMounts {
		mount, at := &c.VolumeMounts[i], path.Index(i)
		source := j.volumes[mount.Name]
		j.nonEmpty(at.Child("name"), mount.Name)
		if source == nil {
			j.add(field.NotFound(at.Child("name"), mount.Name))
		}
		j.nonEmpty(at.Child("mountPath"), mount.MountPath)
		if seen.Has(mount.MountPath) {
			j.invalid(at.Child("mountPath"), mount.MountPath, "must be unique")
		}
		seen.Insert(mount.MountPath)
		if devices[mount.Name] {
			j.invalid(at.Child("name"), mount.Name, "must not already exist in volumeDevices")
		}
		if devicePaths[mount.MountPath] {
			j.invalid(at.Child("mountPath"), mount.MountPath, "must not already exist as a path in volumeDevices")
		}
		// Errors about the parts below carry the path of the list.
		if mount.SubPath != "" {
			j.localPath(path.Child("subPath"), mount.SubPath)
		}
		if mount.SubPathExpr != "" {
			if mount.SubPath != "" {
				j.invalid(at.Child("subPathExpr"), mount.SubPathExpr, "subPathExpr and subPath are mutually exclusive")
			}
			j.localPath(path.Child("subPathExpr"), mount.SubPathExpr)
		}
		j.mountPropagation(mount, c, path.Child("mountPropagation"))
		j.recursiveReadOnly(mount, path.Child("recursiveReadOnly"))
		j.bindOptions(mount, source, at.Child("bindMountOptions"))
	}
}

func (j *judge) mountPropagation(mount *corev1.VolumeMount, c *corev1.Container, path *field.Path) {
	if mount.MountPropagation == nil {
		return
	}
	oneOf(j, path, *mount.MountPropagation,
		corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer, corev1.MountPropagationNone)
	privileged := c.SecurityContext != nil && ptr.Deref(c.SecurityContext.Privileged, false)
	if *mount.MountPropagation == corev1.MountPropagationBidirectional && !privileged {
		j.forbidden(path, "Bidirectional mount propagation is available only to privileged containers")
	}
}

func (j *judge) recursiveReadOnly(mount *corev1.VolumeMount, path *field.Path) {
	if mount.RecursiveReadOnly == nil || *mount.RecursiveReadOnly == corev1.RecursiveReadOnlyDisabled {
		return
	}
	switch *mount.RecursiveReadOnly {
	case corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible:
		if !mount.ReadOnly {
			j.forbidden(path, "may only be specified when readOnly is true")
		}
		if ptr.Deref(mount.MountPropagation, corev1.MountPropagationNone) != corev1.MountPropagationNone {
			j.forbidden(path, "may only be specified when mountPropagation is None or not specified")
		}
	default:
		oneOf(j, path, *mount.RecursiveReadOnly,
			corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible)
	}
}

func (j *judge) bindOptions(mount *corev1.VolumeMount, source *corev1.VolumeSource, path *field.Path) {
	seen := sets.New[string]()
	for i, option := range mount.BindMountOptions {
		oneOf(j, path.Index(i), option,
			string(corev1.BindMountOptionNoDev), string(corev1.BindMountOptionNoExec), string(corev1.BindMountOptionNoSUID))
		if seen.Has(option) {
			j.duplicate(path.Index(i), option)
		}
		seen.Insert(option)
	}
	if len(seen) > 0 && source != nil && source.Image != nil {
		j.invalid(path, mount.BindMountOptions, "bindMountOptions may not be used with image volumes")
	}
}

// devices judges where a container sees volumes as block devices.
func (j *judge) devices(c *corev1.Container, path *field.Path) {
	mounts, mountPaths := map[string]bool{}, map[string]bool{}
	for _, mount := range c.VolumeMounts {
		mounts[mount.Name], mountPaths[mount.MountPath] = true, true
	}
	names, paths := sets.New[string](), sets.New[string]()
	for i, device := range c.VolumeDevices {
		path := path.Index(i)
		source := j.volumes[device.Name]
		j.nonEmpty(path.Child("name"), device.Name)
		if names.Has(device.Name) {
			j.invalid(path.Child("name"), device.Name, "must be unique")
		}
		if source == nil {
			j.add(field.NotFound(path.Child("name"), device.Name))
		} else if source.PersistentVolumeClaim == nil && source.Ephemeral == nil {
			j.invalid(path.Child("name"), device.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode")
		}
		j.nonEmpty(path.Child("devicePath"), device.DevicePath)
		if paths.Has(device.DevicePath) {
			j.invalid(path.Child("devicePath"), device.DevicePath, "must be unique")
		}
		climbs := &judge{}
		if climbs.noBacksteps(path, device.DevicePath); len(climbs.errs) > 0 {
			j.invalid(path.Child("devicePath"), device.DevicePath, "can not contain backsteps ('..')")
		} else {
			paths.Insert(device.DevicePath)
		}
		if mounts[device.Name] {
			j.invalid(path.Child("name"), device.Name, "must not already exist in volumeMounts")
		}
		if mountPaths[device.DevicePath] {
			j.invalid(path.Child("devicePath"), device.DevicePath, "must not already exist as a path in volumeMounts")
		}
		if device.Name != "" {
			names.Insert(device.Name)
		}
	}
}
