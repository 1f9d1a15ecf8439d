package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/cri/critest"
	"skiff/internal/kubelet/environment"
	"skiff/internal/podstate"
	"skiff/test/inprocess"
)

// testKubelet is a kubelet on a runtime in memory, against a real API server.
type testKubelet struct {
	*testing.T
	ctx     context.Context
	client  *client.Client
	pods    client.Resource[*corev1.Pod]
	runtime *critest.Fake
	fakes   *fakeDependencies
	root    string
	config  Config
	kubelet *Kubelet
	stop    func()
}

// fakeServices are no Services, or the error of reading them.
type fakeServices struct{ err error }

func (s fakeServices) List(string) ([]*corev1.Service, error)      { return nil, s.err }
func (s fakeServices) Get(string, string) (*corev1.Service, error) { return nil, s.err }

// fakeDependencies implements volumes, images, cgroups and objects, and records calls.
type fakeDependencies struct {
	mu      sync.Mutex
	calls   []string
	mounts  error
	orphans []types.UID
	// holding has a channel for each pod, by name, whose volumes are not mounted before it is closed.
	holding map[string]chan struct{}
	// root is the kubelet's directory.
	root string
}

func (f *fakeDependencies) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *fakeDependencies) did(what string) bool { return f.count(what) > 0 }

// count is how often something was done.
func (f *fakeDependencies) count(what string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, call := range f.calls {
		if call == what {
			n++
		}
	}
	return n
}

// hold has the syncs of a pod wait until the returned function is called.
func (f *fakeDependencies) hold(pod *corev1.Pod) (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := make(chan struct{})
	f.holding = map[string]chan struct{}{pod.Name: c}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.holding, pod.Name)
		close(c)
	}
}

func (f *fakeDependencies) Mount(ctx context.Context, pod *corev1.Pod) error {
	f.note("mount %s", pod.Name)
	f.mu.Lock()
	hold, err := f.holding[pod.Name], f.mounts
	f.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
		}
	}
	return err
}
func (f *fakeDependencies) Mounts(*corev1.Pod, *corev1.Container, []corev1.EnvVar) ([]cri.Mount, func(), error) {
	return nil, nil, nil
}
func (f *fakeDependencies) Devices(*corev1.Pod, *corev1.Container) ([]cri.Device, error) {
	return nil, nil
}
func (f *fakeDependencies) RefreshAt(types.UID) time.Time        { return time.Time{} }
func (f *fakeDependencies) SupplementalGroups(types.UID) []int64 { return nil }
func (f *fakeDependencies) Unmount(_ context.Context, uid types.UID) error {
	f.note("unmount %s", uid)
	return nil
}
func (f *fakeDependencies) RemoveDir(_ context.Context, uid types.UID) error {
	return os.RemoveAll(filepath.Join(f.root, "pods", string(uid)))
}
func (f *fakeDependencies) Pods() ([]types.UID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.orphans, nil
}
func (f *fakeDependencies) ReadFile(*corev1.Pod, string, string) ([]byte, error) {
	return nil, errors.New("no file")
}
func (f *fakeDependencies) Ensure(_ context.Context, _ *corev1.Pod, c *corev1.Container, _ *cri.SandboxConfig) (string, error) {
	if strings.HasPrefix(c.Image, "missing") {
		return "", imageError{}
	}
	return c.Image, nil
}
func (f *fakeDependencies) Register(*corev1.Pod) {}
func (f *fakeDependencies) Unregister(types.UID) {}
func (f *fakeDependencies) ConfigMap(_, name string) (*corev1.ConfigMap, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), name)
}
func (f *fakeDependencies) Secret(_, name string) (*corev1.Secret, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
}

type imageError struct{}

func (imageError) Error() string                 { return "no such image" }
func (imageError) ImageReason() (string, string) { return "ErrImagePull", "no such image" }

// fakeCgroups implements Cgroups.
type fakeCgroups struct{ *fakeDependencies }

