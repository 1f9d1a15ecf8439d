package evict

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/kubelet/cgroup"
	"skiff/internal/kubelet/cri"
)

// fakeNode is a node whose memory and disk the test sets. It is Actor and Source.
type fakeNode struct {
	mu      sync.Mutex
	actions []string
	pods    []*corev1.Pod
	signal  map[Signal]Observation
	// after is called when a pod is evicted or something is freed.
	after    func(p *fakeNode, what string)
	why      []string
	disks    map[types.UID]PodUsage
	measured []string // pods whose use was asked for, with a * where that is of disks too
	unready  int      // how many times Prepare still fails
}

func (p *fakeNode) Prepare(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unready > 0 {
		p.unready--
		return errors.New("not ready")
	}
	return nil
}

func (n *fakeNode) do(what string) {
	n.actions = append(n.actions, what)
	if n.after != nil {
		n.after(n, what)
	}
}

func (n *fakeNode) Pods() []*corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.pods)
}

func (n *fakeNode) Evict(_ context.Context, e Eviction) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.why = append(n.why, e.Message)
	n.pods = slices.DeleteFunc(n.pods, func(o *corev1.Pod) bool { return o == e.Pod })
	n.do(fmt.Sprintf("evict %s with %d", e.Pod.Name, e.Grace))
	return nil
}

func (n *fakeNode) Removed(*corev1.Pod) bool { return true }

func (n *fakeNode) DeleteUnusedContainers(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.do("free containers")
	return nil
}

func (n *fakeNode) DeleteUnusedImages(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.do("free images")
	return nil
}

func (n *fakeNode) Usage(_ context.Context, pods []*corev1.Pod, disks func(*corev1.Pod) bool) (Usage, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	u := Usage{Signals: map[Signal]Observation{}, Pods: map[types.UID]PodUsage{}}
	for s, o := range n.signal {
		u.Signals[s] = o
	}
	for _, pod := range pods {
		u.Pods[pod.UID] = PodUsage{}
		asked := pod.Name
		if disks == nil || disks(pod) {
			u.Pods[pod.UID] = n.disks[pod.UID]
			asked += "*"
		}
		n.measured = append(n.measured, asked)
	}
	return u, nil
}

