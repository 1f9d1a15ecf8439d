package cleanup

import (
	"context"
	"time"

	"skiff/internal/controller"
)

// periodically makes a Syncer that does its work at once, and again whenever the period is over. Work that fails comes again
// after a backoff.
func periodically(s *controller.Setup, period time.Duration, do func(ctx context.Context, key controller.Key) error) controller.Syncer {
	s.Enqueue(controller.Key{Name: "everything"})
	return controller.SyncFunc(func(ctx context.Context, key controller.Key) error {
		if err := do(ctx, key); err != nil {
			return err
		}
		s.EnqueueAfter(key, period)
		return nil
	})
}
