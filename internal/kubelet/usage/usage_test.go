package usage

import (
	"context"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"skiff/internal/kubelet/cgroup"
	"skiff/internal/kubelet/cri"
)

// fakeCgroups are cgroups that each use one core.
type fakeCgroups struct {
	mu   sync.Mutex
	at   time.Time
	used time.Duration
}

// use adds CPU time used until now.
func (c *fakeCgroups) use(used time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.used = time.Now(), c.used+used
}

func (c *fakeCgroups) stats() (cgroup.Stats, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := cgroup.Stats{Time: c.at, Processes: 4}
	s.CPU.Usage = uint64(c.used)
	s.Memory = cgroup.MemoryStats{Usage: 300, WorkingSet: 200, RSS: 100, Limit: 1000}
	stalls := &cgroup.Pressure{Some: cgroup.Stall{Total: 2_500_000, Avg10: 1.5}, Full: cgroup.Stall{Total: 500_000, Avg300: 0.5}}
	s.Pressures = cgroup.Pressures{CPU: stalls, IO: stalls}
	return s, nil
}

func (c *fakeCgroups) NodeStats() (cgroup.Stats, error) { return c.stats() }
func (c *fakeCgroups) PodsStats() (cgroup.Stats, error) { return c.stats() }

func (c *fakeCgroups) PodStats(uid types.UID) (cgroup.Stats, error) {
	if uid == "pending" {
		return cgroup.Stats{}, fs.ErrNotExist
	}
	return c.stats()
}

func (c *fakeCgroups) ContainerStats(uid types.UID, _ string) (cgroup.Stats, error) {
	return c.PodStats(uid)
}

// fakeRuntime is a runtime that reports the writable layers of containers.
type fakeRuntime struct{}

func (fakeRuntime) ListContainerStats(context.Context) ([]cri.ContainerStats, error) {
	return []cri.ContainerStats{{ID: "id", WritableLayer: &cri.FilesystemUsage{Time: time.Unix(0, 1), UsedBytes: 77, InodesUsed: 7}}}, nil
}

func newUsage(t *testing.T) (*Usage, *fakeCgroups) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Unix(50, 0)}}
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Status: corev1.PodStatus{
			StartTime: &metav1.Time{Time: time.Unix(40, 0)},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "c", ContainerID: "containerd://id", State: running},
				{Name: "ended", ContainerID: "containerd://old", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}},
			},
		}}
	}
	g := &fakeCgroups{at: time.Unix(1000, 0), used: time.Minute}
	return &Usage{
		NodeName: "n", Cgroups: g, Runtime: fakeRuntime{}, Root: t.TempDir(),
		Pods: func() []*corev1.Pod { return []*corev1.Pod{pod("p"), pod("pending")} },
		Volumes: func(context.Context, []*corev1.Pod) map[types.UID][]statsapi.VolumeStats {
			return map[types.UID][]statsapi.VolumeStats{"p": {{Name: "data"}}}
		},
	}, g
}

func TestSummary(t *testing.T) {
	u, _ := newUsage(t)
	s, err := u.Summary(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Pods) != 1 || s.Pods[0].PodRef.Name != "p" || len(s.Pods[0].Containers) != 1 || s.Pods[0].Containers[0].Name != "c" {
		t.Fatalf("pods: %+v", s.Pods)
	}
	c := s.Pods[0].Containers[0]
	if *c.Memory.WorkingSetBytes != 200 || *c.Memory.AvailableBytes != 800 || *c.Rootfs.UsedBytes != 77 || *c.CPU.UsageCoreNanoSeconds != uint64(time.Minute) {
		t.Errorf("container: %+v %+v %+v", c.Memory, c.Rootfs, c.CPU)
	}
	// Without pressure stall information of a resource there is nothing to report.
	if c.CPU.PSI == nil || c.CPU.PSI.Some.Total != 2_500_000 || c.CPU.PSI.Some.Avg10 != 1.5 || c.CPU.PSI.Full.Avg300 != 0.5 || c.IO.PSI.Full.Total != 500_000 || c.Memory.PSI != nil || s.Node.IO == nil {
		t.Errorf("pressure: %+v %+v %+v", c.CPU.PSI, c.IO, c.Memory.PSI)
	}
	if s.Node.Fs == nil || *s.Node.Fs.CapacityBytes == 0 || s.Node.NodeName != "n" || *s.Pods[0].ProcessStats.ProcessCount != 4 {
		t.Errorf("node: %+v", s.Node)
	}
	if len(s.Pods[0].VolumeStats) != 1 || s.Pods[0].VolumeStats[0].Name != "data" {
		t.Errorf("volumes: %+v", s.Pods[0].VolumeStats)
	}
	if s, err = u.Summary(t.Context(), true); err != nil || s.Node.Fs != nil || s.Pods[0].Containers[0].Rootfs != nil || s.Pods[0].VolumeStats != nil {
		t.Errorf("disks were not lastQuery for: %v", err)
	}
}

