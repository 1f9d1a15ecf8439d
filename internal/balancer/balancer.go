// Package balancer connects the clients of a host to one of several API servers.
//
// It listens on loopback and forwards bytes: TLS is between the clients and the API server, whose certificate they verify. New connections go to
// the healthy server that has the fewest. A server whose health check fails, or to which no connection can be made, gets new ones only if no
// other accepts them, and its connections are closed, so that clients connect again and reach another.
package balancer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// dialTimeout is how long a connection to one server may take before the next is tried.
	dialTimeout = 2 * time.Second
	// checkInterval is the time between two health checks of a server, checkTimeout how long one may take. failures is after how many the
	// connections of a server are closed: one may be lost because the server is busy.
	checkInterval = 10 * time.Second
	checkTimeout  = 5 * time.Second
	failures      = 2
	// maxConnections bounds the connections of all clients, acceptPause is the pause after a failed accept.
	maxConnections = 10000
	acceptPause    = 100 * time.Millisecond
)

// keepAlive detects a server whose host has died: no packet closes its connections.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}

// userTimeout is how long data sent to a server may stay unacknowledged.
const userTimeout = 10 * time.Second

// Balancer forwards connections to servers.
type Balancer struct {
	// Check returns an error if a server, HOST:PORT, is not healthy.
	Check func(ctx context.Context, server string) error
	Log   *slog.Logger

	listener net.Listener

	mu          sync.Mutex
	servers     []*server
	connections int
}

// server is an API server.
type server struct {
	address string
	// failed is how often the check has failed since it has last succeeded. A failed dial counts as one.
	failed int
	// connections are closed when the server fails. Those of a server that is removed stay, and nothing checks it any more.
	connections map[*connection]struct{}
}

// connection is a client's connection and the one to the server.
type connection struct{ client, server net.Conn }

func (c *connection) close() {
	c.client.Close()
	c.server.Close()
}

// Listen opens the listener on loopback. Port 0 chooses a free port.
func (b *Balancer) Listen(ctx context.Context, port string) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return fmt.Errorf("listen for clients of the API: %w", err)
	}
	b.listener = listener
	return nil
}

// Address is where clients connect to.
func (b *Balancer) Address() string { return b.listener.Addr().String() }

// SetServers sets the servers, as HOST:PORT. The connections of servers that are not among them stay until they fail: a server that is shutting down
// finishes its requests.
func (b *Balancer) SetServers(addresses []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var servers []*server
	for _, address := range addresses {
		i := slices.IndexFunc(b.servers, func(s *server) bool { return s.address == address })
		if i < 0 {
			servers = append(servers, &server{address: address, connections: map[*connection]struct{}{}})
			continue
		}
		servers = append(servers, b.servers[i])
	}
	b.servers = servers
}

// Run forwards connections until ctx is done. It returns when all are closed.
func (b *Balancer) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { b.listener.Close() })()
	all.Go(func() { b.checkServers(ctx) })
	for {
		client, err := b.listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				client.Close()
			}
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			b.Log.Warn("failed to accept a connection", "error", err)
			time.Sleep(acceptPause)
			continue
		}
		if !b.admit() {
			client.Close()
			continue
		}
		all.Go(func() {
			defer b.release()
			b.serve(ctx, client)
		})
	}
}

// admit counts a connection, unless there are too many.
func (b *Balancer) admit() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.connections >= maxConnections {
		return false
	}
	b.connections++
	return true
}

func (b *Balancer) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.connections--
}

// serve forwards one connection.
func (b *Balancer) serve(ctx context.Context, client net.Conn) {
	defer client.Close()
	for _, s := range b.candidates() {
		conn, err := dial(ctx, s.address)
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return // which says nothing about the server
		}
		if err != nil {
			b.report(s, err)
			continue
		}
		c := &connection{client: client, server: conn}
		b.add(s, c)
		defer b.remove(s, c)
		defer context.AfterFunc(ctx, c.close)()
		forward(c)
		return
	}
}

// candidates are the servers in the order in which they are tried.
func (b *Balancer) candidates() []*server {
	b.mu.Lock()
	defer b.mu.Unlock()
	type candidate struct {
		*server
		failed, connections int
	}
	var candidates []candidate
	for _, s := range b.servers {
		candidates = append(candidates, candidate{s, s.failed, len(s.connections)})
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int {
		if (a.failed > 0) != (b.failed > 0) {
			return a.failed - b.failed
		}
		return a.connections - b.connections
	})
	var servers []*server
	for _, c := range candidates {
		servers = append(servers, c.server)
	}
	return servers
}

func (b *Balancer) add(s *server, c *connection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.connections[c] = struct{}{}
}

func (b *Balancer) remove(s *server, c *connection) {
	c.close()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(s.connections, c)
}

// report records the result of a check or a dial. When a server has failed too often its connections are closed.
func (b *Balancer) report(s *server, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		if s.failed >= failures {
			b.Log.Info("API server is healthy again", "server", s.address)
		}
		s.failed = 0
		return
	}
	s.failed++
	if s.failed == failures {
		b.Log.Warn("API server is not healthy, using others", "server", s.address, "error", err)
	}
	if s.failed >= failures && b.hasHealthy() {
		for c := range s.connections {
			c.close()
		}
	}
}

// hasHealthy reports whether a server is healthy. mu must be held.
func (b *Balancer) hasHealthy() bool {
	return slices.ContainsFunc(b.servers, func(s *server) bool { return s.failed == 0 })
}

// checkServers checks all servers periodically, until ctx is done.
func (b *Balancer) checkServers(ctx context.Context) {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		var all sync.WaitGroup
		for _, s := range b.candidates() {
			all.Go(func() {
				limited, cancel := context.WithTimeout(ctx, checkTimeout)
				defer cancel()
				err := b.Check(limited, s.address)
				if ctx.Err() == nil {
					b.report(s, err)
				}
			})
		}
		all.Wait()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// dial connects to a server.
func dial(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout, KeepAliveConfig: keepAlive}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { // without it a dead host is detected later
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
		})
	}
	return conn, nil
}

// forward copies in both directions until both have ended. An end of the data is passed on.
func forward(c *connection) {
	var both sync.WaitGroup
	for _, d := range []struct{ from, to net.Conn }{{c.client, c.server}, {c.server, c.client}} {
		both.Go(func() {
			if _, err := io.Copy(d.to, d.from); err != nil {
				c.close()
				return
			}
			if half, ok := d.to.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite() // fails if the connection is closed
			}
		})
	}
	both.Wait()
}
