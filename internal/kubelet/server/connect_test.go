package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/kubelet/cri"
)

// oneSandbox is a runtime with a single sandbox.
type oneSandbox struct {
	cri.API
	state   runtimeapi.PodSandboxState
	network runtimeapi.NamespaceMode
	ip      string
}

func (s oneSandbox) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return []*runtimeapi.PodSandbox{{Id: "s"}}, nil
}

func (s oneSandbox) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return nil, nil
}

func (s oneSandbox) PodSandboxStatus(context.Context, string, bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Id: "s", State: s.state, Network: &runtimeapi.PodSandboxNetworkStatus{Ip: s.ip, AdditionalIps: []*runtimeapi.PodIP{{Ip: "fd00::3"}}},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: &runtimeapi.NamespaceOption{Network: s.network}}},
	}}, nil
}

// openConnection requests a connection to an address of a pod.
func openConnection(t *testing.T, config *rest.Config, method, pod, address string) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(config.Host, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	request, err := http.NewRequestWithContext(t.Context(), method, config.Host+"/connect/ns/"+pod+"?"+url.Values{"address": {address}}.Encode(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "tcp")
	if err := request.Write(conn); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, request)
	if err != nil {
		t.Fatal(err)
	}
	return conn, reader, response
}

// A client reaches the addresses that the runtime reports for the pod, and no others: not those of the host, of its networks or of other pods.
func TestConnectAddresses(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	unused, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	unused.Close()
	ready := oneSandbox{ip: "127.0.0.2"}
	notReady, onHost := ready, ready
	notReady.state, onHost.network = runtimeapi.PodSandboxState_SANDBOX_NOTREADY, runtimeapi.NamespaceMode_NODE
	at := func(ip string) string { return net.JoinHostPort(ip, fmt.Sprint(port)) }
	for _, test := range []struct {
		name         string
		runtime      oneSandbox
		hostNetwork  bool
		pod, address string
		want         int
	}{
		{"its own address", ready, false, "p", at("127.0.0.2"), 101},
		{"a port nobody listens at", ready, false, "p", unused.Addr().String(), 502},
		{"its address in IPv6 form", ready, false, "p", at("::ffff:127.0.0.2"), 403},
		{"loopback", ready, false, "p", at("127.0.0.1"), 403},
		{"loopback over IPv6", ready, false, "p", at("::1"), 403},
		{"unspecified", ready, false, "p", at("0.0.0.0"), 403},
		{"metadata service", ready, false, "p", "169.254.169.254:80", 403},
		{"link-local with a zone", ready, false, "p", "[fe80::1%lo]:80", 403},
		{"its second address with a zone", ready, false, "p", "[fd00::3%lo]:80", 403},
		{"gateway of the pod network", ready, false, "p", "10.42.1.1:10250", 403},
		{"another pod", ready, false, "p", "10.42.1.4:80", 403},
		{"unknown pod", ready, false, "q", at("127.0.0.2"), 403},
		{"sandbox that has ended", notReady, false, "p", at("127.0.0.2"), 403},
		{"sandbox in the host's network", onHost, false, "p", at("127.0.0.2"), 403},
		{"pod in the host's network", ready, true, "p", at("127.0.0.2"), 403},
		{"name", ready, false, "p", "localhost:80", 400},
		{"no port", ready, false, "p", "127.0.0.2", 400},
		{"port 0", ready, false, "p", "127.0.0.2:0", 400},
		{"nothing", ready, false, "p", "", 400},
	} {
		config, _ := newKubelet(t, func(s *Server) {
			s.Runtime = cri.New(test.runtime)
			s.Pods.(onePod).pod.Spec.HostNetwork = test.hostNetwork
		})
		conn, _, response := openConnection(t, config, http.MethodPost, test.pod, test.address)
		if response.StatusCode != test.want {
			t.Errorf("%s: %s, want %d", test.name, response.Status, test.want)
		}
		conn.Close()
	}
	config, _ := newKubelet(t, func(s *Server) { s.Runtime = cri.New(ready) })
	// A WebSocket or a GET would be open to more than those who may create.
	if _, _, response := openConnection(t, config, http.MethodGet, "p", at("127.0.0.2")); response.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %s", response.Status)
	}
	response, err := http.Post(config.Host+"/connect/ns/p?address="+at("127.0.0.2"), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("without an upgrade: %s", response.Status)
	}
}

// Bytes are copied both ways until both sides have finished; a side that has finished still receives. The number of connections is limited.
func TestConnect(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ended := make(chan error, 10)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				text, err := io.ReadAll(conn)
				fmt.Fprintf(conn, "all of %q", text)
				ended <- err
			}()
		}
	}()
	var kubelet *Server
	config, _ := newKubelet(t, func(s *Server) { kubelet, s.Runtime = s, cri.New(oneSandbox{ip: "127.0.0.2"}) })
	open := func() (net.Conn, *bufio.Reader, *http.Response) {
		return openConnection(t, config, http.MethodPost, "p", listener.Addr().String())
	}
	conn, reader, response := open()
	if response.StatusCode != http.StatusSwitchingProtocols || response.Header.Get("Upgrade") != "tcp" {
		t.Fatalf("%s, header %v", response.Status, response.Header)
	}
	fmt.Fprint(conn, "hello")
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(reader); err != nil || string(text) != `all of "hello"` {
		t.Errorf("%q %v", text, err)
	}
	<-ended
	waitConnections(t, kubelet, 0)

	// A client that is gone ends the connection to the pod.
	conn, _, _ = open()
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	<-ended
	waitConnections(t, kubelet, 0)

	kubelet.podConnections.Store(maxPodConnections)
	if _, _, response := open(); response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one more than the limit: %s", response.Status)
	}
	waitConnections(t, kubelet, maxPodConnections)
}

// waitConnections waits until a number of connections to pods is open.
func waitConnections(t *testing.T, s *Server, want int32) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); s.podConnections.Load() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open, want %d", s.podConnections.Load(), want)
		}
	}
}
