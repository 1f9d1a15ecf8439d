// Package cri talks to the container runtime: containerd, CRI-O or any other implementation of the Container Runtime Interface. It is
// the only package that imports the CRI's API.
//
// Runtime is what the rest of the kubelet calls, in skiff's own types. It wraps an API, which is the CRI in its protobuf messages:
// Dial connects one to a runtime's unix socket, package critest has a fake for tests. ReadPod turns what the runtime reports into a Pod,
// which the kubelet's decisions are based on, and Watcher reports which pods have changed. NewSandboxConfig and NewContainerConfig
// go the other way: from a pod's spec to the runtime's configuration.
package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is a container runtime and its image store. All methods may be called concurrently. Errors are gRPC statuses; NotFound
// recognises those of objects that do not exist.
type Runtime struct {
	api API
}

// New makes a Runtime of an API.
func New(api API) *Runtime { return &Runtime{api: api} }

// ErrTimedOut is what ExecSync returns for a command that exceeded its timeout.
var ErrTimedOut = errors.New("command timed out")

// ExitError is what ExecSync returns for a command with an exit code other than zero.
type ExitError struct {
	Command []string
	Code    int32
	Stderr  string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("command '%s' exited with %d: %s", strings.Join(e.Command, " "), e.Code, e.Stderr)
}

// apiVersion is the kubelet's version of the runtime API, which runtimes ignore.
const apiVersion = "0.1.0"

// Version is the name and version of a runtime.
type Version struct{ Name, Version string }

// Version returns the runtime's name and version.
func (r *Runtime) Version(ctx context.Context) (Version, error) {
	response, err := r.api.Version(ctx, apiVersion)
	return Version{response.GetRuntimeName(), response.GetRuntimeVersion()}, err
}

// The conditions of a runtime's Status.
const (
	RuntimeReady = runtimeapi.RuntimeReady
	NetworkReady = runtimeapi.NetworkReady
)

// Status is what a runtime reports about itself.
type Status struct {
	Conditions []Condition
	Handlers   []Handler
	// SupplementalGroupsPolicy reports whether the runtime implements it; nil for a runtime that does not report its features.
	SupplementalGroupsPolicy *bool
}

// Condition is one condition of a runtime.
type Condition struct {
	Type            string
	Status          bool
	Reason, Message string
}

// Handler is one of the handlers that RuntimeClasses refer to.
type Handler struct {
	Name                                    string
	RecursiveReadOnlyMounts, UserNamespaces bool
}

// Condition returns the condition of a type.
func (s Status) Condition(kind string) (Condition, bool) {
	for _, c := range s.Conditions {
		if c.Type == kind {
			return c, true
		}
	}
	return Condition{}, false
}

