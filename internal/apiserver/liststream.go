package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"skiff/internal/store/cache"
)

// A list is made while it is sent. Of its text only the run that is being written is held, so a client that reads slowly costs little,
// however long the list is. The first gzipThreshold bytes are made before anything is sent: a list that ends there has a
// Content-Length, and an error in it is a response of its own. A longer list is sent without a Content-Length, and is cut off when
// one of its items cannot be encoded.

// listBody is a list in one format: prefix, items, tail.
type listBody struct {
	page      *page
	code      int
	mediaType string
	items     items
	prefix    listPrefix
	tail      []byte
	// encoding identifies the format in the cache of runs. If it is zero, or there is a selector, runs are not cached.
	encoding cache.EncodingID
}

// listPrefix returns the prefix of a list, given the length of its items.
type listPrefix func(length int) []byte

func (b *listBody) cached() bool {
	return b.encoding != cache.EncodingID{} && !b.page.selected && len(b.page.entries) > 0
}

// layout returns the runs of the list, from the snapshot's cache if possible.
func (b *listBody) layout(f form) (*layout, error) {
	if !b.cached() {
		return newLayout(b.page, f, ""), nil
	}
	made, err := b.page.snapshot.Memoize(layoutKey{b.page.extent, b.encoding, f}, func() (any, error) {
		return newLayout(b.page, f, b.encoding.Format+" "+string(f)+" "), nil
	})
	if err != nil {
		return nil, err
	}
	return made.(*layout), nil
}

// text returns the text of a run in the layout's form, from the cache if possible.
func (b *listBody) text(l *layout, i int) ([]byte, error) {
	r := &l.runs[i]
	if r.name == "" && l.form == formPlain {
		return b.items.appendItems(getRunBuffer(), r.start, r.end)
	}
	make := func(*cache.Entry) ([]byte, error) {
		buffer := getBuffer()
		defer putBuffer(buffer)
		var err error
		if *buffer, err = b.items.appendItems(*buffer, r.start, r.end); err != nil {
			return nil, err
		}
		if l.form == formGzip {
			return compress(*buffer)
		}
		return append([]byte(nil), *buffer...), nil
	}
	if r.name == "" {
		return make(nil)
	}
	return b.page.entries[r.start].ListEncoding(cache.EncodingID{Version: b.encoding.Version, Format: r.name}, make)
}

// runBuffers are reused for the uncompressed runs that are not cached. A client that does not read keeps one, so they are not larger than
// maxRunBuffer.
var runBuffers = sync.Pool{New: func() any { b := make([]byte, 0, uncachedRunBytes); return &b }}

const maxRunBuffer = 4 * uncachedRunBytes

func getRunBuffer() []byte { return *runBuffers.Get().(*[]byte) }

// recycle reuses the text of a run that was sent.
func (l *layout) recycle(i int, text []byte) {
	if l.runs[i].name == "" && l.form == formPlain && cap(text) <= maxRunBuffer {
		text = text[:0]
		runBuffers.Put(&text)
	}
}

// listOpening is the beginning of a list, made before anything is sent.
type listOpening struct {
	layout *layout
	texts  [][]byte // of the first runs
	length int      // of their items, uncompressed
	large  bool     // the list is longer than gzipThreshold
	total  int      // the length of all items, or unsized
}

// open makes the beginning of the list: runs up to gzipThreshold.
func (b *listBody) open(f form) (*listOpening, error) {
	l, err := b.layout(f)
	if err != nil {
		return nil, err
	}
	opening := &listOpening{layout: l}
	for opening.length <= gzipThreshold && len(opening.texts) < len(l.runs) {
		text, err := b.text(l, len(opening.texts))
		if err != nil {
			return nil, err
		}
		opening.texts = append(opening.texts, text)
		opening.length += f.plainLength(text)
	}
	opening.large = opening.length > gzipThreshold || len(b.prefix(opening.length))+opening.length+len(b.tail) > gzipThreshold
	return opening, nil
}

