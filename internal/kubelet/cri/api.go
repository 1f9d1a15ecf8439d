package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// ImageVolumeMountFailed is in the error of a container whose image volume the runtime could not mount.
var ImageVolumeMountFailed = crierrors.ErrImageVolumeMountFailed.Error()

// API is the part of the Container Runtime Interface that the kubelet uses, in the CRI's own protobuf messages. Client implements it
// over gRPC, critest.Fake in memory; the suite in critest checks both. Non-test code outside this
// package uses Runtime instead.
//
// All methods may be called concurrently. Errors are gRPC statuses, except where noted.
type API interface {
	Version(ctx context.Context, apiVersion string) (*runtimeapi.VersionResponse, error)
	Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error)
	// RuntimeConfig returns what kubelet and runtime must agree on. Older runtimes do not implement it.
	RuntimeConfig(ctx context.Context) (*runtimeapi.RuntimeConfigResponse, error)

	RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, runtimeHandler string) (id string, err error)
	StopPodSandbox(ctx context.Context, id string) error
	RemovePodSandbox(ctx context.Context, id string) error
	PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error)
	ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
	UpdatePodSandboxResources(ctx context.Context, request *runtimeapi.UpdatePodSandboxResourcesRequest) error

	CreateContainer(ctx context.Context, sandboxID string, config *runtimeapi.ContainerConfig, sandboxConfig *runtimeapi.PodSandboxConfig) (id string, err error)
	StartContainer(ctx context.Context, id string) error
	// StopContainer sends the container its stop signal and kills it if it still runs after timeoutSeconds.
	StopContainer(ctx context.Context, id string, timeoutSeconds int64) error
	RemoveContainer(ctx context.Context, id string) error
	ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error)
	UpdateContainerResources(ctx context.Context, id string, resources *runtimeapi.ContainerResources) error
	ContainerStats(ctx context.Context, id string) (*runtimeapi.ContainerStats, error)
	ListContainerStats(ctx context.Context, filter *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error)
	ReopenContainerLog(ctx context.Context, id string) error
	// CheckpointContainer writes the state of a running container to a file. Not every runtime implements it.
	CheckpointContainer(ctx context.Context, request *runtimeapi.CheckpointContainerRequest) error
	// GetContainerEvents sends events to the channel until ctx is done or the stream ends. It calls connected once the stream is established.
	GetContainerEvents(ctx context.Context, events chan<- *runtimeapi.ContainerEventResponse, connected func()) error

	// ExecSync runs a command in a container. It returns an *ExitError if the exit code is not zero, and ErrTimedOut if the command
	// exceeds the timeout. A timeout of zero means no limit.
	ExecSync(ctx context.Context, id string, command []string, timeout time.Duration) (stdout, stderr []byte, err error)
	Exec(ctx context.Context, request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error)
	Attach(ctx context.Context, request *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error)
	PortForward(ctx context.Context, request *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error)

	ListImages(ctx context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error)
	// ImageStatus returns a response without an Image for an image that is not present.
	ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec, verbose bool) (*runtimeapi.ImageStatusResponse, error)
	PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandboxConfig *runtimeapi.PodSandboxConfig) (ref string, err error)
	RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
}

// NotFound reports whether a call failed because the named container, sandbox or image does not exist.
func NotFound(err error) bool { return err != nil && crierrors.IsNotFound(err) }
