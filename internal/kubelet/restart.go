package kubelet

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The default initial and maximum CrashLoopBackOff delay.
const (
	initialRestartDelay = 10 * time.Second
	maxRestartDelay     = 300 * time.Second
)

// restarts is the CrashLoopBackOff state of the containers of one pod. The backoff of a container is reset when it has run for twice the
// maximum delay.
type restarts struct {
	initial, maximum time.Duration
	entries          map[string]restartEntry
}

type restartEntry struct {
	delay       time.Duration
	restartedAt time.Time
}

func newRestarts(maximum time.Duration) *restarts {
	if maximum <= 0 {
		maximum = maxRestartDelay
	}
	return &restarts{initial: min(initialRestartDelay, maximum), maximum: maximum, entries: map[string]restartEntry{}}
}

// restartKey identifies a container. It contains the image and resources, so that changing them resets the backoff.
func restartKey(c *corev1.Container) string {
	return strings.Join([]string{c.Name, c.Image, c.Resources.String()}, "/")
}

// until returns when a container that terminated at a time may be restarted, and its current delay. Zero means now. A container does not wait for
// longer than twice its delay: if it terminated in the future, the clock of the host has been set back since.
func (r *restarts) until(key string, terminatedAt, now time.Time) (time.Time, time.Duration) {
	e, ok := r.entries[key]
	due := terminatedAt.Add(e.delay)
	if !ok || r.expired(e, terminatedAt) || !now.Before(due) || due.Sub(now) > 2*e.delay {
		return time.Time{}, 0
	}
	return due, e.delay
}

// restarted records that a container that terminated at a time is restarted now.
func (r *restarts) restarted(key string, terminatedAt, now time.Time) {
	e, ok := r.entries[key]
	switch {
	case !ok || r.expired(e, terminatedAt):
		e.delay = r.initial
	default:
		e.delay = min(2*e.delay, r.maximum)
	}
	e.restartedAt = now
	r.entries[key] = e
}

func (r *restarts) expired(e restartEntry, terminatedAt time.Time) bool {
	return terminatedAt.Sub(e.restartedAt) > 2*r.maximum
}
