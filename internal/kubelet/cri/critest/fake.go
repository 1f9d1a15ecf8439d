package critest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/kubelet/cri"
)

// Fake is a container runtime in memory. Its containers run until they are stopped or Exit is called; those whose command is "exit N"
// exit at once.
type Fake struct {
	// Fail, if set, may return an error for a call. object is the name or ID of the container, pod or image. It is set before the first call.
	Fail func(call, object string) error
	// Command runs the commands of ExecSync. Without it every command succeeds.
	Command func(ctx context.Context, container string, command []string) (stdout string, code int32, err error)
	// IgnoreStop, if set, reports the containers that ignore their stop signal.
	IgnoreStop func(container string) bool
	// Events enables GetContainerEvents.
	Events bool

	mu         sync.Mutex
	next       int
	sandboxes  map[string]*fakeSandbox
	containers map[string]*fakeContainer
	images     map[string]*runtimeapi.Image
	calls      []string
	streams    map[chan<- *runtimeapi.ContainerEventResponse]bool
}

type fakeSandbox struct {
	status *runtimeapi.PodSandboxStatus
	config *runtimeapi.PodSandboxConfig
}

type fakeContainer struct {
	sandboxID string
	status    *runtimeapi.ContainerStatus
	exited    chan struct{}
	// exits is set if the container's command is an exit with code.
	exits bool
	code  int32
	cdi   []*runtimeapi.CDIDevice
}

var _ cri.API = (*Fake)(nil)

// NewFake makes a runtime without containers that has the images.
func NewFake(images ...string) *Fake {
	f := &Fake{
		Events: true, sandboxes: map[string]*fakeSandbox{}, containers: map[string]*fakeContainer{},
		images: map[string]*runtimeapi.Image{}, streams: map[chan<- *runtimeapi.ContainerEventResponse]bool{},
	}
	for _, name := range images {
		f.images[name] = &runtimeapi.Image{Id: "sha256:" + name, RepoTags: []string{name}, RepoDigests: []string{name + "@sha256:0"}, Size: 1 << 20}
	}
	return f
}

// Calls returns the calls since the last time, such as "StartContainer web".
func (f *Fake) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// Exit makes a running container exit.
func (f *Fake) Exit(id string, code int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.exit(f.containers[id], code)
}

// Lose sets the state of a running container to unknown.
func (f *Fake) Lose(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.containers[id].status.State = runtimeapi.ContainerState_CONTAINER_UNKNOWN
}

// ContainerID returns the ID of the newest container with a name in a pod, or empty.
func (f *Fake) ContainerID(uid, name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	newest := ""
	var at int64
	for id, c := range f.containers {
		if c.status.Labels[cri.LabelPodUID] == uid && c.status.Labels[cri.LabelContainerName] == name && c.status.CreatedAt > at {
			newest, at = id, c.status.CreatedAt
		}
	}
	return newest
}

// CDIDevices returns the names of the CDI devices of all containers.
func (f *Fake) CDIDevices() (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.containers {
		for _, d := range c.cdi {
			names = append(names, d.Name)
		}
	}
	slices.Sort(names)
	return names
}

