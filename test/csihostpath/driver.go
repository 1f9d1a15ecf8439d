package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// topologyKey is the label of nodes by which volumes are bound to the node that has them.
const topologyKey = "topology.hostpath.csi/node"

// driver implements the three services of CSI. One call is served at a time.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	name, node string
	// dir is the directory of the volumes and snapshots of all drivers of the node. Their IDs are unique.
	dir            string
	maxVolumes     int64
	checkLifecycle bool
	modify         bool
	mutable        []string // parameters that may be modified; none: all

	mu        sync.Mutex
	volumes   map[string]*volume
	snapshots map[string]*snapshot
}

// volume is a directory, or for block volumes a file.
type volume struct {
	id, name  string
	size      int64
	block     bool
	ephemeral bool // exists as long as it is published
	// staged and published are the paths where the volume is.
	staged, published []string
	// device is the loop device of a block volume that is staged. It is kept open: the kernel detaches it after the last close, even if the
	// driver is killed.
	device *os.File
}

// snapshot is a copy of a volume.
type snapshot struct {
	id, name, volume string
	size             int64
	block            bool
	created          int64 // seconds since 1970
}

func newDriver(name, node, dir string) *driver {
	return &driver{name: name, node: node, dir: dir, volumes: map[string]*volume{}, snapshots: map[string]*snapshot{}}
}

// path is where a volume or a snapshot is.
func (d *driver) path(id string) string { return filepath.Join(d.dir, id) }

// serve serves on a socket until ctx is done.
func (d *driver) serve(ctx context.Context, socket string) error {
	if d.node == "" {
		return errors.New("the name of the node is missing")
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier driver: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(d.handle))
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	slog.Info("serving", "driver", d.name, "socket", socket)
	return server.Serve(listener)
}

// handle serves one call and logs it.
func (d *driver) handle(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	response, err := handler(ctx, request)
	switch {
	case err != nil:
		slog.Error("call failed", "method", info.FullMethod, "request", request, "err", err)
	case info.FullMethod != csi.Identity_Probe_FullMethodName:
		slog.Info("call", "method", info.FullMethod, "request", request, "response", response)
	}
	return response, err
}

// GetPluginInfo implements the identity service.
func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "test"}, nil
}

// GetPluginCapabilities implements the identity service.
func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	response := &csi.GetPluginCapabilitiesResponse{}
	for _, service := range []csi.PluginCapability_Service_Type{
		csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
	} {
		response.Capabilities = append(response.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: service}},
		})
	}
	return response, nil
}

// Probe implements the identity service.
func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// volume returns a volume that exists.
func (d *driver) volume(id string) (*volume, error) {
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume ID is missing")
	}
	if vol := d.volumes[id]; vol != nil {
		return vol, nil
	}
	return nil, status.Errorf(codes.NotFound, "there is no volume %s", id)
}

// create creates an empty volume.
func (d *driver) create(vol *volume) error {
	path := d.path(vol.id)
	if vol.block {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Truncate(vol.size); err != nil {
			return err
		}
	} else {
		// The mode of a new directory is restricted by the umask.
		if err := errors.Join(os.MkdirAll(path, 0o777), os.Chmod(path, 0o777)); err != nil {
			return err
		}
	}
	d.volumes[vol.id] = vol
	return nil
}

// remove removes a volume with its data.
func (d *driver) remove(vol *volume) error {
	if err := vol.detach(); err != nil {
		return err
	}
	if err := os.RemoveAll(d.path(vol.id)); err != nil {
		return err
	}
	delete(d.volumes, vol.id)
	return nil
}

// detach detaches the loop device of a volume if it has one.
func (v *volume) detach() error {
	if v.device == nil {
		return nil
	}
	err := v.device.Close()
	v.device = nil
	return err
}

// isBlock tells whether a capability is that of a block volume.
func isBlock(capability *csi.VolumeCapability) (bool, error) {
	switch {
	case capability.GetBlock() != nil:
		return true, nil
	case capability.GetMount() != nil:
		return false, nil
	}
	return false, status.Error(codes.InvalidArgument, "the capability is neither that of a block volume nor that of a file system")
}

// without returns a list without an element.
func without(list []string, element string) []string {
	return slices.DeleteFunc(list, func(e string) bool { return e == element })
}
