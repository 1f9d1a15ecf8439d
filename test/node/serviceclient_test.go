package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"skiff/test/netns"
)

const (
	// requestTimeout is the time after which a request has failed.
	requestTimeout = 10 * time.Second
	// requestPause is the time between the requests of a client, keptOpen the number of connections of one that keeps them open.
	requestPause = 100 * time.Millisecond
	keptOpen     = 4
)

// serviceClient sends requests to a Service all the time, each over a new connection, or over connections that it keeps open. The requests are such that an HTTP
// client never repeats them by itself.
type serviceClient struct {
	name string
	// network is where the client is, source its address there; nat is the network in which the address of the Service is translated.
	network   netns.Namespace
	source    netip.Addr
	nat       netns.Namespace
	url       string
	keepsOpen bool

	stopping chan struct{}
	stopOnce sync.Once
	done     sync.WaitGroup

	mu       sync.Mutex
	requests []serviceRequest
}

// serviceRequest is a request with its response.
type serviceRequest struct {
	began, ended time.Time
	// pod is the name of the pod that has answered.
	pod string
	err error
	// endpoint is where a request went that failed.
	endpoint netip.Addr
}

func (r serviceRequest) String() string {
	text := fmt.Sprintf("the request of %s to %s", clock(r.began), clock(r.ended))
	if r.err != nil {
		return fmt.Sprintf("%s, which went to %s, failed: %v", text, r.endpoint, r.err)
	}
	return text + " was answered by " + r.pod
}

func clock(t time.Time) string { return t.Format("15:04:05.000") }

func (c *serviceClient) String() string {
	if c.keepsOpen {
		return c.name + ", over connections that stay open"
	}
	return c.name + ", over new connections"
}

// start sends requests until stop. Requests do not wait for each other, but those over the same connection do.
func (c *serviceClient) start() {
	c.stopping = make(chan struct{})
	loops := 1
	if c.keepsOpen {
		loops = keptOpen
	}
	for range loops {
		c.done.Go(func() {
			ticker := time.NewTicker(requestPause)
			defer ticker.Stop()
			kept := c.connection()
			defer kept.CloseIdleConnections()
			for {
				select {
				case <-c.stopping:
					return
				case <-ticker.C:
				}
				if c.keepsOpen {
					c.record(kept)
					continue
				}
				c.done.Go(func() {
					single := c.connection()
					defer single.CloseIdleConnections()
					c.record(single)
				})
			}
		})
	}
}

// stop waits for the responses of all requests.
func (c *serviceClient) stop() {
	c.stopOnce.Do(func() { close(c.stopping) })
	c.done.Wait()
}

func (c *serviceClient) record(connection *clientConnection) {
	r := c.send(connection)
	if r.err != nil {
		var err error
		r.endpoint, err = c.endpoint(connection)
		r.err = errors.Join(r.err, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, r)
}

// results returns the requests that have ended.
func (c *serviceClient) results() []serviceRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.requests)
}

func countRequests(all []serviceRequest, is func(serviceRequest) bool) (count int) {
	for _, r := range all {
		if is(r) {
			count++
		}
	}
	return count
}

// clientConnection is an HTTP client with one connection at a time.
type clientConnection struct {
	http.Transport
	// port is the local port of the last connection.
	port atomic.Int32
}

func (c *serviceClient) connection() *clientConnection {
	connection := &clientConnection{}
	connection.MaxConnsPerHost = 1
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var bindErr error
		err := raw.Control(func(fd uintptr) {
			var port int32
			port, bindErr = bindNewPort(int(fd))
			connection.port.Store(port)
		})
		return errors.Join(err, bindErr)
	}}
	connection.DialContext = func(ctx context.Context, _, address string) (made net.Conn, err error) {
		err = c.network.Do(func() (err error) {
			made, err = dialer.DialContext(ctx, "tcp4", address)
			return err
		})
		return made, err
	}
	return connection
}

// The local ports of clients are below those that the kernel chooses, and each is used once: what the kernel remembers of a connection that has got no response
// would send a later one from the same port to the same pod.
const firstClientPort, lastClientPort = 1024, 19999

var clientPorts atomic.Int32

// bindNewPort binds a socket to a port, which is known then before a connection is made, and also if none is.
func bindNewPort(socket int) (int32, error) {
	for {
		port := firstClientPort - 1 + clientPorts.Add(1)
		if port > lastClientPort {
			return 0, errors.New("all ports of clients were used")
		}
		if err := unix.Bind(socket, &unix.SockaddrInet4{Port: int(port)}); !errors.Is(err, unix.EADDRINUSE) {
			return port, err
		}
	}
}

// send sends a request and reads the response.
func (c *serviceClient) send(connection *clientConnection) (r serviceRequest) {
	r.began = time.Now()
	defer func() { r.ended = time.Now() }()
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	var request *http.Request
	if request, r.err = http.NewRequestWithContext(ctx, http.MethodPost, c.url, nil); r.err != nil {
		return r
	}
	var response *http.Response
	if response, r.err = connection.RoundTrip(request); r.err != nil {
		return r
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	_, r.pod, _ = strings.Cut(strings.TrimSpace(string(body)), ", says ")
	if err == nil && (response.StatusCode != http.StatusOK || r.pod == "") {
		err = fmt.Errorf("%s: %q", response.Status, body)
	}
	r.err = err
	return r
}

// endpoint returns to which address the kernel has sent the packets of the last connection.
func (c *serviceClient) endpoint(connection *clientConnection) (found netip.Addr, err error) {
	err = c.nat.Do(func() error {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("list connections: %w", err)
		}
		for _, flow := range flows {
			if flow.Forward.SrcPort == uint16(connection.port.Load()) && c.source.Compare(addrOf(flow.Forward.SrcIP)) == 0 {
				found = addrOf(flow.Reverse.SrcIP)
				return nil
			}
		}
		return fmt.Errorf("no connection from %s:%d", c.source, connection.port.Load())
	})
	return found, err
}

func addrOf(ip net.IP) netip.Addr {
	address, _ := netip.AddrFromSlice(ip)
	return address.Unmap()
}
