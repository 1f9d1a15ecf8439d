package http2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// writer is the sending half of a connection.
type writer struct {
	// writing is held while writing to the connection. The reader never waits for it: it must go on reading when the client does not
	// read.
	writing sync.Mutex
	encoder *hpack.Encoder
	block   bytes.Buffer // output of the encoder
	heads   []byte       // frames of headers
	scratch []byte       // frames that were queued
	broken  error        // of a failed write; no other write follows
	// tableSize is the client's SETTINGS_HEADER_TABLE_SIZE plus one; zero when it has not changed.
	tableSize atomic.Int64

	queueMu sync.Mutex
	queued  []byte // frames that go with the next write
}

// maxQueued bounds the queued control frames. A client that causes more without reading is attacking.
const maxQueued = 64 << 10

var errFlood = http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)

// queue appends frames to be sent with the next write.
func (c *conn) queue(add func([]byte) []byte) {
	c.queueMu.Lock()
	defer c.queueMu.Unlock()
	c.queued = add(c.queued)
}

// flushQueue ensures that queued frames are written: by the goroutine that holds the write lock, or by a new one.
func (c *conn) flushQueue() error {
	c.queueMu.Lock()
	waiting := len(c.queued)
	c.queueMu.Unlock()
	if waiting == 0 {
		return nil
	}
	if c.writing.TryLock() {
		c.writing.Unlock()
		go c.writeQueue()
	} else if waiting > maxQueued {
		return errFlood
	}
	return nil
}

// writeQueue writes the queued frames unless another goroutine holds the write lock. Every goroutine that has held the lock calls it
// after releasing the lock, so no frame stays behind.
func (c *conn) writeQueue() {
	for c.hasQueued() && c.writing.TryLock() {
		c.writeQueued()
		c.writing.Unlock()
	}
}

func (c *conn) hasQueued() bool {
	c.queueMu.Lock()
	defer c.queueMu.Unlock()
	return len(c.queued) > 0
}

// writeQueued writes the queued frames. It is called with writing held.
func (c *conn) writeQueued() {
	c.queueMu.Lock()
	c.scratch, c.queued = c.queued, c.scratch[:0]
	c.queueMu.Unlock()
	if len(c.scratch) > 0 {
		_ = c.write(c.scratch)
	}
}

// write writes bytes to the connection. It is called with writing held.
func (c *conn) write(p []byte) error {
	if c.broken != nil {
		return c.broken
	}
	err := c.tlsConn.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err == nil {
		_, err = c.tlsConn.Write(p)
	}
	if err != nil {
		c.fail(err)
	}
	return err
}

// coalesceWrites runs write and sends its bytes with one system call. It is called with writing held.
func (c *conn) coalesceWrites(write func() error) error {
	err := c.raw.coalesce(write)
	if err != nil && c.broken == nil {
		c.fail(err)
	}
	return err
}

// fail closes the connection after a failed write. The reader then returns.
func (c *conn) fail(err error) {
	c.broken = errors.Join(errConnClosed, err)
	_ = c.tlsConn.NetConn().Close()
}

// encodeHeaders compresses headers. The bytes are valid until the next call. It is called with writing held.
func (c *conn) encodeHeaders(fields []hpack.HeaderField) []byte {
	if size := c.tableSize.Swap(0); size > 0 {
		c.encoder.SetMaxDynamicTableSizeLimit(uint32(size - 1))
	}
	c.block.Reset()
	for i := range fields {
		_ = c.encoder.WriteField(fields[i]) // writing to a buffer does not fail
	}
	return c.block.Bytes()
}

const frameHeaderSize = 9

func appendFrameHeader(b []byte, length int, kind http2.FrameType, flags http2.Flags, id uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	return binary.BigEndian.AppendUint32(b, id)
}

func appendSettings(b []byte, settings ...http2.Setting) []byte {
	b = appendFrameHeader(b, 6*len(settings), http2.FrameSettings, 0, 0)
	for _, s := range settings {
		b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, uint16(s.ID)), s.Val)
	}
	return b
}

func appendWindowUpdate(b []byte, id, increment uint32) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(b, 4, http2.FrameWindowUpdate, 0, id), increment)
}

func appendPing(b []byte, ack bool, data [8]byte) []byte {
	var flags http2.Flags
	if ack {
		flags = http2.FlagPingAck
	}
	return append(appendFrameHeader(b, 8, http2.FramePing, flags, 0), data[:]...)
}

func appendReset(b []byte, id uint32, code http2.ErrCode) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(b, 4, http2.FrameRSTStream, 0, id), uint32(code))
}

func appendGoAway(b []byte, last uint32, code http2.ErrCode) []byte {
	b = binary.BigEndian.AppendUint32(appendFrameHeader(b, 8, http2.FrameGoAway, 0, 0), last)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

// appendHeaders appends compressed headers: a HEADERS frame and as many CONTINUATION frames as needed.
func appendHeaders(b []byte, id uint32, block []byte, end bool) []byte {
	kind, flags := http2.FrameHeaders, http2.Flags(0)
	if end {
		flags = http2.FlagHeadersEndStream
	}
	for {
		part := block[:min(len(block), payload)]
		if block = block[len(part):]; len(block) == 0 {
			flags |= http2.FlagHeadersEndHeaders
		}
		b = append(appendFrameHeader(b, len(part), kind, flags, id), part...)
		if len(block) == 0 {
			return b
		}
		kind, flags = http2.FrameContinuation, 0
	}
}
