package cache

import (
	"testing"
	"time"

	"skiff/internal/store"
)

func revisions(events []Event) (found []store.Revision) {
	for _, event := range events {
		found = append(found, event.Revision)
	}
	return found
}

func TestHistorySlice(t *testing.T) {
	now := time.Now()
	var h history
	// Revisions 1 to 300, of which 100 is a transaction of 90 events.
	for revision := store.Revision(1); revision <= 300; revision++ {
		n := 1
		if revision == 100 {
			n = 90
		}
		for range n {
			h = h.append(Event{Revision: revision}, now)
		}
	}
	for _, test := range []struct {
		after       store.Revision
		limit       int
		first, last store.Revision
		count       int
	}{
		{0, 10, 1, 10, 10},
		{0, 64, 1, 64, 64},
		{60, 10, 61, 70, 10},
		{95, 10, 96, 100, 94}, // the transaction is not split
		{99, 1, 100, 100, 90},
		{100, 1000, 101, 300, 200},
		{299, 5, 300, 300, 1},
		{300, 5, 0, 0, 0},
		{400, 5, 0, 0, 0},
	} {
		got := revisions(h.slice(h.after(test.after), h.after(test.after)+int64(test.limit)))
		if len(got) != test.count || (test.count > 0 && (got[0] != test.first || got[len(got)-1] != test.last)) {
			t.Errorf("%d after %d: got %v", test.limit, test.after, got)
		}
	}
}

func TestHistoryTrim(t *testing.T) {
	now := time.Now()
	large := &Entry{}
	large.setStored([]byte(incompressible(1 << 20)))
	for _, test := range []struct {
		name   string
		events int
		entry  *Entry
		age    time.Duration
		min    int64
		max    int64
	}{
		{"young", 1000, nil, 0, 1000, 1000},
		{"old", 1000, nil, time.Hour, historyMin, historyMin + chunkEvents},
		{"few and old", historyMin, nil, time.Hour, historyMin, historyMin},
		{"many and fresh", 3 * historyMax, nil, historyFresh - time.Second, 3 * historyMax, 3 * historyMax},
		{"many", 3 * historyMax, nil, historyFresh, historyMax, historyMax + chunkEvents},
		{"too many", 2 * historyMaxFresh, nil, 0, historyMaxFresh, historyMaxFresh + chunkEvents},
		{"large", 1000, large, historyFresh, 1000, 1000},
	} {
		var h history
		for i := range test.events {
			h, _ = h.append(Event{Revision: store.Revision(i + 1), Old: test.entry}, now).trim(now)
		}
		h, _ = h.trim(now.Add(test.age))
		kept := h.end - h.start
		if kept < test.min || kept > max(test.max, chunkEvents) {
			t.Errorf("%s: keeps %d events", test.name, kept)
		}
		if first := h.at(h.start).Revision; first != h.floor+1 {
			t.Errorf("%s: floor is %d, first event is %d", test.name, h.floor, first)
		}
		if got := h.slice(h.after(h.floor), h.end); int64(len(got)) != kept {
			t.Errorf("%s: slice returns %d of %d", test.name, len(got), kept)
		}
	}
}

func TestHistoryReset(t *testing.T) {
	var h history
	for i := range 70 {
		h = h.append(Event{Revision: store.Revision(i + 1)}, time.Now())
	}
	after := h.reset(100)
	if after.start <= h.end || after.floor != 100 || after.slice(after.after(100), after.end) != nil {
		t.Errorf("reset leaves %+v", after)
	}
	after = after.append(Event{Revision: 101}, time.Now())
	if got := revisions(after.slice(after.after(100), after.end)); len(got) != 1 || got[0] != 101 {
		t.Errorf("got %v", got)
	}
}
