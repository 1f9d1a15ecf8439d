package volume

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"skiff/internal/client"
	"skiff/internal/kubelet/pluginregistry"
	"skiff/test/inprocess"
)

// clusterVolumes are the volumes of a node of an in-process API server.
func clusterVolumes(t *testing.T, root string) *Volumes {
	t.Helper()
	v := testVolumes(root, &fakeObjects{})
	o := v.Options
	o.Client = inprocess.Start(t, t.Context())
	return New(o)
}

// fakeDriver is a CSI driver that creates directories, and its registrar.
type fakeDriver struct {
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	socket string
	// capabilities are those besides STAGE_UNSTAGE_VOLUME. They are set before the driver starts.
	capabilities []csi.NodeServiceCapability_RPC_Type

	mu         sync.Mutex
	calls      []string
	published  *csi.NodePublishVolumeRequest
	registered *registration.RegistrationStatus
	// expandFails is the error of NodeExpandVolume.
	expandFails error
	expanded    *csi.NodeExpandVolumeRequest
	// fails has the errors of other calls, by their name and the volume.
	fails map[string]error
	// unpublishing, if set, is called before a volume is unpublished.
	unpublishing func()
}

// called records a call and returns the error that it ends with.
func (s *fakeDriver) called(call, volume string, details ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, strings.Join(append([]string{call, volume}, details...), " "))
	return s.fails[call+" "+volume]
}

// setError sets the error of a call for a volume; nil: it succeeds.
func (s *fakeDriver) setError(call string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails == nil {
		s.fails = map[string]error{}
	}
	s.fails[call] = err
}

// setExpandError sets the error of NodeExpandVolume.
func (s *fakeDriver) setExpandError(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expandFails = err
}

// lastExpansion is the last request to expand a volume.
func (s *fakeDriver) lastExpansion() *csi.NodeExpandVolumeRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.expanded
}

func (s *fakeDriver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: "disk.example.com", Endpoint: s.socket, SupportedVersions: []string{"1.0.0"}}, nil
}

func (s *fakeDriver) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registered = status
	return &registration.RegistrationStatusResponse{}, nil
}

func (s *fakeDriver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "id", MaxVolumesPerNode: 7, AccessibleTopology: &csi.Topology{Segments: map[string]string{"example.com/zone": "z"}}}, nil
}

func (s *fakeDriver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, capability := range append(s.capabilities, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: capability}}})
	}
	return response, nil
}

func (s *fakeDriver) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	_ = s.called("expand", r.VolumeId)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expanded = r
	return &csi.NodeExpandVolumeResponse{}, s.expandFails
}

func (s *fakeDriver) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := s.called("measure", r.VolumeId); err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: 100, Used: 30, Available: 60}, {Unit: csi.VolumeUsage_INODES, Total: 10, Used: 3, Available: 7},
	}}, nil
}

func (s *fakeDriver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, s.called("stage", r.VolumeId, r.PublishContext["where"])
}

func (s *fakeDriver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, s.called("unstage", r.VolumeId)
}

func (s *fakeDriver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := s.called("publish", r.VolumeId); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.published = r
	s.mu.Unlock()
	return &csi.NodePublishVolumeResponse{}, os.MkdirAll(r.TargetPath, 0o755)
}

func (s *fakeDriver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := s.called("unpublish", r.VolumeId); err != nil {
		return nil, err
	}
	s.mu.Lock()
	unpublishing := s.unpublishing
	s.mu.Unlock()
	if unpublishing != nil {
		unpublishing()
	}
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(r.TargetPath)
}

