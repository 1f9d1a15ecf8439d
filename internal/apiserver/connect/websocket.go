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

	"skiff/internal/apiserver"
)

// The WebSocket subprotocols for logs: binary messages, or base64 in text messages.
const (
	protocolBinary = "binary.k8s.io"
	protocolBase64 = "base64.binary.k8s.io"
)

// socketWriteTimeout bounds the write of a message.
const socketWriteTimeout = 30 * time.Second

// sendOverWebSocket sends the response of a GET of the location as messages of a WebSocket.
func sendOverWebSocket(w http.ResponseWriter, r *http.Request, from *url.URL, over http.RoundTripper) error {
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, from.String(), nil)
	if err != nil {
		return err
	}
	response, err := over.RoundTrip(request)
	if err != nil {
		var status *apierrors.StatusError
		if errors.As(err, &status) {
			return status
		}
		return apierrors.NewServiceUnavailable("error trying to reach service: " + err.Error())
	}
	defer response.Body.Close()
	upgrader := websocket.Upgrader{
		Subprotocols: []string{protocolBinary, protocolBase64},
		CheckOrigin:  func(*http.Request) bool { return true }, // access is decided by credentials, which a browser does not add by itself
	}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return nil // the upgrader has responded
	}
	defer conn.Close()
	conn.SetReadLimit(apiserver.MaxSocketMessage)
	// The client's messages are discarded, not kept; reading detects that it disconnects.
	go func() {
		for {
			if _, _, err := conn.NextReader(); err != nil {
				response.Body.Close()
				return
			}
		}
	}()
	buffer := make([]byte, 16<<10)
	for {
		n, err := response.Body.Read(buffer)
		if n > 0 && writeLog(conn, buffer[:n]) != nil {
			return nil // the client has disconnected
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
