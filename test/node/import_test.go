package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	leases "github.com/containerd/containerd/api/services/leases/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"skiff/internal/kubelet/runtime"
	"skiff/test/cluster"
)

// TestFirstImport imports an archive into an empty containerd during continuous garbage collection. Content in a
// namespace without references is garbage unless a lease holds it.
func TestFirstImport(t *testing.T) {
	archive := dockerArchive(t)
	for i := range 5 {
		endpoint := bareContainerd(t)
		connection, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		stop := collect(t, connection)
		importer, err := runtime.NewImporter(endpoint)
		if err != nil {
			t.Fatal(err)
		}
		if err := importer.Import(t.Context(), archive); err != nil {
			t.Errorf("import %d: %v", i, err)
		}
		stop()
		left, err := leases.NewLeasesClient(connection).List(inNamespace(t.Context(), "k8s.io"), &leases.ListRequest{})
		if err != nil || len(left.GetLeases()) != 0 {
			t.Errorf("leases are left behind: %v, %v", left, err)
		}
		_, _ = importer.Close(), connection.Close() // they have served
	}
}

func inNamespace(ctx context.Context, name string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", name)
}

// bareContainerd runs a containerd without skiff's configuration until the test ends.
func bareContainerd(t *testing.T) (endpoint string) {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := shortDir(t)
	config := fmt.Sprintf("version = 3\nroot = %q\nstate = %q\n[grpc]\naddress = %q\n", dir+"/root", dir+"/state", dir+"/socket")
	if err := os.WriteFile(dir+"/config.toml", []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(root, "bin/containerd"), "--config", dir+"/config.toml")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	eventually(t, "containerd runs", func() bool {
		_, err := os.Stat(dir + "/socket")
		return err == nil
	})
	return "unix://" + dir + "/socket"
}

// collect runs containerd's garbage collector continuously, from another namespace. It returns once the first run has
// started.
func collect(t *testing.T, connection *grpc.ClientConn) (stop func()) {
	client := leases.NewLeasesClient(connection)
	ctx, cancel := context.WithCancel(inNamespace(t.Context(), "elsewhere"))
	var collecting sync.WaitGroup
	began := make(chan struct{})
	begin := sync.OnceFunc(func() { close(began) })
	collecting.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			// Deleting a lease synchronously waits for a garbage collection.
			id := fmt.Sprintf("passing-%d", i)
			_, err := client.Create(ctx, &leases.CreateRequest{ID: id}, grpc.WaitForReady(true))
			if err == nil {
				_, err = client.Delete(ctx, &leases.DeleteRequest{ID: id, Sync: true})
			}
			begin()
			if err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	<-began
	return func() {
		cancel()
		collecting.Wait()
	}
}
