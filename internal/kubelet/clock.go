package kubelet

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// clockPeriod is how often the clock of the host is checked.
	clockPeriod = 30 * time.Second
	// clockTolerance is more than what is corrected gradually within a period.
	clockTolerance = 2 * time.Second
)

// watchClock wakes the workers of all pods when the clock of the host has jumped: it was wrong when the host booted, or the host was suspended. Timers do
// not notice, and the tokens and certificates of pods may have expired.
func (k *Kubelet) watchClock(ctx context.Context) error {
	k.onClockJump(ctx, clockOffset)
	return nil
}

// onClockJump is watchClock with another clock. offset is what the clock is ahead of one that is never set.
func (k *Kubelet) onClockJump(ctx context.Context, offset func() time.Duration) {
	ticker := time.NewTicker(clockPeriod)
	defer ticker.Stop()
	for before := offset(); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := offset()
		if jump := now - before; jump.Abs() > clockTolerance {
			k.Log.Info("the clock of the host has jumped, syncing all pods", "by", jump.Round(time.Second).String())
			k.SyncAll()
		}
		before = now
	}
}

// clockOffset is what the clock of the host is ahead of its monotonic clock, which does not run while the host is suspended.
func clockOffset() time.Duration {
	var wall, monotonic unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME, &wall) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic) != nil {
		return 0 // these clocks always exist
	}
	return time.Duration(wall.Nano() - monotonic.Nano())
}
