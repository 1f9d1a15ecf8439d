package fairness

import (
	"context"
	"testing"
	"time"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
)

var benchmarks = []struct {
	name       string
	attributes *authz.Attributes
}{
	{"administrator", attributes("admin", []string{authn.GroupMasters, authn.GroupAuthenticated}, "create", "", "pods", "", "default", "")},
	{"node", attributes("system:node:a", nodes, "update", "", "pods", "status", "default", "p")},
	{"account", attributes("system:serviceaccount:team:robot", accounts, "create", "", "pods", "", "default", "")},
	{"user", attributes("jane", authenticated, "create", "", "pods", "", "default", "")},
	{"nobody", attributes("nobody", nil, "create", "", "pods", "", "default", "")},
}

// BenchmarkIdle is what a request pays when nobody waits.
func BenchmarkIdle(b *testing.B) {
	f := standard(600)
	until := time.Now().Add(time.Hour)
	for _, benchmark := range benchmarks {
		b.Run(benchmark.name, func(b *testing.B) {
			b.ReportAllocs()
			seats := &Seats{}
			for b.Loop() {
				*seats = Seats{}
				work := WriteWork(f.Watches.InterestedCount(benchmark.attributes))
				if !f.Acquire(context.Background(), benchmark.attributes, work, until, seats) {
					b.Fatal("refused")
				}
				seats.Release()
			}
		})
	}
}

// BenchmarkIdleParallel is the same from all processors at once.
func BenchmarkIdleParallel(b *testing.B) {
	f := standard(600)
	until := time.Now().Add(time.Hour)
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		jane := benchmarks[3].attributes
		for p.Next() {
			var seats Seats
			if f.Acquire(context.Background(), jane, Work{}, until, &seats) {
				seats.Release()
			}
		}
	})
}

// BenchmarkBusy is a request whose seats others wait for: all queues are searched.
func BenchmarkBusy(b *testing.B) {
	f := withSeats(1, usual)
	b.ReportAllocs()
	b.SetParallelism(20)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			var seats Seats
			if f.Acquire(context.Background(), by("jane"), Work{}, time.Now().Add(time.Hour), &seats) {
				seats.Release()
			}
		}
	})
}

// BenchmarkManySubjects is the matching of a request in a cluster where schemas list many other subjects.
func BenchmarkManySubjects(b *testing.B) {
	f := standard(600, manySubjects(10_000)...)
	jane := benchmarks[3].attributes
	b.ReportAllocs()
	for b.Loop() {
		f.classify(jane)
	}
}

func TestAcquireDoesNotAllocate(t *testing.T) {
	f := standard(600)
	until := time.Now().Add(time.Hour)
	for _, benchmark := range benchmarks {
		seats := &Seats{}
		allocations := testing.AllocsPerRun(100, func() {
			*seats = Seats{}
			f.Acquire(context.Background(), benchmark.attributes, WriteWork(f.Watches.InterestedCount(benchmark.attributes)), until, seats)
			seats.Release()
		})
		if allocations != 0 {
			t.Errorf("%s: %v allocations", benchmark.name, allocations)
		}
	}
}
