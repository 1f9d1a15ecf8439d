// Package metrics has the kubelet's metrics, under upstream's names.
//
// Counters and histograms are updated when something happens. Gauges, such as the number of running pods, are computed by
// a scrape (node.go). All methods may be called on a nil Metrics, which does nothing.
package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/container"
	"skiff/internal/kubelet/cri"
)

// startBuckets are the buckets of pod start durations, in seconds.
var startBuckets = []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}

// storageBuckets are the buckets of the durations of operations on volumes, in seconds.
var storageBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}

// Metrics are the metrics of one kubelet.
type Metrics struct {
	// All is served at /metrics, Probes at /metrics/probes.
	All, Probes *prometheus.Registry

	operations, operationErrors *prometheus.CounterVec
	operationTime               *prometheus.HistogramVec
	sandboxTime                 *prometheus.HistogramVec
	sandboxErrors               *prometheus.CounterVec
	workerTime                  *prometheus.HistogramVec
	startTime                   prometheus.Histogram
	startedPods, failedPods     prometheus.Counter
	startedContainers           *prometheus.CounterVec
	failedContainers            *prometheus.CounterVec
	relistTime, relistInterval  prometheus.Histogram
	relistLast                  prometheus.Gauge
	evictions, preemptions      *prometheus.CounterVec
	rejections                  *prometheus.CounterVec
	probes                      *prometheus.CounterVec
	probeTime                   *prometheus.HistogramVec
	storageTime                 *prometheus.HistogramVec
	volumeTime                  *prometheus.HistogramVec
	imageVolumes                struct{ requested, mounted, failed prometheus.Counter }
	resources                   resourceMetrics

	mu       sync.Mutex
	relisted time.Time
	// probed are the pods that have probe metrics.
	probed map[types.UID]types.NamespacedName
}

// New returns the metrics of a node's kubelet.
func New(nodeName string) *Metrics {
	m := &Metrics{All: prometheus.NewRegistry(), Probes: prometheus.NewRegistry(), probed: map[types.UID]types.NamespacedName{}}
	m.All.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	name := gaugeVec(m.All, "node_name", "The node's name. The count is always 1.", "node")
	name.WithLabelValues(nodeName).Set(1)

	m.operations = counterVec(m.All, "runtime_operations_total", "Cumulative number of runtime operations by operation type.", "operation_type")
	m.operationErrors = counterVec(m.All, "runtime_operations_errors_total", "Cumulative number of runtime operation errors by operation type.", "operation_type")
	m.operationTime = histogramVec(m.All, "runtime_operations_duration_seconds", "Duration in seconds of runtime operations. Broken down by operation type.",
		prometheus.ExponentialBuckets(.005, 2.5, 14), "operation_type")
	m.sandboxTime = histogramVec(m.All, "run_podsandbox_duration_seconds", "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.", prometheus.DefBuckets, "runtime_handler")
	m.sandboxErrors = counterVec(m.All, "run_podsandbox_errors_total", "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.", "runtime_handler")

	m.workerTime = histogramVec(m.All, "pod_worker_duration_seconds", "Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync", prometheus.DefBuckets, "operation_type")
	m.startTime = histogram(m.All, "pod_start_duration_seconds", "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run", startBuckets)
	m.startedPods = counter(m.All, "started_pods_total", "Cumulative number of pods started")
	m.failedPods = counter(m.All, "started_pods_errors_total", "Cumulative number of errors when starting pods")
	m.startedContainers = counterVec(m.All, "started_containers_total", "Cumulative number of containers started", "container_type")
	m.failedContainers = counterVec(m.All, "started_containers_errors_total", "Cumulative number of errors when starting containers", "container_type", "code")

	m.relistTime = histogram(m.All, "pleg_relist_duration_seconds", "Duration in seconds for relisting pods in PLEG.", prometheus.DefBuckets)
	m.relistInterval = histogram(m.All, "pleg_relist_interval_seconds", "Interval in seconds between relisting in PLEG.", prometheus.DefBuckets)
	m.relistLast = gauge(m.All, "pleg_last_seen_seconds", "Timestamp in seconds when PLEG was last seen active.")
	m.evictions = counterVec(m.All, "evictions", "Cumulative number of pod evictions by eviction signal", "eviction_signal")
	m.preemptions = counterVec(m.All, "preemptions", "Cumulative number of pod preemptions by preemption resource", "preemption_signal")

	m.rejections = counterVec(m.All, "admission_rejections_total", "Cumulative number pod admission rejections by the Kubelet.", "reason")

	m.resources = newResourceMetrics(m.All)

	m.imageVolumes.requested = counter(m.All, "image_volume_requested_total", "Number of requested image volumes.")
	m.imageVolumes.mounted = counter(m.All, "image_volume_mounted_succeed_total", "Number of successful image volume mounts.")
	m.imageVolumes.failed = counter(m.All, "image_volume_mounted_errors_total", "Number of failed image volume mounts.")
	m.storageTime = register(m.All, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "storage_operation_duration_seconds", Help: "Storage operation duration", Buckets: storageBuckets,
	}, []string{"volume_plugin", "operation_name", "status", "migrated"}))
	m.volumeTime = register(m.All, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "volume_operation_total_seconds", Help: "Storage operation end to end duration in seconds", Buckets: storageBuckets,
	}, []string{"plugin_name", "operation_name"}))

	m.probes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "prober_probe_total", Help: "Cumulative number of a liveness, readiness or startup probe for a container by result.",
	}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"})
	m.probeTime = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "prober_probe_duration_seconds", Help: "Duration in seconds for a probe response.", Buckets: prometheus.DefBuckets,
	}, []string{"probe_type", "container", "pod", "namespace"})
	m.Probes.MustRegister(m.probes, m.probeTime)
	return m
}

