package cache

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"reflect"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"unsafe"
	"weak"

	"skiff/internal/kind"
	"skiff/internal/store"
)

// Entry is one object as of one write. It never changes. Whatever is derived from its bytes (the decoded object, labels,
// encodings) is made once, shared, and must not be changed.
//
// There are as many entries as objects in the cluster, so an entry is small: its bytes, and pointers to derived values.
// The decoded object is held by a weak pointer and lives as long as it is in use. Encodings and labels are dropped when
// they have not been used for a while (see Cache.sweep). The bytes of an entry that only history references may be evicted;
// they are read back from the store when they are needed (see value.go).
type Entry struct {
	table       *Table
	key         string
	data        atomic.Pointer[byte] // the stored bytes; nil when replacement has them, or says where they are
	size        uint32               // of the stored bytes
	revision    store.Revision
	hash        uint64 // of the key
	object      atomic.Pointer[reference]
	memos       atomic.Pointer[memo]
	replacement atomic.Pointer[replacement]
}

// EncodingID identifies an encoding of an entry: its API version and format. Equal IDs must mean equal bytes.
type EncodingID struct{ Version, Format string }

// The IDs under which labels and fields are kept among the encodings.
var (
	labelsID = EncodingID{Format: "\x00labels"}
	fieldsID = EncodingID{Format: "\x00fields"}
)

// memo is a value derived from an entry, in a linked list.
type memo struct {
	next atomic.Pointer[memo]
	id   EncodingID
	once sync.Once
	used atomic.Uint32 // the cache's epoch at its last use
	size atomic.Uint32 // of bytes; may be read without waiting for once
	// outdated: the error may be gone at the next attempt, so the memo is not used again.
	outdated atomic.Bool
	bytes    []byte
	values   map[string]string
	err      error
}

// reference is a weak pointer to a decoded object of any type.
type reference struct {
	pointer weak.Pointer[byte]
	kind    reflect.Type // the type that the pointer points to
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
	// The pointer was made from a value of this type.
	return reflect.NewAt(r.kind, unsafe.Pointer(pointer)).Interface().(kind.Object)
}

// Key is the key in the store, including the table's prefix.
func (e *Entry) Key() string { return e.key }

// keySeed prevents clients from choosing keys with known hashes.
var keySeed = maphash.MakeSeed()

// KeyHash is a hash of the key. It is stable for the lifetime of the process.
func (e *Entry) KeyHash() uint64 { return e.hash }

// Revision is the revision of the write that made the entry: the object's resourceVersion.
func (e *Entry) Revision() store.Revision { return e.revision }

// decoding prevents two goroutines from decoding the same entry at once; the revision selects the lock.
var decoding [64]sync.Mutex

// Object returns the decoded object. It is shared and must not be changed.
func (e *Entry) Object() (kind.Object, error) {
	if obj := e.object.Load().value(); obj != nil {
		return obj, nil
	}
	// The store and a KMS plugin may be slow; the lock, which other entries share, is not held meanwhile.
	value, err := e.Value()
	if err != nil {
		return nil, err
	}
	lock := &decoding[uint64(e.revision)%uint64(len(decoding))]
	lock.Lock()
	defer lock.Unlock()
	if obj := e.object.Load().value(); obj != nil {
		return obj, nil
	}
	obj, err := e.table.resource.Codec.Decode(value, e.revision)
	if err != nil {
		return nil, fmt.Errorf("decode %s at revision %d: %w", e.key, e.revision, err)
	}
	e.object.Store(newReference(obj))
	return obj, nil
}

// setObject sets the entry's decoded object.
func (e *Entry) setObject(obj kind.Object) {
	e.object.Store(newReference(obj))
}

