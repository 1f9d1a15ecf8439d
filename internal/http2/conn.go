package http2

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// conn is a connection. Its goroutine reads; handlers, one goroutine each, write.
type conn struct {
	server  *http.Server
	secure  *tls.Conn
	raw     *gatherer // below secure; nil when the listener is another
	handler http.Handler
	state   *tls.ConnectionState
	remote  string
	ctx     context.Context
	cancel  context.CancelFunc
	framer  *http2.Framer // only reads

	// Those who wait for the next request, so that it finds a goroutine whose stack has grown.
	requests chan *stream
	waiting  atomic.Int32

	writer

	mu      sync.Mutex
	streams map[uint32]*stream
	lastID  uint32 // of the newest stream
	running int    // handlers, including those of streams that were reset
	send    int64  // how much may be sent on all streams together
	initial int64  // how much may be sent on a new one
	stalled int    // streams that wait to be allowed to send more
	credit  window // what the client may send on all streams together
	retired bool   // no more streams are taken
	closed  bool
	read    time.Time
	busy    time.Time // when a stream was last open
	pinged  bool
	timer   *time.Timer
}

// maxWindow is the largest window the protocol knows.
const maxWindow = 1<<31 - 1

// maxSettings is far more than there are.
const maxSettings = 100

// idleWorkers is how many goroutines wait on a connection for its next requests.
const idleWorkers = 4

func newConn(server *http.Server, secure *tls.Conn, handler http.Handler) *conn {
	state := secure.ConnectionState()
	c := &conn{
		server: server, secure: secure, handler: handler, state: &state, remote: secure.RemoteAddr().String(),
		requests: make(chan *stream), streams: map[uint32]*stream{},
		send: 65535, initial: 65535, credit: window{size: connectionWindow, open: connectionWindow},
	}
	c.raw, _ = secure.NetConn().(*gatherer)
	c.ctx, c.cancel = context.WithCancel(baseContext(handler))
	c.writer.encoder = hpack.NewEncoder(&c.writer.block)
	c.framer = http2.NewFramer(io.Discard, secure)
	c.framer.SetMaxReadFrameSize(maxFrameSize)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.framer.MaxHeaderListSize = c.maxHeaderList()
	c.framer.SetReuseFrames()
	return c
}

// maxHeaderList is what the protocol counts for headers of the server's largest size.
func (c *conn) maxHeaderList() uint32 {
	size := c.server.MaxHeaderBytes
	if size <= 0 {
		size = http.DefaultMaxHeaderBytes
	}
	return uint32(size + 10*32) // ten headers, each counted with 32 bytes more
}

// serve reads frames until the connection ends.
func (c *conn) serve() {
	defer c.close()
	if err := c.greet(); err != nil {
		return
	}
	c.watchOver()
	for {
		frame, err := c.framer.ReadFrame()
		if err == nil {
			c.noteRead()
			err = c.act(frame)
		}
		if err == nil {
			continue
		}
		var refused http2.StreamError
		if errors.As(err, &refused) {
			err = c.resetStream(refused.StreamID, refused.Code)
		}
		if err != nil {
			c.refuse(err)
			return
		}
	}
}

// greet exchanges the first words.
func (c *conn) greet() error {
	timeout := c.server.ReadHeaderTimeout
	if timeout <= 0 {
		timeout = answerTime
	}
	if err := c.secure.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	c.queue(func(b []byte) []byte {
		b = appendSettings(b,
			http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: maxStreams},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
			http2.Setting{ID: http2.SettingMaxFrameSize, Val: maxFrameSize},
			http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: c.framer.MaxHeaderListSize})
		return appendWindowUpdate(b, 0, connectionWindow-65535)
	})
	_ = c.flushQueue()
	var preface [len(http2.ClientPreface)]byte
	if _, err := io.ReadFull(c.secure, preface[:]); err != nil {
		return err
	}
	if string(preface[:]) != http2.ClientPreface {
		c.refuse(http2.ConnectionError(http2.ErrCodeProtocol))
		return errors.New("not HTTP/2")
	}
	frame, err := c.framer.ReadFrame()
	if err != nil {
		c.refuse(err)
		return err
	}
	settings, ok := frame.(*http2.SettingsFrame)
	if !ok || settings.IsAck() {
		c.refuse(http2.ConnectionError(http2.ErrCodeProtocol))
		return errors.New("the client does not begin with its settings")
	}
	if err := c.act(frame); err != nil {
		c.refuse(err)
		return err
	}
	return c.secure.SetReadDeadline(time.Time{})
}

