package connect

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

const (
	// portForwardProtocol is the protocol of port forwarding over SPDY: two streams for each connection, of data and of an error.
	portForwardProtocol = "portforward.k8s.io"
	// tunnelPing is how often a tunnel is checked.
	tunnelPing = 10 * time.Second
	// maxTunnelError bounds the error that a kubelet reports.
	maxTunnelError = 4 << 10
	// errorDelay is how long a connection that has ended waits for the reason.
	errorDelay = time.Second
)

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
	t, err := dialKubelet(ctx, location, secure, func(c *kubeletConn) (net.Conn, error) { return c.forward(location, port) })
	if err != nil {
		return nil, fmt.Errorf("forward port %s of pod %s/%s: %w", port, pod.Namespace, pod.Name, err)
	}
	return t, nil
}

// forward upgrades the connection to SPDY and opens the tunnel.
func (c *kubeletConn) forward(location *url.URL, port string) (net.Conn, error) {
	if err := c.upgrade(location, spdy.HeaderSpdy31, http.Header{"X-Stream-Protocol-Version": {portForwardProtocol}}); err != nil {
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
		return nil, err
	}
	return t, nil
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
