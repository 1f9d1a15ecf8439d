package node

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/runtime"
	"skiff/test/cluster"
)

// ownerVariable makes a copy of this program act as the skiff that owns a containerd, to be killed.
const ownerVariable = "SKIFF_TEST_OWNS_CONTAINERD"

func TestMain(m *testing.M) {
	if dataDir := os.Getenv(ownerVariable); dataDir != "" {
		own(dataDir)
	}
	cluster.Main(m, cluster.Needs{
		Images:     []string{"busybox", "pause"},
		Programs:   []string{"etcd", "kube-apiserver", "kube-controller-manager"},
		Extensions: true,
	})
}

// own runs containerd until it is killed, and reports when it is ready.
func own(dataDir string) {
	root, err := cluster.Root()
	if err == nil {
		var c *runtime.Containerd
		c, err = runtime.New(runtime.Options{DataDir: dataDir, Programs: filepath.Join(root, "bin"), Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
		if err == nil {
			go func() {
				<-c.Ready()
				os.Stdout.WriteString("ready\n")
			}()
			err = c.Run(context.Background())
		}
	}
	os.Stderr.WriteString(err.Error() + "\n")
	os.Exit(1)
}

// owner starts the copy and waits until its containerd is ready.
func owner(t *testing.T, dataDir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), ownerVariable+"="+dataDir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := io.ReadAll(io.LimitReader(out, int64(len("ready\n")))); err != nil || string(line) != "ready\n" {
		t.Fatalf("containerd did not become ready: %q, %v", line, err)
	}
	return cmd
}

// started is a containerd that this test runs.
type started struct {
	*runtime.Containerd
	client *cri.Client
	stop   func()
}

// start runs containerd on a data directory until the test ends or stop is called.
func start(t *testing.T, dataDir string) started {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	c, err := runtime.New(runtime.Options{DataDir: dataDir, Programs: filepath.Join(root, "bin"), Log: slog.New(slog.NewTextHandler(testWriter{t}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("containerd ended with %v", err)
		}
	}
	select {
	case <-c.Ready():
	case err := <-ended:
		cancel()
		t.Fatalf("containerd did not start: %v", err)
	}
	client, err := cri.Dial(c.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(); stop() })
	return started{c, client, stop}
}

// testWriter writes a log to a test's log.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// sandbox starts a pod sandbox on the host network and returns its ID.
func sandbox(t *testing.T, client *cri.Client, name string) string {
	t.Helper()
	id, err := client.RunPodSandbox(t.Context(), &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
		}},
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// running reports whether a sandbox is running, and its process.
func running(t *testing.T, client *cri.Client, id string) (bool, string) {
	t.Helper()
	answer, err := client.PodSandboxStatus(t.Context(), id, true)
	if err != nil {
		t.Fatalf("status of the sandbox: %v", err)
	}
	return answer.Status.State == runtimeapi.PodSandboxState_SANDBOX_READY, answer.Info["info"]
}

// containerdPID returns the PID stored in the data directory.
func containerdPID(t *testing.T, dataDir string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dataDir, "containerd/pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(data))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// shortDir returns a data directory with a path short enough for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "s")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestImagesAreThereWithoutARegistry(t *testing.T) {
	images, err := cluster.Images("busybox")
	if err != nil {
		t.Fatal(err)
	}
	dataDir := t.TempDir() // a long path: the sockets go elsewhere
	if err := os.Mkdir(dataDir+"/images", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(images+"/busybox.tar", dataDir+"/images/busybox.tar"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dataDir+"/images/broken.tar", []byte("not an archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := start(t, dataDir)
	list, err := c.client.ListImages(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{
		runtime.SandboxImage: false, "registry.k8s.io/e2e-test-images/busybox:1.37.0-2": false, "registry.k8s.io/e2e-test-images/nginx:1.27.0-2": false,
	}
	for _, image := range list {
		for _, name := range image.RepoTags {
			if _, ok := want[name]; !ok {
				t.Errorf("unexpected image %s", name)
			}
			want[name] = true
			if !image.Pinned {
				t.Errorf("%s is not kept from garbage collection", name)
			}
		}
	}
	for name, found := range want {
		if !found {
			t.Errorf("%s is missing", name)
		}
	}
	id := sandbox(t, c.client, "pod")
	if ok, _ := running(t, c.client, id); !ok {
		t.Error("the sandbox does not run")
	}
	remove(t, c.client, id)
}

func remove(t *testing.T, client interface {
	StopPodSandbox(ctx context.Context, id string) error
	RemovePodSandbox(ctx context.Context, id string) error
}, id string) {
	t.Helper()
	if err := client.StopPodSandbox(t.Context(), id); err != nil {
		t.Error(err)
	}
	if err := client.RemovePodSandbox(t.Context(), id); err != nil {
		t.Error(err)
	}
}

func TestImportByCommand(t *testing.T) {
	images, err := cluster.Images("busybox")
	if err != nil {
		t.Fatal(err)
	}
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	dataDir := shortDir(t)
	start(t, dataDir)
	skiff := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(filepath.Join(root, "bin/skiff"), append([]string{"image", "--data-dir", dataDir}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("skiff image %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	docker := dockerArchive(t)
	skiff("import", docker, compressed(t, images+"/busybox.tar"))
	list := skiff("ls")
	for _, name := range []string{
		"registry.k8s.io/e2e-test-images/busybox:1.37.0-2", "registry.k8s.io/e2e-test-images/nginx:1.27.0-2", "localhost/skiff/pause:1", "docker.io/library/saved:1",
	} {
		if !slices.ContainsFunc(strings.Split(list, "\n"), func(line string) bool { return strings.HasPrefix(line, name+" ") }) {
			t.Errorf("no %s in\n%s", name, list)
		}
	}
	if out, err := exec.Command(filepath.Join(root, "bin/skiff"), "image", "--data-dir", dataDir, "import", "/etc/passwd").CombinedOutput(); err == nil {
		t.Errorf("a file that is no archive was imported: %s", out)
	}
}

// dockerArchive creates an archive like `docker save`.
func dockerArchive(t *testing.T) string {
	t.Helper()
	layer := pack(t, map[string]string{"hello": "world"})
	config := fmt.Sprintf(`{"architecture":%q,"os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`, goruntime.GOARCH, sha256.Sum256([]byte(layer)))
	name := fmt.Sprintf("%x.json", sha256.Sum256([]byte(config)))
	path := filepath.Join(t.TempDir(), "saved.tar")
	archive := pack(t, map[string]string{
		name: config, "layer/layer.tar": layer, "manifest.json": `[{"Config":"` + name + `","RepoTags":["saved:1"],"Layers":["layer/layer.tar"]}]`,
	})
	if err := os.WriteFile(path, []byte(archive), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// pack creates a tar archive of files.
func pack(t *testing.T, files map[string]string) string {
	t.Helper()
	var out strings.Builder
	w := tar.NewWriter(&out)
	for name, data := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// compressed gzips a file.
func compressed(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), filepath.Base(file)+".gz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := gzip.NewWriter(f)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSandboxesOutliveContainerd(t *testing.T) {
	dataDir := shortDir(t)
	c := start(t, dataDir)
	id := sandbox(t, c.client, "pod")
	_, before := running(t, c.client, id)
	// containerd crashes, and is started again.
	crashed := containerdPID(t, dataDir)
	if err := syscall.Kill(crashed, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another containerd answers", func() bool {
		data, err := os.ReadFile(filepath.Join(dataDir, "containerd/pid"))
		if err != nil || string(data) == strconv.Itoa(crashed) {
			return false
		}
		_, err = c.client.Version(t.Context(), "")
		return err == nil
	})
	if ok, after := running(t, c.client, id); !ok || after != before {
		t.Errorf("after a crash the sandbox runs: %t; it was\n%s\nnow\n%s", ok, before, after)
	}
	// skiff is stopped and started again.
	c.stop()
	c = start(t, dataDir)
	if ok, after := running(t, c.client, id); !ok || after != before {
		t.Errorf("after a restart the sandbox runs: %t; it was\n%s\nnow\n%s", ok, before, after)
	}
	remove(t, c.client, id)
}

func TestSandboxesOutliveAKilledSkiff(t *testing.T) {
	dataDir := shortDir(t)
	skiff := owner(t, dataDir)
	client, err := cri.Dial("unix://" + dataDir + "/containerd/s/containerd.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	id := sandbox(t, client, "pod")
	_, before := running(t, client, id)
	old := containerdPID(t, dataDir)
	if err := skiff.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = skiff.Wait()
	// The next one starts at once, while the old containerd may still be stopping.
	skiff = owner(t, dataDir)
	defer func() { _ = skiff.Process.Kill(); _ = skiff.Wait() }()
	if containerdPID(t, dataDir) == old {
		t.Error("the containerd of the killed skiff still runs")
	}
	if err := syscall.Kill(old, 0); err == nil {
		t.Errorf("two containerds work on one directory: process %d has not ended", old)
	}
	if ok, after := running(t, client, id); !ok || after != before {
		t.Errorf("the sandbox runs: %t; it was\n%s\nnow\n%s", ok, before, after)
	}
	remove(t, client, id)
}

func TestContainerdThatCannotStart(t *testing.T) {
	programs := t.TempDir()
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc"} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\necho no such luck >&2\nexit 3\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c, err := runtime.New(runtime.Options{DataDir: t.TempDir(), Programs: programs})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err = c.Run(ctx)
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("the error does not say why: %v", err)
	}
}

// eventually waits up to half a minute.
func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	eventuallyWithin(t, 30*time.Second, what, check)
}

// eventuallyWithin is eventually with another bound than half a minute.
func eventuallyWithin(t *testing.T, bound time.Duration, what string, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(bound); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if check() {
			return
		}
	}
	t.Fatalf("not in time: %s", what)
}
