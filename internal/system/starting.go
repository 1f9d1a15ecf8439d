package system

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"skiff/internal/apiserver"
	"skiff/internal/apiserver/authn"
	"skiff/internal/store/etcd"
)

// startingDrainTimeout is how long requests may take that were accepted before the API server took over.
const startingDrainTimeout = 500 * time.Millisecond

// startingServer serves the listener of the API while the store waits for the other members of etcd.
type startingServer struct {
	server        *http.Server
	listener      *lentListener
	authenticator authn.Authenticator
	waiting       atomic.Pointer[etcd.Waiting] // nil: nothing was reported yet
	served        chan error
}

// serveStarting serves the listener until stop is called. Connections that are made from then on are accepted by whoever uses the listener next.
func serveStarting(listener *net.TCPListener, secure *tls.Config, clients authn.Authenticator) *startingServer {
	s := &startingServer{listener: &lentListener{listener}, authenticator: clients, served: make(chan error, 1)}
	s.server = newHTTPServer(apiserver.StartingHandler(s.reason), secure, 0)
	go func() { s.served <- s.server.Serve(tls.NewListener(s.listener, s.server.TLSConfig)) }()
	return s
}

// reason is what the server waits for. Administrators are told which members of etcd cannot be reached.
func (s *startingServer) reason(r *http.Request) string {
	waiting := s.waiting.Load()
	if waiting == nil {
		return "opening etcd"
	}
	if user, ok, err := s.authenticator.Authenticate(r); err == nil && ok && slices.Contains(user.Groups, authn.GroupMasters) {
		return waiting.Details()
	}
	return waiting.Reason()
}

func (s *startingServer) report(w etcd.Waiting) { s.waiting.Store(&w) }

// stop ends the service and leaves the listener open.
func (s *startingServer) stop() error {
	draining, cancel := context.WithTimeout(context.Background(), startingDrainTimeout)
	defer cancel()
	if err := s.server.Shutdown(draining); err != nil {
		_ = s.server.Close() // connections without a request
	}
	<-s.served
	return s.listener.SetDeadline(time.Time{})
}

// lentListener is a listener that is used again after a server has closed it.
type lentListener struct{ *net.TCPListener }

// Close ends Accept.
func (l *lentListener) Close() error { return l.SetDeadline(time.Unix(0, 1)) }
