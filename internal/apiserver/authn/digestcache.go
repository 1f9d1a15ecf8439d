package authn

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"time"
)

// digest identifies a credential that must not be kept itself.
type digest [sha256.Size]byte

// digester hashes credentials with a random secret, so that digests cannot be computed outside this process.
type digester struct {
	secret [16]byte
}

func newDigester() digester {
	var d digester
	_, _ = rand.Read(d.secret[:]) // never fails
	return d
}

// sum hashes the parts, each with its length, so that different lists of parts have different digests.
func (d *digester) sum(first string, more []string) digest {
	var buffer [2048]byte // large enough for most tokens: no allocation
	b := append(buffer[:0], d.secret[:]...)
	b = appendPart(b, first)
	for _, part := range more {
		b = appendPart(b, part)
	}
	return sha256.Sum256(b)
}

func appendPart(b []byte, part string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(part))), part...)
}

const (
	generationEntries = 8192
	generationAge     = 5 * time.Minute
)

// digestCache caches values by digest in two generations of at most generationEntries entries. A hit moves an entry to the
// young generation. When the young generation is full or older than generationAge it becomes the old one, whose entries are
// dropped.
type digestCache[V any] struct {
	mu         sync.Mutex
	young, old map[digest]V
	youngSince time.Time
}

func (c *digestCache[V]) get(key digest) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok := c.young[key]; ok {
		return v, true
	}
	v, ok := c.old[key]
	if ok {
		c.put(key, v)
	}
	return v, ok
}

func (c *digestCache[V]) set(key digest, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(key, v)
}

// put must be called with mu held.
func (c *digestCache[V]) put(key digest, v V) {
	if now := time.Now(); len(c.young) >= generationEntries || now.Sub(c.youngSince) > generationAge {
		c.old, c.young, c.youngSince = c.young, nil, now
	}
	if c.young == nil {
		c.young = make(map[digest]V)
	}
	c.young[key] = v
}
