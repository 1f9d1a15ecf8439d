// Package metrics reads metrics in tests.
package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Values are the current values of a gatherer's series, by `name{label=value,...}`: of a histogram the number of observations.
func Values(t testing.TB, from prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, family := range families {
		for _, m := range family.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := family.GetName() + "{" + strings.Join(labels, ",") + "}"
			switch {
			case m.Counter != nil:
				all[name] = m.Counter.GetValue()
			case m.Gauge != nil:
				all[name] = m.Gauge.GetValue()
			case m.Histogram != nil:
				all[name] = float64(m.Histogram.GetSampleCount())
			}
		}
	}
	return all
}

// Check checks the values of some series.
func Check(t testing.TB, from prometheus.Gatherer, want map[string]float64) {
	t.Helper()
	values := Values(t, from)
	for name, value := range want {
		if got, ok := values[name]; !ok || got != value {
			t.Errorf("%s is %v (exists: %v), want %v", name, got, ok, value)
		}
	}
}
