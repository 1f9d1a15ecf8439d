package apiserver

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"skiff/internal/apiserver/authn"
)

// Limits protect the server from overload. Zero values, and negative durations, mean the defaults.
type Limits struct {
	// ReadOnly and Mutating are how many requests of each kind are served at once without priority and fairness; long-running
	// requests are not counted. A negative number means no limit.
	ReadOnly, Mutating int
	// Timeout is the longest duration of a request that is not long-running.
	Timeout time.Duration
	// Body is the size of the largest accepted request body.
	Body int64
	// WatchTimeout is the shortest duration of a watch without timeoutSeconds; it lasts up to twice as long, chosen at random.
	WatchTimeout time.Duration
	// Bookmark is the interval between bookmarks.
	Bookmark time.Duration
}

var defaultLimits = Limits{
	ReadOnly: 400, Mutating: 200, Timeout: time.Minute, Body: 3 << 20, WatchTimeout: 30 * time.Minute, Bookmark: time.Minute,
}

func (l Limits) withDefaults() Limits {
	return Limits{
		ReadOnly: cmp.Or(l.ReadOnly, defaultLimits.ReadOnly), Mutating: cmp.Or(l.Mutating, defaultLimits.Mutating),
		Timeout: cmp.Or(max(l.Timeout, 0), defaultLimits.Timeout), Body: cmp.Or(l.Body, defaultLimits.Body),
		WatchTimeout: cmp.Or(max(l.WatchTimeout, 0), defaultLimits.WatchTimeout), Bookmark: cmp.Or(max(l.Bookmark, 0), defaultLimits.Bookmark),
	}
}

// inFlightLimiter counts the requests of one kind that are being served.
type inFlightLimiter struct {
	limit    int64 // negative: none
	inFlight atomic.Int64
}

// acquire counts a request and reports whether the count is within the limit. Members of system:masters are never limited, so that
// a cluster in trouble can be repaired.
func (l *inFlightLimiter) acquire(user *authn.User) bool {
	return l.inFlight.Add(1) <= l.limit || l.limit < 0 || slices.Contains(user.Groups, authn.GroupMasters)
}

func (l *inFlightLimiter) release() { l.inFlight.Add(-1) }
