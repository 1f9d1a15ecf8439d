package http2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// errConnClosed: the connection is closed.
var errConnClosed = errors.New("http2: connection closed")

// stream is a request and its response.
type stream struct {
	conn     *conn
	id       uint32
	request  *http.Request
	cancel   context.CancelFunc
	response response
	wake     chan struct{} // the response may be able to go on
	arrived  chan struct{} // the body has grown or ended
	// writeTimeout is how long a write may wait for the client; zero means forever. Only the handler's goroutine uses it.
	writeTimeout time.Duration

	// Guarded by conn.mu.
	window  int64     // how much may be sent to the client
	sendBy  time.Time // the write deadline; zero is none
	failed  error     // the stream was reset or the connection closed
	ended   bool      // END_STREAM was received
	endSent bool      // END_STREAM is being sent

	body          []byte // received and not yet read
	receiveWindow window
	declared      int64 // Content-Length, or -1
	received      int64
	readErr       error // a deadline has passed, or the body was closed
	deadline      *time.Timer
	trailers      [][2]string
}

// open makes the request from the header frame.
func (s *stream) open(f *http2.MetaHeadersFrame) error {
	malformed := http2.StreamError{StreamID: s.id, Code: http2.ErrCodeProtocol}
	method, path, scheme := f.PseudoValue("method"), f.PseudoValue("path"), f.PseudoValue("scheme")
	if method == "" || scheme != "https" && scheme != "http" || !strings.HasPrefix(path, "/") && path != "*" {
		return malformed
	}
	s.ended, s.declared = f.StreamEnded(), -1
	s.receiveWindow = window{size: streamWindow, open: streamWindow}
	header, err := headerOf(f.RegularFields())
	if err != nil {
		return malformed
	}
	host := f.PseudoValue("authority")
	if host == "" {
		host = header.Get("Host")
	}
	header.Del("Host")
	req := &http.Request{
		Method: method, Proto: "HTTP/2.0", ProtoMajor: 2, Header: header, Host: host, RequestURI: path,
		RemoteAddr: s.conn.remote, TLS: s.conn.state, Body: http.NoBody,
	}
	if req.URL, err = url.ParseRequestURI(path); err != nil && path != "*" {
		return malformed
	}
	if path == "*" {
		req.URL = &url.URL{Path: "*"}
	}
	if err := s.openBody(req); err != nil {
		return malformed
	}
	ctx, cancel := context.WithCancel(s.conn.ctx)
	s.cancel, s.request = cancel, req.WithContext(ctx)
	s.response = response{stream: s, header: http.Header{}, tooLarge: f.Truncated}
	return nil
}

// openBody sets the request's body and its length.
func (s *stream) openBody(req *http.Request) error {
	if lengths := req.Header["Content-Length"]; len(lengths) > 0 {
		n, err := strconv.ParseUint(lengths[0], 10, 63)
		if err != nil || len(lengths) > 1 || s.ended && n > 0 {
			return errors.New("invalid Content-Length")
		}
		s.declared = int64(n)
	}
	if s.ended {
		return nil
	}
	req.Body, req.ContentLength = &body{s}, s.declared
	for _, names := range req.Header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			if req.Trailer == nil {
				req.Trailer = http.Header{}
			}
			req.Trailer[textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))] = nil
		}
	}
	req.Header.Del("Trailer")
	return nil
}

// headerOf makes a header of the fields of a request.
func headerOf(fields []hpack.HeaderField) (http.Header, error) {
	header := make(http.Header, len(fields))
	values := make([]string, len(fields)) // one allocation for all
	for i, field := range fields {
		switch field.Name {
		case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
			return nil, fmt.Errorf("connection-specific header %s", field.Name)
		case "te":
			if field.Value != "trailers" {
				return nil, errors.New("te is not trailers")
			}
		}
		name := textproto.CanonicalMIMEHeaderKey(field.Name)
		if existing := header[name]; existing != nil && name == "Cookie" {
			existing[0] += "; " + field.Value
		} else if existing != nil {
			header[name] = append(existing, field.Value)
		} else {
			values[i] = field.Value
			header[name] = values[i : i+1 : i+1]
		}
	}
	return header, nil
}

// serve runs the handler.
func (s *stream) serve() {
	defer s.cancel()
	finished := false
	defer func() {
		if finished {
			return
		}
		if reason := recover(); reason != nil && reason != http.ErrAbortHandler {
			s.log("http2: panic serving %s: %v\n%s", s.conn.remote, reason, debug.Stack())
		}
		s.response.drop()
		_ = s.conn.resetStream(s.id, http2.ErrCodeInternal) // the reader detects a flood itself
	}()
	if s.response.tooLarge {
		s.response.WriteHeader(http.StatusRequestHeaderFieldsTooLarge)
	} else {
		s.conn.handler.ServeHTTP(&s.response, s.request)
	}
	s.response.finish()
	finished = true
	s.close()
}

func (s *stream) log(format string, args ...any) {
	if logger := s.conn.server.ErrorLog; logger != nil {
		logger.Printf(format, args...)
	}
}

