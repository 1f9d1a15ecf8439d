package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagehelper "k8s.io/component-helpers/storage/volume"

	"golang.org/x/sys/unix"

	"skiff/internal/client"
	"skiff/internal/localpath"
)

const localPlugin = "kubernetes.io/local-volume"

// groupAnnotation is the supplemental group of a persistent volume.
const groupAnnotation = "pv.beta.kubernetes.io/gid"

// claimVolume is a volume of a pod's spec that refers to a claim.
type claimVolume struct {
	name, claim string
	readOnly    bool
	ephemeral   bool // a generic ephemeral volume, whose claim the pod owns
}

// claimOf returns the claim of a volume, if it has one.
func claimOf(pod *corev1.Pod, volume *corev1.Volume) (claimVolume, bool) {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return claimVolume{name: volume.Name, claim: volume.PersistentVolumeClaim.ClaimName, readOnly: volume.PersistentVolumeClaim.ReadOnly}, true
	case volume.Ephemeral != nil:
		return claimVolume{name: volume.Name, claim: pod.Name + "-" + volume.Name, ephemeral: true}, true
	}
	return claimVolume{}, false
}

// isBlock reports whether a claim is for a device instead of a file system.
func isBlock(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// setUpClaim sets up the persistent volume that a claim is bound to.
func (v *Volumes) setUpClaim(ctx context.Context, pod *corev1.Pod, volume claimVolume) (*mounted, error) {
	claim, pv, err := v.boundVolume(ctx, pod, volume)
	if err != nil {
		return nil, fmt.Errorf("error processing PVC %s/%s: %w", pod.Namespace, volume.claim, err)
	}
	block := isBlock(claim)
	if err := checkVolumeMode(pod, volume.name, block); err != nil {
		return nil, err
	}
	if node := v.Node(); node != nil {
		if err := storagehelper.CheckNodeAffinity(pv, node.Labels); err != nil {
			return nil, mountError(pv.Name, stepOf(block, stepMapAffinity, stepAffinity), err)
		}
	}
	m, err := v.setUpPersistent(ctx, pod, pv, volume.readOnly, block)
	if err != nil {
		return nil, mountError(pv.Name, stepOf(block, stepMapStage, stepSetUp), err)
	}
	if pv.Spec.CSI != nil {
		if err := v.expandClaim(ctx, pod, volume, claim, pv); err != nil {
			return nil, mountError(pv.Name, stepOf(block, stepMapExpand, stepExpand), err)
		}
	}
	if group, err := strconv.ParseInt(pv.Annotations[groupAnnotation], 10, 64); err == nil {
		m.groups = append(m.groups, group)
	}
	return m, nil
}

// boundVolume reads a claim and its volume, and checks that they are bound to each other and belong to the pod.
func (v *Volumes) boundVolume(ctx context.Context, pod *corev1.Pod, volume claimVolume) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	claim, err := client.For[*corev1.PersistentVolumeClaim](v.Client).Get(ctx, pod.Namespace, volume.claim)
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("failed to fetch PVC from API server: %w", err)
	case volume.ephemeral && !metav1.IsControlledBy(claim, pod):
		return nil, nil, fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", claim.Namespace, claim.Name, pod.Namespace, pod.Name)
	case claim.DeletionTimestamp != nil:
		return nil, nil, errors.New("PVC is being deleted")
	case claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "":
		return nil, nil, errors.New("PVC is not bound")
	}
	pv, err := client.For[*corev1.PersistentVolume](v.Client).Get(ctx, "", claim.Spec.VolumeName)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to fetch PV %s from API server: %w", claim.Spec.VolumeName, err)
	}
	if pv.Spec.ClaimRef == nil {
		return nil, nil, fmt.Errorf("PV %s has nil ClaimRef, expected PVC UID %s", pv.Name, claim.UID)
	}
	if pv.Spec.ClaimRef.UID != claim.UID {
		return nil, nil, fmt.Errorf("PV %s bound to PVC UID %s, expected PVC UID %s", pv.Name, pv.Spec.ClaimRef.UID, claim.UID)
	}
	return claim, pv, nil
}

// checkVolumeMode checks that containers use a volume according to its volumeMode.
func checkVolumeMode(pod *corev1.Pod, volume string, block bool) error {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		mounts := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
		devices := slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return d.Name == volume })
		if block && mounts {
			return fmt.Errorf("volume %s has volumeMode Block, but is specified in volumeMounts", volume)
		}
		if !block && devices {
			return fmt.Errorf("volume %s has volumeMode Filesystem, but is specified in volumeDevices", volume)
		}
	}
	return nil
}

