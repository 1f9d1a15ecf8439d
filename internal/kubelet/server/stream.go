package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/forward"
	"skiff/internal/kubelet/cri"
)

// The runtime has a streaming server on this host, whose URL it returns for each session. It supports SPDY and the older
// WebSocket protocols, which are proxied unchanged. Newer protocols are translated: session.go for commands, tunnel.go
// for port-forwarding.

// runtimeTransport connects to the runtime's streaming server. Every session has its own connection.
var runtimeTransport = &http.Transport{DisableKeepAlives: true, DisableCompression: true, DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if len(query["command"]) == 0 {
		http.Error(w, "you must specify at least 1 command to run", http.StatusBadRequest)
		return
	}
	s.session(w, r, func(ctx context.Context, id string, o cri.Streams) (string, error) {
		return s.Runtime.Exec(ctx, id, query["command"], o)
	})
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	s.session(w, r, func(ctx context.Context, id string, o cri.Streams) (string, error) {
		return s.Runtime.Attach(ctx, id, o)
	})
}

// parseStreams parses the requested streams. With a terminal there is no stderr.
func parseStreams(query url.Values) (cri.Streams, error) {
	o := cri.Streams{
		Stdin: query.Get("input") == "1", Stdout: query.Get("output") == "1", Stderr: query.Get("error") == "1", TTY: query.Get("tty") == "1",
	}
	if o.TTY && o.Stderr {
		o.Stderr = false
	}
	if !o.Stdin && !o.Stdout && !o.Stderr {
		return o, errors.New("you must specify at least 1 of stdin, stdout, stderr")
	}
	return o, nil
}

// session serves a streaming session with a container. start requests it from the runtime.
func (s *Server) session(w http.ResponseWriter, r *http.Request, start func(ctx context.Context, id string, o cri.Streams) (string, error)) {
	options, err := parseStreams(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	pod, ok := s.findPod(w, r)
	if !ok {
		return
	}
	id, err := s.runningContainer(r.Context(), pod, r.PathValue("container"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	address, err := start(r.Context(), id, options)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	to, err := url.Parse(address)
	if err != nil {
		http.Error(w, fmt.Sprintf("parse streaming URL of the runtime: %v", err), http.StatusInternalServerError)
		return
	}
	if websocket.IsWebSocketUpgrade(r) && slices.Contains(websocket.Subprotocols(r), protocolSession) {
		s.translateV5Session(w, r, to, options)
		return
	}
	s.proxy(w, r, to)
}

// runningContainer returns the ID of a running container.
func (s *Server) runningContainer(ctx context.Context, pod *corev1.Pod, name string) (string, error) {
	observed, err := s.Runtime.ReadPod(ctx, pod.UID)
	if err != nil {
		return "", err
	}
	c := observed.Active(name)
	if c == nil || c.State != cri.Running {
		return "", fmt.Errorf("container not found (%q)", name)
	}
	return c.ID, nil
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	pod, ok := s.findPod(w, r)
	if !ok {
		return
	}
	ports, err := parsePorts(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	observed, err := s.Runtime.ReadPod(r.Context(), pod.UID)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	sandbox := observed.Sandbox()
	if sandbox == "" {
		http.Error(w, fmt.Sprintf("pod not found (%q)", pod.Name+"_"+pod.Namespace), http.StatusInternalServerError)
		return
	}
	session, err := s.Runtime.PortForward(r.Context(), sandbox, ports)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	to, err := url.Parse(session)
	if err != nil {
		http.Error(w, fmt.Sprintf("parse streaming URL of the runtime: %v", err), http.StatusInternalServerError)
		return
	}
	if websocket.IsWebSocketUpgrade(r) && slices.Contains(websocket.Subprotocols(r), protocolTunnel) {
		s.tunnel(w, r, to)
		return
	}
	s.proxy(w, r, to)
}

func parsePorts(query url.Values) (ports []int32, err error) {
	for _, list := range query["port"] {
		for text := range strings.SplitSeq(list, ",") {
			port, err := strconv.ParseUint(text, 10, 16)
			if err != nil || port == 0 {
				return nil, fmt.Errorf("%q is not a port", text)
			}
			ports = append(ports, int32(port))
		}
	}
	return ports, nil
}

// proxy forwards the connection to the runtime.
func (s *Server) proxy(w http.ResponseWriter, r *http.Request, to *url.URL) {
	if err := forward.Request(w, r, to, runtimeTransport); err != nil {
		http.Error(w, fmt.Sprintf("connect to the container runtime: %v", err), http.StatusBadGateway)
	}
}

// run runs a command in a container and responds with its output.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
		return
	}
	pod, ok := s.findPod(w, r)
	if !ok {
		return
	}
	command := strings.Fields(r.FormValue("cmd"))
	if len(command) == 0 {
		http.Error(w, "you must specify the command to run as cmd", http.StatusBadRequest)
		return
	}
	id, err := s.runningContainer(r.Context(), pod, r.PathValue("container"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	stdout, stderr, err := s.Runtime.ExecSync(r.Context(), id, command, 0)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(bytes.Join([][]byte{stdout, stderr}, nil))
}

// The WebSocket subprotocols that are translated.
const (
	protocolSession = "v5.channel.k8s.io"
	protocolTunnel  = "SPDY/3.1+portforward.k8s.io"
)

// maxSocketMessage is the largest message of a client over a WebSocket, as upstream's. A larger one ends the session.
const maxSocketMessage = 32 << 20

// upgrade accepts a WebSocket with the given subprotocol.
func upgrade(w http.ResponseWriter, r *http.Request, protocol string) (*websocket.Conn, error) {
	upgrader := websocket.Upgrader{
		ReadBufferSize: 32 << 10, WriteBufferSize: 32 << 10, Subprotocols: []string{protocol},
		CheckOrigin: func(*http.Request) bool { return true }, // the filter has authenticated the client
	}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(maxSocketMessage)
	return conn, nil
}

// dialSPDY opens an upgraded connection to the runtime.
func dialSPDY(ctx context.Context, to *url.URL, headers http.Header) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", to.Host)
	if err != nil {
		return nil, err
	}
	request := &http.Request{Method: http.MethodPost, URL: to, Host: to.Host, Header: headers.Clone(), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "SPDY/3.1")
	if err := request.Write(conn); err != nil {
		conn.Close()
		return nil, err
	}
	buffered := &bufferedConn{Conn: conn}
	response, err := buffered.readResponse(request)
	if err != nil {
		conn.Close()
		return nil, err
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		defer conn.Close()
		text := new(bytes.Buffer)
		_, _ = text.ReadFrom(http.MaxBytesReader(nil, response.Body, 4<<10))
		return nil, fmt.Errorf("upgrade runtime connection to SPDY: %s: %s", response.Status, strings.TrimSpace(text.String()))
	}
	return buffered, nil
}
