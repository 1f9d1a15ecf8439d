package cache

import (
	"context"
	"fmt"
	"hash/maphash"
	"reflect"
	"sync"
	"sync/atomic"
	"unsafe"
	"weak"

	"skiff/internal/kind"
	"skiff/internal/store"
)

// Entry is one object as one write left it. It never changes. What is made of its bytes (the decoded object, labels,
// encodings) is made once, shared by all, and must not be changed by anyone.
//
// There are as many entries as objects in the cluster, so an entry holds little: its bytes, and pointers to what was
// made of them. A decoded object is held weakly: it lives as long as somebody uses it. Encodings and
// labels live until nobody has asked for them for a while (see Cache.sweep).
type Entry struct {
	table    *Table
	key      string
	stored   []byte
	revision store.Revision
	hash     uint64 // of the key
	object   atomic.Pointer[reference]
	memos    atomic.Pointer[memo]
}

// EncodingID names an encoding of an entry: the API version it is in, and the format of its bytes. Any two strings
// will do, as long as equal IDs mean equal bytes.
type EncodingID struct{ Version, Format string }

// The names under which labels and fields are kept among the encodings.
var (
	labelsID = EncodingID{Format: "\x00labels"}
	fieldsID = EncodingID{Format: "\x00fields"}
)

// memo is something made from an entry, in a list of them.
type memo struct {
	next   atomic.Pointer[memo]
	id     EncodingID
	once   sync.Once
	used   atomic.Uint32 // the cache's epoch when it was last asked for
	size   atomic.Uint32 // of bytes, for those who did not wait for once
	bytes  []byte
	values map[string]string
	err    error
}

// reference is a weak pointer to a decoded object, whatever its type.
type reference struct {
	pointer weak.Pointer[byte]
	kind    reflect.Type // what the pointer points to
}

func newReference(obj kind.Object) *reference {
	v := reflect.ValueOf(obj)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return nil
	}
	return &reference{pointer: weak.Make((*byte)(v.UnsafePointer())), kind: v.Type().Elem()}
}

func (r *reference) value() kind.Object {
	if r == nil {
		return nil
	}
	pointer := r.pointer.Value()
	if pointer == nil {
		return nil
	}
	// The pointer was taken from a value of this very type.
	return reflect.NewAt(r.kind, unsafe.Pointer(pointer)).Interface().(kind.Object)
}

// Key is the key in the store, the table's prefix included.
func (e *Entry) Key() string { return e.key }

// keySeed keeps clients from choosing keys whose hashes they know.
var keySeed = maphash.MakeSeed()

// KeyHash is a hash of the key, the same for as long as the process lives.
func (e *Entry) KeyHash() uint64 { return e.hash }

// Revision is the revision of the write that made the entry: the object's resourceVersion.
func (e *Entry) Revision() store.Revision { return e.revision }

// Stored returns the bytes of the object, or those in the store where they could not be opened. They must not be changed.
func (e *Entry) Stored() []byte { return e.stored }

// decoding keeps two goroutines from decoding one entry at the same time; an entry finds its lock by revision.
var decoding [64]sync.Mutex

// Object returns the decoded object, which everybody shares and nobody may change.
func (e *Entry) Object() (kind.Object, error) {
	if obj := e.object.Load().value(); obj != nil {
		return obj, nil
	}
	lock := &decoding[uint64(e.revision)%uint64(len(decoding))]
	lock.Lock()
	defer lock.Unlock()
	if obj := e.object.Load().value(); obj != nil {
		return obj, nil
	}
	value, err := e.value()
	if err != nil {
		return nil, err
	}
	obj, err := e.table.resource.Codec.Decode(value, e.revision)
	if err != nil {
		return nil, fmt.Errorf("decode %s at revision %d: %w", e.key, e.revision, err)
	}
	e.object.Store(newReference(obj))
	return obj, nil
}

// sealed reports whether the store could not open the value when it was read. Nothing is remembered of such an entry, because
// it may be opened later.
func (e *Entry) sealed() bool { return store.Sealed(e.stored) }

