// Package podresources serves version 1 of the pod resources API over a socket in the kubelet's directory. Monitoring
// agents use it to learn which container uses which devices, exclusive CPUs and memory of NUMA nodes.
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
	"k8s.io/utils/cpuset"

	"skiff/internal/container"
	"skiff/internal/kubelet/devices"
	"skiff/internal/kubelet/dra"
	"skiff/internal/kubelet/memory"
)

// Upstream's rate limit.
const (
	requestsPerSecond = 100
	burst             = 10
)

// maxSocketPath is the maximum length of a socket's path.
const maxSocketPath = 107

// Devices are the node's devices.
type Devices interface {
	// FreeRemovedPods releases the devices of removed pods.
	FreeRemovedPods()
	Allocated(uid types.UID, container string) []devices.Device
	Allocatable() []devices.Device
}

// Claims are the resource claims that are prepared on the node.
type Claims interface {
	Allocated(pod *corev1.Pod, c *corev1.Container) []dra.Claim
}

// CPUs are the CPUs of the node that can be exclusive to a container.
type CPUs interface {
	Exclusive(uid types.UID, container string) cpuset.CPUSet
	Allocatable() cpuset.CPUSet
}

// Memory is the memory of the node's NUMA nodes.
type Memory interface {
	Blocks(uid types.UID, container string) []memory.Block
	Allocatable() []memory.Block
}

// Server serves the pod resources API.
type Server struct {
	api.UnimplementedPodResourcesListerServer
	// Dir is the socket's directory.
	Dir     string
	Devices Devices
	Claims  Claims
	CPUs    CPUs
	Memory  Memory
	// Pods returns the running pods, Pod any pod by name.
	Pods func() []*corev1.Pod
	Pod  func(namespace, name string) (*corev1.Pod, bool)
	Log  *slog.Logger
}

// Run serves until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	if err := os.MkdirAll(s.Dir, 0o750); err != nil {
		return fmt.Errorf("create directory of the pod resources API: %w", err)
	}
	socket := filepath.Join(s.Dir, "kubelet.sock")
	if len(socket) > maxSocketPath {
		s.Log.Warn("pod resources API is disabled: socket path is too long", "path", socket)
		return nil
	}
	if err := os.RemoveAll(socket); err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen for the pod resources API: %w", err)
	}
	limit := rate.NewLimiter(requestsPerSecond, burst)
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if !limit.Allow() {
			return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
		}
		return handler(ctx, request)
	}))
	api.RegisterPodResourcesListerServer(server, s)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	return server.Serve(listener)
}

// List returns the resources of all running pods.
func (s *Server) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	s.Devices.FreeRemovedPods()
	response := &api.ListPodResourcesResponse{}
	for _, pod := range s.Pods() {
		response.PodResources = append(response.PodResources, s.resources(pod))
	}
	return response, nil
}

// Get returns the resources of one pod.
func (s *Server) Get(_ context.Context, request *api.GetPodResourcesRequest) (*api.GetPodResourcesResponse, error) {
	pod, found := s.Pod(request.PodNamespace, request.PodName)
	if !found {
		return nil, fmt.Errorf("pod %s in namespace %s not found", request.PodName, request.PodNamespace)
	}
	return &api.GetPodResourcesResponse{PodResources: s.resources(pod)}, nil
}

// GetAllocatableResources returns all allocatable resources, whether allocated or not.
func (s *Server) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	return &api.AllocatableResourcesResponse{
		Devices: convert(s.Devices.Allocatable()), CpuIds: convertCPUs(s.CPUs.Allocatable()), Memory: convertMemory(s.Memory.Allocatable()),
	}, nil
}

// resources returns the resources of a pod's regular containers and sidecars.
func (s *Server) resources(pod *corev1.Pod) *api.PodResources {
	result := &api.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	for kind, c := range container.All(&pod.Spec) {
		if kind == container.Regular || kind == container.Init && container.IsSidecar(c) {
			result.Containers = append(result.Containers, &api.ContainerResources{
				Name: c.Name, Devices: convert(s.Devices.Allocated(pod.UID, c.Name)), DynamicResources: convertClaims(s.Claims.Allocated(pod, c)),
				CpuIds: convertCPUs(s.CPUs.Exclusive(pod.UID, c.Name)), Memory: convertMemory(s.Memory.Blocks(pod.UID, c.Name)),
			})
		}
	}
	return result
}

// convertCPUs returns the IDs of CPUs, sorted.
func convertCPUs(cpus cpuset.CPUSet) (ids []int64) {
	for _, id := range cpus.List() {
		ids = append(ids, int64(id))
	}
	return ids
}

// convertMemory returns an entry per block, with its NUMA nodes.
func convertMemory(blocks []memory.Block) (all []*api.ContainerMemory) {
	for _, b := range blocks {
		converted := &api.ContainerMemory{MemoryType: string(b.Type), Size: b.Size, Topology: &api.TopologyInfo{}}
		for _, node := range b.NUMANodes {
			converted.Topology.Nodes = append(converted.Topology.Nodes, &api.NUMANode{ID: int64(node)})
		}
		all = append(all, converted)
	}
	return all
}

// convertClaims returns an entry per claim, with its devices.
func convertClaims(claims []dra.Claim) (all []*api.DynamicResource) {
	for _, claim := range claims {
		converted := &api.DynamicResource{ClaimName: claim.Key.Name, ClaimNamespace: claim.Key.Namespace}
		for _, d := range claim.Devices {
			resource := &api.ClaimResource{DriverName: d.Driver, PoolName: d.Pool, DeviceName: d.Name, ShareId: (*string)(d.ShareID)}
			for _, id := range d.CDIDeviceIDs {
				resource.CdiDevices = append(resource.CdiDevices, &api.CDIDevice{Name: id})
			}
			converted.ClaimResources = append(converted.ClaimResources, resource)
		}
		all = append(all, converted)
	}
	return all
}

// convert returns an entry per device and NUMA node.
func convert(list []devices.Device) []*api.ContainerDevices {
	var all []*api.ContainerDevices
	for _, d := range list {
		if len(d.NUMANodes) == 0 {
			all = append(all, &api.ContainerDevices{ResourceName: d.Resource, DeviceIds: []string{d.ID}})
		}
		for _, node := range d.NUMANodes {
			topology := &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: node}}}
			all = append(all, &api.ContainerDevices{ResourceName: d.Resource, DeviceIds: []string{d.ID}, Topology: topology})
		}
	}
	return all
}
