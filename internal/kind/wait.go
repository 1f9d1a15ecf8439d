package kind

import "context"

type waitKey struct{}

// WithWait returns a context in which Wait calls wait.
func WithWait(ctx context.Context, wait func(f func())) context.Context {
	return context.WithValue(ctx, waitKey{}, wait)
}

// Wait calls f, which waits for a webhook, or for another request that does. The request of ctx may have no seats meanwhile; see WithWait.
func Wait(ctx context.Context, f func()) {
	if wait, ok := ctx.Value(waitKey{}).(func(f func())); ok {
		wait(f)
		return
	}
	f()
}
