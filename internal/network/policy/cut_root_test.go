//go:build root

package policy

import (
	"encoding/binary"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sequenceNumbers are the next sequence numbers that a connection sends and receives.
func sequenceNumbers(t *testing.T, c net.Conn) (sends, receives uint32) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	const receiveQueue, sendQueue, offWithoutProbe = 1, 2, -1 // linux/tcp.h
	read := func(fd, queue int) (number uint32, err error) {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, queue); err != nil {
			return 0, err
		}
		value, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
		return uint32(value), err
	}
	controlErr := raw.Control(func(fd uintptr) {
		if err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, 1); err != nil {
			return
		}
		if sends, err = read(int(fd), sendQueue); err == nil {
			receives, err = read(int(fd), receiveQueue)
		}
		if off := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, offWithoutProbe); err == nil {
			err = off
		}
	})
	if controlErr != nil || err != nil {
		t.Fatal(controlErr, err)
	}
	return sends, receives
}

// segment is a TCP segment of one byte with the flag ACK.
func segment(source, destination netip.AddrPort, sequence, acknowledged uint32) []byte {
	b := make([]byte, 21)
	binary.BigEndian.PutUint16(b, source.Port())
	binary.BigEndian.PutUint16(b[2:], destination.Port())
	binary.BigEndian.PutUint32(b[4:], sequence)
	binary.BigEndian.PutUint32(b[8:], acknowledged)
	b[12], b[13], b[14], b[20] = 5<<4, 0x10, 1, 'x'
	// The checksum is that of a pseudo header and the segment.
	from, to := source.Addr().As4(), destination.Addr().As4()
	data := append(append(append([]byte{}, from[:]...), to[:]...), 0, unix.IPPROTO_TCP, 0, byte(len(b)))
	data = append(append(data, b...), 0)
	var sum uint32
	for i := 0; i < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum))
	return b
}

// A packet that is not valid in its connection does not end it: only connections that were cut are reset.
func TestInvalidPacketsDoNotReset(t *testing.T) {
	w := newWorld(t)
	w.forget()
	c := newCluster(netpol("app=web", from(peers(podsWith("app=client")))))
	_, m := c.compile(t)
	applied(t, m)
	accepted := w.echo("a", "7000")
	client := w.dialKept("c", "tcp", "10.42.1.11:7000")
	server := <-accepted
	if !sends(client, server, answerWait) || !sends(server, client, answerWait) {
		t.Fatal("the connection does not work")
	}
	sequence, acknowledged := sequenceNumbers(t, client)
	ends := [2]netip.AddrPort{netip.MustParseAddrPort(client.LocalAddr().String()), netip.MustParseAddrPort(client.RemoteAddr().String())}
	err := w.spaces["c"].Do(func() error {
		socket, err := net.DialIP("ip4:tcp", nil, &net.IPAddr{IP: ends[1].Addr().AsSlice()})
		if err != nil {
			return err
		}
		defer socket.Close()
		const outOfWindow = 1 << 28
		_, err = socket.Write(segment(ends[0], ends[1], sequence+outOfWindow, acknowledged))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !sends(client, server, answerWait) || !sends(server, client, answerWait) {
		t.Error("the connection has ended")
	}
}

// udpServer serves datagrams of a pod: it answers nothing by itself.
func (w *world) udpServer(name, port string) net.PacketConn {
	w.t.Helper()
	var packets net.PacketConn
	err := w.spaces[name].Do(func() (err error) {
		packets, err = net.ListenPacket("udp4", ":"+port)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = packets.Close() })
	return packets
}

// arrives reports whether a datagram of a client arrives, and returns its address as the server sees it.
func arrives(t *testing.T, client net.Conn, server net.PacketConn, wait time.Duration) (net.Addr, bool) {
	t.Helper()
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = server.SetReadDeadline(time.Now().Add(wait))
	_, from, err := server.ReadFrom(make([]byte, 1))
	return from, err == nil
}

// An answer that was on its way when a flow was cut begins a flow in the opposite direction. The denied client does not go on with it.
func TestAnswersOfCutDatagrams(t *testing.T) {
	w := newWorld(t)
	w.forget()
	c := newCluster(netpol("app=web", from(peers(podsWith("app=client")))))
	compiler, m := c.compile(t)
	writer := applied(t, m)
	server := w.udpServer("a", "7000")
	client := w.dialKept("c", "udp", "10.42.1.11:7000")
	address, ok := arrives(t, client, server, answerWait)
	if !ok {
		t.Fatal("the flow does not work")
	}
	answer := func() {
		t.Helper()
		_ = client.SetReadDeadline(time.Now().Add(answerWait))
		if _, err := server.WriteTo([]byte("y"), address); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Read(make([]byte, 1)); err != nil {
			t.Fatalf("the answer does not arrive: %v", err)
		}
	}
	answer()
	if err := compiler.SetPolicy(netpol("app=web", from(peers(podsWith("app=db"))))); err != nil {
		t.Fatal(err)
	}
	p := &Policy{Config: Config{Log: slog.New(slog.DiscardHandler)}, compiler: compiler, writer: writer, affected: compiler.Flush()}
	if _, err := writer.Apply(); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if err := p.cut(now); err != nil {
		t.Fatal(err)
	}
	answer() // it was on its way
	if _, ok := arrives(t, client, server, answerWait); !ok {
		t.Fatal("the answer has begun no flow")
	}
	answer() // the server goes on answering
	for round := 1; round <= 2; round++ {
		now = now.Add(answerDelay)
		if err := p.cut(now); err != nil {
			t.Fatal(err)
		}
		if _, ok := arrives(t, client, server, dropWait); ok {
			t.Errorf("round %d: a denied client reaches the server", round)
		}
		answer() // once more
	}
	// The server alone goes on: that is allowed, and not cut for ever.
	for round := range maxAnswerRounds {
		answer()
		now = now.Add(answerDelay)
		if err := p.cut(now); err != nil {
			t.Fatal(err)
		}
		if round == maxAnswerRounds-1 && len(p.answers) > 0 {
			t.Errorf("%d answers are looked for after %d rounds", len(p.answers), round+1)
		}
	}
}