// StopSandbox stops a sandbox as if its pause process had crashed.
func (f *Fake) StopSandbox(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sandboxes[id].status.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	f.send(id, id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

func (f *Fake) call(name, object string) error {
	f.calls = append(f.calls, name+" "+object)
	if f.Fail != nil {
		return f.Fail(name, object)
	}
	return nil
}

func (f *Fake) id(prefix string) string {
	f.next++
	return fmt.Sprintf("%s%d", prefix, f.next)
}

// now returns the current time, later than at every earlier call.
func (f *Fake) now() int64 {
	time.Sleep(time.Microsecond)
	return time.Now().UnixNano()
}

func (f *Fake) exit(c *fakeContainer, code int32) {
	if c == nil || c.status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return
	}
	c.status.State, c.status.ExitCode, c.status.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, code, f.now()
	c.status.Reason = "Completed"
	if code != 0 {
		c.status.Reason = "Error"
	}
	close(c.exited)
	f.send(c.status.Id, c.sandboxID, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

func (f *Fake) send(id, sandbox string, kind runtimeapi.ContainerEventType) {
	event := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano()}
	if s := f.sandboxes[sandbox]; s != nil {
		copied := proto.Clone(s.status).(*runtimeapi.PodSandboxStatus)
		event.PodSandboxStatus = copied
	}
	for stream := range f.streams {
		select {
		case stream <- event:
		default:
		}
	}
}

func missing(kind, id string) error {
	return status.Errorf(codes.NotFound, "%s %q not found", kind, id)
}

func unimplemented(what string) error { return status.Error(codes.Unimplemented, what) }

// Version implements cri.API.
func (f *Fake) Version(context.Context, string) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "fake", RuntimeVersion: "v1.0.0", RuntimeApiVersion: "v1"}, nil
}

// Status implements cri.API.
func (f *Fake) Status(context.Context, bool) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true},
	}}}, nil
}

// RuntimeConfig implements cri.API.
func (f *Fake) RuntimeConfig(context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, nil
}

// RunPodSandbox implements cri.API.
func (f *Fake) RunPodSandbox(_ context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("RunPodSandbox", config.GetMetadata().GetName()); err != nil {
		return "", err
	}
	id := f.id("sandbox")
	options := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	s := &fakeSandbox{config: config, status: &runtimeapi.PodSandboxStatus{
		Id: id, Metadata: config.Metadata, State: runtimeapi.PodSandboxState_SANDBOX_READY, CreatedAt: f.now(),
		Labels: config.Labels, Annotations: config.Annotations, RuntimeHandler: handler, Network: &runtimeapi.PodSandboxNetworkStatus{},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: options}},
	}}
	if options.GetNetwork() != runtimeapi.NamespaceMode_NODE {
		s.status.Network.Ip = fmt.Sprintf("10.0.%d.%d", f.next>>8&255, f.next&255)
	}
	f.sandboxes[id] = s
	f.send(id, id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return id, nil
}

