package admission

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// revisioned is a value that was made at a revision.
type revisioned struct{ revision int }

// Writes that need the value at the same time share one attempt and its error.
func TestLoaderSharesAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("no key")
		attempts := 0
		l := NewLoader(func(*revisioned) bool { return true }, func(*revisioned) (*revisioned, error) {
			attempts++
			time.Sleep(10 * time.Second)
			return nil, failure
		})
		began := time.Now()
		var writes sync.WaitGroup
		for range 100 {
			writes.Go(func() {
				if _, err := l.Load(t.Context()); !errors.Is(err, failure) {
					t.Errorf("error %v", err)
				}
			})
		}
		writes.Wait()
		if elapsed := time.Since(began); attempts != 1 || elapsed != 10*time.Second {
			t.Errorf("%d attempts in %v", attempts, elapsed)
		}
	})
}

// A write waits for the attempt of another no longer than its context allows.
func TestLoaderContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLoader(func(*revisioned) bool { return true }, func(*revisioned) (*revisioned, error) {
			time.Sleep(10 * time.Second)
			return &revisioned{1}, nil
		})
		go func() { _, _ = l.Load(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Load(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if _, upToDate := l.Current(); upToDate {
			t.Error("a value before the attempt has ended")
		}
		if value, err := l.Load(t.Context()); err != nil || value.revision != 1 {
			t.Errorf("%v, error %v", value, err)
		}
	})
}

// A value that was read before the call may lack what the caller has seen: it is not returned.
func TestLoaderReadsAfterCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		current := 1
		l := NewLoader(func(v *revisioned) bool { return v.revision == current }, func(*revisioned) (*revisioned, error) {
			made := &revisioned{current}
			time.Sleep(time.Second)
			return made, nil
		})
		go func() { _, _ = l.Load(t.Context()) }()
		synctest.Wait()
		current = 2
		var writes sync.WaitGroup
		for range 3 {
			writes.Go(func() {
				if value, err := l.Load(t.Context()); err != nil || value.revision != 2 {
					t.Errorf("%v, error %v", value, err)
				}
			})
		}
		writes.Wait()
	})
}

// An attempt that panics leaves an error to those that wait for it, and the next one is made.
func TestLoaderPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		l := NewLoader(func(*revisioned) bool { return true }, func(*revisioned) (*revisioned, error) {
			if attempts++; attempts == 1 {
				time.Sleep(time.Second)
				panic("broken")
			}
			return &revisioned{1}, nil
		})
		go func() {
			defer func() { _ = recover() }()
			_, _ = l.Load(t.Context())
		}()
		synctest.Wait()
		if _, err := l.Load(t.Context()); !errors.Is(err, errNotMade) {
			t.Errorf("error %v", err)
		}
		if value, err := l.Load(t.Context()); err != nil || value.revision != 1 {
			t.Errorf("%v, error %v", value, err)
		}
	})
}
