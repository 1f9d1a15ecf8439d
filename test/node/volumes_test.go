package node

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/environment"
	"skiff/internal/kubelet/objects"
	"skiff/internal/kubelet/volume"
	"skiff/internal/network/cni"
	"skiff/test/cluster"
	"skiff/test/inprocess"
)

const busybox = "registry.k8s.io/e2e-test-images/busybox:1.37.0-2"

// storageNode is a node with volumes and a runtime but without pod workers: the test acts as one.
type storageNode struct {
	t       *testing.T
	runtime *cri.Runtime
	client  *client.Client
	objects *objects.Cache
	volumes *volume.Volumes
	host    cri.Host
	root    string
	changed chan types.UID
}

func startStorageNode(t *testing.T) *storageNode {
	t.Helper()
	images, err := cluster.Images("busybox")
	if err != nil {
		t.Fatal(err)
	}
	dataDir := shortDir(t)
	// Containers in user namespaces need to traverse the path to their root.
	if err := os.Chmod(dataDir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dataDir+"/images", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(images+"/busybox.tar", filepath.Join(dataDir, "images/busybox.tar")); err != nil {
		t.Fatal(err)
	}
	n := &storageNode{t: t, runtime: cri.New(start(t, dataDir).client), root: dataDir + "/kubelet", changed: make(chan types.UID, 100), host: cri.DetectHost(dataDir + "/kubelet/seccomp")}
	network(t, dataDir)
	ctx, cancel := context.WithCancel(context.Background())
	n.client = inprocess.Start(t, ctx)
	discard := slog.New(slog.DiscardHandler)
	n.objects = objects.New(n.client, func(uid types.UID) { n.changed <- uid }, discard)
	n.volumes = volume.New(volume.Options{
		Root: n.root, Client: n.client, Objects: n.objects, NodeName: "node", Log: discard,
		Node: func() *corev1.Node {
			return &corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{"memory": resource.MustParse("1Gi"), "cpu": resource.MustParse("2")}}}
		},
		Image: func(_ context.Context, _ *corev1.Pod, v *corev1.Volume) (string, error) {
			return v.Image.Reference, nil
		},
		RecursiveReadOnly: func(*corev1.Pod) bool { return true },
	})
	if err := n.volumes.Prepare(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = n.objects.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		if err := n.volumes.Release(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// network configures a pod network.
func network(t *testing.T, dataDir string) {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dataDir+"/cni/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(root+"/bin/skiff-cni", dataDir+"/cni/bin/skiff-cni"); err != nil {
		t.Fatal(err)
	}
	pods := []netip.Prefix{netip.MustParsePrefix("10.89.0.0/24")}
	settings := cni.Settings{DataDir: dataDir + "/cni/state", PodCIDRs: pods, ClusterCIDRs: pods}.WithDefaults()
	if err := cni.Setup(settings); err != nil {
		t.Fatal(err)
	}
	if err := cni.Configure(dataDir+"/cni/net.d", settings); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cni.Remove(settings); err != nil {
			t.Error(err)
		}
	})
}

// The tests do not need these objects.
func (n *storageNode) ConfigMap(namespace, name string) (*corev1.ConfigMap, error) {
	return n.objects.ConfigMap(namespace, name)
}
func (n *storageNode) Secret(namespace, name string) (*corev1.Secret, error) {
	return n.objects.Secret(namespace, name)
}
func (n *storageNode) Services(string) ([]*corev1.Service, error)      { return nil, nil }
func (n *storageNode) Service(string, string) (*corev1.Service, error) { return nil, nil }
func (n *storageNode) File(pod *corev1.Pod, name, path string) ([]byte, error) {
	return n.volumes.ReadFile(pod, name, path)
}

// run starts a pod's first container and returns a function that runs a shell command in it, and one that stops the pod.
func (n *storageNode) run(pod *corev1.Pod) (shell func(string) string, end func()) {
	n.t.Helper()
	t, ctx := n.t, n.t.Context()
	fatal := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	n.objects.Register(pod)
	fatal(os.MkdirAll(filepath.Join(n.root, "pods", string(pod.UID)), 0o750))
	fatal(n.volumes.Mount(ctx, pod))
	user, err := cri.NewUserNamespaces(filepath.Join(n.root, "pods")).Of(pod, "", true)
	fatal(err)
	logs := cri.PodLogDirectory(n.root+"/logs", pod)
	fatal(os.MkdirAll(filepath.Join(logs, "main"), 0o755))
	sandboxConfig, err := cri.NewSandboxConfig(pod, cri.PodSettings{Host: n.host, LogDirectory: logs, UserNamespace: user})
	fatal(err)
	sandbox, err := n.runtime.RunPodSandbox(ctx, sandboxConfig, "")
	fatal(err)
	c := &pod.Spec.Containers[0]
	env, err := environment.Of(environment.Input{Pod: pod, Container: c, PodIPs: []string{"10.0.0.1"}, HostIPs: []string{"10.88.0.1"}, Sources: n})
	fatal(err)
	mounts, release, err := n.volumes.Mounts(pod, c, env)
	fatal(err)
	config, err := cri.NewContainerConfig(pod, c, cri.ContainerSettings{Host: n.host, Env: env, Mounts: mounts, ImageRef: c.Image, UserNamespace: user})
	fatal(err)
	id, err := n.runtime.CreateContainer(ctx, sandbox, config, sandboxConfig)
	release()
	fatal(err)
	fatal(n.runtime.StartContainer(ctx, id))
	shell = func(command string) string {
		t.Helper()
		out, errors, err := n.runtime.ExecSync(ctx, id, []string{"sh", "-c", command}, 10*time.Second)
		if err != nil {
			return "failed: " + strings.TrimSpace(string(errors))
		}
		return strings.TrimSpace(string(out))
	}
	end = func() {
		t.Helper()
		remove(t, n.runtime, sandbox)
		fatal(n.volumes.Unmount(ctx, pod.UID))
		n.objects.Unregister(pod.UID)
		mounts, err := mountinfo.GetMounts(nil)
		fatal(err)
		for _, mount := range mounts {
			if strings.Contains(mount.Mountpoint, "/pods/"+string(pod.UID)+"/") {
				t.Errorf("still mounted: %s", mount.Mountpoint)
			}
		}
	}
	return shell, end
}

