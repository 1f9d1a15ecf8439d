package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/admission"
	"skiff/internal/kind"
	"skiff/internal/store/cache"
)

// deletion is the result of a DELETE: the object is removed, or it remains until its finalizers or grace period allow it.
type deletion struct {
	entry   *cache.Entry   // the object as it is, or its last state
	obj     runtime.Object // instead of an entry: a Status, or the result of a dry run
	deleted bool
}

// delete serves a DELETE of one object.
func (s *Server) delete(req *request) error {
	if _, err := req.negotiate(); err != nil {
		return err
	}
	options, err := s.parseDeleteOptions(req)
	if err != nil {
		return err
	}
	w := s.newWrite(req, isDryRun(options.DryRun))
	done, err := w.delete(options)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if orphan := options.OrphanDependents; !done.deleted && orphan != nil && !*orphan { //nolint:staticcheck // clients still send it
		code = http.StatusAccepted
	}
	if done.entry != nil {
		return s.respondEntry(req, code, done.entry)
	}
	return s.respondObject(req, code, done.obj)
}

// delete deletes an object or marks it as being deleted.
func (w *write) delete(options *metav1.DeleteOptions) (deletion, error) {
	ctx, cancel := context.WithTimeout(w.ctx, writeTimeout)
	defer cancel()
	w.ctx = ctx
	entry, err := w.current()
	if err != nil {
		return deletion{}, err
	}
	for {
		if entry == nil {
			return deletion{}, apierrors.NewNotFound(w.res.groupResource(), w.name)
		}
		// Grace changes the options for this state of the object; a retry may see another.
		attempt := options.DeepCopy()
		done, err := w.deleteOnce(entry, attempt)
		if err == nil {
			return done, nil
		}
		var retry bool
		if entry, retry, err = w.retry(entry, err); !retry {
			return deletion{}, err
		}
	}
}

func (w *write) deleteOnce(entry *cache.Entry, options *metav1.DeleteOptions) (deletion, error) {
	if err := w.ctx.Err(); err != nil {
		return deletion{}, err
	}
	k := w.res.kind
	live, err := w.res.objectForWrite(w.ctx, entry)
	if err != nil {
		return deletion{}, err
	}
	if err := w.checkPreconditions(live, options); err != nil {
		return deletion{}, err
	}
	if k.Delete.Check != nil {
		if err := k.Delete.Check(w.ctx, w.s.KindClient(), live); err != nil {
			return deletion{}, err
		}
	}
	if k.Delete.HasSpecFinalizers != nil && (live.GetDeletionTimestamp() == nil || k.Delete.HasSpecFinalizers(live)) {
		return w.beginHeld(entry, live, options)
	}
	grace := w.graceFor(live, options)
	if grace.pending {
		return w.finished(entry, live, false), nil
	}
	if err := grace.check(options); err != nil {
		return deletion{}, err
	}
	undo, err := w.admitDelete(live, options)
	if err != nil {
		return deletion{}, err
	}
	stored := false
	defer undoUnless(&stored, undo)
	if k.Delete.Warn != nil {
		for _, text := range k.Delete.Warn(live, options) {
			w.warn(text)
		}
	}
	done, err := w.deleteOrMark(entry, live, options, grace)
	stored = err == nil && !w.kindRequest.DryRun
	return done, err
}

// checkPreconditions checks the UID and resourceVersion of the options' preconditions.
func (w *write) checkPreconditions(live kind.Object, options *metav1.DeleteOptions) error {
	wanted := options.Preconditions
	if wanted == nil {
		return nil
	}
	conflict := func(text string, want, is any) error {
		gr := schema.GroupResource{Group: w.res.gvk.Group, Resource: w.res.gvk.Kind}
		return apierrors.NewConflict(gr, w.name, fmt.Errorf(text, want, is))
	}
	if wanted.UID != nil && *wanted.UID != live.GetUID() {
		return conflict("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated",
			*wanted.UID, live.GetUID())
	}
	if wanted.ResourceVersion != nil && *wanted.ResourceVersion != live.GetResourceVersion() {
		return conflict("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified",
			*wanted.ResourceVersion, live.GetResourceVersion())
	}
	return nil
}

func (w *write) admitDelete(live kind.Object, options *metav1.DeleteOptions) (undo func(), err error) {
	if len(w.chain) == 0 {
		return func() {}, nil
	}
	a := w.attributesFor(admission.Delete, nil, live, options)
	if err := w.chain.Mutate(w.ctx, a); err != nil {
		return nil, err
	}
	if err := w.chain.Validate(w.ctx, a); err != nil {
		return nil, err
	}
	return func() { w.chain.Undo(context.WithoutCancel(w.ctx), a) }, nil
}

