// Package volume sets up and removes the volumes of this node's pods.
//
// Mount is called by every sync of a pod. It sets up missing volumes and updates those whose content comes from API
// objects. Mounts returns a container's mounts. Unmount removes everything once the pod's containers are gone. The state
// is on disk, in the layout of upstream's kubelet:
//
//	pods/<uid>/volumes/kubernetes.io~configmap/<volume>/    a volume
//	pods/<uid>/volume-subpaths/<volume>/<container>/<n>     a subPath, bind-mounted here for a container
//	pods/<uid>/plugins/kubernetes.io~empty-dir/<volume>/    marks a volume as complete
//
// Everything a container can write is untrusted: it may replace any component of a path with a symlink at any time. The
// kernel therefore resolves paths beneath the volume's root (beneath.go), removal neither follows symlinks nor crosses
// mounts (remove.go), and mounts use file descriptors (mountpoint.go).
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
	"time"

	"golang.org/x/sync/errgroup"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/container"
	"skiff/internal/kubelet/metrics"
	"skiff/internal/kubelet/mounthelper"
	"skiff/internal/kubelet/pluginregistry"
)

// Objects provides the API objects that volumes refer to.
type Objects interface {
	ConfigMap(namespace, name string) (*corev1.ConfigMap, error)
	Secret(namespace, name string) (*corev1.Secret, error)
	TrustBundles() ([]*certificatesv1.ClusterTrustBundle, error)
}

// Options are the dependencies of Volumes.
type Options struct {
	// Root is the kubelet's directory.
	Root string
	// LocalPathDir is the parent of the directories of volumes that skiff provisions on this node; empty: none are removed.
	LocalPathDir string
	Client       *client.Client
	Objects      Objects
	NodeName     string
	// Node returns the Node object; nil before it was read.
	Node func() *corev1.Node
	// Image pulls the image of a volume and returns the runtime's reference to it.
	Image func(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (string, error)
	// RecursiveReadOnly reports whether a pod's runtime handler supports recursive read-only mounts.
	RecursiveReadOnly func(pod *corev1.Pod) bool
	Events            client.EventRecorder
	// StatsPeriod is how long the measured usage of a volume is used; zero: a minute, negative: volumes are not measured.
	StatsPeriod time.Duration
	// InUseChanged is called when the result of InUse may have changed; it may be nil.
	InUseChanged func()
	// Metrics may be nil.
	Metrics *metrics.Metrics
	Log     *slog.Logger
}

// Volumes manages the volumes of this node's pods. All methods may be called concurrently.
type Volumes struct {
	Options
	tokens       *tokens
	certificates *certificates
	csi          *drivers
	// helperDirs are the directories of the host's mount helpers.
	helperDirs []string

	// usageOf is usage, except in tests.
	usageOf func(ctx context.Context, m *mounted) (Usage, error)

	mu   sync.Mutex // guards what follows, and the maps of each pod's volumes
	pods map[types.UID]*podVolumes
	// wanted are the volumes that pods are about to use and that must be attached, and whether they were reported since.
	wanted map[types.UID]map[corev1.UniqueVolumeName]bool
	// ownFiles and otherFiles are the volumes to measure: those with files on the node's own file systems, and others.
	ownFiles, otherFiles measureQueue
	// nodeObserved is closed and replaced by NodeChanged and ReportedInUse.
	nodeObserved chan struct{}
	// shared is set if Prepare bind-mounted the root directory onto itself.
	shared bool
}

// podVolumes are the volumes of one pod.
type podVolumes struct {
	changing sync.Mutex // held while the pod's volumes are mounted or unmounted
	byName   map[string]*mounted
	// requested is when the first attempt to mount a volume began, for volumes that are not mounted yet.
	requested map[string]time.Time
	// expansions are the sizes of volumes that can be expanded. Each belongs to whoever sets up the volume.
	expansions map[string]*expansion
	// refreshAt is when a volume has to be mounted again although nothing has changed.
	refreshAt map[string]time.Time
	measured  map[string]*measurement
}

// mounted is a volume that is set up.
type mounted struct {
	plugin   string // its plugin's name
	path     string // what containers mount; the device of a block volume
	readOnly bool
	managed  bool   // created by the kubelet, so SELinux may relabel it
	image    string // image reference of an image volume, instead of path
	block    bool
	groups   []int64 // supplemental groups from the persistent volume
	// republish is set if the CSI driver has requiresRepublish.
	republish bool
	csi       volumeData // of a CSI volume
	written   [32]byte   // hash of the content of a volume from API objects
}

// New returns the Volumes of a node. It does not touch the disk.
func New(o Options) *Volumes {
	v := &Volumes{Options: o, pods: map[types.UID]*podVolumes{}, wanted: map[types.UID]map[corev1.UniqueVolumeName]bool{}, nodeObserved: make(chan struct{}), helperDirs: mounthelper.Dirs}
	v.tokens = newTokens(o.Client)
	v.certificates = newCertificates(o.Client, o.NodeName)
	v.csi = newDrivers(o)
	v.usageOf = v.usage
	return v
}

// Prepare creates the directories that all pods share and makes the root a shared mount, which mount propagation between
// containers needs.
func (v *Volumes) Prepare() error {
	if err := os.MkdirAll(filepath.Join(v.Root, "pods"), 0o750); err != nil {
		return err
	}
	if v.LocalPathDir != "" {
		// Directories in it are writable for every user. Only root may get there.
		if err := errors.Join(os.MkdirAll(v.LocalPathDir, 0o700), os.Chmod(v.LocalPathDir, 0o700)); err != nil {
			return err
		}
	}
	root, err := filepath.EvalSymlinks(v.Root)
	if err != nil {
		return err
	}
	shared, err := share(root)
	v.mu.Lock()
	v.shared = v.shared || shared
	v.mu.Unlock()
	return err
}

// Release undoes the mount of Prepare. Volumes are not touched.
func (v *Volumes) Release() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.shared {
		return nil
	}
	v.shared = false
	root, err := filepath.EvalSymlinks(v.Root)
	if err != nil {
		return err
	}
	return unmount(root)
}