// Labels returns the object's labels, nil when it has none or cannot be decoded. The map must not be changed. The error is
// not nil when the bytes were evicted and cannot be read back.
func (e *Entry) Labels() (map[string]string, error) {
	if obj := e.object.Load().value(); obj != nil {
		return obj.GetLabels(), nil
	}
	found := e.findMemo(labelsID)
	var labels map[string]string
	parsed := false
	if found == nil {
		if e.encrypted() {
			obj, err := e.Object()
			if err != nil {
				return nil, readBackErrorOf(err)
			}
			return obj.GetLabels(), nil
		}
		if labels, parsed = storedLabels(e.Stored()); parsed && len(labels) == 0 && !e.isPacked() {
			return nil, nil // finding that again costs no more than a memo
		}
		found = e.addMemo(labelsID)
	}
	found.once.Do(func() {
		defer found.complete(e)
		if !parsed {
			labels, parsed = storedLabels(e.Stored())
		}
		if !parsed {
			obj, err := e.Object()
			if err != nil {
				found.err = readBackErrorOf(err)
				return
			}
			labels = obj.GetLabels()
		}
		found.values, found.err = labels, nil
	})
	return found.values, found.err
}

// Fields returns the values for field selectors, nil when there are none or the object cannot be decoded. The map must
// not be changed. The error is as for Labels, or that of Resource.Fields.
func (e *Entry) Fields(ctx context.Context) (map[string]string, error) {
	if e.table.resource.Fields == nil {
		return nil, nil
	}
	found := e.findMemo(fieldsID)
	if found == nil {
		if e.encrypted() {
			return e.makeFields(ctx)
		}
		found = e.addMemo(fieldsID)
	}
	found = e.make(found, func(m *memo) { m.values, m.err = e.makeFields(ctx) })
	return found.values, found.err
}

func (e *Entry) makeFields(ctx context.Context) (map[string]string, error) {
	obj, err := e.Object()
	if err != nil {
		return nil, readBackErrorOf(err)
	}
	values, err := e.table.resource.Fields(ctx, []kind.Object{obj})
	if err != nil {
		return nil, err
	}
	return values[0], nil
}

// FieldsOf is Fields for several entries of one table, in order. Values that do not exist yet are made together.
func FieldsOf(ctx context.Context, entries []*Entry) ([]map[string]string, error) {
	values := make([]map[string]string, len(entries))
	if len(entries) == 0 || entries[0].table.resource.Fields == nil {
		return values, nil
	}
	var missing []int
	var objs []kind.Object
	for i, e := range entries {
		var err error
		if e.findMemo(fieldsID) != nil {
			if values[i], err = e.Fields(ctx); err != nil {
				return nil, err
			}
			continue
		}
		obj, err := e.Object()
		if err != nil {
			if err = readBackErrorOf(err); err != nil {
				return nil, err
			}
			continue // an object that cannot be decoded has none
		}
		missing, objs = append(missing, i), append(objs, obj)
	}
	if len(objs) == 0 {
		return values, nil
	}
	made, err := entries[0].table.resource.Fields(ctx, objs)
	if err != nil {
		return nil, err
	}
	for n, i := range missing {
		values[i] = made[n]
		if e := entries[i]; !e.encrypted() {
			e.make(e.addMemo(fieldsID), func(m *memo) { m.values, m.err = made[n], nil })
		}
	}
	return values, nil
}

// Encoding returns the bytes derived from the entry under the id. encode is called when they do not exist or have been
// dropped. Its error is kept like a result, unless it is transient: the next attempt may succeed.
func (e *Entry) Encoding(id EncodingID, encode func(*Entry) ([]byte, error)) ([]byte, error) {
	found := e.findMemo(id)
	if found == nil {
		if e.encrypted() {
			return encode(e)
		}
		found = e.addMemo(id)
	}
	return e.fill(found, encode)
}

// RepeatedEncoding is Encoding that keeps the bytes only if they were requested before, not long ago. Many large objects that are each read once
// would otherwise take twice their memory for a while.
func (e *Entry) RepeatedEncoding(id EncodingID, encode func(*Entry) ([]byte, error)) ([]byte, error) {
	requested := EncodingID{Version: id.Version, Format: id.Format + "\x00requested"}
	if e.findMemo(id) == nil && e.findMemo(requested) == nil && !e.encrypted() {
		e.addMemo(requested)
		return encode(e)
	}
	return e.Encoding(id, encode)
}

// HasEncoding reports whether Encoding need not make the bytes.
func (e *Entry) HasEncoding(id EncodingID) bool { return e.findMemo(id) != nil }

