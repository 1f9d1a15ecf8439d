package customresource

import (
	"sync"
	"sync/atomic"
)

// lazy is a value that is made on first use and dropped when it is not used for a while. Whoever has it may keep it.
type lazy[T any] struct {
	make func() (T, error)

	mu   sync.Mutex // held while it is made
	made atomic.Pointer[outcome[T]]
	used atomic.Bool // since the last call of dropUnused
}

// outcome is what make returned.
type outcome[T any] struct {
	value T
	err   error
}

func newLazy[T any](make func() (T, error)) *lazy[T] { return &lazy[T]{make: make} }

func (l *lazy[T]) get() (T, error) {
	if !l.used.Load() {
		l.used.Store(true)
	}
	if made := l.made.Load(); made != nil {
		return made.value, made.err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	made := l.made.Load()
	if made == nil {
		made = &outcome[T]{}
		made.value, made.err = l.make()
		l.made.Store(made)
	}
	return made.value, made.err
}

// dropUnused drops the value if it was not used since the last call.
func (l *lazy[T]) dropUnused() {
	if !l.used.Swap(false) {
		l.made.Store(nil)
	}
}
