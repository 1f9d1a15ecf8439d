package inprocess

import (
	"context"
	"errors"
	"sync"
	"testing"

	"skiff/internal/client"
	"skiff/internal/kind"
)

// Run runs components until the end of the test, or until the returned function is called, which waits for them. Their errors fail the test.
func Run(t testing.TB, runs ...func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, len(runs))
	for _, run := range runs {
		go func() { done <- run(ctx) }()
	}
	stop = sync.OnceFunc(func() {
		cancel()
		var errs []error
		for range runs {
			errs = append(errs, <-done)
		}
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Create creates an object, and fails the test if that fails.
func Create[T kind.Object](t testing.TB, c *client.Client, object T) T {
	t.Helper()
	made, err := client.For[T](c).Create(t.Context(), object, client.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}
