// Package admission has the admission plugins, which can mutate or reject a write after it was authorized and before it is stored.
// Each plugin has a file of its own; their order is the list in plugins.go.
package admission

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/authn"
)

// Operation is what the request does to the object.
type Operation string

// The operations.
const (
	Create  Operation = "CREATE"
	Update  Operation = "UPDATE"
	Delete  Operation = "DELETE"
	Connect Operation = "CONNECT"
)

// Attributes describe a write. Object has the storage version and may be changed by Mutate; it is nil for a deletion. Old is
// shared and read-only; nil on create.
type Attributes struct {
	Operation   Operation
	Kind        schema.GroupVersionKind // of the request
	Resource    schema.GroupVersionResource
	Subresource string
	Namespace   string
	Name        string
	Object      runtime.Object
	Old         runtime.Object
	// Options is a *metav1.CreateOptions, UpdateOptions, PatchOptions or DeleteOptions.
	Options runtime.Object
	User    authn.User
	DryRun  bool
	// Versions converts Object and Old, for plugins that pass them on in another version.
	Versions Versions

	// Warn adds a Warning header to the response.
	Warn func(text string)
	// Annotate adds an audit annotation.
	Annotate func(key, value string)
	// AnnotateRequest adds an audit annotation that repeats part of the request: it is recorded where the request object is.
	AnnotateRequest func(key, value string)
	// OnWait calls a function that waits for another server; the request has no seats meanwhile. nil: it has none anyway.
	OnWait func(wait func())

	reinvocation reinvocation
	// charged is what ResourceQuota has charged for the write, so that Undo can refund it.
	charged *charge
}

// Wait calls a function that waits for another server.
func (a *Attributes) Wait(wait func()) {
	if a.OnWait == nil {
		wait()
		return
	}
	a.OnWait(wait)
}

// is reports whether the write is to the resource, or to a subresource of it.
func (a *Attributes) is(resource schema.GroupResource) bool {
	return a.Resource.Resource == resource.Resource && a.Resource.Group == resource.Group
}

// isPlain reports whether the write is to the resource itself.
func (a *Attributes) isPlain(resource schema.GroupResource) bool {
	return a.Subresource == "" && a.is(resource)
}

// changes reports whether the write creates or updates an object.
func (a *Attributes) changes() bool { return a.Operation == Create || a.Operation == Update }

// Plugin is one admission plugin. A plugin implements Mutator, Validator or both.
type Plugin interface {
	// Name is upstream's plugin name.
	Name() string
	// Handles reports whether the plugin handles the write. It must be cheap.
	Handles(a *Attributes) bool
}

// Mutator may change a.Object.
type Mutator interface {
	Plugin
	Mutate(ctx context.Context, a *Attributes) error
}

// Validator may reject the write.
type Validator interface {
	Plugin
	Validate(ctx context.Context, a *Attributes) error
}

// Undoer is implemented by plugins that reserve something in Validate (ResourceQuota). The server calls Undo when the write fails
// later or was a dry run.
type Undoer interface {
	Undo(ctx context.Context, a *Attributes)
}

// Chain runs plugins in order: all mutations first, then all validations.
type Chain []Plugin

// Follow runs the plugins that keep an index of objects until ctx is done.
func (c Chain) Follow(ctx context.Context, watcher Watcher) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range c {
		if f, ok := p.(Follower); ok {
			group.Go(func() error { return f.Follow(ctx, watcher) })
		}
	}
	return group.Wait()
}

// Mutate runs the mutating plugins. If a webhook or policy has changed the object, all run once more, so that the plugins before it
// handle the changed object too.
func (c Chain) Mutate(ctx context.Context, a *Attributes) error {
	if len(c) == 1 {
		if whole, ok := c[0].(*measuredChain); ok {
			return whole.Mutate(ctx, a)
		}
	}
	return c.mutate(ctx, a, nil)
}

// mutate is Mutate, with the plugins measured unless measured is nil.
func (c Chain) mutate(ctx context.Context, a *Attributes, measured []durations) error {
	if err := c.mutateOnce(ctx, a, measured); err != nil || !a.reinvocation.requested {
		return err
	}
	a.reinvocation.active = true
	return c.mutateOnce(ctx, a, measured)
}

func (c Chain) mutateOnce(ctx context.Context, a *Attributes, measured []durations) error {
	for i, p := range c {
		if m, ok := p.(Mutator); ok && p.Handles(a) {
			if err := ctx.Err(); err != nil {
				return err
			}
			began := time.Now()
			err := m.Mutate(ctx, a)
			if measured != nil {
				measured[i].observe(stepAdmit, a.Operation, began, err)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Validate runs the validating plugins. When one rejects the write, those before it are undone.
func (c Chain) Validate(ctx context.Context, a *Attributes) error { return c.validate(ctx, a, nil) }

// validate is Validate, with the plugins measured unless measured is nil.
func (c Chain) validate(ctx context.Context, a *Attributes, measured []durations) error {
	for i, p := range c {
		if v, ok := p.(Validator); ok && p.Handles(a) {
			err := ctx.Err()
			if err == nil {
				began := time.Now()
				err = v.Validate(ctx, a)
				if measured != nil {
					measured[i].observe(stepValidate, a.Operation, began, err)
				}
			}
			if err != nil {
				c[:i].Undo(context.WithoutCancel(ctx), a)
				return err
			}
		}
	}
	return nil
}

// Undo releases what validating plugins have reserved for a write that failed.
func (c Chain) Undo(ctx context.Context, a *Attributes) {
	for i := len(c) - 1; i >= 0; i-- {
		if u, ok := c[i].(Undoer); ok && c[i].Handles(a) {
			u.Undo(ctx, a)
		}
	}
}
