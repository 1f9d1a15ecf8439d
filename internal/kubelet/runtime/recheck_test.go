package runtime

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	content "github.com/containerd/containerd/api/services/content/v1"
	diff "github.com/containerd/containerd/api/services/diff/v1"
	images "github.com/containerd/containerd/api/services/images/v1"
	leases "github.com/containerd/containerd/api/services/leases/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fakeContainerd has images, blobs and snapshots in memory.
type fakeContainerd struct {
	mu      sync.Mutex        // held by every call, and by tests while they read or change what follows
	targets map[string]string // of images by name
	blobs   map[string][]byte
	parents map[string]string // of snapshots by name
	// unpacked are the layers that were unpacked, removed the containers that were removed.
	unpacked, removed []string
	// running are the containers that run.
	running []string
	// removeFails has the errors of the removal of snapshots, by name.
	removeFails map[string]error
}

func sum(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// add adds an image with layers and their snapshots.
func (f *fakeContainerd) add(name string, layers ...string) {
	store := func(data []byte) descriptor {
		f.blobs[sum(data)] = data
		return descriptor{Digest: sum(data), Size: int64(len(data))}
	}
	encode := func(value any) []byte {
		text, _ := json.Marshal(value)
		return text
	}
	var manifest imageManifest
	var ids []string
	parent := ""
	for _, layer := range layers {
		blob := store([]byte(layer))
		manifest.Layers, ids = append(manifest.Layers, blob), append(ids, blob.Digest) // not compressed
		id := chainID(parent, blob.Digest)
		f.parents[id] = parent
		parent = id
	}
	manifest.Config = store(encode(map[string]any{"rootfs": map[string]any{"diff_ids": ids}, "name": name}))
	f.targets[name] = store(encode(manifest)).Digest
}

// The services of a fake containerd.
type (
	fakeImages struct {
		images.UnimplementedImagesServer
		*fakeContainerd
	}
	fakeContent struct {
		content.UnimplementedContentServer
		*fakeContainerd
	}
	fakeSnapshots struct {
		snapshots.UnimplementedSnapshotsServer
		*fakeContainerd
	}
	fakeDiff struct {
		diff.UnimplementedDiffServer
		*fakeContainerd
	}
	fakeLeases struct {
		leases.UnimplementedLeasesServer
		*fakeContainerd
	}
	fakeImageService struct {
		runtimeapi.UnimplementedImageServiceServer
		*fakeContainerd
	}
	fakeRuntimeService struct {
		runtimeapi.UnimplementedRuntimeServiceServer
		*fakeContainerd
	}
)

func (f fakeImages) List(context.Context, *images.ListImagesRequest) (*images.ListImagesResponse, error) {
	response := &images.ListImagesResponse{}
	for _, name := range slices.Sorted(maps.Keys(f.targets)) {
		response.Images = append(response.Images, &images.Image{Name: name, Target: &types.Descriptor{Digest: f.targets[name]}})
	}
	return response, nil
}

func (f fakeImages) Delete(_ context.Context, r *images.DeleteImageRequest) (*emptypb.Empty, error) {
	delete(f.targets, r.Name)
	return &emptypb.Empty{}, nil
}

func (f fakeContent) Read(r *content.ReadContentRequest, to content.Content_ReadServer) error {
	data, ok := f.blobs[r.Digest]
	if !ok {
		return status.Error(codes.NotFound, "not found")
	}
	return to.Send(&content.ReadContentResponse{Data: data})
}

func (f fakeContent) Update(context.Context, *content.UpdateRequest) (*content.UpdateResponse, error) {
	return &content.UpdateResponse{}, nil
}

func (f fakeSnapshots) List(_ *snapshots.ListSnapshotsRequest, to snapshots.Snapshots_ListServer) error {
	response := &snapshots.ListSnapshotsResponse{}
	for name, parent := range f.parents {
		kind := snapshots.Kind_COMMITTED
		if !strings.HasPrefix(name, "sha256:") {
			kind = snapshots.Kind_ACTIVE
		}
		response.Info = append(response.Info, &snapshots.Info{Name: name, Parent: parent, Kind: kind})
	}
	return to.Send(response)
}

func (f fakeSnapshots) Stat(_ context.Context, r *snapshots.StatSnapshotRequest) (*snapshots.StatSnapshotResponse, error) {
	if _, ok := f.parents[r.Key]; !ok {
		return nil, status.Error(codes.NotFound, "not found")
	}
	return &snapshots.StatSnapshotResponse{}, nil
}

func (f fakeSnapshots) Prepare(_ context.Context, r *snapshots.PrepareSnapshotRequest) (*snapshots.PrepareSnapshotResponse, error) {
	f.parents[r.Key] = r.Parent
	return &snapshots.PrepareSnapshotResponse{}, nil
}

func (f fakeSnapshots) Commit(_ context.Context, r *snapshots.CommitSnapshotRequest) (*emptypb.Empty, error) {
	f.parents[r.Name] = f.parents[r.Key]
	delete(f.parents, r.Key)
	return &emptypb.Empty{}, nil
}

func (f fakeSnapshots) Remove(_ context.Context, r *snapshots.RemoveSnapshotRequest) (*emptypb.Empty, error) {
	if err := f.removeFails[r.Key]; err != nil {
		return nil, err
	}
	if slices.Contains(slices.Collect(maps.Values(f.parents)), r.Key) {
		return nil, status.Error(codes.FailedPrecondition, "snapshot has children")
	}
	delete(f.parents, r.Key)
	return &emptypb.Empty{}, nil
}

func (f fakeDiff) Apply(_ context.Context, r *diff.ApplyRequest) (*diff.ApplyResponse, error) {
	f.unpacked = append(f.unpacked, string(f.blobs[r.Diff.Digest]))
	return &diff.ApplyResponse{Applied: &types.Descriptor{Digest: sum(f.blobs[r.Diff.Digest])}}, nil
}

func (f fakeLeases) Create(context.Context, *leases.CreateRequest) (*leases.CreateResponse, error) {
	return &leases.CreateResponse{}, nil
}

func (f fakeLeases) Delete(context.Context, *leases.DeleteRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

func (f fakeImageService) ImageStatus(_ context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	if _, ok := f.targets[r.Image.Image]; !ok {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: r.Image.Image}}, nil
}

func (f fakeRuntimeService) RemoveContainer(_ context.Context, r *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	if strings.HasPrefix(r.ContainerId, "container") {
		f.removed = append(f.removed, r.ContainerId)
		delete(f.parents, r.ContainerId)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (f fakeRuntimeService) RemovePodSandbox(_ context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	if strings.HasPrefix(r.PodSandboxId, "sandbox") {
		return nil, status.Error(codes.Unknown, "failed to destroy network for sandbox: cni plugin not initialized")
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

func (f fakeRuntimeService) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	response := &runtimeapi.ListContainersResponse{}
	for name := range f.parents {
		state := runtimeapi.ContainerState_CONTAINER_EXITED
		if slices.Contains(f.running, name) {
			state = runtimeapi.ContainerState_CONTAINER_RUNNING
		}
		if strings.HasPrefix(name, "container") {
			response.Containers = append(response.Containers, &runtimeapi.Container{Id: name, Metadata: &runtimeapi.ContainerMetadata{Name: name}, State: state})
		}
	}
	return response, nil
}

func (f fakeRuntimeService) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{}, nil
}

// newFakeContainerd serves a containerd without images until the test ends.
func newFakeContainerd(t *testing.T) (*fakeContainerd, Importer) {
	t.Helper()
	f := &fakeContainerd{targets: map[string]string{}, blobs: map[string][]byte{}, parents: map[string]string{}}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return handle(ctx, request)
		}),
		grpc.StreamInterceptor(func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			return handle(service, stream)
		}),
	)
	images.RegisterImagesServer(server, fakeImages{fakeContainerd: f})
	content.RegisterContentServer(server, fakeContent{fakeContainerd: f})
	snapshots.RegisterSnapshotsServer(server, fakeSnapshots{fakeContainerd: f})
	diff.RegisterDiffServer(server, fakeDiff{fakeContainerd: f})
	leases.RegisterLeasesServer(server, fakeLeases{fakeContainerd: f})
	runtimeapi.RegisterImageServiceServer(server, fakeImageService{fakeContainerd: f})
	runtimeapi.RegisterRuntimeServiceServer(server, fakeRuntimeService{fakeContainerd: f})
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	importer, err := NewImporter("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = importer.Close() })
	return f, importer
}

