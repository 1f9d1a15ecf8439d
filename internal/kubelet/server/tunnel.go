package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/gorilla/websocket"
)

// bufferedConn is a connection with read-ahead data in a buffer.
type bufferedConn struct {
	net.Conn
	reader *bufio.Reader
}

func (c *bufferedConn) readResponse(request *http.Request) (*http.Response, error) {
	c.reader = bufio.NewReader(c.Conn)
	return http.ReadResponse(c.reader, request)
}

// Read implements net.Conn.
func (c *bufferedConn) Read(p []byte) (int, error) { return c.reader.Read(p) }

// tunnel forwards a client's SPDY connection for port-forwarding, which is tunneled in the messages of a WebSocket.
func (s *Server) tunnel(w http.ResponseWriter, r *http.Request, to *url.URL) {
	runtime, err := dialSPDY(r.Context(), to, http.Header{"X-Stream-Protocol-Version": {"portforward.k8s.io"}})
	if err != nil {
		http.Error(w, fmt.Sprintf("connect to the container runtime: %v", err), http.StatusBadGateway)
		return
	}
	defer runtime.Close()
	socket, err := upgrade(w, r, protocolTunnel)
	if err != nil {
		return // the upgrader has responded
	}
	defer socket.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer runtime.Close() // ends the other direction
		for {
			kind, message, err := socket.NextReader()
			if err != nil {
				return
			}
			if kind != websocket.BinaryMessage {
				continue
			}
			if _, err := io.Copy(runtime, message); err != nil {
				return
			}
		}
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := runtime.Read(buffer)
		if n > 0 {
			if err := socket.WriteMessage(websocket.BinaryMessage, buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			code := websocket.CloseNormalClosure
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				code = websocket.CloseInternalServerErr
			}
			_ = socket.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, ""), time.Now().Add(time.Second))
			break
		}
	}
	socket.Close()
	<-done
}