// runEvictor runs an Evictor on a fakeNode for a time, and returns its actions and the final conditions.
func runEvictor(t *testing.T, p *fakeNode, c Config, passes time.Duration) (actions []string, conditions []corev1.NodeConditionType) {
	synctest.Test(t, func(t *testing.T) {
		changed := 0
		e := New(c, Dependencies{
			Actor: p, Source: p, Events: (*client.EventBroadcaster)(nil).NewRecorder("kubelet"), Log: slog.New(slog.DiscardHandler), Changed: func() { changed++ },
			NodeEvent: func(_, reason, message string) {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.actions = append(p.actions, reason+": "+message)
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		time.Sleep(passes)
		synctest.Wait()
		conditions = e.Conditions()
		if changed == 0 && len(conditions) > 0 {
			t.Error("Changed was not called")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p.actions, conditions
}

// A check of a node without pressure is cheap, however many pods it runs.
func TestPodsAreMeasuredOnlyWhenNeeded(t *testing.T) {
	short, plenty := Observation{1, 1000}, Observation{900, 1000}
	for _, test := range []struct {
		name         string
		memory, disk Observation
		first, later string
	}{
		{"plenty", plenty, plenty, "[limited*]", "[]"},
		{"memory is short", short, plenty, "[limited* plain limited*]", "[plain limited]"},
		{"disk is short", plenty, short, "[limited* plain* limited*]", "[limited* plain* limited*]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &fakeNode{
				pods:   []*corev1.Pod{pod("plain", "", ""), pod("limited", "", "ephemeral-storage=1Gi")},
				signal: map[Signal]Observation{MemoryAvailable: test.memory, NodeFsAvailable: test.disk},
			}
			config := Config{Thresholds: mustParse(t, map[string]string{"memory.available": "10%", "nodefs.available": "10%"}, nil, nil, nil)}
			e := New(config, Dependencies{Actor: p, Source: p})
			for _, want := range []string{test.first, test.later} {
				p.measured = nil
				if _, err := e.usage(t.Context(), p.pods); err != nil {
					t.Fatal(err)
				}
				if got := fmt.Sprint(p.measured); got != want {
					t.Errorf("asked for %s, want %s", got, want)
				}
			}
		})
	}
}

func TestEvictor(t *testing.T) {
	short, plenty := Observation{1, 1000}, Observation{900, 1000}
	config := Config{Thresholds: mustParse(t, map[string]string{"memory.available": "10%", "nodefs.available": "10%"}, nil, nil, nil)}
	tests := map[string]struct {
		node *fakeNode
		want string
	}{
		"plenty": {&fakeNode{signal: map[Signal]Observation{MemoryAvailable: plenty, NodeFsAvailable: plenty}}, "[] []"},
		"memory runs short until one pod is gone": {
			&fakeNode{
				pods: []*corev1.Pod{pod("a", "", "", priority(5)), pod("b", "", "")}, signal: map[Signal]Observation{MemoryAvailable: short},
				after: func(p *fakeNode, what string) { p.signal[MemoryAvailable] = plenty },
			},
			"[EvictionThresholdMet: Attempting to reclaim memory evict b with 1] [MemoryPressure]",
		},
		"one pod is not enough": {
			&fakeNode{
				pods: []*corev1.Pod{pod("a", "", ""), pod("b", "", "")}, signal: map[Signal]Observation{MemoryAvailable: short},
				after: func(p *fakeNode, what string) {
					if len(p.pods) == 0 {
						p.signal[MemoryAvailable] = plenty
					}
				},
			},
			"[EvictionThresholdMet: Attempting to reclaim memory evict a with 1 EvictionThresholdMet: Attempting to reclaim memory evict b with 1] [MemoryPressure]",
		},
		"unused images are enough": {
			&fakeNode{
				pods: []*corev1.Pod{pod("a", "", "")}, signal: map[Signal]Observation{NodeFsAvailable: short},
				after: func(p *fakeNode, what string) {
					if what == "free images" {
						p.signal[NodeFsAvailable] = plenty
					}
				},
			},
			"[EvictionThresholdMet: Attempting to reclaim ephemeral-storage free containers free images] [DiskPressure]",
		},
		"they are not": {
			&fakeNode{
				pods: []*corev1.Pod{pod("small", "", "", emptyDir("v", "9Gi", "")), pod("large", "", "", emptyDir("v", "9Gi", ""))}, signal: map[Signal]Observation{NodeFsAvailable: short},
				disks: map[types.UID]PodUsage{"small": {Volumes: map[string]Disk{"v": {Bytes: 1}}}, "large": {Volumes: map[string]Disk{"v": {Bytes: mebi}}}},
				after: func(p *fakeNode, what string) {
					if what == "evict large with 1" {
						p.signal[NodeFsAvailable] = plenty
					}
				},
			},
			"[EvictionThresholdMet: Attempting to reclaim ephemeral-storage free containers free images evict large with 1] [DiskPressure]",
		},
		"a volume outgrows its limit": {
			&fakeNode{
				pods: []*corev1.Pod{pod("a", "", "", emptyDir("v", "1Mi", "")), pod("b", "", "")}, signal: map[Signal]Observation{NodeFsAvailable: plenty},
				disks: map[types.UID]PodUsage{"a": {Volumes: map[string]Disk{"v": {Bytes: 2 * mebi}}}},
			},
			"[evict a with 1] []",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			actions, conditions := runEvictor(t, test.node, config, 25*time.Second)
			if got := fmt.Sprint(actions, " ", conditions); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if slices.Contains(test.node.why, "") {
				t.Error("an evicted pod has no message")
			}
		})
	}
	// The pressure ends some minutes after it was last observed.
	node := &fakeNode{pods: []*corev1.Pod{pod("a", "", "")}, signal: map[Signal]Observation{MemoryAvailable: short}, after: func(p *fakeNode, _ string) { p.signal[MemoryAvailable] = plenty }}
	if _, conditions := runEvictor(t, node, config, 6*time.Minute); len(conditions) != 0 {
		t.Errorf("still %v", conditions)
	}
}

// Nothing is measured before the source is ready.
func TestRunWaitsForTheSource(t *testing.T) {
	config := Config{Thresholds: mustParse(t, map[string]string{"memory.available": "10%"}, nil, nil, nil)}
	newNode := func() *fakeNode {
		return &fakeNode{
			pods: []*corev1.Pod{pod("a", "", "")}, signal: map[Signal]Observation{MemoryAvailable: {1, 1000}}, unready: 3,
			after: func(p *fakeNode, _ string) { p.signal[MemoryAvailable] = Observation{900, 1000} },
		}
	}
	if actions, conditions := runEvictor(t, newNode(), config, 2500*time.Millisecond); len(actions) != 0 || len(conditions) != 0 {
		t.Errorf("before it is ready: %v, %v", actions, conditions)
	}
	if actions, conditions := runEvictor(t, newNode(), config, 3500*time.Millisecond); len(actions) != 2 || len(conditions) != 1 {
		t.Errorf("when it is ready: %v, %v", actions, conditions)
	}
}

// fakeRuntime and fakeCgroups are what an Observer reads from.
type fakeRuntime struct {
	filesystem string
	err        error
	stats      []cri.ContainerStats
	listed     int
}

func (r *fakeRuntime) ImageFilesystem(context.Context) (string, error) { return r.filesystem, r.err }

func (r *fakeRuntime) ListContainerStats(context.Context) ([]cri.ContainerStats, error) {
	r.listed++
	return r.stats, nil
}

type fakeCgroups struct {
	node, pods cgroup.Stats
	byPod      map[types.UID]cgroup.Stats
	byID       map[string]cgroup.Stats
}

func (g *fakeCgroups) NodeStats() (cgroup.Stats, error) { return g.node, nil }

func (g *fakeCgroups) PodsStats() (cgroup.Stats, error) { return g.pods, nil }

func (g *fakeCgroups) PodStats(uid types.UID) (cgroup.Stats, error) {
	if s, ok := g.byPod[uid]; ok {
		return s, nil
	}
	return cgroup.Stats{}, fs.ErrNotExist
}

func (g *fakeCgroups) ContainerStats(_ types.UID, id string) (cgroup.Stats, error) {
	if s, ok := g.byID[id]; ok {
		return s, nil
	}
	return cgroup.Stats{}, fs.ErrNotExist
}

func TestPrepare(t *testing.T) {
	for name, test := range map[string]struct {
		runtime fakeRuntime
		ready   bool
	}{
		"known":                  {fakeRuntime{filesystem: "/images"}, true},
		"not known":              {fakeRuntime{}, false},
		"the runtime has failed": {fakeRuntime{filesystem: "/images", err: errors.New("unavailable")}, false},
	} {
		o := &Observer{Root: "/root", Runtime: &test.runtime}
		if err := o.Prepare(t.Context()); (err == nil) != test.ready || (o.imageDir == "/images") != test.ready {
			t.Errorf("%s: %q, %v", name, o.imageDir, err)
		}
	}
}

func TestObserve(t *testing.T) {
	dir := t.TempDir()
	u, err := Observe(dir, dir)
	if err != nil {
		t.Fatal(err)
	}
	if u.DedicatedImageFs || u.Signals[NodeFsAvailable] != u.Signals[ImageFsAvailable] {
		t.Errorf("%+v", u)
	}
	for _, s := range []Signal{NodeFsAvailable, PIDAvailable} {
		if o := u.Signals[s]; o.Available <= 0 || o.Capacity < o.Available {
			t.Errorf("%s: %+v", s, o)
		}
	}
	if other, err := Observe(dir, "/proc"); err != nil || !other.DedicatedImageFs {
		t.Errorf("%+v, %v", other, err)
	}
	if _, err := Observe(filepath.Join(dir, "none"), dir); err == nil {
		t.Error("observing a missing directory succeeds")
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 100_000), 0o600); err != nil {
		t.Fatal(err)
	}
	before := DiskUsage(t.Context(), dir)
	if before.Bytes < 100_000 || before.Inodes != 2 {
		t.Errorf("%+v", before)
	}
	if err := os.Link(filepath.Join(dir, "file"), filepath.Join(dir, "again")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/", filepath.Join(dir, "root")); err != nil {
		t.Fatal(err)
	}
	if after := DiskUsage(t.Context(), dir); after.Inodes != 3 || after.Bytes != before.Bytes {
		t.Errorf("%+v, before %+v", after, before)
	}
}

func TestObserver(t *testing.T) {
	root := t.TempDir()
	p := pod("p", "", "", emptyDir("v", "1Mi", ""), emptyDir("m", "1Mi", corev1.StorageMediumMemory))
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", ContainerID: "containerd://ended"}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", ContainerID: "containerd://running"}, {Name: "waiting"}}
	for path, size := range map[string]int{
		"pods/p/volumes/kubernetes.io~empty-dir/v/file": 200_000, "pods/p/volumes/kubernetes.io~empty-dir/m/file": 300_000, "logs/default_p_p/c/0.log": 50_000,
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	memory := func(workingSet, limit uint64) cgroup.Stats {
		return cgroup.Stats{Memory: cgroup.MemoryStats{WorkingSet: workingSet, Limit: limit}, Processes: 2}
	}
	runtime := &fakeRuntime{
		filesystem: root,
		stats:      []cri.ContainerStats{{PodUID: "p", ContainerName: "c", WritableLayer: &cri.FilesystemUsage{UsedBytes: 1000, InodesUsed: 3}}},
	}
	o := &Observer{Root: root, PodLogsDir: filepath.Join(root, "logs"), Runtime: runtime, Cgroups: &fakeCgroups{
		node: memory(300, 1000), pods: memory(200, 500),
		byPod: map[types.UID]cgroup.Stats{"p": memory(7, 0)}, byID: map[string]cgroup.Stats{"running": memory(5, 0)},
	}}
	if err := o.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	u, err := o.Usage(t.Context(), []*corev1.Pod{p, pod("unknown", "", "")}, func(*corev1.Pod) bool { return false })
	if err != nil || u.Signals[MemoryAvailable] != (Observation{700, 1000}) || u.Signals[AllocatableMemoryAvailable] != (Observation{300, 500}) ||
		len(u.Pods) != 1 || u.Pods["p"].Disk.Bytes != 0 || runtime.listed != 0 {
		t.Errorf("%+v, %v", u, err)
	}
	if u, err = o.Usage(t.Context(), []*corev1.Pod{p}, nil); err != nil || runtime.listed != 1 {
		t.Fatal(runtime.listed, err)
	}
	got := u.Pods["p"]
	if len(got.Containers) != 2 || got.Containers[0].Name != "init" || got.Containers[0].Memory != 0 || got.Containers[1].Name != "c" || got.Containers[1].Memory != 5 {
		t.Fatalf("%+v", got.Containers)
	}
	if got.Processes != 2 || got.Containers[1].Rootfs != (Disk{1000, 3}) || got.Containers[1].Logs.Bytes < 50_000 || got.Volumes["v"].Bytes < 200_000 || len(got.Volumes) != 1 ||
		got.Disk != got.Containers[1].Rootfs.add(got.Containers[1].Logs).add(got.Volumes["v"]) || got.Memory != 7 {
		t.Errorf("%+v", got)
	}
}
