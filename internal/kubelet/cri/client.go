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

	"skiff/internal/tracing"
)

const (
	// callTimeout bounds calls without a timeout of their own.
	callTimeout = 2 * time.Minute
	// maxMessage bounds the size of responses; lists of many containers are large.
	maxMessage = 16 << 20
)

// Client is the API of a runtime behind a unix socket.
type Client struct {
	connection *grpc.ClientConn
	runtime    runtimeapi.RuntimeServiceClient
	images     runtimeapi.ImageServiceClient
}

var _ API = (*Client)(nil)

// RunPodSandbox is the Operation of a Call that creates a sandbox.
const RunPodSandbox = "run_podsandbox"

// Call is a completed request to the runtime.
type Call struct {
	// Operation is the name of the method in upstream's metrics, such as start_container.
	Operation string
	// RuntimeHandler is the handler of the sandbox if Operation is RunPodSandbox.
	RuntimeHandler string
	Duration       time.Duration
	Err            error
}

// Dial makes a client of the runtime at an endpoint such as unix:///run/containerd/containerd.sock. It connects with the first
// call, and reconnects when the runtime has restarted.
//
// observe, if given, is called after every unary request.
func Dial(endpoint string, observe ...func(Call)) (*Client, error) {
	if !strings.Contains(endpoint, "://") {
		endpoint = "unix://" + endpoint
	}
	if !strings.HasPrefix(endpoint, "unix://") {
		return nil, fmt.Errorf("container runtime endpoint %q is not a unix socket", endpoint)
	}
	observed := func(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		began := time.Now()
		ctx, span := tracing.StartCall(ctx, strings.TrimPrefix(method, "/"))
		err := invoke(ctx, method, request, reply, connection, options...)
		span.End()
		call := Call{Operation: operation(method), Duration: time.Since(began), Err: err}
		if sandbox, ok := request.(*runtimeapi.RunPodSandboxRequest); ok {
			call.RuntimeHandler = sandbox.RuntimeHandler
		}
		for _, report := range observe {
			report(call)
		}
		return err
	}
	connection, err := grpc.NewClient(endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(observed),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		// A runtime that restarts is available again within a second; gRPC's default backoff would delay the next call by up to two minutes.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, MaxDelay: 3 * time.Second}, MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("connect to container runtime at %s: %w", endpoint, err)
	}
	return NewClient(connection), nil
}

// NewClient makes a client that uses a connection. Close closes the connection.
func NewClient(connection *grpc.ClientConn) *Client {
	return &Client{connection: connection, runtime: runtimeapi.NewRuntimeServiceClient(connection), images: runtimeapi.NewImageServiceClient(connection)}
}

// operations are upstream's names of those methods whose name in metrics is not the method's in snake case.
var operations = map[string]string{
	"ListPodSandbox": "list_podsandbox", "PodSandboxStatus": "podsandbox_status", "RunPodSandbox": RunPodSandbox, "StopPodSandbox": "stop_podsandbox",
	"RemovePodSandbox": "remove_podsandbox", "PodSandboxStats": "podsandbox_stats", "ListPodSandboxStats": "list_podsandbox_stats",
	"ListPodSandboxMetrics": "list_podsandbox_metrics", "UpdatePodSandboxResources": "update_podsandbox_resources", "UpdateContainerResources": "update_container",
}

// operation is the name of a method in metrics, such as start_container for /runtime.v1.RuntimeService/StartContainer.
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

// Close closes the connection.
func (c *Client) Close() error { return c.connection.Close() }

// call makes a request with the default timeout.
func call[Request, Response any](ctx context.Context, method func(context.Context, Request, ...grpc.CallOption) (Response, error), request Request) (Response, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return method(ctx, request)
}

// Version returns the runtime's name and version.
func (c *Client) Version(ctx context.Context, apiVersion string) (*runtimeapi.VersionResponse, error) {
	return call(ctx, c.runtime.Version, &runtimeapi.VersionRequest{Version: apiVersion})
}

