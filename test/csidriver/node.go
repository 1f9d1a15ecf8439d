package csidriver

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// GetInfo implements the registration service.
func (d *Driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: d.Name, Endpoint: d.socket(), SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements the registration service.
func (d *Driver) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		d.fail(errors.New(status.Error))
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// NodeGetInfo implements the node service.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.NodeName}, nil
}

// NodeGetCapabilities implements the node service.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, capability := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_EXPAND_VOLUME, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	} {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: capability}}})
	}
	return response, nil
}

// createVolume creates a volume: an empty file system.
func (d *Driver) createVolume(id string, size int64) error {
	dir := d.volumeDir(id)
	if err := os.Mkdir(dir, 0o777); err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil
		}
		return err
	}
	return unix.Mount("volume", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0777", size))
}

// deleteVolume deletes a volume with its data.
func (d *Driver) deleteVolume(id string) error {
	dir := d.volumeDir(id)
	if err := unix.Unmount(dir, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete volume %s: %w", id, err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("delete volume %s: %w", id, err)
	}
	return nil
}

// bindOn bind-mounts a directory on another.
func bindOn(source, target string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if isMountPoint(target) {
		return nil
	}
	return unix.Mount(source, target, "", unix.MS_BIND, "")
}

func unbind(target string, remove bool) error {
	if isMountPoint(target) {
		if err := unix.Unmount(target, 0); err != nil {
			return err
		}
	}
	if !remove {
		return nil
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func isMountPoint(path string) bool {
	var stat unix.Statx_t
	return unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &stat) == nil && stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// NodeStageVolume implements the node service.
func (d *Driver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	d.called("stage %s", r.PublishContext["attached"])
	return &csi.NodeStageVolumeResponse{}, bindOn(d.volumeDir(r.VolumeId), r.StagingTargetPath)
}

// NodeUnstageVolume implements the node service.
func (d *Driver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	d.called("unstage")
	return &csi.NodeUnstageVolumeResponse{}, unbind(r.StagingTargetPath, false)
}

// NodePublishVolume implements the node service.
func (d *Driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	d.called("publish")
	return &csi.NodePublishVolumeResponse{}, bindOn(r.StagingTargetPath, r.TargetPath)
}

// NodeUnpublishVolume implements the node service.
func (d *Driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	d.called("unpublish")
	return &csi.NodeUnpublishVolumeResponse{}, unbind(r.TargetPath, true)
}

// NodeExpandVolume implements the node service.
func (d *Driver) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	size := r.GetCapacityRange().GetRequiredBytes()
	d.called("expand %d", size)
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, unix.Mount("", d.volumeDir(r.VolumeId), "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", size))
}

// NodeGetVolumeStats implements the node service.
func (d *Driver) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(r.VolumePath, &fs); err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{
		Unit: csi.VolumeUsage_BYTES, Total: int64(fs.Blocks) * fs.Bsize, Used: int64(fs.Blocks-fs.Bfree) * fs.Bsize, Available: int64(fs.Bavail) * fs.Bsize,
	}}}, nil
}
