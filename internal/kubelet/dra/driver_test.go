package dra

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthpbv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"skiff/internal/kubelet/pluginregistry"
)

// fakeDriver is a DRA driver with the real protocol on a real socket.
type fakeDriver struct {
	drapb.UnimplementedDRAPluginServer
	healthpb.UnimplementedDRAResourceHealthServer
	name, endpoint string
	services       []string
	server         *grpc.Server

	mu    sync.Mutex
	calls []string
	// prepare and unprepare change the responses; they may be nil.
	prepare   func(*drapb.NodePrepareResourcesResponse) error
	unprepare func(*drapb.NodeUnprepareResourcesResponse) error
	// devices are those of every claim.
	devices []*drapb.Device
	// health are the reports that the driver sends.
	health chan *healthpb.NodeWatchResourcesResponse
}

// startDriver starts a driver with one device that offers services.
func startDriver(t *testing.T, name string, services ...string) *fakeDriver {
	t.Helper()
	d := &fakeDriver{name: name, endpoint: filepath.Join(t.TempDir(), "d.sock"), services: services, health: make(chan *healthpb.NodeWatchResourcesResponse, 10),
		devices: []*drapb.Device{{PoolName: "pool", DeviceName: "dev0", RequestNames: []string{"gpu"}, CdiDeviceIds: []string{name + "/gpu=0"}}}}
	d.start(t)
	return d
}

func (d *fakeDriver) start(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("unix", d.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	d.server = grpc.NewServer()
	drapb.RegisterDRAPluginServer(d.server, d)
	drapbv1beta1.RegisterDRAPluginServer(d.server, drapbv1beta1.V1ServerWrapper{DRAPluginServer: d})
	healthpb.RegisterDRAResourceHealthServer(d.server, d)
	healthpbv1alpha1.RegisterDRAResourceHealthServer(d.server, healthpb.V1ServerWrapper{Server: d})
	server := d.server
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

func (d *fakeDriver) plugin() pluginregistry.Plugin {
	return pluginregistry.Plugin{Name: d.name, Endpoint: d.endpoint, Versions: d.services}
}

func (d *fakeDriver) called(what string, claims []*drapb.Claim) {
	var names []string
	for _, c := range claims {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	d.calls = append(d.calls, what+" "+strings.Join(names, ","))
}

// respond changes the responses of later calls.
func (d *fakeDriver) respond(prepare func(*drapb.NodePrepareResourcesResponse) error, unprepare func(*drapb.NodeUnprepareResourcesResponse) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.prepare, d.unprepare = prepare, unprepare
}

// takeCalls returns the calls since the last time.
func (d *fakeDriver) takeCalls() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := fmt.Sprint(d.calls)
	d.calls = nil
	return calls
}

func (d *fakeDriver) NodePrepareResources(_ context.Context, r *drapb.NodePrepareResourcesRequest) (*drapb.NodePrepareResourcesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.called("prepare", r.Claims)
	response := &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{}}
	for _, c := range r.Claims {
		response.Claims[c.Uid] = &drapb.NodePrepareResourceResponse{Devices: d.devices}
	}
	if d.prepare != nil {
		return response, d.prepare(response)
	}
	return response, nil
}

func (d *fakeDriver) NodeUnprepareResources(_ context.Context, r *drapb.NodeUnprepareResourcesRequest) (*drapb.NodeUnprepareResourcesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.called("unprepare", r.Claims)
	response := &drapb.NodeUnprepareResourcesResponse{Claims: map[string]*drapb.NodeUnprepareResourceResponse{}}
	for _, c := range r.Claims {
		response.Claims[c.Uid] = &drapb.NodeUnprepareResourceResponse{}
	}
	if d.unprepare != nil {
		return response, d.unprepare(response)
	}
	return response, nil
}

func (d *fakeDriver) NodeWatchResources(_ *healthpb.NodeWatchResourcesRequest, stream healthpb.DRAResourceHealth_NodeWatchResourcesServer) error {
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case report := <-d.health:
			if err := stream.Send(report); err != nil {
				return err
			}
		}
	}
}
