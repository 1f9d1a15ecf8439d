package netns

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Serve answers every TCP connection and UDP packet to a port of the namespace with a name and the client's address.
func (n Namespace) Serve(t testing.TB, name, port string) {
	t.Helper()
	var closers []io.Closer
	err := n.Do(func() error {
		listener, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		packets, err := net.ListenPacket("udp", ":"+port)
		if err != nil {
			return err
		}
		closers = append(closers, listener, packets)
		go serveTCP(listener, name)
		go serveUDP(packets, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range closers {
			_ = c.Close()
		}
	})
}

func serveTCP(listener net.Listener, name string) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, name+" "+hostOf(c.RemoteAddr()))
		_ = c.Close()
	}
}

func serveUDP(packets net.PacketConn, name string) {
	buffer := make([]byte, 100)
	for {
		_, from, err := packets.ReadFrom(buffer)
		if err != nil {
			return
		}
		_, _ = packets.WriteTo([]byte(name+" "+hostOf(from)), from)
	}
}

func hostOf(address net.Addr) string {
	a, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return address.String()
	}
	return a.Addr().Unmap().String()
}

// The results of packets that no server has answered.
var (
	ErrRefused = errors.New("refused")
	ErrDropped = errors.New("dropped")
	// ErrNotPermitted is what a sender of datagrams on the host itself gets for both.
	ErrNotPermitted = errors.New("not permitted")
)

// Ask connects from the namespace and returns the name of the server that answers and the client's address that it sees. The error is ErrRefused,
// ErrDropped when nothing answers within the time, ErrNotPermitted, or another one.
func (n Namespace) Ask(network, address string, wait time.Duration) (server, client string, err error) {
	err = n.Do(func() error {
		c, err := net.DialTimeout(network, address, wait)
		if err != nil {
			return err
		}
		defer c.Close()
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // leaves no connection behind that a later one could be taken for
		}
		_ = c.SetDeadline(time.Now().Add(wait))
		if network == "udp" {
			if _, err := io.WriteString(c, "?"); err != nil {
				return err
			}
		}
		buffer := make([]byte, 100)
		size, err := c.Read(buffer)
		server, client, _ = strings.Cut(string(buffer[:size]), " ")
		return err
	})
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		err = ErrRefused
	case errors.Is(err, syscall.EPERM):
		err = ErrNotPermitted
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		err = ErrDropped
	}
	return server, client, err
}
