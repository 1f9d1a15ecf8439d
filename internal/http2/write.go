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
	// writing is held by whoever writes to the connection. The reader never waits for it: a client that does not read is
	// no reason not to listen to it.
	writing sync.Mutex
	encoder *hpack.Encoder
	block   bytes.Buffer // what the encoder wrote
	heads   []byte       // frames of headers
	scratch []byte       // frames that were queued
	broken  error        // a write failed; nothing can follow
	// tableSize is the size, plus one, that the client allows the table of headers; zero when that has not changed.
	tableSize atomic.Int64

	queueMu sync.Mutex
	queued  []byte // frames that go with the next write
}

// maxQueued bounds the frames that wait for a client to read them. Who asks for more without reading means harm.
const maxQueued = 64 << 10

var errFlood = http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)

// queue leaves frames for the next write.
func (c *conn) queue(add func([]byte) []byte) {
	c.queueMu.Lock()
	defer c.queueMu.Unlock()
	c.queued = add(c.queued)
}

// flushQueue sees to it that queued frames are written: by whoever writes just now, or by a goroutine of their own.
func (c *conn) flushQueue() error {
	c.queueMu.Lock()
	waiting := len(c.queued)
	c.queueMu.Unlock()
	switch {
	case waiting == 0:
		return nil
	case c.writing.TryLock():
		go c.release()
	case waiting > maxQueued:
		return errFlood
	}
	return nil
}

// release writes what was queued meanwhile, and lets others write.
func (c *conn) release() {
	for {
		c.queueMu.Lock()
		c.scratch, c.queued = c.queued, c.scratch[:0]
		c.queueMu.Unlock()
		if len(c.scratch) > 0 {
			_ = c.write(c.scratch)
		}
		c.writing.Unlock()
		// What came between the two is written by whoever has the lock now.
		c.queueMu.Lock()
		more := len(c.queued) > 0
		c.queueMu.Unlock()
		if !more || !c.writing.TryLock() {
			return
		}
	}
}

// write writes bytes to the connection. It is called with writing held.
func (c *conn) write(p []byte) error {
	if c.broken != nil {
		return c.broken
	}
	err := c.secure.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err == nil {
		_, err = c.secure.Write(p)
	}
	if err != nil {
		c.breakOff(err)
	}
	return err
}

// gatherWrites runs write, whose bytes go out together. It is called with writing held.
func (c *conn) gatherWrites(write func() error) error {
	err := c.raw.gather(write)
	if err != nil && c.broken == nil {
		c.breakOff(err)
	}
	return err
}

// breakOff ends the connection after a write that failed. The reader finds it closed.
func (c *conn) breakOff(err error) {
	c.broken = errors.Join(errGone, err)
	_ = c.secure.NetConn().Close()
}

// packHeaders packs headers. The bytes are good until the next call. It is called with writing held.
func (c *conn) packHeaders(fields []hpack.HeaderField) []byte {
	if size := c.tableSize.Swap(0); size > 0 {
		c.encoder.SetMaxDynamicTableSizeLimit(uint32(size - 1))
	}
	c.block.Reset()
	for i := range fields {
		_ = c.encoder.WriteField(fields[i]) // a buffer takes everything
	}
	return c.block.Bytes()
}

const frameHeader = 9

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

func appendWindowUpdate(b []byte, id, more uint32) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(b, 4, http2.FrameWindowUpdate, 0, id), more)
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

// appendHeaders appends packed headers in as many frames as they need.
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
