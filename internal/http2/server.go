package http2

import (
	"context"
	"crypto/tls"
	"net/http"
	"sync"
	"time"
)

// Limits and windows granted to a client. Requests are small, so clients hardly ever wait for the windows. defaultMaxStreams is
// upstream's limit of streams on a connection: clients of Go open another connection for more.
const (
	defaultMaxStreams = 100
	maxFrameSize      = 256 << 10
	streamWindow      = 256 << 10
	connectionWindow  = 1 << 20
)

// A connection on which nothing arrives for pingInterval gets a PING, and is closed when nothing arrives for pingTimeout after it.
const (
	pingInterval = time.Minute
	pingTimeout  = 15 * time.Second
)

// goAwayTimeout is how long the connection stays open for the client to read the GOAWAY frame.
const goAwayTimeout = time.Second

// Configure makes a server serve HTTP/2 with this package. The TLS configuration must offer "h2", and the TLS listener must wrap
// Listener. Of the server's HTTP2 configuration, MaxConcurrentStreams is used; it defaults to 100.
func Configure(server *http.Server) {
	all := &connections{open: map[*conn]struct{}{}}
	server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
		"h2": func(server *http.Server, tlsConn *tls.Conn, handler http.Handler) {
			below, ok := tlsConn.NetConn().(*socket)
			if !ok {
				panic("http2: the TLS listener does not wrap http2.Listener")
			}
			c := newConn(server, tlsConn, below, handler)
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

// maxStreams is how many requests of a connection are served at the same time.
func maxStreams(server *http.Server) int {
	if server.HTTP2 != nil && server.HTTP2.MaxConcurrentStreams > 0 {
		return server.HTTP2.MaxConcurrentStreams
	}
	return defaultMaxStreams
}

// baseContext is the context that net/http passes with the handler of a connection.
func baseContext(handler http.Handler) context.Context {
	if based, ok := handler.(interface{ BaseContext() context.Context }); ok {
		return based.BaseContext()
	}
	return context.Background()
}
