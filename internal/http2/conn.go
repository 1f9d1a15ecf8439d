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

// conn is a connection. One goroutine reads; the handlers, one goroutine each, write.
type conn struct {
	server     *http.Server
	tlsConn    *tls.Conn
	socket     *socket // below tlsConn
	handler    http.Handler
	state      *tls.ConnectionState
	remote     string
	ctx        context.Context
	cancel     context.CancelFunc
	framer     *http2.Framer // only reads
	maxStreams int

	// Idle workers wait for the next request, so that it gets a goroutine whose stack has already grown.
	requests chan *stream
	waiting  atomic.Int32

	// mu is never held while reading, encrypting or writing.
	mu sync.Mutex
	writer
	streams       map[uint32]*stream
	lastID        uint32 // of the newest stream
	ignoredID     uint32 // of the newest stream that was ignored because the connection is draining
	opening       bool   // the stream lastID is being opened and not yet in streams
	running       int    // handlers, including those of streams that were reset
	send          int64  // how much may be sent on all streams together
	initial       int64  // how much may be sent on a new one
	receiveWindow window // what the client may send on all streams together
	established   bool   // the settings were exchanged
	drainFirst    bool   // the server was shutting down before the connection was established
	draining      bool   // no more streams are taken
	closed        bool
	read          time.Time
	busy          time.Time // when a stream was last open
	pinged        bool
	timer         *time.Timer
}

// maxWindow is the largest flow-control window of the protocol.
const maxWindow = 1<<31 - 1

// maxSettings bounds the settings of one frame; the protocol defines six.
const maxSettings = 100

// maxIdleWorkers is how many goroutines of a connection wait for its next requests.
const maxIdleWorkers = 4

func newConn(server *http.Server, tlsConn *tls.Conn, below *socket, handler http.Handler) *conn {
	state := tlsConn.ConnectionState()
	c := &conn{
		server: server, tlsConn: tlsConn, socket: below, handler: handler, state: &state, remote: tlsConn.RemoteAddr().String(),
		maxStreams: maxStreams(server), requests: make(chan *stream), streams: map[uint32]*stream{},
		send: 65535, initial: 65535, receiveWindow: window{size: connectionWindow, open: connectionWindow},
	}
	below.queueRecords()
	c.ctx, c.cancel = context.WithCancel(baseContext(handler))
	c.writer.encoder = hpack.NewEncoder(&c.writer.block)
	c.framer = http2.NewFramer(io.Discard, tlsConn)
	c.framer.SetMaxReadFrameSize(maxFrameSize)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.framer.MaxHeaderListSize = c.maxHeaderList()
	c.framer.SetReuseFrames()
	return c
}

// maxHeaderList is the protocol's SETTINGS_MAX_HEADER_LIST_SIZE for the server's MaxHeaderBytes.
func (c *conn) maxHeaderList() uint32 {
	size := c.server.MaxHeaderBytes
	if size <= 0 {
		size = http.DefaultMaxHeaderBytes
	}
	return uint32(size + 10*32) // the protocol adds 32 bytes for each header; allow for ten
}

// serve reads frames until the connection ends.
func (c *conn) serve() {
	defer c.close()
	if !isAdequate(c.state) {
		c.closeWithError(http2.ConnectionError(http2.ErrCodeInadequateSecurity))
		return
	}
	if err := c.handshake(); err != nil {
		return
	}
	c.startKeepalive()
	if c.establish() {
		c.drain()
	}
	for {
		frame, err := c.framer.ReadFrame()
		if err == nil {
			c.recordRead()
			err = c.act(frame)
		}
		if err != nil {
			err = c.resetRefused(err)
		}
		if err == nil {
			err = c.flushControl()
		}
		if err != nil {
			c.closeWithError(err)
			return
		}
	}
}

// resetRefused resets the stream of a StreamError. It returns the error that closes the connection: any other one.
func (c *conn) resetRefused(err error) error {
	var refused http2.StreamError
	if errors.As(err, &refused) {
		return c.resetStream(refused.StreamID, refused.Code)
	}
	return err
}

