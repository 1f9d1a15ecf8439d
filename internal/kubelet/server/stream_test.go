package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	streamcommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/cri/critest"
)

// commands serves sessions like a runtime: `cat` copies its input, `size` prints the terminal's size, `fail` exits with
// 3.
type commands struct{}

func (commands) Exec(_ context.Context, _ string, command []string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan streamcommand.TerminalSize) error {
	switch command[0] {
	case "cat":
		_, err := io.Copy(out, in)
		return err
	case "size":
		size := <-resize
		fmt.Fprintf(out, "%dx%d", size.Width, size.Height)
		return nil
	case "fail":
		fmt.Fprint(errs, "it fails")
		return exitError(3)
	}
	return errors.New("no such command")
}

func (commands) Attach(_ context.Context, id string, _ io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan streamcommand.TerminalSize) error {
	fmt.Fprint(out, "attached to ", id)
	return nil
}

func (commands) PortForward(_ context.Context, sandbox string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	line := make([]byte, 5)
	if _, err := io.ReadFull(stream, line); err != nil {
		return err
	}
	fmt.Fprintf(stream, "%s to port %d", line, port)
	return nil
}

type exitError int

func (e exitError) Error() string   { return fmt.Sprint("exit code ", int(e)) }
func (e exitError) String() string  { return e.Error() }
func (e exitError) Exited() bool    { return true }
func (e exitError) ExitStatus() int { return int(e) }

// streamingRuntime is the fake runtime with real sessions.
type streamingRuntime struct {
	*critest.Fake
	sessions streaming.Server
}

func (r *streamingRuntime) Exec(_ context.Context, request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return r.sessions.GetExec(request)
}

func (r *streamingRuntime) Attach(_ context.Context, request *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return r.sessions.GetAttach(request)
}

func (r *streamingRuntime) PortForward(_ context.Context, request *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return r.sessions.GetPortForward(request)
}

type onePod struct{ pod *corev1.Pod }

func (o onePod) Pods() []*corev1.Pod { return []*corev1.Pod{o.pod} }

func (o onePod) Pod(namespace, name string) (*corev1.Pod, bool) {
	return o.pod, namespace == o.pod.Namespace && name == o.pod.Name
}

// newKubelet serves a pod with one running container. Settings change the server before it serves.
func newKubelet(t *testing.T, settings ...func(*Server)) (*rest.Config, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := streaming.DefaultConfig
	config.Addr, config.BaseURL = listener.Addr().String(), &url.URL{Scheme: "http", Host: listener.Addr().String()}
	sessions, err := streaming.NewServer(config, commands{})
	if err != nil {
		t.Fatal(err)
	}
	runtime := &http.Server{Handler: sessions}
	go func() { _ = runtime.Serve(listener) }()
	t.Cleanup(func() { runtime.Close() })

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}, {Name: "late"}}}}
	fake := critest.NewFake("image")
	sandbox := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "ns", Uid: "u"}, Labels: map[string]string{cri.LabelPodUID: "u"}}
	id, err := fake.RunPodSandbox(t.Context(), sandbox, "")
	if err != nil {
		t.Fatal(err)
	}
	container, err := fake.CreateContainer(t.Context(), id, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "image"},
		Labels: map[string]string{cri.LabelPodUID: "u", cri.LabelContainerName: "c"},
	}, sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := fake.StartContainer(t.Context(), container); err != nil {
		t.Fatal(err)
	}
	s := &Server{Pods: onePod{pod}, Runtime: cri.New(&streamingRuntime{fake, sessions}), Log: slog.New(slog.DiscardHandler)}
	for _, set := range settings {
		set(s)
	}
	mux := http.NewServeMux()
	for path, handler := range s.Paths() {
		mux.Handle(path, handler)
	}
	front := httptest.NewServer(mux)
	t.Cleanup(front.Close)
	return &rest.Config{Host: front.URL}, container
}