// CSIDrivers returns the handler of CSI drivers for the registry of plugins.
func (v *Volumes) CSIDrivers() pluginregistry.Handler { return v.csi }

// Run removes the directories of deleted volumes until ctx is done, and then disconnects from the CSI drivers.
func (v *Volumes) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return v.csi.run(ctx) })
	group.Go(func() error { return v.removeLocalPaths(ctx) })
	return group.Wait()
}

// maxMounting is how many volumes of a pod are set up at the same time.
const maxMounting = 16

// Mount sets up every volume that a container of the pod uses, and updates those with content from API objects. The error
// joins one MountError per missing volume, in the order of the pod's spec. If a volume exists but cannot be updated, it is kept as it is and an event is
// recorded. A volume that takes long, such as one whose server does not respond, does not keep others waiting.
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
	failures := make([]error, len(pod.Spec.Volumes))
	mount := func(sequence []int) {
		for _, i := range sequence {
			failures[i] = v.mountVolume(ctx, state, pod, &pod.Spec.Volumes[i])
		}
	}
	sequences := independentVolumes(pod, used)
	if len(sequences) == 1 {
		mount(sequences[0])
		return errors.Join(failures...)
	}
	var group errgroup.Group
	group.SetLimit(maxMounting)
	for _, sequence := range sequences {
		group.Go(func() error {
			mount(sequence)
			return nil
		})
	}
	_ = group.Wait()
	return errors.Join(failures...)
}

// independentVolumes are the indexes of a pod's volumes that are used, in sequences that can be set up at the same time: those of one claim are one volume,
// and a path of the host may be below another. Volumes that need nothing but the node and the API server come first.
func independentVolumes(pod *corev1.Pod, used map[string]bool) [][]int {
	var quick, others [][]int
	hostPaths := -1 // in quick
	claims := map[string]int{}
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if !used[volume.Name] {
			continue
		}
		claim, isClaim := claimOf(pod, volume)
		switch {
		case isClaim:
			at, known := claims[claim.claim]
			if !known {
				at = len(others)
				claims[claim.claim], others = at, append(others, nil)
			}
			others[at] = append(others[at], i)
		case volume.HostPath != nil:
			if hostPaths < 0 {
				hostPaths, quick = len(quick), append(quick, nil)
			}
			quick[hostPaths] = append(quick[hostPaths], i)
		case volume.EmptyDir != nil, fromAPIObjects(volume):
			quick = append(quick, []int{i})
		default:
			others = append(others, []int{i})
		}
	}
	return append(quick, others...)
}

// mountVolume sets up one volume or updates it. The caller holds changing of the pod's volumes.
func (v *Volumes) mountVolume(ctx context.Context, state *podVolumes, pod *corev1.Pod, volume *corev1.Volume) error {
	m := v.mounted(pod.UID, volume.Name)
	if m != nil && !m.republish && !fromAPIObjects(volume) {
		v.checkSize(ctx, pod, volume)
		v.setRefresh(state, volume.Name, m)
		return nil
	}
	began := time.Now()
	set, err := v.setUp(ctx, pod, volume, m)
	if m == nil {
		v.measureMount(state, volume, began, set, err)
	}
	switch {
	case err == nil:
		v.setMounted(state, volume.Name, set)
		v.setRefresh(state, volume.Name, set)
	case m != nil || v.onDisk(pod, volume):
		if m == nil {
			v.setMounted(state, volume.Name, v.apiVolume(pod, volume))
		}
		v.Events.Event(pod, corev1.EventTypeWarning, "FailedMount", mountError(volume.Name, stepSetUp, err).Error())
	default:
		return mountError(volume.Name, stepSetUp, err)
	}
	return nil
}