func (c fakeCgroups) Ensure(*corev1.Pod, bool) (string, error) { return "/kubepods", nil }
func (c fakeCgroups) Grow(pod *corev1.Pod) error               { c.note("grow %s", pod.Name); return nil }
func (c fakeCgroups) Update(pod *corev1.Pod) error             { c.note("update %s", pod.Name); return nil }
func (c fakeCgroups) Remove(uid types.UID) error               { c.note("remove cgroup %s", uid); return nil }

func newTestKubelet(t *testing.T) *testKubelet {
	ctx, cancel := context.WithCancel(t.Context())
	c := inprocess.Start(t, ctx)
	b := &testKubelet{T: t, ctx: ctx, client: c, pods: client.For[*corev1.Pod](c), runtime: critest.NewFake("image", "other"), root: t.TempDir()}
	b.fakes = &fakeDependencies{root: b.root}
	node, err := client.For[*corev1.Node](c).Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, client.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node = node.DeepCopy()
	node.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("10"),
	}
	b.config = Config{
		NodeName: "n1", Root: b.root, Client: c, Runtime: cri.New(b.runtime), Volumes: b.fakes, Images: b.fakes, Cgroups: fakeCgroups{b.fakes}, Objects: b.fakes,
		Services: fakeServices{}, Node: func() *corev1.Node { return node },
		HostIPs: func() []string { return []string{"192.0.2.1"} }, DNS: environment.DNSSettings{ClusterDomain: "cluster.local"},
		Log: slog.New(slog.DiscardHandler),
	}
	t.Cleanup(func() { b.stop(); cancel() })
	b.start()
	return b
}

// start runs a kubelet. After a stop it starts a new one with the old one's state.
func (b *testKubelet) start() {
	ctx, cancel := context.WithCancel(b.ctx)
	k := New(b.config)
	b.kubelet = k
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := k.Run(ctx); err != nil {
			b.Errorf("kubelet: %v", err)
		}
	}()
	b.stop = sync.OnceFunc(func() { cancel(); <-done })
}

func (b *testKubelet) create(options ...podOption) *corev1.Pod {
	b.Helper()
	pod := planned(options...)
	pod.UID, pod.Namespace, pod.Spec.NodeName = "", "default", "n1"
	pod.Name = fmt.Sprintf("p%d", time.Now().UnixNano())
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		pod.Spec.TerminationGracePeriodSeconds = new(int64(30))
	}
	made, err := b.pods.Create(b.ctx, pod, client.WriteOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return made
}

// until waits until a pod meets a condition.
func (b *testKubelet) until(pod *corev1.Pod, what string, is func(*corev1.Pod) bool) *corev1.Pod {
	b.Helper()
	var last *corev1.Pod
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		found, err := b.pods.Get(b.ctx, pod.Namespace, pod.Name)
		if err == nil {
			if last = found; is(found) {
				return found
			}
		}
	}
	b.Fatalf("pod never was %s; in the end %+v", what, last.Status)
	return nil
}

func (b *testKubelet) gone(pod *corev1.Pod) {
	b.Helper()
	b.eventually("pod deleted", func() bool {
		_, err := b.pods.Get(b.ctx, pod.Namespace, pod.Name)
		return apierrors.IsNotFound(err)
	})
}

func (b *testKubelet) eventually(what string, is func() bool) {
	b.Helper()
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if is() {
			return
		}
	}
	b.Fatalf("never: %s", what)
}

func (b *testKubelet) delete(pod *corev1.Pod, grace int64) {
	b.Helper()
	if err := b.pods.Delete(b.ctx, pod.Namespace, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		b.Fatal(err)
	}
}

func running(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && conditionTrue(pod, corev1.PodReady)
}

func conditionTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
}

func waitingFor(reason string) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		return len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Waiting != nil &&
			pod.Status.ContainerStatuses[0].State.Waiting.Reason == reason
	}
}

func (b *testKubelet) id(pod *corev1.Pod, name string) string {
	return b.runtime.ContainerID(string(pod.UID), name)
}