// recheckIn checks the images after a reboot, with a record in a directory.
func recheckIn(t *testing.T, importer Importer, dir string) error {
	t.Helper()
	r := &imageRecorder{importer: importer, dir: dir, file: filepath.Join(dir, "images.json"), boot: "second", log: slog.New(slog.DiscardHandler)}
	return r.recheck(t.Context())
}

// writeRecord writes the record of an earlier boot.
func writeRecord(t *testing.T, text string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "images.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestRecheckOfLayersInUse: what is on the layers of an image does not keep them from being unpacked again, and nothing of it keeps the node from starting.
func TestRecheckOfLayersInUse(t *testing.T) {
	f, importer := newFakeContainerd(t)
	f.add("new", "base", "top")
	base := sum([]byte("base"))
	top := chainID(base, sum([]byte("top")))
	for name, parent := range map[string]string{
		"extract-1 " + chainID(base, "other"):  base, // a pull was unpacking another image with the same first layer
		chainID(base, "removed"):               base, // of an image that is removed, and not collected yet
		"container of removed":                 chainID(base, "removed"),
		"/state/image-volumes/sandbox-1/image": top,
		"sandbox-1":                            top,
	} {
		f.parents[name] = parent
	}
	if err := recheckIn(t, importer, writeRecord(t, `{"boot":"first"}`)); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.unpacked, []string{"base", "top"}) || !maps.Equal(f.parents, map[string]string{base: "", top: base}) {
		t.Errorf("unpacked %q, snapshots %q", f.unpacked, f.parents)
	}
	if !slices.Equal(f.removed, []string{"container of removed"}) {
		t.Errorf("removed %q", f.removed)
	}
}

