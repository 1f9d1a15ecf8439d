// Package podresources tells programs on this node, such as those that watch graphics cards, which container has which device. They ask over a
// socket in a directory of the kubelet, by version 1 of the pod resources API.
package podresources

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"skiff/internal/container"
	"skiff/internal/kubelet/devices"
)

// How often may be asked; upstream's limits.
const (
	requestsPerSecond = 100
	burst             = 10
)

// maxSocketPath is the longest path of a socket the kernel takes.
const maxSocketPath = 107

// Devices are those of the node.
type Devices interface {
	// Free takes back the devices of pods that are gone.
	FreeRemovedPods()
	Allocated(uid types.UID, container string) []devices.Device
	Allocatable() []devices.Device
}

// Server answers.
type Server struct {
	api.UnimplementedPodResourcesListerServer
	// Directory is where the socket is.
	Dir     string
	Devices Devices
	// Pods are those that run; Pod is any one by name.
	Pods func() []*corev1.Pod
	Pod  func(namespace, name string) (*corev1.Pod, bool)
	Log  *slog.Logger
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	if err := os.MkdirAll(s.Dir, 0o750); err != nil {
		return fmt.Errorf("make the directory of the pod resources API: %w", err)
	}
	socket := filepath.Join(s.Dir, "kubelet.sock")
	if len(socket) > maxSocketPath {
		s.Log.Warn("the pod resources API is not served: the path of its socket is too long", "path", socket)
		return nil
	}
	if err := os.RemoveAll(socket); err != nil {
		return fmt.Errorf("remove the socket of a run before: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen for those who ask about devices: %w", err)
	}
	limit := rate.NewLimiter(requestsPerSecond, burst)
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, answer grpc.UnaryHandler) (any, error) {
		if !limit.Allow() {
			return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
		}
		return answer(ctx, request)
	}))
	api.RegisterPodResourcesListerServer(server, s)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	return server.Serve(listener)
}

// List tells what all pods that run have.
func (s *Server) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	s.Devices.FreeRemovedPods()
	answer := &api.ListPodResourcesResponse{}
	for _, pod := range s.Pods() {
		answer.PodResources = append(answer.PodResources, s.resources(pod))
	}
	return answer, nil
}

// Get tells what one pod has.
func (s *Server) Get(_ context.Context, request *api.GetPodResourcesRequest) (*api.GetPodResourcesResponse, error) {
	pod, found := s.Pod(request.PodNamespace, request.PodName)
	if !found {
		return nil, fmt.Errorf("pod %s in namespace %s not found", request.PodName, request.PodNamespace)
	}
	return &api.GetPodResourcesResponse{PodResources: s.resources(pod)}, nil
}

// GetAllocatableResources tells what pods can have, whoever has it now.
func (s *Server) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	return &api.AllocatableResourcesResponse{Devices: convert(s.Devices.Allocatable())}, nil
}

// resources are those of a pod's containers that run for as long as it does.
func (s *Server) resources(pod *corev1.Pod) *api.PodResources {
	told := &api.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	for kind, c := range container.All(&pod.Spec) {
		if kind == container.Regular || kind == container.Init && container.IsSidecar(c) {
			told.Containers = append(told.Containers, &api.ContainerResources{Name: c.Name, Devices: convert(s.Devices.Allocated(pod.UID, c.Name))})
		}
	}
	return told
}

// convert tells each device by itself, once for each memory node it is topology to.
func convert(held []devices.Device) []*api.ContainerDevices {
	var all []*api.ContainerDevices
	for _, h := range held {
		if len(h.NUMANodes) == 0 {
			all = append(all, &api.ContainerDevices{ResourceName: h.Resource, DeviceIds: []string{h.ID}})
		}
		for _, node := range h.NUMANodes {
			topology := &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: node}}}
			all = append(all, &api.ContainerDevices{ResourceName: h.Resource, DeviceIds: []string{h.ID}, Topology: topology})
		}
	}
	return all
}
