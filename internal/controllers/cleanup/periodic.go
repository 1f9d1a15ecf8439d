package cleanup

import (
	"context"
	"time"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
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

// deletingAll is a plan that deletes all objects that are over. One that cannot be deleted does not save the others.
func deletingAll[T kind.Object](objects client.Informer[T], expired func(T) bool) controller.Plan {
	var plan controller.Plan
	var writes []controller.Write
	for _, obj := range objects.List("", nil) {
		if expired(obj) {
			writes = append(writes, controller.Deleting(obj))
		}
	}
	plan.AddStep(writes...)
	return plan
}
