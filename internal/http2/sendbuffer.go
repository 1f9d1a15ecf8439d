package http2

import (
	"encoding/binary"
	"sync"

	"golang.org/x/net/http2"
)

// A sendBuffer collects a handler's data in slots of the size of a TLS record, each with space for a frame header before the data, so
// that it is sent without being copied again. A frame of the protocol's default size would need two records, and the second, with the
// last nine bytes, would cost as much as a full one.
const (
	recordSize  = 16 << 10
	payload     = recordSize - frameHeaderSize
	slots       = 4
	headerSpace = 2 << 10 // for the response headers, which are sent with the first data
	capacity    = slots * payload
)

type sendBuffer struct {
	bytes  [headerSpace + slots*recordSize]byte
	filled int // of the slots' data
	sent   int
}

var sendBuffers = sync.Pool{New: func() any { return new(sendBuffer) }}

func (o *sendBuffer) reset()       { o.filled, o.sent = 0, 0 }
func (o *sendBuffer) full() bool   { return o.filled == capacity }
func (o *sendBuffer) waiting() int { return o.filled - o.sent }

// append copies as much as there is space for.
func (o *sendBuffer) append(p []byte) (copied int) {
	for len(p) > 0 && !o.full() {
		slot, at := o.filled/payload, o.filled%payload
		start := headerSpace + slot*recordSize
		n := copy(o.bytes[start+frameHeaderSize+at:start+recordSize], p)
		p = p[n:]
		o.filled += n
		copied += n
	}
	return copied
}

// first is the data of the first slot.
func (o *sendBuffer) first() []byte {
	return o.bytes[headerSpace+frameHeaderSize : headerSpace+frameHeaderSize+min(o.filled, payload)]
}

// frame builds a DATA frame of at most n unsent bytes and returns it with head before it. The frame header overwrites the space, or the
// sent data, right before the data.
func (o *sendBuffer) frame(id uint32, n int, end bool, head []byte) []byte {
	slot, at := o.sent/payload, o.sent%payload
	n = min(n, payload-at, o.waiting())
	start := headerSpace + slot*recordSize + at
	o.sent += n
	header := o.bytes[start : start+frameHeaderSize]
	header[0], header[1], header[2], header[3], header[4] = byte(n>>16), byte(n>>8), byte(n), byte(http2.FrameData), 0
	if end && o.waiting() == 0 {
		header[4] = byte(http2.FlagDataEndStream)
	}
	binary.BigEndian.PutUint32(header[5:], id)
	// Only the first slot has space for head before it.
	if len(head) > 0 {
		start -= copy(o.bytes[start-len(head):], head)
	}
	return o.bytes[start : start+len(head)+frameHeaderSize+n]
}