func TestPodRunsAndGoes(t *testing.T) {
	b := newTestKubelet(t)
	pod := b.until(b.create(initial("i", command("exit 0")), regular("a"), regular("b")), "running", running)
	if pod.Status.PodIP == "" || pod.Status.HostIP != "192.0.2.1" || pod.Status.ObservedGeneration != pod.Generation || pod.Status.StartTime == nil {
		t.Errorf("status %+v", pod.Status)
	}
	if got, want := strings.Join(startsOf(b.runtime.Calls()), " "), "i a b"; got != want {
		t.Errorf("started %q, want %q", got, want)
	}
	b.delete(pod, 5)
	b.gone(pod)
	for _, want := range []string{"unmount " + string(pod.UID), "remove cgroup " + string(pod.UID)} {
		if !b.fakes.did(want) {
			t.Errorf("the pod was deleted from the API before %q", want)
		}
	}
	b.eventually("containers removed", func() bool {
		list, _ := b.runtime.ListContainers(b.ctx, nil)
		sandboxes, _ := b.runtime.ListPodSandbox(b.ctx, nil)
		return len(list)+len(sandboxes) == 0
	})
	b.eventually("directory removed", func() bool {
		_, err := os.Stat(filepath.Join(b.root, "pods", string(pod.UID)))
		return os.IsNotExist(err)
	})
}

func command(text string) containerOption {
	return func(c *corev1.Container) { c.Command = []string{"sh", "-c", text} }
}

func startsOf(calls []string) []string {
	var names []string
	for _, call := range calls {
		if name, ok := strings.CutPrefix(call, "StartContainer "); ok {
			names = append(names, name)
		}
	}
	return names
}

func TestPodsEnd(t *testing.T) {
	b := newTestKubelet(t)
	for _, row := range []struct {
		name string
		pod  *corev1.Pod
		want corev1.PodPhase
	}{
		{"success", b.create(never, regular("a", command("exit 0"))), corev1.PodSucceeded},
		{"failure", b.create(never, regular("a", command("exit 1"))), corev1.PodFailed},
		{"one of two fails", b.create(never, regular("a", command("exit 0")), regular("b", command("exit 2"))), corev1.PodFailed},
		{"init fails", b.create(never, initial("i", command("exit 1")), regular("a")), corev1.PodFailed},
		{"with a sidecar", b.create(never, sidecar("s"), regular("a", command("exit 0"))), corev1.PodSucceeded},
		{"own policy ends it", b.create(always, regular("a", command("exit 3"), own(ownNever))), corev1.PodFailed},
	} {
		pod := b.until(row.pod, string(row.want), func(p *corev1.Pod) bool { return p.Status.Phase == row.want })
		if conditionTrue(pod, corev1.PodReady) {
			t.Errorf("%s: ready in the end", row.name)
		}
		b.eventually(row.name+" cleaned up", func() bool { return b.fakes.did("remove cgroup " + string(pod.UID)) })
		// A terminated pod can still be deleted.
		b.delete(pod, 5)
		b.gone(pod)
	}
}

func TestCrashLoop(t *testing.T) {
	b := newTestKubelet(t)
	pod := b.until(b.create(regular("a", command("exit 1"))), "in back-off", waitingFor("CrashLoopBackOff"))
	s := pod.Status.ContainerStatuses[0]
	if want := fmt.Sprintf("back-off 10s restarting failed container=a pod=%s_default(%s)", pod.Name, pod.UID); s.State.Waiting.Message != want {
		t.Errorf("message %q, want %q", s.State.Waiting.Message, want)
	}
	if s.RestartCount != 1 || s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 1 || pod.Status.Phase != corev1.PodRunning {
		t.Errorf("status %+v, phase %s", s, pod.Status.Phase)
	}
}