const subsystem = "kubelet"

func register[C prometheus.Collector](to *prometheus.Registry, c C) C {
	to.MustRegister(c)
	return c
}

func counter(to *prometheus.Registry, name, help string) prometheus.Counter {
	return register(to, prometheus.NewCounter(prometheus.CounterOpts{Subsystem: subsystem, Name: name, Help: help}))
}

func counterVec(to *prometheus.Registry, name, help string, labels ...string) *prometheus.CounterVec {
	return register(to, prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: subsystem, Name: name, Help: help}, labels))
}

func gauge(to *prometheus.Registry, name, help string) prometheus.Gauge {
	return register(to, prometheus.NewGauge(prometheus.GaugeOpts{Subsystem: subsystem, Name: name, Help: help}))
}

func gaugeVec(to *prometheus.Registry, name, help string, labels ...string) *prometheus.GaugeVec {
	return register(to, prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: subsystem, Name: name, Help: help}, labels))
}

func histogram(to *prometheus.Registry, name, help string, buckets []float64) prometheus.Histogram {
	return register(to, prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: subsystem, Name: name, Help: help, Buckets: buckets}))
}

func histogramVec(to *prometheus.Registry, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return register(to, prometheus.NewHistogramVec(prometheus.HistogramOpts{Subsystem: subsystem, Name: name, Help: help, Buckets: buckets}, labels))
}

// Operation records a call of the container runtime.
func (m *Metrics) Operation(call cri.Call) {
	if m == nil {
		return
	}
	m.operations.WithLabelValues(call.Operation).Inc()
	m.operationTime.WithLabelValues(call.Operation).Observe(call.Duration.Seconds())
	if call.Err != nil {
		m.operationErrors.WithLabelValues(call.Operation).Inc()
	}
	if call.Operation == cri.RunPodSandbox {
		m.sandboxTime.WithLabelValues(call.RuntimeHandler).Observe(call.Duration.Seconds())
		m.startedPods.Inc()
		if call.Err != nil {
			m.sandboxErrors.WithLabelValues(call.RuntimeHandler).Inc()
			m.failedPods.Inc()
		}
	}
}

// PodSynced records one sync of a pod worker.
func (m *Metrics) PodSynced(operation string, since time.Time) {
	if m != nil {
		m.workerTime.WithLabelValues(operation).Observe(time.Since(since).Seconds())
	}
}

