package apiserver

import (
	"sync"
	"sync/atomic"
	"time"

	"skiff/internal/apiserver/fairness"
)

// A request has its seats while the server works on it, not while it waits for its client: for the body to arrive, or for the response to be
// accepted; nor while it waits behind other large writes, or for a webhook. Otherwise one user whose clients send or read slowly, or not at
// all, would occupy the seats of all users of its priority level until the requests time out. What waiting requests hold is bounded by their
// number instead.
const (
	// seatGrace is how long a request keeps its seats while it waits.
	seatGrace = 10 * time.Millisecond
	// maxUserWaits is how many requests of a user may wait without seats. While there are as many, its further requests are rejected.
	maxUserWaits = 100
	// maxWaits is how many requests of all users may wait without seats. Further ones keep them.
	maxWaits = 2000
	// minWaitBytes is the size of a response from which writing it may have to wait: less is buffered.
	minWaitBytes = 4 << 10
	// resumePause is the pause before a request whose level rejects it tries again to get seats.
	resumePause = 100 * time.Millisecond
)

// clientWaits are the requests that wait for their clients without seats.
type clientWaits struct {
	total  atomic.Int64
	mu     sync.Mutex
	byUser map[string]int
}

// add counts a request, if there may be more.
func (c *clientWaits) add(user string) bool {
	if c.total.Add(1) > maxWaits {
		c.total.Add(-1)
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byUser == nil {
		c.byUser = map[string]int{}
	}
	c.byUser[user]++
	return true
}

func (c *clientWaits) remove(user string) {
	c.total.Add(-1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byUser[user]--; c.byUser[user] <= 0 {
		delete(c.byUser, user)
	}
}

// tooMany reports whether the user has as many waiting requests as it may have.
func (c *clientWaits) tooMany(user string) bool {
	if c.total.Load() < maxUserWaits {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byUser[user] >= maxUserWaits
}

// clientWait returns the seats of one request while it waits for its client. The handler calls begin and end in turn.
type clientWait struct {
	s    *Server
	req  *request
	work fairness.Work

	mu        sync.Mutex
	timer     *time.Timer
	waiting   bool
	suspended bool // the seats were returned, to be acquired again
	responds  bool // the response has begun: what the request writes is stored
}

// begin is called before the request may have to wait.
func (c *clientWait) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.req.seats.Held() {
		return
	}
	c.waiting, c.responds = true, c.req.w.code != 0
	if c.timer == nil {
		c.timer = time.AfterFunc(seatGrace, c.suspend)
	} else {
		c.timer.Reset(seatGrace)
	}
}

// suspend returns the seats of a request that has waited for seatGrace.
func (c *clientWait) suspend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.waiting || c.suspended || !c.s.waits.add(c.req.user.Username) {
		return
	}
	c.suspended = true
	if c.responds {
		// The events of a write are being sent. They have their seats now: the client may never go on.
		c.req.seats.Release()
		c.work.FinalSeats = 0
	} else {
		c.req.seats.Suspend()
	}
}

// end is called after the wait. It acquires the seats again if they were returned and the wait had no error, and returns the first error.
func (c *clientWait) end(err error) error {
	if !c.stop() {
		return err
	}
	defer c.s.waits.remove(c.req.user.Username)
	for err == nil {
		c.req.seats = fairness.Seats{}
		if c.s.config.Fairness.Acquire(c.req.ctx, &c.req.attributes, c.work, time.Now().Add(c.s.limits.Timeout), &c.req.seats) {
			return nil
		}
		select {
		case <-time.After(resumePause):
		case <-c.req.ctx.Done():
			err = c.req.ctx.Err()
		}
	}
	return err
}

// waitForServer calls f, which waits for another server: a webhook that does not respond must not hold up the requests of others.
func (r *request) waitForServer(f func()) {
	wait := r.w.wait
	if wait == nil {
		f()
		return
	}
	wait.s.leaveLarge(r)
	wait.begin()
	f()
	_ = wait.end(nil) // an error: the request's context is done, which the handler finds out itself
}

// waitForConversion calls f, which waits for a conversion webhook, or for another request that does. Afterwards the request continues at once: others
// may wait, with their seats, for what it converts.
func (r *request) waitForConversion(f func()) {
	wait := r.w.wait
	if wait == nil || wait.isWaiting() {
		f()
		return
	}
	wait.s.leaveLarge(r)
	wait.begin()
	f()
	wait.resume()
}

func (c *clientWait) isWaiting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting
}

// resume is end for a wait after which the request may be processed, because others have been. The seats are occupied at once, even if all are
// taken: the request must not hold up the requests behind it, of other priority levels, by waiting again.
func (c *clientWait) resume() {
	if !c.stop() {
		return
	}
	defer c.s.waits.remove(c.req.user.Username)
	c.req.seats = fairness.Seats{}
	c.s.config.Fairness.Occupy(&c.req.attributes, c.work, &c.req.seats)
}

// stop ends the wait and reports whether the seats were returned.
func (c *clientWait) stop() (suspended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = false
	if c.timer != nil {
		c.timer.Stop()
	}
	suspended, c.suspended = c.suspended, false
	return suspended
}