func storagePod(name string, volumes []corev1.Volume, mounts []corev1.VolumeMount) *corev1.Pod {
	no := false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name + "-uid"), Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			HostNetwork: true, EnableServiceLinks: &no, Volumes: volumes,
			Containers: []corev1.Container{{Name: "main", Image: busybox, Command: []string{"sleep", "1000000"}, VolumeMounts: mounts}},
		},
	}
}

func expect(t *testing.T, shell func(string) string, answers map[string]string) {
	t.Helper()
	for command, want := range answers {
		if got := shell(command); got != want && !(want == "failed" && strings.HasPrefix(got, "failed")) {
			t.Errorf("%s\n got: %s\nwant: %s", command, got, want)
		}
	}
}

func of[T any](v T) *T { return &v }

func TestVolumesInContainers(t *testing.T) {
	n := startStorageNode(t)
	hostDir := t.TempDir()
	if err := os.WriteFile(hostDir+"/given", []byte("by the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, object := range []*corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "map", Namespace: "default"}, Data: map[string]string{"key": "one", "env": "A='from a file'\n"}}} {
		if _, err := client.For[*corev1.ConfigMap](n.client).Create(t.Context(), object, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.For[*corev1.Secret](n.client).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "hidden", Namespace: "default"}, StringData: map[string]string{"password": "p"}}, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	source := func(name string, s corev1.VolumeSource) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: s}
	}
	mode := of(int32(0o440))
	pod := storagePod("kinds", []corev1.Volume{
		source("map", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "map"}, DefaultMode: mode}}),
		source("secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "hidden", DefaultMode: mode}}),
		source("memory", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: of(resource.MustParse("1Mi"))}}),
		source("disk", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		source("host", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: hostDir, Type: of(corev1.HostPathDirectory)}}),
		source("image", corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: busybox}}),
		source("downward", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{DefaultMode: mode, Items: []corev1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels"}}}}}),
	}, []corev1.VolumeMount{
		{Name: "map", MountPath: "/map"}, {Name: "secret", MountPath: "/secret"}, {Name: "memory", MountPath: "/memory"}, {Name: "disk", MountPath: "/disk"},
		{Name: "host", MountPath: "/host", ReadOnly: true}, {Name: "image", MountPath: "/image"}, {Name: "image", MountPath: "/image-etc", SubPath: "etc"}, {Name: "downward", MountPath: "/downward"},
		{Name: "disk", MountPath: "/sub", SubPathExpr: "of/$(NAME)"}, {Name: "map", MountPath: "/one-key", SubPath: "key"},
	})
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: of(int64(4321)), RunAsUser: of(int64(1000)), RunAsGroup: of(int64(1001)), SupplementalGroups: []int64{77}}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{
		{Name: "NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}}},
		{Name: "FROM_FILE", ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "map", Path: "env", Key: "A"}}},
		{Name: "JOINED", Value: "$(NAME)-$(FROM_FILE) $$(NAME)"},
	}
	shell, end := n.run(pod)
	expect(t, shell, map[string]string{
		"id -u; id -g":                                      "1000\n1001",
		"id -G | tr ' ' '\\n' | sort -n | xargs":            "77 1001 4321",
		"cat /map/key":                                      "one",
		"stat -Lc '%a %g' /map/key":                         "440 4321",
		"echo x > /map/key":                                 "failed",
		"cat /secret/password; echo; stat -f -c %T /secret": "p\ntmpfs",
		"echo x > /secret/other":                            "failed",
		"stat -c '%a %g' /memory; stat -f -c %T /memory":    "3777 4321\ntmpfs",
		"dd if=/dev/zero of=/memory/big bs=1k count=2000":   "failed",
		"echo x > /disk/file; stat -c %g /disk/file":        "4321",
		"cat /host/given":                                   "by the host",
		"echo x > /host/new":                                "failed",
		"ls -d /image/bin/busybox":                          "/image/bin/busybox",
		"touch /image/x":                                    "failed",
		"ls -d /image-etc/passwd":                           "/image-etc/passwd",
		"cat /downward/labels":                              `app="web"`,
		"echo $JOINED":                                      "kinds-from a file $(NAME)",
		"echo y > /sub/f; cat /disk/of/kinds/f":             "y",
		"cat /one-key":                                      "one",
	})
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "map", Namespace: "default"}, Data: map[string]string{"key": "two"}}
	if _, err := client.For[*corev1.ConfigMap](n.client).Update(t.Context(), object, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case uid := <-n.changed:
		if uid != pod.UID {
			t.Errorf("notified of %s", uid)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the change was not reported")
	}
	pod.Labels["app"] = "db"
	if err := n.volumes.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	expect(t, shell, map[string]string{"cat /map/key": "two", "ls /map/env": "failed", "cat /one-key": "one", "cat /downward/labels": `app="db"`})
	end()
}

