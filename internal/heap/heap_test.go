package heap

import (
	"runtime"
	"testing"
)

func TestDue(t *testing.T) {
	const MiB = 1 << 20
	steps := []struct {
		name            string
		allocated, live uint64 // allocated is since the step before
		want            bool
	}{
		{"start", 40 * MiB, 4 * MiB, false},
		{"idle, but little was allocated", 1 * MiB, 30 * MiB, false},
		{"a burst", 500 * MiB, 100 * MiB, false},
		{"the burst goes on", 9 * MiB, 100 * MiB, false},
		{"idle after the burst", 8 * MiB, 100 * MiB, true},
		{"still idle", 8 * MiB, 100 * MiB, false},
		{"idle, allocations add up", 8 * MiB, 16 * MiB, false},
		{"a small burst", 50 * MiB, 100 * MiB, false},
		{"less than what is alive", 1 * MiB, 100 * MiB, false},
		{"as much as what is alive", 1 * MiB, 68 * MiB, true},
	}
	var r release
	var now usage
	for _, step := range steps {
		now.allocated += step.allocated
		now.live = step.live
		if got := r.due(now); got != step.want {
			t.Errorf("%s: due %t, want %t", step.name, got, step.want)
		}
	}
}

var kept []byte

// TestRead checks the names of the metrics: an unknown one would panic.
func TestRead(t *testing.T) {
	before := read()
	kept = make([]byte, 32<<20)
	runtime.GC()
	after := read()
	if grown := after.allocated - before.allocated; grown < 32<<20 {
		t.Errorf("%d bytes allocated, want at least 32 MiB", grown)
	}
	if after.live < 32<<20 {
		t.Errorf("%d bytes alive, want at least 32 MiB", after.live)
	}
	runtime.KeepAlive(kept)
	kept = nil
}
