package dns

import (
	"hash/maphash"
	"sync"
	"time"
)

const (
	// cacheShards is the number of parts of a cache that are locked separately.
	cacheShards = 64
	// maxShardEntries and maxShardBytes bound a shard: about 10,000 messages in a cache, as in CoreDNS, and 8 MiB.
	maxShardEntries = 156
	maxShardBytes   = 128 << 10
)

// responseCache holds responses of other name servers. When a shard is full, any other entry is dropped, expired ones first if they are
// found.
type responseCache struct {
	seed   maphash.Seed
	shards [cacheShards]cacheShard
	// onEvict is called when an entry is dropped before it has expired.
	onEvict func()
}

type cacheShard struct {
	mu      sync.RWMutex
	entries map[string]cacheEntry
	bytes   int
}

type cacheEntry struct {
	message *message
	stored  time.Time
}

func newResponseCache(onEvict func()) *responseCache {
	c := &responseCache{seed: maphash.MakeSeed(), onEvict: onEvict}
	for i := range c.shards {
		c.shards[i].entries = map[string]cacheEntry{}
	}
	return c
}

// cacheKey appends the key of a query: name, type, and whether DNSSEC records or unchecked data are wanted.
func cacheKey(b []byte, q *query) []byte {
	b = append(b, q.name[:q.nameSize]...)
	var options byte
	if q.dnssec {
		options |= 1
	}
	if q.flags&flagCheckingDisabled != 0 {
		options |= 2
	}
	return append(b, byte(q.qtype>>8), byte(q.qtype), options)
}

func (c *responseCache) shard(key []byte) *cacheShard {
	return &c.shards[maphash.Bytes(c.seed, key)%cacheShards]
}

// get returns a message that has not expired, and its age.
func (c *responseCache) get(key []byte, now time.Time) (*message, time.Duration) {
	s := c.shard(key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	entry, ok := s.entries[string(key)]
	if !ok {
		return nil, 0
	}
	age := max(0, now.Sub(entry.stored))
	if age >= entry.message.lifetime {
		return nil, 0
	}
	return entry.message, age
}

// put stores a message, if it may be cached.
func (c *responseCache) put(key []byte, m *message, now time.Time) {
	if m.lifetime <= 0 || m.size()+len(key) > maxShardBytes/4 {
		return
	}
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(string(key))
	s.makeSpace(m.size()+len(key), now, c.onEvict)
	s.entries[string(key)] = cacheEntry{message: m, stored: now}
	s.bytes += m.size() + len(key)
}

// makeSpace removes entries until one of the size fits. It is called with mu held.
func (s *cacheShard) makeSpace(size int, now time.Time, onEvict func()) {
	isFull := func() bool { return len(s.entries) >= maxShardEntries || s.bytes+size > maxShardBytes }
	if !isFull() {
		return
	}
	for key, entry := range s.entries {
		if now.Sub(entry.stored) >= entry.message.lifetime {
			s.remove(key)
		}
	}
	// The order of a map is random enough: no client can choose what is dropped.
	for key := range s.entries {
		if !isFull() {
			return
		}
		s.remove(key)
		onEvict()
	}
}

// remove removes an entry. It is called with mu held.
func (s *cacheShard) remove(key string) {
	if entry, ok := s.entries[key]; ok {
		s.bytes -= entry.message.size() + len(key)
		delete(s.entries, key)
	}
}

// purge removes all entries.
func (c *responseCache) purge() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		clear(s.entries)
		s.bytes = 0
		s.mu.Unlock()
	}
}

// entries is the number of entries.
func (c *responseCache) entries() int {
	total := 0
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.RLock()
		total += len(s.entries)
		s.mu.RUnlock()
	}
	return total
}
