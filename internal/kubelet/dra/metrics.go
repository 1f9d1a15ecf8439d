package dra

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// anyDriver is the label of the number of all claims in use, whatever their drivers.
const anyDriver = "<any>"

// draMetrics are the metrics of dynamic resources, under upstream's names.
type draMetrics struct {
	operations, calls *prometheus.HistogramVec
	inUse             *prometheus.Desc
	claims            *Claims
}

func newDRAMetrics(c *Claims) *draMetrics {
	buckets := prometheus.ExponentialBucketsRange(.1, 40, 15)
	return &draMetrics{
		claims: c,
		operations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "dra", Name: "operations_duration_seconds", Buckets: buckets,
			Help: "Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a pod when the pod starts or stops. " +
				"Identified by the name of the operation (PrepareResources or UnprepareResources) and separated by the success of the operation.",
		}, []string{"operation_name", "is_error"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "dra", Name: "grpc_operations_duration_seconds", Buckets: buckets, Help: "Duration in seconds of the DRA gRPC operations",
		}, []string{"driver_name", "method_name", "grpc_status_code"}),
		inUse: prometheus.NewDesc("dra_resource_claims_in_use", "The number of ResourceClaims that are currently in use on the node, by driver name (driver_name label value) "+
			"and across all drivers (special value <any> for driver_name).", []string{"driver_name"}, nil),
	}
}

// Collectors returns the metrics of dynamic resources.
func (c *Claims) Collectors() []prometheus.Collector {
	return []prometheus.Collector{c.metrics.operations, c.metrics.calls, c.metrics}
}

func (m *draMetrics) operation(name string, began time.Time, err error) {
	m.operations.WithLabelValues(name, strconv.FormatBool(err != nil)).Observe(time.Since(began).Seconds())
}

// intercept measures the calls to a driver.
func (m *draMetrics) intercept(driver string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		began := time.Now()
		err := invoke(ctx, method, request, reply, connection, options...)
		m.calls.WithLabelValues(driver, method, status.Code(err).String()).Observe(time.Since(began).Seconds())
		return err
	}
}

// Describe implements prometheus.Collector.
func (m *draMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- m.inUse }

// Collect implements prometheus.Collector. Drivers without claims have no series.
func (m *draMetrics) Collect(ch chan<- prometheus.Metric) {
	counts := map[string]int{anyDriver: 0}
	m.claims.mu.Lock()
	for _, claim := range m.claims.claims {
		if !claim.isPrepared {
			continue
		}
		counts[anyDriver]++
		for driver := range claim.DriverState {
			counts[driver]++
		}
	}
	m.claims.mu.Unlock()
	for driver, n := range counts {
		ch <- prometheus.MustNewConstMetric(m.inUse, prometheus.GaugeValue, float64(n), driver)
	}
}
