package kubelet

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestClockJump: pods are synced when the clock has jumped, forwards or backwards, and not while it is corrected gradually.
func TestClockJump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Kubelet{Config: Config{Log: slog.New(slog.DiscardHandler)}}
		w := newWorker(k, planned(regular("a")))
		k.workers = map[types.UID]*worker{w.uid: w}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var offset atomic.Int64
		go k.onClockJump(ctx, func() time.Duration { return time.Duration(offset.Load()) })
		for _, step := range []struct {
			by    time.Duration
			woken bool
		}{{0, false}, {time.Hour, true}, {0, false}, {time.Second, false}, {time.Second, false}, {-time.Hour, true}} {
			synctest.Wait()
			offset.Add(int64(step.by))
			time.Sleep(clockPeriod + time.Second)
			synctest.Wait()
			woken := false
			select {
			case <-w.wake:
				woken = true
			default:
			}
			if woken != step.woken {
				t.Errorf("after a change by %s: woken %t, want %t", step.by, woken, step.woken)
			}
		}
	})
	if now := clockOffset(); now < 24*time.Hour || clockOffset()-now > clockTolerance {
		t.Errorf("the clock is ahead of the monotonic one by %s", now)
	}
}
