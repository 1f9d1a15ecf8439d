package scaling

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	autoscalingv2 "k8s.io/api/autoscaling/v2"

	"skiff/test/metrics"
)

func TestAutoscalerMetrics(t *testing.T) {
	m := newAutoscalerMetrics()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.collectors()...)
	m.reconciled(actionLabel(1, 3), nil, time.Second)
	m.reconciled(actionLabel(3, 1), nil, time.Second)
	m.reconciled(actionLabel(0, 0), errors.New("timeout"), time.Second)
	invalid := fmt.Errorf("invalid metrics: %w", &metricError{inner: specError{errors.New("unknown metric source type")}})
	m.reconciled(actionLabel(0, 0), invalid, time.Second)
	m.computed(actionLabel(2, 2), nil, autoscalingv2.ResourceMetricSourceType, time.Second)
	const prefix = "horizontal_pod_autoscaler_controller_"
	metrics.Check(t, registry, map[string]float64{
		prefix + "reconciliations_total{action=scale_up,error=none}":                                1,
		prefix + "reconciliations_total{action=scale_down,error=none}":                              1,
		prefix + "reconciliations_total{action=none,error=internal}":                                1,
		prefix + "reconciliations_total{action=none,error=spec}":                                    1,
		prefix + "reconciliation_duration_seconds{action=scale_up,error=none}":                      1,
		prefix + "metric_computation_total{action=none,error=none,metric_type=Resource}":            1,
		prefix + "metric_computation_duration_seconds{action=none,error=none,metric_type=Resource}": 1,
	})
}