func TestRestartCountsSurvive(t *testing.T) {
	b := newTestKubelet(t)
	pod := b.until(b.create(regular("a")), "running", running)
	b.runtime.Exit(b.id(pod, "a"), 1)
	pod = b.until(pod, "restarted", func(p *corev1.Pod) bool { return running(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	id := b.id(pod, "a")
	b.stop()
	b.runtime.Calls()
	b.start()
	// The new kubelet adopts running containers.
	other := b.until(b.create(regular("z")), "running", running)
	pod = b.until(pod, "running", running)
	if b.id(pod, "a") != id || pod.Status.ContainerStatuses[0].RestartCount != 1 {
		t.Errorf("container %s after the restart, was %s", b.id(pod, "a"), id)
	}
	if got := startsOf(b.runtime.Calls()); len(got) != 1 || got[0] != "z" {
		t.Errorf("started %v, want only the new pod's", got)
	}
	// A container that exits while no kubelet runs is detected afterwards.
	b.stop()
	b.runtime.Exit(id, 9)
	b.start()
	pod = b.until(pod, "in back-off or restarted", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses[0]
		return s.LastTerminationState.Terminated != nil && s.LastTerminationState.Terminated.ExitCode == 9
	})
	b.until(pod, "running again", func(p *corev1.Pod) bool { return running(p) && p.Status.ContainerStatuses[0].RestartCount == 2 })
	_ = other
}

func TestDeletedWhileAway(t *testing.T) {
	b := newTestKubelet(t)
	pod := b.until(b.create(regular("a")), "running", running)
	b.stop()
	b.delete(pod, 0) // by force: nothing waits for the node
	b.fakes.mu.Lock()
	b.fakes.orphans = []types.UID{"left-over"}
	b.fakes.mu.Unlock()
	b.start()
	b.eventually("orphans removed", func() bool {
		list, _ := b.runtime.ListPodSandbox(b.ctx, nil)
		return len(list) == 0 && b.fakes.did("unmount "+string(pod.UID)) && b.fakes.did("unmount left-over") && b.fakes.did("remove cgroup left-over")
	})
}

func TestForcedDeletion(t *testing.T) {
	b := newTestKubelet(t)
	b.runtime.IgnoreStop = func(string) bool { return true }
	pod := b.until(b.create(regular("a")), "running", running)
	b.delete(pod, 0)
	b.eventually("containers removed", func() bool {
		list, _ := b.runtime.ListContainers(b.ctx, nil)
		return len(list) == 0
	})
}

// After a force deletion the scheduler reassigns the pod's resources at once, however long its containers take to stop.
func TestResourcesAfterForceDeletion(t *testing.T) {
	b := newTestKubelet(t)
	b.runtime.IgnoreStop = func(string) bool { return true }
	pod := b.until(b.create(regular("a", needs("3", "", "", ""))), "running", running)
	b.delete(pod, 0)
	b.eventually("stopping", func() bool { return slices.Contains(b.runtime.Calls(), "StopContainer a") })
	b.until(b.create(regular("a", needs("3", "", "", ""))), "running", running)
}

func TestGraceCanBeShortened(t *testing.T) {
	b := newTestKubelet(t)
	b.runtime.IgnoreStop = func(string) bool { return true }
	pod := b.until(b.create(regular("a")), "running", running)
	b.delete(pod, 600)
	b.eventually("stopping", func() bool { return slices.Contains(b.runtime.Calls(), "StopContainer a") })
	began := time.Now()
	b.delete(pod, 1)
	b.gone(pod)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestSandboxIsReplaced(t *testing.T) {
	b := newTestKubelet(t)
	pod := b.until(b.create(initial("i", command("exit 0")), regular("a")), "running", running)
	list, _ := b.runtime.ListPodSandbox(b.ctx, nil)
	b.runtime.Calls()
	b.runtime.StopSandbox(list[0].Id)
	b.eventually("containers started anew", func() bool { return len(startsOf(b.runtime.Calls())) >= 0 && b.sandboxOf(pod) != list[0].Id })
	b.until(pod, "running again", running)
}

func (b *testKubelet) sandboxOf(pod *corev1.Pod) string {
	seen, err := cri.New(b.runtime).ReadPod(b.ctx, pod.UID)
	if err != nil || len(seen.Sandboxes) == 0 {
		return ""
	}
	return seen.Sandboxes[0].ID
}

func TestWhyContainersWait(t *testing.T) {
	b := newTestKubelet(t)
	b.stop()
	b.runtime.Fail = func(call, what string) error {
		if call == "CreateContainer" && what == "refused" {
			return errors.New("no room")
		}
		return nil
	}
	b.start()
	b.until(b.create(regular("a", func(c *corev1.Container) { c.Image = "missing" })), "without its image", waitingFor("ErrImagePull"))
	b.until(b.create(regular("refused")), "refused by the runtime", waitingFor("CreateContainerError"))
	b.until(b.create(regular("a", func(c *corev1.Container) {
		c.Env = []corev1.EnvVar{{Name: "X", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "no"}, Key: "k"}}}}
	})), "without its config map", waitingFor("CreateContainerConfigError"))
	b.fakes.mu.Lock()
	b.fakes.mounts = errors.New("no disk")
	b.fakes.mu.Unlock()
	pod := b.until(b.create(regular("a")), "without volumes", waitingFor("ContainerCreating"))
	b.fakes.mu.Lock()
	b.fakes.mounts = nil
	b.fakes.mu.Unlock()
	b.until(pod, "running", running)
}

