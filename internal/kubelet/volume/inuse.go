package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
)

// A volume that must be attached is mounted in this order:
//
//  1. The node's status reports it in volumesInUse.
//  2. After that, volumesAttached of the Node object, read from the API, has it, and its VolumeAttachment is not being deleted.
//  3. It is staged and published.
//
// The attach-detach controller takes a volume off volumesAttached before it detaches it, unless the volume is in volumesInUse. Both are in one
// object, so one of the two sees what the other has written, and no volume is detached that is being mounted.

// reportTimeout is how long a mount waits for the report of the node's status. The pod's worker retries after it.
const reportTimeout = 5 * time.Second

// uniqueName is the name of a volume in the node's status.
func (d volumeData) uniqueName() corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(csiPlugin + "/" + d.Driver + "^" + d.Handle)
}

// isAttachable reports whether a volume has to be attached to the node before it can be mounted.
func (vol *csiVolume) isAttachable() bool {
	return (vol.spec.AttachRequired == nil || *vol.spec.AttachRequired) && vol.Lifecycle == string(storagev1.VolumeLifecyclePersistent)
}

// InUse returns the unique names of attached volumes that pods of this node use or are about to use, for the node's
// status. A volume listed there is not detached.
func (v *Volumes) InUse() ([]corev1.UniqueVolumeName, error) {
	published, err := v.csi.published()
	if err != nil {
		return nil, err
	}
	names := map[corev1.UniqueVolumeName]bool{}
	for _, data := range published {
		if data.Lifecycle == string(storagev1.VolumeLifecyclePersistent) {
			names[data.uniqueName()] = true
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, wanted := range v.wanted {
		maps.Copy(names, wanted)
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// setWanted records that a pod is about to use a volume, until the pod's volumes are unmounted.
func (v *Volumes) setWanted(uid types.UID, name corev1.UniqueVolumeName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.wanted[uid] == nil {
		v.wanted[uid] = map[corev1.UniqueVolumeName]bool{}
	}
	v.wanted[uid][name] = true
}

// inUseChanged has the node's status reported.
func (v *Volumes) inUseChanged() {
	if v.InUseChanged != nil {
		v.InUseChanged()
	}
}

// NodeChanged reports that the Node object may have changed.
func (v *Volumes) NodeChanged() {
	v.mu.Lock()
	defer v.mu.Unlock()
	close(v.nodeObserved)
	v.nodeObserved = make(chan struct{})
}

// nextNode returns a channel that is closed when the Node object may have changed.
func (v *Volumes) nextNode() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.nodeObserved
}

// waitReportedInUse waits until the node's status has a volume in volumesInUse.
func (v *Volumes) waitReportedInUse(ctx context.Context, vol *csiVolume) error {
	v.setWanted(vol.pod.UID, vol.uniqueName())
	timeout := time.After(reportTimeout)
	for asked := false; ; {
		changed := v.nextNode()
		if node := v.Node(); node != nil && slices.Contains(node.Status.VolumesInUse, vol.uniqueName()) {
			return nil
		}
		if !asked {
			asked = true
			v.inUseChanged()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout:
			return waitForAttachError(vol, errors.New("Volume has not been added to the list of VolumesInUse in the node's volume status"))
		}
	}
}

// checkAttached checks that a volume is attached to this node and stays so, and reads its publish context.
func (v *Volumes) checkAttached(ctx context.Context, vol *csiVolume) error {
	attachment, err := client.For[*storagev1.VolumeAttachment](v.Client).Get(ctx, "", vol.Attachment)
	switch {
	case err != nil:
		return waitForAttachError(vol, fmt.Errorf("volume %s has GET error for volume attachment %s: %w", vol.Handle, vol.Attachment, err))
	case attachment.DeletionTimestamp != nil:
		return waitForAttachError(vol, fmt.Errorf("volume attachment %s is being deleted", vol.Attachment))
	case attachment.Status.AttachError != nil:
		return waitForAttachError(vol, errors.New(attachment.Status.AttachError.Message))
	case !attachment.Status.Attached:
		return waitForAttachError(vol, fmt.Errorf("volume %s is not attached to the node yet", vol.Handle))
	}
	node, err := client.For[*corev1.Node](v.Client).Get(ctx, "", v.NodeName)
	if err != nil {
		return waitForAttachError(vol, fmt.Errorf("failed fetching node from API server: %w", err))
	}
	isVolume := func(a corev1.AttachedVolume) bool { return a.Name == vol.uniqueName() }
	if !slices.ContainsFunc(node.Status.VolumesAttached, isVolume) {
		return waitForAttachError(vol, errors.New("Volume not attached according to node status"))
	}
	vol.publishContext = attachment.Status.AttachmentMetadata
	return nil
}

func waitForAttachError(vol *csiVolume, err error) error {
	return &MountError{Volume: vol.Name, Step: "MountVolume.WaitForAttach", Err: err}
}
