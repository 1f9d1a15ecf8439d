package kubelet

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"skiff/internal/kubelet/alignment"
	"skiff/internal/kubelet/cpus"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/devices"
)

// Volumes sets up the volumes of pods.
type Volumes interface {
	// Mount sets up every volume of a pod and refreshes those with the content of API objects. It is called at every sync.
	Mount(ctx context.Context, pod *corev1.Pod) error
	// Mounts returns the mounts of a container. release is called when the container has been created; it may be nil.
	Mounts(pod *corev1.Pod, c *corev1.Container, env []corev1.EnvVar) (mounts []cri.Mount, release func(), err error)
	// RefreshAt is when a pod's volumes must be mounted again although nothing has changed, such as for expiring tokens; zero for never.
	RefreshAt(uid types.UID) time.Time
	// Devices are the block volumes a container uses.
	Devices(pod *corev1.Pod, c *corev1.Container) ([]cri.Device, error)
	// SupplementalGroups are the groups that a pod's volumes require.
	SupplementalGroups(uid types.UID) []int64
	// Unmount unmounts all volumes of a pod and removes their directories.
	Unmount(ctx context.Context, uid types.UID) error
	// RemoveDir removes the directory of a pod whose volumes are unmounted, but nothing that is mounted in it nevertheless.
	RemoveDir(ctx context.Context, uid types.UID) error
	// Pods lists the pods that have directories on disk.
	Pods() ([]types.UID, error)
	// ReadFile reads a file of a pod's volume. The path cannot lead out of the volume.
	ReadFile(pod *corev1.Pod, volume, path string) ([]byte, error)
}

// Images makes sure that images are present.
type Images interface {
	// Ensure pulls the image of a container if needed and returns its reference in the runtime. Errors have a method ImageReason() with
	// the reason and message for the container's status.
	Ensure(ctx context.Context, pod *corev1.Pod, c *corev1.Container, sandbox *cri.SandboxConfig) (ref string, err error)
}

// Cgroups manages the cgroups of pods.
type Cgroups interface {
	// Ensure creates the cgroup of a pod with its limits and returns the cgroup parent for the runtime. starts is false for a pod that runs already.
	Ensure(pod *corev1.Pod, starts bool) (parent string, err error)
	// Grow raises the limits of a pod's cgroup to the allocated resources; Update also lowers them.
	Grow(pod *corev1.Pod) error
	Update(pod *corev1.Pod) error
	// Remove kills the remaining processes in a pod's cgroup and removes it.
	Remove(uid types.UID) error
	// Pods lists the pods that have a cgroup.
	Pods() ([]types.UID, error)
}

// Objects provides the ConfigMaps and Secrets that registered pods refer to.
type Objects interface {
	Register(pod *corev1.Pod)
	Unregister(uid types.UID)
	ConfigMap(namespace, name string) (*corev1.ConfigMap, error)
	Secret(namespace, name string) (*corev1.Secret, error)
}

// Allocator allocates devices, exclusive CPUs and memory of NUMA nodes to containers.
type Allocator interface {
	// Allocate allocates the resources of a pod that is being admitted.
	Allocate(ctx context.Context, pod *corev1.Pod) error
}

// CPUs has the CPUs that containers may use.
type CPUs interface {
	// Of returns the CPUs that a container may use; an empty set means all.
	Of(uid types.UID, container string) cpuset.CPUSet
	// Applied records the CPUs that a container was created with.
	Applied(created cpus.Container, set cpuset.CPUSet)
	// Exclusive returns the CPUs that only this container may use, HasExclusive whether any container of a pod has such CPUs.
	Exclusive(uid types.UID, container string) cpuset.CPUSet
	HasExclusive(uid types.UID) bool
}

// Memory has the NUMA nodes whose memory containers may use.
type Memory interface {
	// NUMANodes returns the NUMA nodes of a container; an empty mask means all.
	NUMANodes(uid types.UID, container string) alignment.Mask
	// Starting is called before a container starts.
	Starting(pod *corev1.Pod, c *corev1.Container)
}

// Devices prepares the devices of device plugins that are allocated to containers.
type Devices interface {
	// Prepare prepares the devices of a container that is about to start.
	Prepare(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (devices.RunContainerOptions, error)
	// Health returns the health of a container's devices.
	Health(uid types.UID, container string) []corev1.ResourceStatus
}

// Services reads Services. Both functions fail until the Services have been listed; Get returns nil if there is none.
type Services interface {
	List(namespace string) ([]*corev1.Service, error)
	Get(namespace, name string) (*corev1.Service, error)
}

// ResourceClaims prepares the devices of ResourceClaims.
type ResourceClaims interface {
	// Prepare prepares the devices of a pod that is about to start.
	Prepare(ctx context.Context, pod *corev1.Pod) error
	// CDIDevices are the names of the devices of the Container Device Interface that a container uses.
	CDIDevices(pod *corev1.Pod, c *corev1.Container) ([]string, error)
	// Health returns the health of the devices of a container's claims.
	Health(pod *corev1.Pod, c *corev1.Container) []corev1.ResourceStatus
	// Unprepare unprepares the devices of a pod whose containers have stopped.
	Unprepare(ctx context.Context, pod *corev1.Pod) error
}

// Handlers resolves RuntimeClasses to runtime handlers.
type Handlers interface {
	Handler(class *string) (string, error)
}
