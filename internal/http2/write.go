package http2

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Pending frames are written when there are writeSize bytes of them, or earlier when a handler flushes or ends its response. Handlers
// wait when there are as many while others are being written, or minPending of them when unsentLimit is reached.
const (
	writeSize  = 64 << 10
	minPending = recordSize
)

// largePending is what a connection with more than minPending bytes holds: pending frames, and as many in records.
const largePending = 2 * largeBuffer

// maxBatches is how many times a goroutine writes what was appended meanwhile before it leaves the rest to another.
const maxBatches = 8

// maxControl bounds the control frames that wait for the client to read. A client that causes more is attacking.
const maxControl = 64 << 10

var errFlood = http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)

// writer is the sending half of a connection. Frames are appended to pending in the order in which they are sent, and written by the
// goroutine that sets writing: with one system call for all that other goroutines have appended in the meantime. No goroutine of a
// handler or reader waits for the client: when the kernel accepts no more, a new goroutine writes the rest. The fields are guarded by
// conn.mu.
type writer struct {
	encoder *hpack.Encoder
	block   bytes.Buffer // output of the encoder
	pending *buffer      // frames that are not yet written; nil when there are none
	control int          // bytes of control frames in pending
	large   bool         // largePending is acquired from unsent
	writing bool         // a goroutine writes pending
	ending  bool         // the sending side is closed when nothing is pending
	ended   bool         // it is closed
	broken  error        // of a failed write; no other write follows

	forSpace  waitQueue // streams that wait for space in pending
	forWindow waitQueue // streams that wait for the connection's send window
}

// waitQueue are streams that wait for something of their connection, in the order in which they get it. The first is signalled when it
// is available. It is guarded by conn.mu.
type waitQueue []*stream

// isNext reports whether it is the stream's turn.
func (q *waitQueue) isNext(s *stream) bool { return len(*q) == 0 || (*q)[0] == s }

func (q *waitQueue) add(s *stream) {
	if !slices.Contains(*q, s) {
		*q = append(*q, s)
	}
}

// remove removes a stream that has got what it waited for, or waits no longer. The next one may then be able to go on.
func (q *waitQueue) remove(s *stream) {
	i := slices.Index(*q, s)
	if i < 0 {
		return
	}
	*q = slices.Delete(*q, i, i+1)
	if i == 0 {
		q.signalFirst()
	}
}

func (q *waitQueue) signalFirst() {
	if len(*q) > 0 {
		(*q)[0].signal((*q)[0].wake)
	}
}

// queueControl appends a control frame. It never waits, so the reader can call it. It is called with mu held; flushControl must follow.
func (c *conn) queueControl(add func([]byte) []byte) {
	c.pending = c.pending.extend(smallBuffer / 8)
	before := len(c.pending.bytes)
	c.pending.bytes = add(c.pending.bytes)
	c.control += len(c.pending.bytes) - before
}

// flushControl writes queued control frames. An error closes the connection.
func (c *conn) flushControl() error {
	c.mu.Lock()
	control, ending, writing := c.control, c.ending && !c.ended, c.writing
	c.mu.Unlock()
	if control > maxControl && writing {
		return errFlood
	}
	if control > 0 || ending {
		c.flush()
	}
	return nil
}

// pendingSize is called with mu held.
func (c *conn) pendingSize() int {
	if c.pending == nil {
		return 0
	}
	return len(c.pending.bytes)
}

// hasSpace reports whether a handler may append a frame. It is called with mu held.
func (c *conn) hasSpace() bool {
	size := c.pendingSize()
	return size < minPending || size < writeSize && c.acquireLarge()
}

// hasSpaceFor reports whether n bytes may be appended at once. It is called with mu held.
func (c *conn) hasSpaceFor(n int) bool {
	return c.hasSpace() && (n <= payload || c.pendingSize()+n <= writeSize && c.acquireLarge())
}

