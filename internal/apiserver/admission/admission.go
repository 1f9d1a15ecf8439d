// Package admission is the last say before a write: plugins that look at an object in the light of others and may change or
// refuse it. Each plugin is a file of its own; their order is one visible list (List in plugins.go).
package admission

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/authn"
)

// Operation is what the request does to the object.
type Operation string

// The operations plugins can tell apart.
const (
	Create  Operation = "CREATE"
	Update  Operation = "UPDATE"
	Delete  Operation = "DELETE"
	Connect Operation = "CONNECT"
)

// Attributes is one write on its way into the store. Object is in the stored version and may be changed by Mutate;
// it is nil for a deletion. Old is shared and read-only; nil on create.
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

	// Warn adds a Warning header to the answer.
	Warn func(text string)
	// Annotate adds an audit annotation.
	Annotate func(key, value string)

	// charged is what ResourceQuota has taken for the write, so that it can be given back.
	charged *charge
}

// is reports whether the write is to the resource, or to a subresource of it.
func (a *Attributes) is(resource schema.GroupResource) bool {
	return a.Resource.Resource == resource.Resource && a.Resource.Group == resource.Group
}

// isPlain reports whether the write is to the resource itself.
func (a *Attributes) isPlain(resource schema.GroupResource) bool {
	return a.Subresource == "" && a.is(resource)
}

// changes reports whether the write stores an object: it is no deletion and no connection.
func (a *Attributes) changes() bool { return a.Operation == Create || a.Operation == Update }

// Plugin is one admission plugin. A plugin implements Mutator, Validator or both.
type Plugin interface {
	// Name is upstream's plugin name.
	Name() string
	// Handles says cheaply whether the plugin wants to see the write at all.
	Handles(a *Attributes) bool
}

// Mutator may change a.Object.
type Mutator interface {
	Plugin
	Mutate(ctx context.Context, a *Attributes) error
}

// Validator may refuse.
type Validator interface {
	Plugin
	Validate(ctx context.Context, a *Attributes) error
}

// Undoer is implemented by plugins that reserve something in Validate (quota): when the write fails after all, or was
// a dry run, the server gives it back.
type Undoer interface {
	Undo(ctx context.Context, a *Attributes)
}

// Chain runs plugins in order: all mutations first, then all validations.
type Chain []Plugin

// Mutate runs the mutating plugins.
func (c Chain) Mutate(ctx context.Context, a *Attributes) error {
	for _, r := range c {
		if m, ok := r.(Mutator); ok && r.Handles(a) {
			if err := m.Mutate(ctx, a); err != nil {
				return err
			}
		}
	}
	return nil
}

// Validate runs the validating plugins. When one refuses, those before it are undone.
func (c Chain) Validate(ctx context.Context, a *Attributes) error {
	for i, r := range c {
		if v, ok := r.(Validator); ok && r.Handles(a) {
			if err := v.Validate(ctx, a); err != nil {
				c[:i].Undo(ctx, a)
				return err
			}
		}
	}
	return nil
}

// Undo gives back what validating plugins have reserved for a write that did not happen.
func (c Chain) Undo(ctx context.Context, a *Attributes) {
	for i := len(c) - 1; i >= 0; i-- {
		if u, ok := c[i].(Undoer); ok && c[i].Handles(a) {
			u.Undo(ctx, a)
		}
	}
}
