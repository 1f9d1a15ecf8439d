package system

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"

	"skiff/internal/config"
	"skiff/internal/store/etcd"
)

// libraryMetrics are the metrics that libraries register for the whole process: those of the embedded etcd, and of CEL expressions.
func libraryMetrics(c config.Etcd) []prometheus.Gatherer {
	all := []prometheus.Gatherer{celMetrics{}}
	if len(c.Servers) == 0 {
		all = append(all, etcd.ServerMetrics{})
	}
	return all
}

// celMetrics are the durations of compiling and evaluating CEL expressions.
type celMetrics struct{}

// Gather implements prometheus.Gatherer.
func (celMetrics) Gather() ([]*dto.MetricFamily, error) {
	families, err := legacyregistry.DefaultGatherer.Gather()
	return slices.DeleteFunc(families, func(family *dto.MetricFamily) bool {
		return !strings.HasPrefix(family.GetName(), "apiserver_cel_")
	}), err
}