// IsEncoded reports whether Encoding neither makes the bytes nor waits for another goroutine that does.
func (e *Entry) IsEncoded(id EncodingID) bool {
	m := e.findMemo(id)
	return m != nil && m.size.Load() > 0
}

// ListEncoding is Encoding for lists, whose clients may read them long after an entry was superseded. Such an entry keeps
// no new encodings: hardly anybody else would use them, and sweeps do not find an entry that only lists reference. Nor are
// encodings kept that exceed the budget.
func (e *Entry) ListEncoding(id EncodingID, encode func(*Entry) ([]byte, error)) ([]byte, error) {
	found := e.findMemo(id)
	if found == nil {
		if e.encrypted() || e.table.cache.memoBytes.Load() > memoBudget || e.table.Get(e.key) != e {
			return encode(e)
		}
		found = e.addMemo(id)
	}
	return e.fill(found, encode)
}

// fill returns the bytes of a memo, making them if it is empty.
func (e *Entry) fill(found *memo, encode func(*Entry) ([]byte, error)) ([]byte, error) {
	found = e.make(found, func(m *memo) {
		m.bytes, m.err = encode(e)
		m.size.Store(uint32(len(m.bytes)))
		e.table.cache.addMemoBytes(len(m.bytes))
	})
	return found.bytes, found.err
}

// make returns the memo, or the one that takes its place, when it was made: by this call, or by another one for which it waits. If that one's
// request ends, this call makes a memo itself.
func (e *Entry) make(m *memo, do func(m *memo)) *memo {
	for {
		own := false
		m.once.Do(func() {
			own = true
			defer m.complete(e)
			do(m)
		})
		if own || !errors.Is(m.err, ErrAbandoned) {
			return m
		}
		m = e.addMemo(m.id)
	}
}

// complete ends the making of a memo, and must be deferred. A panic becomes the error of everybody who requests the memo.
func (m *memo) complete(e *Entry) {
	if cause := recover(); cause != nil {
		m.bytes, m.values = nil, nil
		m.err = e.table.cache.recovered(e.key, cause)
	}
	if m.err != nil && isTransient(m.err) {
		m.outdated.Store(true)
	}
}

// errNotMade is the error of a memo whose maker ended its goroutine.
var errNotMade = errors.New("encoding was not completed")

// recovered logs and counts a panic in code that derives a value from an object, and returns an error for the requests
// that need the value.
func (c *Cache) recovered(key string, cause any) error {
	c.panics.Add(1)
	c.log.Error("encoding an object panicked", "key", key, "cause", cause, "stack", string(debug.Stack()))
	return fmt.Errorf("encoding %s caused a panic: %v", key, cause)
}

// Panics counts the panics in codecs and encoders, which became errors.
func (c *Cache) Panics() int64 { return c.panics.Load() }

// findMemo returns the memo with the id, nil when there is none.
func (e *Entry) findMemo(id EncodingID) *memo {
	for m := e.memos.Load(); m != nil; m = m.next.Load() {
		if m.id == id && !m.outdated.Load() {
			if epoch := e.table.cache.epoch.Load(); m.used.Load() != epoch {
				m.used.Store(epoch)
			}
			return m
		}
	}
	return nil
}

// addMemo adds an empty memo with the id, unless another goroutine just did.
func (e *Entry) addMemo(id EncodingID) *memo {
	m := &memo{id: id, err: errNotMade}
	m.used.Store(e.table.cache.epoch.Load())
	for {
		head := e.memos.Load()
		if found := e.findMemo(id); found != nil {
			return found
		}
		m.next.Store(head)
		if e.memos.CompareAndSwap(head, m) {
			return m
		}
	}
}

// dropMemos drops the memos that were not used since the previous epoch, or all, and returns the size of the others.
// Only one goroutine may call it.
func (e *Entry) dropMemos(epoch uint32, all bool) (kept int) {
	stale := func(m *memo) bool { return all || epoch-m.used.Load() > 1 || m.outdated.Load() }
	head := e.memos.Load()
	for head != nil && stale(head) {
		// Another goroutine may add a memo in front meanwhile; then examine that one first.
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
