package volume

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func configMapVolume(name string, s corev1.ConfigMapVolumeSource) corev1.Volume {
	if s.DefaultMode == nil {
		s.DefaultMode = pointer(int32(0o644))
	}
	if s.Name == "" {
		s.Name = "map"
	}
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{ConfigMap: &s}}
}

func objectsWithMap(data map[string]string) *fakeObjects {
	return &fakeObjects{
		configMaps: map[string]*corev1.ConfigMap{"map": {Data: data, BinaryData: map[string][]byte{"bin": {0, 255}}}},
		secrets:    map[string]*corev1.Secret{"hidden": {Data: map[string][]byte{"password": []byte("x")}}},
	}
}

// TestFileErrors has the event messages of volumes with content from API objects.
func TestFileErrors(t *testing.T) {
	mode := pointer(int32(0o644))
	for name, test := range map[string]struct {
		volume corev1.Volume
		want   string
	}{
		"no config map": {
			configMapVolume("v", corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}}),
			`MountVolume.SetUp failed for volume "v" : configmap "absent" not found`,
		},
		"no key": {
			configMapVolume("v", corev1.ConfigMapVolumeSource{Items: []corev1.KeyToPath{{Key: "k", Path: "p"}}}),
			`MountVolume.SetUp failed for volume "v" : configmap references non-existent config key: k`,
		},
		"no secret": {
			corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "absent", DefaultMode: mode}}},
			`MountVolume.SetUp failed for volume "v" : secret "absent" not found`,
		},
		"no secret key": {
			corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
				SecretName: "hidden", DefaultMode: mode, Items: []corev1.KeyToPath{{Key: "k", Path: "p"}}}}},
			`MountVolume.SetUp failed for volume "v" : references non-existent secret key: k`,
		},
		"no bundle": {
			corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: mode, Sources: []corev1.VolumeProjection{
				{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: pointer("absent"), Path: "p"}}}}}},
			`MountVolume.SetUp failed for volume "v" : while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "absent" not found`,
		},
		"no signer's bundles": {
			corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: mode, Sources: []corev1.VolumeProjection{
				{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{SignerName: pointer("s"), LabelSelector: &metav1.LabelSelector{}, Path: "p"}}}}}},
			`MountVolume.SetUp failed for volume "v" : combination of signerName and labelSelector matched zero ClusterTrustBundles`,
		},
		"no container": {
			corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{DefaultMode: mode, Items: []corev1.DownwardAPIVolumeFile{
				{Path: "p", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "absent", Resource: "limits.cpu"}}}}}},
			`MountVolume.SetUp failed for volume "v" : container absent not found`,
		},
		"no driver": {
			corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "s", IQN: "iqn"}}},
			`MountVolume.SetUp failed for volume "v" : no volume plugin matched: this kubelet has no driver for volumes of that kind built in, use a CSI driver`,
		},
		"NFS without a helper": {
			corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}}},
			`MountVolume.SetUp failed for volume "v" : the host has no mount.nfs: install its NFS client (package nfs-common or nfs-utils)`,
		},
		"host path that goes up": {
			corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/a/../b"}}},
			"MountVolume.SetUp failed for volume \"v\" : invalid HostPath `/a/../b`: must not contain '..'",
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := testVolumes(t.TempDir(), objectsWithMap(nil))
			v.helperDirs = nil
			if err := v.Mount(t.Context(), testPod(test.volume)); err == nil || err.Error() != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
}

// TestConfigMapUpdate: the volume follows its config map, keeps its content when that is deleted, and follows it again
// when it is recreated.
func TestConfigMapUpdate(t *testing.T) {
	root := t.TempDir()
	objects := objectsWithMap(map[string]string{"key": "one"})
	v := testVolumes(root, objects)
	pod := testPod(configMapVolume("v", corev1.ConfigMapVolumeSource{}))
	see := func(step, want string) {
		t.Helper()
		if err := v.Mount(t.Context(), pod); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		if got := read(t, v.mounted(pod.UID, "v").path, "key"); got != want {
			t.Errorf("%s: %q", step, got)
		}
	}
	see("first", "one")
	objects.configMaps["map"] = &corev1.ConfigMap{Data: map[string]string{"key": "two"}}
	see("changed", "two")
	delete(objects.configMaps, "map")
	see("gone", "two")
	v = testVolumes(root, objects) // the kubelet was restarted meanwhile
	see("restarted", "two")
	objects.configMaps["map"] = &corev1.ConfigMap{Data: map[string]string{"key": "three"}}
	see("back", "three")
	if err := os.Remove(filepath.Join(v.mounted(pod.UID, "v").path, currentLink)); err != nil {
		t.Fatal(err)
	}
	see("damaged", "three")
}

func TestHugePageSize(t *testing.T) {
	asks := func(sizes ...string) *corev1.Pod {
		pod := testPod()
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{}
		for _, size := range sizes {
			pod.Spec.Containers[0].Resources.Requests[corev1.ResourceName("hugepages-"+size)] = resource.MustParse("1Gi")
		}
		return pod
	}
	for _, test := range []struct {
		medium corev1.StorageMedium
		pod    *corev1.Pod
		want   string
	}{
		{"HugePages", asks("2Mi"), "2Mi"},
		{"HugePages-1Gi", asks("2Mi", "1Gi"), "1Gi"},
		{"HugePages", asks("2Mi", "1Gi"), "medium: HugePages can't be used if container requests multiple huge page sizes"},
		{"HugePages", asks(), "medium HugePages: hugePages storage requested, but there is no resource request for huge pages"},
		{"HugePages-1Gi", asks("2Mi"), "medium HugePages-1Gi: hugePages storage requested, but there is no resource request for huge pages"},
	} {
		got, err := hugePageSize(test.pod, test.medium)
		if err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.medium, got, test.want)
		}
	}
}