// measureMount records an attempt to mount a volume.
func (v *Volumes) measureMount(state *podVolumes, volume *corev1.Volume, began time.Time, set *mounted, err error) {
	plugin := pluginOf(volume)
	if set != nil {
		plugin = set.plugin
	}
	v.Metrics.StorageOperation(plugin, "volume_mount", time.Since(began), err)
	v.mu.Lock()
	defer v.mu.Unlock()
	requested, before := state.requested[volume.Name]
	if !before {
		requested = began
	}
	switch {
	case err == nil:
		delete(state.requested, volume.Name)
		v.Metrics.VolumeMounted(plugin, time.Since(requested))
	case !before:
		state.requested[volume.Name] = began
	}
}

// The steps that can fail, in upstream's words. Those of devices begin with mapVolume.
const (
	mapVolume = "MapVolume."

	stepAffinity = "MountVolume.NodeAffinity check failed"
	stepAttach   = "MountVolume.WaitForAttach failed"
	stepStage    = "MountVolume.MountDevice failed"
	stepSetUp    = "MountVolume.SetUp failed"
	stepExpand   = "MountVolume.Setup failed while expanding volume"

	stepMapAffinity = mapVolume + "NodeAffinity check failed"
	stepMapAttach   = mapVolume + "WaitForAttach failed"
	stepMapStage    = mapVolume + "SetUpDevice failed"
	stepMapPublish  = mapVolume + "MapPodDevice failed"
	stepMapDevice   = mapVolume + "MapBlockVolume failed"
	stepMapExpand   = mapVolume + "MarkVolumeAsMounted failed while expanding volume"
)

// MountError is the failure to set up one volume, with upstream's message.
type MountError struct {
	Volume string
	Step   string
	Err    error
}

func (e *MountError) Error() string {
	return fmt.Sprintf("%s for volume %q : %v", e.Step, e.Volume, e.Err)
}

// Reason is the reason of the event about the failure, upstream's.
func (e *MountError) Reason() string {
	if strings.HasPrefix(e.Step, mapVolume) && e.Step != stepMapAffinity {
		return "FailedMapVolume"
	}
	return "FailedMount"
}

// Unwrap returns the cause.
func (e *MountError) Unwrap() error { return e.Err }

// mountError is the failure of a volume in a step, unless the error says which step has failed.
func mountError(volume, step string, err error) error {
	var mountErr *MountError
	if errors.As(err, &mountErr) {
		return mountErr
	}
	return &MountError{Volume: volume, Step: step, Err: err}
}

// stepOf is the step of a device or of a file system.
func stepOf(block bool, ofDevice, ofFileSystem string) string {
	if block {
		return ofDevice
	}
	return ofFileSystem
}

// usedVolumes returns the names of the volumes that a container mounts, uses as a device or reads environment variables
// from. Others are not set up.
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