// Status returns whether runtime and network are ready, and the runtime's features.
func (r *Runtime) Status(ctx context.Context) (Status, error) {
	response, err := r.api.Status(ctx, false)
	if err != nil {
		return Status{}, err
	}
	var s Status
	for _, c := range response.GetStatus().GetConditions() {
		s.Conditions = append(s.Conditions, Condition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
	}
	for _, h := range response.GetRuntimeHandlers() {
		s.Handlers = append(s.Handlers, Handler{
			Name: h.Name, RecursiveReadOnlyMounts: h.GetFeatures().GetRecursiveReadOnlyMounts(), UserNamespaces: h.GetFeatures().GetUserNamespaces(),
		})
	}
	if f := response.GetFeatures(); f != nil {
		s.SupplementalGroupsPolicy = &f.SupplementalGroupsPolicy
	}
	return s, nil
}

// RunPodSandbox creates and starts the sandbox of a pod.
func (r *Runtime) RunPodSandbox(ctx context.Context, config *SandboxConfig, runtimeHandler string) (id string, err error) {
	return r.api.RunPodSandbox(ctx, config.config, runtimeHandler)
}

// StopPodSandbox stops a sandbox and every container that still runs in it.
func (r *Runtime) StopPodSandbox(ctx context.Context, id string) error {
	return r.api.StopPodSandbox(ctx, id)
}

// RemovePodSandbox removes a sandbox and its containers.
func (r *Runtime) RemovePodSandbox(ctx context.Context, id string) error {
	return r.api.RemovePodSandbox(ctx, id)
}

// ListPodSandboxes lists the sandboxes of one pod, or of all for an empty UID. Addresses and namespaces are not set.
func (r *Runtime) ListPodSandboxes(ctx context.Context, uid types.UID) ([]*Sandbox, error) {
	list, err := r.api.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: podSelector(uid)})
	if err != nil {
		return nil, err
	}
	sandboxes := make([]*Sandbox, 0, len(list))
	for _, s := range list {
		sandboxes = append(sandboxes, &Sandbox{
			ID: s.Id, UID: types.UID(s.GetMetadata().GetUid()), Namespace: s.GetMetadata().GetNamespace(), Name: s.GetMetadata().GetName(),
			Attempt: s.GetMetadata().GetAttempt(), Ready: s.State == runtimeapi.PodSandboxState_SANDBOX_READY,
			CreatedAt: time.Unix(0, s.CreatedAt), Labels: s.Labels, Annotations: s.Annotations,
		})
	}
	return sandboxes, nil
}

func podSelector(uid types.UID) map[string]string {
	if uid == "" {
		return nil
	}
	return map[string]string{LabelPodUID: string(uid)}
}

// UpdatePodSandboxResources tells the runtime the changed resources of a pod.
func (r *Runtime) UpdatePodSandboxResources(ctx context.Context, id string, config *SandboxConfig) error {
	linux := config.config.GetLinux()
	return r.api.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: id, Overhead: linux.GetOverhead(), Resources: linux.GetResources(),
	})
}

// CreateContainer creates a container in a sandbox.
func (r *Runtime) CreateContainer(ctx context.Context, sandboxID string, config *ContainerConfig, sandboxConfig *SandboxConfig) (id string, err error) {
	return r.api.CreateContainer(ctx, sandboxID, config.config, sandboxConfig.message())
}

// StartContainer starts a container.
func (r *Runtime) StartContainer(ctx context.Context, id string) error {
	return r.api.StartContainer(ctx, id)
}

// StopContainer sends a container its stop signal and kills it if it still runs after timeoutSeconds.
func (r *Runtime) StopContainer(ctx context.Context, id string, timeoutSeconds int64) error {
	return r.api.StopContainer(ctx, id, timeoutSeconds)
}

// RemoveContainer removes a container.
func (r *Runtime) RemoveContainer(ctx context.Context, id string) error {
	return r.api.RemoveContainer(ctx, id)
}

// ListContainers lists the containers of one pod, or of all for an empty UID. Fields that only ContainerStatus returns are not set.
func (r *Runtime) ListContainers(ctx context.Context, uid types.UID) ([]*Container, error) {
	list, err := r.api.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: podSelector(uid)})
	if err != nil {
		return nil, err
	}
	containers := make([]*Container, 0, len(list))
	for _, c := range list {
		containers = append(containers, &Container{
			ID: c.Id, SandboxID: c.PodSandboxId, Name: containerName(c.Labels, c.Metadata), State: stateOf(c.State),
			Image: c.GetImage().GetImage(), ImageID: c.ImageId, ImageRef: c.ImageRef, CreatedAt: time.Unix(0, c.CreatedAt),
			Labels: c.Labels, Annotations: c.Annotations, RestartCount: restartCount(c.Annotations),
		})
	}
	return containers, nil
}

// ContainerStatus returns the state of a container. SandboxID is not set.
func (r *Runtime) ContainerStatus(ctx context.Context, id string) (*Container, error) {
	response, err := r.api.ContainerStatus(ctx, id, false)
	if err != nil {
		return nil, err
	}
	return newContainer("", response.Status), nil
}

