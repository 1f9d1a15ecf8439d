package etcd

import (
	"net"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"golang.org/x/sys/unix"
)

// Connections that a member accepts repeat bytes at least once in a second where the kernel can do that.
func TestPeerRetransmission(t *testing.T) {
	listener, err := peerListenConfig.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialed, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialed.Close()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	raw, err := accepted.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	want := rafthttp.ConnWriteTimeout
	if err := raw.Control(func(fd uintptr) {
		retransmission, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS)
		if err == nil {
			want = peerUserTimeout
			if got := time.Duration(retransmission) * time.Millisecond; got != peerRetransmission {
				t.Errorf("bytes are repeated after %v at the latest, want %v", got, peerRetransmission)
			}
		}
		userTimeout, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		if got := time.Duration(userTimeout) * time.Millisecond; err != nil || got != want {
			t.Errorf("bytes are repeated for %v (%v), want %v", got, err, want)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
