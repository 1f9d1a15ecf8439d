package http2

import (
	"sync"
	"sync/atomic"
)

// The sizes of buffers. A small one holds most responses, a medium one a frame, a large one what is written to the socket at once.
const (
	smallBuffer  = 4 << 10
	mediumBuffer = recordSize
	largeBuffer  = writeSize + recordSize + smallBuffer
)

// recordSize is the largest TLS record. A DATA frame with its header fills one.
const (
	recordSize = 16 << 10
	payload    = recordSize - frameHeaderSize
)

// buffer holds bytes to be sent.
type buffer struct{ bytes []byte }

var bufferPools = [...]struct {
	size int
	pool *sync.Pool
}{
	{smallBuffer, poolOf(smallBuffer)},
	{mediumBuffer, poolOf(mediumBuffer)},
	{largeBuffer, poolOf(largeBuffer)},
}

func poolOf(size int) *sync.Pool {
	return &sync.Pool{New: func() any { return &buffer{make([]byte, 0, size)} }}
}

// newBuffer returns a buffer for at least size bytes.
func newBuffer(size int) *buffer {
	for i := range bufferPools {
		if size <= bufferPools[i].size {
			return bufferPools[i].pool.Get().(*buffer)
		}
	}
	return &buffer{make([]byte, 0, size)}
}

// free returns the buffer to its pool; nil is allowed.
func (b *buffer) free() {
	if b == nil {
		return
	}
	for i := range bufferPools {
		if cap(b.bytes) == bufferPools[i].size {
			b.bytes = b.bytes[:0]
			bufferPools[i].pool.Put(b)
			return
		}
	}
}

// extend returns a buffer with the same bytes and place for n more; nil stands for an empty one.
func (b *buffer) extend(n int) *buffer {
	if b == nil {
		return newBuffer(n)
	}
	if len(b.bytes)+n <= cap(b.bytes) {
		return b
	}
	larger := newBuffer(len(b.bytes) + n)
	larger.bytes = append(larger.bytes, b.bytes...)
	b.free()
	return larger
}

// unsentLimit bounds the bytes that wait, in the whole process, for clients to accept them. It allows eight hundred connections whose
// clients do not read to have large buffers. Only what exceeds a small buffer of a response (4 KiB) and the smallest pending frames of a
// connection (16 KiB) is counted: when the limit is reached, clients that read are served in smaller pieces, and what does not fit into
// them waits in its handler, which has a deadline. Clients that do not read thus cannot stop the others.
const unsentLimit = 128 << 20

// unsent counts the bytes that are subject to unsentLimit.
var unsent = quota{limit: unsentLimit}

// quota is a number of bytes that may be held.
type quota struct {
	limit int64
	held  atomic.Int64
}

// acquire reports whether n more bytes may be held. If so, they must be released.
func (q *quota) acquire(n int64) bool {
	if q.held.Add(n) > q.limit {
		q.held.Add(-n)
		return false
	}
	return true
}

func (q *quota) release(n int64) { q.held.Add(-n) }
