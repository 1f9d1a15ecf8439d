// Package http2 is a server of HTTP/2, used by the API server in place of net/http's.
//
// An API server sends lists of megabytes, and watches: small events, often, on many connections. In net/http each frame passes from
// the handler to the connection's loop and from there to a goroutine that writes it, and its completion goes the same way back;
// each step may have to wake a thread. Here the goroutine that has data writes it:
//
//   - one goroutine reads frames and acts on them (conn.go);
//   - a handler frames its data in its own buffer, one frame to a TLS record, and writes it under the connection's write lock,
//     several records with one system call (sendbuffer.go, write.go);
//   - the reader queues its control frames for the goroutine that is writing, or starts one when none is.
//
// Frames are parsed and headers compressed by golang.org/x/net. Requests and responses are net/http's, so handlers are the same for
// both. What no handler of the API server needs is left out: server push, write deadlines, CONNECT. See
// docs/decisions/0007-http2.md.
package http2
