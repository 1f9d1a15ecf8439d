package cri

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// State is how far a container has come.
type State int

// The states of a container.
const (
	Unknown State = iota
	Created
	Running
	Exited
)

// String is the state as upstream's messages have it.
func (s State) String() string {
	return [...]string{"unknown", "created", "running", "exited"}[s]
}

// Container is what the runtime reports about one container.
type Container struct {
	ID, SandboxID string
	Name          string
	State         State
	// Image is what the container was started from, ImageRef the digest it stood for.
	Image, ImageRef string
	// Hash and RestartCount are what the kubelet that made the container wrote on it.
	Hash         string
	RestartCount int32
	CreatedAt    time.Time
	StartedAt    time.Time
	FinishedAt   time.Time
	ExitCode     int32
	Reason       string
	Message      string
	Resources    Resources
	User         *runtimeapi.LinuxContainerUser
	LogPath      string
	Labels       map[string]string
	Annotations  map[string]string
}

// Resources are those the runtime says it applies. What it does not say is nil.
type Resources struct {
	CPURequest, CPULimit, MemoryLimit *resource.Quantity
}

// Pod is what the runtime reports about one pod.
type Pod struct {
	UID             types.UID
	Namespace, Name string
	// Sandboxes and Containers have the newest first.
	Sandboxes  []*runtimeapi.PodSandboxStatus
	Containers []*Container
	// IPs are the addresses of the newest sandbox, if it is ready.
	IPs []string
}

// Container returns the newest container of a name, or nil.
func (p *Pod) Container(name string) *Container {
	for _, c := range p.Containers {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Active returns the newest container of a name in the sandbox that is ready now, or nil. What is left of an earlier sandbox does
// not count: its init containers have to run again.
func (p *Pod) Active(name string) *Container {
	sandbox := p.Sandbox()
	for _, c := range p.Containers {
		if c.Name == name && c.SandboxID == sandbox {
			return c
		}
	}
	return nil
}

// Sandbox is the id of the newest sandbox if it is ready, else empty.
func (p *Pod) Sandbox() string {
	if len(p.Sandboxes) > 0 && p.Sandboxes[0].State == runtimeapi.PodSandboxState_SANDBOX_READY {
		return p.Sandboxes[0].Id
	}
	return ""
}

// Running are the containers that may be running.
func (p *Pod) Running() []*Container {
	var running []*Container
	for _, c := range p.Containers {
		if c.State == Running || c.State == Unknown {
			running = append(running, c)
		}
	}
	return running
}

// Why a pod needs another sandbox.
const (
	NoSandbox       = "no pod sandbox exists"
	ManySandboxes   = "multiple pod sandboxes are ready and need to be reconciled"
	SandboxNotReady = "pod sandbox is not ready"
	SandboxNetwork  = "network namespace mode changed and sandbox needs to be recreated"
	SandboxHasNoIP  = "pod sandbox has no IP address"
)

// NeedsSandbox says why a pod needs a new sandbox, or is empty if the newest one will do. attempt is that of the sandbox to make
// or to keep, old the id of the one that exists.
func (p *Pod) NeedsSandbox(hostNetwork bool) (why string, attempt uint32, old string) {
	if len(p.Sandboxes) == 0 {
		return NoSandbox, 0, ""
	}
	ready := 0
	for _, s := range p.Sandboxes {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			ready++
		}
	}
	newest := p.Sandboxes[0]
	attempt = newest.GetMetadata().GetAttempt()
	mode := runtimeapi.NamespaceMode_POD
	if hostNetwork {
		mode = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case ready > 1:
		return ManySandboxes, attempt + 1, newest.Id
	case newest.State != runtimeapi.PodSandboxState_SANDBOX_READY:
		return SandboxNotReady, attempt + 1, newest.Id
	case newest.GetLinux().GetNamespaces().GetOptions().GetNetwork() != mode:
		return SandboxNetwork, attempt + 1, ""
	case !hostNetwork && newest.Network != nil && newest.Network.Ip == "":
		return SandboxHasNoIP, attempt + 1, newest.Id
	}
	return "", attempt, newest.Id
}

// ReadPod asks the runtime about one pod. A pod it does not know has neither sandboxes nor containers.
func ReadPod(ctx context.Context, r Runtime, uid types.UID) (*Pod, error) {
	selector := map[string]string{LabelPodUID: string(uid)}
	sandboxes, err := r.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	pod := &Pod{UID: uid}
	for _, s := range sandboxes {
		response, err := r.PodSandboxStatus(ctx, s.Id, false)
		if NotFound(err) {
			continue // removed in between
		}
		if err != nil {
			return nil, fmt.Errorf("read sandbox %s: %w", s.Id, err)
		}
		pod.Sandboxes = append(pod.Sandboxes, response.Status)
	}
	containers, err := r.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers {
		response, err := r.ContainerStatus(ctx, c.Id, false)
		if NotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read container %s: %w", c.Id, err)
		}
		pod.Containers = append(pod.Containers, newContainer(c.PodSandboxId, response.Status))
	}
	pod.finish()
	return pod, nil
}

