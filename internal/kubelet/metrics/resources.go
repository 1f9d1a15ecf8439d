package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What resources are aligned with.
const (
	NUMANode    = "numa_node"
	PhysicalCPU = "physical_cpu"
	UncoreCache = "uncore_cache"
)

// The resources that are assigned exclusively.
const (
	CPU    = "cpu"
	Memory = "memory"
)

// The labels of resources that are assigned to containers, not to pods.
const (
	fromNode      = "node"
	nodeExclusive = "node_exclusive"
)

// resourceMetrics are the metrics of the CPU manager, the memory manager and the topology manager.
type resourceMetrics struct {
	cpuPinnings, cpuPinningErrors       prometheus.Counter
	sharedCPUs, exclusiveCPUs           prometheus.Gauge
	cpusPerNUMANode                     *prometheus.GaugeVec
	memoryPinnings, memoryPinningErrors prometheus.Counter
	admissions, admissionErrors         prometheus.Counter
	admissionTime                       prometheus.Histogram
	aligned, misaligned                 *prometheus.CounterVec
	allocations, allocationErrors       *prometheus.CounterVec
	assignments                         *prometheus.CounterVec
}

func newResourceMetrics(to *prometheus.Registry) resourceMetrics {
	return resourceMetrics{
		cpuPinnings:         counter(to, "cpu_manager_pinning_requests_total", "The number of cpu core allocations which required pinning."),
		cpuPinningErrors:    counter(to, "cpu_manager_pinning_errors_total", "The number of cpu core allocations which required pinning failed."),
		sharedCPUs:          gauge(to, "cpu_manager_shared_pool_size_millicores", "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores."),
		exclusiveCPUs:       gauge(to, "cpu_manager_exclusive_cpu_allocation_count", "The total number of CPUs exclusively allocated to containers running on this node"),
		cpusPerNUMANode:     gaugeVec(to, "cpu_manager_allocation_per_numa", "Number of CPUs allocated per NUMA node", NUMANode),
		memoryPinnings:      counter(to, "memory_manager_pinning_requests_total", "The number of memory pages allocations which required pinning."),
		memoryPinningErrors: counter(to, "memory_manager_pinning_errors_total", "The number of memory pages allocations which required pinning that failed."),
		admissions:          counter(to, "topology_manager_admission_requests_total", "The number of admission requests where resources have to be aligned."),
		admissionErrors:     counter(to, "topology_manager_admission_errors_total", "The number of admission request failures where resources could not be aligned."),
		admissionTime: histogram(to, "topology_manager_admission_duration_ms", "Duration in milliseconds to serve a pod admission request.",
			prometheus.ExponentialBuckets(.05, 2, 15)),
		aligned: counterVec(to, "container_aligned_compute_resources_count",
			"Cumulative number of aligned compute resources allocated to containers by alignment type.", "scope", "boundary"),
		misaligned: counterVec(to, "container_aligned_compute_resources_failure_count",
			"Cumulative number of failures to allocate aligned compute resources to containers by alignment type.", "scope", "boundary"),
		allocations: counterVec(to, "resource_manager_allocations_total",
			"Number of exclusive resource allocations performed by a resource manager.", "resource_name", "source"),
		allocationErrors: counterVec(to, "resource_manager_allocation_errors_total",
			"Number of errors encountered during exclusive resource allocation.", "resource_name", "source"),
		assignments: counterVec(to, "resource_manager_container_assignments_total",
			"Number of containers with a specific type of resource assignment.", "resource_name", "assignment_type"),
	}
}

// InitAligned creates the series of resources that are, or cannot be, aligned in a scope, so that they are visible before the first one.
func (m *Metrics) InitAligned(scope, boundary string) {
	if m != nil {
		m.resources.aligned.WithLabelValues(scope, boundary)
		m.resources.misaligned.WithLabelValues(scope, boundary)
	}
}

// Aligned records that resources were, or could not be, aligned.
func (m *Metrics) Aligned(scope, boundary string, aligned bool) {
	switch {
	case m == nil:
	case aligned:
		m.resources.aligned.WithLabelValues(scope, boundary).Inc()
	default:
		m.resources.misaligned.WithLabelValues(scope, boundary).Inc()
	}
}

// TopologyAdmission records that the resources of a pod were allocated, and whether they could not be aligned.
func (m *Metrics) TopologyAdmission(took time.Duration, failed bool) {
	if m == nil {
		return
	}
	m.resources.admissions.Inc()
	m.resources.admissionTime.Observe(float64(took.Milliseconds()))
	if failed {
		m.resources.admissionErrors.Inc()
	}
}

// CPUsPinned records that a container was, or could not be, given exclusive CPUs.
func (m *Metrics) CPUsPinned(err error) {
	if m == nil {
		return
	}
	m.resources.cpuPinnings.Inc()
	if err != nil {
		m.resources.cpuPinningErrors.Inc()
		m.resources.allocationErrors.WithLabelValues(CPU, fromNode).Inc()
	}
}

// MemoryPinned records that a container was, or could not be, given memory of NUMA nodes.
func (m *Metrics) MemoryPinned(err error) {
	if m == nil {
		return
	}
	m.resources.memoryPinnings.Inc()
	if err != nil {
		m.resources.memoryPinningErrors.Inc()
		m.resources.allocationErrors.WithLabelValues(Memory, fromNode).Inc()
	}
}

// ResourceAllocated records new allocations of a resource for one container.
func (m *Metrics) ResourceAllocated(resource string, allocations int) {
	if m != nil {
		m.resources.allocations.WithLabelValues(resource, fromNode).Add(float64(allocations))
		m.resources.assignments.WithLabelValues(resource, nodeExclusive).Inc()
	}
}

// SetCPUs sets the number of CPUs that can become exclusive, and of those that are, in total and by NUMA node.
func (m *Metrics) SetCPUs(available, exclusive int, perNUMANode map[int]int) {
	if m == nil {
		return
	}
	m.resources.sharedCPUs.Set(float64(available) * 1000)
	m.resources.exclusiveCPUs.Set(float64(exclusive))
	for node, number := range perNUMANode {
		m.resources.cpusPerNUMANode.WithLabelValues(strconv.Itoa(node)).Set(float64(number))
	}
}
