package apiserver

import (
	"slices"
	"sync/atomic"
	"time"

	"skiff/internal/apiserver/authn"
)

// Limits protect the server from too much at once. Zero values mean the defaults.
type Limits struct {
	// ReadOnly and Mutating are how many requests of each kind may run at once where there is no fairness; streams are not
	// counted. Less than zero means no limit.
	ReadOnly, Mutating int
	// Timeout is how long a request may take that is not a stream.
	Timeout time.Duration
	// Body is the size of the largest request body that is read.
	Body int64
	// WatchTimeout is how long a watch runs at least when the client names no time; it runs up to twice as long.
	WatchTimeout time.Duration
	// Bookmark is how often an idle watch that wants bookmarks gets one.
	Bookmark time.Duration
}

var defaultLimits = Limits{
	ReadOnly: 400, Mutating: 200, Timeout: time.Minute, Body: 3 << 20, WatchTimeout: 30 * time.Minute, Bookmark: time.Minute,
}

func (l Limits) withDefaults() Limits {
	pick := func(value, standard int) int {
		if value != 0 {
			return value
		}
		return standard
	}
	pickTime := func(value, standard time.Duration) time.Duration {
		if value > 0 {
			return value
		}
		return standard
	}
	return Limits{
		ReadOnly:     pick(l.ReadOnly, defaultLimits.ReadOnly),
		Mutating:     pick(l.Mutating, defaultLimits.Mutating),
		Timeout:      pickTime(l.Timeout, defaultLimits.Timeout),
		Body:         int64(pick(int(l.Body), int(defaultLimits.Body))),
		WatchTimeout: pickTime(l.WatchTimeout, defaultLimits.WatchTimeout),
		Bookmark:     pickTime(l.Bookmark, defaultLimits.Bookmark),
	}
}

// gate counts the requests of one kind that are running.
type gate struct {
	limit   int64
	running atomic.Int64
}

// enter counts a request and reports whether there are not too many. Members of system:masters always get in, so that a
// cluster in trouble can be repaired.
func (g *gate) enter(user *authn.User) bool {
	return g.running.Add(1) <= g.limit || g.limit < 0 || slices.Contains(user.Groups, authn.GroupMasters)
}

func (g *gate) leave() { g.running.Add(-1) }
