package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	images "github.com/containerd/containerd/api/services/images/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"skiff/internal/atomicfile"
	"skiff/internal/kubelet/cri"
)

// An image that counts as present is on disk (decision 39). This file is for the case that one is not: a disk that acknowledges writes which it loses,
// or a program beside skiff that has unpacked it.
//
// A record has the images that were on disk when the file system was last synced: shortly after they were pulled or imported, and when skiff stops.
// After a reboot the images that it does not have are from the last seconds before a power loss. Their blobs are compared with their digests and
// their layers are unpacked again. One whose blobs are damaged is removed, so that it is imported or pulled again.

const (
	// recordPeriod is how often new images are recorded.
	recordPeriod = time.Minute
	// recordTimeout is how long recording may take when containerd is about to be stopped.
	recordTimeout = 5 * time.Second
)

// syncedImages are the images that are on disk.
type syncedImages struct {
	// Boot is the boot in which they were recorded.
	Boot string `json:"boot"`
	// Images are the digests of their manifests or indexes, sorted.
	Images []string `json:"images"`
}

// readSyncedImages reads the record; nil: there is none. One that is damaged or cannot be read has no images, so that all are checked: the disk that it is
// for may have lost the record too.
func readSyncedImages(path string) (record *syncedImages, damage error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	record = &syncedImages{}
	if err == nil {
		err = json.Unmarshal(text, record)
	}
	if err != nil {
		return &syncedImages{}, err
	}
	slices.Sort(record.Images)
	return record, nil
}

// imageRecorder keeps the record of the images that are on disk.
type imageRecorder struct {
	importer Importer
	// dir is containerd's root directory, file the record.
	dir, file string
	boot      string
	log       *slog.Logger

	recorded *syncedImages
}

// recheck checks the images that are not recorded if the host has been rebooted since, and records all that are present. A host without a record has
// images of an earlier version of skiff, or none. A record that cannot be written, because the disk is full, does not keep the node from starting.
func (r *imageRecorder) recheck(ctx context.Context) error {
	if r.recorded == nil { // else this is repeated
		var damage error
		if r.recorded, damage = readSyncedImages(r.file); damage != nil {
			r.log.Warn("failed to read which images are on disk, checking all", "error", damage)
		}
	}
	if r.recorded != nil && r.recorded.Boot != r.boot {
		if err := r.repairNew(ctx); err != nil {
			return fmt.Errorf("check images after a reboot: %w", err)
		}
	}
	err := r.record(ctx)
	if isInterrupted(err) {
		return err
	}
	if err != nil {
		r.log.Warn("failed to record the images on disk", "error", err)
	}
	return nil
}

