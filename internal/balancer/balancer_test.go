package balancer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"
)

// echoServer answers every line with its name.
type echoServer struct {
	name     string
	listener net.Listener

	mu    sync.Mutex
	conns []net.Conn
}

func startEcho(t *testing.T, name string) *echoServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &echoServer{name: name, listener: listener}
	t.Cleanup(s.kill)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
			go func() {
				lines := bufio.NewScanner(conn)
				for lines.Scan() {
					fmt.Fprintln(conn, name)
				}
				conn.Close()
			}()
		}
	}()
	return s
}

func (s *echoServer) address() string { return s.listener.Addr().String() }

// kill closes everything, as the death of the process does.
func (s *echoServer) kill() {
	s.listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		conn.Close()
	}
}

// healthy is a check that always succeeds.
func healthy(context.Context, string) error { return nil }

func startBalancer(t *testing.T, check func(context.Context, string) error, servers ...string) *Balancer {
	t.Helper()
	b := &Balancer{Check: check, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if err := b.Listen(t.Context(), "0"); err != nil {
		t.Fatal(err)
	}
	b.SetServers(servers)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return b
}

// dialLine connects and returns the name of the server it reached.
func dialLine(t *testing.T, b *Balancer) (net.Conn, string) {
	t.Helper()
	conn, err := net.Dial("tcp", b.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, line(t, conn)
}

func line(t *testing.T, conn net.Conn) string {
	t.Helper()
	fmt.Fprintln(conn, "who")
	text, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return text[:len(text)-1]
}

// Connections are distributed. When a server dies its clients connect again and reach another.
func TestServerDies(t *testing.T) {
	a, b := startEcho(t, "a"), startEcho(t, "b")
	balancer := startBalancer(t, healthy, a.address(), b.address())
	counts := map[string]int{}
	conns := map[string]net.Conn{}
	for range 6 {
		conn, name := dialLine(t, balancer)
		counts[name]++
		conns[name] = conn
	}
	if counts["a"] != 3 || counts["b"] != 3 {
		t.Errorf("connections are distributed as %v", counts)
	}
	a.kill()
	if _, err := conns["a"].Read(make([]byte, 1)); err == nil {
		t.Error("the connection to a dead server is open")
	}
	for range 3 {
		if _, name := dialLine(t, balancer); name != "b" {
			t.Errorf("a new connection reaches %s", name)
		}
	}
	if name := line(t, conns["b"]); name != "b" {
		t.Errorf("a connection to the server that lives reaches %s", name)
	}
}

// A server that fails its checks loses its connections, unless no server is healthy.
func TestChecks(t *testing.T) {
	a, b := startEcho(t, "a"), startEcho(t, "b")
	// The results are reported by the test.
	blocked := func(context.Context, string) error {
		<-t.Context().Done()
		return nil
	}
	balancer := startBalancer(t, blocked, a.address(), b.address())
	first, name := dialLine(t, balancer)
	servers := map[string]*server{}
	for _, s := range balancer.candidates() {
		servers[s.address] = s
	}
	bad := servers[a.address()]
	if name == "b" {
		bad = servers[b.address()]
	}
	notReady := errors.New("not ready")
	balancer.report(bad, notReady)
	if got := line(t, first); got != name {
		t.Errorf("after one failure the connection reaches %s", got)
	}
	balancer.report(bad, notReady)
	if _, err := first.Read(make([]byte, 1)); err == nil {
		t.Error("the connection of a server that is not healthy is open")
	}
	second, other := dialLine(t, balancer)
	if other == name {
		t.Error("a server that is not healthy gets a connection")
	}
	for _, s := range servers {
		for range failures {
			balancer.report(s, notReady)
		}
	}
	if got := line(t, second); got != other {
		t.Errorf("without a healthy server the connection reaches %s", got)
	}
	if _, got := dialLine(t, balancer); got == "" {
		t.Error("without a healthy server there are no connections")
	}
	balancer.report(bad, nil)
	if got := balancer.candidates()[0]; got != bad {
		t.Errorf("a server that is healthy again is not preferred: %s", got.address)
	}
}

// Servers are replaced. Those that stay keep their state.
func TestSetServers(t *testing.T) {
	a, b := startEcho(t, "a"), startEcho(t, "b")
	balancer := startBalancer(t, healthy, a.address())
	conn, _ := dialLine(t, balancer)
	kept := balancer.candidates()[0]
	balancer.SetServers([]string{a.address(), b.address()})
	if balancer.candidates()[1] != kept {
		t.Error("a server that stays has lost its connections")
	}
	balancer.SetServers([]string{b.address()})
	if name := line(t, conn); name != "a" {
		t.Errorf("the connection reaches %s", name)
	}
	if _, name := dialLine(t, balancer); name != "b" {
		t.Errorf("a new connection reaches %s", name)
	}
}

// A client that has sent all gets the rest of the response.
func TestHalfClose(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		data, _ := io.ReadAll(conn)
		_, _ = conn.Write(append(data, '!'))
		conn.Close()
	}()
	balancer := startBalancer(t, healthy, listener.Addr().String())
	conn, err := net.Dial("tcp", balancer.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write([]byte("request"))
	_ = conn.(*net.TCPConn).CloseWrite()
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	if data, err := io.ReadAll(conn); string(data) != "request!" {
		t.Errorf("%q, %v", data, err)
	}
}

// A connection that cannot be made because the balancer ends says nothing about the server.
func TestEndWhileDialing(t *testing.T) {
	a := startEcho(t, "a")
	balancer := &Balancer{Log: slog.New(slog.DiscardHandler)}
	balancer.SetServers([]string{a.address()})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	client, other := net.Pipe()
	defer other.Close()
	balancer.serve(ctx, client)
	if s := balancer.candidates()[0]; s.failed != 0 {
		t.Errorf("the server has failed %d times", s.failed)
	}
}
