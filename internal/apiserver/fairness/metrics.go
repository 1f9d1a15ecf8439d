package fairness

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// stats are the metrics of one schema in one level. The level's mutex guards them: it is held anyway whenever they change.
type stats struct {
	dispatched, noAccommodation uint64
	rejected                    [3]uint64 // by reason
	executing, usedSeats        int
	waiting, waitingSeats       int
	waited, rejectedWait        histogram
	executed, watchStarted      histogram
	seats, length               histogram
}

// The reasons for rejection.
const (
	reasonLimit = iota
	reasonFull
	reasonTimeout
)

var reasons = [...]string{reasonLimit: "concurrency-limit", reasonFull: "queue-full", reasonTimeout: "time-out"}

var (
	secondBounds = []float64{0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30}
	lengthBounds = []float64{0, 10, 25, 50, 100, 250, 500, 1000}
	seatBounds   = []float64{1, 2, 4, 8, 16, 32, 64, 100}
)

// histogram counts values by the first bound they are not above.
type histogram struct {
	counts [14]uint64
	count  uint64
	sum    float64
}

func (h *histogram) observe(bounds []float64, value float64) {
	h.count++
	h.sum += value
	for i, bound := range bounds {
		if value <= bound {
			h.counts[i]++
			return
		}
	}
}

// cumulative returns the buckets as Prometheus exports them.
func (h *histogram) cumulative(bounds []float64) map[float64]uint64 {
	buckets := make(map[float64]uint64, len(bounds))
	var sum uint64
	for i, bound := range bounds {
		sum += h.counts[i]
		buckets[bound] = sum
	}
	return buckets
}

func (s *stats) start(seats *Seats, limited bool) {
	s.dispatched++
	s.executing++
	s.usedSeats += seats.total
	if limited {
		s.waited.observe(secondBounds, (seats.began - seats.arrived).Seconds())
	}
}

func (s *stats) finish(seats *Seats, took time.Duration) {
	s.executing--
	if seats.watch {
		s.watchStarted.observe(secondBounds, took.Seconds())
	} else {
		s.executed.observe(secondBounds, took.Seconds())
	}
}

func (s *stats) reject(reason int, waited float64) {
	s.rejected[reason]++
	s.rejectedWait.observe(secondBounds, waited)
}

// describe makes a metric with upstream's name.
func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("apiserver_flowcontrol_"+name, help, labels, nil)
}

const (
	labelLevel  = "priority_level"
	labelSchema = "flow_schema"
)

var (
	descRejected = describe("rejected_requests_total",
		"Number of requests rejected by API Priority and Fairness subsystem", labelLevel, labelSchema, "reason")
	descDispatched = describe("dispatched_requests_total",
		"Number of requests executed by API Priority and Fairness subsystem", labelLevel, labelSchema)
	descWaiting = describe("current_inqueue_requests",
		"Number of requests currently pending in queues of the API Priority and Fairness subsystem", labelLevel, labelSchema)
	descWaitingSeats = describe("current_inqueue_seats",
		"Number of seats currently pending in queues of the API Priority and Fairness subsystem", labelLevel, labelSchema)
	descRunning = describe("current_executing_requests",
		"Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage in the API Priority and Fairness subsystem", labelLevel, labelSchema)
	descUsedSeats = describe("current_executing_seats",
		"Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any stage otherwise) requests in the API Priority and Fairness subsystem", labelLevel, labelSchema)
	descTooWide = describe("request_dispatch_no_accommodation_total",
		"Number of times a dispatch attempt resulted in a non accommodation due to lack of available seats", labelLevel, labelSchema)
	descWait = describe("request_wait_duration_seconds",
		"Length of time a request spent waiting in its queue", labelLevel, labelSchema, "execute")
	descExecution = describe("request_execution_seconds",
		"Duration of initial stage (for a WATCH) or any (for a non-WATCH) stage of request execution in the API Priority and Fairness subsystem", labelLevel, labelSchema, "type")
	descLength = describe("request_queue_length_after_enqueue",
		"Length of queue in the API Priority and Fairness subsystem, as seen by each request after it is enqueued", labelLevel, labelSchema)
	descEstimate = describe("work_estimated_seats",
		"Number of estimated seats (maximum of initial and final seats) associated with requests in API Priority and Fairness", labelLevel, labelSchema)

	descNominal = describe("nominal_limit_seats",
		"Nominal number of execution seats configured for each priority level", labelLevel)
	descLower = describe("lower_limit_seats",
		"Configured lower bound on number of execution seats available to each priority level", labelLevel)
	descUpper = describe("upper_limit_seats",
		"Configured upper bound on number of execution seats available to each priority level", labelLevel)
	descCurrent = describe("current_limit_seats",
		"current derived number of execution seats available to each priority level", labelLevel)
	descPeak = describe("demand_seats_high_watermark",
		"High watermark, over last adjustmentPeriod period, of demand_seats", labelLevel)
	descAverage = describe("demand_seats_average",
		"Time-weighted average, over last adjustmentPeriod period, of demand_seats", labelLevel)
	descDeviation = describe("demand_seats_stdev",
		"Time-weighted standard deviation, over last adjustmentPeriod period, of demand_seats", labelLevel)
	descSmoothed = describe("demand_seats_smoothed", "Smoothed seat demands", labelLevel)
	descTarget   = describe("target_seats", "Seat allocation targets", labelLevel)
	descProgress = describe("current_r", "R(time of last change)", labelLevel)
	descFair     = describe("seat_fair_frac",
		"Fair fraction of server's concurrency to allocate to each priority level that can use it")
)