// mapError is the failure of a volume that says which reason its event has.
type mapError struct{}

func (mapError) Error() string  { return "no device" }
func (mapError) Reason() string { return "FailedMapVolume" }

// TestMountReason: each volume that could not be mounted has its own event, with the reason of its failure.
func TestMountReason(t *testing.T) {
	b := newTestKubelet(t)
	events := client.NewEventBroadcaster(b.client)
	b.stop()
	b.config.Events = events.NewRecorder("kubelet")
	b.fakes.mounts = errors.Join(errors.New("no disk"), fmt.Errorf("mount: %w", mapError{}))
	b.start()
	go func() { _ = events.Run(b.ctx) }()
	pod := b.create(regular("a"))
	for _, want := range []string{"FailedMount no disk", "FailedMapVolume mount: no device"} {
		b.eventually("event "+want, func() bool {
			list, _, err := client.For[*corev1.Event](b.client).List(b.ctx, pod.Namespace, client.Selector{})
			return err == nil && slices.ContainsFunc(list, func(e *corev1.Event) bool {
				return e.InvolvedObject.UID == pod.UID && e.Type == corev1.EventTypeWarning && e.Reason+" "+e.Message == want
			})
		})
	}
}

func TestPodLogsDir(t *testing.T) {
	b := newTestKubelet(t)
	b.stop()
	b.config.PodLogsDir = t.TempDir()
	b.start()
	pod := b.until(b.create(regular("a")), "running", running)
	if _, err := os.Stat(filepath.Join(cri.PodLogDirectory(b.config.PodLogsDir, pod), "a")); err != nil {
		t.Error(err)
	}
	// Log collectors find it by a link whose name says to which container it belongs.
	link := filepath.Join(filepath.Dir(b.config.PodLogsDir), "containers", fmt.Sprintf("%s_default_a-%s.log", pod.Name, b.id(pod, "a")))
	if target, err := os.Readlink(link); err != nil || target != filepath.Join(cri.PodLogDirectory(b.config.PodLogsDir, pod), "a/0.log") {
		t.Errorf("the link leads to %s, %v", target, err)
	}
	b.kubelet.removeDeadLogLinks(b.ctx) // the log of a container that exists may just be being rotated
	if _, err := os.Lstat(link); err != nil {
		t.Error(err)
	}
	b.delete(pod, 1)
	b.gone(pod)
	b.eventually("the link is removed", func() bool {
		b.kubelet.removeDeadLogLinks(b.ctx)
		_, err := os.Lstat(link)
		return errors.Is(err, os.ErrNotExist)
	})
}

