// Package volume makes the volumes of this node's pods and takes them away again.
//
// Mount is called at every look at a pod. It sets up what is missing and brings volumes made of API objects up to date; Mounts says
// what of it a container gets to see; Unmount takes everything down once the pod's containers are gone. What exists is kept on
// disk, in the layout that upstream's kubelet has below its root:
//
//	pods/<uid>/volumes/kubernetes.io~configmap/<volume>/    a volume
//	pods/<uid>/volume-subpaths/<volume>/<container>/<n>     a subPath of one, bound here for a container
//	pods/<uid>/plugins/kubernetes.io~empty-dir/<volume>/    says that a volume is complete
//
// Whatever a container can write is hostile: it may turn any part of a path into a symlink at any moment. Paths into volumes
// are therefore resolved by the kernel beneath their root (beneath.go), removal neither follows links nor crosses mounts
// (remove.go), and mounts go by descriptors (mountpoint.go).
package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/container"
)

// Objects are the API objects that volumes are made of.
type Objects interface {
	ConfigMap(namespace, name string) (*corev1.ConfigMap, error)
	Secret(namespace, name string) (*corev1.Secret, error)
	TrustBundles() ([]*certificatesv1.ClusterTrustBundle, error)
}

// Options are what volumes need.
type Options struct {
	// Root is the kubelet's directory.
	Root     string
	Client   *client.Client
	Objects  Objects
	NodeName string
	// Node is this node as last seen; nil before it is known.
	Node func() *corev1.Node
	// Image makes sure that the image of a volume is present and returns what the runtime calls it.
	Image func(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (string, error)
	// RecursiveReadOnly says whether a pod's runtime can make mounts read-only with all that is mounted below them.
	RecursiveReadOnly func(pod *corev1.Pod) bool
	Events            client.EventRecorder
	Log               *slog.Logger
}

// Volumes are those of this node's pods. All methods may be called concurrently.
type Volumes struct {
	Options
	tokens       *tokens
	certificates *certificates
	csi          *drivers

	mu   sync.Mutex // guards what follows, and each pod's byName
	pods map[types.UID]*podVolumes
	// shared is set when the root had to be bound on itself.
	shared bool
}

// podVolumes are the volumes of one pod.
type podVolumes struct {
	changing sync.Mutex // held while the pod's volumes are changed
	byName   map[string]*mounted
}

// mounted is a volume that is set up.
type mounted struct {
	kind     string // the plugin's name
	path     string // what containers mount; a device for block volumes
	readOnly bool
	managed  bool   // made by the kubelet, so that labels may be changed
	image    string // of an image volume, instead of a path
	block    bool
	groups   []int64 // groups the volume asks for
	// republish says that the driver wants to be called at every look, as those do that hand out secrets.
	republish bool
	written   [32]byte // what a volume made of API objects holds
}

// New makes the volumes of a node. It touches nothing.
func New(o Options) *Volumes {
	v := &Volumes{Options: o, pods: map[types.UID]*podVolumes{}}
	v.tokens = newTokens(o.Client)
	v.certificates = newCertificates(o.Client, o.NodeName)
	v.csi = newDrivers(o)
	return v
}

// Prepare makes the directories all pods share. Mounts below the root have to be shared for containers to see each other's.
func (v *Volumes) Prepare() error {
	if err := os.MkdirAll(filepath.Join(v.Root, "pods"), 0o750); err != nil {
		return err
	}
	shared, err := share(v.Root)
	v.mu.Lock()
	v.shared = v.shared || shared
	v.mu.Unlock()
	return err
}

// Release undoes what Prepare mounted. Volumes that are still there stay.
func (v *Volumes) Release() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.shared {
		return nil
	}
	v.shared = false
	return unmount(v.Root)
}

// Run watches for storage drivers until ctx ends.
func (v *Volumes) Run(ctx context.Context) error { return v.csi.run(ctx) }

// Mount sets up every volume that a container of the pod uses, and refreshes those made of API objects. The error joins one for each
// volume that is not there, with the text that events about it have; a volume that is there and could not be refreshed stays as it
// is, and an event says why.
func (v *Volumes) Mount(ctx context.Context, pod *corev1.Pod) error {
	if err := checkUID(pod.UID); err != nil {
		return err
	}
	used := usedVolumes(pod)
	if len(used) == 0 {
		return nil
	}
	state := v.state(pod.UID)
	state.changing.Lock()
	defer state.changing.Unlock()
	var failures []error
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if !used[volume.Name] {
			continue
		}
		m := v.mounted(pod.UID, volume.Name)
		if m != nil && !m.republish && !isLive(volume) {
			continue
		}
		set, err := v.setUp(ctx, pod, volume, m)
		switch {
		case err == nil:
			v.keep(state, volume.Name, set)
		case m != nil || v.onDisk(pod, volume):
			if m == nil {
				v.keep(state, volume.Name, v.filesVolume(pod, volume))
			}
			v.Events.Event(pod, corev1.EventTypeWarning, "FailedMount", mountError(volume.Name, err).Error())
		default:
			failures = append(failures, mountError(volume.Name, err))
		}
	}
	return errors.Join(failures...)
}

// MountError is why one volume is not there.
type MountError struct {
	Volume string
	Step   string
	Err    error
}

func (e *MountError) Error() string {
	return fmt.Sprintf("%s failed for volume %q : %v", e.Step, e.Volume, e.Err)
}

// Unwrap returns what went wrong.
func (e *MountError) Unwrap() error { return e.Err }

func mountError(volume string, err error) error {
	var already *MountError
	if errors.As(err, &already) {
		return already
	}
	return &MountError{Volume: volume, Step: "MountVolume.SetUp", Err: err}
}

