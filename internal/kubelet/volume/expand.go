package volume

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
)

// A claim that is enlarged is expanded in two steps: the resizer of the CSI driver makes the volume larger and writes the new size to the
// persistent volume, then the kubelet has the driver expand the file system on the node and writes the new capacity to the claim's status. Both
// agree through allocatedResources and allocatedResourceStatuses of the claim; older resizers do not set them.

const (
	// expansionPeriod is how often the size of a mounted volume is compared with its persistent volume's. Nodes may not watch these.
	expansionPeriod = time.Minute
	// expansionNotRequired is set by a resizer on claims that no node has to expand.
	expansionNotRequired = "volume.kubernetes.io/node-expansion-not-required"
)

// expansion is what is known about the size of a volume that its driver can expand.
type expansion struct {
	// size is the size of the volume on this node.
	size resource.Quantity
	// checkAt is when the size is compared again.
	checkAt time.Time
	// refused is set if the driver does not expand the volume while it is in use, failed if it has failed to expand it.
	refused, failed bool
}

// expansionPlan is what to do about the size of a volume on this node. The zero value is nothing.
type expansionPlan struct {
	// size is the size that the volume gets.
	size resource.Quantity
	// call has the driver expand the volume. Without it the volume has its size already.
	call bool
	// mark records in the claim's status that the expansion is in progress, finish that it is done.
	mark, finish bool
}

// planExpansion compares the size of a volume on this node with the claim and the persistent volume.
func planExpansion(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, current resource.Quantity) expansionPlan {
	wanted := *pv.Spec.Capacity.Storage()
	if wanted.Cmp(current) <= 0 {
		return expansionPlan{}
	}
	state := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	capacity := claim.Status.Capacity.Storage()
	if state == "" && claim.Status.AllocatedResources == nil { // an older resizer
		return expansionPlan{size: wanted, call: true, finish: capacity.Cmp(wanted) < 0}
	}
	size := *claim.Status.AllocatedResources.Storage()
	switch {
	case state == corev1.PersistentVolumeClaimNodeResizePending, state == corev1.PersistentVolumeClaimNodeResizeInProgress:
		return expansionPlan{size: size, call: true, mark: true, finish: true}
	case state == "" && capacity.Cmp(size) >= 0:
		// The resizer or another node has done it. Each node that shares the volume has to.
		shared := slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany) && !metav1.HasAnnotation(claim.ObjectMeta, expansionNotRequired)
		return expansionPlan{size: size, call: shared}
	}
	return expansionPlan{} // the resizer is at work
}

// expansionOf is what is known about the size of a volume; nil: nothing.
func (v *Volumes) expansionOf(uid types.UID, volume string) *expansion {
	v.mu.Lock()
	defer v.mu.Unlock()
	if state := v.pods[uid]; state != nil {
		return state.expansions[volume]
	}
	return nil
}

