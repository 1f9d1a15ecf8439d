package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// maxSize is the size of the largest volume.
const maxSize = 1 << 40

// ControllerGetCapabilities implements the controller service.
func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	capabilities := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER, csi.ControllerServiceCapability_RPC_GET_CAPACITY,
	}
	if d.modify {
		capabilities = append(capabilities, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME)
	}
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, capability := range capabilities {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: capability}},
		})
	}
	return response, nil
}

// CreateVolume implements the controller service.
func (d *driver) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.Name == "" || len(r.VolumeCapabilities) == 0 {
		return nil, status.Error(codes.InvalidArgument, "the name or the capabilities are missing")
	}
	vol := &volume{id: uuid.NewString(), name: r.Name, size: r.GetCapacityRange().GetRequiredBytes()}
	for i, capability := range r.VolumeCapabilities {
		block, err := isBlock(capability)
		if err != nil {
			return nil, err
		}
		if i > 0 && block != vol.block {
			return nil, status.Error(codes.InvalidArgument, "a volume cannot be both a block volume and a file system")
		}
		vol.block = block
	}
	if vol.size > maxSize {
		return nil, status.Errorf(codes.OutOfRange, "%d bytes are more than the largest volume has", vol.size)
	}
	if err := d.checkMutable(r.MutableParameters); err != nil {
		return nil, err
	}
	for _, existing := range d.volumes {
		if existing.name != r.Name {
			continue
		}
		if existing.size < vol.size || existing.block != vol.block {
			return nil, status.Errorf(codes.AlreadyExists, "volume %s exists and is different", r.Name)
		}
		return d.created(existing, r), nil
	}
	source, err := d.source(r.VolumeContentSource, vol)
	if err != nil {
		return nil, err
	}
	if err := d.create(vol); err != nil {
		return nil, err
	}
	if source != "" {
		if err := copyAll(ctx, d.path(source), d.path(vol.id), vol); err != nil {
			return nil, err
		}
	}
	return d.created(vol, r), nil
}

// created is the response that describes a volume.
func (d *driver) created(vol *volume, r *csi.CreateVolumeRequest) *csi.CreateVolumeResponse {
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: vol.id, CapacityBytes: vol.size, VolumeContext: r.Parameters, ContentSource: r.VolumeContentSource,
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{topologyKey: d.node}}},
	}}
}

// source returns the ID of the volume or the snapshot that a new volume is a copy of, empty for an empty volume.
func (d *driver) source(content *csi.VolumeContentSource, vol *volume) (string, error) {
	var id string
	var size int64
	var block bool
	switch {
	case content == nil:
		return "", nil
	case content.GetSnapshot() != nil:
		from := d.snapshots[content.GetSnapshot().SnapshotId]
		if from == nil {
			return "", status.Errorf(codes.NotFound, "there is no snapshot %s", content.GetSnapshot().SnapshotId)
		}
		id, size, block = from.id, from.size, from.block
	default:
		from, err := d.volume(content.GetVolume().GetVolumeId())
		if err != nil {
			return "", err
		}
		id, size, block = from.id, from.size, from.block
	}
	if size > vol.size || block != vol.block {
		return "", status.Errorf(codes.InvalidArgument, "the volume cannot hold a copy of %s", id)
	}
	return id, nil
}

// copyAll copies a volume or a snapshot.
func copyAll(ctx context.Context, from, to string, vol *volume) error {
	if !vol.block {
		if err := os.MkdirAll(to, 0o777); err != nil {
			return err
		}
		from += "/."
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	if !vol.block {
		return nil
	}
	return os.Truncate(to, vol.size)
}

// DeleteVolume implements the controller service.
func (d *driver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if r.VolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume ID is missing")
	}
	vol := d.volumes[r.VolumeId]
	if vol == nil {
		return &csi.DeleteVolumeResponse{}, nil
	}
	if d.checkLifecycle && len(vol.staged)+len(vol.published) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is staged at %v and published at %v", vol.id, vol.staged, vol.published)
	}
	return &csi.DeleteVolumeResponse{}, d.remove(vol)
}

// ValidateVolumeCapabilities implements the controller service.
func (d *driver) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	vol, err := d.volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	for _, capability := range r.VolumeCapabilities {
		if block, err := isBlock(capability); err != nil || block != vol.block {
			return &csi.ValidateVolumeCapabilitiesResponse{Message: "the volume is of the other type"}, err
		}
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.VolumeContext, VolumeCapabilities: r.VolumeCapabilities, Parameters: r.Parameters,
	}}, nil
}

// GetCapacity implements the controller service.
func (d *driver) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{AvailableCapacity: maxSize}, nil
}

// ControllerExpandVolume implements the controller service.
func (d *driver) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	vol, err := d.volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	size := r.GetCapacityRange().GetRequiredBytes()
	if size > maxSize {
		return nil, status.Errorf(codes.OutOfRange, "%d bytes are more than the largest volume has", size)
	}
	if size > vol.size {
		if vol.block {
			if err := os.Truncate(d.path(vol.id), size); err != nil {
				return nil, err
			}
		}
		vol.size = size
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: vol.size, NodeExpansionRequired: true}, nil
}

// ControllerModifyVolume implements the controller service.
func (d *driver) ControllerModifyVolume(_ context.Context, r *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	if !d.modify {
		return nil, status.Error(codes.Unimplemented, "volumes cannot be modified")
	}
	if _, err := d.volume(r.VolumeId); err != nil {
		return nil, err
	}
	return &csi.ControllerModifyVolumeResponse{}, d.checkMutable(r.MutableParameters)
}

// checkMutable refuses parameters of a VolumeAttributesClass that are not supported.
func (d *driver) checkMutable(parameters map[string]string) error {
	for name := range parameters {
		if len(d.mutable) > 0 && !slices.Contains(d.mutable, name) {
			return status.Errorf(codes.InvalidArgument, "parameter %s cannot be modified", name)
		}
	}
	return nil
}

// CreateSnapshot implements the controller service.
func (d *driver) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	vol, err := d.volume(r.SourceVolumeId)
	if err != nil {
		return nil, err
	}
	for _, existing := range d.snapshots {
		if existing.name != r.Name {
			continue
		}
		if existing.volume != vol.id {
			return nil, status.Errorf(codes.AlreadyExists, "snapshot %s exists and is of another volume", r.Name)
		}
		return &csi.CreateSnapshotResponse{Snapshot: existing.describe()}, nil
	}
	s := &snapshot{id: uuid.NewString(), name: r.Name, volume: vol.id, size: vol.size, block: vol.block, created: time.Now().Unix()}
	if err := copyAll(ctx, d.path(vol.id), d.path(s.id), vol); err != nil {
		return nil, err
	}
	d.snapshots[s.id] = s
	return &csi.CreateSnapshotResponse{Snapshot: s.describe()}, nil
}

func (s *snapshot) describe() *csi.Snapshot {
	return &csi.Snapshot{SnapshotId: s.id, SourceVolumeId: s.volume, SizeBytes: s.size, CreationTime: &timestamppb.Timestamp{Seconds: s.created}, ReadyToUse: true}
}

// DeleteSnapshot implements the controller service.
func (d *driver) DeleteSnapshot(_ context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if d.snapshots[r.SnapshotId] == nil {
		return &csi.DeleteSnapshotResponse{}, nil
	}
	if err := os.RemoveAll(d.path(r.SnapshotId)); err != nil {
		return nil, err
	}
	delete(d.snapshots, r.SnapshotId)
	return &csi.DeleteSnapshotResponse{}, nil
}
