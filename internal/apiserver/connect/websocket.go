package connect

import (
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The ways a log is written to a WebSocket: as bytes, or as text for those who cannot take bytes.
const (
	protocolBinary = "binary.k8s.io"
	protocolBase64 = "base64.binary.k8s.io"
)

// socketWriteTimeout is how long a client may take to accept a message.
const socketWriteTimeout = 30 * time.Second

// sendOverSocket answers with what the location says, in the messages of a WebSocket.
func sendOverSocket(w http.ResponseWriter, r *http.Request, from *url.URL, over http.RoundTripper) error {
	asked, err := http.NewRequestWithContext(r.Context(), http.MethodGet, from.String(), nil)
	if err != nil {
		return err
	}
	answer, err := over.RoundTrip(asked)
	if err != nil {
		var status *apierrors.StatusError
		if errors.As(err, &status) {
			return status
		}
		return apierrors.NewServiceUnavailable("error trying to reach service: " + err.Error())
	}
	defer answer.Body.Close()
	upgrader := websocket.Upgrader{
		Subprotocols: []string{protocolBinary, protocolBase64},
		CheckOrigin:  func(*http.Request) bool { return true }, // who may is decided by credentials, which no browser adds by itself
	}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return nil // the upgrader has answered
	}
	defer conn.Close()
	// Whoever reads a log says nothing; reading finds out when they leave.
	go func() {
		for {
			if _, _, err := conn.ReadMessage(); err != nil {
				answer.Body.Close()
				return
			}
		}
	}()
	buffer := make([]byte, 16<<10)
	for {
		n, err := answer.Body.Read(buffer)
		if n > 0 && writeLog(conn, buffer[:n]) != nil {
			return nil // the client is gone
		}
		if err != nil {
			code := websocket.CloseNormalClosure
			if !errors.Is(err, io.EOF) {
				code = websocket.CloseInternalServerErr
			}
			_ = conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, ""), time.Now().Add(socketWriteTimeout))
			return nil
		}
	}
}

func writeLog(conn *websocket.Conn, text []byte) error {
	if err := conn.SetWriteDeadline(time.Now().Add(socketWriteTimeout)); err != nil {
		return err
	}
	if conn.Subprotocol() == protocolBase64 {
		return conn.WriteMessage(websocket.TextMessage, base64.StdEncoding.AppendEncode(nil, text))
	}
	return conn.WriteMessage(websocket.BinaryMessage, text)
}