// Describe implements prometheus.Collector.
func (f *Fairness) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		descRejected, descDispatched, descWaiting, descWaitingSeats, descRunning, descUsedSeats, descTooWide, descWait, descExecution, descLength, descEstimate,
		descNominal, descLower, descUpper, descCurrent, descPeak, descAverage, descDeviation, descSmoothed, descTarget, descProgress, descFair,
	} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (f *Fairness) Collect(ch chan<- prometheus.Metric) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(descFair, prometheus.GaugeValue, f.fairFraction)
	for _, l := range f.levels {
		l.collect(ch)
	}
}

// collect is called with Fairness.mu held.
func (l *level) collect(ch chan<- prometheus.Metric) {
	l.mu.Lock()
	limit, virtualTime := l.limit, l.virtualTime
	copies := make(map[string]stats, len(l.stats))
	for schema, s := range l.stats {
		copies[schema] = *s
	}
	l.mu.Unlock()
	for desc, value := range map[*prometheus.Desc]float64{
		descNominal: float64(l.bounds.nominal), descLower: float64(l.bounds.min), descUpper: float64(l.bounds.max),
		descCurrent: float64(limit), descPeak: float64(l.demandStats.peak), descAverage: l.demandStats.average, descDeviation: l.demandStats.deviation,
		descSmoothed: l.demandStats.smoothed, descTarget: l.target, descProgress: virtualTime,
	} {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, l.name)
	}
	for schema, s := range copies {
		s.collect(ch, l.name, schema)
	}
}

func (s *stats) collect(ch chan<- prometheus.Metric, level, schema string) {
	number := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, kind, value, append([]string{level, schema}, labels...)...)
	}
	for reason, count := range s.rejected {
		if count > 0 {
			number(descRejected, prometheus.CounterValue, float64(count), reasons[reason])
		}
	}
	number(descDispatched, prometheus.CounterValue, float64(s.dispatched))
	number(descTooWide, prometheus.CounterValue, float64(s.noAccommodation))
	number(descWaiting, prometheus.GaugeValue, float64(s.waiting))
	number(descWaitingSeats, prometheus.GaugeValue, float64(s.waitingSeats))
	number(descRunning, prometheus.GaugeValue, float64(s.executing))
	number(descUsedSeats, prometheus.GaugeValue, float64(s.usedSeats))
	for _, h := range []struct {
		desc   *prometheus.Desc
		values *histogram
		bounds []float64
		labels []string
	}{
		{descWait, &s.waited, secondBounds, []string{"true"}},
		{descWait, &s.rejectedWait, secondBounds, []string{"false"}},
		{descExecution, &s.executed, secondBounds, []string{"regular"}},
		{descExecution, &s.watchStarted, secondBounds, []string{"watch"}},
		{descLength, &s.length, lengthBounds, nil},
		{descEstimate, &s.seats, seatBounds, nil},
	} {
		if h.values.count > 0 {
			ch <- prometheus.MustNewConstHistogram(h.desc, h.values.count, h.values.sum, h.values.cumulative(h.bounds),
				append([]string{level, schema}, h.labels...)...)
		}
	}
}
