package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// list makes a list of resources from "cpu=1 memory=1Gi".
func list(text string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for _, pair := range strings.Fields(text) {
		name, value, _ := strings.Cut(pair, "=")
		l[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	return l
}

func ctr(requests, limits string) corev1.Container {
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: list(requests), Limits: list(limits)}}
}

func podOf(uid string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: corev1.PodSpec{Containers: containers}}
}

func TestPodLimits(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	sidecar := ctr("cpu=100m memory=64Mi", "cpu=200m memory=128Mi")
	sidecar.RestartPolicy = &always
	tests := map[string]struct {
		pod      *corev1.Pod
		settings Settings
		v1, v2   string
	}{
		"best effort": {
			podOf("u", ctr("", "")), Settings{},
			"cpu.shares=2 cpu.cfs_period_us=100000 cpu.cfs_quota_us=-1 memory.limit_in_bytes=-1",
			"cpu.weight=1 cpu.max=max 100000 memory.max=max",
		},
		"guaranteed": {
			podOf("u", ctr("cpu=500m memory=128Mi", "cpu=500m memory=128Mi")), Settings{PodPids: 100},
			"cpu.shares=512 cpu.cfs_period_us=100000 cpu.cfs_quota_us=50000 memory.limit_in_bytes=134217728 pids.max=100",
			"cpu.weight=20 cpu.max=50000 100000 memory.max=134217728 pids.max=100",
		},
		"burstable, one container without a limit of memory": {
			podOf("u", ctr("cpu=1 memory=1Gi", "cpu=2 memory=1Gi"), ctr("", "cpu=1")), Settings{},
			"cpu.shares=1024 cpu.cfs_period_us=100000 cpu.cfs_quota_us=300000 memory.limit_in_bytes=-1",
			"cpu.weight=39 cpu.max=300000 100000 memory.max=max",
		},
		"a tiny limit is what the kernel allows": {
			podOf("u", ctr("cpu=1m", "cpu=1m")), Settings{},
			"cpu.shares=2 cpu.cfs_period_us=100000 cpu.cfs_quota_us=1000 memory.limit_in_bytes=-1",
			"cpu.weight=1 cpu.max=1000 100000 memory.max=max",
		},
		"quota off": {
			podOf("u", ctr("cpu=1", "cpu=1")), Settings{NoCPUQuota: true},
			"cpu.shares=1024 cpu.cfs_period_us=100000 cpu.cfs_quota_us=-1 memory.limit_in_bytes=-1",
			"cpu.weight=39 cpu.max=max 100000 memory.max=max",
		},
		"another period": {
			podOf("u", ctr("cpu=1", "cpu=1")), Settings{CPUPeriod: 10 * time.Millisecond},
			"cpu.shares=1024 cpu.cfs_period_us=10000 cpu.cfs_quota_us=10000 memory.limit_in_bytes=-1",
			"cpu.weight=39 cpu.max=10000 10000 memory.max=max",
		},
		"the pod's own resources": {
			func() *corev1.Pod {
				p := podOf("u", ctr("", ""), ctr("", ""))
				p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("cpu=200m memory=100Mi"), Limits: list("cpu=1 memory=200Mi")}
				return p
			}(), Settings{},
			"cpu.shares=204 cpu.cfs_period_us=100000 cpu.cfs_quota_us=100000 memory.limit_in_bytes=209715200",
			"cpu.weight=8 cpu.max=100000 100000 memory.max=209715200",
		},
		"overhead and a sidecar": {
			func() *corev1.Pod {
				p := podOf("u", ctr("cpu=100m memory=64Mi", "cpu=200m memory=128Mi"))
				p.Spec.InitContainers, p.Spec.Overhead = []corev1.Container{sidecar}, list("cpu=50m memory=32Mi")
				return p
			}(), Settings{},
			"cpu.shares=256 cpu.cfs_period_us=100000 cpu.cfs_quota_us=45000 memory.limit_in_bytes=301989888",
			"cpu.weight=10 cpu.max=45000 100000 memory.max=301989888",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.settings.CPUPeriod == 0 {
				test.settings.CPUPeriod = 100 * time.Millisecond
			}
			for version, want := range map[int]string{1: test.v1, 2: test.v2} {
				var got []string
				for _, s := range PodLimits(test.pod, test.settings, nil).settings(version) {
					got = append(got, s.file+"="+s.value)
				}
				if strings.Join(got, " ") != want {
					t.Errorf("version %d\ngot  %s\nwant %s", version, strings.Join(got, " "), want)
				}
			}
		})
	}
}

