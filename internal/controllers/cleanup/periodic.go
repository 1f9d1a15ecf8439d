package cleanup

import (
	"context"
	"time"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
)

// periodically returns a Syncer that calls do immediately and then once per period. Failures are retried with backoff.
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

// deletingAll is a plan that deletes all expired objects. A failed delete does not prevent the others.
func deletingAll[T kind.Object](objects client.Informer[T], expired func(T) bool) controller.Plan {
	var plan controller.Plan
	var writes []controller.Write
	for _, obj := range objects.List("", nil) {
		if expired(obj) {
			writes = append(writes, controller.NewDelete(obj))
		}
	}
	plan.AddStep(writes...)
	return plan
}
