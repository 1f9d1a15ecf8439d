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

// How long a key is postponed until the informers have caught up: minWait at first, doubled up to maxWait. After recheckAfter the
// server is asked whether the object still exists.
const (
	minWait      = 2 * time.Millisecond
	maxWait      = 500 * time.Millisecond
	recheckAfter = 10 * time.Second
)

// informerCache is implemented by client.Informers.
type informerCache interface {
	Cached(obj kind.Object) (client.Cached, bool)
}

// liveGetter is implemented by client.Client.
type liveGetter interface {
	GetLive(ctx context.Context, obj kind.Object) (kind.Object, error)
}

// pendingWrites tracks per key the writes that the informers have not observed yet.
//
// Of the objects created or updated, only the newest of each type is kept: an informer observes the resource versions of its type
// in order. The resource version of a deletion is not known; it is observed when the object is missing, has another UID, or has a
// deletion timestamp.
type pendingWrites struct {
	informers informerCache
	server    liveGetter

	mu    sync.Mutex
	byKey map[Key]*keyWrites
}

type keyWrites struct {
	written map[reflect.Type]kind.Object
	deleted []kind.Object
	since   time.Time
	checked time.Time
	delay   time.Duration
}

func newPendingWrites(informers informerCache, server liveGetter) *pendingWrites {
	return &pendingWrites{informers: informers, server: server, byKey: map[Key]*keyWrites{}}
}

func (p *pendingWrites) recordWrite(key Key, obj kind.Object) {
	if p.hasObserved(obj) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.entry(key)
	if last := u.written[reflect.TypeOf(obj)]; last == nil || newer(obj.GetResourceVersion(), last.GetResourceVersion()) {
		u.written[reflect.TypeOf(obj)] = obj
	}
}

func (p *pendingWrites) recordDelete(key Key, obj kind.Object) {
	if p.hasObservedDelete(obj) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.entry(key)
	u.deleted = append(u.deleted, obj)
}

// entry returns the entry of a key. The caller holds mu.
func (p *pendingWrites) entry(key Key) *keyWrites {
	u := p.byKey[key]
	if u == nil {
		u = &keyWrites{written: map[reflect.Type]kind.Object{}, since: time.Now(), checked: time.Now()}
		p.byKey[key] = u
	}
	return u
}

// observed reports whether the informers have observed all writes of the key; if not, it returns the delay until the next check.
// Only the worker that processes the key calls it.
func (p *pendingWrites) observed(ctx context.Context, key Key) (bool, time.Duration) {
	p.mu.Lock()
	u := p.byKey[key]
	p.mu.Unlock()
	if u == nil {
		return true, 0
	}
	recheck := time.Since(u.checked) >= recheckAfter
	if recheck {
		u.checked = time.Now()
	}
	for t, obj := range u.written {
		if p.hasObserved(obj) || recheck && p.isGone(ctx, obj) {
			delete(u.written, t)
		}
	}
	var remaining []kind.Object
	for _, obj := range u.deleted {
		if !p.hasObservedDelete(obj) && !(recheck && p.isGone(ctx, obj)) {
			remaining = append(remaining, obj)
		}
	}
	u.deleted = remaining
	if len(u.written) == 0 && len(u.deleted) == 0 {
		p.mu.Lock()
		delete(p.byKey, key)
		p.mu.Unlock()
		return true, 0
	}
	u.delay = min(max(2*u.delay, minWait), maxWait)
	return false, u.delay
}

// hasObserved reports whether the informer has an object at least as new as obj. It is true for types without an informer.
func (p *pendingWrites) hasObserved(obj kind.Object) bool {
	cached, watched := p.informers.Cached(obj)
	if !watched || !newer(obj.GetResourceVersion(), cached.ResourceVersion) {
		return true
	}
	return cached.Object != nil && !newer(obj.GetResourceVersion(), cached.Object.GetResourceVersion())
}

// hasObservedDelete reports whether the informer no longer has obj, or has it with a deletion timestamp.
func (p *pendingWrites) hasObservedDelete(obj kind.Object) bool {
	cached, watched := p.informers.Cached(obj)
	return !watched || cached.Object == nil || cached.Object.GetUID() != obj.GetUID() || cached.Object.GetDeletionTimestamp() != nil
}

// isGone asks the server whether an object no longer exists. Then the informer may never deliver the pending write. While the object
// exists, the informer will deliver it eventually, and a sync before that would act on a stale cache.
func (p *pendingWrites) isGone(ctx context.Context, obj kind.Object) bool {
	live, err := p.server.GetLive(ctx, obj)
	if err != nil {
		return apierrors.IsNotFound(err)
	}
	return live.GetUID() != obj.GetUID()
}

// newer reports whether resource version a is later than b. An empty b is older than any.
func newer(a, b string) bool {
	if b == "" {
		return a != ""
	}
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}