func TestHugePages(t *testing.T) {
	pod := podOf("u", ctr("cpu=1 hugepages-2Mi=4Mi", "hugepages-2Mi=4Mi"))
	l := PodLimits(pod, Settings{}, []int64{2 << 20, 1 << 30})
	if l.HugePages[2<<20] != 4<<20 || l.HugePages[1<<30] != 0 || len(l.HugePages) != 2 {
		t.Errorf("%v", l.HugePages)
	}
	files := func(version int) (all []string) {
		for _, s := range (Limits{HugePages: l.HugePages}).settings(version) {
			all = append(all, s.file+"="+s.value)
		}
		return all
	}
	if got := fmt.Sprint(files(1)); got != "[hugetlb.2MB.limit_in_bytes=4194304 hugetlb.2MB.rsvd.limit_in_bytes=4194304 hugetlb.1GB.limit_in_bytes=0 hugetlb.1GB.rsvd.limit_in_bytes=0]" {
		t.Error(got)
	}
	if got := fmt.Sprint(files(2)); got != "[hugetlb.2MB.max=4194304 hugetlb.2MB.rsvd.max=4194304 hugetlb.1GB.max=0 hugetlb.1GB.rsvd.max=0]" {
		t.Error(got)
	}
}

func TestHugePageName(t *testing.T) {
	for bytes, want := range map[int64]string{2 << 20: "2MB", 1 << 30: "1GB", 64 << 10: "64KB", 100: "100B"} {
		if got := HugePageName(bytes); got != want {
			t.Errorf("%d: %s", bytes, got)
		}
	}
}

func TestShares(t *testing.T) {
	for milliCPU, want := range map[int64]int64{0: 2, 1: 2, 2: 2, 3: 3, 100: 102, 1000: 1024, 1500: 1536, 256_000: 262_144, 1_000_000: 262_144} {
		if got := SharesOf(milliCPU); got != want {
			t.Errorf("%dm: %d shares, not %d", milliCPU, got, want)
		}
	}
	for _, milliCPU := range []int64{2, 3, 100, 999, 1000, 1500, 256_000} {
		if got := MilliCPUOf(SharesOf(milliCPU)); got != milliCPU {
			t.Errorf("%dm comes back as %dm", milliCPU, got)
		}
	}
}

func TestQuota(t *testing.T) {
	for milliCPU, want := range map[int64]int64{0: 0, 1: 1000, 10: 1000, 11: 1100, 1000: 100_000, 2500: 250_000} {
		if got := QuotaOf(milliCPU, 100_000); got != want {
			t.Errorf("%dm: %d µs, not %d", milliCPU, got, want)
		}
	}
}

func TestNodeLimits(t *testing.T) {
	l := NodeLimits(list("cpu=3500m memory=1Gi pid=1000"))
	if *l.Shares != 3584 || *l.Memory != 1<<30 || *l.Pids != 1000 || l.Quota != nil {
		t.Errorf("%+v", l)
	}
}

func TestWeights(t *testing.T) {
	for shares, weight := range map[uint64]uint64{0: 1, 2: 1, 1024: 39, 262144: 10000, 1 << 40: 10000} {
		if got := weightOf(shares); got != weight {
			t.Errorf("weight of %d shares is %d, want %d", shares, got, weight)
		}
	}
	for weight := uint64(1); weight <= 10000; weight++ {
		if back := weightOf(sharesOfWeight(weight)); back > weight || back+1 < weight {
			t.Fatalf("weight %d comes back as %d", weight, back)
		}
	}
}

