package binding

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

// Reservation is the volumes and devices that a pod gets on its node.
type Reservation struct {
	volumes snapshot.PodVolumes
	devices []snapshot.ClaimAllocation
}

func (r *Reservation) empty() bool { return r.volumes.Empty() && len(r.devices) == 0 }

// Reserve decides which volumes and devices the pod gets on its node, and assumes them in the snapshot. After an error nothing is assumed.
func Reserve(cluster *snapshot.Snapshot, d *decision.Decision) (*Reservation, error) {
	r := &Reservation{}
	if err := reserveDevices(cluster, d, r); err != nil {
		return nil, fmt.Errorf("running Reserve plugin %q: %w", plugins.DynamicResourcesName, err)
	}
	if d.Profile.VolumeBinding == nil || len(snapshot.ClaimNames(d.Pod.Pod)) == 0 {
		return r, nil
	}
	if err := reserveVolumes(cluster, d, r); err != nil {
		r.revert(cluster)
		return nil, fmt.Errorf("running Reserve plugin %q: %w", plugins.VolumeBindingName, err)
	}
	return r, nil
}

func reserveVolumes(cluster *snapshot.Snapshot, d *decision.Decision, r *Reservation) error {
	claims, err := cluster.Volumes.PodVolumeClaims(d.Pod.Pod)
	if err != nil {
		return err
	}
	plan, reasons, err := cluster.Volumes.FindPodVolumes(claims, cluster.NodeInfos[d.NodeNumber].Node, cluster.NodeInfos[d.NodeNumber].CSINode)
	if err != nil {
		return err
	}
	if len(reasons) > 0 {
		return fmt.Errorf("volumes on node %s: %v", d.Node, reasons)
	}
	r.volumes = plan
	return cluster.Volumes.AssumePodVolumes(&r.volumes, d.Node)
}

// reserveDevices allocates the devices of a pod on its node.
func reserveDevices(cluster *snapshot.Snapshot, d *decision.Decision, r *Reservation) error {
	plugin := d.Profile.DynamicResources
	if plugin == nil || !cluster.WantsDevices(d.Pod) {
		return nil
	}
	request, refusal := plugin.PodDevices(cluster, d.Pod)
	if refusal == nil {
		var allocations []snapshot.ClaimAllocation
		if allocations, refusal = request.AllocateOn(cluster, d.NodeNumber); refusal == nil {
			for _, claim := range request.Allocated {
				allocations = append(allocations, snapshot.ClaimAllocation{Claim: claim})
			}
			r.devices = allocations
			cluster.Devices.AssumeAllocations(r.devices)
			return nil
		}
	}
	if refusal.Err != nil {
		return refusal.Err
	}
	return fmt.Errorf("devices on node %s: %v", d.Node, refusal.Reasons)
}

// revert undoes what Reserve assumed.
func (r *Reservation) revert(cluster *snapshot.Snapshot) {
	cluster.Volumes.RevertAssumedPodVolumes(&r.volumes)
	cluster.Devices.RevertAllocations(r.devices)
}

// Release reverts the reservation of a pod that could not be bound: what is assumed in the snapshot at once, what was written to its
// claims in the background. The caller holds the snapshot's lock.
func (b *Binder) Release(ctx context.Context, cluster *snapshot.Snapshot, pod *corev1.Pod, r *Reservation) {
	r.revert(cluster)
	for i := range r.devices {
		claim := r.devices[i].Claim
		switch {
		case r.devices[i].Created:
			b.Background(func() { b.deleteClaim(ctx, claim) })
		case resourceclaim.IsReservedForPod(pod, claim, false):
			b.Background(func() { b.dropReservation(ctx, pod, claim) })
		}
	}
}
