package http2

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits and windows granted to a client. Requests are small, so clients hardly ever wait for the windows.
const (
	maxStreams       = 1000
	maxFrameSize     = 256 << 10
	streamWindow     = 256 << 10
	connectionWindow = 1 << 20
)

// A connection on which nothing arrives for pingInterval gets a PING, and is closed when nothing arrives for pingTimeout after it.
const (
	pingInterval = time.Minute
	pingTimeout  = 15 * time.Second
)

// writeTimeout is how long a single write waits for a client that does not read.
const writeTimeout = time.Minute

// goAwayTimeout is how long the connection stays open for the client to read the GOAWAY frame.
const goAwayTimeout = time.Second

// Configure makes a server serve HTTP/2 with this package. The TLS configuration must offer "h2".
func Configure(server *http.Server) {
	all := &connections{open: map[*conn]struct{}{}}
	server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
		"h2": func(server *http.Server, tlsConn *tls.Conn, handler http.Handler) {
			c := newConn(server, tlsConn, handler)
			all.add(c)
			defer all.remove(c)
			c.serve()
		},
	}
	server.RegisterOnShutdown(all.shutdown)
}

// connections are the open connections of a server.
type connections struct {
	mu      sync.Mutex
	open    map[*conn]struct{}
	closing bool
}

// add adds a new connection.
func (a *connections) add(c *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.drainFirst = a.closing
	a.open[c] = struct{}{}
}

func (a *connections) remove(c *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, c)
}

// shutdown drains all connections: requests in flight are finished.
func (a *connections) shutdown() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closing = true
	for c := range a.open {
		go c.drain()
	}
}

// Listener returns connections on which several TLS records can be sent with one system call. The TLS listener must wrap it.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &coalescingConn{Conn: c}, nil
}

// coalescingConn can buffer the writes of a function and send them with one system call.
type coalescingConn struct {
	net.Conn
	mu         sync.Mutex
	coalescing bool
	pending    []byte
}

func (g *coalescingConn) Write(p []byte) (int, error) {
	g.mu.Lock()
	if g.coalescing {
		g.pending = append(g.pending, p...)
		g.mu.Unlock()
		return len(p), nil
	}
	g.mu.Unlock()
	return g.Conn.Write(p)
}

// coalesceBuffers are large enough for the records of a full sendBuffer.
var coalesceBuffers = sync.Pool{New: func() any { b := make([]byte, 0, headerSpace+slots*(recordSize+64)); return &b }}

// coalesce runs write and sends what it wrote with one system call.
func (g *coalescingConn) coalesce(write func() error) error {
	buffer := coalesceBuffers.Get().(*[]byte)
	g.mu.Lock()
	g.coalescing, g.pending = true, (*buffer)[:0]
	g.mu.Unlock()
	err := write()
	g.mu.Lock()
	pending := g.pending
	g.coalescing, g.pending = false, nil
	g.mu.Unlock()
	if err == nil {
		_, err = g.Conn.Write(pending)
	}
	*buffer = pending
	coalesceBuffers.Put(buffer)
	return err
}

// baseContext is the context that net/http passes with the handler of a connection.
func baseContext(handler http.Handler) context.Context {
	if based, ok := handler.(interface{ BaseContext() context.Context }); ok {
		return based.BaseContext()
	}
	return context.Background()
}
