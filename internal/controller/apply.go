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

// atOnce bounds the requests one plan has under way.
const atOnce = 100

// Writer is what the applier needs of a client. client.Client is one; so is a world in memory, in tests.
type Writer interface {
	Create(ctx context.Context, obj kind.Object, o client.WriteOptions) (kind.Object, error)
	Update(ctx context.Context, obj kind.Object, o client.WriteOptions) (kind.Object, error)
	Patch(ctx context.Context, obj kind.Object, form client.PatchForm, patch []byte, o client.WriteOptions) (kind.Object, error)
	Delete(ctx context.Context, obj kind.Object, options metav1.DeleteOptions) error
	Read(ctx context.Context, obj kind.Object) (kind.Object, error)
}

// Teller tells events. client.Recorder is one.
type Teller interface {
	Event(about kind.Object, eventType, reason, message string)
}

// Applier carries out plans.
type Applier struct {
	Writer Writer
	Events Teller
	// Wrote and Deleted, if set, are told of every write that succeeded.
	Wrote   func(obj kind.Object)
	Deleted func(obj kind.Object)
}

// Apply carries out a plan for a key and notes what was written, so that the key is not looked at before the informers have it.
func (s *Setup) Apply(ctx context.Context, key Key, plan Plan) error {
	a := Applier{
		Writer: s.Client, Events: s.Events,
		Wrote:   func(obj kind.Object) { s.Wrote(key, obj) },
		Deleted: func(obj kind.Object) { s.Deleted(key, obj) },
	}
	if err := a.Apply(ctx, plan); err != nil {
		return err
	}
	if plan.RequeueAfter > 0 {
		s.EnqueueAfter(key, plan.RequeueAfter)
	}
	return nil
}

// Apply carries out a plan by the rules that stand at Plan. The error says which write failed.
func (a *Applier) Apply(ctx context.Context, plan Plan) error {
	var outcome Outcome
	for _, step := range plan.Steps {
		written, err := a.step(ctx, step)
		outcome.Written = append(outcome.Written, written...)
		if err != nil {
			outcome.Err = err
			break
		}
	}
	if plan.Status != nil && ctx.Err() == nil {
		if obj := plan.Status(outcome); obj != nil {
			if _, err := a.write(ctx, UpdatingStatus(obj)); err != nil {
				return errors.Join(outcome.Err, err)
			}
		}
	}
	if outcome.Err != nil {
		return outcome.Err
	}
	for _, e := range plan.Events {
		a.tell(&e, "")
	}
	return nil
}

// step carries out one step and returns what was written, up to the first failure.
func (a *Applier) step(ctx context.Context, step Step) ([]kind.Object, error) {
	if err := a.confirm(ctx, step.Confirm); err != nil {
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
		return concurrently(indexes, all, func(i int) (err error) {
			written[i], err = a.write(ctx, step.Writes[i])
			return err
		})
	}
	err := do(others, true)
	for size := 1; err == nil && len(creates) > 0 && size < atOnce; size *= 2 {
		size = min(size, len(creates))
		err = do(creates[:size], true)
		creates = creates[size:]
	}
	if err == nil {
		// So many have succeeded that the rest need not wait for each other.
		err = do(creates, false)
	}
	return slices.DeleteFunc(written, func(obj kind.Object) bool { return obj == nil }), err
}

// confirm reads an object from the server and fails unless it is still the one we know and here to stay.
func (a *Applier) confirm(ctx context.Context, known kind.Object) error {
	if known == nil {
		return nil
	}
	fresh, err := a.Writer.Read(ctx, known)
	if err != nil {
		return fmt.Errorf("confirm that %s stays: %w", describe(known), err)
	}
	if fresh.GetUID() != known.GetUID() {
		return fmt.Errorf("original %s is gone: got uid %v, wanted %v", describe(known), fresh.GetUID(), known.GetUID())
	}
	if fresh.GetDeletionTimestamp() != nil {
		return fmt.Errorf("%s has just been deleted at %v", describe(known), fresh.GetDeletionTimestamp())
	}
	return nil
}

// write sends one request. It returns nil for a deletion and for a refusal that counts as success.
func (a *Applier) write(ctx context.Context, w Write) (kind.Object, error) {
	var answer kind.Object
	var err error
	switch w.Verb {
	case Create:
		answer, err = a.Writer.Create(ctx, w.Object, client.WriteOptions{})
	case Update:
		answer, err = a.Writer.Update(ctx, w.Object, client.WriteOptions{})
	case UpdateStatus:
		answer, err = a.Writer.Update(ctx, w.Object, client.WriteOptions{Subresource: "status"})
	case Patch:
		answer, err = a.Writer.Patch(ctx, w.Object, w.Form, w.Patch, client.WriteOptions{})
	case PatchStatus:
		answer, err = a.Writer.Patch(ctx, w.Object, w.Form, w.Patch, client.WriteOptions{Subresource: "status"})
	case Delete:
		err = a.Writer.Delete(ctx, w.Object, w.Delete)
	default:
		return nil, fmt.Errorf("a plan has no verb %q", w.Verb)
	}
	if err != nil {
		if w.tolerates(err) {
			return nil, nil
		}
		if !slices.Contains(w.Silent, apierrors.ReasonForError(err)) {
			a.tell(w.Failed, err.Error())
		}
		return nil, &WriteError{Verb: w.Verb, Object: w.Object, Err: err}
	}
	if w.Verb == Delete {
		if a.Deleted != nil {
			a.Deleted(w.Object)
		}
		a.tell(w.Done, w.Object.GetName())
		return nil, nil
	}
	if a.Wrote != nil {
		a.Wrote(answer)
	}
	a.tell(w.Done, answer.GetName())
	return answer, nil
}

// tolerates says whether a refusal counts as success.
func (w Write) tolerates(err error) bool {
	switch {
	case w.Verb == Delete && apierrors.IsNotFound(err):
		return true
	case w.Verb == Create && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return true
	}
	return slices.Contains(w.Tolerate, apierrors.ReasonForError(err))
}

func (a *Applier) tell(event *Event, detail string) {
	if event != nil && a.Events != nil {
		a.Events.Event(event.About, event.Type, event.Reason, strings.Replace(event.Message, "%s", detail, 1))
	}
}

// concurrently calls do for the indexes, at most atOnce at a time, waits for those it called and returns the error of the lowest index. It
// calls do for all of them, or begins nothing more once one has failed.
func concurrently(indexes []int, all bool, do func(int) error) error {
	if len(indexes) == 1 {
		return do(indexes[0])
	}
	failures := make([]error, len(indexes))
	slots := make(chan struct{}, atOnce)
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

// describe names an object in errors: "Pod default/web-1".
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
