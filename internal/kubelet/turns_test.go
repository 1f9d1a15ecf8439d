package kubelet

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTurns(t *testing.T) {
	for _, test := range []struct {
		name string
		took time.Duration
		// how many groups have their turn or have not done yet after a time, of three
		after map[time.Duration]int
	}{
		{"one group after another", time.Second, map[time.Duration]int{
			0: 1, 500 * time.Millisecond: 1, 1500 * time.Millisecond: 1, 2500 * time.Millisecond: 1, 3500 * time.Millisecond: 0,
		}},
		{"those that wait let others pass", time.Minute, map[time.Duration]int{
			0: 1, 1500 * time.Millisecond: 1, 2500 * time.Millisecond: 2, 5 * time.Second: 3, time.Minute + time.Second: 2, 2 * time.Minute: 0,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				turns := newTurns()
				var busy atomic.Int64
				for range 3 * cap(turns) {
					go func() {
						done, err := turns.take(t.Context())
						if err != nil {
							t.Error(err)
							return
						}
						busy.Add(1)
						time.Sleep(test.took)
						busy.Add(-1)
						done()
					}()
				}
				began := time.Now()
				for _, at := range slices.Sorted(maps.Keys(test.after)) {
					time.Sleep(at - time.Since(began))
					synctest.Wait()
					if got, want := int(busy.Load()), test.after[at]*cap(turns); got != want {
						t.Errorf("after %s %d are busy, want %d", at, got, want)
					}
				}
				if len(turns) > 0 {
					t.Errorf("%d turns were not given back", len(turns))
				}
			})
		})
	}
}

func TestTurnIsNotWaitedForInVain(t *testing.T) {
	turns := make(turns, 1)
	if _, err := turns.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := turns.take(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// A pod that is deleted before its turn has come goes without ever having had a sandbox.
func TestDeletedBeforeItsTurn(t *testing.T) {
	b := newBench(t)
	for range cap(b.kubelet.turns) {
		b.kubelet.turns <- struct{}{}
	}
	pod := b.create(regular("a"))
	b.eventually("the pod waits", func() bool { return b.parts.did("mount " + pod.Name) })
	b.delete(pod, 30)
	b.gone(pod)
	for range cap(b.kubelet.turns) {
		<-b.kubelet.turns
	}
	b.until(b.create(regular("a")), "running", running)
	for _, call := range b.runtime.Calls() {
		if strings.HasPrefix(call, "RunPodSandbox "+pod.Name) {
			t.Error(call)
		}
	}
}
