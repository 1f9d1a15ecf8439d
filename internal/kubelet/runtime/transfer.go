package runtime

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	goruntime "runtime"
	"strings"
	"time"

	leases "github.com/containerd/containerd/api/services/leases/v1"
	streaming "github.com/containerd/containerd/api/services/streaming/v1"
	transfer "github.com/containerd/containerd/api/services/transfer/v1"
	"github.com/containerd/containerd/api/types"
	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"skiff/internal/kubelet/cri"
)

const (
	// namespace is the containerd namespace of the CRI.
	namespace = "k8s.io"
	// pinnedLabel marks images that are not garbage-collected.
	pinnedLabel, pinnedValue = "io.cri-containerd.pinned", "pinned"
	// chunk is the size of a message; containerd's window is twice that.
	chunk = 32 << 10
	// presentTimeout is how long it may take until the CRI lists an imported image.
	presentTimeout = 10 * time.Second
)

// Importer imports image archives into containerd: its transfer service reads the archive from a stream and stores new content, which is then
// unpacked for the host's platform (unpack.go).
type Importer struct {
	connection *grpc.ClientConn
}

// NewImporter makes an importer for the containerd at an endpoint. Close ends its connection.
func NewImporter(endpoint string) (Importer, error) {
	connection, err := dial(endpoint)
	return Importer{connection: connection}, err
}

// Close closes the connection.
func (i Importer) Close() error { return i.connection.Close() }

// Import imports an archive (docker save or OCI layout; plain or compressed) and stores its images under the names in it.
func (i Importer) Import(ctx context.Context, archive string) error {
	return i.transfer(ctx, archive, nil)
}

// List returns the images the runtime has.
func (i Importer) List(ctx context.Context) ([]*cri.Image, error) {
	return cri.New(cri.NewClient(i.connection)).ListImages(ctx)
}

// ensure imports an archive unless all its images are present. With keep they are pinned, because no registry may have them.
func (i Importer) ensure(ctx context.Context, archive string, keep bool) error {
	if i.present(ctx, archive) {
		return nil
	}
	var labels map[string]string
	if keep {
		labels = map[string]string{pinnedLabel: pinnedValue}
	}
	return i.transfer(ctx, archive, labels)
}

// present reports whether the runtime has every image of an archive. It returns false if that cannot be determined.
func (i Importer) present(ctx context.Context, archive string) bool {
	images, err := readArchive(archive)
	return err == nil && len(images) > 0 && i.have(ctx, images)
}

// have reports whether the runtime has all of these images.
func (i Importer) have(ctx context.Context, images []archived) bool {
	runtime := cri.New(cri.NewClient(i.connection))
	for _, image := range images {
		present, err := runtime.ImageStatus(ctx, cri.ImageSpec{Image: image.name})
		if err != nil || present == nil || present.ID != image.id {
			return false
		}
	}
	return true
}

// transfer sends an archive to containerd and waits until its images are stored and unpacked.
func (i Importer) transfer(ctx context.Context, archive string, labels map[string]string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	ctx, cancel := context.WithCancelCause(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace))
	defer cancel(nil)
	id := "import-" + rand.Text()
	ctx, release, err := i.lease(ctx, id)
	if err != nil {
		return fmt.Errorf("create containerd lease: %w", err)
	}
	defer release()
	stream, err := openStream(ctx, i.connection, id)
	if err != nil {
		return fmt.Errorf("open stream to containerd: %w", err)
	}
	go func() {
		if err := send(stream, f); err != nil {
			cancel(fmt.Errorf("send %s: %w", archive, err))
		}
	}()
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[importLabel] = id
	request, err := importRequest(id, labels)
	if err != nil {
		return err
	}
	if _, err := transfer.NewTransferClient(i.connection).Transfer(ctx, request); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return fmt.Errorf("import %s: %w", archive, err)
	}
	if err := i.unpackImported(ctx, id); err != nil {
		return fmt.Errorf("import %s: %w", archive, err)
	}
	return i.waitPresent(ctx, archive)
}