// establish marks the connection as established. It reports whether it has to be drained at once.
func (c *conn) establish() (drain bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.established = true
	return c.drainFirst
}

// isAdequate reports whether HTTP/2 may be used: not with the cipher suites that RFC 9113, appendix A, lists. Of those that Go has, all
// that remain are ephemeral and authenticated.
func isAdequate(state *tls.ConnectionState) bool {
	if state.Version >= tls.VersionTLS13 {
		return true
	}
	switch state.CipherSuite {
	case tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256:
		return state.Version == tls.VersionTLS12
	}
	return false
}

// handshake exchanges the prefaces and the first settings.
func (c *conn) handshake() error {
	timeout := c.server.ReadHeaderTimeout
	if timeout <= 0 {
		timeout = pingTimeout
	}
	if err := c.tlsConn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	c.sendSettings()
	var preface [len(http2.ClientPreface)]byte
	if _, err := io.ReadFull(c.tlsConn, preface[:]); err != nil {
		return err
	}
	if string(preface[:]) != http2.ClientPreface {
		c.closeWithError(http2.ConnectionError(http2.ErrCodeProtocol))
		return errors.New("invalid client preface")
	}
	frame, err := c.framer.ReadFrame()
	if err != nil {
		c.closeWithError(err)
		return err
	}
	settings, ok := frame.(*http2.SettingsFrame)
	if !ok || settings.IsAck() {
		c.closeWithError(http2.ConnectionError(http2.ErrCodeProtocol))
		return errors.New("the first frame is not SETTINGS")
	}
	if err := c.act(frame); err != nil {
		c.closeWithError(err)
		return err
	}
	if err := c.flushControl(); err != nil {
		return err
	}
	return c.tlsConn.SetReadDeadline(time.Time{})
}

// sendSettings sends the first frames of the server.
func (c *conn) sendSettings() {
	c.sendControl(func(b []byte) []byte {
		b = appendSettings(b,
			http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(c.maxStreams)},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
			http2.Setting{ID: http2.SettingMaxFrameSize, Val: maxFrameSize},
			http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: c.framer.MaxHeaderListSize})
		return appendWindowUpdate(b, 0, connectionWindow-65535)
	})
}

// sendControl queues control frames and writes them.
func (c *conn) sendControl(add func([]byte) []byte) {
	c.mu.Lock()
	c.queueControl(add)
	c.mu.Unlock()
	c.flush()
}

// closeWithError closes the connection after a protocol error of the client, with a GOAWAY frame that names it.
func (c *conn) closeWithError(err error) {
	var protocolErr http2.ConnectionError
	code := http2.ErrCodeProtocol
	switch {
	case errors.As(err, &protocolErr):
		code = http2.ErrCode(protocolErr)
	case errors.Is(err, http2.ErrFrameTooLarge):
		code = http2.ErrCodeFrameSize
	default:
		return // an I/O error: the client cannot be reached
	}
	// A client that does not read must not hold the goroutine.
	cut := time.AfterFunc(goAwayTimeout, func() { _ = c.socket.Close() })
	defer cut.Stop()
	c.mu.Lock()
	c.draining, c.ending = true, true
	c.queueControl(func(b []byte) []byte { return appendGoAway(b, c.lastID, code) })
	c.mu.Unlock()
	c.flush()
	// Closing a socket with unread bytes would reset it and discard the GOAWAY frame.
	_, _ = io.CopyN(io.Discard, c.tlsConn, 1<<20)
}

// close closes the connection and fails its streams.
func (c *conn) close() {
	c.cancel()
	_ = c.tlsConn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining, c.closed = true, true
	c.releaseLarge()
	if c.timer != nil {
		c.timer.Stop()
	}
	for _, s := range c.streams {
		s.fail(errConnClosed)
	}
}

// drain sends GOAWAY and closes the connection when the requests in flight are finished. A connection that is not established gets GOAWAY
// after the settings, so that its client can send its requests again.
func (c *conn) drain() {
	if c.beginDraining() {
		c.flush()
	}
}

