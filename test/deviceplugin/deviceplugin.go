// Package deviceplugin plays a device plugin: it speaks the real protocol over real sockets, and its devices are what a test says they are.
package deviceplugin

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Plugin is a device plugin. Fields are set before Start.
type Plugin struct {
	api.UnimplementedDevicePluginServer
	// Resource is what its devices are called.
	Resource string
	Options  api.DevicePluginOptions
	// Give is what it answers to who asks for devices; nil is an empty answer.
	Give func(ids []string) (*api.ContainerAllocateResponse, error)
	// Prefer is what it would give; Ready is called before a container starts.
	Prefer func(r *api.ContainerPreferredAllocationRequest) []string
	Ready  func(ids []string) error

	server *grpc.Server

	mu      sync.Mutex
	devices []*api.Device
	changed chan struct{} // closed and made anew when the devices change
	asked   []string
}

// Start serves at a socket in the kubelet's directory of plugins and registers there.
func (p *Plugin) Start(ctx context.Context, dir, socket string, devices ...*api.Device) error {
	p.Set(devices...)
	listener, err := net.Listen("unix", filepath.Join(dir, socket))
	if err != nil {
		return err
	}
	p.server = grpc.NewServer()
	api.RegisterDevicePluginServer(p.server, p)
	go func() { _ = p.server.Serve(listener) }() // it ends with Stop
	return Register(ctx, dir, &api.RegisterRequest{Version: api.Version, Endpoint: socket, ResourceName: p.Resource, Options: &p.Options})
}

// Register announces a plugin to the kubelet.
func Register(ctx context.Context, dir string, request *api.RegisterRequest) error {
	connection, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = api.NewRegistrationClient(connection).Register(ctx, request, grpc.WaitForReady(true))
	return err
}

// Stop ends it.
func (p *Plugin) Stop() { p.server.Stop() }

// Set changes its devices, and tells whoever watches.
func (p *Plugin) Set(devices ...*api.Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = devices
	if p.changed != nil {
		close(p.changed)
	}
	p.changed = make(chan struct{})
}

// Asked is what it was asked for, in order.
func (p *Plugin) Asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.asked...)
}

func (p *Plugin) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, fmt.Sprintf(format, args...))
}

// GetDevicePluginOptions tells what it can do.
func (p *Plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{
		PreStartRequired: p.Options.PreStartRequired, GetPreferredAllocationAvailable: p.Options.GetPreferredAllocationAvailable,
	}, nil
}

// ListAndWatch tells the devices now and whenever they change.
func (p *Plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	for {
		p.mu.Lock()
		devices, changed := p.devices, p.changed
		p.mu.Unlock()
		if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// GetPreferredAllocation says what it would give.
func (p *Plugin) GetPreferredAllocation(_ context.Context, request *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	answer := &api.PreferredAllocationResponse{}
	for _, r := range request.ContainerRequests {
		p.note("prefer %d of %v with %v", r.AllocationSize, r.AvailableDeviceIDs, r.MustIncludeDeviceIDs)
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerPreferredAllocationResponse{DeviceIDs: p.Prefer(r)})
	}
	return answer, nil
}

// Allocate gives devices.
func (p *Plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, r := range request.ContainerRequests {
		p.note("give %v", r.DevicesIds)
		given := &api.ContainerAllocateResponse{}
		if p.Give != nil {
			var err error
			if given, err = p.Give(r.DevicesIds); err != nil {
				return nil, err
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, given)
	}
	return answer, nil
}

// PreStartContainer readies devices.
func (p *Plugin) PreStartContainer(_ context.Context, request *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	p.note("ready %v", request.DevicesIds)
	if p.Ready != nil {
		if err := p.Ready(request.DevicesIds); err != nil {
			return nil, err
		}
	}
	return &api.PreStartContainerResponse{}, nil
}
