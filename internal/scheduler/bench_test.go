package scheduler

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

func BenchmarkSchedule(b *testing.B) {
	for _, load := range schedulertest.BenchLoads {
		for _, n := range []int{1000, 5000, 15000} {
			b.Run(fmt.Sprintf("%s/%d", load.Name, n), func(b *testing.B) {
				s, profile := snapshottest.New(b, schedulertest.BenchNodes(n)), plugins.DefaultProfile()
				placed := 0
				var log decision.Log
				b.ResetTimer()
				for i := range b.N {
					info := snapshottest.PodInfo(b, load.Pod(i))
					d, err := decision.Schedule(s, info, profile)
					var full *decision.FitError
					if errors.As(err, &full) || placed == 4*n {
						// The cluster is full: begin with an empty one.
						b.StopTimer()
						s, placed = snapshottest.New(b, schedulertest.BenchNodes(n)), 0
						log = decision.Log{}
						b.StartTimer()
						continue
					}
					if err != nil {
						b.Fatal(err)
					}
					s.Assume(info, d.Node)
					// The record is kept for a while, as the scheduler keeps it.
					log.Remember(d, nil, time.Time{})
					placed++
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
			})
		}
	}
}

// BenchmarkRecord measures what recording decisions for queries costs: with the record and without it in alternating rounds, so
// that whatever else happens on the machine falls on both.
func BenchmarkRecord(b *testing.B) {
	const nodes, pods, batch = 5000, 4000, 200
	for _, load := range schedulertest.BenchLoads[:6] {
		b.Run(load.Name, func(b *testing.B) {
			infos := make([]*snapshot.PodInfo, pods)
			for i := range infos {
				infos[i] = snapshottest.PodInfo(b, load.Pod(i))
			}
			var took [2]time.Duration // without, with
			profile := plugins.DefaultProfile()
			// Garbage is collected between the rounds, so that no round pays for the other. The size of the record is bounded.
			defer debug.SetGCPercent(debug.SetGCPercent(-1))
			for range b.N {
				snapshots := [2]*snapshot.Snapshot{snapshottest.New(b, schedulertest.BenchNodes(nodes)), snapshottest.New(b, schedulertest.BenchNodes(nodes))}
				decision.SetOptions(snapshots[0], decision.Options{NoRecord: true})
				var log decision.Log
				for from := 0; from < pods; from += batch {
					runtime.GC()
					for round := range snapshots {
						kept := (round + from/batch) % 2
						s := snapshots[kept]
						now := time.Now() // the scheduler reads the clock in any case
						began := processorTime(b)
						for _, info := range infos[from : from+batch] {
							d, err := decision.Schedule(s, info, profile)
							if err != nil {
								b.Fatal(err)
							}
							if kept == 1 {
								log.Remember(d, nil, now)
							}
							s.Assume(info, d.Node)
						}
						took[kept] += processorTime(b) - began
					}
				}
			}
			b.ReportMetric(float64(took[0].Nanoseconds())/float64(b.N*pods), "ns/pod-without")
			b.ReportMetric(float64(took[1].Nanoseconds())/float64(b.N*pods), "ns/pod-with")
			b.ReportMetric(100*(float64(took[1])/float64(took[0])-1), "%-more")
		})
	}
}

// processorTime is what this process has used of all processors.
func processorTime(b *testing.B) time.Duration {
	var used unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Nano())
}

// BenchmarkMemory measures what 5,000 nodes with 50,000 pods take, tables of several kinds of pods included.
func BenchmarkMemory(b *testing.B) {
	nodes := schedulertest.BenchNodes(5000)
	profile := plugins.DefaultProfile()
	var before, after runtime.MemStats
	for range b.N {
		// The objects belong to the informers; only what the snapshot adds is counted.
		pods := make([]*corev1.Pod, 50000)
		for i := range pods {
			pods[i] = schedulertest.BenchLoads[i%len(schedulertest.BenchLoads)].Pod(i)
		}
		runtime.GC()
		runtime.ReadMemStats(&before)
		s := snapshottest.New(b, nodes)
		for _, pod := range pods {
			info := snapshottest.PodInfo(b, pod)
			if d, err := decision.Schedule(s, info, profile); err == nil {
				s.Assume(info, d.Node)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
		b.ReportMetric(float64(s.NumPods()), "pods")
		runtime.KeepAlive(pods)
	}
}
