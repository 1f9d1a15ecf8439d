package decision

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// MaxRemembered bounds the decisions kept for questions.
	MaxRemembered = 1024
	// maxDetailed bounds how many of them keep a record of their own. Decisions that only point into a table shared by pods of their
	// make keep that for as long as the table is there and its history reaches.
	maxDetailed = 16
)

// Log remembers the last decisions. It is written for every pod and read for few, so writing costs next to nothing and
// reading looks at all of them.
type Log struct {
	ring [MaxRemembered]LogEntry
	next int
}

type LogEntry struct {
	Decision *Decision
	Err      error
	At       time.Time
}

// Remember keeps a decision, and what came of it, in place of the oldest.
func (l *Log) Remember(d *Decision, err error, now time.Time) {
	if old := l.ring[(l.next+MaxRemembered-maxDetailed)%MaxRemembered].Decision; old != nil && old.ownRecord() {
		old.dropRecord()
	}
	l.ring[l.next] = LogEntry{Decision: d, Err: err, At: now}
	l.next = (l.next + 1) % MaxRemembered
}

// tableDropped drops the records that point into a table which is no longer kept.
func (l *Log) tableDropped(t *table) {
	if l == nil {
		return
	}
	for i := range l.ring {
		if d := l.ring[i].Decision; d != nil && d.Table == t {
			d.dropRecord()
		}
	}
}

// Last is the last decision about a pod, or nil.
func (l *Log) Last(uid types.UID) *LogEntry {
	for i := range l.ring {
		r := &l.ring[(l.next+MaxRemembered-1-i)%MaxRemembered]
		if r.Decision == nil {
			return nil
		}
		if r.Decision.Pod.Pod.UID == uid {
			return r
		}
	}
	return nil
}

// ownRecord reports whether a decision keeps more than a place in a shared table.
func (d *Decision) ownRecord() bool { return d.topology != nil || d.Table == nil || !d.Table.shared }
