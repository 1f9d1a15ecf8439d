package cache

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"
	"weak"

	"github.com/klauspost/compress/s2"

	"skiff/internal/store"
)

// minPackedBytes is the size from which the bytes of an entry are kept compressed. Large objects are mostly text: definitions of custom resources, their
// objects, ConfigMaps. They are few, change rarely, and history keeps their former values too.
const minPackedBytes = 32 << 10

// packed are compressed bytes. The bytes themselves are held by a weak pointer, as decoded objects are: readers at the same time share them.
type packed struct {
	compressed []byte
	size       int
	plain      atomic.Pointer[weak.Pointer[byte]]
}

// packBuffers are reused: the longest possible result is longer than the input.
var packBuffers = sync.Pool{New: func() any { return new([]byte) }}

// pack compresses the bytes of an entry. It returns nil if they are few or encrypted, or if it would save less than half.
func pack(stored []byte) *packed {
	if len(stored) < minPackedBytes || store.IsEncrypted(stored) {
		return nil
	}
	buffer := packBuffers.Get().(*[]byte)
	defer packBuffers.Put(buffer)
	*buffer = s2.Encode((*buffer)[:cap(*buffer)], stored)
	if len(*buffer) > len(stored)/2 {
		return nil
	}
	p := &packed{compressed: bytes.Clone(*buffer), size: len(stored)}
	p.setPlain(stored)
	return p
}

func (p *packed) setPlain(plain []byte) {
	pointer := weak.Make(unsafe.SliceData(plain))
	p.plain.Store(&pointer)
}

// unpack returns the bytes. They must not be changed.
func (p *packed) unpack() []byte {
	if plain := p.plain.Load().Value(); plain != nil {
		return unsafe.Slice(plain, p.size)
	}
	plain, err := s2.Decode(nil, p.compressed)
	if err != nil {
		panic(fmt.Sprintf("cache: compressed bytes of an entry have changed: %v", err))
	}
	p.setPlain(plain)
	return plain
}
