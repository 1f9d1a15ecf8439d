package apiserver

import (
	"hash/maphash"
	"runtime"
	"slices"
	"sync"

	"skiff/internal/store/cache"
)

// watchGroup is watchers that send the same bytes: of the same resource in the same encoding, without a selector. One of them, the leader,
// is woken by an event, encodes it and sends it to all others, the followers, without waking their goroutines. It never waits for a client:
// a follower whose client cannot be sent the events at once leaves the group, sends them itself, within the timeout of its writes, and
// joins again. Each watcher keeps its cursor at what its client was sent. That of a follower is used by the leader, with mu held.
type watchGroup struct {
	watchers int // that may join; guarded by watchGroups.mu

	mu     sync.Mutex
	leader *watcher // nil if there are no followers either
	// sent is the position up to which the leader has sent events. Followers are there, or further.
	sent cache.Position
	// members are the leader and its followers, by the address of the client, so that what is sent on a connection is written together.
	members map[string][]*watcher
}

// watchGroups are the groups of a resource.
type watchGroups struct {
	mu     sync.Mutex
	groups map[watchGroupKey]*watchGroup
}

// watchGroupKey is what the watchers of a group have in common.
type watchGroupKey struct {
	table  *cache.Table
	format format
	scope  cache.Scope
	// share is one of GOMAXPROCS groups, which the connections are distributed over so that all CPUs can send.
	share int
}

var clientSeed = maphash.MakeSeed()

func (w *watcher) groupKey() watchGroupKey {
	share := maphash.String(clientSeed, w.req.RemoteAddr) % uint64(runtime.GOMAXPROCS(0))
	return watchGroupKey{table: w.res.table, format: w.out.format, scope: w.match.scope(), share: int(share)}
}

// enterGroup makes the watcher one that can join a group, unless its response cannot be written without waiting for the client, or its
// events cannot be encoded without waiting for a webhook. release ends that.
func (w *watcher) enterGroup() (release func()) {
	direct, ok := w.req.w.ResponseWriter.(directWriter)
	if w.shared == nil || w.encode.webhook || !ok {
		return func() {}
	}
	key := w.groupKey()
	w.group, w.direct, w.signal = w.res.groups.register(key), direct, make(chan struct{}, 1)
	return func() {
		w.group.leave(w)
		w.res.groups.release(key)
	}
}

// register returns the group of a key. release must follow.
func (g *watchGroups) register(key watchGroupKey) *watchGroup {
	g.mu.Lock()
	defer g.mu.Unlock()
	group := g.groups[key]
	if group == nil {
		if g.groups == nil {
			g.groups = map[watchGroupKey]*watchGroup{}
		}
		group = &watchGroup{members: map[string][]*watcher{}}
		g.groups[key] = group
	}
	group.watchers++
	return group
}

// release removes a group that no watcher can join any more.
func (g *watchGroups) release(key watchGroupKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	group := g.groups[key]
	if group.watchers--; group.watchers == 0 {
		delete(g.groups, key)
	}
}

// join makes a watcher that has sent everything the leader or a follower, if it can be. A follower must not use its cursor and its sink until
// it is signalled or has left.
func (g *watchGroup) join(w *watcher) (follows bool) {
	at, ok := w.cursor.Position()
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !ok || g.leader == w:
		return false
	case g.leader == nil:
		g.leader, g.sent = w, at
	case at.Compare(g.sent) < 0:
		return false // the leader has sent events that this watcher must send first
	default:
		follows = true
	}
	select {
	case <-w.signal: // of an earlier membership
	default:
	}
	g.members[w.req.RemoteAddr] = append(g.members[w.req.RemoteAddr], w)
	return follows
}

// leave removes a watcher, if it is a member, before it may have to wait for its client.
func (g *watchGroup) leave(w *watcher) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.remove(w)
	if g.leader == w {
		g.promote()
	}
}

// remove is called with mu held.
func (g *watchGroup) remove(w *watcher) {
	rest := slices.DeleteFunc(g.members[w.req.RemoteAddr], func(member *watcher) bool { return member == w })
	if len(rest) > 0 {
		g.members[w.req.RemoteAddr] = rest
	} else {
		delete(g.members, w.req.RemoteAddr)
	}
}

// promote makes a follower the leader. Those that have not been sent all that it has leave. It is called with mu held.
func (g *watchGroup) promote() {
	g.leader = nil
	for _, members := range g.members {
		g.leader = members[0]
		break
	}
	if g.leader == nil {
		return
	}
	g.sent, _ = g.leader.cursor.Position()
	for _, members := range g.members {
		for _, w := range slices.Clone(members) {
			if at, _ := w.cursor.Position(); at.Compare(g.sent) < 0 {
				g.dismiss(w)
			}
		}
	}
	g.leader.notify() // last: from now on it uses its cursor
}

// dismiss makes a follower go on by itself. It is called with mu held.
func (g *watchGroup) dismiss(w *watcher) {
	g.remove(w)
	w.notify()
}

// notify wakes a follower that has become the leader, or is no longer a member.
func (w *watcher) notify() {
	select {
	case w.signal <- struct{}{}:
	default: // it has not yet received the last signal
	}
}

// send sends a batch that the leader has polled to all members. It returns false if the leader has to send it itself, because it is not the
// leader or its client cannot be sent it at once; it then is no longer a member.
func (g *watchGroup) send(leader *watcher, b *batch) bool {
	reached, _ := leader.cursor.Position()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leader != leader {
		return false
	}
	var late []*watcher
	for _, members := range g.members {
		late = g.sendTogether(members, b, reached, late)
	}
	g.sent = reached
	for _, w := range late {
		if w != leader {
			g.dismiss(w)
		}
	}
	if slices.Contains(late, leader) {
		g.remove(leader)
		g.promote()
		return false
	}
	return true
}

// sendTogether sends a batch on one connection. It appends the watchers that cannot be sent it to late. It is called with mu held.
func (g *watchGroup) sendTogether(members []*watcher, b *batch, reached cache.Position, late []*watcher) []*watcher {
	unwritten := 0
	flush := func(w *watcher) {
		// Count first: a client that has seen an event must find it counted.
		w.res.metrics.watched(unwritten, b.count, len(b.bytes))
		unwritten = 0
		w.direct.FlushPending()
	}
	for _, w := range members {
		if w != g.leader { // whose cursor is already there
			at, _ := w.cursor.Position()
			if at.Compare(reached) >= 0 {
				continue // it sent these events before it joined
			}
			if at.Compare(g.sent) != 0 {
				late = append(late, w)
				continue
			}
		}
		if b.count > 0 && !w.trySend(b.bytes) {
			flush(w)
			if !w.trySend(b.bytes) {
				late = append(late, w)
				continue
			}
		}
		unwritten++
		if w != g.leader {
			w.cursor.MoveTo(reached)
		}
	}
	if b.count > 0 {
		for _, w := range members { // of one connection: after the first there is nothing left to write
			flush(w)
		}
	}
	return late
}

// directWriter is the writer of a response that can be written without waiting for the client, as that of internal/http2 can.
type directWriter interface {
	// TryWrite writes all of p, or nothing. FlushPending must follow.
	TryWrite(p []byte) bool
	FlushPending()
}

// trySend sends events without waiting for the client, and reports whether it did. A flush of the writer must follow.
func (w *watcher) trySend(events []byte) bool {
	if !w.direct.TryWrite(events) {
		return false
	}
	w.req.w.bytes += int64(len(events))
	return true
}