// value is what the object is decoded from.
func (e *Entry) value() ([]byte, error) {
	if !e.sealed() {
		return e.stored, nil
	}
	opener, ok := e.table.cache.store.(store.Opener)
	if !ok {
		return nil, &store.SealError{Key: e.key, Err: store.ErrNotConfigured}
	}
	return opener.Open(context.Background(), e.key, e.stored)
}

// adopt makes the object the entry's decoded object.
func (e *Entry) adopt(obj kind.Object) {
	e.object.Store(newReference(obj))
}

// Labels returns the object's labels, nil when it has none or cannot be decoded. The map must not be changed.
func (e *Entry) Labels() map[string]string {
	if obj := e.object.Load().value(); obj != nil {
		return obj.GetLabels()
	}
	if e.sealed() {
		if obj, err := e.Object(); err == nil {
			return obj.GetLabels()
		}
		return nil
	}
	found := e.recall(labelsID)
	var labels map[string]string
	parsed := false
	if found == nil {
		if labels, parsed = storedLabels(e.stored); parsed && len(labels) == 0 {
			return nil // as quickly found again as remembered
		}
		found = e.remember(labelsID)
	}
	found.once.Do(func() {
		if !parsed {
			labels, parsed = storedLabels(e.stored)
		}
		if !parsed {
			if obj, err := e.Object(); err == nil {
				labels = obj.GetLabels()
			}
		}
		found.values = labels
	})
	return found.values
}

// Fields returns the values that field selectors can ask for, nil when there are none or the object cannot be decoded.
// The map must not be changed.
func (e *Entry) Fields() map[string]string {
	if e.table.resource.Fields == nil {
		return nil
	}
	if e.sealed() {
		if obj, err := e.Object(); err == nil {
			return e.table.resource.Fields(obj)
		}
		return nil
	}
	found := e.recall(fieldsID)
	if found == nil {
		found = e.remember(fieldsID)
	}
	found.once.Do(func() {
		if obj, err := e.Object(); err == nil {
			found.values = e.table.resource.Fields(obj)
		}
	})
	return found.values
}

// Encoding returns the bytes made from the entry under the id. make is called when nobody made them before, or when they
// have not been asked for in a while; its error is remembered like a result.
func (e *Entry) Encoding(id EncodingID, make func(*Entry) ([]byte, error)) ([]byte, error) {
	if e.sealed() {
		return make(e)
	}
	found := e.recall(id)
	if found == nil {
		found = e.remember(id)
	}
	found.once.Do(func() {
		found.bytes, found.err = make(e)
		found.size.Store(uint32(len(found.bytes)))
		e.table.cache.remembered(len(found.bytes))
	})
	return found.bytes, found.err
}

// recall finds what was made under the id.
func (e *Entry) recall(id EncodingID) *memo {
	for m := e.memos.Load(); m != nil; m = m.next.Load() {
		if m.id == id {
			if epoch := e.table.cache.epoch.Load(); m.used.Load() != epoch {
				m.used.Store(epoch)
			}
			return m
		}
	}
	return nil
}

// remember makes a place for what will be made under the id, unless somebody else just did.
func (e *Entry) remember(id EncodingID) *memo {
	m := &memo{id: id}
	m.used.Store(e.table.cache.epoch.Load())
	for {
		head := e.memos.Load()
		if found := e.recall(id); found != nil {
			return found
		}
		m.next.Store(head)
		if e.memos.CompareAndSwap(head, m) {
			return m
		}
	}
}

// forget drops what nobody asked for since the epoch before, or everything, and returns the bytes that stay.
// Only one goroutine may call it.
func (e *Entry) forget(epoch uint32, all bool) (kept int) {
	stale := func(m *memo) bool { return all || epoch-m.used.Load() > 1 }
	head := e.memos.Load()
	for head != nil && stale(head) {
		// Somebody may add a memo in front meanwhile; then look at that one first.
		e.memos.CompareAndSwap(head, head.next.Load())
		head = e.memos.Load()
	}
	for m := head; m != nil; {
		kept += int(m.size.Load())
		next := m.next.Load()
		for next != nil && stale(next) {
			next = next.next.Load()
		}
		m.next.Store(next)
		m = next
	}
	return kept
}
