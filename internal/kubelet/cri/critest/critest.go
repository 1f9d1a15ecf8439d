// Package critest has a fake container runtime for tests, and a test suite of the behaviour that the kubelet relies on in a container
// runtime. Both the fake and containerd must pass the suite.
package critest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/kubelet/cri"
)

// Harness is a runtime under test.
type Harness struct {
	Runtime cri.API
	// Image is an image with a shell.
	Image string
	// Logs is a directory the runtime can write to.
	Logs string
	// CgroupParent is the parent cgroup of its containers.
	CgroupParent string
}

// wait is how long a runtime may take to complete a request.
const wait = 20 * time.Second

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"sandbox", testSandbox}, {"container", testContainer}, {"exit codes", testExitCodes}, {"exec", testExec}, {"unknown", testUnknown},
		{"read pod", testReadPod}, {"events", testEvents}, {"resize", testResize}, {"logs", testLogs}, {"removing a sandbox removes its containers", testSandboxRemovesContainers},
		{"images", testImages},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.run(t, &suite{Harness: h, uid: fmt.Sprintf("uid-%d", time.Now().UnixNano()), t: t})
		})
	}
}

type suite struct {
	Harness
	uid string
	t   *testing.T
}

func (s *suite) sandboxConfig(attempt uint32) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "pod", Namespace: "ns", Uid: s.uid, Attempt: attempt},
		Labels:       map[string]string{cri.LabelPodUID: s.uid, cri.LabelPodName: "pod", cri.LabelPodNamespace: "ns"},
		LogDirectory: filepath.Join(s.Logs, s.uid),
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: s.CgroupParent, SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
		}},
	}
}

// sandbox runs a sandbox that is removed when the test ends.
func (s *suite) sandbox() string {
	s.t.Helper()
	id, err := s.Runtime.RunPodSandbox(s.t.Context(), s.sandboxConfig(0), "")
	if err != nil {
		s.t.Fatalf("run sandbox: %v", err)
	}
	s.t.Cleanup(func() {
		_ = s.Runtime.StopPodSandbox(context.Background(), id)
		_ = s.Runtime.RemovePodSandbox(context.Background(), id)
	})
	return id
}

// container starts a container that runs a shell command.
func (s *suite) container(sandbox, name string, attempt uint32, command string) string {
	s.t.Helper()
	if err := os.MkdirAll(filepath.Join(s.Logs, s.uid, name), 0o755); err != nil {
		s.t.Fatal(err)
	}
	id, err := s.Runtime.CreateContainer(s.t.Context(), sandbox, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt}, Image: &runtimeapi.ImageSpec{Image: s.Image},
		Command: []string{"sh", "-c", command}, LogPath: filepath.Join(name, fmt.Sprint(attempt, ".log")),
		Labels:      map[string]string{cri.LabelPodUID: s.uid, cri.LabelContainerName: name},
		Annotations: map[string]string{cri.AnnotationHash: "abc", cri.AnnotationRestartCount: fmt.Sprint(attempt)},
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512, MemoryLimitInBytes: 64 << 20},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{
				Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_CONTAINER,
			}},
		},
	}, s.sandboxConfig(0))
	if err != nil {
		s.t.Fatalf("create container: %v", err)
	}
	if err := s.Runtime.StartContainer(s.t.Context(), id); err != nil {
		s.t.Fatalf("start container: %v", err)
	}
	return id
}

// forever runs until it receives SIGTERM. It handles the signal once the command trapped succeeds.
const (
	forever = "trap 'exit 0' TERM; touch /trapped; while true; do sleep 0.1; done"
	trapped = "test -e /trapped"
)

func (s *suite) status(id string) *runtimeapi.ContainerStatus {
	s.t.Helper()
	response, err := s.Runtime.ContainerStatus(s.t.Context(), id, false)
	if err != nil {
		s.t.Fatalf("status of container: %v", err)
	}
	return response.Status
}

// until waits until a container has a state.
func (s *suite) until(id string, state runtimeapi.ContainerState) *runtimeapi.ContainerStatus {
	s.t.Helper()
	for deadline := time.Now().Add(wait); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if status := s.status(id); status.State == state {
			return status
		}
	}
	s.t.Fatalf("container is %v, want %v", s.status(id).State, state)
	return nil
}

// untilTrapped waits until a container that runs forever handles SIGTERM, which is a little after the runtime reports it as running.
func (s *suite) untilTrapped(id string) {
	s.t.Helper()
	for deadline := time.Now().Add(wait); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, _, err := s.Runtime.ExecSync(s.t.Context(), id, []string{"sh", "-c", trapped}, wait); err == nil {
			return
		}
	}
	s.t.Fatal("container does not handle SIGTERM")
}

