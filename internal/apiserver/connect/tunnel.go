package connect

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"skiff/internal/webhook"
)

const (
	// portForwardProtocol is the protocol of port forwarding over SPDY: two streams for each connection, of data and of an error.
	portForwardProtocol = "portforward.k8s.io"
	// tunnelPing is how often a tunnel is checked.
	tunnelPing = 10 * time.Second
	// maxTunnelError bounds the error that a kubelet reports.
	maxTunnelError = 4 << 10
	// maxUpgradeBytes bounds a kubelet's response to the request for a tunnel.
	maxUpgradeBytes = 64 << 10
	// errorDelay is how long a connection that has ended waits for the reason.
	errorDelay = time.Second
	// dialTimeout bounds the time until a connection is open. An HTTP client dials without the deadline of its request.
	dialTimeout = 30 * time.Second
)

// PodDialer returns what connects to the endpoints of Services for an API server whose host has no route to pods: it forwards a port of the
// pod through the kubelet of its node. Other endpoints and pods in their host's network are dialed.
func PodDialer(c Config) func(ctx context.Context, e webhook.Endpoint) (net.Conn, error) {
	return podDialer(c, dialTimeout)
}

func podDialer(c Config, timeout time.Duration) func(ctx context.Context, e webhook.Endpoint) (net.Conn, error) {
	b := newBackends(c)
	direct := &net.Dialer{KeepAlive: 30 * time.Second}
	return func(ctx context.Context, e webhook.Endpoint) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		pod, err := b.podAt(ctx, e)
		if err != nil {
			return nil, err
		}
		if pod == nil || pod.Spec.HostNetwork {
			return direct.DialContext(ctx, "tcp", e.Address)
		}
		return b.forwardPort(ctx, pod, e.Address, c.Kubelet)
	}
}

// podAt returns the pod at an endpoint; nil: it is not a pod that runs on a node.
func (b *backends) podAt(ctx context.Context, e webhook.Endpoint) (*corev1.Pod, error) {
	if e.Target == nil || e.Target.Kind != "Pod" {
		return nil, nil
	}
	obj, err := b.objects.Get(ctx, pods, e.Target.Namespace, e.Target.Name)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(e.Address)
	pod := obj.(*corev1.Pod)
	if err != nil || pod.Spec.NodeName == "" {
		return nil, err
	}
	for _, ip := range pod.Status.PodIPs {
		if ip.IP == host {
			return pod, nil
		}
	}
	return nil, nil
}

