package apiserver

import (
	"encoding/binary"
	"net/http"
	"strconv"

	"skiff/internal/store/cache"
)

// items are the part of a list's body that repeats.
type items interface {
	// of is the page whose entries the items are made of, one each.
	of() *page
	// measure finds the form of every item, so that nothing can fail any more, and returns the length of all of them.
	measure() (int, error)
	// append appends an item.
	append(to []byte, i int) ([]byte, error)
	// packing names the form of the items where runs of them are kept compressed (see pack.go).
	packing() cache.EncodingID
}

// jsonItems are entries separated by commas.
type jsonItems struct {
	*page
	encode func(*cache.Entry) ([]byte, error) // memoized
	head   []byte                             // put in place of an encoding's opening brace; empty: nothing is
	packed cache.EncodingID
	bodies [][]byte // what encode returned, once measured
}

func (j *jsonItems) of() *page                 { return j.page }
func (j *jsonItems) packing() cache.EncodingID { return j.packed }

func (j *jsonItems) measure() (total int, err error) {
	j.bodies = make([][]byte, len(j.entries))
	for i, entry := range j.entries {
		if j.bodies[i], err = j.encode(entry); err != nil {
			return 0, err
		}
		total += len(j.bodies[i])
	}
	if len(j.head) > 0 {
		total += len(j.entries) * (len(j.head) - 1)
	}
	return total + max(len(j.entries)-1, 0), nil
}

func (j *jsonItems) append(to []byte, i int) ([]byte, error) {
	var body []byte
	if j.bodies != nil {
		body = j.bodies[i]
	} else {
		var err error
		if body, err = j.encode(j.entries[i]); err != nil {
			return to, err
		}
	}
	if i > 0 {
		to = append(to, ',')
	}
	if len(j.head) > 0 {
		to, body = append(to, j.head...), body[1:]
	}
	return append(to, body...), nil
}

// protoItems are entries as the repeated field 2 of a list.
type protoItems struct {
	*page
	encode   func(*cache.Entry) (protoItem, error)
	packed   cache.EncodingID
	measured []protoItem // what encode returned, once measured
}

func (p *protoItems) of() *page                 { return p.page }
func (p *protoItems) packing() cache.EncodingID { return p.packed }

func (p *protoItems) measure() (total int, err error) {
	p.measured = make([]protoItem, len(p.entries))
	for i, entry := range p.entries {
		item := &p.measured[i]
		if *item, err = p.encode(entry); err != nil {
			return 0, err
		}
		size := item.size()
		total += 1 + uvarintLen(size) + size
	}
	return total, nil
}

func (p *protoItems) append(to []byte, i int) ([]byte, error) {
	var item *protoItem
	if p.measured != nil {
		item = &p.measured[i]
	} else {
		made, err := p.encode(p.entries[i])
		if err != nil {
			return to, err
		}
		item = &made
	}
	to = binary.AppendUvarint(append(to, tagField2), uint64(item.size()))
	return item.append(to), nil
}

// listHead opens a list whose items together have a length.
type listHead func(items int) []byte

// chunkSize is how much of a list is gathered before it is written: a few whole frames.
const chunkSize = 4 * framePayload

// writeItems writes a list: head, items, tail. Everything that can fail happens before the first byte is written.
func (s *Server) writeItems(req *request, mediaType string, head listHead, list items, tail []byte) error {
	entries := list.of().entries
	gzip := acceptsGzip(req.Request)
	if gzip && storedAtLeast(entries, gzipThreshold) {
		return s.writePacked(req, mediaType, head, list, tail)
	}
	total, err := list.measure()
	if err != nil {
		return err
	}
	opening := head(total)
	total += len(opening) + len(tail)
	if gzip && total > gzipThreshold {
		return s.writePacked(req, mediaType, head, list, tail)
	}
	req.writeListHeader(mediaType, total)
	buffer := getBuffer()
	defer putBuffer(buffer)
	chunk := append(*buffer, opening...)
	defer func() { *buffer = chunk }()
	for i := range entries {
		if chunk, err = list.append(chunk, i); err != nil {
			return err
		}
		if chunk, err = req.w.writeWholeFrames(chunk); err != nil {
			return nil // the client is gone
		}
	}
	chunk = append(chunk, tail...)
	_ = req.w.writeFrames(chunk)
	return nil
}

func (r *request) writeListHeader(mediaType string, length int) {
	header := r.w.Header()
	header["Content-Type"] = contentType(mediaType)
	header["Content-Length"] = []string{strconv.Itoa(length)}
	r.writeWarnings()
	r.w.WriteHeader(http.StatusOK)
}

// storedAtLeast guesses at the size of a list by what its entries take in the store.
func storedAtLeast(entries []*cache.Entry, size int) bool {
	for _, e := range entries {
		if size -= len(e.Stored()); size < 0 {
			return true
		}
	}
	return false
}
