package etcd_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"skiff/internal/store/etcd"
)

// cpu returns the CPU time of this process.
func cpu() time.Duration {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkCreate reports the CPU time of a create of 2 KB, including a watch of everything.
func BenchmarkCreate(b *testing.B) {
	for _, writers := range []int{1, 16, 64} {
		b.Run(fmt.Sprint("writers=", writers), func(b *testing.B) {
			s := open(b, etcd.Config{DataDir: b.TempDir()})
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			w := s.Watch(ctx, "/registry/", 1)
			var seen atomic.Int64
			go func() {
				for batch := range w.Batches() {
					seen.Add(int64(len(batch.Events)))
				}
			}()
			value := bytes.Repeat([]byte("v"), 2048)
			var next atomic.Int64
			var wait sync.WaitGroup
			before := cpu()
			b.ResetTimer()
			for range writers {
				wait.Go(func() {
					for {
						i := next.Add(1)
						if i > int64(b.N) {
							return
						}
						if _, err := s.Create(ctx, fmt.Sprintf("/registry/pods/default/pod-%d", i), value, 0); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wait.Wait()
			b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

// BenchmarkOpen is the time to open a new store until it accepts writes, and to open it again.
func BenchmarkOpen(b *testing.B) {
	for _, again := range []bool{false, true} {
		b.Run(fmt.Sprint("again=", again), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				dir := b.TempDir()
				if again {
					open(b, etcd.Config{DataDir: dir}).Close()
				}
				b.StartTimer()
				s := open(b, etcd.Config{DataDir: dir})
				b.StopTimer()
				s.Close()
			}
		})
	}
}
