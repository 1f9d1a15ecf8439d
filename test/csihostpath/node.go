package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ephemeralSize is the size of inline volumes of pods.
const ephemeralSize = 100 << 20

// NodeGetInfo implements the node service.
func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{
		NodeId: d.node, MaxVolumesPerNode: d.maxVolumes, AccessibleTopology: &csi.Topology{Segments: map[string]string{topologyKey: d.node}},
	}, nil
}

// NodeGetCapabilities implements the node service.
func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, capability := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_EXPAND_VOLUME, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: capability}}})
	}
	return response, nil
}

// NodeStageVolume implements the node service. A block volume gets its loop device.
func (d *driver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	vol, err := d.volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if r.StagingTargetPath == "" || r.VolumeCapability == nil {
		return nil, status.Error(codes.InvalidArgument, "the staging path or the capability is missing")
	}
	if slices.Contains(vol.staged, r.StagingTargetPath) {
		return &csi.NodeStageVolumeResponse{}, nil
	}
	if len(vol.staged) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is staged at %v", vol.id, vol.staged)
	}
	if vol.block {
		if vol.device, err = attachLoop(d.path(vol.id)); err != nil {
			return nil, err
		}
	}
	vol.staged = append(vol.staged, r.StagingTargetPath)
	return &csi.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume implements the node service.
func (d *driver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	vol, err := d.volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(vol.staged, r.StagingTargetPath) {
		return &csi.NodeUnstageVolumeResponse{}, nil
	}
	if len(vol.published) > 0 && d.checkLifecycle {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is published at %v", vol.id, vol.published)
	}
	vol.staged = without(vol.staged, r.StagingTargetPath)
	return &csi.NodeUnstageVolumeResponse{}, vol.detach()
}

// NodePublishVolume implements the node service: it bind-mounts the volume, or its device, on the target path.
func (d *driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if r.TargetPath == "" || r.VolumeCapability == nil {
		return nil, status.Error(codes.InvalidArgument, "the target path or the capability is missing")
	}
	block, err := isBlock(r.VolumeCapability)
	if err != nil {
		return nil, err
	}
	if r.VolumeContext["csi.storage.k8s.io/ephemeral"] == "true" && d.volumes[r.VolumeId] == nil {
		if err := d.create(&volume{id: r.VolumeId, name: "ephemeral-" + r.VolumeId, size: ephemeralSize, ephemeral: true}); err != nil {
			return nil, err
		}
	}
	vol, err := d.volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	switch {
	case block != vol.block:
		return nil, status.Errorf(codes.InvalidArgument, "volume %s is of the other type", vol.id)
	case !vol.ephemeral && !slices.Contains(vol.staged, r.StagingTargetPath):
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is not staged at %q but at %v", vol.id, r.StagingTargetPath, vol.staged)
	case slices.Contains(vol.published, r.TargetPath):
		return &csi.NodePublishVolumeResponse{}, nil
	case r.VolumeCapability.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER && len(vol.published) > 0:
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s has a single writer and is published at %v", vol.id, vol.published)
	}
	source := d.path(vol.id)
	if block {
		source = vol.device.Name()
	}
	if err := bind(source, r.TargetPath, block, r.Readonly); err != nil {
		return nil, err
	}
	vol.published = append(vol.published, r.TargetPath)
	return &csi.NodePublishVolumeResponse{}, nil
}

// bind bind-mounts a directory or a device.
func bind(source, target string, block, readOnly bool) error {
	if block {
		if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
			return err
		}
		f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o660)
		if err != nil {
			return err
		}
		f.Close()
	} else if err := os.MkdirAll(target, 0o750); err != nil {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	if !readOnly {
		return nil
	}
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", target, err)
	}
	return nil
}

// NodeUnpublishVolume implements the node service.
func (d *driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	vol, err := d.volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(vol.published, r.TargetPath) {
		return &csi.NodeUnpublishVolumeResponse{}, nil
	}
	// EINVAL: it is not mounted.
	if err := unix.Unmount(r.TargetPath, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("unmount %s: %w", r.TargetPath, err)
	}
	if err := os.Remove(r.TargetPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	vol.published = without(vol.published, r.TargetPath)
	if vol.ephemeral {
		return &csi.NodeUnpublishVolumeResponse{}, d.remove(vol)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeExpandVolume implements the node service. Directories have the size of their file system.
func (d *driver) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	vol, err := d.volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(r.VolumePath); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "find the volume's path: %v", err)
	}
	if vol.device != nil {
		if err := updateLoop(vol.device); err != nil {
			return nil, err
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: vol.size}, nil
}

// NodeGetVolumeStats implements the node service.
func (d *driver) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	vol, err := d.volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if vol.block {
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: vol.size}}}, nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(r.VolumePath, &fs); err != nil {
		return nil, status.Errorf(codes.NotFound, "read the statistics of %s: %v", r.VolumePath, err)
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: int64(fs.Blocks) * fs.Bsize, Used: int64(fs.Blocks-fs.Bfree) * fs.Bsize, Available: int64(fs.Bavail) * fs.Bsize},
		{Unit: csi.VolumeUsage_INODES, Total: int64(fs.Files), Used: int64(fs.Files - fs.Ffree), Available: int64(fs.Ffree)},
	}}, nil
}