// setUp sets up one volume, or updates it if it exists.
func (v *Volumes) setUp(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume, m *mounted) (*mounted, error) {
	switch {
	case volume.EmptyDir != nil:
		return v.setUpEmptyDir(ctx, pod, volume)
	case fromAPIObjects(volume):
		return v.setUpAPIVolume(ctx, pod, volume, m)
	case volume.HostPath != nil:
		return setUpHostPath(volume.HostPath, false)
	case volume.Image != nil:
		return v.setUpImage(ctx, pod, volume)
	case volume.PersistentVolumeClaim != nil, volume.Ephemeral != nil:
		claim, _ := claimOf(pod, volume)
		return v.setUpClaim(ctx, pod, claim)
	case volume.NFS != nil:
		return v.setUpNFS(ctx, pod, nfsVolume{name: volume.Name, source: volume.NFS, readOnly: volume.NFS.ReadOnly})
	case volume.CSI != nil:
		return v.setUpInlineCSI(ctx, pod, volume)
	case volume.VolumeSource == corev1.VolumeSource{}:
		// A volume without a source is an emptyDir.
		return v.setUpEmptyDir(ctx, pod, &corev1.Volume{Name: volume.Name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	return nil, errors.New("no volume plugin matched: this kubelet has no driver for volumes of that kind built in, use a CSI driver")
}

// fromAPIObjects reports whether a volume's content comes from API objects and is updated with them.
func fromAPIObjects(volume *corev1.Volume) bool {
	return volume.ConfigMap != nil || volume.Secret != nil || volume.DownwardAPI != nil || volume.Projected != nil
}

// Unmount unmounts all volumes of a pod and removes their directories; other files of the pod are kept. It is called when
// no container of the pod is running, and again after an error.
func (v *Volumes) Unmount(ctx context.Context, uid types.UID) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	state := v.state(uid)
	state.changing.Lock()
	defer state.changing.Unlock()
	began := time.Now()
	err := v.tearDown(ctx, uid)
	v.measureUnmount(state, began, err)
	if err != nil {
		return err
	}
	v.mu.Lock()
	delete(v.pods, uid)
	wanted := len(v.wanted[uid]) > 0
	delete(v.wanted, uid)
	v.mu.Unlock()
	if wanted {
		v.inUseChanged()
	}
	v.tokens.forget(uid)
	v.certificates.forget(uid)
	return nil
}

// tearDown unmounts the volumes of a pod and removes their directories.
func (v *Volumes) tearDown(ctx context.Context, uid types.UID) error {
	dir := v.podDir(uid)
	// The mounts of subPaths use the file systems of volumes: a driver could not close their devices.
	if subPaths := filepath.Join(dir, subPathsDir); exists(subPaths) {
		if err := unmountBelow(subPaths); err != nil {
			return err
		}
	}
	if err := v.csi.tearDown(ctx, uid, dir); err != nil {
		return err
	}
	if err := unmountBelow(dir); err != nil {
		return err
	}
	for _, name := range []string{subPathsDir, "volumes", "volumeDevices", "plugins"} {
		if err := removeTree(ctx, dir, name); err != nil {
			return err
		}
	}
	return nil
}

// RemoveDir removes the directory of a pod whose volumes are unmounted. What a driver that responds late has mounted in it since is unmounted; its
// content is not removed.
func (v *Volumes) RemoveDir(ctx context.Context, uid types.UID) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	dir := v.podDir(uid)
	if err := removeDir(ctx, dir); err == nil {
		return nil
	}
	if err := unmountBelow(dir); err != nil {
		return err
	}
	return removeDir(ctx, dir)
}

// removeDir removes a directory. It fails if something is mounted in it.
func removeDir(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := removeTree(ctx, dir, entry.Name()); err != nil {
			return err
		}
	}
	return os.Remove(dir)
}

// measureUnmount records the attempt to unmount the volumes of a pod, which are unmounted together.
func (v *Volumes) measureUnmount(state *podVolumes, began time.Time, err error) {
	took := time.Since(began)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, m := range state.byName {
		v.Metrics.StorageOperation(m.plugin, "volume_unmount", took, err)
	}
}

// Pods returns the UIDs of the pods that have a directory.
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

// SupplementalGroups returns the groups that a pod's persistent volumes require.
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

// ReadFile reads a file of one of a pod's volumes. It does not follow symlinks out of the volume.
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

func (v *Volumes) setMounted(state *podVolumes, volume string, m *mounted) {
	v.mu.Lock()
	defer v.mu.Unlock()
	state.byName[volume] = m
}

func (v *Volumes) state(uid types.UID) *podVolumes {
	v.mu.Lock()
	defer v.mu.Unlock()
	state := v.pods[uid]
	if state == nil {
		state = &podVolumes{
			byName: map[string]*mounted{}, requested: map[string]time.Time{}, expansions: map[string]*expansion{},
			refreshAt: map[string]time.Time{}, measured: map[string]*measurement{},
		}
		v.pods[uid] = state
	}
	return state
}

// subPathsDir is the directory of the mounts of subPaths in a pod's directory.
const subPathsDir = "volume-subpaths"

func (v *Volumes) podDir(uid types.UID) string { return filepath.Join(v.Root, "pods", string(uid)) }

// dir returns the directory of a volume. Slashes in plugin names become tildes.
func (v *Volumes) dir(uid types.UID, plugin, volume string) string {
	return filepath.Join(v.podDir(uid), "volumes", strings.ReplaceAll(plugin, "/", "~"), volume)
}

// makeDir creates a volume's directory with the given mode, regardless of the umask.
func (v *Volumes) makeDir(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.Chmod(dir, mode)
}

// checkUID rejects UIDs that are not a plain file name. UIDs of static pods come from files.
func checkUID(uid types.UID) error {
	if uid == "" || uid == "." || uid == ".." || strings.Contains(string(uid), "/") {
		return fmt.Errorf("pod UID %q is not a valid directory name", uid)
	}
	return nil
}

// fsGroup returns the pod's fsGroup, nil for none.
func fsGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}
