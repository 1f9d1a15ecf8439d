package usage

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"skiff/internal/kubelet/cgroup"
)

// containerID removes the runtime's prefix from an ID.
func containerID(text string) string {
	if _, id, ok := strings.Cut(text, "://"); ok {
		return id
	}
	return text
}

// The metrics of /metrics/resource, which metrics-server reads.
var (
	containerLabels = []string{"container", "namespace", "pod"}
	podLabels       = []string{"namespace", "pod"}

	nodeCPU         = prometheus.NewDesc("node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds", nil, nil)
	nodeMemory      = prometheus.NewDesc("node_memory_working_set_bytes", "Current working set of the node in bytes", nil, nil)
	containerCPU    = prometheus.NewDesc("container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", containerLabels, nil)
	containerMemory = prometheus.NewDesc("container_memory_working_set_bytes", "Current working set of the container in bytes", containerLabels, nil)
	containerStart  = prometheus.NewDesc("container_start_time_seconds", "Start time of the container since unix epoch in seconds", containerLabels, nil)
	podCPU          = prometheus.NewDesc("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", podLabels, nil)
	podMemory       = prometheus.NewDesc("pod_memory_working_set_bytes", "Current working set of the pod in bytes", podLabels, nil)
	scrapeError     = prometheus.NewDesc("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", nil, nil)
)

// ResourceMetrics collects /metrics/resource.
type ResourceMetrics struct{ *Usage }

// Describe implements prometheus.Collector.
func (r ResourceMetrics) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{nodeCPU, nodeMemory, containerCPU, containerMemory, containerStart, podCPU, podMemory, scrapeError} {
		descs <- desc
	}
}

// Collect implements prometheus.Collector.
func (r ResourceMetrics) Collect(to chan<- prometheus.Metric) {
	summary, err := r.read(context.Background(), true)
	if err != nil {
		to <- prometheus.MustNewConstMetric(scrapeError, prometheus.GaugeValue, 1)
		return
	}
	to <- prometheus.MustNewConstMetric(scrapeError, prometheus.GaugeValue, 0)
	cpu := func(desc *prometheus.Desc, s *statsapi.CPUStats, labels ...string) {
		to <- prometheus.NewMetricWithTimestamp(s.Time.Time, prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(*s.UsageCoreNanoSeconds)/float64(time.Second), labels...))
	}
	memory := func(desc *prometheus.Desc, s *statsapi.MemoryStats, labels ...string) {
		to <- prometheus.NewMetricWithTimestamp(s.Time.Time, prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(*s.WorkingSetBytes), labels...))
	}
	cpu(nodeCPU, summary.Node.CPU)
	memory(nodeMemory, summary.Node.Memory)
	for _, pod := range summary.Pods {
		cpu(podCPU, pod.CPU, pod.PodRef.Namespace, pod.PodRef.Name)
		memory(podMemory, pod.Memory, pod.PodRef.Namespace, pod.PodRef.Name)
		for _, c := range pod.Containers {
			labels := []string{c.Name, pod.PodRef.Namespace, pod.PodRef.Name}
			cpu(containerCPU, c.CPU, labels...)
			memory(containerMemory, c.Memory, labels...)
			to <- prometheus.MustNewConstMetric(containerStart, prometheus.GaugeValue, float64(c.StartTime.UnixNano())/float64(time.Second), labels...)
		}
	}
}

// cadvisorLabels are the labels of cAdvisor's metrics.
var cadvisorLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

// CadvisorMetrics collects /metrics/cadvisor: cAdvisor's metrics, as far as cgroups provide them.
type CadvisorMetrics struct{ *Usage }

// Describe implements prometheus.Collector. It is empty because the metrics depend on the cgroups.
func (m CadvisorMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m CadvisorMetrics) Collect(to chan<- prometheus.Metric) {
	for _, pod := range m.Pods() {
		for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
			for _, status := range list {
				if status.State.Running == nil {
					continue
				}
				id := containerID(status.ContainerID)
				s, err := m.Cgroups.ContainerStats(pod.UID, id)
				if err != nil {
					continue
				}
				labels := []string{status.Name, "/kubepods/pod" + string(pod.UID) + "/" + id, status.Image, id, pod.Namespace, pod.Name}
				emit := func(name, help string, valueType prometheus.ValueType, value float64) {
					desc := prometheus.NewDesc(name, help, cadvisorLabels, nil)
					to <- prometheus.NewMetricWithTimestamp(s.Time, prometheus.MustNewConstMetric(desc, valueType, value, labels...))
				}
				counter := func(name, help string, value uint64, unit float64) {
					emit(name, help, prometheus.CounterValue, float64(value)/unit)
				}
				gauge := func(name, help string, value uint64) { emit(name, help, prometheus.GaugeValue, float64(value)) }
				const second = float64(time.Second)
				counter("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", s.CPU.Usage, second)
				counter("container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.", s.CPU.User, second)
				counter("container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds.", s.CPU.System, second)
				counter("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.", s.CPU.Periods, 1)
				counter("container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.", s.CPU.Throttled, 1)
				counter("container_cpu_cfs_throttled_seconds_total", "Total time duration the container has been throttled.", s.CPU.ThrottledTime, second)
				gauge("container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", s.Memory.Usage)
				gauge("container_memory_working_set_bytes", "Current working set in bytes.", s.Memory.WorkingSet)
				gauge("container_memory_rss", "Size of RSS in bytes.", s.Memory.RSS)
				gauge("container_memory_cache", "Number of bytes of page cache memory.", s.Memory.Cache)
				gauge("container_memory_mapped_file", "Size of memory mapped files in bytes.", s.Memory.MappedFile)
				gauge("container_memory_swap", "Container swap usage in bytes.", s.Memory.Swap)
				gauge("container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes", s.Memory.MaxUsage)
				counter("container_memory_failcnt", "Number of memory usage hits limits", s.Memory.LimitHits, 1)
				counter("container_oom_events_total", "Count of out of memory events observed for the container", s.Memory.Kills, 1)
				gauge("container_spec_memory_limit_bytes", "Memory limit for the container.", s.Memory.Limit)
				pressure := func(resource, congestion string, p *cgroup.Pressure) {
					if p == nil {
						return
					}
					const microseconds = 1e6
					counter("container_pressure_"+resource+"_stalled_seconds_total", "Total time duration no tasks in the container could make progress due to "+congestion+" congestion.", p.Full.Total, microseconds)
					counter("container_pressure_"+resource+"_waiting_seconds_total", "Total time duration tasks in the container have waited due to "+congestion+" congestion.", p.Some.Total, microseconds)
				}
				pressure("cpu", "CPU", s.Pressures.CPU)
				pressure("memory", "memory", s.Pressures.Memory)
				pressure("io", "IO", s.Pressures.IO)
				gauge("container_processes", "Number of processes running inside the container.", s.Processes)
				gauge("container_start_time_seconds", "Start time of the container since unix epoch in seconds.", uint64(status.State.Running.StartedAt.Unix()))
			}
		}
	}
}
