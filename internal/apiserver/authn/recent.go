package authn

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"time"
)

// digest stands for a credential where the credential itself must not be kept.
type digest [sha256.Size]byte

// digester hashes credentials with a secret of its own, so that nobody outside can tell which digest is whose.
type digester struct {
	secret [16]byte
}

func newDigester() digester {
	var d digester
	_, _ = rand.Read(d.secret[:]) // never fails
	return d
}

// of hashes the parts, each with its length, so that no two lists of parts look alike.
func (d *digester) of(first string, more []string) digest {
	var space [2048]byte // most tokens fit, and then nothing is allocated
	b := append(space[:0], d.secret[:]...)
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
	recentLimit = 8192
	recentTurn  = 5 * time.Minute
)

// recent remembers values by digest, the ones in use: two generations of at most recentLimit entries. What is asked for moves
// to the young one; what was not asked for during a whole turn goes.
type recent[V any] struct {
	mu         sync.Mutex
	young, old map[digest]V
	turned     time.Time
}

func (r *recent[V]) get(key digest) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok := r.young[key]; ok {
		return v, true
	}
	v, ok := r.old[key]
	if ok {
		r.put(key, v)
	}
	return v, ok
}

func (r *recent[V]) set(key digest, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(key, v)
}

func (r *recent[V]) put(key digest, v V) {
	if now := time.Now(); len(r.young) >= recentLimit || now.Sub(r.turned) > recentTurn {
		r.old, r.young, r.turned = r.young, nil, now
	}
	if r.young == nil {
		r.young = make(map[digest]V)
	}
	r.young[key] = v
}