// run records new images until ctx is done, and then once more.
func (r *imageRecorder) run(ctx context.Context) {
	ticker := time.NewTicker(recordPeriod)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			if err := r.record(ctx); err != nil && ctx.Err() == nil {
				r.log.Warn("failed to record the images on disk", "error", err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := r.record(ctx); err != nil {
		r.log.Debug("failed to record the images on disk", "error", err) // containerd has exited
	}
}

// record syncs the file system and records the images, if there are others than recorded.
func (r *imageRecorder) record(ctx context.Context) error {
	present, err := r.importer.targets(ctx)
	if err != nil {
		return err
	}
	record := &syncedImages{Boot: r.boot, Images: slices.Sorted(maps.Keys(present))}
	if r.recorded != nil && r.recorded.Boot == record.Boot && slices.Equal(r.recorded.Images, record.Images) {
		return nil
	}
	if err := syncFileSystem(r.dir); err != nil {
		return fmt.Errorf("sync %s: %w", r.dir, err)
	}
	text, err := json.Marshal(record)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(r.file, text, 0o600); err != nil {
		return err
	}
	r.recorded = record
	return nil
}

// syncFileSystem writes everything on the file system of a directory to disk.
func syncFileSystem(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Syncfs(fd)
}

// unpackedImage is an image with the snapshots of its layers, the lowest first.
type unpackedImage struct {
	target descriptor
	names  []string
	chain  []string
}

// repairNew repairs the images that are not recorded. Layers that a recorded image has too are on disk. One image that cannot be repaired does not keep
// others from it; what was repaired is not repaired again when this is repeated after an error.
func (r *imageRecorder) repairNew(ctx context.Context) error {
	present, err := r.importer.targets(ctx)
	if err != nil {
		return err
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
	sound, err := r.inUse(ctx)
	if err != nil {
		return err
	}
	var added []unpackedImage
	for _, digest := range slices.Sorted(maps.Keys(present)) {
		image := present[digest]
		chain, err := r.importer.chain(ctx, image.target)
		if isInterrupted(err) {
			return err
		}
		if _, recorded := slices.BinarySearch(r.recorded.Images, digest); !recorded {
			image.chain = chain
			added = append(added, image)
			continue
		}
		for _, id := range chain {
			sound[id] = true
		}
	}
	var failures []error
	for _, image := range added {
		err := r.repair(ctx, image, sound)
		if isInterrupted(err) {
			return err
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("image %s: %w", strings.Join(image.names, ", "), err))
			continue
		}
		// Its layers are gone or unpacked again. Another image may have them too.
		for _, id := range image.chain {
			sound[id] = true
		}
		at, _ := slices.BinarySearch(r.recorded.Images, image.target.Digest)
		r.recorded.Images = slices.Insert(r.recorded.Images, at, image.target.Digest)
	}
	return errors.Join(failures...)
}

// inUse returns the snapshots that something is on if a container runs: then the host has not been rebooted since the images were last checked, because
// containers start after that. The record does not say so if it is damaged, or could not be written because the disk was full.
func (r *imageRecorder) inUse(ctx context.Context) (map[string]bool, error) {
	used := map[string]bool{}
	runs, err := r.isAnyRunning(ctx)
	if err != nil || !runs {
		return used, err
	}
	r.log.Info("containers run, their images are kept as they are")
	all, err := r.importer.snapshots(ctx)
	if err != nil {
		return nil, err
	}
	for _, info := range all {
		if info.Kind == snapshots.Kind_COMMITTED {
			continue
		}
		for parent := info.Parent; parent != "" && !used[parent]; {
			used[parent] = true
			next := all[parent]
			if next == nil {
				break
			}
			parent = next.Parent
		}
	}
	return used, nil
}

// isAnyRunning reports whether a container or sandbox runs.
func (r *imageRecorder) isAnyRunning(ctx context.Context) (bool, error) {
	runtime := cri.New(cri.NewClient(r.importer.connection))
	sandboxes, err := runtime.ListPodSandboxes(ctx, "")
	if err != nil {
		return false, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := runtime.ListContainers(ctx, "")
	if err != nil {
		return false, fmt.Errorf("list containers: %w", err)
	}
	return slices.ContainsFunc(sandboxes, func(s *cri.Sandbox) bool { return s.Ready }) ||
		slices.ContainsFunc(containers, func(c *cri.Container) bool { return c.State == cri.Running }), nil
}

// repair removes the layers of an image, except those that are sound, and unpacks it again, or removes it if its blobs are damaged. One that cannot be
// unpacked now, because the disk is full or because it is no image of a container, must not keep the node from starting: the CRI unpacks images when
// containers use them.
func (r *imageRecorder) repair(ctx context.Context, image unpackedImage, sound map[string]bool) error {
	if err := r.removeSnapshots(ctx, image, sound); err != nil {
		return err
	}
	err := r.importer.verify(ctx, image.target)
	if isInterrupted(err) {
		return err
	}
	if err != nil {
		r.log.Warn("removing an image that was damaged by a power loss", "images", image.names, "error", err)
		return r.importer.remove(ctx, image.names)
	}
	r.log.Info("unpacking an image again that may have been damaged by a power loss", "images", image.names)
	err = r.importer.unpackWithLease(ctx, image.target)
	if isInterrupted(err) {
		return err
	}
	if err != nil {
		r.log.Warn("failed to unpack an image", "images", image.names, "error", err)
	}
	return nil
}

// removeSnapshots removes the layers of an image, except those that are sound, with everything that is on them: layers of other images, containers, image
// volumes, and what a pull was unpacking. None of them is a container that runs.
func (r *imageRecorder) removeSnapshots(ctx context.Context, image unpackedImage, sound map[string]bool) error {
	damaged := slices.DeleteFunc(slices.Clone(image.chain), func(id string) bool { return sound[id] })
	if len(damaged) == 0 {
		return nil
	}
	on, err := r.importer.snapshotsOn(ctx, damaged)
	if err != nil {
		return err
	}
	client := snapshots.NewSnapshotsClient(r.importer.connection)
	for _, s := range on {
		if s.Kind == snapshots.Kind_ACTIVE {
			if err := r.removeContainer(ctx, s.Name); err != nil {
				return err
			}
		}
		_, err := client.Remove(ctx, &snapshots.RemoveSnapshotRequest{Snapshotter: snapshotter, Key: s.Name})
		if err != nil && status.Code(err) != codes.NotFound {
			return fmt.Errorf("remove snapshot %s: %w", s.Name, err)
		}
	}
	return nil
}

// removeContainer removes the container or sandbox whose snapshot has a name, which is its ID. The CRI ignores other names. One that cannot be removed
// now is left to the kubelet: it does not need its snapshot any more.
func (r *imageRecorder) removeContainer(ctx context.Context, id string) error {
	runtime := cri.New(cri.NewClient(r.importer.connection))
	for _, remove := range []func(context.Context, string) error{runtime.RemoveContainer, runtime.RemovePodSandbox} {
		err := remove(ctx, id)
		if isInterrupted(err) {
			return err
		}
		if err != nil && !cri.NotFound(err) {
			r.log.Warn("failed to remove a container whose image may be damaged", "container", id, "error", err)
		}
	}
	return nil
}

// isInterrupted reports whether an error says nothing about an image: containerd has exited, or skiff stops.
func isInterrupted(err error) bool {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		return true
	}
	return errors.Is(err, context.Canceled)
}

// targets returns the images of containerd by the digest of their manifest or index.
func (i Importer) targets(ctx context.Context) (map[string]unpackedImage, error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
	list, err := images.NewImagesClient(i.connection).List(ctx, &images.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	all := map[string]unpackedImage{}
	for _, image := range list.Images {
		t := all[image.Target.GetDigest()]
		t.target = descriptor{MediaType: image.Target.GetMediaType(), Digest: image.Target.GetDigest(), Size: image.Target.GetSize()}
		t.names = append(t.names, image.Name)
		all[t.target.Digest] = t
	}
	return all, nil
}

// chain returns the names of the snapshots of an image's layers, the lowest first; none if it is not for this platform.
func (i Importer) chain(ctx context.Context, target descriptor) ([]string, error) {
	manifest, err := i.manifest(ctx, target)
	if err != nil || manifest == nil {
		return nil, err
	}
	ids, err := i.diffIDs(ctx, manifest)
	if err != nil {
		return nil, err
	}
	chain := make([]string, 0, len(ids))
	parent := ""
	for _, id := range ids {
		parent = chainID(parent, id)
		chain = append(chain, parent)
	}
	return chain, nil
}

// verify reads all blobs of an image for this platform and compares them with their digests.
func (i Importer) verify(ctx context.Context, target descriptor) error {
	manifest, err := i.manifest(ctx, target) // it compares what it reads
	if err != nil || manifest == nil {
		return err
	}
	for _, blob := range append([]descriptor{manifest.Config}, manifest.Layers...) {
		if err := i.verifyBlob(ctx, blob.Digest); err != nil {
			return err
		}
	}
	return nil
}

// verifyBlob compares a blob with its digest.
func (i Importer) verifyBlob(ctx context.Context, digest string) error {
	return i.readBlob(ctx, digest, func([]byte) error { return nil })
}

// remove removes an image under all its names, and what only it refers to: the next import or pull must not find damaged blobs and snapshots. It
// returns when the CRI does not list the image any more, which it learns about by events.
func (i Importer) remove(ctx context.Context, names []string) error {
	for n, name := range names {
		_, err := images.NewImagesClient(i.connection).Delete(ctx, &images.DeleteImageRequest{Name: name, Sync: n == len(names)-1})
		if err != nil && status.Code(err) != codes.NotFound {
			return fmt.Errorf("remove image %s: %w", name, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, presentTimeout)
	defer cancel()
	runtime := cri.New(cri.NewClient(i.connection))
	for _, name := range names {
		for {
			present, err := runtime.ImageStatus(ctx, cri.ImageSpec{Image: name})
			if err == nil && present == nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("remove image %s: timed out waiting until it is not listed: %w", name, err)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return nil
}

// snapshots returns all snapshots by name.
func (i Importer) snapshots(ctx context.Context) (map[string]*snapshots.Info, error) {
	stream, err := snapshots.NewSnapshotsClient(i.connection).List(ctx, &snapshots.ListSnapshotsRequest{Snapshotter: snapshotter})
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	all := map[string]*snapshots.Info{}
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list snapshots: %w", err)
		}
		for _, info := range response.Info {
			all[info.Name] = info
		}
	}
}

// snapshotsOn returns the snapshots with some names and all that are on them, each before the one it is on.
func (i Importer) snapshotsOn(ctx context.Context, names []string) ([]*snapshots.Info, error) {
	byName, err := i.snapshots(ctx)
	if err != nil {
		return nil, err
	}
	children := map[string][]string{}
	for name, info := range byName {
		children[info.Parent] = append(children[info.Parent], name)
	}
	var ordered []*snapshots.Info
	var add func(name string)
	add = func(name string) {
		info := byName[name]
		if info == nil {
			return // it was added, or does not exist
		}
		delete(byName, name)
		for _, child := range children[name] {
			add(child)
		}
		ordered = append(ordered, info)
	}
	for _, name := range names {
		add(name)
	}
	return ordered, nil
}