// TestRecheckWithDamagedRecord: all images are checked if the disk has lost the record too.
func TestRecheckWithDamagedRecord(t *testing.T) {
	for _, record := range []string{"", "\x00\x00", `{"boot":"fir`} {
		f, importer := newFakeContainerd(t)
		f.add("image", "layer")
		dir := writeRecord(t, record)
		if err := recheckIn(t, importer, dir); err != nil {
			t.Fatalf("record %q: %v", record, err)
		}
		f.mu.Lock()
		if !slices.Equal(f.unpacked, []string{"layer"}) {
			t.Errorf("record %q: unpacked %q", record, f.unpacked)
		}
		f.mu.Unlock()
		if text, err := os.ReadFile(filepath.Join(dir, "images.json")); err != nil || !bytes.Contains(text, []byte(`"boot":"second"`)) {
			t.Errorf("record %q: recorded %s, %v", record, text, err)
		}
	}
}

// TestRecheckWhileContainersRun: a record that is damaged, of an earlier boot because the disk was full, or unreadable does not take the layers of containers
// that run away. Other images are checked, and the start goes on.
func TestRecheckWhileContainersRun(t *testing.T) {
	for name, record := range map[string]func(dir string) error{
		"damaged": func(dir string) error { return os.WriteFile(filepath.Join(dir, "images.json"), []byte("\x00"), 0o600) },
		"old": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "images.json"), []byte(`{"boot":"first"}`), 0o600)
		},
		"unreadable": func(dir string) error { return os.Mkdir(filepath.Join(dir, "images.json"), 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			f, importer := newFakeContainerd(t)
			f.add("used", "base", "used layer")
			f.add("unused", "base", "unused layer")
			f.add("bad", "bad layer")
			f.blobs[sum([]byte("bad layer"))] = nil
			base := sum([]byte("base"))
			layer := chainID(base, sum([]byte("used layer")))
			f.parents["container 1"], f.parents["container 2"] = layer, layer
			f.running = []string{"container 1"}
			dir := t.TempDir()
			if err := record(dir); err != nil {
				t.Fatal(err)
			}
			if err := recheckIn(t, importer, dir); err != nil {
				t.Fatal(err)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.removed) > 0 || f.parents["container 1"] != layer || f.parents[layer] != base {
				t.Errorf("removed %q, snapshots %q", f.removed, f.parents)
			}
			if !slices.Equal(f.unpacked, []string{"unused layer"}) {
				t.Errorf("unpacked %q", f.unpacked)
			}
			if names := slices.Sorted(maps.Keys(f.targets)); !slices.Equal(names, []string{"unused", "used"}) {
				t.Errorf("images %q", names)
			}
		})
	}
}