// StopPodSandbox implements cri.API.
func (f *Fake) StopPodSandbox(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sandboxes[id]
	if s == nil {
		return nil
	}
	if err := f.call("StopPodSandbox", s.status.GetMetadata().GetName()); err != nil {
		return err
	}
	for _, c := range f.containers {
		if c.sandboxID == id {
			f.exit(c, 137)
		}
	}
	s.status.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	f.send(id, id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	return nil
}

// RemovePodSandbox implements cri.API.
func (f *Fake) RemovePodSandbox(ctx context.Context, id string) error {
	if err := f.StopPodSandbox(ctx, id); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for container, c := range f.containers {
		if c.sandboxID == id {
			delete(f.containers, container)
		}
	}
	f.send(id, id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	delete(f.sandboxes, id)
	return nil
}

// PodSandboxStatus implements cri.API.
func (f *Fake) PodSandboxStatus(_ context.Context, id string, _ bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sandboxes[id]
	if s == nil {
		return nil, missing("sandbox", id)
	}
	copied := proto.Clone(s.status).(*runtimeapi.PodSandboxStatus)
	return &runtimeapi.PodSandboxStatusResponse{Status: copied}, nil
}

// ListPodSandbox implements cri.API.
func (f *Fake) ListPodSandbox(_ context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Fail != nil {
		if err := f.Fail("ListPodSandbox", ""); err != nil {
			return nil, err
		}
	}
	var found []*runtimeapi.PodSandbox
	for id, s := range f.sandboxes {
		if (filter.GetId() == "" || filter.GetId() == id) && contains(s.status.Labels, filter.GetLabelSelector()) &&
			(filter.GetState() == nil || filter.GetState().State == s.status.State) {
			found = append(found, &runtimeapi.PodSandbox{
				Id: id, Metadata: s.status.Metadata, State: s.status.State, CreatedAt: s.status.CreatedAt, Labels: s.status.Labels, Annotations: s.status.Annotations,
			})
		}
	}
	slices.SortFunc(found, func(a, b *runtimeapi.PodSandbox) int { return int(b.CreatedAt - a.CreatedAt) })
	return found, nil
}

func contains(labels, selector map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// CreateContainer implements cri.API.
func (f *Fake) CreateContainer(_ context.Context, sandboxID string, config *runtimeapi.ContainerConfig, sandboxConfig *runtimeapi.PodSandboxConfig) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("CreateContainer", config.GetMetadata().GetName()); err != nil {
		return "", err
	}
	s := f.sandboxes[sandboxID]
	if s == nil || s.status.State != runtimeapi.PodSandboxState_SANDBOX_READY {
		return "", status.Errorf(codes.Unknown, "sandbox %q is not running", sandboxID)
	}
	for _, other := range f.containers {
		if m := other.status.Metadata; other.sandboxID == sandboxID && m.Name == config.Metadata.Name && m.Attempt == config.Metadata.Attempt {
			return "", status.Errorf(codes.AlreadyExists, "name of container %s is in use", m.Name)
		}
	}
	id := f.id("container")
	logPath := filepath.Join(sandboxConfig.GetLogDirectory(), config.GetLogPath())
	f.containers[id] = &fakeContainer{sandboxID: sandboxID, cdi: config.CDIDevices, exited: make(chan struct{}), status: &runtimeapi.ContainerStatus{
		Id: id, Metadata: config.Metadata, State: runtimeapi.ContainerState_CONTAINER_CREATED, CreatedAt: f.now(), Image: config.Image,
		ImageRef: config.GetImage().GetImage(), Labels: config.Labels, Annotations: config.Annotations, Mounts: config.Mounts, LogPath: logPath,
		Resources: &runtimeapi.ContainerResources{Linux: config.GetLinux().GetResources()},
	}}
	if n := len(config.Command); n > 0 {
		count, err := fmt.Sscanf(config.Command[n-1], "exit %d", &f.containers[id].code)
		f.containers[id].exits = count == 1 && err == nil
	}
	f.send(id, sandboxID, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return id, nil
}

// StartContainer implements cri.API.
func (f *Fake) StartContainer(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return missing("container", id)
	}
	if c.status.State != runtimeapi.ContainerState_CONTAINER_CREATED {
		return status.Errorf(codes.Unknown, "container %q is not in created state", id)
	}
	if err := f.call("StartContainer", c.status.Metadata.Name); err != nil {
		c.status.State, c.status.StartedAt, c.status.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, 0, f.now()
		c.status.ExitCode, c.status.Reason, c.status.Message = 128, "StartError", err.Error()
		close(c.exited)
		f.send(id, c.sandboxID, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
		return err
	}
	c.status.State, c.status.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, f.now()
	f.send(id, c.sandboxID, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	if c.status.LogPath != "" {
		_ = os.WriteFile(c.status.LogPath, nil, 0o640) // fails if the test made no log directory
	}
	if c.exits {
		f.exit(c, c.code)
	}
	return nil
}

// StopContainer implements cri.API.
func (f *Fake) StopContainer(ctx context.Context, id string, seconds int64) error {
	f.mu.Lock()
	c := f.containers[id]
	if c == nil {
		f.mu.Unlock()
		return nil
	}
	err := f.call("StopContainer", c.status.Metadata.Name)
	ignored := f.IgnoreStop != nil && f.IgnoreStop(c.status.Metadata.Name) && seconds > 0
	if err == nil && !ignored {
		f.exit(c, 0)
	}
	f.mu.Unlock()
	if err != nil || !ignored {
		return err
	}
	select {
	case <-c.exited:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(seconds) * time.Second):
		f.Exit(id, 137)
	}
	return nil
}

// RemoveContainer implements cri.API.
func (f *Fake) RemoveContainer(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return nil
	}
	if err := f.call("RemoveContainer", c.status.Metadata.Name); err != nil {
		return err
	}
	f.exit(c, 137)
	delete(f.containers, id)
	f.send(id, c.sandboxID, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	return nil
}

// ListContainers implements cri.API.
func (f *Fake) ListContainers(_ context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []*runtimeapi.Container
	for id, c := range f.containers {
		if (filter.GetId() == "" || filter.GetId() == id) && (filter.GetPodSandboxId() == "" || filter.GetPodSandboxId() == c.sandboxID) &&
			contains(c.status.Labels, filter.GetLabelSelector()) && (filter.GetState() == nil || filter.GetState().State == c.status.State) {
			found = append(found, &runtimeapi.Container{
				Id: id, PodSandboxId: c.sandboxID, Metadata: c.status.Metadata, Image: c.status.Image, ImageRef: c.status.ImageRef,
				State: c.status.State, CreatedAt: c.status.CreatedAt, Labels: c.status.Labels, Annotations: c.status.Annotations,
			})
		}
	}
	slices.SortFunc(found, func(a, b *runtimeapi.Container) int { return int(b.CreatedAt - a.CreatedAt) })
	return found, nil
}

// ContainerStatus implements cri.API.
func (f *Fake) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return nil, missing("container", id)
	}
	copied := proto.Clone(c.status).(*runtimeapi.ContainerStatus)
	return &runtimeapi.ContainerStatusResponse{Status: copied}, nil
}

// UpdateContainerResources implements cri.API.
func (f *Fake) UpdateContainerResources(_ context.Context, id string, resources *runtimeapi.ContainerResources) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return missing("container", id)
	}
	if err := f.call("UpdateContainerResources", c.status.Metadata.Name); err != nil {
		return err
	}
	c.status.Resources = resources
	return nil
}

