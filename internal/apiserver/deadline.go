package apiserver

import (
	"net/http"
	"time"

	"skiff/internal/apiserver/authn"
)

// responseGrace is how long after the server's timeout a response may still be written: a request that has timed out must be able to
// say so.
const responseGrace = 2 * time.Second

// unauthenticatedWriteTimeout is how long a client without valid credentials may take to accept its response.
const unauthenticatedWriteTimeout = 10 * time.Second

// setWriteDeadline bounds how long the response waits for a client that does not read it. Whatever the request holds is released when the
// handler's write fails. Long-running requests have no deadline as a whole: watches set one for each write (see chunkSink), and sessions
// last as long as their client wants.
func (s *Server) setWriteDeadline(req *request) {
	var deadline time.Time // none: the deadline of an earlier request on the connection does not hold
	if !req.longRunning {
		deadline = req.start.Add(s.limits.Timeout + responseGrace)
	}
	req.writeBy(deadline)
}

// writeBy sets until when the response may be written. Recorders of tests have no deadlines, and need none.
func (r *request) writeBy(deadline time.Time) {
	_ = http.NewResponseController(r.w).SetWriteDeadline(deadline)
}

// closeUnauthenticated is upstream's UnauthenticatedHTTP2DOSMitigation: clients without credentials must not keep connections of HTTP/2
// open, on which a request costs the server more than the client. The connection is closed after the responses to its requests.
func (r *request) closeUnauthenticated() {
	if r.ProtoMajor == 2 {
		r.w.Header()["Connection"] = connectionClose
	}
}

var connectionClose = []string{"close"}

// isAnonymous is upstream's test for users without credentials.
func isAnonymous(user *authn.User) bool {
	if user.Username == authn.Anonymous {
		return true
	}
	for _, group := range user.Groups {
		if group == authn.GroupUnauthenticated {
			return true
		}
	}
	return false
}