func testSandbox(t *testing.T, s *suite) {
	id := s.sandbox()
	response, err := s.Runtime.PodSandboxStatus(t.Context(), id, false)
	if err != nil || response.Status.State != runtimeapi.PodSandboxState_SANDBOX_READY || response.Status.Metadata.Uid != s.uid {
		t.Fatalf("status %v, %v", response, err)
	}
	list, err := s.Runtime.ListPodSandbox(t.Context(), &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{cri.LabelPodUID: s.uid}})
	if err != nil || len(list) != 1 || list[0].Id != id {
		t.Fatalf("list %v, %v", list, err)
	}
	for range 2 { // stopping twice is no error
		if err := s.Runtime.StopPodSandbox(t.Context(), id); err != nil {
			t.Fatalf("stop: %v", err)
		}
	}
	if response, err = s.Runtime.PodSandboxStatus(t.Context(), id, false); err != nil || response.Status.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Fatalf("stopped: %v, %v", response, err)
	}
	if err := s.Runtime.RemovePodSandbox(t.Context(), id); err != nil {
		t.Fatalf("remove: %v", err)
	}
	if _, err = s.Runtime.PodSandboxStatus(t.Context(), id, false); !cri.NotFound(err) {
		t.Errorf("status of a removed sandbox: %v, want not found", err)
	}
}

func testContainer(t *testing.T, s *suite) {
	id := s.container(s.sandbox(), "c", 0, forever)
	running := s.until(id, runtimeapi.ContainerState_CONTAINER_RUNNING)
	if running.StartedAt == 0 || running.Labels[cri.LabelContainerName] != "c" || running.Annotations[cri.AnnotationHash] != "abc" {
		t.Errorf("running: %v", running)
	}
	s.untilTrapped(id)
	if err := s.Runtime.StopContainer(t.Context(), id, 10); err != nil {
		t.Fatalf("stop: %v", err)
	}
	stopped := s.until(id, runtimeapi.ContainerState_CONTAINER_EXITED)
	if stopped.ExitCode != 0 || stopped.Reason != "Completed" || stopped.FinishedAt < stopped.StartedAt {
		t.Errorf("stopped: %v", stopped)
	}
	for range 2 { // removing twice is no error
		if err := s.Runtime.RemoveContainer(t.Context(), id); err != nil {
			t.Fatalf("remove: %v", err)
		}
	}
	if _, err := s.Runtime.ContainerStatus(t.Context(), id, false); !cri.NotFound(err) {
		t.Errorf("status of a removed container: %v, want not found", err)
	}
}

func testExitCodes(t *testing.T, s *suite) {
	sandbox := s.sandbox()
	for i, row := range []struct {
		code   int32
		reason string
	}{{0, "Completed"}, {3, "Error"}, {255, "Error"}} {
		id := s.container(sandbox, "c", uint32(i), fmt.Sprintf("exit %d", row.code))
		if got := s.until(id, runtimeapi.ContainerState_CONTAINER_EXITED); got.ExitCode != row.code || got.Reason != row.reason {
			t.Errorf("exit %d: code %d, reason %s", row.code, got.ExitCode, got.Reason)
		}
	}
}

func testExec(t *testing.T, s *suite) {
	id := s.container(s.sandbox(), "c", 0, forever)
	stdout, _, err := s.Runtime.ExecSync(t.Context(), id, []string{"sh", "-c", "echo hello"}, wait)
	if err != nil || string(stdout) != "hello\n" {
		t.Errorf("echo: %q, %v", stdout, err)
	}
	_, _, err = s.Runtime.ExecSync(t.Context(), id, []string{"sh", "-c", "exit 4"}, wait)
	var exit *cri.ExitError
	if !errors.As(err, &exit) || exit.Code != 4 {
		t.Errorf("exit 4: %v", err)
	}
	if _, _, err = s.Runtime.ExecSync(t.Context(), id, []string{"sh", "-c", "sleep 60"}, time.Second); !errors.Is(err, cri.ErrTimedOut) {
		t.Errorf("a command that takes too long: %v", err)
	}
}

