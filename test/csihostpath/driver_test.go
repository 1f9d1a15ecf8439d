package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	fileSystem = &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}}
	device     = &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
)

func request(name string, size int64, capability *csi.VolumeCapability) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{capability}}
}

// mustCreate creates a volume and returns its ID.
func mustCreate(t *testing.T, d *driver, r *csi.CreateVolumeRequest) string {
	t.Helper()
	response, err := d.CreateVolume(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return response.Volume.VolumeId
}

// wantCode fails the test if an error has another code.
func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// A volume is created once for its name, and not changed.
func TestCreate(t *testing.T) {
	d := newDriver("d", "n", t.TempDir())
	id := mustCreate(t, d, request("a", 1<<20, fileSystem))
	if again := mustCreate(t, d, request("a", 1<<20, fileSystem)); again != id {
		t.Errorf("the volume is %s, and %s for the second call", id, again)
	}
	_, err := d.CreateVolume(t.Context(), request("a", 2<<20, fileSystem))
	wantCode(t, "a larger volume of the same name", err, codes.AlreadyExists)
	_, err = d.CreateVolume(t.Context(), request("a", 1<<20, device))
	wantCode(t, "a block volume of the same name", err, codes.AlreadyExists)
	block := mustCreate(t, d, request("b", 3<<20, device))
	if info, err := os.Stat(d.path(block)); err != nil || info.Size() != 3<<20 {
		t.Errorf("the block volume: %v, %v", info, err)
	}
	if _, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: block, CapacityRange: &csi.CapacityRange{RequiredBytes: 5 << 20}}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(d.path(block)); err != nil || info.Size() != 5<<20 {
		t.Errorf("the expanded block volume: %v, %v", info, err)
	}
}

// A copy has the data of its source, and only its own changes.
func TestCopies(t *testing.T) {
	d := newDriver("d", "n", t.TempDir())
	source := mustCreate(t, d, request("source", 1<<20, fileSystem))
	file := filepath.Join(d.path(source), "file")
	if err := os.WriteFile(file, []byte("before"), 0o640); err != nil {
		t.Fatal(err)
	}
	taken, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: source})
	if err != nil {
		t.Fatal(err)
	}
	clone := request("clone", 1<<20, fileSystem)
	clone.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: source}}}
	cloneID := mustCreate(t, d, clone)
	if err := os.WriteFile(file, []byte("after"), 0o640); err != nil {
		t.Fatal(err)
	}
	restored := request("restored", 1<<20, fileSystem)
	restored.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: taken.Snapshot.SnapshotId},
	}}
	for _, id := range []string{cloneID, mustCreate(t, d, restored)} {
		if data, err := os.ReadFile(filepath.Join(d.path(id), "file")); err != nil || string(data) != "before" {
			t.Errorf("the copy has %q, %v", data, err)
		}
	}
	clone.Name, clone.CapacityRange.RequiredBytes = "small", 1
	_, err = d.CreateVolume(t.Context(), clone)
	wantCode(t, "a copy that is smaller than its source", err, codes.InvalidArgument)
}

// Calls that are in the wrong order fail.
func TestLifecycle(t *testing.T) {
	ctx := t.Context()
	d := newDriver("d", "n", t.TempDir())
	d.checkLifecycle = true
	id := mustCreate(t, d, request("a", 1<<20, fileSystem))
	publish := &csi.NodePublishVolumeRequest{VolumeId: id, TargetPath: "/target", StagingTargetPath: "/staging", VolumeCapability: &csi.VolumeCapability{
		AccessType: fileSystem.AccessType, AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
	}}
	_, err := d.NodePublishVolume(ctx, publish)
	wantCode(t, "publish before stage", err, codes.FailedPrecondition)
	if _, err := d.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: "/staging", VolumeCapability: fileSystem}); err != nil {
		t.Fatal(err)
	}
	d.volumes[id].published = []string{"/other"}
	_, err = d.NodePublishVolume(ctx, publish)
	wantCode(t, "publish for a second writer", err, codes.FailedPrecondition)
	_, err = d.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: "/staging"})
	wantCode(t, "unstage before unpublish", err, codes.FailedPrecondition)
	d.volumes[id].published = nil
	_, err = d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	wantCode(t, "delete before unstage", err, codes.FailedPrecondition)
	if _, err := d.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: "/staging"}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(d.path(id)); !os.IsNotExist(err) {
		t.Errorf("the deleted volume: %v", err)
	}
}

// Only the parameters that the flag names can be modified.
func TestModify(t *testing.T) {
	d := newDriver("d", "n", t.TempDir())
	d.modify, d.mutable = true, []string{"speed"}
	id := mustCreate(t, d, request("a", 1<<20, fileSystem))
	for name, want := range map[string]codes.Code{"speed": codes.OK, "color": codes.InvalidArgument} {
		_, err := d.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: map[string]string{name: "1"}})
		wantCode(t, name, err, want)
	}
}