// beginDraining queues the GOAWAY frame, unless it was sent before.
func (c *conn) beginDraining() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drainFirst = !c.established
	if c.draining || c.drainFirst {
		return false
	}
	c.draining = true
	c.queueControl(func(b []byte) []byte { return appendGoAway(b, c.lastID, http2.ErrCodeNo) })
	c.endDrained()
	return true
}

// endDrained ends a draining connection without streams. It is called with mu held; flushControl must follow.
func (c *conn) endDrained() {
	c.ending = c.ending || c.draining && len(c.streams) == 0 && !c.opening
}

func (c *conn) recordRead() {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read, c.pinged = now, false
}

// startKeepalive starts the timer that closes an idle connection, or one whose client does not respond to PING.
func (c *conn) startKeepalive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = time.Now()
	c.busy = c.read
	c.timer = time.AfterFunc(pingInterval, c.keepalive)
}

// keepalive runs when the timer fires.
func (c *conn) keepalive() {
	now := time.Now()
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	idle := len(c.streams) == 0
	next, ping := pingInterval, false
	switch silent := now.Sub(c.read); {
	case c.pinged && silent >= pingInterval+pingTimeout:
		c.mu.Unlock()
		_ = c.socket.Close() // the client does not respond
		return
	case silent >= pingInterval:
		c.pinged, ping, next = true, true, pingTimeout
	default:
		next = pingInterval - silent
	}
	if idle && c.server.IdleTimeout > 0 {
		left := c.server.IdleTimeout - now.Sub(c.busy)
		if left <= 0 {
			c.mu.Unlock()
			c.drain()
			return
		}
		next = min(next, left)
	}
	c.timer.Reset(next)
	c.mu.Unlock()
	if ping {
		c.sendControl(func(b []byte) []byte { return appendPing(b, false, [8]byte{'a', 'l', 'i', 'v', 'e', '?'}) })
	}
}

// act handles a frame. A StreamError resets the stream, any other error closes the connection.
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
		c.onPing(f)
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

func (c *conn) onPing(f *http2.PingFrame) {
	if f.IsAck() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queueControl(func(b []byte) []byte { return appendPing(b, true, f.Data) })
}

// refuse reports whether a stream that the client opens is not processed, which GOAWAY has told it. Its frames are ignored, and it is
// not reset: GOAWAY allows the client to send its request again. It is called with mu held.
func (c *conn) refuse(id uint32) bool {
	if !c.draining || id <= c.lastID {
		return false
	}
	c.ignoredID = max(c.ignoredID, id)
	return true
}