func TestProbes(t *testing.T) {
	b := newTestKubelet(t)
	var mu sync.Mutex
	code := map[string]int32{"ready": 1}
	b.runtime.Command = func(_ context.Context, _ string, command []string) (string, int32, error) {
		mu.Lock()
		defer mu.Unlock()
		return "", code[command[0]], nil
	}
	set := func(name string, value int32) { mu.Lock(); code[name] = value; mu.Unlock() }
	probe := func(name string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{name}}}, PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 1, SuccessThreshold: 1}
	}
	pod := b.create(regular("a", func(c *corev1.Container) {
		c.ReadinessProbe, c.LivenessProbe, c.StartupProbe = probe("ready"), probe("live"), probe("startup")
	}))
	pod = b.until(pod, "started, not ready", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) == 1 && s[0].Started != nil && *s[0].Started && !s[0].Ready && !conditionTrue(p, corev1.PodReady)
	})
	set("ready", 0)
	b.until(pod, "ready", running)
	set("ready", 1)
	b.until(pod, "not ready", func(p *corev1.Pod) bool { return !conditionTrue(p, corev1.PodReady) })
	set("ready", 0)
	set("live", 1)
	b.until(pod, "restarted", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount >= 1 })
	set("live", 0)
	b.until(pod, "ready again", running)
}

func TestStopOrder(t *testing.T) {
	b := newTestKubelet(t)
	pod := b.until(b.create(sidecar("s"), sidecar("u"), regular("a", func(c *corev1.Container) {
		c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"bye"}}}}
	})), "running", running)
	b.runtime.Calls()
	b.delete(pod, 20)
	b.gone(pod)
	var order []string
	for _, call := range b.runtime.Calls() {
		if strings.HasPrefix(call, "Stop") || strings.HasPrefix(call, "Exec") {
			order = append(order, strings.TrimSuffix(call, " "+pod.Name))
		}
	}
	if got, want := strings.Join(order[:5], ", "), "ExecSync a bye, StopContainer a, StopContainer u, StopContainer s, StopPodSandbox"; got != want {
		t.Errorf("stopped in order %q, want %q", got, want)
	}
}

func TestAdmission(t *testing.T) {
	b := newTestKubelet(t)
	first := b.until(b.create(regular("a", needs("3", "", "", ""))), "running", running)
	second := b.until(b.create(regular("a", needs("3", "", "", ""))), "rejected", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if want := "Pod was rejected: Node didn't have enough resource: cpu, requested: 3000, used: 3000, capacity: 4000"; second.Status.Reason != "OutOfcpu" || second.Status.Message != want {
		t.Errorf("%s: %s", second.Status.Reason, second.Status.Message)
	}
	b.delete(second, 1)
	b.gone(second)
	b.delete(first, 1)
	b.gone(first)
	b.until(b.create(regular("a", needs("3", "", "", ""))), "running in the room that is free again", running)
}

func TestResize(t *testing.T) {
	b := newTestKubelet(t)
	pod := b.until(b.create(regular("a", needs("1", "1", "1Gi", "1Gi"))), "running", running)
	id := b.id(pod, "a")
	resize := func(cpu string) {
		t.Helper()
		patch := fmt.Sprintf(`{"spec":{"containers":[{"name":"a","resources":{"requests":{"cpu":%q},"limits":{"cpu":%q}}}]}}`, cpu, cpu)
		if _, err := b.pods.Patch(b.ctx, pod.Namespace, pod.Name, client.RawPatch(client.StrategicPatch, []byte(patch)), client.WriteOptions{Subresource: "resize"}); err != nil {
			t.Fatal(err)
		}
	}
	resize("3")
	pod = b.until(pod, "resized", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses[0]
		return s.Resources != nil && s.Resources.Limits.Cpu().Value() == 3 && s.AllocatedResources.Cpu().Value() == 3 && p.Status.ObservedGeneration == p.Generation &&
			!slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizeInProgress })
	})
	if b.id(pod, "a") != id || pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Error("the container was restarted")
	}
	resize("5")
	pod = b.until(pod, "waiting for room", func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonDeferred && strings.Contains(c.Message, "Node didn't have enough resource: cpu")
		})
	})
	if got := pod.Status.ContainerStatuses[0].AllocatedResources.Cpu().Value(); got != 3 {
		t.Errorf("allocated %d", got)
	}
	resize("2")
	b.until(pod, "resized down", func(p *corev1.Pod) bool {
		return p.Status.ContainerStatuses[0].Resources.Limits.Cpu().Value() == 2 &&
			!slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizePending })
	})
}

