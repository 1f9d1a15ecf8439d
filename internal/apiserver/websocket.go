package apiserver

import (
	"net/http"
	"time"

	"github.com/gorilla/websocket"
)

// socketSink sends each event as one WebSocket message: text for JSON, binary for protobuf.
type socketSink struct {
	req    *request
	text   bool
	conn   *websocket.Conn
	ends   []int // of the events in the buffer
	closed chan struct{}
}

// upgrader accepts all origins: access is decided by the credential, which a page of another origin cannot make the browser send.
var upgrader = websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}

// MaxSocketMessage is the size of the largest WebSocket message that is accepted from a client, as upstream has it. A larger one closes the
// connection with the code 1009 (message too big).
const MaxSocketMessage = 32 << 20

// socketWriteTimeout is how long a message may take to leave.
const socketWriteTimeout = 30 * time.Second

func (s *socketSink) begin(mediaType string) error {
	s.closed = make(chan struct{})
	conn, err := upgrader.Upgrade(s.req.w, s.req.Request, http.Header{"Content-Type": []string{mediaType}})
	if err != nil {
		return nil // the upgrader has responded
	}
	conn.SetReadLimit(MaxSocketMessage)
	s.conn = conn
	go s.read()
	return nil
}

// read waits until the client disconnects. Its messages are ignored.
func (s *socketSink) read() {
	defer close(s.closed)
	for {
		if _, _, err := s.conn.NextReader(); err != nil {
			return
		}
	}
}

func (s *socketSink) mark(buffer []byte) { s.ends = append(s.ends, len(buffer)) }

func (s *socketSink) send(buffer []byte) error {
	if s.conn == nil {
		return errClientGone
	}
	// A message has a length of its own; skip that of the frame.
	kindOfMessage, skip := websocket.BinaryMessage, 4
	if s.text {
		kindOfMessage, skip = websocket.TextMessage, 0
	}
	start := 0
	for _, end := range s.ends {
		_ = s.conn.SetWriteDeadline(time.Now().Add(socketWriteTimeout))
		if err := s.conn.WriteMessage(kindOfMessage, buffer[start+skip:end]); err != nil {
			return errClientGone
		}
		start = end
	}
	s.ends = s.ends[:0]
	return nil
}

func (s *socketSink) disconnected() <-chan struct{} {
	if s.conn == nil {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return s.closed
}

func (s *socketSink) close() {
	if s.conn == nil {
		return
	}
	message := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	_ = s.conn.WriteControl(websocket.CloseMessage, message, time.Now().Add(time.Second))
	_ = s.conn.Close()
	<-s.closed
}
