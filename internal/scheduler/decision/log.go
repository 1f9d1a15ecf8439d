package decision

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// MaxRemembered bounds the decisions kept for queries.
	MaxRemembered = 1024
	// maxDetailed bounds how many of them keep a record of their own. Decisions that only point into a shared table keep that as long as
	// the table exists and its history reaches back.
	maxDetailed = 16
)

// Log is a ring buffer of the last decisions. It is written for every pod and rarely read, so writing is cheap and reading is a scan.
type Log struct {
	ring [MaxRemembered]LogEntry
	next int
}

type LogEntry struct {
	Decision *Decision
	Err      error
	At       time.Time
}

// Remember replaces the oldest entry by a decision and its error.
func (l *Log) Remember(d *Decision, err error, now time.Time) {
	if old := l.ring[(l.next+MaxRemembered-maxDetailed)%MaxRemembered].Decision; old != nil && old.ownRecord() {
		old.dropRecord()
	}
	l.ring[l.next] = LogEntry{Decision: d, Err: err, At: now}
	l.next = (l.next + 1) % MaxRemembered
}

// tableDropped drops the records that point into a dropped table.
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

// Last returns the last decision about a pod, or nil.
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

// ownRecord reports whether a decision holds memory besides a position in a shared table.
func (d *Decision) ownRecord() bool { return d.topology != nil || d.Table == nil || !d.Table.shared }
