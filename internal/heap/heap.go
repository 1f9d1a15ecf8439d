// Package heap returns memory to the kernel when a process becomes idle.
//
// Go lets the heap grow to twice what was alive at the last collection. A process that becomes idle after a burst of work keeps all of that: the
// next collection is up to two minutes away, and what it frees is returned slowly.
package heap

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	interval = 5 * time.Second
	// idleBytes are the allocations within an interval up to which the process counts as idle.
	idleBytes = 8 << 20
	// minBytes are the allocations that are worth a collection.
	minBytes = 64 << 20
)

// ReleaseWhenIdle returns free memory to the kernel once after each burst of work, until ctx is done.
func ReleaseWhenIdle(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last release
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		if last.due(read()) {
			debug.FreeOSMemory()
		}
	}
}

// usage is what the heap has allocated since the start, and what was alive at its last collection.
type usage struct{ allocated, live uint64 }

func read() usage {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	return usage{allocated: samples[0].Value.Uint64(), live: samples[1].Value.Uint64()}
}

// release is what had been allocated when memory was last released, and at the end of the last interval.
type release struct{ at, seen uint64 }

// due reports whether the process is idle and has allocated as much since the last release as is alive. The collector itself would run as
// often, so that a process with little to do at all times spends at most twice as much on collections.
func (r *release) due(now usage) bool {
	idle := now.allocated-r.seen <= idleBytes
	r.seen = now.allocated
	if !idle || now.allocated-r.at < max(minBytes, now.live) {
		return false
	}
	r.at = now.allocated
	return true
}
