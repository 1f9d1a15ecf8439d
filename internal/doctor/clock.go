package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// clockState is that of the host's clock.
type clockState struct {
	now time.Time
	// isSynchronized is what the kernel was told by whatever synchronizes its clock.
	isSynchronized bool
}

// earliestTime is before every release of skiff: a clock that shows an earlier time was never set.
var earliestTime = time.Date(2025, time.January, 1, 0, 0, 0, 0, time.UTC)

func readClock(context.Context) (clockState, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return clockState{}, fmt.Errorf("read the state of the clock: %w", err)
	}
	return clockState{time.Now(), state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0}, nil
}

func decideClock(s clockState) []Finding {
	const fix = "timedatectl set-ntp true, or install chrony"
	switch {
	case s.now.Before(earliestTime):
		return []Finding{{
			Severity: Error, Problem: "the clock shows " + timeText(s.now), Breaks: "certificates and tokens that are made now have expired when the clock is set", When: "when the clock is set", Fix: "set the clock: " + fix,
		}}
	case !s.isSynchronized:
		return []Finding{{
			Severity: Warning, Problem: "nothing synchronizes the clock", Breaks: "certificates and tokens of other hosts are not valid yet or any more, and events and logs have wrong times",
			When: "when it differs by minutes", Fix: fix,
		}}
	}
	return nil
}

const (
	// A difference of clocks above skewWarning is reported; etcd warns of one second. Above skewError certificates and tokens are refused: they are valid from when they are made.
	skewWarning = 2 * time.Second
	skewError   = 30 * time.Second
)

// decideClocks is about servers whose clocks differ.
func decideClocks(s survey) (findings []Finding) {
	servers := s.responding()
	if len(servers) == 0 {
		return nil
	}
	// The clock that most agree with is the median.
	sorted := slices.SortedFunc(slices.Values(servers), func(a, b server) int { return cmp.Compare(a.ahead, b.ahead) })
	median := sorted[len(sorted)/2]
	add := func(whose string, ahead, precision time.Duration) {
		if ahead.Abs() <= skewWarning+precision {
			return
		}
		direction := "ahead"
		if ahead < 0 {
			direction = "behind"
		}
		f := Finding{
			Severity: Warning, Problem: fmt.Sprintf("the clock of %s is %s %s", whose, durationText(ahead.Abs()), direction), Breaks: "times of events, logs and leases are wrong", When: whenNow,
			Fix: "synchronize it: timedatectl set-ntp true, or chrony; then check it with chronyc tracking",
		}
		if ahead.Abs() > skewError {
			f.Severity, f.Breaks = Error, "certificates and tokens are refused as not valid yet or expired, and leases are taken over or kept too long"
		}
		findings = append(findings, f)
	}
	for _, one := range servers {
		if len(servers) > 1 {
			add("server "+one.address, one.ahead-median.ahead, one.precision+median.precision)
		}
	}
	// The other way around, this host's.
	add("this host, compared with the servers,", -median.ahead, median.precision)
	return findings
}