// PodStarted records the time from when a pod was first observed until it was running.
func (m *Metrics) PodStarted(after time.Duration) {
	if m != nil {
		m.startTime.Observe(after.Seconds())
	}
}

// ContainerStarted records the start of a container; reason is empty if it succeeded.
func (m *Metrics) ContainerStarted(kind container.Kind, reason string) {
	if m == nil {
		return
	}
	label := "container"
	switch kind {
	case container.Init:
		label = "init_container"
	case container.Ephemeral:
		label = "ephemeral_container"
	}
	m.startedContainers.WithLabelValues(label).Inc()
	if reason != "" {
		m.failedContainers.WithLabelValues(label, reason).Inc()
	}
}

// ImageVolumesRequested records image volumes of a container that is started; ImageVolumesMounted and ImageVolumesFailed record the
// result.
func (m *Metrics) ImageVolumesRequested(n int) {
	if m != nil {
		m.imageVolumes.requested.Add(float64(n))
	}
}

// ImageVolumesMounted records image volumes of a container that has started.
func (m *Metrics) ImageVolumesMounted(n int) {
	if m != nil {
		m.imageVolumes.mounted.Add(float64(n))
	}
}

// ImageVolumesFailed records image volumes that the runtime could not mount.
func (m *Metrics) ImageVolumesFailed(n int) {
	if m != nil {
		m.imageVolumes.failed.Add(float64(n))
	}
}

// StorageOperation records one operation on a volume. No volume is migrated to a CSI driver on the node.
func (m *Metrics) StorageOperation(plugin, operation string, took time.Duration, err error) {
	if m == nil {
		return
	}
	result := "success"
	if err != nil {
		result = "fail-unknown"
	}
	m.storageTime.WithLabelValues(plugin, operation, result, "false").Observe(took.Seconds())
}

// VolumeMounted records how long it took to mount a volume, with all attempts.
func (m *Metrics) VolumeMounted(plugin string, took time.Duration) {
	if m != nil {
		m.volumeTime.WithLabelValues(plugin, "overall_volume_mount").Observe(took.Seconds())
	}
}

// Relisted records a relist of the container runtime.
func (m *Metrics) Relisted(took time.Duration) {
	if m == nil {
		return
	}
	now := time.Now()
	m.relistTime.Observe(took.Seconds())
	m.relistLast.Set(float64(now.Unix()))
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.relisted.IsZero() {
		m.relistInterval.Observe(now.Sub(m.relisted).Seconds())
	}
	m.relisted = now
}

// Evicted records an eviction by its signal.
func (m *Metrics) Evicted(signal string) {
	if m != nil {
		m.evictions.WithLabelValues(signal).Inc()
	}
}

// Preempted records the preemption of a pod for a critical pod, by the missing resource.
func (m *Metrics) Preempted(resource corev1.ResourceName) {
	if m != nil {
		m.preemptions.WithLabelValues(string(resource)).Inc()
	}
}

// Rejected records that a pod was not admitted.
func (m *Metrics) Rejected(reason string) {
	if m != nil {
		m.rejections.WithLabelValues(reason).Inc()
	}
}

// Probed records the result of a probe. The duration of failures is not recorded.
func (m *Metrics) Probed(pod *corev1.Pod, c *corev1.Container, kind string, success bool, took time.Duration) {
	if m == nil {
		return
	}
	result := "failed"
	if success {
		result = "successful"
		m.probeTime.WithLabelValues(kind, c.Name, pod.Name, pod.Namespace).Observe(took.Seconds())
	}
	m.probes.WithLabelValues(kind, result, c.Name, pod.Name, pod.Namespace, string(pod.UID)).Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.probed[pod.UID] = types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// PodProbesRemoved deletes the probe metrics of a removed pod.
func (m *Metrics) PodProbesRemoved(uid types.UID) {
	if m == nil {
		return
	}
	m.mu.Lock()
	name, known := m.probed[uid]
	delete(m.probed, uid)
	m.mu.Unlock()
	if known {
		m.probes.DeletePartialMatch(prometheus.Labels{"pod_uid": string(uid)})
		m.probeTime.DeletePartialMatch(prometheus.Labels{"namespace": name.Namespace, "pod": name.Name})
	}
}
