package http2

import (
	"os"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// progress is the result of an attempt to append frames to a connection.
type progress int

const (
	appended progress = iota
	full              // pending frames must be written first
	blocked           // the stream is signalled when it is worth another attempt
)

// await repeats an attempt until it has succeeded or fails.
func (s *stream) await(try func() (progress, error)) error {
	var limit time.Time // set when it first has to wait
	for {
		state, err := try()
		if err != nil || state == appended {
			return err
		}
		s.conn.flush() // the client must receive what was appended before it can grant more
		if state == blocked {
			if s.writeTimeout > 0 && limit.IsZero() {
				limit = time.Now().Add(s.writeTimeout)
			}
			if err := s.wait(limit); err != nil {
				return err
			}
		}
	}
}

// wait waits until the stream is signalled, or until its write deadline or limit, of which zero is none.
func (s *stream) wait(limit time.Time) error {
	deadline := s.writeDeadline()
	if deadline.IsZero() || !limit.IsZero() && limit.Before(deadline) {
		deadline = limit
	}
	if deadline.IsZero() {
		<-s.wake
		return nil
	}
	if left := time.Until(deadline); left > 0 {
		timer := time.NewTimer(left)
		defer timer.Stop()
		select {
		case <-s.wake:
			return nil
		case <-timer.C:
		}
	}
	return s.timeOut()
}

func (s *stream) writeDeadline() time.Time {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.sendBy
}

// timeOut resets the stream: its client has not accepted the response within the deadline.
func (s *stream) timeOut() error {
	if err := s.conn.resetStream(s.id, http2.ErrCodeInternal); err != nil {
		return err
	}
	return os.ErrDeadlineExceeded
}

// setWriteDeadline sets until when the response may wait for the client; zero means forever.
func (s *stream) setWriteDeadline(t time.Time) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.sendBy = t
	s.signal(s.wake)
}

// sendHeaders appends headers to the pending frames.
func (s *stream) sendHeaders(fields []hpack.HeaderField, end bool) error {
	return s.await(func() (progress, error) { return s.tryHeaders(fields, end) })
}

func (s *stream) tryHeaders(fields []hpack.HeaderField, end bool) (progress, error) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := s.sendError(); err != nil {
		return 0, err
	}
	if state := s.takeSpace(); state != appended {
		return state, nil
	}
	c.appendHeaderFrames(s.id, fields, end)
	s.endSent = end
	return appended, nil
}

// sendInterim appends the headers of an informational response. It does not wait: a goroutine that reads the request's body may call it
// while another one waits to send.
func (s *stream) sendInterim(fields []hpack.HeaderField) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.failed == nil {
		s.conn.appendHeaderFrames(s.id, fields, false)
	}
}

// sendData appends data to the pending frames; end ends the response.
func (s *stream) sendData(data []byte, end bool) error {
	return s.await(func() (progress, error) {
		n, state, err := s.tryData(data, end)
		data = data[n:]
		return state, err
	})
}

// tryData appends as much as may be sent now, and returns how much that is.
func (s *stream) tryData(data []byte, end bool) (n int, _ progress, _ error) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := s.sendError(); err != nil {
			return n, 0, err
		}
		if state := s.takeSpace(); state != appended {
			return n, state, nil
		}
		size := 0
		if n < len(data) {
			if size = s.takeWindow(min(len(data)-n, payload)); size == 0 {
				return n, blocked, nil
			}
		}
		last := n+size == len(data)
		c.pending = c.pending.extend(frameHeaderSize + size)
		c.pending.bytes = appendData(c.pending.bytes, s.id, data[n:n+size], end && last)
		if n += size; last {
			s.endSent = end
			return n, appended, nil
		}
	}
}

// appendNow appends data to the pending frames if all of it may be sent now, and reports whether it did. It takes nothing from streams
// that wait.
func (s *stream) appendNow(data []byte) bool {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	n := int64(len(data))
	if s.sendError() != nil || len(c.forSpace) > 0 || len(c.forWindow) > 0 || n > min(s.window, c.send) || !c.hasSpaceFor(len(data)) {
		return false
	}
	s.window -= n
	c.send -= n
	for part := range slices.Chunk(data, payload) {
		c.pending = c.pending.extend(frameHeaderSize + len(part))
		c.pending.bytes = appendData(c.pending.bytes, s.id, part, false)
	}
	return true
}

// sendError is why nothing can be sent any more, or nil. It is called with conn.mu held.
func (s *stream) sendError() error {
	if s.failed != nil {
		return s.failed
	}
	return s.conn.broken
}

// takeSpace reports whether the stream may append a frame. If not, it is queued, or must write the pending frames itself. It is called
// with conn.mu held.
func (s *stream) takeSpace() progress {
	c := s.conn
	space := c.hasSpace()
	switch {
	case space && c.forSpace.isNext(s):
		c.forSpace.remove(s)
		return appended
	case !space && !c.writing:
		return full
	}
	c.forSpace.add(s)
	return blocked
}

// takeWindow returns how much may be sent, at most want. If that is nothing, the stream is signalled when the client has granted more.
// It is called with conn.mu held.
func (s *stream) takeWindow(want int) int {
	c := s.conn
	switch {
	case s.window <= 0:
		c.forWindow.remove(s)
		return 0
	case c.send <= 0 || !c.forWindow.isNext(s):
		c.forWindow.add(s)
		return 0
	}
	n := min(int64(want), s.window, c.send)
	s.window -= n
	c.send -= n
	c.forWindow.remove(s)
	return int(n)
}

// increaseWindow lets the stream send more. It is called with conn.mu held.
func (s *stream) increaseWindow(n int64) error {
	if s.window += n; s.window > maxWindow {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl}
	}
	if s.window <= 0 {
		s.conn.forWindow.remove(s)
	}
	s.signal(s.wake)
	return nil
}
