package cri

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/kubelet/cgroup"
)

// State is the state of a container.
type State int

// The states of a container.
const (
	Unknown State = iota
	Created
	Running
	Exited
)

// String is the state as in upstream's messages and metrics.
func (s State) String() string {
	return [...]string{"unknown", "created", "running", "exited"}[s]
}

// Container is what the runtime reports about one container.
type Container struct {
	ID, SandboxID string
	Name          string
	State         State
	// Image is the image the container was created from, ImageRef the digest it was resolved to, ImageID the image's ID.
	Image, ImageRef, ImageID string
	// Hash and RestartCount are read from the annotations that the kubelet set when it created the container.
	Hash         string
	RestartCount int32
	CreatedAt    time.Time
	StartedAt    time.Time
	FinishedAt   time.Time
	ExitCode     int32
	Reason       string
	Message      string
	Resources    Resources
	// User is nil if the runtime does not report it.
	User *corev1.LinuxContainerUser
	// MountedImages are the images mounted as volumes.
	MountedImages []string
	LogPath       string
	Labels        map[string]string
	Annotations   map[string]string
}

// Resources are the limits the runtime reports; nil for those it does not report.
type Resources struct {
	CPURequest, CPULimit, MemoryLimit *resource.Quantity
}

// Sandbox is what the runtime reports about one pod sandbox.
type Sandbox struct {
	ID              string
	UID             types.UID
	Namespace, Name string
	// Attempt counts the sandboxes the pod had before this one.
	Attempt   uint32
	Ready     bool
	CreatedAt time.Time
	// Labels and Annotations are those of the configuration; the annotations are the pod's.
	Labels, Annotations map[string]string
	// HostNetwork reports whether the sandbox is in the host's network namespace.
	HostNetwork bool
	// Network is nil if the runtime does not report it.
	Network *SandboxNetwork
}

// SandboxNetwork has the IP addresses of a sandbox, the primary one first. A sandbox without network has none.
type SandboxNetwork struct{ IPs []string }

// Pod is what the runtime reports about one pod.
type Pod struct {
	UID             types.UID
	Namespace, Name string
	// Sandboxes, and Containers of one name, are ordered from the newest to the oldest: by their attempts, because the clock of the host may have
	// been set back between two of them.
	Sandboxes  []*Sandbox
	Containers []*Container
	// IPs are the addresses of the newest sandbox if it is ready and not on the host's network.
	IPs []string
}

// CompareAge compares containers of one name: an older one is less.
func (c *Container) CompareAge(other *Container) int {
	return cmp.Or(cmp.Compare(c.RestartCount, other.RestartCount), c.CreatedAt.Compare(other.CreatedAt))
}

// CompareAge compares sandboxes of one pod: an older one is less.
func (s *Sandbox) CompareAge(other *Sandbox) int {
	return cmp.Or(cmp.Compare(s.Attempt, other.Attempt), s.CreatedAt.Compare(other.CreatedAt))
}

