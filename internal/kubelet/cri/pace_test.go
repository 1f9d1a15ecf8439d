package cri

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// slow is a runtime whose sandboxes take as long as each is given.
type slow struct {
	Runtime
	took   time.Duration
	err    error
	making atomic.Int64
}

func (s *slow) RunPodSandbox(ctx context.Context, _ *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	s.making.Add(1)
	time.Sleep(s.took)
	s.making.Add(-1)
	return handler, s.err
}

func TestPaced(t *testing.T) {
	refused := errors.New("refused")
	for _, test := range []struct {
		name string
		took time.Duration
		err  error
		// how many are being made after a time, of three times as many as may be at once
		after map[time.Duration]int
	}{
		{"in turns", time.Second, nil, map[time.Duration]int{0: 1, 500 * time.Millisecond: 1, 1500 * time.Millisecond: 1, 2500 * time.Millisecond: 1, 3500 * time.Millisecond: 0}},
		{"those that fail give their turn back", time.Second, refused, map[time.Duration]int{0: 1, 2500 * time.Millisecond: 1, 3500 * time.Millisecond: 0}},
		{"those that wait let others pass", time.Minute, nil, map[time.Duration]int{0: 1, 1500 * time.Millisecond: 1, 2500 * time.Millisecond: 2, 5 * time.Second: 3, time.Minute + time.Second: 2, 2 * time.Minute: 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := &slow{took: test.took, err: test.err}
				r := Paced(inner)
				group := cap(r.(*paced).turns)
				for range 3 * group {
					go func() {
						if id, err := r.RunPodSandbox(t.Context(), nil, "a"); id != "a" || !errors.Is(err, test.err) {
							t.Errorf("got %q, %v", id, err)
						}
					}()
				}
				began := time.Now()
				for _, at := range slices.Sorted(maps.Keys(test.after)) {
					time.Sleep(at - time.Since(began))
					synctest.Wait()
					if making := int(inner.making.Load()); making != test.after[at]*group {
						t.Errorf("after %s %d are being made, want %d", at, making, test.after[at]*group)
					}
				}
			})
		})
	}
}

// A pod that is to end is not waited for.
func TestPacedCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &slow{took: time.Second}
		r := Paced(inner)
		for range cap(r.(*paced).turns) {
			go func() { _, _ = r.RunPodSandbox(t.Context(), nil, "") }()
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.RunPodSandbox(ctx, nil, ""); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if making := inner.making.Load(); int(making) != cap(r.(*paced).turns) {
			t.Errorf("%d are being made", making)
		}
		time.Sleep(2 * time.Second)
	})
}
