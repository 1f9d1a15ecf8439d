package attack

import (
	"crypto/tls"
	"encoding/binary"
	"net/http"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"
)

// A client of a watch over WebSocket announces a message of a gigabyte and sends it. It must be disconnected, and nothing kept of it.
func TestGiantWebSocketMessage(t *testing.T) {
	a := start(t)
	config, err := rest.TLSConfigFor(rest.AnonymousClientConfig(a.config))
	a.must(err)
	config.NextProtos = []string{"http/1.1"}
	before := a.usage()
	const sockets, size = 2, 1 << 30
	for range sockets {
		dialer := websocket.Dialer{TLSClientConfig: config}
		conn, _, err := dialer.DialContext(t.Context(), "wss://"+a.host+"/api/v1/pods?watch=true", http.Header{"Authorization": {"Bearer " + a.token}})
		a.must(err)
		t.Cleanup(func() { conn.Close() })
		go flood(conn.NetConn().(*tls.Conn), size)
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		for err == nil {
			_, _, err = conn.ReadMessage()
		}
		if !websocket.IsCloseError(err, websocket.CloseMessageTooBig) {
			t.Errorf("the connection ended with %v", err)
		}
	}
	a.expectReleased(before)
}

// flood sends a binary message until the connection fails. It is masked with zeros.
func flood(conn *tls.Conn, size uint64) {
	_, err := conn.Write(append(binary.BigEndian.AppendUint64([]byte{0x82, 0xff}, size), 0, 0, 0, 0))
	for part := make([]byte, 64<<10); err == nil; {
		_, err = conn.Write(part)
	}
}
