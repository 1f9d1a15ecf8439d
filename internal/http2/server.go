package http2

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// What a client may have open and unread with us. Requests are small, so that the windows are hardly ever waited for.
const (
	maxStreams       = 1000
	maxFrameSize     = 256 << 10
	streamWindow     = 256 << 10
	connectionWindow = 1 << 20
)

// A connection on which nothing arrives is asked for a sign of life after quietTime, and given up when none comes in answerTime.
const (
	quietTime  = time.Minute
	answerTime = 15 * time.Second
)

// writeTimeout is how long a single write may wait for a client that reads nothing at all.
const writeTimeout = time.Minute

// farewellTime is how long a client has to read why its connection ends.
const farewellTime = time.Second

// Configure makes a server speak HTTP/2 by this package with clients that ask for it. Its TLS configuration must offer "h2".
func Configure(server *http.Server) {
	all := &connections{open: map[*conn]struct{}{}}
	server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
		"h2": func(server *http.Server, secure *tls.Conn, handler http.Handler) {
			c := newConn(server, secure, handler)
			if !all.add(c) {
				return
			}
			defer all.remove(c)
			c.serve()
		},
	}
	server.RegisterOnShutdown(all.shutdown)
}

// connections are those of a server.
type connections struct {
	mu      sync.Mutex
	open    map[*conn]struct{}
	closing bool
}

func (a *connections) add(c *conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closing {
		a.open[c] = struct{}{}
	}
	return !a.closing
}

func (a *connections) remove(c *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, c)
}

// shutdown lets every connection finish what it has begun.
func (a *connections) shutdown() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closing = true
	for c := range a.open {
		go c.retire()
	}
}

// Listener returns connections on which several TLS records can be sent with one system call. It belongs below that of TLS.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &gatherer{Conn: c}, nil
}

// gatherer keeps what is written to it, while it is told to, and then writes it at once.
type gatherer struct {
	net.Conn
	mu        sync.Mutex
	gathering bool
	kept      []byte
}

func (g *gatherer) Write(p []byte) (int, error) {
	g.mu.Lock()
	if g.gathering {
		g.kept = append(g.kept, p...)
		g.mu.Unlock()
		return len(p), nil
	}
	g.mu.Unlock()
	return g.Conn.Write(p)
}

// gathered are buffers for the records of a full outbox.
var gathered = sync.Pool{New: func() any { b := make([]byte, 0, headroom+slots*(record+64)); return &b }}

// gather runs write and sends what it wrote.
func (g *gatherer) gather(write func() error) error {
	buffer := gathered.Get().(*[]byte)
	g.mu.Lock()
	g.gathering, g.kept = true, (*buffer)[:0]
	g.mu.Unlock()
	err := write()
	g.mu.Lock()
	kept := g.kept
	g.gathering, g.kept = false, nil
	g.mu.Unlock()
	if err == nil {
		_, err = g.Conn.Write(kept)
	}
	*buffer = kept
	gathered.Put(buffer)
	return err
}

// baseContext is the context net/http gives to a connection.
func baseContext(handler http.Handler) context.Context {
	if based, ok := handler.(interface{ BaseContext() context.Context }); ok {
		return based.BaseContext()
	}
	return context.Background()
}
