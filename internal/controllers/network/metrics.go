package network

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	discoveryv1 "k8s.io/api/discovery/v1"

	"skiff/internal/controller"
)

// sliceMetrics are the metrics of the EndpointSlice controller, under upstream's names. The gauges are sums over the services.
type sliceMetrics struct {
	added, removed                                   prometheus.Histogram
	endpoints, slices, desiredSlices, byDistribution *prometheus.Desc

	mu       sync.Mutex
	services map[controller.Key]serviceTotals
}

// serviceTotals are the numbers of one service.
type serviceTotals struct {
	endpoints, slices, desiredSlices int
	trafficDistribution              string
}

func newSliceMetrics() *sliceMetrics {
	const subsystem = "endpoint_slice_controller"
	perSync := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: subsystem, Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(2, 2, 15)})
	}
	gauge := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(subsystem+"_"+name, help, labels, nil)
	}
	return &sliceMetrics{
		added:          perSync("endpoints_added_per_sync", "Number of endpoints added on each Service sync"),
		removed:        perSync("endpoints_removed_per_sync", "Number of endpoints removed on each Service sync"),
		endpoints:      gauge("endpoints_desired", "Number of endpoints desired"),
		slices:         gauge("num_endpoint_slices", "Number of EndpointSlices"),
		desiredSlices:  gauge("desired_endpoint_slices", "Number of EndpointSlices that would exist with perfect endpoint allocation"),
		byDistribution: gauge("services_count_by_traffic_distribution", "Number of Services using some specific trafficDistribution", "traffic_distribution"),
		services:       map[controller.Key]serviceTotals{},
	}
}

// Describe implements prometheus.Collector.
func (m *sliceMetrics) Describe(descs chan<- *prometheus.Desc) {
	m.added.Describe(descs)
	m.removed.Describe(descs)
	for _, d := range []*prometheus.Desc{m.endpoints, m.slices, m.desiredSlices, m.byDistribution} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (m *sliceMetrics) Collect(metrics chan<- prometheus.Metric) {
	m.added.Collect(metrics)
	m.removed.Collect(metrics)
	var total serviceTotals
	distributions := map[string]int{}
	m.mu.Lock()
	for _, s := range m.services {
		total.endpoints += s.endpoints
		total.slices += s.slices
		total.desiredSlices += s.desiredSlices
		if s.trafficDistribution != "" {
			distributions[s.trafficDistribution]++
		}
	}
	m.mu.Unlock()
	send := func(d *prometheus.Desc, value int, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	send(m.endpoints, total.endpoints)
	send(m.slices, total.slices)
	send(m.desiredSlices, total.desiredSlices)
	for distribution, n := range distributions {
		send(m.byDistribution, n, distribution)
	}
}

// reconciled records what a plan makes of the slices of a service.
func (m *sliceMetrics) reconciled(v slicesView, plan controller.Plan) {
	after := slicesAfter(v.slices, plan)
	old := map[endpointKey]bool{}
	forEachEndpoint(v.slices, func(e *discoveryv1.Endpoint) { old[keyOfEndpoint(e)] = true })
	totals := serviceTotals{slices: len(after)}
	if v.service.Spec.TrafficDistribution != nil {
		totals.trafficDistribution = *v.service.Spec.TrafficDistribution
	}
	added, kept := 0, 0
	forEachEndpoint(after, func(e *discoveryv1.Endpoint) {
		totals.endpoints++
		if old[keyOfEndpoint(e)] {
			kept++
		} else {
			added++
		}
	})
	totals.desiredSlices = desiredSlices(after, v.maxEndpoints)
	m.added.Observe(float64(added))
	m.removed.Observe(float64(max(len(old)-kept, 0)))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.services[controller.KeyOf(v.service)] = totals
}

// forget drops a service whose slices are not managed any longer.
func (m *sliceMetrics) forget(key controller.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.services, key)
}

// slicesAfter returns the slices as a plan leaves them.
func slicesAfter(before []*discoveryv1.EndpointSlice, plan controller.Plan) []*discoveryv1.EndpointSlice {
	byName := map[string]*discoveryv1.EndpointSlice{}
	for _, slice := range before {
		byName[slice.Name] = slice
	}
	var after []*discoveryv1.EndpointSlice
	for _, step := range plan.Steps {
		for _, w := range step.Writes {
			slice, ok := w.Object.(*discoveryv1.EndpointSlice)
			switch {
			case !ok:
			case w.Verb == controller.Create:
				after = append(after, slice)
			case w.Verb == controller.Delete:
				delete(byName, slice.Name)
			default:
				byName[slice.Name] = slice
			}
		}
	}
	for _, slice := range byName {
		after = append(after, slice)
	}
	return after
}

func forEachEndpoint(all []*discoveryv1.EndpointSlice, visit func(*discoveryv1.Endpoint)) {
	for _, slice := range all {
		for i := range slice.Endpoints {
			visit(&slice.Endpoints[i])
		}
	}
}

// desiredSlices is the smallest number of slices for the endpoints, whose slices differ by address type and ports. A service without
// endpoints has one.
func desiredSlices(all []*discoveryv1.EndpointSlice, maxEndpoints int) int {
	type group struct {
		family discoveryv1.AddressType
		ports  string
	}
	groups := map[group]int{}
	for _, slice := range all {
		groups[group{slice.AddressType, portsKey(slice.Ports)}] += len(slice.Endpoints)
	}
	n := 0
	for _, endpoints := range groups {
		n += (endpoints + maxEndpoints - 1) / maxEndpoints
	}
	return max(n, 1)
}
