package churn

import (
	"fmt"
	"slices"
)

// sample are values of one moment, by name.
type sample map[quantity]float64

// quantity is one number of one process or host.
type quantity struct{ of, name string }

func (q quantity) String() string { return q.of + ": " + q.name }

// slack is how much a quantity may vary without growing, in addition to a share of it.
type slack struct {
	absolute float64
	share    float64
}

// slacks are those of the quantities that vary between two rounds; all others have to stay as they are.
var slacks = map[string]slack{
	residentMiB: {absolute: 8, share: 0.05},
	databaseMiB: {absolute: 4, share: 0.05},
	goroutines:  {absolute: 20, share: 0.02},
	openFiles:   {absolute: 10, share: 0.02},
	threads:     {absolute: 5, share: 0.1},
}

// minSamples is how many samples it takes to tell growth from variation.
const minSamples = 16

// growth returns what has grown over the second half of the samples, in order: the median of their last quarter is larger than that of the quarter before.
func growth(samples []sample) []string {
	if len(samples) < minSamples {
		return nil
	}
	quarter := len(samples) / 4
	third, last := medians(samples[len(samples)-2*quarter:len(samples)-quarter]), medians(samples[len(samples)-quarter:])
	var grown []string
	for q, value := range last {
		allowed := slacks[q.name]
		if before := third[q]; value > before*(1+allowed.share)+allowed.absolute {
			grown = append(grown, fmt.Sprintf("%s: median %.1f in the third quarter, %.1f in the last", q, before, value))
		}
	}
	slices.Sort(grown)
	return grown
}

// medians returns the median of each quantity.
func medians(samples []sample) sample {
	values := map[quantity][]float64{}
	for _, s := range samples {
		for q, value := range s {
			values[q] = append(values[q], value)
		}
	}
	result := sample{}
	for q, all := range values {
		slices.Sort(all)
		result[q] = all[len(all)/2]
	}
	return result
}
