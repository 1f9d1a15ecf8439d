package apiserver

import (
	"context"
	"errors"
)

// PostStartHook is a step after the start of a server, with the names of the hooks that upstream has for it. Each name has a health check.
type PostStartHook struct {
	names    []string
	finished chan struct{}
}

// NewPostStartHook returns a step that has not finished.
func NewPostStartHook(names ...string) *PostStartHook {
	return &PostStartHook{names: names, finished: make(chan struct{})}
}

// Done marks the step as finished. It must be called once.
func (h *PostStartHook) Done() { close(h.finished) }

// Check fails until the step has finished.
func (h *PostStartHook) Check(context.Context) error {
	select {
	case <-h.finished:
		return nil
	default:
		return errors.New("not finished")
	}
}

// PostStartHooks are what has to be done after the start before the server is ready.
type PostStartHooks []*PostStartHook

// Wait returns true when all hooks have finished, or false when ctx is done first.
func (h PostStartHooks) Wait(ctx context.Context) bool {
	for _, hook := range h {
		select {
		case <-hook.finished:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Checks are the health checks of the hooks.
func (h PostStartHooks) Checks() []HealthCheck {
	var checks []HealthCheck
	for _, hook := range h {
		for _, name := range hook.names {
			checks = append(checks, HealthCheck{Name: "poststarthook/" + name, Startup: true, Check: hook.Check})
		}
	}
	return checks
}
