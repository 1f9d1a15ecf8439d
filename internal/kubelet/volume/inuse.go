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
//  1. A report of the node's status that has it in volumesInUse is stored, after setWanted: no later report is without it then.
//  2. After that, volumesAttached of the Node object, read from the API, has it, and its VolumeAttachment is not being deleted.
//  3. It is staged and published.
//
// The attach-detach controller takes a volume off volumesAttached before it detaches it, unless the volume is in volumesInUse. Both are in one
// object, so one of the two sees what the other has written, and no volume is detached that is being mounted.

// reportTimeout is how long a mount waits for the report of the node's status. The pod's worker retries after it.
const reportTimeout = 5 * time.Second

var errNotInUse = errors.New("Volume has not been added to the list of VolumesInUse in the node's volume status")

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
	published, err := v.csi.index.all()
	if err != nil {
		return nil, err
	}
	names := map[corev1.UniqueVolumeName]bool{}
	for _, data := range published {
		if data.Lifecycle == string(storagev1.VolumeLifecyclePersistent) && !data.NotAttached {
			names[data.uniqueName()] = true
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, wanted := range v.wanted {
		for name := range wanted {
			names[name] = true
		}
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
	if _, ok := v.wanted[uid][name]; !ok {
		v.wanted[uid][name] = false
	}
}

// isReported reports whether the node's status has had a volume in volumesInUse since a pod wants it.
func (v *Volumes) isReported(uid types.UID, name corev1.UniqueVolumeName) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.wanted[uid][name]
}

// ReportedInUse says that a report of the node's status with these volumesInUse was stored. Reports are made one after the other: InUse is called
// for the next only after this.
func (v *Volumes) ReportedInUse(names []corev1.UniqueVolumeName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	reported := map[corev1.UniqueVolumeName]bool{}
	for _, name := range names {
		reported[name] = true
	}
	for _, wanted := range v.wanted {
		for name := range wanted {
			wanted[name] = wanted[name] || reported[name]
		}
	}
	close(v.nodeObserved)
	v.nodeObserved = make(chan struct{})
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

// waitReportedInUse waits until a volume is in volumesInUse of the node's status and stays there. That an older report has it is not enough: the
// next, which is without it, may be on its way.
func (v *Volumes) waitReportedInUse(ctx context.Context, vol *csiVolume) error {
	v.setWanted(vol.pod.UID, vol.uniqueName())
	timeout := time.After(reportTimeout)
	for asked := false; ; {
		changed := v.nextNode()
		if v.isReported(vol.pod.UID, vol.uniqueName()) {
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
			return waitForAttachError(vol, errNotInUse)
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
	if !slices.Contains(node.Status.VolumesInUse, vol.uniqueName()) {
		v.inUseChanged()
		return waitForAttachError(vol, errNotInUse)
	}
	vol.publishContext = attachment.Status.AttachmentMetadata
	return nil
}

func waitForAttachError(vol *csiVolume, err error) error {
	return &MountError{Volume: vol.Name, Step: stepOf(vol.block, stepMapAttach, stepAttach), Err: err}
}