// close closes the stream after its response and writes what is pending. The rest of the request's body is refused.
func (s *stream) close() {
	s.remove()
	s.conn.flush()
}

func (s *stream) remove() {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.ended && c.streams[s.id] == s {
		c.queueControl(func(b []byte) []byte { return appendReset(b, s.id, http2.ErrCodeNo) })
	}
	s.readErr = http.ErrBodyReadAfterClose
	if s.deadline != nil {
		s.deadline.Stop()
	}
	c.remove(s)
}

// fail makes the handler's reads and writes fail. It is called with conn.mu held.
func (s *stream) fail(err error) {
	if s.failed == nil {
		s.failed = err
		s.conn.forSpace.remove(s)
		s.conn.forWindow.remove(s)
		s.cancel()
		s.signal(s.wake)
		s.signal(s.arrived)
	}
}

func (*stream) signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default: // already signalled
	}
}

// onData receives a part of the request's body. It is called with conn.mu held; length includes padding.
func (s *stream) onData(f *http2.DataFrame, length int64) error {
	c, data := s.conn, f.Data()
	if !s.receiveWindow.take(length) {
		c.returnCredit(length)
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl}
	}
	s.received += int64(len(data))
	if s.declared >= 0 && (s.received > s.declared || f.StreamEnded() && s.received < s.declared) {
		c.returnCredit(length)
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeProtocol}
	}
	s.ended = f.StreamEnded()
	if s.readErr != nil {
		s.returnCredit(length) // the handler has closed the body
		return nil
	}
	s.returnCredit(length - int64(len(data)))
	s.body = append(s.body, data...)
	s.signal(s.arrived)
	return nil
}

// returnCredit lets the client send more of its request. It is called with conn.mu held.
func (s *stream) returnCredit(n int64) {
	s.conn.returnCredit(n)
	if increment := s.receiveWindow.returnCredit(n); increment > 0 && !s.ended {
		s.conn.queueControl(func(b []byte) []byte { return appendWindowUpdate(b, s.id, uint32(increment)) })
	}
}

// dropBody discards the unread body. It is called with conn.mu held.
func (s *stream) dropBody() {
	s.conn.returnCredit(int64(len(s.body)))
	s.body = nil
}

// onTrailers ends the request's body. It is called with conn.mu held.
func (s *stream) onTrailers(f *http2.MetaHeadersFrame) error {
	switch {
	case s.ended && s.endSent:
		return http2.ConnectionError(http2.ErrCodeStreamClosed) // the client may already know that the stream is closed
	case s.ended:
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeStreamClosed}
	case !f.StreamEnded() || len(f.PseudoFields()) > 0:
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeProtocol}
	case s.declared >= 0 && s.received < s.declared:
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeProtocol}
	}
	for _, field := range f.RegularFields() {
		if httpguts.ValidTrailerHeader(textproto.CanonicalMIMEHeaderKey(field.Name)) {
			s.trailers = append(s.trailers, [2]string{textproto.CanonicalMIMEHeaderKey(field.Name), field.Value})
		}
	}
	s.ended = true
	s.signal(s.arrived)
	return nil
}

// body is the body of a request.
type body struct{ s *stream }

func (b *body) Read(p []byte) (int, error) {
	s := b.s
	c := s.conn
	s.response.sendContinue()
	defer c.flushControl()
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case len(p) == 0:
			return 0, nil
		case s.readErr != nil:
			return 0, s.readErr
		case len(s.body) > 0:
			n := copy(p, s.body)
			if s.body = s.body[n:]; len(s.body) == 0 {
				s.body = nil
			}
			s.returnCredit(int64(n))
			return n, nil
		case s.failed != nil:
			return 0, s.failed
		case s.ended:
			s.fillTrailers()
			return 0, io.EOF
		}
		c.mu.Unlock()
		<-s.arrived
		c.mu.Lock()
	}
}

// fillTrailers sets the announced trailers when the body has been read to its end.
func (s *stream) fillTrailers() {
	for _, t := range s.trailers {
		if values, announced := s.request.Trailer[t[0]]; announced {
			s.request.Trailer[t[0]] = append(slices.Clip(values), t[1])
		}
	}
	s.trailers = nil
}

func (b *body) Close() error {
	b.s.stopReading(http.ErrBodyReadAfterClose)
	return nil
}

// stopReading makes reads of the body fail.
func (s *stream) stopReading(err error) {
	s.conn.mu.Lock()
	if s.readErr == nil {
		s.readErr = err
		s.dropBody()
		s.signal(s.arrived)
	}
	s.conn.mu.Unlock()
	_ = s.conn.flushControl()
}

// setReadDeadline makes reads of the body fail at a time; zero means never.
func (s *stream) setReadDeadline(t time.Time) {
	s.conn.mu.Lock()
	if s.deadline != nil {
		s.deadline.Stop()
		s.deadline = nil
	}
	left := time.Until(t)
	if left > 0 {
		s.deadline = time.AfterFunc(left, func() { s.stopReading(os.ErrDeadlineExceeded) })
	}
	s.conn.mu.Unlock()
	if left <= 0 && !t.IsZero() {
		s.stopReading(os.ErrDeadlineExceeded)
	}
}