// forwardPort connects to a port of a pod through its kubelet.
func (b *backends) forwardPort(ctx context.Context, pod *corev1.Pod, address string, secure *tls.Config) (net.Conn, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	location, err := b.kubeletOf(ctx, pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	location.Path = "/portForward/" + pod.Namespace + "/" + pod.Name
	t, err := openTunnel(ctx, location, port, secure)
	if err != nil {
		return nil, fmt.Errorf("forward port %s of pod %s/%s: %w", port, pod.Namespace, pod.Name, err)
	}
	return t, nil
}

// openTunnel opens a tunnel to a port at a kubelet. Nothing of it is left if ctx is done first.
func openTunnel(ctx context.Context, location *url.URL, port string, secure *tls.Config) (*tunnel, error) {
	dialer := &tls.Dialer{Config: secure, NetDialer: &net.Dialer{KeepAlive: 30 * time.Second}}
	dialed, err := dialer.DialContext(ctx, "tcp", location.Host)
	if err != nil {
		return nil, err
	}
	conn := &kubeletConn{Conn: dialed, close: sync.OnceValue(dialed.Close)}
	// Closing the connection ends whatever waits for a kubelet that does not respond.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	t, err := conn.forward(location, port)
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return t, nil
}

// kubeletConn is a connection to a kubelet.
type kubeletConn struct {
	net.Conn
	// received was read from the connection together with the response to the upgrade.
	received []byte
	close    func() error
}

// Read implements net.Conn.
func (c *kubeletConn) Read(to []byte) (int, error) {
	if len(c.received) > 0 {
		n := copy(to, c.received)
		c.received = c.received[n:]
		return n, nil
	}
	return c.Conn.Read(to)
}

// Close implements net.Conn. It may be called more than once.
func (c *kubeletConn) Close() error { return c.close() }

// forward upgrades the connection to SPDY and opens the tunnel.
func (c *kubeletConn) forward(location *url.URL, port string) (*tunnel, error) {
	if err := c.upgrade(location); err != nil {
		return nil, err
	}
	connection, err := spdy.NewClientConnectionWithPings(c, tunnelPing)
	if err != nil {
		return nil, err
	}
	t, err := newTunnel(c, connection, port)
	if err != nil {
		_ = c.Close()
		_ = connection.Close()
	}
	return t, err
}

// upgrade requests port forwarding over SPDY.
func (c *kubeletConn) upgrade(location *url.URL) error {
	request, err := http.NewRequest(http.MethodPost, location.String(), http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set("X-Stream-Protocol-Version", portForwardProtocol)
	request.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	request.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	if err := request.Write(c); err != nil {
		return err
	}
	reader := bufio.NewReader(io.LimitReader(c.Conn, maxUpgradeBytes))
	response, err := http.ReadResponse(reader, request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusSwitchingProtocols || !strings.EqualFold(response.Header.Get(httpstream.HeaderUpgrade), spdy.HeaderSpdy31) {
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxTunnelError))
		return fmt.Errorf("unable to upgrade connection: the kubelet responded %s: %s", response.Status, bytes.TrimSpace(text))
	}
	c.received, err = reader.Peek(reader.Buffered())
	return err
}

// tunnel is a connection to a port of a pod.
type tunnel struct {
	httpstream.Stream
	conn       *kubeletConn
	connection httpstream.Connection
	// reported is closed when the kubelet has closed the error stream. err is then the error, if there was one.
	reported chan struct{}
	err      error
}

func newTunnel(conn *kubeletConn, connection httpstream.Connection, port string) (*tunnel, error) {
	header := http.Header{}
	header.Set("port", port)
	header.Set("requestID", "0")
	header.Set("streamType", "error")
	errorStream, err := connection.CreateStream(header)
	if err != nil {
		return nil, err
	}
	// Nothing is written to the error stream.
	if err := errorStream.Close(); err != nil {
		return nil, err
	}
	header.Set("streamType", "data")
	data, err := connection.CreateStream(header)
	if err != nil {
		return nil, err
	}
	t := &tunnel{Stream: data, conn: conn, connection: connection, reported: make(chan struct{})}
	go t.readError(errorStream)
	return t, nil
}

// readError reads what the kubelet reports until it closes the stream.
func (t *tunnel) readError(stream io.Reader) {
	defer close(t.reported)
	text, err := io.ReadAll(io.LimitReader(stream, maxTunnelError))
	if err == nil && len(text) > 0 {
		t.err = errors.New(string(text))
	}
}

// Read implements net.Conn. The error that ends the connection may arrive after its last data.
func (t *tunnel) Read(to []byte) (int, error) {
	n, err := t.Stream.Read(to)
	if err == nil {
		return n, nil
	}
	select {
	case <-t.reported:
		if t.err != nil {
			return n, t.err
		}
	case <-time.After(errorDelay):
	}
	return n, err
}

// Close implements net.Conn. The connection is closed before its streams, whose last frames a kubelet might not read.
func (t *tunnel) Close() error {
	err := t.conn.Close()
	_ = t.connection.Close()
	return err
}

// tunnelAddress is the address of a tunnel.
type tunnelAddress struct{}

func (tunnelAddress) Network() string { return "tcp" }
func (tunnelAddress) String() string  { return "port-forward" }

// LocalAddr implements net.Conn.
func (*tunnel) LocalAddr() net.Addr { return tunnelAddress{} }

// RemoteAddr implements net.Conn.
func (*tunnel) RemoteAddr() net.Addr { return tunnelAddress{} }

// The HTTP client ends a call by closing its connection, not with deadlines.

// SetDeadline implements net.Conn.
func (*tunnel) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (*tunnel) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (*tunnel) SetWriteDeadline(time.Time) error { return nil }
