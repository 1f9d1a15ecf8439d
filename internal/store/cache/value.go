package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"skiff/internal/store"
)

// replacement is what an entry has instead of the bytes with which it was made.
type replacement struct {
	// packed is set for an entry whose bytes are kept compressed (see packed.go).
	packed *packed
	// decrypted is the value of an entry that could not be decrypted when it was read.
	decrypted []byte

	// A value that is neither is evicted: it is read from the store at the last revision that has it. The write that made it was at modified.
	last, modified store.Revision
	// index is the value of the resource's indexed field, if isIndexed.
	index     string
	isIndexed bool
}

// setStored sets the bytes of a new entry, which are compressed if that is worth it.
func (e *Entry) setStored(stored []byte) {
	e.size = uint32(len(stored))
	p := pack(stored)
	if p == nil {
		e.data.Store(unsafe.SliceData(stored))
		return
	}
	replaced := &replacement{packed: p}
	if e.table.resource.Index != nil {
		replaced.index, replaced.isIndexed = e.table.resource.Index(stored)
	}
	e.replacement.Store(replaced)
}

// Stored returns the encoded object, or the encrypted value if it could not be decrypted; nil when it was evicted. It must
// not be changed.
func (e *Entry) Stored() []byte {
	if data := e.data.Load(); data != nil {
		return unsafe.Slice(data, e.size)
	}
	switch replaced := e.replacement.Load(); {
	case replaced == nil:
		return nil
	case replaced.packed != nil:
		return replaced.packed.unpack()
	default:
		return replaced.decrypted
	}
}

// isPacked reports whether the bytes are kept compressed: reading them costs more than a memo.
func (e *Entry) isPacked() bool {
	replaced := e.replacement.Load()
	return replaced != nil && replaced.packed != nil
}

// StoredSize is the number of bytes with which the entry was made, also when they are compressed or were evicted.
func (e *Entry) StoredSize() int { return int(e.size) }

// keptSize is how much memory the bytes took before they were evicted.
func (e *Entry) keptSize() int {
	if replaced := e.replacement.Load(); replaced != nil && replaced.packed != nil {
		return len(replaced.packed.compressed)
	}
	return int(e.size)
}

// hasValue reports whether the entry's stored bytes equal value.
func (e *Entry) hasValue(value []byte) bool {
	if e.isPacked() && len(value) != e.StoredSize() {
		return false
	}
	return bytes.Equal(e.Stored(), value)
}

// encrypted reports whether the store could not decrypt the value when it was read. Nothing is memoized for such an
// entry, because it may be decrypted later.
func (e *Entry) encrypted() bool { return !e.isPacked() && store.IsEncrypted(e.Stored()) }

// Value returns the encoded object, also when it was evicted or could not be decrypted before. It may wait for the store and
// for a KMS plugin.
func (e *Entry) Value() ([]byte, error) {
	value := e.Stored()
	if replaced := e.replacement.Load(); value == nil && replaced != nil {
		var err error
		if value, err = e.readBack(replaced); err != nil {
			return nil, err
		}
	}
	if !store.IsEncrypted(value) {
		return value, nil
	}
	decrypter, ok := e.table.cache.store.(store.Decrypter)
	if !ok {
		return nil, &store.EncryptionError{Key: e.key, Err: store.ErrNoProvider}
	}
	decrypted, err := decrypter.Decrypt(context.Background(), e.key, value)
	if err == nil && e.replacement.CompareAndSwap(nil, &replacement{decrypted: decrypted}) {
		e.data.Store(nil)
	}
	return decrypted, err
}

// evict drops the bytes of an entry that is no longer in the tree. last is the last revision at which the store has them.
func (e *Entry) evict(modified, last store.Revision) {
	evicted := &replacement{last: last, modified: modified}
	evicted.index, evicted.isIndexed = e.indexValue()
	e.replacement.Store(evicted)
	e.data.Store(nil)
}

// indexValue returns the value of the resource's indexed field, false when it cannot be read from the stored bytes.
func (e *Entry) indexValue() (string, bool) {
	if replaced := e.replacement.Load(); replaced != nil && (replaced.isIndexed || replaced.packed != nil) {
		return replaced.index, replaced.isIndexed
	}
	if stored := e.Stored(); stored != nil && e.table.resource.Index != nil {
		return e.table.resource.Index(stored)
	}
	return "", false
}

// readBackTimeout limits the read of an evicted value. Whoever reads an old state waits for it, never the watch feed.
const readBackTimeout = 10 * time.Second

// readBackError: the bytes of an entry were evicted and the store did not return them.
type readBackError struct{ err error }

func (e *readBackError) Error() string { return e.err.Error() }
func (e *readBackError) Unwrap() error { return e.err }

// readBackErrorOf returns the error if it is a readBackError.
func readBackErrorOf(err error) error {
	var failed *readBackError
	if errors.As(err, &failed) {
		return failed
	}
	return nil
}

// isTransient reports whether a later attempt may succeed.
func isTransient(err error) bool {
	var encrypted *store.EncryptionError
	var transient interface{ Transient() bool } // of a codec or encoder that depends on something else, such as a webhook
	return errors.As(err, &encrypted) || readBackErrorOf(err) != nil || errors.Is(err, ErrAbandoned) || errors.As(err, &transient) && transient.Transient()
}

// readBack reads an evicted value from the store.
func (e *Entry) readBack(evicted *replacement) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readBackTimeout)
	defer cancel()
	// A key is the first of those that have it as prefix.
	kvs, _, _, err := e.table.cache.store.List(ctx, e.key, "", 1, evicted.last)
	found := err == nil && len(kvs) > 0 && kvs[0].Key == e.key && kvs[0].Modified == evicted.modified
	switch {
	case found:
		return kvs[0].Value, nil
	case err == nil, errors.Is(err, store.ErrCompacted):
		err = ErrExpired // compacted, or the store was restored from a backup
	}
	return nil, &readBackError{fmt.Errorf("read %s at revision %d from the store: %w", e.key, evicted.last, err)}
}