// usedVolumes are the names of volumes that a container mounts, uses as a device or reads variables from. Others are not set up.
func usedVolumes(pod *corev1.Pod) map[string]bool {
	used := map[string]bool{}
	for _, c := range container.All(&pod.Spec) {
		for _, mount := range c.VolumeMounts {
			used[mount.Name] = true
		}
		for _, device := range c.VolumeDevices {
			used[device.Name] = true
		}
		for _, variable := range c.Env {
			if variable.ValueFrom != nil && variable.ValueFrom.FileKeyRef != nil {
				used[variable.ValueFrom.FileKeyRef.VolumeName] = true
			}
		}
	}
	return used
}

// setUp sets up one volume, or refreshes it where it is there already.
func (v *Volumes) setUp(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume, m *mounted) (*mounted, error) {
	switch {
	case volume.EmptyDir != nil:
		return v.setUpEmptyDir(pod, volume)
	case isLive(volume):
		return v.setUpFiles(ctx, pod, volume, m)
	case volume.HostPath != nil:
		return setUpHostPath(volume.HostPath, false)
	case volume.Image != nil:
		return v.setUpImage(ctx, pod, volume)
	case volume.PersistentVolumeClaim != nil:
		return v.setUpClaim(ctx, pod, volume.Name, volume.PersistentVolumeClaim.ClaimName, volume.PersistentVolumeClaim.ReadOnly, false)
	case volume.Ephemeral != nil:
		return v.setUpClaim(ctx, pod, volume.Name, pod.Name+"-"+volume.Name, false, true)
	case volume.CSI != nil:
		return v.setUpInlineCSI(ctx, pod, volume)
	case volume.VolumeSource == corev1.VolumeSource{}:
		// A volume without a source is an emptyDir.
		return v.setUpEmptyDir(pod, &corev1.Volume{Name: volume.Name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	return nil, errors.New("no volume plugin matched: this kubelet has no driver for volumes of that kind built in, use a CSI driver")
}

// isLive tells volumes made of API objects, which follow them.
func isLive(volume *corev1.Volume) bool {
	return volume.ConfigMap != nil || volume.Secret != nil || volume.DownwardAPI != nil || volume.Projected != nil
}

// Unmount takes down all volumes of a pod and removes their directories; other files of the pod stay. It is called when no container of the
// pod runs any more, and again after an error.
func (v *Volumes) Unmount(ctx context.Context, uid types.UID) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	state := v.state(uid)
	state.changing.Lock()
	defer state.changing.Unlock()
	dir := v.podDir(uid)
	if err := v.csi.tearDown(ctx, uid, dir); err != nil {
		return err
	}
	if err := unmountBelow(dir); err != nil {
		return err
	}
	for _, name := range []string{"volume-subpaths", "volumes", "volumeDevices", "plugins"} {
		if err := removeTree(dir, name); err != nil {
			return err
		}
	}
	v.mu.Lock()
	delete(v.pods, uid)
	v.mu.Unlock()
	v.tokens.forget(uid)
	v.certificates.forget(uid)
	return nil
}

// Pods returns the pods that have a directory.
func (v *Volumes) Pods() ([]types.UID, error) {
	entries, err := os.ReadDir(filepath.Join(v.Root, "pods"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var uids []types.UID
	for _, entry := range entries {
		if entry.IsDir() {
			uids = append(uids, types.UID(entry.Name()))
		}
	}
	return uids, nil
}

// Groups are the groups that a pod's persistent volumes ask for.
func (v *Volumes) SupplementalGroups(uid types.UID) []int64 {
	state := v.state(uid)
	v.mu.Lock()
	defer v.mu.Unlock()
	var groups []int64
	for _, m := range state.byName {
		groups = append(groups, m.groups...)
	}
	return groups
}

// File reads a file of one of a pod's volumes, without leaving the volume.
func (v *Volumes) ReadFile(pod *corev1.Pod, volume, path string) ([]byte, error) {
	m := v.mounted(pod.UID, volume)
	if m == nil || m.path == "" {
		return nil, fmt.Errorf("volume %q is not set up", volume)
	}
	const limit = 1 << 20
	return readBeneath(m.path, path, limit)
}

func (v *Volumes) mounted(uid types.UID, volume string) *mounted {
	v.mu.Lock()
	defer v.mu.Unlock()
	if state := v.pods[uid]; state != nil {
		return state.byName[volume]
	}
	return nil
}

func (v *Volumes) keep(state *podVolumes, volume string, m *mounted) {
	v.mu.Lock()
	defer v.mu.Unlock()
	state.byName[volume] = m
}

func (v *Volumes) state(uid types.UID) *podVolumes {
	v.mu.Lock()
	defer v.mu.Unlock()
	state := v.pods[uid]
	if state == nil {
		state = &podVolumes{byName: map[string]*mounted{}}
		v.pods[uid] = state
	}
	return state
}

func (v *Volumes) podDir(uid types.UID) string { return filepath.Join(v.Root, "pods", string(uid)) }

// directory is where a volume of a plugin is. Plugins' names have a slash, which directories cannot have.
func (v *Volumes) dir(uid types.UID, plugin, volume string) string {
	return filepath.Join(v.podDir(uid), "volumes", strings.ReplaceAll(plugin, "/", "~"), volume)
}

// makeDir makes a volume's directory, writable for whoever the container's user is.
func (v *Volumes) makeDir(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.Chmod(dir, mode)
}

// checkUID refuses ids that would lead somewhere else. The API server makes ids, but those of static pods come from files.
func checkUID(uid types.UID) error {
	if uid == "" || uid == "." || uid == ".." || strings.Contains(string(uid), "/") {
		return fmt.Errorf("pod UID %q is no name of a directory", uid)
	}
	return nil
}

// fsGroup is the group that owns a pod's volumes, nil for none.
func fsGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}
