// Package backup saves and restores the state of a cluster. A snapshot is one encrypted file: a copy of etcd's database, the cluster's CAs and service
// account keys, and the configuration of encryption at rest. Snapshots are kept in a Storage: a directory, or a bucket of an S3-compatible object store.
//
// Saver writes snapshots on a schedule and on request. It verifies each one after it was stored, by reading it back. Read decrypts and verifies a
// snapshot that is to be restored; what is done with the database belongs to package etcd.
package backup

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Storage keeps snapshots by their names, which are valid (ParseName).
type Storage interface {
	// Put stores a snapshot. After an error, there is none with the name.
	Put(ctx context.Context, name string, content io.Reader) error
	// Open returns the content of a snapshot. Errors are those of package fs.
	Open(ctx context.Context, name string) (io.ReadCloser, error)
	// List returns all snapshots, the oldest first. Files with other names are not snapshots.
	List(ctx context.Context) ([]Entry, error)
	// Delete deletes a snapshot. It is not an error if there is none.
	Delete(ctx context.Context, name string) error
	// String is the place for people to read.
	String() string
}

// Entry is a stored snapshot.
type Entry struct {
	Name    string
	Created time.Time
	Bytes   int64
}

// timeFormat is that of the time in a name.
const (
	timeFormat = "20060102T150405.000Z"
	suffix     = ".snapshot"
)

// ScheduledPrefix begins the names of snapshots that were saved on schedule.
const ScheduledPrefix = "scheduled"

var (
	validPrefix = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?$`)
	validName   = regexp.MustCompile(`^([a-z0-9][a-z0-9.-]{0,199})-(\d{8}T\d{6}\.\d{3}Z)\.snapshot$`)
	notInName   = regexp.MustCompile(`[^a-z0-9.-]+`)
)

// ValidatePrefix checks what a user wants the name of a snapshot to begin with.
func ValidatePrefix(prefix string) error {
	if !validPrefix.MatchString(prefix) {
		return fmt.Errorf("%q must consist of at most 40 lower-case letters, digits and '-', and begin and end with a letter or digit", prefix)
	}
	// With a dash it could be the prefix of the scheduled snapshots of a server, which are deleted when there are newer ones.
	if prefix == ScheduledPrefix || strings.HasPrefix(prefix, ScheduledPrefix+"-") {
		return fmt.Errorf("%q is for snapshots that are saved on schedule", prefix)
	}
	return nil
}

// newName is the name of a snapshot that a server saves at a time.
func newName(prefix, server string, now time.Time) string {
	return namePrefix(prefix, server) + "-" + now.UTC().Format(timeFormat) + suffix
}

// namePrefix is what the names of all snapshots of a server with a prefix have in common.
func namePrefix(prefix, server string) string {
	server = strings.Trim(notInName.ReplaceAllString(strings.ToLower(server), "-"), "-.")
	return prefix + "-" + server[:min(len(server), 100)]
}

// ParseName returns when the snapshot with a name was saved, and the part of the name before that time.
func ParseName(name string) (prefix string, created time.Time, ok bool) {
	parts := validName.FindStringSubmatch(name)
	if parts == nil {
		return "", time.Time{}, false
	}
	created, err := time.Parse(timeFormat, parts[2])
	return parts[1], created, err == nil
}

// checkName rejects names that Storage does not keep.
func checkName(name string) error {
	if _, _, ok := ParseName(name); !ok {
		return fmt.Errorf("%q is not the name of a snapshot", name)
	}
	return nil
}

func sortEntries(entries []Entry) {
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name))
	})
}

// clockTolerance is how much the clocks of servers may differ.
const clockTolerance = time.Hour

// IsFuture reports whether a snapshot was saved when the clock of its server was wrong: at a time that has not come yet.
func (e Entry) IsFuture(now time.Time) bool { return e.Created.After(now.Add(clockTolerance)) }

// Pruning says which snapshots Prune deletes.
type Pruning struct {
	// Keep is how many of the newest are left, at least one.
	Keep int
	// Prefix, if set, is that of the names, before the time, of the snapshots that count. The others are left.
	Prefix string
	// Saved, if set, is the name of the one that was just saved. It is the newest, whatever time it has.
	Saved string
}

// The order of snapshots by age, before their times are compared. One from the future was saved before the clock was set right.
const (
	ageOfFuture = iota
	ageByTime
	ageOfSaved
)

func (p Pruning) age(e Entry, now time.Time) int {
	switch {
	case e.Name == p.Saved:
		return ageOfSaved
	case e.IsFuture(now):
		return ageOfFuture
	}
	return ageByTime
}

// Prune deletes all but the newest snapshots. It returns the names of those it deleted.
func Prune(ctx context.Context, storage Storage, p Pruning) ([]string, error) {
	if p.Keep < 1 {
		return nil, fmt.Errorf("%d snapshots are to be kept, at least one must be", p.Keep)
	}
	entries, err := storage.List(ctx)
	if err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e Entry) bool {
		of, _, _ := ParseName(e.Name)
		return p.Prefix != "" && of != p.Prefix
	})
	now := time.Now()
	slices.SortStableFunc(entries, func(a, b Entry) int { return cmp.Compare(p.age(a, now), p.age(b, now)) })
	var deleted []string
	for _, e := range entries[:max(0, len(entries)-p.Keep)] {
		if err := storage.Delete(ctx, e.Name); err != nil {
			return deleted, err
		}
		deleted = append(deleted, e.Name)
	}
	return deleted, nil
}
