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

	"skiff/internal/egress"
	"skiff/internal/webhook"
)

const (
	// dialTimeout bounds the time until a connection is open. An HTTP client dials without the deadline of its request.
	dialTimeout = 30 * time.Second
	// maxUpgradeBytes bounds a kubelet's response to the request to upgrade a connection.
	maxUpgradeBytes = 64 << 10
)

// podDialer connects to pods for an API server whose host has no route to them: the kubelet of a pod's node connects to the pod's address.
type podDialer struct {
	backends *backends
	// secure authenticates to kubelets.
	secure  *tls.Config
	timeout time.Duration
	// direct connects to pods in their host's network, and to what is not a pod.
	direct egress.DialFunc
	// otherwise connects to a pod whose kubelet does not connect to pods: it is not skiff's, or older.
	otherwise func(ctx context.Context, pod *corev1.Pod, address string) (net.Conn, error)
}

// PodDialer returns what connects to the endpoints of Services for an API server whose host has no route to pods. It forwards the pod's port
// if the kubelet does not connect to pods.
func PodDialer(c Config) func(ctx context.Context, e webhook.Endpoint) (net.Conn, error) {
	return newPodDialer(c, dialTimeout).dial
}

func newPodDialer(c Config, timeout time.Duration) *podDialer {
	b := newBackends(c)
	return &podDialer{
		backends: b, secure: c.Kubelet, timeout: timeout, direct: (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext,
		otherwise: func(ctx context.Context, pod *corev1.Pod, address string) (net.Conn, error) {
			return b.forwardPort(ctx, pod, address, c.Kubelet)
		},
	}
}

// dialWorkloadsThroughKubelets lets the proxies to pods and services connect through kubelets. Ports are not forwarded: a forwarded port is one
// of the pod's loopback interface, which the proxies must not open.
func (b *backends) dialWorkloadsThroughKubelets(secure *tls.Config) {
	direct := b.workloads.DialContext
	d := &podDialer{
		backends: b, secure: secure, timeout: dialTimeout, direct: direct,
		otherwise: func(ctx context.Context, pod *corev1.Pod, address string) (net.Conn, error) {
			conn, err := direct(ctx, "tcp", address)
			if err != nil {
				return nil, fmt.Errorf("the kubelet of node %s does not connect to pods: %w", pod.Spec.NodeName, err)
			}
			return conn, nil
		},
	}
	b.workloads.DialContext = webhook.DialEndpoint(d.dial, direct)
	// A connection is only for the pod for which its kubelet has allowed it. The transport would use it for every request to the address, also for
	// one to another pod whose status has that address.
	b.workloads.DisableKeepAlives = true
}

func (d *podDialer) dial(ctx context.Context, e webhook.Endpoint) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	pod, err := d.backends.podAt(ctx, e)
	if err != nil {
		return nil, err
	}
	if pod == nil || pod.Spec.HostNetwork {
		return d.direct(ctx, "tcp", e.Address)
	}
	conn, err := d.connect(ctx, pod, e.Address)
	var refused *upgradeError
	if errors.As(err, &refused) && refused.code == http.StatusNotFound {
		return d.otherwise(ctx, pod, e.Address)
	}
	return conn, err
}

// connect connects to an address of a pod through its kubelet.
func (d *podDialer) connect(ctx context.Context, pod *corev1.Pod, address string) (net.Conn, error) {
	location, err := d.backends.kubeletOf(ctx, pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	location.Path, location.RawQuery = "/connect/"+pod.Namespace+"/"+pod.Name, url.Values{"address": {address}}.Encode()
	conn, err := dialKubelet(ctx, location, d.secure, func(c *kubeletConn) (net.Conn, error) { return c, c.upgrade(location, "tcp", http.Header{}) })
	if err != nil {
		return nil, fmt.Errorf("connect to %s through the kubelet of node %s: %w", address, pod.Spec.NodeName, err)
	}
	return conn, nil
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

// dialKubelet connects to a kubelet and does what open does. Nothing of it is left if ctx is done first.
func dialKubelet(ctx context.Context, location *url.URL, secure *tls.Config, open func(*kubeletConn) (net.Conn, error)) (net.Conn, error) {
	dialer := &tls.Dialer{Config: secure, NetDialer: &net.Dialer{KeepAlive: 30 * time.Second}}
	dialed, err := dialer.DialContext(ctx, "tcp", location.Host)
	if err != nil {
		return nil, err
	}
	conn := &kubeletConn{Conn: dialed, close: sync.OnceValue(dialed.Close)}
	// Closing the connection ends whatever waits for a kubelet that does not respond.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	opened, err := open(conn)
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return opened, nil
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

// CloseWrite tells the other side that nothing more will be written.
func (c *kubeletConn) CloseWrite() error { return c.Conn.(*tls.Conn).CloseWrite() }

// Close implements net.Conn. It may be called more than once.
func (c *kubeletConn) Close() error { return c.close() }

// upgradeError is the response of a kubelet that has not upgraded a connection.
type upgradeError struct {
	code         int
	status, text string
}

// Error implements error.
func (e *upgradeError) Error() string {
	return fmt.Sprintf("unable to upgrade connection: the kubelet responded %s: %s", e.status, e.text)
}

// upgrade requests another protocol for the connection.
func (c *kubeletConn) upgrade(location *url.URL, protocol string, header http.Header) error {
	request, err := http.NewRequest(http.MethodPost, location.String(), http.NoBody)
	if err != nil {
		return err
	}
	request.Header = header
	request.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	request.Header.Set(httpstream.HeaderUpgrade, protocol)
	if err := request.Write(c); err != nil {
		return err
	}
	reader := bufio.NewReader(io.LimitReader(c.Conn, maxUpgradeBytes))
	response, err := http.ReadResponse(reader, request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusSwitchingProtocols || !strings.EqualFold(response.Header.Get(httpstream.HeaderUpgrade), protocol) {
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
		return &upgradeError{code: response.StatusCode, status: response.Status, text: string(bytes.TrimSpace(text))}
	}
	c.received, err = reader.Peek(reader.Buffered())
	return err
}
