package binding

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-helpers/storage/volume"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/snapshot"
)

// pollInterval is how often the snapshot is checked for volumes and devices that are waited for.
const pollInterval = 100 * time.Millisecond

// bindVolumes writes a volume plan and waits until the volume controller has carried it out.
func (b *Binder) bindVolumes(ctx context.Context, d *decision.Decision, plan *snapshot.PodVolumes) error {
	for i := range plan.StaticBindings {
		static := &plan.StaticBindings[i]
		pv, err := b.Writer.UpdatePersistentVolume(ctx, static.Volume)
		if err != nil {
			return err
		}
		static.Volume = pv
	}
	for i := range plan.DynamicProvisions {
		p := &plan.DynamicProvisions[i]
		claim, err := b.Writer.UpdatePersistentVolumeClaim(ctx, p.Claim)
		if err != nil {
			return err
		}
		p.Claim = claim
	}
	deadline := time.NewTimer(time.Duration(d.Profile.VolumeBinding.TimeoutSeconds) * time.Second)
	defer deadline.Stop()
	for {
		var done bool
		var err error
		b.WithSnapshot(func(cluster *snapshot.Snapshot) { done, err = volumesBound(cluster, d, plan) })
		if err != nil {
			return fmt.Errorf("binding volumes: %w", err)
		}
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.C:
			return fmt.Errorf("binding volumes: %w", context.DeadlineExceeded)
		case <-time.After(pollInterval):
		}
	}
}

// volumesBound reports whether all volumes of a plan are bound. An error means that they never will be.
func volumesBound(cluster *snapshot.Snapshot, d *decision.Decision, plan *snapshot.PodVolumes) (bool, error) {
	v := &cluster.Volumes
	number, known := cluster.NodeNumbers[d.Node]
	if !known || cluster.NodeInfos[number].Node == nil {
		return false, fmt.Errorf("failed to get node %q: %w", d.Node, apierrors.NewNotFound(corev1.Resource("node"), d.Node))
	}
	if cluster.PodEntries[d.Pod.Pod.UID] == nil {
		return false, fmt.Errorf("pod does not exist any more: %w", apierrors.NewNotFound(corev1.Resource("pod"), d.Pod.Pod.Name))
	}
	checkAffinity := func(pv *corev1.PersistentVolume) error {
		translated, err := snapshot.TranslateForNode(pv, cluster.NodeInfos[number].CSINode)
		if err != nil {
			return fmt.Errorf("failed to translate pv to csi: %w", err)
		}
		if err := volume.CheckNodeAffinity(translated, cluster.NodeInfos[number].Node.Labels); err != nil {
			return fmt.Errorf("pv %q node affinity doesn't match node %q: %w", pv.Name, d.Node, err)
		}
		return nil
	}
	for _, b := range plan.StaticBindings {
		pv, claim := v.Volumes[b.Volume.Name], v.Claims[snapshot.ObjectKey(b.Claim)]
		switch {
		case pv == nil:
			return false, fmt.Errorf("failed to check binding: %w", apierrors.NewNotFound(corev1.Resource("persistentvolumes"), b.Volume.Name))
		case claim == nil:
			return false, fmt.Errorf("failed to check binding: %w", apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), snapshot.ObjectKey(b.Claim)))
		case snapshot.IsNewer(b.Volume, pv):
			return false, nil
		}
		if err := checkAffinity(pv); err != nil {
			return false, err
		}
		if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" {
			return false, fmt.Errorf("ClaimRef got reset for pv %q", pv.Name)
		}
		if !snapshot.FullyBound(claim) {
			return false, nil
		}
	}
	for _, p := range plan.DynamicProvisions {
		claim := v.Claims[snapshot.ObjectKey(p.Claim)]
		switch {
		case claim == nil:
			return false, fmt.Errorf("failed to check provisioning pvc: %w", apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), snapshot.ObjectKey(p.Claim)))
		case snapshot.IsNewer(p.Claim, claim):
			return false, nil
		case claim.Annotations == nil:
			return false, fmt.Errorf("selectedNode annotation reset for PVC %q", claim.Name)
		case claim.Annotations[volume.AnnSelectedNode] != d.Node:
			return false, fmt.Errorf("provisioning failed for PVC %q", claim.Name)
		}
		if claim.Spec.VolumeName != "" {
			pv := v.Volumes[claim.Spec.VolumeName]
			if pv == nil {
				return false, nil // the volume has not been observed yet, or the claim will be unbound
			}
			if err := checkAffinity(pv); err != nil {
				return false, err
			}
		}
		if !snapshot.FullyBound(claim) {
			return false, nil
		}
	}
	return true, nil
}
