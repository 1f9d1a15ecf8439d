package cache

import (
	"slices"
	"sort"
	"time"

	"skiff/internal/store"
)

// How much history a table keeps. Events younger than historyFresh are kept, as upstream's watch cache does, unless there
// are more than historyMaxFresh. Older ones are kept up to historyAge, which is what etcd keeps (see the compaction in
// store/etcd), while there are at most historyMax. The newest historyMin events are always kept.
//
// These bounds count events, not bytes: a client that writes large objects does not shorten the history of others. The
// values that only history references have a budget of their own (see evict.go).
const (
	chunkEvents     = 64
	historyMin      = 2 * chunkEvents
	historyMax      = 16384
	historyMaxFresh = 100 * 1024
	historyFresh    = 75 * time.Second
	historyAge      = 5 * time.Minute
)

// chunk is a run of events. The array is written once, front to back; readers use only what their history covers.
type chunk struct {
	events [chunkEvents]Event
	last   time.Time // of the newest event
	// bytes counts the values that only history references and that have not been evicted. cache.mu guards it.
	bytes int
}

// history is a log of events at one point in time: those at positions start to end. Like a tree it never changes; append
// and trim return a new one that shares the chunks.
type history struct {
	chunks     []*chunk
	start, end int64
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
	c.bytes += event.onlyInHistory()
	h.end++
	return h
}

// onlyInHistory is the size of the values that the event alone references: that of the replaced or deleted entry.
func (e *Event) onlyInHistory() int {
	if e.Old == nil {
		return 0
	}
	return e.Old.keptSize()
}

// trim drops the oldest chunks beyond the bounds, and returns the bytes that they counted.
func (h history) trim(now time.Time) (trimmed history, freed int) {
	drop := 0
	for len(h.chunks) > drop+1 {
		oldest := h.chunks[drop]
		rest := h.end - h.start - chunkEvents
		age := now.Sub(oldest.last)
		if rest < historyMin || rest < historyMaxFresh && age < historyFresh || rest < historyMax && age < historyAge {
			break
		}
		h.floor = oldest.events[chunkEvents-1].Revision
		freed += oldest.bytes
		h.start += chunkEvents
		drop++
	}
	if drop > 0 {
		// Cloned, because the underlying array would reference the dropped chunks.
		h.chunks = slices.Clone(h.chunks[drop:])
	}
	return h, freed
}

// reset drops all events; every cursor into them expires, whatever its position.
func (h history) reset(floor store.Revision) history {
	// Positions are never reused, so no cursor can mistake a later event for the one it waits for.
	return history{start: h.end + 1, end: h.end + 1, floor: floor}
}

func (h history) at(position int64) *Event {
	return &h.chunkOf(position).events[(position-h.start)%chunkEvents]
}

func (h history) chunkOf(position int64) *chunk { return h.chunks[(position-h.start)/chunkEvents] }

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
