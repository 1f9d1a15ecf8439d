package fairness

import (
	"math"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/utils/ptr"
)

const (
	// adjustment is how often seats are lent anew.
	adjustment = 10 * time.Second
	// memory is how much of the former demand counts besides the present one: half of it is forgotten after five minutes.
	memory = 0.977
)

// shares is what a PriorityLevelConfiguration says about seats.
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

// bounds are how many seats a level may have.
type bounds struct{ nominal, least, most int }

// bounds of a level that nominally has some seats, in a server with so many in all.
func (s shares) bounds(seats, all int) bounds {
	percent := func(p int32) int { return int(math.Round(float64(seats) * float64(p) / 100)) }
	b := bounds{nominal: seats, least: seats - percent(s.lendable), most: seats + all}
	if s.borrow != nil {
		b.most = seats + percent(*s.borrow)
	}
	return b
}

// demand is how many seats a level could have used, over a time.
type demand struct {
	seats int // now

	// Since it was last taken: the integrals of 1, seats and its square, and the peak.
	time, sum, squares float64
	peak               int
}

// pass lets time go by at the present demand.
func (d *demand) pass(seconds float64) {
	x := float64(d.seats)
	d.time += seconds
	d.sum += x * seconds
	d.squares += x * x * seconds
}

func (d *demand) set(seats int) {
	d.seats = seats
	d.peak = max(d.peak, seats)
}

// wish is what is made of the demand: how many seats a level would like to have.
type wish struct {
	average, deviation float64
	peak               int
	smoothed           float64
}

// take reads the demand into a wish and begins anew.
func (d *demand) take(w *wish) {
	w.peak = d.peak
	if d.time > 0 {
		w.average = d.sum / d.time
		w.deviation = math.Sqrt(max(0, d.squares/d.time-w.average*w.average))
		envelope := w.average + w.deviation
		w.smoothed = max(envelope, memory*w.smoothed+(1-memory)*envelope)
	}
	*d = demand{seats: d.seats, peak: d.seats}
}

// claim is what a level brings to the division of seats.
type claim struct {
	bounds
	exempt  bool
	peak    int     // seats demanded at once
	wanted  float64 // seats demanded, smoothed
	current int     // what it has; the outcome
	target  float64 // what the division aims at
}

// floor is what a level keeps: what it needed lately, within what it owns.
func (c *claim) floor() int {
	if c.exempt {
		return max(c.least, c.peak)
	}
	return max(c.least, min(c.nominal, c.peak))
}

// divide gives out seats. Exempt levels take what they need. If there is enough, the others get their demands times the same
// factor, which is returned, as far as their bounds allow; else only what they may not lend, and part of what they need.
func divide(seats int, claims []*claim) float64 {
	rest := seats
	var least, floors int // of levels that are not exempt
	var lowest, highest float64
	for _, c := range claims {
		c.target = max(float64(c.floor()), c.wanted)
		if c.exempt {
			c.current = c.floor()
			rest -= c.current
			continue
		}
		least += c.least
		floors += c.floor()
		lowest += float64(c.floor())
		highest += float64(c.most)
	}
	if rest > floors && (float64(seats) < lowest || float64(seats) > highest) {
		return 0 // no factor fits; what is stays
	}
	factor := 0.0
	if rest > floors {
		factor = fairFactor(float64(seats), claims)
	}
	for _, c := range claims {
		switch {
		case c.exempt:
		case rest <= least:
			c.current = c.least
		case rest <= floors:
			c.current = c.least + int(math.Round(float64(c.floor()-c.least)*float64(rest-least)/float64(floors-least)))
		default:
			c.current = int(math.Round(c.at(factor)))
		}
	}
	return factor
}

// at is what the level gets at a factor.
func (c *claim) at(factor float64) float64 {
	return max(float64(c.floor()), min(float64(c.most), factor*max(c.target, smallestTarget)))
}

// smallestTarget lets levels that want nothing take part when there is more than all want.
const smallestTarget = 0.001

// fairFactor finds the factor at which the levels together get the seats. What they get grows with it, so halving an interval
// finds it.
func fairFactor(seats float64, claims []*claim) float64 {
	total := func(factor float64) (sum float64) {
		for _, c := range claims {
			if !c.exempt {
				sum += c.at(factor)
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

// borrow divides the seats by what was demanded since the last time. It is called with f.mu held.
func (f *Fairness) borrow() {
	var claims []*claim
	var levels []*level
	for _, l := range f.levels {
		claims = append(claims, l.claim())
		levels = append(levels, l)
	}
	f.fair = divide(f.nominal, claims)
	for i, l := range levels {
		l.target = claims[i].target
		l.setLimit(claims[i].current)
	}
}
