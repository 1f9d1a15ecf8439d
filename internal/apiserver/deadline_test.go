package apiserver

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"skiff/internal/apiserver/authn"
	"skiff/internal/http2"
)

// The ways in which the API is served.
const (
	overHTTP1   = "HTTP/1.1"
	overHTTP2   = "HTTP/2"
	overGoHTTP2 = "HTTP/2 of net/http"
)

// serveOver serves with TLS, as system does.
func (s *testServer) serveOver(protocol string) *httptest.Server {
	server := httptest.NewUnstartedServer(s.Handler())
	server.EnableHTTP2 = protocol != overHTTP1
	server.Listener = smallBuffers{server.Listener}
	if protocol == overHTTP2 {
		http2.Configure(server.Config)
		server.Listener = http2.Listener(server.Listener)
	}
	server.StartTLS()
	s.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server
}

// smallBuffers accepts connections for which the kernel buffers little, so that the server soon waits for a client that does not read.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(64 << 10)
	}
	return c, err
}

// slowClient sends requests and reads nothing: over HTTP/2 it grants no window, over HTTP/1.1 it lets the socket fill.
type slowClient struct {
	t      *testing.T
	conn   *tls.Conn
	framer *xhttp2.Framer // nil over HTTP/1.1
	next   uint32
}

func newSlowClient(t *testing.T, server *httptest.Server, protocol string) *slowClient {
	t.Helper()
	raw, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	config := server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.ServerName, config.NextProtos = "example.com", []string{"h2"}
	if protocol == overHTTP1 {
		config.NextProtos = nil
	}
	c := &slowClient{t: t, conn: tls.Client(raw, config), next: 1}
	t.Cleanup(func() { c.conn.Close() })
	if protocol != overHTTP1 {
		c.framer = xhttp2.NewFramer(c.conn, c.conn)
		c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		_, err = io.WriteString(c.conn, xhttp2.ClientPreface)
		c.must(err)
		c.must(c.framer.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 0}))
	}
	return c
}

func (c *slowClient) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// get sends a request. An empty token sends no credentials.
func (c *slowClient) get(path, token string) {
	c.t.Helper()
	if c.framer == nil {
		_, err := fmt.Fprintf(c.conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", path, token)
		c.must(err)
		return
	}
	var block strings.Builder
	encoder := hpack.NewEncoder(&block)
	fields := []string{":method", "GET", ":scheme", "https", ":path", path, ":authority", "localhost"}
	if token != "" {
		fields = append(fields, "authorization", "Bearer "+token)
	}
	for i := 0; i < len(fields); i += 2 {
		c.must(encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	c.must(c.framer.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: c.next, BlockFragment: []byte(block.String()), EndStream: true, EndHeaders: true}))
	c.next += 2
}

// newServerOfLargeObjects is a server with a short request timeout and more data than the buffers of a connection take.
func newServerOfLargeObjects(t *testing.T) *testServer {
	s := newTestServer(t, func(c *Config) { c.Limits.Timeout = 300 * time.Millisecond })
	for i := range 40 {
		cm := configMap("ns", fmt.Sprint("large-", i))
		cm.Data["large"] = strings.Repeat("x", 500_000)
		s.add("configmaps", cm)
	}
	return s
}

// A client that does not read its response holds a place among the requests in flight until the request's deadline, and no longer.
func TestWriteDeadline(t *testing.T) {
	for _, protocol := range []string{overHTTP1, overHTTP2, overGoHTTP2} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			s := newServerOfLargeObjects(t)
			c := newSlowClient(t, s.serveOver(protocol), protocol)
			c.get("/api/v1/configmaps", "admin")
			waitUntil(t, "the request is in flight", func() bool { return s.readOnly.inFlight.Load() == 1 })
			waitUntil(t, "the request has ended", func() bool { return s.readOnly.inFlight.Load() == 0 })
		})
	}
}

// A watch whose client accepts no events ends, and with it the state that its initial events are read from.
func TestWatchWriteDeadline(t *testing.T) {
	for _, protocol := range []string{overHTTP1, overHTTP2, overGoHTTP2} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			s := newServerOfLargeObjects(t)
			watching := func() int64 { return s.find("configmaps").watchers.Load() }
			c := newSlowClient(t, s.serveOver(protocol), protocol)
			c.get("/api/v1/configmaps?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "admin")
			waitUntil(t, "the watch is open", func() bool { return watching() == 1 })
			waitUntil(t, "the watch has ended", func() bool { return watching() == 0 })
		})
	}
}

// The deadline of a request does not hold for the next one on its connection.
func TestWriteDeadlineOfEarlierRequest(t *testing.T) {
	const timeout = 200 * time.Millisecond
	s := newTestServer(t, func(c *Config) { c.Limits.Timeout = timeout })
	s.add("pods", pod("ns", "first", ""))
	c := newSlowClient(t, s.serveOver(overHTTP1), overHTTP1)
	answers := bufio.NewReader(c.conn)
	c.get("/api/v1/pods", "admin")
	resp, err := http.ReadResponse(answers, nil)
	c.must(err)
	_, err = io.Copy(io.Discard, resp.Body)
	c.must(err)
	c.get("/api/v1/pods?watch=true&resourceVersion=0", "admin")
	if resp, err = http.ReadResponse(answers, nil); err != nil {
		t.Fatal(err)
	}
	events := bufio.NewScanner(resp.Body)
	for i := range 3 {
		if !events.Scan() {
			t.Fatalf("the watch ended after %d events: %v", i, events.Err())
		}
		time.Sleep(timeout + responseGrace/4) // idle for longer than the deadline of a write
		s.add("pods", pod("ns", fmt.Sprint("later-", i), ""))
	}
}

// Clients without credentials do not keep connections of HTTP/2.
func TestUnauthenticatedConnectionIsClosed(t *testing.T) {
	for _, protocol := range []string{overHTTP2, overGoHTTP2} {
		for _, test := range []struct {
			name, token string
			closed      bool
		}{
			{"no credentials", "", true}, {"invalid credentials", "wrong", true}, {"valid credentials", "admin", false},
		} {
			for _, anonymous := range []bool{false, true} {
				t.Run(fmt.Sprint(protocol, " ", test.name, " anonymous ", anonymous), func(t *testing.T) {
					s := newTestServer(t, func(c *Config) {
						if anonymous {
							c.Authenticator = append(c.Authenticator.(authn.Chain), authn.AnonymousUser{})
						}
					})
					c := newSlowClient(t, s.serveOver(protocol), protocol)
					c.get("/version", test.token)
					c.must(c.framer.WriteWindowUpdate(1, 1<<20))
					_ = c.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
					if closed := c.readsGoAway(); closed != test.closed {
						t.Errorf("the connection was closed: %t, want %t", closed, test.closed)
					}
				})
			}
		}
	}
}

// readsGoAway reads a response and what follows, and reports whether the server announced the end of the connection.
func (c *slowClient) readsGoAway() bool {
	pinged := false
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			c.t.Fatalf("read: %v", err)
		}
		switch f := frame.(type) {
		case *xhttp2.GoAwayFrame:
			return true
		case *xhttp2.DataFrame:
			if f.StreamEnded() && !pinged {
				pinged = true
				c.must(c.framer.WritePing(false, [8]byte{}))
			}
		case *xhttp2.PingFrame:
			if f.IsAck() {
				return false
			}
		}
	}
}

func waitUntil(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
