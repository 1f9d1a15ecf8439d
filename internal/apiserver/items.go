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
	// size is the length of what append appends.
	size(i int) (int, error)
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
}

func (j *jsonItems) of() *page                 { return j.page }
func (j *jsonItems) packing() cache.EncodingID { return j.packed }

func (j *jsonItems) size(i int) (int, error) {
	body, err := j.encode(j.entries[i])
	size := len(body)
	if len(j.head) > 0 {
		size += len(j.head) - 1
	}
	if i > 0 {
		size++
	}
	return size, err
}

func (j *jsonItems) append(to []byte, i int) ([]byte, error) {
	body, err := j.encode(j.entries[i])
	if err != nil {
		return to, err
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
	encode func(*cache.Entry) (protoItem, error)
	packed cache.EncodingID
}

func (p *protoItems) of() *page                 { return p.page }
func (p *protoItems) packing() cache.EncodingID { return p.packed }

func (p *protoItems) size(i int) (int, error) {
	item, err := p.encode(p.entries[i])
	size := item.size()
	return 1 + uvarintLen(size) + size, err
}

func (p *protoItems) append(to []byte, i int) ([]byte, error) {
	item, err := p.encode(p.entries[i])
	if err != nil {
		return to, err
	}
	to = binary.AppendUvarint(append(to, tagField2), uint64(item.size()))
	return item.append(to), nil
}

// chunkSize is how much of a list is gathered before it is written.
const chunkSize = 64 << 10

// writeItems writes a list: head, items, tail. Everything that can fail happens before the first byte is written.
func (s *Server) writeItems(req *request, mediaType string, head []byte, list items, tail []byte) error {
	entries := list.of().entries
	gzip := acceptsGzip(req.Request)
	if gzip && storedAtLeast(entries, gzipThreshold) {
		return s.writePacked(req, mediaType, head, list, tail)
	}
	total := len(head) + len(tail)
	for i := range entries {
		size, err := list.size(i)
		if err != nil {
			return err
		}
		total += size
	}
	if gzip && total > gzipThreshold {
		return s.writePacked(req, mediaType, head, list, tail)
	}
	req.writeListHeader(mediaType, total)
	buffer := getBuffer()
	defer putBuffer(buffer)
	chunk := append(*buffer, head...)
	defer func() { *buffer = chunk }()
	var err error
	for i := range entries {
		if chunk, err = list.append(chunk, i); err != nil {
			return err
		}
		if len(chunk) >= chunkSize {
			if _, err := req.w.Write(chunk); err != nil {
				return nil // the client is gone
			}
			chunk = chunk[:0]
		}
	}
	chunk = append(chunk, tail...)
	_, _ = req.w.Write(chunk)
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
