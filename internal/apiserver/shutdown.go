package apiserver

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// shutdown is how far the shutdown of a server has come.
type shutdown struct {
	begun atomic.Bool
	// serving is done when long-running requests have to end, each within gracePeriod, which is set before.
	serving     context.Context
	end         context.CancelFunc
	gracePeriod time.Duration
}

func newShutdown() *shutdown {
	s := &shutdown{}
	s.serving, s.end = context.WithCancel(context.Background())
	return s
}

// BeginShutdown makes /readyz fail, so that load balancers send no more requests. Requests are served as before, except that HTTP/1
// clients are told to close their connections: unlike HTTP/2, HTTP/1 has no way to close an idle connection that is safe for the client.
func (s *Server) BeginShutdown() { s.shutdown.begun.Store(true) }

// EndLongRunning ends watches and other long-running requests. They end at random times within the grace period, so that not all
// clients connect to another server at once. It must be called once.
func (s *Server) EndLongRunning(gracePeriod time.Duration) {
	s.shutdown.gracePeriod = gracePeriod
	s.shutdown.end()
}

// check is the health check "shutdown".
func (s *shutdown) check(context.Context) error {
	if s.begun.Load() {
		return errors.New("process is shutting down")
	}
	return nil
}

// endAtShutdown makes the context of a long-running request end when the server shuts down.
func (s *shutdown) endAtShutdown(req *request) (release func()) {
	ctx, cancel := context.WithCancel(req.ctx)
	req.ctx = ctx
	stop := context.AfterFunc(s.serving, func() { time.AfterFunc(rand.N(s.gracePeriod+1), cancel) })
	return func() {
		stop()
		cancel()
	}
}
