// Package syncloop runs the function that makes the kernel's state equal to the wanted one: when something has changed, after an error, and from time to
// time, to find what other programs have changed.
package syncloop

import (
	"context"
	"log/slog"
	"time"
)

const (
	// retryMin and retryMax bound the time until a failed sync is repeated.
	retryMin = 100 * time.Millisecond
	retryMax = 30 * time.Second
	// maxFailedPause bounds the time for which changes wait after a failed sync: they may remove the reason of the failure.
	maxFailedPause = time.Second
	// pollPeriod is the time between two evaluations of a condition.
	pollPeriod = 20 * time.Millisecond
)

// Config says what a Loop does.
type Config struct {
	// Sync applies what has changed. It returns the time after which it has to be called although nothing has changed; 0: it need not.
	Sync func(context.Context) (again time.Duration, err error)
	// Compare is called every ComparePeriod, before Sync.
	Compare       func()
	ComparePeriod time.Duration
	// MinSyncPeriod is the least time between two calls of Sync. A change after a longer pause is applied at once.
	MinSyncPeriod time.Duration
	Log           *slog.Logger
}

// Loop calls Sync.
type Loop struct {
	config Config
	// wake has an entry when there is something to sync.
	wake chan struct{}
}

// New makes a loop. It starts nothing.
func New(c Config) *Loop { return &Loop{config: c, wake: make(chan struct{}, 1)} }

// Signal says that something has changed. It does not block.
func (l *Loop) Signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// IsSignaled reports whether something has changed since the last sync began.
func (l *Loop) IsSignaled() bool { return len(l.wake) > 0 }

// Run calls Sync at once and then as often as needed, until ctx is done.
func (l *Loop) Run(ctx context.Context) {
	compare := time.NewTicker(l.config.ComparePeriod)
	defer compare.Stop()
	var retry time.Duration
	for {
		// This sync applies what was signaled during the pause.
		select {
		case <-l.wake:
		default:
		}
		again, err := l.config.Sync(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			retry = min(max(2*retry, retryMin), retryMax)
			again = retry
			l.config.Log.Error("failed to sync the network's state with the kernel", "error", err, "retry", retry.String())
		} else {
			retry = 0
		}
		pause := time.After(max(l.config.MinSyncPeriod, min(retry, maxFailedPause)))
		var due <-chan time.Time
		if again > 0 {
			due = time.After(again)
		}
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-due:
		case <-compare.C:
			l.config.Compare()
		}
		select {
		case <-ctx.Done():
			return
		case <-pause:
		}
	}
}

// WaitUntil waits until a condition holds, and returns false if ctx is done before.
func WaitUntil(ctx context.Context, condition func() bool) bool {
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
	return true
}
