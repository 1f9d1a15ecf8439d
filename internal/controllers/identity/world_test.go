package identity

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
)

// run runs controllers against a server in memory until the test ends.
func run(t *testing.T, c *client.Client, definitions ...controller.Definition) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	informers, events := client.NewInformers(c), client.NewEventBroadcaster(c)
	parts := []func(context.Context) error{informers.Run, events.Run}
	for _, d := range definitions {
		loop, err := controller.NewLoop(d, controller.Environment{Client: c, Informers: informers, Events: events, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, func(ctx context.Context) error {
			if informers.WaitForSync(ctx) != nil {
				return nil
			}
			return loop.Run(ctx)
		})
	}
	done := make(chan struct{}, len(parts))
	for _, part := range parts {
		go func() {
			if err := part(ctx); err != nil {
				t.Error(err)
			}
			done <- struct{}{}
		}()
	}
	t.Cleanup(func() {
		cancel()
		for range parts {
			<-done
		}
	})
}

func create[T kind.Object](t *testing.T, c *client.Client, obj T) T {
	t.Helper()
	created, err := client.For[T](c).Create(t.Context(), obj, client.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// await waits until the object exists and is as it should be.
func await[T kind.Object](t *testing.T, c *client.Client, namespace, name string, right func(T) bool) T {
	t.Helper()
	var obj T
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var err error
		if obj, err = client.For[T](c).Get(t.Context(), namespace, name); err == nil && right(obj) {
			return obj
		}
		if time.Now().After(end) {
			t.Fatalf("%s/%s does not become what it should: %+v, %v", namespace, name, obj, err)
		}
	}
}
