package fairness

import (
	"context"
	"testing"
	"time"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
)

var benchmarks = []struct {
	name string
	asks *authz.Attributes
}{
	{"administrator", asks("admin", []string{authn.GroupMasters, authn.GroupAuthenticated}, "create", "", "pods", "", "default", "")},
	{"node", asks("system:node:a", nodes, "update", "", "pods", "status", "default", "p")},
	{"account", asks("system:serviceaccount:team:robot", accounts, "create", "", "pods", "", "default", "")},
	{"user", asks("jane", authenticated, "create", "", "pods", "", "default", "")},
	{"nobody", asks("nobody", nil, "create", "", "pods", "", "default", "")},
}

// BenchmarkIdle is what a request pays when nobody waits.
func BenchmarkIdle(b *testing.B) {
	f := standard(600)
	until := time.Now().Add(time.Hour)
	for _, benchmark := range benchmarks {
		b.Run(benchmark.name, func(b *testing.B) {
			b.ReportAllocs()
			turn := &Turn{}
			for b.Loop() {
				*turn = Turn{}
				work := WriteWork(f.Watches.Interested(benchmark.asks))
				if !f.Enter(context.Background(), benchmark.asks, work, until, turn) {
					b.Fatal("refused")
				}
				turn.Leave()
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
		jane := benchmarks[3].asks
		for p.Next() {
			var turn Turn
			if f.Enter(context.Background(), jane, Work{}, until, &turn) {
				turn.Leave()
			}
		}
	})
}

// BenchmarkBusy is a turn that others wait for: the queues are looked through.
func BenchmarkBusy(b *testing.B) {
	f := withSeats(1, usual)
	b.ReportAllocs()
	b.SetParallelism(20)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			var turn Turn
			if f.Enter(context.Background(), by("jane"), Work{}, time.Now().Add(time.Hour), &turn) {
				turn.Leave()
			}
		}
	})
}

func TestAnIdleTurnNeedsNoMemory(t *testing.T) {
	f := standard(600)
	until := time.Now().Add(time.Hour)
	for _, benchmark := range benchmarks {
		turn := &Turn{}
		allocations := testing.AllocsPerRun(100, func() {
			*turn = Turn{}
			f.Enter(context.Background(), benchmark.asks, WriteWork(f.Watches.Interested(benchmark.asks)), until, turn)
			turn.Leave()
		})
		if allocations != 0 {
			t.Errorf("%s: %v allocations", benchmark.name, allocations)
		}
	}
}
