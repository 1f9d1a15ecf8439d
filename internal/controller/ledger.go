package controller

import (
	"context"
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"skiff/internal/client"
	"skiff/internal/kind"
)

// How long a key waits for the informers: a few milliseconds at first, doubled up to longestWait. A key that has waited for
// doubtAfter asks the server whether what it waits for is still to come.
const (
	firstWait   = 2 * time.Millisecond
	longestWait = 500 * time.Millisecond
	doubtAfter  = 10 * time.Second
)

// looker is what the ledger needs of informers.
type looker interface {
	Look(obj kind.Object) (client.Seen, bool)
}

// reader is what the ledger needs of a client.
type reader interface {
	Read(ctx context.Context, obj kind.Object) (kind.Object, error)
}

// ledger remembers per key what was written and is not yet seen by the informers.
//
// For objects that were created or changed, the newest write of each type is enough: an informer takes in the revisions of its
// type in order. A deletion has no revision we know of; it is seen when the object is gone, is another one, or is
// marked for deletion.
type ledger struct {
	informers looker
	server    reader

	mu    sync.Mutex
	byKey map[Key]*unseen
}

type unseen struct {
	written map[reflect.Type]kind.Object
	deleted []kind.Object
	since   time.Time
	asked   time.Time
	wait    time.Duration
}

func newLedger(informers looker, server reader) *ledger {
	return &ledger{informers: informers, server: server, byKey: map[Key]*unseen{}}
}

func (l *ledger) wrote(key Key, obj kind.Object) {
	if l.hasSeen(obj) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.of(key)
	if last := u.written[reflect.TypeOf(obj)]; last == nil || newer(obj.GetResourceVersion(), last.GetResourceVersion()) {
		u.written[reflect.TypeOf(obj)] = obj
	}
}

func (l *ledger) deleted(key Key, obj kind.Object) {
	if l.hasSeenDeleted(obj) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.of(key)
	u.deleted = append(u.deleted, obj)
}

// of returns the entry of a key, with the lock held.
func (l *ledger) of(key Key) *unseen {
	u := l.byKey[key]
	if u == nil {
		u = &unseen{written: map[reflect.Type]kind.Object{}, since: time.Now(), asked: time.Now()}
		l.byKey[key] = u
	}
	return u
}

// ready says whether the informers have taken in all that was written for the key; if not, how long to wait before asking
// again. Only the worker that has the key calls it.
func (l *ledger) ready(ctx context.Context, key Key) (bool, time.Duration) {
	l.mu.Lock()
	u := l.byKey[key]
	l.mu.Unlock()
	if u == nil {
		return true, 0
	}
	doubt := time.Since(u.asked) >= doubtAfter
	if doubt {
		u.asked = time.Now()
	}
	for t, obj := range u.written {
		if l.hasSeen(obj) || doubt && l.overtaken(ctx, obj) {
			delete(u.written, t)
		}
	}
	var still []kind.Object
	for _, obj := range u.deleted {
		if !l.hasSeenDeleted(obj) && !(doubt && l.overtaken(ctx, obj)) {
			still = append(still, obj)
		}
	}
	u.deleted = still
	if len(u.written) == 0 && len(u.deleted) == 0 {
		l.mu.Lock()
		delete(l.byKey, key)
		l.mu.Unlock()
		return true, 0
	}
	u.wait = min(max(2*u.wait, firstWait), longestWait)
	return false, u.wait
}

// hasSeen says whether the informer has an object at least as new as obj. A type nobody watches is never waited for.
func (l *ledger) hasSeen(obj kind.Object) bool {
	seen, watched := l.informers.Look(obj)
	if !watched || !newer(obj.GetResourceVersion(), seen.Revision) {
		return true
	}
	return seen.Object != nil && !newer(obj.GetResourceVersion(), seen.Object.GetResourceVersion())
}

func (l *ledger) hasSeenDeleted(obj kind.Object) bool {
	seen, watched := l.informers.Look(obj)
	return !watched || seen.Object == nil || seen.Object.GetUID() != obj.GetUID() || seen.Object.GetDeletionTimestamp() != nil
}

// overtaken asks the server whether an object is gone, in which case the informer may never show the write we wait for. An
// object that is there will reach the informer, however long it takes: acting before would be acting on old news.
func (l *ledger) overtaken(ctx context.Context, obj kind.Object) bool {
	fresh, err := l.server.Read(ctx, obj)
	if err != nil {
		return apierrors.IsNotFound(err)
	}
	return fresh.GetUID() != obj.GetUID()
}

// newer says whether revision a is later than b. An informer that has no revision yet has seen nothing.
func newer(a, b string) bool {
	if b == "" {
		return a != ""
	}
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}
