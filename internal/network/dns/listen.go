package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"
)

const (
	// maxSockets is the number of UDP sockets, each with a goroutine, if the host has as many CPUs. The kernel distributes clients over them.
	maxSockets = 8
	// maxQuerySize is the size of the largest query. Queries have one name and few options.
	maxQuerySize = 4096
	// udpBufferSize is the size of the socket's receive buffer.
	udpBufferSize = 4 << 20
	// maxConnections and maxConnectionsPerClient bound the TCP connections.
	maxConnections          = 1000
	maxConnectionsPerClient = 100
	// maxMetricsConnections and maxMetricsConnectionsPerClient bound those to the port of the metrics, which all pods reach, too.
	maxMetricsConnections          = 100
	maxMetricsConnectionsPerClient = 10
	// tcpTimeout is how long a TCP client may take for the next query or for reading a response.
	tcpTimeout = 10 * time.Second
	// listenRetry is the time between two attempts to listen.
	listenRetry = 2 * time.Second
	// addressCheckPeriod is the time after which addresses are set again that the host has lost, as a restart of its network may remove them.
	addressCheckPeriod = 10 * time.Second
	// readRetry is the pause after a failure to read from or accept on a socket.
	readRetry = 10 * time.Millisecond
)

// runListeners listens on the addresses of the Service until ctx is done.
func (s *Server) runListeners(ctx context.Context) error {
	listeners := map[netip.Addr]*listener{}
	defer func() {
		s.closeExcept(listeners, nil)
		if err := s.config.Addresses.Set(nil); err != nil {
			s.log.Error("failed to remove the addresses of the DNS server", "error", err)
		}
	}()
	check := time.NewTicker(s.addressCheck)
	defer check.Stop()
	failed := false
	for {
		err := s.syncListeners(listeners)
		if err != nil && !failed {
			s.log.Error("failed to listen for DNS queries", "error", err, "retry", listenRetry.String())
		}
		failed = err != nil
		var retry <-chan time.Time
		if failed {
			retry = time.After(listenRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.addressChanged:
		case <-check.C:
		case <-retry:
		}
	}
}

// syncListeners opens and closes listeners so that there is one for each address.
func (s *Server) syncListeners(listeners map[netip.Addr]*listener) error {
	wanted := s.ownAddresses()
	s.closeExcept(listeners, wanted)
	if err := s.config.Addresses.Set(wanted); err != nil {
		return err
	}
	var errs []error
	for _, ip := range wanted {
		if listeners[ip] != nil {
			continue
		}
		l, err := s.listen(ip)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		listeners[ip] = l
		s.log.Info("serving DNS", "address", l.tcp.Addr().String())
	}
	return errors.Join(errs...)
}

func (s *Server) closeExcept(listeners map[netip.Addr]*listener, wanted []netip.Addr) {
	for ip, l := range listeners {
		if !slices.Contains(wanted, ip) {
			l.close()
			delete(listeners, ip)
		}
	}
}

// listener serves one address.
type listener struct {
	*Server
	udp     []*net.UDPConn
	tcp     net.Listener
	metrics net.Listener
	// ctx is done when the listener is closed.
	ctx    context.Context
	cancel context.CancelFunc
	// readers are the goroutines that read from sockets, pending those that answer a query or serve a connection.
	readers, pending sync.WaitGroup
	// queries are the TCP connections for queries, scrapes those for metrics.
	queries, scrapes *connections
}

// listen starts to serve an address.
func (s *Server) listen(ip netip.Addr) (*listener, error) {
	l := &listener{
		Server: s, queries: newConnections(maxConnections, maxConnectionsPerClient), scrapes: newConnections(maxMetricsConnections, maxMetricsConnectionsPerClient),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if err := l.open(ip); err != nil {
		l.close()
		return nil, fmt.Errorf("listen on %s: %w", ip, err)
	}
	for _, socket := range l.udp {
		l.readers.Go(func() { l.readUDP(socket) })
	}
	l.readers.Go(l.acceptTCP)
	l.readers.Go(l.serveMetrics)
	return l, nil
}

// open opens the sockets.
func (l *listener) open(ip netip.Addr) error {
	tcp, udp := net.ListenConfig{}, net.ListenConfig{Control: shareAddress}
	var err error
	// UDP last: its sockets could be opened although another process of skiff has this address, and would take its queries.
	if l.tcp, err = tcp.Listen(l.ctx, "tcp", netip.AddrPortFrom(ip, l.ports.dns).String()); err != nil {
		return err
	}
	if l.metrics, err = tcp.Listen(l.ctx, "tcp", netip.AddrPortFrom(ip, l.ports.metrics).String()); err != nil {
		return err
	}
	for range min(maxSockets, runtime.GOMAXPROCS(0)) {
		socket, err := udp.ListenPacket(l.ctx, "udp", netip.AddrPortFrom(ip, l.ports.dns).String())
		if err != nil {
			return err
		}
		l.udp = append(l.udp, socket.(*net.UDPConn))
		// A smaller buffer than requested is no failure.
		_ = socket.(*net.UDPConn).SetReadBuffer(udpBufferSize)
	}
	return nil
}

// shareAddress lets several sockets have an address. SO_REUSEPORT is for the server's own. With SO_REUSEADDR a program that has bound the port for
// all addresses, and set the option too, keeps it; queries for this address come here.
func shareAddress(_, _ string, c syscall.RawConn) error {
	var err error
	controlErr := c.Control(func(fd uintptr) {
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	})
	return errors.Join(controlErr, err)
}

// close stops serving and returns when everything has ended.
func (l *listener) close() {
	l.cancel()
	for _, socket := range l.udp {
		socket.Close()
	}
	if l.tcp != nil {
		l.tcp.Close()
	}
	if l.metrics != nil {
		l.metrics.Close()
	}
	l.readers.Wait()
	l.pending.Wait()
}

// pauseAfter logs a failure of a socket and waits.
func (l *listener) pauseAfter(err error) {
	l.logAccept.Do(func() { l.log.Warn("failed to receive DNS queries", "error", err) })
	select {
	case <-l.ctx.Done():
	case <-time.After(readRetry):
	}
}

// acceptTCP serves connections.
func (l *listener) acceptTCP() {
	for {
		c, err := l.tcp.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			l.pauseAfter(err)
			continue
		}
		client := clientOf(c)
		if !l.queries.admit(client) {
			c.Close()
			continue
		}
		l.pending.Go(func() {
			defer l.queries.leave(client)
			defer c.Close()
			stop := context.AfterFunc(l.ctx, func() { c.Close() })
			defer stop()
			l.guard(func() { l.serveTCP(c, client) })
		})
	}
}

// clientOf is the address of the other end of a TCP connection.
func clientOf(c net.Conn) netip.Addr { return c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap() }

// connections bounds TCP connections, of all clients and of one.
type connections struct {
	max, maxPerClient int

	mu    sync.Mutex
	of    map[netip.Addr]int
	total int
}

func newConnections(total, perClient int) *connections {
	return &connections{max: total, maxPerClient: perClient, of: map[netip.Addr]int{}}
}

// admit counts a connection. It returns false if there are too many; otherwise leave must be called.
func (c *connections) admit(client netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total >= c.max || c.of[client] >= c.maxPerClient {
		return false
	}
	c.total++
	c.of[client]++
	return true
}

func (c *connections) leave(client netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	if c.of[client]--; c.of[client] == 0 {
		delete(c.of, client)
	}
}

// boundedListener closes the connections that are too many.
type boundedListener struct {
	net.Listener
	bound *connections
}

func (l boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := clientOf(c)
		if l.bound.admit(client) {
			return &boundedConn{Conn: c, leave: sync.OnceFunc(func() { l.bound.leave(client) })}, nil
		}
		c.Close()
	}
}

