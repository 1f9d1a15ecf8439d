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

func TestSandboxSemaphore(t *testing.T) {
	for _, test := range []struct {
		name string
		took time.Duration
		// how many thirds of all creations are in progress after a time
		after map[time.Duration]int
	}{
		{"the limit is never exceeded", time.Second, map[time.Duration]int{
			0: 1, 500 * time.Millisecond: 1, 1500 * time.Millisecond: 1, 2500 * time.Millisecond: 1, 3500 * time.Millisecond: 0,
		}},
		{"slow creations stop counting", time.Minute, map[time.Duration]int{
			0: 1, 1500 * time.Millisecond: 1, 2500 * time.Millisecond: 2, 5 * time.Second: 3, time.Minute + time.Second: 2, 2 * time.Minute: 0,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				semaphore := newSandboxSemaphore()
				var busy atomic.Int64
				for range 3 * cap(semaphore) {
					go func() {
						release, err := semaphore.acquire(t.Context())
						if err != nil {
							t.Error(err)
							return
						}
						busy.Add(1)
						time.Sleep(test.took)
						busy.Add(-1)
						release()
					}()
				}
				began := time.Now()
				for _, at := range slices.Sorted(maps.Keys(test.after)) {
					time.Sleep(at - time.Since(began))
					synctest.Wait()
					if got, want := int(busy.Load()), test.after[at]*cap(semaphore); got != want {
						t.Errorf("after %s %d are busy, want %d", at, got, want)
					}
				}
				if len(semaphore) > 0 {
					t.Errorf("%d were not released", len(semaphore))
				}
			})
		})
	}
}

func TestSandboxSemaphoreIsCancelled(t *testing.T) {
	semaphore := make(sandboxSemaphore, 1)
	if _, err := semaphore.acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := semaphore.acquire(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// A pod that is deleted while it waits for the semaphore never gets a sandbox.
func TestDeletedBeforeSandbox(t *testing.T) {
	b := newTestKubelet(t)
	for range cap(b.kubelet.sandboxes) {
		b.kubelet.sandboxes <- struct{}{}
	}
	pod := b.create(regular("a"))
	b.eventually("the pod waits", func() bool { return b.fakes.did("mount " + pod.Name) })
	b.delete(pod, 30)
	b.gone(pod)
	for range cap(b.kubelet.sandboxes) {
		<-b.kubelet.sandboxes
	}
	b.until(b.create(regular("a")), "running", running)
	for _, call := range b.runtime.Calls() {
		if strings.HasPrefix(call, "RunPodSandbox "+pod.Name) {
			t.Error(call)
		}
	}
}