// openFor makes the beginning of the list in the form that the client gets: compressed if it accepts that and the list is large.
func (b *listBody) openFor(r *http.Request) (*listOpening, error) {
	gzip := acceptsGzip(r)
	guess := formPlain
	if gzip && storedAtLeast(b.page.entries, gzipThreshold) {
		guess = formGzip
	}
	opening, err := b.open(guess)
	if err != nil {
		return nil, err
	}
	f := formPlain
	if gzip && opening.large {
		f = formGzip
	}
	if f == guess {
		return opening, nil
	}
	return b.open(f)
}

// storedAtLeast estimates the size of a list by the stored size of its entries.
func storedAtLeast(entries []*cache.Entry, size int) bool {
	for _, e := range entries {
		if size -= e.StoredSize(); size < 0 {
			return true
		}
	}
	return false
}

// measure returns the length of the items that the prefix contains, without making the runs that follow the beginning. It returns
// unsized if the prefix contains none.
func (b *listBody) measure(ctx context.Context, opening *listOpening) (int, error) {
	sized, ok := b.items.(sizedItems)
	if !ok {
		return unsized, nil
	}
	sum := func() (any, error) {
		total := opening.length
		for _, r := range opening.layout.runs[len(opening.texts):] {
			size, err := sized.size(r.start, r.end)
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return 0, err
			}
			total += size
		}
		return total, nil
	}
	var total any
	var err error
	if opening.large && b.cached() {
		total, err = b.page.snapshot.Memoize(lengthKey{b.page.extent, b.encoding}, sum)
	} else {
		total, err = sum()
	}
	if err != nil {
		return 0, err
	}
	return total.(int), nil
}

const unsized = -1

// listSender writes a list to the response. Its errors are errClientGone.
type listSender interface {
	begin(prefix []byte) error
	send(text []byte) error
	end(tail []byte) error
}

// plainSender writes an uncompressed list.
type plainSender struct{ w *responseWriter }

func (p plainSender) begin(prefix []byte) error { return p.send(prefix) }
func (p plainSender) end(tail []byte) error     { return p.send(tail) }

func (p plainSender) send(text []byte) error {
	if _, err := p.w.Write(text); err != nil {
		return errClientGone
	}
	return nil
}

// writeList responds with a list.
func (s *Server) writeList(req *request, b *listBody) error {
	opening, err := b.openFor(req.Request)
	if err != nil {
		return err
	}
	if opening.total, err = b.measure(req.ctx, opening); err != nil {
		return err
	}
	prefix := b.prefix(opening.total)
	header := req.w.Header()
	header["Content-Type"] = contentType(b.mediaType)
	var out listSender = plainSender{req.w}
	switch {
	case opening.layout.form == formGzip:
		header["Content-Encoding"] = gzipEncoding
		header.Add("Vary", "Accept-Encoding")
		out = &gzipSender{plainSender: plainSender{req.w}}
	case !opening.large:
		header["Content-Length"] = []string{strconv.Itoa(len(prefix) + opening.length + len(b.tail))}
	}
	req.writeWarnings()
	req.w.WriteHeader(b.code)
	if err := b.send(req.ctx, out, opening, prefix); err != nil && !errors.Is(err, errClientGone) {
		// The client must not take a part of the list for the whole.
		if !errors.Is(err, context.Canceled) { // a conversion ends when the client disconnects
			s.log.Warn("failed to send list", "path", req.URL.Path, "error", err)
		}
		panic(http.ErrAbortHandler)
	}
	return nil
}

// send sends the list. It ends early when the client disconnects or the request's deadline passes. A canceled context is no reason to
// end: it is canceled when the server shuts down, too, which waits for running requests.
func (b *listBody) send(ctx context.Context, out listSender, opening *listOpening, prefix []byte) error {
	if err := out.begin(prefix); err != nil {
		return err
	}
	l, sent := opening.layout, 0
	for i := range l.runs {
		var text []byte
		var err error
		if i < len(opening.texts) {
			text, opening.texts[i] = opening.texts[i], nil
		} else if err = ctx.Err(); errors.Is(err, context.DeadlineExceeded) {
			return err
		} else if text, err = b.text(l, i); err != nil {
			return err
		}
		if err := out.send(text); err != nil {
			return err
		}
		sent += l.form.plainLength(text)
		l.recycle(i, text)
	}
	if opening.total != unsized && opening.total != sent {
		return fmt.Errorf("items of %d bytes were announced as %d", sent, opening.total)
	}
	return out.end(b.tail)
}