// ExecSync implements cri.API.
func (f *Fake) ExecSync(ctx context.Context, id string, command []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	f.mu.Lock()
	c := f.containers[id]
	if c == nil {
		f.mu.Unlock()
		return nil, nil, missing("container", id)
	}
	name := c.status.Metadata.Name
	err = f.call("ExecSync", name+" "+strings.Join(command, " "))
	f.mu.Unlock()
	if err != nil || f.Command == nil {
		return nil, nil, err
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	text, code, err := f.Command(ctx, name, command)
	if ctx.Err() == context.DeadlineExceeded {
		return nil, nil, fmt.Errorf("%w: %q timed out after %s", cri.ErrTimedOut, strings.Join(command, " "), timeout)
	}
	if err == nil && code != 0 {
		err = &cri.ExitError{Command: command, Code: code}
	}
	return []byte(text), nil, err
}

// ReopenContainerLog implements cri.API.
func (f *Fake) ReopenContainerLog(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return missing("container", id)
	}
	if err := f.call("ReopenContainerLog", c.status.Metadata.Name); err != nil {
		return err
	}
	return os.WriteFile(c.status.LogPath, nil, 0o640)
}

// CheckpointContainer implements cri.API.
func (f *Fake) CheckpointContainer(_ context.Context, request *runtimeapi.CheckpointContainerRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[request.ContainerId]
	if c == nil {
		return missing("container", request.ContainerId)
	}
	if err := f.call("CheckpointContainer", c.status.Metadata.Name); err != nil {
		return err
	}
	return os.WriteFile(request.Location, []byte(request.ContainerId), 0o600)
}

// GetContainerEvents implements cri.API.
func (f *Fake) GetContainerEvents(ctx context.Context, events chan<- *runtimeapi.ContainerEventResponse, connected func()) error {
	if !f.Events {
		return unimplemented("GetContainerEvents")
	}
	f.mu.Lock()
	f.streams[events] = true
	f.mu.Unlock()
	connected()
	<-ctx.Done()
	f.mu.Lock()
	delete(f.streams, events)
	f.mu.Unlock()
	return ctx.Err()
}
