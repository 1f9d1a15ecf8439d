package apiserver

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// Decoding, merging, validating and encoding a large object takes tens of milliseconds of CPU time. If many such requests ran at once, small
// requests would get their turn of a core only after all of them. So large writes use at most half of the cores, and users take turns.
const (
	// largeBody is the size of a body from which a write is large.
	largeBody = 64 << 10
	// maxUserLargeWrites is how many large writes of a user are processed or wait for it. Further ones are rejected, because each holds its body.
	maxUserLargeWrites = 16
)

// largeWrites limits how many large writes are processed at the same time.
type largeWrites struct {
	mu      sync.Mutex
	running int
	held    map[string]int             // running and waiting, by user
	waiting map[string][]chan struct{} // by user
	users   []string                   // with waiting writes, in the order in which they are served
}

// limit is the number of large writes that run at the same time.
func (*largeWrites) limit() int { return max(runtime.GOMAXPROCS(0)/2, 1) }

// acquire waits until a write of the user may be processed. allowed is false when the user has too many. After (true, nil), release must be called.
func (l *largeWrites) acquire(ctx context.Context, user string) (allowed bool, err error) {
	granted, allowed := l.enqueue(user)
	if !allowed || granted == nil {
		return allowed, nil
	}
	select {
	case <-granted:
		return true, nil
	case <-ctx.Done():
		l.cancel(user, granted)
		return true, ctx.Err()
	}
}

// enqueue counts a write. granted is nil when it may be processed at once.
func (l *largeWrites) enqueue(user string) (granted chan struct{}, allowed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		l.held, l.waiting = map[string]int{}, map[string][]chan struct{}{}
	}
	if l.held[user] >= maxUserLargeWrites {
		return nil, false
	}
	l.held[user]++
	if l.running < l.limit() {
		l.running++
		return nil, true
	}
	granted = make(chan struct{})
	if l.waiting[user] = append(l.waiting[user], granted); len(l.waiting[user]) == 1 {
		l.users = append(l.users, user)
	}
	return granted, true
}

// cancel removes a write that waits no longer.
func (l *largeWrites) cancel(user string, granted chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting[user], granted); i >= 0 {
		l.setWaiting(user, slices.Delete(l.waiting[user], i, i+1))
		if len(l.waiting[user]) == 0 {
			l.users = slices.DeleteFunc(l.users, func(u string) bool { return u == user })
		}
		l.uncount(user)
		return
	}
	l.free(user) // it was granted meanwhile
}

// release ends the processing of a write.
func (l *largeWrites) release(user string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free(user)
}

// free is release with mu held. The next write is one of the user that has waited longest for its turn.
func (l *largeWrites) free(user string) {
	l.uncount(user)
	if len(l.users) == 0 {
		l.running--
		return
	}
	next := l.users[0]
	l.users = l.users[1:]
	close(l.waiting[next][0])
	l.setWaiting(next, l.waiting[next][1:])
	if len(l.waiting[next]) > 0 {
		l.users = append(l.users, next)
	}
}

func (l *largeWrites) setWaiting(user string, waiting []chan struct{}) {
	if len(waiting) == 0 {
		delete(l.waiting, user)
	} else {
		l.waiting[user] = waiting
	}
}

func (l *largeWrites) uncount(user string) {
	if l.held[user]--; l.held[user] == 0 {
		delete(l.held, user)
	}
}
