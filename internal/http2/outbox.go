package http2

import (
	"encoding/binary"
	"sync"

	"golang.org/x/net/http2"
)

// An outbox gathers what a handler writes where it will be sent from: in slots of the size of a TLS record, each with room
// for a frame's header before the data. A frame of the protocol's usual size would take two records, and the one for
// the last nine bytes would cost as much as a full one.
const (
	record   = 16 << 10
	payload  = record - frameHeader
	slots    = 4
	headroom = 2 << 10 // for the headers of the answer, which go with its first data
	capacity = slots * payload
)

type outbox struct {
	bytes  [headroom + slots*record]byte
	filled int // of the slots' data
	sent   int
}

var outboxes = sync.Pool{New: func() any { return new(outbox) }}

func (o *outbox) reset()       { o.filled, o.sent = 0, 0 }
func (o *outbox) full() bool   { return o.filled == capacity }
func (o *outbox) waiting() int { return o.filled - o.sent }

// append takes as much as there is room for.
func (o *outbox) append(p []byte) (taken int) {
	for len(p) > 0 && !o.full() {
		slot, at := o.filled/payload, o.filled%payload
		start := headroom + slot*record
		n := copy(o.bytes[start+frameHeader+at:start+record], p)
		p = p[n:]
		o.filled += n
		taken += n
	}
	return taken
}

// first is the beginning of the data, as much of it as lies together.
func (o *outbox) first() []byte {
	return o.bytes[headroom+frameHeader : headroom+frameHeader+min(o.filled, payload)]
}

// frame makes a frame of data that was not sent, at most n bytes, and returns it with the head before it. The header is put
// right before the data, where there is room or data that has been sent.
func (o *outbox) frame(id uint32, n int, end bool, head []byte) []byte {
	slot, at := o.sent/payload, o.sent%payload
	n = min(n, payload-at, o.waiting())
	start := headroom + slot*record + at
	o.sent += n
	header := o.bytes[start : start+frameHeader]
	header[0], header[1], header[2], header[3], header[4] = byte(n>>16), byte(n>>8), byte(n), byte(http2.FrameData), 0
	if end && o.waiting() == 0 {
		header[4] = byte(http2.FlagDataEndStream)
	}
	binary.BigEndian.PutUint32(header[5:], id)
	// Only the first slot has room before it.
	if len(head) > 0 {
		start -= copy(o.bytes[start-len(head):], head)
	}
	return o.bytes[start : start+len(head)+frameHeader+n]
}
