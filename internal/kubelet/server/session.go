package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"skiff/internal/kubelet/cri"
)

// The channels of a session. The first byte of a message is its channel.
const (
	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2
	channelError  = 3
	channelResize = 4
	channelClose  = 255 // followed by the channel to close
)

// translateV5Session serves a session over a WebSocket with the v5 protocol, in which a client can close a single
// channel, so that a command gets EOF on its input. The session with the runtime uses SPDY.
func (s *Server) translateV5Session(w http.ResponseWriter, r *http.Request, to *url.URL, o cri.Streams) {
	executor, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: to.Host}, http.MethodPost, to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	conn, err := upgrade(w, r, protocolSession)
	if err != nil {
		return // the upgrader has responded
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	socket := &sessionSocket{conn: conn}
	options := remotecommand.StreamOptions{Tty: o.TTY}
	input, stdin := io.Pipe()
	if o.Stdin {
		options.Stdin = input
	}
	if o.Stdout {
		options.Stdout = socket.channel(channelStdout)
	}
	if o.Stderr {
		options.Stderr = socket.channel(channelStderr)
	}
	sizes := make(terminalSizes, 1)
	if o.TTY {
		options.TerminalSizeQueue = sizes
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(sizes)
		// Cancel the session when the client disconnects or has closed the connection.
		defer cancel()
		stdin.CloseWithError(socket.read(stdin, sizes))
	}()
	err = executor.StreamWithContext(ctx, options)
	input.Close()
	socket.sendStatus(err)
	conn.Close()
	<-done
}

// terminalSizes is the queue of terminal sizes that the runtime has not received yet.
type terminalSizes chan remotecommand.TerminalSize

// Next implements remotecommand.TerminalSizeQueue.
func (t terminalSizes) Next() *remotecommand.TerminalSize {
	size, ok := <-t
	if !ok {
		return nil
	}
	return &size
}

// put replaces a size that was not read yet: only the latest matters.
func (t terminalSizes) put(size remotecommand.TerminalSize) {
	select {
	case <-t:
	default:
	}
	select {
	case t <- size:
	default:
	}
}

// sessionSocket multiplexes the channels of a session. There may be several writers, but one reader.
type sessionSocket struct {
	conn *websocket.Conn
	mu   sync.Mutex // guards writing
}

// maxControlMessage is the largest message of a client that is not input for the command. What follows is ignored.
const maxControlMessage = 1 << 10

// read copies the client's input to stdin and its terminal sizes to sizes until the client disconnects. Input is not held: it is copied as it
// arrives and as fast as the command reads.
func (s *sessionSocket) read(stdin *io.PipeWriter, sizes terminalSizes) error {
	buffer := make([]byte, 32<<10)
	for {
		_, message, err := s.conn.NextReader()
		if err != nil {
			return io.EOF
		}
		var channel [1]byte
		if _, err := io.ReadFull(message, channel[:]); err != nil {
			continue // an empty message, or the next read fails as well
		}
		if channel[0] == channelStdin {
			// An error: the command has closed its input, or the next read fails as well.
			_, _ = io.CopyBuffer(stdin, message, buffer)
			continue
		}
		body, err := io.ReadAll(io.LimitReader(message, maxControlMessage))
		if err != nil {
			continue
		}
		switch channel[0] {
		case channelResize:
			var size remotecommand.TerminalSize
			if json.Unmarshal(body, &size) == nil {
				sizes.put(size)
			}
		case channelClose:
			if len(body) == 1 && body[0] == channelStdin {
				stdin.Close()
			}
		}
	}
}

func (s *sessionSocket) write(channel byte, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, err := s.conn.NextWriter(websocket.BinaryMessage)
	if err != nil {
		return err
	}
	if _, err := w.Write([]byte{channel}); err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	return w.Close()
}

type channelWriter struct {
	socket  *sessionSocket
	channel byte
}

func (s *sessionSocket) channel(channel byte) io.Writer { return channelWriter{s, channel} }

// Write implements io.Writer.
func (c channelWriter) Write(p []byte) (int, error) {
	if err := c.socket.write(c.channel, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// sendStatus sends the command's exit status to the client.
func (s *sessionSocket) sendStatus(err error) {
	status, _ := json.Marshal(sessionStatus(err)) // a Status always encodes
	if s.write(channelError, status) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
}

// sessionStatus returns the Status for the result of a command.
func sessionStatus(err error) *metav1.Status {
	if err == nil {
		return &metav1.Status{Status: metav1.StatusSuccess}
	}
	var exited exec.CodeExitError
	if errors.As(err, &exited) {
		return &metav1.Status{
			Status: metav1.StatusFailure, Reason: "NonZeroExitCode",
			Message: fmt.Sprintf("command terminated with non-zero exit code: %v", err),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: strconv.Itoa(exited.Code)}}},
		}
	}
	return &metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError,
		Message: err.Error(), Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Message: err.Error()}}},
	}
}
