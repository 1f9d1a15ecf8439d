package syncloop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// record runs a loop and returns when it has called its functions, in the form "sync 0s, compare 1s".
func record(t *testing.T, c Config, during func(*Loop)) string {
	t.Helper()
	var calls []string
	started := time.Now()
	call := func(name string) { calls = append(calls, name+" "+time.Since(started).String()) }
	sync := c.Sync
	c.Sync = func(ctx context.Context) (time.Duration, error) { call("sync"); return sync(ctx) }
	c.Compare = func() { call("compare") }
	c.Log = slog.New(slog.DiscardHandler)
	if c.ComparePeriod == 0 {
		c.ComparePeriod = time.Hour
	}
	l := New(c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	synctest.Wait()
	during(l)
	synctest.Wait()
	cancel()
	<-done
	return strings.Join(calls, ", ")
}

func TestRun(t *testing.T) {
	succeed := func(context.Context) (time.Duration, error) { return 0, nil }
	fail := func(context.Context) (time.Duration, error) { return 0, errors.New("failed") }
	for name, test := range map[string]struct {
		config Config
		during func(*Loop)
		want   string
	}{
		"nothing changes": {Config{Sync: succeed}, func(*Loop) { time.Sleep(time.Minute) }, "sync 0s"},
		"a change after a pause is applied at once": {Config{Sync: succeed, MinSyncPeriod: time.Second}, func(l *Loop) {
			time.Sleep(time.Minute)
			l.Signal()
		}, "sync 0s, sync 1m0s"},
		"changes are applied together": {Config{Sync: succeed, MinSyncPeriod: time.Second}, func(l *Loop) {
			for range 100 {
				l.Signal()
				time.Sleep(15 * time.Millisecond)
			}
			time.Sleep(time.Minute)
		}, "sync 0s, sync 1s, sync 2s"},
		"compared from time to time": {Config{Sync: succeed, ComparePeriod: time.Minute}, func(*Loop) { time.Sleep(2*time.Minute + time.Second) },
			"sync 0s, compare 1m0s, sync 1m0s, compare 2m0s, sync 2m0s"},
		"called again": {Config{Sync: func(context.Context) (time.Duration, error) { return 7 * time.Second, nil }}, func(*Loop) { time.Sleep(15 * time.Second) },
			"sync 0s, sync 7s, sync 14s"},
		"backoff": {Config{Sync: fail}, func(*Loop) { time.Sleep(4 * time.Second) },
			"sync 0s, sync 100ms, sync 300ms, sync 700ms, sync 1.5s, sync 3.1s"},
		"changes do not defeat the backoff": {Config{Sync: fail}, func(l *Loop) {
			for range 500 {
				l.Signal()
				time.Sleep(10 * time.Millisecond)
			}
		}, "sync 0s, sync 100ms, sync 300ms, sync 700ms, sync 1.5s, sync 2.5s, sync 3.5s, sync 4.5s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := record(t, test.config, test.during); got != test.want {
					t.Errorf("got  %s\nwant %s", got, test.want)
				}
			})
		})
	}
}

// The time until a failed sync is repeated is bounded, and small again after a success.
func TestBackoffIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last time.Time
		var waits []time.Duration
		failures := 0
		record(t, Config{Sync: func(context.Context) (time.Duration, error) {
			if !last.IsZero() {
				waits = append(waits, time.Since(last))
			}
			last = time.Now()
			if failures++; failures == 15 {
				return time.Second, nil
			}
			return 0, errors.New("failed")
		}}, func(*Loop) { time.Sleep(5 * time.Minute) })
		if got := fmt.Sprint(waits[12:17]); got != "[30s 30s 1s 100ms 200ms]" {
			t.Errorf("waits around the success %s", got)
		}
	})
}

func TestWaitUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ready := time.Now().Add(time.Second)
		if !WaitUntil(t.Context(), func() bool { return !time.Now().Before(ready) }) {
			t.Error("the condition was not waited for")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if WaitUntil(ctx, func() bool { return false }) {
			t.Error("a condition that does not hold")
		}
	})
}