// executors returns an executor for each protocol.
func executors(t *testing.T, config *rest.Config, path string) map[string]remotecommand.Executor {
	t.Helper()
	at, err := url.Parse(config.Host + path)
	if err != nil {
		t.Fatal(err)
	}
	overSPDY, err := remotecommand.NewSPDYExecutor(config, "POST", at)
	if err != nil {
		t.Fatal(err)
	}
	overSocket, err := remotecommand.NewWebSocketExecutor(config, "GET", at.String())
	if err != nil {
		t.Fatal(err)
	}
	overOldSocket, err := remotecommand.NewWebSocketExecutorForProtocols(config, "GET", at.String(), "v4.channel.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]remotecommand.Executor{"SPDY": overSPDY, "WebSocket": overSocket, "old WebSocket": overOldSocket}
}

func TestExec(t *testing.T) {
	config, id := newKubelet(t)
	for protocol, executor := range executors(t, config, "/exec/ns/p/c?command=cat&input=1&output=1") {
		if protocol == "old WebSocket" {
			continue // cannot end its input
		}
		var out bytes.Buffer
		text := strings.Repeat("hello\n", 20000)
		if err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader(text), Stdout: &out}); err != nil || out.String() != text {
			t.Errorf("%s: %d bytes of %d, %v", protocol, out.Len(), len(text), err)
		}
	}
	for protocol, executor := range executors(t, config, "/exec/ns/p/c?command=fail&output=1&error=1") {
		var out, errs bytes.Buffer
		err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: &errs})
		var exited exec.CodeExitError
		if !errors.As(err, &exited) || exited.Code != 3 || errs.String() != "it fails" {
			t.Errorf("%s: %v, %q", protocol, err, errs.String())
		}
	}
	for protocol, executor := range executors(t, config, "/exec/ns/p/u/c?command=size&output=1&tty=1") {
		sizes := make(terminalSizes, 1)
		sizes <- remotecommand.TerminalSize{Width: 80, Height: 24}
		var out bytes.Buffer
		if err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out, Tty: true, TerminalSizeQueue: sizes}); err != nil || out.String() != "80x24" {
			t.Errorf("%s: %v, %q", protocol, err, out.String())
		}
		close(sizes)
	}
	for protocol, executor := range executors(t, config, "/attach/ns/p/c?output=1") {
		var out bytes.Buffer
		if err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out}); err != nil || out.String() != "attached to "+id {
			t.Errorf("%s: %v, %q", protocol, err, out.String())
		}
	}
}

// dialSocket opens a WebSocket and begins a message of a size, masked with zeros.
func dialSocket(t *testing.T, config *rest.Config, path, protocol string, size uint64) *websocket.Conn {
	t.Helper()
	dialer := websocket.Dialer{Subprotocols: []string{protocol}}
	conn, _, err := dialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(config.Host, "http")+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.NetConn().Write(append(binary.BigEndian.AppendUint64([]byte{0x82, 0xff}, size), 0, 0, 0, 0)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// A message that is larger than upstream allows ends the session before it has arrived. Over the older protocols the runtime has the limit.
func TestSocketMessageLimit(t *testing.T) {
	config, _ := newKubelet(t)
	for path, protocol := range map[string]string{
		"/exec/ns/p/c?command=cat&input=1&output=1": protocolSession,
		"/portForward/ns/p?port=81":                 protocolTunnel,
	} {
		conn := dialSocket(t, config, path, protocol, maxSocketMessage+1)
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second)) // a server without the limit waits for the message
		var err error
		for err == nil {
			_, _, err = conn.ReadMessage()
		}
		if !websocket.IsCloseError(err, websocket.CloseMessageTooBig) {
			t.Errorf("%s: the session ended with %v", path, err)
		}
	}
}

// The input of a command is not held until its message is complete.
func TestInputIsStreamed(t *testing.T) {
	config, _ := newKubelet(t)
	conn := dialSocket(t, config, "/exec/ns/p/c?command=cat&input=1&output=1", protocolSession, maxSocketMessage)
	if _, err := conn.NetConn().Write([]byte("\x00hello")); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, output, err := conn.ReadMessage()
	if err != nil || string(output) != "\x01hello" {
		t.Errorf("%q, %v", output, err)
	}
}

// TestClientDisconnects: a session ends with its client, even if the command is still running.
func TestClientDisconnects(t *testing.T) {
	config, _ := newKubelet(t)
	for protocol, executor := range executors(t, config, "/exec/ns/p/c?command=cat&input=1&output=1") {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		input, stdin := io.Pipe()
		err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: input, Stdout: io.Discard})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", protocol, err)
		}
		stdin.Close()
		cancel()
	}
}

