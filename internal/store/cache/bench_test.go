package cache

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kind"
	"skiff/internal/store"
	"skiff/internal/store/etcd"
	"skiff/internal/store/memory"
)

// cpu returns the CPU time of this process.
func cpu() time.Duration {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// opaque stores pods of 2 KB that are never decoded: the benchmarks measure the cache.
type opaque struct{ padding []byte }

func (c opaque) Encode(obj kind.Object) ([]byte, error) {
	return append(bytes.Clone(c.padding), obj.GetName()...), nil
}

func (c opaque) Decode(value []byte, _ store.Revision) (kind.Object, error) {
	return newPod("default", string(value[len(c.padding):])), nil
}

func opaqueResource() Resource {
	return Resource{Name: "pods", Prefix: podPrefix, Codec: opaque{[]byte(strings.Repeat("x", 2048))}}
}

// BenchmarkCreate is a create through the cache: encode, store, watch feed, tree, history, wake the writer.
func BenchmarkCreate(b *testing.B) {
	stores := map[string]func(b *testing.B) store.Store{
		"memory": func(*testing.B) store.Store { return memory.New() },
		"etcd": func(b *testing.B) store.Store {
			s, err := etcd.Open(context.Background(), etcd.Config{DataDir: b.TempDir(), Log: discardLog()})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { s.Close() })
			return s
		},
	}
	for _, name := range []string{"memory", "etcd"} {
		for _, writers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s/writers=%d", name, writers), func(b *testing.B) {
				_, tables := start(b, stores[name](b), opaqueResource())
				ctx := context.Background()
				var next atomic.Int64
				var wait sync.WaitGroup
				before := cpu()
				b.ResetTimer()
				for range writers {
					wait.Go(func() {
						for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
							pod := &corev1.Pod{}
							pod.Name = fmt.Sprint("pod-", i)
							if _, err := tables[0].Create(ctx, podKey("default", pod.Name), pod, 0); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wait.Wait()
				b.ReportMetric(float64((cpu()-before).Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
			})
		}
	}
}

// filled is a table of n objects of 2 KB, loaded from the store.
func filled(b testing.TB, n int) (*Cache, *Table) {
	s := memory.New()
	r := opaqueResource()
	for i := range n {
		name := fmt.Sprintf("pod-%05d", i)
		value, _ := r.Codec.Encode(newPod("default", name))
		if _, err := s.Create(context.Background(), podKey(fmt.Sprint("namespace-", i%50), name), value, 0); err != nil {
			b.Fatal(err)
		}
	}
	c, tables := start(b, s, r)
	return c, tables[0]
}

// BenchmarkLoad is the time until a new cache of 10,000 objects is ready, of which 5,000 were written recently: with the
// history of those writes, and without it, as after a compaction.
func BenchmarkLoad(b *testing.B) {
	open := func(b *testing.B, config etcd.Config) store.Store {
		config.Log = discardLog()
		s, err := etcd.Open(context.Background(), config)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { s.Close() })
		return s
	}
	address := "unix://" + b.TempDir() + "/socket"
	embedded := open(b, etcd.Config{DataDir: b.TempDir(), Listen: []string{address}, CompactionInterval: -1})
	remote := open(b, etcd.Config{Servers: []string{address}, CompactionInterval: -1})
	ctx := context.Background()
	value := bytes.Repeat([]byte("x"), 2048)
	var next atomic.Int64
	var wait sync.WaitGroup
	for range 64 {
		wait.Go(func() {
			for i := next.Add(1); i <= 10000; i = next.Add(1) {
				key := podKey(fmt.Sprint("namespace-", i%50), fmt.Sprint(i))
				revision, err := embedded.Create(ctx, key, value, 0)
				if err == nil && i%2 == 0 {
					_, err = embedded.Update(ctx, key, value, 0, revision)
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	wait.Wait()
	for _, history := range []bool{true, false} {
		if !history {
			current, _ := embedded.Current(ctx)
			if err := embedded.Compact(ctx, current); err != nil {
				b.Fatal(err)
			}
		}
		for _, s := range []struct {
			name string
			store.Store
		}{{"embedded", embedded}, {"remote", remote}} {
			b.Run(fmt.Sprintf("%s/history=%v", s.name, history), func(b *testing.B) {
				before := cpu()
				for b.Loop() {
					c := New(s, discardLog())
					pods := c.Add(opaqueResource())
					running, stop := context.WithCancel(ctx)
					go c.Run(running)
					<-c.Ready()
					if pods.Snapshot().Len("") != 10000 {
						b.Fatal("objects are missing")
					}
					stop()
					<-c.done
				}
				b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N)/1000, "cpu-ms/op")
			})
		}
	}
}

// BenchmarkList iterates over 10,000 entries that have their encodings.
func BenchmarkList(b *testing.B) {
	_, pods := filled(b, 10000)
	id := EncodingID{"v1", "json"}
	total := 0
	b.ReportAllocs()
	for b.Loop() {
		s := pods.Snapshot()
		s.Ascend("", "", func(e *Entry) bool {
			encoded, _ := e.Encoding(id, func(e *Entry) ([]byte, error) { return e.Stored(), nil })
			total += len(encoded)
			return true
		})
	}
}

// BenchmarkSnapshotAt undoes a thousand events.
func BenchmarkSnapshotAt(b *testing.B) {
	c, pods := filled(b, 10000)
	at := c.Revision()
	for i := range 1000 {
		name := fmt.Sprintf("pod-%05d", i)
		key := podKey(fmt.Sprint("namespace-", i%50), name)
		if _, err := pods.Delete(context.Background(), key, pods.Get(key).Revision()); err != nil {
			b.Fatal(err)
		}
	}
	for _, first := range []bool{true, false} {
		b.Run(fmt.Sprint("first=", first), func(b *testing.B) {
			for b.Loop() {
				if first {
					pods.rewinds.reset()
				}
				if s, err := pods.SnapshotAt(at); err != nil || s.Len("") != 10000 {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFanOut is the cost of an event delivered to 200 watchers, one goroutine each, under constant load.
func BenchmarkFanOut(b *testing.B) {
	for _, every := range []time.Duration{10 * time.Millisecond, time.Millisecond, 0} {
		b.Run(fmt.Sprint("every=", every), func(b *testing.B) {
			c, tables := start(b, memory.New(), opaqueResource())
			pods := tables[0]
			ctx, cancel := context.WithCancel(context.Background())
			const watchers = 200
			var seen atomic.Int64
			var wait sync.WaitGroup
			for range watchers {
				cursor, _ := pods.Watch(c.Revision(), Scope{})
				wait.Go(func() {
					for {
						events, _, err := cursor.Next(ctx)
						if err != nil {
							return
						}
						seen.Add(int64(len(events)))
					}
				})
			}
			value := make([]byte, 2048)
			key := podKey("default", "a")
			before := cpu()
			b.ResetTimer()
			for i := 0; i < b.N; i++ {
				revision := c.Revision() + 1
				c.apply(store.Batch{Revision: revision, Events: []store.Event{{KeyValue: store.KeyValue{Key: key, Value: value, Modified: revision}}}})
				if every > 0 {
					time.Sleep(every)
				} else if i%1000 == 999 {
					time.Sleep(maxBatchDelay) // the slowest watcher must not expire
				}
			}
			for seen.Load() < int64(b.N)*watchers {
				time.Sleep(time.Millisecond)
			}
			b.ReportMetric(float64((cpu()-before).Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
			cancel()
			wait.Wait()
		})
	}
}

// BenchmarkPodUpdate is the cost of a pod update for the watch feed and one watcher of the pod's node, while watchers of
// other nodes wait.
func BenchmarkPodUpdate(b *testing.B) {
	for _, others := range []int{0, 3000} {
		b.Run(fmt.Sprint("others=", others), func(b *testing.B) {
			c, tables := start(b, memory.New(), podResource())
			ctx, cancel := context.WithCancel(context.Background())
			received := make(chan struct{})
			var wait sync.WaitGroup
			for i := range others + 1 {
				cursor, err := tables[0].Watch(c.Revision(), Scope{ByIndex, fmt.Sprint("node-", i+1)})
				if err != nil {
					b.Fatal(err)
				}
				wait.Go(func() {
					defer cursor.Close()
					for {
						events, _, err := cursor.Next(ctx)
						if err != nil {
							return
						}
						for range events {
							received <- struct{}{}
						}
					}
				})
			}
			value := must((&podCodec{}).Encode(newPod("default", "a"))) // on node-1
			key := podKey("default", "a")
			before := cpu()
			b.ResetTimer()
			for i := 0; i < b.N; i++ {
				revision := c.Revision() + 1
				c.apply(store.Batch{Revision: revision, Events: []store.Event{{KeyValue: store.KeyValue{Key: key, Value: value, Modified: revision}}}})
				<-received
			}
			b.ReportMetric(float64((cpu()-before).Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
			cancel()
			wait.Wait()
		})
	}
}

// TestMemoryPerEntry bounds what the cache needs in addition to the stored bytes of 10,000 objects.
func TestMemoryPerEntry(t *testing.T) {
	const n, size = 10000, 2048
	entries := make([]*Entry, n)
	var before, after runtime.MemStats
	table := newTable(New(memory.New(), discardLog()), opaqueResource())
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range entries {
		entries[i] = table.entry(podKey("default", fmt.Sprintf("pod-%08d", i)), make([]byte, size), store.Revision(i))
	}
	tr := newTree(entries)
	clear(entries)
	runtime.GC()
	runtime.ReadMemStats(&after)
	used := int(after.HeapAlloc-before.HeapAlloc) / n
	t.Logf("%d bytes per object of %d", used, size)
	if used-size > 200 {
		t.Errorf("the cache adds %d bytes to each object", used-size)
	}
	runtime.KeepAlive(tr)
}