// acquireLarge reports whether more than minPending bytes may be pending. It is called with mu held.
func (c *conn) acquireLarge() bool {
	if !c.large && !c.closed {
		c.large = unsent.acquire(largePending)
	}
	return c.large
}

// appendHeaderFrames compresses and appends headers. It is called with mu held.
func (c *conn) appendHeaderFrames(id uint32, fields []hpack.HeaderField, end bool) {
	c.block.Reset()
	for i := range fields {
		_ = c.encoder.WriteField(fields[i]) // writing to a buffer does not fail
	}
	size := c.block.Len()
	c.pending = c.pending.extend(size + (size/payload+1)*frameHeaderSize)
	c.pending.bytes = appendHeaders(c.pending.bytes, id, c.block.Bytes(), end)
}

// flush writes the pending frames, unless another goroutine is writing: that one writes them too.
func (c *conn) flush() {
	if c.beginWriting() {
		c.writePending()
	}
}

// flushTogether is flush for one of several streams that often have something to send at the same time: it lets other goroutines that
// can run append theirs first.
func (c *conn) flushTogether() {
	if c.beginWriting() {
		if c.openStreams() > 1 {
			runtime.Gosched()
		}
		c.writePending()
	}
}

func (c *conn) openStreams() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams)
}

// beginWriting makes the calling goroutine the one that writes, if there is something to write and no other writes.
func (c *conn) beginWriting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writing || c.broken != nil || c.pending == nil && (!c.ending || c.ended) {
		return false
	}
	c.writing = true
	return true
}

// writePending writes until nothing is pending.
func (c *conn) writePending() {
	for range maxBatches {
		batch, end := c.takePending()
		if batch == nil && !end {
			return
		}
		all, err := c.writeBatch(batch, end)
		if err != nil {
			c.fail(err)
			return
		}
		if !all {
			go c.writeRest()
			return
		}
	}
	go c.writePending()
}

// takePending returns the pending frames, or end when the sending side is to be closed. When there is neither, the goroutine is no longer
// the one that writes.
func (c *conn) takePending() (batch *buffer, end bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended { // nothing can be sent any more
		c.pending.free()
		c.pending = nil
	}
	batch, c.pending, c.control = c.pending, nil, 0
	if batch == nil && c.ending && !c.ended {
		c.ended = true
		return nil, true
	}
	if batch == nil {
		c.writing = false
		c.releaseLarge()
	}
	c.forSpace.signalFirst()
	return batch, false
}

// releaseLarge is called with mu held.
func (c *conn) releaseLarge() {
	if c.large {
		c.large = false
		unsent.release(largePending)
	}
}

// writeBatch encrypts frames and sends as much as the kernel accepts. all is false when writeRest must send the rest.
func (c *conn) writeBatch(batch *buffer, end bool) (all bool, err error) {
	if end {
		err = c.tlsConn.CloseWrite()
		_ = c.socket.SetWriteDeadline(time.Time{})                   // TLS has made later writes fail, but its last record is still queued
		_ = c.tlsConn.SetReadDeadline(time.Now().Add(goAwayTimeout)) // the client reads what was sent before it closes its own side
	} else {
		_, err = c.tlsConn.Write(batch.bytes)
		batch.free()
	}
	if err != nil {
		return false, err
	}
	return c.socket.trySend()
}

// writeRest waits until the client has accepted what writeBatch could not send, and continues to write.
func (c *conn) writeRest() {
	if err := c.socket.sendRest(); err != nil {
		c.fail(err)
		return
	}
	c.writePending()
}

// fail closes the connection after a failed write. The reader then returns.
func (c *conn) fail(err error) {
	c.mu.Lock()
	c.broken = errors.Join(errConnClosed, err)
	c.writing = false
	c.pending.free()
	c.pending = nil
	c.releaseLarge()
	c.mu.Unlock()
	_ = c.socket.Close()
}
