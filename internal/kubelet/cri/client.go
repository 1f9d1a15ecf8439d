package cri

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// callTimeout bounds calls that say nothing of their own about time.
	callTimeout = 2 * time.Minute
	// maxMessage bounds answers: a list of many containers is long.
	maxMessage = 16 << 20
)

// Client is a runtime behind a socket.
type Client struct {
	connection *grpc.ClientConn
	runtime    runtimeapi.RuntimeServiceClient
	images     runtimeapi.ImageServiceClient
}

var _ Runtime = (*Client)(nil)

// Dial makes a client of the runtime at an endpoint such as unix:///run/containerd/containerd.sock. It connects with the first
// call, and again whenever the runtime has restarted.
//
// observe, if given, is told of every request but those that stream.
func Dial(endpoint string, observe ...func(operation string, request any, took time.Duration, err error)) (*Client, error) {
	if !strings.Contains(endpoint, "://") {
		endpoint = "unix://" + endpoint
	}
	if !strings.HasPrefix(endpoint, "unix://") {
		return nil, fmt.Errorf("container runtime endpoint %q is not a unix socket", endpoint)
	}
	watched := func(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		began := time.Now()
		err := invoke(ctx, method, request, reply, connection, options...)
		for _, tell := range observe {
			tell(operation(method), request, time.Since(began), err)
		}
		return err
	}
	connection, err := grpc.NewClient(endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(watched),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		// A runtime that restarts is back within a second.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, MaxDelay: 3 * time.Second}, MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("reach container runtime at %s: %w", endpoint, err)
	}
	return &Client{connection: connection, runtime: runtimeapi.NewRuntimeServiceClient(connection), images: runtimeapi.NewImageServiceClient(connection)}, nil
}

// operations are upstream's names of requests, where they are not made from the method's by the rule.
var operations = map[string]string{
	"ListPodSandbox": "list_podsandbox", "PodSandboxStatus": "podsandbox_status", "RunPodSandbox": "run_podsandbox", "StopPodSandbox": "stop_podsandbox",
	"RemovePodSandbox": "remove_podsandbox", "PodSandboxStats": "podsandbox_stats", "ListPodSandboxStats": "list_podsandbox_stats",
	"ListPodSandboxMetrics": "list_podsandbox_metrics", "UpdatePodSandboxResources": "update_podsandbox_resources", "UpdateContainerResources": "update_container",
}

// operation is what metrics call a method of the runtime, such as start_container for /runtime.v1.RuntimeService/StartContainer.
func operation(method string) string {
	name := method[strings.LastIndexByte(method, '/')+1:]
	if known, ok := operations[name]; ok {
		return known
	}
	var words strings.Builder
	for i, letter := range name {
		if i > 0 && unicode.IsUpper(letter) {
			words.WriteByte('_')
		}
		words.WriteRune(unicode.ToLower(letter))
	}
	return words.String()
}

// Close ends the connection.
func (c *Client) Close(context.Context) error { return c.connection.Close() }

// call makes a request within the usual time.
func call[Request, Response any](ctx context.Context, method func(context.Context, Request, ...grpc.CallOption) (Response, error), request Request) (Response, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return method(ctx, request)
}

// Version returns name and version of the runtime.
func (c *Client) Version(ctx context.Context, apiVersion string) (*runtimeapi.VersionResponse, error) {
	return call(ctx, c.runtime.Version, &runtimeapi.VersionRequest{Version: apiVersion})
}

// Status returns whether runtime and network are ready, and with verbose the runtime's configuration.
func (c *Client) Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error) {
	return call(ctx, c.runtime.Status, &runtimeapi.StatusRequest{Verbose: verbose})
}

// UpdateRuntimeConfig tells the runtime of the node's range of pod addresses.
func (c *Client) UpdateRuntimeConfig(ctx context.Context, config *runtimeapi.RuntimeConfig) error {
	_, err := call(ctx, c.runtime.UpdateRuntimeConfig, &runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: config})
	return err
}

// RuntimeConfig returns how the runtime is configured: its cgroup driver.
func (c *Client) RuntimeConfig(ctx context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return call(ctx, c.runtime.RuntimeConfig, &runtimeapi.RuntimeConfigRequest{})
}

// RunPodSandbox makes and starts the sandbox of a pod.
func (c *Client) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	// Twice the usual time: the network's plugins are called within.
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout)
	defer cancel()
	response, err := c.runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	if err != nil {
		return "", err
	}
	return response.PodSandboxId, nil
}

// StopPodSandbox stops a sandbox and whatever still runs in it.
func (c *Client) StopPodSandbox(ctx context.Context, id string) error {
	_, err := call(ctx, c.runtime.StopPodSandbox, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return err
}

// RemovePodSandbox removes a sandbox and its containers.
func (c *Client) RemovePodSandbox(ctx context.Context, id string) error {
	_, err := call(ctx, c.runtime.RemovePodSandbox, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

// PodSandboxStatus returns the state of a sandbox.
func (c *Client) PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	return call(ctx, c.runtime.PodSandboxStatus, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: verbose})
}

// ListPodSandbox lists the sandboxes that match.
func (c *Client) ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	response, err := call(ctx, c.runtime.ListPodSandbox, &runtimeapi.ListPodSandboxRequest{Filter: filter})
	return response.GetItems(), err
}

