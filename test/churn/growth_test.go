package churn

import (
	"slices"
	"testing"
)

func TestGrowth(t *testing.T) {
	series := func(name string, at func(i int) float64) []sample {
		var samples []sample
		for i := range 40 {
			samples = append(samples, sample{{"server", name}: at(i)})
		}
		return samples
	}
	for _, test := range []struct {
		name    string
		samples []sample
		want    []string
	}{
		{"flat", series(mounts, func(int) float64 { return 30 }), nil},
		{"grew at first", series(mounts, func(i int) float64 { return float64(min(i, 10)) }), nil},
		{"one mount a round", series(mounts, func(i int) float64 { return float64(i) }), []string{"server: mounts: median 25.0 in the third quarter, 35.0 in the last"}},
		{"one mount now and then", series(mounts, func(i int) float64 { return float64(i / 15) }), []string{"server: mounts: median 1.0 in the third quarter, 2.0 in the last"}},
		{"memory that varies", series(residentMiB, func(i int) float64 { return 100 + float64(i%7) }), nil},
		{"memory that grows", series(residentMiB, func(i int) float64 { return 100 + 2*float64(i) }), []string{"server: resident MiB: median 150.0 in the third quarter, 170.0 in the last"}},
		{"too few samples", series(mounts, func(i int) float64 { return float64(i) })[:10], nil},
	} {
		if got := growth(test.samples); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