// TestRecheckOfArtifacts: an image that cannot be unpacked, such as an artifact whose configuration has no layers, is kept, and the node starts.
func TestRecheckOfArtifacts(t *testing.T) {
	f, importer := newFakeContainerd(t)
	f.add("artifact", "layer")
	var manifest imageManifest
	if err := json.Unmarshal(f.blobs[f.targets["artifact"]], &manifest); err != nil {
		t.Fatal(err)
	}
	f.blobs[sum([]byte("{}"))] = []byte("{}")
	manifest.Config.Digest = sum([]byte("{}"))
	text, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	f.blobs[sum(text)], f.targets["artifact"] = text, sum(text)
	if err := recheckIn(t, importer, writeRecord(t, `{"boot":"first"}`)); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.targets) != 1 || len(f.unpacked) > 0 {
		t.Errorf("images %v, unpacked %q", f.targets, f.unpacked)
	}
}

// TestRecheckOfIndex: the manifest that an index refers to is compared with its digest, as everything else.
func TestRecheckOfIndex(t *testing.T) {
	f, importer := newFakeContainerd(t)
	f.add("image", "layer")
	manifest := f.targets["image"]
	index := fmt.Appendf(nil, `{"manifests":[{"digest":%q,"platform":{"os":"linux","architecture":%q}}]}`, manifest, goruntime.GOARCH)
	f.blobs[sum(index)], f.targets["image"] = index, sum(index)
	f.blobs[manifest] = bytes.Replace(f.blobs[manifest], []byte("{"), []byte("{ "), 1)
	if err := recheckIn(t, importer, writeRecord(t, `{"boot":"first"}`)); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.targets) != 0 {
		t.Errorf("images %v, want none with a damaged manifest", f.targets)
	}
}

