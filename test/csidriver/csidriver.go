// Package csidriver is a CSI driver for tests, with what its sidecars do. Its volumes are tmpfs file systems of the requested size.
//
// The driver serves the node service to the kubelet and registers as drivers do (node.go). Instead of upstream's provisioner, attacher and resizer a
// loop does what they do through the API (sidecars.go).
package csidriver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Driver is a driver on one node. Fields are set before Start.
type Driver struct {
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer

	Name, NodeName string
	// Root is the kubelet's directory.
	Root string
	// Config is for the API server.
	Config *rest.Config

	servers []*grpc.Server
	client  kubernetes.Interface
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	calls []string
	err   error
}

// Start serves and registers the driver, and starts its sidecars.
func (d *Driver) Start(ctx context.Context) error {
	var err error
	if d.client, err = kubernetes.NewForConfig(d.Config); err != nil {
		return err
	}
	if err := os.MkdirAll(d.volumesDir(), 0o750); err != nil {
		return err
	}
	for _, socket := range []string{d.socket(), filepath.Join(d.Root, "plugins_registry", d.Name+"-reg.sock")} {
		listener, err := net.Listen("unix", socket)
		if err != nil {
			return err
		}
		server := grpc.NewServer()
		csi.RegisterNodeServer(server, d)
		registration.RegisterRegistrationServer(server, d)
		d.servers = append(d.servers, server)
		go func() { _ = server.Serve(listener) }() // ends with Stop
	}
	ctx, d.cancel = context.WithCancel(ctx)
	d.running.Go(func() { d.runSidecars(ctx) })
	return nil
}

// Stop stops the driver and removes its volumes. It returns the first error of its sidecars.
func (d *Driver) Stop() error {
	if d.cancel != nil {
		d.cancel()
		d.running.Wait()
	}
	for _, server := range d.servers {
		server.Stop()
	}
	var errs []error
	for _, id := range d.Volumes() {
		errs = append(errs, d.deleteVolume(id))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Join(append(errs, d.err)...)
}

func (d *Driver) socket() string     { return filepath.Join(d.Root, "plugins", d.Name, "csi.sock") }
func (d *Driver) volumesDir() string { return filepath.Join(d.Root, "plugins", d.Name, "volumes") }

// volumeDir is the directory of a volume.
func (d *Driver) volumeDir(id string) string { return filepath.Join(d.volumesDir(), id) }

// Volumes returns the IDs of the volumes that exist.
func (d *Driver) Volumes() []string {
	entries, err := os.ReadDir(d.volumesDir())
	if err != nil {
		return nil
	}
	var ids []string
	for _, entry := range entries {
		ids = append(ids, entry.Name())
	}
	return ids
}

// Calls returns the calls of the driver since the last call of Calls.
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := d.calls
	d.calls = nil
	return calls
}

func (d *Driver) called(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, fmt.Sprintf(format, args...))
}