// Status returns whether runtime and network are ready, and with verbose the runtime's configuration.
func (c *Client) Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error) {
	return call(ctx, c.runtime.Status, &runtimeapi.StatusRequest{Verbose: verbose})
}

// RuntimeConfig returns the cgroup driver.
func (c *Client) RuntimeConfig(ctx context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return call(ctx, c.runtime.RuntimeConfig, &runtimeapi.RuntimeConfigRequest{})
}

// RunPodSandbox creates and starts the sandbox of a pod.
func (c *Client) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, runtimeHandler string) (string, error) {
	// Twice the default: the runtime calls the CNI plugins within this call.
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout)
	defer cancel()
	response, err := c.runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: runtimeHandler})
	if err != nil {
		return "", err
	}
	return response.PodSandboxId, nil
}

// StopPodSandbox stops a sandbox and every container that still runs in it.
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

// PortForward prepares a streaming session with ports of a sandbox.
func (c *Client) PortForward(ctx context.Context, request *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return call(ctx, c.runtime.PortForward, request)
}

// UpdatePodSandboxResources tells the runtime the changed resources of a pod.
func (c *Client) UpdatePodSandboxResources(ctx context.Context, request *runtimeapi.UpdatePodSandboxResourcesRequest) error {
	_, err := call(ctx, c.runtime.UpdatePodSandboxResources, request)
	return err
}

// CreateContainer creates a container in a sandbox.
func (c *Client) CreateContainer(ctx context.Context, sandboxID string, config *runtimeapi.ContainerConfig, sandboxConfig *runtimeapi.PodSandboxConfig) (string, error) {
	response, err := call(ctx, c.runtime.CreateContainer, &runtimeapi.CreateContainerRequest{PodSandboxId: sandboxID, Config: config, SandboxConfig: sandboxConfig})
	return response.GetContainerId(), err
}

// StartContainer starts a container.
func (c *Client) StartContainer(ctx context.Context, id string) error {
	_, err := call(ctx, c.runtime.StartContainer, &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

// StopContainer sends a container its stop signal and kills it if it still runs after timeoutSeconds.
func (c *Client) StopContainer(ctx context.Context, id string, timeoutSeconds int64) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout+time.Duration(timeoutSeconds)*time.Second)
	defer cancel()
	_, err := c.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: timeoutSeconds})
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

// ExecSync runs a command in a container. It returns an *ExitError for an exit code other than zero, and ErrTimedOut.
// A timeout of zero means none.
func (c *Client) ExecSync(ctx context.Context, id string, command []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	if timeout > 0 {
		// The runtime enforces the timeout itself and then needs time to clean up.
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

// Exec prepares a streaming session that runs a command in a container.
func (c *Client) Exec(ctx context.Context, request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return call(ctx, c.runtime.Exec, request)
}

// Attach prepares a streaming session with a container's main process.
func (c *Client) Attach(ctx context.Context, request *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return call(ctx, c.runtime.Attach, request)
}

// ReopenContainerLog makes the runtime open a container's log file again, after the old one was renamed.
func (c *Client) ReopenContainerLog(ctx context.Context, id string) error {
	_, err := call(ctx, c.runtime.ReopenContainerLog, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	return err
}

// CheckpointContainer writes the state of a running container to a file. Without a time-out of the request it may take callTimeout.
func (c *Client) CheckpointContainer(ctx context.Context, request *runtimeapi.CheckpointContainerRequest) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout+time.Duration(request.Timeout)*time.Second)
	defer cancel()
	_, err := c.runtime.CheckpointContainer(ctx, request)
	return err
}

// GetContainerEvents sends container events to the channel until ctx is done or the stream ends.
func (c *Client) GetContainerEvents(ctx context.Context, events chan<- *runtimeapi.ContainerEventResponse, connected func()) error {
	stream, err := c.runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	connected()
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
