package kubelet

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The delays between restarts of a container that keeps ending, if the configuration does not say otherwise.
const (
	firstDelay   = 10 * time.Second
	longestDelay = 300 * time.Second
)

// restarts remembers how often the containers of one pod were restarted lately, and from that how long each has to wait. It has
// no clock of its own. A container that ran for twice the longest delay begins with a clean slate.
type restarts struct {
	first, longest time.Duration
	entries        map[string]restartEntry
}

type restartEntry struct {
	delay time.Duration
	// at is when the container was started again.
	at time.Time
}

func newRestarts(longest time.Duration) *restarts {
	if longest <= 0 {
		longest = longestDelay
	}
	return &restarts{first: min(firstDelay, longest), longest: longest, entries: map[string]restartEntry{}}
}

// restartKey changes with everything that gives a container another chance: its image and resources.
func restartKey(c *corev1.Container) string {
	return strings.Join([]string{c.Name, c.Image, c.Resources.String()}, "/")
}

// until says when a container that ended at a time may be started again, and after what delay. Zero is at once.
func (r *restarts) until(key string, ended, now time.Time) (time.Time, time.Duration) {
	e, ok := r.entries[key]
	if !ok || r.forgotten(e, ended) || !now.Before(ended.Add(e.delay)) {
		return time.Time{}, 0
	}
	return ended.Add(e.delay), e.delay
}

// restarted takes note that a container that ended at a time is started again now.
func (r *restarts) restarted(key string, ended, now time.Time) {
	e, ok := r.entries[key]
	switch {
	case !ok || r.forgotten(e, ended):
		e.delay = r.first
	default:
		e.delay = min(2*e.delay, r.longest)
	}
	e.at = now
	r.entries[key] = e
}

func (r *restarts) forgotten(e restartEntry, ended time.Time) bool {
	return ended.Sub(e.at) > 2*r.longest
}