// TestRates: rates are known from the second sample on, and removed with their cgroup.
func TestRates(t *testing.T) {
	u, g := newUsage(t)
	nanoCores := func() *uint64 {
		s, err := u.read(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		return s.Pods[0].Containers[0].CPU.UsageNanoCores
	}
	if got := nanoCores(); got != nil {
		t.Errorf("after one reading: %d", *got)
	}
	g.at, g.used = g.at.Add(10*time.Second), g.used+5*time.Second
	if got := nanoCores(); got == nil || *got != uint64(500*time.Millisecond) {
		t.Errorf("half a core: %v", got)
	}
	// A sample that follows immediately does not change the rate.
	g.at, g.used = g.at.Add(10*time.Millisecond), g.used+10*time.Millisecond
	if got := nanoCores(); got == nil || *got != uint64(500*time.Millisecond) {
		t.Errorf("right after: %v", got)
	}
	if len(u.rates) != 4 { // node, pods, the pod, its container
		t.Errorf("%d rates", len(u.rates))
	}
	u.Pods = func() []*corev1.Pod { return nil }
	u.sample(t.Context())
	if len(u.rates) != 2 {
		t.Errorf("%d rates are left", len(u.rates))
	}
}

// TestSamplingOnlyOnRequest: the first request waits for a second sample, later ones do not, and without requests nothing
// is sampled.
func TestSamplingOnlyOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, g := newUsage(t)
		var read atomic.Int64
		pods := u.Pods
		u.Pods = func() []*corev1.Pod {
			read.Add(1)
			g.use(100 * time.Millisecond)
			return pods()
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- u.Run(ctx) }()
		time.Sleep(time.Hour)
		if n := read.Load(); n != 0 {
			t.Errorf("%d samples without a request", n)
		}
		for _, want := range []time.Duration{minRatePeriod, 0, 0} {
			began := time.Now()
			s, err := u.Summary(ctx, true)
			if err != nil || time.Since(began) != want || s.Pods[0].CPU.UsageNanoCores == nil {
				t.Errorf("took %s, want %s; %v", time.Since(began), want, err)
			}
			time.Sleep(15 * time.Second)
		}
		time.Sleep(time.Hour)
		if n, most := read.Load(), int64(sampleAfterQuery/sampleInterval)+12; n > most {
			t.Errorf("%d samples for three requests, want at most %d", n, most)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestMetrics(t *testing.T) {
	u, _ := newUsage(t)
	registry := prometheus.NewRegistry()
	registry.MustRegister(ResourceMetrics{u})
	want := `
# HELP container_memory_working_set_bytes Current working set of the container in bytes
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="c",namespace="ns",pod="p"} 200 1000000
# HELP node_cpu_usage_seconds_total Cumulative cpu time consumed by the node in core-seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 60 1000000
# HELP pod_memory_working_set_bytes Current working set of the pod in bytes
# TYPE pod_memory_working_set_bytes gauge
pod_memory_working_set_bytes{namespace="ns",pod="p"} 200 1000000
# HELP resource_scrape_error 1 if there was an error while getting container metrics, 0 otherwise
# TYPE resource_scrape_error gauge
resource_scrape_error 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "container_memory_working_set_bytes", "node_cpu_usage_seconds_total", "pod_memory_working_set_bytes", "resource_scrape_error"); err != nil {
		t.Error(err)
	}
	advisor := prometheus.NewRegistry()
	advisor.MustRegister(CadvisorMetrics{u})
	if n, err := testutil.GatherAndCount(advisor, "container_cpu_usage_seconds_total", "container_memory_rss", "container_spec_memory_limit_bytes"); err != nil || n != 3 {
		t.Errorf("%d series, %v", n, err)
	}
	if n, err := testutil.GatherAndCount(advisor, "container_pressure_cpu_waiting_seconds_total", "container_pressure_io_stalled_seconds_total", "container_pressure_memory_waiting_seconds_total"); err != nil || n != 2 {
		t.Errorf("%d series of pressure, %v, want those of CPU and IO", n, err)
	}
}
