package etcd

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"golang.org/x/sys/unix"
)

// Members send messages on connections that the receiver has dialed. While the network between them is away the receiver notices nothing: etcd means to
// limit its reads to five seconds, but does not. What ends its wait is that the sender repeats the bytes that were not acknowledged. By default the kernel
// doubles the time between two attempts: after the network was away for 20 seconds both could be without messages for 20 more, and could not elect a
// leader meanwhile.
const (
	// peerRetransmission bounds the time between two attempts.
	peerRetransmission = time.Second
	// peerUserTimeout is how long they are made. By its end the receiver's keepalives have failed.
	peerUserTimeout = 5 * time.Minute
)

// peerListenConfig makes listeners whose connections inherit how bytes are repeated.
var peerListenConfig = net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
	var err error
	if controlErr := socket.Control(func(fd uintptr) { err = setRetransmission(int(fd)) }); controlErr != nil {
		return controlErr
	}
	return err
}}

// listenTLS listens for members that have a certificate of the CA.
func (p *Peer) listenTLS() (net.Listener, error) {
	listener, err := peerListenConfig.Listen(context.Background(), "tcp", p.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for other members at %s: %w", p.Listen, err)
	}
	info := p.tlsInfo()
	secured, err := transport.NewTLSListener(listener, &info)
	if err != nil {
		listener.Close()
		return nil, fmt.Errorf("serve other members: %w", err)
	}
	return secured, nil
}

// setRetransmission sets how bytes are repeated. Kernels before 6.15 cannot limit the time between two attempts:
// there a connection ends when etcd would end it, and the receiver learns that from its keepalives.
func setRetransmission(fd int) error {
	userTimeout := peerUserTimeout
	if unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, int(peerRetransmission.Milliseconds())) != nil {
		userTimeout = rafthttp.ConnWriteTimeout
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
}