func TestLarger(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	tests := map[string]struct {
		now, wanted, want *int64
	}{
		"more":              {n(10), n(20), n(20)},
		"less":              {n(20), n(10), nil},
		"no limit any more": {n(20), n(Unlimited), n(Unlimited)},
		"a limit at last":   {n(Unlimited), n(20), nil},
		"unknown":           {nil, n(20), n(20)},
		"not asked":         {n(20), nil, nil},
	}
	for name, test := range tests {
		got := raised(Limits{Memory: test.now, Quota: test.now}, Limits{Memory: test.wanted, Quota: test.wanted})
		for _, p := range []*int64{got.Memory, got.Quota} {
			if (p == nil) != (test.want == nil) || p != nil && *p != *test.want {
				t.Errorf("%s: got %v, want %v", name, p, test.want)
			}
		}
	}
}

func TestGroupOfAClass(t *testing.T) {
	for want, pod := range map[string]*corev1.Pod{
		"kubepods/podu":            podOf("u", ctr("cpu=1 memory=1Gi", "cpu=1 memory=1Gi")),
		"kubepods/burstable/podu":  podOf("u", ctr("cpu=1", "")),
		"kubepods/besteffort/podu": podOf("u", ctr("", "")),
	} {
		if got := podCgroup(pod); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// writePlain writes a file of a plain directory, where files do not exist before they are written and enabled controllers are not added up.
func writePlain(path, value string) error {
	if controller, ok := strings.CutPrefix(value, "+"); ok {
		enabled, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		value = strings.TrimSpace(string(enabled) + " " + controller)
	}
	return os.WriteFile(path, []byte(value), 0o600)
}

// standIn is a directory that plays a tree of version 2.
func standIn(t *testing.T, available string) *Groups {
	t.Helper()
	tree := t.TempDir()
	files := map[string]string{
		filepath.Join(tree, "cgroup.controllers"): available,
		filepath.Join(tree, "mountinfo"): fmt.Sprintf("30 20 0:26 / %s rw,nosuid shared:4 - cgroup2 cgroup2 rw\n", tree) +
			"22 1 8:1 / / rw - ext4 /dev/root rw\n",
	}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g, err := New(Settings{Root: "/node-a", MountInfo: filepath.Join(tree, "mountinfo"), PodPids: 50})
	if err != nil {
		t.Fatal(err)
	}
	g.pageSizes = nil
	g.write = writePlain
	return g
}

func TestVersion2(t *testing.T) {
	g := standIn(t, "cpuset cpu io memory hugetlb pids rdma misc")
	if g.Version() != 2 || len(g.Missing()) != 0 {
		t.Fatalf("version %d, missing %v", g.Version(), g.Missing())
	}
	if err := g.Setup(list("cpu=4 memory=8Gi")); err != nil {
		t.Fatal(err)
	}
	pod := podOf("1-2", ctr("cpu=500m memory=1Gi", "cpu=1 memory=2Gi"))
	parent, err := g.Ensure(pod, true)
	if err != nil || parent != "/node-a/kubepods/burstable/pod1-2" {
		t.Fatalf("%s, %v", parent, err)
	}
	if err := g.updateClasses([]*corev1.Pod{pod, podOf("3", ctr("cpu=500m", "")), podOf("4", ctr("", ""))}); err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		text, _ := os.ReadFile(filepath.Join(g.hierarchies["cpu"], path))
		return string(text)
	}
	for path, want := range map[string]string{
		"cgroup.subtree_control":                           "cpu hugetlb memory pids",
		"node-a/cgroup.subtree_control":                    "cpu hugetlb memory pids",
		"node-a/kubepods/cpu.weight":                       "157",
		"node-a/kubepods/memory.max":                       "8589934592",
		"node-a/kubepods/cgroup.subtree_control":           "cpu hugetlb memory pids",
		"node-a/kubepods/burstable/cpu.weight":             "39",
		"node-a/kubepods/besteffort/cpu.weight":            "1",
		"node-a/kubepods/burstable/pod1-2/cpu.weight":      "20",
		"node-a/kubepods/burstable/pod1-2/cpu.max":         "100000 100000",
		"node-a/kubepods/burstable/pod1-2/memory.max":      "2147483648",
		"node-a/kubepods/burstable/pod1-2/pids.max":        "50",
		"node-a/kubepods/burstable/cgroup.subtree_control": "cpu hugetlb memory pids",
	} {
		if got := read(path); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	// A resize that wants more memory and less CPU: first the one, then the other.
	pod.Spec.Containers[0].Resources.Limits = list("cpu=500m memory=3Gi")
	if err := g.Grow(pod); err != nil {
		t.Fatal(err)
	}
	if m, c := read("node-a/kubepods/burstable/pod1-2/memory.max"), read("node-a/kubepods/burstable/pod1-2/cpu.max"); m != "3221225472" || c != "100000 100000" {
		t.Errorf("after growing: %s, %s", m, c)
	}
	if err := g.Update(pod); err != nil {
		t.Fatal(err)
	}
	if c := read("node-a/kubepods/burstable/pod1-2/cpu.max"); c != "50000 100000" {
		t.Errorf("after shrinking: %s", c)
	}
	if uids, err := g.Pods(); err != nil || !slices.Equal(uids, []types.UID{"1-2"}) {
		t.Errorf("%v, %v", uids, err)
	}
	for name, text := range map[string]string{
		"cpu.stat":    "usage_usec 5000\nuser_usec 3000\nsystem_usec 2000\nnr_periods 7\nnr_throttled 3\nthrottled_usec 9\n",
		"memory.stat": "anon 4096\nfile 8192\nfile_mapped 100\ninactive_file 2048\npgfault 11\npgmajfault 2\n", "memory.current": "10240\n",
		"memory.swap.current": "5\n", "pids.current": "3\n", "memory.events": "low 0\nmax 4\noom_kill 1\n", "memory.peak": "20480\n",
	} {
		if err := os.WriteFile(filepath.Join(g.hierarchies["cpu"], parent, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stats, err := g.PodStats("1-2")
	if err != nil {
		t.Fatal(err)
	}
	stats.Time = time.Time{}
	want := Stats{
		CPU: CPUStats{Usage: 5e6, User: 3e6, System: 2e6, Periods: 7, Throttled: 3, ThrottledTime: 9000},
		Memory: MemoryStats{Usage: 10240, WorkingSet: 8192, RSS: 4096, Cache: 8192, MappedFile: 100, Swap: 5, Limit: 3221225472, MaxUsage: 20480,
			PageFaults: 11, MajorPageFaults: 2, LimitHits: 4, Kills: 1},
		Processes: 3, ProcessLimit: 50,
	}
	if stats != want {
		t.Errorf("got  %+v\nwant %+v", stats, want)
	}
	for name, text := range map[string]string{
		"cpu.pressure": "some avg10=1.50 avg60=2.00 avg300=0.25 total=1234\nfull avg10=0.00 avg60=0.50 avg300=0.00 total=56\n",
		"io.pressure":  "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
	} {
		if err := os.WriteFile(filepath.Join(g.hierarchies["cpu"], parent, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if stats, err = g.PodStats("1-2"); err != nil {
		t.Fatal(err)
	}
	if got, want := stats.Pressures.CPU, (Pressure{Stall{1234, 1.5, 2, 0.25}, Stall{56, 0, 0.5, 0}}); got == nil || *got != want {
		t.Errorf("CPU pressure %+v, want %+v", got, want)
	}
	if got := stats.Pressures; got.Memory != nil || got.IO == nil || got.IO.Some.Total != 7 {
		t.Errorf("pressures %+v", got)
	}
	if _, err := g.PodStats("none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestRunClasses follows the pods, also after a write has failed.
func TestRunClasses(t *testing.T) {
	g := standIn(t, "cpu memory pids")
	if err := g.Setup(list("cpu=4 memory=8Gi")); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var pods atomic.Pointer[[]*corev1.Pod]
		pods.Store(&[]*corev1.Pod{})
		var failing atomic.Bool
		write := g.write
		g.write = func(path, value string) error {
			if failing.Load() {
				return errors.New("device or resource busy")
			}
			return write(path, value)
		}
		var logged bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- g.RunClasses(ctx, func() []*corev1.Pod { return *pods.Load() }, slog.New(slog.NewTextHandler(&logged, nil)))
		}()
		weight := func() string {
			time.Sleep(classUpdateInterval)
			synctest.Wait()
			text, _ := os.ReadFile(filepath.Join(g.hierarchies["cpu"], "node-a/kubepods/burstable/cpu.weight"))
			return string(text)
		}
		if got := weight(); got != "1" {
			t.Errorf("without pods: %q", got)
		}
		pods.Store(&[]*corev1.Pod{podOf("1", ctr("cpu=500m", "")), podOf("2", ctr("cpu=500m", "")), podOf("3", ctr("", ""))})
		failing.Store(true)
		if got := weight(); got != "1" || strings.Count(logged.String(), "failed to update the cgroups of QoS classes") != 1 {
			t.Errorf("after a failed write: %q, %s", got, logged.String())
		}
		failing.Store(false)
		if got := weight(); got != "39" {
			t.Errorf("with pods: %q", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestKilledBetweenCreateAndLimits: the cgroup of a pod that has not started gets the limits that a kubelet which was killed has not set. That of a pod that
// runs may be being resized.
func TestKilledBetweenCreateAndLimits(t *testing.T) {
	g := standIn(t, "cpu memory hugetlb pids")
	if err := g.Setup(list("cpu=4 memory=8Gi")); err != nil {
		t.Fatal(err)
	}
	pod := podOf("a", ctr("cpu=1 memory=1Gi", "cpu=1 memory=1Gi"))
	dir := filepath.Join(g.hierarchies["memory"], g.path(podCgroup(pod)))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, starts := range []bool{false, true} {
		if _, err := g.Ensure(pod, starts); err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string]string{"memory.max": "1073741824", "pids.max": "50"} {
			text, err := os.ReadFile(filepath.Join(dir, file))
			if starts && string(text) != want || !starts && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("starts %t: %s is %q, %v", starts, file, text, err)
			}
		}
	}
}

func TestMissingControllers(t *testing.T) {
	g := standIn(t, "memory")
	if !slices.Equal(g.Missing(), []string{"cpu", "pids", "hugetlb"}) {
		t.Errorf("missing %v", g.Missing())
	}
	if err := g.Setup(list("cpu=4 memory=8Gi")); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Ensure(podOf("a", ctr("cpu=1", "cpu=1")), true); err != nil {
		t.Fatal(err)
	}
	if stats, err := g.PodStats("a"); err != nil || stats.CPU.Usage != 0 {
		t.Errorf("%+v, %v", stats, err)
	}
	if _, err := New(Settings{MountInfo: os.DevNull}); err == nil {
		t.Error("a host without cgroups was accepted")
	}
}

// TestReserve: an existing cgroup of the host gets the limits of what is reserved for it, wherever the cgroups of pods are.
func TestReserve(t *testing.T) {
	cpu, memory := t.TempDir(), t.TempDir()
	for _, dir := range []string{cpu, memory} {
		if err := os.Mkdir(filepath.Join(dir, "system"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	written := map[string]string{}
	g := &Groups{
		version: 1, settings: Settings{Root: "/nodes"}, hierarchies: map[string]string{"cpu": cpu, "memory": memory},
		write: func(path, value string) error { written[path] = value; return nil },
	}
	reserved := list("cpu=500m memory=1Gi")
	if err := g.Reserve("/absent", reserved, false); err == nil || err.Error() != `cgroup "/absent" does not exist` || len(written) > 0 {
		t.Errorf("error %v, wrote %v", err, written)
	}
	if err := g.Reserve("system", reserved, true); err != nil || len(written) != 1 || written[cpu+"/system/cpu.shares"] != "512" {
		t.Errorf("error %v, wrote %v", err, written)
	}
	if err := g.Reserve("/system", reserved, false); err != nil || written[memory+"/system/memory.limit_in_bytes"] != "1073741824" {
		t.Errorf("error %v, wrote %v", err, written)
	}
}
