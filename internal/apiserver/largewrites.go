package apiserver

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// Decoding, merging, validating and encoding a large object takes tens of milliseconds of CPU time. If many such requests ran at once, small
// requests would wait for a core behind all of them. So large writes use at most half of the cores, and users are served one after the other.
const (
	// largeBody is the size of a body from which a write is large.
	largeBody = 64 << 10
	// maxUserLargeWrites is how many large writes of a user are processed or wait for it. Further ones are rejected, because each holds its body.
	maxUserLargeWrites = 16
	// maxLargeBytes bounds the bodies of all large writes. While they exceed it, a user may have one write.
	maxLargeBytes = 256 << 20
)

// largeWrites limits how many large writes are processed at the same time.
type largeWrites struct {
	mu      sync.Mutex
	running int
	bytes   int                      // of all bodies
	held    map[string]int           // running and waiting, by user
	waiting map[string][]*largeWrite // by user
	users   []string                 // with waiting writes, in the order in which they are served
}

// largeWrite is a write that is processed or waits for it.
type largeWrite struct {
	user  string
	bytes int
	// granted is closed when the write may be processed; nil if it may be from the beginning.
	granted chan struct{}
	// left: another write is processed in its place. largeWrites.mu guards it.
	left bool
}

// limit is the number of large writes that run at the same time.
func (*largeWrites) limit() int { return max(runtime.GOMAXPROCS(0)/2, 1) }

// add adds a write, which must be released. It returns nil when the user has too many.
func (l *largeWrites) add(user string, bytes int) *largeWrite {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		l.held, l.waiting = map[string]int{}, map[string][]*largeWrite{}
	}
	if held := l.held[user]; held >= maxUserLargeWrites || held > 0 && l.bytes+bytes > maxLargeBytes {
		return nil
	}
	w := &largeWrite{user: user, bytes: bytes}
	l.held[user]++
	l.bytes += bytes
	if l.running < l.limit() {
		l.running++
		return w
	}
	w.granted = make(chan struct{})
	if l.waiting[user] = append(l.waiting[user], w); len(l.waiting[user]) == 1 {
		l.users = append(l.users, user)
	}
	return w
}

// wait waits until the write may be processed.
func (w *largeWrite) wait(ctx context.Context) error {
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// release removes a write that was processed or waits no longer.
func (l *largeWrites) release(w *largeWrite) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes -= w.bytes
	if l.held[w.user]--; l.held[w.user] == 0 {
		delete(l.held, w.user)
	}
	if i := slices.Index(l.waiting[w.user], w); i >= 0 {
		l.setWaiting(w.user, slices.Delete(l.waiting[w.user], i, i+1))
		if len(l.waiting[w.user]) == 0 {
			l.users = slices.DeleteFunc(l.users, func(u string) bool { return u == w.user })
		}
		return
	}
	if !w.left {
		l.processNext()
	}
}

// leave lets the next write be processed before this one, which is processed, is released. Its body counts until then.
func (l *largeWrites) leave(w *largeWrite) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.left {
		w.left = true
		l.processNext()
	}
}

// processNext lets the next write be processed in the place of another one: one of the user whose last one was served first. mu must be held.
func (l *largeWrites) processNext() {
	if len(l.users) == 0 {
		l.running--
		return
	}
	next := l.users[0]
	l.users = l.users[1:]
	close(l.waiting[next][0].granted)
	l.setWaiting(next, l.waiting[next][1:])
	if len(l.waiting[next]) > 0 {
		l.users = append(l.users, next)
	}
}

func (l *largeWrites) setWaiting(user string, waiting []*largeWrite) {
	if len(waiting) == 0 {
		delete(l.waiting, user)
	} else {
		l.waiting[user] = waiting
	}
}