// finish sorts what was read and draws the conclusions.
func (p *Pod) finish() {
	slices.SortStableFunc(p.Sandboxes, func(a, b *runtimeapi.PodSandboxStatus) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
	slices.SortStableFunc(p.Containers, func(a, b *Container) int { return b.CreatedAt.Compare(a.CreatedAt) })
	if len(p.Sandboxes) == 0 {
		return
	}
	newest := p.Sandboxes[0]
	p.Namespace, p.Name = newest.GetMetadata().GetNamespace(), newest.GetMetadata().GetName()
	if newest.State != runtimeapi.PodSandboxState_SANDBOX_READY || newest.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE {
		return
	}
	if ip := newest.GetNetwork().GetIp(); ip != "" {
		p.IPs = append(p.IPs, ip)
		for _, more := range newest.GetNetwork().GetAdditionalIps() {
			p.IPs = append(p.IPs, more.Ip)
		}
	}
}

func newContainer(sandbox string, s *runtimeapi.ContainerStatus) *Container {
	c := &Container{
		ID: s.Id, SandboxID: sandbox, Name: s.Labels[LabelContainerName],
		Image: s.GetImage().GetImage(), ImageRef: s.ImageRef, Hash: s.Annotations[AnnotationHash],
		CreatedAt: time.Unix(0, s.CreatedAt), LogPath: s.LogPath, Labels: s.Labels, Annotations: s.Annotations,
		User: s.GetUser().GetLinux(), Resources: resources(s.GetResources().GetLinux()),
	}
	if c.Name == "" {
		c.Name = s.GetMetadata().GetName()
	}
	if count, err := strconv.ParseInt(s.Annotations[AnnotationRestartCount], 10, 32); err == nil {
		c.RestartCount = int32(count)
	}
	switch s.State {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		c.State = Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		c.State = Running
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		c.State = Exited
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

// sharesPerCPU is how cgroups express one CPU.
const sharesPerCPU = 1024

// resources translates the runtime's numbers back into quantities.
func resources(l *runtimeapi.LinuxContainerResources) Resources {
	var r Resources
	if l == nil {
		return r
	}
	if l.CpuPeriod > 0 && l.CpuQuota > 0 {
		r.CPULimit = resource.NewMilliQuantity(l.CpuQuota*1000/l.CpuPeriod, resource.DecimalSI)
	}
	if l.CpuShares > 0 {
		r.CPURequest = resource.NewMilliQuantity((l.CpuShares*1000+sharesPerCPU-1)/sharesPerCPU, resource.DecimalSI)
	}
	if l.MemoryLimitInBytes > 0 {
		r.MemoryLimit = resource.NewQuantity(l.MemoryLimitInBytes, resource.BinarySI)
	}
	return r
}
