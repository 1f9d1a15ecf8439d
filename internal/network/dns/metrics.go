package dns

import (
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// serverLabel, viewLabel and zonesLabel are what CoreDNS sets for a server at port 53 without views.
const (
	serverLabel = "dns://:53"
	viewLabel   = ""
	zonesLabel  = "."
)

// sizeBuckets and timeBuckets are CoreDNS's.
var (
	sizeBuckets = []float64{0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16e3, 32e3, 48e3, 64e3}
	timeBuckets = prometheus.ExponentialBuckets(0.00025, 2, 16)
)

// countedTypes are the query types with a label of their own; all others are counted as "other", as in CoreDNS.
var countedTypes = []uint16{
	dns.TypeAAAA, dns.TypeA, dns.TypeCNAME, dns.TypeDNSKEY, dns.TypeDS, dns.TypeMX, dns.TypeNSEC3, dns.TypeNSEC, dns.TypeNS, dns.TypePTR,
	dns.TypeRRSIG, dns.TypeSOA, dns.TypeSRV, dns.TypeTXT, dns.TypeHTTPS,
}

// metrics are CoreDNS's metrics, under its names.
type metrics struct {
	registry *prometheus.Registry

	requests      *prometheus.CounterVec
	responses     *prometheus.CounterVec
	dnssecQueries *prometheus.CounterVec
	duration      *prometheus.HistogramVec
	requestSize   *prometheus.HistogramVec
	responseSize  *prometheus.HistogramVec
	panics        prometheus.Counter

	cacheRequests, cacheMisses    prometheus.Counter
	successHits, denialHits       prometheus.Counter
	successEvicted, denialEvicted prometheus.Counter

	forwardRejects, healthcheckBroken prometheus.Counter
	forwardDuration                   *prometheus.HistogramVec

	// series are the metrics of a query by its kind, so that a query does not look labels up. Their number is bounded by that of zones,
	// transports, families and types.
	mu     sync.RWMutex
	series map[seriesKey]*series
}

// seriesKey is what the labels of a query depend on.
type seriesKey struct {
	zone  string
	isTCP bool
	is6   bool
	qtype uint16
	rcode int
}

// series are the metrics that a query of one kind changes.
type series struct {
	requests, responses, dnssecQueries  prometheus.Counter
	duration, requestSize, responseSize prometheus.Observer
}

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), series: map[seriesKey]*series{}}
	counters := func(subsystem, name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "coredns", Subsystem: subsystem, Name: name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	histograms := func(subsystem, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "coredns", Subsystem: subsystem, Name: name, Help: help, Buckets: buckets}, labels)
		m.registry.MustRegister(h)
		return h
	}
	m.requests = counters("dns", "requests_total", "Counter of DNS requests made per zone, protocol and family.", "server", "zone", "view", "proto", "family", "type")
	m.responses = counters("dns", "responses_total", "Counter of response status codes.", "server", "zone", "view", "rcode", "plugin")
	m.dnssecQueries = counters("dns", "do_requests_total", "Counter of DNS requests with DO bit set per zone.", "server", "zone", "view")
	m.duration = histograms("dns", "request_duration_seconds", "Histogram of the time (in seconds) each request took per zone.", timeBuckets, "server", "zone", "view")
	m.requestSize = histograms("dns", "request_size_bytes", "Size of the request in bytes per zone and protocol.", sizeBuckets, "server", "zone", "view", "proto")
	m.responseSize = histograms("dns", "response_size_bytes", "Size of the returned response in bytes.", sizeBuckets, "server", "zone", "view", "proto")
	m.panics = counters("", "panics_total", "Number of queries whose processing panicked.").WithLabelValues()

	m.cacheRequests = counters("cache", "requests_total", "The count of cache requests.", "server", "zones", "view").WithLabelValues(serverLabel, zonesLabel, viewLabel)
	m.cacheMisses = counters("cache", "misses_total", "The count of cache misses.", "server", "zones", "view").WithLabelValues(serverLabel, zonesLabel, viewLabel)
	hits := counters("cache", "hits_total", "The count of cache hits.", "server", "type", "zones", "view")
	m.successHits, m.denialHits = hits.WithLabelValues(serverLabel, "success", zonesLabel, viewLabel), hits.WithLabelValues(serverLabel, "denial", zonesLabel, viewLabel)
	evictions := counters("cache", "evictions_total", "The count of cache evictions.", "server", "type", "zones", "view")
	m.successEvicted = evictions.WithLabelValues(serverLabel, "success", zonesLabel, viewLabel)
	m.denialEvicted = evictions.WithLabelValues(serverLabel, "denial", zonesLabel, viewLabel)

	m.forwardRejects = counters("forward", "max_concurrent_rejects_total",
		"Counter of the number of queries rejected because the concurrent queries were at maximum.").WithLabelValues()
	m.healthcheckBroken = counters("forward", "healthcheck_broken_total", "Counter of the queries for which all name servers had failed lately.").WithLabelValues()
	m.forwardDuration = histograms("proxy", "request_duration_seconds", "Histogram of the time each request took.", timeBuckets, "proxy_name", "to", "rcode")
	return m
}

