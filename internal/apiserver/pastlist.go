package apiserver

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"skiff/internal/store/cache"
)

// findInStore completes a page of a past revision that has left the cache. It reads the store until the page is full, in
// the way that extent.collect reads a snapshot. A revision that the store has compacted is an error: for a continued list
// with a token to continue with the newest state.
func (s *Server) findInStore(req *request, opts *listOptions, found *page, match *matcher) (*page, error) {
	err := s.readPage(req, found, match)
	if errors.Is(err, cache.ErrExpired) && opts.next != "" {
		expired := apierrors.NewResourceExpired(textContinueExpired)
		expired.ErrStatus.Continue = encodeContinue(found.from, found.prefix, -1)
		return nil, expired
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

func (s *Server) readPage(req *request, found *page, match *matcher) error {
	next := found.from
	if key, ok := match.onlyKey(); ok {
		// A key is the first of those that have it as prefix.
		read, err := req.res.table.ListAt(req.ctx, key, next, 1, found.revision())
		if err == nil && len(read.Entries) > 0 && read.Entries[0].Key() == key && match.matches(read.Entries[0]) {
			found.entries = read.Entries
		}
		return errors.Join(err, match.err)
	}
	// With a selector most entries may not match, so the reads become larger.
	for limit := found.limit; ; limit *= 2 {
		read, err := req.res.table.ListAt(req.ctx, found.prefix, next, int(limit), found.revision())
		if err != nil {
			return err
		}
		last := 0 // the number of entries up to the last one that was added
		match.each(read.Entries, func(i int) bool {
			found.entries, last = append(found.entries, read.Entries[i]), i+1
			return found.limit == 0 || int64(len(found.entries)) < found.limit
		})
		if match.err != nil {
			return match.err
		}
		if found.limit > 0 && int64(len(found.entries)) == found.limit {
			if remaining := int64(len(read.Entries)-last) + read.Remaining; remaining > 0 {
				found.endBefore(remaining)
			}
			return nil
		}
		if next = read.Next; next == "" {
			return nil
		}
	}
}

// endBefore ends a full page, given how many entries follow.
func (p *page) endBefore(remaining int64) {
	last := p.entries[len(p.entries)-1].Key()
	p.next = encodeContinue(last+"\x00", p.prefix, p.revision())
	if !p.selected {
		p.remaining = &remaining
	}
}