// grace is the decision about graceful deletion.
type grace struct {
	// graceful: the object is marked and remains until its grace period is over.
	graceful bool
	// pending: the object is already marked, and the client does not shorten the grace period.
	pending bool
	first   bool
	until   metav1.Time
	seconds int64
}

func (g grace) check(options *metav1.DeleteOptions) error {
	if g.graceful && options.GracePeriodSeconds == nil {
		return apierrors.NewInternalError(errors.New("options.GracePeriodSeconds should not be nil"))
	}
	return nil
}

// graceFor decides about graceful deletion. The grace period of a deletion that has begun can only become shorter.
func (w *write) graceFor(live kind.Object, options *metav1.DeleteOptions) grace {
	if seconds := options.GracePeriodSeconds; seconds != nil && *seconds < 0 {
		one := int64(1)
		options.GracePeriodSeconds = &one
	}
	decide := w.res.kind.Delete.CheckGraceful
	if decide == nil {
		return grace{}
	}
	begun := live.GetDeletionTimestamp()
	if begun == nil {
		if !decide(live, options) || options.GracePeriodSeconds == nil {
			return grace{}
		}
		seconds := *options.GracePeriodSeconds
		return grace{graceful: true, first: true, seconds: seconds, until: after(w.kindRequest.Now, seconds)}
	}
	left := live.GetDeletionGracePeriodSeconds()
	if left == nil || *left == 0 {
		return grace{}
	}
	had := *left
	if had < 0 {
		had = 1
	}
	if options.GracePeriodSeconds == nil {
		options.GracePeriodSeconds = left
		return grace{pending: true}
	}
	seconds := *options.GracePeriodSeconds
	if seconds >= had {
		return grace{pending: true}
	}
	until := after(after(*begun, -had), seconds)
	if until.Before(&w.kindRequest.Now) {
		until = w.kindRequest.Now
		if seconds != 0 {
			// The grace period is over, but the kubelet still has to confirm.
			seconds = 1
		}
	}
	return grace{graceful: true, seconds: seconds, until: until}
}

func after(t metav1.Time, seconds int64) metav1.Time {
	return metav1.NewTime(t.Add(time.Duration(seconds) * time.Second))
}

// deleteOrMark marks the object, removes it, or both.
func (w *write) deleteOrMark(entry *cache.Entry, live kind.Object, options *metav1.DeleteOptions, g grace) (deletion, error) {
	finalizers, changed := w.deletionFinalizers(live, options)
	if !g.graceful && len(finalizers) == 0 {
		return w.remove(entry, live)
	}
	if g.graceful && g.seconds == 0 && len(finalizers) == 0 && live.GetDeletionTimestamp() != nil && !w.kindRequest.DryRun {
		return w.remove(entry, live) // it is already marked: this request confirms the end of the grace period
	}
	obj := live.DeepCopyObject().(kind.Object)
	if changed {
		obj.SetFinalizers(finalizers)
	}
	if g.graceful {
		obj.SetDeletionTimestamp(&g.until)
		obj.SetDeletionGracePeriodSeconds(&g.seconds)
		if g.first && obj.GetGeneration() > 0 {
			obj.SetGeneration(obj.GetGeneration() + 1)
		}
	} else {
		w.markDeleting(obj)
	}
	if begin := w.res.kind.Delete.MarkTerminating; begin != nil {
		begin(obj)
	}
	gone := len(finalizers) == 0 && g.seconds == 0
	if w.kindRequest.DryRun {
		obj.SetResourceVersion(live.GetResourceVersion())
		return deletion{obj: obj, deleted: gone}, nil
	}
	marked, err := w.store(obj, entry)
	if err != nil {
		return deletion{}, err
	}
	if !gone {
		return deletion{entry: marked}, nil
	}
	return w.removeMarked(marked, live)
}

// markDeleting marks an object that only waits for its finalizers.
func (w *write) markDeleting(obj kind.Object) {
	begun := obj.GetDeletionTimestamp()
	if begun == nil && obj.GetGeneration() > 0 {
		obj.SetGeneration(obj.GetGeneration() + 1)
	}
	if begun == nil || begun.After(w.kindRequest.Now.Time) {
		at := w.kindRequest.Now
		obj.SetDeletionTimestamp(&at)
	}
	zero := int64(0)
	obj.SetDeletionGracePeriodSeconds(&zero)
}