// registerCaches adds the sizes of the caches.
func (m *metrics) registerCaches(success, denial *responseCache) {
	for name, cache := range map[string]*responseCache{"success": success, "denial": denial} {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "coredns", Subsystem: "cache", Name: "entries", Help: "The number of elements in the cache.",
			ConstLabels: prometheus.Labels{"server": serverLabel, "type": name, "zones": zonesLabel, "view": viewLabel},
		}, func() float64 { return float64(cache.entries()) }))
	}
}

// observe records a query and its response.
func (m *metrics) observe(key seriesKey, dnssec bool, requestSize, responseSize int, duration time.Duration) {
	m.mu.RLock()
	s := m.series[key]
	m.mu.RUnlock()
	if s == nil {
		s = m.newSeries(key)
	}
	s.requests.Inc()
	s.responses.Inc()
	if dnssec {
		s.dnssecQueries.Inc()
	}
	s.duration.Observe(duration.Seconds())
	s.requestSize.Observe(float64(requestSize))
	s.responseSize.Observe(float64(responseSize))
}

func (m *metrics) newSeries(key seriesKey) *series {
	proto, family, qtype := "udp", "1", "other"
	if key.isTCP {
		proto = "tcp"
	}
	if key.is6 {
		family = "2"
	}
	if key.qtype != 0 {
		qtype = dns.TypeToString[key.qtype]
	}
	s := &series{
		requests:  m.requests.WithLabelValues(serverLabel, key.zone, viewLabel, proto, family, qtype),
		responses: m.responses.WithLabelValues(serverLabel, key.zone, viewLabel, rcodeName(key.rcode), ""), dnssecQueries: m.dnssecQueries.WithLabelValues(serverLabel, key.zone, viewLabel),
		duration:    m.duration.WithLabelValues(serverLabel, key.zone, viewLabel),
		requestSize: m.requestSize.WithLabelValues(serverLabel, key.zone, viewLabel, proto), responseSize: m.responseSize.WithLabelValues(serverLabel, key.zone, viewLabel, proto),
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.series[key] = s
	return s
}

// forwarded records a query to another name server.
func (m *metrics) forwarded(to netip.AddrPort, rcode int, duration time.Duration) {
	m.forwardDuration.WithLabelValues("forward", to.String(), rcodeName(rcode)).Observe(duration.Seconds())
}

// countedType is the type that a query is counted as; 0: other.
func countedType(qtype uint16) uint16 {
	for _, counted := range countedTypes {
		if qtype == counted {
			return qtype
		}
	}
	return 0
}

// rcodeName is the name of a response code.
func rcodeName(rcode int) string {
	if name, ok := dns.RcodeToString[rcode]; ok {
		return name
	}
	return strconv.Itoa(rcode)
}
