package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/kind"
)

// maxInFlight is the maximum number of concurrent requests of one plan.
const maxInFlight = 100

// Writer is the part of client.Client the applier uses.
type Writer interface {
	Create(ctx context.Context, obj kind.Object, o client.WriteOptions) (kind.Object, error)
	Update(ctx context.Context, obj kind.Object, o client.WriteOptions) (kind.Object, error)
	Patch(ctx context.Context, obj kind.Object, form client.PatchType, patch []byte, o client.WriteOptions) (kind.Object, error)
	Delete(ctx context.Context, obj kind.Object, options metav1.DeleteOptions) error
	GetLive(ctx context.Context, obj kind.Object) (kind.Object, error)
}

// EventRecorder records events. client.EventRecorder implements it.
type EventRecorder interface {
	Event(object kind.Object, eventType, reason, message string)
}

// Applier applies plans.
type Applier struct {
	Writer Writer
	Events EventRecorder
	// OnWrite and OnDelete, if set, are called after every successful write.
	OnWrite  func(obj kind.Object)
	OnDelete func(obj kind.Object)
}

// Apply applies a plan for a key and records its writes, so that the key is not synced before the informers have observed them.
func (s *Setup) Apply(ctx context.Context, key Key, plan Plan) error {
	a := Applier{
		Writer: s.Client, Events: s.Events,
		OnWrite:  func(obj kind.Object) { s.RecordWrite(key, obj) },
		OnDelete: func(obj kind.Object) { s.RecordDelete(key, obj) },
	}
	if err := a.Apply(ctx, plan); err != nil {
		return err
	}
	if plan.RequeueAfter > 0 {
		s.EnqueueAfter(key, plan.RequeueAfter)
	}
	return nil
}

// Apply applies a plan as documented at Plan. The error is a *WriteError if a write failed.
func (a *Applier) Apply(ctx context.Context, plan Plan) error {
	if plan.OnWrite != nil {
		a = a.observedBy(plan.OnWrite)
	}
	var result ApplyResult
	for _, step := range plan.Steps {
		written, err := a.step(ctx, step)
		result.Written = append(result.Written, written...)
		if err != nil {
			result.Err = err
			break
		}
	}
	if plan.Status != nil && ctx.Err() == nil {
		if obj := plan.Status(result); obj != nil {
			if _, err := a.write(ctx, NewUpdateStatus(obj)); err != nil {
				return errors.Join(result.Err, err)
			}
		}
	}
	if result.Err != nil {
		return result.Err
	}
	for _, e := range plan.Events {
		a.recordEvent(&e, "")
	}
	return nil
}

// observedBy returns an applier that also calls observe after every successful write.
func (a *Applier) observedBy(observe func(kind.Object)) *Applier {
	observed := *a
	observed.OnWrite = func(obj kind.Object) {
		if a.OnWrite != nil {
			a.OnWrite(obj)
		}
		observe(obj)
	}
	return &observed
}

// step applies one step and returns the written objects.
func (a *Applier) step(ctx context.Context, step Step) ([]kind.Object, error) {
	if err := a.recheck(ctx, step.Recheck); err != nil {
		return nil, err
	}
	written := make([]kind.Object, len(step.Writes))
	var creates, others []int
	for i, w := range step.Writes {
		if w.Verb == Create {
			creates = append(creates, i)
		} else {
			others = append(others, i)
		}
	}
	do := func(indexes []int, all bool) error {
		return runConcurrently(indexes, all, func(i int) (err error) {
			written[i], err = a.write(ctx, step.Writes[i])
			return err
		})
	}
	err := do(others, true)
	for size := 1; err == nil && len(creates) > 0 && size < maxInFlight; size *= 2 {
		size = min(size, len(creates))
		err = do(creates[:size], true)
		creates = creates[size:]
	}
	if err == nil {
		// Slow start is over: send the rest, limited by maxInFlight only.
		err = do(creates, false)
	}
	return slices.DeleteFunc(written, func(obj kind.Object) bool { return obj == nil }), err
}

