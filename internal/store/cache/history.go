package cache

import (
	"slices"
	"sort"
	"time"

	"skiff/internal/store"
)

// How much history a table keeps. The last chunk is always kept; beyond that the first bound that is reached applies.
// Five minutes is what etcd keeps (see the compaction in store/etcd), so a watcher that resumes, or a list that continues
// with its next page, is served as long as etcd itself could serve it.
const (
	chunkEvents     = 64
	historyMin      = 2 * chunkEvents
	historyMax      = 16384
	historyMaxBytes = 16 << 20 // of values that only history references
	historyAge      = 5 * time.Minute
)

// chunk is a run of events. The array is written once, front to back; readers use only what their history covers.
type chunk struct {
	events [chunkEvents]Event
	// bytes counts the values that only history references; last is the time of the newest event.
	bytes int
	last  time.Time
}

// history is a log of events at one point in time: those at positions start to end. Like a tree it never changes; append
// and trim return a new one that shares the chunks.
type history struct {
	chunks     []*chunk
	start, end int64
	bytes      int
	// floor: history has all events after this revision.
	floor store.Revision
}

// append adds an event. Only the newest history may be appended to, by one goroutine.
func (h history) append(event Event, now time.Time) history {
	used := int(h.end-h.start) % chunkEvents
	if used == 0 {
		h.chunks = append(h.chunks, new(chunk))
	}
	c := h.chunks[len(h.chunks)-1]
	c.events[used] = event
	c.last = now
	if event.Old != nil {
		c.bytes += len(event.Old.stored)
		h.bytes += len(event.Old.stored)
	}
	h.end++
	return h
}

// trim drops the oldest chunks beyond the bounds.
func (h history) trim(now time.Time) history {
	drop := 0
	for len(h.chunks) > drop+1 {
		oldest := h.chunks[drop]
		rest := h.end - h.start - chunkEvents
		if rest < historyMax && h.bytes <= historyMaxBytes && (rest < historyMin || now.Sub(oldest.last) < historyAge) {
			break
		}
		h.floor = oldest.events[chunkEvents-1].Revision
		h.bytes -= oldest.bytes
		h.start += chunkEvents
		drop++
	}
	if drop > 0 {
		// Cloned, because the underlying array would reference the dropped chunks.
		h.chunks = slices.Clone(h.chunks[drop:])
	}
	return h
}

// reset drops all events; every cursor into them expires, whatever its position.
func (h history) reset(floor store.Revision) history {
	// Positions are never reused, so no cursor can mistake a later event for the one it waits for.
	return history{start: h.end + 1, end: h.end + 1, floor: floor}
}

func (h history) at(position int64) *Event {
	offset := position - h.start
	return &h.chunks[offset/chunkEvents].events[offset%chunkEvents]
}

// after returns the position of the first event after the revision.
func (h history) after(revision store.Revision) int64 {
	return h.start + int64(sort.Search(int(h.end-h.start), func(i int) bool {
		return h.at(h.start+int64(i)).Revision > revision
	}))
}

// slice returns the events from one position to another, or a few more: it never splits a revision. They must not be
// changed.
func (h history) slice(position, end int64) []Event {
	if end = min(end, h.end); position == end {
		return nil
	}
	for end < h.end && h.at(end).Revision == h.at(end-1).Revision {
		end++
	}
	first, last := (position-h.start)/chunkEvents, (end-1-h.start)/chunkEvents
	from := (position - h.start) % chunkEvents
	if first == last {
		to := from + (end - position)
		return h.chunks[first].events[from:to:to]
	}
	events := make([]Event, 0, end-position)
	for i := first; i <= last; i++ {
		to := min(chunkEvents, end-h.start-i*chunkEvents)
		events = append(events, h.chunks[i].events[from:to]...)
		from = 0
	}
	return events
}