func (v *Volumes) setUpPersistent(ctx context.Context, pod *corev1.Pod, pv *corev1.PersistentVolume, readOnly, block bool) (*mounted, error) {
	switch {
	case pv.Spec.HostPath != nil:
		if pv.Annotations[provisionedByAnnotation] == localpath.Provisioner {
			if err := makeLocalPath(pv); err != nil {
				return nil, fmt.Errorf("create directory of volume: %w", err)
			}
		}
		m, err := setUpHostPath(pv.Spec.HostPath, readOnly)
		if m != nil {
			m.block = block
		}
		return m, err
	case pv.Spec.Local != nil:
		if block {
			m, err := setUpLocalDevice(pv.Spec.Local.Path, readOnly)
			if err != nil {
				err = mountError(pv.Name, stepMapDevice, err)
			}
			return m, err
		}
		return v.setUpLocal(ctx, pod, pv, readOnly)
	case pv.Spec.CSI != nil:
		return v.publish(ctx, v.persistentCSI(pod, pv, readOnly, block))
	case pv.Spec.NFS != nil && !block:
		return v.setUpNFS(ctx, pod, nfsVolume{name: pv.Name, source: pv.Spec.NFS, options: pv.Spec.MountOptions, readOnly: readOnly || pv.Spec.NFS.ReadOnly})
	}
	return nil, errors.New("no volume plugin matched: this kubelet has no driver for volumes of that kind built in, use a CSI driver")
}

// localPathType is the type of what is at the path of a local volume.
func localPathType(path string) (corev1.HostPathType, error) {
	if err := rejectParentReferences(path); err != nil {
		return "", fmt.Errorf("invalid path: %s %w", path, err)
	}
	return hostPathType(path)
}

// setUpLocalDevice checks a local volume that containers use as a device.
func setUpLocalDevice(path string, readOnly bool) (*mounted, error) {
	kind, err := localPathType(path)
	if err != nil {
		return nil, err
	}
	if kind != corev1.HostPathBlockDev {
		return nil, fmt.Errorf("path %q is not a block device", path)
	}
	return &mounted{plugin: localPlugin, path: path, readOnly: readOnly, block: true}, nil
}

// setUpLocal mounts a local directory, or the file system of a local device, into the pod's volume directory. It completes what a kubelet that was
// killed has begun.
func (v *Volumes) setUpLocal(ctx context.Context, pod *corev1.Pod, pv *corev1.PersistentVolume, readOnly bool) (*mounted, error) {
	path := pv.Spec.Local.Path
	kind, err := localPathType(path)
	if err != nil {
		return nil, err
	}
	m := &mounted{plugin: localPlugin, path: v.dir(pod.UID, localPlugin, pv.Name), readOnly: readOnly, managed: !readOnly}
	before, err := isMounted(m.path)
	if err != nil {
		return nil, err
	}
	if !before {
		err = v.mountLocal(path, m.path, kind, pv.Spec.Local.FSType)
	}
	if err == nil && readOnly {
		err = remountReadOnly(m.path)
	}
	// The group of the root is set last.
	if group := fsGroup(pod); err == nil && group != nil && !readOnly && (!before || !isGroupsVolume(m.path, *group)) {
		err = setGroup(ctx, m.path, *group, false, pod.Spec.SecurityContext.FSGroupChangePolicy)
	}
	if err != nil {
		return nil, errors.Join(err, unmountBelow(m.path), os.Remove(m.path))
	}
	return m, nil
}

// mountLocal mounts a local directory, or the file system of a local device, on a directory that it creates.
func (v *Volumes) mountLocal(source, target string, kind corev1.HostPathType, fsType *string) error {
	if err := v.makeDir(target, 0o750); err != nil {
		return err
	}
	switch kind {
	case corev1.HostPathDirectory:
		return bindPath(source, target)
	case corev1.HostPathBlockDev:
		return mountDevice(source, target, fsType)
	}
	return fmt.Errorf("only filesystem directories and block devices are supported, %q is a %s", source, kind)
}

func bindPath(source, target string) error {
	fd, err := openDir(source)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return bind(fd, target, true)
}

// mountDevice mounts a device. It does not format it: the provisioner of the volume has to.
func mountDevice(device, target string, fsType *string) error {
	kind := "ext4"
	if fsType != nil && *fsType != "" {
		kind = *fsType
	}
	if err := unix.Mount(device, target, kind, 0, ""); err != nil {
		return fmt.Errorf("mount %s on %s as %s: %w (devices are not formatted here)", device, target, kind, err)
	}
	return nil
}
