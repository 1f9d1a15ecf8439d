package kubelet

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/devices"
)

// Volumes sets up the volumes of pods.
type Volumes interface {
	// Mount sets up every volume of a pod and refreshes those that follow an object. It is called at every sync.
	Mount(ctx context.Context, pod *corev1.Pod) error
	// Mounts is what a container mounts. release frees what must only live until the container is created; it may be nil.
	Mounts(pod *corev1.Pod, c *corev1.Container, env []corev1.EnvVar) (mounts []cri.Mount, release func(), err error)
	// Due is when a pod's volumes want to be mounted again although nothing has changed, zero for never: tokens end.
	RefreshAt(uid types.UID) time.Time
	// Devices are the block volumes a container uses.
	Devices(pod *corev1.Pod, c *corev1.Container) ([]cri.Device, error)
	// Groups are the groups that a pod's volumes ask for.
	SupplementalGroups(uid types.UID) []int64
	// Unmount takes down all volumes of a pod and removes their directories.
	Unmount(ctx context.Context, uid types.UID) error
	// Pods are those with directories on disk.
	Pods() ([]types.UID, error)
	// File reads a file of a pod's volume, without leaving the volume.
	ReadFile(pod *corev1.Pod, volume, path string) ([]byte, error)
}

// Images makes sure that images are there.
type Images interface {
	// Ensure returns the image as the runtime knows it. Errors tell their reason by a method Reason() string, such as ErrImagePull.
	Ensure(ctx context.Context, pod *corev1.Pod, c *corev1.Container, sandbox *cri.SandboxConfig) (ref string, err error)
}

// Cgroups keeps the group of each pod.
type Cgroups interface {
	// Ensure makes the group of a pod, with its limits, and returns what the runtime is told as its parent.
	Ensure(pod *corev1.Pod) (parent string, err error)
	// Grow raises the limits of a pod's group to what it may have now; Update also lowers them.
	Grow(pod *corev1.Pod) error
	Update(pod *corev1.Pod) error
	// Remove ends what is left in a pod's group and removes it.
	Remove(uid types.UID) error
	// Pods are those with groups.
	Pods() ([]types.UID, error)
}

// Objects holds the config maps and secrets that pods name.
type Objects interface {
	Register(pod *corev1.Pod)
	Unregister(uid types.UID)
	ConfigMap(namespace, name string) (*corev1.ConfigMap, error)
	Secret(namespace, name string) (*corev1.Secret, error)
}

// Devices gives containers the devices that plugins bring.
type Devices interface {
	// Allocate gives a pod that is to be admitted its devices.
	Allocate(ctx context.Context, pod *corev1.Pod) error
	// Prepare readies the devices of a container that is to be started, and says what it needs to use them.
	Prepare(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (devices.RunContainerOptions, error)
	// Health tells how the devices of a container are.
	Health(uid types.UID, container string) []corev1.ResourceStatus
}

// Handlers finds what the runtime calls a RuntimeClass.
type Handlers interface {
	Handler(class *string) (string, error)
}
