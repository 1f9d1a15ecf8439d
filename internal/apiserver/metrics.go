package apiserver

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics counts requests with upstream's names and labels. Each resource caches its series, so that counting a request does not look
// up labels.
type metrics struct {
	registry *prometheus.Registry
	handler  http.Handler

	requests   *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	sizes      *prometheus.HistogramVec
	running    *prometheus.GaugeVec
	events     *prometheus.CounterVec
	eventBytes *prometheus.HistogramVec
	panics     prometheus.Counter
	deprecated *prometheus.GaugeVec
	watchLists *prometheus.HistogramVec

	paths resourceMetrics // of requests that are not for a resource
}

var requestLabels = []string{"component", "dry_run", "group", "resource", "scope", "subresource", "verb", "version"}

// newMetrics makes the metrics and registers them. The libraries' metrics are served besides.
func newMetrics(registry *prometheus.Registry, libraries []prometheus.Gatherer) *metrics {
	if registry == nil {
		registry = prometheus.NewRegistry()
		registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	m := &metrics{
		registry: registry,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_total",
			Help: "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
		}, append([]string{"code"}, requestLabels...)),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_request_duration_seconds",
			Help:    "Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, requestLabels),
		sizes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_response_sizes",
			Help:    "Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.",
			Buckets: prometheus.ExponentialBuckets(1000, 10, 7),
		}, []string{"component", "group", "resource", "scope", "subresource", "verb", "version"}),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_longrunning_requests",
			Help: "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component.",
		}, []string{"component", "group", "resource", "scope", "subresource", "verb", "version"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_watch_events_total", Help: "Number of events sent in watch clients",
		}, []string{"group", "resource", "version"}),
		eventBytes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_watch_events_sizes", Help: "Watch event size distribution in bytes",
			Buckets: prometheus.ExponentialBuckets(1024, 2, 8),
		}, []string{"group", "resource", "version"}),
		deprecated: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_requested_deprecated_apis",
			Help: "Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.",
		}, []string{"group", "version", "resource", "subresource", "removed_release"}),
		watchLists: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_watch_list_duration_seconds",
			Help:    "Response latency distribution in seconds for watch list requests broken by group, version, resource and scope.",
			Buckets: []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300},
		}, []string{"group", "version", "resource", "scope"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_request_panics_total",
			Help: "Number of panics in requests, including those of clients in the same process, that became errors of the request.",
		}),
	}
	registry.MustRegister(m.requests, m.durations, m.sizes, m.running, m.events, m.eventBytes, m.panics, m.deprecated, m.watchLists)
	m.handler = promhttp.HandlerFor(append(prometheus.Gatherers{registry}, libraries...), promhttp.HandlerOpts{})
	m.paths.all = m
	return m
}

// watch registers the gauges that are read from the server.
func (m *metrics) watch(s *Server) {
	inflight := func(kindOfRequest string, l *inFlightLimiter) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "apiserver_current_inflight_requests",
			Help:        "Maximal number of currently used inflight request limit of this apiserver per request kind in last second.",
			ConstLabels: prometheus.Labels{"request_kind": kindOfRequest},
		}, func() float64 { return float64(l.inFlight.Load()) })
	}
	encodingPanics := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "apiserver_encoding_panics_total",
		Help: "Number of panics in encoding objects of the cache, that became errors of the requests for these objects.",
	}, func() float64 { return float64(s.config.Cache.Panics()) })
	aggregations := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "aggregator_discovery_aggregation_count_total", Help: "Counter of number of times discovery was aggregated",
	}, func() float64 { return float64(s.catalog.aggregations.Load()) })
	m.registry.MustRegister(inflight("readOnly", &s.readOnly), inflight("mutating", &s.mutating), storageMetrics{s}, encodingPanics, aggregations)
	if s.config.Fairness != nil {
		m.registry.MustRegister(s.config.Fairness)
	}
}

// storageMetrics collects the number of objects and events of each kind.
type storageMetrics struct{ s *Server }

var (
	objectCountDesc = prometheus.NewDesc("apiserver_storage_objects",
		"Number of stored objects at the time of last check split by kind.", []string{"resource"}, nil)
	resourceCountDesc = prometheus.NewDesc("apiserver_resource_objects",
		"Number of stored objects at the time of last check split by kind.", []string{"group", "resource"}, nil)
	eventCountDesc = prometheus.NewDesc("apiserver_storage_events_received_total",
		"Number of etcd events received split by kind.", []string{"group", "resource"}, nil)
)

