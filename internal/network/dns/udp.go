package dns

import (
	"bytes"
	"errors"
	"net"
	"net/netip"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// batchSize is the number of queries that are read, and of responses that are sent, with one system call. Under load most of the time of a
// query is that of system calls.
const batchSize = 32

// batchConn reads and writes several packets at once. ipv4.Message and ipv6.Message are the same type.
type batchConn interface {
	ReadBatch(messages []ipv4.Message, flags int) (int, error)
	WriteBatch(messages []ipv4.Message, flags int) (int, error)
}

// newBatchConn is the socket as batchConn.
func newBatchConn(socket *net.UDPConn) batchConn {
	if socket.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().Is4() {
		return ipv4.NewPacketConn(socket)
	}
	return ipv6.NewPacketConn(socket)
}

// batch is the memory for reading and writing packets.
type batch struct {
	queries, responses [batchSize]ipv4.Message
}

func newBatch() *batch {
	b := &batch{}
	for i := range b.queries {
		b.queries[i].Buffers = [][]byte{make([]byte, maxQuerySize)}
		b.responses[i].Buffers = [][]byte{make([]byte, 0, maxUDPSize)}
	}
	return b
}

// readUDP answers the queries that arrive at a socket.
func (l *listener) readUDP(socket *net.UDPConn) {
	w, b, conn := l.newWorker(), newBatch(), newBatchConn(socket)
	for {
		received, err := conn.ReadBatch(b.queries[:], 0)
		if errors.Is(err, net.ErrClosed) || l.ctx.Err() != nil {
			return
		}
		if err != nil {
			l.pauseAfter(err)
			continue
		}
		count := 0
		for i := range b.queries[:received] {
			from, ok := b.queries[i].Addr.(*net.UDPAddr)
			if !ok {
				continue
			}
			l.guard(func() {
				response := l.answerUDP(w, b.queries[i].Buffers[0][:b.queries[i].N], from.AddrPort(), socket)
				if response == nil {
					return
				}
				// The worker reuses the memory of the response.
				b.responses[count].Buffers[0] = append(b.responses[count].Buffers[0][:0], response...)
				b.responses[count].Addr = from
				count++
			})
		}
		sendAll(conn, b.responses[:count])
	}
}

// sendAll sends responses. One that cannot be sent is left out: its client repeats the query or has gone.
func sendAll(conn batchConn, responses []ipv4.Message) {
	for len(responses) > 0 {
		sent, err := conn.WriteBatch(responses, 0)
		if err != nil {
			sent = max(sent, 0) + 1
		}
		responses = responses[min(max(sent, 1), len(responses)):]
	}
}

// answerUDP returns the response to a query. It returns nil if there is none, or if another goroutine sends it because other name servers are
// needed.
func (l *listener) answerUDP(w *worker, packet []byte, from netip.AddrPort, socket *net.UDPConn) []byte {
	req := request{packet: packet, client: from.Addr().Unmap()}
	response, result := w.answer(req)
	if result != wait {
		return response
	}
	if !l.forwarder.acquire(req.client) {
		return w.refuse(req)
	}
	req.packet = bytes.Clone(packet)
	l.pending.Go(func() {
		defer l.forwarder.release(req.client)
		l.guard(func() { l.resolveUDP(req, from, socket) })
	})
	return nil
}

func (l *listener) resolveUDP(req request, from netip.AddrPort, socket *net.UDPConn) {
	w := l.workers.Get().(*worker)
	if response, result := w.resolve(l.ctx, req); result == respond {
		_, _ = socket.WriteToUDPAddrPort(response, from)
	}
	l.workers.Put(w)
}