// refuse ends the connection for an error of the client, and tells it which.
func (c *conn) refuse(err error) {
	var broken http2.ConnectionError
	code := http2.ErrCodeProtocol
	switch {
	case errors.As(err, &broken):
		code = http2.ErrCode(broken)
	case errors.Is(err, http2.ErrFrameTooLarge):
		code = http2.ErrCodeFrameSize
	default:
		return // the connection itself is broken
	}
	c.mu.Lock()
	last := c.lastID
	c.mu.Unlock()
	c.queue(func(b []byte) []byte { return appendGoAway(b, last, code) })
	// Who does not read our last words is not waited for.
	cut := time.AfterFunc(farewellTime, func() { _ = c.secure.NetConn().Close() })
	defer cut.Stop()
	c.hangUp()
	// To close a connection with unread bytes would take the last words back.
	_, _ = io.CopyN(io.Discard, c.secure, 1<<20)
}

// close ends everything on the connection.
func (c *conn) close() {
	c.cancel()
	_ = c.secure.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retired, c.closed = true, true
	if c.timer != nil {
		c.timer.Stop()
	}
	for _, s := range c.streams {
		s.fail(errGone)
	}
}

// retire takes no more requests, and ends the connection when those there are have been answered.
func (c *conn) retire() {
	c.mu.Lock()
	if c.retired {
		c.mu.Unlock()
		return
	}
	c.retired = true
	last, idle := c.lastID, len(c.streams) == 0
	c.mu.Unlock()
	c.queue(func(b []byte) []byte { return appendGoAway(b, last, http2.ErrCodeNo) })
	if idle {
		c.hangUp()
	} else {
		_ = c.flushQueue()
	}
}

// hangUp ends the connection after its last words. The client reads those, and the end, before its own end reaches us.
func (c *conn) hangUp() {
	c.writing.Lock()
	c.release()
	_ = c.secure.CloseWrite()
	_ = c.secure.SetReadDeadline(time.Now().Add(farewellTime))
}

func (c *conn) noteRead() {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read, c.pinged = now, false
}

// watchOver ends the connection when it has been idle for too long, or when the client has silently gone away.
func (c *conn) watchOver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = time.Now()
	c.busy = c.read
	c.timer = time.AfterFunc(quietTime, c.look)
}

// look is what watchOver does from time to time.
func (c *conn) look() {
	now := time.Now()
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	idle := len(c.streams) == 0
	next, ping := quietTime, false
	switch quiet := now.Sub(c.read); {
	case c.pinged && quiet >= quietTime+answerTime:
		c.mu.Unlock()
		_ = c.secure.NetConn().Close() // nobody is there to say farewell to
		return
	case quiet >= quietTime:
		c.pinged, ping, next = true, true, answerTime
	default:
		next = quietTime - quiet
	}
	if idle && c.server.IdleTimeout > 0 {
		left := c.server.IdleTimeout - now.Sub(c.busy)
		if left <= 0 {
			c.mu.Unlock()
			c.retire()
			return
		}
		next = min(next, left)
	}
	c.timer.Reset(next)
	c.mu.Unlock()
	if ping {
		c.queue(func(b []byte) []byte { return appendPing(b, false, [8]byte{'a', 'l', 'i', 'v', 'e', '?'}) })
		_ = c.flushQueue()
	}
}

