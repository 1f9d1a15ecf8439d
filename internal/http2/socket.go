package http2

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// writeTimeout is how long the records of one write wait for a client that does not read.
const writeTimeout = time.Minute

// maxRecords bounds the queued records. The connection's own writes stay far below: only a client that makes TLS respond, with key
// updates, without reading can exceed it.
const maxRecords = 512 << 10

var errTooManyRecords = errors.New("http2: the client does not read TLS records")

// Listener returns connections whose TLS records are sent by this package. The TLS listener must wrap it.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	s := &socket{Conn: c}
	if direct, ok := c.(syscall.Conn); ok {
		s.raw, _ = direct.SyscallConn() // without it records are sent by a goroutine that waits
	}
	return s, nil
}

// socket is the connection below TLS. After queueRecords it keeps the records that TLS writes until they are sent: all together, and
// without waiting as far as the kernel accepts them, so that handlers can send them and never wait for a client.
type socket struct {
	net.Conn
	raw syscall.RawConn

	mu      sync.Mutex
	queues  bool
	records *buffer // written by TLS and not yet taken

	// Used by one goroutine at a time.
	sending *buffer
	sent    int // of sending
}

// queueRecords makes Write keep records for trySend.
func (s *socket) queueRecords() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues = true
}

// Write implements net.Conn for TLS.
func (s *socket) Write(p []byte) (int, error) {
	if queued, err := s.queue(p); queued || err != nil {
		return len(p), err
	}
	return s.Conn.Write(p)
}

func (s *socket) queue(p []byte) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.queues {
		return false, nil
	}
	s.records = s.records.extend(len(p))
	if len(s.records.bytes)+len(p) > maxRecords {
		return false, errTooManyRecords
	}
	s.records.bytes = append(s.records.bytes, p...)
	return true, nil
}

// take makes the queued records the ones to send.
func (s *socket) take() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sending, s.sent, s.records = s.records, 0, nil
}

// trySend sends the queued records as far as the kernel accepts them. If all is false, sendRest must follow.
func (s *socket) trySend() (all bool, err error) {
	s.take()
	for s.sending != nil {
		if s.sent == len(s.sending.bytes) {
			s.discard()
			return true, nil
		}
		n, err := s.writeNow(s.sending.bytes[s.sent:])
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return false, nil
		case err != nil:
			return false, err
		}
		s.sent += max(n, 0)
	}
	return true, nil
}

// writeNow writes without waiting: it returns EAGAIN when the kernel accepts nothing.
func (s *socket) writeNow(p []byte) (n int, err error) {
	if s.raw == nil {
		return 0, syscall.EAGAIN
	}
	failed := s.raw.Write(func(fd uintptr) bool {
		n, err = syscall.Write(int(fd), p) // the race detector relates it to reads of net.Conn
		return true                        // do not wait
	})
	return n, errors.Join(failed, err)
}

// sendRest sends what trySend could not, and waits for the client.
func (s *socket) sendRest() error {
	if err := s.Conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if _, err := s.Conn.Write(s.sending.bytes[s.sent:]); err != nil {
		return err
	}
	s.discard()
	return s.Conn.SetWriteDeadline(time.Time{})
}

// discard frees the records that were being sent.
func (s *socket) discard() {
	s.sending.free()
	s.sending = nil
}
