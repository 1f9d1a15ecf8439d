package fairness

import (
	"math"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/utils/ptr"
)

const (
	// adjustmentPeriod is how often the limits of the levels are recomputed.
	adjustmentPeriod = 10 * time.Second
	// demandDecay is the weight of the former demand at each adjustment: it halves in five minutes.
	demandDecay = 0.977
)

// shares are the settings of a PriorityLevelConfiguration about seats.
type shares struct {
	nominal  int32
	lendable int32  // percent
	borrow   *int32 // percent; nil: no limit
}

func sharesOf(l *flowcontrolv1.PriorityLevelConfiguration) shares {
	if limited := l.Spec.Limited; limited != nil {
		return shares{ptr.Deref(limited.NominalConcurrencyShares, 30), ptr.Deref(limited.LendablePercent, 0), limited.BorrowingLimitPercent}
	}
	return shares{ptr.Deref(l.Spec.Exempt.NominalConcurrencyShares, 0), ptr.Deref(l.Spec.Exempt.LendablePercent, 0), nil}
}

// bounds are the nominal, smallest and largest number of seats of a level.
type bounds struct{ nominal, min, max int }

// bounds of a level with a nominal number of seats, in a server with total seats.
func (s shares) bounds(seats, total int) bounds {
	percent := func(p int32) int { return int(math.Round(float64(seats) * float64(p) / 100)) }
	b := bounds{nominal: seats, min: seats - percent(s.lendable), max: seats + total}
	if s.borrow != nil {
		b.max = seats + percent(*s.borrow)
	}
	return b
}

// demand records how many seats the requests of a level occupied or waited for.
type demand struct {
	seats int // now

	// Since the last sample: the integrals of 1, seats and seats squared over time, and the peak.
	time, sum, squares float64
	peak               int
}

// elapse accounts for time at the present demand.
func (d *demand) elapse(seconds float64) {
	x := float64(d.seats)
	d.time += seconds
	d.sum += x * seconds
	d.squares += x * x * seconds
}

func (d *demand) set(seats int) {
	d.seats = seats
	d.peak = max(d.peak, seats)
}

// demandStats summarize the demand of an adjustment period.
type demandStats struct {
	average, deviation float64
	peak               int
	smoothed           float64
}

// sample computes the statistics and starts a new period.
func (d *demand) sample(w *demandStats) {
	w.peak = d.peak
	if d.time > 0 {
		w.average = d.sum / d.time
		w.deviation = math.Sqrt(max(0, d.squares/d.time-w.average*w.average))
		envelope := w.average + w.deviation
		w.smoothed = max(envelope, demandDecay*w.smoothed+(1-demandDecay)*envelope)
	}
	*d = demand{seats: d.seats, peak: d.seats}
}

// allocation is a level in the division of seats: its demand, and the result.
type allocation struct {
	bounds
	exempt   bool
	peak     int     // seats demanded at once
	smoothed float64 // seats demanded, smoothed
	current  int     // limit before, and as the result
	target   float64 // seats it would get with unlimited capacity
}

// minimum is what a level keeps: its recent peak, within its nominal seats.
func (c *allocation) minimum() int {
	if c.exempt {
		return max(c.min, c.peak)
	}
	return max(c.min, min(c.nominal, c.peak))
}

// divide sets the limits of all levels. Exempt levels take their demand. If enough seats remain, each other level gets its target
// times one common factor, within its bounds; divide returns that factor. If not, each gets what it cannot lend and part of its
// minimum.
func divide(seats int, allocations []*allocation) float64 {
	rest := seats
	var least, minimums int // of levels that are not exempt
	var lowest, highest float64
	for _, c := range allocations {
		c.target = max(float64(c.minimum()), c.smoothed)
		if c.exempt {
			c.current = c.minimum()
			rest -= c.current
			continue
		}
		least += c.min
		minimums += c.minimum()
		lowest += float64(c.minimum())
		highest += float64(c.max)
	}
	if rest > minimums && (float64(seats) < lowest || float64(seats) > highest) {
		return 0 // no factor fits: keep the current limits
	}
	factor := 0.0
	if rest > minimums {
		factor = fairFactor(float64(seats), allocations)
	}
	for _, c := range allocations {
		switch {
		case c.exempt:
		case rest <= least:
			c.current = c.min
		case rest <= minimums:
			c.current = c.min + int(math.Round(float64(c.minimum()-c.min)*float64(rest-least)/float64(minimums-least)))
		default:
			c.current = int(math.Round(c.seatsAt(factor)))
		}
	}
	return factor
}

// seatsAt is what the level gets at a factor.
func (c *allocation) seatsAt(factor float64) float64 {
	return max(float64(c.minimum()), min(float64(c.max), factor*max(c.target, minTarget)))
}

// minTarget lets levels without demand take part when there are more seats than demand.
const minTarget = 0.001

// fairFactor finds, by bisection, the factor at which the levels together get all seats. The sum grows with the factor.
func fairFactor(seats float64, allocations []*allocation) float64 {
	total := func(factor float64) (sum float64) {
		for _, c := range allocations {
			if !c.exempt {
				sum += c.seatsAt(factor)
			}
		}
		return sum
	}
	low, high := 0.0, 1.0
	for total(high) < seats && high < 1e12 {
		high *= 2
	}
	for range 100 {
		if middle := (low + high) / 2; total(middle) < seats {
			low = middle
		} else {
			high = middle
		}
	}
	return high
}

// updateLimits divides the seats among the levels by their demand since the last call. It is called with f.mu held.
func (f *Fairness) updateLimits() {
	var allocations []*allocation
	var levels []*level
	for _, l := range f.levels {
		allocations = append(allocations, l.sampleDemand())
		levels = append(levels, l)
	}
	f.fairFraction = divide(f.nominal, allocations)
	for i, l := range levels {
		l.target = allocations[i].target
		l.setLimit(allocations[i].current)
	}
}