// TestVolumeLock: one caller at a time has a volume, one that is cancelled does not wait, and nothing is left of locks that nobody uses.
func TestVolumeLock(t *testing.T) {
	d := newDrivers(Options{})
	data := volumeData{Driver: "disk.example.com", Handle: "h"}
	unlock, err := d.lock(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.lock(cancelled, data); !errors.Is(err, context.Canceled) {
		t.Errorf("a lock that is held, with a context that is done: %v", err)
	}
	other, err := d.lock(t.Context(), volumeData{Driver: "disk.example.com", Handle: "other"})
	if err != nil {
		t.Fatal(err)
	}
	other()
	next := make(chan error)
	go func() {
		unlock, err := d.lock(context.Background(), data)
		next <- err
		unlock()
		next <- nil
	}()
	select {
	case <-next:
		t.Error("two callers have one volume")
	case <-time.After(20 * time.Millisecond):
	}
	unlock()
	if err := errors.Join(<-next, <-next); err != nil {
		t.Error(err)
	}
	if len(d.locks) != 0 {
		t.Errorf("%d locks are left", len(d.locks))
	}
}

// TestPublished: the CSI volumes of pods are found in a directory whose name looks like a pattern.
func TestPublished(t *testing.T) {
	v := testVolumes(filepath.Join(t.TempDir(), "node[1]"), &fakeObjects{})
	for _, pod := range []types.UID{"a", "b"} {
		dir := v.dir(pod, csiPlugin, "pv-"+string(pod))
		if err := errors.Join(os.MkdirAll(dir, 0o755), save(dir, volumeData{Driver: "disk.example.com", Handle: string(pod)})); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(v.Root, "pods/file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if all, err := v.csi.index.all(); err != nil || len(all) != 2 {
		t.Errorf("all volumes: %v, %v", all, err)
	}
	if ofPod, err := publishedFor(v.podDir("a")); err != nil || len(ofPod) != 1 || ofPod[v.dir("a", csiPlugin, "pv-a")].Handle != "a" {
		t.Errorf("the volumes of a pod: %v, %v", ofPod, err)
	}
}

// startDriver starts the driver and registers its socket with the kubelet.
func startDriver(t *testing.T, root string, capabilities ...csi.NodeServiceCapability_RPC_Type) *fakeDriver {
	t.Helper()
	registry := filepath.Join(root, "plugins_registry")
	if err := os.MkdirAll(registry, 0o755); err != nil {
		t.Fatal(err)
	}
	s := &fakeDriver{socket: filepath.Join(root, "disk.sock"), capabilities: capabilities}
	for _, path := range []string{s.socket, filepath.Join(registry, "disk-reg.sock")} {
		listener, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		csi.RegisterNodeServer(server, s)
		registration.RegisterRegistrationServer(server, s)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
	}
	return s
}

// runWithRegistry runs the volumes and the registry of their drivers until the test ends, and returns when the driver is registered.
func runWithRegistry(t *testing.T, v *Volumes) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	group, ctx := errgroup.WithContext(ctx)
	registry := &pluginregistry.Registry{
		Dir: filepath.Join(v.Root, "plugins_registry"), Handlers: map[string]pluginregistry.Handler{pluginregistry.CSIDriver: v.CSIDrivers()}, Log: v.Log,
	}
	group.Go(func() error { return registry.Run(ctx) })
	group.Go(func() error { return v.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := v.csi.registered("disk.example.com"); err == nil {
			return
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// attach attaches the volume pv-disk to the node, as the controller and the attacher of the driver do.
func attach(t *testing.T, v *Volumes, handle string, finalizers ...string) *storagev1.VolumeAttachment {
	t.Helper()
	attachment := put(t, v, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "csi-" + hexSum(handle+"disk.example.comnode"), Finalizers: finalizers},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: "disk.example.com", NodeName: "node", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: pointer("pv-disk")}},
	}).DeepCopy()
	attachment.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"where": "slot"}}
	attached, err := client.For[*storagev1.VolumeAttachment](v.Client).UpdateStatus(t.Context(), attachment)
	if err != nil {
		t.Fatal(err)
	}
	return attached
}