// Describe implements prometheus.Collector.
func (storageMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{objectCountDesc, resourceCountDesc, eventCountDesc} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (o storageMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, served := range o.s.catalog.all() {
		if served.table == nil {
			continue
		}
		gr, count := served.kind.GroupResource(), float64(served.table.Snapshot().Len(""))
		ch <- prometheus.MustNewConstMetric(objectCountDesc, prometheus.GaugeValue, count, gr.String())
		ch <- prometheus.MustNewConstMetric(resourceCountDesc, prometheus.GaugeValue, count, gr.Group, gr.Resource)
		ch <- prometheus.MustNewConstMetric(eventCountDesc, prometheus.CounterValue, float64(served.table.Received()), gr.Group, gr.Resource)
	}
}

// resourceMetrics are the series of one resource.
type resourceMetrics struct {
	all                      *metrics
	group, version, resource string
	mu                       sync.Mutex // guards changes of series
	series                   atomic.Pointer[map[seriesKey]*series]
	// watchSeries are the series of the events of watches.
	watchSeries func() watchSeries
}

type watchSeries struct {
	events prometheus.Counter
	bytes  prometheus.Observer
}

// seriesKey identifies a series of a resource.
type seriesKey struct {
	verb, scope, subresource string
	dryRun                   bool
}

// series counts the requests with one set of labels.
type series struct {
	duration, size prometheus.Observer
	labels         []string
	codes          [600]atomic.Pointer[prometheus.Counter]
}

func (m *metrics) forResource(res *resource) *resourceMetrics {
	r := &resourceMetrics{all: m, group: res.gvr.Group, version: res.gvr.Version, resource: res.gvr.Resource}
	r.watchSeries = sync.OnceValue(func() watchSeries {
		return watchSeries{
			events: m.events.WithLabelValues(r.group, r.resource, r.version), bytes: m.eventBytes.WithLabelValues(r.group, r.resource, r.version),
		}
	})
	if res.kind.Custom == nil {
		r.watchSeries() // a cluster may have ten thousand custom resources, most of them without watchers
	}
	return r
}

// watched counts events that were sent together to each of some watchers.
func (r *resourceMetrics) watched(watchers, events, bytes int) {
	if watchers == 0 || events == 0 {
		return
	}
	series := r.watchSeries()
	series.events.Add(float64(watchers * events))
	for range watchers {
		series.bytes.Observe(float64(bytes / events))
	}
}

// watchListed counts a watch whose initial events have been sent.
func (r *resourceMetrics) watchListed(scope string, took time.Duration) {
	r.all.watchLists.WithLabelValues(r.group, r.version, r.resource, scope).Observe(took.Seconds())
}

// deprecated counts a request for a deprecated version.
func (r *resourceMetrics) deprecated(subresource, removedRelease string) {
	r.all.deprecated.WithLabelValues(r.group, r.version, r.resource, subresource, removedRelease).Set(1)
}

func (r *resourceMetrics) get(key seriesKey) *series {
	if known := r.series.Load(); known != nil {
		if found := (*known)[key]; found != nil {
			return found
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	next := make(map[seriesKey]*series)
	if known := r.series.Load(); known != nil {
		for k, v := range *known {
			next[k] = v
		}
	}
	if next[key] == nil {
		dryRun := ""
		if key.dryRun {
			dryRun = "All"
		}
		labels := []string{"apiserver", dryRun, r.group, r.resource, key.scope, key.subresource, key.verb, r.version}
		next[key] = &series{
			duration: r.all.durations.WithLabelValues(labels...),
			size:     r.all.sizes.WithLabelValues("apiserver", r.group, r.resource, key.scope, key.subresource, key.verb, r.version),
			labels:   labels,
		}
		r.series.Store(&next)
	}
	return next[key]
}

func (s *series) count(m *metrics, code int) {
	if code < 0 || code >= len(s.codes) {
		code = 0
	}
	counter := s.codes[code].Load()
	if counter == nil {
		made := m.requests.WithLabelValues(append([]string{strconv.Itoa(code)}, s.labels...)...)
		counter = &made
		s.codes[code].Store(counter)
	}
	(*counter).Inc()
}

// reportedVerb is the verb as metrics name it.
func reportedVerb(req *request) string {
	if req.sub != nil && req.sub.Update == nil && req.sub.View == nil && req.sub.Create == nil {
		return "CONNECT"
	}
	switch verb := req.info.verb; verb {
	case "create":
		return "POST"
	case "update":
		return "PUT"
	case "patch":
		if strings.HasPrefix(req.Header.Get("Content-Type"), "application/apply-patch") {
			return "APPLY"
		}
		return "PATCH"
	case "get":
		return "GET"
	case "list":
		return "LIST"
	case "watch":
		return "WATCH"
	case "delete":
		return "DELETE"
	case "deletecollection":
		return "DELETECOLLECTION"
	}
	return "other"
}

func scopeOf(info *requestInfo) string {
	switch {
	case !info.isResource():
		return ""
	case info.name != "" || info.verb == "create":
		return "resource"
	case info.namespace != "":
		return "namespace"
	}
	return "cluster"
}

// seriesOf returns the series of a request. Requests for unknown resources share one series, because their names are the client's.
func (m *metrics) seriesOf(req *request) *series {
	if req.res == nil {
		key := seriesKey{verb: "other"}
		if isRead(req.Method) {
			key.verb = "GET"
		}
		return m.paths.get(key)
	}
	key := seriesKey{verb: reportedVerb(req), scope: scopeOf(&req.info), dryRun: req.query.Get("dryRun") != ""}
	if req.sub != nil {
		key.subresource = req.sub.Name
	}
	return req.res.metrics.get(key)
}

// record counts a finished request. Long-running requests have no meaningful duration.
func (m *metrics) record(req *request) {
	s := m.seriesOf(req)
	code := req.w.code
	if code == 0 {
		code = http.StatusOK
	}
	s.count(m, code)
	if !req.longRunning {
		s.duration.Observe(time.Since(req.start).Seconds())
		if isRead(req.Method) {
			s.size.Observe(float64(req.w.bytes))
		}
	}
}

// longRunning counts a long-running request until the function it returns is called.
func (m *metrics) longRunning(req *request) func() {
	key := seriesKey{verb: reportedVerb(req), scope: scopeOf(&req.info)}
	if req.sub != nil {
		key.subresource = req.sub.Name
	}
	gauge := m.running.WithLabelValues("apiserver", req.res.gvr.Group, req.res.gvr.Resource, key.scope, key.subresource, key.verb, req.res.gvr.Version)
	gauge.Inc()
	return gauge.Dec
}