// recheck reads an object from the server and fails if it has another UID or is being deleted.
func (a *Applier) recheck(ctx context.Context, cached kind.Object) error {
	if cached == nil {
		return nil
	}
	live, err := a.Writer.GetLive(ctx, cached)
	if err != nil {
		return fmt.Errorf("recheck %s: %w", describe(cached), err)
	}
	if live.GetUID() != cached.GetUID() {
		return fmt.Errorf("original %s is gone: got uid %v, wanted %v", describe(cached), live.GetUID(), cached.GetUID())
	}
	if live.GetDeletionTimestamp() != nil {
		return fmt.Errorf("%s has just been deleted at %v", describe(cached), live.GetDeletionTimestamp())
	}
	return nil
}

// write sends one request. It returns nil for a deletion and for an ignored error.
func (a *Applier) write(ctx context.Context, w Write) (kind.Object, error) {
	var written kind.Object
	var err error
	switch w.Verb {
	case Create:
		written, err = a.Writer.Create(ctx, w.Object, client.WriteOptions{})
	case Update:
		written, err = a.Writer.Update(ctx, w.Object, client.WriteOptions{})
	case UpdateStatus:
		written, err = a.Writer.Update(ctx, w.Object, client.WriteOptions{Subresource: "status"})
	case Patch:
		written, err = a.Writer.Patch(ctx, w.Object, w.PatchType, w.Patch, client.WriteOptions{})
	case PatchStatus:
		written, err = a.Writer.Patch(ctx, w.Object, w.PatchType, w.Patch, client.WriteOptions{Subresource: "status"})
	case Delete:
		err = a.Writer.Delete(ctx, w.Object, w.DeleteOptions)
	default:
		return nil, fmt.Errorf("unknown verb %q in plan", w.Verb)
	}
	if err != nil {
		if w.ignores(err) {
			return nil, nil
		}
		if !slices.Contains(w.NoEvent, apierrors.ReasonForError(err)) {
			a.recordEvent(w.FailureEvent, err.Error())
		}
		return nil, &WriteError{Verb: w.Verb, Object: w.Object, Err: err}
	}
	if w.Verb == Delete {
		if a.OnDelete != nil {
			a.OnDelete(w.Object)
		}
		a.recordEvent(w.SuccessEvent, w.Object.GetName())
		return nil, nil
	}
	if a.OnWrite != nil {
		a.OnWrite(written)
	}
	a.recordEvent(w.SuccessEvent, written.GetName())
	return written, nil
}

// ignores reports whether an error counts as success.
func (w Write) ignores(err error) bool {
	switch {
	case w.Verb == Delete && apierrors.IsNotFound(err):
		return true
	case w.Verb == Create && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return true
	}
	return slices.Contains(w.Ignore, apierrors.ReasonForError(err))
}

func (a *Applier) recordEvent(event *Event, detail string) {
	if event != nil && a.Events != nil {
		a.Events.Event(event.Object, event.Type, event.Reason, strings.Replace(event.Message, "%s", detail, 1))
	}
}

// runConcurrently calls do for the indexes with at most maxInFlight calls at a time, waits for them and returns the error of the lowest
// index. If all is false, it starts no further calls after a failure.
func runConcurrently(indexes []int, all bool, do func(int) error) error {
	if len(indexes) == 1 {
		return do(indexes[0])
	}
	failures := make([]error, len(indexes))
	slots := make(chan struct{}, maxInFlight)
	var failed atomic.Bool
	var running sync.WaitGroup
	for n, i := range indexes {
		slots <- struct{}{}
		if failed.Load() && !all {
			break
		}
		running.Go(func() {
			defer func() { <-slots }()
			if failures[n] = do(i); failures[n] != nil {
				failed.Store(true)
			}
		})
	}
	running.Wait()
	for _, err := range failures {
		if err != nil {
			return err
		}
	}
	return nil
}

// describe formats an object for errors: "Pod default/web-1".
func describe(obj kind.Object) string {
	name := obj.GetName()
	if name == "" {
		name = obj.GetGenerateName() + "*"
	}
	if obj.GetNamespace() != "" {
		name = obj.GetNamespace() + "/" + name
	}
	typeName := fmt.Sprintf("%T", obj)
	return typeName[strings.LastIndexByte(typeName, '.')+1:] + " " + name
}