// TestRecheck: after a reboot, images that are not recorded are unpacked again, or removed if their blobs are damaged. Others are not read.
func TestRecheck(t *testing.T) {
	f, importer := newFakeContainerd(t)
	dir := t.TempDir()
	recorder := func(boot string) *imageRecorder {
		return &imageRecorder{importer: importer, dir: dir, file: filepath.Join(dir, "images.json"), boot: boot, log: slog.New(slog.DiscardHandler)}
	}
	// recheck checks the images in a boot, and then what has become of them.
	recheck := func(boot string, check func()) {
		t.Helper()
		if err := recorder(boot).recheck(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		check()
	}
	layer := func(ids ...string) string {
		parent := ""
		for _, id := range ids {
			parent = chainID(parent, sum([]byte(id)))
		}
		return parent
	}
	f.add("old", "base", "old layer")
	recheck("first", func() { // an earlier version of skiff has left an image
		if len(f.unpacked) > 0 {
			t.Errorf("unpacked %q without a record", f.unpacked)
		}
		f.add("new", "base", "new layer", "top")
		f.add("bad", "base", "bad layer")
		f.targets["bad again"] = f.targets["bad"]
		f.parents["container of old"], f.parents["container of new"] = layer("base", "old layer"), layer("base", "new layer", "top")
		f.blobs[sum([]byte("bad layer"))] = nil
		f.blobs[sum([]byte("old layer"))] = nil // it would be noticed if it were read
	})
	recheck("first", func() {
		if len(f.unpacked) > 0 || len(f.targets) != 4 {
			t.Errorf("unpacked %q, images %v without a reboot", f.unpacked, f.targets)
		}
		// The record of the second start has all of them. A power loss before it has none of the new ones.
		record, err := json.Marshal(syncedImages{Boot: "first", Images: []string{f.targets["old"]}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "images.json"), record, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	recheck("second", func() {
		if !slices.Equal(f.unpacked, []string{"new layer", "top"}) {
			t.Errorf("unpacked %q", f.unpacked)
		}
		if names := slices.Sorted(maps.Keys(f.targets)); !slices.Equal(names, []string{"new", "old"}) {
			t.Errorf("images %q", names)
		}
		if !slices.Equal(f.removed, []string{"container of new"}) {
			t.Errorf("removed %q", f.removed)
		}
		if _, ok := f.parents[layer("base", "bad layer")]; ok {
			t.Error("the layer of the damaged image is still there, and would be used again")
		}
		f.unpacked = nil
	})
	recheck("third", func() { // all are recorded now
		if len(f.unpacked) > 0 || len(f.targets) != 2 {
			t.Errorf("unpacked %q, images %v after a clean reboot", f.unpacked, f.targets)
		}
		text, err := os.ReadFile(filepath.Join(dir, "images.json"))
		if err != nil || !bytes.Contains(text, []byte(f.targets["new"])) || !bytes.Contains(text, []byte(`"boot":"third"`)) {
			t.Errorf("recorded %s, %v", text, err)
		}
	})
}

// TestRecheckOnFullDisk: a node whose disk has no space for the record starts, and has new images checked again after the next reboot.
func TestRecheckOnFullDisk(t *testing.T) {
	f, importer := newFakeContainerd(t)
	f.add("new", "layer")
	dir := writeRecord(t, `{"boot":"first"}`)
	file := filepath.Join(dir, "images.json")
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	r := &imageRecorder{importer: importer, dir: filepath.Join(dir, "missing"), file: file, boot: "second", log: slog.New(slog.DiscardHandler)}
	if err := r.recheck(t.Context()); err != nil {
		t.Errorf("the node does not start: %v", err)
	}
	if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) {
		t.Errorf("the record was replaced, %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.unpacked, []string{"layer"}) {
		t.Errorf("unpacked %q", f.unpacked)
	}
}

// TestRecheckInterrupted: a containerd that exits meanwhile does not make an image count as damaged.
func TestRecheckInterrupted(t *testing.T) {
	f, importer := newFakeContainerd(t)
	f.add("new", "layer")
	dir := writeRecord(t, `{"boot":"first"}`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := &imageRecorder{importer: importer, dir: dir, file: filepath.Join(dir, "images.json"), boot: "second", log: slog.New(slog.DiscardHandler)}
	if err := r.recheck(ctx); err == nil || len(f.targets) != 1 {
		t.Errorf("error %v, images %v", err, f.targets)
	}
}

// TestRecheckIsRepeated: an image whose layers cannot be removed keeps neither others from being repaired nor the start from going on. The check is repeated
// until it succeeds, and the condition of the node says why meanwhile.
func TestRecheckIsRepeated(t *testing.T) {
	f, importer := newFakeContainerd(t)
	f.add("busy", "busy layer")
	f.add("other", "other layer")
	f.removeFails = map[string]error{sum([]byte("busy layer")): status.Error(codes.Internal, "device or resource busy")}
	dir := writeRecord(t, `{"boot":"first"}`)
	r := &imageRecorder{importer: importer, dir: dir, file: filepath.Join(dir, "images.json"), boot: "second", log: slog.New(slog.DiscardHandler)}
	c := &Containerd{log: r.log}
	checked := make(chan bool, 1)
	go func() { checked <- c.checkImages(t.Context(), r) }()
	for deadline := time.Now().Add(20 * time.Second); c.Problem() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no problem is reported")
		}
	}
	if err := c.Problem(); !strings.HasSuffix(err.Error(), "desc = device or resource busy") || !strings.Contains(err.Error(), "image busy: remove snapshot sha256:") {
		t.Errorf("the problem is %v", err)
	}
	f.mu.Lock()
	if !slices.Equal(f.unpacked, []string{"other layer"}) {
		t.Errorf("unpacked %q, want the image that can be repaired", f.unpacked)
	}
	f.removeFails = nil
	f.mu.Unlock()
	if !<-checked || c.Problem() != nil {
		t.Errorf("the problem is %v", c.Problem())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.unpacked, []string{"other layer", "busy layer"}) {
		t.Errorf("unpacked %q, want each layer once", f.unpacked)
	}
}
