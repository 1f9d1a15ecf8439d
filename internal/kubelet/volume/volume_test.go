package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"golang.org/x/sys/unix"
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
			corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}}},
			`MountVolume.SetUp failed for volume "v" : no volume plugin matched: this kubelet has no driver for volumes of that kind built in, use a CSI driver`,
		},
		"host path that goes up": {
			corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/a/../b"}}},
			"MountVolume.SetUp failed for volume \"v\" : invalid HostPath `/a/../b`: must not contain '..'",
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := testVolumes(t.TempDir(), objectsWithMap(nil))
			if err := v.Mount(t.Context(), testPod(test.volume)); err == nil || err.Error() != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
}

func TestFileVolumes(t *testing.T) {
	root := privateMounts(t)
	objects := objectsWithMap(map[string]string{"key": "one", "other": "two"})
	mode := pointer(int32(0o644))
	project := func(sources ...corev1.VolumeProjection) corev1.Volume {
		return corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: mode, Sources: sources}}}
	}
	for name, test := range map[string]struct {
		volume corev1.Volume
		want   map[string]string // path to "mode content"
	}{
		"config map": {configMapVolume("v", corev1.ConfigMapVolumeSource{}),
			map[string]string{"key": "-rw-r--r-- one", "other": "-rw-r--r-- two", "bin": "-rw-r--r-- \x00\xff"}},
		"config map, default mode": {configMapVolume("v", corev1.ConfigMapVolumeSource{DefaultMode: pointer(int32(0o400)), Items: []corev1.KeyToPath{{Key: "key", Path: "key"}}}),
			map[string]string{"key": "-r-------- one"}},
		"config map, items": {configMapVolume("v", corev1.ConfigMapVolumeSource{Items: []corev1.KeyToPath{
			{Key: "key", Path: "a/b/key", Mode: pointer(int32(0o400))}, {Key: "bin", Path: "bin"}}}),
			map[string]string{"a/b/key": "-r-------- one", "bin": "-rw-r--r-- \x00\xff"}},
		"config map, optional": {configMapVolume("v", corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}, Optional: pointer(true)}),
			map[string]string{}},
		"config map, optional key": {configMapVolume("v", corev1.ConfigMapVolumeSource{Optional: pointer(true), Items: []corev1.KeyToPath{{Key: "absent", Path: "p"}, {Key: "key", Path: "q"}}}),
			map[string]string{"q": "-rw-r--r-- one"}},
		"secret": {corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "hidden", DefaultMode: mode}}},
			map[string]string{"password": "-rw-r--r-- x"}},
		"downward": {corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{DefaultMode: mode, Items: []corev1.DownwardAPIVolumeFile{
			{Path: "name", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}, Mode: pointer(int32(0o400))},
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels"}},
			{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.cpu"}},
			{Path: "memory", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}},
		}}}}, map[string]string{"name": "-r-------- pod", "labels": `-rw-r--r-- app="x"`, "cpu": "-rw-r--r-- 2", "memory": "-rw-r--r-- 1024"}},
		"projected": {project(
			corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "map"}, Items: []corev1.KeyToPath{{Key: "key", Path: "same"}}}},
			corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "hidden"}, Items: []corev1.KeyToPath{{Key: "password", Path: "in/password"}}}},
			corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}, Optional: pointer(true)}},
			corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "same", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.uid"}}}}},
		), map[string]string{"same": "-rw-r--r-- uid-" + dirName("projected"), "in/password": "-rw-r--r-- x"}},
	} {
		v := testVolumes(root, objects)
		pod := testPod(test.volume)
		pod.UID = types.UID("uid-" + dirName(name))
		if err := v.Mount(t.Context(), pod); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		m := v.mounted(pod.UID, "v")
		plugin, inMemory := apiVolumePlugin(&test.volume)
		if want := filepath.Join(root, "pods", string(pod.UID), "volumes", strings.ReplaceAll(plugin, "/", "~"), "v"); m.path != want || !m.readOnly {
			t.Errorf("%s: at %s, read-only %v", name, m.path, m.readOnly)
		}
		if mounted, err := isMounted(m.path); err != nil || mounted != inMemory {
			t.Errorf("%s: in memory %v, %v", name, mounted, err)
		}
		seen := tree(t, m.path)
		for path := range seen {
			info, err := os.Stat(filepath.Join(m.path, path))
			if err != nil {
				t.Fatal(err)
			}
			seen[path] = info.Mode().String() + " " + seen[path]
		}
		if len(seen) != len(test.want) {
			t.Errorf("%s: %v", name, seen)
		}
		for path, want := range test.want {
			if seen[path] != want {
				t.Errorf("%s: %s is %q, want %q", name, path, seen[path], want)
			}
		}
		if err := v.Unmount(t.Context(), pod.UID); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if entries, _ := os.ReadDir(v.podDir(pod.UID)); len(entries) != 0 {
			t.Errorf("%s: left %v", name, entries)
		}
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

func TestGroups(t *testing.T) {
	root := privateMounts(t)
	v := testVolumes(root, objectsWithMap(map[string]string{"key": "one"}))
	pod := testPod(
		configMapVolume("files", corev1.ConfigMapVolumeSource{DefaultMode: pointer(int32(0o400))}),
		corev1.Volume{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.Volume{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
	)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: pointer(int64(4321))}
	if err := v.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		v.dir(pod.UID, "kubernetes.io/configmap", "files"):          "dgrwxrwxrwx",
		v.dir(pod.UID, "kubernetes.io/configmap", "files") + "/key": "-r--r-----",
		v.dir(pod.UID, emptyDirPlugin, "empty"):                     "dgrwxrwxrwx",
		v.dir(pod.UID, emptyDirPlugin, "memory"):                    "dgtrwxrwxrwx",
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if group := info.Sys().(*syscall.Stat_t).Gid; group != 4321 || info.Mode().String() != want {
			t.Errorf("%s: group %d, mode %s", path, group, info.Mode())
		}
	}
}

func TestFSGroupChangePolicy(t *testing.T) {
	onMismatch := pointer(corev1.FSGroupChangeOnRootMismatch)
	for name, test := range map[string]struct {
		rootMode os.FileMode
		group    int
		policy   *corev1.PodFSGroupChangePolicy
		changed  bool
	}{
		"as it should be":            {0o770 | os.ModeSetgid, 4321, onMismatch, false},
		"more than it should":        {0o777 | os.ModeSetgid, 4321, onMismatch, false},
		"other group":                {0o770 | os.ModeSetgid, 1, onMismatch, true},
		"no setgid":                  {0o770, 4321, onMismatch, true},
		"group may not write":        {0o750 | os.ModeSetgid, 4321, onMismatch, true},
		"always":                     {0o770 | os.ModeSetgid, 4321, pointer(corev1.FSGroupChangeAlways), true},
		"no policy, which is always": {0o770 | os.ModeSetgid, 4321, nil, true},
	} {
		dir := t.TempDir()
		inner := filepath.Join(dir, "file")
		err := errors.Join(os.WriteFile(inner, nil, 0o600), os.Chown(dir, -1, test.group), os.Chmod(dir, test.rootMode), setGroup(dir, 4321, false, test.policy))
		if err != nil {
			t.Fatal(err)
		}
		info, _ := os.Stat(inner)
		if changed := info.Mode() == 0o660 && info.Sys().(*syscall.Stat_t).Gid == 4321; changed != test.changed {
			t.Errorf("%s: file has mode %v", name, info.Mode())
		}
	}
}

func TestEmptyDir(t *testing.T) {
	root := privateMounts(t)
	v := testVolumes(root, &fakeObjects{})
	limited := testPod()
	limited.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	for name, test := range map[string]struct {
		source corev1.EmptyDirVolumeSource
		pod    *corev1.Pod
		size   int64 // of its own file system, 0 for none
		mode   string
	}{
		"disk":                  {corev1.EmptyDirVolumeSource{}, nil, 0, "drwxrwxrwx"},
		"disk with a mode":      {corev1.EmptyDirVolumeSource{Mode: pointer(int32(0o1750))}, nil, 0, "dtrwxr-x---"},
		"memory":                {corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}, nil, 1 << 30, "dtrwxrwxrwx"},
		"memory with a limit":   {corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: pointer(resource.MustParse("1Mi"))}, nil, 1 << 20, "dtrwxrwxrwx"},
		"memory of the pod":     {corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}, limited, 64 << 20, "dtrwxrwxrwx"},
		"no more than the node": {corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: pointer(resource.MustParse("2Gi"))}, nil, 1 << 30, "dtrwxrwxrwx"},
	} {
		pod := testPod(corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &test.source}})
		if test.pod != nil {
			pod.Spec.Containers[0].Resources = test.pod.Spec.Containers[0].Resources
		}
		for range 2 { // again, as after a restart
			v = testVolumes(root, &fakeObjects{})
			if err := v.Mount(t.Context(), pod); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		m := v.mounted(pod.UID, "v")
		info, err := os.Stat(m.path)
		if err != nil || info.Mode().String() != test.mode || m.readOnly {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(m.path, &fs); err != nil {
			t.Fatal(err)
		}
		if own := fs.Type == unix.TMPFS_MAGIC; own != (test.size > 0) || own && int64(fs.Blocks)*fs.Bsize != test.size {
			t.Errorf("%s: in memory %v, %d bytes", name, own, int64(fs.Blocks)*fs.Bsize)
		}
		if err := os.WriteFile(filepath.Join(m.path, "data"), make([]byte, 8192), 0o644); err != nil {
			t.Fatal(err)
		}
		if usage, err := v.Usage(pod.UID, "v"); err != nil || usage.Used < 8192 || usage.Used > 1<<20 || usage.InodesUsed != 2 {
			t.Errorf("%s: usage %+v, %v", name, usage, err)
		}
		if err := v.Unmount(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		if entries, _ := os.ReadDir(v.podDir(pod.UID)); len(entries) != 0 {
			t.Errorf("%s: left %v", name, entries)
		}
	}
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

// dirName returns a valid directory name.
func dirName(s string) string { return strings.NewReplacer(" ", "", ",", "").Replace(s) }

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
