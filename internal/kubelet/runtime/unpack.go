package runtime

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	goruntime "runtime"
	"strings"

	content "github.com/containerd/containerd/api/services/content/v1"
	diff "github.com/containerd/containerd/api/services/diff/v1"
	images "github.com/containerd/containerd/api/services/images/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

const (
	// snapshotter is the one of the CRI.
	snapshotter = "overlayfs"
	// importLabel marks the images that an import has stored, with the import's ID.
	importLabel = "skiff.io/import"
	// snapshotLabel of an image's configuration refers to its unpacked layers, so that they are not garbage-collected.
	snapshotLabel = "containerd.io/gc.ref.snapshot." + snapshotter
)

// descriptor is an OCI descriptor.
type descriptor struct {
	MediaType string
	Digest    string
	Size      int64
	Platform  *struct{ OS, Architecture string }
}

// unpackImported unpacks the images that an import has stored.
func (i Importer) unpackImported(ctx context.Context, id string) error {
	list, err := images.NewImagesClient(i.connection).List(ctx, &images.ListImagesRequest{Filters: []string{fmt.Sprintf("labels.%q==%s", importLabel, id)}})
	if err != nil {
		return fmt.Errorf("list imported images: %w", err)
	}
	for _, image := range list.Images {
		if err := i.unpack(ctx, descriptor{MediaType: image.Target.MediaType, Digest: image.Target.Digest, Size: image.Target.Size}); err != nil {
			return fmt.Errorf("unpack image %s: %w", image.Name, err)
		}
	}
	return nil
}

// unpack unpacks an image's layers. A layer counts as present when its snapshot is committed; its files are on disk before that, so that a power loss
// leaves no snapshot with empty files. (containerd's transfer service commits without that.)
func (i Importer) unpack(ctx context.Context, target descriptor) error {
	manifest, err := i.manifest(ctx, target)
	if err != nil || manifest == nil {
		return err
	}
	diffIDs, err := i.diffIDs(ctx, manifest)
	if err != nil {
		return err
	}
	parent := ""
	for n, layer := range manifest.Layers {
		name := chainID(parent, diffIDs[n])
		if err := i.unpackLayer(ctx, layer, diffIDs[n], snapshot{name: name, parent: parent}); err != nil {
			return fmt.Errorf("layer %s: %w", layer.Digest, err)
		}
		parent = name
	}
	if parent == "" {
		return nil
	}
	_, err = content.NewContentClient(i.connection).Update(ctx, &content.UpdateRequest{
		Info:       &content.Info{Digest: manifest.Config.Digest, Labels: map[string]string{snapshotLabel: parent}},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels." + snapshotLabel}},
	})
	return err
}

// unpackWithLease unpacks an image while a lease protects its layers from garbage collection.
func (i Importer) unpackWithLease(ctx context.Context, target descriptor) error {
	ctx, release, err := i.lease(ctx, "unpack-"+rand.Text())
	if err != nil {
		return fmt.Errorf("create containerd lease: %w", err)
	}
	defer release()
	return i.unpack(ctx, target)
}

// diffIDs are the digests of the uncompressed layers of an image.
func (i Importer) diffIDs(ctx context.Context, manifest *imageManifest) ([]string, error) {
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	if err := i.readDocument(ctx, manifest.Config, &config); err != nil {
		return nil, err
	}
	if len(config.RootFS.DiffIDs) != len(manifest.Layers) {
		return nil, fmt.Errorf("manifest has %d layers, its configuration %d", len(manifest.Layers), len(config.RootFS.DiffIDs))
	}
	return config.RootFS.DiffIDs, nil
}

// imageManifest is an OCI manifest, or docker's, which has the same fields.
type imageManifest struct {
	Config descriptor
	Layers []descriptor
}