// checkSize expands a volume that is mounted if its claim was enlarged. Failures are recorded as events: the volume can be used.
func (v *Volumes) checkSize(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) {
	e := v.expansionOf(pod.UID, volume.Name)
	source, isClaim := claimOf(pod, volume)
	if e == nil || !isClaim || time.Now().Before(e.checkAt) {
		return
	}
	e.checkAt = time.Now().Add(expansionPeriod)
	claim, pv, err := v.boundVolume(ctx, pod, source)
	if err != nil || pv.Spec.CSI == nil {
		return // the claim is deleted, or the API server does not respond
	}
	if err := v.expandClaim(ctx, pod, source, claim, pv); err != nil && ctx.Err() == nil {
		v.Events.Event(pod, corev1.EventTypeWarning, "VolumeResizeFailed", fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", pv.Name, err))
	}
}

// expandClaim expands the CSI volume of a claim on this node if the claim was enlarged. The caller holds changing of the pod's volumes.
func (v *Volumes) expandClaim(ctx context.Context, pod *corev1.Pod, source claimVolume, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) error {
	driver, err := v.csi.registered(pv.Spec.CSI.Driver)
	if err != nil || !driver.expands {
		return err
	}
	e := v.expansionOf(pod.UID, source.name)
	if e == nil {
		e = &expansion{size: *claim.Status.Capacity.Storage()}
		state := v.state(pod.UID)
		v.mu.Lock()
		state.expansions[source.name] = e
		v.mu.Unlock()
	}
	e.checkAt = time.Now().Add(expansionPeriod)
	plan := planExpansion(claim, pv, e.size)
	vol := v.persistentCSI(pod, pv, source.readOnly, isBlock(claim))
	switch {
	case plan.size.IsZero(), plan.call && e.refused:
		return nil
	case plan.call && vol.readOnly:
		v.expansionEvent(vol, claim, corev1.EventTypeWarning, "FileSystemResizeFailed",
			fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", pv.Name))
	case plan.call:
		if err := v.expand(ctx, driver, vol, claimExpansion{e, plan, claim, pv}); err != nil {
			return err
		}
		if e.refused {
			return nil
		}
	}
	e.size = plan.size
	return nil
}

// claimExpansion is the expansion of the volume of a claim.
type claimExpansion struct {
	state *expansion
	plan  expansionPlan
	claim *corev1.PersistentVolumeClaim
	pv    *corev1.PersistentVolume
}

// expand has the driver expand a volume, and writes the claim's status before and after.
func (v *Volumes) expand(ctx context.Context, driver *driver, vol *csiVolume, x claimExpansion) (err error) {
	const storage = corev1.ResourceStorage
	claim := x.claim
	if x.plan.mark {
		claim, err = v.patchClaimStatus(ctx, claim, func(s *corev1.PersistentVolumeClaimStatus) {
			s.AllocatedResourceStatuses[storage] = corev1.PersistentVolumeClaimNodeResizeInProgress
		})
		if err != nil {
			return fmt.Errorf("failed to mark node expansion in progress: %w", err)
		}
	}
	if err := v.nodeExpand(ctx, driver, vol, x); err != nil {
		return v.expansionFailed(ctx, claim, x, err)
	}
	x.state.failed = false
	v.expansionEvent(vol, claim, corev1.EventTypeNormal, "FileSystemResizeSuccessful",
		fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", x.pv.Name, v.NodeName))
	if !x.plan.finish {
		return nil
	}
	_, err = v.patchClaimStatus(ctx, claim, func(s *corev1.PersistentVolumeClaimStatus) {
		s.Capacity[storage] = x.plan.size
		delete(s.AllocatedResourceStatuses, storage)
		s.Conditions = slices.DeleteFunc(s.Conditions, isResizeCondition)
	})
	if err != nil {
		return fmt.Errorf("mountVolume.NodeExpandVolume update pvc status failed: %w", err)
	}
	return nil
}

// nodeExpand calls the driver.
func (v *Volumes) nodeExpand(ctx context.Context, driver *driver, vol *csiVolume, x claimExpansion) error {
	secrets, err := v.csiSecrets(ctx, x.pv.Spec.CSI.NodeExpandSecretRef)
	if err != nil {
		return fmt.Errorf("fetching NodeExpandSecretRef failed: %w", err)
	}
	unlock, err := v.csi.lock(ctx, vol.volumeData)
	if err != nil {
		return status.FromContextError(err).Err()
	}
	defer unlock()
	_, err = driver.node.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
		VolumeId: vol.Handle, VolumePath: vol.publishPath(), StagingTargetPath: v.stagingPath(driver, vol), VolumeCapability: vol.capability(driver),
		CapacityRange: &csi.CapacityRange{RequiredBytes: x.plan.size.Value()}, Secrets: secrets,
	})
	return err
}

// expansionFailed records the failure of an expansion in the claim's status. A driver that does not expand volumes in use is not called again while
// the pod uses it, and the pod may use it as it is.
func (v *Volumes) expansionFailed(ctx context.Context, claim *corev1.PersistentVolumeClaim, x claimExpansion, failure error) error {
	code := status.Code(failure)
	if isInconclusive(code) {
		return failure
	}
	failed := x.state.failed
	x.state.failed = true
	infeasible := code == codes.InvalidArgument || code == codes.OutOfRange || code == codes.NotFound
	// The user may have asked for another size since. The resizer decides again.
	if requested := claim.Spec.Resources.Requests.Storage(); failed && requested.Cmp(x.plan.size) != 0 {
		infeasible = true
	}
	if x.plan.mark {
		_, err := v.patchClaimStatus(ctx, claim, func(s *corev1.PersistentVolumeClaimStatus) {
			if infeasible {
				s.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimNodeResizeInfeasible
			}
			s.Conditions = slices.DeleteFunc(s.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
				return c.Type == corev1.PersistentVolumeClaimNodeResizeError
			})
			s.Conditions = append(s.Conditions, corev1.PersistentVolumeClaimCondition{
				Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
				Message: fmt.Sprintf("failed to expand pvc with %v", failure),
			})
		})
		if err != nil {
			v.Log.Warn("failed to write the status of a claim", "claim", claim.Namespace+"/"+claim.Name, "error", err)
		}
	}
	if code == codes.FailedPrecondition {
		x.state.refused = true
		v.Log.Warn("failed to expand a volume in use", "volume", x.pv.Name, "error", failure)
		return nil
	}
	return failure
}

// isInconclusive reports whether a call of a driver may still be in progress, or was not made.
func isInconclusive(code codes.Code) bool {
	switch code {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return true
	}
	return false
}

// isResizeCondition reports whether a condition of a claim is about its expansion.
func isResizeCondition(c corev1.PersistentVolumeClaimCondition) bool {
	switch c.Type {
	case corev1.PersistentVolumeClaimFileSystemResizePending, corev1.PersistentVolumeClaimResizing,
		corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
		return true
	}
	return false
}

// expansionEvent records an event about the pod and the claim.
func (v *Volumes) expansionEvent(vol *csiVolume, claim *corev1.PersistentVolumeClaim, kind, reason, message string) {
	v.Events.Event(vol.pod, kind, reason, message)
	v.Events.Event(claim, kind, reason, message)
}

// patchClaimStatus changes the capacity, the conditions and the state of the expansion in a claim's status. It fails if the claim has changed.
func (v *Volumes) patchClaimStatus(ctx context.Context, claim *corev1.PersistentVolumeClaim, edit func(*corev1.PersistentVolumeClaimStatus)) (*corev1.PersistentVolumeClaim, error) {
	changed := claim.Status.DeepCopy()
	if changed.Capacity == nil {
		changed.Capacity = corev1.ResourceList{}
	}
	if changed.AllocatedResourceStatuses == nil {
		changed.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
	}
	edit(changed)
	state := map[string]any{string(corev1.ResourceStorage): nil}
	if s := changed.AllocatedResourceStatuses[corev1.ResourceStorage]; s != "" {
		state[string(corev1.ResourceStorage)] = s
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion},
		"status":   map[string]any{"capacity": changed.Capacity, "conditions": changed.Conditions, "allocatedResourceStatuses": state},
	})
	if err != nil {
		return nil, err
	}
	return client.For[*corev1.PersistentVolumeClaim](v.Client).Patch(ctx, claim.Namespace, claim.Name, client.RawPatch(client.MergePatch, patch), client.WriteOptions{Subresource: "status"})
}