func TestHostPath(t *testing.T) {
	root := t.TempDir()
	dir, plain, socket, pipe := filepath.Join(root, "directory"), filepath.Join(root, "file"), filepath.Join(root, "socket"), filepath.Join(root, "pipe")
	absent := filepath.Join(root, "absent")
	listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		err = errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(plain, nil, 0o644), unix.Bind(listener, &unix.SockaddrUnix{Name: socket}), unix.Mkfifo(pipe, 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listener)
	for _, test := range []struct {
		path string
		kind corev1.HostPathType
		want string
	}{
		{absent, corev1.HostPathUnset, ""},
		{dir, corev1.HostPathDirectory, ""},
		{plain, corev1.HostPathFile, ""},
		{socket, corev1.HostPathSocket, ""},
		{"/dev/null", corev1.HostPathCharDev, ""},
		{dir, corev1.HostPathDirectoryOrCreate, ""},
		{plain, corev1.HostPathFileOrCreate, ""},
		{absent + "/new/directory", corev1.HostPathDirectoryOrCreate, ""},
		{filepath.Join(root, "new"), corev1.HostPathFileOrCreate, ""},
		{plain, corev1.HostPathDirectory, "hostPath type check failed: " + plain + " is not a directory, it's a File"},
		{dir, corev1.HostPathFile, "hostPath type check failed: " + dir + " is not a file, it's a Directory"},
		{plain, corev1.HostPathSocket, "hostPath type check failed: " + plain + " is not a socket file, it's a File"},
		{plain, corev1.HostPathCharDev, "hostPath type check failed: " + plain + " is not a character device, it's a File"},
		{"/dev/null", corev1.HostPathBlockDev, "hostPath type check failed: /dev/null is not a block device, it's a CharDevice"},
		{plain, corev1.HostPathDirectoryOrCreate, "hostPath type check failed: " + plain + " is not a directory, it's a File"},
		{dir, corev1.HostPathFileOrCreate, "hostPath type check failed: " + dir + " is not a file, it's a Directory"},
		{root + "/gone", corev1.HostPathDirectory, "hostPath type check failed, " + root + `/gone is not a directory, unable to determine its type: path "` + root + `/gone" does not exist`},
		{pipe, corev1.HostPathFile, "hostPath type check failed, " + pipe + " is not a file, unable to determine its type: only recognise file, directory, socket, block device and character device"},
		{plain, "Odd", "Odd is an invalid volume type"},
	} {
		_, err := setUpHostPath(&corev1.HostPathVolumeSource{Path: test.path, Type: &test.kind}, false)
		if text := errorText(err); text != test.want {
			t.Errorf("%s %s: %s", test.kind, test.path, text)
		}
	}
	if kind, _ := hostPathType(filepath.Join(root, "new")); kind != corev1.HostPathFile {
		t.Error("the file was not made")
	}
	if kind, _ := hostPathType(absent + "/new/directory"); kind != corev1.HostPathDirectory {
		t.Error("the directory was not made")
	}
}

func TestUnusedVolumesAreNotSetUp(t *testing.T) {
	v := testVolumes(t.TempDir(), &fakeObjects{})
	pod := testPod(configMapVolume("v", corev1.ConfigMapVolumeSource{}))
	pod.Spec.Containers[0].VolumeMounts = nil
	if err := v.Mount(t.Context(), pod); err != nil {
		t.Error(err)
	}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{VolumeMounts: []corev1.VolumeMount{{Name: "v"}}}}}
	if err := v.Mount(t.Context(), pod); err == nil {
		t.Error("a volume that an ephemeral container mounts is not set up")
	}
}

func TestNestedMountPoints(t *testing.T) {
	v := testVolumes(t.TempDir(), objectsWithMap(map[string]string{"key": "one"}))
	pod := testPod(configMapVolume("outer", corev1.ConfigMapVolumeSource{}), corev1.Volume{Name: "inner", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	pod.Spec.Containers[0].VolumeMounts[0].MountPath = "/etc/outer/"
	pod.Spec.Containers[0].VolumeMounts[1].MountPath = "/etc/outer/deep/inner"
	if err := v.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(v.mounted(pod.UID, "outer").path, "deep/inner")); err != nil || !info.IsDir() {
		t.Error(err)
	}
	if got := tree(t, v.mounted(pod.UID, "outer").path)["key"]; got != "one" {
		t.Errorf("key is %q", got)
	}
}

func TestInvalidUIDs(t *testing.T) {
	v := testVolumes(t.TempDir(), &fakeObjects{})
	for _, uid := range []string{"", ".", "..", "../x", "a/b"} {
		pod := testPod()
		pod.UID = types.UID(uid)
		if v.Mount(t.Context(), pod) == nil || v.Unmount(t.Context(), pod.UID) == nil {
			t.Errorf("%q is taken for a directory", uid)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestDamagedVolumeData: data of a CSI volume that a power loss has truncated does not keep others from being unmounted.
func TestDamagedVolumeData(t *testing.T) {
	root := t.TempDir()
	v := testVolumes(root, nil)
	good, damaged := v.dir("good", csiPlugin, "pv"), v.dir("damaged", csiPlugin, "pv")
	for _, dir := range []string{good, damaged} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := save(good, volumeData{Driver: "disk.example.com", Handle: "h", Lifecycle: "Persistent"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(damaged, dataFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if used, err := v.InUse(); err != nil || len(used) != 1 {
		t.Errorf("in use %v, %v", used, err)
	}
	if err := v.Unmount(t.Context(), "damaged"); err != nil {
		t.Error(err)
	}
	if exists(damaged) {
		t.Error("the damaged volume is still there")
	}
}
