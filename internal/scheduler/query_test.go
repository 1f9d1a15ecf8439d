package scheduler

import (
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
)

// rebuilt is a snapshot made anew of the nodes and pods another has.
func rebuilt(t testing.TB, s *snapshot.Snapshot) *snapshot.Snapshot {
	t.Helper()
	fresh := snapshot.NewSnapshot()
	for i := range s.NodeInfos {
		if n := s.NodeInfos[i].Node; n != nil {
			fresh.SetNode(n)
		}
	}
	for _, p := range s.PodEntries {
		if p.Assumed {
			fresh.Assume(p.Info, s.NodeInfos[p.Node].Name)
		} else {
			fresh.SetPod(p.Info)
		}
	}
	for uid, p := range s.Nominations {
		fresh.Nominate(p.Info, uid, s.NodeInfos[p.Node].Name)
	}
	return fresh
}

// checkRebuilt compares the scheduler's snapshot to one made anew. Both are forked, which leaves out counters that only one has made.
func checkRebuilt(t testing.TB, s *Scheduler) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if got, want := s.snapshot.Fork().Snapshot().Dump(), rebuilt(t, s.snapshot).Fork().Snapshot().Dump(); got != want {
		t.Errorf("the snapshot is\n%s\nmade anew it is\n%s", got, want)
	}
}

// A query in which a plugin panics leaves neither the snapshot changed nor the lock held.
func TestQueryPanics(t *testing.T) {
	panics := false
	withFakeServer(t, nil, func(f *fakeServer) {
		profile := f.scheduler.profiles[corev1.DefaultSchedulerName]
		profile.Filters = append(profile.Filters, oddPlugin{func(int32) *plugins.Refusal {
			if panics {
				panic("a plugin")
			}
			return nil
		}})
		f.addNode(schedulertest.TestNode("a"))
		f.addNode(schedulertest.TestNode("b"))
		for i := range 6 {
			f.addPod(schedulertest.TestPod(fmt.Sprint("p", i), schedulertest.RequestingCPU("1"), schedulertest.Labelled("app", "x"), schedulertest.WithAffinity(corev1.LabelHostname, "app", "x")))
		}
		f.addPod(schedulertest.TestPod("large", schedulertest.RequestingCPU("100")))
		f.pass(time.Second)
		before := f.scheduler.snapshot.Dump()
		panics = true
		for what, query := range map[string]func(){
			"why a running pod": func() {
				f.scheduler.decisions = decision.Log{}
				_, _ = f.scheduler.Why("default", "p0")
			},
			"why a pending pod": func() { _, _ = f.scheduler.Why("default", "large") },
			"what if": func() {
				_, _ = f.scheduler.WhatIf(t.Context(), []*corev1.Pod{schedulertest.TestPod("x", schedulertest.RequestingCPU("1"))}, true)
			},
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s: the plugin did not panic", what)
					}
				}()
				query()
			}()
			if after := f.scheduler.snapshot.Dump(); after != before {
				t.Errorf("%s: the snapshot is\n%s\nwant\n%s", what, after, before)
			}
		}
		panics = false
		checkRebuilt(t, f.scheduler)
	})
}

// A thousand queries beside a load leave the snapshot as if there had been none.
func TestQueriesBesideLoad(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		random := schedulertest.NewRandomObjects(7)
		for i := range 10 {
			f.addNode(random.RandomNode(fmt.Sprint("n", i)))
		}
		var queries sync.WaitGroup
		for q := range 4 {
			shapes := schedulertest.NewRandomObjects(uint64(100 + q))
			queries.Go(func() {
				for i := range 250 {
					if i%2 == 0 {
						_, _ = f.scheduler.Why("default", fmt.Sprint("pod-", 1+i%80))
					} else if _, err := f.scheduler.WhatIf(t.Context(), []*corev1.Pod{shapes.RandomPod(), shapes.RandomPod()}, i%3 == 0); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		for i := range 120 {
			f.addPod(random.RandomPod())
			if i%10 == 9 {
				f.addNode(random.RandomNode(fmt.Sprint("n", i%12)))
			}
			f.pass(2 * time.Millisecond)
		}
		queries.Wait()
		f.pass(time.Second)
		checkRebuilt(t, f.scheduler)
	})
}
