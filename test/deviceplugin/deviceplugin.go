// Package deviceplugin is a fake device plugin that uses the real protocol over real sockets, with devices that the test
// defines.
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
	// Resource is the resource name of its devices.
	Resource string
	Options  api.DevicePluginOptions
	// Give returns the response to Allocate; nil is an empty response.
	Give func(ids []string) (*api.ContainerAllocateResponse, error)
	// Prefer returns the preferred devices; Ready is called by PreStartContainer.
	Prefer func(r *api.ContainerPreferredAllocationRequest) []string
	Ready  func(ids []string) error

	server *grpc.Server

	mu      sync.Mutex
	devices []*api.Device
	changed chan struct{} // closed and replaced when the devices change
	asked   []string
}

// Start serves at a socket in the kubelet's device plugin directory and registers there.
func (p *Plugin) Start(ctx context.Context, dir, socket string, devices ...*api.Device) error {
	p.Set(devices...)
	listener, err := net.Listen("unix", filepath.Join(dir, socket))
	if err != nil {
		return err
	}
	p.server = grpc.NewServer()
	api.RegisterDevicePluginServer(p.server, p)
	go func() { _ = p.server.Serve(listener) }() // ends with Stop
	return Register(ctx, dir, &api.RegisterRequest{Version: api.Version, Endpoint: socket, ResourceName: p.Resource, Options: &p.Options})
}

// Register registers a plugin with the kubelet.
func Register(ctx context.Context, dir string, request *api.RegisterRequest) error {
	connection, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = api.NewRegistrationClient(connection).Register(ctx, request, grpc.WaitForReady(true))
	return err
}

// Stop stops the server.
func (p *Plugin) Stop() { p.server.Stop() }

// Set replaces its devices and notifies the watchers.
func (p *Plugin) Set(devices ...*api.Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = devices
	if p.changed != nil {
		close(p.changed)
	}
	p.changed = make(chan struct{})
}

// Asked returns the received calls in order.
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

// GetDevicePluginOptions returns which optional calls it supports.
func (p *Plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{
		PreStartRequired: p.Options.PreStartRequired, GetPreferredAllocationAvailable: p.Options.GetPreferredAllocationAvailable,
	}, nil
}

// ListAndWatch sends the devices now and whenever they change.
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

// GetPreferredAllocation returns the preferred devices.
func (p *Plugin) GetPreferredAllocation(_ context.Context, request *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	answer := &api.PreferredAllocationResponse{}
	for _, r := range request.ContainerRequests {
		p.note("prefer %d of %v with %v", r.AllocationSize, r.AvailableDeviceIDs, r.MustIncludeDeviceIDs)
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerPreferredAllocationResponse{DeviceIDs: p.Prefer(r)})
	}
	return answer, nil
}

// Allocate allocates devices.
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

// PreStartContainer prepares devices.
func (p *Plugin) PreStartContainer(_ context.Context, request *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	p.note("ready %v", request.DevicesIds)
	if p.Ready != nil {
		if err := p.Ready(request.DevicesIds); err != nil {
			return nil, err
		}
	}
	return &api.PreStartContainerResponse{}, nil
}