// manifest reads the manifest of an image for the host's platform; nil: the image has none.
func (i Importer) manifest(ctx context.Context, target descriptor) (*imageManifest, error) {
	var document struct {
		imageManifest
		Manifests []descriptor
	}
	if err := i.readDocument(ctx, target, &document); err != nil {
		return nil, err
	}
	if document.Config.Digest != "" {
		return &document.imageManifest, nil
	}
	for _, m := range document.Manifests {
		if p := m.Platform; p != nil && p.OS == "linux" && p.Architecture == goruntime.GOARCH {
			var manifest imageManifest
			return &manifest, i.readDocument(ctx, m, &manifest)
		}
	}
	return nil, nil
}

// readDocument reads a manifest, index or configuration from containerd.
func (i Importer) readDocument(ctx context.Context, d descriptor, document any) error {
	var data []byte
	err := i.readBlob(ctx, d.Digest, func(part []byte) error {
		if data = append(data, part...); len(data) > documentMax {
			return fmt.Errorf("read %s: it has more than %d bytes", d.Digest, documentMax)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, document); err != nil {
		return fmt.Errorf("read %s: %w", d.Digest, err)
	}
	return nil
}

// readBlob reads a blob from containerd in parts, and compares it with its digest.
func (i Importer) readBlob(ctx context.Context, digest string, add func(part []byte) error) error {
	algorithm, _, _ := strings.Cut(digest, ":")
	var sum hash.Hash
	switch algorithm {
	case "sha256":
		sum = sha256.New()
	case "sha512":
		sum = sha512.New()
	default:
		return fmt.Errorf("blob %s: unknown digest algorithm", digest)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := content.NewContentClient(i.connection).Read(ctx, &content.ReadContentRequest{Digest: digest})
	if err != nil {
		return fmt.Errorf("read %s: %w", digest, err)
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", digest, err)
		}
		sum.Write(part.Data)
		if err := add(part.Data); err != nil {
			return err
		}
	}
	if got := fmt.Sprintf("%s:%x", algorithm, sum.Sum(nil)); got != digest {
		return fmt.Errorf("blob %s has the digest %s", digest, got)
	}
	return nil
}

// snapshot is the snapshot of a layer on top of its parent's.
type snapshot struct {
	name, parent string
}

// unpackLayer makes the snapshot of a layer unless it exists.
func (i Importer) unpackLayer(ctx context.Context, layer descriptor, diffID string, s snapshot) (err error) {
	client := snapshots.NewSnapshotsClient(i.connection)
	if _, err := client.Stat(ctx, &snapshots.StatSnapshotRequest{Snapshotter: snapshotter, Key: s.name}); status.Code(err) != codes.NotFound {
		return err
	}
	key := "unpack-" + rand.Text()
	prepared, err := client.Prepare(ctx, &snapshots.PrepareSnapshotRequest{Snapshotter: snapshotter, Key: key, Parent: s.parent})
	if err != nil {
		return fmt.Errorf("prepare snapshot: %w", err)
	}
	committed := false
	defer func() {
		if !committed {
			_, _ = client.Remove(context.WithoutCancel(ctx), &snapshots.RemoveSnapshotRequest{Snapshotter: snapshotter, Key: key}) // else the lease ends it
		}
	}()
	applied, err := diff.NewDiffClient(i.connection).Apply(ctx, &diff.ApplyRequest{
		Diff: &types.Descriptor{MediaType: layer.MediaType, Digest: layer.Digest, Size: layer.Size}, Mounts: prepared.Mounts, SyncFs: true,
	})
	if err != nil {
		return fmt.Errorf("extract: %w", err)
	}
	if applied.Applied.Digest != diffID {
		return fmt.Errorf("its content is %s, want %s", applied.Applied.Digest, diffID)
	}
	_, err = client.Commit(ctx, &snapshots.CommitSnapshotRequest{Snapshotter: snapshotter, Name: s.name, Key: key})
	if status.Code(err) == codes.AlreadyExists {
		return nil // the CRI has unpacked it meanwhile, for a container
	}
	committed = err == nil
	return err
}

// chainID is the name of the snapshot of a layer, made from that of its parent and the digest of its uncompressed content.
func chainID(parent, diffID string) string {
	if parent == "" {
		return diffID
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(parent+" "+diffID)))
}
