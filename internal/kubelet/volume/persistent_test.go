package volume

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"skiff/internal/client"
	"skiff/internal/kind"
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

func put[T kind.Object](t *testing.T, v *Volumes, object T) T {
	t.Helper()
	created, err := client.For[T](v.Client).Create(t.Context(), object, client.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// bound creates a claim that is bound to a volume with the given source, and a pod that uses it.
func bound(t *testing.T, v *Volumes, name string, source corev1.PersistentVolumeSource, change func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim)) *corev1.Pod {
	t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name, AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"}, Resources: corev1.VolumeResourceRequirements{Requests: size}, StorageClassName: pointer("")},
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name, Annotations: map[string]string{groupAnnotation: "777"}},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source, Capacity: size, AccessModes: claim.Spec.AccessModes, NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "never", Operator: corev1.NodeSelectorOpDoesNotExist}}}}}}},
	}
	if change != nil {
		change(pv, claim)
	}
	phase := claim.Status.Phase
	claim = put(t, v, claim).DeepCopy()
	if pv.Spec.ClaimRef == nil {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: name, UID: claim.UID}
	}
	put(t, v, pv)
	if claim.Status.Phase = corev1.ClaimBound; phase != "" {
		claim.Status.Phase = phase
	}
	if _, err := client.For[*corev1.PersistentVolumeClaim](v.Client).UpdateStatus(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	pod := testPod(corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	pod.Namespace, pod.UID = "default", claim.UID
	return pod
}

func TestClaims(t *testing.T) {
	root := privateMounts(t)
	v := clusterVolumes(t, root)
	local := filepath.Join(root, "disk")
	if err := os.Mkdir(local, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(local, "file"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	onDisk := corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: local}}
	for name, test := range map[string]struct {
		source corev1.PersistentVolumeSource
		change func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim)
		pod    func(*corev1.Pod)
		want   string
	}{
		"local":    {source: onDisk},
		"hostpath": {source: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: local, Type: pointer(corev1.HostPathDirectory)}}},
		"pending": {onDisk, func(_ *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) {
			c.Status.Phase = corev1.ClaimPending
		}, nil,
			`MountVolume.SetUp failed for volume "data" : error processing PVC default/pending: PVC is not bound`},
		"stolen": {onDisk, func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "other", UID: "u"}
		}, nil, "bound to PVC UID u, expected PVC UID"},
		"elsewhere": {onDisk, func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Operator = corev1.NodeSelectorOpExists
		}, nil, `MountVolume.NodeAffinity check failed for volume "pv-elsewhere" : no matching NodeSelectorTerms`},
		"missing": {corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: local + "/no"}}, nil, nil, `MountVolume.SetUp failed for volume "pv-missing" : path "` + local + `/no" does not exist`},
		"nfs":     {corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}}, nil, nil, `MountVolume.SetUp failed for volume "pv-nfs" : no volume plugin matched`},
		"noclaim": {onDisk, nil, func(p *corev1.Pod) { p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "absent" },
			`error processing PVC default/absent: failed to fetch PVC from API server: persistentvolumeclaims "absent" not found`},
		"device": {onDisk, nil, func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts, p.Spec.Containers[0].VolumeDevices = nil, []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
		}, "volume data has volumeMode Filesystem, but is specified in volumeDevices"},
		"nodriver": {corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "absent.example.com", VolumeHandle: "h"}}, nil, nil,
			`MountVolume.SetUp failed for volume "pv-nodriver" : driver name absent.example.com not found in the list of registered CSI drivers`},
		"ephemeral": {onDisk, nil, func(p *corev1.Pod) {
			p.Name = "x"
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
		}, `error processing PVC default/x-data: failed to fetch PVC from API server`},
	} {
		pod := bound(t, v, name, test.source, test.change)
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: pointer(int64(4321))}
		if test.pod != nil {
			test.pod(pod)
		}
		err := v.Mount(t.Context(), pod)
		if test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := read(t, v.mounted(pod.UID, "data").path, "file"); got != "kept" || !reflect.DeepEqual(v.SupplementalGroups(pod.UID), []int64{777}) {
			t.Errorf("%s: %q, groups %v", name, got, v.SupplementalGroups(pod.UID))
		}
		if err := v.Unmount(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		if read(t, local, "file") != "kept" {
			t.Fatalf("%s: what the volume held is gone", name)
		}
	}
	info, _ := os.Stat(filepath.Join(local, "file"))
	if info.Sys().(*syscall.Stat_t).Gid != 4321 {
		t.Error("the fsGroup was not applied")
	}
}

// fakeDriver is a CSI driver that creates directories, and its registrar.
type fakeDriver struct {
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	socket string

	mu         sync.Mutex
	calls      []string
	published  *csi.NodePublishVolumeRequest
	registered *registration.RegistrationStatus
}

func (s *fakeDriver) called(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, what)
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
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}}}}}, nil
}

func (s *fakeDriver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	s.called("stage " + r.VolumeId + " " + r.PublishContext["where"])
	return &csi.NodeStageVolumeResponse{}, nil
}

