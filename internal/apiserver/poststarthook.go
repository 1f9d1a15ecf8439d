package apiserver

import (
	"context"
	"errors"
)

// PostStartHooks are what has to be done after the start before the server is ready. Each has a health check of its own, named as upstream
// names it.
type PostStartHooks struct {
	names    []string
	finished map[string]chan struct{}
}

// NewPostStartHooks returns hooks of which none has finished.
func NewPostStartHooks(names ...string) *PostStartHooks {
	h := &PostStartHooks{names: names, finished: make(map[string]chan struct{}, len(names))}
	for _, name := range names {
		h.finished[name] = make(chan struct{})
	}
	return h
}

// Done marks a hook as finished. It must be called once for each hook.
func (h *PostStartHooks) Done(name string) { close(h.finished[name]) }

// Wait returns true when all hooks have finished, or false when ctx is done first.
func (h *PostStartHooks) Wait(ctx context.Context) bool {
	for _, name := range h.names {
		select {
		case <-h.finished[name]:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Checks are the health checks of the hooks. They count for readiness only.
func (h *PostStartHooks) Checks() []HealthCheck {
	var checks []HealthCheck
	for _, name := range h.names {
		checks = append(checks, HealthCheck{Name: "poststarthook/" + name, ReadinessOnly: true, Check: h.Check(name)})
	}
	return checks
}

// Check returns a check that fails until a hook has finished.
func (h *PostStartHooks) Check(name string) func(context.Context) error {
	return func(context.Context) error {
		select {
		case <-h.finished[name]:
			return nil
		default:
			return errors.New("not finished")
		}
	}
}
