// Package http2 is a server of HTTP/2, used by the API server in place of net/http's.
//
// An API server sends lists of megabytes, and watches: small events, often, on many connections. In net/http each frame passes from
// the handler to the connection's loop and from there to a goroutine that writes it, and its completion goes the same way back;
// each step may have to wake a thread. Here frames of all streams are appended to one buffer, and the goroutine that has something to
// send writes everything that is in it:
//
//   - one goroutine reads frames and acts on them (conn.go, stream.go);
//   - a handler appends its frames to the connection's pending ones, as far as the client's windows and the buffer allow, and otherwise
//     waits until its deadline (response.go, send.go). TryWrite appends them for a goroutine that sends to many responses and must not wait;
//   - the goroutine that flushes writes the pending frames of all streams, in full TLS records and with one system call (write.go,
//     socket.go). It does not wait for the client: what the kernel does not accept is left to a new goroutine.
//
// What a client that does not read can hold is bounded for each response, each connection and the process (buffer.go).
//
// Frames are parsed and headers compressed by golang.org/x/net. Requests and responses are net/http's, so handlers are the same for
// both. What no handler of the API server needs is left out: server push, CONNECT. See docs/decisions/0007-http2.md.
package http2