// remove deletes the object from the store.
func (w *write) remove(entry *cache.Entry, live kind.Object) (deletion, error) {
	if w.kindRequest.DryRun {
		return w.finished(entry, live, true), nil
	}
	deleted, err := w.res.table.Delete(w.ctx, w.key(), entry.Revision())
	if err != nil {
		return deletion{}, err
	}
	return w.finished(deleted, live, true), w.afterDelete(deleted)
}

// removeMarked removes an object that was just marked. Another client may have seen the mark and removed it first.
func (w *write) removeMarked(marked *cache.Entry, live kind.Object) (deletion, error) {
	done, err := w.remove(marked, live)
	var conflict *cache.Conflict
	if errors.As(err, &conflict) && conflict.Current == nil {
		return w.finished(marked, live, true), w.afterDelete(marked)
	}
	return done, err
}

// finished is the response when nothing is left to do: a Status with the object's identity, or the object.
func (w *write) finished(entry *cache.Entry, live kind.Object, deleted bool) deletion {
	if w.res.kind.Delete.ReturnObject {
		return deletion{entry: entry, deleted: deleted}
	}
	gr := w.res.groupResource()
	return deletion{deleted: deleted, obj: &metav1.Status{
		Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{
			Name: live.GetName(), Group: gr.Group, Kind: gr.Resource, UID: live.GetUID(),
		},
	}}
}

// beginHeld: an object that more than its finalizers can hold is only marked by the first request. Later ones find
// nothing to do until it is let go.
func (w *write) beginHeld(entry *cache.Entry, live kind.Object, options *metav1.DeleteOptions) (deletion, error) {
	if live.GetDeletionTimestamp() != nil {
		return deletion{entry: entry}, nil
	}
	undo, err := w.admitDelete(live, options)
	if err != nil {
		return deletion{}, err
	}
	stored := false
	defer undoUnless(&stored, undo)
	obj := live.DeepCopyObject().(kind.Object)
	at := w.kindRequest.Now
	obj.SetDeletionTimestamp(&at)
	if finalizers, changed := w.deletionFinalizers(live, options); changed {
		obj.SetFinalizers(finalizers)
	}
	if begin := w.res.kind.Delete.MarkTerminating; begin != nil {
		begin(obj)
	}
	if w.kindRequest.DryRun {
		return deletion{obj: obj}, nil
	}
	marked, err := w.store(obj, entry)
	if err != nil {
		return deletion{}, err
	}
	stored = true
	return deletion{entry: marked}, nil
}

// deletionFinalizers are the object's finalizers with those of the garbage collector set by the propagation policy: orphan,
// foregroundDeletion, or neither.
func (w *write) deletionFinalizers(live kind.Object, options *metav1.DeleteOptions) (finalizers []string, changed bool) {
	had := live.GetFinalizers()
	policy := w.propagation(had, options)
	for _, f := range had {
		if f != metav1.FinalizerOrphanDependents && f != metav1.FinalizerDeleteDependents {
			finalizers = append(finalizers, f)
		}
	}
	added := ""
	switch policy {
	case metav1.DeletePropagationOrphan:
		added = metav1.FinalizerOrphanDependents
	case metav1.DeletePropagationForeground:
		added = metav1.FinalizerDeleteDependents
	}
	if added != "" {
		finalizers = append(finalizers, added)
	}
	if len(finalizers) == len(had) && (added == "" || slices.Contains(had, added)) {
		return had, false
	}
	return finalizers, true
}

// propagation is the propagation policy: of the options, else by the object's finalizers, else the kind's default.
func (w *write) propagation(finalizers []string, options *metav1.DeleteOptions) metav1.DeletionPropagation {
	if orphan := options.OrphanDependents; orphan != nil { //nolint:staticcheck // clients still send it
		if *orphan {
			return metav1.DeletePropagationOrphan
		}
		return metav1.DeletePropagationBackground
	}
	if options.PropagationPolicy != nil {
		return *options.PropagationPolicy
	}
	for _, f := range finalizers {
		switch f {
		case metav1.FinalizerOrphanDependents:
			return metav1.DeletePropagationOrphan
		case metav1.FinalizerDeleteDependents:
			return metav1.DeletePropagationForeground
		}
	}
	if w.res.kind.Delete.Propagation != "" {
		return w.res.kind.Delete.Propagation
	}
	return metav1.DeletePropagationBackground
}
