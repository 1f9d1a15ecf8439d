package controller

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/kind"
)

// Plan is the result of reconciling one key. The zero value does nothing.
//
// The applier guarantees:
//   - steps are applied in order; a step starts when all writes of the previous step have succeeded, and a failed step
//     skips the remaining ones;
//   - after the steps, failed or not, Status is called for the status to write;
//   - Events are recorded when everything has succeeded; the events of a single write are fields of the write;
//   - RequeueAfter applies when everything has succeeded; after a failure the key is requeued with backoff instead.
type Plan struct {
	Steps []Step
	// Status returns the object with the new status, or nil when the status is up to date. It gets the result of the steps,
	// because a status may have to report a failure.
	Status func(result ApplyResult) kind.Object
	Events []Event
	// OnWrite, if set, is called with each object that the server returned for a write, for metrics. Writes of one step call it
	// concurrently.
	OnWrite func(obj kind.Object)
	// RequeueAfter, if not zero, is the delay after which the key is enqueued again.
	RequeueAfter time.Duration
}

// AddStep adds a step with the writes, unless there are none.
func (p *Plan) AddStep(writes ...Write) {
	if len(writes) > 0 {
		p.Steps = append(p.Steps, Step{Writes: writes})
	}
}

// Requeue lowers RequeueAfter to the delay. A delay of zero changes nothing.
func (p *Plan) Requeue(delay time.Duration) {
	if delay > 0 && (p.RequeueAfter == 0 || delay < p.RequeueAfter) {
		p.RequeueAfter = delay
	}
}

// IsEmpty reports whether the plan writes nothing and records no events.
func (p *Plan) IsEmpty() bool {
	return len(p.Steps) == 0 && len(p.Events) == 0 && (p.Status == nil || p.Status(ApplyResult{}) == nil)
}

// Step is a set of writes that do not depend on each other. Creates are sent in slow-start batches of 1, 2, 4, … up to the in-flight
// limit, and stop after the first failure: an exhausted quota costs a few requests, not hundreds. All other writes are sent
// concurrently, and each is attempted.
type Step struct {
	// Recheck, if set, is read from the server before the first write. The step fails if the object has another UID or is being
	// deleted. Adoption needs it: with a stale cache, a deleted owner could adopt the objects of its successor.
	Recheck kind.Object
	Writes  []Write
}

// ApplyResult is the result of the steps of a plan.
type ApplyResult struct {
	// Err is the first failure, nil when all steps succeeded.
	Err error
	// Written are the objects the server returned, without deletions, in the order of the plan.
	Written []kind.Object
}

// FailedVerb returns the verb of the write that failed, or "" when no write failed.
func (r ApplyResult) FailedVerb() Verb {
	var writeErr *WriteError
	if errors.As(r.Err, &writeErr) {
		return writeErr.Verb
	}
	return ""
}

// ErrorMessage is the server's message of the failure, as conditions report it.
func (r ApplyResult) ErrorMessage() string {
	var writeErr *WriteError
	if errors.As(r.Err, &writeErr) {
		return writeErr.Err.Error()
	}
	if r.Err != nil {
		return r.Err.Error()
	}
	return ""
}

// WriteError is the error of a failed write.
type WriteError struct {
	Verb   Verb
	Object kind.Object
	Err    error
}

func (e *WriteError) Error() string {
	return fmt.Sprintf("%s %s: %v", e.Verb, describe(e.Object), e.Err)
}

// Unwrap returns the server's error.
func (e *WriteError) Unwrap() error { return e.Err }

// Verb is the operation of a Write.
type Verb string

// The verbs.
const (
	Create       Verb = "create"
	Update       Verb = "update"
	UpdateStatus Verb = "update status of"
	Patch        Verb = "patch"
	PatchStatus  Verb = "patch status of"
	Delete       Verb = "delete"
)

// Write is one request. The functions below construct it.
type Write struct {
	Verb Verb
	// Object is what to write; for Patch and Delete, the cached object.
	Object        kind.Object
	Patch         []byte
	PatchType     client.PatchType
	DeleteOptions metav1.DeleteOptions
	// Ignore are error reasons that count as success. A Delete always ignores NotFound.
	Ignore []metav1.StatusReason
	// SuccessEvent is recorded when the write has succeeded. "%s" in its message is replaced by the object's name.
	SuccessEvent *Event
	// FailureEvent is recorded when the write has failed. "%s" in its message is replaced by the error.
	FailureEvent *Event
	// NoEvent are error reasons for which FailureEvent is not recorded: a stale cache causes them.
	NoEvent []metav1.StatusReason
}

// Event is an event to record about Object.
type Event struct {
	Object kind.Object
	// Type is corev1.EventTypeNormal or corev1.EventTypeWarning.
	Type, Reason, Message string
}

// NewCreate returns a write that creates obj. It counts as successful if the namespace is terminating, since no create can succeed there.
func NewCreate(obj kind.Object) Write { return Write{Verb: Create, Object: obj} }

// NewUpdate returns a write that replaces an object.
func NewUpdate(obj kind.Object) Write { return Write{Verb: Update, Object: obj} }

// NewUpdateStatus returns a write that replaces the status of an object.
func NewUpdateStatus(obj kind.Object) Write { return Write{Verb: UpdateStatus, Object: obj} }

// NewPatch returns a write that patches an object.
func NewPatch(obj kind.Object, patchType client.PatchType, patch []byte) Write {
	return Write{Verb: Patch, Object: obj, PatchType: patchType, Patch: patch}
}

// NewDelete returns a write that deletes obj, with its UID as a precondition.
func NewDelete(obj kind.Object) Write {
	uid := obj.GetUID()
	return Write{Verb: Delete, Object: obj, DeleteOptions: metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}}
}

// OnSuccess returns the write with an event to record when it succeeds.
func (w Write) OnSuccess(event Event) Write { w.SuccessEvent = &event; return w }

// OnFailure returns the write with an event to record when it fails.
func (w Write) OnFailure(event Event) Write { w.FailureEvent = &event; return w }

// WithoutEventOn returns the write with error reasons for which no failure event is recorded.
func (w Write) WithoutEventOn(reasons ...metav1.StatusReason) Write {
	w.NoEvent = append(w.NoEvent, reasons...)
	return w
}

// Ignoring returns the write with error reasons that count as success.
func (w Write) Ignoring(reasons ...metav1.StatusReason) Write {
	w.Ignore = append(w.Ignore, reasons...)
	return w
}
