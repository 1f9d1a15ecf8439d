package connect

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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
	// errorDelay is how long a connection that has ended waits for the reason.
	errorDelay = time.Second
)

// PodDialer returns what connects to the endpoints of Services for an API server whose host has no route to pods: it forwards a port of the
// pod through the kubelet of its node. Other endpoints and pods in their host's network are dialed.
func PodDialer(c Config) func(ctx context.Context, e webhook.Endpoint) (net.Conn, error) {
	b := newBackends(c)
	direct := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	return func(ctx context.Context, e webhook.Endpoint) (net.Conn, error) {
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
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, location.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("X-Stream-Protocol-Version", portForwardProtocol)
	connection, err := upgradeToSPDY(request, secure)
	if err != nil {
		return nil, fmt.Errorf("forward port %s of pod %s/%s: %w", port, pod.Namespace, pod.Name, err)
	}
	conn, err := newTunnel(connection, port)
	if err != nil {
		_ = connection.Close()
		return nil, fmt.Errorf("forward port %s of pod %s/%s: %w", port, pod.Namespace, pod.Name, err)
	}
	return conn, nil
}

// upgradeToSPDY opens a SPDY connection. The library does not end with the request's context, so it runs beside it.
func upgradeToSPDY(request *http.Request, secure *tls.Config) (httpstream.Connection, error) {
	transport, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{
		TLS: secure, PingPeriod: tunnelPing, Proxier: http.ProxyURL(nil),
	})
	if err != nil {
		return nil, err
	}
	type opened struct {
		connection httpstream.Connection
		err        error
	}
	result := make(chan opened, 1)
	go func() {
		response, err := transport.RoundTrip(request)
		if err != nil {
			result <- opened{err: err}
			return
		}
		response.Body = io.NopCloser(io.LimitReader(response.Body, maxTunnelError))
		connection, err := transport.NewConnection(response)
		result <- opened{connection, err}
	}()
	select {
	case r := <-result:
		return r.connection, r.err
	case <-request.Context().Done():
		go func() {
			if r := <-result; r.connection != nil {
				_ = r.connection.Close()
			}
		}()
		return nil, request.Context().Err()
	}
}

// tunnel is a connection to a port of a pod.
type tunnel struct {
	httpstream.Stream
	connection httpstream.Connection
	// reported is closed when the kubelet has closed the error stream. err is then the error, if there was one.
	reported chan struct{}
	err      error
}

func newTunnel(connection httpstream.Connection, port string) (*tunnel, error) {
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
	t := &tunnel{Stream: data, connection: connection, reported: make(chan struct{})}
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

// Close implements net.Conn.
func (t *tunnel) Close() error { return t.connection.Close() }

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