func TestSessionErrors(t *testing.T) {
	config, _ := newKubelet(t)
	for path, want := range map[string]string{
		"/exec/ns/p/c?command=ls":                  "400 you must specify at least 1 of stdin, stdout, stderr",
		"/exec/ns/p/c?output=1":                    "400 you must specify at least 1 command to run",
		"/exec/ns/other/c?command=ls&output=1":     "404 pod does not exist",
		"/exec/ns/p/other-uid/c?command=x&error=1": "404 pod does not exist",
		"/exec/ns/p/x?command=ls&output=1":         "404 container not found in pod",
		"/exec/ns/p/late?command=ls&output=1":      `500 container not found ("late")`,
		"/portForward/ns/p?port=0":                 `400 "0" is not a port`,
		"/portForward/ns/p?port=80,x":              `400 "x" is not a port`,
	} {
		response, err := http.Post(config.Host+path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if got := fmt.Sprint(response.StatusCode, " ", strings.TrimSpace(string(text))); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func TestPortForward(t *testing.T) {
	config, _ := newKubelet(t)
	at, err := url.Parse(config.Host + "/portForward/ns/p")
	if err != nil {
		t.Fatal(err)
	}
	roundTripper, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := portforward.NewSPDYOverWebsocketDialer(at, config)
	if err != nil {
		t.Fatal(err)
	}
	forwards := map[string]func(stop, ready chan struct{}) (*portforward.PortForwarder, error){
		"SPDY": func(stop, ready chan struct{}) (*portforward.PortForwarder, error) {
			return portforward.New(spdy.NewDialer(upgrader, &http.Client{Transport: roundTripper}, "POST", at), []string{"0:81"}, stop, ready, io.Discard, io.Discard)
		},
		"WebSocket": func(stop, ready chan struct{}) (*portforward.PortForwarder, error) {
			return portforward.New(tunnel, []string{"0:81"}, stop, ready, io.Discard, io.Discard)
		},
	}
	for protocol, open := range forwards {
		stop, ready := make(chan struct{}), make(chan struct{})
		forwarder, err := open(stop, ready)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- forwarder.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-done:
			t.Fatalf("%s: %v", protocol, err)
		}
		ports, err := forwarder.GetPorts()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", ports[0].Local))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, "hello")
		if got, err := io.ReadAll(conn); err != nil || string(got) != "hello to port 81" {
			t.Errorf("%s: %q %v", protocol, got, err)
		}
		conn.Close()
		close(stop)
		<-done
	}
}

func TestAccess(t *testing.T) {
	for request, want := range map[string]string{
		"GET /pods":                 "get nodes/pods, get nodes/proxy",
		"GET /stats/summary":        "get nodes/stats",
		"GET /metrics/resource":     "get nodes/metrics",
		"GET /metrics":              "get nodes/metrics",
		"GET /logs/x":               "get nodes/log",
		"GET /runningpods/":         "get nodes/pods, get nodes/proxy",
		"GET /configz":              "get nodes/configz, get nodes/proxy",
		"POST /checkpoint/ns/p/c":   "create nodes/checkpoint",
		"GET /exec/ns/p/c":          "create nodes/exec, create nodes/proxy",
		"POST /exec/ns/p/c":         "create nodes/exec, create nodes/proxy",
		"GET /attach/ns/p/c":        "create nodes/attach, create nodes/proxy",
		"GET /portForward/ns/p":     "create nodes/portforward, create nodes/proxy",
		"POST /run/ns/p/c":          "create nodes/exec, create nodes/proxy",
		"GET /containerLogs/ns/p/c": "get nodes/proxy",
		"GET /execution":            "get nodes/proxy",
		"POST /connect/ns/p":        "create nodes/proxy",
		"DELETE /whatever":          "delete nodes/proxy",
		"GET /healthz":              "get nodes/healthz, get nodes/proxy",
	} {
		method, path, _ := strings.Cut(request, " ")
		var got []string
		for _, specs := range Access("n")(httptest.NewRequest(method, path, nil)) {
			a := specs.ResourceAttributes
			if a.Name != "n" {
				t.Errorf("%s asks for node %q", request, a.Name)
			}
			got = append(got, a.Verb+" "+a.Resource+"/"+a.Subresource)
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s asks for %s, want %s", request, strings.Join(got, ", "), want)
		}
	}
}