// onHeaders opens a stream, or ends a request's body with trailers.
func (c *conn) onHeaders(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	if id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if f.HasPriority() && f.Priority.StreamDep == id {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	if opens, err := c.accept(f); !opens || err != nil {
		return err
	}
	s := &stream{conn: c, id: id, wake: make(chan struct{}, 1), arrived: make(chan struct{}, 1)}
	if err := c.add(s, s.open(f)); err != nil {
		return err
	}
	select {
	case c.requests <- s:
	default:
		go c.work(s)
	}
	return nil
}

// accept handles a HEADERS frame that does not open a stream, and reports whether it does.
func (c *conn) accept(f *http2.MetaHeadersFrame) (opens bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := f.StreamID
	switch s := c.streams[id]; {
	case s != nil:
		return false, s.onTrailers(f)
	case id <= c.lastID:
		return false, http2.ConnectionError(http2.ErrCodeStreamClosed)
	case c.refuse(id):
		return false, nil
	}
	c.lastID = id
	if c.running >= c.maxStreams {
		return false, http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	c.opening = true
	return true, nil
}

// add adds a stream, unless it could not be opened because of err.
func (c *conn) add(s *stream, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opening = false
	if err != nil {
		c.endDrained()
		return err
	}
	s.window = c.initial
	c.streams[s.id] = s
	c.running++
	return nil
}

// work serves a request, and then further requests of the connection.
func (c *conn) work(s *stream) {
	for {
		s.serve()
		c.mu.Lock()
		c.running--
		c.mu.Unlock()
		if c.waiting.Add(1) > maxIdleWorkers {
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
	defer c.mu.Unlock()
	if !c.receiveWindow.take(length) {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	s := c.streams[f.StreamID]
	if s == nil || s.ended {
		c.returnCredit(length)
		if err := c.closedOrIdle(f.StreamID); err != nil || f.StreamID > c.lastID {
			return err // a stream that was ignored is not reset
		}
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeStreamClosed}
	}
	return s.onData(f, length)
}

// returnCredit lets the client send more on the connection. It is called with mu held.
func (c *conn) returnCredit(n int64) {
	if increment := c.receiveWindow.returnCredit(n); increment > 0 {
		c.queueControl(func(b []byte) []byte { return appendWindowUpdate(b, 0, uint32(increment)) })
	}
}

func (c *conn) onWindow(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		if c.send += int64(f.Increment); c.send > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.forWindow.signalFirst()
		return nil
	}
	s := c.streams[f.StreamID]
	if s == nil {
		return c.closedOrIdle(f.StreamID)
	}
	return s.increaseWindow(int64(f.Increment))
}

// closedOrIdle checks a frame for a stream that is not open: it is allowed for a closed stream, an error for an idle one.
func (c *conn) closedOrIdle(id uint32) error {
	if id > max(c.lastID, c.ignoredID) || id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

func (c *conn) onReset(f *http2.RSTStreamFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.streams[f.StreamID]
	if s == nil {
		return c.closedOrIdle(f.StreamID)
	}
	s.fail(fmt.Errorf("http2: stream reset by the client: %s", f.ErrCode))
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := f.ForeachSetting(c.set); err != nil {
		return err
	}
	c.queueControl(func(b []byte) []byte { return appendFrameHeader(b, 0, http2.FrameSettings, http2.FlagSettingsAck, 0) })
	return nil
}

// set applies a setting. It is called with mu held, until the acknowledgement is queued: headers that are compressed with the new size of
// the table follow it.
func (c *conn) set(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingHeaderTableSize:
		c.encoder.SetMaxDynamicTableSizeLimit(s.Val)
	case http2.SettingInitialWindowSize:
		growth := int64(s.Val) - c.initial
		c.initial = int64(s.Val)
		for _, stream := range c.streams {
			if stream.increaseWindow(growth) != nil {
				return http2.ConnectionError(http2.ErrCodeFlowControl)
			}
		}
	}
	return nil
}

// resetStream resets a stream. An error closes the connection.
func (c *conn) resetStream(id uint32, code http2.ErrCode) error {
	c.queueReset(id, code)
	return c.flushControl()
}

func (c *conn) queueReset(id uint32, code http2.ErrCode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse(id) {
		return
	}
	if s := c.streams[id]; s != nil {
		s.fail(fmt.Errorf("http2: stream reset: %s", code))
		c.remove(s)
	}
	if id%2 == 1 {
		c.lastID = max(c.lastID, id)
	}
	c.queueControl(func(b []byte) []byte { return appendReset(b, id, code) })
}

// remove removes a closed stream. It is called with mu held; flushControl must follow.
func (c *conn) remove(s *stream) {
	if c.streams[s.id] != s {
		return
	}
	delete(c.streams, s.id)
	s.dropBody()
	if len(c.streams) == 0 {
		c.busy = time.Now()
		c.endDrained()
	}
}

// window is the flow-control window of data from the client.
type window struct {
	size, open int64
	consumed   int64 // read, and not yet granted again
}

func (w *window) take(n int64) bool {
	w.open -= n
	return w.open >= 0
}

// returnCredit returns the increment for a WINDOW_UPDATE frame, or zero until it is large enough to be worth one.
func (w *window) returnCredit(n int64) int64 {
	if w.consumed += n; w.consumed < w.size/4 {
		return 0
	}
	increment := w.consumed
	w.open, w.consumed = w.open+increment, 0
	return increment
}