// act does what a frame says. An error for a stream ends that stream, any other the connection.
func (c *conn) act(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		return c.onHeaders(f)
	case *http2.DataFrame:
		return c.onData(f)
	case *http2.WindowUpdateFrame:
		return c.onWindow(f)
	case *http2.SettingsFrame:
		return c.onSettings(f)
	case *http2.RSTStreamFrame:
		return c.onReset(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			data := f.Data
			c.queue(func(b []byte) []byte { return appendPing(b, true, data) })
			return c.flushQueue()
		}
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

// onHeaders begins a stream, or ends a request's body with trailers.
func (c *conn) onHeaders(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	if id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if f.HasPriority() && f.Priority.StreamDep == id {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	c.mu.Lock()
	if s := c.streams[id]; s != nil {
		defer c.mu.Unlock()
		return s.onTrailers(f)
	}
	if id <= c.lastID {
		c.mu.Unlock()
		return http2.ConnectionError(http2.ErrCodeStreamClosed)
	}
	if c.retired {
		c.mu.Unlock()
		return nil // the client has been told that it is not answered
	}
	c.lastID = id
	if c.running >= maxStreams {
		c.mu.Unlock()
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	c.mu.Unlock()

	s := &stream{conn: c, id: id, wake: make(chan struct{}, 1), arrived: make(chan struct{}, 1)}
	if err := s.open(f); err != nil {
		return err
	}
	c.mu.Lock()
	s.window = c.initial
	c.streams[id] = s
	c.running++
	c.mu.Unlock()
	select {
	case c.requests <- s:
	default:
		go c.work(s)
	}
	return nil
}

// work answers a request, and others that follow.
func (c *conn) work(s *stream) {
	for {
		s.answer()
		c.mu.Lock()
		c.running--
		c.mu.Unlock()
		if c.waiting.Add(1) > idleWorkers {
			c.waiting.Add(-1)
			return
		}
		select {
		case s = <-c.requests:
			c.waiting.Add(-1)
		case <-c.ctx.Done():
			return
		}
	}
}

func (c *conn) onData(f *http2.DataFrame) error {
	length := int64(f.Length) // with padding
	c.mu.Lock()
	defer c.flushQueue()
	defer c.mu.Unlock()
	if !c.credit.take(length) {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	s := c.streams[f.StreamID]
	if s == nil || s.ended {
		c.giveBack(length)
		if f.StreamID > c.lastID || f.StreamID%2 == 0 {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeStreamClosed}
	}
	return s.onData(f, length)
}

// giveBack lets the client send more on the connection. It is called with mu held.
func (c *conn) giveBack(n int64) {
	if more := c.credit.giveBack(n); more > 0 {
		c.queue(func(b []byte) []byte { return appendWindowUpdate(b, 0, uint32(more)) })
	}
}

func (c *conn) onWindow(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		if c.send += int64(f.Increment); c.send > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.wakeStalled()
		return nil
	}
	s := c.streams[f.StreamID]
	if s == nil {
		return c.closedOrIdle(f.StreamID)
	}
	return s.widen(int64(f.Increment))
}

// closedOrIdle judges a frame for a stream that is not there: of those that were there it may still come.
func (c *conn) closedOrIdle(id uint32) error {
	if id > c.lastID || id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

// wakeStalled wakes the streams that wait to send. It is called with mu held.
func (c *conn) wakeStalled() {
	if c.stalled == 0 {
		return
	}
	for _, s := range c.streams {
		if s.stalled {
			s.signal(s.wake)
		}
	}
}

func (c *conn) onReset(f *http2.RSTStreamFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.streams[f.StreamID]
	if s == nil {
		return c.closedOrIdle(f.StreamID)
	}
	s.fail(fmt.Errorf("the client ended the request: %s", f.ErrCode))
	c.remove(s)
	return nil
}

func (c *conn) onSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if f.NumSettings() > maxSettings {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	if err := f.ForeachSetting(c.set); err != nil {
		return err
	}
	c.queue(func(b []byte) []byte { return appendFrameHeader(b, 0, http2.FrameSettings, http2.FlagSettingsAck, 0) })
	return c.flushQueue()
}

func (c *conn) set(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingHeaderTableSize:
		c.writer.tableSize.Store(int64(s.Val) + 1)
	case http2.SettingInitialWindowSize:
		c.mu.Lock()
		defer c.mu.Unlock()
		growth := int64(s.Val) - c.initial
		c.initial = int64(s.Val)
		for _, stream := range c.streams {
			if stream.window += growth; stream.window > maxWindow {
				return http2.ConnectionError(http2.ErrCodeFlowControl)
			}
		}
		c.wakeStalled()
	}
	return nil
}

// resetStream ends a stream from our side. An error ends the connection.
func (c *conn) resetStream(id uint32, code http2.ErrCode) error {
	c.mu.Lock()
	if s := c.streams[id]; s != nil {
		s.fail(fmt.Errorf("the request was ended: %s", code))
		c.remove(s)
	}
	if id%2 == 1 {
		c.lastID = max(c.lastID, id)
	}
	c.mu.Unlock()
	c.queue(func(b []byte) []byte { return appendReset(b, id, code) })
	return c.flushQueue()
}

// remove forgets a stream. It is called with mu held.
func (c *conn) remove(s *stream) {
	if c.streams[s.id] != s {
		return
	}
	delete(c.streams, s.id)
	s.dropBody()
	if len(c.streams) == 0 {
		c.busy = time.Now()
		if c.retired {
			go c.hangUp() // not within the lock: it writes
		}
	}
}

// window is what the client may send.
type window struct {
	size, open int64
	back       int64 // was used, and can be given back
}

func (w *window) take(n int64) bool {
	w.open -= n
	return w.open >= 0
}

// giveBack says by how much the client's window should be widened: nothing until it is worth a frame.
func (w *window) giveBack(n int64) int64 {
	if w.back += n; w.back < w.size/4 {
		return 0
	}
	more := w.back
	w.open, w.back = w.open+more, 0
	return more
}