// PortForward prepares an endpoint that streams ports of a sandbox.
func (c *Client) PortForward(ctx context.Context, request *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return call(ctx, c.runtime.PortForward, request)
}

// UpdatePodSandboxResources tells the runtime of a pod's changed resources.
func (c *Client) UpdatePodSandboxResources(ctx context.Context, request *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return call(ctx, c.runtime.UpdatePodSandboxResources, request)
}

// CheckpointPod writes a checkpoint of a sandbox.
func (c *Client) CheckpointPod(ctx context.Context, request *runtimeapi.CheckpointPodRequest) error {
	_, err := c.runtime.CheckpointPod(ctx, request)
	return err
}

// RestorePod restores a sandbox from a checkpoint.
func (c *Client) RestorePod(ctx context.Context, request *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	return c.runtime.RestorePod(ctx, request)
}

// CreateContainer makes a container in a sandbox.
func (c *Client) CreateContainer(ctx context.Context, sandbox string, config *runtimeapi.ContainerConfig, sandboxConfig *runtimeapi.PodSandboxConfig) (string, error) {
	response, err := call(ctx, c.runtime.CreateContainer, &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: config, SandboxConfig: sandboxConfig})
	return response.GetContainerId(), err
}

// StartContainer starts a container.
func (c *Client) StartContainer(ctx context.Context, id string) error {
	_, err := call(ctx, c.runtime.StartContainer, &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

// StopContainer asks a container to stop, and ends it after so many seconds.
func (c *Client) StopContainer(ctx context.Context, id string, seconds int64) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout+time.Duration(seconds)*time.Second)
	defer cancel()
	_, err := c.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
	return err
}

// RemoveContainer removes a container.
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	_, err := call(ctx, c.runtime.RemoveContainer, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	return err
}

// ListContainers lists the containers that match.
func (c *Client) ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	response, err := call(ctx, c.runtime.ListContainers, &runtimeapi.ListContainersRequest{Filter: filter})
	return response.GetContainers(), err
}

// ContainerStatus returns the state of a container.
func (c *Client) ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error) {
	return call(ctx, c.runtime.ContainerStatus, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: verbose})
}

// UpdateContainerResources changes the limits of a running container.
func (c *Client) UpdateContainerResources(ctx context.Context, id string, resources *runtimeapi.ContainerResources) error {
	_, err := call(ctx, c.runtime.UpdateContainerResources, &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: resources.GetLinux(), Windows: resources.GetWindows(),
	})
	return err
}

// ExecSync runs a command in a container. It returns an *ExitError for a code other than zero, and ErrTimedOut.
// A timeout of zero is none.
func (c *Client) ExecSync(ctx context.Context, id string, command []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	if timeout > 0 {
		// The runtime needs some time to clean up after it has ended the command.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout+timeout)
		defer cancel()
	}
	response, err := c.runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: int64(timeout.Seconds())})
	if status.Code(err) == codes.DeadlineExceeded {
		return nil, nil, fmt.Errorf("%w: %q timed out after %s", ErrTimedOut, strings.Join(command, " "), timeout)
	}
	if err != nil {
		return nil, nil, err
	}
	if response.ExitCode != 0 {
		err = &ExitError{Command: command, Code: response.ExitCode, Stderr: string(response.Stderr)}
	}
	return response.Stdout, response.Stderr, err
}

// Exec prepares an endpoint that streams a command in a container.
func (c *Client) Exec(ctx context.Context, request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return call(ctx, c.runtime.Exec, request)
}

// Attach prepares an endpoint that streams a container's own input and output.
func (c *Client) Attach(ctx context.Context, request *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return call(ctx, c.runtime.Attach, request)
}

// ReopenContainerLog lets the runtime write a container's log to a new file, after the old one was moved away.
func (c *Client) ReopenContainerLog(ctx context.Context, id string) error {
	_, err := call(ctx, c.runtime.ReopenContainerLog, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	return err
}

// CheckpointContainer writes a checkpoint of a container.
func (c *Client) CheckpointContainer(ctx context.Context, request *runtimeapi.CheckpointContainerRequest) error {
	_, err := c.runtime.CheckpointContainer(ctx, request)
	return err
}

// GetContainerEvents sends what happens to containers into the channel until ctx or the stream ends.
func (c *Client) GetContainerEvents(ctx context.Context, events chan *runtimeapi.ContainerEventResponse, connected func(runtimeapi.RuntimeService_GetContainerEventsClient)) error {
	stream, err := c.runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	if connected != nil {
		connected(stream)
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		select {
		case events <- event:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