// TestMountPropagation propagates mounts of the host to a container, and those of a container to the host.
func TestMountPropagation(t *testing.T) {
	n := startStorageNode(t)
	shared := n.root + "/shared"
	if err := os.MkdirAll(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	volumes := []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: shared}}}}
	pod := storagePod("propagation", volumes, []corev1.VolumeMount{
		{Name: "v", MountPath: "/both", MountPropagation: of(corev1.MountPropagationBidirectional)},
		{Name: "v", MountPath: "/in", MountPropagation: of(corev1.MountPropagationHostToContainer)},
		{Name: "v", MountPath: "/none"},
		{Name: "v", MountPath: "/frozen", ReadOnly: true, RecursiveReadOnly: of(corev1.RecursiveReadOnlyEnabled)},
	})
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: of(true)}
	for _, directory := range []string{"/before", "/after", "/inner"} {
		if err := os.Mkdir(shared+directory, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("tmpfs", shared+"/before", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	shell, end := n.run(pod)
	if err := unix.Mount("tmpfs", shared+"/after", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	expect(t, shell, map[string]string{
		"touch /both/before/x":                            "",
		"touch /frozen/before/y":                          "failed",
		"stat -f -c %T /both/after /in/after":             "tmpfs\ntmpfs",
		"mountpoint -q /none/after":                       "failed",
		"mount -t tmpfs none /both/inner && echo mounted": "mounted",
	})
	var fs unix.Statfs_t
	if err := unix.Statfs(shared+"/inner", &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Errorf("the host does not see what the container mounted: %x, %v", fs.Type, err)
	}
	for _, directory := range []string{"/inner", "/after", "/before"} {
		if err := unix.Unmount(shared+directory, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}
	end()
}

// TestIsolation checks the privileges of containers.
func TestIsolation(t *testing.T) {
	n := startStorageNode(t)
	for name, test := range map[string]struct {
		change  func(*corev1.Pod, *corev1.Container)
		answers map[string]string
	}{
		"plain": {func(*corev1.Pod, *corev1.Container) {}, map[string]string{
			"grep NoNewPrivs /proc/self/status | cut -f2": "0", "cat /proc/self/uid_map | xargs": "0 0 4294967295", "cat /proc/kcore | head -c 1 | wc -c": "0", "touch /x && echo written": "written",
			"echo 1 > /proc/sys/kernel/pid_max": "failed",
		}},
		"narrow": {func(p *corev1.Pod, c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{
				ReadOnlyRootFilesystem: of(true), AllowPrivilegeEscalation: of(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_BIND_SERVICE"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			}
			c.Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("64Mi"), "cpu": resource.MustParse("500m")}
		}, map[string]string{
			"grep NoNewPrivs /proc/self/status | cut -f2": "1", "touch /x": "failed", "grep CapEff /proc/self/status | cut -f2": "0000000000000400", "grep ^Seccomp: /proc/self/status | cut -f2": "2",
		}},
		"privileged": {func(_ *corev1.Pod, c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{Privileged: of(true)}
		}, map[string]string{"mkdir -p /m && mount -t tmpfs none /m && echo mounted": "mounted"}},
		"processes of the host": {func(p *corev1.Pod, _ *corev1.Container) { p.Spec.HostPID = true }, map[string]string{"[ $(ls -d /proc/[0-9]* | wc -l) -gt 5 ] && echo many": "many"}},
		"processes of the pod":  {func(p *corev1.Pod, _ *corev1.Container) { p.Spec.ShareProcessNamespace = of(true) }, map[string]string{"cat /proc/1/comm": "pause"}},
		"own users": {func(p *corev1.Pod, c *corev1.Container) {
			p.Spec.HostUsers, p.Spec.HostNetwork = of(false), false
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		}, map[string]string{"cat /proc/self/uid_map | xargs": "0 65536 65536", "touch /v/x && stat -c %u /v/x": "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := storagePod(strings.ReplaceAll(name, " ", "-"), nil, nil)
			test.change(pod, &pod.Spec.Containers[0])
			n := *n
			n.t = t
			shell, end := n.run(pod)
			expect(t, shell, test.answers)
			end()
		})
	}
}

var _ environment.Sources = (*storageNode)(nil)