// UpdateContainerResources changes the limits of a running container.
func (r *Runtime) UpdateContainerResources(ctx context.Context, id string, resources LinuxResources) error {
	return r.api.UpdateContainerResources(ctx, id, &runtimeapi.ContainerResources{Linux: resources.linux})
}

// ContainerStats is the resource usage of a container.
type ContainerStats struct {
	ID            string
	PodUID        types.UID
	ContainerName string
	// MemoryUsage is in bytes; nil if the runtime does not report it.
	MemoryUsage *uint64
	// WritableLayer is what the container has written to its root filesystem; nil if the runtime does not report it.
	WritableLayer *FilesystemUsage
}

// FilesystemUsage is how much of a filesystem is used.
type FilesystemUsage struct {
	Time                  time.Time
	UsedBytes, InodesUsed uint64
}

func newContainerStats(s *runtimeapi.ContainerStats) ContainerStats {
	labels := s.GetAttributes().GetLabels()
	stats := ContainerStats{ID: s.GetAttributes().GetId(), PodUID: types.UID(labels[LabelPodUID]), ContainerName: labels[LabelContainerName]}
	if usage := s.GetMemory().GetUsageBytes(); usage != nil {
		stats.MemoryUsage = &usage.Value
	}
	if layer := s.GetWritableLayer(); layer != nil {
		stats.WritableLayer = &FilesystemUsage{
			Time: time.Unix(0, layer.Timestamp), UsedBytes: layer.GetUsedBytes().GetValue(), InodesUsed: layer.GetInodesUsed().GetValue(),
		}
	}
	return stats
}

// ContainerStats returns the resource usage of a container.
func (r *Runtime) ContainerStats(ctx context.Context, id string) (ContainerStats, error) {
	stats, err := r.api.ContainerStats(ctx, id)
	return newContainerStats(stats), err
}

// ListContainerStats returns the resource usage of all containers.
func (r *Runtime) ListContainerStats(ctx context.Context) ([]ContainerStats, error) {
	list, err := r.api.ListContainerStats(ctx, nil)
	if err != nil {
		return nil, err
	}
	all := make([]ContainerStats, 0, len(list))
	for _, s := range list {
		all = append(all, newContainerStats(s))
	}
	return all, nil
}

// ExecSync runs a command in a container. It returns an *ExitError for an exit code other than zero, and ErrTimedOut. A timeout
// of zero means none.
func (r *Runtime) ExecSync(ctx context.Context, id string, command []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	return r.api.ExecSync(ctx, id, command, timeout)
}

// CheckpointContainer writes the state of a running container to a file. A timeout of zero means the runtime's own.
func (r *Runtime) CheckpointContainer(ctx context.Context, id, file string, timeout time.Duration) error {
	return r.api.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: file, Timeout: int64(timeout / time.Second)})
}

// Streams are the streams of an exec or attach session.
type Streams struct{ Stdin, Stdout, Stderr, TTY bool }

// Exec prepares a command in a container and returns the URL of its streaming session.
func (r *Runtime) Exec(ctx context.Context, id string, command []string, s Streams) (url string, err error) {
	response, err := r.api.Exec(ctx, &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: command, Tty: s.TTY, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr,
	})
	return response.GetUrl(), err
}

// Attach returns the URL of a streaming session with a container's main process.
func (r *Runtime) Attach(ctx context.Context, id string, s Streams) (url string, err error) {
	response, err := r.api.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: id, Tty: s.TTY, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr})
	return response.GetUrl(), err
}

// PortForward returns the URL of a streaming session with ports of a sandbox.
func (r *Runtime) PortForward(ctx context.Context, sandboxID string, ports []int32) (url string, err error) {
	response, err := r.api.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: sandboxID, Port: ports})
	return response.GetUrl(), err
}