// followNode creates the Node object and reports the volumes in use in its status as the kubelet does. It returns a function that reads it.
func followNode(t *testing.T, v *Volumes) (node func() *corev1.Node) {
	t.Helper()
	put(t, v, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	node = func() *corev1.Node {
		n, err := client.For[*corev1.Node](v.Client).Get(context.Background(), "", "node")
		if err != nil {
			return nil
		}
		return n
	}
	v.Node = node
	v.InUseChanged = func() {
		used, err := v.InUse()
		if err != nil {
			t.Error(err)
		}
		editNode(t, v, func(n *corev1.Node) { n.Status.VolumesInUse = used })
		v.ReportedInUse(used)
	}
	return node
}

func editNode(t *testing.T, v *Volumes, edit func(*corev1.Node)) {
	t.Helper()
	n := v.Node().DeepCopy()
	edit(n)
	if _, err := client.For[*corev1.Node](v.Client).UpdateStatus(context.Background(), n); err != nil {
		t.Error(err)
	}
	v.NodeChanged()
}

// TestFailedSteps: the message of a failure names the step and the volume once, and devices have steps and a reason of their own.
func TestFailedSteps(t *testing.T) {
	v := clusterVolumes(t, t.TempDir())
	followNode(t, v)
	put(t, v, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "disk.example.com"}, Spec: storagev1.CSIDriverSpec{AttachRequired: pointer(false)}})
	driver := startDriver(t, v.Root)
	runWithRegistry(t, v)
	of := func(driver string) corev1.PersistentVolumeSource {
		return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h"}}
	}
	disk, absent := of("disk.example.com"), of("absent.example.com")
	local := corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: v.Root}}
	for name, test := range map[string]struct {
		source      corev1.PersistentVolumeSource
		call        string // of the driver, which fails
		block, away bool
		step, cause string
		reason      string
	}{
		"stage":           {source: disk, call: "stage h", step: "MountVolume.MountDevice", reason: "FailedMount"},
		"publish":         {source: disk, call: "publish h", step: "MountVolume.SetUp", reason: "FailedMount"},
		"driver":          {source: absent, step: "MountVolume.SetUp", cause: "driver name absent.example.com not found in the list of registered CSI drivers", reason: "FailedMount"},
		"affinity":        {source: disk, away: true, step: "MountVolume.NodeAffinity check", cause: "no matching NodeSelectorTerms", reason: "FailedMount"},
		"device-stage":    {source: disk, block: true, call: "stage h", step: "MapVolume.SetUpDevice", reason: "FailedMapVolume"},
		"device-publish":  {source: disk, block: true, call: "publish h", step: "MapVolume.MapPodDevice", reason: "FailedMapVolume"},
		"device-driver":   {source: absent, block: true, step: "MapVolume.SetUpDevice", cause: "driver name absent.example.com not found in the list of registered CSI drivers", reason: "FailedMapVolume"},
		"device-affinity": {source: disk, block: true, away: true, step: "MapVolume.NodeAffinity check", cause: "no matching NodeSelectorTerms", reason: "FailedMount"},
		"device-local":    {source: local, block: true, step: "MapVolume.MapBlockVolume", cause: fmt.Sprintf("path %q is not a block device", v.Root), reason: "FailedMapVolume"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := bound(t, v, name, test.source, func(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
				if test.block {
					claim.Spec.VolumeMode = pointer(corev1.PersistentVolumeBlock)
					pv.Spec.VolumeMode = claim.Spec.VolumeMode
				}
				if test.away {
					pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Operator = corev1.NodeSelectorOpExists
				}
			})
			if test.block {
				pod.Spec.Containers[0].VolumeMounts, pod.Spec.Containers[0].VolumeDevices = nil, []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
			}
			cause := test.cause
			if test.call != "" {
				driver.setError(test.call, status.Error(codes.Internal, "broken"))
				defer driver.setError(test.call, nil)
				cause = "rpc error: code = Internal desc = broken"
			}
			err := v.Mount(t.Context(), pod)
			want := fmt.Sprintf("%s failed for volume %q : %s", test.step, "pv-"+name, cause)
			var failed *MountError
			if !errors.As(err, &failed) || err.Error() != want || failed.Reason() != test.reason {
				t.Errorf("got  %v\nwant %s with the reason %s", err, want, test.reason)
			}
		})
	}
}

// TestNotAttachedInUse: volumes that are not attached are not in volumesInUse, also after a restart.
func TestNotAttachedInUse(t *testing.T) {
	v := clusterVolumes(t, t.TempDir())
	followNode(t, v)
	put(t, v, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "disk.example.com"}, Spec: storagev1.CSIDriverSpec{AttachRequired: pointer(false)}})
	startDriver(t, v.Root)
	runWithRegistry(t, v)
	pod := bound(t, v, "disk", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: "h"}}, nil)
	if err := v.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	for _, v := range []*Volumes{v, New(v.Options)} {
		if used, err := v.InUse(); err != nil || len(used) > 0 {
			t.Errorf("in use %v, %v", used, err)
		}
	}
}

// TestReadWriteOncePod: a volume with this access mode is mounted for one pod at a time, whoever bound the pods to the node.
func TestReadWriteOncePod(t *testing.T) {
	v := clusterVolumes(t, t.TempDir())
	followNode(t, v)
	driver := startDriver(t, v.Root)
	runWithRegistry(t, v)
	source := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: "h"}}
	first := bound(t, v, "disk", source, func(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		pv.Spec.AccessModes = claim.Spec.AccessModes
	})
	attach(t, v, "h")
	editNode(t, v, func(n *corev1.Node) {
		n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "kubernetes.io/csi/disk.example.com^h"}}
	})
	second := first.DeepCopy()
	second.UID = "second"
	ctx := t.Context()
	if err := v.Mount(ctx, first); err != nil {
		t.Fatal(err)
	}
	const message = `MountVolume.SetUp failed for volume "pv-disk" : volume uses the ReadWriteOncePod access mode and is already in use by another pod`
	if err := v.Mount(ctx, second); err == nil || err.Error() != message {
		t.Errorf("mounted for a second pod: %v", err)
	}
	// The pod that has the volume may mount it again, as after a restart of the kubelet, which knows nothing of the mount then.
	delete(v.state(first.UID).byName, "data")
	if err := v.Mount(ctx, first); err != nil {
		t.Errorf("mounted again: %v", err)
	}
	if err := v.Unmount(ctx, first.UID); err != nil {
		t.Fatal(err)
	}
	if err := v.Mount(ctx, second); err != nil {
		t.Errorf("the first pod is gone: %v", err)
	}
	if published := count(driver, "publish h"); published != 3 {
		t.Errorf("published %d times", published)
	}
}
