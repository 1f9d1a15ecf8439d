package apiserver

import (
	"math/bits"
	"strconv"

	"skiff/internal/store/cache"
)

// A list is sent in runs of consecutive items, encoded and, for clients that accept it, compressed (see gziplist.go).
type run struct {
	start, end int
	name       string // in the cache; empty: the run is not cached
}

// A run that can be cached has about thirty items. Its boundaries depend on the items' keys and sizes only, so a change invalidates one
// run and leaves the others. It is cached with its first entry, under a name made from the keys and revisions of all its entries.
//
// It ends before a key whose hash ends in runBits zeros, and in any case after runEntries entries. It has more than runBytes stored
// bytes only if it is a single entry.
const (
	runBits    = 5
	runEntries = 128
	runBytes   = 256 << 10
)

// uncachedRunBytes is runBytes for runs that are not cached: they are made for one client and are large enough for its connection.
const uncachedRunBytes = 64 << 10

// nextRun returns the end of the run that begins at an entry, and a signature of its keys and revisions.
func nextRun(entries []*cache.Entry, start int) (end int, signature uint64) {
	signature = 0x9e3779b97f4a7c15
	stored := 0
	for i := start; i < len(entries); i++ {
		key := entries[i].KeyHash()
		stored += entries[i].StoredSize()
		if i > start && (key&(1<<runBits-1) == 0 || i-start == runEntries || stored > runBytes) {
			return i, signature
		}
		high, low := bits.Mul64(signature^uint64(entries[i].Revision()), key|1)
		signature = high ^ low
	}
	return len(entries), signature
}

// nextUncachedRun returns the end of the run that begins at an entry.
func nextUncachedRun(entries []*cache.Entry, start int) (end int) {
	stored := 0
	for end = start; end < len(entries) && end < start+runEntries; end++ {
		if stored += entries[end].StoredSize(); stored > uncachedRunBytes && end > start {
			break
		}
	}
	return end
}

// form is how the text of a run is written.
type form string

const (
	formPlain form = "plain"
	formGzip  form = "gzip" // see compress
)

// plainLength is the length of a text before compression.
func (f form) plainLength(text []byte) int {
	if f == formGzip {
		return plainLength(text)
	}
	return len(text)
}

// layout is the runs of a page, with their names in one encoding and form.
type layout struct {
	form form
	runs []run
}

// layoutKey identifies the layout of a page of a snapshot, lengthKey the length of its items.
type (
	layoutKey struct {
		extent
		encoding cache.EncodingID
		form     form
	}
	lengthKey struct {
		extent
		encoding cache.EncodingID
	}
)

// newLayout divides a page into runs. prefix begins their names; if it is empty they are not cached.
func newLayout(p *page, f form, prefix string) *layout {
	l := &layout{form: f}
	for start := 0; start < len(p.entries); {
		r := run{start: start}
		if prefix == "" {
			r.end = nextUncachedRun(p.entries, start)
		} else {
			var signature uint64
			r.end, signature = nextRun(p.entries, start)
			r.name = runName(prefix, signature, start == 0)
		}
		l.runs = append(l.runs, r)
		start = r.end
	}
	for start := 0; start < len(p.objs); start += runEntries {
		l.runs = append(l.runs, run{start: start, end: min(start+runEntries, len(p.objs))})
	}
	return l
}

// runName is the name of a run in the cache. The first run of a list differs from the same run elsewhere: its first item has no comma
// before it.
func runName(prefix string, signature uint64, first bool) string {
	name := append(make([]byte, 0, len(prefix)+20), prefix...)
	name = strconv.AppendUint(name, signature, 36)
	if first {
		name = append(name, " first"...)
	}
	return string(name)
}