// boundedConn is a connection that is counted until it is closed.
type boundedConn struct {
	net.Conn
	leave func()
}

func (c *boundedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// serveTCP answers the queries of a connection, one after the other, until the client closes it or is silent for too long.
func (l *listener) serveTCP(c net.Conn, client netip.Addr) {
	w := l.workers.Get().(*worker)
	defer l.workers.Put(w)
	packet := make([]byte, maxQuerySize)
	var out []byte
	for {
		if c.SetReadDeadline(time.Now().Add(tcpTimeout)) != nil {
			return
		}
		size, ok := readQuery(c, packet)
		if !ok {
			return
		}
		response, result := l.answerTCP(w, request{packet: packet[:size], client: client, isTCP: true})
		if result == drop {
			return
		}
		out = append(binary.BigEndian.AppendUint16(out[:0], uint16(len(response))), response...)
		if c.SetWriteDeadline(time.Now().Add(tcpTimeout)) != nil {
			return
		}
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// readQuery reads a query and its length.
func readQuery(c net.Conn, packet []byte) (size int, ok bool) {
	var length [2]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return 0, false
	}
	if size = int(binary.BigEndian.Uint16(length[:])); size > len(packet) {
		return 0, false
	}
	_, err := io.ReadFull(c, packet[:size])
	return size, err == nil
}

func (l *listener) answerTCP(w *worker, req request) ([]byte, result) {
	response, result := w.answer(req)
	if result != wait {
		return response, result
	}
	if !l.forwarder.acquire(req.client) {
		return w.refuse(req), respond
	}
	defer l.forwarder.release(req.client)
	return w.resolve(l.ctx, req)
}

// serveMetrics serves the DNS metrics at /metrics without TLS, as CoreDNS does.
func (l *listener) serveMetrics() {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(l.Server.metrics.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: tcpTimeout, ReadTimeout: tcpTimeout, WriteTimeout: 3 * tcpTimeout, IdleTimeout: tcpTimeout, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(l.ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(boundedListener{l.metrics, l.scrapes}); !errors.Is(err, http.ErrServerClosed) && l.ctx.Err() == nil {
		l.log.Error("failed to serve DNS metrics", "error", err)
	}
}
