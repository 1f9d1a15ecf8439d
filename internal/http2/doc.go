// Package http2 is the server's side of HTTP/2, in place of that of net/http.
//
// An API server sends lists of megabytes, and watches: a little, often, on many connections. In net/http each frame goes
// from the handler to the connection's loop, from there to a goroutine that writes it, and its end the same way back; at
// every stop a thread may have to be woken. Here whoever has something to send sends it:
//
//   - one goroutine reads frames and acts on them (conn.go),
//   - a handler frames what it writes in its own buffer, one frame to a TLS record, and writes it under the connection's
//     lock, several records with one system call (outbox.go, write.go),
//   - what the reader has to say it leaves with whoever is writing, or says itself when nobody is.
//
// Frames are parsed and headers packed by golang.org/x/net. Requests and answers are those of net/http, so handlers cannot
// tell the difference; what no handler of ours needs is not there: server push, write deadlines, CONNECT.
package http2
