package apiserver

import (
	"encoding/binary"
	"net/http"
	"strconv"

	"skiff/internal/store/cache"
)

// items are the items of a list in one format.
type items interface {
	// of is the page: each item is one of its entries.
	of() *page
	// append appends an item.
	append(to []byte, i int) ([]byte, error)
	// encoding identifies the format in the cache of runs (see run.go).
	encoding() cache.EncodingID
}

// jsonItems are entries separated by commas.
type jsonItems struct {
	*page
	encode func(*cache.Entry) ([]byte, error) // cached
	prefix []byte                             // replaces an encoding's opening brace; empty: it is kept
	id     cache.EncodingID
}

func (j *jsonItems) of() *page                  { return j.page }
func (j *jsonItems) encoding() cache.EncodingID { return j.id }

func (j *jsonItems) append(to []byte, i int) ([]byte, error) {
	body, err := j.encode(j.entries[i])
	if err != nil {
		return to, err
	}
	if i > 0 {
		to = append(to, ',')
	}
	if len(j.prefix) > 0 {
		to, body = append(to, j.prefix...), body[1:]
	}
	return append(to, body...), nil
}

// protoItems are entries as the repeated field 2 of a list.
type protoItems struct {
	*page
	encode func(*cache.Entry) (protoItem, error)
	id     cache.EncodingID
}

func (p *protoItems) of() *page                  { return p.page }
func (p *protoItems) encoding() cache.EncodingID { return p.id }

func (p *protoItems) append(to []byte, i int) ([]byte, error) {
	item, err := p.encode(p.entries[i])
	if err != nil {
		return to, err
	}
	to = binary.AppendUvarint(append(to, tagField2), uint64(item.size()))
	return item.append(to), nil
}

// listHead returns the beginning of a list, given the total length of its items.
type listPrefix func(items int) []byte

// writeItems writes a list: prefix, items, tail. All encoding happens before the first byte is written, so that it can fail cleanly.
func (s *Server) writeItems(req *request, mediaType string, prefix listPrefix, list items, tail []byte) error {
	entries := list.of().entries
	gzip := acceptsGzip(req.Request)
	if gzip && storedAtLeast(entries, gzipThreshold) {
		return s.writeGzip(req, mediaType, prefix, list, tail)
	}
	plain, err := runsOf(list, formPlain, plainRun)
	if err != nil {
		return err
	}
	opening := prefix(plain.length)
	total := len(opening) + plain.length + len(tail)
	if gzip && total > gzipThreshold {
		return s.writeGzip(req, mediaType, prefix, list, tail)
	}
	req.writeListHeader(mediaType, total)
	req.w.writeAll(opening)
	req.w.writeAll(plain.pieces...)
	req.w.writeAll(tail)
	return nil
}

func (r *request) writeListHeader(mediaType string, length int) {
	header := r.w.Header()
	header["Content-Type"] = contentType(mediaType)
	header["Content-Length"] = []string{strconv.Itoa(length)}
	r.writeWarnings()
	r.w.WriteHeader(http.StatusOK)
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
