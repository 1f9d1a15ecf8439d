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
)

// The loads upstream measures its scheduler with, on the deciding part alone: decide, assume, next pod.
var benchLoads = []struct {
	name string
	pod  func(i int) *corev1.Pod
}{
	{"basic", func(i int) *corev1.Pod {
		return testPod(fmt.Sprint("p", i), asksCPU("100m"), asksMemory("500Mi"))
	}},
	{"antiaffinity", func(i int) *corev1.Pod {
		return testPod(fmt.Sprint("p", i), asksCPU("100m"), asksMemory("500Mi"), labelled("color", "green"), away(corev1.LabelHostname, "color", "green"))
	}},
	{"affinity", func(i int) *corev1.Pod {
		return testPod(fmt.Sprint("p", i), asksCPU("100m"), asksMemory("500Mi"), labelled("color", "blue"), near(corev1.LabelTopologyZone, "color", "blue"))
	}},
	{"preferred-affinity", func(i int) *corev1.Pod {
		return testPod(fmt.Sprint("p", i), asksCPU("100m"), asksMemory("500Mi"), labelled("color", "red"), prefersNear(1, corev1.LabelHostname, "color", "red"))
	}},
	{"spread", func(i int) *corev1.Pod {
		return testPod(fmt.Sprint("p", i), asksCPU("100m"), asksMemory("500Mi"), labelled("color", "blue"),
			spread(corev1.LabelTopologyZone, 5, corev1.DoNotSchedule, "color", "blue"))
	}},
	{"preferred-spread", func(i int) *corev1.Pod {
		return testPod(fmt.Sprint("p", i), asksCPU("100m"), asksMemory("500Mi"), labelled("color", "blue"),
			spread(corev1.LabelTopologyZone, 5, corev1.ScheduleAnyway, "color", "blue"), spread(corev1.LabelHostname, 1, corev1.ScheduleAnyway, "color", "blue"))
	}},
	{"distinct", func(i int) *corev1.Pod {
		return testPod(fmt.Sprint("p", i), asksCPU(fmt.Sprintf("%dm", 100+i%1000)), asksMemory("500Mi"))
	}},
}

func benchNodes(n int) []*corev1.Node {
	return nodesNamed(n, func(i int) nodeOption { return zone(fmt.Sprint("zone", i%3)) })
}

func BenchmarkSchedule(b *testing.B) {
	for _, load := range benchLoads {
		for _, n := range []int{1000, 5000, 15000} {
			b.Run(fmt.Sprintf("%s/%d", load.name, n), func(b *testing.B) {
				s, profile := cluster(b, benchNodes(n)), DefaultProfile()
				placed := 0
				var log DecisionLog
				b.ResetTimer()
				for i := range b.N {
					info := infoOf(b, load.pod(i))
					d, err := Schedule(s, info, profile)
					var full *FitError
					if errors.As(err, &full) || placed == 4*n {
						// The cluster is full: begin with an empty one.
						b.StopTimer()
						s, placed = cluster(b, benchNodes(n)), 0
						log = DecisionLog{}
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

// BenchmarkRecord measures what keeping decisions for questions costs, beside deciding itself: with the record and without it in turns, so
// that whatever else happens on the machine falls on both.
func BenchmarkRecord(b *testing.B) {
	const nodes, pods, batch = 5000, 4000, 200
	for _, load := range benchLoads[:6] {
		b.Run(load.name, func(b *testing.B) {
			infos := make([]*PodInfo, pods)
			for i := range infos {
				infos[i] = infoOf(b, load.pod(i))
			}
			var took [2]time.Duration // without, with
			profile := DefaultProfile()
			// Garbage is collected between the turns, for it cannot be told whose it is. What the record holds on to is bounded.
			defer debug.SetGCPercent(debug.SetGCPercent(-1))
			for range b.N {
				snapshots := [2]*Snapshot{cluster(b, benchNodes(nodes)), cluster(b, benchNodes(nodes))}
				snapshots[0].KeepNoRecord()
				var log DecisionLog
				for from := 0; from < pods; from += batch {
					runtime.GC()
					for turn := range snapshots {
						kept := (turn + from/batch) % 2
						s := snapshots[kept]
						now := time.Now() // the scheduler reads the clock in any case
						began := processorTime(b)
						for _, info := range infos[from : from+batch] {
							d, err := Schedule(s, info, profile)
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
	nodes := benchNodes(5000)
	profile := DefaultProfile()
	var before, after runtime.MemStats
	for range b.N {
		// The objects belong to the informers; only what the snapshot adds is counted.
		pods := make([]*corev1.Pod, 50000)
		for i := range pods {
			pods[i] = benchLoads[i%len(benchLoads)].pod(i)
		}
		runtime.GC()
		runtime.ReadMemStats(&before)
		s := cluster(b, nodes)
		for _, pod := range pods {
			info := infoOf(b, pod)
			if d, err := Schedule(s, info, profile); err == nil {
				s.Assume(info, d.Node)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
		b.ReportMetric(float64(s.Pods()), "pods")
		runtime.KeepAlive(pods)
	}
}
