package metrics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"skiff/internal/container"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/cri/critest"
)

// lines returns the samples of a registry, sorted; histograms as their count and sum. Go and process metrics are left
// out.
func lines(t *testing.T, from prometheus.Gatherer) []string {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, family := range families {
		name := family.GetName()
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		for _, m := range family.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := fmt.Sprint(m.GetCounter().GetValue() + m.GetGauge().GetValue())
			if h := m.Histogram; h != nil {
				value = fmt.Sprintf("%d in %g", h.GetSampleCount(), h.GetSampleSum())
			}
			all = append(all, fmt.Sprintf("%s{%s} %s", name, strings.Join(labels, ","), value))
		}
	}
	slices.Sort(all)
	return all
}

// shows compares the samples beyond those of an idle kubelet.
func shows(t *testing.T, from prometheus.Gatherer, idle []string, want ...string) {
	t.Helper()
	got := slices.DeleteFunc(lines(t, from), func(line string) bool { return slices.Contains(idle, line) })
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("shows\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func TestMetrics(t *testing.T) {
	idle := lines(t, New("n").All)
	broken := errors.New("broken")
	for _, row := range []struct {
		name string
		do   func(m *Metrics)
		want []string
	}{
		{"an operation", func(m *Metrics) { m.Operation(cri.Call{Operation: "start_container", Duration: 2 * time.Second}) }, []string{
			"kubelet_runtime_operations_total{operation_type=start_container} 1", "kubelet_runtime_operations_duration_seconds{operation_type=start_container} 1 in 2",
		}},
		{"an operation that fails", func(m *Metrics) { m.Operation(cri.Call{Operation: "status", Duration: time.Second, Err: broken}) }, []string{
			"kubelet_runtime_operations_total{operation_type=status} 1", "kubelet_runtime_operations_duration_seconds{operation_type=status} 1 in 1",
			"kubelet_runtime_operations_errors_total{operation_type=status} 1",
		}},
		{"sandboxes", func(m *Metrics) {
			m.Operation(cri.Call{Operation: "run_podsandbox", Duration: time.Second})
			m.Operation(cri.Call{Operation: "run_podsandbox", RuntimeHandler: "kata", Duration: time.Second, Err: broken})
		}, []string{
			"kubelet_runtime_operations_total{operation_type=run_podsandbox} 2", "kubelet_runtime_operations_duration_seconds{operation_type=run_podsandbox} 2 in 2",
			"kubelet_runtime_operations_errors_total{operation_type=run_podsandbox} 1", "kubelet_run_podsandbox_duration_seconds{runtime_handler=} 1 in 1",
			"kubelet_run_podsandbox_duration_seconds{runtime_handler=kata} 1 in 1", "kubelet_run_podsandbox_errors_total{runtime_handler=kata} 1",
			"kubelet_started_pods_total{} 2", "kubelet_started_pods_errors_total{} 1",
		}},
		{"containers", func(m *Metrics) {
			m.ContainerStarted(container.Regular, "")
			m.ContainerStarted(container.Init, "")
			m.ContainerStarted(container.Ephemeral, "")
			m.ContainerStarted(container.Regular, "ErrImagePull")
		}, []string{
			"kubelet_started_containers_total{container_type=container} 2", "kubelet_started_containers_total{container_type=init_container} 1",
			"kubelet_started_containers_total{container_type=ephemeral_container} 1", "kubelet_started_containers_errors_total{code=ErrImagePull,container_type=container} 1",
		}},
		{"assigned resources", func(m *Metrics) {
			m.TopologyAdmission(2*time.Millisecond, false)
			m.TopologyAdmission(3*time.Millisecond, true)
			m.CPUsPinned(nil)
			m.CPUsPinned(broken)
			m.MemoryPinned(broken)
			m.ResourceAllocated(CPU, 1)
			m.ResourceAllocated(Memory, 2)
			m.Aligned("container", NUMANode, true)
			m.Aligned("container", PhysicalCPU, false)
			m.InitAligned("pod", UncoreCache)
			m.SetCPUs(3, 2, map[int]int{0: 0, 1: 2})
		}, []string{
			"kubelet_topology_manager_admission_requests_total{} 2", "kubelet_topology_manager_admission_errors_total{} 1", "kubelet_topology_manager_admission_duration_ms{} 2 in 5",
			"kubelet_cpu_manager_pinning_requests_total{} 2", "kubelet_cpu_manager_pinning_errors_total{} 1", "kubelet_memory_manager_pinning_requests_total{} 1",
			"kubelet_memory_manager_pinning_errors_total{} 1", "kubelet_resource_manager_allocation_errors_total{resource_name=cpu,source=node} 1",
			"kubelet_resource_manager_allocation_errors_total{resource_name=memory,source=node} 1", "kubelet_resource_manager_allocations_total{resource_name=cpu,source=node} 1",
			"kubelet_resource_manager_allocations_total{resource_name=memory,source=node} 2",
			"kubelet_resource_manager_container_assignments_total{assignment_type=node_exclusive,resource_name=cpu} 1",
			"kubelet_resource_manager_container_assignments_total{assignment_type=node_exclusive,resource_name=memory} 1",
			"kubelet_container_aligned_compute_resources_count{boundary=numa_node,scope=container} 1",
			"kubelet_container_aligned_compute_resources_count{boundary=uncore_cache,scope=pod} 0",
			"kubelet_container_aligned_compute_resources_failure_count{boundary=physical_cpu,scope=container} 1",
			"kubelet_container_aligned_compute_resources_failure_count{boundary=uncore_cache,scope=pod} 0",
			"kubelet_cpu_manager_shared_pool_size_millicores{} 3000", "kubelet_cpu_manager_exclusive_cpu_allocation_count{} 2",
			"kubelet_cpu_manager_allocation_per_numa{numa_node=0} 0", "kubelet_cpu_manager_allocation_per_numa{numa_node=1} 2",
		}},
		{"a pod that runs", func(m *Metrics) { m.PodStarted(3 * time.Second) }, []string{"kubelet_pod_start_duration_seconds{} 1 in 3"}},
		{"pods that had to go", func(m *Metrics) {
			m.Evicted("memory.available")
			m.Evicted("memory.available")
			m.Preempted(corev1.ResourceCPU)
			m.Rejected("OutOfcpu")
		}, []string{"kubelet_admission_rejections_total{reason=OutOfcpu} 1", "kubelet_evictions{eviction_signal=memory.available} 2", "kubelet_preemptions{preemption_signal=cpu} 1"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := New("n")
			row.do(m)
			shows(t, m.All, idle, row.want...)
			row.do(nil) // counts nothing, and says nothing of it
		})
	}
	if !slices.Contains(idle, "kubelet_node_name{node=n} 1") {
		t.Errorf("a kubelet that has done nothing shows %q", idle)
	}
}

func TestRelists(t *testing.T) {
	m := New("n")
	m.Relisted(time.Second)
	m.Relisted(time.Second)
	var none *Metrics
	none.Relisted(time.Second)
	got := lines(t, m.All)
	if !slices.Contains(got, "kubelet_pleg_relist_duration_seconds{} 2 in 2") {
		t.Errorf("shows %q", got)
	}
	for _, line := range got {
		if strings.HasPrefix(line, "kubelet_pleg_relist_interval_seconds{} ") && !strings.HasPrefix(line, "kubelet_pleg_relist_interval_seconds{} 1 in ") {
			t.Errorf("between two listings there is one interval: %s", line)
		}
		if line == "kubelet_pleg_last_seen_seconds{} 0" {
			t.Error("the last listing has no time")
		}
	}
}

func TestPodSynced(t *testing.T) {
	m := New("n")
	for _, operation := range []string{"create", "sync", "sync"} {
		m.PodSynced(operation, time.Now())
	}
	got := strings.Join(lines(t, m.All), "\n")
	for _, want := range []string{"kubelet_pod_worker_duration_seconds{operation_type=create} 1 in ", "kubelet_pod_worker_duration_seconds{operation_type=sync} 2 in "} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not shown:\n%s", want, got)
		}
	}
}