// leaseTime is when the containerd lease of an import expires if it is not released.
const leaseTime = 24 * time.Hour

// lease creates a containerd lease, which protects the stream and content of requests with the context from garbage collection until an
// image refers to it.
func (i Importer) lease(ctx context.Context, id string) (context.Context, func(), error) {
	client := leases.NewLeasesClient(i.connection)
	_, err := client.Create(ctx, &leases.CreateRequest{ID: id, Labels: map[string]string{"containerd.io/gc.expire": time.Now().Add(leaseTime).Format(time.RFC3339)}})
	if err != nil {
		return nil, nil, err
	}
	release := func() {
		_, _ = client.Delete(context.WithoutCancel(ctx), &leases.DeleteRequest{ID: id}) // it expires after leaseTime
	}
	return metadata.AppendToOutgoingContext(ctx, "containerd-lease", id), release, nil
}

// waitPresent waits until the CRI lists the images that containerd has stored, which it learns about by an event.
func (i Importer) waitPresent(ctx context.Context, archive string) error {
	images, err := readArchive(archive)
	if err != nil {
		return nil // containerd could read it, but its images cannot be listed
	}
	if len(images) == 0 {
		return fmt.Errorf("import %s: archive has no named images", archive)
	}
	ctx, cancel := context.WithTimeout(ctx, presentTimeout)
	defer cancel()
	for !i.have(ctx, images) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("import %s: timed out waiting for images to be listed", archive)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// importRequest is the request to import images from a stream.
func importRequest(stream string, labels map[string]string) (*transfer.TransferRequest, error) {
	platform := &types.Platform{OS: "linux", Architecture: goruntime.GOARCH}
	source, err := pack(&transfertypes.ImageImportStream{Stream: stream})
	if err != nil {
		return nil, err
	}
	destination, err := pack(&transfertypes.ImageStore{
		Labels: labels, Platforms: []*types.Platform{platform},
		// The prefix for names without a repository.
		ExtraReferences: []*transfertypes.ImageReference{{Name: importRepository, IsPrefix: true, AllowOverwrite: true}},
	})
	return &transfer.TransferRequest{Source: source, Destination: destination, Options: &transfer.TransferOptions{}}, err
}

// openStream opens a stream with an ID.
func openStream(ctx context.Context, connection *grpc.ClientConn, id string) (streaming.Streaming_StreamClient, error) {
	stream, err := streaming.NewStreamingClient(connection).Stream(ctx)
	if err != nil {
		return nil, err
	}
	init, err := pack(&streaming.StreamInit{ID: id})
	if err != nil {
		return nil, err
	}
	if err := stream.Send(init); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	// The response confirms that the stream is registered.
	_, err = stream.Recv()
	return stream, err
}

// send sends all of r within the window of containerd.
func send(stream streaming.Streaming_StreamClient, r io.Reader) error {
	buffer := make([]byte, chunk)
	window := 0
	for {
		for window <= 0 {
			message, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil // containerd has read enough
			}
			if err != nil {
				return err
			}
			var update transfertypes.WindowUpdate
			if err := message.UnmarshalTo(&update); err != nil {
				return err
			}
			window += int(update.Update)
		}
		n, err := r.Read(buffer[:min(len(buffer), window)])
		if n > 0 {
			data, err := pack(&transfertypes.Data{Data: buffer[:n]})
			if err != nil {
				return err
			}
			if err := stream.Send(data); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			window -= n
		}
		if errors.Is(err, io.EOF) {
			return stream.CloseSend()
		}
		if err != nil {
			return err
		}
	}
}

// pack wraps a message with its plain type name, as containerd expects it, without protobuf's host prefix.
func pack(message proto.Message) (*anypb.Any, error) {
	packed, err := anypb.New(message)
	if err != nil {
		return nil, err
	}
	packed.TypeUrl = packed.TypeUrl[strings.LastIndexByte(packed.TypeUrl, '/')+1:]
	return packed, nil
}