func testUnknown(t *testing.T, s *suite) {
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	if _, err := s.Runtime.ContainerStatus(t.Context(), id, false); !cri.NotFound(err) {
		t.Errorf("status of an unknown container: %v", err)
	}
	if _, err := s.Runtime.PodSandboxStatus(t.Context(), id, false); !cri.NotFound(err) {
		t.Errorf("status of an unknown sandbox: %v", err)
	}
	for name, do := range map[string]func() error{
		"stop container":   func() error { return s.Runtime.StopContainer(t.Context(), id, 1) },
		"remove container": func() error { return s.Runtime.RemoveContainer(t.Context(), id) },
		"stop sandbox":     func() error { return s.Runtime.StopPodSandbox(t.Context(), id) },
		"remove sandbox":   func() error { return s.Runtime.RemovePodSandbox(t.Context(), id) },
	} {
		if err := do(); err != nil && !cri.NotFound(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func testReadPod(t *testing.T, s *suite) {
	sandbox := s.sandbox()
	first := s.container(sandbox, "c", 0, "exit 7")
	s.until(first, runtimeapi.ContainerState_CONTAINER_EXITED)
	second := s.container(sandbox, "c", 1, forever)
	s.until(second, runtimeapi.ContainerState_CONTAINER_RUNNING)
	pod, err := cri.New(s.Runtime).ReadPod(t.Context(), types.UID(s.uid))
	if err != nil {
		t.Fatal(err)
	}
	if len(pod.Containers) != 2 || pod.Containers[0].ID != second || pod.Containers[1].ID != first {
		t.Fatalf("containers %+v, want the newest first", pod.Containers)
	}
	if c := pod.Container("c"); c.State != cri.Running || c.RestartCount != 1 || c.Hash != "abc" || c.SandboxID != sandbox {
		t.Errorf("newest: %+v", c)
	}
	if c := pod.Containers[1]; c.State != cri.Exited || c.ExitCode != 7 || c.Reason != "Error" {
		t.Errorf("before: %+v", c)
	}
	if why, attempt, id := pod.NeedsSandbox(true); why != "" || attempt != 0 || id != sandbox {
		t.Errorf("needs a sandbox: %q %d %s", why, attempt, id)
	}
	if other, err := cri.New(s.Runtime).ReadPod(t.Context(), "no-such-pod"); err != nil || len(other.Sandboxes)+len(other.Containers) != 0 {
		t.Errorf("a pod that does not exist: %+v, %v", other, err)
	}
}

func testEvents(t *testing.T, s *suite) {
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan types.UID, 100)
	watcher := &cri.Watcher{Runtime: cri.New(s.Runtime), Changed: func(uid types.UID) {
		select {
		case changed <- uid:
		default:
		}
	}, Log: slog.New(slog.DiscardHandler)}
	var running sync.WaitGroup
	running.Go(func() { _ = watcher.Run(ctx) })
	defer running.Wait()
	defer cancel()
	expect := func(what string) {
		t.Helper()
		for deadline := time.After(wait); ; {
			select {
			case uid := <-changed:
				if string(uid) == s.uid {
					return
				}
			case <-deadline:
				t.Fatalf("no change was reported after %s", what)
			}
		}
	}
	settle := func() {
		for {
			select {
			case <-changed:
			case <-time.After(300 * time.Millisecond):
				return
			}
		}
	}
	sandbox := s.sandbox()
	expect("creating a sandbox")
	id := s.container(sandbox, "c", 0, forever)
	expect("creating a container")
	settle()
	if err := s.Runtime.StopContainer(t.Context(), id, 5); err != nil {
		t.Fatal(err)
	}
	expect("stopping a container")
}

func testResize(t *testing.T, s *suite) {
	id := s.container(s.sandbox(), "c", 0, forever)
	err := s.Runtime.UpdateContainerResources(t.Context(), id, &runtimeapi.ContainerResources{Linux: &runtimeapi.LinuxContainerResources{
		CpuPeriod: 100000, CpuQuota: 20000, CpuShares: 204, MemoryLimitInBytes: 96 << 20,
	}})
	if err != nil {
		t.Fatalf("update: %v", err)
	}
	pod, err := cri.New(s.Runtime).ReadPod(t.Context(), types.UID(s.uid))
	if err != nil {
		t.Fatal(err)
	}
	r := pod.Container("c").Resources
	if r.CPULimit == nil || r.CPULimit.MilliValue() != 200 || r.CPURequest == nil || r.CPURequest.MilliValue() != 200 || r.MemoryLimit == nil || r.MemoryLimit.Value() != 96<<20 {
		t.Errorf("resources %v", r)
	}
}

func testLogs(t *testing.T, s *suite) {
	id := s.container(s.sandbox(), "c", 0, "echo hello; "+forever)
	path := s.status(id).LogPath
	if want := filepath.Join(s.Logs, s.uid, "c/0.log"); path != want {
		t.Fatalf("log at %s, want %s", path, want)
	}
	for deadline := time.Now().Add(wait); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			break
		}
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if err := s.Runtime.ReopenContainerLog(t.Context(), id); err != nil {
		t.Fatalf("reopen: %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("no new log: %v", err)
	}
}

func testSandboxRemovesContainers(t *testing.T, s *suite) {
	sandbox := s.sandbox()
	id := s.container(sandbox, "c", 0, forever)
	if err := s.Runtime.StopPodSandbox(t.Context(), sandbox); err != nil {
		t.Fatal(err)
	}
	s.until(id, runtimeapi.ContainerState_CONTAINER_EXITED)
	if err := s.Runtime.RemovePodSandbox(t.Context(), sandbox); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Runtime.ContainerStatus(t.Context(), id, false); !cri.NotFound(err) {
		t.Errorf("the container still exists: %v", err)
	}
}

func testImages(t *testing.T, s *suite) {
	present, err := s.Runtime.ImageStatus(t.Context(), &runtimeapi.ImageSpec{Image: s.Image}, false)
	if err != nil || present.Image == nil || present.Image.Id == "" {
		t.Errorf("an image that is present: %v, %v", present, err)
	}
	missing, err := s.Runtime.ImageStatus(t.Context(), &runtimeapi.ImageSpec{Image: "localhost/no/such:image"}, false)
	if err != nil || missing.Image != nil {
		t.Errorf("an image that is not present: %v, %v", missing, err)
	}
}