func TestImageChange(t *testing.T) {
	b := newTestKubelet(t)
	pod := b.until(b.create(regular("a")), "running", running)
	id := b.id(pod, "a")
	if _, err := b.pods.Patch(b.ctx, pod.Namespace, pod.Name, client.RawPatch(client.StrategicPatch, []byte(`{"spec":{"containers":[{"name":"a","image":"other"}]}}`)), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	pod = b.until(pod, "restarted", func(p *corev1.Pod) bool { return running(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	if b.id(pod, "a") == id {
		t.Error("the same container")
	}
}

func TestStaticPods(t *testing.T) {
	b := newTestKubelet(t)
	b.stop()
	b.config.StaticPods = t.TempDir()
	b.config.Node = func() *corev1.Node {
		node, err := client.For[*corev1.Node](b.client).Get(b.ctx, "", "n1")
		if err != nil {
			return nil
		}
		return node
	}
	b.start()
	manifest := func(image string) {
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {terminationGracePeriodSeconds: 1, containers: [{name: a, image: " + image + "}]}\n"
		if err := os.WriteFile(filepath.Join(b.config.StaticPods, "web.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mirror := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-n1"}}
	manifest("image")
	first := b.until(mirror, "running", running)
	if first.Annotations[corev1.MirrorPodAnnotationKey] == "" || !podstate.IsStatic(first) || len(first.OwnerReferences) != 1 {
		t.Errorf("mirror %+v", first.ObjectMeta)
	}
	// A deleted mirror pod is created again; the pod keeps running.
	if err := b.pods.Delete(b.ctx, "default", "web-n1", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	second := b.until(mirror, "mirrored again", func(p *corev1.Pod) bool { return p.UID != first.UID && running(p) })
	manifest("other")
	b.until(mirror, "replaced", func(p *corev1.Pod) bool {
		return p.UID != second.UID && p.Spec.Containers[0].Image == "other" && running(p)
	})
	if err := os.Remove(filepath.Join(b.config.StaticPods, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	b.gone(mirror)
	b.eventually("containers removed", func() bool {
		list, _ := b.runtime.ListContainers(b.ctx, nil)
		return len(list) == 0
	})
}

func TestDeadline(t *testing.T) {
	b := newTestKubelet(t)
	pod := b.until(b.create(deadline(1), regular("a")), "over its deadline", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if pod.Status.Reason != "DeadlineExceeded" || pod.Status.Message != "Pod was active on the node longer than the specified deadline" {
		t.Errorf("%s: %s", pod.Status.Reason, pod.Status.Message)
	}
	if end := pod.Status.ContainerStatuses[0].State.Terminated; end == nil {
		t.Error("the container did not end")
	}
}

func TestManyUpdates(t *testing.T) {
	b := newTestKubelet(t)
	pod := b.until(b.create(regular("a")), "running", running)
	for i := range 100 {
		patch := fmt.Sprintf(`{"spec":{"activeDeadlineSeconds":%d}}`, 5000-i)
		var err error
		if pod, err = b.pods.Patch(b.ctx, pod.Namespace, pod.Name, client.RawPatch(client.StrategicPatch, []byte(patch)), client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	b.until(pod, "observed", func(p *corev1.Pod) bool { return p.Status.ObservedGeneration == pod.Generation })
}