func TestProbeMetricsAreRemoved(t *testing.T) {
	m := New("n")
	pod := func(uid string) *corev1.Pod {
		p := &corev1.Pod{}
		p.Namespace, p.Name, p.UID = "ns", "p", "u"
		if uid != "u" {
			p.Name, p.UID = uid, "other"
		}
		return p
	}
	c := &corev1.Container{Name: "c"}
	m.Probed(pod("u"), c, "Liveness", true, time.Second)
	m.Probed(pod("u"), c, "Readiness", false, time.Second)
	m.Probed(pod("u"), c, "Readiness", false, time.Second)
	m.Probed(pod("q"), c, "Startup", true, 2*time.Second)
	other := []string{
		"prober_probe_total{container=c,namespace=ns,pod=q,pod_uid=other,probe_type=Startup,result=successful} 1",
		"prober_probe_duration_seconds{container=c,namespace=ns,pod=q,probe_type=Startup} 1 in 2",
	}
	shows(t, m.Probes, nil, append([]string{
		"prober_probe_total{container=c,namespace=ns,pod=p,pod_uid=u,probe_type=Liveness,result=successful} 1",
		"prober_probe_duration_seconds{container=c,namespace=ns,pod=p,probe_type=Liveness} 1 in 1",
		"prober_probe_total{container=c,namespace=ns,pod=p,pod_uid=u,probe_type=Readiness,result=failed} 2",
	}, other...)...)
	m.PodProbesRemoved("u")
	m.PodProbesRemoved("never probed")
	shows(t, m.Probes, nil, other...)
}

