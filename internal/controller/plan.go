package controller

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/kind"
)

// Plan is what is to be done for one key. The zero value does nothing.
//
// The applier keeps these rules:
//   - steps are carried out in order; a step begins when all writes of the step before have succeeded, and a failed step
//     stops those behind it;
//   - after the steps, failed or not, Status is asked for the status to write;
//   - Events are told when everything has succeeded; events of a single write stand with the write;
//   - RequeueAfter holds when everything has succeeded; a failure means backoff instead.
type Plan struct {
	Steps []Step
	// Status returns the object with the new status, or nil when the status stands as it is. It is told what came of the
	// steps, because a status may have to report it.
	Status func(outcome Outcome) kind.Object
	Events []Event
	// RequeueAfter asks for another look after a while. Zero: none.
	RequeueAfter time.Duration
}

// Then adds a step of the writes, unless there are none.
func (p *Plan) Then(writes ...Write) {
	if len(writes) > 0 {
		p.Steps = append(p.Steps, Step{Writes: writes})
	}
}

// Again asks for another look after the delay, or earlier when an earlier one was asked for already. Zero asks for none.
func (p *Plan) Again(delay time.Duration) {
	if delay > 0 && (p.RequeueAfter == 0 || delay < p.RequeueAfter) {
		p.RequeueAfter = delay
	}
}

// Empty says whether the plan changes nothing, whatever came of its steps.
func (p *Plan) Empty() bool {
	return len(p.Steps) == 0 && len(p.Events) == 0 && (p.Status == nil || p.Status(Outcome{}) == nil)
}

// Step is a set of writes that do not depend on each other. Creates go out in batches of 1, 2, 4, …, then as many at once as one plan may
// have, and stop behind the first that fails: if the quota is used up, the server is asked twice, not five hundred times. Everything else
// goes out at once, and every write is tried.
type Step struct {
	// Confirm is read from the server itself before the first write. Unless it is still the same object and not being
	// deleted, the step fails. Adoption needs it: a cache that lags must not give an owner to its successor's objects.
	Confirm kind.Object
	Writes  []Write
}

// Outcome is what came of the steps of a plan.
type Outcome struct {
	// Err is the first failure, nil when all steps succeeded.
	Err error
	// Written are the objects as the server answered, deletions apart, in the order of the plan.
	Written []kind.Object
}

// Failed returns what the write that failed was to do, or "" when nothing failed or no write was tried.
func (o Outcome) Failed() Verb {
	var failure *WriteError
	if errors.As(o.Err, &failure) {
		return failure.Verb
	}
	return ""
}

// Message is the failure in the server's own words, as users see it in conditions.
func (o Outcome) Message() string {
	var failure *WriteError
	if errors.As(o.Err, &failure) {
		return failure.Err.Error()
	}
	if o.Err != nil {
		return o.Err.Error()
	}
	return ""
}

// WriteError says which write failed, and how.
type WriteError struct {
	Verb   Verb
	Object kind.Object
	Err    error
}

func (e *WriteError) Error() string {
	return fmt.Sprintf("%s %s: %v", e.Verb, describe(e.Object), e.Err)
}

// Unwrap returns the server's refusal.
func (e *WriteError) Unwrap() error { return e.Err }

// Verb says what a Write does.
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

// Write is one request. Make it with the functions below and add what is special.
type Write struct {
	Verb Verb
	// Object is what to write; for Patch and Delete, the object as last seen.
	Object kind.Object
	// Patch and Form are the patch.
	Patch []byte
	Form  client.PatchForm
	// Delete says how to delete.
	Delete metav1.DeleteOptions
	// Tolerate are refusals that count as success. A Delete always tolerates that the object is gone.
	Tolerate []metav1.StatusReason
	// Done is told when the write succeeded. "%s" in its message stands for the object's name.
	Done *Event
	// Failed is told when it failed. "%s" in its message stands for the error.
	Failed *Event
	// Silent are refusals that fail the write but are not worth telling: they come from a cache that lags.
	Silent []metav1.StatusReason
}

// Event is told about an object, as kubectl describe shows it.
type Event struct {
	About kind.Object
	// Type is corev1.EventTypeNormal or corev1.EventTypeWarning.
	Type, Reason, Message string
}

// Creating is a write that creates obj. If its namespace is being deleted, the refusal counts as success: no creation can succeed.
func Creating(obj kind.Object) Write { return Write{Verb: Create, Object: obj} }

// Updating is a write that replaces an object.
func Updating(obj kind.Object) Write { return Write{Verb: Update, Object: obj} }

// UpdatingStatus is a write that replaces the status of an object.
func UpdatingStatus(obj kind.Object) Write { return Write{Verb: UpdateStatus, Object: obj} }

// Patching is a write that changes an object by a patch.
func Patching(obj kind.Object, form client.PatchForm, patch []byte) Write {
	return Write{Verb: Patch, Object: obj, Form: form, Patch: patch}
}

// Deleting is a write that deletes this very object: one with the same name but another uid is spared.
func Deleting(obj kind.Object) Write {
	uid := obj.GetUID()
	return Write{Verb: Delete, Object: obj, Delete: metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}}
}

// OnDone returns the write with an event for its success.
func (w Write) OnDone(event Event) Write { w.Done = &event; return w }

// OnFailed returns the write with an event for its failure.
func (w Write) OnFailed(event Event) Write { w.Failed = &event; return w }

// SilentOn returns the write with refusals that are not told.
func (w Write) SilentOn(reasons ...metav1.StatusReason) Write {
	w.Silent = append(w.Silent, reasons...)
	return w
}

// Tolerating returns the write with refusals that count as success.
func (w Write) Tolerating(reasons ...metav1.StatusReason) Write {
	w.Tolerate = append(w.Tolerate, reasons...)
	return w
}