// Container returns the newest container with a name, or nil.
func (p *Pod) Container(name string) *Container {
	for _, c := range p.Containers {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Active returns the newest container with a name in the ready sandbox, or nil. Containers of earlier sandboxes are ignored: init
// containers have to run again in a new sandbox.
func (p *Pod) Active(name string) *Container {
	sandbox := p.Sandbox()
	for _, c := range p.Containers {
		if c.Name == name && c.SandboxID == sandbox {
			return c
		}
	}
	return nil
}

// Sandbox is the ID of the newest sandbox if it is ready, else empty.
func (p *Pod) Sandbox() string {
	if len(p.Sandboxes) > 0 && p.Sandboxes[0].Ready {
		return p.Sandboxes[0].ID
	}
	return ""
}

// Running are the containers that are, or may be, running.
func (p *Pod) Running() []*Container {
	var running []*Container
	for _, c := range p.Containers {
		if c.State == Running || c.State == Unknown {
			running = append(running, c)
		}
	}
	return running
}

// The reasons why a pod needs a new sandbox.
const (
	NoSandbox          = "no pod sandbox exists"
	MultipleSandboxes  = "multiple pod sandboxes are ready and need to be reconciled"
	SandboxNotReady    = "pod sandbox is not ready"
	SandboxNetworkMode = "network namespace mode changed and sandbox needs to be recreated"
	SandboxHasNoIP     = "pod sandbox has no IP address"
)

// NeedsSandbox returns the reason why a pod needs a new sandbox, or an empty one if the newest sandbox can be used. attempt is that of
// the sandbox to create or to keep, id that of the existing one.
func (p *Pod) NeedsSandbox(hostNetwork bool) (reason string, attempt uint32, id string) {
	if len(p.Sandboxes) == 0 {
		return NoSandbox, 0, ""
	}
	ready := 0
	for _, s := range p.Sandboxes {
		if s.Ready {
			ready++
		}
	}
	newest := p.Sandboxes[0]
	attempt = newest.Attempt
	switch {
	case ready > 1:
		return MultipleSandboxes, attempt + 1, newest.ID
	case !newest.Ready:
		return SandboxNotReady, attempt + 1, newest.ID
	case newest.HostNetwork != hostNetwork:
		return SandboxNetworkMode, attempt + 1, ""
	case !hostNetwork && newest.Network != nil && len(newest.Network.IPs) == 0:
		return SandboxHasNoIP, attempt + 1, newest.ID
	}
	return "", attempt, newest.ID
}

// ReadPod reads the state of one pod. A pod the runtime does not have has neither sandboxes nor containers.
func (r *Runtime) ReadPod(ctx context.Context, uid types.UID) (*Pod, error) {
	selector := map[string]string{LabelPodUID: string(uid)}
	sandboxes, err := r.api.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	pod := &Pod{UID: uid}
	for _, s := range sandboxes {
		response, err := r.api.PodSandboxStatus(ctx, s.Id, false)
		if NotFound(err) {
			continue // removed since it was listed
		}
		if err != nil {
			return nil, fmt.Errorf("get status of sandbox %s: %w", s.Id, err)
		}
		pod.Sandboxes = append(pod.Sandboxes, newSandbox(response.Status))
	}
	containers, err := r.api.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers {
		response, err := r.api.ContainerStatus(ctx, c.Id, false)
		if NotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get status of container %s: %w", c.Id, err)
		}
		pod.Containers = append(pod.Containers, newContainer(c.PodSandboxId, response.Status))
	}
	pod.sort()
	return pod, nil
}

// sort orders sandboxes and containers and sets what follows from the newest sandbox.
func (p *Pod) sort() {
	slices.SortStableFunc(p.Sandboxes, func(a, b *Sandbox) int { return b.CompareAge(a) })
	slices.SortStableFunc(p.Containers, func(a, b *Container) int { return b.CompareAge(a) })
	if len(p.Sandboxes) == 0 {
		return
	}
	newest := p.Sandboxes[0]
	p.Namespace, p.Name = newest.Namespace, newest.Name
	if newest.Ready && !newest.HostNetwork && newest.Network != nil {
		p.IPs = newest.Network.IPs
	}
}

func newSandbox(s *runtimeapi.PodSandboxStatus) *Sandbox {
	sandbox := &Sandbox{
		ID: s.Id, UID: types.UID(s.GetMetadata().GetUid()), Namespace: s.GetMetadata().GetNamespace(), Name: s.GetMetadata().GetName(),
		Attempt: s.GetMetadata().GetAttempt(), Ready: s.State == runtimeapi.PodSandboxState_SANDBOX_READY,
		CreatedAt: time.Unix(0, s.CreatedAt), Labels: s.Labels, Annotations: s.Annotations,
		HostNetwork: s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE,
	}
	if s.Network != nil {
		sandbox.Network = &SandboxNetwork{}
		if s.Network.Ip != "" {
			sandbox.Network.IPs = append(sandbox.Network.IPs, s.Network.Ip)
			for _, more := range s.Network.AdditionalIps {
				sandbox.Network.IPs = append(sandbox.Network.IPs, more.Ip)
			}
		}
	}
	return sandbox
}

func stateOf(s runtimeapi.ContainerState) State {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return Running
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return Exited
	}
	return Unknown
}

// containerName is the name of a container in its pod's spec.
func containerName(labels map[string]string, metadata *runtimeapi.ContainerMetadata) string {
	return cmp.Or(labels[LabelContainerName], metadata.GetName())
}

func newContainer(sandbox string, s *runtimeapi.ContainerStatus) *Container {
	c := &Container{
		ID: s.Id, SandboxID: sandbox, Name: containerName(s.Labels, s.Metadata), State: stateOf(s.State),
		Image: s.GetImage().GetImage(), ImageRef: s.ImageRef, ImageID: s.ImageId, Hash: s.Annotations[AnnotationHash],
		CreatedAt: time.Unix(0, s.CreatedAt), LogPath: s.LogPath, Labels: s.Labels, Annotations: s.Annotations,
		Resources: resources(s.GetResources().GetLinux()), RestartCount: restartCount(s.Annotations),
	}
	if user := s.GetUser().GetLinux(); user != nil {
		c.User = &corev1.LinuxContainerUser{UID: user.Uid, GID: user.Gid, SupplementalGroups: user.SupplementalGroups}
	}
	for _, mount := range s.Mounts {
		if image := mount.GetImage().GetImage(); image != "" {
			c.MountedImages = append(c.MountedImages, image)
		}
	}
	if c.State != Created {
		c.StartedAt = time.Unix(0, s.StartedAt)
	}
	if c.State == Exited {
		c.FinishedAt, c.ExitCode, c.Reason, c.Message = time.Unix(0, s.FinishedAt), s.ExitCode, s.Reason, s.Message
		if text := terminationMessage(s); text != "" {
			if c.Message != "" {
				c.Message += ": "
			}
			c.Message += text
		}
	}
	return c
}

// restartCount is the number of earlier starts of a container.
func restartCount(annotations map[string]string) int32 {
	count, err := strconv.ParseInt(annotations[AnnotationRestartCount], 10, 32)
	if err != nil {
		return 0 // the container is not the kubelet's
	}
	return int32(count)
}

// resources converts the runtime's limits to quantities.
func resources(l *runtimeapi.LinuxContainerResources) Resources {
	var r Resources
	if l == nil {
		return r
	}
	if l.CpuPeriod > 0 && l.CpuQuota > 0 {
		r.CPULimit = resource.NewMilliQuantity(l.CpuQuota*1000/l.CpuPeriod, resource.DecimalSI)
	}
	if l.CpuShares > 0 {
		r.CPURequest = resource.NewMilliQuantity(cgroup.MilliCPUOf(l.CpuShares), resource.DecimalSI)
	}
	if l.MemoryLimitInBytes > 0 {
		r.MemoryLimit = resource.NewQuantity(l.MemoryLimitInBytes, resource.BinarySI)
	}
	return r
}
