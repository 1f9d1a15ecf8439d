package admission

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// Loader keeps a value that is made from objects, and makes it again when they have changed. Writes that need the value at the same time
// share one attempt and its error, and wait for it no longer than their context allows.
type Loader[T any] struct {
	upToDate func(value *T) bool
	read     func(last *T) (*T, error)

	current atomic.Pointer[T]
	mu      sync.Mutex
	running *attempt[T] // nil: none
}

// NewLoader returns a loader without a value. upToDate reports whether a value was made from the current objects; it is called for every
// write and must be cheap. read makes the value; last is the previous one, or nil.
func NewLoader[T any](upToDate func(value *T) bool, read func(last *T) (*T, error)) *Loader[T] {
	return &Loader[T]{upToDate: upToDate, read: read}
}

// attempt is a call of read. value and err are set before done is closed.
type attempt[T any] struct {
	done  chan struct{}
	value *T
	err   error
}

// errNotMade is the error of an attempt that panicked.
var errNotMade = errors.New("another request failed to make the value")

// Current returns the last value, nil if there is none, and whether it is up to date.
func (l *Loader[T]) Current() (value *T, upToDate bool) {
	value = l.current.Load()
	return value, value != nil && l.upToDate(value)
}

// Load returns a value that was up to date at some time after the call.
func (l *Loader[T]) Load(ctx context.Context) (*T, error) {
	for waited := false; ; waited = true {
		if value, upToDate := l.Current(); upToDate {
			return value, nil
		}
		a, own := l.join()
		if own {
			l.run(a)
			return a.value, a.err
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		// The first attempt may have begun before the call, the second has not.
		if a.err != nil || waited {
			return a.value, a.err
		}
	}
}

// join returns the running attempt, or a new one that the caller has to run.
func (l *Loader[T]) join() (a *attempt[T], own bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != nil {
		return l.running, false
	}
	l.running = &attempt[T]{done: make(chan struct{}), err: errNotMade}
	return l.running, true
}

func (l *Loader[T]) run(a *attempt[T]) {
	defer l.end(a)
	last := l.current.Load()
	if last != nil && l.upToDate(last) { // made since the caller looked
		a.value, a.err = last, nil
		return
	}
	if a.value, a.err = l.read(last); a.err == nil {
		l.current.Store(a.value)
	}
}

func (l *Loader[T]) end(a *attempt[T]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = nil
	close(a.done)
}
