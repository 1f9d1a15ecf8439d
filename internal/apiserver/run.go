package apiserver

import (
	"math/bits"
	"strconv"

	"skiff/internal/store/cache"
)

// A list is concatenated from cached runs: about thirty consecutive items, encoded and, for clients that accept it, compressed (see
// gziplist.go). The boundaries depend on the items' keys only, so a change invalidates one run and leaves the others. A run is cached
// with its first entry, under a name made from the keys and revisions of all its entries.
type run struct {
	start, end int
	signature  uint64 // of keys and revisions
}

// A run ends before a key whose hash ends in runBits zeros, and in any case after runEntries entries or runBytes stored bytes.
const (
	runBits    = 5
	runEntries = 128
	runBytes   = 512 << 10
)

// nextRun returns the run that begins at an entry.
func nextRun(entries []*cache.Entry, start int) run {
	r := run{start: start, signature: 0x9e3779b97f4a7c15}
	stored := 0
	for i := start; i < len(entries); i++ {
		key := entries[i].KeyHash()
		if i > start && (key&(1<<runBits-1) == 0 || i-start == runEntries || stored >= runBytes) {
			r.end = i
			return r
		}
		high, low := bits.Mul64(r.signature^uint64(entries[i].Revision()), key|1)
		r.signature = high ^ low
		stored += entries[i].StoredSize()
	}
	r.end = len(entries)
	return r
}

// The forms in which runs are cached.
const (
	formPlain = "plain"
	formGzip  = "gzip"
)

// memoized returns the result of make for a run, from the cache if possible. The first run of a list differs from the same run
// elsewhere: its first item has no comma before it. Runs of selections are not cached, because there are too many of them.
func memoized(list items, r run, form string, make func() ([]byte, error)) ([]byte, error) {
	if list.of().selected {
		return make()
	}
	id := list.encoding()
	name := append([]byte(nil), id.Format...)
	name = append(append(append(name, ' '), form...), ' ')
	name = strconv.AppendUint(name, r.signature, 36)
	if r.start == 0 {
		name = append(name, " first"...)
	}
	id.Format = string(name)
	return list.of().entries[r.start].Encoding(id, func(*cache.Entry) ([]byte, error) { return make() })
}

// runs are the items of a list, in pieces.
type runs struct {
	pieces [][]byte
	length int // of all pieces
}

// runsKey identifies the runs of a page of a snapshot, in one form.
type runsKey struct {
	extent
	encoding cache.EncodingID
	form     string
}

// runsOf returns all runs of a list, each made by make, from the snapshot's cache if possible.
func runsOf(list items, form string, make func(items, run) ([]byte, error)) (*runs, error) {
	p := list.of()
	assemble := func() (any, error) {
		all := &runs{}
		for start := 0; start < len(p.entries); {
			r := nextRun(p.entries, start)
			piece, err := make(list, r)
			if err != nil {
				return nil, err
			}
			all.pieces = append(all.pieces, piece)
			all.length += len(piece)
			start = r.end
		}
		return all, nil
	}
	var made any
	var err error
	if p.selected {
		made, err = assemble()
	} else {
		made, err = p.snapshot.Memoize(runsKey{extent: p.extent, encoding: list.encoding(), form: form}, assemble)
	}
	if err != nil {
		return nil, err
	}
	return made.(*runs), nil
}

// appendRun appends the items of a run.
func appendRun(to []byte, list items, r run) (_ []byte, err error) {
	for i := r.start; i < r.end && err == nil; i++ {
		to, err = list.append(to, i)
	}
	return to, err
}

// plainRun returns an uncompressed run.
func plainRun(list items, r run) ([]byte, error) {
	return memoized(list, r, formPlain, func() ([]byte, error) {
		buffer := getBuffer()
		defer putBuffer(buffer)
		var err error
		if *buffer, err = appendRun(*buffer, list, r); err != nil {
			return nil, err
		}
		return append([]byte(nil), *buffer...), nil
	})
}