func TestNodeCollector(t *testing.T) {
	fake := critest.NewFake("image")
	for _, uid := range []string{"a", "b"} {
		sandbox, err := fake.RunPodSandbox(t.Context(), &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Uid: uid, Name: uid}}, "")
		if err != nil {
			t.Fatal(err)
		}
		id, err := fake.CreateContainer(t.Context(), sandbox, &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "image"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if uid == "a" {
			if err := fake.StartContainer(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		} else {
			fake.StopSandbox(sandbox)
		}
	}
	static := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "static", Annotations: map[string]string{"kubernetes.io/config.source": "file"}}}
	plain := &corev1.Pod{Spec: corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{{}, {}}}}
	ended := &corev1.Pod{}
	n := NodeCollector{
		Pods: func() []*corev1.Pod { return []*corev1.Pod{static, plain, ended} }, Active: func() []*corev1.Pod { return []*corev1.Pod{static, plain} }, Runtime: cri.New(fake),
		Volumes: func(pods []*corev1.Pod) (map[string]int, map[string]int) {
			return map[string]int{"kubernetes.io/secret": len(pods)}, map[string]int{"kubernetes.io/secret": 1}
		},
		VolumeStats: func(_ context.Context, pods []*corev1.Pod) map[types.UID][]statsapi.VolumeStats {
			used, capacity := uint64(len(pods)), uint64(100)
			volume := statsapi.VolumeStats{FsStats: statsapi.FsStats{UsedBytes: &used, CapacityBytes: &capacity}}
			claim := volume
			claim.PVCRef = &statsapi.PVCReference{Namespace: "ns", Name: "data"}
			return map[types.UID][]statsapi.VolumeStats{"a": {volume, claim}, "b": {claim}} // a shared claim, and a volume without one
		},
		Shutdown: func() (time.Time, time.Time) { return time.Unix(100, 0), time.Time{} },
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(n)
	rest := []string{
		"kubelet_active_pods{static=true} 1", "kubelet_active_pods{static=} 1", "kubelet_desired_pods{static=true} 1", "kubelet_desired_pods{static=} 2",
		"kubelet_mirror_pods{} 1", "kubelet_managed_ephemeral_containers{} 2", "kubelet_graceful_shutdown_start_time_seconds{} 100", "kubelet_graceful_shutdown_end_time_seconds{} 0",
		"volume_manager_total_volumes{plugin_name=kubernetes.io/secret,state=desired_state_of_world} 2",
		"volume_manager_total_volumes{plugin_name=kubernetes.io/secret,state=actual_state_of_world} 1",
		"kubelet_volume_stats_used_bytes{namespace=ns,persistentvolumeclaim=data} 2", "kubelet_volume_stats_capacity_bytes{namespace=ns,persistentvolumeclaim=data} 100",
	}
	shows(t, registry, nil, append([]string{
		"kubelet_running_pods{} 1", "kubelet_running_containers{container_state=running} 1", "kubelet_running_containers{container_state=created} 1",
	}, rest...)...)

	n.Runtime = unresponsive{}
	registry = prometheus.NewRegistry()
	registry.MustRegister(n)
	shows(t, registry, nil, rest...)
}

// unresponsive is a runtime that does not respond.
type unresponsive struct{}

func (unresponsive) ListPodSandboxes(context.Context, types.UID) ([]*cri.Sandbox, error) {
	return nil, errors.New("unresponsive")
}
func (unresponsive) ListContainers(context.Context, types.UID) ([]*cri.Container, error) {
	return nil, errors.New("unresponsive")
}
