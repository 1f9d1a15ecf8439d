package scheduler

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

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
				var log decisionLog
				b.ResetTimer()
				for i := range b.N {
					info := infoOf(b, load.pod(i))
					d, err := Schedule(s, info, profile)
					var full *FitError
					if errors.As(err, &full) || placed == 4*n {
						// The cluster is full: begin with an empty one.
						b.StopTimer()
						s, placed = cluster(b, benchNodes(n)), 0
						log = decisionLog{}
						b.StartTimer()
						continue
					}
					if err != nil {
						b.Fatal(err)
					}
					s.Assume(info, d.Node)
					// The record is kept for a while, as the scheduler keeps it.
					log.remember(d, nil, time.Time{})
					placed++
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
			})
		}
	}
}

// BenchmarkRecord measures what keeping decisions for questions costs, beside deciding itself.
func BenchmarkRecord(b *testing.B) {
	for _, load := range benchLoads[:5] {
		for _, kept := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/kept=%t", load.name, kept), func(b *testing.B) {
				s, profile := cluster(b, benchNodes(5000)), DefaultProfile()
				infos := make([]*PodInfo, 4000)
				for i := range infos {
					infos[i] = infoOf(b, load.pod(i))
				}
				var log decisionLog
				b.ResetTimer()
				for i := range b.N {
					info := infos[i%len(infos)]
					d, err := Schedule(s, info, profile)
					if err != nil {
						b.Fatal(err)
					}
					if kept {
						log.remember(d, nil, time.Time{})
					} else {
						d.fade()
					}
					if s.Assume(info, d.Node); i%len(infos) == len(infos)-1 {
						b.StopTimer()
						s, log = cluster(b, benchNodes(5000)), decisionLog{}
						b.StartTimer()
					}
				}
			})
		}
	}
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