func (s *fakeDriver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	s.called("unstage " + r.VolumeId)
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (s *fakeDriver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	s.called("publish " + r.VolumeId)
	s.mu.Lock()
	s.published = r
	s.mu.Unlock()
	return &csi.NodePublishVolumeResponse{}, os.MkdirAll(r.TargetPath, 0o755)
}

func (s *fakeDriver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	s.called("unpublish " + r.VolumeId)
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(r.TargetPath)
}

// startDriver starts the driver and registers its socket with the kubelet.
func startDriver(t *testing.T, root string) *fakeDriver {
	t.Helper()
	registry := filepath.Join(root, "plugins_registry")
	if err := os.MkdirAll(registry, 0o755); err != nil {
		t.Fatal(err)
	}
	s := &fakeDriver{socket: filepath.Join(root, "disk.sock")}
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

func TestCSI(t *testing.T) {
	root := privateMounts(t)
	v := clusterVolumes(t, root)
	put(t, v, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	put(t, v, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "disk.example.com"}, Spec: storagev1.CSIDriverSpec{
		PodInfoOnMount: pointer(true), RequiresRepublish: pointer(true), FSGroupPolicy: pointer(storagev1.FileFSGroupPolicy), TokenRequests: []storagev1.TokenRequest{{Audience: "a", ExpirationSeconds: pointer(int64(3600))}},
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
	}})
	v.tokens.request = (&issuer{}).request
	driver := startDriver(t, root)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := v.csi.registered("disk.example.com"); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	csiNode, err := client.For[*storagev1.CSINode](v.Client).Get(ctx, "", "node")
	if err != nil || len(csiNode.Spec.Drivers) != 1 || csiNode.Spec.Drivers[0].NodeID != "id" || *csiNode.Spec.Drivers[0].Allocatable.Count != 7 || csiNode.Spec.Drivers[0].TopologyKeys[0] != "example.com/zone" {
		t.Errorf("the node says %v, %v", csiNode, err)
	}
	if node, err := client.For[*corev1.Node](v.Client).Get(ctx, "", "node"); err != nil || node.Labels["example.com/zone"] != "z" {
		t.Errorf("the node is labelled %v, %v", node.Labels, err)
	}

	first := bound(t, v, "disk", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: "h", FSType: "ext4", VolumeAttributes: map[string]string{"x": "y"}}}, nil)
	first.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: pointer(int64(4321))}
	if err := v.Mount(ctx, first); err == nil || !strings.Contains(err.Error(), `MountVolume.WaitForAttach failed for volume "pv-disk"`) {
		t.Errorf("not attached: %v", err)
	}
	attachment := put(t, v, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "csi-" + hexSum("hdisk.example.comnode")},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: "disk.example.com", NodeName: "node", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: pointer("pv-disk")}},
	}).DeepCopy()
	attachment.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"where": "slot"}}
	if _, err := client.For[*storagev1.VolumeAttachment](v.Client).UpdateStatus(ctx, attachment); err != nil {
		t.Fatal(err)
	}
	second := first.DeepCopy()
	second.UID = "second"
	inline := testPod(corev1.Volume{Name: "own", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "disk.example.com"}}})
	for _, pod := range []*corev1.Pod{first, second, inline} {
		if err := v.Mount(ctx, pod); err != nil {
			t.Fatal(err)
		}
	}
	handle := "csi-" + hexSum("uid-1own")
	if err := v.Mount(ctx, inline); err != nil { // the driver wants to be called again
		t.Fatal(err)
	}
	if r := driver.published; r.VolumeContext["csi.storage.k8s.io/pod.name"] != "pod" || r.VolumeContext["csi.storage.k8s.io/ephemeral"] != "true" || !strings.Contains(r.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"], `"token":"t`) {
		t.Errorf("published %v", r.VolumeContext)
	}
	target := filepath.Join(root, "pods", string(first.UID), "volumes/kubernetes.io~csi/pv-disk/mount")
	if m := v.mounted(first.UID, "data"); m.path != target {
		t.Errorf("at %s", m.path)
	}
	if info, err := os.Stat(target); err != nil || info.Sys().(*syscall.Stat_t).Gid != 4321 {
		t.Errorf("the fsGroup was not applied: %v", err)
	}
	var data map[string]any
	if err := json.Unmarshal([]byte(read(t, filepath.Dir(target), dataFile)), &data); err != nil || data["volumeHandle"] != "h" || data["driverName"] != "disk.example.com" || data["attachmentID"] != attachment.Name || data["fsGroupApplied"] != true {
		t.Errorf("kept %v, %v", data, err)
	}
	if used, err := v.InUse(); err != nil || len(used) != 1 || used[0] != "kubernetes.io/csi/disk.example.com^h" {
		t.Errorf("in use %v, %v", used, err)
	}
	for _, pod := range []*corev1.Pod{first, second, inline} {
		if err := v.Unmount(ctx, pod.UID); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"stage h slot", "publish h", "stage h slot", "publish h", "publish " + handle, "publish " + handle, "unpublish h", "unpublish h", "unstage h", "unpublish " + handle}
	if !reflect.DeepEqual(driver.calls, want) {
		t.Errorf("calls of the driver: %q", driver.calls)
	}
	if driver.registered == nil || !driver.registered.PluginRegistered {
		t.Errorf("registration status %v", driver.registered)
	}
	if entries, _ := os.ReadDir(filepath.Join(root, "plugins/kubernetes.io/csi/disk.example.com")); len(entries) != 0 {
		t.Errorf("left %v", entries)
	}
}
